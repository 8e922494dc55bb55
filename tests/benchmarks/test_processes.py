# SPDX-License-Identifier: Apache-2.0
"""The comparison over numbers of processes: what it refuses, what it counts as a difference, and a short run."""

import copy

import numpy as np
import pytest

from benchmarks.processes import DECISIONS, SETUPS, check_sharding, compare, differences, fsdp_environment, missed

STEP = {name: [1, 0] for name in DECISIONS} | {"prompts": ["a", "b"], "thresholds": [[1, 2], [1, 2]]}
STEP |= {"rewards": [0.5, 1.0], "advantages": [0.1, -0.1], "sum_logps": [-3.0, -4.0]}
REPORT = {"steps": [STEP], "losses": [0.25], "weights": {"layer": np.ones((2, 2), dtype=np.float32)}}


def shards(kind: str, sharded: int, held: int) -> dict:
    """What one process reports of ten parameters with 100 elements."""
    found = {"type": kind, "parameters": 10, "sharded": sharded, "local_elements": held, "elements": 100}
    return {"sharding": found}


def test_weights_that_are_not_sharded_as_asked_are_refused() -> None:
    check_sharding([shards("FSDP", 10, 50), shards("FSDP", 10, 50)], sharded=True)
    check_sharding([shards("MULTI_CPU", 0, 0), shards("MULTI_CPU", 0, 0)], sharded=False)
    check_sharding([shards("NO", 0, 0)], sharded=False)
    with pytest.raises(RuntimeError, match="asked for FSDP, got .*MULTI_CPU"):  # accelerate's own choice on a CPU
        check_sharding([shards("MULTI_CPU", 0, 0)] * 2, sharded=True)
    with pytest.raises(RuntimeError, match="asked for FSDP"):
        check_sharding([shards("FSDP", 9, 50)] * 2, sharded=True)
    with pytest.raises(RuntimeError, match="hold 200 elements of 100"):  # wrapped, and whole on both
        check_sharding([shards("FSDP", 10, 100)] * 2, sharded=True)


@pytest.mark.parametrize("name", [*DECISIONS, "rewards", "advantages", "sum_logps"])
def test_a_difference_in_any_quantity_is_found(name: str) -> None:
    other = copy.deepcopy(REPORT)
    assert set(differences(REPORT, other).values()) == {0.0}
    if name == "prompts":
        other["steps"][0][name][1] = "c"
    elif name == "thresholds":
        other["steps"][0][name][1][1] += 1
    else:
        other["steps"][0][name][1] += 1
    found = differences(REPORT, other)
    assert found.pop(name) == (float("inf") if name == "prompts" else 1.0)
    assert set(found.values()) == {0.0}
    other["steps"][0]["counts"] = [1]
    assert differences(REPORT, other)["counts"] == float("inf")


def test_targets_are_equal_decisions_and_weights_within_1e_5() -> None:
    result = {
        "differences": {"2, DDP": differences(REPORT, REPORT)},
        "between_processes": {"2, DDP": 0.0},
        "moved": 0.1,
        "outcomes": [1, 1, 1, 1],
        "trimmed": 1,
    }
    assert missed("duet", result) == []
    for name, size, message in (("coins", 1.0, "coins"), ("weights", 2e-5, "weights"), ("weights", np.nan, "weights")):
        changed = copy.deepcopy(result)
        changed["differences"]["2, DDP"][name] = size
        assert missed("duet", changed) == [f"duet, 2, DDP: {message}"]
    assert missed("duet", result | {"outcomes": [1, 1, 0, 1]}) == ["duet: an outcome of the gate is missing"]
    assert missed("grpo", result | {"moved": 0.0}) == ["grpo: the weights moved by 0.0 only"]
    assert missed("duet", result | {"between_processes": {"2, DDP": 1e-9}}) == ["duet, 2, DDP: processes"]


def test_sharded_runs_use_the_shipped_configuration() -> None:
    found = fsdp_environment()
    assert found["ACCELERATE_USE_FSDP"] == "true" and found["FSDP_VERSION"] == "2"
    assert found["FSDP_STATE_DICT_TYPE"] == "FULL_STATE_DICT"


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_one_process_two_and_two_with_shards_train_alike() -> None:
    setups = {name: SETUPS[name] for name in ("1 process", "2, DDP", "2, FSDP2")}
    (result,) = compare(["duet"], setups, max_steps=3, seed=7).values()
    assert missed("duet", result) == []
