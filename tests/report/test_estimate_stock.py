# SPDX-License-Identifier: Apache-2.0
"""The estimate on runs of stock TRL with several rewards, some of them None, against a simulation token by token."""

import json
import re

import numpy as np
import pandas as pd
import pytest

from duet_trl.__main__ import main
from duet_trl.gate.vocabulary import vocabulary_bytes
from duet_trl.report.logged_completions import find_tokenizer
from tests.runs import prompts, settings

WEIGHTS = {"length": 1.0, "boxed_four": 2.0, "at_times": 1.0, "by_level": 0.5}
GRACE_WINDOW, POLL_INTERVAL = 6, 8


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


def shows_box(data: bytes) -> bool:
    start = data.find(b"\\boxed{")
    while start >= 0:
        depth, place = 1, start + 7
        while depth and place < len(data):
            character = data[place : place + 1]
            depth += (character == b"{") - (character == b"}")
            place += 2 if character == b"\\" else 1
        if depth:
            return False
        content = data[start + 7 : place - 1].strip()
        if content and content != b"answer":  # of the placeholders this policy has one as a word
            return True
        start = data.find(b"\\boxed{", place)
    return False


def shows_tags(data: bytes) -> bool:
    found = re.finditer(rb"<answer>((?:(?!</?answer>).)*)</answer>", data, re.DOTALL)
    return any(match[1].strip() for match in found)


def simulate(rollouts: list[list[int]], vocabulary, shows, threshold: int, keep: float) -> dict[str, float]:
    """Algorithm 1 on finished rollouts, one token after the other."""
    total, shown, after, trimmed, beyond, tail = 0, 0, 0, 0, 0, 0
    for ids in rollouts:
        data, answer_at = b"", None
        for position, token in enumerate(ids, start=1):
            data += vocabulary[token] or b""
            if answer_at is None and shows(data):
                answer_at = position
        total += len(ids)
        shown += answer_at is not None
        after += len(ids) - answer_at if answer_at is not None else 0
        tau = None
        for done in range(len(ids)):  # the decision before the next token
            is_poll = done > 0 and (done % POLL_INTERVAL == 0 or done == threshold + GRACE_WINDOW)
            if tau is None and is_poll and answer_at is not None and answer_at <= done:
                tau = done
            if tau is not None and done == tau + GRACE_WINDOW:
                trimmed += len(ids) - done
                break
            if tau is None and done == threshold + GRACE_WINDOW:
                tail, beyond = tail + 1, beyond + len(ids) - done
                break
    saved = trimmed + (1 - keep) * beyond
    return {
        "shown": shown / len(rollouts),
        "tokens_after_answer": after / total,
        "trim_saves": trimmed / total,
        "tail": tail / len(rollouts),
        "tail_tokens": beyond / total,
        "abort_saves": (1 - keep) * beyond / total,
        "gated_mean": (total - saved) / len(rollouts),
    }


def estimate(tmp_path, *arguments):
    path = tmp_path / "estimate.json"
    assert main(["estimate", *map(str, arguments), "--json", str(path)]) == 0
    return json.loads(path.read_text())


def test_every_figure_of_a_stock_run_is_that_of_a_simulation(stock_run, tmp_path, capsys):
    output_dir, num_generations = stock_run
    tokenizer = find_tokenizer(output_dir)
    flags = ["--grace_window", GRACE_WINDOW]
    flags += ["--reward_weights", *WEIGHTS.values()]
    result = estimate(tmp_path, output_dir, *flags)
    rows = rows_of(output_dir)
    rollouts = [tokenizer.encode(text, add_special_tokens=False).ids for _, _, text, _ in rows]
    lengths = np.array([len(ids) for ids in rollouts])
    measured = result["measured"]
    assert result["inputs"]["completions"] == len(rows) > 30
    assert measured["reward_columns"] == list(WEIGHTS)
    assert measured["lengths"]["total"] == lengths.sum()
    vocabulary = vocabulary_bytes(type("Fast", (), {"backend_tokenizer": tokenizer})())
    for name, shows in (("math", shows_box), ("qa", shows_tags)):
        marker = next(marker for marker in measured["markers"] if marker["marker"] == name)
        expected = simulate(rollouts, vocabulary, shows, marker["abort_threshold"], marker["keep_probability"])
        assert {key: marker[key] for key in expected} == pytest.approx(expected), name
        for item in (item for item in result["projected"] if item["marker"] == name):
            assert item["token_share"] == pytest.approx(item["budget"] * expected["gated_mean"] / lengths.mean())
    assert any(marker["trim_saves"] for marker in measured["markers"])


def test_zero_variance_of_weighted_rewards_with_some_missing(stock_run, tmp_path, capsys):
    output_dir, num_generations = stock_run
    result = estimate(tmp_path, output_dir, "--reward_weights", *WEIGHTS.values())
    groups: dict[tuple, list[float]] = {}
    missing = 0
    for step, prompt, _, rewards in rows_of(output_dir):
        given = [weight * reward for weight, reward in zip(WEIGHTS.values(), rewards, strict=True) if reward == reward]
        missing += len(rewards) - len(given)
        groups.setdefault((step, prompt), []).append(sum(given))
    stds = [np.std(rewards, ddof=1) for rewards in groups.values()]
    found = result["measured"]["groups"]
    assert missing > 0 and {len(rewards) for rewards in groups.values()} == {num_generations}
    assert found["num_groups"] == len(groups)
    assert found["zero_variance"] == pytest.approx(np.mean(np.array(stds) < 1e-9))
