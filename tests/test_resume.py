# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: the method resumes where it was, and never starts cold in silence."""

import json
import re
import shutil
import signal
import subprocess

import pytest
import torch

from duet_trl.seams.checkpoint import VERSION
from duet_trl.seams.resuming import restore_to_numbered_cpu
from tests.interrupted_run import Interrupt
from tests.processes import process_environment, python_command
from tests.runs import abstains_on_short, duet_trainer, logged

STATE = "duet_state.json"


def test_a_resumed_run_continues_the_plans_of_its_checkpoint(tiny_path, tmp_path):
    first = duet_trainer(tiny_path, tmp_path, max_steps=6, save_strategy="steps", save_steps=3, method="paper")
    first.train()
    saved = json.loads((tmp_path / "checkpoint-3" / STATE).read_text())
    assert saved["step"] == 3

    resumed = duet_trainer(tiny_path, tmp_path, max_steps=6, save_strategy="no", method="paper")
    steps = []
    run = resumed.loop.run

    def recorded(step):
        if not steps:
            resumed.save_method_state(tmp_path / "restored")
            for name in (STATE, "duet_state.safetensors"):
                assert (tmp_path / "restored" / name).read_bytes() == (tmp_path / "checkpoint-3" / name).read_bytes()
        steps.append(step.prompts.step)
        run(step)

    resumed.loop.run = recorded
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert steps == [4, 5, 6]
    # The first plan after the checkpoint depends on nothing but the restored state, the data order and the seed.
    assert logged(resumed, "duet/budget_tokens")[3] == logged(first, "duet/budget_tokens")[3]
    assert logged(resumed, "duet/num_rollouts/std")[3] == logged(first, "duet/num_rollouts/std")[3]


def test_what_several_cpu_processes_load_their_optimizer_to_is_known(tmp_path):
    torch.save({"moment": torch.arange(3.0)}, tmp_path / "optimizer.pt")
    restore_to_numbered_cpu()
    place = torch.device("cpu:0")  # of accelerate's process 0; torch alone refuses it
    found = torch.load(tmp_path / "optimizer.pt", map_location=place, weights_only=True)["moment"]
    assert found.device.type == "cpu" and found.tolist() == [0.0, 1.0, 2.0]


@pytest.fixture(scope="module")
def checkpoint(tiny_path, tmp_path_factory):
    """The checkpoint of a run of one step."""
    folder = tmp_path_factory.mktemp("one_step")
    duet_trainer(tiny_path, folder, max_steps=1, save_strategy="steps", save_steps=1).train()
    return folder / "checkpoint-1"


def test_resuming_without_the_methods_state_or_from_another_versions_is_an_error(tiny_path, tmp_path, checkpoint):
    copy = shutil.copytree(checkpoint, tmp_path / "checkpoint-1")
    (copy / STATE).write_text(json.dumps(json.loads((copy / STATE).read_text()) | {"version": 0}))
    with pytest.raises(ValueError, match=f"has version 0, this library reads {VERSION}"):
        duet_trainer(tiny_path, tmp_path, max_steps=2).train(resume_from_checkpoint=str(copy))
    (copy / STATE).unlink()
    with pytest.raises(ValueError, match="was not written by this version of DUETGRPOTrainer"):
        duet_trainer(tiny_path, tmp_path, max_steps=2).train(resume_from_checkpoint=str(copy))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": 8}, "seed: 7 in the state, 8 now"),
        ({"marker": "qa"}, "marker: 'math' in the state, 'qa' now"),
        ({"method": "paper", "marker": "math"}, "method: 'duet' in the state"),
        ({"budget_fraction": 0.8}, "budget_fraction: 0.9 in the state, 0.8 now"),
        (
            {"rewards": [abstains_on_short]},
            r"rewards: \{'count_fours': 1.0\} in the state, \{'abstains_on_short': 1.0\} now",
        ),
        ({"reward_weights": [0.5]}, r"rewards: \{'count_fours': 1.0\} in the state, \{'count_fours': 0.5\} now"),
        (
            {"ending_reward_weight": 0.25},
            r"rewards: .* in the state, \{'count_fours': 1.0, 'ending_reward': 0.25\} now",
        ),
    ],
)
def test_resuming_with_another_seed_marker_method_budget_or_reward_is_an_error(
    tiny_path, tmp_path, checkpoint, change, named
):
    with pytest.raises(ValueError, match=named):
        duet_trainer(tiny_path, tmp_path, max_steps=2, **change).train(resume_from_checkpoint=str(checkpoint))


def interrupted(model, folder, number, at, processes=1):
    """A script whose training is signalled, run to its end."""
    done = subprocess.run(
        [*python_command(processes), "-m", "tests.interrupted_run", str(model), str(folder), str(int(number)), at],
        capture_output=True,
        text=True,
        timeout=300,
        env=process_environment(),
    )
    assert not (folder / "saved").exists(), done.stderr[-3000:]  # the line behind train() did not run
    return done


def test_an_interrupted_script_ends_as_interrupted_with_a_checkpoint(tiny_path, tmp_path):
    done = interrupted(tiny_path, tmp_path, signal.SIGTERM, at="1")
    assert done.returncode == 143, done.stderr[-3000:]
    # The step that was running when the signal came was finished.
    checkpoint = tmp_path / "run" / "checkpoint-2"
    assert f"Interrupted after step 2 of 4. The checkpoint is {checkpoint};" in done.stderr
    resumed = duet_trainer(tiny_path, tmp_path / "run", max_steps=3)
    resumed.train(resume_from_checkpoint=True)
    before = json.loads((checkpoint / "trainer_state.json").read_text())["log_history"]
    assert (resumed.state.global_step, resumed.loop.num_steps) == (3, 3)
    assert resumed.state.log_history[: len(before)] == before


@pytest.mark.slow
@pytest.mark.distributed
def test_an_interrupt_of_one_process_ends_all_with_a_whole_checkpoint(tiny_path, tmp_path):
    done = interrupted(tiny_path, tmp_path, signal.SIGTERM, "1", processes=2)
    assert done.returncode == 1  # torchrun's own, for processes that failed
    assert done.stderr.count("Interrupted after step 2 of 4.") == 1
    # gloo may abort a process at its very end, where the other one is gone already.
    assert re.search(r"exitcode  : (143|-6)\b", done.stderr), done.stderr[-3000:]
    # The last file that transformers writes.
    assert json.loads((tmp_path / "run" / "checkpoint-2" / "trainer_state.json").read_text())["global_step"] == 2


@pytest.mark.parametrize(("at", "step"), [("1", 2), ("end", 3)])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_is_raised_once_the_handlers_are_back(tiny_path, tmp_path, number, at, step):
    before = signal.getsignal(number)
    trainer = duet_trainer(tiny_path, tmp_path, max_steps=3, callbacks=[Interrupt(number, at)])
    with pytest.raises((KeyboardInterrupt, SystemExit)) as raised:
        trainer.train()
    assert raised.type is (KeyboardInterrupt if number == signal.SIGINT else SystemExit)
    assert signal.getsignal(number) == before
    assert (tmp_path / f"checkpoint-{step}" / STATE).exists()


def test_a_handler_of_the_script_decides_what_its_signal_does(tiny_path, tmp_path):
    received = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    try:
        duet_trainer(tiny_path, tmp_path, callbacks=[Interrupt(signal.SIGTERM, at="1")]).train()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert received == [signal.SIGTERM]
    assert (tmp_path / "checkpoint-2" / STATE).exists()


def test_a_failed_run_leaves_the_signal_handlers_as_they_were(tiny_path, tmp_path):
    before = signal.getsignal(signal.SIGINT)
    trainer = duet_trainer(tiny_path, tmp_path, rewards=lambda completions, **kwargs: [None] * len(completions))
    with pytest.raises(RuntimeError):
        trainer.train()
    assert signal.getsignal(signal.SIGINT) == before
