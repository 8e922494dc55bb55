# SPDX-License-Identifier: Apache-2.0
"""A Qwen3-architecture policy of a few ten thousand parameters and its tokenizer, built from a config.

The weights are not trained, they are set so that the next-token distribution is close to `UNIGRAM`: one hidden
direction is constant over positions and carries the wanted log-odds, the rest is noise that makes the distribution
depend on the prefix. Rollouts then end by EOS, contain boxed answers, and run long, each often enough for a test.
"""

from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from duet_trl.gate.thoughts import Delimiters

EOS = "<|endoftext|>"
END_OF_TURN = "<|im_end|>"
START_OF_TURN = "<|im_start|>"
MODEL_VOCAB = 384
"""Rows of the embedding. More than the tokenizer has, so that a sentinel exists."""

WORDS = ["\\boxed", "}$.", "}}", "\n\n", "```", "```python", "<answer>", "</answer>", " the", " answer", " is", " So"]
UNIGRAM = {
    "\\boxed": 0.12,
    "{": 0.12,
    "}": 0.14,
    "}$.": 0.03,
    "}}": 0.02,
    "4": 0.08,
    "2": 0.08,
    " the": 0.06,
    " answer": 0.06,
    " is": 0.06,
    "\n\n": 0.03,
    "<answer>": 0.03,
    "</answer>": 0.03,
    EOS: 0.008,
    END_OF_TURN: 0.004,
}
"""Target next-token probabilities; what is left is spread evenly over the other tokens."""


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE: 256 bytes, the merges that spell `WORDS`, three special tokens."""
    byte_alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: index for index, symbol in enumerate(byte_alphabet)}
    merges: list[tuple[str, str]] = []
    for word in WORDS:
        symbols = _byte_symbols(word)
        for end in range(2, len(symbols) + 1):
            pair = (symbols[: end - 1], symbols[end - 1])
            if pair not in merges:
                merges.append(pair)
                vocabulary.setdefault(symbols[:end], len(vocabulary))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=EOS, pad_token=EOS)
    fast.add_special_tokens({"additional_special_tokens": [START_OF_TURN, END_OF_TURN]})
    fast.chat_template = (
        "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    return fast


def thinking_tokenizer(delimiters: Delimiters, *, special: bool = False) -> PreTrainedTokenizerFast:
    """The tiny tokenizer with the delimiters of a thought as added tokens, special or not."""
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([AddedToken(part, special=special, normalized=False) for part in delimiters.parts])
    return tokenizer


def tiny_model(
    tokenizer: PreTrainedTokenizerFast, *, seed: int = 0, tie_word_embeddings: bool = True, experts: bool = False
):
    """A two-layer Qwen3 in float32 whose next-token distribution is near `UNIGRAM`; added tokens have 0.03 each.

    With 4 experts a layer, or none.
    """
    config_class, model_class = (Qwen3MoeConfig, Qwen3MoeForCausalLM) if experts else (Qwen3Config, Qwen3ForCausalLM)
    routing = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "router_aux_loss_coef": 0.1}
    config = config_class(
        vocab_size=MODEL_VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,  # the smallest that the CPU attention kernel of vLLM takes
        max_position_embeddings=1024,
        tie_word_embeddings=tie_word_embeddings,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
        **(routing if experts else {}),
    )
    generator = torch.Generator().manual_seed(seed)
    model = model_class(config).to(torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.08)
        _set_unigram(model, tokenizer, generator)
    model.generation_config.eos_token_id = [
        tokenizer.eos_token_id,
        tokenizer.convert_tokens_to_ids(END_OF_TURN),
    ]
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model.eval()


def save_tiny(path: Path, *, seed: int = 0, tie_word_embeddings: bool = True, experts: bool = False) -> Path:
    """Write model and tokenizer to a folder that `from_pretrained` and vLLM load."""
    tokenizer = tiny_tokenizer()
    tiny_model(tokenizer, seed=seed, tie_word_embeddings=tie_word_embeddings, experts=experts).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def save_thinking(path: Path, delimiters: Delimiters, *, special: bool, opened: bool) -> Path:
    """A thinking policy. special: its delimiters are special tokens; opened: its chat template opens a thought."""
    tokenizer = thinking_tokenizer(delimiters, special=special)
    if opened:
        tokenizer.chat_template = tokenizer.chat_template.replace(
            "assistant\n{% endif", f"assistant\n{delimiters.opening}\n{{% endif"
        )
    tiny_model(tokenizer).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def _set_unigram(model, tokenizer: PreTrainedTokenizerFast, generator: torch.Generator) -> None:
    """Put the log-odds on hidden direction 0, which every embedding shares with a large constant.

    After the last RMSNorm that direction is close to sqrt(hidden_size) at every position, so a column of log-odds
    divided by sqrt(hidden_size) in the output matrix becomes a bias. With tied weights the shared constant is the
    same for all tokens and cancels in the softmax.
    """
    hidden = model.config.hidden_size
    probabilities = torch.full((MODEL_VOCAB,), 1e-9)
    rest = 1.0 - sum(UNIGRAM.values())
    probabilities[: len(tokenizer)] = rest / len(tokenizer)
    thoughts = dict.fromkeys(tokenizer.get_added_vocab().keys() - {EOS, END_OF_TURN, START_OF_TURN}, 0.03)
    for token, probability in (UNIGRAM | thoughts).items():
        probabilities[_token_id(tokenizer, token)] = probability
    log_odds = (probabilities / probabilities.mean()).log().clamp(min=-14.0)
    noise = torch.randn((MODEL_VOCAB, hidden), generator=generator) * 0.15
    shared = 20.0
    embedding = model.model.embed_tokens.weight
    embedding.copy_(noise)
    embedding[:, 0] = shared
    output = model.lm_head.weight
    output.copy_(noise)
    output[:, 0] = shared + log_odds / hidden**0.5


def _token_id(tokenizer: PreTrainedTokenizerFast, token: str) -> int:
    if token in tokenizer.get_added_vocab():
        return tokenizer.convert_tokens_to_ids(token)
    return tokenizer.convert_tokens_to_ids(_byte_symbols(token))


def _byte_symbols(text: str) -> str:
    """The printable stand-ins that byte-level BPE uses for the bytes of a text."""
    pieces = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    return "".join(piece for piece, _ in pieces)
