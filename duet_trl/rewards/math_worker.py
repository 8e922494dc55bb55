# SPDX-License-Identifier: Apache-2.0
r"""Worker of the math reward: a script run by its path that imports only the standard library and Math-Verify.

Reads one JSON list of [answer | null, gold] pairs per line and writes one line with a character for each: "1" equal,
"0" not equal, "n" gold not parsable, "k" killed. Every list is graded in a fork, whose timers have the kernel's
default action: an answer that uses up its time is killed wherever it is, also inside C code, and a new fork goes on
behind it. The worker ends when its input does.
"""

import json
import logging
import os
import resource
import signal
import sys

from latex2sympy2_extended import NormalizationConfig
from math_verify import LatexExtractionConfig, parse, verify

MEMORY_BYTES = 4 << 30
"""Address space of a grading process: towers of powers eat memory faster than time."""
WALL_SECONDS_PER_CPU_SECOND = 10
"""Wall-clock limit relative to the CPU limit; it only ends what neither computes nor returns."""
EXTRACTION = (
    LatexExtractionConfig(
        try_extract_without_anchor=False,
        boxed_match_priority=0,
        normalization_config=NormalizationConfig(units=True, malformed_operators=True, nits=True, boxed="last"),
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
    gold_parsed = _parse(gold)
    if not gold_parsed:
        return b"n"
    if answer is None:
        return b"0"
    return b"1" if verify(gold_parsed, _parse(answer), timeout_seconds=None) else b"0"


def grade_all(pairs: list[tuple[str | None, str]], cpu_seconds: float) -> str:
    """Verdicts on all pairs, with a new fork after each pair that had to be killed."""
    verdicts = b""
    while len(verdicts) < len(pairs):
        verdicts += _grade_in_fork(pairs[len(verdicts) :], cpu_seconds)
        if len(verdicts) < len(pairs):
            verdicts += b"k"
    return verdicts.decode()


def _grade_in_fork(pairs: list[tuple[str | None, str]], cpu_seconds: float) -> bytes:
    """Verdicts up to the end of the fork, which comes early if a pair is killed or crashes."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            for answer, gold in pairs:
                signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
                signal.setitimer(signal.ITIMER_REAL, WALL_SECONDS_PER_CPU_SECOND * cpu_seconds)
                os.write(write_end, grade(answer, gold))
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as results:
        verdicts = results.read()
    os.waitpid(child, 0)
    return verdicts


def _parse(answer: str) -> list:
    return parse(rf"\boxed{{{answer}}}", EXTRACTION, parsing_timeout=None)


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
    for line in sys.stdin:
        replies.write(grade_all(json.loads(line), cpu_seconds) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
