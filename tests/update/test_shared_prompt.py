# SPDX-License-Identifier: Apache-2.0
"""A shared row computes what its separate rows compute: the same log-probs and gradients, whatever the model sees."""

import logging
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig
from transformers import (
    AutoTokenizer,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from duet_trl import DUETGRPOConfig, DUETGRPOTrainer
from duet_trl.seams import prompt_sharing
from duet_trl.seams.prompt_sharing import NAME, laid_out
from duet_trl.seams.train_rows import side_by_side
from duet_trl.update.shared_prompt import NO_LABEL, shared_row
from tests.runs import count_fours, duet_settings, duet_trainer, prompts, weights

VOCAB, WINDOW = 11, 4
FORMS = {
    "llama": (LlamaForCausalLM, LlamaConfig, {}),
    "qwen3, every second layer slides": (
        Qwen3ForCausalLM,
        Qwen3Config,
        {"use_sliding_window": True, "sliding_window": WINDOW, "layer_types": ["full_attention", "sliding_attention"]},
    ),
    "gemma3, most layers slide": (
        Gemma3ForCausalLM,
        Gemma3TextConfig,
        {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "mistral, all layers slide": (MistralForCausalLM, MistralConfig, {"sliding_window": WINDOW}),
}
BATCHES = st.lists(
    st.tuples(
        st.lists(st.integers(0, 2), min_size=1, max_size=9), st.lists(st.integers(0, 7), min_size=1, max_size=4)
    ),
    min_size=1,
    max_size=3,
).filter(lambda batch: any(any(lengths) for _, lengths in batch))
"""Prompts, of few tokens so that some are equal or begin alike, and lengths of their answers."""


def tiny(form: str) -> torch.nn.Module:
    """A model of two layers in float64, which rounds nowhere in float32."""
    model_class, config_class, special = FORMS[form]
    config = config_class(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=4,
        pad_token_id=0,
        attn_implementation="sdpa",
        **special,
    )
    torch.manual_seed(0)
    model = model_class(config).double()
    with torch.no_grad():
        for one in model.parameters():
            one.copy_(torch.randn_like(one) * 0.5)
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):  # transformers computes it in float32
            module.forward = lambda x, module=module: torch.rms_norm(x, x.shape[-1:], 1.0 + module.weight, 1e-6)
    model.set_attn_implementation(NAME)
    return model


def micro_batch(batch: list, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Ids and mask of a batch as TRL lays it out, with columns of padding on both sides, and the answers' width."""
    draws = torch.Generator().manual_seed(seed)
    rows = [(prompt, length) for prompt, lengths in batch for length in lengths]
    answers = [torch.randint(VOCAB, (max(length, 1),), generator=draws).tolist() for _, length in rows]
    ids, mask, width = side_by_side([prompt for prompt, _ in rows], answers, 0, torch.device("cpu"))
    mask[[not length for _, length in rows], -width:] = 0
    ids, mask = (torch.nn.functional.pad(one, (2, 1)) for one in (ids, mask))
    return ids, mask, width + 1


def apart(model: torch.nn.Module, ids: torch.Tensor, mask: torch.Tensor, width: int) -> torch.Tensor:
    """Log-probs of the answers' tokens from separate rows, as TRL computes them."""
    logps = model(input_ids=ids, attention_mask=mask).logits[:, :-1].log_softmax(-1)
    return logps.gather(-1, ids[:, 1:, None])[:, -width:, 0] * mask[:, -width:]


def shared(model: torch.nn.Module, ids: torch.Tensor, mask: torch.Tensor, width: int) -> torch.Tensor:
    """The same from a shared row."""
    row = shared_row(ids, mask, width)
    with laid_out(row):
        logits = model(input_ids=row.ids, attention_mask=torch.ones_like(row.ids), position_ids=row.positions).logits
    return row.unpacked(logits.log_softmax(-1).gather(-1, row.labels.clamp(min=0)[..., None])[..., 0])


def gradients(model: torch.nn.Module, logps: torch.Tensor) -> list[torch.Tensor]:
    """Of a loss that weighs each token differently."""
    weights = torch.linspace(-1.0, 2.0, logps.numel(), dtype=logps.dtype).view_as(logps)
    return list(torch.autograd.grad((logps * weights).sum(), list(model.parameters())))


MODELS = {form: tiny(form) for form in FORMS}


@pytest.mark.parametrize("form", FORMS)
@given(batch=BATCHES, seed=st.integers(0, 9))
@settings(max_examples=25)
def test_log_probs_and_gradients_are_those_of_separate_rows(form, batch, seed):
    model = MODELS[form]
    inputs = micro_batch(batch, seed)
    expected, found = apart(model, *inputs), shared(model, *inputs)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-12)
    wanted = gradients(model, expected)
    scale = max(1.0, *(one.abs().max().item() for one in wanted))
    for one, other in zip(gradients(model, found), wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-12 * scale, rtol=1e-11)


def test_gradients_are_the_same_where_layers_are_computed_again_in_the_backward_pass():
    model, inputs = tiny("gemma3, most layers slide"), micro_batch([([1, 2, 0, 2, 1, 1], [5, 3, 6]), ([2], [4, 1])])
    expected = gradients(model, shared(model, *inputs))
    model.train()
    model.gradient_checkpointing_enable()
    for one, other in zip(gradients(model, shared(model, *inputs)), expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-12)


@given(batch=BATCHES)
def test_a_row_holds_each_prompt_once_and_no_padding(batch):
    ids, mask, width = micro_batch(batch)
    row = shared_row(ids, mask, width)
    prompts = {tuple(prompt) for prompt, lengths in batch if any(lengths)}
    answers = sum(length for _, lengths in batch for length in lengths)
    assert row.ids.numel() == sum(len(prompt) - 1 for prompt in prompts) + answers
    assert (row.labels != NO_LABEL).sum() == answers == row.in_answer.sum()
    used = mask[mask[:, -width:].any(dim=1)].any(dim=0)
    assert row.saving == len(ids) * used.sum() / row.ids.numel()
    torch.testing.assert_close(row.unpacked(row.labels), torch.where(row.in_answer, ids[:, -width:], 0))


def test_a_micro_batch_without_answers_has_no_row_and_one_that_pads_prompts_on_the_right_is_refused():
    ids, mask, width = micro_batch([([1, 2], [3, 2])])
    assert shared_row(ids, torch.cat([mask[:, :-width], 0 * mask[:, -width:]], dim=1), width) is None
    mask[0, -width - 1] = 0
    with pytest.raises(ValueError, match="Pad prompts on the left"):
        shared_row(ids, mask, width)


# ---- Training -------------------------------------------------------------------------------------------------------

LONG = Dataset.from_dict(
    {"prompt": [f"Say {i} and nothing else, however often you are asked for it " for i in range(16)]}
)
LORA = {"peft_config": LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.0)}
RUNS = {
    "duet": {},
    "grpo": {"method": "grpo"},
    "grpo_grpo_loss": {"method": "grpo", "loss_type": "grpo", "beta": 0.1},
    "old_logps_and_reference": {"num_iterations": 2, "beta": 0.1, "max_steps": 4},
    "lora_recomputed": LORA | {"gradient_checkpointing": True, "beta": 0.1},
}


def run(model: Path, folder: Path, data: Dataset = LONG, **settings: Any) -> DUETGRPOTrainer:
    common = {"max_completion_length": 24, "max_steps": 2, "optim": "sgd", "shared_prompts": True}
    trainer = duet_trainer(model, folder, data=data, **common | settings)
    trainer.train()
    return trainer


def check_same(one: DUETGRPOTrainer, other: DUETGRPOTrainer, differ: tuple[str, ...]) -> None:
    """Logs but for what begins like one of `differ`, and weights."""
    for entry, expected in zip(one.state.log_history, other.state.log_history, strict=True):
        assert entry.keys() == expected.keys()
        for key in entry:
            if not key.startswith(("step_time", "train_", "duet/seconds", "duet/overhead", "total_flos", *differ)):
                assert entry[key] == pytest.approx(expected[key], rel=1e-4, abs=2e-5), key
    torch.testing.assert_close(weights(one), weights(other), atol=2e-6, rtol=1e-6)


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_the_same_with_and_without_shared_prompts(tiny_path, tmp_path, monkeypatch, name):
    sharing = run(tiny_path, tmp_path / "sharing", **RUNS[name])
    assert sharing.sharing.num_shared >= 8
    # TRL's means over tokens are averaged over micro-batches, so they depend on which rows these hold.
    check_same(
        sharing, run(tiny_path, tmp_path / "off", **RUNS[name], shared_prompts=False), ("entropy", "clip_ratio")
    )
    monkeypatch.setattr(prompt_sharing, "LEAST_SAVING", math.inf)
    apart = run(tiny_path, tmp_path / "apart", **RUNS[name])
    assert apart.sharing.num_shared == 0
    check_same(sharing, apart, ())


def test_a_run_in_bf16_shares_and_differs_by_rounding(tiny_path, tmp_path):
    settings = {"bf16": True, "method": "grpo", "max_steps": 1}
    sharing, apart = (run(tiny_path, tmp_path / str(on), **settings, shared_prompts=on) for on in (True, False))
    assert sharing.sharing.num_shared
    start = torch.cat([p.flatten() for p in Qwen3ForCausalLM.from_pretrained(tiny_path).parameters()]).float()
    moved, other = weights(sharing).float() - start, weights(apart).float() - start
    assert 0 < (moved - other).norm() < 0.02 * other.norm()


def test_rows_are_not_shared_where_they_would_save_little(tiny_path, tmp_path):
    endless = {"max_completion_length": 150, "generation_kwargs": {"min_new_tokens": 150}}
    trainer = run(tiny_path, tmp_path, prompts(), **endless, method="grpo", max_steps=1)
    assert trainer.sharing.num_shared == 0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model_init_kwargs": {"attn_implementation": "eager"}}, "the attention is 'eager'.*'sdpa'"),
        (
            {"peft_config": LoraConfig(r=2, target_modules=["q_proj"], lora_dropout=0.1)},
            "dropout.*disable_dropout=True",
        ),
        ({"torch_compile": True}, "torch_compile=True would compile.* False can"),
    ],
)
def test_what_cannot_share_says_so_once_and_is_refused_where_it_must(tiny_path, tmp_path, caplog, settings, said):
    with caplog.at_level(logging.WARNING, "duet_trl"):
        assert duet_trainer(tiny_path, tmp_path, **settings).sharing is None
    assert len(re.findall(said, caplog.text)) == 1
    with pytest.raises(ValueError, match=f"shared_prompts=True, but .*{said}"):
        duet_trainer(tiny_path, tmp_path, shared_prompts=True, **settings)
    caplog.clear()
    duet_trainer(tiny_path, tmp_path, shared_prompts=False, **settings)
    assert "Rows of one prompt" not in caplog.text


@pytest.mark.parametrize("bf16", [False, True])
def test_a_model_that_mixes_tokens_outside_of_attention_is_found_out(tiny_path, tmp_path, bf16):
    model = Qwen3ForCausalLM.from_pretrained(tiny_path)
    model.model.embed_tokens.register_forward_hook(lambda *call: call[-1] + call[-1].roll(1, dims=1))
    args = DUETGRPOConfig(**duet_settings(tmp_path, shared_prompts=True, bf16=bf16))
    tokenizer = AutoTokenizer.from_pretrained(tiny_path)
    with pytest.raises(ValueError, match="computes log-probs .* nats apart, where rounding makes"):
        DUETGRPOTrainer(model, count_fours, args, prompts(), processing_class=tokenizer)
