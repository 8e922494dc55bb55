# SPDX-License-Identifier: Apache-2.0
"""The part of a model card that states how a model was trained under a token budget, and with what result."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from .tables import markdown_table

_SHOWN = "method method_kwargs budget_fraction budget_reading num_generations marker keep_probability".split()
_SHOWN += ["max_completion_length"]
_FOLLOWED = "reward duet/planned_tokens duet/generated_tokens duet/abort_rate duet/trim_rate".split()
_FOLLOWED += ["duet/poll_threshold", "duet/abort_threshold"]
_HELD_OUT = re.compile(r"held_out/[^/]+/(?:mean@\d+(?:_low|_high)?|greedy)")


def card_section(
    settings: Mapping[str, Any],
    history: Sequence[Mapping[str, Any]],
    configuration: str,
    versions: Mapping[str, str],
    hardware: Mapping[str, Any],
) -> str:
    """A section in Markdown, beginning with its heading.

    `settings` are the fields of the configuration, `history` is `trainer.state.log_history`, `configuration` is YAML
    that a recipe reads back.
    """
    names = [*_FOLLOWED, *dict.fromkeys(name for entry in history for name in entry if _HELD_OUT.fullmatch(name))]
    values = {name: [entry[name] for entry in history if entry.get(name) is not None] for name in names}
    course = [[name, float(found[0]), float(found[-1])] for name, found in values.items() if found]
    parts = [
        "## Training under a token budget",
        markdown_table(["setting", "value"], [[name, str(settings[name])] for name in _SHOWN]),
        "### History of the run",
        markdown_table(["metric", "first", "last"], course),
        f"### Configuration\n\n```yaml\n{configuration.strip()}\n```",
        "### Versions and hardware",
        markdown_table(["package", "version"], [[name, version] for name, version in versions.items()]),
        f"{hardware['cores']} cores of {hardware['processor']}, GPU: {hardware['gpu'] or 'none'}.",
    ]
    return "\n\n".join(parts) + "\n"


def without_none(card: str) -> str:
    """TRL's card of a model that started from a local folder or is not on the Hub, without links to "None"."""
    card = card.replace("[None](https://huggingface.co/None)", "a local model")
    return card.replace('model="None"', 'model="path/to/this/folder"')
