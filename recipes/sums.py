# SPDX-License-Identifier: Apache-2.0
r"""A task for pre-trained models of a few hundred million parameters: sums, asked after four worked ones.

The prompt is plain text, so that base models are asked like instructed ones, and short, so that answers cost more than
prompts do. Such a model continues with its own sums after its answer: the tail that a gate stops. Problems that are
held out never meet those of training, whatever is sampled.
"""

import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from duet_trl.gate.markers import Which, extract_boxed

MAX_COMPLETION_LENGTH = 48
"""Tokens at which completions are cut, in training and in evaluation."""
POOL_SIZE = 240  # sums to train on, thirty batches of eight
EXAMPLES = ((3, 4), (6, 8), (9, 2), (7, 7))
LARGEST = 20  # number of a sum; with larger ones a model of 135M parameters is right too rarely to learn


@dataclass(frozen=True)
class Sum:
    """Two numbers from 1 to `LARGEST`."""

    left: int
    right: int

    @property
    def answer(self) -> int:
        """The right one."""
        return self.left + self.right

    @property
    def prompt(self) -> str:
        """Four worked sums, a line each, and this one without its result."""
        worked = "".join(f"{left} + {right} = \\boxed{{{left + right}}}\n" for left, right in EXAMPLES)
        return f"{worked}{self.left} + {self.right} ="

    @property
    def is_held_out(self) -> bool:
        """Whether it is one of the quarter that training never sees."""
        return zlib.crc32(f"{self.left}+{self.right}".encode()) % 4 == 0


@dataclass(frozen=True)
class Measured:
    """One sample of each held-out problem, without a gate.

    Attributes:
        last (float): Share whose last boxed answer is right, as solutions are graded everywhere.
        first (float): Share whose first one is.
        ended (float): Share that ends with an EOS token within `MAX_COMPLETION_LENGTH`.
        mean_length (float): Tokens of a completion, its EOS included.
    """

    last: float
    first: float
    ended: float
    mean_length: float


def train_problems(count: int = POOL_SIZE, seed: int = 0) -> list[Sum]:
    """Distinct problems to train on."""
    return _sample(count, seed, held_out=False)


def held_out_problems(count: int = 64, seed: int = 0) -> list[Sum]:
    """Distinct problems to measure on."""
    return _sample(count, seed, held_out=True)


def rows(problems: Sequence[Sum]) -> list[dict[str, Any]]:
    """Rows of a training set: `prompt` and `answer`."""
    return [{"prompt": problem.prompt, "answer": problem.answer} for problem in problems]


def is_correct(text: str, answer: int, which: Which = "last") -> bool:
    """Whether the last boxed answer of a completion, or the first, is this integer."""
    boxed = extract_boxed(text, which=which)
    return boxed is not None and boxed.strip() == str(answer)


def last_answer_reward(completions: list[str], answer: list[int], **_: Any) -> list[float]:
    """Reward function in TRL's form: 1 where the last boxed answer is right, else 0."""
    return [float(is_correct(text, right)) for text, right in zip(completions, answer, strict=True)]


@torch.no_grad()
def measure(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[Sum],
    *,
    temperature: float = 1.0,
    seed: int = 0,
    eos_ids: Sequence[int] | None = None,
) -> Measured:
    """Sample all problems in one batch and grade them; random numbers and mode of the model are left as they were.

    Args:
        model (PreTrainedModel): The policy.
        tokenizer (PreTrainedTokenizerBase): Its tokenizer.
        problems (Sequence[Sum]): From `held_out_problems`.
        temperature (float): 0 is greedy.
        seed (int): Of the sampling.
        eos_ids (Sequence[int] | None): Tokens that end a completion; None: the tokenizer's EOS.
    """
    ends = torch.tensor([tokenizer.eos_token_id] if eos_ids is None else list(eos_ids), device=model.device)
    texts = [problem.prompt for problem in problems]
    batch = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left").to(model.device)
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    was_training = model.training
    with torch.random.fork_rng([model.device] if model.device.type == "cuda" else []):
        torch.manual_seed(seed)
        ids = model.eval().generate(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            max_new_tokens=MAX_COMPLETION_LENGTH,
            eos_token_id=ends.tolist(),
            pad_token_id=tokenizer.pad_token_id,
            **(sampling if temperature else {"do_sample": False}),
        )[:, batch["input_ids"].shape[1] :]
    model.train(was_training)
    is_end = torch.isin(ids, ends)
    ended = is_end.any(dim=1)
    lengths = torch.where(ended, is_end.int().argmax(dim=1) + 1, ids.shape[1])
    completions = [
        tokenizer.decode(row[:length], skip_special_tokens=True) for row, length in zip(ids, lengths, strict=True)
    ]

    def share(which: Which) -> float:
        graded = [is_correct(text, p.answer, which) for text, p in zip(completions, problems, strict=True)]
        return sum(graded) / len(graded)

    return Measured(share("last"), share("first"), ended.float().mean().item(), lengths.float().mean().item())


def _sample(count: int, seed: int, held_out: bool) -> list[Sum]:
    numbers = range(1, LARGEST + 1)
    every = [Sum(left, right) for left in numbers for right in numbers if (left, right) not in EXAMPLES]
    split = [problem for problem in every if problem.is_held_out == held_out]
    if count > len(split):
        raise ValueError(f"there are {len(split)} such sums, {count} were asked for. Ask for fewer.")
    return random.Random(seed).sample(split, count)
