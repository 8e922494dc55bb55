# SPDX-License-Identifier: Apache-2.0
"""Random numbers of a rollout, as a function of (seed, step, prompt, rollout) alone (Algorithm 1, line 22).

So all ranks agree, distinct rollouts are independent, and a resumed run throws the coins of the uninterrupted one.
"""

from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

_UNUSED_BITS = np.uint64(64 - 53)
"""A double holds 53 bits: compared with those, a probability is exact."""


def keep_coins(
    seed: int, step: int, keys: Sequence[str], rollout_index: np.ndarray, keep_probability: float
) -> np.ndarray:
    """Throw the coin of each rollout: True keeps it if it reaches the abort gate without a marker.

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


def uniforms(seed: int, step: int, keys: Sequence[str], rollout_index: np.ndarray) -> np.ndarray:
    """A number of each rollout in [0, 1), shape (N,), apart from its coin; arguments as in `keep_coins`."""
    return (_mix(_random_bits(seed, step, keys, rollout_index)) >> _UNUSED_BITS) * 2.0**-53


def occurrence(keys: Sequence[str]) -> np.ndarray:
    """How often each key stood before, shape (N,), so that a prompt drawn twice in a batch gets distinct numbers."""
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
            f"keep_probability must be in (0, 1], got {keep_probability}. Use abort=False to let every rollout run on."
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
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64 is meant
        value = value + np.uint64(0x9E3779B97F4A7C15)
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
