# SPDX-License-Identifier: Apache-2.0
"""DUET for TRL: GRPO training under a token budget.

Two names replace TRL's: :class:`DUETGRPOConfig` for ``GRPOConfig`` and :class:`DUETGRPOTrainer` for ``GRPOTrainer``.
Both are loaded on first use (PEP 562), because the workers of an inference engine import ``duet_trl.generate`` and
must not pay for TRL, datasets or transformers' modelling code.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duet_trl.config import DUETGRPOConfig
    from duet_trl.trainer import DUETGRPOTrainer

__version__ = "0.1.0"

__all__ = ["DUETGRPOConfig", "DUETGRPOTrainer", "__version__"]


def __getattr__(name: str) -> type:
    if name == "DUETGRPOConfig":
        from duet_trl.config import DUETGRPOConfig

        return DUETGRPOConfig
    if name == "DUETGRPOTrainer":
        from duet_trl.trainer import DUETGRPOTrainer

        return DUETGRPOTrainer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
