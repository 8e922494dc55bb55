# SPDX-License-Identifier: Apache-2.0
"""Adam's epsilon as large as a gradient's elements usually are.

Adam divides each element of a gradient by the root of the mean of its squares, so that elements which are mostly noise
move as far as the others. An epsilon of that size damps them; the size depends on model, length and divisor, so it is
measured: the root mean square, over all elements, of Adam's divisor.
"""

from collections.abc import Mapping
from typing import Any

import torch


class RelativeEpsilon:
    """Sets `eps` of an Adam-type optimizer before each of its steps; leaves other optimizers alone."""

    def __init__(self) -> None:
        self._mean_square, self._weight = 0.0, 0.0

    def set(self, optimizer: torch.optim.Optimizer, norm: float) -> None:
        """Take the norm of the gradient that the optimizer is about to use, and set its epsilon."""
        groups = [group for group in optimizer.param_groups if "betas" in group and "eps" in group]
        elements = sum(one.numel() for group in groups for one in group["params"])
        if not groups or not 0.0 < norm < float("inf"):
            return
        memory = groups[0]["betas"][1]
        self._mean_square = memory * self._mean_square + (1.0 - memory) * norm**2 / elements
        self._weight = memory * self._weight + 1.0 - memory
        for group in groups:
            group["eps"] = max((self._mean_square / self._weight) ** 0.5, 1e-30)

    def state_dict(self) -> dict[str, Any]:
        """The running mean of squares."""
        return {"epsilon_mean_square": self._mean_square, "epsilon_weight": self._weight}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict()`."""
        self._mean_square, self._weight = state["epsilon_mean_square"], state["epsilon_weight"]
