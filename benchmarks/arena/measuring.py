# SPDX-License-Identifier: Apache-2.0
"""Held-out accuracy while a run trains, what the run had cost by then, and when it ends."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer, TrainerCallback
from vllm import LLM, SamplingParams

from benchmarks.common import open_engine
from recipes.tiny_math.problems import Problem

from .grading import is_right
from .pace import CURVE
from .records import Measurement
from .tasks import Task

CURVES = (
    "duet/generated_tokens",
    "duet/trained_tokens",
    "duet/num_rollouts/mean",
    "duet/num_rollouts/max",
    "duet/poll_threshold",
    "duet/abort_threshold",
    "duet/abort_rate",
    "duet/trim_rate",
    "duet/keep_rate",
    "duet/seconds_generate",
    "duet/seconds_update",
    "duet/overhead_share",
    "duet/update_kl",
    "learning_rate",
    "completions/mean_length",
    "reward",
)
"""Metrics of every step that are kept, four digits each."""
NO_COST = {"generated_tokens": 0, "trained_tokens": 0, "seconds": 0.0, "processor_seconds": 0.0}


@dataclass(frozen=True)
class Size:
    """How much is measured.

    Attributes:
        problems (int): The first of the split.
        samples (int): Of each, at temperature 1.
        greedy (bool): Whether greedy decoding is measured too.
    """

    problems: int
    samples: int
    greedy: bool


@dataclass(frozen=True)
class Timetable:
    """When a run is measured, and when it ends.

    Attributes:
        on_the_way (Size): Measured every `every` steps.
        whole (Size): Measured at `marks` and at the end.
        every (int): 0: nothing on the way.
        marks (tuple[int, ...]): Steps.
        horizon (int): The run has at least as many optimizer steps.
        tokens (int): It has generated at least as many tokens.
    """

    on_the_way: Size
    whole: Size
    every: int
    marks: tuple[int, ...]
    horizon: int
    tokens: int = 0

    def due(self, step: int, ends: bool) -> Size | None:
        """What is measured after this step."""
        if ends or step in self.marks:
            return self.whole
        return self.on_the_way if self.every and step % self.every == 0 else None


def measure(
    llm: LLM, tokenizer: Any, task: Task, problems: Sequence[Problem], size: Size, cost: Mapping[str, Any]
) -> Measurement:
    """Sample the first problems of a split from an engine, without a gate, and grade.

    Args:
        llm (LLM): The engine, with the policy's weights.
        tokenizer (Any): Of the policy.
        task (Task): Of the problems.
        problems (Sequence[Problem]): The split.
        size (Size): How much of it.
        cost (Mapping[str, Any]): `step` and the four costs of a `Measurement`.

    Returns:
        Measurement: Answers, length, share that ended, and entropy from the samples at temperature 1.
    """
    problems = problems[: size.problems]
    template = {"add_generation_prompt": True, "return_dict": False}
    prompts = [{"prompt_token_ids": tokenizer.apply_chat_template(p.messages, **template)} for p in problems]
    shared = {"max_tokens": task.max_completion_length, "detokenize": False}

    def right(texts: list[list[str]], which: str) -> list[int]:
        pairs = zip(texts, problems, strict=True)
        return [sum(is_right(text, p.answer, which, task.marker) for text in row) for row, p in pairs]

    def sample(**parameters: Any) -> tuple[list[Any], list[list[str]]]:
        done = llm.generate(prompts, SamplingParams(**shared, **parameters), use_tqdm=False)
        rows = [[tokenizer.decode(one.token_ids) for one in each.outputs] for each in done]
        return [one for each in done for one in each.outputs], rows

    samples, texts = sample(n=size.samples, temperature=1.0, logprobs=0)
    lengths = [len(one.token_ids) for one in samples]
    logprob = sum(one.cumulative_logprob for one in samples)
    careful = task.is_careful and float(np.mean([task.is_careful(text) for row in texts for text in row]))
    return Measurement(
        **cost,
        samples=size.samples,
        last=right(texts, "last"),
        first=right(texts, "first"),
        greedy=right(sample(temperature=0.0)[1], "last") if size.greedy else None,
        length=sum(lengths) / len(lengths),
        ended=sum(one.finish_reason == "stop" for one in samples) / len(samples),
        entropy=-logprob / sum(lengths),
        careful=careful,
    )


def measure_start(task: Task, problems: Sequence[Problem], size: Size) -> Measurement:
    """`measure` for the policy of a task before training, in an engine of its own."""
    tokenizer = AutoTokenizer.from_pretrained(task.checkpoint)
    llm = open_engine(task.checkpoint, task.max_model_length)
    return measure(llm, tokenizer, task, problems, size, {"step": 0, **NO_COST})


class Yardstick:
    """Many small operations on tensors, as in generating with a tiny policy and in training it (`pace.py`).

    It draws no random numbers: a run is the same with and without it.
    """

    def __init__(self) -> None:
        self._inputs = torch.linspace(-1, 1, 64 * 128).view(64, 128)
        self._weights = torch.linspace(-0.1, 0.1, 128 * 128).view(128, 128)
        self()  # the first time is slower

    @torch.no_grad()
    def __call__(self) -> float:
        """Do it once. Returns processor seconds."""
        began = time.process_time()
        hidden = self._inputs
        for _ in range(200):
            hidden = torch.layer_norm(hidden + torch.softmax(hidden @ self._weights, -1), (128,))
        return time.process_time() - began


class Watch(TrainerCallback):
    """Measures a run by its timetable, and ends it. Clocks leave the measurements and the yardstick out.

    Args:
        trainer (Any): The trainer it is added to, with a colocated engine.
        task (Task): What is learnt.
        problems (Sequence[Problem]): The split.
        timetable (Timetable): When.
        before (Mapping[str, Any]): What the run had cost when the checkpoint was written that it resumes from.

    Attributes:
        cost (dict[str, Any]): What the run has cost so far, as in `Measurement`.
    """

    def __init__(
        self, trainer: Any, task: Task, problems: Sequence[Problem], timetable: Timetable, before: Mapping[str, Any]
    ) -> None:
        self.trainer = trainer
        self.task = task
        self.problems = problems
        self.timetable = timetable
        self.measurements: list[Measurement] = []
        self.curves: dict[str, list[float | None]] = {name: [] for name in (*CURVES, CURVE)}
        self.cost = NO_COST | before
        self._trained = 0.0
        self._yardstick = Yardstick()
        self._clocks = self._now()

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Start the clocks."""
        self._clocks = self._now()

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any], **_: Any) -> None:
        """Note a step. Its weights have moved: measure them where it is time."""
        if "loss" not in logs:
            return  # the summary behind the last step
        clocks = self._now()
        for name, seconds, began in zip(("seconds", "processor_seconds"), clocks, self._clocks, strict=True):
            self.cost[name] += seconds - began
        # Only the first update of a batch generates. Each trains its mini-batch of what that one logs.
        self._trained = logs.get("duet/trained_tokens", self._trained)
        self.cost["generated_tokens"] += round(logs.get("duet/generated_tokens", 0.0))
        share = args.gradient_accumulation_steps / args.steps_per_generation
        self.cost["trained_tokens"] += round(share * self._trained)
        found = {**logs, CURVE: self._yardstick()}
        for name, values in self.curves.items():
            value = found.get(name)
            values.append(None if value is None else float(f"{value:.4g}"))
        plan, step = self.timetable, state.global_step
        ends = step >= plan.horizon and self.cost["generated_tokens"] >= plan.tokens
        control.should_training_stop |= ends
        size = plan.due(step, ends)
        if size is not None:
            cost = {"step": step, **self.cost}
            llm = self.trainer.vllm_generation.llm
            tokenizer = self.trainer.processing_class
            self.trainer.engine.sync_weights()
            self.measurements.append(measure(llm, tokenizer, self.task, self.problems, size, cost))
        self._clocks = self._now()

    @staticmethod
    def _now() -> tuple[float, float]:
        return time.perf_counter(), time.process_time()
