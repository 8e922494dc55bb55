# SPDX-License-Identifier: Apache-2.0
"""A fixed piece of work, timed with every step of a run, by which seconds of different hours can be compared.

The speed of a shared machine changes by a third from hour to hour, and between neighbours on one chip. A run that was
made in a slow hour is not a slow method.
"""

import time

import torch

NOMINAL = 0.01
"""Processor seconds of the work on the machine whose seconds the tables speak of."""
CURVE = "yardstick"
"""What a run's curves call it: processor seconds that the work took beside each step."""


class Yardstick:
    """Many small operations on tensors, as in generating with a tiny policy and in training it.

    It draws no random numbers, so that a run is the same with and without it.
    """

    def __init__(self) -> None:
        self._inputs = torch.linspace(-1, 1, 64 * 128).view(64, 128)
        self._weights = torch.linspace(-0.1, 0.1, 128 * 128).view(128, 128)
        self()  # the first time is slower

    @torch.no_grad()
    def __call__(self) -> float:
        """Do it once. Returns processor seconds."""
        began = time.process_time()
        hidden = self._inputs
        for _ in range(200):
            hidden = torch.layer_norm(hidden + torch.softmax(hidden @ self._weights, -1), (128,))
        return time.process_time() - began
