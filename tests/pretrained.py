# SPDX-License-Identifier: Apache-2.0
"""The pre-trained models that slow tests train: folders of `make models`, or a skip that says so."""

from pathlib import Path

import pytest

from recipes.pretrained_models import FOLDER, REMEDY


def smollm2() -> Path:
    """SmolLM2-135M-Instruct: 49,152 tokens, a chat template, special tokens of which most have no role."""
    return _model("smollm2_135m")


def gemma3() -> Path:
    """gemma-3-270m, a base model: 262,144 tokens, no chat template."""
    return _model("gemma3_270m")


def _model(name: str) -> Path:
    if not (FOLDER / name).is_dir():
        pytest.skip(f"there is no model in {FOLDER / name}. {REMEDY}")
    return FOLDER / name
