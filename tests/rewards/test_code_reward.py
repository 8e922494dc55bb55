# SPDX-License-Identifier: Apache-2.0
"""The code reward on HumanEval's own solutions, labelled real outputs, the three forms of tests, and hostile texts."""

import logging
import time

import pytest

from duet_trl.gate.markers import extract_answer
from duet_trl.rewards import CodeVerifier, SandboxError, code_reward
from tests.rewards.case_files import rows_of

# The labels of these replies come from a harness that ran the last fenced block. Eight replies end in a block of
# examples behind the right program; in one the program is right, but that harness left out the prompt's helper.
LABELLED_BY_THEIR_EXAMPLES = {"c00334", "c00350", "c00370", "c00382", "c00408", "c00426", "c00434", "c00472"}
LABELLED_WITHOUT_THE_HELPER = {"c00366"}


def columns_of(tasks: list[dict]) -> dict[str, list[str]]:
    names = {"test": "test", "entry_point": "entry_point", "code_prompt": "prompt"}
    return {column: [task[name] for task in tasks] for column, name in names.items()}


def fenced(source: str) -> str:
    return f"Here it is:\n\n```python\n{source}\n```\nDone."


def make_verifier(**arguments) -> CodeVerifier:
    try:
        return CodeVerifier(workers=2, **arguments)
    except SandboxError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def verifier():
    verifier = make_verifier()
    yield verifier
    verifier.close()


@pytest.fixture(scope="module")
def unfenced():
    verifier = make_verifier(fenced=False)
    yield verifier
    verifier.close()


def test_every_solution_of_humaneval_passes_whole_and_as_a_continuation(verifier):
    tasks = rows_of("humaneval_test.jsonl")
    whole = [fenced(task["prompt"] + task["canonical_solution"]) for task in tasks]
    bodies = [fenced(task["canonical_solution"]) for task in tasks]
    assert len(tasks) == 164
    assert verifier(whole, **columns_of(tasks)) == [1.0] * 164
    assert verifier(bodies, **columns_of(tasks)) == [1.0] * 164


def test_every_stub_of_humaneval_fails(verifier):
    tasks = rows_of("humaneval_test.jsonl")
    prompts = [task["prompt"] if number % 2 else "" for number, task in enumerate(tasks)]
    stubs = [fenced(prompt + "    pass") for prompt in prompts]  # whole, and as a continuation
    assert verifier(stubs, **columns_of(tasks)) == [0.0] * 164


def test_solution_does_not_need_the_imports_and_helpers_that_the_prompt_has(verifier):
    tasks = {task["task_id"]: task for task in rows_of("humaneval_test.jsonl")}
    for number, source in (
        (0, "def has_close_elements(numbers: List[float], threshold):\n"),
        (38, "def decode_cyclic(s):\n"),
        (32, "def find_zero(xs):\n"),
    ):
        task = tasks[f"HumanEval/{number}"]
        assert verifier([fenced(source + task["canonical_solution"])], **columns_of([task])) == [1.0]


def test_agrees_with_the_labels_of_real_outputs(unfenced):
    tasks = {task["task_id"]: task for task in rows_of("humaneval_test.jsonl")}
    rows = [row for row in rows_of("model_outputs_code.jsonl") if row["label"] is not None]
    assert len(rows) == 164

    def differences(verifier: CodeVerifier, rows: list[dict]) -> set[str]:
        rewards = verifier([row["text"] for row in rows], **columns_of([tasks[row["task_id"]] for row in rows]))
        return {row["id"] for row, reward in zip(rows, rewards, strict=True) if reward != row["label"]}

    assert differences(unfenced, rows) == LABELLED_WITHOUT_THE_HELPER | LABELLED_BY_THEIR_EXAMPLES
    several = [
        row
        for row in rows
        if extract_answer("code", row["text"], "first") != extract_answer("code", row["text"], "last")
    ]
    last = make_verifier(fenced=False, which="last")  # the same program as above for all other rows
    assert differences(last, several) == LABELLED_WITHOUT_THE_HELPER & {row["id"] for row in several}
    last.close()


def test_continuations_of_a_base_model_are_cut_where_the_next_thing_begins(unfenced):
    prompt, tests = "def double(x):\n    '''Twice x.'''\n", "def check(candidate):\n    assert candidate(3) == 6\n"
    row = {"test": [tests], "entry_point": ["double"], "code_prompt": [prompt]}
    for text in (
        "    return 2 * x\n",
        "    return x + x\n\ndef other(:\n",
        "    y = x\n    return x + y\n# End\n```\nprint(dou",
    ):
        assert unfenced([text], **row) == [1.0]
    assert unfenced(["def double(x):\n    return x * 2"], **row) == [1.0]
    for text in ("", "    return x\n", "The answer is 6.", "return 2 * x"):
        assert unfenced([text], **row) == [0.0]


def test_reward_function_takes_what_trl_passes(verifier):
    texts = [fenced("def f(x):\n    return x"), fenced("def f(x):\n    return 0"), ""]
    conversational = [[{"role": "assistant", "content": text}] for text in texts]
    columns = {"test_list": [["assert f(1) == 1"]] * 3, "prompts": ["q"] * 3, "trainer_state": None}
    assert code_reward(completions=conversational, completion_ids=[[1]] * 3, **columns) == [1.0, 0.0, 0.0]
    assert code_reward([]) == []


def reward(verifier: CodeVerifier, source: str, **row) -> float | None:
    return verifier([fenced(source)], **{name: [value] for name, value in row.items()})[0]


def test_scripts_that_read_and_print(verifier):
    row = {"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7"]}
    assert reward(verifier, "a, b = map(int, input().split())\nprint(a + b)\nprint()", **row) == 1.0
    for wrong in ("print(3)", "import sys\nsys.exit(0)", "import os\nos._exit(0)", "1 / 0"):
        assert reward(verifier, wrong, **row) == 0.0
    hurried = make_verifier(timeout=1)
    assert reward(hurried, "while True: print(3)", **row) == 0.0
    hurried.close()


def test_row_without_a_usable_test_is_reported_once(caplog):
    verifier = make_verifier()
    with caplog.at_level(logging.WARNING):
        assert reward(verifier, "def f(x):\n    return 1", test_list=[]) is None
        assert reward(verifier, "def f(x):\n    return 2", test_list=[]) is None
    assert [record.message.count("stay ungraded") for record in caplog.records] == [1]
    verifier.close()


def test_rows_of_different_kinds_in_one_batch(verifier):
    texts = [fenced("def f(x):\n    return x")] * 3 + [fenced("print(input())")]
    rewards = verifier(
        texts,
        test=["def check(c):\n    assert c(1) == 1", None, None, None],
        entry_point=["f", None, None, None],
        test_list=[None, ["assert f(1) == 2"], None, None],
        inputs=[None, None, None, ["a"]],
        outputs=[None, None, None, ["a"]],
    )
    assert rewards == [1.0, 0.0, None, 1.0]


@pytest.mark.parametrize(
    "source",
    [
        "\x00",
        "\ud800",
        "def f(x):\n    return '\ud800'",
        "(" * 200 + ")" * 200,
        "-" * 100_000 + "1",
        "x" + ".a" * 100_000,
        "[" * 100_000,
        "def f(x):\n" + "".join(" " * n + "if x:\n" for n in range(1, 150)),
        "#" * 1_000_000,
        "f = " + "9" * 1_000_000,
        "import this_is_not_here",
        "def f(x):\n  return 1\n\treturn 2",
        "print(" * 50,
    ],
    ids=lambda source: f"{len(source)} of {source[:4]!r}",
)
def test_hostile_texts_score_zero(verifier, source):
    # Python's own parser can be brought down by such texts: it reads them in the sandbox only.
    assert reward(verifier, source, test_list=["assert f(1) == 1"]) == 0.0


def test_many_completions_with_few_distinct_programs_are_run_once_each(verifier):
    texts = [fenced(f"def f(x):\n    return {n % 5}") for n in range(2000)]
    begin = time.monotonic()
    rewards = verifier(texts, test_list=[["assert f(0) == 3"]] * 2000)
    assert rewards == [float(n % 5 == 3) for n in range(2000)]
    assert time.monotonic() - begin < 10


def test_isolation_is_named_everywhere(verifier):
    (verdict,) = verifier.verify([fenced("f = abs")], [{"test_list": ["assert f(-1) == 1"]}])
    assert verdict.isolation == verifier.isolation in ("bubblewrap", "landlock")
    weak = CodeVerifier(isolation="limits", workers=1)
    assert weak.isolation == "limits"
    weak.close()


def test_verdict_that_time_ran_out_on_is_not_remembered():
    verifier = make_verifier(timeout=1)
    sleeper, row = "import time\ntime.sleep(60)\ndef f(x):\n    return x", {"test_list": ["assert f(1) == 1"]}
    for _ in range(2):
        begin = time.monotonic()
        assert reward(verifier, sleeper, **row) == 0.0
        assert time.monotonic() - begin >= 2.0  # twice the processor seconds
    verifier.close()
