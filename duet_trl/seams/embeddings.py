# SPDX-License-Identifier: Apache-2.0
"""Vectors of prompts, for a method that compares prompts: from the policy, from a file, or from a sentence model.

Only the prompts that a step visits are embedded. What can be wrong with a file or a model is found before the policy
is loaded.
"""

import logging
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor
from trl import GRPOTrainer

from ..rollouts import Prompt
from .data_checks import prompt_keys

logger = logging.getLogger(__name__)

FILES = (".npy", ".npz", ".safetensors")
"""Endings of a file of vectors."""
_ROWS = 65_536
"""Of a file, checked at a time."""
_REMEMBERED = 100_000
"""Prompts whose vectors a sentence model is not asked for again."""

Embed = Callable[[Sequence[Prompt]], np.ndarray]
"""Prompts -> their vectors, shape (M, D), float32."""


def embedder(source: str | None, dataset: Any, id_column: str | None, trainer: GRPOTrainer) -> Embed | None:
    """What embeds the prompts of a run.

    Args:
        source (str | None): "policy"; a file that ends in one of `FILES`, one row for each row of the data set; or the
            name or folder of a sentence-transformers model. None: nobody asks.
        dataset (Any): Training data.
        id_column (str | None): Column that identifies a prompt; None: a hash of it.
        trainer (GRPOTrainer): Of the run. It need not have its model yet.

    Raises:
        ValueError: If file or model cannot be read, or do not fit the data set.
        ImportError: If sentence-transformers is not installed and asked for.
    """
    if source is None:
        return None
    if source == "policy":
        logger.info(
            "embeddings='policy': prompts are compared by the mean of the policy's input embeddings, not by those "
            "of a sentence model as in the paper. Name such a model, or a file of its vectors, to have these."
        )
        return partial(policy_vectors, trainer)
    if Path(source).suffix in FILES:
        return RowVectors(source, dataset, id_column)
    return SentenceVectors(source, trainer)


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

    Read anew for every step: they move with training, and a resumed run must find what this one does. A collective
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


class RowVectors:
    """Vectors from a file, one row for each row of the data set.

    Attributes:
        matrix (np.ndarray): Shape (rows of the data set, D), finite; a .npy file stays on disk.
    """

    def __init__(self, path: str, dataset: Any, id_column: str | None) -> None:
        self.path = path
        self.matrix = _read(path)
        if not isinstance(dataset, Dataset):
            raise ValueError(
                f"embeddings={path!r} has one row for each row of the data set, and a stream has no rows to count. "
                "Train on a Dataset, or name a sentence-transformers model."
            )
        if self.matrix.ndim != 2 or len(self.matrix) != len(dataset) or self.matrix.dtype.kind not in "fiu":
            raise ValueError(
                f"embeddings={path!r} has shape {self.matrix.shape} of {self.matrix.dtype}, and the training data "
                f"set has {len(dataset)} rows. Write a matrix of numbers with one row for each, in their order."
            )
        for start in range(0, len(self.matrix), _ROWS):
            finite = np.isfinite(self.matrix[start : start + _ROWS]).all(axis=1)
            if not finite.all():
                raise ValueError(
                    f"embeddings={path!r} has a value that is not finite in row {start + int(finite.argmin())}. "
                    "Embed that prompt again."
                )
        column = "prompt" if id_column is None else id_column
        keys = prompt_keys([{column: value} for value in dataset[column]], id_column)
        self.rows = {key: row for row, key in reversed(list(enumerate(keys)))}  # the first, where a prompt repeats

    def __call__(self, prompts: Sequence[Prompt]) -> np.ndarray:
        """Vectors of some prompts, shape (M, D), float32."""
        unknown = [prompt for prompt in prompts if prompt.key not in self.rows]
        if unknown:
            raise ValueError(
                f"embeddings={self.path!r} has no row for the prompt {unknown[0].example['prompt']!r}, which is "
                "not in the training data set that the trainer was given."
            )
        return np.asarray(self.matrix[[self.rows[prompt.key] for prompt in prompts]], dtype=np.float32)


class SentenceVectors:
    """Vectors from a sentence-transformers model, on the device of the trainer."""

    def __init__(self, name: str, trainer: GRPOTrainer) -> None:
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError as error:
            raise ImportError(
                f"embeddings={name!r} names a sentence-transformers model, and the library is not installed. Install "
                "the extra: pip install 'duet-trl[embeddings]'; or set embeddings='policy', or a file that ends in "
                f"{', '.join(FILES)}."
            ) from error
        try:
            self.model = SentenceTransformer(name, device="cpu")
        except (OSError, ValueError) as error:
            raise ValueError(
                f"embeddings={name!r} is no sentence-transformers model that could be loaded: {error} Name another "
                f"model or its folder, set 'policy', or give a file that ends in {', '.join(FILES)}."
            ) from error
        self.trainer = trainer
        self._known: dict[str, np.ndarray] = {}

    def __call__(self, prompts: Sequence[Prompt]) -> np.ndarray:
        """Vectors of some prompts, shape (M, D), float32; those of earlier steps are remembered."""
        new = {prompt.key: prompt for prompt in prompts if prompt.key not in self._known}
        if new:
            texts = [prompt_text(prompt.example["prompt"]) for prompt in new.values()]
            device = str(self.trainer.accelerator.device)
            vectors = self.model.encode(texts, device=device, show_progress_bar=False).astype(np.float32)
            self._known.update(zip(new, vectors, strict=True))
        found = np.stack([self._known[prompt.key] for prompt in prompts])
        for key in list(self._known)[: max(len(self._known) - _REMEMBERED, 0)]:
            del self._known[key]
        return found


def _read(path: str) -> np.ndarray:
    """The one array of a file."""
    if not Path(path).is_file():
        raise ValueError(
            f"embeddings={path!r} is no file. Write the vectors there, or set 'policy' or the name of a "
            "sentence-transformers model."
        )
    try:
        if path.endswith(".npy"):
            return np.load(path, mmap_mode="r")
        arrays = np.load(path) if path.endswith(".npz") else load_file(path)
        found = {name: arrays[name] for name in arrays}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, SafetensorError) as error:
        raise ValueError(
            f"embeddings={path!r} cannot be read: {error}. Write a matrix of numbers with numpy.save, numpy.savez or "
            "safetensors."
        ) from error
    if len(found) != 1:
        raise ValueError(f"embeddings={path!r} has the arrays {sorted(found)}. Write a file with one matrix.")
    (matrix,) = found.values()
    return matrix.float().numpy() if isinstance(matrix, torch.Tensor) else matrix
