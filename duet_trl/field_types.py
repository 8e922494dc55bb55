# SPDX-License-Identifier: Apache-2.0
"""Fields of a configuration: how they are declared, what types they hold, and when they act.

The fields of `DUETGRPOConfig` and the `method_kwargs` of each method are declared and checked by the same functions,
and docs/configuration.md is written from the same declarations (docs/site/reference.py).
"""

import difflib
import json
import numbers
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from types import SimpleNamespace, UnionType
from typing import Any, get_args, get_origin

_NAMES = {
    bool: "True or False",
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "a list of strings",
    dict: "a mapping of names to values",
}


Rule = tuple[Callable[[Any], bool], str]
"""Rule for a value: the test (a NaN fails each), and the words after "must be", {} for the value."""


@dataclass(frozen=True)
class Acts:
    """When a field can have an effect."""

    when: Callable[[SimpleNamespace], bool]
    condition: str


@dataclass(frozen=True)
class Follows:
    """A default that follows from other fields: a function of the configuration, and its words in the help."""

    of: Callable[[Any], Any]
    words: str

    def __str__(self) -> str:
        return self.words


class Declaration(str):
    """The help of a field, which carries the rest of its declaration.

    transformers' parser passes everything in the `metadata` of a field to argparse, so only a help can be there.
    """

    rule: Rule | None = None  # what its value must be
    acts: Acts | None = None  # when it can have an effect
    # methods that read it, each with its default: a value, `Follows`, or None; empty: every method reads it
    methods: Mapping[str, Any] = {}
    unread: Any = None  # its value under the other methods
    follows: Follows | None = None  # default of an option, where that is not a value


def config_field(
    help_text: str,
    default: Any = None,
    *,
    rule: Rule | None = None,
    acts: Acts | None = None,
    methods: Mapping[str, Any] | None = None,
    unread: Any = None,
    follows: Follows | None = None,
) -> Any:
    """A field of the configuration or an option of a method: its help, its default, and the rest of a `Declaration`.

    `--help_all`, docs/configuration.md, the checks and their errors are all made from it.
    """
    words: dict[str, list[str]] = {}
    for method, value in (methods or {}).items():
        if value is not None:
            words.setdefault(str(value), []).append(method)
    if words:
        defaults = "; ".join(f"{value} ({', '.join(names)})" for value, names in words.items())
        help_text += f" Default: {defaults}."
    if follows is not None:
        help_text += f" None: {follows.words}."
    said = Declaration(help_text)
    said.rule, said.acts, said.methods, said.unread, said.follows = rule, acts, methods or {}, unread, follows
    return field(default=default, metadata={"help": said})


def declarations(owner: Any) -> dict[str, Declaration]:
    """The declaration of each field of a configuration or of `Options`, without fields of TRL."""
    found = {one.name: one.metadata.get("help") for one in fields(owner)}
    return {name: said for name, said in found.items() if isinstance(said, Declaration)}


def as_given(values: Mapping[str, Any], filled_in: Any) -> dict[str, Any]:
    """Fields of a copy that still hold the values its original resolved, with what the original was given.

    dataclasses.replace, and a configuration made from `to_dict()`, pass every field as if it had been set.
    """
    before = filled_in if isinstance(filled_in, dict) else {}
    return {name: given for name, (given, found) in before.items() if values[name] == found}


def one_of(*choices: str) -> Rule:
    """One of several words."""
    return lambda value: value in choices, f"one of {list(choices)}, got {{!r}}"


def at_least(least: int) -> Rule:
    """An integer of at least `least`."""
    return lambda value: _fits(value, int) and value >= least, f"an integer of at least {least}, got {{!r}}"


def check_rule(name: str, value: Any, rule: Rule | None) -> None:
    """Raise ValueError if a value breaks its rule; None, an unset value, passes."""
    if rule is not None and value is not None and not rule[0](value):
        raise ValueError(f"{name} must be {rule[1].format(value)}.")


@dataclass(frozen=True)
class Options:
    """Base class that `method_kwargs` are read into; ValueError if a value has the wrong type or breaks its rule."""

    def __post_init__(self) -> None:
        check_types(self.__dict__, {one.name: one.type for one in fields(self)})
        for name, said in declarations(self).items():
            check_rule(name, self.__dict__[name], said.rule)


def read_json(text: dict[str, Any] | str | None) -> Any:
    """The `method_kwargs` of a command line, JSON, as a mapping; anything else unchanged."""
    try:
        return json.loads(text) if isinstance(text, str) else text
    except json.JSONDecodeError as error:
        raise ValueError(f"method_kwargs is not JSON: {error}, got {text!r}. Write '{{\"name\": value}}'.") from error


def read_options(kind: type[Options], given: Mapping[str, Any] | None, method: str) -> Options:
    """The options of a method from its `method_kwargs`."""
    known = [one.name for one in fields(kind)]
    for name, value in (given or {}).items():
        if name not in known:
            raise ValueError(_unknown(name, value, known, method))
    return kind(**{name: value for name, value in (given or {}).items() if value is not None})


def settled(options: Options, config: Any) -> Options:
    """Options whose unset values are filled in from the configuration."""
    follows = {name: said.follows for name, said in declarations(options).items() if vars(options)[name] is None}
    return replace(options, **{name: one.of(config) for name, one in follows.items() if one is not None})


def _unknown(name: str, value: Any, known: list[str], method: str) -> str:
    if not known:
        return f"method={method!r} takes no method_kwargs, got {name}={value!r}. Remove it."
    near = difflib.get_close_matches(str(name), known, 1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"method_kwargs has no {name!r} (value {value!r}) under method={method!r}.{hint} It takes {sorted(known)}."


def refuse_misplaced(given: Iterable[str], owner: Any, options: Mapping[str, type[Options]]) -> None:
    """Raise ValueError for a name among the fields that is an option of some methods."""
    for name in set(given) - {one.name for one in fields(owner)}:
        if takers := [method for method, kind in options.items() if name in declarations(kind)]:
            raise ValueError(f"{name} is an option of {takers}. Write method_kwargs={{{name!r}: ...}}.")


def check_types(values: Mapping[str, Any], kinds: Mapping[str, Any]) -> None:
    """Raise ValueError if a value does not have the type of its annotation."""
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
