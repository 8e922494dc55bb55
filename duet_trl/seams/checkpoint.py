# SPDX-License-Identifier: Apache-2.0
"""The method's state in every checkpoint, and which checkpoint a run resumes from: the newest written to its end.

transformers writes the files of a checkpoint one by one into the folder that it will resume from, and takes the folder
with the highest number without a look inside (huggingface/transformers#35782). What a process leaves that is killed
while it writes, or that runs out of disk, has that highest number. `trainer_state.json` is written last.
"""

import json
import logging
import re
import shutil
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

logger = logging.getLogger(__name__)

STATE_FILE = "duet_state.json"
ARRAYS_FILE = "duet_state.safetensors"
VERSION = 8
"""Incremented with every change of what a state holds."""

_ARRAY = "__array__"
_JSON = (str, int, float, type(None))


def write_state(folder: Path, state: dict[str, Any], identity: dict[str, Any]) -> None:
    """Write the state of a run into a checkpoint folder: values as JSON, arrays as safetensors; see `check_json`."""
    check_json("the state", state)
    arrays: dict[str, np.ndarray] = {}
    written = {"version": VERSION, "identity": identity, **_without_arrays(state, "", arrays)}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(arrays, folder / ARRAYS_FILE)
    # Last: a folder that has it is whole.
    (folder / STATE_FILE).write_text(json.dumps(written))


def read_state(folder: Path, identity: dict[str, Any]) -> dict[str, Any]:
    """The state that `write_state` wrote; ValueError if there is none, or if version or configuration differ."""
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
    """TypeError for what JSON does not restore unchanged, and for arrays that safetensors does not hold.

    It names the place in what `owner` holds, the value and the remedy; `arrays` may be in nested dicts only.
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


_TORCH_FILES = ("*.pt", "*.pth", "*model*.bin", "optimizer.bin", "training_args.bin")


def resume_point(asked: str | bool | None, output_dir: str) -> str | bool | None:
    """The folder that `resume_from_checkpoint` means, True the newest of `output_dir` that is whole.

    `asked` itself where it is empty, or where there is no checkpoint. ValueError if the folder that was named
    is torn, or all checkpoints of the run are.
    """
    if not asked or (asked is not True and not Path(asked).is_dir()):
        return asked
    folder = Path(output_dir) if asked is True else Path(asked).parent
    found = _numbered(folder)
    torn = {path: reason for path in found if (reason := why_torn(path))}
    whole = [path for path in found if path not in torn]
    remedy = f"Resume from {whole[-1]}" if whole else f"No checkpoint in {folder} is whole: start again"
    if asked is not True:
        reason = why_torn(Path(asked))
        if reason:
            raise ValueError(f"{asked} was not written to its end: {reason}. {remedy}.")
        return asked
    if not found:
        return asked  # transformers reports it
    if not whole:
        raise ValueError(f"{found[-1]} was not written to its end: {torn[found[-1]]}. {remedy}.")
    for path in found[found.index(whole[-1]) + 1 :]:
        logger.warning("%s was not written to its end: %s. Resuming from %s.", path, torn[path], whole[-1])
    return str(whole[-1])


def why_torn(folder: Path) -> str | None:
    """Evidence that a checkpoint was not written to its end, or has lost a part since; None: it is whole."""
    if not (folder / TRAINER_STATE_NAME).exists():
        return f"it has no {TRAINER_STATE_NAME}, which is written last"
    for path in sorted(folder.iterdir()):
        if _is_cut(path):
            return f"{path.name} is cut off"
    return None


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """While active, a folder that is written again is not a checkpoint; one that cannot be written is named."""
    (folder / TRAINER_STATE_NAME).unlink(missing_ok=True)
    written = False
    try:
        yield
        written = True
    finally:
        if not written:
            # Errors of Python, torch and safetensors on a full disk. Any other error states what is wrong.
            disk = isinstance(sys.exception(), OSError | RuntimeError | SafetensorError)
            free = f"; {shutil.disk_usage(folder.parent).free / 1e9:.1f} GB are free on its disk" if disk else ""
            logger.error(
                "%s was not written to its end%s. resume_from_checkpoint=True takes the newest checkpoint that is "
                "whole.",
                folder,
                f"{free}. Make room if that is little" if disk else "",
            )


def _numbered(output_dir: Path) -> list[Path]:
    """Checkpoint folders, oldest first."""
    pattern = re.compile(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)")
    found = {path: pattern.fullmatch(path.name) for path in output_dir.glob(f"{PREFIX_CHECKPOINT_DIR}-*")}
    return sorted((path for path, match in found.items() if match and path.is_dir()), key=lambda p: int(found[p][1]))


def _is_cut(path: Path) -> bool:
    try:
        if path.suffix == ".json":
            json.loads(path.read_text())
        elif path.suffix == ".safetensors":
            safe_open(path, "np")  # compares the length with the header's
    except (ValueError, SafetensorError):  # a character that is cut in two is a ValueError
        return True
    # The table of contents of a zip file, as torch writes them, is at its end.
    return any(map(path.match, _TORCH_FILES)) and path.is_file() and not zipfile.is_zipfile(path)
