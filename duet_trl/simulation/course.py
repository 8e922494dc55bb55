# SPDX-License-Identifier: Apache-2.0
"""Many steps of a real method over a population, and what must hold in each of them."""

import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..gate.replay import Outcome
from ..methods.method import Method
from ..rollouts import NoMorePrompts, Prompt, Prompts
from .acting import Acted, Actor
from .population import Population


@dataclass(frozen=True)
class Step:
    """Figures of one step.

    Attributes:
        rounds (list[np.ndarray]): New tokens of each rollout, round by round; they set the time of generation.
        trained_tokens (int): Of rollouts in the gradient.
        trained_rollouts (int): Rollouts in the gradient.
        asked_tokens (int): Of questions to the model.
        seconds (float): Processor time of the method's own functions.
        budget (float | None): Planned over allowed tokens, or None where the method plans no tokens.
    """

    rounds: list[np.ndarray]
    trained_tokens: int
    trained_rollouts: int
    asked_tokens: int
    seconds: float
    budget: float | None

    @property
    def generated_tokens(self) -> int:
        """All rounds."""
        return int(sum(tokens.sum() for tokens in self.rounds))


@dataclass
class Course:
    """A run, and the tallies of what it must keep to.

    Attributes:
        method (Method): As a trainer has it, with or without a history.
        population (Population): Its prompts; a key is a number.
        num_prompts (int): M, prompts of a step.
        seed (int): Of order, rollouts and further prompts.
        coins (list[int]): Rollouts that met the coin, and those that it kept.
        coin_law (list[float]): Mean and variance of the number kept, by the coin of each step.
        late_right (list[int]): Right answers of late rollouts, and those that were aborted.
        right (list[int]): Right answers, and those that were aborted.
        waited (np.ndarray): Visits in a row in which a prompt got no rollout, shape (P,).
        longest_wait (int): Maximum of it over the run.
        most_rollouts (int): Maximum of a step.
        over_budget (float): Largest planned over allowed tokens; 0 where none is planned.
        seconds (list[float]): Processor time of the method in every step.
        memory_bytes (list[int]): Peak memory of the process so far, every hundredth of the run.
    """

    method: Method
    population: Population
    num_prompts: int
    seed: int = 0
    coins: list[int] = field(default_factory=lambda: [0, 0])
    coin_law: list[float] = field(default_factory=lambda: [0.0, 0.0])
    late_right: list[int] = field(default_factory=lambda: [0, 0])
    right: list[int] = field(default_factory=lambda: [0, 0])
    longest_wait: int = 0
    most_rollouts: int = 0
    over_budget: float = 0.0
    seconds: list[float] = field(default_factory=list)
    memory_bytes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.waited = np.zeros(self.population.num_prompts, dtype=np.int32)
        difficulty = self.population.difficulty
        self.method.embed = lambda prompts: np.array(
            [[difficulty[int(prompt.key)], 1.0] for prompt in prompts], dtype=np.float32
        )

    def run(self, num_steps: int) -> Iterator[Step]:
        """So many steps; the sampler goes through all prompts in every epoch, in a new order."""
        actor = Actor(self.population, self.seed)
        timed = _Timed(self.method)
        for step, (epoch, numbers) in enumerate(self._batches(num_steps), start=1):
            prompts = Prompts([_prompt(number) for number in numbers], step, epoch, self._source(step))
            timed.seconds = 0.0
            acted = actor.act(timed, prompts)
            self._tally(acted, numbers)
            self.seconds.append(timed.seconds)
            if step % max(num_steps // 100, 1) == 0:
                self.memory_bytes.append(peak_memory())
            yield self._figures(acted, timed.seconds)

    def _batches(self, num_steps: int) -> Iterator[tuple[int, list[int]]]:
        """Epoch and prompts of each step; an epoch's last batch is dropped if it is not full."""
        random, done, epoch = np.random.default_rng([self.seed, 1]), 0, 0
        while True:
            order = random.permutation(self.population.num_prompts)
            for first in range(0, len(order) - self.num_prompts + 1, self.num_prompts):
                yield epoch, order[first : first + self.num_prompts].tolist()
                if (done := done + 1) == num_steps:
                    return
            epoch += 1

    def _source(self, step: int) -> Callable[[int, set[str]], list[Prompt]]:
        random = np.random.default_rng([self.seed, 2, step])

        def more(count: int, taken: set[str]) -> list[Prompt]:
            if count > self.population.num_prompts - len(taken):
                raise NoMorePrompts(f"{count} more prompts were asked for.")
            found: dict[str, None] = {}
            while len(found) < count:
                key = str(random.integers(self.population.num_prompts))
                if key not in taken:
                    found[key] = None
            return [_prompt(int(key)) for key in found]

        return more

    def _tally(self, acted: Acted, numbers: list[int]) -> None:
        done, drawn = acted.done, acted.drawn
        outcome = done.replay.outcome
        met = (outcome == Outcome.KEPT) | (outcome == Outcome.ABORTED)
        lost = drawn.right & (outcome == Outcome.ABORTED) & (done.rewards == 0)
        _add(self.coins, met, outcome == Outcome.KEPT)
        if met.any():
            keep = self.method.metrics()["keep_probability"]
            self.coin_law[0] += keep * int(met.sum())
            self.coin_law[1] += keep * (1.0 - keep) * int(met.sum())
        _add(self.right, drawn.right & ~done.superseded, lost)
        _add(self.late_right, drawn.right & drawn.late & ~done.superseded, lost & drawn.late)
        served = np.unique([int(done.prompts[q].key) for q in np.unique(done.prompt)])
        self.waited[numbers] += 1
        self.waited[served] = 0
        self.longest_wait = max(self.longest_wait, int(self.waited[numbers].max()))
        self.most_rollouts = max(self.most_rollouts, len(done))

    def _figures(self, acted: Acted, seconds: float) -> Step:
        done, trained = acted.done, acted.judgement.in_gradient
        metrics = self.method.metrics()
        budget = None
        if "planned_tokens" in metrics:
            budget = metrics["planned_tokens"] / metrics["budget_tokens"]
            self.over_budget = max(self.over_budget, budget)
        new = done.new_tokens
        return Step(
            rounds=[new[done.round == number] for number in range(int(done.round.max()) + 1)],
            trained_tokens=int(done.replay.length[trained].sum()),
            trained_rollouts=int(trained.sum()),
            asked_tokens=acted.asked_tokens,
            seconds=seconds,
            budget=budget,
        )


def peak_memory() -> int:
    """Peak resident memory of this process, bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


class _Timed:
    """A method whose three functions of a step are timed, in processor seconds of this thread."""

    def __init__(self, method: Method) -> None:
        self._method = method
        self.seconds = 0.0

    def jobs(self, *arguments: Any) -> Any:
        return self._time(self._method.jobs, arguments)

    def judge(self, *arguments: Any) -> Any:
        return self._time(self._method.judge, arguments)

    def observe(self, *arguments: Any) -> Any:
        return self._time(self._method.observe, arguments)

    def _time(self, function: Callable, arguments: tuple) -> Any:
        begin = time.thread_time()
        found = function(*arguments)
        self.seconds += time.thread_time() - begin
        return found


def _prompt(number: int) -> Prompt:
    return Prompt(str(number), {"prompt": str(number)})


def _add(tally: list[int], of: np.ndarray, those: np.ndarray) -> None:
    tally[0] += int(of.sum())
    tally[1] += int(those.sum())
