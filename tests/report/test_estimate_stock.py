# SPDX-License-Identifier: Apache-2.0
"""The estimate on runs of stock TRL with several rewards, some of them None: what is read from their files."""

import json

import numpy as np
import pandas as pd
import pytest

from duet_trl.__main__ import main
from duet_trl.report.logged_completions import find_tokenizer
from tests.runs import prompts, settings

WEIGHTS = {"length": 1.0, "boxed_four": 2.0, "at_times": 1.0, "by_level": 0.5}


def text_of(completion) -> str:
    return completion if isinstance(completion, str) else completion[-1]["content"]


def length(completions, **kwargs):
    return [-len(text_of(completion)) / 100 for completion in completions]


def boxed_four(completions, **kwargs):
    return [float("\\boxed{4" in text_of(completion)) for completion in completions]


def at_times(completions, **kwargs):
    return [None if len(text_of(completion)) % 3 else 0.5 for completion in completions]


def by_level(completions, level, **kwargs):
    return [None if one % 2 else float("2" in text_of(c)) for c, one in zip(completions, level, strict=True)]


@pytest.fixture(
    scope="module",
    params=[(False, 4, 1), (True, 8, 2)],
    ids=["strings, 4 rollouts", "messages, 8 rollouts, each batch used twice"],
)
def stock_run(request, tiny_path, tmp_path_factory):
    from trl import GRPOConfig, GRPOTrainer

    conversational, num_generations, num_iterations = request.param
    output_dir = tmp_path_factory.mktemp("stock")
    arguments = settings(
        output_dir,
        max_steps=6,
        log_completions=True,
        num_generations=num_generations,
        num_iterations=num_iterations,
        gradient_accumulation_steps=2,
        reward_weights=list(WEIGHTS.values()),
        save_strategy="steps",
        save_steps=6,
    )
    trainer = GRPOTrainer(
        str(tiny_path),
        [length, boxed_four, at_times, by_level],
        args=GRPOConfig(**arguments),
        train_dataset=prompts(conversational=conversational),
    )
    trainer.train()
    return output_dir, num_generations


def rows_of(output_dir):
    """Step, prompt, text and rewards of every batch that differs from the one before it."""
    rows, last = [], None
    for file in sorted((output_dir / "completions").glob("*.parquet")):
        table = pd.read_parquet(file)
        content = table.drop(columns="step").to_json()
        if content != last:
            rows += [
                (row["step"], str(row["prompt"]), text_of(row["completion"]), [row[name] for name in WEIGHTS])
                for _, row in table.iterrows()
            ]
        last = content
    return rows


def test_a_stock_run_is_read_with_its_tokenizer_and_its_weighted_rewards_some_of_them_missing(stock_run, tmp_path):
    output_dir, num_generations = stock_run
    path = tmp_path / "estimate.json"
    assert (
        main(["estimate", str(output_dir), "--reward_weights", *map(str, WEIGHTS.values()), "--json", str(path)]) == 0
    )
    result, rows = json.loads(path.read_text()), rows_of(output_dir)
    measured, tokenizer = result["measured"], find_tokenizer(output_dir)
    assert result["inputs"]["completions"] == len(rows) > 30
    assert measured["reward_columns"] == list(WEIGHTS)
    lengths = [len(tokenizer.encode(text, add_special_tokens=False).ids) for _, _, text, _ in rows]
    assert measured["lengths"]["total"] == sum(lengths)
    assert any(marker["trim_saves"] for marker in measured["markers"])
    groups: dict[tuple, list[float]] = {}
    missing = 0
    for step, prompt, _, rewards in rows:
        given = [weight * reward for weight, reward in zip(WEIGHTS.values(), rewards, strict=True) if reward == reward]
        missing += len(rewards) - len(given)
        groups.setdefault((step, prompt), []).append(sum(given))
    stds = [np.std(rewards, ddof=1) for rewards in groups.values()]
    found = measured["groups"]
    assert missing > 0 and {len(rewards) for rewards in groups.values()} == {num_generations}
    assert found["num_groups"] == len(groups)
    assert found["zero_variance"] == pytest.approx(np.mean(np.array(stds) < 1e-9))
