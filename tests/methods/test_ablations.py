# SPDX-License-Identifier: Apache-2.0
"""The ablations of DUET as settings, under `duet` and `paper`: each changes its own part of the plan and no other."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.common import grouped
from duet_trl import DUETGRPOConfig
from duet_trl.allocate.allocators import FLOOR_QUANTILE
from duet_trl.methods import build_method
from duet_trl.methods.gated import Gated
from duet_trl.rollouts import Job

from .simulator import make_prompts, rollouts

KEYS = "abc"
METHODS = pytest.mark.parametrize("method", ["duet", "paper"])


def planned(tmp_path: Path, method: str, visits: int = 0, **settings: object) -> tuple[Gated, list[Job]]:
    """Jobs of a step over three prompts after some visits, in which a alternates, b and c are nearly solved."""
    fields = {
        "output_dir": str(tmp_path),
        "per_device_train_batch_size": 24,
        "num_generations": 8,
        "max_completion_length": 1000,
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
    }
    found = build_method(DUETGRPOConfig(**fields, **grouped({"method": method, **settings})))
    for step in range(1, visits + 2):
        prompts = make_prompts(KEYS, step=step, epoch=step - 1)
        jobs = list(found.jobs(prompts, None))
        if step <= visits:
            number = np.arange(len(jobs))
            reward = [float(job.prompt > 0 or n % 2) for job, n in zip(jobs, number, strict=True)]
            reward[-1] = 0.0
            done = rollouts(prompts, [jobs], reward, [100 + 20 * n for n in number])
            found.observe(done, found.judge(done), -10.0 - number)
    return found, jobs


def counts(jobs: list[Job]) -> list[int]:
    return np.bincount([job.prompt for job in jobs]).tolist()


@METHODS
def test_allocation_only(tmp_path: Path, method: str) -> None:
    _, jobs = planned(tmp_path, method, visits=1, allocate=True, trim=False, abort=False)
    assert all(job.gate is None for job in jobs) and len(set(counts(jobs))) > 1


@METHODS
def test_gate_only(tmp_path: Path, method: str) -> None:
    _, jobs = planned(tmp_path, method, visits=1, allocate=False)
    assert counts(jobs) == [4, 4, 4] and all(job.gate.trim and job.gate.abort for job in jobs)


@pytest.mark.parametrize("epsilon", [0.01, 0.05, 0.1, 0.2, 1.0])
def test_sweep_of_epsilon(tmp_path: Path, epsilon: float) -> None:
    """The share of coins that keep, over 3,000: four standard errors."""
    found, _ = planned(tmp_path, "paper", keep_probability=epsilon)
    kept = np.mean([job.keep for step in range(250) for job in found.jobs(make_prompts(KEYS, step=step), None)])
    assert abs(kept - epsilon) <= 4 * np.sqrt(epsilon * (1 - epsilon) / 3000)
    assert found.keep_probability == epsilon


def test_k_warmup(tmp_path: Path) -> None:
    """After one visit a prompt's own sigma is used with k_warmup = 1, and not yet with 2."""
    cold = {}
    for warmup in (1, 2):
        for visits in (1, 2):
            found, _ = planned(tmp_path, "paper", visits, surrogate_warmup=warmup, num_rollouts_min=2)
            cold[warmup, visits] = int(found.allocator.cold.sum())
    assert cold == {(1, 1): 0, (1, 2): 0, (2, 1): 3, (2, 2): 0}


def test_what_is_no_setting(tmp_path: Path) -> None:
    """The values of the paper's appendix (docs/fidelity.md)."""
    found, _ = planned(tmp_path, "paper")
    assert (found.allocator.floor, FLOOR_QUANTILE) == (0.01, 0.05)
    assert (found.allocator.price_aborted, found.spec().window) == (False, 256)


def test_a_constant_surrogate_sees_lengths_only(tmp_path: Path) -> None:
    """Before any length all are equal; afterwards the shortest prompt, a, has most, whatever sigma was observed."""
    settings = {"surrogate": "constant", "trim": False, "abort": False}
    _, jobs = planned(tmp_path, "paper", **settings)
    assert counts(jobs) == [4, 4, 4]
    _, jobs = planned(tmp_path, "paper", visits=1, **settings)
    first, second, third = counts(jobs)
    assert first > second >= third
