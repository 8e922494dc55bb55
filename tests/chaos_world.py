# SPDX-License-Identifier: Apache-2.0
"""A training run whose rollouts are a function of the step and the prompt, so that a resumed run must repeat it.

Everything else is real: the method, the trainer, the update of a tiny policy, its checkpoints. What each step was
planned and judged as is written down; a run that was killed and resumed must have written the same.
"""

import hashlib
import json
import os
import signal
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import TrainerCallback

from duet_trl.config import reads
from duet_trl.engines.engine import Completion, Policy, Request
from duet_trl.methods import METHODS
from duet_trl.rollouts import StepRecord
from duet_trl.trainer import DUETGRPOTrainer
from tests.engines.table_engine import TableEngine
from tests.runs import duet_trainer, prompts
from tests.tiny import MODEL_VOCAB, UNIGRAM, tiny_tokenizer

NAMES = tuple(name for name in METHODS if name != "own")
NUM_STEPS = 5
NUM_PROMPTS = 12
"""Four of them a step: the second epoch begins with step 4."""

PHASES = ("sync", "plan", "generate", "score", "judge", "update", "observe", "optimizer", "save", "push", "error")
"""In "error" a reward function raises instead, and the trainer leaves a checkpoint itself."""

_OWN = {
    "arrol": {"method_kwargs": {"head_warmup_steps": 1, "detect_at": 8}},
    "dapo": {"method_kwargs": {"oversample": 1.5}},
}
_GATE = {"grace_window": 4, "method_kwargs": {"poll_interval": 4}}


class WorldEngine(TableEngine):
    """Samples each rollout from random numbers of its own: by step, prompt, prefix and number."""

    def __init__(self, policy: Policy, visit: Callable[[str], None]) -> None:
        row = np.full(MODEL_VOCAB, 1e-9)
        tokenizer = tiny_tokenizer()
        for text, probability in UNIGRAM.items():
            row[tokenizer(text).input_ids[0]] += probability
        row[list(policy.eos_ids)] += 0.03
        super().__init__(policy, np.tile(row / row.sum(), (MODEL_VOCAB, 1)))
        self.visit = visit
        self.step: Callable[[], int] = lambda: 0

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        done = []
        for number, request in enumerate(requests):
            if number == len(requests) // 2:
                self.visit("generate")
            self._random = np.random.default_rng(
                [self.step(), zlib.crc32(bytes(str(request.input_ids), "ascii")), number]
            )
            done.append(self._rollout(request))
        return done

    def sync_weights(self) -> None:
        self.visit("sync")
        super().sync_weights()


class Killer:
    """Counts how often each phase is entered, and kills the process at one of these times.

    Args:
        at (tuple[str, int] | None): Phase, and number of the entry. The entries of "save" are calls of functions while
            checkpoints are written, so that a file may be half there.
    """

    def __init__(self, at: tuple[str, int] | None) -> None:
        self.at = at
        self.seen: Counter[str] = Counter()

    def visit(self, phase: str) -> None:
        if self.at == (phase, self.seen[phase]):
            if phase == "error":
                raise ConnectionError("the reward function was told to fail")
            os.kill(os.getpid(), signal.SIGKILL)
        self.seen[phase] += 1

    def before(self, phase: str, work: Callable) -> Callable:
        def visited(*args: Any, **kwargs: Any) -> Any:
            self.visit(phase)
            return work(*args, **kwargs)

        return visited

    def throughout(self, phase: str, work: Callable) -> Callable:
        def watched(*args: Any, **kwargs: Any) -> Any:
            # What writes to a file is a function of C.
            sys.setprofile(lambda frame, event, argument: self.visit(phase) if event == "c_call" else None)
            try:
                return work(*args, **kwargs)
            finally:
                sys.setprofile(None)

        return watched


class Updates(TrainerCallback):
    """Visits the time between the gradient and the step of the optimizer, and that behind it."""

    def __init__(self, killer: Killer) -> None:
        self.killer = killer

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        self.killer.visit("optimizer")

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.killer.visit("optimizer")


class Reward:
    """1 for a four, so that some groups are degenerate."""

    __name__ = "count_fours"

    def __init__(self, killer: Killer) -> None:
        self.killer = killer

    def __call__(self, completions, **columns):
        self.killer.visit("score")
        self.killer.visit("error")
        return [float("4" in text) for text in completions]


def build(
    model: Path, folder: Path, method: str, killer: Killer, data: Any = None, **overrides: Any
) -> DUETGRPOTrainer:
    """A trainer of this world, and a killer at all of its phases."""
    gated = "grace_window" in reads(method)
    options = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "max_completion_length": 24}
    options |= {"method": method, "max_steps": NUM_STEPS, **(_GATE if gated else _OWN.get(method, {})), **overrides}
    trainer = duet_trainer(
        model,
        folder,
        data=prompts(NUM_PROMPTS) if data is None else data,
        rewards=Reward(killer),
        engine=lambda policy: WorldEngine(policy, killer.visit),
        callbacks=[Updates(killer)],
        **options,
    )
    trainer.engine.step = lambda: trainer.loop.num_steps
    trainer.method.jobs = killer.before("plan", trainer.method.jobs)
    trainer.method.judge = killer.before("judge", trainer.method.judge)
    trainer.method.observe = killer.before("observe", trainer.method.observe)
    trainer._compute_loss = killer.before("update", trainer._compute_loss)
    trainer._save_checkpoint = killer.throughout("save", trainer._save_checkpoint)
    trainer._push_from_checkpoint = killer.before("push", lambda folder: None)
    return trainer


def run(model: Path, folder: Path, method: str, at: tuple[str, int] | None, resume: bool, **overrides: Any) -> None:
    """Train to the end or to the kill; `folder/records.jsonl` gets a line for each step, save and end."""
    killer = Killer(at)
    trainer = build(model, folder / "run", method, killer, **overrides)
    # Only now: there is no Hub, and what counts is the moment behind a save.
    trainer.args.push_to_hub = trainer.args.save_strategy != "no"
    observe, save = trainer.loop.observe, trainer._save_checkpoint

    def observed(step):
        observe(step)
        write(folder, {"step": step.prompts.step, **_found(step), "state": digest(trainer.loop.state_dict())})

    def saved(*args, **kwargs):
        save(*args, **kwargs)
        write(folder, {"saved": trainer.state.global_step})

    trainer.loop.observe, trainer._save_checkpoint = observed, saved
    trainer.train(resume_from_checkpoint=resume)
    weights = digest([p.detach().numpy() for p in trainer.model.parameters()])
    write(folder, {"end": {"weights": weights, "state": digest(trainer.loop.state_dict())}, "seen": dict(killer.seen)})


def write(folder: Path, line: dict[str, Any]) -> None:
    """Add a line that is there whole or not at all."""
    with (folder / "records.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


def _found(step: StepRecord) -> dict[str, Any]:
    """Plan, gate and coins of a step, what came of them, and how it was judged."""
    gates = sorted({str(job.gate) for job in step.jobs})
    return {
        "keys": step.prompts.keys,
        "epoch": step.prompts.epoch,
        "jobs": [(job.prompt, len(job.prefix), job.max_tokens, job.keep) for job in step.jobs],
        "gates": gates,
        "lengths": step.replay.length.tolist(),
        "judgement": digest([*vars(step.judgement).values(), step.done.rewards, step.sum_logps]),
    }


def digest(value: Any) -> str:
    """Of nested dicts and lists of JSON values and arrays."""
    found = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, np.ndarray):
            found.update(repr((value.dtype.str, value.shape)).encode() + value.tobytes())
        elif isinstance(value, dict):
            for name in sorted(value):
                found.update(name.encode())
                add(value[name])
        elif isinstance(value, list | tuple):
            found.update(b"[")
            for one in value:
                add(one)
        else:
            found.update(json.dumps(value).encode())

    add(value)
    return found.hexdigest()[:16]
