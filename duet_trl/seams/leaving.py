# SPDX-License-Identifier: Apache-2.0
"""What the end of a run of several CPU processes may look like, said before it does.

When the interpreter ends, torch waits for gloo's threads with the lock that such a thread may need to free the tensors
of its last collective (pytorch/pytorch#179291). Then the process stays, or ends with SIGABRT. Both come after the last
line of the script, and nothing that belongs to the run is touched by them.
"""

import logging
from functools import cache

import torch
from accelerate import Accelerator

logger = logging.getLogger(__name__)


def warn_of_gloo(accelerator: Accelerator) -> None:
    """Say once, on process 0, that processes over gloo may not end by themselves."""
    if accelerator.num_processes > 1 and accelerator.is_main_process and torch.distributed.get_backend() == "gloo":
        _warn()


@cache
def _warn() -> None:
    logger.warning(
        "Training has ended. Behind the last line of the script a process over gloo may hang, or end with SIGABRT, a "
        "fault of torch that loses nothing of what the script has written. If it hangs, stop it with Ctrl-C."
    )
