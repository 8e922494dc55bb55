# SPDX-License-Identifier: Apache-2.0
"""Suites measured while training: schedule, record, resume, best checkpoint, and training that does not notice."""

import json
import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
from safetensors.torch import load_file

from duet_trl.evaluation.callbacks import SuiteEvaluation
from duet_trl.evaluation.measure import Settings
from duet_trl.evaluation.prompts import eos_token_ids
from duet_trl.evaluation.results import read_results
from duet_trl.evaluation.suites import load_suite
from tests.evaluation.policy import EOS_ID, TOKENIZER, ids, write_jsonl
from tests.runs import duet_trainer
from tests.scripts import forked

RIGHT, WRONG = ids(r"\boxed{42}"), ids(r"\boxed{41}")
ROOT = Path(__file__).parents[2]
WORDS = ("alpha", "beta", "gamma", "delta")


class Trainer:
    """A trainer whose policy solves as many of four problems as its plan says for the step it is at."""

    processing_class = TOKENIZER
    eos_token_ids = (EOS_ID,)

    def __init__(self, solved):
        self.solved, self.step, self.logs, self.saved = solved, 0, [], []

    def sample(self, prompts, num_samples, *, temperature=None, top_p=None, max_tokens=None):
        right = self.solved[self.step]
        return [[RIGHT if index < right else WRONG] * num_samples for index in range(len(prompts))]

    def log(self, logs):
        self.logs.append(logs)

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
    settings = Settings(num_samples=2, max_tokens=20, greedy=False)
    return SuiteEvaluation(trainer, suites, output_dir, **{"every": 30, "settings": settings} | options)


def run(trainer, evaluation, first, last, max_steps=None):
    """Steps first + 1 .. last of a run as transformers' Trainer calls them; it stops early if last < max_steps."""
    state, control = SimpleNamespace(global_step=first, max_steps=max_steps or last), SimpleNamespace(should_log=False)
    trainer.step = first
    evaluation.on_train_begin(None, state, control)
    for step in range(first + 1, last + 1):
        evaluation.on_step_begin(None, state, control)
        state.global_step = trainer.step = step
        evaluation.on_step_end(None, state, control)
    evaluation.on_train_end(None, state, control)


def steps(output_dir):
    return [found.step for found in read_results(output_dir / "evaluations")]


def test_step_zero_every_thirty_and_the_last_step_are_measured_and_written(suites, tmp_path):
    trainer = Trainer({0: 0, 30: 1, 60: 3, 75: 2})
    run(trainer, callback(trainer, suites, tmp_path), 0, 75)
    assert steps(tmp_path) == [0, 30, 60, 75]
    names = [f"results_step-{step:06d}.json" for step in (0, 30, 60, 75)]
    assert sorted(path.name for path in (tmp_path / "evaluations").glob("results*")) == names
    assert [log["held_out/math500/mean@2"] for log in trainer.logs] == [0.0, 0.25, 0.75, 0.5]
    assert [log["held_out/average"] for log in trainer.logs] == [0.0, 0.25, 0.75, 0.5]
    last = trainer.logs[-1]
    assert last["held_out/math500/mean@2_low"] <= 0.5 <= last["held_out/math500/mean@2_high"]
    assert last["held_out/math500/best@2"] == 0.5 and last["held_out/math500/truncated"] == 0.0
    assert last["held_out/math500/mean_length"] == len(RIGHT)


def test_best_checkpoint_is_saved_when_it_improves_and_its_measurement_with_it(suites, tmp_path):
    trainer = Trainer({0: 4, 30: 1, 60: 3, 90: 3, 120: 2})
    run(trainer, callback(trainer, suites, tmp_path), 0, 120)
    assert trainer.saved == [30, 60]  # not step 0, not the equal one at 90
    assert (tmp_path / "best" / "weights").read_text() == "60"
    assert json.loads((tmp_path / "best" / "evaluation.json").read_text())["step"] == 60
    summary = json.loads((tmp_path / "evaluations" / "summary.json").read_text())
    assert summary["best_checkpoint"] == {"folder": "best", "step": 60}
    chosen = {part["name"].partition(":")[0]: part["figures"]["math500"] for part in summary["selections"]}
    assert chosen["best"]["mean@2,sampled"]["value"] == 0.75 == chosen["best of each suite"]["mean@2,sampled"]["value"]
    assert chosen["last"]["mean@2,sampled"]["value"] == 0.5


def test_a_resumed_run_continues_the_record_and_does_not_call_its_first_step_zero(suites, tmp_path):
    trainer = Trainer({0: 0, 30: 3})
    run(trainer, callback(trainer, suites, tmp_path), 0, 45, max_steps=90)
    later = Trainer({60: 2, 90: 4})
    run(later, callback(later, suites, tmp_path), 45, 90)
    assert steps(tmp_path) == [0, 30, 60, 90]
    assert later.saved == [90]  # step 60 does not beat step 30 of the first part
    assert read_results(tmp_path / "evaluations")[0].figures["math500"]["mean@2,sampled"].value == 0.0
    assert len(later.logs) == 2


def test_what_was_measured_after_the_checkpoint_is_put_aside_and_best_keeps_its_own_figures(suites, tmp_path, caplog):
    trainer = Trainer({0: 0, 30: 1, 60: 3})
    run(trainer, callback(trainer, suites, tmp_path), 0, 70, max_steps=90)
    later = Trainer({60: 2, 90: 2})
    with caplog.at_level(logging.WARNING):
        run(later, callback(later, suites, tmp_path), 30, 90)
    assert steps(tmp_path) == [0, 30, 60, 90]
    values = [found.figures["math500"]["mean@2,sampled"].value for found in read_results(tmp_path / "evaluations")]
    assert values == [0.0, 0.25, 0.5, 0.5]
    assert "evaluations_earlier_1" in caplog.text and steps_of(tmp_path / "evaluations_earlier_1") == [60]
    # the weights in best are those that scored 3 of 4
    assert later.saved == [] and (tmp_path / "best" / "weights").read_text() == "60"
    (best,) = read_results(tmp_path / "best" / "evaluation.json")
    assert best.figures["math500"]["mean@2,sampled"].value == 0.75


def test_the_measurement_of_the_checkpoints_own_step_is_logged_by_the_run_that_resumes_from_it(suites, tmp_path):
    trainer = Trainer({0: 0, 30: 3})
    run(trainer, callback(trainer, suites, tmp_path), 0, 30, max_steps=60)
    later = Trainer({60: 2})
    run(later, callback(later, suites, tmp_path), 30, 60)
    of_clock = "held_out/math500/seconds"
    assert later.logs[0] == {name: value for name, value in trainer.logs[1].items() if name != of_clock}
    assert [log["held_out/average"] for log in later.logs] == [0.75, 0.5]


def steps_of(folder):
    return [found.step for found in read_results(folder)]


def test_a_new_run_in_an_old_folder_starts_a_new_record(suites, tmp_path):
    old = Trainer({0: 0, 10: 4})
    run(old, callback(old, suites, tmp_path, every=0), 0, 10)
    new = Trainer({0: 1, 10: 2})
    run(new, callback(new, suites, tmp_path, every=0), 0, 10)
    assert new.saved == [10]  # worse than the best of the old run, which is none of its checkpoints
    assert [found.figures["math500"]["mean@2,sampled"].value for found in read_results(tmp_path / "evaluations")] == [
        0.25,
        0.5,
    ]
    assert steps_of(tmp_path / "evaluations_earlier_1") == [0, 10]


def test_resume_without_a_record_says_that_step_zero_is_missing(suites, tmp_path, caplog):
    trainer = Trainer({60: 1})
    with caplog.at_level(logging.WARNING):
        run(trainer, callback(trainer, suites, tmp_path), 45, 60)
    assert steps(tmp_path) == [60] and "no measurement of step 0" in caplog.text


def test_other_suites_after_a_resume_are_not_compared_with_the_old_best(suites, tmp_path, caplog):
    trainer = Trainer({0: 0, 30: 4})
    run(trainer, callback(trainer, suites, tmp_path), 0, 30)
    other = {"gsm8k": load_suite("gsm8k", write_jsonl(tmp_path / "g.jsonl", [{"question": "a", "answer": "#### 42"}]))}
    later = Trainer({60: 0})
    with caplog.at_level(logging.WARNING):
        run(later, callback(later, other, tmp_path), 30, 60)
    assert "cannot be compared" in caplog.text and later.saved == [60]
    summary = json.loads((tmp_path / "evaluations" / "summary.json").read_text())
    assert [list(part["figures"]) for part in summary["selections"]] == [["gsm8k"]] * 3


def test_nothing_to_measure_is_refused(suites, tmp_path):
    with pytest.raises(ValueError, match="at least one suite"):
        callback(Trainer({}), {}, tmp_path)
    with pytest.raises(ValueError, match="every must be at least 0"):
        callback(Trainer({}), suites, tmp_path, every=-1)


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
    assert steps(tmp_path / "measured") == [0, 1, 2]
    history = [entry for entry in measured.state.log_history if "held_out/average" in entry]
    assert [entry["step"] for entry in history] == [0, 1, 2]
    assert not any("loss" in entry for entry in history)
    (best,) = read_results(tmp_path / "measured" / "best" / "evaluation.json")
    figures = read_results(tmp_path / "measured" / "evaluations")[best.step].figures
    assert figures == best.figures and best.step > 0
    saved = load_file(tmp_path / "measured" / "best" / "model.safetensors")
    last = {name: value for name, value in weights[1].items() if name in saved}
    assert last and all((saved[name] == last[name]).all() for name in last) == (best.step == 2)
    assert set(eos_token_ids(TOKENIZER)) <= set(
        json.loads((tmp_path / "measured" / "evaluations" / "results_step-000001.json").read_text())["eos_token_ids"]
    )


@pytest.mark.slow
def test_a_real_run_that_resumes_from_a_checkpoint_goes_on_with_its_record(tiny_path, tmp_path):
    data_file = write_jsonl(tmp_path / "g.jsonl", [{"question": f"Say {n}", "answer": f"#### {n}"} for n in (2, 4)])
    suites, settings = {"gsm8k": load_suite("gsm8k", data_file)}, Settings(num_samples=2, max_tokens=24)
    modified = {}
    for max_steps in (2, 4):
        options = {"max_steps": max_steps, "save_strategy": "steps", "save_steps": 2, "max_completion_length": 24}
        trainer = duet_trainer(tiny_path, tmp_path / "run", **options)
        trainer.add_callback(SuiteEvaluation(trainer, suites, tmp_path / "run", every=2, settings=settings))
        trainer.train(resume_from_checkpoint=max_steps == 4)
        paths = (tmp_path / "run" / "evaluations").glob("results*.json")
        modified[max_steps] = {path.name: path.stat().st_mtime_ns for path in paths}
    assert steps(tmp_path / "run") == [0, 2, 4]
    assert modified[2].items() <= modified[4].items()  # steps 0 and 2 were not measured again
    history = [entry["step"] for entry in trainer.state.log_history if "held_out/average" in entry]
    assert history == [0, 2, 4]


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
print("REPORT" + json.dumps([logged(trainer, "loss"), logged(trainer, "held_out/gsm8k/mean_length")]))
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
        loss, lengths = json.loads(done.stdout.rpartition("REPORT")[2].splitlines()[0])
        losses.append(loss)
        assert len(lengths) == (3 if measured == "yes" else 0)
    assert steps(tmp_path / "yes") == [0, 2, 3]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6) and len(losses[0]) == 3
