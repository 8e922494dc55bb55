# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint saves of an object that learns: some of its attributes."""

from collections.abc import Iterable
from copy import copy
from typing import Any

import numpy as np


class Stateful:
    """An object whose state is the attributes that it names: JSON values, numpy arrays, and stateful objects.

    Attributes:
        remembered (tuple[str, ...]): Their names; without a leading underscore they are the keys of a state.
    """

    remembered: tuple[str, ...] = ()

    def state_dict(self) -> dict[str, Any]:
        """What a restored run needs to make the same decisions."""
        return state_of(self, self.remembered)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict()`. Raises ValueError if it is not one."""
        restore(self, self.remembered, state, type(self).__name__)


def state_of(one: Any, names: Iterable[str]) -> dict[str, Any]:
    """Copies of some attributes of an object by name; a part that is stateful gives its own state."""
    values = {name.lstrip("_"): vars(one)[name] for name in names}
    return {key: x.state_dict() if isinstance(x, Stateful) else copy(x) for key, x in values.items()}


def restore(one: Any, names: Iterable[str], state: dict[str, Any], owner: str) -> None:
    """Set what `state_of` gave, arrays in the precision that they have; ValueError if it belongs to something else."""
    check_state(owner, state, [name.lstrip("_") for name in names])
    for name in names:
        before, value = vars(one)[name], state[name.lstrip("_")]
        if isinstance(before, Stateful):
            before.load_state_dict(value)
        else:
            vars(one)[name] = np.array(value, before.dtype) if isinstance(before, np.ndarray) else copy(value)


def check_state(owner: str, state: dict, expected: Iterable[str]) -> None:
    """Raise ValueError unless a state was written by the part that is about to load it."""
    if state.keys() != set(expected):
        raise ValueError(
            f"The {owner} state has keys {sorted(state)}, expected {sorted(expected)}: it is missing, foreign or "
            "from another version. Resume from a checkpoint that this version wrote."
        )
