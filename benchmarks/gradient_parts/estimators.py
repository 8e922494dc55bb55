# SPDX-License-Identifier: Apache-2.0
"""Gradient estimators as configurations of the library, and simulated steps of each over the same rollouts.

A simulated step draws 16 prompts of the pool. Of each prompt's recorded rollouts the last `HISTORY` in a random order
are an earlier visit, from which methods learn what they would have learnt a pass ago; the first are this step's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.arena.entrants import PROMPTS_PER_STEP
from benchmarks.arena.tasks import Task
from benchmarks.gradient_parts.recording import Recording
from benchmarks.gradient_parts.settings import DUET, GRPO, TRIM, UNIFORM, configuration
from duet_trl import DUETGRPOConfig
from duet_trl.methods import build_method
from duet_trl.methods.duet import Duet
from duet_trl.rollouts import Job, Judgement, Prompt, Prompts, Rollouts

HISTORY = 4
"""Rollouts of the earlier visit."""
HISTORY_BASELINE = {"advantage_baseline": "history", "advantage_cutoff": 0.0}
CUTOFFS = (0.0, 0.2, 0.4, 0.6)
"""Variants of `duet`, which has one of its own."""


@dataclass(frozen=True)
class Estimator:
    """The method `duet` under some settings at a budget.

    Attributes:
        name (str): In the table.
        config (DUETGRPOConfig): What a run of it would have.
    """

    name: str
    config: DUETGRPOConfig

    def method(self, thresholds: dict | None) -> Duet:
        """A fresh method; thresholds None: K1 and K2 as at the start of a run."""
        method = build_method(self.config)
        if thresholds is not None and method.gated:
            method.gate.load_state_dict(thresholds)
        return method

    @property
    def remembers(self) -> bool:
        """Whether an earlier visit makes a difference."""
        return self.config.allocate or self.config.options.advantage_baseline != "group"


def estimators(task: Task, num_rollouts: int, seed: int) -> dict[str, Estimator]:
    """The rows of the table by name; the first is what all others are relative to.

    Args:
        task (Task): The task.
        num_rollouts (int): Recorded ones of each prompt; a step has no more than what the earlier visit leaves.
        seed (int): Of the coins.
    """
    found: dict[str, Estimator] = {}

    def add(name: str, parts: Mapping[str, Any], n: int, **overrides: Any) -> None:
        bounds = {"num_rollouts_max": num_rollouts - HISTORY}
        fields = configuration(parts, n, seed, task.fields | bounds | overrides)
        found[name] = Estimator(name, DUETGRPOConfig(output_dir="unused", max_steps=1, **fields))

    counts = (8, 4, 2)
    for n in counts:
        add(f"GRPO, {n} rollouts", GRPO, n)
    for n in counts:
        add(f"trim, {n}", TRIM, n)
    for n in counts:
        add(f"trim + abort as failure, {n}", UNIFORM, n)
    for keep in (0.05, 0.25):
        masked = {"aborted_rollouts": "mask", "keep_probability": keep}
        add(f"trim + abort masked, 1/eps, eps {keep:g}, 4", UNIFORM, 4, **masked)
    for n in counts:
        add(f"gate + history baseline, {n}", UNIFORM, n, **HISTORY_BASELINE)
    for objective in ("variance", "mixed"):
        for weights in ("none", "exact", "clip"):
            fields = {"advantage_baseline": "group", "stratification": weights, "allocation_objective": objective}
            add(f"gate + counts by {objective}, weights {weights}, 4", DUET, 4, **fields)
    for n in counts:
        add(f"duet, {n}", DUET, n)
    for cutoff in CUTOFFS:
        add(f"duet, cutoff {cutoff:g}, 4", DUET, 4, advantage_cutoff=cutoff)
    return found


# ---- Simulated steps ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Draw:
    """What all estimators see of one step.

    Attributes:
        prompts (np.ndarray): Prompts of the step, shape (M,).
        order (np.ndarray): Random order of the rollouts of every prompt of the pool, shape (Q, n).
    """

    prompts: np.ndarray
    order: np.ndarray


def draw_steps(count: int, num_prompts: int, num_rollouts: int, groups: int, seed: int) -> list[Draw]:
    """Draws of steps and of the visit before each.

    The prompts are dealt at random into `groups`, and the steps of a group, which stand together, draw from its
    prompts only. Any one step then still has 16 random prompts of the pool, while a bootstrap over groups shows what
    other prompts and other rollouts would have given.
    """
    rng = np.random.default_rng(seed)
    orders = np.tile(np.arange(num_rollouts), (num_prompts, 1))
    dealt = np.array_split(rng.permutation(num_prompts), groups)
    found = []
    for own in np.repeat(np.arange(groups), count // groups):
        prompts = rng.choice(dealt[own], PROMPTS_PER_STEP, replace=False)
        found.append(Draw(prompts, rng.permuted(orders, axis=1)))
    return found


@dataclass(frozen=True)
class Steps:
    """Simulated steps of an estimator.

    Attributes:
        weights (torch.Tensor): Weight of each recorded gradient in each step, shape (S, R), sparse.
        generated (np.ndarray): Generated tokens, shape (S,).
        trained (np.ndarray): Tokens that get a forward and backward pass, shape (S,).
        mixed (np.ndarray): Prompts whose rewards differ, shape (S,).
        aborted (np.ndarray): Share of rollouts that were aborted or kept by their coin, shape (S,).
    """

    weights: torch.Tensor
    generated: np.ndarray
    trained: np.ndarray
    mixed: np.ndarray
    aborted: np.ndarray


def simulate(
    estimator: Estimator,
    recording: Recording,
    thresholds: dict,
    draws: Sequence[Draw],
) -> Steps:
    """Steps of an estimator, each by a fresh method that remembers the draw's earlier visit."""
    positions, values, figures = [], [], []
    for number, draw in enumerate(draws):
        method, a_pass = estimator.method(thresholds), len(recording.keys) // len(draw.prompts)
        if estimator.remembers:
            visit(method, recording, draw.order[:, -HISTORY:], number + 1 - a_pass)
            if method.gated:
                method.gate.load_state_dict(thresholds)  # what is recorded is one gate
        done, rows = take_step(method, recording, draw, number + 1)
        judgement = method.judge(done)
        weights = loss_weights(judgement, done)
        used = np.flatnonzero(weights)
        positions.append(np.stack([np.full(used.size, number), rows[used]]))
        values.append(weights[used])
        figures.append(_step_figures(done, judgement))
    index, value = torch.from_numpy(np.concatenate(positions, axis=1)), torch.from_numpy(np.concatenate(values))
    shape = (len(draws), len(recording.rewards))
    sparse = torch.sparse_coo_tensor(index, value.float(), shape, check_invariants=True)
    return Steps(sparse.coalesce(), *np.array(figures).T)


def take_step(method: Duet, recording: Recording, draw: Draw, step: int) -> tuple[Rollouts, np.ndarray]:
    """What a method asks for in a draw, and the row of each rollout; the coins of different steps differ."""
    prompts = Prompts([Prompt(recording.keys[q], {}) for q in draw.prompts], step, epoch=1)
    jobs = method.jobs(prompts, None)
    counts = np.bincount([job.prompt for job in jobs], minlength=len(prompts))
    numbers = [q * recording.num_rollouts + draw.order[q, :n] for q, n in zip(draw.prompts, counts, strict=True)]
    return recording.look_up(prompts, jobs, method.gate.spec(), np.concatenate(numbers))


def visit(method: Duet, recording: Recording, order: np.ndarray, step: int) -> None:
    """Let a method see the whole pool at some step, with the rollouts `order` (Q, n) of each prompt."""
    num_prompts, n = order.shape
    group = np.repeat(np.arange(num_prompts), n)
    keep = method.gate.coins(1, [recording.keys[q] for q in group])
    jobs = [Job(int(q), keep=bool(coin)) for q, coin in zip(group, keep, strict=True)]
    numbers = (np.arange(num_prompts)[:, None] * recording.num_rollouts + order).ravel()
    prompts = Prompts([Prompt(key, {}) for key in recording.keys], step)
    done, rows = recording.look_up(prompts, jobs, method.gate.spec(), numbers)
    judgement = method.judge(done)
    method.allocator.cold = np.ones(num_prompts, dtype=bool)  # the allocator did not plan this visit
    method.observe(done, judgement, np.where(judgement.in_gradient, recording.sum_logps[rows], np.nan))


def loss_weights(judgement: Judgement, done: Rollouts) -> np.ndarray:
    """Weight of each rollout's grad log pi in the negative gradient of the loss, w A / N_t (Eq. 6), shape (N,)."""
    num_tokens = done.replay.length[judgement.in_divisor].sum()
    return np.where(judgement.in_gradient, judgement.weight * judgement.advantages / max(num_tokens, 1), 0.0)


def _step_figures(done: Rollouts, judgement: Judgement) -> list[float]:
    size, right = (np.bincount(done.prompt, weights=x) for x in (np.ones_like(done.rewards), done.rewards))
    return [
        float(done.replay.length.sum()),
        float(done.replay.length[judgement.in_gradient].sum()),
        float(((right > 0) & (right < size)).sum()),
        float((done.replay.outcome >= 2).mean()),
    ]
