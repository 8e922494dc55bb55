# SPDX-License-Identifier: Apache-2.0
"""The benchmark of all methods: what it counts, and that it sees a lost state and an idle step."""

import copy
import shutil
from pathlib import Path

import pytest

from benchmarks.methods import (
    BUDGETS,
    COLUMNS,
    NEW,
    NUM_PROMPTS,
    REUSE,
    SHARES,
    TRANSFORMERS,
    VLLM,
    Notes,
    alike,
    build,
    checks,
    train,
)
from duet_trl.methods import METHODS


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("methods")


@pytest.fixture(scope="module")
def runs(folder: Path) -> dict[str, tuple[Notes, Notes]]:
    """Three methods, uninterrupted and resumed."""
    return {
        method: tuple(train(method, TRANSFORMERS, share, folder / method, 0, resume) for resume in (False, True))
        for method, share in (("duet", 0.5), ("pods", 1.0), ("spec_rl", 0.25))
    }


@pytest.mark.slow
def test_the_resumed_step_is_the_second_of_the_whole_run(runs):
    for whole, resumed in runs.values():
        assert (len(whole.asked), len(resumed.asked)) == (2, 1)
        assert alike(whole, resumed, TRANSFORMERS) and alike(whole, resumed, VLLM)
        first, second = ({key for key, _ in rounds[0]} for rounds in whole.asked)
        assert (len(first | second), len(second - first)) == (NUM_PROMPTS + NEW, NEW)


@pytest.mark.slow
def test_figures_are_those_of_the_step(runs):
    for step in runs["pods"][0].figures:  # 8 prompts x 8 rollouts, a quarter of them trained
        assert (step["rollouts"], step["rounds"], step["prompts"]) == (64, 1, 8)
        assert 0 < 3 * step["trained_tokens"] < 2 * step["generated_tokens"]
        assert step["seconds"] > 0
    assert runs["duet"][0].figures[0]["rollouts"] == 32  # half the budget, and nothing to allocate by
    first, second = runs["spec_rl"][0].figures
    assert first["rollouts"] == second["rollouts"] == 16 and first["reused_tokens"] == 0 < second["reused_tokens"]
    assert second["generated_tokens"] + second["reused_tokens"] == second["trained_tokens"]


@pytest.mark.slow
def test_a_lost_state_is_seen(runs, folder, tmp_path):
    shutil.copytree(folder / "spec_rl" / "checkpoint-1", tmp_path / "checkpoint-1")
    fresh = build("spec_rl", TRANSFORMERS, 0.25, tmp_path, 0)
    fresh.loop.num_steps = 1  # the coins go on, nothing else is remembered
    fresh.save_method_state(tmp_path / "checkpoint-1")
    assert not alike(runs["spec_rl"][0], train("spec_rl", TRANSFORMERS, 0.25, tmp_path, 0, resume=True), VLLM)


def test_every_method_has_a_bound_and_every_ordering_has_its_methods():
    assert BUDGETS.keys() == METHODS.keys() - {"own"}


def good() -> list[dict]:
    """Figures that meet every target: methods of the budget's names, at each share."""
    tokens = {"dapo": 900, "spec_rl": 300, "arrol": 400}
    found = []
    for method in BUDGETS:
        for engine, share in [*((TRANSFORMERS, share) for share in SHARES), (VLLM, 1.0)]:
            first = dict.fromkeys(COLUMNS, 1) | {
                "rollouts": int(share * 64),
                "generated_tokens": tokens.get(method, 600),
                "trained_tokens": 200 if method == "pods" else 600,
                "reused_tokens": 0,
                "budget_tokens": 600.0,
                "planned_tokens": 600.0,
            }
            second = first | {"reused_tokens": 100 if method == REUSE else 0}
            one = {"method": method, "engine": engine, "share": share, "steps": [first, second]}
            if share == 1.0:
                one |= {"resumed_steps": [dict(second)], "resumes_alike": True}
            found.append(copy.deepcopy(one))
    return found


@pytest.mark.parametrize(
    ("method", "change", "missed"),
    [
        ("grpo", lambda one: one["steps"][1].update(trained_tokens=0), "grpo at 100% on vllm: generates and trains"),
        ("grpo", lambda one: one["resumed_steps"][0].update(generated_tokens=0), "grpo at 100% on vllm: generates"),
        ("grpo", lambda one: one["resumed_steps"].clear(), "grpo at 100% on vllm: resumes"),
        ("grpo", lambda one: one.update(resumes_alike=False), "grpo at 100% on vllm: resumes"),
        ("pods", lambda one: one["steps"][0].update(rollouts=65), "pods at 100% on vllm: keeps to its budget"),
        (
            "duet",
            lambda one: one["steps"][0].update(planned_tokens=601.0),
            "duet at 100% on vllm: keeps to its budget",
        ),
        ("pods", lambda one: one["steps"][1].update(reused_tokens=1), "pods at 100% on vllm: reuses tokens"),
        ("spec_rl", lambda one: one["steps"][1].update(reused_tokens=0), "spec_rl at 100% on vllm: reuses tokens"),
        ("vip", lambda one: one["steps"][0].update(rollouts=60), "vip has the rollouts of grpo, at 100% on vllm"),
        ("dapo", lambda one: [step.update(generated_tokens=600) for step in one["steps"]], "dapo generates more"),
    ],
)
def test_one_wrong_figure_is_one_target_missed(method, change, missed):
    assert all(checks(good()).values())
    bad = good()
    change(next(one for one in bad if (one["method"], one["engine"]) == (method, VLLM)))
    found = [name for name, met in checks(bad).items() if not met]
    assert len(found) == 1 and found[0].startswith(missed)
