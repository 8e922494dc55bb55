# SPDX-License-Identifier: Apache-2.0
r"""Worker of the math reward: a script run by its path that imports only the standard library and Math-Verify.

Reads one JSON list of [answer | null, gold] pairs per line and writes one line with a character for each: "1" equal,
"0" not equal, "n" gold not parsable, "k" killed. A fork grades, whose timers have the kernel's default action: an
answer that uses up its time is killed wherever it is, also inside C code, and a new fork continues after it. It lives
until then, because the parser is several times faster on what it has seen.
"""

import contextlib
import json
import logging
import os
import re
import resource
import signal
import sys
from decimal import Decimal
from functools import lru_cache, partial
from itertools import combinations, product
from typing import Any, BinaryIO

import math_verify.grader
import math_verify.parser
from latex2sympy2_extended import NormalizationConfig, latex2sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, _Latex2Sympy
from math_verify import LatexExtractionConfig, parse, verify
from sympy import Basic, Dummy, Expr, Float, I, Integer, MatrixBase, Pow, Rational, Symbol, UnevaluatedExpr
from sympy.concrete.expr_with_limits import ExprWithLimits
from sympy.core.numbers import nan, oo, zoo
from sympy.functions import log
from sympy.simplify import simplify

# The parser can tell R from r, but Math-Verify has no argument for it.
math_verify.parser.latex2sympy = partial(latex2sympy, conversion_config=ConversionConfig(lowercase_symbols=False))

MEMORY_BYTES = 4 << 30
"""Address space of a grading process: towers of powers eat memory faster than time."""
WALL_SECONDS_PER_CPU_SECOND = 10
"""Wall-clock limit relative to the CPU limit; it ends only what neither computes nor returns."""
RETIREMENT_BYTES = 1 << 30
"""Resident memory at which a fork makes room for a new one; caches would take it away from later answers."""
PARSE_CACHE_SIZE = 4_096
INTEGER = re.compile(r"-?[0-9]{1,12}")
"""Answers that need no parser: most golds of MATH, and most wrong answers to them."""
LATEX_COMMAND = re.compile(r"\\[a-zA-Z]+")
WORD = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{3,}")
E_NOTATION = re.compile(r"(?<![\w.\\}])(\d+(?:\.\d+)?|\.\d+)e(?=[+-]?\d{1,4}(?![\w.^]))")
"""`1e-5`, which the parser reads as a product with Euler's number, but not `1E-5`."""
EITHER_NOTATION = re.compile(r"(?<![\w.\\}])(?!1e)\d+e[+-]\d(?![\w.^])")
"""`2e-1`, which may be both."""
MIXED_NUMBER = re.compile(r"(\d+)\\[dtc]?frac\{(\d+)\}\{(\d+)\}")
SMALL, ROUNDED_DIGITS = Rational(1, 1000), 6
"""A decimal stands for what it is rounded from if it has this many decimals, or digits where it is SMALL."""
DOUBLE_DIGITS, DOUBLE_NOISE = range(15, 18), Rational(4, 10**16)
"""A decimal of this many digits was printed by a program, whose last bits may be off by this share."""
FIRST_DIGITS, GUARD_DIGITS, MOST_DIGITS = 50, 12, 20_000
"""Digits that numbers are told apart by, those of them that arithmetic may spoil, and most for a last comparison."""
POINTS = tuple(
    tuple(Rational(seed * prime + 3, 29) for prime in (7, 11, 13, 17, 19, 23, 31, 37)) for seed in (2, 5, 31)
)
"""Values of letters at which expressions are told apart; letters beyond these stay letters, and tell nothing apart."""
MOST_SIGNS = 4
"""Maximum number of letters for which every combination of signs is tried."""
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
WARM_UP = r"""
\frac{1}{2} | 2\sqrt{41}-x^2 | \left(3, \frac{\pi}{2}\right) | (-\infty, 2) \cup [5, \infty) | x \ge 5 | \text{(C)}
\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix} | \{1, 2, 3\} | 1,\!000 \text{ miles} | y = 3x + 2 | \sin 30^\circ
12.5\%
"""
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
    return verify(golds, answers, timeout_seconds=None, allow_set_relation_comp=True)


def equal_expressions(gold: Basic | MatrixBase, answer: Basic | MatrixBase, *_: int) -> bool:
    """Whether two expressions are the same number, or the same function of their letters.

    In place of Math-Verify's comparison, which rounds to six decimals and takes what is below 1e-15 for zero.
    """
    if isinstance(gold, MatrixBase) and isinstance(answer, MatrixBase):
        return gold.shape == answer.shape and all(map(equal_expressions, gold.flat(), answer.flat()))
    if not isinstance(gold, Expr) or not isinstance(answer, Expr):
        return False
    if gold.is_number and answer.is_number:
        return _equal_numbers(gold, answer)
    return not (gold.is_number and answer.free_symbols) and _equal_functions(_exact(gold), _exact(answer))


def _equal_numbers(gold: Expr, answer: Expr) -> bool:
    """Equality of numbers, of rational ones exactly.

    Irrational ones agree to as many digits as their integers have, and FIRST_DIGITS more. A decimal is the number that
    it is rounded from, if it has six decimals (six digits below SMALL).
    """
    if all(isinstance(_without_percent(one), Integer) for one in (gold, answer)):
        return _without_percent(gold) == _without_percent(answer)  # 9% is 9
    exact = [_exact(gold), _exact(answer)]
    values = [_value(one, FIRST_DIGITS) for one in exact]
    if None not in values and any(values):
        difference = abs(values[0] - values[1])
        if 0 < difference <= max(map(_rounding, (gold, answer), exact)):
            return True
        if difference > max(map(abs, values)) * Float(10) ** (GUARD_DIGITS - FIRST_DIGITS):
            return False
    difference = (exact[0] - exact[1]).doit()
    if difference.is_Rational or difference in (oo, -oo, zoo, nan):
        return difference == 0
    digits = FIRST_DIGITS + sum(one.p.bit_length() + one.q.bit_length() for one in difference.atoms(Rational)) // 3
    if digits <= MOST_DIGITS and None not in values and any(values):
        values = [_value(one, digits) for one in exact]
        close = max(map(abs, values)) * Float(10, digits) ** (GUARD_DIGITS - digits)
        return abs(values[0] - values[1]) <= close
    return simplify(difference) == 0


def _without_percent(number: Expr) -> Expr:
    parts = number.args
    return parts[0] if len(parts) == 2 and isinstance(parts[1], UnevaluatedExpr) else number


def _exact(expression: Expr) -> Expr:
    """The expression with its decimals as exact fractions."""
    exact = expression.xreplace({one: Rational(str(one)) for one in expression.atoms(Float)})
    return exact.xreplace({one: one.args[0] for one in exact.atoms(UnevaluatedExpr)})


def _value(number: Expr, digits: int) -> Expr | None:
    """The number to `digits` digits, as a complex one if it must be; None if it has no finite value."""
    try:
        parts = number.evalf(digits, maxn=4 * digits).as_real_imag()
    except (ArithmeticError, AttributeError, TypeError, ValueError, NotImplementedError):
        return None
    if not all(one.is_Number and one.is_finite for one in parts):
        return None
    real, imaginary = parts
    return real if abs(imaginary) <= abs(real) * Float(10) ** (GUARD_DIGITS - digits) else real + I * imaginary


def _rounding(number: Expr, exact: Expr) -> Rational:
    """Maximum distance of a decimal from what it is rounded from; 0 for other numbers and few decimals."""
    written = [one for one in (number, *number.args) if isinstance(one, Float) and one]
    if len(written) != 1 or len(number.atoms(Float)) != 1 or not (exact := exact.doit()).is_Rational:
        return Rational(0)
    _, digits, exponent = Decimal(str(written[0])).normalize().as_tuple()
    last_place = Rational(10) ** exponent * abs(exact / Rational(str(written[0])))
    enough = len(digits) >= ROUNDED_DIGITS if abs(exact) < SMALL else last_place <= Rational(10) ** -ROUNDED_DIGITS
    if not enough:
        return Rational(0)
    return max(last_place / 2, abs(exact) * DOUBLE_NOISE if len(digits) in DOUBLE_DIGITS else 0)


def _equal_functions(gold: Expr, answer: Expr) -> bool:
    r"""Equality of functions of real letters: no difference at some points, and a proof.

    If it holds for positive letters only (`\sqrt{1/n}`), domain and values must agree on the other side of zero too.
    """
    letters = sorted(gold.free_symbols | answer.free_symbols, key=str)
    if not (gold - answer).has(ExprWithLimits):  # sums and integrals have no cheap values
        if any(_differ(gold, answer, dict(zip(letters, point, strict=False))) for point in POINTS):
            return False
    try:
        if simplify(gold - answer) == 0:
            return True
        if not letters or len(letters) > MOST_SIGNS or not (gold - answer).atoms(Pow, log):
            return False
        positive = {one: Dummy(one.name, positive=True) for one in letters}
        if simplify(gold.xreplace(positive) - answer.xreplace(positive)) != 0:
            return False
    except (ArithmeticError, AttributeError, TypeError, ValueError, NotImplementedError, RecursionError):
        return False
    signs = product((1, -1), repeat=len(letters))
    points = [{one: sign * size for one, sign, size in zip(letters, row, POINTS[0], strict=False)} for row in signs]
    return not any(_differ(gold, answer, point, domain=True) for point in points)


def _differ(gold: Expr, answer: Expr, point: dict[Symbol, Rational], domain: bool = False) -> bool:
    """Whether both have real values at a point that are different; or, if asked, only one of them has one."""
    values = [_value(one.xreplace(point), FIRST_DIGITS) for one in (gold, answer)]
    real = [one is not None and one.is_real for one in values]
    if not all(real):
        return domain and any(real)
    return bool(abs(values[0] - values[1]) > max(1, *map(abs, values)) * Float(10) ** (GUARD_DIGITS - FIRST_DIGITS))


math_verify.grader.sympy_numeric_eq = equal_expressions
math_verify.grader.sympy_symbolic_eq = lambda gold, answer: False  # asked after the one above, which answers both


def _side_by_side(parser: _Latex2Sympy, factors: list[Any], place: int = 0) -> Any:
    """Product of factors side by side, and mixed numbers; the parser's own would read `2(3)` as one, which is 5."""
    pair = MIXED_NUMBER.fullmatch("".join(one.getText() for one in factors[place : place + 2]))
    whole, numerator, denominator = map(int, pair.groups()) if pair else (0, 0, 0)
    if numerator < denominator:
        first, place = Rational(whole * denominator + numerator, denominator), place + 1
    else:
        first = parser.convert_postfix(factors[place])
    if isinstance(first, list) and len(first) == 1:  # a derivative
        return OWN_PRODUCT(parser, factors, place)
    if place + 1 == len(factors) or not isinstance(first, Expr | MatrixBase):
        return first
    rest = _side_by_side(parser, factors, place + 1)
    has_matrix = any(isinstance(one, MatrixBase) for one in (first, rest))
    return parser.mat_mul_flat(first, rest) if has_matrix else parser.mul_flat(first, rest)


OWN_PRODUCT, _Latex2Sympy.convert_postfix_list = _Latex2Sympy.convert_postfix_list, _side_by_side


def _same_repeats(golds: list[str], answers: list[str]) -> bool:
    """Whether a list that equals the gold as a set, which it is to the parser, may repeat what it repeats.

    One number is not itself twice, and a gold list with an entry twice means it. Of several different things an answer
    may name one again.
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
    """The entries between the commas and semicolons of a list that no brackets are around."""
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
            # an idle fork that something else has ended is not the fault of an answer
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
                # inherited copies would hide from the other side that the worker has ended
                for descriptor in {*range(3, 256)} - {request_end, verdict_end}:
                    with contextlib.suppress(OSError):
                        os.close(descriptor)
                _serve(os.fdopen(request_end, "rb"), verdict_end, self._cpu_seconds)
            finally:
                os._exit(1)
        os.close(request_end)
        os.close(verdict_end)
        self._requests, self._verdicts = os.fdopen(requests, "wb"), os.fdopen(verdicts, "rb")


def _serve(requests: BinaryIO, verdict_end: int, cpu_seconds: float) -> None:
    is_new, unit = True, 1 if sys.platform == "darwin" else 1024
    for line in requests:
        for answer, gold in json.loads(line):
            if not is_new and resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit > RETIREMENT_BYTES:
                os._exit(RETIRED)
            is_new = False
            signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
            signal.setitimer(signal.ITIMER_REAL, WALL_SECONDS_PER_CPU_SECOND * cpu_seconds)
            os.write(verdict_end, grade(answer, gold))
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


@lru_cache(PARSE_CACHE_SIZE)
def _parse(answer: str) -> list:
    readings = {E_NOTATION.sub(r"\1E", answer), answer if EITHER_NOTATION.search(answer) else None} - {None}
    parsed = [one for text in readings for one in parse(rf"\boxed{{{text}}}", EXTRACTION, parsing_timeout=None)]
    if "i" in LATEX_COMMAND.sub("", answer) and not WORD.search(answer):
        return [one if isinstance(one, str) else _with_imaginary_unit(one) for one in parsed]
    return parsed


def _with_imaginary_unit(expression: Basic | MatrixBase) -> Basic | MatrixBase:
    r"""The expression with the number i for the letter: the parser overlooks it in `\frac{2i}{5}`."""
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
    for answer in filter(str.strip, re.split(r"[|\n]", WARM_UP)):
        verify(_parse(answer), _parse(answer), timeout_seconds=None)
    grader = Grader(cpu_seconds)
    for line in sys.stdin:
        replies.write(grader.grade_all(json.loads(line)) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
