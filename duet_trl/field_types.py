# SPDX-License-Identifier: Apache-2.0
"""Fields of a configuration: how they are declared, what types they hold, and when they act.

The fields of `DUETGRPOConfig` and the `method_kwargs` of each method are declared and checked by the same functions,
and docs/configuration.md is written from the same declarations (docs/site/reference.py).
"""

import difflib
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from types import SimpleNamespace, UnionType
from typing import Annotated, Any, NamedTuple, get_args, get_origin

_NAMES = {
    bool: "True or False",
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "a list of strings",
    dict: "a mapping of names to values",
}


@dataclass(frozen=True)
class Acts:
    """When a field can have an effect."""

    when: Callable[[SimpleNamespace], bool]
    condition: str


@dataclass(frozen=True)
class Unread:
    """What a field holds under a method that does not read it."""

    value: Any


def knob(help_text: str, default: Any = None) -> Any:
    """A field of the configuration; its help stands in `--help` and in docs/configuration.md."""
    return field(default=default, metadata={"help": help_text})


def as_given(values: Mapping[str, Any], filled_in: Any) -> dict[str, Any]:
    """Fields of a copy that still hold what its original made of them, with what its original was given.

    dataclasses.replace, and a configuration made from `to_dict()`, pass every field as if it had been set.
    """
    before = filled_in if isinstance(filled_in, dict) else {}
    return {name: given for name, (given, found) in before.items() if values[name] == found}


Rule = tuple[Callable[[Any], bool], str]
"""What a value must be: the test (a NaN fails each), and the words behind "must be", {} for the value."""


def one_of(*choices: str) -> Rule:
    """One of some words."""
    return lambda value: value in choices, f"one of {list(choices)}, got {{!r}}"


def at_least(least: int) -> Rule:
    """A whole number from `least` on."""
    return lambda value: _fits(value, int) and value >= least, f"an integer of at least {least}, got {{!r}}"


def check_rules(values: Mapping[str, Any], rules: Mapping[str, Rule | None]) -> None:
    """Raise ValueError if a value breaks its rule; None, where nothing is chosen, passes."""
    for name, rule in rules.items():
        if rule is not None and values[name] is not None and not rule[0](values[name]):
            raise ValueError(f"{name} must be {rule[1].format(values[name])}.")


def option(help_text: str, default: Any = None, *, rule: Rule | None = None, acts: Acts | None = None) -> Any:
    """A field of an `Options`: help, default (None: it follows), rule, when it acts."""
    return field(default=default, metadata={"help": help_text, "rule": rule, "acts": acts})


@dataclass(frozen=True)
class Options:
    """Base of what `method_kwargs` are read into; ValueError if a value has another type or breaks its rule."""

    def __post_init__(self) -> None:
        check_types(self.__dict__, {one.name: one.type for one in fields(self)})
        check_rules(self.__dict__, {one.name: one.metadata["rule"] for one in fields(self)})


def read_options(kind: type[Options], given: Mapping[str, Any] | None, method: str) -> Options:
    """The options of a method from its `method_kwargs`."""
    known = [one.name for one in fields(kind)]
    for name, value in (given or {}).items():
        if name not in known:
            raise ValueError(_unknown(name, value, known, method))
    return kind(**{name: value for name, value in (given or {}).items() if value is not None})


def _unknown(name: str, value: Any, known: list[str], method: str) -> str:
    if not known:
        return f"method={method!r} takes no method_kwargs, got {name}={value!r}. Remove it."
    near = difflib.get_close_matches(str(name), known, 1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"method_kwargs has no {name!r} (value {value!r}) under method={method!r}.{hint} It takes {sorted(known)}."


class Declared(NamedTuple):
    """What stands in the annotation of a field: its type, what its value must be, when it acts, and `Unread`."""

    kind: Any
    rule: Rule | None = None
    acts: Acts | None = None
    unread: Unread = Unread(None)


_PLACES = {Acts: "acts", Unread: "unread"}


def declared(owner: type) -> dict[str, Declared]:
    """The fields that a dataclass adds to its parents, `Annotated` with what `Declared` has."""
    # Not the types of its `fields`, which transformers' parser rewrites.
    found = {}
    for name, annotation in owner.__annotations__.items():
        kind, *rest = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
        said = {_PLACES.get(type(one), "rule"): one for one in rest}
        found[name] = Declared(kind, **said)
    return found


def check_types(values: Mapping[str, Any], kinds: Mapping[str, Any]) -> None:
    """Raise ValueError if a value has another type than its annotation says."""
    for name, kind in kinds.items():
        _check_type(name, values[name], kind)


def _check_type(name: str, value: Any, annotation: Any) -> None:
    kinds = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
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
    if wanted == _NAMES[dict]:
        return " Write JSON on the command line: '{\"name\": value}'."
    return " Remove the quotes; YAML reads 1e-3 as text, write 1.0e-3." if wanted != _NAMES[str] else ""
