# SPDX-License-Identifier: Apache-2.0
"""Work that one process does for all of them: verdicts, files and decisions that must be the same everywhere."""

from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist

T = TypeVar("T")


def is_first() -> bool:
    """Whether this process writes files; a process that is alone does."""
    return not _several() or dist.get_rank() == 0


def on_first(work: Callable[[], T]) -> T:
    """Do some work on process 0 and give its result to every process; all of them must call this.

    Args:
        work (Callable[[], T]): What to do; its result must be picklable.

    Returns:
        T: The result on every process.

    Raises:
        RuntimeError: On the other processes, if the work failed on process 0, which raises the error itself.
    """
    if not _several():
        return work()
    box: list[tuple[T] | None] = [None]
    if dist.get_rank() == 0:
        try:
            box[0] = (work(),)
        finally:  # also when it failed: the others wait
            dist.broadcast_object_list(box, src=0)
    else:
        dist.broadcast_object_list(box, src=0)
        if box[0] is None:
            raise RuntimeError("process 0 failed while the others waited for its result; its own message says why.")
    return box[0][0]


def _several() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
