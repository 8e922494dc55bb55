# SPDX-License-Identifier: Apache-2.0
"""Who competes: every method, at the budget of its name, with nothing else that is its own but what is declared."""

import ast
import re
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trl import GRPOConfig

from benchmarks.arena.cell import leave_out_idle
from benchmarks.arena.entrants import ENTRANTS, FULL, REFERENCE, Entrant, configuration
from benchmarks.arena.report import MAIN
from benchmarks.arena.targets import FEWER, PLAIN, SUBJECT, SWAP, SWAP_UNGATED, UNGATED
from benchmarks.arena.tasks import TASKS
from duet_trl import DUETGRPOConfig
from duet_trl.config import reads
from duet_trl.methods import METHODS
from duet_trl.rollouts import Judgement

MIXED = TASKS["mixed_135m"]
EACH_ENTRANT = pytest.mark.parametrize("entrant", ENTRANTS.values(), ids=ENTRANTS)
README = Path(__file__).parents[2] / "README.md"


def built(entrant: Entrant, folder: Path, task=MIXED) -> DUETGRPOConfig:
    """As it runs, but without vLLM, which need not be installed."""
    own = configuration(entrant, task, 6e-4, 3, 8)
    assert own["use_vllm"] is own["use_cpu"] is True
    return DUETGRPOConfig(output_dir=str(folder), max_steps=4, **own | {"use_vllm": False})


def test_every_method_but_those_for_returning_prompts_competes() -> None:
    assert {entrant.method for entrant in ENTRANTS.values()} == METHODS.keys() - {"own", "knapsack", "spec_rl"}
    assert next(iter(ENTRANTS)) == REFERENCE
    assert {SUBJECT, UNGATED, SWAP, PLAIN, SWAP_UNGATED, FEWER, *MAIN} <= ENTRANTS.keys()
    assert all(entrant.name == name for name, entrant in ENTRANTS.items())


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
@EACH_ENTRANT
def test_an_entrant_has_the_budget_of_its_name_and_what_it_declares(entrant: Entrant, task, tmp_path: Path) -> None:
    config = built(entrant, tmp_path, task)
    size = re.match(r"grpo_(\d)", entrant.name)
    share = config.budget_fraction if "budget_fraction" in reads(entrant.method) else 1.0
    assert share * config.num_generations == FULL * entrant.budget == (int(size[1]) if size else FULL * entrant.budget)
    assert config.num_prompts == 8
    assert config.generation_batch_size == config.num_prompts * config.num_generations
    for name, value in entrant.settings.items():
        assert (vars(config.options) | vars(config))[name] == value
    stop = {"stop": ["\n"], "include_stop_str_in_output": True} if entrant.stops and task.stop else {}
    assert (config.generation_kwargs or {}) == stop
    assert (config.method, config.learning_rate, config.seed) == (entrant.method, 6e-4, 3)
    assert config.max_completion_length == task.max_completion_length
    if config.gated:
        assert config.marker == task.marker


OTHERS = """
bf16 dataloader_pin_memory disable_tqdm filled_in generation_batch_size grace_window gradient_accumulation_steps
gradient_checkpointing learning_rate logging_steps lr_scheduler_type marker max_completion_length max_rollouts
max_steps model_init_kwargs output_dir per_device_train_batch_size report_to run_name save_strategy seed
steps_per_generation use_cpu vllm_gpu_memory_utilization vllm_max_model_length
"""
"""Fields of the task, the machine and a run that is measured; temperature, budget and loss are not among them."""


def test_duet_is_the_snippet_of_the_readme(tmp_path: Path) -> None:
    (code,) = re.findall(r"^```python\n(.*?output_dir=.*?)^```", README.read_text(), flags=re.M | re.S)
    calls = {ast.unparse(one.func): one for one in ast.walk(ast.parse(code)) if isinstance(one, ast.Call)}
    snippet = {word.arg: ast.literal_eval(word.value) for word in calls["DUETGRPOConfig"].keywords}
    shown = DUETGRPOConfig(**snippet | {"output_dir": str(tmp_path), "use_vllm": False, "use_cpu": True})
    run = built(ENTRANTS["duet"], tmp_path)
    names = [field.name for field in fields(DUETGRPOConfig)]
    differing = {name for name in names if vars(run)[name] != vars(shown)[name]}
    assert differing <= {*OTHERS.split()}
    assert shown.options == run.options
    assert (snippet["use_vllm"], snippet["vllm_mode"]) == (True, run.vllm_mode)


def test_the_two_name_swap_sets_no_option_of_ours() -> None:
    swap = configuration(ENTRANTS["duet"], MIXED, 1e-5, 0, 8)
    ours = swap.keys() - {field.name for field in fields(GRPOConfig)}
    assert {name: swap[name] for name in ours} == {"method": "duet", "budget_fraction": 0.5, "marker": "math"}


ROW = st.tuples(st.sampled_from([-1.5, 0.0, 0.0, 2.0]), st.floats(0, 20), st.booleans(), st.booleans())


@given(st.lists(ROW, min_size=1, max_size=12))
def test_leaving_out_idle_rollouts_keeps_gradient_and_divisor(rows: list[tuple[float, float, bool, bool]]) -> None:
    advantages, weight, trained, counted = (np.array(column) for column in zip(*rows, strict=True))
    before = Judgement(advantages, weight, trained & counted, counted, np.ones(len(rows)))
    method = SimpleNamespace(judge=lambda done: before)
    leave_out_idle(method)
    after = method.judge(None)
    rng = np.random.default_rng(0)
    gradients, lengths = rng.normal(size=(len(rows), 3)), rng.integers(1, 9, len(rows))

    def step(judgement: Judgement) -> tuple[list[float], int]:
        """Eq. 6 before its division: sum of weight x advantage x gradient over the rollouts in it, and N_t."""
        factor = judgement.weight * judgement.advantages * judgement.in_gradient
        return (factor @ gradients).tolist(), int(lengths[judgement.in_divisor].sum())

    assert step(after) == step(before)
    assert not (after.in_gradient & (advantages == 0)).any()
    np.testing.assert_array_equal(after.in_gradient[advantages != 0], before.in_gradient[advantages != 0])
