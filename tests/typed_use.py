# SPDX-License-Identifier: Apache-2.0
"""The public API as a typed program uses it; `make lint` reads this file with mypy, strictly."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from datasets import Dataset

from duet_trl import DUETGRPOConfig, DUETGRPOTrainer
from duet_trl.engines.engine import Completion, Engine, Policy, Request
from duet_trl.evaluation import Score, best_at_k, mean_at_k, paired_difference
from duet_trl.gate.markers import extract_answer, get_marker
from duet_trl.gate.replay import GateSpec, Outcome
from duet_trl.methods.method import Method, Setting
from duet_trl.rewards import Check, CodeVerifier, MathVerifier, Sandbox, Verdict, math_reward
from duet_trl.rollouts import Job, Judgement, Prompts, Query, Rollouts


class Even(Method):
    """As many rollouts for every prompt."""

    def __init__(self, setting: Setting) -> None:
        self.num_rollouts: int = setting.num_generations
        self.spec = GateSpec(poll_threshold=8, abort_threshold=64, grace_window=8)

    def jobs(self, prompts: Prompts, done: Rollouts | None) -> Sequence[Job | Query]:
        """One round."""
        return [] if done is not None else [Job(q) for q in range(len(prompts)) for _ in range(self.num_rollouts)]

    def judge(self, done: Rollouts) -> Judgement:
        """Rewards against the mean of all."""
        return Judgement.of(done.rewards - float(np.nanmean(done.rewards)))

    def observe(self, done: Rollouts, judgement: Judgement, sum_logps: np.ndarray) -> None:
        """Nothing is learnt."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing is kept."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing is kept."""


def train(engine: Callable[[Policy], Engine] | None = None) -> list[list[list[int]]]:
    """Configuration, trainer, samples."""
    config = DUETGRPOConfig(output_dir="out", budget_fraction=0.5, method="duet", marker="math", trim=True)
    fraction: float | None = config.budget_fraction
    data = Dataset.from_dict({"prompt": ["1+1="], "answer": [str(fraction)]})
    trainer = DUETGRPOTrainer("model", math_reward, args=config, train_dataset=data, engine=engine)
    trainer.train()
    samples: list[list[list[int]]] = trainer.sample(["1+1="], 2, max_tokens=9)
    return samples


def grade(text: str) -> tuple[bool, str | None]:
    """Verifiers, markers and scores."""
    found: str | None = extract_answer("math", text, "last")
    pattern: str = get_marker("math").name
    verdict: Verdict = Sandbox(workers=1).check(Check("def f(): return 1", ("f",), ("assert f() == 1",)))
    rewards: list[float | None] = MathVerifier()([text], answer=["1"])
    programs: list[float | None] = CodeVerifier()([text], test=["assert True"])
    correct = np.array([[1.0, 0.0], [1.0, 1.0]])
    score: Score = mean_at_k(correct)
    difference: Score = paired_difference(correct, np.zeros_like(correct))
    value: float = score.value + best_at_k(correct).low + difference.standard_error
    return bool(verdict.passed and rewards and programs and pattern and value > 0), found


def replayed(requests: Sequence[Request]) -> list[Completion]:
    """What an engine of one's own returns."""
    outcome: Outcome = Outcome.NATURAL
    return [Completion([int(outcome)], "other", number=request.number) for request in requests]
