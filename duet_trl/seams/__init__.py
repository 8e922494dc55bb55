# SPDX-License-Identifier: Apache-2.0
"""What stands between the loop and TRL: collaborators that `DUETGRPOTrainer` holds. It alone overrides TRL."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def standing_in(owner: Any, **stand_ins: Any) -> Iterator[None]:
    """While active, attributes of an object are others, functions of TRL among them."""
    before = {name: owner.__dict__[name] for name in stand_ins if name in owner.__dict__}
    for name, one in stand_ins.items():
        setattr(owner, name, one)
    try:
        yield
    finally:
        for name in stand_ins:
            delattr(owner, name)
        for name, one in before.items():
            setattr(owner, name, one)
