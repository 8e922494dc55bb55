# SPDX-License-Identifier: Apache-2.0
"""python benchmarks/prompt_features.py: what it could be worth to know prompts by their features before any visit.

A prompt that was never seen has two sources for its baseline b: the mean of the n - 1 other rollouts of its group,
with squared error V = E p (1 - p) / (n - 1), and a guess from what is known of such prompts, with squared error D.
With weight k / (k + n - 1) on the guess the noise of r - b is E p (1 - p) + ((n - 1)^2 V + k^2 D) / (k + n - 1)^2,
least at k = E p (1 - p) / D, where the second term is V D / (V + D). Tokens to the same gradient noise follow it. D is
the spread of p in the pool, or what is left of it by a ridge regression on the level and the symbols of the prompt
(ten folds, on problems it has not seen).

It reads what the arena committed: 16 samples of each of 400 problems, before training.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.arena.records import COMMITTED, START, read  # noqa: E402
from benchmarks.arena.tasks import TASKS  # noqa: E402
from benchmarks.common import argument_parser, write_result  # noqa: E402
from duet_trl.report.environment import hardware, versions  # noqa: E402
from duet_trl.report.tables import text_table  # noqa: E402
from duet_trl.update.baseline import Weights  # noqa: E402
from recipes.tiny_math.problems import LEVELS, Problem  # noqa: E402

ROLLOUTS = (2, 4, 8)
KNOWN = {
    "group": "group alone",
    "duet": "pool, as one rollout",
    "pool": "pool, best weight",
    "features": "features, best weight",
}
FOLDS, RIDGE = 10, 10.0
MOST = 0.10
"""At 4 rollouts features save less than this on every task: a tenth of the tokens is about what the arena resolves."""


@dataclass(frozen=True)
class Spread:
    """Squared errors of what is known of a prompt before its rollouts, in units of the reward squared.

    Attributes:
        noise (float): Mean p (1 - p): of a single rollout.
        pool (float): Of the mean of the pool, the variance of p between prompts.
        features (float): Of the regression.
    """

    noise: float
    pool: float
    features: float

    def variance(self, rollouts: int, error: float, weight: float) -> float:
        """E (r - b)^2 over E p (1 - p), with a guess of this error that counts as so many rollouts (k)."""
        others = rollouts - 1
        mixed = (others * self.noise + weight**2 * error) / (others + weight) ** 2
        return 1 + mixed / self.noise

    def least(self, rollouts: int, error: float) -> float:
        """The same with the best weight."""
        return self.variance(rollouts, error, self.noise / max(error, 1e-9))

    def row(self, rollouts: int) -> dict[str, float]:
        """The ratios by what is known, and the share of the tokens that features save."""
        pool, features = self.least(rollouts, self.pool), self.least(rollouts, self.features)
        return {
            "group": self.variance(rollouts, self.pool, 0.0),
            "duet": self.variance(rollouts, self.pool, Weights().pool),
            "pool": pool,
            "features": features,
            "saved": 1 - features / pool,
        }


def columns(problems: tuple[Problem, ...]) -> np.ndarray:
    """What can be read off a prompt, standardised, shape (M, F), the first 1: level, length, each symbol's count."""
    symbols = sorted({symbol for problem in problems for symbol in problem.expression})
    rows = [
        [
            *(problem.level == level for level in LEVELS),
            len(problem.expression),
            *map(problem.expression.count, symbols),
        ]
        for problem in problems
    ]
    found = np.array(rows, dtype=float)
    return np.hstack([np.ones((len(found), 1)), (found - found.mean(0)) / np.maximum(found.std(0), 1e-9)])


def unseen_error(features: np.ndarray, target: np.ndarray, seed: int) -> float:
    """Mean squared error of the regression on problems that it was not fitted to."""
    order = np.random.default_rng(seed).permutation(len(target))
    squares = np.empty(len(target))
    for fold in range(FOLDS):
        held_out = order[fold::FOLDS]
        fitted = np.setdiff1d(order, held_out)
        known = features[fitted]
        weights = np.linalg.solve(known.T @ known + RIDGE * np.eye(known.shape[1]), known.T @ target[fitted])
        squares[held_out] = (target[held_out] - features[held_out] @ weights) ** 2
    return float(squares.mean())


def spread_of(right: np.ndarray, samples: int, features: np.ndarray, seed: int) -> Spread:
    """The errors from numbers of right samples, shape (M,); the noise of the shares themselves is taken out."""
    share = right / samples
    noise = float((share * (1 - share)).mean()) * samples / (samples - 1)
    pool = max(float(share.var(ddof=1)) - noise / samples, 0.0)
    left = max(unseen_error(features, share, seed) - noise / samples, 0.0)
    return Spread(noise, pool, min(left, pool))  # a regression that predicts worse than the mean is not used


def main() -> int:
    """Print the table, write it, and check the bound."""
    arguments = argument_parser(__doc__.splitlines()[0]).parse_args()
    tasks, rows = {}, []
    for run in read(COMMITTED):
        task = TASKS[run.task]
        if run.stage != START or task.tuned_on:  # a task that shares the policy and problems of another
            continue
        start = run.measurements[0]
        spread = spread_of(np.array(start.last), start.samples, columns(task.report_problems()), arguments.seed)
        found = {str(rollouts): spread.row(rollouts) for rollouts in ROLLOUTS}
        tasks[run.task] = {"explained": 1 - spread.features / spread.pool if spread.pool else 0.0, "rollouts": found}
        rows += [
            [run.task, rollouts, *(f"{row[known]:.2f}" for known in KNOWN), f"{row['saved']:.0%}"]
            for rollouts, row in found.items()
        ]
    print(text_table(["task", "rollouts", *KNOWN.values(), "features save"], rows))
    payload = {
        "tasks": tasks,
        "seed": arguments.seed,
        "hardware": hardware(),
        "versions": versions("duet-trl", "numpy"),
    }
    print(f"written to {write_result('prompt_features', payload)}")
    missed = [name for name, found in tasks.items() if found["rollouts"]["4"]["saved"] >= MOST]
    if missed:
        print(f"features would save {MOST:.0%} or more at 4 rollouts on: {', '.join(missed)}")
    return int(arguments.check and bool(missed))


if __name__ == "__main__":
    sys.exit(main())
