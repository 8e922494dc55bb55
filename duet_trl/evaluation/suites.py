# SPDX-License-Identifier: Apache-2.0
"""Rows of a data set, and the suites: the paper's five benchmarks and your own files; prompts, golds, graders.

Rows come from the Hub or from a local file with the same columns.
"""

import csv
import hashlib
import io
import json
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from datasets import Dataset, concatenate_datasets, get_dataset_config_names, load_dataset

from .prompts import OPTION_LETTERS, boxed_prompt, function_prompt, multiple_choice_question, user_message

logger = logging.getLogger(__name__)

Row = dict[str, Any]

FILE_SUFFIXES = (".jsonl", ".json", ".parquet", ".csv")
ALL_CONFIGS = "*"
"""As `config`: every configuration of a data set, one after another (the subjects of MATH)."""
MATH_COLUMNS = (("problem", "question", "Problem"), ("answer", "Answer"))
OWN_COLUMNS = (("problem", "question", "prompt"), ("answer",))
"""Columns that your own suite needs: a question, or in `prompt` the whole message of the user, without our suffix."""
OPTION_SEED = 42
"""Seed of the order in which GPQA's options are shown."""
GPQA_OPTIONS = ("Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")


@dataclass(frozen=True)
class Suite:
    """One benchmark."""

    title: str  # its name in tables
    hub_id: str  # data set on the Hub
    columns: tuple[tuple[str, ...], ...]  # columns it needs, each with its alternative names
    # makes a problem of a row: user message and what the grader needs
    problem: Callable[[Row], Row] = field(repr=False)
    split: str = "test"  # split on the Hub
    config: str | None = None  # configuration on the Hub
    grader: Literal["math", "code", "choice"] = "math"  # reward function that its columns are made for
    num_problems: int | None = None  # problems that the benchmark has; None: your own file


def load_suite(name: str, source: str | None = None) -> Dataset:
    """The problems of a benchmark, ready for generation and for its reward function.

    Args:
        name (str): A key of `SUITES`, or a name for your own file: it is graded as boxed math.
        source (str | None): A local .jsonl, .json, .parquet or .csv file, a folder, or another name on the Hub; None:
            the suite's own place on the Hub. Your own suite is a file.

    Returns:
        Dataset: Columns `id` (str) and `prompt` (one user message), and what the grader takes: `answer` (math), also
        `options` (choice), or `test`, `entry_point` and `code_prompt` (code).

    Raises:
        ValueError: If the name is unknown and no file is given, or the source is missing, empty, without a needed
            column, or with a row that has nothing in it.
        PermissionError, ConnectionError: As `read_rows`.
    """
    check_suite(name, source)
    suite = suite_named(name)
    place = source or suite.hub_id
    rows = read_rows(place, config=suite.config if place == suite.hub_id else None, split=suite.split)
    check_columns(rows, place, *suite.columns)
    problems = []
    for number, row in enumerate(rows):
        for names in suite.columns:
            if first_column(row, names) is None:
                raise ValueError(f"row {number} of {place!r} has no {' or '.join(names)}. Complete or remove it.")
        problem = suite.problem(row)
        problems.append(problem | {"id": str(problem["id"] or number), "prompt": user_message(problem["prompt"])})
    if suite.num_problems not in (None, len(problems)):
        logger.warning(
            f"{suite.title} from {place} is not the published benchmark: it has {len(problems)} problems instead of "
            f"{suite.num_problems}. Its figures may not be comparable."
        )
    return Dataset.from_list(problems)


def suite_named(name: str) -> Suite:
    """The suite of this name; a name that is not in `SUITES` is your own suite, whose title is its name."""
    return SUITES.get(name) or Suite(name, "", OWN_COLUMNS, _math_problem, split="train")


def check_suite(name: str, source: str | None) -> None:
    """Raise ValueError unless a suite is one of `SUITES`, or your own file under a name that a file may have."""
    if name in SUITES:
        return
    if source is None or Path(source).suffix not in FILE_SUFFIXES:
        raise ValueError(
            f"unknown suite {name!r}. Choose one of {', '.join(SUITES)}, or give a local file of your own "
            f"({', '.join(FILE_SUFFIXES)}), {name}=<file>; got {source}."
        )
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise ValueError(f"a suite's name may have letters, digits, '_', '-' and '.' only, got {name!r}.")


def read_rows(source: str, *, config: str | None = None, split: str = "train") -> list[Row]:
    """All rows of a data set in their order, one dictionary of columns each.

    Args:
        source (str): A local .jsonl, .json, .parquet or .csv file, a local folder in a layout that `datasets` knows,
            or a name on the Hub.
        config (str | None): Configuration of a data set on the Hub; `ALL_CONFIGS` joins all of them.
        split (str): Split of a data set on the Hub or in a folder; a file is one split.

    Raises:
        ValueError: If there is no such file, or its content does not match its name.
        PermissionError: If the data set is gated and the machine's token has no access.
        ConnectionError: If the Hub does not give it, and it is not in the cache.
    """
    path = Path(source)
    if path.suffix in FILE_SUFFIXES:
        if not path.is_file():
            raise ValueError(f"there is no file {source!r}. Give an existing file or a data-set name on the Hub.")
        return _read_file(path)
    try:
        if config == ALL_CONFIGS:
            names = get_dataset_config_names(source)
            # These hold the whole; "main" has GSM8K, whose other configuration repeats it in other words.
            names = next(([name] for name in ("default", "main") if name in names), names)
            return concatenate_datasets([load_dataset(source, name, split=split) for name in names]).to_list()
        return load_dataset(source, config, split=split).to_list()
    except OSError as error:  # also the base of the Hub's own errors
        kind = PermissionError if "gated" in str(error).lower() else ConnectionError
        raise kind(
            f"the data set {source!r} cannot be read: {error} Check its name and the network (HF_HUB_OFFLINE). Of a "
            f"gated one accept the terms on https://huggingface.co/datasets/{source} and run `hf auth login` or set "
            "HF_TOKEN. Or give the path of a local .jsonl or .parquet file."
        ) from error


def _read_file(path: Path) -> list[Row]:
    if path.suffix == ".parquet":
        return load_dataset("parquet", data_files=str(path), split="train").to_list()
    try:
        text = path.read_text(encoding="utf-8-sig")  # programs on Windows begin UTF-8 with a mark
        if path.suffix == ".csv":  # every cell as it is written: read as numbers, 007 and long decimals would change
            cells = list(csv.DictReader(io.StringIO(text, newline="")))
            if any(None in row for row in cells):
                raise ValueError("a row has more cells than there are columns; put quotes around commas")
            return [{column: cell or None for column, cell in row.items()} for row in cells]
        if not text.lstrip().startswith("["):  # a row per line; str.splitlines would also split at U+2028 in a text
            text = "[" + ",\n".join(line for line in text.split("\n") if line.strip()) + "]"
        rows = json.loads(text)  # not by Arrow, which turns a column of 0 and 0.5 into 0.0 and 0.5
    except (ValueError, csv.Error) as error:
        raise ValueError(
            f"{str(path)!r} cannot be read: {error}. It must be in UTF-8; JSON is one object per line, or a list of "
            "objects."
        ) from error
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{str(path)!r} must hold objects with columns.")
    return rows


def first_column(row: Row, columns: Sequence[str]) -> Any:
    """Value of the first of these columns that the row has, None if it has none."""
    return next((row[column] for column in columns if row.get(column) is not None), None)


def check_columns(rows: list[Row], source: str, *needed: Sequence[str]) -> None:
    """Raise ValueError unless there are rows with a column of each group of alternative names."""
    if not rows:
        raise ValueError(f"{source!r} has no rows.")
    columns = sorted({column for row in rows for column in row})
    for names in needed:
        if not set(names) & set(columns):
            raise ValueError(f"{source!r} has no column {' or '.join(names)}; its columns are {columns}.")


def final_answer(solution: str) -> str:
    """The gold after the last #### of a solution in GSM8K's form, without commas between thousands."""
    return solution.rpartition("####")[2].strip().replace(",", "")


def _math_problem(row: Row) -> Row:
    question, message = first_column(row, MATH_COLUMNS[0]), row.get("prompt")
    if question is None and not isinstance(message, str):
        raise ValueError(f"a prompt must be the text of one message, got {message!r}.")
    return {
        "id": first_column(row, ("unique_id", "id", "task_id", "ID")),
        "prompt": message if question is None else boxed_prompt(question),
        "answer": str(first_column(row, MATH_COLUMNS[1])).strip(),
    }


def _aime_problem(row: Row) -> Row:
    """Answers are integers from 0 to 999, which some copies pad with zeros and some tables hold as 33.0."""
    problem = _math_problem(row)
    return problem | {"answer": problem["answer"].removesuffix(".0").lstrip("0") or "0"}


def _gsm8k_problem(row: Row) -> Row:
    return _math_problem(row) | {"answer": final_answer(str(row["answer"]))}


def _humaneval_problem(row: Row) -> Row:
    problem = {"id": row.get("task_id"), "prompt": function_prompt(row["prompt"], row["entry_point"])}
    return problem | {"test": row["test"], "entry_point": row["entry_point"], "code_prompt": row["prompt"]}


def _gpqa_problem(row: Row) -> Row:
    question, correct = row["Question"].strip(), str(row["Correct Answer"]).strip()
    key = str(row.get("Record ID") or question)
    # In an order that the question's key decides, so that other rows do not matter.
    ranks = [hashlib.sha256(f"{OPTION_SEED}/{key}/{index}".encode()).digest() for index in range(len(GPQA_OPTIONS))]
    texts = [str(row[column]).strip() for column in GPQA_OPTIONS]
    options = [option for _, option in sorted(zip(ranks, texts, strict=True))]
    return {
        "id": row.get("Record ID"),
        "prompt": boxed_prompt(multiple_choice_question(question, options)),
        "answer": OPTION_LETTERS[options.index(correct)],
        "options": options,
    }


_GSM8K = (("question",), ("answer",))
_HUMANEVAL = (("prompt",), ("entry_point",), ("test",))
_GPQA = (("Question",), *((column,) for column in GPQA_OPTIONS))

SUITES: dict[str, Suite] = {
    "math500": Suite("MATH-500", "HuggingFaceH4/MATH-500", MATH_COLUMNS, _math_problem, num_problems=500),
    "gsm8k": Suite("GSM8K", "openai/gsm8k", _GSM8K, _gsm8k_problem, config="main", num_problems=1319),
    "aime2024": Suite(
        "AIME-2024", "HuggingFaceH4/aime_2024", MATH_COLUMNS, _aime_problem, split="train", num_problems=30
    ),
    "humaneval": Suite(
        "HumanEval", "openai/openai_humaneval", _HUMANEVAL, _humaneval_problem, grader="code", num_problems=164
    ),
    "gpqa_diamond": Suite(
        "GPQA-Diamond", "Idavidrein/gpqa", _GPQA, _gpqa_problem, "train", "gpqa_diamond", "choice", num_problems=198
    ),
}
"""The suites by name."""
