# SPDX-License-Identifier: Apache-2.0
"""The policy of the tiny tasks: a byte-level tokenizer of up to 377 tokens and a Qwen3 model of 0.64M parameters."""

from pathlib import Path

from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

CHECKPOINT = Path(__file__).parent / "checkpoint"


def load_tokenizer(path: Path = CHECKPOINT) -> PreTrainedTokenizerFast:
    """The shipped tokenizer, by default that of recipes/tiny_math."""
    return PreTrainedTokenizerFast.from_pretrained(path)


def load_policy(path: Path = CHECKPOINT) -> Qwen3ForCausalLM:
    """The shipped warm-started policy in float32, by default that of recipes/tiny_math."""
    return Qwen3ForCausalLM.from_pretrained(path, dtype="float32")
