# SPDX-License-Identifier: Apache-2.0
"""Gradients clipped to a quantile of their own norms (AutoClip: Seetharaman et al., arXiv 2007.14469).

Late in training most rollouts are right and carry next to no advantage. What is left of a batch is a few failures,
sometimes one, and a single unlikely token in it can make the gradient many times as long as usual. Adam divides by a
long average and takes the whole of it. A fixed limit would have to be found anew for every model and divisor.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

WARMUP = 8
"""Norms before a quantile of them means anything; until then nothing is clipped here."""


class NormHistory:
    """Norms of the gradients of a run so far, and the limit that follows from them.

    Args:
        quantile (float): In (0, 1): the limit is this quantile of the norms before.
    """

    def __init__(self, quantile: float) -> None:
        self.quantile = quantile
        self._norms: list[float] = []

    @property
    def limit(self) -> float:
        """Norm that the next gradient is clipped to; infinity until `WARMUP` norms are known."""
        return math.inf if len(self._norms) < WARMUP else float(np.quantile(self._norms, self.quantile))

    def add(self, norm: float) -> None:
        """Note a norm before clipping. An update without a gradient says nothing, nor does one that is not finite."""
        if 0 < norm < math.inf:
            self._norms.append(norm)

    def state_dict(self) -> dict[str, Any]:
        """All norms."""
        return {"grad_norms": np.array(self._norms)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict()`."""
        self._norms = state["grad_norms"].tolist()
