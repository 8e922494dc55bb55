# SPDX-License-Identifier: Apache-2.0
"""The configuration: presets, methods, and an error for every value and relation that cannot work."""

import pytest

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


def test_the_row_cap_defaults_to_the_generation_batch(tmp_path):
    assert config(tmp_path).max_rollouts == 64


def test_zero_advantage_rows_are_dropped_only_where_they_are_inert(tmp_path):
    assert config(tmp_path).drop_zero_advantage
    assert not config(tmp_path, beta=0.01).drop_zero_advantage
    assert not config(tmp_path, entropy_coef=0.01).drop_zero_advantage
    assert not config(tmp_path, preset="paper").drop_zero_advantage


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"preset": "best"}, "preset must be one of"),
        ({"method": "ppo"}, "method must be one of"),
        ({"budget_fraction": 0.0}, r"budget_fraction must be in \(0, 1\].*; got 0.0"),
        ({"budget_fraction": 1.5}, r"budget_fraction must be in \(0, 1\].*; got 1.5"),
        ({"budget_fraction": float("nan")}, "budget_fraction must be in"),
        ({"budget_reading": "seconds"}, "budget_reading must be one of"),
        ({"budget_reading": "tokens"}, "needs finite budget_tokens"),
        ({"budget_reading": "tokens", "budget_tokens": 3.0}, "needs finite budget_tokens of at least one token"),
        ({"budget_reading": "tokens", "budget_tokens": float("inf")}, "needs finite budget_tokens"),
        ({"grace_window": 1.5}, "grace_window must be an integer"),
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
        ({"surrogate_ddof": 2}, "surrogate_ddof must be 0 or 1"),
        ({"max_weight": 0.5}, "max_weight must be at least 1"),
        ({"marker": "maths"}, "maths"),
        ({"marker": "regex:(?=x)y"}, "uses look-around"),
        ({"audit_columns": ["level"]}, "needs audit_log=True"),
        ({"loss_type": "grpo"}, "does not divide by the global number of kept tokens"),
        ({"margin_threshold": 1.0}, "margin_threshold must be in"),
        ({"server_weight_sync": "http"}, "server_weight_sync must be one of"),
        ({"use_vllm": True, "generation_kwargs": {"seed": 1}}, r"generation_kwargs sets \['seed'\]"),
        ({"use_transformers_continuous_batching": True}, "cannot stop single rollouts"),
        ({"use_vllm": True, "top_p": 0.95}, "vllm_importance_sampling_correction=False"),
        ({"use_vllm": True, "top_k": 20}, "vllm_importance_sampling_correction=False"),
        ({"drop_zero_advantage": True, "beta": 0.01}, "drop_zero_advantage=False"),
    ],
)
def test_a_value_that_cannot_work_is_refused_with_a_remedy(tmp_path, overrides, message):
    with pytest.raises(ValueError, match=message):
        config(tmp_path, **overrides)


def test_the_papers_nucleus_works_without_the_sequence_level_correction(tmp_path):
    assert config(tmp_path, use_vllm=True, top_p=0.95, vllm_importance_sampling_correction=False).top_p == 0.95
    assert config(tmp_path, use_vllm=True, top_p=0.95, vllm_importance_sampling_mode="token_truncate").top_p == 0.95
    assert config(tmp_path, top_p=0.95).top_p == 0.95
