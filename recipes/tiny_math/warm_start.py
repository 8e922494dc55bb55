# SPDX-License-Identifier: Apache-2.0
"""Reproduce the shipped checkpoint: `OMP_NUM_THREADS=1 python -m recipes.tiny_math.warm_start` (15 CPU minutes).

Supervised training from scratch on synthetic solutions in two phases: first mostly clean ones, so that the policy
learns to copy and to calculate, then the sloppy mixture it is meant to imitate. Everything is seeded; on the same
processor and versions the result is the same file. Another task defines what it writes and how long in a `Corpus`.
"""

import argparse
import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from .policy import CHECKPOINT, build_model, train_tokenizer
from .problems import LEVELS, WARM_START, Problem
from .task import MAX_COMPLETION_LENGTH, Author, sample_problem, write_document

logger = logging.getLogger("warm_start")

SLOPPY = Author(
    slip=0.12, looper=(0.03, 0.06, 0.12, 0.20, 0.30), again_looper=0.93, again=0.06, tail=0.18, tail_again=0.7
)
CLEAN = replace(SLOPPY, slip=0.0, looper=(0.0,) * 5, again=0.0, tail=0.0)

ROWS = 4
MUON_LEARNING_RATE, ADAMW_LEARNING_RATE = 0.02, 3e-3
WARM_UP_STEPS = 50
IGNORED = -100


@dataclass(frozen=True)
class Phase:
    """Optimizer steps with a share of clean documents; the learning rate runs from start to end (1 = full)."""

    steps: int
    clean_share: float
    rate_start: float
    rate_end: float


@dataclass(frozen=True)
class Corpus:
    """The text that a task writes for its policy, and how long the policy reads.

    Attributes:
        sample_problem (Callable): (rng, level, split) -> problem.
        write_document (Callable): (rng, problem, author) -> completion; must never state a problem of another split
            than the warm start's.
        sloppy (Any): The author that the policy is to imitate.
        clean (Any): One without faults, from whom it learns to calculate.
        max_completion_length (int): Tokens at which completions are cut.
        row_length (int): Tokens of a packed row; a prompt and a completion cut at the limit must fit.
        phases (Sequence[Phase]): Training, in this order.
        checkpoint (Path): Where the shipped policy is.
    """

    sample_problem: Callable[[random.Random, int, str], Problem]
    write_document: Callable[[random.Random, Any, Any], str]
    sloppy: Any
    clean: Any
    max_completion_length: int
    row_length: int
    phases: Sequence[Phase]
    checkpoint: Path

    def sample_document(self, rng: random.Random, clean_share: float) -> tuple[Problem, str]:
        """One problem of the corpus and its document; `clean_share` is the probability of the clean author."""
        problem = self.sample_problem(rng, rng.choice(LEVELS), WARM_START)
        return problem, self.write_document(rng, problem, self.clean if rng.random() < clean_share else self.sloppy)


CORPUS = Corpus(
    sample_problem=sample_problem,
    write_document=write_document,
    sloppy=SLOPPY,
    clean=CLEAN,
    max_completion_length=MAX_COMPLETION_LENGTH,
    row_length=384,
    phases=(Phase(2600, 0.5, 1.0, 1.0), Phase(1400, 0.15, 1.0, 0.05)),
    checkpoint=CHECKPOINT,
)


def main(corpus: Corpus = CORPUS) -> None:
    """Train the tokenizer and the policy, and save both."""
    parser = argparse.ArgumentParser(description="warm start of a tiny task's policy")
    parser.add_argument("--output", type=Path, default=corpus.checkpoint)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")

    rng = random.Random(args.seed)
    torch.manual_seed(args.seed)
    tokenizer = train_tokenizer([document for _, document in (corpus.sample_document(rng, 0.2) for _ in range(4000))])
    policy = build_model(tokenizer)
    logger.info("%d parameters, %d tokens in the vocabulary", policy.num_parameters(), len(tokenizer))
    train(corpus, policy, tokenizer, rng)
    policy.save_pretrained(args.output)
    tokenizer.save_pretrained(args.output)


def train(corpus: Corpus, policy: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> None:
    """Run all phases: Muon for the matrices, AdamW for the embedding and the norms."""
    matrices = [p for name, p in policy.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in policy.named_parameters() if p.ndim != 2 or "embed" in name]
    optimizers = (
        (torch.optim.Muon(matrices, lr=MUON_LEARNING_RATE, weight_decay=0.0), MUON_LEARNING_RATE),
        (torch.optim.AdamW(others, lr=ADAMW_LEARNING_RATE, weight_decay=0.0), ADAMW_LEARNING_RATE),
    )
    begin, done, tokens = time.process_time(), 0, 0
    for phase in corpus.phases:
        stream = batches(corpus, tokenizer, rng, phase.clean_share)
        for step in range(phase.steps):
            rate = phase.rate_start + (phase.rate_end - phase.rate_start) * step / phase.steps
            rate *= min(1.0, (done + 1) / WARM_UP_STEPS)
            for optimizer, base in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = base * rate
            batch = next(stream)
            loss = _step(policy, batch, [optimizer for optimizer, _ in optimizers])
            done += 1
            tokens += int((batch["labels"] != IGNORED).sum())
            if done % 50 == 0:
                logger.info("step %d loss %.4f tokens %d cpu %.0f s", done, loss, tokens, time.process_time() - begin)


def batches(
    corpus: Corpus, tokenizer: PreTrainedTokenizerFast, rng: random.Random, clean_share: float
) -> Iterator[dict[str, torch.Tensor]]:
    """Packed batches without end: documents are laid into the first row with room and see only themselves."""
    waiting = encode_document(corpus, tokenizer, *corpus.sample_document(rng, clean_share))
    while True:
        rows: list[list[tuple[list[int], int]]] = [[] for _ in range(ROWS)]
        used = [0] * ROWS
        while True:
            row = next((r for r in range(ROWS) if used[r] + len(waiting[0]) <= corpus.row_length), None)
            if row is None:
                break
            rows[row].append(waiting)
            used[row] += len(waiting[0])
            waiting = encode_document(corpus, tokenizer, *corpus.sample_document(rng, clean_share))
        yield _collate(rows, corpus.row_length)


def encode_document(
    corpus: Corpus, tokenizer: PreTrainedTokenizerFast, problem: Problem, document: str
) -> tuple[list[int], int]:
    """Token ids of prompt + completion (cut at the length limit) and the length of the prompt."""
    prompt = tokenizer.apply_chat_template(problem.messages, add_generation_prompt=True, tokenize=False)
    prompt_ids = tokenizer(prompt)["input_ids"]
    completion = tokenizer(document)["input_ids"] + [tokenizer.eos_token_id]
    return prompt_ids + completion[: corpus.max_completion_length], len(prompt_ids)


def _collate(rows: list[list[tuple[list[int], int]]], row_length: int) -> dict[str, torch.Tensor]:
    ids = torch.zeros(ROWS, row_length, dtype=torch.long)
    labels = torch.full((ROWS, row_length), IGNORED)
    positions = torch.zeros(ROWS, row_length, dtype=torch.long)
    document = torch.full((ROWS, row_length), -1)
    for r, row in enumerate(rows):
        start = 0
        for index, (tokens, prompt_length) in enumerate(row):
            end = start + len(tokens)
            ids[r, start:end] = torch.tensor(tokens)
            labels[r, start + prompt_length : end] = ids[r, start + prompt_length : end]
            positions[r, start:end] = torch.arange(len(tokens))
            document[r, start:end] = index
            start = end
    same = document[:, :, None] == document[:, None, :]
    mask = (same & torch.ones(row_length, row_length, dtype=torch.bool).tril())[:, None]  # (rows, 1, T, T)
    return {"input_ids": ids, "labels": labels, "position_ids": positions, "attention_mask": mask}


def _step(policy: Qwen3ForCausalLM, batch: dict[str, torch.Tensor], optimizers: list[torch.optim.Optimizer]) -> float:
    loss = policy(**batch).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return loss.item()


if __name__ == "__main__":
    main()
