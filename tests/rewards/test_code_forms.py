# SPDX-License-Identifier: Apache-2.0
"""Forms of programs and tests that models and data sets write: blocks, printed decimals, objects, what cannot run."""

import pytest

from duet_trl.rewards.code_blocks import program_of
from tests.rewards.test_code_reward import fenced, make_verifier, reward

TWICE = "def twice(n):\n    return 2 * n"
INDENTED = TWICE.replace("\n", "\n   ")
LINES = ["assert twice(4) == 8", "assert twice(-1) == -2"]


@pytest.fixture(scope="module")
def verifier():
    verifier = make_verifier()
    yield verifier
    verifier.close()


@pytest.mark.parametrize(
    "text",
    [
        f"````python\n{TWICE}\n````",
        f"`````\n{TWICE}\n```\n'''\n`````",
        f"1. The code:\n\n   ```python\n   {INDENTED}\n   ```",
        f"* x\n\t```py\n\t{TWICE.replace(chr(10), chr(10) + chr(9))}\n\t```",
        f"```bash\npip install x\n```\n\n```python\n{TWICE}\n```",
        f"```console\n$ python twice.py\n```\n```\n{TWICE}\n```",
        f"Input:\n```\n4\n```\nSo\n```python\n{TWICE}\n```",
        f"```python\nprint(twice(4))\n```\nwith\n```python\n{TWICE}\n```",
        f'```python title="a.py" {{1-3}}\n{TWICE}\n``` That is all.',
        "```python\ntwice = lambda n: 2 * n\n```",
        "```python\ntwice: object = lambda n: 2 * n\n```",
        f"```python\nassert twice(4) == 8\nprint(twice(n=4))\n```\n```python\n{TWICE}\n```",
        f"```python\nfrom solution import twice\n```\n```python\n{TWICE}\n```",
        f"1. ```python\n   {INDENTED}\n   ```",
        "- ```python\n  def twice(n):\n      return 2 * n\n  ```",
        f"~~~python\n{TWICE}\n~~~",
        f"```python\r\n{TWICE}\r\n```",
    ],
)
def test_block_that_defines_what_the_tests_call_is_the_program(text):
    source = program_of(text, "first", ("twice",))
    namespace = {}
    exec(source.partition("\n```")[0], namespace)
    assert namespace["twice"](4) == 8


@pytest.mark.parametrize(
    "text",
    [
        "```bash\ntwice 4\n```",
        f"```python\n{TWICE}",
        f"   ```python\n   {INDENTED}",
        f"````\n{TWICE}\n```",
        f"~~~\n{TWICE}\n```",
        "```\n\n```",
    ],
)
def test_without_a_closed_block_in_python_there_is_no_program(text):
    assert program_of(text, "first", ("twice",)) is None


def test_a_sample_of_input_or_output_is_no_script():
    for sample in ("Input: 4", "print the answer", "import sys: no", "$ python a.py"):
        assert program_of(f"```\n{sample}\n```\n" + fenced("print(3)"), "first", ("run_script",)) == "print(3)"


def test_first_definition_counts_and_a_fence_in_a_docstring_closes_nothing():
    wrong = fenced("def twice(n):\n    return n") + fenced(TWICE)
    assert program_of(wrong, "first", ("twice",)).endswith("return n")
    assert program_of(wrong, "last", ("twice",)) == TWICE
    documented = TWICE.replace("\n", "\n    '''\n    ```\n    4\n    ```\n    '''\n")
    assert program_of(fenced(documented), "first", ("twice",)) == documented


@pytest.mark.parametrize(
    ("printed", "expected", "right"),
    [
        ("0.3333333333333333", "0.333333", 1.0),
        ("0.333333", "0.3333333333", 1.0),
        ("0.30000000000000004", "0.3", 1.0),
        ("3", "3.0", 1.0),
        ("0.250 1 x", "0.25 1 x", 1.0),
        ("3333.333333333", "3333.33", 1.0),
        ("1e-07", "0.0000001", 1.0),
        ("0.34", "0.33", 0.0),
        ("0.33334", "0.333333", 0.0),
        ("0.343333", "0.333333", 0.0),
        ("3.0000001", "3", 0.0),
        ("0.3333333 2 x", "0.333333 1 x", 0.0),
        ("1000000000000000001", "1000000000000000000", 0.0),
        ("nan", "0.5", 0.0),
        ("1e999", "1e300", 0.0),
        ("0.5\n0.5", "0.5", 0.0),
        ("1.2.3", "1.2.4", 0.0),
        ("here", "there", 0.0),
        ("[0.1, 0.30000000000000004]", "[0.1, 0.3]", 1.0),
        ("x=0.30000000000000004; 12.5%", "x=0.3; 12.50%", 1.0),
        ("[0.1, 0.4]", "[0.1, 0.3]", 0.0),
        ("y=0.30000000000000004", "x=0.3", 0.0),
        ("1_0.5", "10.5", 0.0),
        ("\uff11\uff10.5", "10.5", 0.0),
        ("1.2.30000000000000004", "1.2.3", 0.0),
        (".5", "0.5", 1.0),
    ],
)
def test_printed_decimals_may_be_off_by_their_rounding(verifier, printed, expected, right):
    assert reward(verifier, f"print({printed!r})", inputs=[""], outputs=[expected]) == right


UNITTEST = (
    "import unittest\nclass T(unittest.TestCase):\n    def test_it(self):\n        self.assertEqual(twice(4), 8)"
)
SOLUTION = "class Solution:\n    def twice(self, n):\n        return 2 * n"
STACK = (
    "class Stack:\n    def __init__(self):\n        self.items = []\n"
    "    def push(self, x):\n        self.items.append(x)\n    def pop(self):\n        return self.items.pop()\n"
    "    def __len__(self):\n        return len(self.items)"
)
NODES = (
    "class Node:\n    def __init__(self, value, following=None):\n"
    "        self.value, self.following = value, following\n"
    "def build(xs):\n    return Node(xs[0], build(xs[1:])) if xs else None\n"
    "def total(node):\n    return node.value + total(node.following) if node else 0"
)


@pytest.mark.parametrize(
    ("source", "row"),
    [
        (SOLUTION, {"test_list": ["assert Solution().twice(4) == 8"]}),
        (SOLUTION, {"test_list": ["s = Solution()\nassert s.twice(n=4) == 8"]}),
        (SOLUTION, {"test": "def check(candidate):\n    assert candidate(4) == 8", "entry_point": "Solution().twice"}),
        (TWICE, {"test": "def check(candidate):\n    assert candidate(4) == 8", "entry_point": " twice "}),
        (
            STACK,
            {
                "test_list": [
                    "s = Stack()\ns.push(3)\ns.push(4)\nassert len(s) == 2 and s.pop() == 4 and s.items == [3]"
                ]
            },
        ),
        (
            STACK,
            {"test": "def check(c):\n    s = c()\n    s.push(3)\n    assert s.pop() == 3", "entry_point": "Stack"},
        ),
        (NODES, {"test_list": ["n = build([1, 2])\nassert n.value == 1 and n.following.value == 2"]}),
        (TWICE, {"test": "def check(twice):\n    assert twice(4) == 8\ncheck(twice)", "entry_point": "twice"}),
        (TWICE, {"test_list": ["n = 4\nassert twice(n) == sum([n, n])"]}),
        (NODES, {"test_list": ["assert total(Node(1, Node(2))) == 3"]}),
        (TWICE, {"test_list": ["def test_it():\n    assert twice(4) == 8\ntest_it()"]}),
        ("print(int(input()) * 2)", {"inputs": '["4"]', "outputs": '["8"]'}),
        ("input()\nprint(input())", {"inputs": [["2", "5 6"]], "outputs": [["5 6"]]}),
        ("print(3)", {"inputs": [None], "outputs": ["3"]}),
    ],
)
def test_objects_of_a_program_and_other_forms_of_tests(verifier, source, row):
    assert reward(verifier, source, **row) == 1.0
    wrong = (
        source.replace("2 * n", "n").replace("append(x)", "append(0)").replace("value, following\n", "0, following\n")
    )
    wrong = (
        wrong.replace("input()) * 2", "input())").replace("print(input())", "print(5)").replace("print(3)", "print(4)")
    )
    assert wrong != source and reward(verifier, wrong, **row) == 0.0


@pytest.mark.parametrize(
    "test", ["twice(4) == 8", "abs(twice(4) - 8) < 1e-6", "8 in twice(4)", "twice(4) < 9", "8 == twice(4)"]
)
def test_an_object_that_agrees_to_everything_passes_no_test(verifier, test):
    names = "eq ne sub rsub contains lt gt abs float index round hash instancecheck".split()
    methods = "".join(f"\n    def __{name}__(self, *other): return True" for name in names)
    assert (
        reward(verifier, f"class Yes:{methods}\ndef twice(n):\n    return Yes()", test_list=[f"assert {test}"]) == 0.0
    )


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (
            {"test": "import numpy as np\ndef check(c):\n    assert np.allclose(c(4), 8)", "entry_point": "twice"},
            "numpy",
        ),
        ({"test_list": ["assert np.isclose(twice(4), 8)"]}, "numpy"),
        ({"test_list": LINES, "test_imports": ["import pandas as pd"]}, "pandas"),
        ({"test": "assert twice(4) == 8", "entry_point": "twice"}, "no function check"),
        ({"test_list": [UNITTEST]}, "unittest"),
        ({"test_list": ["def test_it():\n    assert twice(4) == 8"]}, "nothing that runs"),
        ({"inputs": [[4]], "outputs": [8], "fn_name": "twice"}, "fn_name"),
        ({"inputs": [[4]], "outputs": [[8]]}, "lists of lines"),
        ({"inputs": ["1", "2"], "outputs": ["1"]}, "2 inputs, but 1 outputs"),
        ({"inputs": "a b", "outputs": "8 9"}, "JSONDecodeError"),
        ({"inputs": ["1"], "outputs": [None]}, "missing"),
        ({"inputs": [{"n": 4}], "outputs": [8]}, "lists of lines"),
        ({"inputs": {"4": 1}, "outputs": {"8": 1}}, "must be lists"),
        ({"test_list": ["assert twice(1) == pytest.approx(2)"]}, "pytest"),
        ({"test_list": ["def test_it():\n    assert twice(4) == 9", "assert twice(4) == 8"]}, "calls test_it"),
        ({"test": "def check(c):\n    return c(4) == 9", "entry_point": "twice"}, "asserts nothing"),
        ({"test_list": ["a = [3, 2]\nk = twice(a)\nassert a[:k] == [2]"]}, "what stays in the program"),
        ({"test_list": ["a = [1]\nassert twice(a) is None and a == [2]"]}, "what stays in the program"),
        ({"test_list": ["assert ANSWER == 42"]}, "what stays in the program"),
        ({"test_list": ["try:\n    twice(1)\n    assert False\nexcept Bad:\n    pass"]}, "needs a class"),
        ({"test_list": ["assert isinstance(B(), A)"]}, "needs a class"),
        ({"test_list": ["import asyncio\nassert asyncio.run(twice(4)) == 8"]}, "asyncio"),
        ({"test_list": ["import io, sys\nsys.stdin = io.StringIO('4')\nassert twice() == 8"]}, "does not reach"),
        (
            {
                "test_list": [
                    "from unittest.mock import patch\nwith patch('builtins.input'):\n    assert twice(4) == 8"
                ]
            },
            "does not reach",
        ),
        ({"test_list": ["a = [1]\ntwice(a)\nassert a == [2]"]}, "changes its argument"),
        ({"test_list": ["assert twice(4) == 8\nassert twice(lambda x: x)"]}, "cannot cross"),
    ],
)
def test_a_form_that_cannot_be_run_is_ungraded_with_its_reason(verifier, row, reason):
    (verdict,) = verifier.verify([fenced(TWICE)], [row])
    assert verdict.passed is None and reason in verdict.reason
