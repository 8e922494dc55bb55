# SPDX-License-Identifier: Apache-2.0
"""The part of a model card that says how a model was trained under a token budget, and with what result."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .tables import markdown_table

History = Sequence[Mapping[str, Any]]

_SHOWN = (
    ("method", "method"),
    ("options of the method", "method_kwargs"),
    ("budget, share of full GRPO", "budget_fraction"),
    ("reading of the budget", "budget_reading"),
    ("rollouts per prompt at full budget", "num_generations"),
    ("answer marker", "marker"),
    ("keep probability", "keep_probability"),
    ("completion length, tokens", "max_completion_length"),
)
_FOLLOWED = (
    ("reward", "reward"),
    ("planned tokens a step", "duet/planned_tokens"),
    ("generated tokens a step", "duet/generated_tokens"),
    ("share of rollouts aborted", "duet/abort_rate"),
    ("share of rollouts trimmed", "duet/trim_rate"),
    ("K1, tokens", "duet/poll_threshold"),
    ("K2, tokens", "duet/abort_threshold"),
)
_HELD_OUT = re.compile(r"held_out/(?:(?P<suite>[^/]+)/)?(?P<metric>mean@\d+)")


def card_section(
    settings: Mapping[str, Any],
    history: History,
    configuration: str,
    versions: Mapping[str, str],
    hardware: Mapping[str, Any],
    figures: Sequence[Path] = (),
) -> str:
    """A section in Markdown, beginning with its heading.

    `settings` are the fields of the configuration, `history` is `trainer.state.log_history`, `configuration` is YAML
    that a recipe reads back, `figures` are images relative to the card.
    """
    parts = [
        "## Training under a token budget",
        markdown_table(["setting", "value"], [[title, str(settings[name])] for title, name in _SHOWN]),
        *_course(history),
        *_accuracy(history),
        *(f"![{figure.stem.replace('_', ' ')}]({figure.as_posix()})" for figure in figures),
        "### Configuration",
        f"```yaml\n{configuration.strip()}\n```",
        "### Versions and hardware",
        markdown_table(["package", "version"], [[name, version] for name, version in versions.items()]),
        f"{hardware['cores']} cores of {hardware['processor']}, GPU: {hardware['gpu'] or 'none'}.",
    ]
    return "\n\n".join(parts) + "\n"


def without_none(card: str) -> str:
    """TRL's card of a model that started from a local folder or is not on the Hub, without links to "None"."""
    card = card.replace("[None](https://huggingface.co/None)", "a local model")
    return card.replace('model="None"', 'model="path/to/this/folder"')


def _course(history: History) -> list[str]:
    """First and last value of what a run is followed by."""
    found = ((title, [e[name] for e in history if e.get(name) is not None]) for title, name in _FOLLOWED)
    rows = [[title, float(values[0]), float(values[-1])] for title, values in found if values]
    if not rows:
        return []
    tokens = sum(entry.get("duet/generated_tokens", 0.0) for entry in history)
    table = markdown_table(["metric", "first step", "last step"], rows)
    return ["### Course of the run", table, f"Generated rollout tokens in all logged steps: {tokens:,.0f}."]


def _accuracy(history: History) -> list[str]:
    """Held-out accuracy, a row per measurement: of one task (`HeldOutEvaluation`) or of suites (`SuiteEvaluation`)."""
    measured: dict[str, dict[str, str]] = {}
    metric = ""
    for entry in history:
        for found in filter(None, map(_HELD_OUT.fullmatch, entry)):
            name, suite = found[0], found["suite"]
            low, high = (f"{name}_low", f"{name}_high") if suite else ("held_out/low", "held_out/high")
            if low in entry:  # not the greedy figure beside the headline
                metric = found["metric"]
                text = f"{entry[name]:.3f} [{entry[low]:.3f}, {entry[high]:.3f}]"
                measured.setdefault(str(entry["step"]), {})[suite or "held out"] = text
    if not measured:
        return []
    suites = list(dict.fromkeys(suite for row in measured.values() for suite in row))
    rows = [[step, *(row.get(suite, "") for suite in suites)] for step, row in measured.items()]
    return [
        "### Held-out accuracy",
        f"{metric} and its 95% interval over problems, by optimizer step.",
        markdown_table(["step", *suites], rows),
    ]
