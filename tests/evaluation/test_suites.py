# SPDX-License-Identifier: Apache-2.0
"""The benchmark suites on the real public files, their prompts against the paper's listings, and sources that fail."""

import json
import logging
from collections import Counter
from pathlib import Path

import datasets
import pytest
from datasets import Dataset

from duet_trl.evaluation.measure import build_graders
from duet_trl.evaluation.prompts import (
    BOXED_SUFFIX,
    function_prompt_with_example,
    multiple_choice_question,
    short_answer_prompt,
)
from duet_trl.evaluation.suites import SUITES, load_suite, read_rows
from tests.evaluation.policy import write_jsonl

DATA = Path(__file__).parents[3] / "shared" / "data"
FILES = {
    "math500": "math500_test.jsonl",
    "gsm8k": "gsm8k_test.jsonl",
    "aime2024": "aime2024_test.jsonl",
    "humaneval": "humaneval_test.jsonl",
}
# The appendix "Prompt Templates", its listings typed in; {} stands for the data set's text.
BOXED_LISTING = (
    "{}\n"
    "Please reason step by step, and put your final answer within \\boxed{{}}."
)  # fmt: skip
HUMANEVAL_LISTING = (
    "Write a Python function to solve the following task.\n"
    "\n"
    "{}\n"
    "\n"
    "The function must be named `{}`. Return ONLY the Python code inside a single ```python ... ``` fenced block."
)
GPQA_ROW = {
    "Record ID": "rec1",
    "Question": "Which one?\n",
    "Correct Answer": "right\n",
    "Incorrect Answer 1": "wrong one",
    "Incorrect Answer 2": " wrong two",
    "Incorrect Answer 3": "wrong three",
    "Subdomain": "Genetics",
}


def real(name: str) -> str:
    path = DATA / FILES[name]
    if not path.exists():
        pytest.skip(f"{path} is not there")
    return str(path)


def rows_of(path: str | Path) -> list[dict]:
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines() if line]


def contents(problems: Dataset) -> list[str]:
    assert all(len(prompt) == 1 and prompt[0]["role"] == "user" for prompt in problems["prompt"])
    return [prompt[0]["content"] for prompt in problems["prompt"]]


@pytest.mark.parametrize("name", FILES)
def test_published_file_is_complete_and_unchanged(name, caplog):
    with caplog.at_level(logging.WARNING):
        problems = load_suite(name, real(name))
    assert len(problems) == SUITES[name].num_problems
    assert caplog.records == []  # the number is that on record
    assert len(set(problems["id"])) == len(problems)


@pytest.mark.parametrize(("name", "column"), [("math500", "problem"), ("gsm8k", "question"), ("aime2024", "problem")])
def test_math_prompts_are_the_listing_byte_for_byte(name, column):
    expected = [BOXED_LISTING.format(row[column]) for row in rows_of(real(name))]
    assert contents(load_suite(name, real(name))) == expected


def test_humaneval_prompts_are_the_listing_byte_for_byte():
    expected = [HUMANEVAL_LISTING.format(row["prompt"], row["entry_point"]) for row in rows_of(real("humaneval"))]
    problems = load_suite("humaneval", real("humaneval"))
    assert contents(problems) == expected
    assert problems.column_names == ["id", "prompt", "test", "entry_point", "code_prompt"]


def test_gold_answers_are_bare():
    golds = {name: load_suite(name, real(name))["answer"] for name in ("math500", "gsm8k", "aime2024")}
    assert golds["gsm8k"][:3] == ["18", "3", "70000"]
    assert all(gold.lstrip("-").isdigit() for gold in golds["gsm8k"])
    assert golds["aime2024"][7] == "25" and all(0 <= int(gold) <= 999 for gold in golds["aime2024"])  # "025" there
    assert golds["math500"][0] == r"\left( 3, \frac{\pi}{2} \right)"


def test_a_parquet_file_and_a_folder_load_like_jsonl(tmp_path):
    rows = [{"problem": f"{number}?", "answer": str(number)} for number in range(3)]
    Dataset.from_list(rows).to_parquet(tmp_path / "test.parquet")
    expected = load_suite("math500", write_jsonl(tmp_path / "a.jsonl", rows)).to_list()
    assert load_suite("math500", str(tmp_path / "test.parquet")).to_list() == expected
    (tmp_path / "a.jsonl").unlink()
    assert load_suite("math500", str(tmp_path)).to_list() == expected  # the layout of a data set on the Hub


def test_another_number_of_problems_is_a_warning(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        load_suite("gsm8k", write_jsonl(tmp_path / "a.jsonl", [{"question": "Q?", "answer": "1"}]))
    assert "GSM8K from" in caplog.text and "it has 1 problems instead of 1319" in caplog.text


def test_gpqa_question_is_boxed_multiple_choice(tmp_path):
    problem = load_suite("gpqa_diamond", write_jsonl(tmp_path / "a.jsonl", [GPQA_ROW]))[0]
    first, second, third, fourth = problem["options"]
    question = f"Which one?\n\nA) {first}\nB) {second}\nC) {third}\nD) {fourth}"
    assert problem["prompt"] == [{"role": "user", "content": BOXED_LISTING.format(question)}]
    assert problem["options"]["ABCD".index(problem["answer"])] == "right" and problem["id"] == "rec1"
    texts = [rf"So \boxed{{{letter}}}." for letter in "ABCD"]
    rewards = build_graders(["gpqa_diamond"])["gpqa_diamond"](texts, [problem["answer"]] * 4, [problem["options"]] * 4)
    assert rewards == [float(letter == problem["answer"]) for letter in "ABCD"]


def test_order_of_options_depends_on_the_record_alone(tmp_path):
    rows = [GPQA_ROW | {"Record ID": f"rec{number}"} for number in range(400)]
    problems = load_suite("gpqa_diamond", write_jsonl(tmp_path / "a.jsonl", rows))
    subset = load_suite("gpqa_diamond", write_jsonl(tmp_path / "b.jsonl", rows[200:100:-1]))
    assert subset["options"] == problems["options"][200:100:-1]
    # 400 draws of four equal letters: 100 each with standard deviation 8.7
    assert all(60 <= count <= 140 for count in Counter(problems["answer"]).values())
    assert len(set(map(tuple, problems["options"]))) == 24


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        (
            "math500",
            {"text": "Q", "answer": "1"},
            r"no column problem or question or Problem; its columns are \['answer', 'text'\]",
        ),
        ("gsm8k", {"question": "Q"}, "no column answer"),
        ("humaneval", {"prompt": "def f():", "test": "x"}, "no column entry_point"),
        ("gpqa_diamond", {"Question": "Q", "Correct Answer": "a"}, "no column Incorrect Answer 1"),
    ],
)
def test_missing_column_is_named(tmp_path, name, row, message):
    with pytest.raises(ValueError, match=message):
        load_suite(name, write_jsonl(tmp_path / "a.jsonl", [row]))


def test_unknown_suite_and_missing_file_are_named(tmp_path):
    with pytest.raises(ValueError, match="unknown suite 'math'. Choose one of math500, gsm8k"):
        load_suite("math")
    with pytest.raises(ValueError, match="there is no file .*gone.parquet"):
        load_suite("math500", str(tmp_path / "gone.parquet"))
    with pytest.raises(ValueError, match="has no rows"):
        load_suite("math500", write_jsonl(tmp_path / "a.jsonl", []))


@pytest.mark.parametrize(
    ("name", "row", "missing"),
    [
        ("math500", {"problem": None, "question": None, "answer": "1"}, "problem or question or Problem"),
        ("gsm8k", {"question": "Q?", "answer": None}, "answer"),
        ("humaneval", {"prompt": "p", "entry_point": "f", "test": None}, "test"),
    ],
)
def test_a_row_without_a_value_is_named_and_never_measured_as_the_word_none(tmp_path, name, row, missing):
    whole = {key: value or "x" for key, value in row.items()}
    with pytest.raises(ValueError, match=f"row 1 of .*a.jsonl' has no {missing}. Complete or remove it"):
        load_suite(name, write_jsonl(tmp_path / "a.jsonl", [whole, row]))


@pytest.mark.parametrize(
    ("answer", "gold"), [("033", "33"), ("000", "0"), (25, "25"), (0, "0"), (33.0, "33"), (100.0, "100"), (0.0, "0")]
)
def test_golds_of_aime_are_integers_however_a_file_holds_them(tmp_path, answer, gold):
    path = write_jsonl(tmp_path / "a.jsonl", [{"ID": "2024-I-1", "Problem": "Q?", "Answer": answer}])
    assert load_suite("aime2024", path)["answer"] == [gold]


def test_numbers_are_golds_too(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [{"question": "Q?", "answer": 5}])
    assert load_suite("gsm8k", path)["answer"] == ["5"]
    row = {"Question": "Q?", "Correct Answer": 1, **{f"Incorrect Answer {n}": n + 1 for n in (1, 2, 3)}}
    (problem,) = load_suite("gpqa_diamond", write_jsonl(tmp_path / "b.jsonl", [row])).to_list()
    assert problem["options"]["ABCD".index(problem["answer"])] == "1"


def test_cells_of_a_csv_file_stay_as_they_are_written(tmp_path):
    golds = ["007", "12345678901234567890.5", "0.1234567890123456789012", "1e3", "NA", "5.00", "1,024"]
    text = "question,answer,level\n" + "".join(f'Q?,"{gold}",\n' for gold in [*golds, ""])
    (tmp_path / "a.csv").write_text("\ufeff" + text, encoding="utf-8")
    rows = read_rows(str(tmp_path / "a.csv"))
    assert [row["answer"] for row in rows] == [*golds, None]
    assert rows[0] == {"question": "Q?", "answer": "007", "level": None}


def test_row_of_a_csv_file_with_too_many_cells_is_named(tmp_path):
    (tmp_path / "a.csv").write_text("question,answer\nQ?,1\nQ?,1,024\n")
    with pytest.raises(ValueError, match="more cells than there are columns"):
        read_rows(str(tmp_path / "a.csv"))


def test_a_data_set_that_the_hub_does_not_give_says_what_to_do(monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConnectionError, match=r"'openai/gsm8k' cannot be read.*HF_HUB_OFFLINE.*path of a local"):
        load_suite("gsm8k")


def test_a_gated_data_set_says_how_to_get_access(monkeypatch):
    def gated(*_, **__):
        raise datasets.exceptions.DatasetNotFoundError("Dataset 'Idavidrein/gpqa' is a gated dataset on the Hub.")

    monkeypatch.setattr(datasets.load, "dataset_module_factory", gated)
    with pytest.raises(PermissionError, match="accept the terms on .*/Idavidrein/gpqa and run `hf auth login`"):
        load_suite("gpqa_diamond")


def test_prompts_that_are_ours_end_in_what_their_marker_looks_for():
    assert short_answer_prompt("Q?", "A passage.") == (
        "A passage.\n\nQ?\nPlease reason step by step, and put your final answer within <answer></answer> tags."
    )
    assert function_prompt_with_example(
        "Add two numbers.", "assert add(1, 2) == 3", "add"
    ) == HUMANEVAL_LISTING.format("Add two numbers.\nFor example, this must hold: `assert add(1, 2) == 3`", "add")
    assert multiple_choice_question("Q?", ["x", "y"]) == "Q?\n\nA) x\nB) y"


def test_a_suite_of_ones_own_is_boxed_math_on_a_question_or_a_whole_message(tmp_path):
    rows = [
        {"problem": "1+1?", "answer": 2},
        {"question": "2+2?", "answer": " 4 ", "id": "b"},
        {"prompt": "3!", "answer": "6"},
    ]
    problems = load_suite("mine", write_jsonl(tmp_path / "own.jsonl", rows))
    assert problems["id"] == ["0", "b", "2"] and problems["answer"] == ["2", "4", "6"]
    messages = [prompt[0]["content"] for prompt in problems["prompt"]]
    assert messages == [f"1+1?\n{BOXED_SUFFIX}", f"2+2?\n{BOXED_SUFFIX}", "3!"]
    grader = build_graders(["mine"])["mine"]
    boxes = [[{"role": "assistant", "content": rf"\boxed{{{value}}}"}] for value in (2, 5, 6)]
    assert grader(completions=boxes, answer=list(problems["answer"])) == [1.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("mine", {"problem": "1+1?"}, "has no column answer"),
        ("mine", {"text": "1+1?", "answer": 2}, "has no column problem or question or prompt"),
        ("mine", {"prompt": [{"role": "user", "content": "x"}], "answer": 2}, "must be the text of one message"),
        ("a/b", {"problem": "1+1?", "answer": 2}, "a suite's name may have letters"),
    ],
)
def test_a_suite_of_ones_own_that_cannot_be_asked_is_refused(tmp_path, name, row, message):
    with pytest.raises(ValueError, match=message):
        load_suite(name, write_jsonl(tmp_path / "own.jsonl", [row]))


def test_a_suite_of_ones_own_is_a_local_file():
    with pytest.raises(ValueError, match="unknown suite 'mine'.*local file of your own.*got user/set"):
        load_suite("mine", "user/set")
