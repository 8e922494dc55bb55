# SPDX-License-Identifier: Apache-2.0
"""A field or option that cannot have an effect is refused: every pair of a field and what switches it off."""

import pytest

from duet_trl.config import DECLARED, METHOD_FIELDS
from duet_trl.field_types import declarations
from duet_trl.methods.duet import DuetOptions
from duet_trl.methods.paper import PaperOptions
from tests.test_config import config

_SAID = DECLARED | declarations(DuetOptions) | declarations(PaperOptions)
CONDITIONS = {name: said.acts for name, said in _SAID.items() if said.acts is not None}

VALUES = {
    "allocate": False,
    "trim": False,
    "abort": False,
    "budget_fraction": 1.0,
    "budget_reading": "rollouts",
    "budget_tokens": 1e5,
    "num_rollouts_min": 1,
    "num_rollouts_max": 32,
    "max_rollouts": 64,
    "marker": "math",
    "grace_window": 16,
    "keep_probability": 0.05,
    "sentinel_token_id": 5,
}
"""A value of each field that some methods do not read; most are what the field holds there anyway."""


@pytest.mark.parametrize("name", sorted(METHOD_FIELDS))
def test_a_field_that_the_method_does_not_read_is_refused_with_the_methods_that_do(tmp_path, name):
    assert set(VALUES) == METHOD_FIELDS
    with pytest.raises(ValueError) as refused:
        config(tmp_path, method="grpo", **{name: VALUES[name]})
    message = str(refused.value)
    assert message.startswith(f"{name}={VALUES[name]!r} cannot have an effect under method='grpo'")
    readers = "['paper']" if name in ("allocate", "keep_probability") else "['duet', 'paper'"
    assert f"Remove it, or choose a method that does: {readers}" in message
    assert config(tmp_path, method="grpo", **{name: None}).method == "grpo"


PAPER = {"method": "paper"}
NO_GATE = {"trim": False, "abort": False}
TOKENS = {"budget_reading": "tokens", "budget_tokens": 1e5}
SERVER = {"use_vllm": True, "vllm_mode": "server"}
PAIRS = [  # the value, fields under which it acts, fields under which it does not
    ("budget_fraction", 0.5, {}, TOKENS),
    ("budget_tokens", 1e5, {"budget_reading": "tokens"}, {}),
    ("num_rollouts_min", 2, PAPER, {}),
    ("num_rollouts_min", 2, TOKENS, {}),
    ("marker", "math", {"abort": False}, NO_GATE),
    ("grace_window", 25, {"trim": False}, NO_GATE),
    ("sentinel_token_id", 5, {}, NO_GATE),
    ("keep_probability", 0.05, {"trim": False, **PAPER}, {"abort": False, **PAPER}),
    ("audit_columns", ["level"], {"audit_log": True}, {}),
    ("exclude_zero_variance_groups", True, {}, {"beta": 0.1}),
    ("shared_prompts", True, {}, {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 32}),
    ("engine", "openai", SERVER, {"use_vllm": True, "vllm_mode": "colocate"}),
    ("server_weight_sync", "disk", SERVER, {}),
    ("server_weight_sync", "disk", SERVER, {"use_vllm": True, "vllm_mode": "colocate"}),
    ("server_weights_dir", "w", SERVER, {"use_vllm": False, "vllm_mode": "server"}),
    ("server_weights_dir", "w", SERVER, {**SERVER, "server_weight_sync": "nccl"}),
    ("surrogate_warmup", 2, PAPER, {**PAPER, "allocate": False}),
    ("surrogate_warmup", 2, PAPER, {**PAPER, "surrogate": "constant"}),
    ("surrogate", "constant", PAPER, {**PAPER, "allocate": False}),
    ("poll_interval", 8, {"trim": False}, NO_GATE),
    ("entropy_threshold", 0.1, {"abort": False}, {"trim": False}),
    ("teach_ending", False, {"abort": False}, {"trim": False}),
    ("threshold_window", 512, {**PAPER, "abort": False}, {**PAPER, **NO_GATE}),
    ("threshold_interval", 5, {**PAPER, "trim": False}, {**PAPER, **NO_GATE}),
]


@pytest.mark.parametrize(
    ("name", "value", "acts", "idle"), PAIRS, ids=lambda part: part if isinstance(part, str) else ""
)
def test_what_cannot_have_an_effect_is_refused_even_at_its_default(tmp_path, name, value, acts, idle):
    assert config(tmp_path, **acts, **{name: value}) is not None
    config(tmp_path, **idle)
    with pytest.raises(ValueError) as refused:
        config(tmp_path, **idle, **{name: value})
    message = str(refused.value)
    assert message.startswith(f"{name}={value!r} cannot have an effect under method={idle.get('method', 'duet')!r}")
    assert f"it acts only with {CONDITIONS[name].condition}. Remove it" in message


def test_every_condition_is_tried_on_both_sides():
    assert {name for name, *_ in PAIRS} == set(CONDITIONS)
