# SPDX-License-Identifier: Apache-2.0
"""States of methods and their parts, compared and taken through a checkpoint folder."""

from typing import Any

import numpy as np


def plain(state: Any) -> Any:
    """The same values with lists in the place of arrays, so that == compares them."""
    if isinstance(state, dict):
        return {name: plain(value) for name, value in state.items()}
    return state.tolist() if isinstance(state, np.ndarray) else state
