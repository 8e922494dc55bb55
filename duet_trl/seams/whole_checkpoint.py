# SPDX-License-Identifier: Apache-2.0
"""Which checkpoint a run resumes from: the newest one that was written to its end.

transformers writes the files of a checkpoint one by one into the folder that it will resume from, and takes the folder
with the highest number without a look inside (huggingface/transformers#35782). What a process leaves that is killed
while it writes, or that runs out of disk, has that highest number. `trainer_state.json` is the last file of all.
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

from safetensors import SafetensorError, safe_open
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

logger = logging.getLogger(__name__)

_TORCH_FILES = ("*.pt", "*.pth", "*model*.bin", "optimizer.bin", "training_args.bin")


def resume_point(asked: str | bool | None, output_dir: str) -> str | bool | None:
    """The checkpoint that `resume_from_checkpoint` means, proven to be whole.

    Args:
        asked (str | bool | None): A folder, or True for the newest whole checkpoint of `output_dir`.
        output_dir (str): Folder of the run.

    Returns:
        str | bool | None: A folder; what was asked for where that is nothing, or where there is no checkpoint.

    Raises:
        ValueError: If the folder that was named is torn, or all checkpoints of the run are.
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
        return asked  # transformers says so
    if not whole:
        raise ValueError(f"{found[-1]} was not written to its end: {torn[found[-1]]}. {remedy}.")
    for path in found[found.index(whole[-1]) + 1 :]:
        logger.warning("%s was not written to its end: %s. Resuming from %s.", path, torn[path], whole[-1])
    return str(whole[-1])


def why_torn(folder: Path) -> str | None:
    """What shows that a checkpoint was not written to its end, or has lost a part since; None: it is whole."""
    if not (folder / TRAINER_STATE_NAME).exists():
        return f"it has no {TRAINER_STATE_NAME}, which is written last"
    for path in sorted(folder.iterdir()):
        if _is_cut(path):
            return f"{path.name} is cut off"
    return None


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """While active, a folder that is written again is no checkpoint; one that cannot be written is named."""
    (folder / TRAINER_STATE_NAME).unlink(missing_ok=True)
    written = False
    try:
        yield
        written = True
    finally:
        if not written:
            # Of Python, of torch and of safetensors: what a full disk raises. Another error says itself what is wrong.
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
    # The table of contents of a zip file, as torch writes them, stands at its end.
    return any(map(path.match, _TORCH_FILES)) and path.is_file() and not zipfile.is_zipfile(path)
