# SPDX-License-Identifier: Apache-2.0
"""Training data of the math recipe: prompts in the paper's template, gold answers, and the columns worth logging."""

import json
import logging
from collections import Counter
from pathlib import Path
from typing import Any

from datasets import Dataset, concatenate_datasets, get_dataset_config_names, load_dataset
from transformers import PreTrainedTokenizerBase

from duet_trl.generate.markers import extract_boxed

logger = logging.getLogger(__name__)

MATH_SUFFIX = r"Please reason step by step, and put your final answer within \boxed{}."
QUESTION_COLUMNS = ("question", "problem")
SUBJECT_COLUMNS = ("subject", "type")


def load_math_train(name_or_path: str, tokenizer: PreTrainedTokenizerBase, max_prompt_length: int) -> Dataset:
    """Loads MATH-like problems as conversational prompts (paper, appendix "Prompt Templates").

    Rows whose gold answer is missing (no answer, or no closed box in the solution) and rows whose prompt is longer
    than the limit are dropped, and their numbers logged.

    Args:
        name_or_path (str): Name on the Hub, such as "EleutherAI/hendrycks_math" (all its subjects are joined), or a
            local .jsonl or .parquet file. Columns: question or problem; answer, or a solution with a box.
        tokenizer (PreTrainedTokenizerBase): Tokenizer with a chat template; measures the prompts.
        max_prompt_length (int): Most tokens of a prompt with its template.

    Returns:
        Dataset: Columns `prompt`, `answer`, `level` (int | None) and `subject` (str | None).

    Raises:
        ValueError: If a needed column or the chat template is missing, or if no row is left.
    """
    if tokenizer.chat_template is None:
        raise ValueError(
            f"the tokenizer {tokenizer.name_or_path!r} has no chat template. Use a tokenizer that has one, or set "
            "tokenizer.chat_template."
        )
    rows = _read_rows(name_or_path)
    _check_columns(rows, name_or_path)
    dropped: Counter[str] = Counter()
    kept = []
    for row in rows:
        example = _example(row)
        if not example["answer"]:
            dropped["without a gold answer"] += 1
        elif _prompt_length(example["prompt"], tokenizer) > max_prompt_length:
            dropped[f"longer than {max_prompt_length} prompt tokens"] += 1
        else:
            kept.append(example)
    logger.info("%s: %d prompts kept, dropped %s", name_or_path, len(kept), dict(dropped) or "none")
    if not kept:
        raise ValueError(f"no row of {name_or_path!r} is left: dropped {dict(dropped)} of {len(rows)}.")
    return Dataset.from_list(kept)


def math_prompt(question: str) -> list[dict[str, str]]:
    """The paper's user message: the question, a line break, the boxed-answer suffix."""
    return [{"role": "user", "content": f"{question}\n{MATH_SUFFIX}"}]


def _example(row: dict[str, Any]) -> dict[str, Any]:
    answer = row.get("answer")
    if answer is None:
        answer = extract_boxed(row.get("solution") or "", which="last")
    return {
        "prompt": math_prompt(_first(row, QUESTION_COLUMNS)),
        "answer": str(answer or "").strip(),
        "level": _level(row.get("level")),
        "subject": _first(row, SUBJECT_COLUMNS),
    }


def _read_rows(name_or_path: str) -> list[dict[str, Any]]:
    path = Path(name_or_path)
    if path.suffix in (".jsonl", ".parquet") and not path.exists():
        raise ValueError(f"there is no file {name_or_path!r}. Give an existing file or a data-set name on the Hub.")
    if path.suffix == ".jsonl":
        # Not through Arrow: it refuses a column such as `level` that holds numbers and words.
        with path.open(encoding="utf-8") as lines:
            return [json.loads(line) for line in lines if line.strip()]
    if path.suffix == ".parquet":
        return load_dataset("parquet", data_files=str(path), split="train").to_list()
    configs = get_dataset_config_names(name_or_path)
    configs = ["default"] if "default" in configs else configs
    return concatenate_datasets([load_dataset(name_or_path, config, split="train") for config in configs]).to_list()


def _check_columns(rows: list[dict[str, Any]], name_or_path: str) -> None:
    columns = sorted({column for row in rows for column in row})
    for needed in (QUESTION_COLUMNS, ("answer", "solution")):
        if not set(needed) & set(columns):
            raise ValueError(f"{name_or_path!r} has no column {' or '.join(needed)}; its columns are {columns}.")


def _first(row: dict[str, Any], columns: tuple[str, ...]) -> Any:
    return next((row[column] for column in columns if row.get(column) is not None), None)


def _level(level: Any) -> int | None:
    """5 from 5, "5" or "Level 5"; None from "Level ?"."""
    digits = "".join(character for character in str(level) if character.isdigit())
    return int(digits) if digits else None


def _prompt_length(prompt: list[dict[str, str]], tokenizer: PreTrainedTokenizerBase) -> int:
    return len(tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=True, return_dict=False))
