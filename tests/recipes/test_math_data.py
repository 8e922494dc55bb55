# SPDX-License-Identifier: Apache-2.0
"""The math recipe's data on the real training file and on small hostile ones."""

import importlib.util
import json
import logging.handlers
from pathlib import Path

import pytest
from datasets import Dataset

from duet_trl.evaluation.prompts import BOXED_SUFFIX
from tests.tiny import tiny_tokenizer

ROOT = Path(__file__).parents[2]
MATH_TRAIN = ROOT.parent / "shared" / "data" / "math_train_clean.jsonl"
MATH_500 = ROOT.parent / "shared" / "data" / "math500_test.jsonl"

# recipes/ is a folder of scripts, not a package: load the file that the recipe imports as `data`.
_spec = importlib.util.spec_from_file_location("math_recipe_data", ROOT / "recipes" / "data.py")
data = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(data)

HUB_LAYOUT = {
    "problem": "What is $1+1$?",
    "level": "Level 1",
    "type": "Algebra",
    "solution": r"First \boxed{3}, in fact $\boxed{\frac{4}{2}}$.",
}


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer()


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def test_prompt_is_the_papers_template_with_a_real_line_break(tmp_path, tokenizer):
    rows = data.load_math_train(
        write_jsonl(tmp_path / "a.jsonl", [{"question": "Q?", "answer": "2", "level": 5, "subject": "Algebra"}]),
        tokenizer,
        512,
    )
    content = "Q?\nPlease reason step by step, and put your final answer within \\boxed{}."
    assert rows.to_list() == [
        {"prompt": [{"role": "user", "content": content}], "answer": "2", "level": 5, "subject": "Algebra"}
    ]


def test_layout_of_the_hub_takes_the_last_box_of_the_solution(tmp_path, tokenizer):
    row = data.load_math_train(write_jsonl(tmp_path / "a.jsonl", [HUB_LAYOUT]), tokenizer, 512)[0]
    assert (row["answer"], row["level"], row["subject"]) == (r"\frac{4}{2}", 1, "Algebra")


def test_a_gold_may_be_a_number_and_a_row_without_a_question_or_gold_is_dropped_and_counted(
    tmp_path, tokenizer, caplog
):
    rows = [{"question": "a", "answer": 0}, {"question": "b", "answer": 0.5}, {"question": "c", "answer": None}]
    rows += [{"question": None, "answer": "1"}, {"question": " ", "answer": "1"}]
    with caplog.at_level(logging.INFO):
        kept = data.load_math_train(write_jsonl(tmp_path / "a.jsonl", rows), tokenizer, 512)
    assert kept["answer"] == ["0", "0.5"]
    assert "'without a question': 2" in caplog.text and "'without a gold answer': 1" in caplog.text


def test_a_gold_in_the_form_of_gsm8k_stands_behind_its_last_mark(tmp_path, tokenizer):
    rows = [{"question": "Q?", "answer": "He has 1,000 + 234.\n#### 1,234"}]
    assert data.load_math_train(write_jsonl(tmp_path / "a.jsonl", rows), tokenizer, 512)["answer"] == ["1234"]


@pytest.mark.parametrize("form", ["lines", "list", "windows", "lines in .json"])
def test_json_in_every_form_loads_alike(tmp_path, tokenizer, form):
    rows = [{"question": "Où\u2028est $x$?", "answer": "é"}, {"question": "b", "answer": "2"}]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    name, content = {
        "lines": ("a.jsonl", lines),
        "list": ("a.json", json.dumps(rows, indent=2).encode()),
        "windows": ("a.jsonl", b"\xef\xbb\xbf" + lines.replace(b"\n", b"\r\n")),
        "lines in .json": ("a.json", lines),  # what Dataset.to_json writes
    }[form]
    (tmp_path / name).write_bytes(content)
    loaded = data.load_math_train(str(tmp_path / name), tokenizer, 512)
    assert loaded["answer"] == ["é", "2"]
    assert loaded[0]["prompt"][0]["content"].startswith("Où\u2028est $x$?\nPlease")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "a.jsonl' has no rows"),
        (b'{"question": "a", "answer": "1"}\n{"question":\n', "cannot be read: .*line 2 column 13"),
        (b'[{"question": "a"},\n {"question"}]', "cannot be read: .*line 2 column 13"),
        (b"[1, 2]", "must hold objects with columns"),
        ('{"question": "é"}'.encode("latin-1"), "cannot be read: .*It must be in UTF-8"),
        (
            b'{"data": [{"question": "a", "answer": "1"}]}',
            r"no column question or problem or prompt; its columns are \['data'\]",
        ),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_the_place(tmp_path, tokenizer, content, message):
    (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        data.load_math_train(str(tmp_path / "a.jsonl"), tokenizer, 512)


def test_parquet_and_folder_of_parquet_files_load_like_jsonl(tmp_path, tokenizer):
    expected = data.load_math_train(write_jsonl(tmp_path / "a.jsonl", [HUB_LAYOUT]), tokenizer, 512).to_list()
    folder = tmp_path / "set"
    folder.mkdir()
    Dataset.from_list([HUB_LAYOUT]).to_parquet(folder / "train.parquet")
    assert data.load_math_train(str(folder / "train.parquet"), tokenizer, 512).to_list() == expected
    assert data.load_math_train(str(folder), tokenizer, 512).to_list() == expected


def test_ungradable_and_long_rows_are_dropped_and_counted(tmp_path, tokenizer, caplog):
    rows = [
        HUB_LAYOUT,
        HUB_LAYOUT | {"solution": r"It is \boxed 2."},  # not a closed box
        {"question": "Empty?", "answer": "  ", "level": "Level ?"},
        {"question": "word " * 2000, "answer": "1"},
    ]
    with caplog.at_level(logging.INFO):
        kept = data.load_math_train(write_jsonl(tmp_path / "a.jsonl", rows), tokenizer, 512)
    assert len(kept) == 1
    assert "1 prompts kept" in caplog.text
    assert "'without a gold answer': 2" in caplog.text and "'longer than 512 prompt tokens': 1" in caplog.text


def test_limit_counts_the_template_and_is_inclusive(tmp_path, tokenizer):
    path = write_jsonl(tmp_path / "a.jsonl", [{"question": "Q?", "answer": "2"}])
    text = tokenizer.apply_chat_template(data.math_prompt("Q?"), add_generation_prompt=True, tokenize=False)
    length = len(tokenizer(text, add_special_tokens=False)["input_ids"])
    assert len(data.load_math_train(path, tokenizer, length)) == 1
    with pytest.raises(ValueError, match="no row of .* is left"):
        data.load_math_train(path, tokenizer, length - 1)


@pytest.fixture(scope="module")
def real_math(tokenizer):
    """The real training file, without a length limit, and what the loader said about it."""
    if not MATH_TRAIN.exists() or not MATH_500.exists():
        pytest.skip(f"{MATH_TRAIN} or {MATH_500} is not there")
    handler = logging.handlers.BufferingHandler(1000)
    data.logger.addHandler(handler)
    data.logger.setLevel(logging.INFO)
    rows = data.load_math_train(str(MATH_TRAIN), tokenizer, 10**6, heldout=str(MATH_500))
    data.logger.removeHandler(handler)
    return rows, [(record.levelname, record.getMessage()) for record in handler.buffer]


def test_real_training_file_loses_only_its_two_empty_answers_and_has_no_problem_of_math_500(real_math):
    rows, messages = real_math
    assert any("none of 7496 problems is in MATH-500" in message for _, message in messages)
    assert len(rows) == 7496
    assert any("7496 prompts kept, dropped {'without a gold answer': 2}" in message for _, message in messages)
    assert sum(level is None for level in rows["level"]) <= 2
    assert set(rows["level"]) - {None} == {1, 2, 3, 4, 5}
    assert len(set(rows["subject"])) == 7


def overlap_files(tmp_path):
    """Training rows of which two stand in a MATH-500 of five, one of them in another spelling."""
    held = [{"problem": f"Find ${n}+\\frac{{1}}{{2}}$ .", "answer": str(n)} for n in range(5)]
    train = [{"problem": f"Find ${n}+\\frac{{1}}{{2}}$ .", "answer": "1"} for n in (3, 7, 8)]
    train.append({"problem": "Find\n$4 + \\dfrac{1}{2}$.", "answer": "1"})
    return write_jsonl(tmp_path / "train.jsonl", train), write_jsonl(tmp_path / "held.jsonl", held)


@pytest.mark.parametrize(("drop", "kept"), [(False, 4), (True, 2)])
def test_overlap_with_math_500_is_a_warning_with_its_number(tmp_path, tokenizer, caplog, drop, kept):
    train, held = overlap_files(tmp_path)
    with caplog.at_level(logging.INFO):
        rows = data.load_math_train(train, tokenizer, 512, heldout=held, drop_overlap=drop)
    assert len(rows) == kept
    warning = next(record for record in caplog.records if "2 of 4 problems are in MATH-500" in record.getMessage())
    assert warning.levelno == logging.WARNING
    assert ("Drop them with drop_overlap" in warning.getMessage()) == (not drop)
    assert ("'also in MATH-500': 2" in caplog.text) == drop


def test_overlap_that_is_not_checked_is_a_warning_and_missing_math_500_an_error(tmp_path, tokenizer, caplog):
    train, _ = overlap_files(tmp_path)
    with caplog.at_level(logging.WARNING):
        data.load_math_train(train, tokenizer, 512)
    assert "overlap with MATH-500 not checked" in caplog.text
    with pytest.raises(ValueError, match="there is no file"):
        data.load_math_train(train, tokenizer, 512, heldout=str(tmp_path / "gone.jsonl"))


def test_a_whole_message_gets_no_suffix_and_a_question_goes_before_it(tmp_path, tokenizer):
    path = tmp_path / "own.jsonl"
    rows = [{"prompt": "3!", "answer": "6"}, {"prompt": "not asked", "problem": "1+1?", "answer": "2"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    dataset = data.load_math_train(str(path), tokenizer, 512)
    assert [prompt[0]["content"] for prompt in dataset["prompt"]] == ["3!", f"1+1?\n{BOXED_SUFFIX}"]
    path.write_text(json.dumps({"prompt": [{"role": "user", "content": "3!"}], "answer": "6"}))
    with pytest.raises(ValueError, match="must be the text of one message"):
        data.load_math_train(str(path), tokenizer, 512)
