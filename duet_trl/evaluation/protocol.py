# SPDX-License-Identifier: Apache-2.0
"""The paper's evaluation figures, mean@k and best@k, with an interval that resamples problems.

The samples of one problem are not independent of each other (a hard problem fails all of them), so the uncertainty
of an accuracy comes from the choice of problems: the interval draws problems with replacement and keeps each one's
samples together. It does not contain the spread between training seeds.

Every function takes `num_resamples`, the bootstrap draws, and their `seed`: the same seed gives the same interval.
"""

from dataclasses import asdict, dataclass

import numpy as np

CONFIDENCE = 0.95
"""Coverage of the percentile interval."""


@dataclass(frozen=True)
class Score:
    """An accuracy, or a difference of two, and its interval."""

    value: float  # the figure itself, in [0, 1]; of a difference, in [-1, 1]
    low: float  # lower end of the interval
    high: float  # upper end of the interval
    num_problems: int  # problems it rests on
    num_samples: int  # samples per problem
    # standard error over problems, as other harnesses report it: sample standard deviation of the per-problem figures
    # over sqrt(num_problems). 0 for a single problem, from which none can be told.
    standard_error: float = 0.0

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"

    def to_dict(self) -> dict[str, float | int]:
        """The score as JSON types."""
        return asdict(self)


def mean_at_k(correct: np.ndarray, *, num_resamples: int = 4000, seed: int = 0) -> Score:
    """Mean accuracy over k samples per problem, `correct` of shape (P, k), bool or {0, 1}: the paper's mean@k.

    Raises:
        ValueError: If `correct` is not a non-empty (P, k) array of zeros and ones.

    Example:
        >>> mean_at_k(np.array([[1, 0], [1, 1]])).value
        0.75
    """
    table = _checked(correct)
    return _score(table.mean(axis=1), table.shape[1], num_resamples, seed)


def paired_difference(
    correct: np.ndarray, reference: np.ndarray, *, num_resamples: int = 4000, seed: int = 0
) -> Score:
    """Difference of two policies' mean@k on the same problems: `correct` (P, k) minus `reference` (P, k'), in [-1, 1].

    The interval keeps the problems paired. Problems differ in difficulty far more than two policies do on one problem,
    so it is narrower than the two separate ones suggest.

    Raises:
        ValueError: As for `mean_at_k`, or if the numbers of problems differ.
    """
    first, second = _checked(correct), _checked(reference)
    if len(first) != len(second):
        raise ValueError(f"A paired difference needs the same problems, got {len(first)} and {len(second)}.")
    return _score(first.mean(axis=1) - second.mean(axis=1), first.shape[1], num_resamples, seed)


def best_at_k(correct: np.ndarray, *, num_resamples: int = 4000, seed: int = 0) -> Score:
    """Share of problems that at least one of the k samples solves (the paper's best@k, also called pass@k).

    `correct` and errors: as for `mean_at_k`.

    Example:
        >>> best_at_k(np.array([[1, 0], [0, 0]])).value
        0.5
    """
    table = _checked(correct)
    return _score(table.max(axis=1), table.shape[1], num_resamples, seed)


def mean_over_problems(values: np.ndarray, *, num_resamples: int = 4000, seed: int = 0) -> Score:
    """Mean of any quantity of the samples, such as their length, shape (P, k), with the interval of `mean_at_k`."""
    table = np.asarray(values, dtype=np.float64)
    return _score(table.mean(axis=1), table.shape[1], num_resamples, seed)


def _checked(correct: np.ndarray) -> np.ndarray:
    table = np.asarray(correct, dtype=np.float64)
    if table.ndim != 2 or table.size == 0:
        raise ValueError(f"correct must be a non-empty (problems, samples) table, got shape {table.shape}.")
    if not np.isin(table, (0.0, 1.0)).all():
        raise ValueError("correct must hold zeros and ones. Grade the samples first, and count None as wrong.")
    return table


def _score(per_problem: np.ndarray, num_samples: int, num_resamples: int, seed: int) -> Score:
    num_problems = len(per_problem)
    rng = np.random.default_rng(seed)
    shares = np.full(num_problems, 1.0 / num_problems)
    # How often each problem is drawn; one draw at a time, so that a benchmark of any size fits into memory.
    means = [rng.multinomial(num_problems, shares) @ per_problem / num_problems for _ in range(num_resamples)]
    tail = (1.0 - CONFIDENCE) / 2.0
    low, high = np.quantile(means, (tail, 1.0 - tail))
    return Score(
        value=float(per_problem.mean()),
        low=float(low),
        high=float(high),
        num_problems=num_problems,
        num_samples=num_samples,
        standard_error=float(per_problem.std(ddof=1) / num_problems**0.5) if num_problems > 1 else 0.0,
    )
