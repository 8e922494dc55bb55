# SPDX-License-Identifier: Apache-2.0
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from duet_trl.engines.host_gate import FORCED
from duet_trl.engines.transformers import GateLogitsProcessor, TransformersEngine, gated_generate
from duet_trl.gate.replay import GateSpec, split_sentinel
from tests.engines.tiny_gate import (
    CAP,
    MARKER,
    SPECS,
    TinyGate,
    assert_algorithm_1,
    assert_continues,
    random_prompts,
    replay_all,
)

NUM_ROWS = 120
PROMPTS = random_prompts(NUM_ROWS, seed=3)
SPEC_OF_ROW = [SPECS[row % len(SPECS)] for row in range(NUM_ROWS)]
KEEP = np.random.default_rng(0).random(NUM_ROWS) < 0.4


def generate(
    gate: TinyGate, parameters: list[dict | None] | None, seed: int = 0, prompts=PROMPTS, ends=None, **kwargs
):
    """Sampled rollouts as TRL's regular path makes them; None: no gate. Each row is cut behind its first end token."""
    width = max(map(len, prompts))
    pad = gate.eos_ids[0]
    inputs = {
        "input_ids": torch.tensor([[pad] * (width - len(ids)) + ids for ids in prompts]),
        "attention_mask": torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts]),
    }
    config = GenerationConfig(
        do_sample=True, max_new_tokens=CAP, eos_token_id=gate.eos_ids, pad_token_id=pad, top_k=0, **kwargs
    )
    torch.manual_seed(seed)
    if parameters is None:
        output = gate.model.generate(**inputs, generation_config=config)
    else:
        with gated_generate(gate.model, parameters, {MARKER: gate.automaton}):
            output = gate.model.generate(**inputs, generation_config=config)
    ends = ends or {*gate.eos_ids, gate.sentinel}
    rows = output[:, width:].tolist()
    return [row[: next((i + 1 for i, token in enumerate(row) if token in ends), len(row))] for row in rows]


@pytest.fixture(scope="module")
def natural(tiny_gate: TinyGate) -> list[list[int]]:
    return generate(tiny_gate, None)


@pytest.fixture(scope="module")
def gated(tiny_gate: TinyGate) -> list[list[int]]:
    rows = zip(SPEC_OF_ROW, KEEP, strict=True)
    return generate(tiny_gate, [tiny_gate.request(spec, keep) for spec, keep in rows])


def test_rollouts_are_stopped_where_algorithm_1_stops_them(tiny_gate, gated):
    assert_algorithm_1(tiny_gate, PROMPTS, gated, SPEC_OF_ROW, KEEP)
    replay_all(tiny_gate, gated, SPEC_OF_ROW, KEEP)


def turn_engine(gate: TinyGate) -> TransformersEngine:
    def turn(prompts: list[list[int]]) -> tuple[list[list[int]], None]:
        return generate(gate, None, prompts=prompts, ends=gate.eos_ids), None  # as TRL cuts, which knows no sentinel

    arguments = turn, gate.setup, gate.eos_ids, CAP, lambda sampling: nullcontext()
    return TransformersEngine(*arguments, model=lambda: gate.model)


def test_prefixes_are_continued_under_gates_of_their_own_to_lengths_of_their_own(tiny_gate):
    assert_continues(tiny_gate, turn_engine(tiny_gate))


def test_a_row_ends_at_its_own_limit_and_the_call_with_the_last_of_them(tiny_gate):
    config = GenerationConfig(do_sample=True, max_new_tokens=CAP, pad_token_id=7, suppress_tokens=tiny_gate.eos_ids)
    prompts = torch.tensor([[40, 41]] * 3)
    with gated_generate(
        tiny_gate.model, [None, tiny_gate.request(SPECS[0], True), None], {MARKER: tiny_gate.automaton}, [3, 6, 1]
    ):
        rows = tiny_gate.model.generate(prompts, generation_config=config)[:, 2:].tolist()
    assert [len(row) for row in rows] == [6, 6, 6]
    assert rows[0][3:] == [7] * 3 and rows[2][1:] == [7] * 5 and 7 not in rows[0][:3] + rows[1] + rows[2][:1]


def test_gated_rollouts_are_the_natural_ones_cut_short(tiny_gate, natural, gated):
    ids, _ = split_sentinel(gated, tiny_gate.sentinel)
    # Forbidding the sentinel rescales the distribution, so rounding may change a token now and then.
    assert np.mean([full[: len(cut)] == cut for full, cut in zip(natural, ids, strict=True)]) > 0.97


def test_gate_that_never_fires_is_no_gate_token_for_token(tiny_gate, natural):
    late = GateSpec(CAP + 1, CAP + 1, 0)
    assert generate(tiny_gate, [tiny_gate.request(late, False)] * NUM_ROWS) == natural


def test_rows_without_parameters_run_ungated_beside_gated_ones(tiny_gate, natural):
    parameters = [tiny_gate.request(SPECS[0], False) if row % 2 else None for row in range(NUM_ROWS)]
    mixed = generate(tiny_gate, parameters)
    assert mixed[::2] == natural[::2]
    assert any(row[-1] == tiny_gate.sentinel for row in mixed[1::2])


def test_sentinel_is_never_sampled_unless_forced(tiny_gate):
    # Biased so that the policy would sample nothing else.
    never = tiny_gate.request(GateSpec(8, 8, 0, trim=False, abort=False), False)
    bias = [[[tiny_gate.sentinel], 100.0]]
    rows = generate(tiny_gate, [never, None] * 4, prompts=PROMPTS[:8], sequence_bias=bias)
    assert not any(tiny_gate.sentinel in row for row in rows)


def test_entropy_is_measured_at_temperature_one(tiny_gate):
    # At temperature 0.3 the sampled distribution has about 2 nats, the policy's own above 3: nothing ends early.
    spec = GateSpec(8, 60, 20, poll_interval=1, entropy_threshold=2.8, abort=False)
    rows = generate(tiny_gate, [tiny_gate.request(spec, False)] * NUM_ROWS, temperature=0.3)
    stopped = [row for row in rows if row[-1] == tiny_gate.sentinel]
    assert len(stopped) > 5
    for row in stopped:
        assert len(row) - 1 == max(8, tiny_gate.marker_ends(row)[0]) + 20


def test_generate_is_restored_and_other_processors_stay(tiny_gate):
    class Ban(LogitsProcessor):
        def __call__(self, input_ids, scores):
            scores = scores.clone()
            scores[:, 256:] = -torch.inf
            return scores

    inputs = {
        "input_ids": torch.tensor(PROMPTS[:1]),
        "attention_mask": torch.ones(1, len(PROMPTS[0]), dtype=torch.long),
    }
    with gated_generate(tiny_gate.model, [tiny_gate.request(SPECS[0], False)], {MARKER: tiny_gate.automaton}):
        row = tiny_gate.model.generate(
            **inputs, logits_processor=LogitsProcessorList([Ban()]), max_new_tokens=60, do_sample=True
        )[0].tolist()[len(PROMPTS[0]) :]
    assert row[-1] == tiny_gate.sentinel and len(row) == 41 and max(row[:-1]) < 256
    assert "generate" not in tiny_gate.model.__dict__


def test_generation_config_of_the_caller_is_not_changed(tiny_gate):
    config = GenerationConfig(do_sample=True, max_new_tokens=2, eos_token_id=tiny_gate.eos_ids[0])
    with gated_generate(tiny_gate.model, [tiny_gate.request(SPECS[0], False)], {MARKER: tiny_gate.automaton}):
        tiny_gate.model.generate(torch.tensor([[40, 41]]), generation_config=config)
    assert config.eos_token_id == tiny_gate.eos_ids[0]


def test_padding_behind_an_ended_row_is_not_looked_at(tiny_gate):
    request = tiny_gate.request(GateSpec(2, 4, 2), False)
    processor = GateLogitsProcessor([request] * 2, {MARKER: tiny_gate.automaton})
    prompt, scores = torch.tensor([[40, 41], [42, 43]]), torch.zeros(2, 384)
    ended, running = [tiny_gate.eos_ids[1]], [50]
    processor(prompt, scores)
    for _ in range(6):
        ids = torch.cat([prompt, torch.tensor([ended, running])], dim=1)
        output = processor(ids, scores)
        ended, running = [*ended, tiny_gate.eos_ids[0]], [*running, 50]
    assert output[:, tiny_gate.sentinel].tolist() == [-torch.inf, FORCED]  # K2 + G = 6
    assert (output[0, : tiny_gate.sentinel] == 0.0).all()


def test_wrong_number_of_rows_is_an_error(tiny_gate):
    parameters = tiny_gate.request(SPECS[0], False)
    with (
        gated_generate(tiny_gate.model, [parameters] * 2, {MARKER: tiny_gate.automaton}),
        pytest.raises(ValueError, match="prepared for 2 rows but generate runs 1"),
    ):
        tiny_gate.model.generate(torch.tensor([[40, 41]]), max_new_tokens=2)
