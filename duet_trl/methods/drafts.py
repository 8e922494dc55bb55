# SPDX-License-Identifier: Apache-2.0
"""Rollouts of a prompt's last visit as drafts: how much of one may be used, how much of it is kept (`reuse.py`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..gate.coins import mix, random_bits, unit_interval
from ..rollouts import Job


@dataclass(frozen=True, eq=False)
class Draft:
    """A rollout of a prompt's last visit.

    Attributes:
        ids (np.ndarray): Tokens, shape (T,), int32.
        logps (np.ndarray): Log-prob of each under the policy that sampled it, shape (T,), float32, nats; nan: unknown.
        ended (bool): The last one is an end token.
        answered_at (int): Poll that saw its answer (`Replay.answered_at`); -1 without one.
        reuses (int): How often its first token had been reused by then.
    """

    ids: np.ndarray
    logps: np.ndarray
    ended: bool
    answered_at: int
    reuses: int = 0

    def first(self, count: int) -> tuple[int, ...]:
        """Its first tokens."""
        return tuple(self.ids[:count].tolist())


def usable(draft: Draft, job: Job, limit: int) -> int:
    """Tokens of a draft up to the length limit of the run, and to where the gate of the job stops it at the latest.

    A rollout that its gate aborted is a draft like any other. One that ran on where the new coin says abort is cut at
    the new K2 + G, one that answered is cut at the new end of its grace window: no rollout is longer than its gate
    allows.
    """
    ends, gate = [len(draft.ids), limit], job.gate
    if gate is not None and 0 <= draft.answered_at <= gate.abort_at:
        # The poll of the draft's own thresholds: where K1 has fallen since, the cut comes later by what it fell.
        ends += [max(draft.answered_at, gate.first_poll) + gate.grace_window] if gate.trim else []
    elif gate is not None and not job.keep:
        ends.append(gate.abort_at)
    return min(ends)


def accepted(old: np.ndarray, new: np.ndarray, coins: np.ndarray, lenience: float) -> int:
    """Tokens before the first that fails log U <= log p_new - log p_old + lenience; shape (T,) each, U in (0, 1]."""
    fails = ~(np.log(coins) <= new.astype(np.float64) - old + lenience)  # a nan fails
    return int(fails.argmax()) if fails.any() else len(fails)


def uniforms(
    seed: int, step: int, keys: Sequence[str], numbers: Sequence[int], lengths: Sequence[int]
) -> list[np.ndarray]:
    """Independent draws from (0, 1] for the tokens of some rollouts, shape (T,) each.

    They follow from seed, step, prompt, number of the rollout and place of the token, and from nothing else.
    """
    ends = np.cumsum(lengths)
    rollout = np.repeat(random_bits(seed, step, keys, np.asarray(numbers, dtype=np.uint64)), lengths)
    place = np.arange(len(rollout)) - np.repeat(ends - lengths, lengths)
    bits = mix(rollout ^ mix(place.astype(np.uint64)))
    return np.split(unit_interval(bits) + 2.0**-53, ends[:-1])


def pack(drafts: Mapping[str, list[Draft]]) -> dict[str, Any]:
    """Drafts by prompt as JSON values and arrays, end to end."""
    flat = [draft for of_prompt in drafts.values() for draft in of_prompt]
    return {
        "rollouts": {key: len(of_prompt) for key, of_prompt in drafts.items()},
        "ids": np.concatenate([np.zeros(0, np.int32), *(draft.ids for draft in flat)]),
        "logps": np.concatenate([np.zeros(0, np.float32), *(draft.logps for draft in flat)]),
        "columns": np.array([(len(d.ids), d.ended, d.answered_at, d.reuses) for d in flat], np.int64).reshape(-1, 4),
    }


def unpack(state: Mapping[str, Any]) -> dict[str, list[Draft]]:
    """Undo `pack`."""
    ends = np.cumsum(state["columns"][:, 0])
    flat = iter(  # of copies: a view would hold all tokens until the last prompt is visited again
        Draft(*(state[name][end - length : end].copy() for name in ("ids", "logps")), bool(ended), int(at), int(count))
        for end, (length, ended, at, count) in zip(ends, state["columns"], strict=True)
    )
    return {key: [next(flat) for _ in range(count)] for key, count in state["rollouts"].items()}
