# SPDX-License-Identifier: Apache-2.0
"""The tables of fields and options in docs/notation.md, written from the declarations that `--help` shows too.

python -m tests.notation        rewrites them
"""

from dataclasses import Field, fields
from pathlib import Path
from typing import Any

from duet_trl import DUETGRPOConfig
from duet_trl.config import FIELD_ACTS
from duet_trl.field_types import default_of
from duet_trl.methods import METHOD_FIELDS, METHODS
from duet_trl.report.tables import markdown_table

PAGE = Path(__file__).resolve().parent.parent / "docs" / "notation.md"
BEGIN, END = "<!-- written by python -m tests.notation: begin -->", "<!-- end -->"


SOME_METHODS = """\
`duet`, `paper` and `duet_reuse` read all of them, the others few or none; a method refuses those that it does not
read. The first three switch the parts of DUET. Then come the budget, the limits on counts, and the gate. Where a
default follows from other fields, the meaning says so."""
DUET_OPTIONS = """\
The two methods read the same options and differ in the defaults. In order: what the counts optimise, the surrogate
of Theorem 1 (without effect under `mixed`), the gate, and the update. None has to be set: the defaults of `duet`
are what we recommend, the defaults of `paper` are the paper's."""


def tables() -> str:
    """All tables, with their headings; the longest with what they say."""
    own = [one for one in fields(DUETGRPOConfig) if one.name in DUETGRPOConfig.__annotations__]
    parts = [
        "### Fields of every method",
        _every_method([one for one in own if one.name not in METHOD_FIELDS]),
        "### Fields that some methods read",
        SOME_METHODS,
        _some_methods([one for one in own if one.name in METHOD_FIELDS]),
    ]
    for kind in dict.fromkeys(entry.options for entry in METHODS.values()):
        takers = [name for name, entry in METHODS.items() if entry.options is kind]
        parents = [name for name, entry in METHODS.items() if entry.options in kind.__bases__ and name != "paper"]
        if parents:
            own, theirs = (" and ".join(f"`{name}`" for name in names) for names in (takers, parents))
            parts.append(f"{own} takes the options of {theirs}, with the same defaults.")
        elif fields(kind):
            heading = f"### `method_kwargs` of {' and '.join(f'`{name}`' for name in takers)}"
            parts += [heading, *([DUET_OPTIONS] if "duet" in takers else []), _options(kind, takers)]
    return "\n\n".join(parts)


def written(page: str) -> str:
    """The page with its tables as they should be."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{tables()}\n\n{END}{rest.partition(END)[2]}"


def _every_method(declared: list[Field]) -> str:
    rows = [
        [f"`{one.name}`", _code(one.default), _condition(one.name, FIELD_ACTS), one.metadata["help"]]
        for one in declared
    ]
    return markdown_table(["field", "default", "only with", "meaning"], rows)


def _some_methods(declared: list[Field]) -> str:
    rows = []
    for one in declared:
        readers = {name: entry for name, entry in METHODS.items() if one.name in entry.reads}
        rows.append(
            [
                f"`{one.name}`",
                ", ".join(readers),
                _condition(one.name, FIELD_ACTS | next(iter(readers.values())).acts),
                one.metadata["help"],
            ]
        )
    return markdown_table(["field", "methods", "only with", "meaning"], rows)


def _options(kind: type, takers: list[str]) -> str:
    acts = METHODS[takers[0]].acts
    rows = [
        [
            f"`{one.name}`",
            one.metadata.get("symbol", ""),
            one.metadata.get("unit", ""),
            *(_code(default_of(one, name)) for name in takers),
            _condition(one.name, acts),
            one.metadata["help"],
        ]
        for one in fields(kind)
    ]
    return markdown_table(["option", "symbol", "unit", *takers, "only with", "meaning"], rows)


def _condition(name: str, acts: dict[str, Any]) -> str:
    return f"`{acts[name].condition}`" if name in acts else ""


def _code(value: Any) -> str:
    """A default as it stands in Python; None: it follows, as the meaning says."""
    return "" if value is None else f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
