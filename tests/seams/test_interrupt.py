# SPDX-License-Identifier: Apache-2.0
"""When processes agree on an interrupt: a collective that waits for the device, so not after each optimizer step."""

from types import SimpleNamespace

import pytest
import torch
from transformers import TrainerControl

from duet_trl.seams.resuming import StopAfterStep


class Processes:
    """Stands in for an Accelerator whose other processes have no signal."""

    device = torch.device("cpu")

    def __init__(self, num_processes: int) -> None:
        self.num_processes = num_processes
        self.gathered = 0

    def gather(self, own: torch.Tensor) -> torch.Tensor:
        self.gathered += 1
        return torch.cat([own, *[torch.zeros_like(own)] * (self.num_processes - 1)])


@pytest.mark.parametrize(
    ("chunks", "passes", "accumulated", "agreed_at"),
    [
        (4, 1, 4, [1, 2, 3, 4, 5, 6]),  # a batch is an optimizer step
        (4, 1, 8, [1, 2, 3, 4, 5, 6]),
        (4, 2, 2, [4]),  # 8 micro-batches in steps of 2
        (4, 1, 3, [2, 3, 4, 6]),  # out of phase: micro-batches 4, 8, 12 and 16 fall into these steps
    ],
)
def test_several_processes_agree_in_the_step_that_ends_a_batch(chunks, passes, accumulated, agreed_at):
    processes = Processes(2)
    callback = StopAfterStep(processes)
    args = SimpleNamespace(steps_per_generation=chunks, num_iterations=passes, gradient_accumulation_steps=accumulated)
    found = []
    for step in range(1, 7):
        before = processes.gathered
        callback.on_step_end(args, SimpleNamespace(global_step=step), TrainerControl())
        found += [step] * (processes.gathered - before)
    assert found == agreed_at
