# SPDX-License-Identifier: Apache-2.0
"""The method's state in every checkpoint, and the checkpoint that an interrupted run leaves."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

logger = logging.getLogger(__name__)

STATE_FILE = "duet_state.json"
ARRAYS_FILE = "duet_state.safetensors"
VERSION = 6
"""Goes up with every change of what a state holds."""

_ARRAY = "__array__"
_JSON = (str, int, float, type(None))


def write_state(folder: Path, state: dict[str, Any], identity: dict[str, Any]) -> None:
    """Write the state of a run into a checkpoint folder: values as JSON, arrays as safetensors.

    Raises:
        TypeError: If a value of the state would not come back as it is.
    """
    check_json("the state", state)
    arrays: dict[str, np.ndarray] = {}
    written = {"version": VERSION, "identity": identity, **_without_arrays(state, "", arrays)}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(arrays, folder / ARRAYS_FILE)
    # Last: a folder that has it is whole.
    (folder / STATE_FILE).write_text(json.dumps(written))


def read_state(folder: Path, identity: dict[str, Any]) -> dict[str, Any]:
    """What `write_state` wrote.

    Raises:
        ValueError: If there is none, or it is of another version or configuration.
    """
    path = folder / STATE_FILE
    if not path.exists():
        raise ValueError(
            f"{folder} has no {STATE_FILE}: it was not written by this version of DUETGRPOTrainer, and without it the "
            "plans would start cold. Load its weights as a model in a new run instead of resuming."
        )
    state = json.loads(path.read_text())
    if state.get("version") != VERSION:
        raise ValueError(
            f"{path} has version {state.get('version')!r}, this library reads {VERSION}. Resume with the library that "
            "wrote it, or load its weights as a model in a new run."
        )
    found = state["identity"]
    differences = [
        f"{name}: {found.get(name)!r} in the state, {identity.get(name)!r} now"
        for name in sorted({*found, *identity})
        if found.get(name) != identity.get(name)
    ]
    if differences:
        raise ValueError(
            f"The state in {path} belongs to another configuration ({', '.join(differences)}). Resume with the "
            "configuration of the checkpoint, or start a new output_dir."
        )
    return _with_arrays(state, load_file(folder / ARRAYS_FILE))


def check_json(owner: str, value: Any, *, arrays: bool = True) -> None:
    """Refuse what JSON does not bring back as it was, and arrays that safetensors does not hold.

    Args:
        owner (str): What holds the value, for the error.
        value (Any): Nested dicts of JSON values.
        arrays (bool): Whether numpy arrays may stand in the dicts.

    Raises:
        TypeError: Naming the place, the value and the remedy.
    """
    if isinstance(value, dict):
        for key, one in value.items():
            if not isinstance(key, str):
                raise TypeError(f"{owner} has the key {key!r}, which JSON turns into text. Use str(key).")
            check_json(f"{owner}[{key!r}]", one, arrays=arrays)
    elif isinstance(value, list):
        for number, one in enumerate(value):
            if not isinstance(one, _JSON):
                check_json(f"{owner}[{number}]", one, arrays=False)
    elif not isinstance(value, _JSON) and not (arrays and _is_numeric(value)):
        in_lists = "arrays of numbers in nested dicts"
        remedy = in_lists if isinstance(value, np.ndarray) else "float(x), int(x), list(x) or sorted(x)"
        raise TypeError(
            f"{owner} is {value!r} of type {type(value).__name__}, which a checkpoint cannot hold. Keep JSON values "
            f"(dict, list, str, int, float, bool, None) and numpy arrays: {remedy}."
        )


def _is_numeric(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "biuf"


def round_trip(owner: str, state: dict[str, Any]) -> dict[str, Any]:
    """A state as a checkpoint brings it back; see `check_json`."""
    check_json(owner, state)
    arrays: dict[str, np.ndarray] = {}
    written = json.dumps(_without_arrays(state, "", arrays))
    return _with_arrays(json.loads(written), {name: array.copy() for name, array in arrays.items()})


def leave_checkpoint(folder: Path, step: int, max_steps: int) -> None:
    """Say where the checkpoint of an interrupted run is, once it is whole."""
    logger.warning(
        "Interrupted after step %d of %d. The checkpoint is %s; resume_from_checkpoint=True continues from it.",
        step,
        max_steps,
        folder,
    )


def _without_arrays(value: Any, name: str, arrays: dict[str, np.ndarray]) -> Any:
    """The same nested dicts, with each array moved to `arrays` under its path."""
    if isinstance(value, np.ndarray):
        arrays[name] = np.ascontiguousarray(value)
        return {_ARRAY: name}
    if isinstance(value, dict):
        return {key: _without_arrays(one, f"{name}.{key}".lstrip("."), arrays) for key, one in value.items()}
    return value


def _with_arrays(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(value, dict):
        if _ARRAY in value:
            return arrays[value[_ARRAY]]
        return {key: _with_arrays(one, arrays) for key, one in value.items()}
    return value
