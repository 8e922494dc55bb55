# SPDX-License-Identifier: Apache-2.0
"""Log-probs before the updates of a batch, from the training pass."""

import math
from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch

from duet_trl.seams.old_logps import OLD, SAMPLED, WEIGHT, LateLogps, old_logps, sampled_logps
from duet_trl.seams.train_rows import TrlsLogps

CLIPS = {"vllm_importance_sampling_clip_min": 0.6, "vllm_importance_sampling_clip_max": 1.5}


def chosen(**overrides) -> TrlsLogps:
    """Of a trainer on one process; one update of each batch, corrected for what vLLM sampled with."""
    arguments = {
        "use_vllm": True,
        "vllm_importance_sampling_correction": True,
        "vllm_importance_sampling_mode": "token_truncate",
        "gradient_accumulation_steps": 2,
        "steps_per_generation": 2,
        "num_iterations": 1,
        "overlap": False,
        **CLIPS,
        **overrides,
    }
    accelerator = SimpleNamespace(device=torch.device("cpu"), gather=torch.atleast_1d)
    metrics = {"train": defaultdict(list)}
    trainer = SimpleNamespace(args=SimpleNamespace(**arguments), accelerator=accelerator, pad_to_multiple_of=None)
    trainer._metrics, trainer._get_per_token_logps_and_entropies = metrics, None
    return old_logps(trainer)


def micro_batch() -> dict[str, torch.Tensor]:
    """Two rows: one of four tokens, whose third the engine did not report; one of two, then an EOS that is taught."""
    return {
        SAMPLED: torch.log(torch.tensor([[0.5, 0.5, math.nan, 0.5], [0.5, 0.5, 1.0, 1.0]])),
        "completion_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]]),
        "duet_end": torch.tensor([-1, 2]),
    }


NOW = torch.log(torch.tensor([[0.5, 0.8, 0.1, 0.25], [0.4, 0.5, 0.3, 0.3]]))
"""Ratios to what was sampled: 1, 1.6, not known, 0.5; and 0.8, 1."""


@pytest.mark.parametrize(
    ("mode", "weights"),
    [
        ("token_truncate", [[1.0, 1.5, 1.0, 0.6], [0.8, 1.0, 1.0, 1.0]]),
        ("token_mask", [[1.0, 0.0, 1.0, 0.0], [0.8, 1.0, 1.0, 1.0]]),
        # 1 x 1.6 x 0.5, and 0.8 x 1
        ("sequence_truncate", [[0.8], [0.8]]),
        ("sequence_mask", [[0.8], [0.8]]),
    ],
)
def test_weights_are_ratios_to_what_was_sampled_within_their_bounds(mode, weights):
    late, batch = chosen(vllm_importance_sampling_mode=mode), micro_batch()
    late.weigh(batch, NOW)
    assert torch.allclose(batch[WEIGHT], torch.tensor(weights))


@pytest.mark.parametrize(("mode", "expected"), [("sequence_truncate", 0.9), ("sequence_mask", 0.0)])
def test_weights_of_sequences_outside_are_cut_or_dropped(mode, expected):
    late, batch = chosen(vllm_importance_sampling_mode=mode, vllm_importance_sampling_clip_min=0.9), micro_batch()
    late.weigh(batch, NOW)
    assert batch[WEIGHT].flatten().tolist() == pytest.approx([expected, expected])


def test_metrics_are_over_the_tokens_of_all_micro_batches_that_the_engine_reported():
    late = chosen()
    for _ in range(2):
        late.weigh(micro_batch(), NOW)
    late.log()
    logged = late.trainer._metrics["train"]
    distances = [0.0, math.log(1.6), math.log(2), math.log(1.25), 0.0]
    weights = [1.0, 1.5, 1.0, 0.6, 0.8, 1.0]  # as TRL has it, the token that was not reported among them
    assert {name: values for name, (*values,) in logged.items()} == {
        "sampling/sampling_logp_difference/mean": [pytest.approx(sum(distances) / 5)],
        "sampling/sampling_logp_difference/max": [pytest.approx(math.log(2))],
        "sampling/importance_sampling_ratio/min": [pytest.approx(0.6)],
        "sampling/importance_sampling_ratio/mean": [pytest.approx(sum(weights) / 6)],
        "sampling/importance_sampling_ratio/max": [pytest.approx(1.5)],
    }
    late.log()  # nothing since
    assert all(len(values) == 1 for values in logged.values())


@pytest.mark.parametrize(
    ("overrides", "kind"),
    [
        ({}, LateLogps),
        ({"gradient_accumulation_steps": 4}, LateLogps),  # two batches for one update
        ({"steps_per_generation": 4}, TrlsLogps),  # two updates of one batch
        ({"num_iterations": 2}, TrlsLogps),
        ({"overlap": True}, TrlsLogps),
        ({"vllm_importance_sampling_correction": False}, TrlsLogps),
        ({"use_vllm": False}, TrlsLogps),
    ],
)
def test_trls_pass_stays_where_the_training_pass_comes_too_late(overrides, kind):
    found = chosen(**overrides)
    assert type(found) is kind
    assert bool(found.stand_ins([[-0.5], [-1.0]])) == (kind is not TrlsLogps)


def test_what_the_training_pass_will_know_leaves_trls_batch_and_metrics():
    late, batch = chosen(), micro_batch() | {OLD: NOW, WEIGHT: NOW}
    late.trainer._metrics["train"] |= {
        "sampling/importance_sampling_ratio/mean": [0.9, 1.0],  # of an earlier batch of the update, and of this one
        "sampling/sampling_logp_difference/max": [0.0],
        "loss": [1.0],
    }
    late.put_off(batch)
    assert batch.keys() == micro_batch().keys()
    assert late.trainer._metrics["train"] == {"sampling/importance_sampling_ratio/mean": [0.9], "loss": [1.0]}


def test_the_log_probs_that_tokens_were_drawn_with_are_padded_like_completions():
    for multiple, width in ((None, 3), (4, 4)):
        found = sampled_logps([[-0.5, None, -2.0], [-1.0]], multiple)
        assert found.shape == (2, width) and found.dtype == torch.float32
        assert found[0, [0, 2]].tolist() == [-0.5, -2.0] and found[0, 1].isnan()
        assert found[1].tolist() == [-1.0] + [0.0] * (width - 1)
    with pytest.raises(ValueError, match="needs an engine that returns the log-probs .* Set it to False"):
        sampled_logps(None, None)
