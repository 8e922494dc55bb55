# SPDX-License-Identifier: Apache-2.0
"""When the held-out callback measures, what it records, and that it leaves training time alone."""

from types import SimpleNamespace

import pytest

from duet_trl.evaluation import callbacks as callbacks_module
from duet_trl.evaluation.callbacks import HeldOutEvaluation

ANSWER = 7


class Trainer:
    """A trainer whose policy answers one more problem right at each evaluation."""

    def __init__(self):
        self.calls, self.logs, self.pending = [], [], {}

    def sample(self, prompts, num_samples, *, temperature=None, max_tokens=None):
        self.calls.append((list(prompts), num_samples, temperature, max_tokens))
        right = len(self.calls) - 1
        return [[[1, ANSWER if index < right else 0]] * num_samples for index in range(len(prompts))]

    def log(self, logs):
        # As GRPOTrainer: whatever is logged takes the pending metrics of the step along.
        self.logs.append(logs | self.pending)
        self.pending = {}


def grade(index, ids):
    return ids[-1] == ANSWER


def run(callback, num_steps, before_step=lambda: None):
    control, args = SimpleNamespace(should_log=False), None
    state = SimpleNamespace(global_step=0, max_steps=num_steps)
    callback.on_train_begin(args, state, control)
    for step in range(1, num_steps + 1):
        callback.on_step_begin(args, state, control)
        before_step()
        callback.trainer.pending = {"loss": float(step)}
        state.global_step = step
        callback.on_step_end(args, state, control)
        if control.should_log:
            control.should_log = False
            callback.trainer.log({})
    callback.on_train_end(args, state, control)


def test_accuracy_lengths_and_log_follow_the_samples():
    trainer = Trainer()
    callback = HeldOutEvaluation(trainer, ["a", "b", "c", "d"], grade, num_samples=3, every=1)
    run(callback, 2)
    # evaluation e solves e of 4 problems in all 3 samples
    assert [evaluation.score.value for evaluation in callback.evaluations] == [0.0, 0.25, 0.5]
    assert callback.evaluations[1].correct.tolist() == [[True] * 3] + [[False] * 3] * 3
    assert callback.evaluations[0].lengths.tolist() == [[2] * 3] * 4
    measured = [log for log in trainer.logs if "loss" not in log]
    assert [log["held_out/mean@3"] for log in measured] == [0.0, 0.25, 0.5]
    assert trainer.logs[0]["held_out/mean_length"] == 2.0


def test_a_measurement_is_logged_once_and_apart_from_the_metrics_of_its_step():
    trainer = Trainer()
    run(HeldOutEvaluation(trainer, ["a"], grade, every=2), 4)
    assert [sorted(key.split("/")[0] for key in log.keys() & {"loss", "held_out/mean@4"}) for log in trainer.logs] == [
        ["held_out"],
        ["loss"],
        ["held_out"],
        ["loss"],
        ["held_out"],
    ]
    assert [log["loss"] for log in trainer.logs if "loss" in log] == [2.0, 4.0]


def test_time_spent_in_evaluation_is_not_training_time(monkeypatch):
    # A clock that stands still but for 5 s in each evaluation and 2 s in each step.
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(callbacks_module, "time", SimpleNamespace(perf_counter=lambda: clock.now))

    class Slow(Trainer):
        def sample(self, *args, **kwargs):
            clock.now += 5.0
            return super().sample(*args, **kwargs)

    callback = HeldOutEvaluation(Slow(), ["a"], grade, every=1)
    run(callback, 3, before_step=lambda: setattr(clock, "now", clock.now + 2.0))
    assert [evaluation.train_seconds for evaluation in callback.evaluations] == [0.0, 2.0, 4.0, 6.0]
    assert callback.seconds == 20.0


@pytest.mark.parametrize(
    ("prompts", "keywords", "message"),
    [
        ([], {}, "Evaluation needs prompts"),
        (["a"], {"num_samples": 0}, "num_samples >= 1"),
        (["a"], {"every": -1}, "every must be at least 0 optimizer steps, got -1"),
    ],
)
def test_nothing_to_measure_is_refused(prompts, keywords, message):
    with pytest.raises(ValueError, match=message):
        HeldOutEvaluation(Trainer(), prompts, grade, **keywords)
