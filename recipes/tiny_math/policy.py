# SPDX-License-Identifier: Apache-2.0
"""The policy of the tiny tasks: a byte-level tokenizer of up to 377 tokens and a Qwen3 model of 0.64M parameters."""

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

CHECKPOINT = Path(__file__).parent / "checkpoint"
VOCABULARY_SIZE = 377
# Rows 377..383 of the embedding have no token; the gate needs one of them as its sentinel.
PADDED_VOCABULARY_SIZE = 384

_SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE over sample documents, one token a digit; `<|endoftext|>` ends a text, as in Qwen's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=list(_SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    end = _SPECIAL_TOKENS[0]
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=end,
        pad_token=end,
        model_max_length=1024,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = _CHAT_TEMPLATE
    return fast


def build_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """A freshly initialised policy (seed torch first). The large initialisation lets it learn to copy early."""
    config = Qwen3Config(
        vocab_size=PADDED_VOCABULARY_SIZE,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        initializer_range=0.06,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    return Qwen3ForCausalLM(config)


def load_tokenizer(path: Path = CHECKPOINT) -> PreTrainedTokenizerFast:
    """The shipped tokenizer, by default that of recipes/tiny_math."""
    return PreTrainedTokenizerFast.from_pretrained(path)


def load_policy(path: Path = CHECKPOINT) -> Qwen3ForCausalLM:
    """The shipped warm-started policy in float32, by default that of recipes/tiny_math."""
    return Qwen3ForCausalLM.from_pretrained(path, dtype="float32")
