# SPDX-License-Identifier: Apache-2.0
"""Replays of other methods' rules on the groups of a finished GRPO run: dynamic sampling, skipping, pilot.

Whoever draws prompts that the step did not hold draws logged groups instead. R replays each have prompts of their own,
drawn from those of the run, so that their spread is that of the run's prompts and of the method's draws.
"""

from dataclasses import dataclass

import numpy as np

from ..allocate.openness import open_counts
from ..allocate.statistics import PromptStatistics
from .estimate_groups import EASY, HARD, Groups, windows

MAX_BATCHES = 10
"""Ceiling of `dapo` and `greso`, batches of a step."""

START, STEP, RANGE, LEAST = 0.5, 0.01, (0.05, 0.95), 0.01  # p_easy and p_hard of `greso`; lowest chance of a prompt
TARGETS = {EASY: 0.25 / 3, HARD: 0.5 / 3}
"""Shares of easy and hard prompts to aim at."""
SAFETY, SMALLEST = 1.25, 1 / 6  # size of a further batch of `greso`

PILOT_ROLLOUTS, REWARD_DECAY, MOST_ROLLOUTS = 2, 0.7, 32  # defaults of `pilot`: k, decay, n_max


@dataclass
class Tally:
    """What R replays did, shape (R,) each."""

    groups: np.ndarray  # groups that were generated
    generated: np.ndarray  # tokens of these
    trained_groups: np.ndarray
    trained: np.ndarray  # tokens of these
    skipped: np.ndarray  # visits without any rollout
    unfilled: np.ndarray  # groups that are missing, because no more batches were drawn

    @classmethod
    def zeros(cls, size: int) -> "Tally":
        """Nothing done yet."""
        return cls(*np.zeros((6, size)))


def dynamic_sampling(groups: Groups, weights: np.ndarray, rng: np.random.Generator, adaptive: bool = False) -> Tally:
    """Batches of M groups until M of them differ; `weights` are those of the prompts, shape (R, P).

    `adaptive` sizes further batches as GRESO does.
    """
    tally = Tally.zeros(len(weights))
    for rows, pool in zip(groups.steps, windows(groups), strict=True):
        cumulative = np.cumsum(weights[:, groups.prompt[pool]], axis=1)
        _fill(groups, tally, np.broadcast_to(pool, cumulative.shape), cumulative, len(rows), rng, adaptive)
    return tally


def skipping(groups: Groups, slots: np.ndarray, rng: np.random.Generator) -> Tally:
    """GRESO: visits of its own making, each with the outcome of one of the prompt's two logged visits around it.

    One visit alone would come back unchanged, and so would make streaks longer than they are. `slots` (R, P) are the
    prompts of each replay; a prompt that stands there twice has two histories.
    """
    num, replays = len(slots), np.arange(len(slots))[:, None]
    tally = Tally.zeros(num)
    streak = np.zeros(slots.shape, dtype=np.int64)
    chance = {EASY: np.full(num, START), HARD: np.full(num, START)}
    latest = np.empty(groups.num_prompts, dtype=np.int64)  # logged visit of each prompt; its first before that
    latest[groups.prompt[::-1]] = np.arange(len(groups.prompt))[::-1]
    seen = np.zeros(groups.num_prompts, dtype=bool)
    for rows in groups.steps:
        later_epoch = seen[groups.prompt[rows]].mean() > 0.5
        seen[groups.prompt[rows]], latest[groups.prompt[rows]] = True, rows
        base = np.where(streak > 0, chance[EASY][:, None], chance[HARD][:, None])
        cumulative = np.cumsum(np.maximum(base ** np.abs(streak), LEAST), axis=1)
        taken, before = cumulative[:, -1] / slots.shape[1], tally.groups.copy()
        around = np.stack([latest, groups.neighbour[latest]])  # (2, P)
        visits = around[rng.integers(2, size=slots.shape), slots]
        place, drawn, used = _fill(groups, tally, visits, cumulative, len(rows), rng, adaptive=True)
        # Each visit that is taken costs on average (1 - taken) / taken that are not.
        tally.skipped += (tally.groups - before) * (1.0 - taken) / taken
        kind, old = groups.kind[drawn], streak[replays, place]
        new = np.where(kind == 0, 0, np.where(old * kind > 0, old + kind, kind))
        row, column = np.nonzero(used)
        streak[row, place[row, column]] = new[row, column]
        for end, target in TARGETS.items() if later_epoch else ():
            share = ((kind == end) & used).sum(axis=1) / used.sum(axis=1)
            chance[end] = np.clip(chance[end] + np.where(share >= target, -STEP, STEP), *RANGE)
    return tally


def _fill(
    groups: Groups,
    tally: Tally,
    pool: np.ndarray,
    cumulative: np.ndarray,
    wanted: int,
    rng: np.random.Generator,
    adaptive: bool,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One step: batches from `pool` (R, K) by weights, summed up in `cumulative` (R, K), until enough groups differ.

    Adds to `tally`; returns places in the pool that were drawn, the groups there, and which of these are not just
    padding, (R, D) each.
    """
    num, width = pool.shape
    replays = np.arange(num)[:, None]
    # One sorted row for all replays, so that one search draws for all of them.
    ladder = (cumulative / cumulative[:, -1:] + replays).ravel()
    found, sampled, trained = np.zeros(num, dtype=np.int64), np.zeros(num, dtype=np.int64), np.zeros(num)
    parts = []
    size, last = np.full(num, wanted), np.zeros(num, dtype=bool)
    for _ in range(MAX_BATCHES):
        if not (most := int(size.max())):
            break
        rung = np.searchsorted(ladder, rng.random((num, most)) + replays, side="right")
        place = np.minimum(rung - replays * width, width - 1)  # (R, D)
        batch, used = pool[replays, place], np.arange(most) < size[:, None]
        differs = groups.differs[batch] & used
        kept = differs & (found[:, None] + np.cumsum(differs, axis=1) <= wanted)
        tokens = groups.tokens[batch]
        tally.generated += (tokens * used).sum(axis=1)
        trained += (tokens * kept).sum(axis=1)
        found, sampled = found + differs.sum(axis=1), sampled + size
        parts.append((place, batch, used))
        if adaptive:
            size, last = _next_size(found, sampled, wanted, last)
        else:
            size = np.where(found < wanted, wanted, 0)
    tally.groups += sampled
    tally.trained += trained
    tally.trained_groups += np.minimum(found, wanted)
    tally.unfilled += np.maximum(wanted - found, 0)
    return tuple(np.concatenate(part, axis=1) for part in zip(*parts, strict=True))


def _next_size(found: np.ndarray, sampled: np.ndarray, wanted: int, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Groups in the next batch of `greso`, and whether that one should suffice and so is the last, (R,) each."""
    missing = wanted - found
    needed = np.where(found > 0, SAFETY * missing * sampled / np.maximum(found, 1), np.inf)
    size = np.maximum(np.minimum(needed, wanted).astype(np.int64), max(int(wanted * SMALLEST), 1))
    return np.where((missing > 0) & ~last, np.minimum(size, wanted), 0), last | (needed <= wanted)


@dataclass
class PilotTally:
    """What R replays of `pilot` did, and what was logged for their prompts, shape (R,) each."""

    logged_groups: np.ndarray
    logged_tokens: np.ndarray
    rollouts: np.ndarray  # both rounds together
    tokens: np.ndarray
    unextended: np.ndarray  # groups without a second round
    useful: np.ndarray  # rollouts of groups whose rewards differ


def pilot(groups: Groups, slots: np.ndarray, budget: float, rng: np.random.Generator) -> PilotTally:
    """Two rounds in the order of the run; which completions of a group come first is drawn anew for each replay.

    `slots` (R, P) are the prompts of each replay; a prompt that stands there twice has two histories. A group of which
    more rollouts are wanted than were logged starts over.
    """
    tally = PilotTally(*np.zeros((6, len(slots))))
    for replay, prompts in enumerate(slots):
        copies = np.bincount(prompts, minlength=groups.num_prompts)[groups.prompt]  # (G,)
        statistics = PromptStatistics(reward_decay=REWARD_DECAY)
        for rows in groups.steps:
            rows = np.repeat(rows, copies[rows])
            if not len(rows):
                continue
            order = rng.permuted(np.tile(np.arange(groups.size), (len(rows), 1)), axis=1)  # (M, n)
            counts, tokens, differs = _two_rounds(groups, statistics, rows, order, budget)
            tally.logged_groups[replay] += len(rows)
            tally.logged_tokens[replay] += groups.tokens[rows].sum()
            tally.rollouts[replay] += counts.sum()
            tally.tokens[replay] += tokens
            tally.unextended[replay] += (counts == PILOT_ROLLOUTS).sum()
            tally.useful[replay] += counts[differs].sum()
    return tally


def _two_rounds(
    groups: Groups, statistics: PromptStatistics, rows: np.ndarray, order: np.ndarray, budget: float
) -> tuple[np.ndarray, float, np.ndarray]:
    """Rollouts of each group of a step (M,), their tokens, and which groups differ (M,); the statistics learn."""
    size, k = groups.size, PILOT_ROLLOUTS
    copy = np.arange(len(rows)) - np.searchsorted(rows, rows)  # rows ascend
    keys = [f"{prompt} {number}" for prompt, number in zip(groups.prompt[rows], copy, strict=True)]
    rewards = np.take_along_axis(groups.rewards[rows], order, axis=1)
    lengths = np.take_along_axis(groups.lengths[rows], order, axis=1)
    counts, _, _ = open_counts(
        statistics,
        keys,
        np.repeat(np.arange(len(rows)), k),
        rewards[:, :k].ravel(),
        lengths[:, :k].ravel(),
        rollouts_per_prompt=budget * size,
        num_min=k,
        num_max=min(MOST_ROLLOUTS, len(rows) * size),
        max_rollouts=len(rows) * size,
    )
    group = np.repeat(np.arange(len(rows)), counts)
    place = (np.arange(len(group)) - np.repeat(np.cumsum(counts) - counts, counts)) % size
    reward, length = rewards[group, place], lengths[group, place]
    known = ~np.isnan(reward)
    statistics.observe_lengths(keys, group, length, length, np.ones(len(group), dtype=bool))
    statistics.observe_rewards(keys, group, reward, known)
    low, high = np.full(len(rows), np.inf), np.full(len(rows), -np.inf)
    np.minimum.at(low, group[known], reward[known])
    np.maximum.at(high, group[known], reward[known])
    return counts, float(length.sum()), (low < high) & groups.differs[rows]  # by the tolerance of the logged figures
