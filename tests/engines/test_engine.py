# SPDX-License-Identifier: Apache-2.0
"""What every engine does with requests, and an engine of one's own."""

from contextlib import nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from duet_trl.engines.engine import Policy, Request, Sampling
from duet_trl.engines.transformers import TransformersEngine
from duet_trl.gate.replay import GateSpec, Outcome, replay
from duet_trl.gate.streaming import GateSetup
from tests.engines.table_engine import TableEngine
from tests.gate.oracle import EOS, A, B, C, continued, toy_automaton, toy_ends
from tests.runs import duet_trainer, logged, weights
from tests.tiny import MODEL_VOCAB, UNIGRAM, tiny_tokenizer

SENTINEL = 4
SETUP = GateSetup("toy", toy_automaton(), SENTINEL, (EOS,))
TABLE = np.array([[0.1, 0.3, 0.58, 0.02], [0.2, 0.1, 0.68, 0.02], [0.1, 0.1, 0.78, 0.02], [0.25] * 4])
SPECS = (
    GateSpec(4, 8, 3, poll_interval=2),
    GateSpec(4, 12, 5, poll_interval=1, entropy_threshold=0.75),  # only C's row is below it: 0.70 nats
    GateSpec(6, 9, 2, trim=False, window=4),
)
CAP = 24


def toy_policy() -> Policy:
    return Policy(SETUP, SETUP.eos_ids, Sampling(1.0, 1.0, CAP), lambda: iter(()))


def test_engine_of_ones_own_gates_and_continues_as_algorithm_1_does():
    engine, random = TableEngine(toy_policy(), TABLE), np.random.default_rng(0)
    requests = []
    for row in range(600):
        prefix = tuple(random.choice([A, B, C], size=random.integers(16) if row % 2 else 0).tolist())
        requests.append(Request([C], prefix, CAP, SPECS[row % 3], bool(random.random() < 0.3)))
    outcomes = set()
    for request, found in zip(requests, engine.generate(requests), strict=True):
        ids, begun = [*request.prefix, *found.token_ids], len(request.prefix)
        entropy = [-(p * np.log(p)).sum() for p in TABLE[[C, *ids]]]
        gated = found.finish == "gate"
        natural = ids + [C] * gated
        expected = continued(request.gate, natural, request.keep, entropy, toy_ends(ids), begun)
        assert (ids, gated) == (expected.ids, expected.stopped)
        coin, stopped = np.array([request.keep]), np.array([gated])
        replayed = replay(request.gate, SETUP.automaton, [ids], stopped, coin, prefix_length=np.array([begun]))
        assert replayed.outcome[0] == expected.outcome
        outcomes.add(expected.outcome)
    assert outcomes == {*Outcome}


def test_engine_of_ones_own_samples_its_table():
    engine = TableEngine(toy_policy(), TABLE, seed=1)
    drawn = [found.token_ids[0] for found in engine.generate([Request([A], max_tokens=1)] * 4000)]
    # Four standard deviations of a frequency around 0.58 among 4,000 are 0.031.
    np.testing.assert_allclose(np.bincount(drawn, minlength=4) / 4000, TABLE[A], atol=0.031)


def test_engine_of_the_documentation_is_this_one():
    root = Path(__file__).parents[2]
    code = (root / "tests/engines/table_engine.py").read_text()
    assert code[code.index("from collections") :] in (root / "docs/extending.md").read_text()


def test_trainer_trains_on_an_engine_of_ones_own(tiny_path, tmp_path):
    row = np.full(MODEL_VOCAB, 1e-4)
    for token, probability in UNIGRAM.items():
        row[tiny_tokenizer()(token).input_ids] = probability
    table = np.tile(row / row.sum(), (MODEL_VOCAB, 1))
    trainer = duet_trainer(tiny_path, tmp_path, max_steps=2, engine=partial(TableEngine, table=table))
    start = weights(trainer)
    trainer.train()
    assert not torch.equal(weights(trainer), start)
    assert trainer.engine.syncs == 2 and len(logged(trainer, "loss")) == 2
    assert max(logged(trainer, "duet/abort_rate")) > 0 and max(logged(trainer, "duet/trim_rate")) > 0
    assert [len(ids) <= 7 for (ids,) in trainer.sample(["Say 1 ", "Say 2 "], max_tokens=7)] == [True, True]
    own = dict(trainer.engine.policy.weights())
    assert own.keys() == dict(trainer.model.named_parameters()).keys()
    with pytest.raises(ValueError, match="Set use_vllm=False"):
        duet_trainer(tiny_path, tmp_path, use_vllm=True, engine=partial(TableEngine, table=table))


def turn_engine(setup: GateSetup | None, answers: list[list[int]]) -> TransformersEngine:
    arguments = lambda prompts: (answers, None), setup, [EOS], CAP, lambda sampling: nullcontext()  # noqa: E731
    return TransformersEngine(
        *arguments, model=partial(pytest.fail, "a turn without gates and limits needs no processor")
    )


def test_requests_without_gates_and_of_full_length_are_one_plain_turn():
    answers = [[A, SENTINEL, B], [C]]  # without a gate the sentinel is an id like any other
    done = turn_engine(SETUP, answers).generate([Request([C], max_tokens=CAP)] * 2)
    assert [(found.token_ids, found.finish) for found in done] == [(answers[0], "other"), (answers[1], "other")]


@pytest.mark.parametrize(
    ("setup", "request_", "message"),
    [
        (SETUP, Request([C], (A, B), 2), "prefix of 2 tokens and max_tokens=2 has 0 tokens to generate"),
        (SETUP, Request([C], (), CAP + 1), "has 25 tokens to generate; this engine generates 1 to 24.*max_completion"),
        (None, Request([C], (), CAP, SPECS[0]), "has a gate, but the run has no marker"),
    ],
)
def test_requests_that_cannot_be_served_are_named_before_anything_is_generated(setup, request_, message):
    with pytest.raises(ValueError, match=message):
        turn_engine(setup, []).generate([request_])
