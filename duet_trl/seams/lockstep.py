# SPDX-License-Identifier: Apache-2.0
"""One random state for the training processes that share an engine.

With `vllm_tensor_parallel_size` > 1 each process of a group is one rank of the engine and samples every rollout of the
group for itself, from the random state of its own process. vLLM makes these equal when it starts and never looks
again; TRL's processes part as soon as one draws more than another, which a dropout mask over longer rows does. Then
the ranks attend to different tokens, and what is sampled is no policy at all, without an error.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import numpy as np
import torch


def in_lockstep(
    generate: Callable[..., Any], group: torch.distributed.ProcessGroup, device: torch.device
) -> Callable[..., Any]:
    """`generate`, called by all processes of a group at once, with equal random numbers on each of them."""

    @wraps(generate)
    def together(*args: Any, **kwargs: Any) -> Any:
        seeds = [0] * group.size()
        torch.distributed.all_gather_object(seeds, int(torch.randint(2**31, ())), group=group)
        with _seeded(seeds[0], device):
            return generate(*args, **kwargs)

    return together


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed what vLLM draws from: torch in the V1 runner, numpy for the seeds that the V2 runner gives requests."""
    with torch.random.fork_rng(devices=[] if device.type == "cpu" else [device], device_type=device.type):
        state = np.random.get_state()
        torch.manual_seed(seed)
        np.random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(state)
