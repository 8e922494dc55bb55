# SPDX-License-Identifier: Apache-2.0
"""Small training runs that the trainer tests share."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from duet_trl import DUETGRPOConfig, DUETGRPOTrainer
from duet_trl.gate.thresholds import LengthThresholds
from duet_trl.methods.duet import DuetOptions
from duet_trl.methods.paper import PaperOptions

NUM_PROMPTS = 32
OPTIONS = frozenset(option.name for option in (*fields(DuetOptions), *fields(PaperOptions)))
PARTS_OFF = {"trim": False, "abort": False, "budget_fraction": 1.0}


def prompts(num: int = NUM_PROMPTS, conversational: bool = False) -> Dataset:
    """Distinct prompts with an id and a level."""
    texts = [f"Say {i} " for i in range(num)]
    column = [[{"role": "user", "content": text}] for text in texts] if conversational else texts
    return Dataset.from_dict({"prompt": column, "level": [i % 5 for i in range(num)], "name": texts})


def count_fours(completions: list, **kwargs: Any) -> list[float]:
    """A reward that differs between rollouts and does not depend on how they end."""
    texts = [c if isinstance(c, str) else c[0]["content"] for c in completions]
    return [text.count("4") - 0.05 * len(text) for text in texts]


def abstains_on_short(completions: list, **kwargs: Any) -> list[float | None]:
    """A reward function that scores some rollouts only."""
    return [None if len(text) < 20 else len(text) / 100 for text in completions]


def settings(output_dir: Path, **overrides: Any) -> dict[str, Any]:
    """8 prompts x 4 rollouts a step, with a gate that acts within 96 tokens."""
    return {
        "output_dir": str(output_dir),
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 4,
        "num_generations": 4,
        "max_completion_length": 96,
        "max_steps": 3,
        "learning_rate": 1e-3,
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "logging_steps": 1,
        "save_strategy": "no",
        "disable_tqdm": True,
        "seed": 7,
        **overrides,
    }


def grouped(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a configuration from fields and options of `duet` or `paper`; the options go to `method_kwargs`."""
    options = {name: value for name, value in values.items() if name in OPTIONS}
    rest = {name: value for name, value in values.items() if name not in OPTIONS}
    return rest | ({"method_kwargs": rest.get("method_kwargs", {}) | options} if options else {})


def duet_settings(output_dir: Path, **overrides: Any) -> dict[str, Any]:
    """`settings` plus DUET's where they act, scaled to short rollouts so that every outcome occurs."""
    duet: dict[str, Any] = {}
    if overrides.get("method", "duet") in ("duet", "paper"):
        abort = overrides.get("abort", True)
        duet |= {} if overrides.get("budget_reading") == "tokens" else {"budget_fraction": 0.9}
        if abort or overrides.get("trim", True):
            duet |= {"grace_window": 8}
        if abort and overrides.get("method") == "paper":
            duet |= {"keep_probability": 0.3, "threshold_interval": 1, "threshold_window": 64}
    return settings(output_dir, **grouped({**duet, **overrides}))


def duet_trainer(
    model: Path | str,
    output_dir: Path,
    *,
    rewards: Any = count_fours,
    data: Any = None,
    own: Any = None,
    aborts_early: Mapping[str, Any] | None = MappingProxyType({}),
    **overrides: Any,
) -> DUETGRPOTrainer:
    """A trainer over `prompts()`; `own` is a method of the test's, with method="own".

    `aborts_early` are arguments of `abort_early` for `duet`; None leaves it its own thresholds.
    """
    trainer_kwargs = {
        k: overrides.pop(k)
        for k in ("peft_config", "eval_dataset", "callbacks", "rollout_func", "engine")
        if k in overrides and not isinstance(overrides[k], str)  # a name of an engine is a field
    }
    trainer = DUETGRPOTrainer(
        str(model),
        rewards,
        args=DUETGRPOConfig(**duet_settings(output_dir, **overrides)),
        train_dataset=prompts() if data is None else data,
        method=own,
        **trainer_kwargs,
    )
    if trainer.args.method == "duet" and trainer.args.abort and aborts_early is not None:
        abort_early(trainer, **aborts_early)
    return trainer


def trained(model: Path | str, output_dir: Path, **options: Any) -> DUETGRPOTrainer:
    """A `duet_trainer` behind its run."""
    trainer = duet_trainer(model, output_dir, **options)
    trainer.train()
    return trainer


def abort_early(trainer: DUETGRPOTrainer, cold: tuple[float, float] | None = None, **options: Any) -> None:
    """Give the gate of `duet` the thresholds of `paper`; `cold` are those before lengths are known, as shares.

    By lengths rollouts are aborted from the first step on; by price they are once answers are known.
    """
    options = {"keep_probability": 0.3, "refit_every": 1, "window": 64} | options
    thresholds = LengthThresholds(trainer.args.max_completion_length, **options)
    if cold is not None:
        thresholds.poll_threshold, thresholds.abort_threshold = (int(share * thresholds.max_length) for share in cold)
    trainer.method.thresholds = thresholds


def logged(trainer: Any, name: str) -> list[float]:
    """One metric over the steps of a run."""
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def weights(trainer: Any) -> torch.Tensor:
    """All parameters in one vector."""
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


def check_grpo_loss_for_loss(
    model: Path,
    output_dir: Path,
    switches: dict,
    options: dict,
    rewards: Any = (count_fours, abstains_on_short),
    data: Any = None,
    atol: float = 1e-6,
    **arguments: Any,
) -> tuple[GRPOTrainer, DUETGRPOTrainer]:
    """The same run by GRPOTrainer and by DUET with these switches: same losses, weights (to `atol`) and rewards.

    SGD, so that small differences stay small.
    """
    options = {"optim": "sgd", "learning_rate": 0.02, "max_grad_norm": 0.0, **options}
    pair = []
    for trainer_class, config_class, extra in (
        (GRPOTrainer, GRPOConfig, {}),
        (DUETGRPOTrainer, DUETGRPOConfig, switches),
    ):
        args = config_class(**settings(output_dir / trainer_class.__name__, **options), **grouped(extra))
        data = prompts() if data is None else data
        trainer = trainer_class(str(model), list(rewards), args=args, train_dataset=data, **arguments)
        trainer.train()
        pair.append(trainer)
    grpo, duet = pair
    start = torch.cat([p.flatten() for p in type(grpo.model).from_pretrained(model).parameters()])
    assert (weights(grpo) - start).abs().max() > 1e-3  # the runs moved
    # The embedding holds weights of 20, whose float32 neighbours lie 2e-6 apart.
    torch.testing.assert_close(weights(duet), weights(grpo), atol=atol, rtol=2e-7)
    np.testing.assert_allclose(logged(grpo, "loss"), logged(duet, "loss"), atol=1e-6)
    for name in ("reward", "reward_std", "frac_reward_zero_std", "num_tokens", "completions/clipped_ratio"):
        np.testing.assert_allclose(logged(grpo, name), logged(duet, name), atol=1e-6, err_msg=name)
    return grpo, duet
