# SPDX-License-Identifier: Apache-2.0
"""The controller's file in every checkpoint, and the checkpoint that an interrupted run leaves."""

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from ..controller import Controller

if TYPE_CHECKING:
    from ..trainer import DUETGRPOTrainer

logger = logging.getLogger(__name__)

STATE_FILE = "duet_controller.json"


def write_state(folder: Path, controller: Controller) -> None:
    """Write the controller's state into a checkpoint folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / STATE_FILE).write_text(json.dumps(controller.state_dict()))


def read_state(folder: Path, controller: Controller) -> None:
    """Restore the controller from a checkpoint folder.

    Raises:
        ValueError: If the folder has no state, or that of another configuration.
    """
    path = folder / STATE_FILE
    if not path.exists():
        raise ValueError(
            f"{folder} has no {STATE_FILE}: it was not written by DUETGRPOTrainer, and without it the plans would "
            "start cold. Load its weights as a model in a new run instead of resuming."
        )
    controller.load_state_dict(json.loads(path.read_text()))


def leave_checkpoint(trainer: "DUETGRPOTrainer", folder: Path, *, saved: bool) -> None:
    """Say where the checkpoint of an interrupted run is, once it is whole; called on all processes.

    Args:
        trainer (DUETGRPOTrainer): After its training.
        folder (Path): Checkpoint of the last step.
        saved (bool): False: the interrupt came behind the last step, and the checkpoint is still to be written.
    """
    if not saved:
        trainer._save_checkpoint(trainer.model, trial=None)
    trainer.accelerator.wait_for_everyone()
    if trainer.accelerator.is_main_process:
        logger.warning(
            "Interrupted after step %d of %d. The checkpoint is %s; resume_from_checkpoint=True continues from it.",
            trainer.state.global_step,
            trainer.state.max_steps,
            folder,
        )
