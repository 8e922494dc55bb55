# SPDX-License-Identifier: Apache-2.0
"""Rollouts of the next step are generated while this one trains."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from duet_trl.seams.checkpoint import STATE_FILE, read_state
from duet_trl.seams.data_checks import prompt_keys
from duet_trl.seams.overlap import Ahead
from tests.runs import duet_trainer, logged, prompts


@given(st.lists(st.integers(), max_size=12), st.integers(0, 5), st.lists(st.integers(0, 8), max_size=12))
def test_what_is_shown_ahead_is_what_comes(items, first, looks):
    ahead, taken = Ahead(iter(items), first), []
    for look in looks:
        number = first + len(taken) + look
        shown = ahead.item(number)
        assert shown == (items[number - first] if number - first < len(items) else None)
        taken += [item for item in [next(ahead, None)] if item is not None]
    assert [*taken, *ahead] == items


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "both share a device. Set use_vllm=True and vllm_mode='server'"),
        ({"use_vllm": True, "vllm_mode": "colocate"}, "both share a device"),
        (
            {"use_vllm": True, "vllm_mode": "server", "vllm_importance_sampling_correction": False},
            "nothing corrects for the difference. Set vllm_importance_sampling_correction=True",
        ),
    ],
)
def test_what_cannot_overlap_is_an_error_before_a_model_is_loaded(tmp_path, given, message):
    with pytest.raises(ValueError, match=message):
        duet_trainer(tmp_path / "absent", tmp_path, overlap=True, **given)


@pytest.fixture
def overlapped(server, server_weights, tiny_path, tmp_path, monkeypatch):
    """Makes a trainer whose generation overlaps, in a folder of its own."""
    monkeypatch.setenv("DUET_SERVER_TOKEN", server.token)
    monkeypatch.setenv("DUET_WEIGHTS_DIR", str(server.weights))
    on_server = {"use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": server.url, "overlap": True}
    kept = {"save_strategy": "steps", "save_steps": 1, "audit_log": True, "learning_rate": 1e-3}

    def build(folder: str, **overrides):
        return duet_trainer(tiny_path, tmp_path / folder, **on_server, **kept, **overrides)

    return build


def decided(folder: Path, step: int) -> pd.DataFrame:
    """The audit log of a step."""
    return pd.read_parquet(folder / "duet_audit" / f"step_{step:06d}.parquet")


def begun(trainer, folder: Path, step: int) -> tuple[list[list[int]], list[float]]:
    """Policy tokens and their summed log-probs of the rollouts that a checkpoint holds for the next step."""
    state = read_state(folder / f"checkpoint-{step}", trainer.checkpoints._identity)["begun"]
    ends = np.cumsum(state["lengths"])[:-1]
    ids = [part.tolist() for part in np.split(state["token_ids"], ends)]
    sentinel = trainer.engine.setup.sentinel
    return [row[:-1] if row[-1:] == [sentinel] else row for row in ids], [
        part.sum() for part in np.split(state["logprobs"], ends)
    ]


@torch.no_grad()
def summed_logps(model: Path, texts: list[str], completions: list[list[int]]) -> list[float]:
    """Log-prob of each completion under the weights of a folder."""
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    tokenizer, found = AutoTokenizer.from_pretrained(model), []
    for text, ids in zip(texts, completions, strict=True):
        prompt = tokenizer(text)["input_ids"]
        logps = policy(torch.tensor([prompt + ids])).logits[0].log_softmax(dim=-1)
        found.append(float(logps[range(len(prompt) - 1, len(prompt) + len(ids) - 1), ids].sum()))
    return found


@pytest.mark.vllm
def test_a_step_trains_what_the_weights_one_update_before_it_wrote(overlapped, tiny_path, tmp_path, caplog):
    evaluation = {"eval_strategy": "steps", "eval_steps": 1, "num_generations_eval": 2}
    trainer = overlapped("run", max_steps=3, eval_dataset=prompts(4), **evaluation)
    trainer.train()
    first, *later = logged(trainer, "sampling/sampling_logp_difference/max")
    assert first < 1e-3 < min(later)
    assert "are dropped" not in caplog.text and "was lost" not in caplog.text
    texts = dict(zip(prompt_keys(list(trainer.train_dataset), None), trainer.train_dataset["prompt"], strict=True))
    for step, weights in ((1, tiny_path), (2, tmp_path / "run" / "checkpoint-1")):
        completions, logprobs = begun(trainer, tmp_path / "run", step)
        asked = [texts[key] for key in decided(tmp_path / "run", step + 1)["prompt"]]
        assert summed_logps(weights, asked, completions) == pytest.approx(logprobs, abs=2e-2)
    # The last step begins nothing.
    assert "begun" in (tmp_path / "run" / "checkpoint-3" / STATE_FILE).read_text()
    assert not trainer.engine.begun and trainer.engine.begun_state() == {}


@pytest.mark.vllm
def test_a_resumed_run_trains_the_rollouts_that_were_begun(overlapped, tmp_path):
    drawn = {"prompt_candidates": 2.0}  # the method adds prompts to those of the sampler
    overlapped("whole", max_steps=3, **drawn).train()
    resumed = overlapped("resumed", max_steps=2, **drawn)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-1"))
    one, other = (decided(tmp_path / folder, 2) for folder in ("whole", "resumed"))
    pd.testing.assert_frame_equal(one, other, rtol=1e-4)
