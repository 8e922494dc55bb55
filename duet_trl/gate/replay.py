# SPDX-License-Identifier: Apache-2.0
r"""The marker-gated stop of Phase 2 (Section 3.2, Eq. 5, Algorithm 1, lines 9-30).

With t the number of tokens generated so far, the marker is looked for at polls: every t >= K1 that is a multiple of
the poll interval and, if abort is on, t = K2 + G. The first poll at which the prefix contains a completed marker is
tau. A rollout is forced to stop at

    tau + G, or earlier where the next token is nearly certain   if the marker was seen and trim is on
    K2 + G                                                       if it was not and the coin aborts

and runs to its natural end otherwise. Where Eq. 5 (`min(tau + G, K2 + G)`) and Algorithm 1 differ this is Algorithm 1:
a marker in (K2, K2 + G] keeps its full grace. A rollout that its coin kept is never trimmed.

This module is the gate as a pure function of finished rollouts (`replay`); `streaming.py` is the same gate while
decoding. The trainer runs `replay` on every batch, so an engine that ran another gate, or none, is an error.

The coins are a function of (seed, step, prompt, rollout) alone: all ranks agree, distinct rollouts are independent,
and a resumed run flips the coins of the uninterrupted one.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from hashlib import blake2b
from typing import Any

import numpy as np

from .automaton import TokenAutomaton

NEVER = 2**61
"""A token count no rollout reaches, with room for sums of two in int64."""


class Outcome(IntEnum):
    """How the gate decided about a rollout."""

    NATURAL = 0  # ended by EOS or the length cap before a poll saw a marker and before the abort gate
    ANSWERED = 1  # a poll saw a marker; then trimmed or not
    KEPT = 2  # no marker at the abort gate, the coin let it continue
    ABORTED = 3  # no marker at the abort gate, stopped there


class GateMismatch(ValueError):
    """The rollouts cannot come from an engine that ran this gate with these coins."""


@dataclass(frozen=True)
class GateSpec:
    """The gate of one step; all counts in tokens. ValueError if a value is out of range or K2 < K1."""

    poll_threshold: int  # K1, the earliest poll, >= 1
    abort_threshold: int  # K2 >= K1
    grace_window: int  # G >= 0
    poll_interval: int = 8  # between two polls, >= 1
    trim: bool = True  # stop answered rollouts within the grace window
    abort: bool = True  # stop marker-less rollouts at K2 + G unless their coin keeps them
    entropy_threshold: float = 0.0
    """An answered rollout stops as soon as the entropy of its next token is below this many nats and the likeliest
    token is not an EOS; 0: only at tau + G."""
    window: int | None = None  # a poll sees a marker that completed within this many last tokens; None: within all

    def __post_init__(self) -> None:
        for name, least in (("poll_threshold", 1), ("abort_threshold", 1), ("grace_window", 0), ("poll_interval", 1)):
            _check_count(name, self.__dict__[name], least)
        if self.window is not None:
            _check_count("window", self.window, 1)
        if not isinstance(self.trim, bool) or not isinstance(self.abort, bool):
            raise ValueError(f"trim and abort must be True or False, got {self.trim!r} and {self.abort!r}.")
        if self.abort_threshold < self.poll_threshold:
            raise ValueError(
                f"abort_threshold (K2) must not be below poll_threshold (K1), got K2={self.abort_threshold} and "
                f"K1={self.poll_threshold}. Swap them, or raise K2."
            )
        if not 0.0 <= self.entropy_threshold < float("inf"):
            raise ValueError(
                f"entropy_threshold must be a finite number of nats >= 0, got {self.entropy_threshold}. "
                "Use 0 to stop only at the end of the grace window."
            )

    @property
    def active(self) -> bool:
        """Whether it may stop any rollout."""
        return self.trim or self.abort

    @property
    def trims_early(self) -> bool:
        """Whether a nearly certain next token ends the grace window."""
        return self.trim and self.entropy_threshold > 0

    @property
    def first_poll(self) -> int:
        """The first poll of a rollout: the first multiple of the poll interval from K1 on, K2 + G at the latest."""
        return min(round_up(self.poll_threshold, self.poll_interval), self.abort_at)

    @property
    def trim_at(self) -> int:
        """Where trim stops a rollout at the earliest: at the first poll, or G after it; `NEVER` with trim off."""
        return self.first_poll + (0 if self.trims_early else self.grace_window) if self.trim else NEVER

    @property
    def abort_at(self) -> int:
        """K2 + G: where a marker-less rollout meets its coin; `NEVER` with abort off."""
        return self.abort_threshold + self.grace_window if self.abort else NEVER

    @property
    def polls(self) -> tuple[int, int, int, int]:
        """The arguments of `first_poll_that_sees` after the first one."""
        return self.poll_threshold, self.poll_interval, self.abort_at, NEVER if self.window is None else self.window

    def seen_at(self, completed_at: np.ndarray) -> np.ndarray:
        """Length of the first poll that sees each marker, by the length at which it completed; `NEVER`: none does."""
        return first_poll_that_sees(completed_at, *self.polls)


Numbers = np.ndarray | int


def first_poll_that_sees(
    completed_at: np.ndarray, poll_threshold: Numbers, poll_interval: Numbers, abort_at: Numbers, window: Numbers
) -> np.ndarray:
    """`GateSpec.seen_at` of markers whose gates may differ; `NEVER` means no abort gate or no window."""
    earliest = np.maximum(completed_at, poll_threshold)
    poll = np.minimum(round_up(earliest, poll_interval), abort_at)
    return np.where((earliest <= abort_at) & (poll - completed_at < window), poll, NEVER)


def round_up(count: Any, multiple: Any) -> Any:
    """The smallest multiple that is not below a count; numbers, arrays or tensors."""
    return -(-count // multiple) * multiple


@dataclass(frozen=True)
class Replay:
    """What the gate did to N rollouts: arrays of shape (N,), int64 unless noted."""

    outcome: np.ndarray  # `Outcome` of each
    marker_at: np.ndarray  # tau; -1 where no poll saw a marker
    trimmed: np.ndarray  # stopped in the grace window, bool
    length: np.ndarray  # policy tokens, without the forced stop
    answered_at: np.ndarray
    """The first poll time at or after a marker completed, wherever the rollout shows one: the tau of a rollout that
    ended before it was polled, or that a gate far after it would have polled; -1 without a marker."""
    completed_at: np.ndarray  # tokens with which its first marker completes; -1 without one


def replay(
    spec: GateSpec,
    automaton: TokenAutomaton | None,
    completion_ids: Sequence[Sequence[int]],
    gate_stopped: np.ndarray,
    keep: np.ndarray,
    in_thought: np.ndarray | None = None,
    prefix_length: np.ndarray | None = None,
) -> Replay:
    """Recover from the tokens alone what the gate did while they were generated (Eq. 5, Algorithm 1, phase 2).

    A rollout of L tokens met the gate before each of its tokens 2..L, and once more if the gate stopped it. So only
    polls up to L - 1 count for a rollout that ended by itself: the gate never decided about one that ends exactly at
    K2 + G, by EOS or by the length cap.

    Args:
        spec (GateSpec): The gate the rollouts were generated under.
        automaton (TokenAutomaton | None): Compiled marker; None only with trim and abort off.
        completion_ids (Sequence[Sequence[int]]): Policy tokens of each rollout, length N; a sampled EOS included,
            the forced stop removed (`split_sentinel`).
        gate_stopped (np.ndarray): Whether the gate stopped it, shape (N,), bool.
        keep (np.ndarray): Coin of each rollout, shape (N,), bool; True: continue without a marker.
        in_thought (np.ndarray | None): Whether its prompt opened a thought, shape (N,), bool; None: nowhere.
        prefix_length (np.ndarray | None): How many of its tokens existed before the engine received it, shape (N,);
            one whose stop lies within them is stopped after them. None: 0 each.

    Raises:
        GateMismatch: If a rollout was stopped where this gate stops none, or ran past a forced stop.
        ValueError: If trim or abort is on without an automaton.
    """
    length = np.array([len(ids) for ids in completion_ids], dtype=np.int64)
    gate_stopped, keep = np.asarray(gate_stopped, dtype=bool), np.asarray(keep, dtype=bool)
    last_decision = length - ~gate_stopped  # the largest t at which the gate was asked
    tau, answered_at, first = (np.full(length.shape, NEVER) for _ in range(3))
    if automaton is not None:
        rows, completed_at = automaton.completions(completion_ids, in_thought)
        np.minimum.at(tau, rows, spec.seen_at(completed_at))
        np.minimum.at(answered_at, rows, replace(spec, abort=False).seen_at(completed_at))
        np.minimum.at(first, rows, completed_at)
    elif spec.active:
        raise ValueError("trim and abort need a marker automaton. Switch both off, or compile a marker.")
    answered = tau <= last_decision
    undecided = ~answered & (last_decision >= spec.abort_at)
    outcome = np.select([answered, undecided & keep, undecided], [Outcome.ANSWERED, Outcome.KEPT, Outcome.ABORTED])
    latest = np.select([answered & spec.trim, undecided & ~keep], [tau + spec.grace_window, spec.abort_at], NEVER)
    earliest = np.where(answered, tau, latest) if spec.trims_early else latest
    if prefix_length is not None:
        earliest, latest = np.maximum(earliest, prefix_length), np.maximum(latest, prefix_length)
    consistent = np.where(gate_stopped, (earliest <= length) & (length <= latest), length <= latest)
    if not consistent.all():
        row, between = int(np.argmin(consistent)), np.stack([earliest, latest])
        raise GateMismatch(_mismatch(row, int((~consistent).sum()), length, gate_stopped, between))
    return Replay(
        outcome=outcome.astype(np.int64),
        marker_at=np.where(answered, tau, -1),
        trimmed=gate_stopped & answered,
        length=length,
        answered_at=np.where(answered_at < NEVER, answered_at, -1),
        completed_at=np.where(first < NEVER, first, -1),
    )


def propensity(outcome: np.ndarray, keep_probability: float) -> np.ndarray:
    """Probability that a rollout of each outcome passes the abort gate (Theorem 2): p = M + (1 - M) eps, shape (N,).

    With this p, (1 - aborted) * Z / p has the expectation of Z, at the cost in second moment that Eq. 8 bounds. A
    rollout kept by its coin has p = eps even if a marker follows later: the coin was flipped before.
    """
    check_keep_probability(keep_probability)
    return np.where(np.isin(outcome, [Outcome.KEPT, Outcome.ABORTED]), float(keep_probability), 1.0)


def split_sentinel(completion_ids: Sequence[Sequence[int]], sentinel: int) -> tuple[list[list[int]], np.ndarray]:
    """Cut each rollout at the sentinel, which only the gate produces; what follows it is padding.

    Returns:
        tuple: The policy tokens of each rollout, and whether the gate stopped it, shape (N,), bool.
    """
    rows = [list(ids) for ids in completion_ids]
    stopped = np.array([sentinel in ids for ids in rows], dtype=bool)
    return [ids[: ids.index(sentinel)] if stop else ids for ids, stop in zip(rows, stopped, strict=True)], stopped


def _check_count(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < NEVER:
        raise ValueError(f"{name} must be an integer >= {least} (tokens), got {value!r}.")


def _mismatch(row: int, num_wrong: int, length: np.ndarray, gate_stopped: np.ndarray, between: np.ndarray) -> str:
    earliest, latest = between[:, row]
    found = f"rollout {row} {'was stopped' if gate_stopped[row] else 'ended by itself'} at {length[row]} tokens"
    expected = f"stops it at {latest}" if earliest == latest else f"stops it between {earliest} and {latest}"
    expected = "does not stop it at all" if latest >= NEVER else expected
    return (
        f"{found}, but this gate {expected} ({num_wrong} of {len(length)} rollouts disagree). The engine did not "
        "run this gate with these coins. Give trainer and engine the same marker and tokenizer; a vLLM engine needs "
        "duet_trl.engines.vllm:DUETLogitsProcessor in logits_processors, your own must ask StreamingGate before "
        "each token, with the gate, coin, prefix and in_thought of its Request."
    )


_UNUSED_BITS = np.uint64(64 - 53)
"""A double holds 53 bits: compared with those, a probability is exact."""


def keep_coins(
    seed: int, step: int, keys: Sequence[str], rollout_index: np.ndarray, keep_probability: float
) -> np.ndarray:
    """Flip the coin of each rollout: True keeps it if it reaches the abort gate without a marker.

    Args:
        seed (int): Seed of the run.
        step (int): Generation step, >= 0.
        keys (Sequence[str]): Prompt of each rollout, length N.
        rollout_index (np.ndarray): Number of each rollout among those of its prompt, shape (N,), >= 0.
        keep_probability (float): eps_abort, in (0, 1].

    Returns:
        np.ndarray: Coins, shape (N,), bool, independent, True with probability eps_abort.
    """
    check_keep_probability(keep_probability)
    threshold = np.uint64(max(1, round(keep_probability * 2**53)))
    return _random_bits(seed, step, keys, rollout_index) >> _UNUSED_BITS < threshold


def occurrence(keys: Sequence[str]) -> np.ndarray:
    """How often each key came before, shape (N,), so that a prompt drawn twice in a batch gets distinct numbers."""
    seen: Counter[str] = Counter()
    index = []
    for key in keys:
        index.append(seen[key])
        seen[key] += 1
    return np.array(index, dtype=np.int64)


def check_keep_probability(keep_probability: float) -> None:
    """Raise ValueError unless it is in (0, 1]."""
    if not 0.0 < keep_probability <= 1.0:
        raise ValueError(
            f"keep_probability must be in (0, 1], got {keep_probability}. Use abort=False to keep every rollout."
        )


def _random_bits(seed: int, step: int, keys: Sequence[str], rollout_index: np.ndarray) -> np.ndarray:
    """64 hashed bits per rollout, shape (N,): one splitmix64 round per part of the key."""
    # Python's own hash() differs between processes.
    hashes = {key: int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "little") for key in set(keys)}
    prompts = np.array([hashes[key] for key in keys], dtype=np.uint64)
    bits = np.full(len(keys), seed % 2**64, dtype=np.uint64)
    for part in (np.uint64(step % 2**64), prompts, np.asarray(rollout_index, dtype=np.uint64)):
        bits = _mix(bits ^ _mix(part))
    return bits


def _mix(value: np.ndarray) -> np.ndarray:
    """The output function of splitmix64: a bijection of 64 bits in which every input bit flips half the output."""
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64 is intended
        value = value + np.uint64(0x9E3779B97F4A7C15)
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
