# SPDX-License-Identifier: Apache-2.0
"""With method="grpo", what ends rollouts by rules of its own runs as in GRPOTrainer."""

import random
from pathlib import Path

import pytest
import trl
from transformers import AutoTokenizer

from tests.runs import check_grpo_loss_for_loss, count_fours, duet_trainer, logged, prompts

GRPO = {"method": "grpo"}


def scripted_rollouts(prompts, trainer):
    """Rollouts of another engine: tokens of the prompts' own, some with feedback that is not trained on."""
    draw = random.Random(trainer.state.global_step)
    prompt_ids = [trainer.processing_class(prompt)["input_ids"] for prompt in prompts]
    completions = [[draw.randrange(300) for _ in range(draw.randint(2, 9))] for _ in prompts]
    masks = [[1] + [draw.randrange(2) for _ in ids[1:]] for ids in completions]
    return {"prompt_ids": prompt_ids, "completion_ids": completions, "logprobs": None, "env_mask": masks}


def lookup(word: str) -> str:
    """
    Look a word up.

    Args:
        word: The word.

    Returns:
        Its meaning.
    """
    return f"meaning of {word}"


class Room:
    """An environment with a tool and a prompt of its own."""

    def reset(self, **kwargs) -> str:
        return "You are in a room."

    def look(self) -> str:
        """
        Look around.

        Returns:
            What there is to see.
        """
        return "Nothing."


def test_a_rollout_function(tiny_path, tmp_path):
    _, duet = check_grpo_loss_for_loss(tiny_path, tmp_path, GRPO, {}, rollout_func=scripted_rollouts)
    assert not any(name.startswith("duet/") for name in duet.state.log_history[0])


@pytest.mark.parametrize("arguments", [{"tools": [lookup]}, {"environment_factory": Room}], ids="-".join)
def test_tools_and_environments(tiny_path, tmp_path, arguments):
    tokenizer = AutoTokenizer.from_pretrained(tiny_path)
    # A template that TRL knows to call tools.
    tokenizer.chat_template = Path(trl.__file__).with_name("chat_templates").joinpath("qwen3.jinja").read_text()
    grpo, duet = check_grpo_loss_for_loss(
        tiny_path,
        tmp_path,
        GRPO,
        {"max_steps": 2, "max_completion_length": 24},
        rewards=[lambda completions, **kwargs: [float(len(str(c))) for c in completions]],
        data=prompts(conversational=True),
        processing_class=tokenizer,
        **arguments,
    )
    assert logged(duet, "tools/call_frequency") == logged(grpo, "tools/call_frequency")
    assert len(logged(duet, "tools/call_frequency")) == 2


def test_such_a_run_is_checkpointed_and_resumed(tiny_path, tmp_path):
    for steps in (1, 2):
        trainer = duet_trainer(
            tiny_path,
            tmp_path,
            method="grpo",
            max_steps=steps,
            save_strategy="steps",
            save_steps=1,
            rewards=count_fours,
            rollout_func=scripted_rollouts,
        )
        trainer.train(resume_from_checkpoint=steps > 1)
    assert trainer.state.global_step == 2
