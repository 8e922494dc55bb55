# SPDX-License-Identifier: Apache-2.0
"""The tests in the columns of a row, in the form of a sandbox's check, or why they cannot be run.

A test that we cannot run must leave its rollouts ungraded: as a failure it would punish right programs.
"""

import ast
import builtins
import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

Row = dict[str, Any]

SCRIPT_NAME = "run_script"
SAME_OUTPUT = """
import re
from decimal import Decimal

NUMBER = re.compile(r"(?<![\\w.])([-+]?(?:\\d+(?:\\.\\d*)?|\\.\\d+)(?:[eE][-+]?\\d+)?)(?![\\w.])", re.ASCII)

def same_output(printed, expected):
    ours, theirs = ([line.rstrip() for line in text.rstrip().split("\\n")] for text in (printed, expected))
    return len(ours) == len(theirs) and all(map(same_line, ours, theirs))

def same_line(printed, expected):
    ours, theirs = (NUMBER.split(" ".join(text.split())) for text in (printed, expected))
    return printed == expected or len(ours) == len(theirs) and all(map(same_word, ours, theirs))

def same_word(printed, expected):
    if printed == expected or max(len(printed), len(expected)) > 60 or not set(".eE") & set(expected):
        return printed == expected
    try:
        ours, theirs = Decimal(printed), Decimal(expected)
    except ArithmeticError:
        return False
    if not ours.is_finite() or not theirs.is_finite() or max(abs(ours.adjusted()), abs(theirs.adjusted())) > 300:
        return False
    allowed = [abs(theirs) * Decimal("1e-9")]
    for number in (ours, theirs):
        _, digits, exponent = number.as_tuple()
        if exponent <= -6 or exponent < 0 and len(digits) >= 6:
            allowed.append(Decimal("0.51").scaleb(exponent))
    return abs(ours - theirs) <= max(allowed)
"""
"""A decimal may be off by the rounding of either side, if that has six decimals or digits."""
OUT_OF_REACH = {"asyncio", "inspect", "io", "tempfile", "unittest"}
"""Modules by which tests would reach into the process of the program: its streams, files, signatures, coroutines."""
ABSENT_ALIASES = {"pytest": "pytest", "np": "numpy", "pd": "pandas", "plt": "matplotlib", "tf": "tensorflow"}


def tests_of(row: Row) -> dict[str, Any] | str:
    """A check without its source, or why the row has no usable test."""
    try:
        if row.get("fn_name"):
            raise ValueError("fn_name with inputs and outputs is a form that cannot be run")
        if row.get("test") and row.get("entry_point"):
            return _check_function(row)
        if row.get("test_list"):
            return _assertions(row)
        if row.get("inputs"):
            return _script(row)
    except (SyntaxError, ValueError, TypeError) as error:
        return f"unusable tests: {type(error).__name__}: {error}"
    return "no tests: the row has neither test and entry_point, nor test_list, nor inputs and outputs"


def names_under_test(tests: Sequence[str], setup: Sequence[str] = ()) -> tuple[str, ...]:
    """Names that assertions use and nothing defines: those of the program under test.

    A built-in name counts only if there is no other and every test calls it (MBPP asks for a function named `sum`):
    otherwise a program could define `set` or `sorted` to its liking. SyntaxError if tests or setup are not Python.
    """
    trees = [ast.parse(test) for test in tests]
    bound = {name for tree in (*trees, *map(ast.parse, setup)) for name in _bound_names(tree)}
    modules = _modules_used(trees)
    free = {name for tree in trees for name in _loaded_names(tree)} - bound - modules
    own = free - set(vars(builtins))
    if not own:
        calls = [{node.func.id for node in ast.walk(tree) if _is_plain_call(node)} for tree in trees]
        own = set.intersection(free, *calls)
        own = own if len(own) == 1 else set()
    return tuple(sorted(own))


def _check_function(row: Row) -> dict[str, Any]:
    entry_point, prompt, test = row["entry_point"].strip(), row.get("code_prompt") or "", row["test"]
    try:
        expression = ast.parse(entry_point, mode="eval")  # such as `Solution().twice`
    except SyntaxError:
        raise ValueError(f"entry_point {entry_point!r} is not the name of a function") from None
    names = tuple(dict.fromkeys(_loaded_names(expression)))
    if not names:
        raise ValueError(f"entry_point {entry_point!r} names no function")
    tree = ast.parse(test)
    _require_runnable([tree], (*names, "candidate"))
    if "check" not in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}:
        raise ValueError("the test defines no function check(candidate)")
    if not _asserts(ast.parse(f"{test}\ncheck()")):
        raise ValueError("check(candidate) asserts nothing that runs")
    return {
        "names": names,
        "tests": (test, f"check({entry_point})"),
        "setup": _whole_statements(prompt),
        "preamble": prompt,
    }


def _assertions(row: Row) -> dict[str, Any]:
    imports = row.get("test_imports") or []
    setup = ["\n".join([imports] if isinstance(imports, str) else imports), row.get("test_setup_code") or ""]
    tests = tuple([row["test_list"]] if isinstance(row["test_list"], str) else row["test_list"])
    trees = [ast.parse(test) for test in tests]
    setup += [f"import {name}" for name in sorted(_modules_used(trees))]
    setup = [part for part in setup if part.strip()]
    names = names_under_test(tests, setup)
    if not names:
        raise ValueError(f"cannot tell which function they test, {tests[0][:100]!r}")
    _require_runnable([*trees, *map(ast.parse, setup)], names)
    if not any(_asserts(tree) for tree in trees):
        raise ValueError(f"nothing that runs is asserted, {tests[0][:100]!r}")
    return {"names": names, "tests": tests, "setup": tuple(setup), "preamble": row.get("code_prompt") or ""}


def _script(row: Row) -> dict[str, Any]:
    inputs, outputs = (
        json.loads(column) if isinstance(column, str) else column
        for column in (row["inputs"], row.get("outputs") or ())
    )
    if isinstance(inputs, dict) or isinstance(outputs, dict):
        raise ValueError("inputs and outputs must be lists")
    if len(inputs) != len(outputs):
        raise ValueError(f"{len(inputs)} inputs, but {len(outputs)} outputs")
    if any(wanted is None for wanted in outputs):
        raise ValueError("an expected output is missing")
    pairs = [(_text(given), _text(wanted)) for given, wanted in zip(inputs, outputs, strict=True)]
    tests = tuple(f"assert same_output({SCRIPT_NAME}({given!r}), {wanted!r})" for given, wanted in pairs)
    return {"names": (SCRIPT_NAME,), "tests": tests, "setup": (SAME_OUTPUT,), "reads_input": True}


def _text(value: Any) -> str:
    """Input or output of a script, which may be a list of its lines."""
    if isinstance(value, list | tuple) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    if isinstance(value, list | tuple | dict):
        raise ValueError(f"inputs and outputs are texts or lists of lines, got {str(value)[:100]}")
    return "" if value is None else str(value)


def _require_runnable(trees: Sequence[ast.AST], names: Sequence[str]) -> None:
    """ValueError for tests that need what the sandbox does not have."""
    used = {name for tree in trees for name in _loaded_names(tree)}
    for tree in trees:
        nodes = list(ast.walk(tree))
        modules = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
        sources = {name.partition(".")[0] for name in modules} - {""}
        imported = {
            alias.name.partition(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names
        }
        named = {node.id for node in nodes if isinstance(node, ast.Name)} - set(_bound_names(tree))
        aliases = {package for alias, package in ABSENT_ALIASES.items() if alias in named}
        if absent := sorted((imported | sources | aliases) - sys.stdlib_module_names):
            raise ValueError(f"they need {', '.join(absent)}, which programs in the sandbox do not have")
        if beyond := sorted(OUT_OF_REACH & (sources | set(_loaded_names(tree)))):
            raise ValueError(f"what they do with {', '.join(beyond)} does not reach the program")
        passed = {name for node in nodes for name in _variables_passed(node, names)}
        for node in nodes:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test") and node.name not in used:
                raise ValueError(f"nothing that runs calls {node.name}")
            if _needs_class(node, names):
                raise ValueError(f"{ast.unparse(node)[:100]!r} needs a class itself, which stays in the program")
            if isinstance(node, ast.Compare) and _compares_what_stays(node, passed, names):
                raise ValueError(f"{ast.unparse(node)[:100]!r} is about what stays in the program")
            if isinstance(node, ast.ClassDef) and any("TestCase" in ast.unparse(base) for base in node.bases):
                raise ValueError(f"{node.name} is a unittest class, which nothing runs")
            if isinstance(node, ast.Expr) and _variables_passed(node.value, names):
                raise ValueError(f"{ast.unparse(node)[:100]!r} changes its argument, which stays in the program")


def _variables_passed(node: ast.AST, names: Sequence[str]) -> list[str]:
    """Variables that a call of a function under test is given, and may change."""
    arguments = node.args if isinstance(node, ast.Call) and _loads(node.func, names) else []
    return [argument.id for argument in arguments if isinstance(argument, ast.Name)]


def _compares_what_stays(node: ast.Compare, passed: set[str], names: Sequence[str]) -> bool:
    """Whether it compares a variable that was passed, or part of it, with a constant; or a name under test."""
    sides = [node.left, *node.comparators]
    parts = [side.value if isinstance(side, ast.Subscript) else side for side in sides]
    has_constant = any(not any(isinstance(part, ast.Name) for part in ast.walk(side)) for side in sides)
    return any(
        isinstance(part, ast.Name) and (part.id in passed and has_constant or side is part and part.id in names)
        for side, part in zip(sides, parts, strict=True)
    )


def _needs_class(node: ast.AST, names: Sequence[str]) -> bool:
    """Whether it catches, enters or asks about instances of what the program defines."""
    if isinstance(node, ast.ExceptHandler | ast.withitem):
        part = node.type if isinstance(node, ast.ExceptHandler) else node.context_expr
    else:
        is_question = _is_plain_call(node) and node.func.id in ("isinstance", "issubclass")
        part = node.args[-1] if is_question and node.args else None
    return part is not None and bool(set(_loaded_names(part)) & set(names))


def _loads(function: ast.AST, names: Sequence[str]) -> bool:
    if isinstance(function, ast.Attribute):  # Solution().sort(xs), but not stack.push(x)
        return isinstance(function.value, ast.Call) and _loads(function.value.func, names)
    return isinstance(function, ast.Name) and function.id in names


def _asserts(tree: ast.AST) -> bool:
    """Whether something is asserted or raised outside of functions that nothing calls."""
    called = {node.func.id for node in ast.walk(tree) if _is_plain_call(node)}
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Assert | ast.Raise):
            return True
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name not in called:
            continue
        stack += ast.iter_child_nodes(node)
    return False


def _whole_statements(prompt: str) -> tuple[str, ...]:
    """The prompt, completed if it ends in the middle of a function; the judge needs its helpers and imports."""
    for ending in ("", "\n    pass\n"):
        with contextlib.suppress(SyntaxError):
            ast.parse(prompt + ending)
            return (prompt + ending,)
    return ()


def _loaded_names(tree: ast.AST) -> Iterator[str]:
    return (node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))


def _bound_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name


def _modules_used(trees: Sequence[ast.AST]) -> set[str]:
    """Modules of the standard library that tests name without importing them, as in `math.isclose(...)`."""
    attributes = [node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    bases = {value.id for value in attributes if isinstance(value, ast.Name)}
    return (bases & sys.stdlib_module_names) - {name for tree in trees for name in _bound_names(tree)}


def _is_plain_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
