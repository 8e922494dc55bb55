# SPDX-License-Identifier: Apache-2.0
"""A checkpoint that was not written to its end is found, named, and not resumed from."""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from duet_trl.seams.checkpoint import resume_point, why_torn
from tests.runs import duet_trainer, logged, prompts

WRITTEN_WHOLE = ("trainer_state.json", "duet_state.json")
SMALL = {"max_completion_length": 24, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2}
HOLDING_TENSORS = ("model.safetensors", "duet_state.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth")


@pytest.fixture(scope="module")
def saved(tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps with a checkpoint of each."""
    folder = tmp_path_factory.mktemp("saved")
    duet_trainer(tiny_path, folder, max_steps=2, save_strategy="steps", save_steps=1, **SMALL).train()
    return folder


@pytest.fixture
def run(saved: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(saved, tmp_path / "run")


def test_what_a_run_writes_is_whole(saved):
    for step in (1, 2):
        folder = saved / f"checkpoint-{step}"
        assert why_torn(folder) is None
        assert {*WRITTEN_WHOLE, *HOLDING_TENSORS} <= {path.name for path in folder.iterdir()}


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(WRITTEN_WHOLE + HOLDING_TENSORS), share=st.floats(0, 1, exclude_max=True))
@example("trainer_state.json", 1 - 2**-53)
def test_a_file_that_is_cut_anywhere_is_found(saved, name, share):
    path = saved / "checkpoint-2" / name
    content = path.read_bytes()
    try:
        path.write_bytes(content[: int(share * len(content.rstrip()))])  # a file without its last newline is whole
        assert why_torn(path.parent) == f"{name} is cut off"
    finally:
        path.write_bytes(content)


def test_the_previous_checkpoint_is_used_with_a_message(run, caplog):
    (run / "checkpoint-2" / "trainer_state.json").unlink()
    (run / "checkpoint-10").mkdir()  # killed before its first file
    assert resume_point(True, str(run)) == str(run / "checkpoint-1")
    for step in (2, 10):
        text = f"checkpoint-{step} was not written to its end: it has no trainer_state.json, which is written last"
        assert text in caplog.text
    assert caplog.text.count(f"Resuming from {run / 'checkpoint-1'}.") == 2


def test_a_whole_one_is_taken_without_a_word(run, caplog):
    (run / "checkpoint-1" / "trainer_state.json").unlink()  # an old one that is half deleted
    assert resume_point(True, str(run)) == str(run / "checkpoint-2")
    assert caplog.text == ""


def test_a_torn_one_that_is_asked_for_by_name_is_an_error_that_names_the_whole_one(run):
    (run / "checkpoint-2" / "duet_state.json").write_text("{")
    with pytest.raises(
        ValueError,
        match=r"checkpoint-2 was not written to its end: duet_state.json is cut off. Resume "
        r"from .*checkpoint-1\.",
    ):
        resume_point(str(run / "checkpoint-2"), str(run / "elsewhere"))


def test_where_all_are_torn_the_run_does_not_start_anew_by_itself(run):
    for step in (1, 2):
        (run / f"checkpoint-{step}" / "trainer_state.json").write_text("")
    with pytest.raises(ValueError, match="trainer_state.json is cut off. No checkpoint in .* is whole: start again"):
        resume_point(True, str(run))


@pytest.mark.parametrize("asked", [None, False, "no/such/folder"])
def test_what_is_no_checkpoint_is_left_to_transformers(run, asked):
    assert resume_point(asked, str(run)) == asked
    assert resume_point(True, str(run / "checkpoint-1")) is True  # it holds none


def test_a_run_resumes_from_the_previous_checkpoint_and_writes_the_torn_one_again(tiny_path, run, caplog):
    torn = run / "checkpoint-2"
    torn.joinpath("optimizer.pt").write_bytes(torn.joinpath("optimizer.pt").read_bytes()[:-9])
    trainer = duet_trainer(tiny_path, run, max_steps=2, save_strategy="steps", save_steps=1, **SMALL)
    trainer.train(resume_from_checkpoint=True)
    assert "optimizer.pt is cut off. Resuming from" in caplog.text
    assert logged(trainer, "duet/generated_tokens") and trainer.loop.num_steps == 2
    assert why_torn(torn) is None


def test_a_checkpoint_that_is_written_again_is_none_until_it_is_whole(tiny_path, run):
    """Killed on the way it would else be new weights beside an old state."""
    seen = []
    trainer = duet_trainer(tiny_path, run, max_steps=2)
    trainer.state.global_step = 2
    trainer.save_method_state = lambda folder: seen.append(why_torn(folder))
    trainer.save_model = lambda *args, **kwargs: seen.append(why_torn(run / "checkpoint-2"))
    with pytest.raises(AttributeError):  # an optimizer exists in training only
        trainer._save_checkpoint(trainer.model, trial=None)
    assert seen == ["it has no trainer_state.json, which is written last"] * 2


def drawn(trainer, **arguments) -> list[tuple[str, ...]]:
    """Prompts of each generation step of a run."""
    found, run = [], trainer.loop.run

    def recorded(step):
        found.append(step.prompts.keys)
        run(step)

    trainer.loop.run = recorded
    trainer.train(**arguments)
    return found


def test_a_resumed_run_draws_the_prompts_of_an_uninterrupted_one(tiny_path, tmp_path):
    """12 prompts, 4 a step: an epoch ends with steps 3 and 6."""
    small = SMALL | {"max_completion_length": 8, "data": prompts(12), "max_steps": 7, "method": "grpo"}
    whole = drawn(duet_trainer(tiny_path, tmp_path, save_strategy="steps", save_steps=1, **small))
    for step in (2, 3, 4, 6):
        again = duet_trainer(tiny_path, tmp_path / "again", **small)
        assert drawn(again, resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}")) == whole[step:]
    assert len({*sum(whole[3:6], ())}) == 12


def test_a_run_that_was_killed_behind_its_last_step_trains_no_other(tiny_path, run, saved):
    trainer = duet_trainer(tiny_path, run, max_steps=2, **SMALL)
    assert drawn(trainer, resume_from_checkpoint=True) == []
    state = json.loads((saved / "checkpoint-2" / "trainer_state.json").read_text())
    assert trainer.state.global_step == 2 == state["global_step"]
