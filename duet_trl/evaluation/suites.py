# SPDX-License-Identifier: Apache-2.0
"""Rows of a data set, and the suites: the paper's five benchmarks and files of one's own; prompts, golds, graders.

Rows come from the Hub or from a local file with the same columns. Number of problems and a checksum over prompts and
golds are compared with what is recorded here: another file of the same name is a different benchmark.
"""

import csv
import hashlib
import io
import json
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from datasets import Dataset, concatenate_datasets, get_dataset_config_names, load_dataset

from .prompts import OPTION_LETTERS, boxed_prompt, function_prompt, multiple_choice_question, user_message

logger = logging.getLogger(__name__)

Row = dict[str, Any]

FILE_READERS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}
"""Suffixes of local files and the reader of each."""
ALL_CONFIGS = "*"
"""As `config`: every configuration of a data set, one after another (the subjects of MATH)."""
MATH_COLUMNS = (("problem", "question", "Problem"), ("answer", "Answer"))
OWN_COLUMNS = (("problem", "question", "prompt"), ("answer",))
"""What a suite of one's own needs: a question, or in `prompt` the whole message of the user, without our suffix."""
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
    num_problems: int | None = None  # problems that the benchmark has; None: a file of one's own
    checksum: str | None = None  # over the published prompts and golds; None where it may not be derived from them


def load_suite(name: str, source: str | None = None) -> Dataset:
    """The problems of a benchmark, ready for generation and for its reward function.

    Args:
        name (str): A key of `SUITES`, or a name for a file of one's own: it is graded as boxed math.
        source (str | None): A local .jsonl, .json, .parquet or .csv file, a folder, or another name on the Hub; None:
            the suite's own place on the Hub. A suite of one's own is a file.

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
    _compare(suite, problems, place)
    return Dataset.from_list(problems)


def suite_named(name: str) -> Suite:
    """The suite of this name; a name that is not in `SUITES` is one of one's own, whose title is its name."""
    return SUITES.get(name) or Suite(name, "", OWN_COLUMNS, _math_problem, split="train")


def check_suite(name: str, source: str | None) -> None:
    """Raise ValueError unless a suite is one of `SUITES`, or a file of one's own under a name that may be a file's."""
    if name in SUITES:
        return
    if source is None:
        raise ValueError(
            f"unknown suite {name!r}. Choose one of {', '.join(SUITES)}, or give the file of your own: {name}=<file>."
        )
    if Path(source).suffix not in FILE_READERS:
        raise ValueError(
            f"{name!r} is no known suite, so {source!r} must be a local file: {', '.join(FILE_READERS)}. "
            f"Known suites: {', '.join(SUITES)}."
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
        ValueError: If there is no such file, or it is not what its name says.
        PermissionError: If the data set is gated and the machine's token has no access.
        ConnectionError: If the Hub does not give it, and it is not in the cache.
    """
    path = Path(source)
    if path.suffix in FILE_READERS:
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


def content_checksum(pairs: Iterable[tuple[str, str]]) -> str:
    """SHA-256 over (prompt, gold) pairs, independent of file format, of other columns and of the order of rows."""
    lines = sorted(json.dumps(pair, ensure_ascii=True) for pair in pairs)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def final_answer(solution: str) -> str:
    """The gold behind the last #### of a solution in GSM8K's form, without commas between thousands."""
    return solution.rpartition("####")[2].strip().replace(",", "")


def shuffled_options(key: str, options: Sequence[str]) -> list[str]:
    """The options in an order that the question's key decides, so that other rows do not matter."""
    ranks = [hashlib.sha256(f"{OPTION_SEED}/{key}/{index}".encode()).digest() for index in range(len(options))]
    return [option for _, option in sorted(zip(ranks, options, strict=True))]


def _read_file(path: Path) -> list[Row]:
    if path.suffix == ".parquet":
        return load_dataset("parquet", data_files=str(path), split="train").to_list()
    try:
        text = path.read_text(encoding="utf-8-sig")  # programs on Windows begin UTF-8 with a mark
    except UnicodeDecodeError as error:
        raise ValueError(f"{str(path)!r} is not in UTF-8: {error}. Save it as UTF-8.") from error
    if path.suffix == ".csv":
        return _csv_rows(text, path)
    # Not through Arrow: it refuses a column such as `level` that holds numbers and words.
    if text.lstrip().startswith("["):
        rows = _parsed(text, path)
    else:  # one row per line, which `Dataset.to_json` writes to a .json too
        lines = enumerate(text.split("\n"), start=1)  # str.splitlines would also split at U+2028 in a string
        rows = [_parsed(line, path, number) for number, line in lines if line.strip()]
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            kind = type(row).__name__
            raise ValueError(f"{str(path)!r} must hold objects with columns, got {kind} as row {number}.")
    return rows


def _csv_rows(text: str, path: Path) -> list[Row]:
    """Rows of a CSV file, every cell as it is written: read as numbers, 007 and long decimals would change."""
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    for number, row in enumerate(rows):
        if None in row:
            raise ValueError(f"{str(path)!r} has more cells than columns in row {number}. Put quotes around commas.")
    return [{column: cell or None for column, cell in row.items()} for row in rows]


def _parsed(text: str, path: Path, line: int = 1) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"line {line + error.lineno - 1}, column {error.colno}: {error.msg}"
        remedy = "It must hold one object per line, or a list of objects."
        raise ValueError(f"{str(path)!r} is no JSON in {place}. {remedy}") from error


def _compare(suite: Suite, problems: Sequence[Row], place: str) -> None:
    columns = ("test", "entry_point") if suite.grader == "code" else ("answer",)
    checksum = content_checksum(
        (problem["prompt"][0]["content"], "\n".join(problem[column] for column in columns)) for problem in problems
    )
    logger.info("%s: %d problems from %s", suite.title, len(problems), place)
    if suite.num_problems not in (None, len(problems)) or suite.checksum not in (None, checksum):
        logger.warning(
            f"{suite.title} from {place} is not the published benchmark: {len(problems)} problems, SHA-256 over "
            f"prompts and golds {checksum}; published: {suite.num_problems} problems, SHA-256 "
            f"{suite.checksum or 'not on record'}. Its figures may not be comparable."
        )


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
    options = shuffled_options(key, [str(row[column]).strip() for column in GPQA_OPTIONS])
    return {
        "id": row.get("Record ID"),
        "prompt": boxed_prompt(multiple_choice_question(question, options)),
        "answer": OPTION_LETTERS[options.index(correct)],
        "options": options,
    }


SUITES: dict[str, Suite] = {
    "math500": Suite(
        "MATH-500",
        "HuggingFaceH4/MATH-500",
        MATH_COLUMNS,
        _math_problem,
        num_problems=500,
        checksum="c1a9260d3cb56f22d62503dd24aabf9ded322d379c2651318c6d3aaec09cc0a6",
    ),
    "gsm8k": Suite(
        "GSM8K",
        "openai/gsm8k",
        (("question",), ("answer",)),
        _gsm8k_problem,
        config="main",
        num_problems=1319,
        checksum="18cd8c26ef367268b96140b81f9948f4aaf94f9ef47608e1b6408380d65cce9e",
    ),
    "aime2024": Suite(
        "AIME-2024",
        "HuggingFaceH4/aime_2024",
        MATH_COLUMNS,
        _aime_problem,
        split="train",
        num_problems=30,
        checksum="f0ada689b2f22d32f4acaeadb03335568258c8b8a47f754f121eeb4cde0ca7b5",
    ),
    "humaneval": Suite(
        "HumanEval",
        "openai/openai_humaneval",
        (("prompt",), ("entry_point",), ("test",)),
        _humaneval_problem,
        grader="code",
        num_problems=164,
        checksum="02ac946ce5aeef693d02d695e1d1e230702af33c096b87c244cc635ba3e102ca",
    ),
    "gpqa_diamond": Suite(
        "GPQA-Diamond",
        "Idavidrein/gpqa",
        (("Question",), *((column,) for column in GPQA_OPTIONS)),
        _gpqa_problem,
        split="train",
        config="gpqa_diamond",
        grader="choice",
        num_problems=198,
    ),
}
"""The suites by name."""
