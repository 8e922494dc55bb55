# SPDX-License-Identifier: Apache-2.0
"""Engines that look right and are not: end tokens that are missing, text behind them, other weights, other tokens."""

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from duet_trl import DUETGRPOConfig
from duet_trl.engines.engine import Completion, Policy, Request
from duet_trl.gate.replay import GateSpec
from duet_trl.seams.generating import EngineChecks
from tests.engines.table_engine import TableEngine
from tests.runs import duet_trainer, logged, settings, trained, weights
from tests.tiny import MODEL_VOCAB, UNIGRAM, tiny_tokenizer

EOS = 7


def checks(tmp_path, **overrides) -> EngineChecks:
    config = DUETGRPOConfig(**settings(tmp_path, **overrides))
    return EngineChecks("Mine", config, {EOS}, vocab_size=10)


def returned(found: EngineChecks, *ids: list[int], finish: str = "", gate: GateSpec | None = None):
    ends = [finish or ("eos" if one[-1:] == [EOS] else "other") for one in ids]
    done = [Completion(one, end, number=number) for number, (one, end) in enumerate(zip(ids, ends, strict=True))]
    passed = found.completions(done, [Request([1], max_tokens=6, gate=gate)] * len(ids))
    return [one.token_ids for one in passed]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1, EOS, 2, EOS], "returned 2 tokens after the end token 7 of rollout 1. It must end a rollout at each"),
        ([EOS, EOS], "returned 1 tokens after the end token 7"),
        ([1, 10], "returned token 10 in rollout 1; the model has tokens 0 to 9. Serve the model that is trained"),
        ([-1, 3], "returned token -1 in rollout 1"),
    ],
)
def test_tokens_that_no_rollout_of_the_policy_has_are_refused(tmp_path, ids, message):
    with pytest.raises(ValueError, match=f"Mine {message}"):
        returned(checks(tmp_path), [1, EOS], ids)


def test_a_run_may_ignore_ends(tmp_path):
    assert returned(checks(tmp_path, generation_kwargs={"ignore_eos": True}), [1, EOS, 2]) == [[1, EOS, 2]]


@pytest.mark.parametrize("done", [None, [[1, 2]], (), {}])
def test_an_engine_returns_completions(tmp_path, done):
    with pytest.raises(ValueError, match="Mine.generate returned .* It must return a list of Completion"):
        checks(tmp_path).completions(done, [])


GATE = GateSpec(1, 2, 0)


@pytest.mark.parametrize(
    ("finish", "ids", "gate"),
    [
        ("eos", [1, EOS], None),
        ("length", [1] * 6, None),
        ("gate", [1, 2], GATE),
        ("gate", [], GATE),
        ("other", [1], None),
    ],
)
def test_an_end_that_fits_its_tokens_passes(tmp_path, finish, ids, gate):
    assert returned(checks(tmp_path), ids, finish=finish, gate=gate) == [ids]


@pytest.mark.parametrize(
    ("finish", "ids"),
    [("eos", [1, 2]), ("eos", []), ("length", [1, 2]), ("gate", [1, 2]), ("stop", [1, 2]), ("other", [1, EOS])],
)
def test_an_end_that_its_tokens_do_not_show_is_an_error_that_says_what_each_end_is(tmp_path, finish, ids):
    said = f"Mine returned rollout 0 as ended by '{finish}', with {len(ids)} tokens of at most 6"
    with pytest.raises(ValueError, match=rf"{said}.*\(\[7\]\), which servers in"):
        returned(checks(tmp_path), ids, finish=finish)


# ---- Log-probs ----------------------------------------------------------------------------------------------------


def test_the_gap_is_the_mean_distance_over_tokens_of_the_loss_whose_log_prob_is_known(tmp_path):
    inputs = {
        "completion_mask": torch.tensor([[1, 1, 1], [1, 1, 1]]),
        "duet_end": torch.tensor([2, -1]),  # the third token of the first row is taught, the engine drew it not
        "sampling_per_token_logps": torch.tensor([[-1.0, math.nan, -9.0], [-2.0, -3.0, -math.inf]]),
    }
    logps = torch.tensor([[-1.5, -9.0, 0.0], [-1.75, -3.0, -4.0]])
    # 0.5, unknown, taught; 0.25, 0, and the limit of 1,000 for a token that the engine says cannot be.
    assert checks(tmp_path).gap(logps, inputs).tolist() == [0.5 + 0.25 + 0.0 + 1000.0, 4.0]
    assert checks(tmp_path).gap(logps, {"completion_mask": inputs["completion_mask"]}) is None
    assert checks(tmp_path).follow_gap(3.0, 6.0) == {"engine_gap": 0.5}
    assert checks(tmp_path).follow_gap(0.0, 0.0) == {}  # a micro-batch of padding


def test_rounding_and_renormalised_log_probs_are_no_error_and_other_weights_are(tmp_path):
    assert checks(tmp_path).follow_gap(0.9, 1.0) == {"engine_gap": 0.9}
    with pytest.raises(
        ValueError, match="that Mine returned are 39 nats a token away .*bring the weights over in sync"
    ):
        checks(tmp_path).follow_gap(390.0, 10.0)
    for other in ({"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.5}, {"repetition_penalty": 1.5}):
        assert checks(tmp_path, **other).follow_gap(20.0, 10.0) == {"engine_gap": 2.0}


@pytest.mark.parametrize(
    ("gaps", "warned"), [([0.02, 0.1, 0.19], 0), ([0.1, 0.3, 0.39], 0), ([0.05, 0.1, 0.21, 0.5], 1)]
)
def test_it_warns_once_when_the_policy_leaves_the_engine_behind(tmp_path, caplog, gaps, warned):
    found = checks(tmp_path)
    with caplog.at_level(logging.WARNING):
        for gap in gaps:
            found.follow_gap(gap, 1.0)
    said = [record.getMessage()[:24] for record in caplog.records if record.name.startswith("duet_trl")]
    assert said == ["The log-probs of Mine ar"] * warned


# ---- Runs ---------------------------------------------------------------------------------------------------------


class Wrong(TableEngine):
    """Samples what the tiny policy does, and has one mistake."""

    def __init__(self, policy: Policy, mistake: Callable[[list[Completion]], list[Completion]]) -> None:
        row = np.full(MODEL_VOCAB, 1e-4)
        for token, probability in UNIGRAM.items():
            row[tiny_tokenizer()(token).input_ids] = probability
        super().__init__(policy, np.tile(row / row.sum(), (MODEL_VOCAB, 1)))
        self.mistake = mistake

    def generate(self, requests: list[Request]) -> list[Completion]:
        return self.mistake([replace(one, logprobs=self.logprobs(one)) for one in super().generate(requests)])

    def logprobs(self, one: Completion) -> list[float]:
        return np.log(self.table[0, one.token_ids]).tolist()


def without_end(one: Completion) -> Completion:
    """As servers in OpenAI's style return them."""
    ends = tiny_tokenizer().convert_tokens_to_ids(["<|endoftext|>", "<|im_end|>"])
    kept = [token for token in one.token_ids if token not in ends]
    return replace(one, token_ids=kept, logprobs=one.logprobs[: len(kept)])


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda done: done[:-1], r"asked for rollouts 0..\d+ and returned"),
        (lambda done: done[::-1], "and returned .*with its number and in their order"),
        (lambda done: [*done, done[0]], "and returned"),
        (lambda done: [replace(one, token_ids=one.token_ids * 200) for one in done], "may have 96"),
        (lambda done: [replace(one, logprobs=[]) for one in done], "returned 0 log-probs for the"),
        (
            lambda done: [without_end(one) for one in done],
            r"Wrong returned rollout \d+ as ended by 'eos', .*servers in OpenAI's style drop",
        ),
        (
            lambda done: [replace(one, logprobs=[-50.0] * len(one.token_ids)) for one in done],
            r"log-probs that Wrong returned are 4\d(\.\d)? nats a token away",
        ),
    ],
    ids=["fewer", "reordered", "unasked", "longer", "no-logprobs", "no-ends", "unsynced"],
)
def test_a_run_on_such_an_engine_stops_before_the_policy_moves(tiny_path, tmp_path, mistake, message):
    trainer = duet_trainer(tiny_path, tmp_path, trim=False, engine=partial(Wrong, mistake=mistake))
    start = weights(trainer)
    with pytest.raises(ValueError, match=message):
        trainer.train()
    assert torch.equal(weights(trainer), start)


def test_an_engine_that_samples_the_policy_reports_a_small_gap(tiny_path, tmp_path):
    trainer = trained(tiny_path, tmp_path, max_steps=2, engine=partial(Wrong, mistake=lambda done: done))
    found = logged(trainer, "duet/engine_gap")
    assert len(found) == 2 and 0.0 < max(found) < 1.0  # its table is the policy's but for the noise of a prefix
