# SPDX-License-Identifier: Apache-2.0
"""What DUET's gate and budget would have cost on the completions of a finished GRPO run (Section 3, Eq. 5).

Measured, from the completions alone: where each marker completes, what was generated after it, how many tokens lie
beyond the abort gate, how rewards spread within the groups. Projected, by arithmetic: a budget b buys b x the logged
rollouts at the mean length that the gate leaves. Nothing is trained or sampled, so nothing is said about accuracy.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..gate.markers import MARKERS
from ..gate.replay import NEVER, GateSpec, Outcome, replay
from ..gate.thresholds import after_the_answers, rewarded, scaled_grace_window, weighted_quantile
from .logged_completions import Completions, UnreadableRun
from .tokens import LoggedThoughts, Tokens

COLD_ABORT = 0.7
"""K2 before anything is known, as a share of the length limit (`abort_cold_fraction`)."""

STD_QUANTILES = (0.1, 0.5, 0.9)
"""Quantiles over groups that are reported."""

_NOISE = 1e-6
"""Relative spread up to which rewards of a group count as equal: they are float32 sums."""


@dataclass(frozen=True)
class Settings:
    """What the estimate assumes about the gate and the clock. Defaults: those of the method duet."""

    markers: tuple[str, ...] = tuple(MARKERS)  # names for `get_marker`
    budgets: tuple[float, ...] = (1.0, 0.5, 0.25)  # b, each in (0, 1]
    poll_quantile: float = 0.3  # length quantile of K1
    abort_quantile: float = 0.8  # length quantile of K2 by the paper's rule
    # K2 is `abort_answer_slack` times this quantile of the times of a marker's answers, or the 0.995 quantile of the
    # rewarded ones if that is later; 0: the length quantile
    abort_answer_quantile: float = 0.95
    abort_answer_slack: float = 1.25  # >= 1
    grace_window: int | None = None  # G, tokens; None: in the paper's proportion to the longest completion
    poll_interval: int = 8  # tokens between two polls
    keep_probability: float = 0.05  # eps_abort, in (0, 1]
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
    mean_std: float | None  # mean within-group standard deviation of the reward (n - 1)
    std_quantiles: dict[str, float]  # its quantiles over groups
    # variance of Theorem 1's optimum, relative to equal counts at equal tokens, if every group's reward spread were
    # known beforehand: Eqs. 1 and 2 without rounding and least counts. 1 means that allocation has nothing to gain.
    neyman_variance: float | None


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
    trim_saves: float  # tokens beyond tau + G of answered completions
    tail: float  # completions that reach K2 + G without a marker that a poll saw
    tail_tokens: float  # their tokens beyond K2 + G
    abort_saves: float  # (1 - eps) of these: what aborting saves in expectation
    # of the tail, completions that scored above their group's mean. Aborting stops these too. None without a tail or a
    # score.
    tail_above_mean: float | None
    answer_changes: float | None  # of the trimmed, completions whose last answer is another one after the cut
    gated_mean: float  # expected tokens of a completion under the gate


@dataclass(frozen=True)
class Projection:
    """Projected cost of the logged batches under a budget."""

    marker: str | None  # marker of the gate; None: no gate, fewer rollouts only
    budget: float  # b
    rollouts: float  # b x logged completions
    tokens: float  # rollouts x mean length under the gate
    token_share: float  # relative to what was logged
    time_share_low: float  # the step's time, relative, if all of it shrinks with the tokens
    time_share_high: float  # the same if only generation does


@dataclass(frozen=True)
class GatedTokens:
    """What a gate leaves of each of N completions, in expectation over its coin; tokens, shape (N,) each."""

    generated: np.ndarray
    trained: np.ndarray  # without aborted completions


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


def measure_groups(
    completions: Completions, lengths: np.ndarray, columns: Sequence[str], reward: np.ndarray
) -> GroupSpread:
    """Zero-variance groups, spread of the within-group standard deviation, and Theorem 1's bound (Eqs. 1 and 2).

    A group has zero variance if all of its rewards are equal, or all of its advantages: these know the weights that
    the run gave to its reward functions.
    """
    advantage = _informative(completions.advantage) if columns else completions.advantage
    scored = ~np.isnan(reward) if columns else ~np.isnan(advantage)
    rows_of_group = np.split(np.argsort(completions.group, kind="stable"), np.cumsum(np.bincount(completions.group)))
    groups = [rows[scored[rows]] for rows in rows_of_group[:-1]]
    usable = [rows for rows in groups if len(rows) > 1]
    flat = [_flat(rows, reward, advantage) for rows in usable]
    std = np.array([0.0 if _equal(reward[rows]) else reward[rows].std(ddof=1) for rows in usable])
    known = bool(columns) and len(std) > 0
    batch = np.array([completions.batch[rows[0]] for rows in usable], dtype=np.int64)
    return GroupSpread(
        num_groups=len(groups),
        num_scored=len(usable),
        zero_variance=float(np.mean(flat)) if usable else None,
        mean_std=float(std.mean()) if known else None,
        std_quantiles={f"p{100 * q:g}": float(np.quantile(std, q)) for q in STD_QUANTILES} if known else {},
        neyman_variance=_neyman_variance(batch, std, [lengths[rows].mean() for rows in usable]) if known else None,
    )


def differing(completions: Completions, reward: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Groups with known rewards that differ, as do advantages if any do; `groups` (G, n) are rows. (G,), bool."""
    advantage = _informative(completions.advantage)
    known = [rows[~np.isnan(reward[rows])] for rows in groups]
    return np.array([len(rows) > 1 and not _flat(rows, reward, advantage) for rows in known], dtype=bool)


def above_group_mean(completions: Completions, reward: np.ndarray) -> np.ndarray:
    """Whether each completion scored above its group: 1.0, 0.0 or nan (unknown), shape (N,)."""
    advantage = _informative(completions.advantage)
    num_scored = np.bincount(completions.group, weights=~np.isnan(reward))
    total = np.bincount(completions.group, weights=np.nan_to_num(reward))
    mean = np.divide(total, num_scored, out=np.full(len(total), np.nan), where=num_scored > 0)[completions.group]
    by_reward = np.where(np.isnan(reward), np.nan, reward > mean + _NOISE * np.maximum(1.0, np.abs(mean)))
    return np.where(np.isnan(advantage), by_reward, advantage > _NOISE)


def measure_marker(
    name: str,
    completions: Completions,
    tokens: Tokens,
    thoughts: LoggedThoughts,
    lengths: Lengths,
    settings: Settings,
    reward: np.ndarray,
) -> MarkerEstimate:
    """Replay the gate over finished completions, with the expectation over its coins; one K2 for all of them.

    The run had no gate: to replay, it is one whose coins all said keep and that trimmed nothing. `settings` hold the
    grace window (`Settings.with_limit`); `reward` is that of each completion, shape (N,), nan where unknown.
    """
    length, total = tokens.lengths, lengths.total
    spec, answer_at, tail, stop = _under_gate(name, tokens, thoughts, lengths, settings, reward)
    tail_tokens = int((length[tail] - spec.abort_at).sum())
    trim_tokens, abort_tokens = int((length - stop).sum()), (1.0 - settings.keep_probability) * tail_tokens
    shown = answer_at < NEVER
    above = above_group_mean(completions, reward)[tail]
    return MarkerEstimate(
        marker=name,
        abort_threshold=spec.abort_threshold,
        trim_can_act=spec.trim_at < lengths.longest,
        abort_can_act=spec.abort_at < lengths.longest,
        shown=float(shown.mean()),
        in_thought=float(thoughts.hides_first(name, tokens).mean()),
        tokens_after_answer=float((length - answer_at)[shown].sum()) / total,
        trim_saves=trim_tokens / total,
        tail=float(tail.mean()),
        tail_tokens=tail_tokens / total,
        abort_saves=abort_tokens / total,
        tail_above_mean=None if np.isnan(above).all() else float(np.nanmean(above)),
        answer_changes=thoughts.answer_changes(name, completions.texts, tokens, stop),
        gated_mean=(total - trim_tokens - abort_tokens) / len(length),
    )


def gated_tokens(
    name: str, tokens: Tokens, thoughts: LoggedThoughts, lengths: Lengths, settings: Settings, reward: np.ndarray
) -> GatedTokens:
    """Tokens of each completion under the gate of one marker; arguments as `measure_marker`."""
    spec, _, tail, stop = _under_gate(name, tokens, thoughts, lengths, settings, reward)
    aborted = (1.0 - settings.keep_probability) * tail
    return GatedTokens(stop - aborted * (stop - spec.abort_at), stop - aborted * stop)


def project(lengths: Lengths, markers: Sequence[MarkerEstimate], num: int, settings: Settings) -> list[Projection]:
    """Tokens and time at each budget: b x the `num` logged completions at the mean length that the gate leaves.

    Without a gate first, then for each marker that a completion shows. Generation is taken to be proportional to
    tokens. The rest of a step is taken to stay as it is (high) or to shrink likewise (low).
    """

    def projection(marker: str | None, mean: float, budget: float) -> Projection:
        share = budget * mean / lengths.mean
        high = 1.0 - settings.generation_share * (1.0 - share)
        return Projection(marker, budget, budget * num, budget * num * mean, share, share, high)

    means = [(None, lengths.mean), *((m.marker, m.gated_mean) for m in markers if m.shown)]
    return [projection(marker, mean, budget) for marker, mean in means for budget in settings.budgets]


def _under_gate(
    name: str, tokens: Tokens, thoughts: LoggedThoughts, lengths: Lengths, settings: Settings, reward: np.ndarray
) -> tuple[GateSpec, np.ndarray, np.ndarray, np.ndarray]:
    """Gate and answer times, whether only the coin saves each from being aborted, and its tokens where that keeps it.

    Shape (N,) each.
    """
    length, marker = tokens.lengths, thoughts.marker(name)
    answer_at = tokens.answered_at(marker, thoughts.opened)
    spec = _gate(answer_at, reward, lengths, settings)
    nobody = np.zeros(len(length), dtype=bool)
    found = replay(replace(spec, trim=False), tokens.automaton(marker), tokens.ids, nobody, ~nobody, thoughts.opened)
    answered, tail = found.outcome == Outcome.ANSWERED, found.outcome == Outcome.KEPT
    stop = np.where(answered & spec.trim, np.minimum(length, found.marker_at + spec.grace_window), length)
    return spec, answer_at, tail, stop


def _gate(answer_at: np.ndarray, reward: np.ndarray, lengths: Lengths, settings: Settings) -> GateSpec:
    """The gate as the trainer would set it after these completions, with one K2 for all of them.

    An answer time is the first poll that sees the answer, also where the completion ends before it; a completion
    without a reward counts as rewarded. Without any answer K2 is what the trainer begins with, a share of the limit.
    """
    spec = GateSpec(
        poll_threshold=lengths.poll_threshold,
        abort_threshold=lengths.longest,
        grace_window=settings.grace_window,
        poll_interval=settings.poll_interval,
        trim=settings.trim,
        abort=False,
    )
    abort = lengths.abort_threshold
    if settings.abort_answer_quantile:
        shown, known = answer_at < NEVER, ~np.isnan(reward)
        if shown.any():
            paid, ones = ~known, np.ones(len(reward))
            paid[known] = rewarded(reward[known], ones[known])
            rule = settings.abort_answer_quantile, settings.abort_answer_slack
            abort = after_the_answers(spec.seen_at(answer_at[shown]), ones[shown], paid[shown], *rule)
        else:
            abort = math.floor(COLD_ABORT * lengths.longest + 1e-9)
        abort = min(max(abort, lengths.poll_threshold), lengths.longest)
    return replace(spec, abort_threshold=abort, abort=settings.abort)


def _flat(rows: np.ndarray, reward: np.ndarray, advantage: np.ndarray) -> bool:
    return _equal(advantage[rows]) or _equal(reward[rows])


def _equal(values: np.ndarray) -> bool:
    """Whether all values are one number up to the rounding of float32; nan is none."""
    return bool(np.ptp(values) <= _NOISE * max(1.0, float(np.abs(values).max())))  # False with nan


def _informative(advantage: np.ndarray) -> np.ndarray:
    """The advantages, or nan throughout if all are one number: then nothing was trained on them."""
    known = advantage[~np.isnan(advantage)]
    return np.full_like(advantage, np.nan) if len(known) == 0 or _equal(known) else advantage


def _neyman_variance(batch: np.ndarray, std: np.ndarray, mean_length: Sequence[float]) -> float | None:
    """sum over batches of (sum s sqrt(L))^2 / sum L, relative to that of sum s^2; None without any spread."""
    best = equal = 0.0
    for index in np.unique(batch):
        rows = batch == index
        length = np.maximum(np.asarray(mean_length)[rows], 1.0)
        best += float((std[rows] * np.sqrt(length)).sum() ** 2 / length.sum())
        equal += float((std[rows] ** 2).sum())
    return best / equal if equal > 0 else None
