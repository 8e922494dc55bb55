# SPDX-License-Identifier: Apache-2.0
"""Measures a policy on suites (the paper's Evaluation Protocol): mean@k, best@k of samples, and greedy decoding.

The policy is anything that samples token ids, the trainer included. Every completion is cut at the first token that
ends it, whatever the engine stops at, and graded by the reward function that its suite is made for.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain
from typing import Any, Protocol, TypeVar

import numpy as np
import torch.distributed as dist
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from ..gate.thoughts import Delimiters, find_delimiters, parse_delimiters, prompt_opens_thought
from ..rewards import ChoiceVerifier, CodeVerifier, MathVerifier
from ..rewards.completions import WRITTEN, written_completions
from .prompts import until_eos
from .protocol import Score, best_at_k, mean_at_k, mean_over_problems
from .suites import suite_named

Prompt = str | list[dict[str, Any]]
Grader = Callable[..., Sequence[float | None]]
"""Takes texts and, by name, the columns of their problems but for `id` and `prompt`. Returns one number a text: right
above 0.5, None without a verdict. Every verifier is one."""
T = TypeVar("T")


class Sampler(Protocol):
    """A policy, as the measurement sees it: `DUETGRPOTrainer`, or a model in an engine."""

    def sample(
        self,
        prompts: list[Prompt],
        num_samples: int,
        *,
        temperature: float | None = None,
        top_p: float | None = None,
        max_tokens: int | None = None,
    ) -> list[list[list[int]]]:
        """Token ids, P x num_samples completions, without the gate, the same on every process."""


@dataclass(frozen=True)
class Settings:
    """How a policy is measured. Defaults: the paper's Evaluation Protocol."""

    num_samples: int = 4  # k of mean@k and best@k
    temperature: float = 0.9  # of these samples, > 0
    top_p: float = 0.95  # of these samples, in (0, 1]
    max_tokens: int = 3072  # longest completion
    # what opens and closes a thought, in which answers do not count; (): nothing; None: as the tokenizer has it
    thought_delimiters: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("num_samples", "max_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if not self.temperature > 0.0:
            raise ValueError(f"temperature must be positive, got {self.temperature}: equal samples give no mean@k.")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}.")
        parse_delimiters(self.thought_delimiters or ())


@dataclass(frozen=True)
class Graded:
    """Completions of a suite, decoded one way; arrays of shape (P, k)."""

    texts: list[list[str]]  # without special tokens
    lengths: np.ndarray  # tokens, the end included, int64
    truncated: np.ndarray  # whether a completion was cut before it ended, bool
    correct: np.ndarray  # whether it was graded as right, bool
    num_ungraded: int  # completions without a verdict, because their gold or test is unusable; they count as wrong


@dataclass(frozen=True)
class Measurement:
    """A policy on one suite."""

    graded: dict[str, Graded]  # by way of decoding: "sampled" and "greedy"
    sandbox: str | None  # isolation that programs ran in; None where none were run
    seconds: float  # wall-clock time of sampling and grading

    @cached_property
    def scores(self) -> dict[str, Score]:
        """Figures by name: "mean@4", "best@4", "truncated", "mean_length" of the samples, "greedy"."""
        sampled = self.graded["sampled"]
        k = sampled.correct.shape[1]
        return {
            f"mean@{k}": mean_at_k(sampled.correct),
            f"best@{k}": best_at_k(sampled.correct),
            "truncated": mean_over_problems(sampled.truncated),
            "mean_length": mean_over_problems(sampled.lengths),
            "greedy": mean_at_k(self.graded["greedy"].correct),
        }


def build_graders(suites: Collection[str], sandbox: str | None = None) -> dict[str, Grader]:
    """The verifier of each suite, by name; those of one kind share it.

    `sandbox` is the isolation of programs, None: the strongest that works here. ValueError if it is unknown,
    SandboxError if it does not hold on this machine, ImportError if Math-Verify is needed and not installed.
    """

    @cache
    def build(kind: str) -> Grader:
        if kind == "math":
            return MathVerifier()
        return CodeVerifier(isolation=sandbox or "auto") if kind == "code" else ChoiceVerifier(marker="math")

    return {name: build(suite_named(name).grader) for name in suites}


def measure(
    sampler: Sampler,
    suites: Mapping[str, Dataset],
    graders: Mapping[str, Grader],
    tokenizer: PreTrainedTokenizerBase,
    eos_ids: Sequence[int],
    settings: Settings,
) -> dict[str, Measurement]:
    """Sample every suite and grade the completions; the same on every process, and all of them call this.

    Process 0 grades and tells the others, so that verdicts that depend on time cannot differ between them. `suites`
    are from `load_suite`, `graders` from `build_graders`, or your own; `eos_ids` is from `eos_token_ids`.
    """
    names = settings.thought_delimiters
    delimiters = find_delimiters(tokenizer) if names is None else parse_delimiters(names)
    sampled = {"num_samples": settings.num_samples, "temperature": settings.temperature, "top_p": settings.top_p}
    ways: dict[str, dict[str, Any]] = {"sampled": sampled, "greedy": {"num_samples": 1, "temperature": 0.0}}
    found = {}
    for name, problems in suites.items():
        begin, graded, prompts = time.perf_counter(), {}, list(problems["prompt"])
        opened = [False] * len(prompts)
        if delimiters is not None:  # the chat template may open a thought after a prompt
            texts = [tokenizer.apply_chat_template(one, add_generation_prompt=True, tokenize=False) for one in prompts]
            encoded = tokenizer(texts, add_special_tokens=False)["input_ids"]
            opened = [prompt_opens_thought(ids, tokenizer, delimiters) for ids in encoded]
        for way, arguments in ways.items():
            drawn = sampler.sample(prompts, **arguments, max_tokens=settings.max_tokens)
            completions = [[until_eos(ids, eos_ids) for ids in row] for row in drawn]
            graded[way] = _grade(completions, problems, graders[name], tokenizer, eos_ids, delimiters, opened)
        sandbox = getattr(graders[name], "isolation", None)
        found[name] = Measurement(graded, sandbox, time.perf_counter() - begin)
    return found


def on_first(work: Callable[[], T]) -> T:
    """Do some work on process 0 and give its picklable result to every process; all of them must call this.

    If it fails, process 0 raises its error and the others raise a RuntimeError.
    """
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return work()
    box: list[tuple[T] | None] = [None]
    try:
        if dist.get_rank() == 0:
            box[0] = (work(),)
    finally:  # also when it failed: the others wait
        dist.broadcast_object_list(box, src=0)
    if box[0] is None:
        raise RuntimeError("process 0 failed while the others waited for its result; its own message states why.")
    return box[0][0]


def _grade(
    completions: list[list[list[int]]],
    problems: Dataset,
    grader: Grader,
    tokenizer: PreTrainedTokenizerBase,
    eos_ids: Sequence[int],
    delimiters: Delimiters | None,
    opened: Sequence[bool],
) -> Graded:
    shape = num_problems, num_samples = len(completions), len(completions[0])
    flat = [*chain.from_iterable(completions)]
    ends = frozenset(eos_ids)
    ended = np.array([bool(ids) and ids[-1] in ends for ids in flat])
    # An end need not be a special token: it is taken off by its place.
    bare = [ids[:-1] if end else ids for ids, end in zip(flat, ended, strict=True)]
    texts = tokenizer.batch_decode(bare, skip_special_tokens=True)
    place = np.repeat(np.arange(num_problems), num_samples)  # problem of each sample
    names = [name for name in problems.column_names if name not in ("id", "prompt")]
    columns: dict[str, list[Any]] = {name: [own[p] for p in place] for name in names for own in [list(problems[name])]}
    columns[WRITTEN] = written_completions(texts, bare, [opened[p] for p in place], tokenizer, delimiters)
    verdicts = on_first(lambda: grader(texts, **columns))
    if len(verdicts) != len(texts):
        raise ValueError(f"a grader returned {len(verdicts)} verdicts for {len(texts)} texts. One each is needed.")
    return Graded(
        texts=[texts[first : first + num_samples] for first in range(0, len(texts), num_samples)],
        lengths=np.array([len(ids) for ids in flat], dtype=np.int64).reshape(shape),
        truncated=~ended.reshape(shape),
        correct=np.array([verdict is not None and verdict > 0.5 for verdict in verdicts]).reshape(shape),
        num_ungraded=sum(verdict is None for verdict in verdicts),
    )
