# SPDX-License-Identifier: Apache-2.0
"""Which weights a run shows: those of its last update, or their average (`ema_decay`).

Training goes on from the weights of the last update, and a checkpoint has them where a resumed run looks. Whatever
others see of the run is the average: samples, evaluation, the saved model and the one that is pushed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback

from ..update.weight_average import WeightAverage
from .backend import reshard
from .generating import Generating

_COUNT = "count"


class Averaging(Generating):
    """The part of `DUETGRPOTrainer` that averages weights."""

    _shows_average = False  # whether the model holds the average now
    _checkpointing = False

    @cached_property
    def weight_average(self) -> WeightAverage | None:
        """The average so far; None: there is none."""
        decay = self.args.ema_decay
        return None if decay is None else WeightAverage(decay)

    def start_averaging(self) -> None:
        """From now on take in the weights after every update."""
        if self.weight_average is not None:
            self.add_callback(_AfterUpdate(self))

    def trained_weights(self) -> list[torch.Tensor]:
        """This process's part of every weight that is trained, sharing its memory."""
        reshard(self.model)
        weights = [one.detach() for one in self.model.parameters() if one.requires_grad]
        return [one.to_local() if isinstance(one, DTensor) else one for one in weights]

    @contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """While active, the model holds the average, if there is one by now. All processes enter it together."""
        average = self.weight_average
        if average is None or average.count == 0 or self._shows_average:
            yield
            return
        weights = self.trained_weights()
        own = [one.clone() for one in weights]
        average.copy_to(weights)
        self._shows_average, self._last_loaded_step = True, -1  # the engine has other weights
        try:
            yield
        finally:
            for one, before in zip(self.trained_weights(), own, strict=True):
                one.copy_(before)
            self._shows_average, self._last_loaded_step = False, -1

    # ---- What others see of a run -----------------------------------------------------------------------------------

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """[`~transformers.Trainer.evaluation_loop`] of the policy as `save_model` would save it."""
        with self.averaged_weights():
            return super().evaluation_loop(*args, **kwargs)

    def save_model(self, *args: Any, **kwargs: Any) -> None:
        """[`~transformers.Trainer.save_model`]: with `ema_decay` the average of the weights, but in a checkpoint."""
        if self._checkpointing:
            super().save_model(*args, **kwargs)
            return
        with self.averaged_weights():
            super().save_model(*args, **kwargs)

    # ---- Checkpoints ------------------------------------------------------------------------------------------------

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        if self.weight_average is not None and (self._is_sharded or self.args.should_save):
            self._write_average(self.weight_average, self._average_file(self._checkpoint_folder(trial)))
        self._checkpointing = True
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self._checkpointing = False

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None and self.weight_average is not None:
            self._read_average(self.weight_average, self._average_file(Path(checkpoint)))

    @property
    def _is_sharded(self) -> bool:
        return any(isinstance(one, DTensor) for one in self.model.parameters())

    def _average_file(self, folder: Path) -> Path:
        """Of shards every process has its own; weights that all processes have, the first one writes."""
        return folder / f"duet_average_{self.accelerator.process_index if self._is_sharded else 0}.safetensors"

    @staticmethod
    def _write_average(average: WeightAverage, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        tensors = {str(place): one.contiguous() for place, one in enumerate(average.tensors)}
        save_file(tensors, path, metadata={_COUNT: str(average.count)})

    def _read_average(self, average: WeightAverage, path: Path) -> None:
        if not path.exists():
            raise ValueError(
                f"{path.parent} has no {path.name}, the average of the weights (ema_decay) of this process. Resume "
                "with as many processes as wrote the checkpoint, or without ema_decay in a new run from its weights."
            )
        weights = self.trained_weights()
        with safe_open(path, "pt", device=str(weights[0].device)) as file:
            average.count = int(file.metadata()[_COUNT])
            average.tensors = [file.get_tensor(str(place)) for place in range(len(file.keys()))]
        shapes, found = [[tuple(one.shape) for one in those] for those in (weights, average.tensors)]
        if average.count and shapes != found:
            raise ValueError(
                f"{path} holds the average of other weights or of other shards than this process has. Resume with as "
                "many processes, and as they were sharded, as when the checkpoint was written."
            )


class _AfterUpdate(TrainerCallback):
    def __init__(self, trainer: Averaging) -> None:
        self.trainer = trainer

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        self.trainer.weight_average.add(self.trainer.trained_weights())
