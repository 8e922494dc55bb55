# SPDX-License-Identifier: Apache-2.0
"""DUET for TRL: GRPO training under a token budget.

Two names replace TRL's: :class:`DUETGRPOConfig` for ``GRPOConfig`` and :class:`DUETGRPOTrainer` for ``GRPOTrainer``.
Both are loaded on first use (PEP 562), because the workers of an inference engine import ``duet_trl.gate`` and
must not pay for TRL, datasets or transformers' modelling code.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duet_trl.config import DUETGRPOConfig
    from duet_trl.trainer import DUETGRPOTrainer

__version__ = "0.1.0"

TRL_RANGE = ((1, 16), (1, 17))
"""Versions of TRL from the first to before the second, as in setup.cfg: others have other seams."""

__all__ = ["DUETGRPOConfig", "DUETGRPOTrainer", "__version__"]


def _check_trl() -> None:
    """Refuse another TRL before its import fails, or later a call, with an error that names neither.

    Raises:
        ImportError: If TRL is missing or of a version outside `TRL_RANGE`; names both and the command.
    """
    from importlib.metadata import PackageNotFoundError, version

    low, high = (".".join(map(str, bound)) for bound in TRL_RANGE)
    try:
        found = version("trl")
    except PackageNotFoundError:
        found = "none"
    numbers = tuple(int(part) for part in found.split(".")[:2] if part.isdigit())
    if not TRL_RANGE[0] <= numbers < TRL_RANGE[1]:
        raise ImportError(
            f"duet_trl {__version__} needs trl>={low},<{high} and found {found}. Install it with: "
            f"pip install 'trl>={low},<{high}'"
        )


def __getattr__(name: str) -> type:
    if name in ("DUETGRPOConfig", "DUETGRPOTrainer"):
        _check_trl()
    if name == "DUETGRPOConfig":
        from duet_trl.config import DUETGRPOConfig

        return DUETGRPOConfig
    if name == "DUETGRPOTrainer":
        from duet_trl.trainer import DUETGRPOTrainer

        return DUETGRPOTrainer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
