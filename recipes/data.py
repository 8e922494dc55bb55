# SPDX-License-Identifier: Apache-2.0
"""Training data of the recipes: prompts in the paper's templates, golds or unit tests, and columns worth logging.

Every loader takes a name on the Hub or a local .jsonl, .json, .parquet or .csv file, drops what cannot be graded and
prompts that are too long, and reports how many.
"""

import ast
import logging
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from duet_trl.evaluation.prompts import (
    boxed_prompt,
    function_prompt_with_example,
    require_chat_template,
    short_answer_prompt,
    user_message,
)
from duet_trl.evaluation.suites import ALL_CONFIGS, check_columns, final_answer, first_column, load_suite, read_rows
from duet_trl.gate.markers import extract_boxed
from duet_trl.rewards.code_tests import names_under_test

logger = logging.getLogger(__name__)

Row = dict[str, Any]


MATH = "EleutherAI/hendrycks_math"
MBPP, MBPP_CONFIG = "google-research-datasets/mbpp", "full"
SCIQ = "allenai/sciq"
QUESTION_COLUMNS = ("question", "problem")
MESSAGE_COLUMN = "prompt"
"""The whole message of the user, where a file has no question."""
SUBJECT_COLUMNS = ("subject", "type")
TASK_COLUMNS = ("text", "prompt")
MBPP_TRAINING_IDS = range(601, 975)
"""The published split: 1-10 are examples for prompts, 11-510 the test set, 511-600 for validation."""
MBPP_LAST_IDS = (974, 809)
"""Last task of a file that holds all splits of MBPP, whole and sanitized."""


def load_math_train(
    name_or_path: str,
    tokenizer: PreTrainedTokenizerBase,
    max_prompt_length: int,
    chat_template_kwargs: dict[str, Any] | None = None,
    heldout: str | None = None,
    drop_overlap: bool = False,
) -> Dataset:
    """MATH-like problems with gold answers (marker and reward: math).

    Args:
        name_or_path (str): Name on the Hub, such as "EleutherAI/hendrycks_math" (all its subjects are joined), or a
            local file. Columns: question or problem, or prompt for the whole message of the user, without our suffix;
            answer (also in GSM8K's form, after ####), or a solution with a box.
        tokenizer (PreTrainedTokenizerBase): Tokenizer with a chat template; measures the prompts.
        max_prompt_length (int): Maximum tokens of a prompt with its template.
        chat_template_kwargs (dict[str, Any] | None): What training renders the chat template with.
        heldout (str | None): Where MATH-500 is, on the Hub or a local file: problems that are there too are
            counted and reported. None: not checked, which is reported as well.
        drop_overlap (bool): Whether to leave such problems out.

    Returns:
        Dataset: Columns `prompt`, `answer`, `level` (int | None) and `subject` (str | None).

    Raises:
        ValueError: If a needed column or the chat template is missing, or if no row is left.
        PermissionError: If a data set is gated and this machine has no access.
        ConnectionError: If a data set cannot be fetched.
    """
    rows = _read(name_or_path, ALL_CONFIGS, tokenizer)
    asked = (*QUESTION_COLUMNS, MESSAGE_COLUMN)
    check_columns(rows, name_or_path, asked, ("answer", "solution"))
    dropped: Counter[str] = Counter()
    examples = [_math_example(row) for row in _with_text(rows, asked, dropped)]
    gradable = [example for example in examples if example["answer"]]
    dropped["without a gold answer"] = len(examples) - len(gradable)
    if heldout is None:
        logger.warning("%s: overlap with MATH-500 not checked. Give its name or file as heldout.", name_or_path)
    else:
        kept = _without_overlap(gradable, heldout, name_or_path, drop_overlap)
        dropped["also in MATH-500"] = len(gradable) - len(kept)
        gradable = kept
    return _finish(name_or_path, gradable, dropped, tokenizer, max_prompt_length, chat_template_kwargs)


def load_code_train(
    name_or_path: str,
    tokenizer: PreTrainedTokenizerBase,
    max_prompt_length: int,
    chat_template_kwargs: dict[str, Any] | None = None,
) -> Dataset:
    """MBPP-like tasks with unit tests (marker and reward: code). One of the tests is part of the prompt.

    As `load_math_train`, but for the columns of a file: text or prompt; test_list; test_setup_code or test_imports.

    Returns:
        Dataset: Columns `prompt`, `test_list`, `test_setup_code`, `entry_point` and `task_id`.
    """
    rows = _read(name_or_path, MBPP_CONFIG if name_or_path == MBPP else None, tokenizer)
    check_columns(rows, name_or_path, TASK_COLUMNS, ("test_list",))
    dropped: Counter[str] = Counter()
    own = _training_split_of_mbpp(rows)
    dropped["of another split of MBPP"] = len(rows) - len(own)
    own = _with_text(own, TASK_COLUMNS, dropped)
    examples = [example for row in own if (example := _code_example(row)) is not None]
    dropped["whose tests call no function"] = len(own) - len(examples)
    return _finish(name_or_path, examples, dropped, tokenizer, max_prompt_length, chat_template_kwargs)


def load_qa_train(
    name_or_path: str,
    tokenizer: PreTrainedTokenizerBase,
    max_prompt_length: int,
    chat_template_kwargs: dict[str, Any] | None = None,
) -> Dataset:
    """SciQ-like questions with short answers (marker: qa, reward: choice).

    As `load_math_train`, but for the columns of a file: question; correct_answer or answer.

    Returns:
        Dataset: Columns `prompt` and `answer`.
    """
    rows = _read(name_or_path, None, tokenizer)
    check_columns(rows, name_or_path, ("question",), ("correct_answer", "answer"))
    dropped: Counter[str] = Counter()
    asked = _with_text(rows, ("question",), dropped)
    answers = [_text(first_column(row, ("correct_answer", "answer"))) for row in asked]
    examples = [
        {"prompt": user_message(short_answer_prompt(row["question"])), "answer": answer}
        for row, answer in zip(asked, answers, strict=True)
        if answer
    ]
    dropped["without a gold answer"] = len(asked) - len(examples)
    return _finish(name_or_path, examples, dropped, tokenizer, max_prompt_length, chat_template_kwargs)


def math_prompt(question: str) -> list[dict[str, str]]:
    """The paper's user message: the question, a line break, the boxed-answer suffix."""
    return user_message(boxed_prompt(question))


def normalized_problem(text: str) -> str:
    """A problem without what differs between copies of it: blanks, dollar signs, sizes of fractions and brackets."""
    text = re.sub(r"\\(?:left|right|displaystyle|[,;:! ])|[\s$~]", "", text)
    return re.sub(r"\\[dt]frac", r"\\frac", text).casefold()


def _read(name_or_path: str, config: str | None, tokenizer: PreTrainedTokenizerBase) -> list[Row]:
    require_chat_template(tokenizer)
    return read_rows(name_or_path, config=config, split="train")


def _with_text(rows: list[Row], columns: Sequence[str], dropped: Counter[str]) -> list[Row]:
    """The rows with a text in one of these columns; counts the others."""
    kept = [row for row in rows if _text(first_column(row, columns))]
    dropped[f"without a {columns[0]}"] = len(rows) - len(kept)
    return kept


def _text(value: Any) -> str:
    """A value without blanks around it; a gold may be the number 0."""
    return "" if value is None else str(value).strip()


def _math_example(row: Row) -> Row:
    answer = row.get("answer")
    if answer is None:
        answer = extract_boxed(row.get("solution") or "", which="last")
    elif "####" in str(answer):
        answer = final_answer(str(answer))
    question = first_column(row, QUESTION_COLUMNS)
    return {
        "prompt": user_message(_message(row)) if question is None else math_prompt(question),
        "answer": _text(answer),
        "level": _level(row.get("level")),
        "subject": first_column(row, SUBJECT_COLUMNS),
    }


def _message(row: Row) -> str:
    """The user's message of a row without a question."""
    message = row[MESSAGE_COLUMN]
    if not isinstance(message, str):
        raise ValueError(f"a prompt must be the text of one message, got {message!r}.")
    return message


def _level(level: Any) -> int | None:
    """5 from 5, 5.0, "5" or "Level 5"; None from "Level ?"."""
    digits = re.search(r"\d+", str(level))
    return int(digits[0]) if digits else None


def _without_overlap(examples: list[Row], heldout: str, name: str, drop: bool) -> list[Row]:
    """The examples, less those of MATH-500 if they are to be dropped; reports how many there are."""
    own = {normalized_problem(_content(problem)) for problem in load_suite("math500", heldout)}
    kept = [example for example in examples if normalized_problem(_content(example)) not in own]
    if len(kept) == len(examples):
        logger.info("%s: none of %d problems is in MATH-500 (%s)", name, len(examples), heldout)
        return examples
    logger.warning(
        "%s: %d of %d problems are in MATH-500 (%s) too: %s",
        name,
        len(examples) - len(kept),
        len(examples),
        heldout,
        "they are dropped." if drop else "training on them spoils its figures. Drop them with drop_overlap.",
    )
    return kept if drop else examples


def _training_split_of_mbpp(rows: list[Row]) -> list[Row]:
    """The rows; of a file with all splits of MBPP, those for training."""
    ids = [row.get("task_id") for row in rows]
    if not all(isinstance(number, int) for number in ids) or max(ids, default=0) not in MBPP_LAST_IDS:
        return rows
    return [row for row in rows if row["task_id"] in MBPP_TRAINING_IDS]


def _code_example(row: Row) -> Row | None:
    """A task of MBPP, or None if it is unclear which function its tests call."""
    tests = [test.replace("\r\n", "\n").strip() for test in row["test_list"] or []]
    setup = row.get("test_setup_code") or row.get("test_imports") or ""
    setup = (setup if isinstance(setup, str) else "\n".join(setup)).replace("\r\n", "\n")
    entry_point = _entry_point(tests, setup)
    if entry_point is None:
        return None
    task = first_column(row, TASK_COLUMNS).strip()
    return {
        "prompt": user_message(function_prompt_with_example(task, tests[0], entry_point)),
        "test_list": tests,
        "test_setup_code": setup,
        "entry_point": entry_point,
        "task_id": str(row.get("task_id") or ""),
    }


def _entry_point(tests: list[str], setup: str) -> str | None:
    """The outermost function of the first test that only the program under test can define."""
    try:
        names = names_under_test(tests, [setup])
        nodes = list(ast.walk(ast.parse(tests[0])))  # outermost first
    except (SyntaxError, IndexError):
        return None
    called = [node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    return next((name for name in called if name in names), None)


def prompt_length(
    prompt: list[dict[str, str]],
    tokenizer: PreTrainedTokenizerBase,
    chat_template_kwargs: dict[str, Any] | None = None,
) -> int:
    """Tokens of a prompt with its chat template."""
    kwargs = chat_template_kwargs or {}
    ids = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=True, return_dict=False, **kwargs)
    return len(ids)


def _finish(
    name: str,
    examples: list[Row],
    dropped: Counter[str],
    tokenizer: PreTrainedTokenizerBase,
    max_prompt_length: int,
    chat_template_kwargs: dict[str, Any] | None,
) -> Dataset:
    """The examples whose prompts are short enough; reports what was dropped on the way."""
    lengths = [prompt_length(example["prompt"], tokenizer, chat_template_kwargs) for example in examples]
    kept = [example for example, length in zip(examples, lengths, strict=True) if length <= max_prompt_length]
    dropped[f"longer than {max_prompt_length} prompt tokens"] = len(examples) - len(kept)
    reasons = {reason: number for reason, number in dropped.items() if number}
    logger.info("%s: %d prompts kept, dropped %s", name, len(kept), reasons or "none")
    if not kept:
        raise ValueError(f"no row of {name!r} is left: dropped {reasons}.")
    return Dataset.from_list(kept)


def _content(example: Row) -> str:
    return example["prompt"][0]["content"]
