# SPDX-License-Identifier: Apache-2.0
"""Where rows of one prompt share its forward pass in training (`shared_prompts`, `update/shared_prompt.py`).

TRL's log-probs, old, new and of a reference model, come from one function, which hands over here. transformers asks
an attention implementation for a mask, with a function that defines what a layer sees, and later for attention. Ours
answers a shared row with the masks of its blocks, from that same function, so that windows of whatever kind are the
model's own; everything else is SDPA, untouched.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from accelerate.utils import is_peft_model
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from ..update.float32 import in_float32
from ..update.shared_prompt import NO_LABEL, SharedMask, SharedRow, shared_row
from .train_rows import side_by_side

logger = logging.getLogger(__name__)

NAME = "sdpa_shared_prompt"
"""transformers' name of the attention."""
LEAST_SAVING = 1.1
"""Tokens of a micro-batch over tokens of its shared row from which on it is shared."""

_ROW: ContextVar[SharedRow | None] = ContextVar("row", default=None)


def _mask(*args: Any, **options: Any) -> Any:
    row = _ROW.get()
    if row is None:
        return sdpa_mask(*args, **options)
    sees, zero = options["mask_function"], torch.zeros((), dtype=torch.long, device=row.ids.device)
    return row.mask(lambda query, key: sees(zero, zero, query, key))


def _attention(module: nn.Module, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any) -> tuple:
    if not isinstance(attention_mask, SharedMask):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)

    def of_block(*block: torch.Tensor) -> torch.Tensor:
        return sdpa_attention_forward(module, *block, **options)[0]

    return attention_mask.attend(query, key, value, attention=of_block), None


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, _mask)


@contextmanager
def laid_out(row: SharedRow) -> Iterator[None]:
    """While active, a model whose attention is `NAME` takes what it is given for this row."""
    token = _ROW.set(row)
    try:
        yield
    finally:
        _ROW.reset(token)


def _forward(model: Callable[..., Any], row: SharedRow) -> Any:
    """TRL's fused head at each position of a row."""
    # Without a mask transformers would take positions that do not run on for those of packed sequences.
    tokens = {"input_ids": row.ids, "attention_mask": torch.ones_like(row.ids), "position_ids": row.positions}
    with laid_out(row):
        return model(**tokens, shift_labels=row.labels, fused_lm_head=True)


class PromptSharing:
    """TRL's log-probs and entropies, from shared rows where that pays."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.num_shared = 0  # micro-batches

    def score(
        self,
        stock: Callable[..., tuple],
        model: nn.Module,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        **_: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None, None]:
        """The result of `stock`, TRL's function, for these arguments; the others, of images and routers, are absent.

        Micro-batches have `batch_size` rows, and `logits_to_keep` columns of answers.
        """
        found = []
        size = batch_size or len(input_ids)
        for ids, mask in zip(input_ids.split(size), attention_mask.split(size), strict=True):
            row = shared_row(ids, mask, logits_to_keep)
            if row is None or row.saving < LEAST_SAVING:
                found.append(stock(model, ids, mask, logits_to_keep, compute_entropy=compute_entropy)[:2])
                continue
            self.num_shared += 1
            with self.trainer.accelerator.autocast():
                output = _forward(model, row)
            parts = (output.log_probs, output.entropy) if compute_entropy else (output.log_probs,)
            found.append([row.unpacked(part) for part in parts])
        return (
            torch.cat([part[0] for part in found]),
            torch.cat([part[1] for part in found]) if compute_entropy else None,
            None,
        )


def prompt_sharing(trainer: Any) -> PromptSharing | None:
    """The means by which rows of the trainer's policy share prompts; None where they cannot, or are not to.

    Raises:
        ValueError: If they are to (`shared_prompts=True`) and cannot.
    """
    wanted = trainer.args.shared_prompts
    if wanted is False or (wanted is None and trainer.args.per_device_train_batch_size == 1):
        return None
    exchange = trainer.exchange
    own = exchange.fail_together(lambda: _obstacle(trainer) or _deviation(trainer))
    reason = next(filter(None, exchange.objects([own])), None)  # the placement of rows depends on it
    if reason is None:
        return PromptSharing(trainer)
    if own is None:
        _set_attention(trainer, "sdpa")
    if wanted:
        raise ValueError(f"shared_prompts=True, but {reason}. With shared_prompts=None it trains without.")
    logger.warning("Rows of one prompt do not share its forward pass: %s. shared_prompts=False is silent.", reason)
    return None


def _base(model: nn.Module) -> Any:
    """The model of transformers inside a model of peft."""
    return model.get_base_model() if is_peft_model(model) else model


def _obstacle(trainer: Any) -> str | None:
    """An obstacle to shared rows that the comparison would not find, with the remedy."""
    model = _base(trainer.model)
    attention = model.config._attn_implementation
    dropout = [one.p for one in trainer.model.modules() if isinstance(one, nn.Dropout)]
    obstacles = {
        "it is not tested with DeepSpeed and FSDP. DDP can": trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled,
        "the router's loss counts all tokens of all rows. router_aux_loss_coef=0 can": trainer.aux_loss_enabled,
        "torch_compile=True would compile for the length of each row. False can": trainer.args.torch_compile,
        f"{type(model).__name__} reads more than text. A model of text alone can": (
            model.config.get_text_config() is not model.config
        ),
        # A model may come from another trainer.
        f"the attention is {attention!r}. model_init_kwargs={{'attn_implementation': 'sdpa'}} can": (
            attention not in ("sdpa", NAME)
        ),
        "dropout would be the same in all of them. disable_dropout=True, and attention_dropout=0 in the model's "
        "configuration, can": any(dropout) or model.config.to_dict().get("attention_dropout"),
    }
    return next((words for words, found in obstacles.items() if found), None)


def _deviation(trainer: Any) -> str | None:
    """Give the models our attention and try it on a few tokens: what is wrong with it, if anything."""
    _set_attention(trainer, NAME)
    found = _compared(trainer)
    if found is None:
        return None
    _set_attention(trainer, "sdpa")
    return f"{type(_base(trainer.model)).__name__} {found}. A model in which only attention mixes tokens can"


def _set_attention(trainer: Any, name: str) -> None:
    _base(trainer.model).set_attn_implementation(name)
    if trainer.ref_model is not None:
        trainer.accelerator.unwrap_model(trainer.ref_model).set_attn_implementation(name)


@torch.no_grad()
def _compared(trainer: Any) -> str | None:
    """How log-probs of random tokens from a shared row differ from those of separate rows, if not by rounding.

    In float32: bf16 would round away what is wrong with an untrained model. Quantised models have it no better.
    """
    model = trainer.model
    exact = all(one.dtype.itemsize > 1 for one in model.parameters())
    device, draws = next(model.parameters()).device, torch.Generator().manual_seed(0)
    random = torch.randint(_base(model).config.vocab_size, (5, 16), generator=draws).tolist()
    prompts = [random[0][:9]] * 3 + [random[1][:5]] * 2
    ids, mask, width = side_by_side(prompts, [random[2], *(one[:7] for one in random[1:])], 0, device)
    row, labels = shared_row(ids, mask, width), ids.masked_fill(mask == 0, NO_LABEL)
    labels[:, :-width] = NO_LABEL
    try:
        with in_float32(model) if exact else trainer.accelerator.autocast() as wide:
            forward = wide or model
            apart = forward(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True).log_probs
            shared = row.unpacked(_forward(forward, row).log_probs)
    except torch.OutOfMemoryError:  # has nothing to do with the row
        raise
    except (AttributeError, TypeError, ValueError, IndexError, RuntimeError) as error:
        return f"cannot compute such a row ({type(error).__name__}: {error})"
    apart, shared = apart[:, -width:][row.in_answer].double(), shared[row.in_answer].double()
    bound = torch.finfo(torch.float32 if exact else _base(model).dtype).eps ** 0.5 * apart.std()
    found = (apart - shared).abs().max()
    return None if found <= bound else f"computes log-probs {found:.2g} nats apart, where rounding makes {bound:.2g}"
