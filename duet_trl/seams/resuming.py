# SPDX-License-Identifier: Apache-2.0
"""Checkpoints with the state of the method, and what transformers and TRL leave out when a run resumes: the order of
prompts, the end of the run, all processes."""

import json
import logging
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch.utils.data import Sampler
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import GRPOTrainer
from trl.trainer.utils import RepeatSampler

from ..gate.automaton import TokenAutomaton
from ..loop import Loop
from ..methods.method import Method
from .checkpoint import check_json, read_state, write_state
from .data_checks import data_sample
from .several_updates import SeveralUpdates
from .whole_checkpoint import writing

logger = logging.getLogger(__name__)

DATA_FILE = "duet_data.json"


class TrainingStopped(RuntimeError):
    """A run cannot go on; the checkpoint of the state before the step is written, and the text names it."""


class Resuming(GRPOTrainer):
    """The part of `DUETGRPOTrainer` that writes checkpoints and takes up a run where one ends."""

    loop: Loop
    several: SeveralUpdates | None
    _identity: dict[str, Any]  # see `run_identity`
    _saved_step: int | None = None  # the last one that this process has written a checkpoint of
    _sampler: RepeatSampler | None = None  # of the training data; a stream has none
    _state_checked = False

    @property
    def epochs_done(self) -> int:
        """Completed passes over the data."""
        # A step of the last epoch may end at 0.99999 of it.
        return int((self.state.epoch or 0.0) + 1e-6)

    @property
    def checkpoint_if_failing(self) -> AbstractContextManager:
        """While active, an error of a reward function or an engine leaves a checkpoint of the state before the step.

        The error goes on to the caller as it is. On several processes there is none: to write it takes all of them,
        and not every error is known to all.
        """
        stack = ExitStack()
        stack.push(self._failed)
        return stack

    def _failed(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        at_once = kind is None or not issubclass(kind, Exception) or issubclass(kind, TrainingStopped)
        if at_once or self.accelerator.num_processes > 1 or self.state.global_step == 0:
            return
        self.save_unless_saved()
        folder = self._checkpoint_folder(None)
        logger.error("The step failed with %s. The state before it is in %s.", kind.__name__, folder)

    def check_first_state(self, method: Method) -> None:
        """Check the state of a method after the first step: a fresh one says little of what it will hold."""
        if not self._state_checked:
            check_json(f"{type(method).__name__}.state_dict()", method.state_dict())
            self._state_checked = True

    def save_unless_saved(self) -> None:
        """Write a checkpoint of the state as it is; one that this process has just written stays as it is."""
        if self._saved_step != self.state.global_step:
            self._save_checkpoint(self.model, trial=None)

    def stop_with_checkpoint(self, reason: str) -> NoReturn:
        """End training with a checkpoint of the state before the step."""
        self.save_unless_saved()
        raise TrainingStopped(
            f"Training stopped: {reason}. The state before it is in {self._checkpoint_folder(None)}."
        )

    def save_method_state(self, folder: Path) -> None:
        """Write what the method remembers into a folder, as every checkpoint has it."""
        updates = {} if self.several is None else self.several.state_dict()
        write_state(folder, self.loop.state_dict() | updates, self._identity)

    def _checkpoint_folder(self, trial: Any) -> Path:
        return Path(self._get_output_dir(trial=trial), f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}")

    # ---- Seams ------------------------------------------------------------------------------------------------------

    def _get_train_sampler(self, dataset: Any = None) -> Sampler:
        self._sampler = super()._get_train_sampler(dataset)
        num_rows, num_prompts = self._sampler.num_samples, self._sampler.batch_size
        if num_rows < num_prompts:
            raise ValueError(
                f"The data set has {num_rows} rows, and a generation step takes {num_prompts} prompts: TRL's sampler "
                "drops the last rows that make no whole batch, so there would be no step. Use more rows, or lower "
                "per_device_train_batch_size, gradient_accumulation_steps or generation_batch_size."
            )
        return self._sampler

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        folder = self._checkpoint_folder(trial)
        with writing(folder) if self.args.should_save else nullcontext():
            if self.args.should_save:  # before the parent, which pushes the folder to the Hub
                self.save_method_state(folder)
                sample = data_sample(self.train_dataset, self.args.prompt_id_column)
                (folder / DATA_FILE).write_text(json.dumps(sample))
            super()._save_checkpoint(model, trial)
        self._saved_step = self.state.global_step

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None and self.args.device.type == "cpu":
            _restore_to_numbered_cpu()
        super()._load_optimizer_and_scheduler(checkpoint)
        # TRL's sampler draws the order of each epoch from one generator, which starts anew in each process and hears
        # of no epoch. Behind the first epoch a resumed run would see prompts again that it has just seen, and others
        # not at all.
        if checkpoint is not None and self._sampler is not None and self._sampler.shuffle:
            for _ in range(self.epochs_done):
                torch.randperm(self._sampler.num_samples, generator=self._sampler.generator)
        if checkpoint is not None:
            self._compare_data(Path(checkpoint, DATA_FILE))
            state = read_state(Path(checkpoint), self._identity)
            self.loop.load_state_dict(state)
            if self.several is not None:
                self.several.load_state_dict(state)

    def _compare_data(self, path: Path) -> None:
        saved = json.loads(path.read_text()) if path.exists() else None
        found = data_sample(self.train_dataset, self.args.prompt_id_column)
        if saved is not None and found is not None and saved != found:
            logger.warning(
                "The data set has changed since %s was written: %d rows then, %d now. The rest of this epoch draws "
                "from the new rows in an order of their own, so prompts may come twice or not at all; what is "
                "remembered about a prompt stays with it. Resume with the old data, or begin a new run.",
                path.parent,
                saved["rows"],
                found["rows"],
            )

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        # transformers asks whether the run is at its end after each step only: from its last checkpoint it would train
        # one more.
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
        else:
            super()._run_epoch(*args, **kwargs)

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        # The file that is written next says that the checkpoint is whole: with the parts of every process.
        self.accelerator.wait_for_everyone()


def run_identity(trainer: GRPOTrainer, method: Method, automaton: TokenAutomaton | None) -> dict[str, Any]:
    """What must agree between a checkpoint and the run that resumes from it."""
    args = trainer.args
    weights = [round(weight, 6) for weight in trainer.reward_weights.tolist()]  # of a float32 tensor
    return {
        "marker": args.marker if automaton is not None else None,
        "automaton": None if automaton is None else automaton.fingerprint,
        "max_completion_length": args.max_completion_length,
        "num_generations": args.num_generations,
        "seed": args.seed,
        "updates": args.updates,
        "budget_fraction": args.budget_fraction,
        "rewards": dict(zip(trainer.reward_func_names, weights, strict=True)),
        "method": type(method).__name__,
        **method.identity,
    }


@cache
def _restore_to_numbered_cpu() -> None:
    """Teach `torch.load` the place "cpu:0": the device of each of several CPU processes, to which transformers loads.

    torch knows "cpu" alone; a number is that of the process on its machine.
    """
    torch.serialization.register_package(
        100, lambda storage: None, lambda storage, location: storage if location.startswith("cpu:") else None
    )
