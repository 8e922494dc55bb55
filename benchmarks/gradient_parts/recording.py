# SPDX-License-Identifier: Apache-2.0
"""Gradients of recorded rollouts, whole and as each gate cuts them, and the gradient of held-out accuracy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.arena.grading import is_right
from benchmarks.gradient_parts.policies import PromptRollouts
from benchmarks.step_replay import Rollout, cut
from duet_trl.engines.slots import nearly_certain
from duet_trl.gate.marker_gate import MarkerGate
from duet_trl.gate.parameters import GateSetup
from duet_trl.gate.replay import GateSpec, Replay, replay, split_sentinel
from duet_trl.rollouts import Job, Prompts, Rollouts
from duet_trl.update.advantages import group_advantages

REFITS = 8
"""Of K1 and K2; they stand still after three or four."""


@dataclass(frozen=True)
class GateTable:
    """What one gate makes of the N recorded rollouts.

    Attributes:
        replays (tuple[Replay, Replay]): With a coin that aborts, with one that keeps.
        rows (np.ndarray): Row of each of the two in the recorded gradients, shape (2, N).
    """

    replays: tuple[Replay, Replay]
    rows: np.ndarray


@dataclass(frozen=True)
class Recording:
    """All that simulated steps need of a policy; rollout i of prompt q has the number q * num_rollouts + i.

    Attributes:
        keys (tuple[str, ...]): Of the Q prompts.
        num_rollouts (int): Recorded rollouts of each.
        tables (Mapping[GateSpec, GateTable]): By gate.
        rewards (np.ndarray): Of each row, graded on what the gate left of the rollout, shape (R,).
        sum_logps (np.ndarray): Of each row, nats, shape (R,).
        gradients (torch.Tensor): Of the sum of log pi of each row in C of the parameters, shape (R, C), float32.
        held_out (np.ndarray): Gradient of accuracy on each block of held-out problems, shape (H, C).
    """

    keys: tuple[str, ...]
    num_rollouts: int
    tables: Mapping[GateSpec, GateTable]
    rewards: np.ndarray
    sum_logps: np.ndarray
    gradients: torch.Tensor
    held_out: np.ndarray

    def look_up(
        self, prompts: Prompts, jobs: Sequence[Job], spec: GateSpec, rollouts: np.ndarray
    ) -> tuple[Rollouts, np.ndarray]:
        """What the jobs of a step would have brought, and the row of each.

        Args:
            prompts (Prompts): Of the step.
            jobs (Sequence[Job]): What is asked for, length N.
            spec (GateSpec): Their gate.
            rollouts (np.ndarray): Number of the recorded rollout that answers each, shape (N,).
        """
        table, keep = self.tables[spec], np.array([job.keep for job in jobs])
        found = _chosen(keep, *(Replay(**{k: v[rollouts] for k, v in vars(one).items()}) for one in table.replays))
        rows = table.rows[keep.astype(np.int64), rollouts]
        rewards = self.rewards[rows]
        done = Rollouts(
            prompts=prompts,
            jobs=tuple(jobs),
            prompt=np.array([job.prompt for job in jobs]),
            round=np.zeros(len(jobs), dtype=np.int64),
            replay=found,
            terminated=np.ones(len(jobs), dtype=bool),
            rewards_per_func=torch.from_numpy(rewards).float()[:, None],
            rewards=rewards,
        )
        return done, rows


# ---- Gate -----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def certainty(
    model: torch.nn.Module,
    found: Sequence[PromptRollouts],
    setup: GateSetup,
    entropy_threshold: float,
) -> list[Rollout]:
    """Rollouts with the places where the engine would have found the next token nearly certain."""
    thresholds = torch.tensor([entropy_threshold])
    eos_ids = torch.tensor([setup.eos_ids])
    rollouts = []
    for entry in found:
        tokens = _padded(entry)
        logits = model(tokens).logits[:, len(entry.prompt_ids) - 1 : -1]  # (n, L, V)
        logits[..., setup.sentinel] = -torch.inf
        certain = nearly_certain(logits.flatten(0, 1), thresholds, eos_ids).view(logits.shape[:2]).numpy()
        rollouts += [Rollout(ids, row[: len(ids)]) for ids, row in zip(entry.ids, certain, strict=True)]
    return rollouts


def gate_replays(spec: GateSpec, setup: GateSetup, rollouts: Sequence[Rollout]) -> tuple[Replay, Replay]:
    """What a gate makes of whole rollouts, with a coin that aborts and with one that keeps."""
    found = []
    for keeps in (False, True):
        keep = np.full(len(rollouts), keeps)
        ids, stopped = [rollout.ids for rollout in rollouts], np.zeros(len(rollouts), dtype=bool)
        if spec.trim or spec.abort:
            cut_ids = cut(spec, keep, setup, rollouts)
            ids, stopped = split_sentinel(cut_ids, setup.sentinel)
        found.append(replay(spec, setup.automaton, ids, stopped, keep))
    return tuple(found)


def settle_thresholds(
    gate: MarkerGate, setup: GateSetup, rollouts: Sequence[Rollout], right: np.ndarray, seed: int
) -> dict:
    """State of a gate whose K1 and K2 were refitted to the rollouts that it left over, until they stand still.

    `right` (N,) is the reward of each rollout, which is known from its first answer and so from a trimmed one too.
    """
    rng, interval = np.random.default_rng(seed), gate.thresholds.refit_every
    for refit in range(1, REFITS + 1):
        order = rng.permutation(len(rollouts))  # the window holds only the last of them
        keep = gate.coins(refit, [str(number) for number in order])
        found = _chosen(keep, *gate_replays(gate.spec(), setup, [rollouts[number] for number in order]))
        gate.observe(found, right[order], refit * interval, float("nan"))
    return gate.state_dict()


def _chosen(keep: np.ndarray, aborting: Replay, keeping: Replay) -> Replay:
    """What became of each rollout with its coin, shape (N,)."""
    return Replay(**{name: np.where(keep, vars(keeping)[name], values) for name, values in vars(aborting).items()})


# ---- Gradients ------------------------------------------------------------------------------------------------------


def record(
    model: torch.nn.Module,
    tokenizer: Any,
    found: Mapping[str, Sequence[PromptRollouts]],
    replays: Mapping[GateSpec, tuple[Replay, Replay]],
    marker: str,
    coordinates: np.ndarray,
    held_out_blocks: int,
    cache: Path,
    made: dict[str, Any],
) -> Recording:
    """Every gradient that the gates ask for, computed or read from the cache.

    Args:
        model (torch.nn.Module): The policy, float32.
        tokenizer (Any): Its tokenizer.
        found (Mapping[str, Sequence[PromptRollouts]]): "pool" and "held_out".
        replays (Mapping[GateSpec, tuple[Replay, Replay]]): By gate, of the pool's rollouts.
        marker (str): Extractor that grades.
        coordinates (np.ndarray): Of the flattened parameters, shape (C,).
        held_out_blocks (int): Blocks of held-out problems, dealt in turn.
        cache (Path): File of the gradients; made anew where it holds others.
        made (dict[str, Any]): What the gradients depend on beside the gates.
    """
    pool = found["pool"]
    lengths = np.stack([np.stack([x.length for x in pair]) for pair in replays.values()])  # (gates, 2, N)
    base = int(lengths.max()) + 1
    codes = np.arange(lengths.shape[-1]) * base + lengths  # one number per rollout and length
    wanted = np.unique(codes)
    made = made | {"rows": wanted.tolist(), "coordinates": len(coordinates), "held_out_blocks": held_out_blocks}
    stored = torch.load(cache) if cache.exists() else {"made": None}
    if stored["made"] != made:
        number, length = np.divmod(wanted, base)
        gradients, sum_logps = pool_gradients(model, pool, number, length, coordinates)
        rewards = [
            float(is_right(tokenizer.decode(_rollout(pool, i)[1][:end]), _rollout(pool, i)[0].answer, "first", marker))
            for i, end in zip(number, length, strict=True)
        ]
        stored = {
            "made": made,
            "gradients": gradients,
            "sum_logps": torch.from_numpy(sum_logps),
            "rewards": torch.tensor(rewards, dtype=torch.float64),
            "held_out": accuracy_gradients(model, tokenizer, found["held_out"], marker, coordinates, held_out_blocks),
        }
        torch.save(stored, cache)
    rows = np.searchsorted(wanted, codes)
    return Recording(
        keys=tuple(str(q) for q in range(len(pool))),
        num_rollouts=len(pool[0].ids),
        tables={spec: GateTable(pair, own) for (spec, pair), own in zip(replays.items(), rows, strict=True)},
        rewards=stored["rewards"].numpy(),
        sum_logps=stored["sum_logps"].numpy(),
        gradients=stored["gradients"],
        held_out=stored["held_out"].numpy(),
    )


def pool_gradients(
    model: torch.nn.Module,
    pool: Sequence[PromptRollouts],
    number: np.ndarray,
    length: np.ndarray,
    coordinates: np.ndarray,
) -> tuple[torch.Tensor, np.ndarray]:
    """Gradients (R, C) and sums (R,) of log pi of the first `length` (R,) tokens of the rollouts `number` (R,)."""
    gradients, sums = torch.empty(len(number), len(coordinates)), np.empty(len(number))
    index = torch.from_numpy(coordinates)
    for one in np.unique(number):
        rows = np.flatnonzero(number == one)
        entry, ids = _rollout(pool, one)
        found = rollout_gradients(model, entry.prompt_ids, ids, length[rows])
        for row, (total, gradient) in zip(rows, found, strict=True):
            sums[row], gradients[row] = total, gradient[index]
    return gradients, sums


def rollout_gradients(
    model: torch.nn.Module, prompt_ids: list[int], ids: list[int], lengths: Sequence[int]
) -> list[tuple[float, torch.Tensor]]:
    """Sum of log pi of the first tokens of a rollout, and its gradient in all parameters (P,), for each length."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    tokens = torch.tensor([prompt_ids + ids[: max(lengths)]])
    logps = _logps(model, tokens, len(prompt_ids))[0]
    found = []
    for left, length in reversed(list(enumerate(lengths))):
        total = logps[:length].sum()
        gradient = torch.autograd.grad(total, parameters, retain_graph=left > 0)
        found.append((float(total.detach()), torch.cat([part.flatten() for part in gradient])))
    return found[::-1]


def accuracy_gradients(
    model: torch.nn.Module,
    tokenizer: Any,
    held_out: Sequence[PromptRollouts],
    marker: str,
    coordinates: np.ndarray,
    blocks: int,
) -> torch.Tensor:
    """Unbiased gradient of the mean reward of whole rollouts on each block of problems, shape (H, C).

    The baseline of a rollout is the mean of the other rollouts of its problem.
    """
    index, parameters = torch.from_numpy(coordinates), [p for p in model.parameters() if p.requires_grad]
    total = torch.zeros(blocks, len(coordinates))
    for place, entry in enumerate(held_out):
        right = [is_right(tokenizer.decode(ids), entry.answer, "first", marker) for ids in entry.ids]
        if len(set(right)) == 1:
            continue
        n, rewards = len(right), torch.tensor(right, dtype=torch.float32)
        centred = group_advantages(
            rewards[:, None], torch.ones(1), torch.zeros(n, dtype=torch.int64), scale_rewards="none"
        ).advantages
        lengths = torch.tensor([len(ids) for ids in entry.ids])
        logps = _logps(model, _padded(entry), len(entry.prompt_ids))
        inside = torch.arange(logps.shape[1]) < lengths[:, None]
        value = ((logps * inside).sum(dim=1) * centred).sum() / (n - 1)
        gradient = torch.autograd.grad(value, parameters)
        total[place % blocks] += torch.cat([part.flatten() for part in gradient])[index]
    sizes = torch.bincount(torch.arange(len(held_out)) % blocks, minlength=blocks)
    return total / sizes[:, None]


def _rollout(pool: Sequence[PromptRollouts], number: int) -> tuple[PromptRollouts, list[int]]:
    prompt, place = divmod(int(number), len(pool[0].ids))
    return pool[prompt], pool[prompt].ids[place]


def _padded(entry: PromptRollouts) -> torch.Tensor:
    """Prompt and rollouts, shape (n, P + L); what follows an end is never attended to by what came before."""
    longest = max(map(len, entry.ids))
    return torch.tensor([entry.prompt_ids + ids + [0] * (longest - len(ids)) for ids in entry.ids])


def _logps(model: torch.nn.Module, tokens: torch.Tensor, prompt_length: int) -> torch.Tensor:
    """log pi of the tokens behind the prompt, shape (n, L)."""
    logits = model(tokens).logits[:, prompt_length - 1 : -1].log_softmax(-1)
    return logits.gather(2, tokens[:, prompt_length:, None])[..., 0]
