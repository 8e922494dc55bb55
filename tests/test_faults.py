# SPDX-License-Identifier: Apache-2.0
"""Faults injected into a run: what the user sees, and what is left to resume from (tests/FAULTS.md)."""

import json
import re
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors import SafetensorError
from transformers import PrinterCallback, ProgressCallback, TrainerCallback
from trl import GRPOTrainer

from duet_trl.seams.checkpoint import why_torn
from duet_trl.seams.resuming import TrainingStopped
from tests.chaos_world import Killer, build, digest
from tests.runs import logged, prompts, weights

AT = 3
"""Step in which a fault happens, the last of the first epoch."""


def slow(value: object) -> Any:
    """A case that only `make test-slow` runs: each trains."""
    return pytest.param(value, marks=pytest.mark.slow)


def end(trainer) -> tuple[str, str]:
    """State and weights at the end of a run."""
    return digest(trainer.loop.state_dict()), digest(weights(trainer).detach().numpy())


@pytest.fixture(scope="module")
def unharmed(tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The end of a run without a fault."""
    trainer = build(tiny_path, tmp_path_factory.mktemp("unharmed"), "duet", Killer(None))
    trainer.train()
    return end(trainer)


def injected(owner: Any, name: str, fault: Callable, step: Callable[[], int]) -> None:
    """Let a function do something else in the step `AT`."""
    work = getattr(owner, name)

    def faulty(*args: Any, **kwargs: Any) -> Any:
        return fault(*args, **kwargs) if step() == AT - 1 else work(*args, **kwargs)

    setattr(owner, name, faulty)


def raising(error: BaseException) -> Callable:
    def fault(*args: Any, **kwargs: Any) -> Any:
        raise error

    return fault


REWARD_FAULTS = {
    "raises": (raising(ConnectionError("verifier gone")), ConnectionError, "verifier gone"),
    "nothing": (lambda completions, **columns: None, TypeError, "NoneType"),
    "too-few": (lambda completions, **columns: [1.0], ValueError, "'Reward' returned 1 rewards, but .* were expected"),
    "too-many": (lambda completions, **columns: [1.0] * 99, ValueError, "returned 99 rewards"),
    "a-number": (lambda completions, **columns: 1.0, TypeError, "float"),
}


@pytest.mark.parametrize("name", ["raises", "engine", *map(slow, ("nothing", "too-few", "too-many", "a-number"))])
def test_an_error_in_a_step_leaves_a_checkpoint_to_resume_from(tiny_path, tmp_path, caplog, unharmed, name):
    """A run without any saving: the checkpoint is that of the step before, and nothing is lost but that step."""
    fault, error, text = REWARD_FAULTS.get(
        name, (raising(RuntimeError("engine core died")), RuntimeError, "core died")
    )
    trainer = build(tiny_path, tmp_path, "duet", Killer(None))
    if name == "engine":
        injected(trainer.engine, "generate", fault, lambda: trainer.loop.num_steps)
    else:
        reward = trainer.reward_funcs[0]
        trainer.reward_func_names = ["Reward"]

        def rewarded(completions, **columns):
            return (fault if trainer.loop.num_steps == AT - 1 else reward)(completions=completions, **columns)

        trainer.reward_funcs[0] = rewarded
    with pytest.raises(error, match=text):
        trainer.train()
    assert f"The step failed with {error.__name__}. The state before it is in {tmp_path}/checkpoint-2." in caplog.text

    resumed = build(tiny_path, tmp_path, "duet", Killer(None))
    resumed.train(resume_from_checkpoint=True)
    assert end(resumed) == unharmed


def test_an_error_after_a_save_leaves_that_checkpoint_alone(tiny_path, tmp_path, caplog):
    """Writing it again is a risk without a gain; one of an earlier run in the same folder is not the one."""
    stale = tmp_path / "checkpoint-2"
    stale.mkdir()
    (stale / "trainer_state.json").write_text("{}")
    trainer = build(tiny_path, tmp_path, "grpo", Killer(None), save_strategy="steps", save_steps=2)
    states, write = [], trainer.save_method_state
    trainer.save_method_state = lambda folder: (states.append(trainer.loop.num_steps), write(folder))
    injected(trainer.engine, "generate", raising(RuntimeError("engine core died")), lambda: trainer.loop.num_steps)
    with pytest.raises(RuntimeError, match="core died"):
        trainer.train()
    assert states == [2] and f"The state before it is in {stale}." in caplog.text
    assert json.loads((stale / "trainer_state.json").read_text())["global_step"] == 2


def test_the_second_interrupt_still_acts_at_once(tiny_path, tmp_path):
    trainer = build(tiny_path, tmp_path, "duet", Killer(None))
    injected(trainer.engine, "generate", raising(KeyboardInterrupt()), lambda: trainer.loop.num_steps)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert not list(tmp_path.glob("checkpoint-*"))


@pytest.mark.parametrize("method", ["duet", "paper"])
def test_a_rollout_that_nobody_could_score_is_lost_and_no_failure(tiny_path, tmp_path, method):
    """It leaves gradient and divisor, whatever the gate did to it; no other one is multiplied for it."""
    trainer = build(tiny_path, tmp_path, method, Killer(None), max_steps=2, audit_log=True)
    reward = trainer.reward_funcs[0]

    def some(completions, **columns):
        found = reward(completions, **columns)
        return [None if row % 3 == 0 else 1.0 + value for row, value in enumerate(found)]

    trainer.reward_funcs[0] = some
    trainer.train()
    lost = 0
    for step in (1, 2):
        rows = pq.read_table(tmp_path / "duet_audit" / f"step_{step:06d}.parquet").to_pydict()
        gone = [row for row, outcome in enumerate(rows["outcome"]) if outcome == "lost"]
        assert gone == [row for row, value in enumerate(rows["reward"]) if np.isnan(value)]
        assert all(rows["advantage"][row] == 0.0 and np.isnan(rows["sum_logp"][row]) for row in gone)
        lost += len(gone)
        assert logged(trainer, "duet/nonfinite_rollouts")[step - 1] == len(gone)
    assert lost >= 8
    judged = trainer._current
    assert not (judged.judgement.in_divisor & judged.nonfinite).any()
    assert judged.num_kept_tokens == judged.loss_tokens[judged.judgement.in_divisor].sum()
    # What is remembered is of the scored ones alone: none of these earned less than 1.
    assert min(trainer.method.allocator.statistics.reward_history(judged.prompts.keys).mean) >= 1.0


class FullDisk(TrainerCallback):
    """From the end of a step on no file can grow beyond a size, as on a disk that is full."""

    def __init__(self, step: int, size: int) -> None:
        self.step, self.size = step, size
        self.before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.size, self.before[1]))

    def relieve(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self.before)


@pytest.mark.parametrize("size", [slow(1_000), slow(100_000), 500_000])  # the method's state, weights, the optimizer
def test_a_disk_that_is_full_during_a_save_costs_the_steps_since_the_last_one(
    tiny_path, tmp_path, caplog, unharmed, size
):
    saving = {"save_strategy": "steps", "save_steps": 1}
    trainer = build(tiny_path, tmp_path, "duet", Killer(None), **saving)
    for printer in (PrinterCallback, ProgressCallback):  # pytest's capture of what they print is a file as well
        trainer.remove_callback(printer)
    disk = FullDisk(AT, size)
    trainer.add_callback(disk)
    try:
        with pytest.raises((OSError, RuntimeError, SafetensorError)):  # of Python, of torch
            trainer.train()
    finally:
        disk.relieve()
    assert re.search(rf"checkpoint-{AT} was not written to its end; [\d.]+ GB are free on its disk", caplog.text)
    assert why_torn(tmp_path / f"checkpoint-{AT}") and why_torn(tmp_path / f"checkpoint-{AT - 1}") is None
    resumed = build(tiny_path, tmp_path, "duet", Killer(None), **saving)
    resumed.train(resume_from_checkpoint=True)
    assert f"checkpoint-{AT} was not written to its end" in caplog.text
    assert end(resumed) == unharmed


@pytest.mark.parametrize("broken", ["one", "all"])
def test_log_probs_that_are_nan_stop_the_run_before_its_weights_are(tiny_path, tmp_path, broken):
    """One row is enough: the gradient of all of them is NaN."""
    trainer = build(
        tiny_path, tmp_path, "grpo", Killer(None), save_strategy="steps", save_steps=1, shared_prompts=False
    )
    with pytest.MonkeyPatch.context() as patch:
        original = GRPOTrainer._get_per_token_logps_and_entropies

        def nan_logps(self, *args, **kwargs):
            logps, *others = original(self, *args, **kwargs)
            if self.state.global_step == AT - 1:
                logps = logps.clone()
                logps[slice(0, 1) if broken == "one" else slice(None)] *= torch.nan
            return logps, *others

        patch.setattr(GRPOTrainer, "_get_per_token_logps_and_entropies", nan_logps)
        with pytest.raises(TrainingStopped, match=r"\d+ of \d+ rollouts of generation step 3 have no finite log-prob"):
            trainer.train()
    assert trainer.state.global_step == AT - 1 and weights(trainer).isfinite().all()
    assert json.loads((tmp_path / f"checkpoint-{AT - 1}" / "duet_state.json").read_text())["step"] == AT - 1


@pytest.mark.parametrize("method", ["duet", "paper"])
def test_a_step_whose_rollouts_are_all_aborted_goes_on(tiny_path, tmp_path, method):
    keep = {"keep_probability": 1e-9} if method == "paper" else {"aborts_early": {"keep_probability": 1e-9}}
    trainer = build(tiny_path, tmp_path, method, Killer(None), marker="never...", **keep)
    # Rollouts of 24 tokens, of which the gate lets at most 20 pass.
    trainer.engine.table[:, list(trainer.engine.policy.eos_ids)] = 0.0
    trainer.engine.table /= trainer.engine.table.sum(axis=1, keepdims=True)
    before = weights(trainer).clone()
    trainer.train()
    assert logged(trainer, "duet/abort_rate") == [1.0] * 5
    assert weights(trainer).isfinite().all() and trainer.state.global_step == 5
    if method == "paper":  # masked: there is nothing to learn from
        assert torch.equal(weights(trainer), before)


@pytest.mark.parametrize("method", ["dapo", *map(slow, ("duet", "grpo", "greso", "reinforce_ada"))])
def test_groups_that_are_all_degenerate_teach_nothing_and_are_named(tiny_path, tmp_path, caplog, method):
    """dapo and greso draw the whole data set, and end the step with what they have."""
    trainer = build(tiny_path, tmp_path, method, Killer(None))
    trainer.reward_funcs[0] = lambda completions, **columns: [1.0] * len(completions)
    before = weights(trainer).clone()
    trainer.train()
    assert torch.equal(weights(trainer), before) and trainer.state.global_step == 5
    assert "No rollout of the last 3 generation steps has an advantage" in caplog.text
    if method in ("dapo", "greso"):
        assert max(logged(trainer, "duet/resampled_batches")) >= 1
        assert logged(trainer, "duet/unfilled_prompts")[0] == 4.0


def test_data_smaller_than_a_batch_are_refused_before_the_first_step(tiny_path, tmp_path):
    """transformers ends such a run at step 0 as if it were done."""
    with pytest.raises(ValueError, match="The data set has 3 rows, and a generation step takes 4 prompts"):
        build(tiny_path, tmp_path, "duet", Killer(None), data=prompts(3)).train()
    build(tiny_path, tmp_path, "duet", Killer(None), data=prompts(4), max_steps=1).train()


def test_data_that_changed_on_resume_are_named(tiny_path, tmp_path, caplog):
    saving = {"save_strategy": "steps", "save_steps": 2}
    build(tiny_path, tmp_path, "duet", Killer(None), max_steps=2, **saving).train()
    build(tiny_path, tmp_path, "duet", Killer(None), max_steps=3).train(resume_from_checkpoint=True)
    assert "has changed" not in caplog.text
    fewer = build(tiny_path, tmp_path, "duet", Killer(None), max_steps=3, data=prompts(11))
    fewer.train(resume_from_checkpoint=True)
    assert f"The data set has changed since {tmp_path}/checkpoint-2 was written: 12 rows then, 11 now." in caplog.text
    caplog.clear()
    moved = prompts(12).select([1, 0, *range(2, 12)])
    build(tiny_path, tmp_path, "duet", Killer(None), max_steps=3, data=moved).train(resume_from_checkpoint=True)
    assert "12 rows then, 12 now" in caplog.text
