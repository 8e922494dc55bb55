# SPDX-License-Identifier: Apache-2.0
r"""Worker of the math reward: a script run by its path that imports only the standard library and Math-Verify.

Reads one JSON list of [answer | null, gold] pairs per line and writes one line with a character for each: "1" equal,
"0" not equal, "n" gold not parsable, "k" killed. The grading is done by a fork, whose timers have the kernel's default
action: an answer that uses up its time is killed wherever it is, also inside C code, and a new fork goes on behind it.
A fork lives until then, because the parser is several times faster on what it has seen. The worker ends when its input
does.
"""

import json
import logging
import os
import re
import resource
import signal
import sys
from functools import lru_cache, partial
from itertools import combinations
from typing import BinaryIO

import math_verify.parser
from latex2sympy2_extended import NormalizationConfig, latex2sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig
from math_verify import LatexExtractionConfig, parse, verify
from sympy import Basic, Expr, I, MatrixBase, Set, Symbol, Tuple
from sympy.core.relational import Relational

# The parser can tell R from r, but Math-Verify has no argument for it.
math_verify.parser.latex2sympy = partial(latex2sympy, conversion_config=ConversionConfig(lowercase_symbols=False))

MEMORY_BYTES = 4 << 30
"""Address space of a grading process: towers of powers eat memory faster than time."""
WALL_SECONDS_PER_CPU_SECOND = 10
"""Wall-clock limit relative to the CPU limit; it only ends what neither computes nor returns."""
RETIREMENT_BYTES = 1 << 30
"""Resident memory at which a fork makes room for a new one: what an answer left in the caches would take memory, and
so verdicts, away from the answers behind it."""
PARSE_CACHE_SIZE = 4_096
INTEGER = re.compile(r"-?[0-9]{1,12}")
"""Answers that need no parser: most golds of MATH, and most wrong answers to them."""
LATEX_COMMAND = re.compile(r"\\[a-zA-Z]+")
WORD = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{3,}")
E_NOTATION = re.compile(r"(?<![\w.\\}])(\d+(?:\.\d+)?|\.\d+)e(?=[+-]?\d{1,4}(?![\w.^]))")
"""`1e-5`, which the parser reads as a product with Euler's number, but not `1E-5`."""
EITHER_NOTATION = re.compile(r"(?<![\w.\\}])(?!1e)\d+e[+-]\d(?![\w.^])")
"""`2e-1`, which may be both."""
SMALL, SAME_DIGITS = 1e-3, 1e-3
"""Math-Verify rounds to six decimals. Below SMALL, where that leaves few digits, the relative difference counts."""
BRACKETS = {**dict.fromkeys("([{", 1), **dict.fromkeys(")]}", -1)}
RETIRED = 3
"""Exit code of a fork that makes room."""
EXTRACTION = (
    LatexExtractionConfig(
        try_extract_without_anchor=False,
        boxed_match_priority=0,
        normalization_config=NormalizationConfig(malformed_operators=True, nits=True, boxed="last"),
    ),
)
WARM_UP = (
    r"\frac{1}{2}",
    r"2\sqrt{41}-x^2",
    r"\left(3, \frac{\pi}{2}\right)",
    r"(-\infty, 2) \cup [5, \infty)",
    r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}",
    r"x \ge 5",
    r"y = 3x + 2",
    r"\{1, 2, 3\}",
    r"12.5\%",
    r"1,\!000 \text{ miles}",
    r"\sin 30^\circ",
    r"\text{(C)}",
)
"""Kinds of answers parsed once before the first fork, so that every fork inherits warm parser caches."""


def grade(answer: str | None, gold: str) -> bytes:
    """Verdict on one pair; `answer` None means that the completion had no box."""
    if INTEGER.fullmatch(gold) and (answer is None or INTEGER.fullmatch(answer)):
        return b"1" if answer is not None and int(answer) == int(gold) else b"0"
    gold_parsed = _parse(gold)
    if not gold_parsed:
        return b"n"
    if answer is None:
        return b"0"
    is_equal = _any_equal(gold_parsed, _parse(answer)) and _same_repeats(_entries(gold), _entries(answer))
    return b"1" if is_equal else b"0"


def _any_equal(golds: list, answers: list) -> bool:
    """Whether some reading of the answer equals one of the gold."""
    pairs = ((gold, answer) for gold in golds for answer in answers)
    return any(verify(*pair, timeout_seconds=None) and _same_scale(*pair) for pair in pairs)


def _same_scale(gold: Basic | MatrixBase | str, answer: Basic | MatrixBase | str) -> bool:
    """Whether what is equal to six decimals is so to three digits: 1e-7 is not 2e-7."""
    if isinstance(gold, Expr) and isinstance(answer, Expr) and gold.is_number and answer.is_number:
        try:
            values = complex(gold), complex(answer)
        except (ArithmeticError, TypeError, ValueError):  # not finite, or no value at all
            return True
        largest = max(map(abs, values))
        return not largest < SMALL or abs(values[0] - values[1]) <= SAME_DIGITS * largest
    containers = Set | Tuple | Relational
    if isinstance(gold, containers) and isinstance(answer, containers) and len(gold.args) == len(answer.args):
        return all(map(_same_scale, gold.args, answer.args))
    return True


def _same_repeats(golds: list[str], answers: list[str]) -> bool:
    """Whether a list that equals the gold as a set, which it is to the parser, may repeat what it repeats.

    One number is not the same number twice, and a gold list with an entry twice means it. Where the gold names several
    different things, an answer that names one of them again is taken as a set.
    """
    if len(golds) == 1:
        return not _repeats(answers)
    if not _repeats(golds):
        return True
    left = list(answers)
    for gold in golds:
        found = next((one for one in left if _any_equal(_parse(gold), _parse(one))), None)
        if found is None:
            return False
        left.remove(found)
    return not left


def _repeats(entries: list[str]) -> bool:
    return any(_any_equal(_parse(one), _parse(other)) for one, other in combinations(entries, 2))


def _entries(text: str) -> list[str]:
    """What stands between the commas and semicolons of a list that no brackets are around."""
    entries, depth = [""], 0
    for letter in text:
        depth += BRACKETS.get(letter, 0)
        if letter in ",;" and depth == 0:
            entries.append("")
        else:
            entries[-1] += letter
    return [entry for entry in entries if entry.strip()]


class Grader:
    """The fork that grades, replaced when a pair has used up its CPU time or the fork's memory has grown."""

    def __init__(self, cpu_seconds: float) -> None:
        self._cpu_seconds = cpu_seconds
        self._pid = 0
        self._requests: BinaryIO
        self._verdicts: BinaryIO

    def grade_all(self, pairs: list[tuple[str | None, str]]) -> str:
        """Verdicts on all pairs."""
        verdicts = b""
        while len(verdicts) < len(pairs):
            # an idle fork that something else has ended is no answer's fault
            if self._pid == 0 or os.waitpid(self._pid, os.WNOHANG)[0]:
                self._fork()
            verdicts += self._ask(pairs[len(verdicts) :])
            if len(verdicts) < len(pairs):
                _, status = os.waitpid(self._pid, 0)
                self._pid = 0
                if os.waitstatus_to_exitcode(status) != RETIRED:
                    verdicts += b"k"
        return verdicts.decode()

    def _ask(self, pairs: list[tuple[str | None, str]]) -> bytes:
        """Verdicts up to the end of the fork, which comes early if a pair is killed or the fork retires."""
        try:
            self._requests.write(json.dumps(pairs).encode() + b"\n")
            self._requests.flush()
        except BrokenPipeError:
            return b""
        return self._verdicts.read(len(pairs))

    def _fork(self) -> None:
        request_end, requests = os.pipe()
        verdicts, verdict_end = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                _close_all_but(request_end, verdict_end)
                _serve(os.fdopen(request_end, "rb"), verdict_end, self._cpu_seconds)
            finally:
                os._exit(1)
        os.close(request_end)
        os.close(verdict_end)
        self._requests, self._verdicts = os.fdopen(requests, "wb"), os.fdopen(verdicts, "rb")


def _close_all_but(first: int, second: int) -> None:
    """Close what the fork inherited: its copies would hide from the other side that the worker has ended."""
    low, high = sorted((first, second))
    for begin, end in ((3, low), (low + 1, high), (high + 1, 256)):
        os.closerange(begin, end)


def _serve(requests: BinaryIO, verdict_end: int, cpu_seconds: float) -> None:
    is_new = True
    for line in requests:
        for answer, gold in json.loads(line):
            if not is_new and _resident_bytes() > RETIREMENT_BYTES:
                os._exit(RETIRED)
            is_new = False
            signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
            signal.setitimer(signal.ITIMER_REAL, WALL_SECONDS_PER_CPU_SECOND * cpu_seconds)
            os.write(verdict_end, grade(answer, gold))
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


def _resident_bytes() -> int:
    """Most resident memory this process ever had."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@lru_cache(PARSE_CACHE_SIZE)
def _parse(answer: str) -> list:
    readings = {E_NOTATION.sub(r"\1E", answer), answer if EITHER_NOTATION.search(answer) else None} - {None}
    parsed = [one for text in readings for one in parse(rf"\boxed{{{text}}}", EXTRACTION, parsing_timeout=None)]
    if "i" in LATEX_COMMAND.sub("", answer) and not WORD.search(answer):
        return [one if isinstance(one, str) else _with_imaginary_unit(one) for one in parsed]
    return parsed


def _with_imaginary_unit(expression: Basic | MatrixBase) -> Basic | MatrixBase:
    r"""The expression with the number i for the letter.

    The parser takes letters for real variables unless it sees an i, which it overlooks in `\frac{2i}{5}`: there i is a
    real variable, and unequal to that of `\frac{2}{5}i`.
    """
    letters = {one: I if one.name == "i" else Symbol(one.name) for one in expression.free_symbols}
    try:
        return expression.xreplace(letters) if I in letters.values() else expression
    except (TypeError, ValueError):  # an inequality or an interval, in which it must be a letter
        return expression


def main() -> None:
    """Serve requests until the input ends."""
    cpu_seconds = float(sys.argv[1])
    logging.disable(logging.CRITICAL)
    for timer_signal in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(timer_signal, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGPROF, signal.SIGALRM))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # The parser reports syntax errors on the standard streams; only verdicts may reach the real output.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    for answer in WARM_UP:
        verify(_parse(answer), _parse(answer), timeout_seconds=None)
    grader = Grader(cpu_seconds)
    for line in sys.stdin:
        replies.write(grader.grade_all(json.loads(line)) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
