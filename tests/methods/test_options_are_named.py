# SPDX-License-Identifier: Apache-2.0
"""Nobody has to read about a setting that nobody uses: each option of a method is named outside of its declaration."""

import ast
import functools
import re
from dataclasses import fields
from pathlib import Path

import pytest

from duet_trl.methods import METHODS

ROOT = Path(__file__).parents[2]
WORD = re.compile(r"[a-z]\w*")
LISTS = {"configuration.md"}
"""What is written from the declarations."""


@functools.cache
def named() -> set[str]:
    """Words that stand as a setting in a recipe, a grid, a benchmark, a notebook or a page."""
    found = set()
    for folder in ("recipes", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.keyword):
                    found.add(node.arg)
                elif isinstance(node, ast.Dict):
                    found |= {key.value for key in node.keys if isinstance(key, ast.Constant)}
        for path in (ROOT / folder).rglob("*.yaml"):
            found |= set(re.findall(r"(\w+):", path.read_text()))
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        found |= set(re.findall(r"(\w+)=", path.read_text()))
    for path in [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]:
        if path.name not in LISTS:
            for code in re.findall(r"`([^`\n]+)`", path.read_text()):
                found |= set(WORD.findall(code))
    return found


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_option_of_a_method_is_named_somewhere(method):
    assert {one.name for one in fields(METHODS[method].options)} - named() == set()


def test_a_name_that_stands_nowhere_is_not_found():
    assert "no_such_option" not in named() and {"surrogate_warmup", "oversample"} <= named()
