# SPDX-License-Identifier: Apache-2.0
"""Whether the fields of a configuration hold what they are declared to hold, before anything is computed with them."""

import numbers
from types import UnionType
from typing import Any, get_args, get_origin

_NAMES = {bool: "True or False", int: "an integer", float: "a number", str: "a string", list: "a list of strings"}


def check_types(config: Any, owner: type) -> None:
    """Compare the fields that a dataclass adds to its parents with their annotations.

    Args:
        config (Any): Instance of `owner`.
        owner (type): Its fields are of type bool, int, float, str or list[str], each perhaps or None.

    Raises:
        ValueError: If a field holds something else; names the field, the value and what to write.
    """
    # Not the types of its `fields`, which transformers' parser rewrites.
    for name, annotation in owner.__annotations__.items():
        kinds = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
        value = config.__dict__[name]
        if not any(_fits(value, get_origin(kind) or kind) for kind in kinds):
            wanted = _NAMES[get_origin(kinds[0]) or kinds[0]]
            raise ValueError(f"{name} must be {wanted}, got {value!r}.{_remedy(value, wanted)}")


def _fits(value: Any, kind: type) -> bool:
    if kind is list:
        return isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
    if kind is float:
        return isinstance(value, numbers.Real) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind)


def _remedy(value: Any, wanted: str) -> str:
    if not isinstance(value, str):
        return ""
    if wanted == _NAMES[list]:
        return f" Write [{value!r}]."
    return " Remove the quotes; YAML reads 1e-3 as text, write 1.0e-3." if wanted != _NAMES[str] else ""
