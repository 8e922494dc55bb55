# SPDX-License-Identifier: Apache-2.0
"""Who competes: every method, at the budget of its name, with nothing else that is its own but what is declared."""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.arena.cell import leave_out_idle
from benchmarks.arena.entrants import CONTROLS, ENTRANTS, FULL, PROMPTS_PER_STEP, REFERENCE, Entrant, configuration
from benchmarks.arena.grading import ArenaReward
from benchmarks.arena.tasks import SUMS, TASKS
from duet_trl import DUETGRPOConfig
from duet_trl.config import reads
from duet_trl.methods import METHODS
from duet_trl.rollouts import Judgement
from tests.runs import duet_trainer, logged, weights

OFFLINE = {"use_cpu": True, "use_vllm": False, "old_logps": None}
RUNNING = {name: entrant for name, entrant in ENTRANTS.items() if not entrant.retired}
EACH_ENTRANT = pytest.mark.parametrize("entrant", RUNNING.values(), ids=RUNNING)


def built(entrant: Entrant, folder: Path, task=SUMS, rate: float = 6e-4, seed: int = 3) -> DUETGRPOConfig:
    fields = configuration(entrant, rate, seed, task.fields)
    assert fields["use_vllm"] is True
    assert fields.get("old_logps") == entrant.settings.get("old_logps")
    return DUETGRPOConfig(output_dir=str(folder), max_steps=4, **fields | OFFLINE)


def test_every_method_of_the_package_competes() -> None:
    assert {entrant.method for entrant in ENTRANTS.values()} == METHODS.keys() - {"own"}
    assert next(iter(ENTRANTS)) == REFERENCE
    assert tuple(ENTRANTS)[-len(CONTROLS) :] == CONTROLS
    borrowing = {*CONTROLS, "grpo_8_clip", "duet_1x1", "duet_2x2_clip", "duet_history_uniform", "duet_choice"}
    for name, entrant in ENTRANTS.items():
        assert (entrant.name, entrant.tuned_as == name) == (name, name not in borrowing)
        assert ENTRANTS[entrant.tuned_as].tuned_as == entrant.tuned_as
        # Only what finds its rate by itself needs no tuning.
        assert (entrant.rate is not None) == ("updates" in entrant.settings)


@EACH_ENTRANT
def test_an_entrant_has_the_budget_of_its_name_and_what_it_declares(entrant: Entrant, tmp_path: Path) -> None:
    config = built(entrant, tmp_path)
    assert config.method == entrant.method
    size = re.match(r"grpo_(\d)", entrant.name)
    counted = int(size[1]) if size else None
    shared = "budget_fraction" in reads(entrant.method)
    assert config.num_generations == (counted or 8)
    assert (config.budget_fraction if shared else 1.0) * config.num_generations == FULL * entrant.budget
    assert config.num_prompts == PROMPTS_PER_STEP == 16
    rollouts = 16 * config.num_generations
    assert config.per_device_train_batch_size * config.steps_per_generation == rollouts
    mini_batch = config.per_device_train_batch_size * config.gradient_accumulation_steps
    assert entrant.updates == rollouts // mini_batch * config.num_iterations
    for name, value in entrant.settings.items():
        assert name in OFFLINE or (vars(config.options) | vars(config))[name] == value


@EACH_ENTRANT
def test_entrants_share_everything_else(entrant: Entrant, tmp_path: Path) -> None:
    config, reference = built(entrant, tmp_path), built(ENTRANTS[REFERENCE], tmp_path)
    assert (config.learning_rate, config.seed) == (6e-4, 3)
    assert config.lr_scheduler_type == "constant"
    for name in ("max_completion_length", "temperature", "beta", "loss_type", "max_grad_norm"):
        assert vars(config)[name] == vars(reference)[name], name


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
@EACH_ENTRANT
def test_a_task_decides_marker_and_length(entrant: Entrant, task, tmp_path: Path) -> None:
    config = built(entrant, tmp_path, task)
    assert config.max_completion_length == task.max_completion_length
    if config.gated:
        assert config.marker == task.marker


def completions(*texts: str) -> list[list[dict[str, str]]]:
    return [[{"role": "assistant", "content": text}] for text in texts]


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_the_reward_is_the_last_answer(task) -> None:
    answer = {"code": "\n```\n%d\n```"}.get(task.marker, "so \\boxed{%d}.")
    reward = ArenaReward("answer", task.marker, 0)
    both = answer % 42 + "\nWait.\n" + answer % 43
    texts = completions(answer % 42, both, both, "42")
    assert reward(texts, [42, 42, 43, 42]) == [1.0, 0.0, 1.0, 0.0]
    assert [found and found.strip() for found in reward.answers(texts)] == ["42", "43", "43", None]
    assert reward.equivalent([("42", " 42\n"), ("42", "43")]) == [True, False]


def test_rewards_of_controls_say_nothing_about_answers() -> None:
    texts, right = completions(*["so \\boxed{42}."] * 2000), [42, 43] * 1000
    assert ArenaReward("constant", "math", 0)(texts, right) == [1.0] * 2000
    coins = np.array(ArenaReward("coin", "math", 0)(texts, right))
    assert set(coins) == {0.0, 1.0}
    # Binomial: the sd of the difference of two shares of 1,000 is 0.022, that of the whole share 0.011.
    assert abs(coins.mean() - 0.5) < 0.05
    assert abs(coins[::2].mean() - coins[1::2].mean()) < 0.1
    assert ArenaReward("coin", "math", 0)(texts, right) == coins.tolist()
    assert ArenaReward("coin", "math", 1)(texts, right) != coins.tolist()


# ---- Rollouts with advantage 0 --------------------------------------------------------------------------------------

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


class HalfAgree:
    """Rewards that differ within the groups of odd levels only; answers for a method that compares them."""

    __name__ = "half_agree"

    def __call__(self, completions: list[str], level: list[int], **kwargs) -> list[float]:
        return [float(one % 2 == 1 and text.count("4") > 3) for text, one in zip(completions, level, strict=True)]

    def answers(self, completions: list[str], **kwargs) -> list[str | None]:
        return [str(text.count("4")) for text in completions]

    def equivalent(self, pairs: list[tuple[str, str]]) -> list[bool]:
        return [first == second for first, second in pairs]


def one_step(entrant: Entrant, model: Path, folder: Path, lean: bool, **overrides):
    """A trainer after one step of an entrant's method; every method can learn from half of the prompts."""
    own = {"dapo": {"max_batches": 1}, "greso": {"max_batches": 1}}
    trainer = duet_trainer(
        model,
        folder,
        rewards=HalfAgree(),
        method=entrant.method,
        method_kwargs=own.get(entrant.method, {}),
        optim="sgd",
        max_grad_norm=0.0,
        beta=0.0,
        **{"max_steps": 1, **overrides},
    )
    if lean:
        leave_out_idle(trainer.method)
    start = weights(trainer)
    trainer.train()
    assert not torch.equal(weights(trainer), start)
    return trainer


LEAN = {entrant.method: entrant for entrant in ENTRANTS.values() if entrant.lean}


@pytest.mark.parametrize(
    "method",
    [name if name == "grpo" else pytest.param(name, marks=pytest.mark.slow) for name in LEAN],
)
def test_a_lean_entrant_moves_and_remembers_as_its_method_does(method: str, tiny_path: Path, tmp_path: Path) -> None:
    whole, lean = (one_step(LEAN[method], tiny_path, tmp_path / str(on), on) for on in (False, True))
    torch.testing.assert_close(weights(lean), weights(whole), atol=1e-6, rtol=1e-6)
    for name in ("duet/generated_tokens", "reward", "completions/mean_length"):
        assert logged(lean, name) == logged(whole, name), name
    assert logged(lean, "duet/trained_tokens")[0] <= logged(whole, "duet/trained_tokens")[0]
    if method == "grpo":
        assert logged(lean, "duet/trained_tokens")[0] < 0.8 * logged(whole, "duet/trained_tokens")[0]
    check_equal(lean.method.state_dict(), whole.method.state_dict())


def test_lean_grpo_shares_what_is_left_among_its_mini_batches(tiny_path: Path, tmp_path: Path) -> None:
    # GRPO alone keeps its rows where TRL has them, which those that are left out would leave empty.
    split = {"steps_per_generation": 2, "gradient_accumulation_steps": 1, "max_steps": 2}
    lean = one_step(LEAN["grpo"], tiny_path, tmp_path, True, **split)
    assert 0 < logged(lean, "duet/trained_tokens")[0] < 0.8 * logged(lean, "duet/generated_tokens")[0]
    assert min(logged(lean, "grad_norm")) > 0


def check_equal(first, second) -> None:
    """Of nested states, up to the rounding of another order of rows."""
    if isinstance(first, dict):
        assert first.keys() == second.keys()
        for name, value in first.items():
            check_equal(value, second[name])
    elif isinstance(first, list) and not all(isinstance(one, float | int) for one in first):
        assert len(first) == len(second)
        for one, other in zip(first, second, strict=True):
            check_equal(one, other)
    elif isinstance(first, str | bool | None):
        assert first == second
    else:
        np.testing.assert_allclose(np.array(first), np.array(second), atol=1e-5, rtol=1e-5)
