# SPDX-License-Identifier: Apache-2.0
"""The paper's evaluation figures, mean@k and best@k, with a 95% interval that resamples problems.

The samples of a problem depend on each other (a hard problem fails all of them), so the interval draws problems with
replacement, `num_resamples` times, and keeps each one's samples together. It does not contain the spread between
training seeds. The same `seed` gives the same interval.
"""

from dataclasses import asdict, dataclass

import numpy as np


@dataclass(frozen=True)
class Score:
    """An accuracy in [0, 1], or a difference of two in [-1, 1], and its interval over problems."""

    value: float
    low: float  # ends of the interval
    high: float
    num_problems: int
    num_samples: int  # per problem
    standard_error: float = 0.0  # over problems, as other harnesses report it; 0 for a single problem

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"

    def to_dict(self) -> dict[str, float | int]:
        """The score as JSON types."""
        return asdict(self)


def mean_at_k(correct: np.ndarray, *, num_resamples: int = 4000, seed: int = 0) -> Score:
    """Mean accuracy over k samples per problem, `correct` of shape (P, k), bool or {0, 1}: the paper's mean@k.

    ValueError if `correct` is not a non-empty (P, k) array of zeros and ones.

    Example:
        >>> mean_at_k(np.array([[1, 0], [1, 1]])).value
        0.75
    """
    table = _checked(correct)
    return _score(table.mean(axis=1), table.shape[1], num_resamples, seed)


def best_at_k(correct: np.ndarray, *, num_resamples: int = 4000, seed: int = 0) -> Score:
    """Share of problems that at least one of the k samples solves (the paper's best@k, also called pass@k).

    `correct` and errors: as for `mean_at_k`.
    """
    table = _checked(correct)
    return _score(table.max(axis=1), table.shape[1], num_resamples, seed)


def paired_difference(
    correct: np.ndarray, reference: np.ndarray, *, num_resamples: int = 4000, seed: int = 0
) -> Score:
    """Difference of two policies' mean@k on the same problems: `correct` (P, k) minus `reference` (P, k').

    The interval keeps the problems paired, so it is narrower than the two separate ones suggest. ValueError as for
    `mean_at_k`, or if the numbers of problems differ.
    """
    first, second = _checked(correct), _checked(reference)
    if len(first) != len(second):
        raise ValueError(f"A paired difference needs the same problems, got {len(first)} and {len(second)}.")
    return _score(first.mean(axis=1) - second.mean(axis=1), first.shape[1], num_resamples, seed)


def mean_over_problems(values: np.ndarray, *, num_resamples: int = 4000, seed: int = 0) -> Score:
    """Mean of any quantity of the samples, such as their length, shape (P, k), with the interval of `mean_at_k`."""
    table = np.asarray(values, dtype=np.float64)
    return _score(table.mean(axis=1), table.shape[1], num_resamples, seed)


def _checked(correct: np.ndarray) -> np.ndarray:
    table = np.asarray(correct, dtype=np.float64)
    if table.ndim != 2 or table.size == 0 or not np.isin(table, (0.0, 1.0)).all():
        raise ValueError(
            f"correct must be a non-empty (problems, samples) table of zeros and ones, got shape {table.shape}. Grade "
            "the samples first, and count None as wrong."
        )
    return table


def _score(per_problem: np.ndarray, num_samples: int, num_resamples: int, seed: int) -> Score:
    size = len(per_problem)
    rng, shares = np.random.default_rng(seed), np.full(size, 1.0 / size)
    # How often each problem is drawn; one draw at a time, so that a benchmark of any size fits into memory.
    means = [rng.multinomial(size, shares) @ per_problem / size for _ in range(num_resamples)]
    low, high = np.quantile(means, (0.025, 0.975))
    error = float(per_problem.std(ddof=1) / size**0.5) if size > 1 else 0.0
    return Score(float(per_problem.mean()), float(low), float(high), size, num_samples, error)
