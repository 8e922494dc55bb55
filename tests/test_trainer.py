# SPDX-License-Identifier: Apache-2.0
"""DUETGRPOTrainer on transformers' generate: parity with GRPO, every supported option, every refusal."""

import math
import re

import numpy as np
import pandas as pd
import pytest
import torch
from peft import LoraConfig
from transformers import AutoTokenizer, GenerationConfig

from tests.runs import (
    PARTS_OFF,
    abstains_on_short,
    check_grpo_loss_for_loss,
    count_fours,
    duet_trainer,
    logged,
    prompts,
    trained,
    weights,
)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scale_rewards": "batch"},
        {"scale_rewards": "none", "beta": 0.1},
        {"steps_per_generation": 8, "num_iterations": 2},
        {"multi_objective_aggregation": "normalize_then_sum", "loss_type": "cispo", "epsilon_high": 5.0},
        {"mask_truncated_completions": True},
    ],
    ids=lambda options: "-".join(options) or "default",
)
def test_with_every_part_off_it_is_grpo_loss_for_loss(tiny_path, tmp_path, options):
    check_grpo_loss_for_loss(tiny_path, tmp_path, PARTS_OFF, options)


def test_method_grpo_is_grpo_loss_for_loss_over_several_visits_of_a_prompt(tiny_path, tmp_path):
    # Four steps are an epoch: from the fifth on there is a history, which nothing may use.
    check_grpo_loss_for_loss(tiny_path, tmp_path, {"method": "grpo"}, {"max_steps": 6, "learning_rate": 0.005})


@pytest.mark.parametrize(
    ("method", "own"),
    [("duet", []), ("paper", "dual calibration_chi2 sigma_floor cold_prompts cold_gradient_share".split())],
)
def test_a_run_learns_and_reports_every_metric(tiny_path, tmp_path, method, own):
    even = {"budget_fraction": 0.75}  # three rollouts of each prompt
    trainer = duet_trainer(tiny_path, tmp_path, max_steps=6, method=method, **even)
    start = weights(trainer).clone()
    trainer.train()
    assert (weights(trainer) - start).abs().max() > 1e-4
    entry = next(e for e in trainer.state.log_history if "loss" in e)
    expected = """budget_tokens planned_tokens generated_tokens aborted_tokens trimmed_tokens saved_tokens
        num_rollouts/mean num_rollouts/min num_rollouts/max num_rollouts/std
        poll_threshold abort_threshold share_ended_before_gate share_marker_seen
        share_marker_less abort_rate keep_rate trim_rate weight_mean weight_max effective_sample_size surcharge
        singleton_prompts singleton_gradient_share seconds_plan seconds_generate
        seconds_score seconds_update overhead_share nonfinite_rollouts"""
    assert {f"duet/{name}" for name in [*expected.split(), *own]} <= entry.keys()
    shares = sum(entry[f"duet/share_{name}"] for name in ("ended_before_gate", "marker_seen", "marker_less"))
    assert shares == pytest.approx(1.0)
    assert all(math.isfinite(value) for name, value in entry.items() if name.startswith("duet/"))
    planned, budget = logged(trainer, "duet/planned_tokens"), logged(trainer, "duet/budget_tokens")
    assert all(p <= b * (1 + 1e-9) for p, b in zip(planned, budget, strict=True))
    # Over the run every outcome occurred, so the gate's branches were all taken.
    for name in ("abort_rate", "keep_rate", "trim_rate", "share_ended_before_gate"):
        assert max(logged(trainer, f"duet/{name}")) > 0, name


@pytest.mark.parametrize(
    "options",
    [
        {"steps_per_generation": 8, "mask_truncated_completions": True, "marker": "qa"},
        {"steps_per_generation": 2, "aborts_early": None, "pad_to_multiple_of": 16},
        {"num_iterations": 2, "beta": 0.04, "trim": False},
        {"multi_objective_aggregation": "normalize_then_sum", "marker": "4...2", "loss_type": "vespo"},
        {"scale_rewards": "none", "abort": False},
        {"method": "paper", "surrogate": "constant", "steps_per_generation": 2},
        {"method": "paper", "num_iterations": 2},
        {"budget_reading": "tokens", "budget_tokens": 1500.0, "num_rollouts_min": 1},
        {"method": "paper", "allocate": False, "abort": False},
        {"drop_zero_advantage": False, "entropy_coef": 0.01, "max_rollouts": 64, "budget_fraction": 1.0},
    ],
    ids=lambda options: "-".join(f"{k}={v}" for k, v in options.items()),
)
def test_every_switch_trains(tiny_path, tmp_path, options):
    trainer = duet_trainer(
        tiny_path, tmp_path, rewards=[count_fours, abstains_on_short], **{"max_steps": 2, **options}
    )
    start = weights(trainer).clone()
    trainer.train()
    assert (weights(trainer) - start).abs().max() > 1e-4
    assert all(math.isfinite(loss) for loss in logged(trainer, "loss"))


def test_each_part_switched_off_stays_off(tiny_path, tmp_path):
    metrics = {"trim": "duet/trim_rate", "abort": "duet/abort_rate", "allocate": "duet/num_rollouts/std"}
    for part, metric in metrics.items():
        trainer = trained(tiny_path, tmp_path / part, max_steps=2, method="paper", **{part: False})
        # Uniform counts may differ by the one rollout that the budget does not divide into.
        assert max(logged(trainer, metric)) <= (0.5 if part == "allocate" else 0.0), part


async def async_length(completions, **kwargs):
    return [float(len(text)) for text in completions]


def test_async_rewards_are_scored_once_per_rollout(tiny_path, tmp_path):
    seen = []

    def counting(completions, **kwargs):
        seen.append(len(completions))
        return count_fours(completions)

    trainer = trained(tiny_path, tmp_path, rewards=[async_length, counting])
    num_rollouts = [mean * 8 for mean in logged(trainer, "duet/num_rollouts/mean")]
    np.testing.assert_allclose(seen, num_rollouts)


def test_peft_trains_only_the_adapter(tiny_path, tmp_path):
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    trainer = duet_trainer(tiny_path, tmp_path, peft_config=lora, beta=0.04)
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    trainer.train()
    moved = {name for name, p in trainer.model.named_parameters() if not torch.equal(p, before[name])}
    assert moved
    assert all("lora" in name for name in moved)


def test_a_streamed_data_set_trains(tiny_path, tmp_path):
    trainer = trained(tiny_path, tmp_path, data=prompts().to_iterable_dataset())
    assert len(set(trainer._current.prompts.keys)) == 8


def test_evaluation_runs_ungated(tiny_path, tmp_path):
    trainer = trained(
        tiny_path,
        tmp_path,
        eval_dataset=prompts(8),
        eval_strategy="steps",
        eval_steps=2,
        num_generations_eval=2,
        per_device_eval_batch_size=8,
    )
    rewards = logged(trainer, "eval_reward")
    assert rewards
    assert all(math.isfinite(value) for value in rewards)


def test_the_completion_table_and_the_audit_log_hold_every_rollout(tiny_path, tmp_path):
    def logs_length(completions, log_extra=None, **kwargs):
        log_extra("length", [len(c[0]["content"]) for c in completions])
        return count_fours(completions)

    trainer = trained(
        tiny_path,
        tmp_path,
        rewards=logs_length,
        data=prompts(conversational=True),
        log_completions=True,
        audit_log=True,
        audit_columns=["level"],
        method="paper",
    )
    tables = sorted((tmp_path / "completions").glob("*.parquet"))
    audits = sorted((tmp_path / "duet_audit").glob("*.parquet"))
    assert len(tables) == len(audits) == 3
    for table, audit, mean in zip(tables, audits, logged(trainer, "duet/num_rollouts/mean"), strict=True):
        completions, decisions = pd.read_parquet(table), pd.read_parquet(audit)
        assert len(completions) == len(decisions) == round(mean * 8)
        contents = completions["completion"].map(lambda messages: messages[0]["content"])
        assert contents.str.len().tolist() == completions["length"].tolist()
        assert set(decisions["outcome"]) <= {"natural", "answered", "kept", "aborted"}
        assert (decisions.loc[decisions["outcome"] == "aborted", "weight"] == 0).all()
        kept = decisions["outcome"] == "kept"
        assert (decisions.loc[kept, "propensity"] == 0.3).all()
        assert decisions["level"].isin([str(level) for level in range(5)]).all()


def test_sample_returns_ungated_completions_from_a_nucleus_of_its_own(tiny_path, tmp_path):
    trainer = duet_trainer(tiny_path, tmp_path)
    samples = trainer.sample(["Say 1 ", "Say 2 ", "Say 3 "], 2, temperature=0.0, max_tokens=12)
    assert [len(row) for row in samples] == [2, 2, 2]
    assert all(row[0] == row[1] for row in samples)  # greedy
    assert max(len(ids) for row in samples for ids in row) <= 12
    assert trainer.generation_config.max_new_tokens == 96
    # Only the likeliest token is in a nucleus of next to nothing.
    narrow = trainer.sample(["Say 1 ", "Say 2 "], 3, temperature=1.0, top_p=1e-6, max_tokens=12)
    greedy = trainer.sample(["Say 1 ", "Say 2 "], 1, temperature=0.0, max_tokens=12)
    assert [row[:1] for row in narrow] == greedy
    assert all(ids == row[0] for row in narrow for ids in row)
    wide = trainer.sample(["Say 1 ", "Say 2 "], 3, temperature=1.0, max_tokens=12)
    assert any(ids != row[0] for row in wide for ids in row)  # the training nucleus is whole again


@pytest.mark.parametrize("method", ["duet", "grpo"])
def test_extra_eos_tokens_end_rollouts_of_every_method(tiny_path, tmp_path, method):
    rollouts = []

    def record(completion_ids, **kwargs):
        rollouts.extend(completion_ids)
        return [float(len(ids)) for ids in completion_ids]

    options = {"extra_eos_tokens": ["\u0120the"], "method": method} | ({"trim": False} if method == "duet" else {})
    trainer = trained(tiny_path, tmp_path, rewards=record, max_steps=1, **options)
    the = trainer.processing_class.convert_tokens_to_ids("\u0120the")
    ended = [ids for ids in rollouts if the in ids]
    assert len(ended) > len(rollouts) / 2  # one token in sixteen
    assert all(ids.index(the) == len(ids) - 1 for ids in ended)
    assert all(ids.count(the) <= 1 for row in trainer.sample(["Say 1 "], 8) for ids in row)
    # Ended, not cut off: what is cut off has the full length.
    cut = sum(len(ids) == 96 and ids[-1] not in trainer.eos_token_ids for ids in rollouts)
    if method == "grpo":
        assert logged(trainer, "completions/clipped_ratio") == [pytest.approx(cut / len(rollouts))]
    trainer.save_model(str(tmp_path / "saved"))
    assert the in GenerationConfig.from_pretrained(tmp_path / "saved").eos_token_id


def infinite_on_some(completions, **kwargs):
    return [math.inf if len(text) % 3 == 0 else float(len(text)) for text in completions]


def test_an_infinite_reward_leaves_the_statistics_and_is_counted(tiny_path, tmp_path):
    trainer = trained(tiny_path, tmp_path, rewards=infinite_on_some)
    assert max(logged(trainer, "duet/nonfinite_rollouts")) > 0
    assert all(math.isfinite(loss) for loss in logged(trainer, "loss"))


def test_a_batch_without_any_reward_stops_with_a_checkpoint(tiny_path, tmp_path):
    trainer = duet_trainer(tiny_path, tmp_path, rewards=lambda completions, **kwargs: [None] * len(completions))
    with pytest.raises(RuntimeError, match="has a finite reward"):
        trainer.train()
    assert (tmp_path / "checkpoint-0" / "duet_state.json").exists()
    assert (tmp_path / "checkpoint-0" / "model.safetensors").exists()


@pytest.mark.parametrize("masking", [False, True])
def test_a_rollout_that_the_gate_stopped_is_not_a_truncated_one(tiny_path, tmp_path, masking):
    trainer = trained(
        tiny_path,
        tmp_path,
        max_steps=1,
        mask_truncated_completions=masking,
        teach_ending=False,
    )
    step = trainer._current
    ids = [rollout.completion_ids for rollout in step.local.values()]
    clipped = ~(np.array([one[-1] in trainer.eos_token_ids for one in ids]) | step.stopped)
    assert step.stopped.any()
    assert clipped.any()
    assert logged(trainer, "completions/clipped_ratio") == [pytest.approx(clipped.mean())]
    # Masked truncated rollouts are the only ones whose tokens leave N_t.
    counted = ~clipped if masking else np.ones_like(clipped)
    lengths = np.array([len(one) for one in ids])
    assert step.num_kept_tokens == lengths[counted].sum()


def test_a_policy_of_nans_stops_where_log_probs_are_taken_before_the_updates(tiny_path, tmp_path):
    """Within the update: tests/test_faults.py."""
    trainer = duet_trainer(tiny_path, tmp_path, steps_per_generation=8)

    def break_the_policy(completions, **kwargs):
        # After generation, so that only the log-probabilities are affected.
        with torch.no_grad():
            trainer.model.model.norm.weight.fill_(torch.nan)
        return count_fours(completions)

    trainer.reward_funcs[0] = break_the_policy
    with pytest.raises(RuntimeError, match="have no finite log-probability"):
        trainer.train()
    assert trainer.state.global_step == 0
    assert (tmp_path / "checkpoint-0" / "duet_state.json").exists()


def test_an_eos_cannot_be_the_sentinel_nor_two_tokens(tiny_path, tmp_path):
    eos = AutoTokenizer.from_pretrained(tiny_path).eos_token_id
    with pytest.raises(ValueError, match=f"got {eos}"):
        duet_trainer(tiny_path, tmp_path, sentinel_token_id=eos)
    with pytest.raises(ValueError, match=r"extra_eos_tokens names 'no such token', which is not a single token"):
        duet_trainer(tiny_path, tmp_path, method="grpo", extra_eos_tokens=["}$.", "no such token"])


def test_a_prompt_id_column_joins_prompts_across_texts(tiny_path, tmp_path):
    data = prompts().map(lambda row, index: {"name": f"q{index % 4}"}, with_indices=True)
    trainer = trained(tiny_path, tmp_path, data=data, prompt_id_column="name")
    assert set(trainer._current.prompts.keys) <= {"q0", "q1", "q2", "q3"}


@pytest.mark.parametrize(
    ("options", "limited"),
    [({"marker": "never..."}, r"\d+"), ({"max_completion_length": 3}, "[5-9]\\d")],
    ids=["never", "too short"],
)
def test_a_marker_that_never_fires_is_said_and_shown(tiny_path, tmp_path, caplog, options, limited):
    """By price, the default, nothing is aborted before answers are known: no other figure shows it."""
    trainer = trained(tiny_path, tmp_path, aborts_early=None, **options)
    assert logged(trainer, "duet/share_marker") == [0.0] * 3
    assert logged(trainer, "duet/share_marker_less") == [0.0] * 3
    found = re.findall(
        r"None of the \d+ rollouts that were rewarded in the first 3 .*none of all \d+ does.*", caplog.text
    )
    assert len(found) == 1 and re.search(rf"does. {limited} ran into max_completion_length", found[0])
