# SPDX-License-Identifier: Apache-2.0
r"""User messages of every training and evaluation prompt (appendix "Prompt Templates"), and what ends an answer.

The templates of the benchmarks are the paper's listings byte for byte; those of MBPP and short answers are ours
(docs/fidelity.md#prompts).
"""

from collections.abc import Iterable, Sequence

from transformers import PreTrainedTokenizerBase

BOXED_SUFFIX = r"Please reason step by step, and put your final answer within \boxed{}."
"""Last line of a math or multiple-choice prompt; the marker and the verifier look for the box it asks for."""
ANSWER_TAG_SUFFIX = "Please reason step by step, and put your final answer within <answer></answer> tags."
"""Last line of a short-answer prompt, for the marker `qa`."""
OPTION_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
MODEL_REMEDY = (
    "Check the name; of a gated model accept the terms on its page, then run `hf auth login` or set HF_TOKEN; without "
    "a network give a folder."
)
"""Remedy for a model or a tokenizer that cannot be loaded."""


def user_message(content: str) -> list[dict[str, str]]:
    """A conversational prompt: one message of the user and nothing else."""
    return [{"role": "user", "content": content}]


def boxed_prompt(question: str) -> str:
    r"""The question verbatim, a line break, the boxed-answer suffix (MATH, GSM8K, AIME, GPQA)."""
    return f"{question}\n{BOXED_SUFFIX}"


def function_prompt(task: str, entry_point: str) -> str:
    """The fenced-code wrapper of HumanEval around a task (HumanEval: the stub of the function, verbatim)."""
    return (
        f"Write a Python function to solve the following task.\n\n{task}\n\nThe function must be named "
        f"`{entry_point}`. Return ONLY the Python code inside a single ```python ... ``` fenced block."
    )


def function_prompt_with_example(task: str, example_test: str, entry_point: str) -> str:
    """HumanEval's wrapper around a task in words and one of its tests, which shows the arguments (MBPP)."""
    return function_prompt(f"{task}\nFor example, this must hold: `{example_test}`", entry_point)


def short_answer_prompt(question: str, context: str = "") -> str:
    """An optional passage, the question, a line break, the suffix that asks for answer tags (SciQ)."""
    passage = f"{context}\n\n" if context else ""
    return f"{passage}{question}\n{ANSWER_TAG_SUFFIX}"


def multiple_choice_question(question: str, options: Sequence[str]) -> str:
    """The question, a blank line, and one line per option (at most 26): "A) first", "B) second" and so on."""
    lines = [f"{letter}) {option}" for letter, option in zip(OPTION_LETTERS, options, strict=False)]
    return "\n".join([question, "", *lines])


def require_chat_template(tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise ValueError unless the tokenizer can render conversational prompts."""
    if tokenizer.chat_template is None:
        raise ValueError(
            f"the tokenizer {tokenizer.name_or_path!r} has no chat template, and all prompts are "
            "messages. Add a chat_template to its files (that of the instruct model of the family), or set "
            "tokenizer.chat_template."
        )


def end_of_turn_id(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Id of the special token that the chat template writes after an assistant's message; None if there is none."""
    require_chat_template(tokenizer)
    turn = [{"role": "user", "content": "question"}, {"role": "assistant", "content": "answer"}]
    behind = tokenizer.apply_chat_template(turn, tokenize=False).rpartition("answer")[2]
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    ids = tokenizer(behind, add_special_tokens=False)["input_ids"]
    first = next((token for token in ids if token in special or tokenizer.decode([token]).strip()), None)
    return first if first in special else None


def eos_token_ids(tokenizer: PreTrainedTokenizerBase, declared: int | Iterable[int] | None = None) -> tuple[int, ...]:
    """All ids that end a completion, the tokenizer's own EOS first, each once.

    They are those of the tokenizer, those that the model's generation configuration declares (`declared`), and the end
    of turn of the chat template: a base model declares only its end of text, and would continue with an invented user.
    ValueError if the tokenizer has no chat template, or nothing ends a completion.
    """
    of_model = [declared] if isinstance(declared, int) else list(declared or [])
    found = [tokenizer.eos_token_id, *of_model, end_of_turn_id(tokenizer)]
    ends = tuple(dict.fromkeys(token for token in found if token is not None))
    if not ends:
        raise ValueError(
            f"nothing ends a completion of {tokenizer.name_or_path!r}: neither tokenizer nor model nor chat template "
            "names an end. Set tokenizer.eos_token."
        )
    return ends


def until_eos(ids: Sequence[int], eos_ids: Iterable[int]) -> list[int]:
    """A completion up to its first end, which is kept."""
    ends = frozenset(eos_ids)
    position = next((index for index, token in enumerate(ids) if token in ends), len(ids))
    return list(ids[: position + 1])
