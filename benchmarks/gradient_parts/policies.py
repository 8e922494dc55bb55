# SPDX-License-Identifier: Apache-2.0
"""Fixed policies and their rollouts, without a gate; both are kept under outputs/bench/gradient."""

import hashlib
import json
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.arena.tasks import TASKS, Task
from benchmarks.common import open_engine
from recipes.tiny_math.problems import HELD_OUT, Problem

START, TRAINED = "start", "trained"
POLICIES = (START, TRAINED)
"""The shipped checkpoint, and the same after `Size.train_steps` steps of training: uniform counts at half the budget
with the tail trim, that is with no part whose estimator is judged but the trim."""
TRAINING_SEED = 200


@dataclass(frozen=True)
class Size:
    """How much is recorded.

    Attributes:
        prompts (int): Training prompts with recorded rollouts.
        rollouts (int): Of each of them.
        held_out (int): Problems of the reference gradient.
        held_out_rollouts (int): Of each of them, >= 2.
        train_steps (int): Optimizer steps behind the trained policy.
        train_prompts (int): Its training prompts, of which the first `prompts` are measured.
    """

    prompts: int = 240
    rollouts: int = 16
    held_out: int = 600
    held_out_rollouts: int = 8
    train_steps: int = 40
    train_prompts: int = 240


@dataclass(frozen=True)
class PromptRollouts:
    """Rollouts of one prompt.

    Attributes:
        prompt_ids (list[int]): Tokens of the prompt.
        answer (int): The right one.
        ids (list[list[int]]): Tokens of each rollout, a sampled EOS included.
    """

    prompt_ids: list[int]
    answer: int
    ids: list[list[int]]


def checkpoint(policy: str, task: Task, size: Size, folder: Path) -> Path:
    """Folder of model and tokenizer of one of `POLICIES`; trains it where that has not been done yet."""
    if policy == START:
        return task.checkpoint
    path = folder / f"{task.name}_after_{size.train_steps}"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        in_own_process(train, task.name, size, path)
    return path


def sample(
    path: Path, task: Task, size: Size, seed: int, sentinel: int, cache: Path
) -> dict[str, list[PromptRollouts]]:
    """Rollouts of the training pool and of held-out problems, sampled by vLLM or read from the cache.

    Args:
        path (Path): Checkpoint.
        task (Task): The task.
        size (Size): How many.
        seed (int): Of the sampling.
        sentinel (int): The gate's, which is never sampled.
        cache (Path): File of the rollouts; made anew where it belongs to another checkpoint, size or seed.

    Returns:
        dict[str, list[PromptRollouts]]: "pool" and "held_out".
    """
    made = {"checkpoint": digest(path), "size": asdict(size), "seed": seed}
    if not cache.exists() or json.loads(cache.read_text())["made"] != made:
        found = in_own_process(generate, task.name, path, size, seed, sentinel)
        cache.parent.mkdir(parents=True, exist_ok=True)
        cache.write_text(json.dumps({"made": made, **found}))
    found = json.loads(cache.read_text())
    return {name: [PromptRollouts(**entry) for entry in found[name]] for name in ("pool", "held_out")}


def held_out_problems(task: Task, size: Size) -> Sequence[Problem]:
    """Those of the reference gradient, of which no split of the arena has any."""
    return task.sample_problems(HELD_OUT, size.held_out, 1)


def digest(path: Path) -> str:
    """Fingerprint of the weights of a checkpoint."""
    return hashlib.blake2b((path / "model.safetensors").read_bytes(), digest_size=8).hexdigest()


def in_own_process(function: Callable, *arguments: Any) -> Any:
    """A vLLM engine keeps state of the process it was built in, and half a gigabyte of its memory."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def train(task_name: str, size: Size, path: Path) -> None:
    """Train the shipped policy and save it under `path`."""
    from datasets import Dataset
    from transformers import PrinterCallback

    from benchmarks.arena.entrants import FULL
    from benchmarks.arena.grading import is_right
    from benchmarks.gradient_parts.settings import TRIM, configuration
    from duet_trl import DUETGRPOConfig, DUETGRPOTrainer

    task = TASKS[task_name]

    def first_answer_reward(completions: list[list[dict[str, str]]], answer: list[int], **_: Any) -> list[float]:
        pairs = zip(completions, answer, strict=True)
        return [float(is_right(turns[0]["content"], right, "first", task.marker)) for turns, right in pairs]

    fields = configuration(TRIM, FULL // 2, TRAINING_SEED, task.fields)
    rows = [{"prompt": p.messages, "answer": p.answer} for p in task.pool()[: size.train_prompts]]
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        trainer = DUETGRPOTrainer(
            model=str(task.checkpoint),
            reward_funcs=first_answer_reward,
            args=DUETGRPOConfig(output_dir=folder, max_steps=size.train_steps, **fields),
            train_dataset=Dataset.from_list(rows),
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        trainer.save_model(str(Path(folder, "saved")))
        os.replace(Path(folder, "saved"), path)  # whole or not at all


def generate(task_name: str, path: Path, size: Size, seed: int, sentinel: int) -> dict[str, list[dict[str, Any]]]:
    """Sample at temperature 1 up to the task's limit; JSON types."""
    from transformers import AutoTokenizer
    from vllm import SamplingParams

    task = TASKS[task_name]
    tokenizer = AutoTokenizer.from_pretrained(path)
    llm = open_engine(path, task.max_model_length, seed)

    def rollouts(problems: Sequence[Problem], count: int) -> list[dict[str, Any]]:
        prompts = [
            tokenizer.apply_chat_template(p.messages, add_generation_prompt=True, return_dict=False) for p in problems
        ]
        parameters = SamplingParams(
            n=count, temperature=1.0, max_tokens=task.max_completion_length, logit_bias={sentinel: -100.0}
        )
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], parameters, use_tqdm=False)
        return [
            {"prompt_ids": list(ids), "answer": p.answer, "ids": [list(one.token_ids) for one in output.outputs]}
            for ids, p, output in zip(prompts, problems, outputs, strict=True)
        ]

    return {
        "pool": rollouts(task.pool()[: size.prompts], size.rollouts),
        "held_out": rollouts(held_out_problems(task, size), size.held_out_rollouts),
    }
