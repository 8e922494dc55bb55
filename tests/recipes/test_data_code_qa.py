# SPDX-License-Identifier: Apache-2.0
"""Training data of the code and short-answer recipes: MBPP in its four forms, SciQ, and what is dropped."""

import importlib.util
import json
import logging
from pathlib import Path

import pytest

from duet_trl.rewards.choice import ChoiceVerifier
from tests.tiny import tiny_tokenizer

# recipes/ is a folder of scripts, not a package: load the file that the recipes import as `data`.
_spec = importlib.util.spec_from_file_location("recipe_data", Path(__file__).parents[2] / "recipes" / "data.py")
data = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(data)

# The columns of google-research-datasets/mbpp, configurations "full" and "sanitized".
FULL = {
    "task_id": 602,
    "text": "Write a function to double a number.\r\n",
    "code": "def double(x):\r\n    return SCALE * x",
    "test_list": ["assert double(2) == 4", "assert double(0) == 0 ", "assert double(-1) == -2"],
    "test_setup_code": "import math\r\nSCALE = 2",
    "challenge_test_list": [],
}
SANITIZED = {
    "source_file": "a.ipynb",
    "task_id": 602,
    "prompt": "Write a function to double a number.",
    "code": "def double(x):\n    return SCALE * x",
    "test_imports": ["import math", "SCALE = 2"],
    "test_list": FULL["test_list"],
}
MBPP_PROMPT = (
    "Write a Python function to solve the following task.\n\n"
    "Write a function to double a number.\n"
    "For example, this must hold: `assert double(2) == 4`\n\n"
    "The function must be named `double`. Return ONLY the Python code inside a single ```python ... ``` fenced block."
)
SCIQ = {
    "question": "What carries oxygen in the blood?",
    "distractor1": "platelets",
    "distractor2": "plasma",
    "distractor3": "lymph",
    "correct_answer": "Red blood cells ",
    "support": "Red blood cells carry oxygen.",
}


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer()


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("row", [FULL, SANITIZED], ids=["full", "sanitized"])
def test_both_configurations_of_mbpp_give_the_same_task(tmp_path, tokenizer, row):
    rows = data.load_code_train(write_jsonl(tmp_path / "a.jsonl", [row]), tokenizer, 512).to_list()
    assert rows == [
        {
            "prompt": [{"role": "user", "content": MBPP_PROMPT}],
            "test_list": ["assert double(2) == 4", "assert double(0) == 0", "assert double(-1) == -2"],
            "test_setup_code": "import math\nSCALE = 2",
            "entry_point": "double",
            "task_id": "602",
        }
    ]


@pytest.mark.parametrize(
    ("test", "name"),
    [
        ("assert set(similar((3, 4), (5, 4))) == set((4,))", "similar"),
        ("assert math.isclose(area(2.0), 4.0)", "area"),
        ("assert longest([Pair(5, 24), Pair(15, 25)], 2) == 2", "longest"),
        ("assert not is_square (10)", "is_square"),
        ("assert sum([1, 2]) == 3", "sum"),
    ],
)
def test_function_under_test_is_named_in_the_prompt(tmp_path, tokenizer, test, name):
    path = write_jsonl(tmp_path / "a.jsonl", [FULL | {"test_list": [test]}])
    row = data.load_code_train(path, tokenizer, 512)[0]
    assert row["entry_point"] == name and f"must be named `{name}`" in row["prompt"][0]["content"]


def test_tasks_without_a_usable_test_and_long_prompts_are_dropped_and_counted(tmp_path, tokenizer, caplog):
    bad = [FULL | {"test_list": tests} for tests in ([], None, ["assert 1 == 1"], ["assert f(1) == "])]
    rows = [FULL, *bad, FULL | {"text": "word " * 2000}, FULL | {"text": None}]
    with caplog.at_level(logging.INFO):
        assert len(data.load_code_train(write_jsonl(tmp_path / "a.jsonl", rows), tokenizer, 512)) == 1
    assert "'whose tests call no function': 4" in caplog.text and "'without a text': 1" in caplog.text
    assert "'longer than 512 prompt tokens': 1" in caplog.text


def test_sciq_asks_for_a_short_answer_in_tags(tmp_path, tokenizer):
    path = write_jsonl(tmp_path / "a.jsonl", [SCIQ])
    content = (
        "What carries oxygen in the blood?\n"
        "Please reason step by step, and put your final answer within <answer></answer> tags."
    )
    rows = data.load_qa_train(path, tokenizer, 512)
    assert rows.to_list() == [{"prompt": [{"role": "user", "content": content}], "answer": "Red blood cells"}]
    texts = ["They are <answer>red blood cells</answer>.", "<answer>plasma</answer>", content]
    assert ChoiceVerifier()(texts, rows["answer"][:1] * 3) == [1.0, 0.0, 0.0]  # the prompt itself holds no answer


def test_questions_without_an_answer_are_dropped_and_counted(tmp_path, tokenizer, caplog):
    rows = [SCIQ, SCIQ | {"correct_answer": " "}, SCIQ | {"correct_answer": None}]
    with caplog.at_level(logging.INFO):
        assert len(data.load_qa_train(write_jsonl(tmp_path / "a.jsonl", rows), tokenizer, 512)) == 1
    assert "'without a gold answer': 2" in caplog.text


@pytest.mark.parametrize(
    ("load", "rows", "message"),
    [
        (data.load_code_train, [{"code": "x", "test_list": []}], "no column text or prompt"),
        (data.load_code_train, [{"text": "x"}], "no column test_list"),
        (data.load_qa_train, [{"question": "x"}], "no column correct_answer or answer"),
        (data.load_math_train, [{"text": "x", "answer": "1"}], r"no column question or .*are \['answer', 'text'\]"),
        (data.load_math_train, [{"problem": "x"}], r"no column answer or solution; its columns are \['problem'\]"),
        (data.load_math_train, [], "has no rows"),
    ],
)
def test_missing_columns_are_named(tmp_path, tokenizer, load, rows, message):
    with pytest.raises(ValueError, match=message):
        load(write_jsonl(tmp_path / "a.jsonl", rows), tokenizer, 512)


@pytest.mark.parametrize("load", [data.load_math_train, data.load_code_train, data.load_qa_train])
def test_tokenizer_without_template_and_offline_hub_are_errors_with_a_remedy(load):
    plain = tiny_tokenizer()
    with pytest.raises(ConnectionError, match=r"local \.jsonl or \.parquet file"):
        load("nobody/nothing", plain, 512)  # the tests run offline
    plain.chat_template = None
    with pytest.raises(ValueError, match="no chat template"):
        load("nobody/nothing", plain, 512)


def test_file_with_all_splits_keeps_the_training_split(tmp_path, tokenizer, caplog):
    rows = [FULL | {"task_id": number} for number in (1, 11, 510, 511, 600, 601, 700, 974)]
    with caplog.at_level(logging.INFO):
        kept = data.load_code_train(write_jsonl(tmp_path / "a.jsonl", rows), tokenizer, 512)
    assert kept["task_id"] == ["601", "700", "974"] and "'of another split of MBPP': 5" in caplog.text
    sanitized = [SANITIZED | {"task_id": number} for number in (2, 510, 602, 809)]
    assert data.load_code_train(write_jsonl(tmp_path / "b.jsonl", sanitized), tokenizer, 512)["task_id"] == [
        "602",
        "809",
    ]
    own = [FULL | {"task_id": number} for number in (1, 2, 3)]  # a file of one's own is nobody's split
    assert len(data.load_code_train(write_jsonl(tmp_path / "c.jsonl", own), tokenizer, 512)) == 3
