# SPDX-License-Identifier: Apache-2.0
r"""User messages of every training and evaluation prompt (appendix "Prompt Templates").

A prompt is one message of the user, without a system message; the tokenizer's own chat template goes around it. The
templates of the benchmarks are the paper's listings byte for byte. The paper has none for MBPP and for short answers:
those two are ours, in the form of its own (docs/fidelity.md#prompts).
"""

from collections.abc import Sequence

BOXED_SUFFIX = r"Please reason step by step, and put your final answer within \boxed{}."
"""Last line of a math or multiple-choice prompt; the marker and the verifier look for the box it asks for."""
ANSWER_TAG_SUFFIX = "Please reason step by step, and put your final answer within <answer></answer> tags."
"""Last line of a short-answer prompt, for the marker `qa`."""
OPTION_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


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
    """The question, a blank line, and one line per option: "A) first", "B) second" and so on.

    Args:
        question (str): The question.
        options (Sequence[str]): Options in the order in which they are shown, at most 26.

    Returns:
        str: The text that `boxed_prompt` takes.
    """
    lines = [f"{letter}) {option}" for letter, option in zip(OPTION_LETTERS, options, strict=False)]
    return "\n".join([question, "", *lines])
