# SPDX-License-Identifier: Apache-2.0
"""The configuration: methods and their options, and an error for every value and relation that cannot work."""

from dataclasses import fields, replace
from typing import get_args

import pytest
from transformers import HfArgumentParser
from trl import TrlParser

from duet_trl import DUETGRPOConfig
from duet_trl.allocate.allocators import NeymanAllocator, UniformAllocator
from duet_trl.config import defaults_of
from duet_trl.field_types import Follows
from duet_trl.gate.thresholds import LengthThresholds, PricedThresholds
from duet_trl.methods import METHODS, build_method, setting_of
from duet_trl.methods.duet import DuetOptions
from duet_trl.methods.paper import PaperOptions
from tests.runs import grouped

FIXED = {"report_to": "none", "use_cpu": True, "bf16": False}


def config(tmp_path, **overrides) -> DUETGRPOConfig:
    """A valid configuration of 8 prompts x 8 rollouts with some fields and options of `duet` changed."""
    settings = {
        "output_dir": str(tmp_path),
        "per_device_train_batch_size": 16,
        "gradient_accumulation_steps": 4,
        "num_generations": 8,
    }
    return DUETGRPOConfig(**grouped({**settings, **FIXED, **overrides}))


# ---- What a method chooses --------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_method_gives_every_field_and_option_its_default(tmp_path, method):
    resolved = config(tmp_path, method=method)
    declared = defaults_of(method) | {one.name: one.default for one in fields(METHODS[method].options)}
    for name, default in declared.items():
        if default is not None and not isinstance(default, Follows):
            assert (vars(resolved) | vars(resolved.options))[name] == default, name


CHOSEN = {
    "duet": (False, "math", 2, None, UniformAllocator, PricedThresholds, None),
    "paper": (True, "math_paragraph", 1, 0.05, NeymanAllocator, LengthThresholds, 256),
}


@pytest.mark.parametrize("method", sorted(CHOSEN))
def test_a_method_chooses_marker_counts_and_gate(tmp_path, method):
    resolved = config(tmp_path, method=method)
    built = build_method(config(tmp_path, method=method))
    found = (
        resolved.allocate,
        resolved.marker,
        resolved.num_rollouts_min,
        resolved.keep_probability,
        type(built.allocator),
        type(built.thresholds),
        built.spec().window,
    )
    assert found == CHOSEN[method]


def test_the_appendix_of_the_paper_is_in_its_method(tmp_path):
    found, constant = (
        build_method(config(tmp_path, method="paper", **own)) for own in ({}, {"surrogate": "constant"})
    )
    assert (found.allocator.floor, found.allocator.warmup, constant.allocator.warmup) == (0.01, 1, None)
    assert not found.allocator.price_aborted and found.thresholds.keep_probability == 0.05


def test_an_explicit_value_beats_the_methods(tmp_path):
    assert config(tmp_path, method="paper", marker="qa").marker == "qa"
    assert config(tmp_path, method="paper", surrogate_warmup=2).options.surrogate_warmup == 2
    assert config(tmp_path, poll_interval=None, marker=None).marker == "math"  # None is not set
    assert not config(tmp_path, teach_ending=False).options.teach_ending


def test_method_grpo_has_every_part_off_and_no_options(tmp_path):
    resolved = config(tmp_path, method="grpo")
    assert not resolved.duet_active and not resolved.gated
    assert (resolved.budget_fraction, resolved.max_rollouts) == (1.0, 64)
    assert fields(resolved.options) == ()


def test_with_every_part_off_duet_is_grpo(tmp_path):
    assert not config(tmp_path, trim=False, abort=False, budget_fraction=1.0).duet_active


@pytest.mark.parametrize("left_on", ["allocate", "trim", "abort", "budget_fraction"])
def test_each_part_alone_makes_it_duet(tmp_path, left_on):
    off = {"allocate": False, "trim": False, "abort": False, "budget_fraction": 1.0}
    on = {"allocate": True, "trim": True, "abort": True, "budget_fraction": 0.5}
    assert config(tmp_path, method="paper", **off | {left_on: on[left_on]}).duet_active


@pytest.mark.parametrize(("fraction", "method", "expected"), [(0.5, "duet", 2), (0.5, "paper", 1), (1.0, "duet", 2)])
def test_two_rollouts_are_the_minimum_where_the_budget_averages_more(tmp_path, fraction, method, expected):
    assert config(tmp_path, budget_fraction=fraction, method=method).num_rollouts_min == expected


@pytest.mark.parametrize(("limit", "expected"), [(3072, 150), (8192, 400), (512, 25), (256, 12), (64, 8)])
def test_the_grace_window_keeps_the_papers_proportion_to_the_limit_unless_it_is_set(tmp_path, limit, expected):
    # 150 / 3,072 = 0.0488 of the limit, to the nearest token, 8 at least.
    assert config(tmp_path, max_completion_length=limit).grace_window == expected
    assert config(tmp_path, max_completion_length=limit, grace_window=150).grace_window == 150
    assert config(tmp_path, max_completion_length=limit, method="paper").grace_window == expected


def test_zero_advantage_rows_are_dropped_only_where_they_are_inert(tmp_path):
    assert config(tmp_path).options.drop_zero_advantage
    assert not config(tmp_path, beta=0.01).options.drop_zero_advantage
    assert not config(tmp_path, entropy_coef=0.01).options.drop_zero_advantage


BATCHES = {"greso": 4, "dapo": 10, "reinforce_ada": 4, "arrol": 2}


@pytest.mark.parametrize(("method", "batches"), BATCHES.items())
def test_max_rollouts_holds_as_many_batches_as_the_method_draws(tmp_path, method, batches):
    resolved = config(tmp_path, method=method)
    assert resolved.max_rollouts == batches * resolved.generation_batch_size == batches * 64
    assert resolved.duet_active and not resolved.gated


def test_no_option_has_the_name_of_a_field():
    names = {one.name for one in fields(DUETGRPOConfig)}
    for method, entry in METHODS.items():
        assert not names & {one.name for one in fields(entry.options)}, method


def test_every_method_may_read_the_runs_setting(tmp_path):
    setting = setting_of(config(tmp_path, method="grpo", scale_rewards="batch", seed=5))
    assert (setting.num_prompts, setting.num_generations, setting.max_rollouts, setting.seed) == (8, 8, 64, 5)
    assert setting.scale_rewards == "batch"
    setting = setting_of(config(tmp_path, method="paper", budget_fraction=0.75, num_rollouts_max=6))
    assert (setting.budget_fraction, setting.num_rollouts_max) == (0.75, 6)


# ---- Relations --------------------------------------------------------------------------------------------------

LONE = [
    {"num_generations": 4, "budget_fraction": 0.25, "method": "paper"},
    {"num_generations": 2, "budget_fraction": 0.5, "method": "paper"},
    {"num_generations": 4, "budget_fraction": 0.25},
    {"method": "paper", "num_rollouts_max": 1},
    {"method": "paper", "max_rollouts": 8},
]


@pytest.mark.parametrize("overrides", LONE)
def test_one_rollout_per_prompt_is_refused(tmp_path, overrides):
    with pytest.raises(ValueError, match="there is 1 of each .* no step has a gradient. Raise it"):
        config(tmp_path, **overrides)


@pytest.mark.parametrize(
    "way_out",
    [
        {"budget_fraction": 0.5},
        {"num_generations": 8},
        {"budget_reading": "tokens", "budget_tokens": 1e6, "budget_fraction": None},
    ],
)
def test_one_rollout_per_prompt_is_let_through_where_some_step_can_have_a_gradient(tmp_path, way_out):
    assert config(tmp_path, **{**LONE[0], **way_out}).num_rollouts_min == 1


BY_NAME = [
    ({"method": "ppo"}, r"method must be one of \[.*'dapo', 'duet', .*got 'ppo'"),
    ({"budget_fraction": 0.0}, r"budget_fraction must be in \(0, 1\].*; got 0.0"),
    ({"budget_fraction": 1.5}, r"budget_fraction must be in \(0, 1\].*; got 1.5"),
    ({"budget_fraction": float("nan")}, "budget_fraction must be in"),
    ({"ending_reward_weight": -0.1}, "ending_reward_weight must be at least 0; 0 adds no reward; got -0.1"),
    ({"budget_reading": "reference"}, r"budget_reading must be one of \['rollouts', 'tokens'\], got 'reference'"),
    ({"budget_reading": "tokens"}, "needs finite budget_tokens"),
    ({"budget_reading": "tokens", "budget_tokens": 3.0}, "needs finite budget_tokens of at least one token"),
    ({"budget_reading": "tokens", "budget_tokens": float("inf")}, "needs finite budget_tokens"),
    ({"grace_window": 1.5}, "grace_window must be an integer"),
    ({"grace_window": -1}, "grace_window must be an integer of at least 0, got -1"),
    ({"max_completion_length": None}, "max_completion_length must be an integer of at least 1, got None"),
    ({"max_completion_length": -5}, "max_completion_length must be an integer of at least 1, got -5"),
    ({"method": "paper", "keep_probability": 0.0}, "Use abort=False to keep everything"),
    ({"method": "paper", "keep_probability": 1.1}, "keep_probability must be in"),
    ({"num_rollouts_min": 0}, "num_rollouts_min must be an integer of at least 1"),
    ({"method": "paper", "num_rollouts_min": 5, "num_rollouts_max": 4}, "is above num_rollouts_max"),
    ({"method": "paper", "num_rollouts_min": 5}, "is above the budget of budget_fraction x num_generations = 4"),
    ({"method": "paper", "num_rollouts_min": 4, "max_rollouts": 16}, "above max_rollouts"),
    ({"marker": "maths"}, "maths"),
    ({"marker": "regex:4"}, "three dots between them"),
    ({"loss_type": "ppo"}, "loss_type must be one of"),
    ({"exclude_zero_variance_groups": True, "beta": 0.1}, "it acts only with beta=0"),
    ({"server_weight_sync": "http"}, "server_weight_sync must be one of"),
    ({"engine": "sglang"}, "engine must be one of"),
    ({"use_vllm": True, "generation_kwargs": {"seed": 1}}, r"generation_kwargs sets \['seed'\]"),
    ({"method": "arrol", "generation_kwargs": {"stop": ["\n"]}}, "Remove stop from"),
    ({"method": "spec_rl", "generation_kwargs": {"stop_strings": ["."]}}, "Remove stop_strings"),
    ({"use_transformers_continuous_batching": True}, "cannot stop single rollouts"),
    ({"use_vllm": True, "top_p": 0.95}, "vllm_importance_sampling_correction=False"),
    ({"use_vllm": True, "top_k": 20}, "vllm_importance_sampling_correction=False"),
    ({"budget_fraction": "0.5"}, r"budget_fraction must be a number, got '0.5'. Remove the quotes; YAML reads 1e-3"),
    ({"budget_tokens": "none"}, "budget_tokens must be a number, got 'none'"),
    ({"keep_probability": True}, "keep_probability must be a number, got True"),
    ({"trim": "false"}, "trim must be True or False, got 'false'"),
    ({"marker": 5}, "marker must be a string, got 5"),
    ({"audit_columns": "target"}, r"audit_columns must be a list of strings, got 'target'. Write \['target'\]"),
    ({"extra_eos_tokens": [1]}, r"extra_eos_tokens must be a list of strings, got \[1\]"),
]
BY_OPTION = [
    ({"poll_interval": True}, "poll_interval must be an integer, got True"),
    ({"poll_interval": 0}, "poll_interval must be an integer of at least 1, got 0"),
    ({"poll_interval": "8"}, "poll_interval must be an integer, got '8'. Remove the quotes"),
    ({"method": "paper", "threshold_window": 0}, "threshold_window must be an integer of at least 1"),
    ({"teach_ending": "yes"}, "teach_ending must be True or False, got 'yes'"),
    ({"method": "paper", "surrogate": 1}, "surrogate must be a string, got 1"),
    ({"method": "paper", "surrogate": "half"}, r"surrogate must be one of \['online', 'constant'\], got 'half'"),
    ({"entropy_threshold": -0.1}, "entropy_threshold must be at least 0"),
    ({"drop_zero_advantage": True, "beta": 0.01}, "drop_zero_advantage=False"),
    ({"drop_zero_advantage": True, "router_aux_loss_coef": 0.01}, "drop_zero_advantage=False"),
]


@pytest.mark.parametrize(("overrides", "message"), BY_NAME + BY_OPTION)
def test_a_value_that_cannot_work_is_refused_with_a_remedy(tmp_path, overrides, message):
    with pytest.raises(ValueError, match=message):
        config(tmp_path, **overrides)


@pytest.mark.parametrize(
    ("method", "kwargs", "message"),
    [
        (
            "duet",
            {"pol_interval": 4},
            r"has no 'pol_interval' \(value 4\) under method='duet'. Did you mean 'poll_interval'\?",
        ),
        ("paper", {"x": 1}, r"has no 'x' \(value 1\) under method='paper'. It takes \["),
        ("grpo", {"poll_interval": 4}, "method='grpo' takes no method_kwargs, got poll_interval=4. Remove it"),
        ("duet", "{poll_interval: 4}", r"method_kwargs is not JSON: .*got '\{poll_interval: 4\}'. Write"),
        ("duet", "[1]", r"method_kwargs must be a mapping of names to values, got \[1\]"),
        ("duet", 4, "method_kwargs must be a mapping of names to values, got 4"),
        ("duet", {"marker": "qa"}, "has no 'marker'"),
        ("greso", {"oversample": 0.5}, "oversample must be at least 1, got 0.5"),
        ("dapo", {"oversample": 20}, "above max_rollouts"),
        ("vip", {"budget_fraction": 0.5}, "has no 'budget_fraction'"),
    ],
)
def test_options_that_cannot_be_read_are_refused_with_what_can(tmp_path, method, kwargs, message):
    with pytest.raises(ValueError, match=message):
        DUETGRPOConfig(str(tmp_path), method=method, method_kwargs=kwargs, **FIXED)


def test_an_option_that_is_given_as_a_field_is_refused_with_its_place(tmp_path):
    with pytest.raises(ValueError, match=r"poll_interval is an option of \['duet', 'paper'\]. Write method_kwargs="):
        DUETGRPOConfig(str(tmp_path), poll_interval=4, **FIXED)
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        DUETGRPOConfig(str(tmp_path), colour=4, **FIXED)


def test_the_papers_nucleus_works_without_the_sequence_level_correction(tmp_path):
    assert config(tmp_path, use_vllm=True, top_p=0.95, vllm_importance_sampling_correction=False).top_p == 0.95
    assert config(tmp_path, use_vllm=True, top_p=0.95, vllm_importance_sampling_mode="token_truncate").top_p == 0.95
    assert config(tmp_path, top_p=0.95).top_p == 0.95


# ---- The command line -------------------------------------------------------------------------------------------


def test_options_come_as_json_from_the_command_line_and_as_a_mapping_from_yaml(tmp_path):
    parser = TrlParser(DUETGRPOConfig)
    common = ["--output_dir", str(tmp_path), "--use_cpu", "true", "--bf16", "false"]
    line = ["--abort", "false", "--method_kwargs", '{"poll_interval": 4, "teach_ending": false}']
    (from_line,) = parser.parse_args_and_config([*common, *line])
    written = tmp_path / "own.yaml"
    written.write_text("abort: false\nmethod_kwargs:\n  poll_interval: 4\n  teach_ending: false\n")
    (from_yaml,) = parser.parse_args_and_config([*common, "--config", str(written)])
    assert from_line.options == from_yaml.options
    assert (from_line.options.poll_interval, from_line.options.teach_ending, from_line.abort) == (4, False, False)


def test_every_field_has_a_help_and_every_option_too():
    own = {one.name for one in fields(DUETGRPOConfig) if one.name in DUETGRPOConfig.__annotations__}
    helped = {one.name: one.metadata["help"] for one in fields(DUETGRPOConfig) if one.name in own}
    assert all(helped[name].endswith((".", ")")) for name in own)
    for entry in METHODS.values():
        assert all(one.metadata["help"] for one in fields(entry.options))


def test_every_numeric_field_refuses_text(tmp_path):
    HfArgumentParser(DUETGRPOConfig)  # rewrites the types of the fields
    options = {one.name: one.type for kind in (DuetOptions, PaperOptions) for one in fields(kind)}
    annotations = DUETGRPOConfig.__annotations__ | options
    numeric = [name for name, kind in annotations.items() if {int, float} & {kind, *get_args(kind)}]
    assert {"budget_fraction", "num_rollouts_min", "budget_tokens", "poll_interval", "entropy_threshold"} < set(
        numeric
    )
    config(tmp_path)
    fields_of_duet = {one.name for one in fields(DuetOptions)}
    for name in numeric:
        with pytest.raises(ValueError, match=f"{name} must be (a number|an integer), got '1'"):
            config(tmp_path, method="duet" if name in fields_of_duet else "paper", **{name: "1"})


# ---- Copies: what was left open is decided anew, what was chosen stays chosen -------------------------------------


def test_a_copy_decides_anew_what_was_left_open(tmp_path):
    """As with GRPOConfig, where generation_batch_size alone must be taken out: TRL derives it."""
    first = config(tmp_path, budget_fraction=0.75)
    assert first.filled_in["max_rollouts"] == [None, 64] and "budget_fraction" not in first.filled_in
    assert replace(first, generation_batch_size=None).to_dict() == replace(first).to_dict() == first.to_dict()
    twice = replace(first, per_device_train_batch_size=32, max_completion_length=3072, generation_batch_size=None)
    assert (twice.max_rollouts, twice.grace_window, twice.budget_fraction) == (128, 150, 0.75)
    paper = replace(first, method="paper", generation_batch_size=None)
    assert (paper.marker, paper.allocate, paper.budget_fraction) == ("math_paragraph", True, 0.75)


@pytest.mark.parametrize("method", ["grpo", "dapo", "spec_rl"])
def test_a_copy_may_have_another_method(tmp_path, method):
    found = replace(config(tmp_path), method=method, generation_batch_size=None)
    assert found.to_dict() == config(tmp_path, method=method).to_dict()


def test_a_copy_still_refuses_what_its_user_set(tmp_path):
    with pytest.raises(ValueError, match="budget_fraction=0.75 cannot have an effect under method='grpo'"):
        replace(config(tmp_path, budget_fraction=0.75), method="grpo", generation_batch_size=None)
    with pytest.raises(ValueError, match="trim=False cannot have an effect under method='grpo'"):
        replace(config(tmp_path), method="grpo", trim=False, generation_batch_size=None)


def test_a_copy_with_more_micro_batches_has_them_in_its_generation_batch(tmp_path):
    first = config(tmp_path)
    twice = replace(first, gradient_accumulation_steps=2 * first.gradient_accumulation_steps)
    assert twice.steps_per_generation == 2 * first.steps_per_generation
    assert twice.generation_batch_size == 2 * first.generation_batch_size
