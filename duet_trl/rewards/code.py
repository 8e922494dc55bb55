# SPDX-License-Identifier: Apache-2.0
"""Code reward: the program in a completion's fenced block against the unit tests of its row, run in the sandbox.

Rows carry their tests in one of three forms, told apart by their columns:

* HumanEval: `test` (code that defines `check(candidate)`) and `entry_point`, with `code_prompt` (the imports, helpers
  and signature that the task begins with) where there is one;
* lists of assertions, as in MBPP: `test_list`, with `test_setup_code` or `test_imports`;
* scripts that read and print: `inputs` and `outputs`, compared line by line without trailing blanks.
"""

import ast
import builtins
import logging
import sys
import threading
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from ..gate.extract import answer_region
from ..gate.markers import Which, extract_answer
from ..gate.thoughts import Written
from .completions import CACHE_SIZE, Completion, checked_which, read_completions
from .sandbox import Check, Limits, Sandbox, Verdict

logger = logging.getLogger(__name__)

SCRIPT_NAME = "run_script"
SAME_OUTPUT = """
def same_output(printed, expected):
    def lines(text):
        return [line.rstrip() for line in text.rstrip().split("\\n")]
    return lines(printed) == lines(expected)
"""

Row = dict[str, Any]


def code_reward(completions: list[Completion], **columns: Any) -> list[float | None]:
    """TRL reward function: 1 if the fenced program of the completion passes the tests of its row, else 0.

    Args:
        completions (list[str] | list[list[dict]]): Plain or conversational completions.
        **columns: Columns of the data set, one value per completion: `test` and `entry_point` (and `code_prompt`), or
            `test_list` (and `test_setup_code` or `test_imports`), or `inputs` and `outputs`. Others are not used.

    Returns:
        list[float | None]: 1.0 or 0.0; None where the row has no usable test, which TRL leaves ungraded.

    Raises:
        SandboxError: If no strong isolation holds on this machine; `CodeVerifier(isolation="limits")` asks for the
            weak one.
    """
    return _default_verifier()(completions, **columns)


class CodeVerifier:
    """Grades programs by unit tests in the sandbox; callable as a TRL reward function.

    The program is the body of a closed fenced block, as the `code` marker sees it. It may be whole or, where the row
    has a `code_prompt`, the body of the function that this begins. Programs have Python's standard library and no
    other package.

    Args:
        timeout (int): Processor seconds that one program, with all its tests, may use. Twice as much wall-clock time
            is allowed, so that a busy machine does not change rewards. What a batch takes at most, programs that hang
            included, is this time and a second, times programs by workers (`Sandbox.longest_seconds`).
        workers (int | None): Programs that run at a time. None: one per core, the cores of a machine shared between
            its ranks.
        which (str): "first" closed block of a completion (at which the gate stops a rollout), or the "last".
        fenced (bool): False also takes a completion without a closed block, as it stands: for base models that
            continue a `code_prompt`.
        isolation (str): As for `Sandbox`: "auto" or the name of one.
        limits (Limits | None): All limits, in place of `timeout`.

    Raises:
        ValueError: If an argument is out of its range.
        SandboxError: If the isolation does not hold on this machine.
    """

    __name__ = "code_reward"  # TRL names the reward's metrics after it

    def __init__(
        self,
        *,
        timeout: int = 3,
        workers: int | None = None,
        which: Which = "first",
        fenced: bool = True,
        isolation: str = "auto",
        limits: Limits | None = None,
    ) -> None:
        self._which = checked_which(which)
        self._fenced = fenced
        limits = limits or Limits(cpu_seconds=timeout, wall_seconds=2.0 * timeout)
        self._sandbox = Sandbox(isolation=isolation, limits=limits, workers=workers)
        self._cache: dict[Check, Verdict] = {}
        self._lock = threading.Lock()
        self._warned: set[str] = set()

    @property
    def isolation(self) -> str:
        """The isolation that every program runs in."""
        return self._sandbox.isolation

    def __call__(self, completions: list[Completion], **columns: Any) -> list[float | None]:
        """Rewards of completions; arguments and result as in :func:`code_reward`."""
        verdicts = self.verify(read_completions(completions, columns), _rows(columns, len(completions)))
        return [None if verdict.passed is None else float(verdict.passed) for verdict in verdicts]

    def verify(self, texts: Sequence[str | Written], rows: Sequence[Row]) -> list[Verdict]:
        """Verdicts with their reasons on completions and the columns of each one's row, as in :func:`code_reward`."""
        checks = [self._check(text, row) for text, row in zip(texts, rows, strict=True)]
        with self._lock:
            if len(self._cache) > CACHE_SIZE:
                self._cache.clear()
            new = [c for c in dict.fromkeys(checks) if isinstance(c, Check) and c not in self._cache]
            found = dict(zip(new, self._sandbox.check_all(new), strict=True))
            # What ran out of wall-clock time may have met a busy machine: not remembered.
            in_time = {c: v for c, v in found.items() if v.seconds < self._sandbox.limits.wall_seconds}
            self._cache.update({check: verdict for check, verdict in in_time.items() if verdict.passed is not None})
            verdicts = [found.get(c) or self._cache[c] if isinstance(c, Check) else c for c in checks]
        for verdict in verdicts:
            if verdict.passed is None:
                self._warn_once(verdict.reason)
        return verdicts

    def close(self) -> None:
        """Ends the worker processes; they start again with the next call."""
        self._sandbox.close()

    def _check(self, text: str | Written, row: Row) -> Check | Verdict:
        """The check of a completion, or its verdict where nothing needs to run."""
        tests = _tests(row)
        if isinstance(tests, str):
            return Verdict(None, tests, self.isolation, 0.0)
        source = extract_answer("code", text, self._which)
        if source is None and not self._fenced:
            source = answer_region(text)
        if source is None:
            return Verdict(False, "no closed fenced block", self.isolation, 0.0)
        return Check(source=source, **tests)

    def _warn_once(self, reason: str) -> None:
        kind = reason.partition(":")[0]
        if kind not in self._warned:
            self._warned.add(kind)
            logger.warning("Completions stay ungraded. First reason: %s", reason)


_default_verifier = cache(CodeVerifier)


def names_under_test(tests: Sequence[str], setup: Sequence[str] = ()) -> tuple[str, ...]:
    """Names that assertions use and nothing defines: those of the program under test.

    A built-in name counts only if there is no other and every test calls it (MBPP asks for a function named `sum`):
    otherwise a program could define `set` or `sorted` to its liking. SyntaxError if tests or setup are no Python.
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


def _tests(row: Row) -> dict[str, Any] | str:
    """Everything of a check but its source, or why the row has no usable test."""
    try:
        if row.get("test") and row.get("entry_point"):
            return _check_function(row)
        if row.get("test_list"):
            return _assertions(row)
    except (SyntaxError, ValueError) as error:
        return f"unusable tests: {type(error).__name__}: {error}"
    if row.get("inputs") and len(row["inputs"]) == len(row.get("outputs") or ()):
        pairs = zip(row["inputs"], row["outputs"], strict=True)
        tests = [f"assert same_output({SCRIPT_NAME}({str(given)!r}), {str(wanted)!r})" for given, wanted in pairs]
        return {"names": (SCRIPT_NAME,), "tests": tuple(tests), "setup": (SAME_OUTPUT,), "reads_input": True}
    return "no tests: the row has neither test and entry_point, nor test_list, nor inputs and outputs"


def _check_function(row: Row) -> dict[str, Any]:
    entry_point, prompt = row["entry_point"], row.get("code_prompt") or ""
    if not entry_point.isidentifier():
        raise ValueError(f"entry_point {entry_point!r} is no name of a function")
    return {
        "names": (entry_point,),
        "tests": (row["test"], f"check({entry_point})"),
        "setup": tuple(_whole_statements(prompt)),
        "preamble": prompt,
    }


def _assertions(row: Row) -> dict[str, Any]:
    imports = row.get("test_imports") or []
    setup = ["\n".join([imports] if isinstance(imports, str) else imports), row.get("test_setup_code") or ""]
    tests = tuple(row["test_list"])
    setup += [f"import {name}" for name in sorted(_modules_used([ast.parse(test) for test in tests]))]
    setup = [part for part in setup if part.strip()]
    names = names_under_test(tests, setup)
    if not names:
        raise ValueError(f"cannot tell which function they test, {tests[0][:100]!r}")
    return {"names": names, "tests": tests, "setup": tuple(setup), "preamble": row.get("code_prompt") or ""}


def _whole_statements(prompt: str) -> Iterator[str]:
    """The prompt, completed if it ends in the middle of a function; the judge needs its helpers and imports."""
    for ending in ("", "\n    pass\n"):
        try:
            ast.parse(prompt + ending)
        except SyntaxError:
            continue
        yield prompt + ending
        return


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
    bases = {
        node.value.id
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    return (bases & sys.stdlib_module_names) - {name for tree in trees for name in _bound_names(tree)}


def _is_plain_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name)


def _rows(columns: dict[str, Any], count: int) -> list[Row]:
    lists = {name: values for name, values in columns.items() if isinstance(values, list) and len(values) == count}
    return [{name: values[index] for name, values in lists.items()} for index in range(count)]
