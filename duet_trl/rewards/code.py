# SPDX-License-Identifier: Apache-2.0
"""Code reward: the program in a completion's fenced block against the unit tests of its row, run in the sandbox.

Rows carry their tests in one of three forms, told apart by their columns:

* HumanEval: `test` (code that defines `check(candidate)`) and `entry_point`, with `code_prompt` (the imports, helpers
  and signature that the task begins with) where there is one;
* lists of assertions, as in MBPP: `test_list`, with `test_setup_code` or `test_imports`;
* scripts that read and print: `inputs` and `outputs`, compared line by line without trailing blanks, decimals as
  numbers.

A row with tests of another form stays ungraded: `code_tests.py` defines which cannot be run.
"""

import logging
import re
import threading
from collections.abc import Generator, Sequence
from functools import cache
from typing import Any

from ..gate.extract import answer_region, every_answer
from ..gate.markers import Which
from ..gate.thoughts import Written
from .code_tests import Row, tests_of
from .completions import CACHE_SIZE, Completion, checked_which, read_completions
from .sandbox import Check, Limits, Sandbox, Verdict

logger = logging.getLogger(__name__)

_FENCE = re.compile(r"([ \t]*(?:(?:[-*+]|\d{1,3}[.)])[ \t]+)?)(`{3,}|~{3,})(.*)")
_PYTHON = ("py", "ipython", "sage", "{", ".")
"""How the info string of a program begins. A block without one may be a program too."""
_SCRIPT = re.compile(
    r"(?<![\w.])(?:(?:print|input|open)\s*\(|(?:sys|os)\.)"
    r"|^[ \t]*(?:import[ \t]+[\w., \t\r]+$|from[ \t]+[\w.]+[ \t]+import)",
    re.MULTILINE,
)


def code_reward(completions: list[Completion], **columns: Any) -> list[float | None]:
    """TRL reward function: 1 if the fenced program of the completion passes the tests of its row, else 0.

    Args:
        completions (list[str] | list[list[dict]]): Plain or conversational completions.
        **columns: Columns of the data set as above, one value per completion. Others are not used.

    Returns:
        list[float | None]: 1.0 or 0.0; None where the row has no usable test, which TRL leaves ungraded.

    Raises:
        SandboxError: If no strong isolation holds here; `CodeVerifier(isolation="limits")` asks for the weak one.
    """
    return _default_verifier()(completions, **columns)


class CodeVerifier:
    """Grades programs by unit tests in the sandbox; callable as a TRL reward function.

    The program is the body of a closed fenced block. It may be whole or, where the row has a `code_prompt`, the body
    of the function that this begins. Programs have Python's standard library and no other package.

    Args:
        timeout (int): Processor seconds that one program, with all its tests, may use, in at most twice as much
            wall-clock time. `Sandbox.longest_seconds` bounds a batch, programs that hang included.
        workers (int | None): Programs that run at once. None: one per core, the cores of a machine shared between
            its ranks.
        which (str): "first" closed block of a completion that defines what the tests call, or the "last" block.
        fenced (bool): False also takes a completion without a closed block: for base models that continue a
            `code_prompt`.
        isolation (str): As for `Sandbox`: "auto" or the name of one.

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
    ) -> None:
        self._which = checked_which(which)
        self._fenced = fenced
        limits = Limits(cpu_seconds=timeout, wall_seconds=2.0 * timeout)
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
        lists = {k: v for k, v in columns.items() if isinstance(v, list) and len(v) == len(completions)}
        rows = [{name: values[place] for name, values in lists.items()} for place in range(len(completions))]
        verdicts = self.verify(read_completions(completions, columns), rows)
        return [None if verdict.passed is None else float(verdict.passed) for verdict in verdicts]

    def verify(self, texts: Sequence[str | Written], rows: Sequence[Row]) -> list[Verdict]:
        """Verdicts with their reasons on completions and the columns of each one's row, as in :func:`code_reward`."""
        checks = [self._check(text, row) for text, row in zip(texts, rows, strict=True)]
        with self._lock:
            if len(self._cache) > CACHE_SIZE:
                self._cache.clear()
            new = [c for c in dict.fromkeys(checks) if isinstance(c, Check) and c not in self._cache]
            found = dict(zip(new, self._sandbox.check_all(new), strict=True))
            # Programs that ran out of wall-clock time may have met a busy machine: not remembered.
            in_time = {c: v for c, v in found.items() if v.seconds < self._sandbox.limits.wall_seconds}
            self._cache.update({c: v for c, v in in_time.items() if v.passed is not None})
            verdicts = [found.get(c) or self._cache[c] if isinstance(c, Check) else c for c in checks]
        for reason in (verdict.reason for verdict in verdicts if verdict.passed is None):
            if (kind := reason.partition(":")[0]) not in self._warned:
                self._warned.add(kind)
                logger.warning("Completions stay ungraded. First reason: %s", reason)
        return verdicts

    def close(self) -> None:
        """Ends the worker processes; they start again with the next call."""
        self._sandbox.close()

    def _check(self, text: str | Written, row: Row) -> Check | Verdict:
        """The check of a completion, or its verdict where nothing needs to run."""
        tests = tests_of(row)
        if isinstance(tests, str):
            return Verdict(None, tests, self.isolation, 0.0)
        source = program_of(text, self._which, tests["names"])
        if source is None and not self._fenced:
            source = answer_region(text)
        if source is None:
            return Verdict(False, "no closed fenced block", self.isolation, 0.0)
        return Check(source=source, **tests)


_default_verifier = cache(CodeVerifier)


def program_of(text: str | Written, which: Which, names: Sequence[str]) -> str | None:
    """The last closed block, or the first that defines these names; None without a closed block.

    Blocks in another language are passed over. Where none of the others defines the names, the first may be the body
    of a function. The text of a policy is never parsed here: Python's own parser can be brought down.
    """
    blocks = every_answer(_blocks, text)
    if which == "last" or not blocks:
        return blocks[-1] if blocks else None
    patterns = [_defines(name) for name in names]
    return next((body for body in blocks if all(pattern.search(body) for pattern in patterns)), blocks[0])


def _defines(name: str) -> re.Pattern[str]:
    if name == "run_script":
        return _SCRIPT
    return re.compile(
        rf"^[ \t]*(?:(?:(?:async[ \t]+)?def|class)[ \t]+{name}\b"
        rf"|(?:\w+[ \t]*[,=][ \t]*)*{name}[ \t]*(?:[,=]|:[^\n=]*=)(?!=))",
        re.MULTILINE,
    )


def _blocks(text: str, opening: str | None) -> Generator[str, None, int | None]:
    """A finder of the bodies of closed blocks that have content and no other language than Python."""
    body: list[str] | None = None
    indent, marks, end = 0, "", 0
    is_program = False
    for line in text.split("\n"):
        begin, end = end, end + len(line) + 1
        fence = _FENCE.match(line)
        if body is None:
            if opening is not None and (thought := text.find(opening, begin, end)) >= 0:
                return thought + len(opening)
            if fence and "`" not in fence[3]:
                indent, marks, body = len(fence[1].expandtabs()), fence[2], []
                language = fence[3].strip().lower()
                is_program = not language or language.startswith(_PYTHON) or not language[0].isalpha()
        elif fence and fence[2].startswith(marks) and not fence[1].strip() and (indent > 1 or len(fence[1]) <= indent):
            if is_program and any(part.strip() for part in body):
                yield "\n".join(body)
            body = None
        else:
            body.append(_dedented(line, indent) if indent > 1 else line)
    return None


def _dedented(line: str, indent: int) -> str:
    blanks = len(line) - len(line.lstrip(" \t"))
    return line.expandtabs()[min(indent, len(line[:blanks].expandtabs())) :]
