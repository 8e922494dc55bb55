# SPDX-License-Identifier: Apache-2.0
"""Which rollouts of a step give the same answer, for methods that ask: `Rollouts.answer_class`."""

from typing import Any

import numpy as np

from ..exchange import Exchange
from ..rewards.answers import AnswerVerifier, answer_classes
from ..rewards.completions import WRITTEN
from ..step_record import StepRecord
from .answer_region import Thoughts


def answer_verifier(reward_funcs: Any) -> AnswerVerifier:
    """The first reward function that can compare answers.

    Args:
        reward_funcs (Any): As a trainer is given them: one, a list, or None.

    Raises:
        ValueError: If none of them can.
    """
    given = reward_funcs if isinstance(reward_funcs, list | tuple) else [reward_funcs]
    for one in given:
        # A class has the functions of its objects.
        if isinstance(one, AnswerVerifier) and not isinstance(one, type):
            return one
    raise ValueError(
        f"this method compares the answers of rollouts, and no reward function can: {given}. Pass an object such as "
        "duet_trl.rewards.MathVerifier() (in place of the function math_reward) or ChoiceVerifier(), or give one of "
        "yours the two functions of duet_trl.rewards.AnswerVerifier."
    )


def classes_of_step(step: StepRecord, verifier: AnswerVerifier, thoughts: Thoughts, exchange: Exchange) -> np.ndarray:
    """Class of each rollout's answer within its prompt, shape (N,), the same on every process; -1: no answer."""
    local = list(step.local.values())
    opened = thoughts.open_after([one.prompt_ids for one in local])
    completions = [one.completion for one in local]
    examples = [step.prompts[step.jobs[row].prompt].example for row in step.local]
    rows = thoughts.shown_to_rewards(examples, opened, completions, [one.completion_ids for one in local])
    columns = {name: [row[name] for row in rows] for name in (*(examples[0] if examples else ()), WRITTEN)}
    columns.pop("prompt", None)
    answers = exchange.in_order(step.rows, verifier.answers(completions, **columns))

    def decide() -> np.ndarray | None:
        return answer_classes(answers, step.done.prompt, verifier.equivalent) if exchange.process_index == 0 else None

    # One process decides: a verifier with a time limit may differ from one to the next.
    return exchange.first(exchange.fail_together(decide))
