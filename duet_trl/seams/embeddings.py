# SPDX-License-Identifier: Apache-2.0
"""Vectors of prompts, for a method that compares prompts: from the policy, or from a sentence model.

Only the prompts that a step visits are embedded. A sentence model that cannot be loaded fails before the policy loads.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.distributed.tensor import DTensor
from trl import GRPOTrainer

from ..rollouts import Prompt

logger = logging.getLogger(__name__)

Embed = Callable[[Sequence[Prompt]], np.ndarray]
"""Prompts -> their vectors, shape (M, D), float32."""


def embedder(source: str | None, trainer: GRPOTrainer) -> Embed | None:
    """The embedding of the prompts of a run, whose trainer need not have its model yet.

    `source` is "policy", or the name or folder of a sentence-transformers model (ValueError if it cannot be loaded,
    ImportError without the library); None: not needed.
    """
    if source is None:
        return None
    if source == "policy":
        logger.info(
            "embeddings='policy': prompts are compared by the mean of the policy's input embeddings, not by those "
            "of a sentence model as in the paper. Name such a model to have these."
        )
        return partial(policy_vectors, trainer)
    return partial(sentence_vectors, _sentence_model(source), trainer)


def prompt_text(prompt: Any) -> str:
    """What the user says in a prompt (text or messages): chat template and system prompt are the same for all."""
    if isinstance(prompt, str):
        return prompt
    said = [message["content"] for message in prompt if message["role"] == "user"]
    said = said or [message["content"] for message in prompt]
    return "\n\n".join(x if isinstance(x, str) else " ".join(part["text"] for part in x) for x in said)


@torch.no_grad()
def policy_vectors(trainer: GRPOTrainer, prompts: Sequence[Prompt]) -> np.ndarray:
    """Mean of the policy's input embeddings over the tokens of each prompt's text, shape (M, D), float32.

    Read again at every step: they move with training, and a resumed run must find what this one does. A collective
    where the model is sharded.
    """
    texts = [prompt_text(prompt.example["prompt"]) for prompt in prompts]
    ids = trainer.processing_class(texts, add_special_tokens=False)["input_ids"]
    flat = torch.tensor([token for row in ids for token in row], dtype=torch.int64)
    used, number = torch.unique(flat, return_inverse=True)
    weight = trainer.accelerator.unwrap_model(trainer.model).get_input_embeddings().weight
    whole = trainer._dist.summon_full_params(trainer.model_wrapped, recurse=False, writeback=False)
    with trainer._dist.gather_params([weight]), whole:
        table = weight.full_tensor() if isinstance(weight, DTensor) else weight
        rows = table[used.to(table.device)].float().cpu()  # (distinct tokens, D)
    first = torch.tensor([0, *np.cumsum([len(row) for row in ids])[:-1]])
    return torch.nn.functional.embedding_bag(number, rows, first, mode="mean").numpy()


def _sentence_model(name: str) -> Any:
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise ImportError(
            f"embeddings={name!r} names a sentence-transformers model, and the library is not installed. Install the "
            "extra: pip install 'duet-trl[embeddings]'; or set embeddings='policy'."
        ) from error
    try:
        return SentenceTransformer(name, device="cpu")
    except (OSError, ValueError) as error:
        raise ValueError(
            f"embeddings={name!r} is not a sentence-transformers model that loads: {error} Name another model "
            "or its folder, or set 'policy'."
        ) from error


def sentence_vectors(model: Any, trainer: GRPOTrainer, prompts: Sequence[Prompt]) -> np.ndarray:
    """Vectors from a sentence model on the device of the trainer, shape (M, D), float32."""
    texts = [prompt_text(prompt.example["prompt"]) for prompt in prompts]
    device = str(trainer.accelerator.device)
    return model.encode(texts, device=device, show_progress_bar=False).astype(np.float32)
