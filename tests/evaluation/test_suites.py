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
from tests.tiny import tiny_tokenizer

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
QWEN_LISTING = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
LLAMA_LISTING = (
    "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n"
    "{}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"
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


def write_jsonl(path: Path, rows: list[dict]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def contents(problems: Dataset) -> list[str]:
    assert all(len(prompt) == 1 and prompt[0]["role"] == "user" for prompt in problems["prompt"])
    return [prompt[0]["content"] for prompt in problems["prompt"]]


@pytest.mark.parametrize("name", FILES)
def test_published_file_is_complete_and_unchanged(name, caplog):
    with caplog.at_level(logging.WARNING):
        problems = load_suite(name, real(name))
    assert len(problems) == SUITES[name].num_problems
    assert caplog.records == []  # number and checksum are those on record
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


def test_checksum_does_not_depend_on_format_columns_or_order(tmp_path, caplog):
    rows = rows_of(real("math500"))
    other = [{"level": str(row["level"]), "answer": row["answer"], "question": row["problem"]} for row in rows[::-1]]
    Dataset.from_list(other).to_parquet(tmp_path / "test.parquet")
    with caplog.at_level(logging.WARNING):
        problems = load_suite("math500", str(tmp_path / "test.parquet"))
        folder = load_suite("math500", str(tmp_path))  # the layout of a data set on the Hub
    assert caplog.records == []
    assert folder.to_list() == problems.to_list()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("shorter", [False, True])
def test_another_content_is_a_warning_with_both_numbers_and_checksums(name, shorter, tmp_path, caplog):
    rows = rows_of(real(name))
    column = "test" if name == "humaneval" else "answer"
    rows = rows[1:] if shorter else [rows[0] | {column: rows[0][column] + "1"}, *rows[1:]]
    with caplog.at_level(logging.WARNING):
        load_suite(name, write_jsonl(tmp_path / "a.jsonl", rows))
    (warning,) = caplog.messages
    assert f"is not the published benchmark: {len(rows)} problems, SHA-256" in warning
    assert f"published: {SUITES[name].num_problems} problems, SHA-256 {SUITES[name].checksum}" in warning


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


def test_json_and_csv_files_load_like_jsonl(tmp_path):
    row = {"question": "Q?", "answer": "so\n#### 1,024"}
    (tmp_path / "a.json").write_text(json.dumps([row]))
    Dataset.from_list([row]).to_csv(tmp_path / "a.csv")
    expected = load_suite("gsm8k", write_jsonl(tmp_path / "a.jsonl", [row])).to_list()
    assert expected[0]["answer"] == "1024"
    assert load_suite("gsm8k", str(tmp_path / "a.json")).to_list() == expected
    assert load_suite("gsm8k", str(tmp_path / "a.csv")).to_list() == expected


def test_cells_of_a_csv_file_stay_as_they_are_written(tmp_path):
    golds = ["007", "12345678901234567890.5", "0.1234567890123456789012", "1e3", "NA", "5.00", "1,024"]
    text = "question,answer,level\n" + "".join(f'Q?,"{gold}",\n' for gold in [*golds, ""])
    (tmp_path / "a.csv").write_text("\ufeff" + text, encoding="utf-8")
    rows = read_rows(str(tmp_path / "a.csv"))
    assert [row["answer"] for row in rows] == [*golds, None]
    assert rows[0] == {"question": "Q?", "answer": "007", "level": None}


def test_row_of_a_csv_file_with_too_many_cells_is_named(tmp_path):
    (tmp_path / "a.csv").write_text("question,answer\nQ?,1\nQ?,1,024\n")
    with pytest.raises(ValueError, match="more cells than columns in row 1"):
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


def rendered(content: str, template: str, **keywords) -> str:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    tokenizer.bos_token = "<|begin_of_text|>"
    messages = [{"role": "user", "content": content}]
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **keywords)


# Both families' templates in short: what they put around one user message.
QWEN_LIKE = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}"
    "{%- endif %}"
)
LLAMA_LIKE = (
    "{{- bos_token }}{%- if not date_string is defined %}{%- set date_string = strftime_now('%d %b %Y') %}{%- endif %}"
    "{{- '<|start_header_id|>system<|end_header_id|>\\n\\nCutting Knowledge Date: December 2023\\nToday Date: ' }}"
    "{{- date_string + '\\n\\n<|eot_id|>' }}"
    "{%- for message in messages %}{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}"
    "{{- message.content | trim + '<|eot_id|>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"
)


@pytest.fixture(params=["math500", "humaneval"])
def content(request):
    return contents(load_suite(request.param, real(request.param)))[0]


def test_qwen_like_template_gives_the_papers_bytes(content):
    assert rendered(content, QWEN_LIKE) == QWEN_LISTING.format(content)


def test_llama_like_template_differs_from_the_listing_in_the_dated_system_block_and_one_newline(content):
    text = rendered(content, LLAMA_LIKE, date_string="26 Jul 2024")
    dated = (
        "<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
        "Today Date: 26 Jul 2024\n\n<|eot_id|>"
    )
    assert text.count(dated) == 1
    assert text.replace(dated, "") == LLAMA_LISTING.format(content) + "\n"
    # without the fixed date the prompt would change from day to day
    assert rendered(content, LLAMA_LIKE) != text


def test_prompts_that_are_ours_end_in_what_their_marker_looks_for():
    assert short_answer_prompt("Q?", "A passage.") == (
        "A passage.\n\nQ?\nPlease reason step by step, and put your final answer within <answer></answer> tags."
    )
    assert function_prompt_with_example(
        "Add two numbers.", "assert add(1, 2) == 3", "add"
    ) == HUMANEVAL_LISTING.format("Add two numbers.\nFor example, this must hold: `assert add(1, 2) == 3`", "add")
    assert multiple_choice_question("Q?", ["x", "y"]) == "Q?\n\nA) x\nB) y"


def own_suite(folder: Path, *rows: dict) -> str:
    path = folder / "own.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_suite_of_ones_own_is_boxed_math_on_a_question_or_a_whole_message(tmp_path):
    rows = [
        {"problem": "1+1?", "answer": 2},
        {"question": "2+2?", "answer": " 4 ", "id": "b"},
        {"prompt": "3!", "answer": "6"},
    ]
    problems = load_suite("mine", own_suite(tmp_path, *rows))
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
        load_suite(name, own_suite(tmp_path, row))


def test_a_suite_of_ones_own_is_a_local_file():
    with pytest.raises(ValueError, match="'mine' is no known suite, so 'user/set' must be a local file"):
        load_suite("mine", "user/set")
