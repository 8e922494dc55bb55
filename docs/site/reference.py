# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/configuration.md, written from the declarations that `--help_all` shows too.

python docs/site/reference.py       rewrites them; the site writes them anew each time it is built
"""

import ast
import re
from dataclasses import Field, fields
from pathlib import Path
from types import UnionType
from typing import Any, get_args

from duet_trl import DUETGRPOConfig
from duet_trl.config import DECLARED, METHOD_FIELDS, defaults_of
from duet_trl.field_types import Acts, Rule, declarations
from duet_trl.methods import METHODS
from duet_trl.report.tables import markdown_table

PAGE = Path(__file__).resolve().parent.parent / "configuration.md"
BEGIN, END = "<!-- written by python docs/site/reference.py: begin -->", "<!-- end -->"

_TYPES = {list[str]: "list of str", dict[str, Any]: "dict"}

COMMON = {
    "method": '`"grpo"` is `GRPOTrainer`, for a baseline. [Others](methods.md).',
    "budget_fraction": "Lower saves more tokens; 1 keeps all rollouts and leaves the saving to the gate.",
    "num_generations": "Raise it if few groups have rewards that differ (`frac_reward_zero_std` near 1).",
    "max_completion_length": "Raise it if rollouts that think or answer late are cut (`completions/clipped_ratio`).",
    "marker": "Always, unless answers are boxed, `\\boxed{...}` ([how](own_task.md#2-marker)).",
    "abort": "`False` if late answers are lost (`duet/late_answers_lost`).",
    "beta": "Keep 0: above it no rollout skips the forward pass.",
    "gradient_accumulation_steps": "Raise it for more prompts a step. Out of memory: double it and halve "
    "`per_device_train_batch_size`.",
    "use_vllm": "`True` on a GPU ([engines](servers.md)).",
}
"""What most runs set, and when to change it."""

READING = """\
* Where no default is given, a field is `None` until it is set; its meaning names what `None` leads to.
* A field that you set wins over the method's default.
* A field or option that cannot have an effect under the method, or outside of its column "only with", is refused
  when you set it, even to its default.
* Options that one method alone reads go into `method_kwargs`, a mapping in Python and YAML, JSON on the command line:
  `--method_kwargs '{"poll_interval": 4}'`."""

SOME_METHODS = """\
The first three switch parts of DUET, the first of them under `paper` only; then come the budget, the limits on counts,
and the gate. A method refuses those that it does not read."""


def tables() -> str:
    """All tables, with their headings, the common fields first; the longest with what they say."""
    own = [one for one in fields(DUETGRPOConfig) if one.name in DECLARED and one.name != "filled_in"]  # internal
    parts = [
        "## Common fields",
        _common(),
        "## How to read the tables",
        READING,
        "## Fields of every method",
        _every_method([one for one in own if one.name not in METHOD_FIELDS]),
        "## Fields that some methods read",
        SOME_METHODS,
        _some_methods([one for one in own if one.name in METHOD_FIELDS]),
    ]
    for kind in dict.fromkeys(entry.options for entry in METHODS.values()):
        takers = [name for name, entry in METHODS.items() if entry.options is kind]
        if fields(kind):
            heading = f"## `method_kwargs` of {' and '.join(f'`{name}`' for name in takers)}"
            parts += [heading, _options(kind)]
    return "\n\n".join(parts)


def written(page: str) -> str:
    """The page with its tables as they should be."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{tables()}\n\n{END}{rest.partition(END)[2]}"


def _common() -> str:
    """Fields of `COMMON` with the defaults of a run that sets none of them."""
    declared = {one.name: one for one in fields(DUETGRPOConfig)}
    of_duet = defaults_of("duet")
    rows = [[f"`{name}`", _code(of_duet.get(name, declared[name].default)), when] for name, when in COMMON.items()]
    return markdown_table(["field", "default", "change it"], rows)


def _every_method(declared: list[Field]) -> str:
    rows = [
        [f"`{one.name}`", _help(one), _field_values(one), _code(one.default), _condition(DECLARED[one.name].acts)]
        for one in declared
    ]
    return markdown_table(["field", "meaning", "values", "default", "only with"], rows)


def _some_methods(declared: list[Field]) -> str:
    rows = []
    for one in declared:
        said = DECLARED[one.name]
        rows.append([f"`{one.name}`", _help(one), _field_values(one), ", ".join(said.methods), _condition(said.acts)])
    return markdown_table(["field", "meaning", "values", "methods", "only with"], rows)


def _options(kind: type) -> str:
    rows = []
    for one in fields(kind):
        said = declarations(kind)[one.name]
        values = _values(one.type, said.rule)
        rows.append([f"`{one.name}`", _help(one), values, _code(one.default), _condition(said.acts)])
    return markdown_table(["option", "meaning", "values", "default", "only with"], rows)


def _help(one: Field) -> str:
    return one.metadata["help"].replace("<", "&lt;")  # '<pattern>' is no tag


def _field_values(one: Field) -> str:
    return _values(DUETGRPOConfig.__annotations__[one.name], DECLARED[one.name].rule)


def _values(annotation: Any, rule: Rule | None) -> str:
    """Types that a field takes, and its range: what its error says before remedy and value."""
    kinds = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    types = " or ".join(_TYPES.get(kind) or kind.__name__ for kind in kinds if kind is not type(None))
    if rule is None:
        return types
    allowed = re.split(r"; |, got |\. ", rule[1])[0]
    if allowed.startswith("one of "):
        return " or ".join(f'`"{choice}"`' for choice in ast.literal_eval(allowed.removeprefix("one of ")))
    return f"{types}, {allowed.removeprefix('in ').removeprefix('an integer of ')}"


def _condition(acts: Acts | None) -> str:
    return "" if acts is None else f"`{acts.condition}`"


def _code(value: Any) -> str:
    """A default as it stands in Python; None: it follows, as the meaning says."""
    return "" if value is None else f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
