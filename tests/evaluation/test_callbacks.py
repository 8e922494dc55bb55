# SPDX-License-Identifier: Apache-2.0
"""Suites measured while training: schedule, resume, best checkpoint, and training that does not notice."""

import json
import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
from datasets import Dataset
from safetensors.torch import load_file

from duet_trl.evaluation import callbacks as callbacks_module
from duet_trl.evaluation.callbacks import SuiteEvaluation
from duet_trl.evaluation.measure import Settings
from duet_trl.evaluation.suites import load_suite
from tests.evaluation.policy import EOS_ID, TOKENIZER, ids, write_jsonl
from tests.processes import forked
from tests.runs import duet_trainer

RIGHT, WRONG = ids(r"\boxed{42}"), ids(r"\boxed{41}")
WORDS = ("alpha", "beta", "gamma", "delta")


class Trainer:
    """A trainer whose policy solves as many of four problems as its plan says for the step it is at."""

    processing_class = TOKENIZER
    eos_token_ids = (EOS_ID,)

    def __init__(self, solved):
        self.solved, self.step, self.logs, self.saved, self.pending = solved, 0, [], [], {}

    def sample(self, prompts, num_samples, *, temperature=None, top_p=None, max_tokens=None):
        right = self.solved[self.step]
        return [[RIGHT if index < right else WRONG] * num_samples for index in range(len(prompts))]

    def log(self, logs):
        # As GRPOTrainer: whatever is logged takes the pending metrics of the step along.
        self.logs.append(logs | self.pending)
        self.pending = {}

    def save_model(self, output_dir, _internal_call):
        assert _internal_call  # else every best checkpoint would be pushed to the Hub
        Path(output_dir).mkdir(parents=True, exist_ok=True)
        Path(output_dir, "weights").write_text(str(self.step))
        self.saved.append(self.step)


@pytest.fixture
def suites(tmp_path):
    rows = [{"problem": f"{word}?", "answer": "42"} for word in WORDS]
    return {"math500": load_suite("math500", write_jsonl(tmp_path / "math.jsonl", rows))}


def callback(trainer, suites, output_dir, **options):
    settings = Settings(num_samples=2, max_tokens=20)
    return SuiteEvaluation(trainer, suites, output_dir, **{"every": 30, "settings": settings} | options)


def run(trainer, evaluation, first, last, max_steps=None):
    """Steps first + 1 .. last of a run as transformers' Trainer calls them; it stops early if last < max_steps.

    Returns the averages in the log of a checkpoint of the last step.
    """
    state, control = SimpleNamespace(global_step=first, max_steps=max_steps or last), SimpleNamespace(should_log=False)
    trainer.step = first
    evaluation.on_train_begin(None, state, control)
    for step in range(first + 1, last + 1):
        evaluation.on_step_begin(None, state, control)
        state.global_step = trainer.step = step
        trainer.pending = {"loss": float(step)}
        evaluation.on_step_end(None, state, control)
        if control.should_log:
            control.should_log = False
            trainer.log({})
    saved = averages(trainer)
    evaluation.on_train_end(None, state, control)
    return saved


def averages(trainer):
    return [log["held_out/average"] for log in trainer.logs if "held_out/average" in log]


def best(output_dir):
    """Step of the weights in the best folder, step and average of the measurement beside them."""
    measured = json.loads((output_dir / "best" / "evaluation.json").read_text())
    return int((output_dir / "best" / "weights").read_text()), measured["step"], measured["held_out/average"]


def test_step_zero_every_thirty_and_the_last_step_are_measured_and_logged(suites, tmp_path):
    trainer = Trainer({0: 0, 30: 1, 60: 3, 75: 2})
    run(trainer, callback(trainer, suites, tmp_path), 0, 75)
    assert averages(trainer) == [0.0, 0.25, 0.75, 0.5]
    last = {name.removeprefix("held_out/math500/"): value for name, value in trainer.logs[-1].items()}
    assert last["mean@2_low"] <= last["mean@2"] == 0.5 <= last["mean@2_high"]
    assert (last["best@2"], last["greedy"], last["truncated"], last["mean_length"]) == (0.5, 0.5, 0.0, len(RIGHT))


def test_best_checkpoint_is_saved_when_it_improves_and_its_measurement_with_it(suites, tmp_path):
    trainer = Trainer({0: 4, 30: 1, 60: 3, 90: 3, 120: 2})
    run(trainer, callback(trainer, suites, tmp_path), 0, 120)
    assert trainer.saved == [30, 60]  # not step 0, not the equal one at 90
    assert best(tmp_path) == (60, 60, 0.75)


@pytest.mark.parametrize(("first", "solved"), [(45, {60: 2, 90: 4}), (30, {30: 3, 60: 2, 90: 4})])
def test_a_resumed_run_has_each_measurement_once_and_keeps_the_best_until_it_is_beaten(
    suites, tmp_path, first, solved
):
    # Its first step is measured where that was due and is not in the checkpoint's log yet; no plan has step 45.
    trainer, later = Trainer({0: 0, 30: 3}), Trainer(solved)
    saved = run(trainer, callback(trainer, suites, tmp_path), 0, first, max_steps=90)
    assert best(tmp_path) == (30, 30, 0.75)
    run(later, callback(later, suites, tmp_path), first, 90)
    assert saved + averages(later) == [0.0, 0.75, 0.5, 1.0] and later.saved == [90]


def test_a_new_run_in_an_old_folder_has_no_best_checkpoint_yet(suites, tmp_path):
    old = Trainer({0: 0, 10: 4})
    run(old, callback(old, suites, tmp_path, every=0), 0, 10)
    new = Trainer({0: 1, 10: 2})
    run(new, callback(new, suites, tmp_path, every=0), 0, 10)
    assert new.saved == [10] and best(tmp_path) == (10, 10, 0.5)


def test_other_suites_after_a_resume_are_not_compared_with_the_old_best(suites, tmp_path, caplog):
    trainer = Trainer({0: 0, 30: 4})
    run(trainer, callback(trainer, suites, tmp_path), 0, 30)
    other = {"gsm8k": load_suite("gsm8k", write_jsonl(tmp_path / "g.jsonl", [{"question": "a", "answer": "#### 42"}]))}
    later = Trainer({60: 0})
    with caplog.at_level(logging.WARNING):
        run(later, callback(later, other, tmp_path), 31, 60)
    assert "has other figures than step 60" in caplog.text and later.saved == [60]


def test_a_measurement_is_logged_once_and_apart_from_the_metrics_of_its_step(suites, tmp_path):
    trainer = Trainer({0: 0, 2: 1, 4: 2})
    run(trainer, callback(trainer, suites, tmp_path, every=2), 0, 4)
    names = [log.keys() & {"loss", "held_out/average"} for log in trainer.logs]
    assert names == [{"held_out/average"}, {"loss"}, {"held_out/average"}, {"loss"}, {"held_out/average"}]
    assert [log["loss"] for log in trainer.logs if "loss" in log] == [2.0, 4.0]


def test_time_spent_in_measurements_is_counted_from_the_beginning_of_training(suites, tmp_path, monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(callbacks_module, "time", SimpleNamespace(perf_counter=lambda: clock.now))

    class Slow(Trainer):
        def sample(self, *args, **kwargs):
            clock.now += 5.0
            return super().sample(*args, **kwargs)

    evaluation = callback(Slow({0: 0, 1: 0, 2: 0}), suites, tmp_path, every=1)
    for _ in range(2):  # trained twice
        run(evaluation.trainer, evaluation, 0, 2)
        assert evaluation.seconds == 30.0  # sampled and greedy, before, between and after two steps
        assert [step for step, _ in evaluation.measurements] == [0, 1, 2]


def test_own_problems_with_an_own_grader_and_all_results_are_at_hand(suites, tmp_path):
    problems = Dataset.from_list([{"prompt": [{"role": "user", "content": word}], "answer": word} for word in WORDS])
    asked = []

    def grade(texts, answer, **columns):
        asked.append(answer)
        return [float("42" in text) for text in texts]

    trainer = Trainer({0: 0, 1: 3})
    evaluation = callback(trainer, suites | {"own": problems}, tmp_path, every=1, graders={"own": grade})
    run(trainer, evaluation, 0, 1)
    assert asked[:2] == [[word for word in WORDS for _ in range(2)], list(WORDS)]  # sampled, greedy
    for suite in ("own", "math500"):  # the benchmark's grader is built
        found = {step: results[suite].graded["sampled"].correct.tolist() for step, results in evaluation.measurements}
        assert found == {0: [[False] * 2] * 4, 1: [[True] * 2] * 3 + [[False] * 2]}
        assert trainer.logs[-1][f"held_out/{suite}/mean@2"] == 0.75
    assert not any(way.texts for way in evaluation.measurements[-1][1]["own"].graded.values())  # not kept


def test_a_grader_that_leaves_texts_out_is_an_error(suites, tmp_path):
    trainer = Trainer({0: 0})
    evaluation = callback(trainer, suites, tmp_path, graders={"math500": lambda texts, **columns: [1.0]})
    with pytest.raises(ValueError, match="1 verdicts for 8 texts"):
        run(trainer, evaluation, 0, 0)


def test_nothing_to_measure_is_refused(suites, tmp_path):
    with pytest.raises(ValueError, match="at least one suite"):
        callback(Trainer({}), {}, tmp_path)
    with pytest.raises(ValueError, match="every must be at least 0 optimizer steps, got -1"):
        callback(Trainer({}), suites, tmp_path, every=-1)
    with pytest.raises(ValueError, match="suite 'math500' has no problems"):
        callback(Trainer({}), {"math500": suites["math500"].select([])}, tmp_path)


def test_one_sample_does_not_replace_the_greedy_figure(suites, tmp_path):
    class Greedy(Trainer):
        def sample(self, prompts, num_samples, *, temperature=None, top_p=None, max_tokens=None):
            return [[RIGHT if temperature == 0.0 else WRONG] * num_samples for _ in prompts]

    trainer = Greedy({})
    run(trainer, callback(trainer, suites, tmp_path, settings=Settings(num_samples=1, max_tokens=20)), 0, 1)
    assert (trainer.logs[-1]["held_out/math500/mean@1"], trainer.logs[-1]["held_out/math500/greedy"]) == (0.0, 1.0)


def trained(tiny_path, output_dir, data_file, evaluate):
    """Two steps of the real trainer on transformers."""
    trainer = duet_trainer(tiny_path, output_dir, max_steps=2, max_completion_length=24)
    if evaluate:
        rows = load_suite("gsm8k", data_file)
        settings = Settings(num_samples=2, max_tokens=24)
        trainer.add_callback(SuiteEvaluation(trainer, {"gsm8k": rows}, output_dir, every=1, settings=settings))
    trainer.train()
    return trainer


@pytest.mark.slow
def test_the_real_trainer_is_measured_and_trains_as_if_it_were_not(tiny_path, tmp_path):
    rows = [{"question": f"Say {number}", "answer": f"#### {number}"} for number in (2, 4, 42, 24)]
    data_file = write_jsonl(tmp_path / "g.jsonl", rows)
    plain = trained(tiny_path, tmp_path / "plain", data_file, evaluate=False)
    measured = trained(tiny_path, tmp_path / "measured", data_file, evaluate=True)
    weights = [dict(trainer.model.named_parameters()) for trainer in (plain, measured)]
    assert all((weights[0][name] == weights[1][name]).all() for name in weights[0])
    losses = [[e["loss"] for e in t.state.log_history if "loss" in e] for t in (plain, measured)]
    assert losses[0] == losses[1] and len(losses[0]) == 2
    history = {entry["step"]: entry for entry in measured.state.log_history if "held_out/average" in entry}
    assert list(history) == [0, 1, 2] and not any("loss" in entry for entry in history.values())
    best = json.loads((tmp_path / "measured" / "best" / "evaluation.json").read_text())
    assert best["step"] > 0 and best.items() <= history[best["step"]].items()
    saved = load_file(tmp_path / "measured" / "best" / "model.safetensors")
    last = {name: value for name, value in weights[1].items() if name in saved}
    assert last and all((saved[name] == last[name]).all() for name in last) == (best["step"] == 2)


# TRL builds its engine for the life of the process, so each run gets one of its own.
SCRIPT = """
import json, sys
from duet_trl.evaluation.measure import Settings
from duet_trl.evaluation.callbacks import SuiteEvaluation
from duet_trl.evaluation.suites import load_suite
from tests.runs import duet_trainer, logged

model, output_dir, data, measured = sys.argv[1:]
trainer = duet_trainer(model, output_dir, use_vllm=True, vllm_mode="colocate", max_steps=3)
if measured == "yes":
    settings = Settings(num_samples=2, max_tokens=24)
    trainer.add_callback(
        SuiteEvaluation(trainer, {"gsm8k": load_suite("gsm8k", data)}, output_dir, every=2, settings=settings)
    )
trainer.train()
steps = [entry["step"] for entry in trainer.state.log_history if "held_out/average" in entry]
print("REPORT" + json.dumps([logged(trainer, "loss"), steps]))
"""


@pytest.mark.slow
@pytest.mark.vllm
def test_training_on_vllm_does_not_notice_that_it_is_measured(tiny_path, tmp_path):
    data_file = write_jsonl(tmp_path / "g.jsonl", [{"question": f"Say {n}", "answer": f"#### {n}"} for n in (2, 4)])
    losses = []
    for measured in ("no", "yes"):
        arguments = ["-c", SCRIPT, str(tiny_path), str(tmp_path / measured), data_file, measured]
        done = forked(arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr[-3000:]
        loss, steps = json.loads(done.stdout.rpartition("REPORT")[2].splitlines()[0])
        losses.append(loss)
        assert steps == ([0, 2, 3] if measured == "yes" else [])
    assert losses[0] == pytest.approx(losses[1], abs=1e-6) and len(losses[0]) == 3
