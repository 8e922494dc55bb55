# SPDX-License-Identifier: Apache-2.0
"""What the trainer's arguments must be, before a tokenizer or a model is loaded."""

from typing import Any

import torch

from ..config import DUETGRPOConfig
from ..methods import build_method
from ..methods.method import Method
from .compared_answers import answer_verifier


def own_config(args: Any, model: str | torch.nn.Module) -> DUETGRPOConfig:
    """The configuration that was given; without one the default, named after the model."""
    if args is None:
        name = model if isinstance(model, str) else model.config._name_or_path
        return DUETGRPOConfig(f"{name.split('/')[-1]}-DUET")
    if not isinstance(args, DUETGRPOConfig):
        raise TypeError(
            f"args must be a DUETGRPOConfig, got {type(args).__name__}. It takes all that GRPOConfig takes, and with "
            "method='grpo' it is plain GRPO."
        )
    return args


def check_method(method: Method | None, args: DUETGRPOConfig, reward_funcs: Any) -> Method:
    """The method as far as it is known before the model: its attributes say what the run needs.

    Raises:
        ValueError: Unless a method is given exactly where the configuration says so, or if it compares answers and no
            reward function can.
    """
    if (method is None) == (args.method == "own"):
        given = "no method was given to the trainer" if method is None else f"{type(method).__name__} was given"
        raise ValueError(
            f"args.method is {args.method!r}, and {given}. A method of your own needs both: "
            "DUETGRPOConfig(method='own') and DUETGRPOTrainer(method=...)."
        )
    outline = build_method(args) if method is None else method
    if outline.compares_answers:
        answer_verifier(reward_funcs)
    return outline


def ends_by_own_rules(arguments: dict[str, Any], args: DUETGRPOConfig) -> bool:
    """Whether trainer arguments end rollouts by other rules than the gate's."""
    given = [name for name in ("tools", "environment_factory", "rollout_func") if arguments.get(name)]
    if given and args.method != "grpo":
        raise ValueError(f"{given[0]} ends rollouts by its own rules, as DUET's gate does. Set method='grpo' for it.")
    if given and args.audit_log:
        raise ValueError(f"audit_log=True records what DUET decides; with {given[0]} there is nothing. Remove it.")
    trains = ("desired_kl", "old_logps", "exclude_zero_variance_groups")
    of_batches = [name for name in trains if getattr(args, name) not in (None, False)]
    if given and of_batches:
        raise ValueError(
            f"{of_batches[0]}={getattr(args, of_batches[0])!r} cannot have an effect with {given[0]}, where "
            "GRPOTrainer trains batches of its own. Remove it."
        )
    return bool(given)
