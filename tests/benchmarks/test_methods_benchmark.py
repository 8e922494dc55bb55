# SPDX-License-Identifier: Apache-2.0
"""The benchmark of all methods: what it counts, and that it sees a lost state and an idle step."""

import copy
import shutil
from pathlib import Path

import pytest

from benchmarks.methods import COLUMNS, NEW, NUM_PROMPTS, TRANSFORMERS, VLLM, Notes, alike, build, checks, train
from duet_trl.methods import METHODS


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("methods")


@pytest.fixture(scope="module")
def runs(folder: Path) -> dict[str, tuple[Notes, Notes]]:
    """Two methods, uninterrupted and resumed."""
    return {
        method: tuple(train(method, TRANSFORMERS, folder / method, 0, resume) for resume in (False, True))
        for method in ("duet", "pods")
    }


def test_the_resumed_step_is_the_second_of_the_whole_run(runs):
    for whole, resumed in runs.values():
        assert (len(whole.asked), len(resumed.asked)) == (2, 1)
        assert alike(whole, resumed, TRANSFORMERS) and alike(whole, resumed, VLLM)
        first, second = ({key for key, _ in rounds[0]} for rounds in whole.asked)
        assert (len(first | second), len(second - first)) == (NUM_PROMPTS + NEW, NEW)


def test_figures_are_those_of_the_step(runs):
    for step in runs["pods"][0].figures:  # 8 prompts x 8 rollouts, a quarter of them trained
        assert (step["rollouts"], step["rounds"], step["prompts"]) == (64, 1, 8)
        assert 0 < 3 * step["trained_tokens"] < 2 * step["generated_tokens"]
        assert step["seconds"] > 0
    assert runs["duet"][0].figures[0]["rollouts"] == 32  # half the budget, and nothing to allocate by


def test_a_lost_state_is_seen(runs, folder, tmp_path):
    shutil.copytree(folder / "duet" / "checkpoint-1", tmp_path / "checkpoint-1")
    fresh = build("duet", TRANSFORMERS, tmp_path, 0)
    fresh.loop.num_steps = 1  # the coins go on, nothing else is remembered
    fresh.save_method_state(tmp_path / "checkpoint-1")
    assert not alike(runs["duet"][0], train("duet", TRANSFORMERS, tmp_path, 0, resume=True), VLLM)


def good() -> dict:
    step = dict.fromkeys(COLUMNS, 5) | {"seconds": 1.0}
    one = {"steps": [step, step], "resumed_steps": [step], "resumes_alike": True}
    return {method: {engine: copy.deepcopy(one) for engine in (TRANSFORMERS, VLLM)} for method in METHODS}


def test_an_idle_step_a_missing_one_and_another_plan_are_targets_missed():
    assert all(checks(good()).values()) and len(checks(good())) == 4 * len(METHODS)
    for change in (
        lambda one: one["steps"][1].update(trained_tokens=0),
        lambda one: one["resumed_steps"][0].update(generated_tokens=0),
        lambda one: one["resumed_steps"].clear(),
        lambda one: one.update(resumes_alike=False),
    ):
        bad = good()
        change(bad["grpo"][VLLM])
        missed = [name for name, met in checks(bad).items() if not met]
        assert len(missed) == 1 and missed[0].startswith("grpo on vllm")
