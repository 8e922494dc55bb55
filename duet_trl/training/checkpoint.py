# SPDX-License-Identifier: Apache-2.0
"""The controller's file in every checkpoint."""

import json
from pathlib import Path

from ..controller import Controller

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
