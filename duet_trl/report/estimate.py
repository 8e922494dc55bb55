# SPDX-License-Identifier: Apache-2.0
"""What DUET's gate and budget would have cost on the completions of a finished GRPO run (Section 3, Eq. 5).

Measured, from the completions alone: what was generated after each marker completes, how many tokens lie beyond the
abort gate, which groups have no difference in reward. Projected, by arithmetic: a budget b buys b x the logged
rollouts at the mean length that the gate leaves. Intervals are over the prompts of the run, each with all its visits;
the tokens of the run are held fixed. Nothing is trained or sampled, so nothing is said about accuracy.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..allocate.openness import openness, posterior, price_of_more
from ..allocate.statistics import RewardHistory
from ..gate.replay import NEVER, GateSpec, Outcome, Replay, replay
from ..gate.thresholds import PricedThresholds
from .intervals import ratio_interval
from .logged_completions import Completions, UnreadableRun
from .tokens import LoggedThoughts, Tokens

Interval = tuple[float, float]
"""Both ends of a 95% interval."""

_NOISE = 1e-6
"""Relative spread up to which rewards of a group count as equal: they are float32 sums."""


@dataclass(frozen=True)
class GroupSpread:
    """Groups whose rewards do not differ."""

    num_groups: int  # groups by run, step and prompt
    num_scored: int  # of those, groups with two scored completions or more; the rest of the table is about them
    zero_variance: float | None  # share without any difference in reward: they teach nothing
    zero_variance_interval: Interval | None


@dataclass(frozen=True)
class MarkerEstimate:
    """What the gate would have done with one marker. Shares of tokens are of all tokens, the others of completions."""

    marker: str  # name
    abort_threshold: int  # K2, tokens
    keep_probability: float  # eps of the coin at the abort gate
    shown: float  # completions in which it completes outside of thoughts
    tokens_after_answer: float  # tokens after its first completion
    tokens_after_answer_interval: Interval | None
    trim_saves: float  # tokens beyond tau + G of answered completions
    tail: float  # completions that reach K2 + G without a marker that a poll saw
    tail_interval: Interval | None
    tail_tokens: float  # their tokens beyond K2 + G
    abort_saves: float  # (1 - eps) of these: what aborting saves in expectation
    # of the tail, completions that scored above their group's mean. Aborting stops these too. None without a tail or a
    # score.
    tail_above_mean: float | None
    answer_changes: float | None  # of the trimmed, completions whose last answer is another one after the cut
    gated_mean: float  # expected tokens of a completion under the gate
    gated_share_interval: Interval | None  # of gated_mean over the mean length


@dataclass(frozen=True)
class Projection:
    """Projected cost of the logged batches under a budget."""

    marker: str | None  # marker of the gate; None: no gate, fewer rollouts only
    budget: float  # b
    rollouts: float  # b x logged completions
    tokens: float  # rollouts x mean length under the gate
    token_share: float  # relative to what was logged
    token_share_interval: Interval | None  # None: no gate, or one prompt


def total_reward(completions: Completions, columns: Sequence[str], weights: Sequence[float] | None) -> np.ndarray:
    """Weighted sum of the reward columns, as TRL adds them up, shape (N,); nan where no function gave a number.

    One weight per column, None: 1 each. UnreadableRun if a column is not there, not numeric or infinite, or the
    weights do not fit.
    """
    if unknown := [name for name in columns if name not in completions.numbers]:
        known = ", ".join(completions.numbers) or "none"
        raise UnreadableRun(f"no numeric column {', '.join(unknown)} in the files. Numeric columns: {known}.")
    if weights is not None and len(weights) != len(columns):
        raise UnreadableRun(f"{len(weights)} reward weights for {len(columns)} reward columns ({', '.join(columns)}).")
    if not columns:
        return np.full(len(completions.texts), np.nan)
    rewards = np.stack([completions.numbers[name] for name in columns])  # (columns, N)
    if infinite := ", ".join(name for name in columns if np.isinf(completions.numbers[name]).any()):
        raise UnreadableRun(f"infinite rewards in {infinite}. Name the other columns with --reward_columns.")
    weighted = rewards * np.asarray([1.0] * len(columns) if weights is None else weights)[:, None]
    return np.where(np.isnan(rewards).all(axis=0), np.nan, np.nansum(weighted, axis=0))


def measure_groups(completions: Completions, columns: Sequence[str], reward: np.ndarray) -> GroupSpread:
    """Zero-variance groups.

    A group has zero variance if all of its rewards are equal, or all of its advantages: these know the weights that
    the run gave to its reward functions.
    """
    advantage = _informative(completions.advantage) if columns else completions.advantage
    scored = ~np.isnan(reward) if columns else ~np.isnan(advantage)
    rows_of_group = np.split(np.argsort(completions.group, kind="stable"), np.cumsum(np.bincount(completions.group)))
    groups = [rows[scored[rows]] for rows in rows_of_group[:-1]]
    usable = [rows for rows in groups if len(rows) > 1]
    if not usable:
        return GroupSpread(len(groups), 0, None, None)
    flat = [_equal(advantage[rows]) or _equal(reward[rows]) for rows in usable]
    prompts = completions.prompt_number[[rows[0] for rows in usable]]
    interval = _share_interval(flat, np.ones(len(flat)), prompts)
    return GroupSpread(len(groups), len(usable), float(np.mean(flat)), interval)


def above_group_mean(completions: Completions, reward: np.ndarray) -> np.ndarray:
    """Whether each completion scored above its group: 1.0, 0.0 or nan (unknown), shape (N,)."""
    advantage = _informative(completions.advantage)
    num_scored = np.bincount(completions.group, weights=~np.isnan(reward))
    total = np.bincount(completions.group, weights=np.nan_to_num(reward))
    mean = np.divide(total, num_scored, out=np.full(len(total), np.nan), where=num_scored > 0)[completions.group]
    by_reward = np.where(np.isnan(reward), np.nan, reward > mean + _NOISE * np.maximum(1.0, np.abs(mean)))
    return np.where(np.isnan(advantage), by_reward, advantage > _NOISE)


@dataclass(frozen=True)
class Logged:
    """What the gate is replayed on: N completions and what is known of them.

    Attributes:
        completions (Completions): Read from the files.
        tokens (Tokens): Of each.
        thoughts (LoggedThoughts): In each.
        reward (np.ndarray): Of each, shape (N,), nan where unknown.
        price (float): Of a token (`logged_price`).
        grace_window (int): G, tokens.
    """

    completions: Completions
    tokens: Tokens
    thoughts: LoggedThoughts
    reward: np.ndarray
    price: float
    grace_window: int


def measure_marker(name: str, logged: Logged) -> MarkerEstimate:
    """Replay the gate over finished completions, with the expectation over its coins; one K2 for all of them.

    The run had no gate: to replay, it is one whose coins all said keep and that trimmed nothing.
    """
    completions, tokens, thoughts = logged.completions, logged.tokens, logged.thoughts
    length, marker, prompts = tokens.lengths, thoughts.marker(name), completions.prompt_number
    total, answer_at = int(length.sum()), tokens.answered_at(marker, thoughts.opened)
    spec, keep = _gate(answer_at, logged)
    nobody = np.zeros(len(length), dtype=bool)
    found = replay(replace(spec, trim=False), tokens.automaton(marker), tokens.ids, nobody, ~nobody, thoughts.opened)
    answered, tail = found.outcome == Outcome.ANSWERED, found.outcome == Outcome.KEPT
    stop = np.where(answered, np.minimum(length, found.marker_at + spec.grace_window), length)  # (N,)
    beyond = tail * (length - spec.abort_at)  # (N,)
    trim_tokens, abort_tokens = int((length - stop).sum()), (1.0 - keep) * int(beyond.sum())
    shown = answer_at < NEVER
    after = shown * (length - np.minimum(answer_at, length))
    above = above_group_mean(completions, logged.reward)[tail]
    return MarkerEstimate(
        marker=name,
        abort_threshold=spec.abort_threshold,
        keep_probability=keep,
        shown=float(shown.mean()),
        tokens_after_answer=float(after.sum()) / total,
        tokens_after_answer_interval=_share_interval(after, length, prompts),
        trim_saves=trim_tokens / total,
        tail=float(tail.mean()),
        tail_interval=_share_interval(tail, np.ones(len(tail)), prompts),
        tail_tokens=int(beyond.sum()) / total,
        abort_saves=abort_tokens / total,
        tail_above_mean=None if np.isnan(above).all() else float(np.nanmean(above)),
        answer_changes=thoughts.answer_changes(name, completions.texts, tokens, stop),
        gated_mean=(total - trim_tokens - abort_tokens) / len(length),
        gated_share_interval=_share_interval(stop - (1.0 - keep) * beyond, length, prompts),
    )


def project(lengths: np.ndarray, markers: Sequence[MarkerEstimate], budgets: Sequence[float]) -> list[Projection]:
    """Tokens at each budget: b x the logged completions, of `lengths` (N,), at the mean length that the gate leaves.

    Without a gate first, then for each marker that a completion shows.
    """
    num, mean = len(lengths), float(lengths.mean())
    gates = [(None, mean, None), *((m.marker, m.gated_mean, m.gated_share_interval) for m in markers if m.shown)]
    return [
        Projection(
            marker=marker,
            budget=budget,
            rollouts=budget * num,
            tokens=budget * num * gated,
            token_share=budget * gated / mean,
            token_share_interval=None if interval is None else (budget * interval[0], budget * interval[1]),
        )
        for marker, gated, interval in gates
        for budget in budgets
    ]


def logged_price(completions: Completions, lengths: np.ndarray, reward: np.ndarray) -> float:
    """What one more rollout of each logged prompt would have earned per token; nan where no reward is known.

    Args:
        completions (Completions): N of them, in groups.
        lengths (np.ndarray): Their tokens, shape (N,).
        reward (np.ndarray): Their rewards, shape (N,), nan where unknown.
    """
    known = ~np.isnan(reward)
    if not known.any():
        return float("nan")
    group, size = completions.group, int(completions.group.max()) + 1
    count = np.bincount(group[known], minlength=size).astype(np.float64)
    mean = np.bincount(group[known], weights=reward[known], minlength=size) / np.maximum(count, 1.0)
    seen = RewardHistory(count, mean, mean**2, float("nan"), float("nan"))
    worth = openness(*posterior(seen, (float(reward[known].min()), float(reward[known].max()))))
    return price_of_more(worth, count, np.maximum(np.bincount(group, weights=lengths) / np.bincount(group), 1.0))


def _gate(answer_at: np.ndarray, logged: Logged) -> tuple[GateSpec, float]:
    """The gate and the coin as the trainer would set them after these completions, one for all of them.

    An answer time is the first poll that sees the answer, also where the completion ends before it. Without rewards
    there is no price, and nothing is aborted.
    """
    lengths, size = logged.tokens.lengths, len(answer_at)
    longest = int(lengths.max())
    spec = GateSpec(PricedThresholds.poll_threshold, longest, logged.grace_window)
    seen_at = np.where(answer_at < NEVER, replace(spec, abort=False).seen_at(answer_at), -1)
    unit = PricedThresholds(longest, logged.grace_window, width=spec.poll_interval)
    outcome, unseen, untrimmed = np.full(size, Outcome.NATURAL), np.full(size, -1), np.zeros(size, dtype=bool)
    whole = Replay(outcome, unseen, untrimmed, lengths, seen_at, seen_at)
    unit.observe(whole, np.ones(size), logged.reward, 1, logged.price)
    return replace(spec, abort_threshold=unit.abort_threshold), unit.keep_probability


def _share_interval(top: Sequence[bool] | np.ndarray, bottom: np.ndarray, prompts: np.ndarray) -> Interval | None:
    """Interval of the share sum(top) / sum(bottom) over prompts, within [0, 1]; None for a single prompt."""
    ends = ratio_interval(np.asarray(top, dtype=np.float64), bottom, prompts)
    return None if ends is None else (max(ends[0], 0.0), min(ends[1], 1.0))


def _equal(values: np.ndarray) -> bool:
    """Whether all values are one number up to the rounding of float32; nan is none."""
    return bool(np.ptp(values) <= _NOISE * max(1.0, float(np.abs(values).max())))  # False with nan


def _informative(advantage: np.ndarray) -> np.ndarray:
    """The advantages, or nan throughout if all are one number: then nothing was trained on them."""
    known = advantage[~np.isnan(advantage)]
    return np.full_like(advantage, np.nan) if len(known) == 0 or _equal(known) else advantage
