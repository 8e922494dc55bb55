# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: the controller goes on where it was, and never starts cold in silence."""

import json
import os
import signal

import pytest
from transformers import TrainerCallback

from tests.runs import duet_trainer, logged

STATE = "duet_controller.json"


def test_a_resumed_run_continues_the_plans_of_its_checkpoint(tiny_path, tmp_path):
    first = duet_trainer(tiny_path, tmp_path, max_steps=6, save_strategy="steps", save_steps=3)
    first.train()
    saved = json.loads((tmp_path / "checkpoint-3" / STATE).read_text())
    assert saved["step"] == 3

    resumed = duet_trainer(tiny_path, tmp_path, max_steps=6, save_strategy="no")
    plans = []
    plan = resumed.controller.plan

    def recorded(keys, epoch):
        if not plans:
            assert resumed.controller.state_dict() == saved
        plans.append(plan(keys, epoch))
        return plans[-1]

    resumed.controller.plan = recorded
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert [made.step for made in plans] == [4, 5, 6]
    # The first plan after the checkpoint depends on nothing but the restored state, the data order and the seed.
    assert logged(resumed, "duet/budget_tokens")[3] == logged(first, "duet/budget_tokens")[3]
    assert logged(resumed, "duet/num_rollouts/std")[3] == logged(first, "duet/num_rollouts/std")[3]


def test_resuming_without_the_controllers_state_is_an_error(tiny_path, tmp_path):
    duet_trainer(tiny_path, tmp_path, max_steps=1, save_strategy="steps", save_steps=1).train()
    (tmp_path / "checkpoint-1" / STATE).unlink()
    resumed = duet_trainer(tiny_path, tmp_path, max_steps=2)
    with pytest.raises(ValueError, match="was not written by DUETGRPOTrainer"):
        resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))


def test_resuming_with_another_marker_is_an_error(tiny_path, tmp_path):
    duet_trainer(tiny_path, tmp_path, max_steps=1, save_strategy="steps", save_steps=1).train()
    resumed = duet_trainer(tiny_path, tmp_path, max_steps=2, marker="qa")
    with pytest.raises(ValueError, match="marker: 'math' in the state, 'qa' now"):
        resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))


class Interrupt(TrainerCallback):
    """Signals its own process in the middle of a step."""

    def __init__(self, number: int, at: int) -> None:
        self.number, self.at = number, at

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.at:
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_after_the_step_with_a_checkpoint(tiny_path, tmp_path, number):
    before = signal.getsignal(number)
    trainer = duet_trainer(tiny_path, tmp_path, max_steps=5, callbacks=[Interrupt(number, at=1)])
    trainer.train()
    assert trainer.state.global_step == 2  # the step that was running when the signal came was finished
    assert (tmp_path / "checkpoint-2" / STATE).exists()
    assert signal.getsignal(number) == before


def test_a_failed_run_leaves_the_signal_handlers_as_they_were(tiny_path, tmp_path):
    before = signal.getsignal(signal.SIGINT)
    trainer = duet_trainer(tiny_path, tmp_path, rewards=lambda completions, **kwargs: [None] * len(completions))
    with pytest.raises(RuntimeError):
        trainer.train()
    assert signal.getsignal(signal.SIGINT) == before
