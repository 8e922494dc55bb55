# SPDX-License-Identifier: Apache-2.0
"""Real processes over gloo: equal state on both, the plans of a single one, weights in shards, a resumed run."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_multi_gpu_env
from safetensors.numpy import load_file

from duet_trl.gate.replay import Outcome
from duet_trl.methods import METHODS
from tests.processes import forked, fresh, process_environment, python_command

TESTS = Path(__file__).parent
WINDOWS = {"steps_per_generation": 4, "num_iterations": 2}
"""Four optimizer steps of each batch of rollouts."""
LOGS = {"log_completions": True, "audit_log": True, "eval_strategy": "steps", "eval_steps": 2}


def fsdp_environment() -> dict[str, str]:
    """What `accelerate launch --config_file recipes/accelerate/fsdp2.yaml` sets for its processes."""
    line = ["--config_file", str(TESTS.parent / "recipes" / "accelerate" / "fsdp2.yaml"), "--num_processes", "2"]
    arguments, _, _ = _validate_launch_command(
        launch_command_parser().parse_args([*line, "--main_process_port", "0", "--mixed_precision", "no", "script.py"])
    )
    found = prepare_multi_gpu_env(arguments)
    return {name: value for name, value in found.items() if name.startswith("FSDP_")} | {"ACCELERATE_USE_FSDP": "true"}


def run(
    processes: int, script: str, subject: Path | str, folder: Path, sharded: bool = False, **options
) -> subprocess.CompletedProcess[str]:
    """Run a script of this folder."""
    arguments = [str(TESTS / script), str(subject), str(folder), json.dumps(options)]
    environment = process_environment() | (fsdp_environment() if sharded else {})
    return forked(arguments, env=environment, processes=processes)


def launch(processes: int, model: Path, output_dir: Path, script: str = "distributed_run.py", **overrides) -> list:
    """Run a script of this folder and return what each process reports."""
    done = run(processes, script, model, output_dir, **overrides)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((output_dir / f"rank{rank}.json").read_text()) for rank in range(processes)]


@pytest.mark.distributed
@pytest.mark.slow
def test_both_processes_hold_the_same_state_and_weights(tiny_path, tmp_path):
    # Of 64 rollouts of a step 55 are in the budget: the processes cannot have equally many.
    options = {**WINDOWS, "beta": 0.04, "mask_truncated_completions": True, **LOGS}
    first, second = launch(2, tiny_path, tmp_path, budget_fraction=0.86, **options)
    assert first["state"] == second["state"]
    assert first["weights"] == second["weights"]
    assert first["moved"] > 1e-4
    assert first["samples"] == second["samples"]  # three prompts over two processes, known to both
    assert [len(row) for row in first["samples"]] == [1, 1, 1]
    assert sum(first["plans"][0]) % 2 == 1  # padded on one process, not rounded


@pytest.mark.distributed
@pytest.mark.slow
def test_every_method_trains_alike_on_both_processes(tiny_path, tmp_path):
    """Two steps of each method, one after another in one group of processes."""
    methods = [name for name in METHODS if name != "own"]
    first, second = launch(2, tiny_path, tmp_path, "distributed_methods.py", methods=methods)
    assert first.keys() == set(methods)
    for method in methods:
        one, other = first[method], second[method]
        for name in ("state", "weights", "jobs"):
            assert one[name] == other[name], (method, name)
        assert one["moved"] > 1e-5, method
        assert len(one["trained_tokens"]) == 2 and min(one["trained_tokens"]) > 0, method
        assert (one["reused_tokens"] > 0) == (method == "spec_rl"), method


def scripted(processes: int, folder: Path, sharded: bool = False, **more) -> list[dict]:
    """What each process of scripted_run.py saw; its weights lie as they were asked to."""
    folder.mkdir()
    options = {"max_steps": 3, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 4 // processes}
    # Of this seed's three coins the last one alone keeps what the gate would abort.
    options |= {"seed": 6, **more}
    arguments = [str(TESTS / "scripted_run.py"), str(folder), json.dumps(options)]
    environment = process_environment() | (fsdp_environment() if sharded else {})
    done = forked(arguments, env=environment, processes=processes, timeout=1400)
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(processes)]
    for rank, one in enumerate(found):
        one["weights"] = load_file(folder / f"rank{rank}.safetensors")
        assert one["sharding"]["type"] == ("FSDP" if sharded else "NO" if processes == 1 else "MULTI_CPU")
        assert one["sharding"]["sharded"] == (one["sharding"]["parameters"] if sharded else 0)
    if sharded:  # each element is on one process
        assert sum(one["sharding"]["local_elements"] for one in found) == found[0]["sharding"]["elements"]
    return found


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    ("processes", "sharded", "loss_type"),
    [(2, False, "bnpo"), (4, False, "dapo"), (2, True, "grpo")],
    ids=["ddp2", "ddp4", "fsdp2"],
)
def test_any_number_of_processes_plans_stops_and_trains_as_one_does(tmp_path, processes, sharded, loss_type):
    (single,) = scripted(1, tmp_path / "one", loss_type=loss_type)
    first, *others = scripted(processes, tmp_path / "several", sharded, loss_type=loss_type)
    assert single["moved"] > 1e-3
    assert all(other["steps"] == first["steps"] and other["losses"] == first["losses"] for other in others)
    outcomes = {outcome for step in single["steps"] for outcome in step["outcomes"]}
    assert outcomes == {*Outcome} and any(sum(step["trimmed"]) for step in single["steps"])
    for step, same in zip(single["steps"], first["steps"], strict=True):
        logps, other_logps = step.pop("sum_logps"), same.pop("sum_logps")
        np.testing.assert_allclose(logps, other_logps, atol=1e-3)  # sums of up to 64
        for name in ("rewards", "advantages"):
            np.testing.assert_allclose(step.pop(name), same.pop(name), atol=1e-5)
        assert step == same  # plans, coins, thresholds, outcomes
    assert first["losses"] == pytest.approx(single["losses"], abs=1e-5)
    for name, weight in single["weights"].items():
        np.testing.assert_allclose(first["weights"][name], weight, atol=1e-5)
        assert all((other["weights"][name] == first["weights"][name]).all() for other in others)


def resume(folder: Path, parts: str, sharded: bool) -> list[dict]:
    """What both processes of distributed_resume.py report."""
    options = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2}
    done = run(2, "distributed_resume.py", parts, folder, sharded, **options)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True], ids=["ddp", "fsdp2"])
def test_a_run_of_several_processes_resumes_where_it_was(tmp_path, sharded):
    for report in resume(tmp_path, "resumes", sharded):
        found = report["resumes"]
        assert found["steps"] == [3, 4]
        assert found["weights_were_loaded"] > 1e-4 and found["moved"] > found["weights_were_loaded"]
        assert found["same_state"]
        assert found["difference"] < 1e-6  # weights and Adam's moments were restored


@pytest.mark.distributed
@pytest.mark.slow
def test_sharded_weights_generate_and_are_saved_whole(tmp_path):
    first, second = (report["generates"] for report in resume(tmp_path, "generates", sharded=True))
    for found in (first, second):
        assert found["sharding"]["type"] == "FSDP"
        assert found["sharding"]["sharded"] == found["sharding"]["parameters"] > 0
    assert first["samples"] == second["samples"] == first["greedy"]  # of the saved model, which was never sharded
    assert first["saved"] == 0.0
    assert first["state"] == second["state"]
    # One process has sampled its last token long before the other.
    assert (first["longest"][-1], second["longest"][-1]) == (12, 1)


@pytest.mark.distributed
@pytest.mark.slow
def test_an_error_of_one_process_ends_all_of_them_and_the_run_resumes(tiny_path, tmp_path):
    saving = {"save_strategy": "steps", "save_steps": 1, "max_steps": 2}
    options = json.dumps(saving | {"fails_in_step": 2})
    torchrun = python_command(2)[1:]  # itself, whose part it is to end the others
    arguments = [*torchrun, str(TESTS / "distributed_run.py"), str(tiny_path), str(tmp_path), options]
    done = fresh(arguments, env=process_environment())
    assert done.returncode == 1
    assert "OSError: the verifier of process 1 is gone" in done.stderr
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-1"]
    resumed = launch(2, tiny_path, tmp_path, resumes=True, **saving)
    assert resumed[0]["state"] == resumed[1]["state"]
    assert [len(report["plans"]) for report in resumed] == [1, 1]
    assert (tmp_path / "checkpoint-2").is_dir()
