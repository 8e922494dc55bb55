# SPDX-License-Identifier: Apache-2.0
"""Held-out accuracy while a run trains, what the run had cost by then, and when it ends."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from transformers import TrainerCallback

from .problem import Problem
from .profiles import Size
from .records import FREE, STOPPED, Measurement, Serving
from .tasks import Task

PHASES = ("plan", "generate", "score", "update")
CURVES = (
    "duet/generated_tokens",
    "duet/trained_tokens",
    "duet/num_rollouts/mean",
    "duet/trim_rate",
    "duet/abort_rate",
    "completions/mean_length",
    "frac_reward_zero_std",
    "learning_rate",
    "reward",
)
"""Metrics of every batch that are kept, four digits each."""


@dataclass(frozen=True)
class Limits:
    """How long a run is, and what it is measured at on the way.

    Attributes:
        batches (int | None): Of the reference, which alone has a fixed number.
        tokens (int), seconds (float): What the reference of the seed spent; who spent both, ends.
        patience (float): A run ends at this share of the seconds even if it has tokens left.
        shares (tuple[float, ...]): Of tokens, seconds or batches: measured there.
    """

    shares: tuple[float, ...]
    batches: int | None = None
    tokens: int = 0
    seconds: float = 0.0
    patience: float = 1.0

    def passed(self, batch: int, tokens: int, seconds: float) -> int:
        """How many of the shares were passed, those of tokens and of seconds counted alike."""
        if self.batches is not None:
            return sum(batch >= round(share * self.batches) for share in self.shares)
        return sum((tokens >= share * self.tokens) + (seconds >= share * self.seconds) for share in self.shares)

    def progress(self, batch: int, tokens: int, seconds: float) -> float:
        """How far the run is, in [0, 1]; at 1 it ends."""
        if self.batches is not None:
            return min(batch / self.batches, 1.0)
        spent = tokens / self.tokens if self.tokens else 1.0
        passed = seconds / self.seconds
        return min(max(min(spent, passed), passed / self.patience), 1.0)


@dataclass
class Ruler:
    """Serves held-out problems from an engine, without a gate, and grades.

    Attributes:
        llm (Any): vLLM with the policy's weights.
        tokenizer (Any): Of the policy.
        task (Task): Of the problems.
        problems (Sequence[Problem]): The split.
    """

    llm: Any
    tokenizer: Any
    task: Task
    problems: Sequence[Problem]

    def serve(self, serving: str, size: Size) -> Serving:
        """Samples at temperature 1, and greedy ones where they are asked for."""
        problems = self.problems[: size.problems]
        stop = list(self.task.stop) if serving == STOPPED else None
        texts, lengths, ended = self._sample(problems, stop, n=size.samples, temperature=1.0)
        return Serving(
            right=self._right(problems, texts),
            samples=size.samples,
            greedy=self._right(problems, self._sample(problems, stop, temperature=0.0)[0]) if size.greedy else None,
            length=sum(lengths) / len(lengths),
            ended=sum(ended) / len(ended),
        )

    def _right(self, problems: Sequence[Problem], texts: list[list[str]]) -> list[int]:
        pairs = zip(problems, texts, strict=True)
        return [sum(problem.is_right(text, self.task.marker) for text in row) for problem, row in pairs]

    def _sample(self, problems: Sequence[Problem], stop: list[str] | None, **parameters: Any) -> tuple[Any, Any, Any]:
        from vllm import SamplingParams

        wanted = SamplingParams(max_tokens=self.task.max_completion_length, stop=stop, **parameters)
        prompts = [{"prompt_token_ids": ids_of(self.tokenizer, problem)} for problem in problems]
        done = self.llm.generate(prompts, wanted, use_tqdm=False)
        outputs = [one for each in done for one in each.outputs]
        rows = [[one.text for one in each.outputs] for each in done]
        return rows, [len(one.token_ids) for one in outputs], [one.finish_reason == "stop" for one in outputs]


def ids_of(tokenizer: Any, problem: Problem) -> list[int]:
    """Tokens of a prompt, as a trainer makes them."""
    if isinstance(problem.prompt, str):
        return tokenizer(problem.prompt).input_ids
    return tokenizer.apply_chat_template(problem.prompt, add_generation_prompt=True, return_dict=False)


@dataclass
class Cost:
    """What a run has spent so far, measurements excluded."""

    batch: int = 0
    generated_tokens: int = 0
    trained_tokens: float = 0.0
    seconds: float = 0.0
    phases: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))


class Watch(TrainerCallback):
    """Measures a run by its limits, lets its learning rate fall linearly to 0 over them, and ends it.

    Args:
        trainer (Any): The trainer it is added to, with a colocated engine.
        ruler (Ruler): How it is measured.
        limits (Limits): When.
        way (Size): On the way.
        whole (Mapping[str, Size]): At the end, by serving.
    """

    def __init__(self, trainer: Any, ruler: Ruler, limits: Limits, way: Size, whole: Mapping[str, Size]) -> None:
        self.trainer, self.ruler, self.limits = trainer, ruler, limits
        self.sizes = {False: {STOPPED if ruler.task.stop else FREE: way}, True: whole}
        self.measurements: list[Measurement] = []
        self.curves: dict[str, list[float | None]] = {name: [] for name in CURVES}
        self.cost = Cost()
        self._passed = 0
        self._began = self._rate = 0.0

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Start the clock."""
        self._began = time.perf_counter()

    @property
    def _progress(self) -> float:
        return self.limits.progress(self.cost.batch, self.cost.generated_tokens, self.cost.seconds)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:
        """Set the rate as TRL's default schedule would, which needs a number of batches that nobody knows yet."""
        self._rate = args.learning_rate * (1.0 - self._progress)
        for group in optimizer.param_groups:
            group["lr"] = self._rate

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any], **_: Any) -> None:
        """Note a batch, which is one optimizer step, and measure the policy where it is time."""
        if "loss" not in logs:
            return  # the summary after the last step
        cost, now = self.cost, time.perf_counter()
        cost.seconds += now - self._began
        self._began = now
        cost.batch += 1
        cost.generated_tokens += round(logs["duet/generated_tokens"])
        cost.trained_tokens += logs["duet/trained_tokens"]
        for name in PHASES:
            cost.phases[name] += logs[f"duet/seconds_{name}"]
        noted = {**logs, "learning_rate": self._rate}  # in place of the constant rate that TRL logs
        for name, values in self.curves.items():
            value = noted.get(name)
            values.append(None if value is None else float(f"{value:.4g}"))
        ends = self._progress >= 1
        passed = self.limits.passed(cost.batch, cost.generated_tokens, cost.seconds)
        control.should_training_stop |= ends
        if ends or passed > self._passed:
            self._passed = passed
            self._measure(self.sizes[ends])
        reward = self.curves["reward"][-1]
        print(f"{cost.batch:4d} {cost.seconds:6.0f} s {cost.generated_tokens:7d} tokens, reward {reward}", flush=True)
        self._began = time.perf_counter()

    def _measure(self, sizes: Mapping[str, Size]) -> None:
        self.trainer.engine.sync_weights()
        servings = {name: self.ruler.serve(name, size) for name, size in sizes.items()}
        cost = self.cost
        phases = {name: round(value, 2) for name, value in cost.phases.items()}
        spent = (cost.batch, cost.generated_tokens, round(cost.trained_tokens), round(cost.seconds, 2), phases)
        self.measurements.append(Measurement(*spent, servings))
        for name, one in servings.items():
            print(f"     {name}: {one.accuracy:.3f}, {one.length:.1f} tokens, {one.ended:.0%} end", flush=True)
