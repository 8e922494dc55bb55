# SPDX-License-Identifier: Apache-2.0
"""Forms of programs and tests that models and data sets write: blocks, printed decimals, objects, what cannot run."""

import pytest

from duet_trl.rewards.code import program_of
from duet_trl.rewards.code_tests import names_under_test
from tests.rewards.case_files import cases
from tests.rewards.test_code_reward import fenced, make_verifier, reward

TWICE = "def twice(n):\n    return 2 * n"
CASES = cases("code")


@pytest.fixture(scope="module")
def verifier():
    verifier = make_verifier()
    yield verifier
    verifier.close()


@pytest.mark.parametrize("case", CASES["texts with a program"], ids=lambda case: repr(case["text"][:20]))
def test_block_that_defines_what_the_tests_call_is_the_program(case):
    source = program_of(case["text"], "first", ("twice",))
    namespace = {}
    exec(source.partition("\n```")[0], namespace)
    assert namespace["twice"](4) == 8


def test_without_a_closed_block_in_python_there_is_no_program():
    texts = [case["text"] for case in CASES["texts without a program"]]
    assert [text for text in texts if program_of(text, "first", ("twice",)) is not None] == []


@pytest.mark.parametrize("case", CASES["names under test"], ids=lambda case: case["tests"][0])
def test_names_under_test(case):
    assert names_under_test(case["tests"]) == tuple(case["names"])


def test_a_sample_of_input_or_output_is_no_script():
    for sample in ("Input: 4", "print the answer", "import sys: no", "$ python a.py"):
        assert program_of(f"```\n{sample}\n```\n" + fenced("print(3)"), "first", ("run_script",)) == "print(3)"


def test_first_definition_counts_and_a_fence_in_a_docstring_closes_nothing():
    wrong = fenced("def twice(n):\n    return n") + fenced(TWICE)
    assert program_of(wrong, "first", ("twice",)).endswith("return n")
    assert program_of(wrong, "last", ("twice",)) == TWICE
    documented = TWICE.replace("\n", "\n    '''\n    ```\n    4\n    ```\n    '''\n")
    assert program_of(fenced(documented), "first", ("twice",)) == documented


def test_printed_decimals_may_be_off_by_their_rounding(verifier):
    listed = CASES["printed decimals"]
    rewards = verifier(
        [fenced(f"print({case['printed']!r})") for case in listed],
        inputs=[[""]] * len(listed),
        outputs=[[case["expected"]] for case in listed],
    )
    assert [case for case, reward in zip(listed, rewards, strict=True) if reward != float(case["right"])] == []


@pytest.mark.parametrize("case", CASES["forms of tests"], ids=lambda case: str(case["row"])[:60])
def test_objects_of_a_program_and_other_forms_of_tests(verifier, case):
    assert reward(verifier, case["right"], **case["row"]) == 1.0
    assert reward(verifier, case["wrong"], **case["row"]) == 0.0


@pytest.mark.parametrize(
    "test", ["twice(4) == 8", "abs(twice(4) - 8) < 1e-6", "8 in twice(4)", "twice(4) < 9", "8 == twice(4)"]
)
def test_an_object_that_agrees_to_everything_passes_no_test(verifier, test):
    names = "eq ne sub rsub contains lt gt abs float index round hash instancecheck".split()
    methods = "".join(f"\n    def __{name}__(self, *other): return True" for name in names)
    assert (
        reward(verifier, f"class Yes:{methods}\ndef twice(n):\n    return Yes()", test_list=[f"assert {test}"]) == 0.0
    )


def test_a_form_that_cannot_be_run_is_ungraded_with_its_reason(verifier):
    listed = CASES["ungraded"]
    verdicts = verifier.verify([fenced(TWICE)] * len(listed), [case["row"] for case in listed])
    wrong = [
        (case, given)
        for case, given in zip(listed, verdicts, strict=True)
        if given.passed is not None or case["reason"] not in given.reason
    ]
    assert wrong == []
