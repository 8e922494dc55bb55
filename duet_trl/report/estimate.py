# SPDX-License-Identifier: Apache-2.0
"""Tokens that DUET's gate and budget would have cost on the completions of a finished GRPO run (Section 3, Eq. 5).

Measured, from the completions alone: what was generated after each marker completes, how many tokens lie beyond the
abort gate, which groups have no difference in reward. Projected, by arithmetic: a budget b buys b x the logged
rollouts at the mean length that the gate leaves. Intervals are over the prompts of the run, each with all its visits;
the tokens of the run are held fixed. Nothing is trained or sampled, so accuracy is not predicted.
"""

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from types import SimpleNamespace
from typing import Any

import numpy as np

from ..allocate.statistics import RewardHistory, openness, posterior, price_of_more
from ..gate.automaton import compile_automaton
from ..gate.markers import extract_answer, get_marker
from ..gate.replay import NEVER, GateSpec, Outcome, Replay, replay
from ..gate.thoughts import Delimiters, Written, ends_in_thought, recognise
from ..gate.thresholds import PricedThresholds
from ..gate.vocabulary import vocabulary_bytes
from .intervals import ratio_interval
from .logged_completions import LoggedRun

Interval = tuple[float, float]
"""Both ends of a 95% interval."""

NOISE = 1e-6
"""Relative spread up to which credits of a group count as equal: they are float32 sums."""

_CHUNK = 1024
"""Texts that are tokenized together: a tokenizer's result for one holds far more than its ids."""


@dataclass(frozen=True)
class MarkerEstimate:
    """The gate's effect with one marker. Shares of tokens are of all tokens, the others of completions."""

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
    tail_above_mean: float | None  # of the tail, completions better than their group; None without tail or rewards
    answer_changes: float | None  # of the trimmed, completions whose last answer changes with the cut
    gated_mean: float  # expected tokens of a completion under the gate
    gated_share_interval: Interval | None  # of gated_mean over the mean length


@dataclass(frozen=True)
class Texts:
    """The completions of a run in tokens, and their thoughts."""

    run: LoggedRun
    tokenizer: Any  # `tokenizers.Tokenizer`
    ids: list[np.ndarray]  # tokens of each completion, length N
    delimiters: Delimiters | None  # of thoughts; None: there are none
    opened: np.ndarray  # whether each begins inside a thought, shape (N,), bool

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each, shape (N,)."""
        return np.fromiter(map(len, self.ids), np.int64, len(self.ids))

    @cached_property
    def vocabulary(self) -> list[bytes | None]:
        """Bytes of each token id, the same for every marker."""
        shown = () if self.delimiters is None else self.delimiters.parts
        fast = SimpleNamespace(backend_tokenizer=self.tokenizer)  # what is read of transformers' fast tokenizers
        return vocabulary_bytes(fast, shown=shown)


def tokenize(run: LoggedRun, tokenizer: Any) -> Texts:
    """Tokens of a run's texts, which have no end token, and the thought delimiters that most of them show.

    A completion begins inside a thought if its prompt opened one, or if it closes one first. Logs hold no special
    tokens: nothing can be known of a thought between two of them.
    """
    chunks = (run.texts[start : start + _CHUNK] for start in range(0, len(run.texts), _CHUNK))
    encoded = chain.from_iterable(tokenizer.encode_batch(chunk, add_special_tokens=False) for chunk in chunks)
    ids = [np.array(one.ids, np.int32) for one in encoded]
    seen = Counter(filter(None, (recognise(text).delimiters for text in run.texts)))
    delimiters = seen.most_common(1)[0][0] if seen else None
    opened = np.zeros(len(ids), dtype=bool)
    if delimiters is not None:
        for row, (prompt, text) in enumerate(zip(run.prompts, run.texts, strict=True)):
            before, closing, _ = text.partition(delimiters.closing)
            closes_first = bool(closing) and delimiters.opening not in before
            opened[row] = closes_first or ends_in_thought(prompt, delimiters)
    return Texts(run, tokenizer, ids, delimiters, opened)


def zero_variance(run: LoggedRun) -> tuple[int, float | None, Interval | None]:
    """Groups with two scored completions or more, the share of them whose credits are all equal, and its interval."""
    flat, prompts = [], []
    order = np.argsort(run.group, kind="stable")
    for rows in np.split(order, np.cumsum(np.bincount(run.group))[:-1]):
        scored = rows[~np.isnan(run.credit[rows])]
        if len(scored) > 1:
            credit = run.credit[scored]
            flat.append(bool(np.ptp(credit) <= NOISE * max(1.0, np.abs(credit).max())))
            prompts.append(run.prompt[rows[0]])
    if not flat:
        return 0, None, None
    return len(flat), float(np.mean(flat)), _share_interval(flat, np.ones(len(flat)), np.array(prompts))


def measure_marker(name: str, texts: Texts, grace_window: int, price: float) -> MarkerEstimate:
    """Replay the gate over finished completions, with the expectation over its coins; one K2 for all of them.

    `price` is that of a token (`logged_price`). The run had no gate: it is replayed as one whose coins all came up
    keep and that trimmed nothing.
    """
    run, length, marker = texts.run, texts.lengths, get_marker(name, texts.delimiters)
    automaton = compile_automaton(marker, texts.vocabulary)
    answer_at, total = np.full(len(length), NEVER), int(length.sum())
    np.minimum.at(answer_at, *automaton.completions(texts.ids, texts.opened))
    spec, keep = _gate(answer_at, length, run.reward, grace_window, price)
    nobody = np.zeros(len(length), dtype=bool)
    found = replay(replace(spec, trim=False), automaton, texts.ids, nobody, ~nobody, texts.opened)
    answered, tail = found.outcome == Outcome.ANSWERED, found.outcome == Outcome.KEPT
    stop = np.where(answered, np.minimum(length, found.marker_at + grace_window), length)  # (N,)
    beyond = tail * (length - spec.abort_at)  # (N,)
    trim_tokens, abort_tokens = int((length - stop).sum()), (1.0 - keep) * int(beyond.sum())
    after = np.where(answer_at < NEVER, length - np.minimum(answer_at, length), 0)
    credit = run.credit[tail & ~np.isnan(run.credit)]
    return MarkerEstimate(
        marker=name,
        abort_threshold=spec.abort_threshold,
        keep_probability=keep,
        shown=float((answer_at < NEVER).mean()),
        tokens_after_answer=float(after.sum()) / total,
        tokens_after_answer_interval=_share_interval(after, length, run.prompt),
        trim_saves=trim_tokens / total,
        tail=float(tail.mean()),
        tail_interval=_share_interval(tail, np.ones(len(tail)), run.prompt),
        tail_tokens=int(beyond.sum()) / total,
        abort_saves=abort_tokens / total,
        tail_above_mean=float((credit > NOISE).mean()) if len(credit) else None,
        answer_changes=_answer_changes(name, texts, stop),
        gated_mean=(total - trim_tokens - abort_tokens) / len(length),
        gated_share_interval=_share_interval(stop - (1.0 - keep) * beyond, length, run.prompt),
    )


def logged_price(run: LoggedRun, lengths: np.ndarray) -> float:
    """Gain per token of `lengths` (N,) from one more rollout of each prompt; nan without a reward."""
    known = ~np.isnan(run.reward)
    if not known.any():
        return float("nan")
    group, size, reward = run.group, int(run.group.max()) + 1, run.reward[known]
    count = np.bincount(group[known], minlength=size).astype(np.float64)
    mean = np.bincount(group[known], weights=reward, minlength=size) / np.maximum(count, 1.0)
    seen = RewardHistory(count, mean)
    worth = openness(*posterior(seen, (float(reward.min()), float(reward.max()))))
    return price_of_more(worth, count, np.maximum(np.bincount(group, weights=lengths) / np.bincount(group), 1.0))


def _gate(
    answer_at: np.ndarray, lengths: np.ndarray, reward: np.ndarray, grace_window: int, price: float
) -> tuple[GateSpec, float]:
    """The gate and the coin as the trainer would set them after these completions, one for all of them.

    An answer time is the first poll that sees the answer, also where the completion ends before it. Without rewards
    there is no price, and nothing is aborted.
    """
    longest, size = int(lengths.max()), len(answer_at)
    spec = GateSpec(PricedThresholds.poll_threshold, longest, grace_window)
    seen_at = np.where(answer_at < NEVER, replace(spec, abort=False).seen_at(answer_at), -1)
    unit = PricedThresholds(longest, grace_window, width=spec.poll_interval)
    outcome, unseen, untrimmed = np.full(size, Outcome.NATURAL), np.full(size, -1), np.zeros(size, dtype=bool)
    whole = Replay(outcome, unseen, untrimmed, lengths, seen_at, seen_at)
    unit.observe(whole, reward, 1, price)
    return replace(spec, abort_threshold=unit.abort_threshold), unit.keep_probability


def _answer_changes(name: str, texts: Texts, stop: np.ndarray) -> float | None:
    """Share of the completions stopped early, at `stop` (N,) tokens, whose last answer then changes."""
    changed = []
    for row in np.flatnonzero(stop < texts.lengths):
        cut = texts.tokenizer.decode(texts.ids[row][: stop[row]].tolist(), skip_special_tokens=False)
        written = [Written(text, texts.delimiters, bool(texts.opened[row])) for text in (cut, texts.run.texts[row])]
        changed.append(extract_answer(name, written[0], "last") != extract_answer(name, written[1], "last"))
    return float(np.mean(changed)) if changed else None


def _share_interval(top: Any, bottom: np.ndarray, prompts: np.ndarray) -> Interval | None:
    """Interval of the share sum(top) / sum(bottom) over prompts, within [0, 1]; None for a single prompt."""
    ends = ratio_interval(np.asarray(top, dtype=np.float64), bottom, prompts)
    return None if ends is None else (max(ends[0], 0.0), min(ends[1], 1.0))
