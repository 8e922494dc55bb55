# SPDX-License-Identifier: Apache-2.0
"""The configuration: presets, methods, and an error for every value and relation that cannot work."""

from typing import get_args

import pytest
from transformers import HfArgumentParser

from duet_trl import DUETGRPOConfig
from duet_trl.presets import PRESETS


def config(tmp_path, **overrides) -> DUETGRPOConfig:
    """A valid configuration of 8 prompts x 8 rollouts with some fields changed."""
    settings = {
        "output_dir": str(tmp_path),
        "per_device_train_batch_size": 16,
        "gradient_accumulation_steps": 4,
        "num_generations": 8,
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
    }
    return DUETGRPOConfig(**{**settings, **overrides})


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_a_preset_fills_every_field_it_names(tmp_path, preset):
    resolved = config(tmp_path, preset=preset)
    assert {name: getattr(resolved, name) for name in PRESETS[preset]} == PRESETS[preset]


def test_presets_name_the_same_fields():
    assert len({frozenset(values) for values in PRESETS.values()}) == 1


def test_an_explicit_value_beats_the_preset(tmp_path):
    assert config(tmp_path, preset="paper", marker="qa").marker == "qa"
    assert config(tmp_path, preset="paper", surrogate_shrinkage=2.0).surrogate_shrinkage == 2.0


def test_method_grpo_switches_every_part_off(tmp_path):
    resolved = config(tmp_path, method="grpo", budget_fraction=0.25)
    assert not resolved.duet_active
    assert resolved.budget_fraction == 1.0


@pytest.mark.parametrize(
    ("fraction", "preset", "expected"), [(0.5, "duet", 2), (0.25, "duet", 1), (0.5, "paper", 1), (1.0, "duet", 2)]
)
def test_two_rollouts_are_the_minimum_where_the_budget_averages_more(tmp_path, fraction, preset, expected):
    assert config(tmp_path, budget_fraction=fraction, preset=preset).num_rollouts_min == expected


@pytest.mark.parametrize(("limit", "expected"), [(3072, 150), (8192, 400), (512, 25), (256, 12), (64, 8)])
def test_the_grace_window_keeps_the_papers_proportion_to_the_limit_unless_it_is_set(tmp_path, limit, expected):
    # 150 / 3,072 = 0.0488 of the limit, to the nearest token, 8 at least.
    assert config(tmp_path, max_completion_length=limit).grace_window == expected
    assert config(tmp_path, max_completion_length=limit, grace_window=150).grace_window == 150
    assert config(tmp_path, max_completion_length=limit, preset="paper").grace_window == expected


LONE = [
    {"num_generations": 4, "budget_fraction": 0.25, "preset": "paper"},
    {"num_generations": 2, "budget_fraction": 0.5, "preset": "paper"},
    {"num_generations": 4, "budget_fraction": 0.25, "allocate": False},
    {"num_generations": 4, "budget_fraction": 0.25, "multi_objective_aggregation": "normalize_then_sum"},
    {"preset": "paper", "num_rollouts_max": 1},
    {"preset": "paper", "max_rollouts": 8},
    {"method": "grpo", "num_rollouts_max": 1, "num_rollouts_min": 1},
]


@pytest.mark.parametrize("overrides", LONE)
def test_one_rollout_per_prompt_and_nothing_to_compare_it_with_is_refused(tmp_path, overrides):
    with pytest.raises(
        ValueError, match="there is 1 of each .* no step has a gradient.* advantage_baseline='history'"
    ):
        config(tmp_path, **overrides)


@pytest.mark.parametrize(
    "way_out",
    [
        {"advantage_baseline": "history"},
        {"budget_fraction": 0.5},
        {"num_generations": 8},
        {"budget_reading": "reference"},  # frozen in tokens: shorter rollouts are more of them
        {"budget_reading": "tokens", "budget_tokens": 1e6},
    ],
)
def test_one_rollout_per_prompt_is_let_through_where_some_step_can_have_a_gradient(tmp_path, way_out):
    assert config(tmp_path, **{**LONE[0], **way_out}).preset == "paper"


def test_the_row_cap_defaults_to_the_generation_batch(tmp_path):
    assert config(tmp_path).max_rollouts == 64


def test_zero_advantage_rows_are_dropped_only_where_they_are_inert(tmp_path):
    assert config(tmp_path).drop_zero_advantage
    assert not config(tmp_path, beta=0.01).drop_zero_advantage
    assert not config(tmp_path, entropy_coef=0.01).drop_zero_advantage
    assert not config(tmp_path, preset="paper").drop_zero_advantage


CHOSEN = {
    "duet": ("mixed", "none", "failure", 0.95, "history"),
    "paper": ("variance", "clip", "mask", 0.0, "group"),
}


@pytest.mark.parametrize("preset", sorted(CHOSEN))
def test_a_preset_chooses_objective_weights_gate_and_baseline(tmp_path, preset):
    resolved = config(tmp_path, preset=preset)
    names = (
        "allocation_objective",
        "stratification",
        "aborted_rollouts",
        "abort_answer_quantile",
        "advantage_baseline",
    )
    assert tuple(getattr(resolved, name) for name in names) == CHOSEN[preset]
    assert (resolved.advantage_cutoff > 0) == (preset == "duet")
    assert (resolved.reward_decay, resolved.abort_answer_slack) == (0.7, 1.25)


def test_every_choice_of_a_preset_can_be_overridden(tmp_path):
    paper = {
        "allocation_objective": "variance",
        "stratification": "clip",
        "aborted_rollouts": "mask",
        "abort_answer_quantile": 0.0,
        "advantage_baseline": "group",
        "advantage_cutoff": 0.0,
    }
    resolved = config(tmp_path, **paper)
    assert {name: getattr(resolved, name) for name in paper} == paper
    duet = {"allocation_objective": "mixed", "advantage_baseline": "history", "advantage_cutoff": 0.25}
    resolved = config(tmp_path, preset="paper", **duet)
    assert {name: getattr(resolved, name) for name in duet} == duet


def test_without_the_allocator_the_baseline_is_the_group_and_nothing_but_zeros_is_dropped(tmp_path):
    for without in ({"allocate": False}, {"method": "grpo"}, {"advantage_baseline": "group"}):
        resolved = config(tmp_path, **without)
        assert (resolved.advantage_baseline, resolved.advantage_cutoff) == ("group", 0.0), without
    assert config(tmp_path, allocate=False, advantage_baseline="history").advantage_cutoff > 0
    assert config(tmp_path, method="grpo", advantage_baseline="history").advantage_baseline == "group"


@pytest.mark.parametrize("option", [{"scale_rewards": "none"}, {"allocation_objective": "variance"}])
def test_the_cutoff_is_no_default_where_it_could_do_harm(tmp_path, option):
    # It is meant in standard deviations: with scale_rewards="none" rewards of 0 and 0.3 would lose every forward
    # pass. And sigma of Theorem 1 needs the log-probability of every rollout whose advantage is not 0 (Eq. 3).
    assert config(tmp_path, **option).advantage_cutoff == 0.0
    assert config(tmp_path, **option, advantage_cutoff=0.1).advantage_cutoff == 0.1


def test_rewards_that_are_never_summed_are_judged_within_their_group(tmp_path):
    for options in ({}, {"preset": "paper"}, {"allocate": False}, {"method": "grpo"}, {"advantage_baseline": "group"}):
        resolved = config(tmp_path, multi_objective_aggregation="normalize_then_sum", **options)
        assert resolved.advantage_baseline == "group"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"preset": "best"}, "preset must be one of"),
        ({"method": "ppo"}, "method must be one of"),
        ({"budget_fraction": 0.0}, r"budget_fraction must be in \(0, 1\].*; got 0.0"),
        ({"budget_fraction": 1.5}, r"budget_fraction must be in \(0, 1\].*; got 1.5"),
        ({"ending_reward_weight": -0.1}, "ending_reward_weight must be at least 0; 0 adds no reward; got -0.1"),
        ({"budget_fraction": float("nan")}, "budget_fraction must be in"),
        ({"budget_reading": "seconds"}, "budget_reading must be one of"),
        ({"budget_reading": "tokens"}, "needs finite budget_tokens"),
        ({"budget_reading": "tokens", "budget_tokens": 3.0}, "needs finite budget_tokens of at least one token"),
        ({"budget_reading": "tokens", "budget_tokens": float("inf")}, "needs finite budget_tokens"),
        ({"grace_window": 1.5}, "grace_window must be an integer"),
        ({"max_completion_length": None}, "max_completion_length must be an integer of at least 1, got None"),
        ({"poll_interval": True}, "poll_interval must be an integer"),
        ({"max_completion_length": -5}, "max_completion_length must be an integer of at least 1, got -5"),
        ({"budget_tokens": 1000.0}, "budget_tokens=1000.0 is ignored"),
        ({"keep_probability": 0.0}, "Use abort=False to keep everything"),
        ({"keep_probability": 1.1}, "keep_probability must be in"),
        ({"stratification_floor": 0.0}, "stratification_floor must be in"),
        ({"stratification": "half"}, "stratification must be one of"),
        ({"poll_quantile": 0.9}, "a rollout is polled before it can be aborted"),
        ({"poll_cold_fraction": 0.7}, "a rollout is polled before it can be aborted"),
        ({"abort_quantile": 1.2}, "abort_quantile <= 1 must hold"),
        ({"grace_window": -1}, "grace_window must be an integer of at least 0, got -1"),
        ({"poll_interval": 0}, "poll_interval must be an integer of at least 1, got 0"),
        ({"threshold_window": 0}, "threshold_window must be an integer of at least 1"),
        ({"marker_window": -8}, "marker_window must be an integer of at least 0"),
        ({"entropy_threshold": -0.1}, "entropy_threshold must be at least 0"),
        ({"num_rollouts_min": 0}, "num_rollouts_min must be an integer of at least 1"),
        ({"num_rollouts_min": 5, "num_rollouts_max": 4}, "is above num_rollouts_max"),
        ({"num_rollouts_min": 5}, "is above the budget of budget_fraction x num_generations = 4"),
        ({"num_rollouts_min": 4, "max_rollouts": 16}, "above max_rollouts"),
        ({"surrogate_floor": 0.0}, "surrogate_floor must be positive"),
        ({"allocation_objective": "entropy"}, r"allocation_objective must be one of \['variance', 'mixed'\]"),
        ({"advantage_baseline": "critic"}, r"advantage_baseline must be one of \['group', 'history'\]"),
        ({"aborted_rollouts": "keep"}, r"aborted_rollouts must be one of \['mask', 'failure'\]"),
        ({"reward_decay": 1.1}, r"reward_decay must be in \[0, 1\].*; got 1.1"),
        ({"reward_decay": float("nan")}, "reward_decay must be in"),
        ({"abort_answer_quantile": 1.0}, r"abort_answer_quantile must be in \[0, 1\).*; got 1.0"),
        ({"abort_answer_slack": 0.9}, "abort_answer_slack must be at least 1; got 0.9"),
        ({"abort_answer_slack": float("inf")}, "abort_answer_slack must be at least 1; got inf"),
        ({"advantage_cutoff": -0.1}, "advantage_cutoff must be at least 0.*; got -0.1"),
        (
            {"multi_objective_aggregation": "normalize_then_sum", "advantage_baseline": "history"},
            "has no summed reward to remember. Set advantage_baseline='group'",
        ),
        ({"marker": "maths"}, "maths"),
        ({"marker": "regex:(?=x)y"}, "uses look-around"),
        ({"audit_columns": ["level"]}, "needs audit_log=True"),
        ({"loss_type": "grpo"}, "does not divide by the global number of kept tokens"),
        ({"server_weight_sync": "http"}, "server_weight_sync must be one of"),
        ({"use_vllm": True, "generation_kwargs": {"seed": 1}}, r"generation_kwargs sets \['seed'\]"),
        ({"use_transformers_continuous_batching": True}, "cannot stop single rollouts"),
        ({"use_vllm": True, "top_p": 0.95}, "vllm_importance_sampling_correction=False"),
        ({"use_vllm": True, "top_k": 20}, "vllm_importance_sampling_correction=False"),
        ({"drop_zero_advantage": True, "beta": 0.01}, "drop_zero_advantage=False"),
        ({"drop_zero_advantage": True, "router_aux_loss_coef": 0.01}, "drop_zero_advantage=False"),
        (
            {"budget_fraction": "0.5"},
            r"budget_fraction must be a number, got '0.5'. Remove the quotes; YAML reads 1e-3",
        ),
        ({"poll_interval": "8"}, "poll_interval must be an integer, got '8'. Remove the quotes"),
        ({"budget_tokens": "none"}, "budget_tokens must be a number, got 'none'"),
        ({"keep_probability": True}, "keep_probability must be a number, got True"),
        ({"trim": "false"}, "trim must be True or False, got 'false'"),
        ({"marker": 5}, "marker must be a string, got 5"),
        ({"audit_columns": "target"}, r"audit_columns must be a list of strings, got 'target'. Write \['target'\]"),
        ({"extra_eos_tokens": [1]}, r"extra_eos_tokens must be a list of strings, got \[1\]"),
    ],
)
def test_a_value_that_cannot_work_is_refused_with_a_remedy(tmp_path, overrides, message):
    with pytest.raises(ValueError, match=message):
        config(tmp_path, **overrides)


def test_the_papers_nucleus_works_without_the_sequence_level_correction(tmp_path):
    assert config(tmp_path, use_vllm=True, top_p=0.95, vllm_importance_sampling_correction=False).top_p == 0.95
    assert config(tmp_path, use_vllm=True, top_p=0.95, vllm_importance_sampling_mode="token_truncate").top_p == 0.95
    assert config(tmp_path, top_p=0.95).top_p == 0.95


def test_every_numeric_field_refuses_text(tmp_path):
    HfArgumentParser(DUETGRPOConfig)  # rewrites the types of the fields
    annotations = DUETGRPOConfig.__annotations__
    numeric = [name for name, kind in annotations.items() if {int, float} & {kind, *get_args(kind)}]
    assert {"budget_fraction", "num_rollouts_min", "budget_tokens", "sentinel_token_id"} < set(numeric)
    config(tmp_path)
    for name in numeric:
        with pytest.raises(ValueError, match=f"{name} must be (a number|an integer), got '1'"):
            config(tmp_path, **{name: "1"})
