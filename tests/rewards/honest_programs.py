# SPDX-License-Identifier: Apache-2.0
"""Right programs of unusual style, which must pass: what the sandbox takes from hostile ones, honest ones do not need.

`honest_programs.yaml` has functions with assertions, and scripts with pairs of input and output (an expression, where
they are long; none stands for `SUM`). Shared by the tests and benchmarks/sandbox.py.
"""

from pathlib import Path

import yaml

from duet_trl.rewards import Check
from duet_trl.rewards.code_tests import SAME_OUTPUT, SCRIPT_NAME

SUM = [("3\n1 2 3\n", "6\n"), ("1\n-5\n", "-5\n"), ("4\n10 20 30 40", "100\n")]
"""Pairs of the task: a count, then as many numbers; print their sum."""
NEED_A_FOLDER = ("temporary files", "a pool of threads from multiprocessing")
"""The C library keeps the semaphores of such a pool in files."""


def module(source: str, tests: list[str], names: tuple[str, ...] = ("f",), setup: tuple[str, ...] = ()) -> Check:
    """Functions and the assertions about them."""
    return Check(source, tuple(names), tuple(tests), tuple(setup))


def script(source: str, pairs: list[tuple[str, str]] | str = SUM) -> Check:
    """A script and what it must print for each input."""
    pairs = eval(pairs) if isinstance(pairs, str) else pairs
    tests = tuple(f"assert same_output({SCRIPT_NAME}({given!r}), {wanted!r})" for given, wanted in pairs)
    return Check(source, (SCRIPT_NAME,), tests, (SAME_OUTPUT,), reads_input=True)


_TABLE = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
FUNCTIONS = {name: module(**case) for name, case in _TABLE["functions"].items()}
SCRIPTS = {name: script(**case) for name, case in _TABLE["scripts"].items()}
HONEST = {**FUNCTIONS, **SCRIPTS}
