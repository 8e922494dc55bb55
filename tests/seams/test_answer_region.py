# SPDX-License-Identifier: Apache-2.0
"""A thinking policy in the trainer: gate, replay, verifiers and evaluation agree on where its answers count."""

import numpy as np
import pytest

from duet_trl import DUETGRPOConfig
from duet_trl.gate.markers import extract_answer
from duet_trl.gate.replay import Outcome
from duet_trl.gate.thoughts import Delimiters, Written
from duet_trl.rewards import ChoiceVerifier
from duet_trl.rewards.completions import WRITTEN
from duet_trl.seams.scoring import Thoughts
from tests.runs import duet_trainer, prompts, settings
from tests.tiny import save_thinking, thinking_tokenizer

THINK = Delimiters("<think>", "</think>")


class Recording:
    """A reward function that notes what it is called with; half of the answers are right."""

    __name__ = "recording"

    def __init__(self):
        self.calls = []
        self.verifier = ChoiceVerifier(marker="math", which="first")

    def __call__(self, completions, **columns):
        graded = self.verifier(completions, answer=["4"] * len(completions), **columns)
        self.calls.append((columns[WRITTEN], completions, columns["completion_ids"], graded))
        return [reward - 0.01 * len(text[0]["content"]) for reward, text in zip(graded, completions, strict=True)]


@pytest.mark.parametrize(("special", "opened"), [(False, True), (True, False), (True, True)])
def test_answers_inside_a_thought_neither_stop_a_rollout_nor_earn_a_reward(tmp_path, special, opened):
    model = save_thinking(tmp_path / "model", THINK, special=special, opened=opened)
    reward, data = Recording(), prompts(conversational=True)
    options = {"max_steps": 2, "eval_dataset": data.select(range(4)), "per_device_eval_batch_size": 4}
    trainer = duet_trainer(model, tmp_path / "run", rewards=reward, data=data, **options)
    hidden = unanswered = 0
    steps = []

    def judged(step):  # the last place that sees a whole step
        steps.append((step.replay, list(reward.calls[-1])))

    judge = trainer.loop.judge
    trainer.loop.judge = lambda step: (judged(step), judge(step))
    trainer.train()  # replays every step: a gate that differs in the engine is an error
    for replay, (written, completions, ids, graded) in steps:
        assert {one.opened for one in written} == {opened} and {one.delimiters for one in written} == {THINK}
        for row, one in enumerate(written):
            text = completions[row][0]["content"]
            bare = one.text.replace("<think>", "").replace("</think>", "") if special else one.text
            # half a character before a delimiter is decoded with what follows, once the delimiter is left out
            assert bare.replace("\ufffd", "") == text.replace("\ufffd", "")
            assert one.text.count("</think>") == ids[row].count(
                trainer.processing_class.convert_tokens_to_ids("</think>")
            )
            answer = extract_answer("math", one)
            if replay.outcome[row] == Outcome.ANSWERED:
                assert answer is not None
            assert answer is not None or graded[row] == 0.0
            hidden += answer != extract_answer("math", text)
            unanswered += answer is None
    assert hidden > 2 and unanswered > 0
    assert {*np.concatenate([replay.outcome for replay, _ in steps]).tolist()} >= {Outcome.ANSWERED, Outcome.ABORTED}
    trainer.evaluate()
    assert {one.opened for one in reward.calls[-1][0]} == {opened}


def test_a_field_names_other_delimiters_or_none(tmp_path):
    model = save_thinking(tmp_path / "model", THINK, special=False, opened=True)
    trainer = duet_trainer(model, tmp_path / "none", thought_delimiters=[])
    assert trainer.thoughts.delimiters is None and trainer.engine.setup.automaton.thought is None
    other = duet_trainer(model, tmp_path / "other", thought_delimiters=["(", ")"], max_steps=1)
    assert other.thoughts.delimiters == other.engine.setup.delimiters == Delimiters("(", ")")
    other.train()
    with pytest.raises(ValueError, match="thought delimiters must be a list of two texts"):
        DUETGRPOConfig(**settings(tmp_path), thought_delimiters=["<think>"])
    with pytest.raises(ValueError, match="at most 127 fit"):
        DUETGRPOConfig(**settings(tmp_path), thought_delimiters=["<" * 90, ">" * 90])


def test_rows_of_a_model_without_thoughts_are_answer_region_throughout():
    tokenizer = thinking_tokenizer(THINK)
    thoughts = Thoughts(tokenizer, None)
    ids = [tokenizer("say <think>")["input_ids"]]
    assert thoughts.open_after(ids).tolist() == [False]
    rows = thoughts.shown_to_rewards([{"answer": 4}], np.array([False]), ["<think> 4"], [[1, 2]])
    assert rows == [{"answer": 4, WRITTEN: Written("<think> 4")}]


def test_reasoning_that_trl_parsed_out_of_a_message_is_read_from_the_tokens():
    tokenizer = thinking_tokenizer(THINK)
    ids = tokenizer(r"\boxed{3}</think>\boxed{4}")["input_ids"]
    message = [{"role": "assistant", "reasoning_content": r"\boxed{3}", "content": r"\boxed{4}"}]
    (row,) = Thoughts(tokenizer, THINK).shown_to_rewards([{}], np.array([True]), [message], [ids])
    assert row[WRITTEN] == Written(r"\boxed{3}</think>\boxed{4}", THINK, opened=True)
    assert extract_answer("math", row[WRITTEN], "first") == "4"
