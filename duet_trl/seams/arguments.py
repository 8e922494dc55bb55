# SPDX-License-Identifier: Apache-2.0
"""Checks of the trainer's arguments, before a tokenizer or a model is loaded."""

import inspect
import logging
from pathlib import Path
from typing import Any

import torch

from ..config import DUETGRPOConfig
from ..engines.engine import Engine
from ..methods import build_method, setting_of
from ..methods.method import Method
from ..report.environment import CPUINFO, multiplies_bf16
from .checkpoint import check_json, round_trip
from .data_checks import check_data, check_evaluation, check_reward_columns

logger = logging.getLogger(__name__)

_DECIDING = ("jobs", "judge", "observe")
_INHERITED = ("setup", "state_dict", "load_state_dict", "metrics", "embed")
_ATTRIBUTES = ("gated", "plain", "embeddings", "identity")
_ENGINE = ("generate", "sync_weights", "sample")


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


def check_arguments(
    args: DUETGRPOConfig,
    method: Method | None,
    engine: Any,
    reward_funcs: Any,
    data: tuple[Any, Any],
    others: dict[str, Any],
) -> tuple[Method, bool]:
    """All arguments of the trainer but the model, before one is loaded.

    `data` are training and evaluation set, `others` arguments that go to GRPOTrainer. Returns the method as far as it
    is known, and whether rollouts end by their own rules.
    """
    needs = check_method(method, args)
    check_engine(engine)
    own_rules = ends_by_own_rules(others, args)
    needs_prompt = not others.get("environment_factory")
    check_data(data[0], args, needs_prompt=needs_prompt)
    check_evaluation(data[1], needs_prompt=needs_prompt)
    check_rewards(reward_funcs, *data)
    warn_of_slow_precision(args)
    return needs, own_rules


def warn_of_slow_precision(args: DUETGRPOConfig, cpuinfo: Path = CPUINFO) -> None:
    """Warn if a CPU trains in bfloat16 that has no instructions for it."""
    used = args.mixed_precision == "bf16" and args.device.type == "cpu" and args.process_index == 0
    if used and not multiplies_bf16(False, cpuinfo):
        logger.warning(
            "This CPU multiplies bfloat16 in software, where float32 is faster. Set bf16=False, and no "
            "mixed_precision for accelerate."
        )


def check_method(method: Method | None, args: DUETGRPOConfig) -> Method:
    """The method as far as it is known before the model: its attributes state what the run needs.

    TypeError if it is not one. ValueError unless it is given exactly where the configuration asks, or if its state
    would not survive a checkpoint.
    """
    if method is not None:
        _check_form(method)
    if (method is None) == (args.method == "own"):
        given = "no method was given to the trainer" if method is None else f"{type(method).__name__} was given"
        raise ValueError(
            f"args.method is {args.method!r}, and {given}. Your own method needs both: "
            "DUETGRPOConfig(method='own') and DUETGRPOTrainer(method=...)."
        )
    if method is not None:
        method.setup(setting_of(args))
        _check_state(method)
    return build_method(args) if method is None else method


def _check_form(method: Any) -> None:
    if isinstance(method, type):
        raise TypeError(f"method must be an object, got the class {method.__name__}. Pass {method.__name__}(...).")
    if isinstance(method, str):
        raise TypeError(f"method must be an object, got {method!r}. A name goes to DUETGRPOConfig(method=...).")
    name = type(method).__name__
    missing = [one for one in _DECIDING if _left_out(method, Method, one)]
    if missing:
        raise TypeError(
            f"{name} has no {missing[0]}. A method has jobs, judge and observe (docs/extending.md); one that learns "
            "nothing has an empty observe."
        )
    lacking = [one for one in (*_INHERITED, *_ATTRIBUTES) if one not in dir(method)]
    if lacking:
        raise TypeError(f"{name} has no {lacking[0]}. Name duet_trl.methods.method.Method as its base, which has it.")


def _check_state(method: Method) -> None:
    """Take the state of a method through a checkpoint before there is anything to lose."""
    name, state = type(method).__name__, method.state_dict()
    if not isinstance(state, dict):
        raise TypeError(
            f"{name}.state_dict returned {state!r}. It must return a dict, empty if there is nothing to keep."
        )
    if not _left_out(method, Method, "state_dict") and _left_out(method, Method, "load_state_dict"):
        raise TypeError(f"{name} has state_dict and no load_state_dict, so a resumed run would lose it. Write both.")
    check_json(f"{name}.identity", method.identity, arrays=False)
    restored = round_trip(f"{name}.state_dict()", state)
    method.load_state_dict(restored)
    if round_trip(f"{name}.state_dict()", method.state_dict()).keys() != state.keys():
        raise ValueError(
            f"{name}.load_state_dict restores {sorted(method.state_dict())} from the state {sorted(state)}. What "
            "state_dict returns must come back from it."
        )


def check_engine(engine: Any) -> None:
    """TypeError for what builds no engine, as far as that shows before it is called: an engine, a name, a class that
    lacks a function."""
    if engine is None:
        return
    if not callable(engine):
        name = type(engine).__name__
        remedy = (
            f"{name}, or functools.partial({name}, ...)" if "generate" in dir(engine) else "the class of an engine"
        )
        raise TypeError(
            f"engine must build an engine from a Policy, got {engine!r}. Pass {remedy}; TRL's engines are chosen "
            "by use_vllm and vllm_mode."
        )
    if isinstance(engine, type):
        check_built(engine, engine.__name__)


def check_built(engine: Any, name: str) -> None:
    """Refuse an engine, or its class, that lacks a function."""
    missing = [one for one in _ENGINE if one not in dir(engine) or _left_out(engine, Engine, one)]
    if missing:
        raise TypeError(
            f"the engine {name} has no {missing[0]}. An engine has generate, sync_weights and sample "
            "(duet_trl.engines.engine.Engine)."
        )


def check_rewards(reward_funcs: Any, train: Any, evaluation: Any) -> None:
    """TypeError for what is not a function, model or its name; ValueError if a data set lacks a column it needs."""
    given = [] if reward_funcs is None else reward_funcs if isinstance(reward_funcs, list) else [reward_funcs]
    for one in given:
        name = one.__name__ if isinstance(one, type) else ""
        if isinstance(one, type) or not (callable(one) or isinstance(one, str)):
            remedy = f"an object of it, {name}(...)" if name else "a function, or a list of functions"
            raise TypeError(f"a reward function must be callable, got {one!r}. Pass {remedy}.")
    check_reward_columns(given, train, evaluation)


def _left_out(one: Any, protocol: type, name: str) -> bool:
    """Whether an object, or a class, lacks its own version of a function that the protocol only describes."""
    found = inspect.getattr_static(one, name, None)
    return found is None or found is vars(protocol)[name]


def ends_by_own_rules(arguments: dict[str, Any], args: DUETGRPOConfig) -> bool:
    """Whether trainer arguments end rollouts by other rules than the gate's."""
    given = [name for name in ("tools", "environment_factory", "rollout_func") if arguments.get(name)]
    if given and args.method != "grpo":
        raise ValueError(f"{given[0]} ends rollouts by its own rules, as DUET's gate does. Set method='grpo' for it.")
    if given and args.audit_log:
        raise ValueError(f"audit_log=True records what DUET decides; with {given[0]} there is nothing. Remove it.")
    trains = ("exclude_zero_variance_groups", "overlap", "shared_prompts")
    of_batches = [(name, value) for name in trains if (value := args.__dict__[name]) not in (None, False)]
    if given and of_batches:
        raise ValueError(
            f"{of_batches[0][0]}={of_batches[0][1]!r} cannot have an effect with {given[0]}, where "
            "GRPOTrainer trains its own batches. Remove it."
        )
    return bool(given)
