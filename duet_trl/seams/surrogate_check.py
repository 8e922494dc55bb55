# SPDX-License-Identifier: Apache-2.0
"""Whether a surrogate file belongs to the run: its model and its prompts, before a model is loaded."""

from typing import Any

import torch
from datasets import Dataset

from ..allocate.static_surrogate import SurrogateFile
from ..config import DUETGRPOConfig
from ..methods.duet_settings import DuetOptions
from .data_checks import prompt_keys


def check_surrogate(args: DUETGRPOConfig, model: str | torch.nn.Module, dataset: Any) -> None:
    """Raise ValueError for a stale `surrogate_file`. Prompts of a stream are looked up as they come."""
    if not isinstance(args.options, DuetOptions) or not args.options.surrogate_file:
        return
    file = SurrogateFile.read(args.options.surrogate_file)
    file.check_model(model if isinstance(model, str) else model.config._name_or_path)
    if isinstance(dataset, Dataset):
        file.sigma(prompt_keys(list(dataset), args.prompt_id_column))
