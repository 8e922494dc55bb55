# SPDX-License-Identifier: Apache-2.0
"""The gate in a real in-process vLLM engine, small enough that it preempts requests and splits prefills."""

import os
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from duet_trl.engines.colocated import ColocatedEngine, gated_requests, reload_weights_cpu
from duet_trl.gate.automaton import compile_automaton
from duet_trl.gate.markers import get_marker
from duet_trl.gate.replay import GateMismatch, GateSpec, Outcome, replay, split_sentinel
from duet_trl.gate.streaming import GateRequest
from duet_trl.gate.thoughts import Delimiters
from tests.engines.tiny_gate import (
    CAP,
    CROWDED,
    MARKER,
    SPECS,
    TinyGate,
    assert_algorithm_1,
    assert_continues,
    random_prompts,
    replay_all,
)

pytestmark = pytest.mark.vllm

NUM_ROWS = 300
PROMPTS = random_prompts(NUM_ROWS, seed=5)
SPEC_OF_ROW = [SPECS[row % len(SPECS)] for row in range(NUM_ROWS)]
KEEP = np.random.default_rng(0).random(NUM_ROWS) < 0.4


@pytest.fixture(scope="session")
def llm(tiny_gate: TinyGate) -> Iterator:
    from vllm import LLM

    before = dict(os.environ)
    yield LLM(model=str(tiny_gate.path), **CROWDED)
    os.environ.clear()
    os.environ.update(before)


def sampling(**changes):
    from vllm import SamplingParams

    return SamplingParams(**{"temperature": 1.0, "max_tokens": CAP, "logprobs": 0, **changes})


def completions(outputs) -> list:
    return [completion for output in outputs for completion in output.outputs]


def token_ids(outputs) -> list[list[int]]:
    return [list(completion.token_ids) for completion in completions(outputs)]


def generate(llm, gate: TinyGate, parameters: list[GateRequest | None], prompts=PROMPTS, params=None, seed: int = 0):
    """Sampled rollouts through the path that TRL takes: one set of sampling parameters for all prompts."""
    inputs = [{"prompt_token_ids": ids} for ids in prompts]
    llm.reset_prefix_cache()
    torch.manual_seed(seed)  # the engine in this process draws from the global generator
    with gated_requests(llm, parameters, gate.eos_ids):
        return llm.generate(inputs, sampling_params=params or sampling(), use_tqdm=False)


def preemptions(llm) -> int:
    return next(metric.value for metric in llm.get_metrics() if metric.name == "vllm:num_preemptions")


@pytest.fixture(scope="session")
def natural(llm, tiny_gate: TinyGate) -> list[list[int]]:
    return token_ids(generate(llm, tiny_gate, [None] * NUM_ROWS))


def test_rollouts_are_stopped_where_algorithm_1_stops_them_despite_preemptions(llm, tiny_gate):
    before = preemptions(llm)
    rows = zip(SPEC_OF_ROW, KEEP, strict=True)
    gated = token_ids(generate(llm, tiny_gate, [tiny_gate.request(spec, keep) for spec, keep in rows]))
    assert preemptions(llm) > before + 10
    assert_algorithm_1(tiny_gate, PROMPTS, gated, SPEC_OF_ROW, KEEP)
    replay_all(tiny_gate, gated, SPEC_OF_ROW, KEEP)


def test_prefixes_are_continued_under_gates_of_their_own_to_lengths_of_their_own(llm, tiny_gate):
    def turn(prompts: list[list[int]]) -> tuple[list[list[int]], list[list[float]]]:
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], sampling(), use_tqdm=False)
        logprobs = [[x[t].logprob for x, t in zip(c.logprobs, c.token_ids, strict=True)] for c in completions(outputs)]
        return token_ids(outputs), logprobs

    before, arguments = preemptions(llm), (turn, tiny_gate.setup, tiny_gate.eos_ids, CAP, lambda _: nullcontext())
    assert_continues(tiny_gate, ColocatedEngine(*arguments, llm=llm, sync=lambda: None))
    assert preemptions(llm) > before and "generate" not in llm.__dict__


def test_markers_inside_a_thought_do_not_count_in_the_engine(llm, tiny_gate):
    thought = Delimiters(" the", " answer")  # two tokens that the tiny policy often writes
    automaton = compile_automaton(get_marker(MARKER, thought), tiny_gate.vocabulary)
    in_thought = np.random.default_rng(1).random(NUM_ROWS) < 0.5
    names = {"delimiters": thought, "fingerprint": automaton.fingerprint}
    spec, ends = SPECS[0], (tiny_gate.sentinel, frozenset(tiny_gate.eos_ids))
    rows = zip(KEEP.tolist(), in_thought.tolist(), strict=True)
    asked = [GateRequest(spec, bool(keep), MARKER, *ends, in_thought=inside, **names) for keep, inside in rows]
    ids, stopped = split_sentinel(token_ids(generate(llm, tiny_gate, asked)), tiny_gate.sentinel)
    found = replay(spec, automaton, ids, stopped, KEEP, in_thought)  # an error where the engine ran another gate
    assert {*found.outcome.tolist()} == {*Outcome}
    for automaton_or_start in ((tiny_gate.automaton, None), (automaton, ~in_thought)):
        with pytest.raises(GateMismatch):
            replay(spec, automaton_or_start[0], ids, stopped, KEEP, automaton_or_start[1])


def test_gate_that_never_fires_is_no_gate_token_for_token(llm, tiny_gate, natural):
    late = tiny_gate.request(GateSpec(CAP + 1, CAP + 1, 0), False)
    assert token_ids(generate(llm, tiny_gate, [late] * NUM_ROWS)) == natural


def test_children_of_one_request_are_gated_one_by_one(llm, tiny_gate):
    params = sampling(n=3)
    outputs = generate(llm, tiny_gate, [tiny_gate.request(SPECS[0], False)] * 60, PROMPTS[:60], params)
    ids, stopped = split_sentinel(token_ids(outputs), tiny_gate.sentinel)
    assert len(ids) == 180
    outcome = replay(SPECS[0], tiny_gate.automaton, ids, stopped, np.zeros(180, bool)).outcome
    assert {Outcome.NATURAL, Outcome.ANSWERED, Outcome.ABORTED} <= set(outcome.tolist())


def test_sentinel_is_never_sampled_unless_forced(llm, tiny_gate):
    # Biased so that the policy would sample nothing else; the ungated rows show that the bias works.
    idle = tiny_gate.request(GateSpec(8, 8, 0, trim=False, abort=False), False)
    params = sampling(logit_bias={tiny_gate.sentinel: 100.0})
    ids = token_ids(generate(llm, tiny_gate, [idle, None] * 10, PROMPTS[:20], params))
    assert not any(tiny_gate.sentinel in row for row in ids[::2])
    assert all(tiny_gate.sentinel in row for row in ids[1::2])


def test_gate_needs_one_entry_per_prompt_and_leaves_the_engine_as_it_was(llm, tiny_gate):
    with pytest.raises(ValueError, match="prepared for 1 prompts but 2"):
        generate(llm, tiny_gate, [None], PROMPTS[:2])
    assert "generate" not in llm.__dict__


def test_callers_sampling_params_are_not_changed(llm, tiny_gate):
    params = sampling(extra_args={"mine": 1}, stop_token_ids=[7])
    generate(llm, tiny_gate, [tiny_gate.request(SPECS[0], False)], PROMPTS[:1], params)
    assert (params.extra_args, params.stop_token_ids) == ({"mine": 1}, [7])


def test_reloaded_weights_reach_the_tied_output_layer(llm, tiny_gate):
    changed = tiny_gate.changed()
    try:
        reload_weights_cpu(llm, changed.items())
        (output,) = completions(generate(llm, tiny_gate, [None], PROMPTS[:1]))
        ids = list(output.token_ids)
        expected = tiny_gate.logprobs(PROMPTS[0], ids, changed)
        actual = torch.tensor([step[token].logprob for step, token in zip(output.logprobs, ids, strict=True)])
        torch.testing.assert_close(actual, expected, atol=1e-3, rtol=0)
    finally:
        reload_weights_cpu(llm, tiny_gate.model.named_parameters())


def engine_config(llm, **changes) -> SimpleNamespace:
    """The engine's own configuration with some parts replaced."""
    config = llm.llm_engine.vllm_config
    values = {name: config.__dict__[name] for name in ("model_config", "scheduler_config")}
    return SimpleNamespace(**{**values, "speculative_config": None, **changes})


def test_engine_set_ups_that_the_gate_cannot_run_in_are_refused_at_start_up(llm):
    from duet_trl.engines.vllm import DUETLogitsProcessor

    with pytest.raises(ValueError, match="without speculative_config"):
        DUETLogitsProcessor(engine_config(llm, speculative_config=object()), torch.device("cpu"), False)


@pytest.mark.parametrize(
    "changes",
    [
        {"fingerprint": "other tokenizer"},
        {"weights": "/elsewhere"},
        {"prefix_length": 61},  # of prompts of 60 tokens at most
    ],
)
def test_request_made_for_another_engine_is_stopped_before_its_first_token(llm, tiny_gate, changes):
    mine = tiny_gate.request(SPECS[0], False)
    fitting = replace(mine, fingerprint=tiny_gate.automaton.fingerprint, weights=str(tiny_gate.path))
    ids = token_ids(generate(llm, tiny_gate, [replace(mine, **changes), fitting] * 4, PROMPTS[:8]))
    assert ids[::2] == [[tiny_gate.sentinel]] * 4
    assert all(row[0] != tiny_gate.sentinel for row in ids[1::2])
    with pytest.raises(GateMismatch, match="at 0 tokens"):
        replay(SPECS[0], tiny_gate.automaton, [[]], np.ones(1, bool), np.zeros(1, bool))
