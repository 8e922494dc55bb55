# SPDX-License-Identifier: Apache-2.0
"""Tokenizer, marker, sentinel and ends of a run, settled before a model is loaded."""

import logging
from typing import Any

import torch
from jinja2 import TemplateError
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, PretrainedConfig, PreTrainedTokenizerBase
from trl import GRPOTrainer

from ..config import DUETGRPOConfig
from ..evaluation.prompts import end_of_turn_id
from ..gate.automaton import compile_automaton
from ..gate.markers import get_marker
from ..gate.sentinel import find_sentinel, tokens_with_a_role
from ..gate.streaming import GateSetup
from ..gate.thoughts import Delimiters, find_delimiters, parse_delimiters
from ..gate.vocabulary import vocabulary_bytes

logger = logging.getLogger(__name__)


def load_tokenizer(
    model: str | torch.nn.Module, tokenizer: PreTrainedTokenizerBase | None, args: DUETGRPOConfig
) -> PreTrainedTokenizerBase:
    """The tokenizer GRPOTrainer would load, before it loads the model."""
    if tokenizer is None:
        name = model if isinstance(model, str) else model.config._name_or_path
        tokenizer = AutoTokenizer.from_pretrained(name, **_source(args), truncation_side="left", padding_side="left")
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise ValueError(
            f"{type(tokenizer).__name__} is a multimodal processor; DUET trains on text. Pass the tokenizer as "
            "processing_class, or use GRPOTrainer."
        )
    extra_eos_ids(tokenizer, args)
    return tokenizer


def thought_delimiters(tokenizer: PreTrainedTokenizerBase, args: DUETGRPOConfig) -> Delimiters | None:
    """The thought delimiters of this run; None: the model has none."""
    names = args.thought_delimiters
    return find_delimiters(tokenizer) if names is None else parse_delimiters(names)


def prepare_gate(model: str | torch.nn.Module, tokenizer: PreTrainedTokenizerBase, args: DUETGRPOConfig) -> GateSetup:
    """Compile the marker and find the sentinel, without loading weights."""
    config, generation = _configurations(model, args)
    vocab_size, declared = config.get_text_config().vocab_size, generation.eos_token_id
    declared = [declared] if isinstance(declared, int) else list(declared or [])
    delimiters = thought_delimiters(tokenizer, args)
    shown = () if delimiters is None else delimiters.parts
    eos_ids = _eos_ids(tokenizer, [*declared, *extra_eos_ids(tokenizer, args)], vocab_size)
    vocabulary = vocabulary_bytes(tokenizer, vocab_size, shown)
    automaton = compile_automaton(get_marker(args.marker, delimiters), vocabulary)
    if args.sentinel_token_id is None:
        settings = (config.to_dict(), generation.to_dict(), args.generation_kwargs or {})
        taken = {number for each in settings for number in tokens_with_a_role(each)}
        sentinel = find_sentinel(tokenizer, vocab_size, eos_ids, {*taken, *shown})
    elif not 0 <= args.sentinel_token_id < vocab_size or args.sentinel_token_id in eos_ids:
        raise ValueError(
            f"sentinel_token_id must be a vocabulary id in [0, {vocab_size}) that is not an EOS {list(eos_ids)}, got "
            f"{args.sentinel_token_id}. Leave it at None to have one found."
        )
    else:
        sentinel = args.sentinel_token_id
    return GateSetup(args.marker, automaton, sentinel, eos_ids, delimiters)


def _configurations(model: str | torch.nn.Module, args: DUETGRPOConfig) -> tuple[PretrainedConfig, GenerationConfig]:
    """Configurations of the model and of its generation, without loading weights."""
    if not isinstance(model, str):
        return model.config, model.generation_config
    source = _source(args)
    config = AutoConfig.from_pretrained(model, **source)
    try:
        return config, GenerationConfig.from_pretrained(model, **source)
    except OSError:  # transformers then makes one from the model's configuration
        return config, GenerationConfig.from_model_config(config)


def _source(args: DUETGRPOConfig) -> dict[str, Any]:
    """Revision and trust of the model, which GRPOTrainer takes from `model_init_kwargs` first."""
    kwargs = args.model_init_kwargs or {}
    return {
        "revision": kwargs.get("revision"),
        "trust_remote_code": kwargs.get("trust_remote_code", args.trust_remote_code),
    }


def _eos_ids(tokenizer: PreTrainedTokenizerBase, declared: list[int], vocab_size: int) -> tuple[int, ...]:
    if tokenizer.eos_token_id is None:
        raise ValueError("The tokenizer has no eos_token: no rollout could end by itself. Set tokenizer.eos_token.")
    eos_ids = dict.fromkeys([tokenizer.eos_token_id, *declared])
    outside = [eos for eos in eos_ids if not 0 <= eos < vocab_size]
    if outside:
        raise ValueError(
            f"eos_token_id {outside} is outside the vocabulary of {vocab_size}. Set tokenizer.eos_token and the "
            "model's generation_config.eos_token_id to tokens the model can produce."
        )
    return tuple(eos_ids)


def extra_eos_ids(tokenizer: PreTrainedTokenizerBase, args: DUETGRPOConfig) -> list[int]:
    """Ids of `extra_eos_tokens`."""
    tokens = args.extra_eos_tokens or []
    ids = [tokenizer.get_vocab().get(token) for token in tokens]
    if None in ids:
        raise ValueError(
            f"extra_eos_tokens names {tokens[ids.index(None)]!r}, which is not a single token of the tokenizer "
            f"{tokenizer.name_or_path!r}. Name a token of its vocabulary, or leave it out."
        )
    return ids


def warn_of_turns(trainer: GRPOTrainer) -> None:
    """Warn if the chat template ends a turn with a token that ends no rollout, and the prompts are messages."""
    tokenizer, dataset = trainer._tokenizer, trainer.train_dataset
    if dataset is None or tokenizer.chat_template is None or not trainer.accelerator.is_main_process:
        return
    if not any(isinstance(row.get("prompt"), list) for row in dataset.take(1)):
        return
    try:
        end = end_of_turn_id(tokenizer)
    except (TemplateError, ValueError):  # a template that takes no such turn, or several without a default
        return
    if end is not None and end not in trainer.eos_token_ids:
        token = tokenizer.convert_ids_to_tokens(end)
        logger.warning(
            f"The chat template ends a turn with {token!r} (id {end}), which is not an EOS of tokenizer or model "
            f"{list(trainer.eos_token_ids)}: a rollout would run past its turn, up to max_completion_length. Set "
            f"extra_eos_tokens=[{token!r}]."
        )
