# SPDX-License-Identifier: Apache-2.0
"""What DUET's gate and budget would have cost on the completions of a finished GRPO run (Section 3, Eq. 5).

Measured, from the completions alone: where each marker completes, what was generated after it, how many tokens lie
beyond the abort gate, how rewards spread within the groups. Projected, by arithmetic: a budget b buys b x the logged
rollouts at the mean length that the gate leaves. Intervals are over the prompts of the run, each with all its visits;
the tokens of the run are held fixed. Nothing is trained or sampled, so nothing is said about accuracy.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..allocate.openness import openness, posterior, price_of_more
from ..allocate.statistics import RewardHistory
from ..gate.markers import MARKERS
from ..gate.priced import PricedThresholds
from ..gate.replay import NEVER, GateSpec, Outcome, Replay, replay
from ..gate.thresholds import scaled_grace_window, weighted_quantile
from .intervals import ratio_interval
from .logged_completions import Completions, UnreadableRun
from .tokens import LoggedThoughts, Tokens

PAPER_KEEP = 0.05
"""eps_abort of the paper, where K2 is a quantile of lengths."""

Interval = tuple[float, float]
"""Both ends of a 95% interval."""

_NOISE = 1e-6
"""Relative spread up to which rewards of a group count as equal: they are float32 sums."""


@dataclass(frozen=True)
class Settings:
    """What the estimate assumes about the gate and the clock. Defaults: those of the method duet."""

    markers: tuple[str, ...] = tuple(MARKERS)  # names for `get_marker`
    budgets: tuple[float, ...] = (1.0, 0.5, 0.25)  # b, each in (0, 1]
    abort_rule: str = "price"  # "length": K1, K2 and the coin by the paper's rule
    poll_quantile: float = 0.3  # length quantile of K1, with "length"; with "price" K1 is 1
    abort_quantile: float = 0.8  # length quantile of K2, with "length"
    grace_window: int | None = None  # G, tokens; None: in the paper's proportion to the longest completion
    poll_interval: int = 8  # tokens between two polls
    keep_probability: float | None = None  # eps_abort, in (0, 1]; None: as the trainer would set it
    trim: bool = True  # stop answered rollouts at tau + G
    abort: bool = True  # stop marker-less rollouts at K2 + G unless the coin keeps them
    # share of a step's seconds that generation takes, in [0, 1]. The default is an assumption: neither the paper nor
    # the log of a stock run has the number.
    generation_share: float = 0.7

    def with_limit(self, limit: int) -> "Settings":
        """The settings with a grace window for this length limit, tokens, where none is given."""
        return self if self.grace_window is not None else replace(self, grace_window=scaled_grace_window(limit))


@dataclass(frozen=True)
class Lengths:
    """Measured lengths, in tokens."""

    total: int  # all completions together
    mean: float  # per completion
    first_batch: float  # mean of the first batch
    last_batch: float  # mean of the last batch
    longest: int  # stands for the limit of the run
    poll_threshold: int  # K1, the lower length quantile
    abort_threshold: int  # the upper one: K2 by the paper's rule


@dataclass(frozen=True)
class GroupSpread:
    """Measured spread of rewards within groups."""

    num_groups: int  # groups by run, step and prompt
    num_scored: int  # of those, groups with two scored completions or more; the rest of the table is about them
    zero_variance: float | None  # share without any difference in reward: they teach nothing
    zero_variance_interval: Interval | None


@dataclass(frozen=True)
class MarkerEstimate:
    """What the gate would have done with one marker. Shares of tokens are of all tokens, the others of completions."""

    marker: str  # name
    abort_threshold: int  # K2, tokens
    trim_can_act: bool  # whether trim is on and could have stopped the longest completion
    abort_can_act: bool  # the same for abort
    shown: float  # completions in which it completes outside of thoughts
    in_thought: float  # completions in which it first completes inside of one, where it does not count
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
    time_share_low: float  # the step's time, relative, if all of it shrinks with the tokens
    time_share_high: float  # the same if only generation does


def measure_lengths(completions: Completions, tokens: Tokens, settings: Settings) -> Lengths:
    """Total, mean and the two quantiles of everything that was logged; UnreadableRun if all of it is empty."""
    lengths = tokens.lengths
    if not lengths.any():
        raise UnreadableRun("every completion is empty: there are no tokens to save.")
    means = np.bincount(completions.batch, weights=lengths) / np.bincount(completions.batch)
    poll, abort = weighted_quantile(lengths, np.ones(len(lengths)), (settings.poll_quantile, settings.abort_quantile))
    return Lengths(
        total=int(lengths.sum()),
        mean=float(lengths.mean()),
        first_batch=float(means[0]),
        last_batch=float(means[-1]),
        longest=int(lengths.max()),
        poll_threshold=max(int(poll), 1),
        abort_threshold=max(int(abort), 1),
    )


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
        tokens (Tokens): Of each.
        thoughts (LoggedThoughts): In each.
        lengths (Lengths): Measured ones.
        settings (Settings): With a grace window (`Settings.with_limit`).
        reward (np.ndarray): Of each, shape (N,), nan where unknown.
        price (float): Of a token (`logged_price`).
    """

    tokens: Tokens
    thoughts: LoggedThoughts
    lengths: Lengths
    settings: Settings
    reward: np.ndarray
    price: float


def measure_marker(name: str, completions: Completions, logged: Logged) -> MarkerEstimate:
    """Replay the gate over finished completions, with the expectation over its coins; one K2 for all of them.

    The run had no gate: to replay, it is one whose coins all said keep and that trimmed nothing.
    """
    tokens, thoughts, lengths = logged.tokens, logged.thoughts, logged.lengths
    length, total = tokens.lengths, lengths.total
    spec, keep, answer_at, tail, stop = _under_gate(name, logged)
    beyond = tail * (length - spec.abort_at)  # (N,)
    tail_tokens, gated = int(beyond.sum()), stop - (1.0 - keep) * beyond
    trim_tokens, abort_tokens = int((length - stop).sum()), (1.0 - keep) * tail_tokens
    shown, prompts = answer_at < NEVER, completions.prompt_number
    after = shown * (length - np.minimum(answer_at, length))
    above = above_group_mean(completions, logged.reward)[tail]
    return MarkerEstimate(
        marker=name,
        abort_threshold=spec.abort_threshold,
        trim_can_act=spec.trim_at < lengths.longest,
        abort_can_act=spec.abort_at < lengths.longest,
        shown=float(shown.mean()),
        in_thought=float(thoughts.hides_first(name, tokens).mean()),
        tokens_after_answer=float(after.sum()) / total,
        tokens_after_answer_interval=_share_interval(after, length, prompts),
        trim_saves=trim_tokens / total,
        tail=float(tail.mean()),
        tail_interval=_share_interval(tail, np.ones(len(tail)), prompts),
        tail_tokens=tail_tokens / total,
        abort_saves=abort_tokens / total,
        tail_above_mean=None if np.isnan(above).all() else float(np.nanmean(above)),
        answer_changes=thoughts.answer_changes(name, completions.texts, tokens, stop),
        gated_mean=(total - trim_tokens - abort_tokens) / len(length),
        gated_share_interval=_share_interval(gated, length, prompts),
    )


def project(lengths: Lengths, markers: Sequence[MarkerEstimate], num: int, settings: Settings) -> list[Projection]:
    """Tokens and time at each budget: b x the `num` logged completions at the mean length that the gate leaves.

    Without a gate first, then for each marker that a completion shows. Generation is taken to be proportional to
    tokens. The rest of a step is taken to stay as it is (high) or to shrink likewise (low).
    """

    def projection(marker: str | None, mean: float, interval: Interval | None, budget: float) -> Projection:
        share = budget * mean / lengths.mean
        ends = None if interval is None else (budget * interval[0], budget * interval[1])
        high = 1.0 - settings.generation_share * (1.0 - share)
        return Projection(marker, budget, budget * num, budget * num * mean, share, ends, share, high)

    gates = [
        (None, lengths.mean, None),
        *((m.marker, m.gated_mean, m.gated_share_interval) for m in markers if m.shown),
    ]
    return [projection(*gate, budget) for gate in gates for budget in settings.budgets]


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


def _under_gate(name: str, logged: Logged) -> tuple[GateSpec, float, np.ndarray, np.ndarray, np.ndarray]:
    """Gate and coin, answer times, whether only the coin saves each from being aborted, and its tokens where it does.

    Shape (N,) each.
    """
    tokens, thoughts = logged.tokens, logged.thoughts
    length, marker = tokens.lengths, thoughts.marker(name)
    answer_at = tokens.answered_at(marker, thoughts.opened)
    spec, keep = _gate(answer_at, logged)
    nobody = np.zeros(len(length), dtype=bool)
    found = replay(replace(spec, trim=False), tokens.automaton(marker), tokens.ids, nobody, ~nobody, thoughts.opened)
    answered, tail = found.outcome == Outcome.ANSWERED, found.outcome == Outcome.KEPT
    stop = np.where(answered & spec.trim, np.minimum(length, found.marker_at + spec.grace_window), length)
    return spec, keep, answer_at, tail, stop


def _gate(answer_at: np.ndarray, logged: Logged) -> tuple[GateSpec, float]:
    """The gate and the coin as the trainer would set them after these completions, one for all of them.

    An answer time is the first poll that sees the answer, also where the completion ends before it. Without rewards
    there is no price, and nothing is aborted.
    """
    lengths, settings = logged.lengths, logged.settings
    spec = GateSpec(
        poll_threshold=lengths.poll_threshold,
        abort_threshold=lengths.abort_threshold,
        grace_window=settings.grace_window,
        poll_interval=settings.poll_interval,
        trim=settings.trim,
        abort=settings.abort,
    )
    keep = settings.keep_probability
    if settings.abort_rule == "length":
        return spec, PAPER_KEEP if keep is None else keep
    spec = replace(spec, poll_threshold=PricedThresholds.poll_threshold)
    seen_at = np.where(answer_at < NEVER, replace(spec, abort=False).seen_at(answer_at), -1)
    unit = PricedThresholds(lengths.longest, settings.grace_window, width=settings.poll_interval)
    size = len(answer_at)
    outcome, unseen, untrimmed = np.full(size, Outcome.NATURAL), np.full(size, -1), np.zeros(size, dtype=bool)
    whole = Replay(outcome, unseen, untrimmed, logged.tokens.lengths, seen_at, seen_at)
    unit.observe(whole, np.ones(size), logged.reward, 1, logged.price)
    return replace(spec, abort_threshold=unit.abort_threshold), unit.keep_probability if keep is None else keep


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
