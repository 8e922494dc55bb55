# SPDX-License-Identifier: Apache-2.0
"""Checkpoints with the state of the method, what transformers and TRL leave out when a run resumes (the order of
prompts, the end of the run, all processes), and an interrupt, which ends the run after a step with a checkpoint."""

import json
import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch
from accelerate import Accelerator
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import GRPOTrainer
from trl.trainer.utils import RepeatSampler

from ..gate.automaton import TokenAutomaton
from ..methods.method import Method
from ..rollouts import StepRecord
from .checkpoint import check_json, read_state, write_state, writing
from .data_checks import data_sample

logger = logging.getLogger(__name__)

DATA_FILE = "duet_data.json"


class TrainingStopped(RuntimeError):
    """A run cannot continue; the checkpoint of the state before the step is written, and the message names it."""


class Checkpoints:
    """Checkpoints of a trainer: what is written next to transformers' files, and what is restored from it.

    The trainer's `loop` and `overlap` hold the state; without an `automaton` the run has no gate.
    """

    def __init__(self, trainer: GRPOTrainer, method: Method, automaton: TokenAutomaton | None) -> None:
        self.trainer = trainer
        self._identity = run_identity(trainer, method, automaton)
        self._saved_step: int | None = None  # the last one that this process has written a checkpoint of
        self._checked = False

    @property
    def epochs_done(self) -> int:
        """Completed passes over the data."""
        # A step of the last epoch may end at 0.99999 of it.
        return int((self.trainer.state.epoch or 0.0) + 1e-6)

    @contextmanager
    def if_failing(self) -> Iterator[None]:
        """While active, an error of a reward function or an engine leaves a checkpoint of the state before the step.

        The error reaches the caller unchanged. On several processes there is none: to write it takes all of them,
        and not every error is known to all.
        """
        written = False
        try:
            yield
            written = True
        finally:
            error, trainer = sys.exception(), self.trainer
            fails = not written and isinstance(error, Exception) and not isinstance(error, TrainingStopped)
            if fails and trainer.accelerator.num_processes == 1 and trainer.state.global_step > 0:
                self.save_once()
                name = type(error).__name__
                logger.error("The step failed with %s. The state before it is in %s.", name, self.folder())

    def save_once(self) -> None:
        """Write a checkpoint of the state as it is; one that this process has just written stays as it is."""
        if self._saved_step != self.trainer.state.global_step:
            self.trainer._save_checkpoint(self.trainer.model, trial=None)

    def stop(self, reason: str) -> NoReturn:
        """End training with a checkpoint of the state before the step."""
        self.save_once()
        raise TrainingStopped(f"Training stopped: {reason.rstrip('.')}. The state before it is in {self.folder()}.")

    def stop_if_unscored(self, step: StepRecord) -> None:
        """End training if a step has nothing to learn from; plain GRPO continues, as TRL does."""
        if step.nonfinite.all() and self.trainer.args.method != "grpo":
            self.stop(
                f"no rollout of generation step {step.prompts.step} has a finite reward: every reward function "
                "returned None, NaN or infinity for all of them. Check the reward functions and their data-set columns"
            )

    def check_first(self, method: Method) -> None:
        """Check the state of a method after the first step: a fresh one shows little of what it will hold."""
        if not self._checked:
            check_json(f"{type(method).__name__}.state_dict()", method.state_dict())
            self._checked = True

    def leave(self, interrupt: "StopAfterStep") -> None:
        """The checkpoint of an interrupted run, once its training has returned; of another one nothing."""
        in_time, state, accelerator = bool(interrupt.agreed), self.trainer.state, self.trainer.accelerator
        # On all processes: none may end, and have its launcher end the others, before the checkpoint is whole.
        if interrupt.agree():
            if not in_time:  # it came after the last step
                self.trainer._save_checkpoint(self.trainer.model, trial=None)
            accelerator.wait_for_everyone()
            if accelerator.is_main_process:
                logger.warning(
                    "Interrupted after step %d of %d. The checkpoint is %s; resume_from_checkpoint=True continues "
                    "from it.",
                    state.global_step,
                    state.max_steps,
                    self.folder(),
                )

    def write(self, folder: Path) -> None:
        """Write what the method remembers into a folder, as every checkpoint has it."""
        state = self.trainer.loop.state_dict()
        if self.trainer.overlap is not None:
            state |= self.trainer.overlap.state_dict()
        write_state(folder, state, self._identity)

    def folder(self, trial: Any = None) -> Path:
        """Folder of the checkpoint of the step."""
        step = self.trainer.state.global_step
        return Path(self.trainer._get_output_dir(trial=trial), f"{PREFIX_CHECKPOINT_DIR}-{step}")

    @contextmanager
    def saving(self, trial: Any) -> Iterator[None]:
        """While transformers writes a checkpoint, which it also pushes to the Hub: with the state of the method."""
        folder, args = self.folder(trial), self.trainer.args
        with writing(folder) if args.should_save else nullcontext():
            if args.should_save:
                self.trainer.save_method_state(folder)
                sample = data_sample(self.trainer.train_dataset, args.prompt_id_column)
                (folder / DATA_FILE).write_text(json.dumps(sample))
            yield
        self._saved_step = self.trainer.state.global_step

    def restore(self, checkpoint: Path, sampler: RepeatSampler | None) -> None:
        """Take up a run where a checkpoint ends; the training data of a stream have no sampler."""
        # TRL's sampler draws the order of each epoch from one generator, which restarts in each process and does not
        # know the epoch. After the first epoch a resumed run would see prompts again that it has just seen, and others
        # not at all.
        if sampler is not None and sampler.shuffle:
            for _ in range(self.epochs_done):
                torch.randperm(sampler.num_samples, generator=sampler.generator)
        self._compare_data(checkpoint / DATA_FILE)
        state = read_state(checkpoint, self._identity)
        self.trainer.loop.load_state_dict(state)
        if self.trainer.overlap is not None:
            self.trainer.overlap.load_state_dict(state)

    def _compare_data(self, path: Path) -> None:
        saved = json.loads(path.read_text()) if path.exists() else None
        found = data_sample(self.trainer.train_dataset, self.trainer.args.prompt_id_column)
        if saved is not None and found is not None and saved != found:
            logger.warning(
                "The data set has changed since %s was written: %d rows then, %d now. The rest of this epoch draws "
                "from the new rows in their own order, so prompts may come twice or not at all; what is "
                "remembered about a prompt stays with it. Resume with the old data, or begin a new run.",
                path.parent,
                saved["rows"],
                found["rows"],
            )


def run_identity(trainer: GRPOTrainer, method: Method, automaton: TokenAutomaton | None) -> dict[str, Any]:
    """Values that must agree between a checkpoint and the run that resumes from it."""
    args = trainer.args
    weights = [round(weight, 6) for weight in trainer.reward_weights.tolist()]  # of a float32 tensor
    return {
        "marker": args.marker if automaton is not None else None,
        "automaton": None if automaton is None else automaton.fingerprint,
        "max_completion_length": args.max_completion_length,
        "num_generations": args.num_generations,
        "seed": args.seed,
        "budget_fraction": args.budget_fraction,
        "rewards": dict(zip(trainer.reward_func_names, weights, strict=True)),
        "method": type(method).__name__,
        **method.identity,
    }


@cache
def restore_to_numbered_cpu() -> None:
    """Teach `torch.load` the place "cpu:0": the device of each of several CPU processes, to which transformers loads.

    torch knows "cpu" alone; a number is that of the process on its machine.
    """
    torch.serialization.register_package(
        100, lambda storage: None, lambda storage, location: storage if location.startswith("cpu:") else None
    )


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopAfterStep(TrainerCallback):
    """Turns the first SIGINT or SIGTERM into "save and stop after this step"; the second acts at once.

    A callback of the trainer, and a context manager around its training that ends as the signal would have ended it:
    what follows in a script (`save_model`, `push_to_hub`) is for runs that are complete.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self.agreed = 0
        self._requested = 0
        self._previous: dict[int, Any] = {}
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> "StopAfterStep":
        """Install the handlers."""
        self.agreed = self._requested = 0
        try:
            self._previous = {number: signal.signal(number, self._request) for number in _SIGNALS}
        except ValueError:
            logger.info("Training outside the main thread: an interrupt will not wait for the end of the step.")
        self._handlers = dict(self._previous)
        return self

    def __exit__(self, *exception: object) -> None:
        """Put the previous handlers back, however training ended; one that ended for a signal raises it again."""
        self._restore()
        if not self.agreed or exception[0] is not None:
            return
        if callable(self._handlers.get(self.agreed)):  # Python's own for SIGINT, or one of the script
            signal.raise_signal(self.agreed)
        elif self.agreed == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            raise SystemExit(128 + self.agreed)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Save and stop if any process was asked to; several agree on it once per generation batch."""
        # To agree is a collective, which waits for the device; generation waits anyway.
        per_batch = args.steps_per_generation * args.num_iterations
        between = state.global_step * args.gradient_accumulation_steps % per_batch >= args.gradient_accumulation_steps
        if not (between and self.accelerator.num_processes > 1) and self.agree():
            control.should_save = True
            control.should_training_stop = True

    def agree(self) -> int:
        """The signal that any process got, on all of them; 0: none. Returns when all processes have called it."""
        if self.accelerator.num_processes == 1:
            self.agreed = self._requested
            return self.agreed
        number = torch.tensor([self._requested], device=self.accelerator.device)
        self.agreed = int(self.accelerator.gather(number).max())
        return self.agreed

    def _request(self, number: int, frame: FrameType | None) -> None:
        logger.warning("%s: stopping after this step with a checkpoint.", signal.Signals(number).name)
        self._requested = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}
