# SPDX-License-Identifier: Apache-2.0
"""The interface of vLLM's V2 runner, driven through its own request state and context on CPU tensors."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from duet_trl.engines.host_gate import FORCED
from duet_trl.gate.automaton import TokenAutomaton, compile_automaton
from duet_trl.gate.parameters import gate_parameters
from duet_trl.gate.replay import GateSpec, Outcome
from duet_trl.gate.streaming import GateRequest
from duet_trl.gate.thoughts import Delimiters
from tests.gate.oracle import EOS, THOUGHT, A, B, C, continued, toy_ends, toy_marker

pytestmark = pytest.mark.vllm

NUM_SLOTS, VOCABULARY = 6, [b"a", b"b", b"c", None, None]
SENTINEL, PROMPT, MAX_LENGTH = 4, [C, A, B], 64
SPEC = GateSpec(4, 10, 3, poll_interval=3)
LOADED = "/weights/7"


def toy(delimiters: Delimiters | None = None) -> TokenAutomaton:
    return compile_automaton(toy_marker("ab", delimiters), VOCABULARY)


class Runner:
    """Slots, token history and batch layout as the V2 runner keeps them; decodes given rollouts token by token."""

    def __init__(self, processor_class, monkeypatch: pytest.MonkeyPatch) -> None:
        from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcRequestState

        self.history = torch.zeros(NUM_SLOTS, MAX_LENGTH, dtype=torch.int32)
        self.prompt_len = np.zeros(NUM_SLOTS, dtype=np.int32)
        state = LogitsProcRequestState(
            device=torch.device("cpu"),
            max_num_reqs=NUM_SLOTS,
            vocab_size=len(VOCABULARY),
            all_token_ids=SimpleNamespace(gpu=self.history),
            prompt_len=SimpleNamespace(np=self.prompt_len),
            prefill_len=None,
            total_len=None,
        )
        config = SimpleNamespace(speculative_config=None, model_config=SimpleNamespace(model=LOADED))
        monkeypatch.setattr("duet_trl.engines.vllm._Markers.compile", lambda self, name, thoughts: toy(thoughts))
        monkeypatch.setattr("duet_trl.engines.vllm._Markers.delimiters", lambda self: None)
        self.processor = processor_class(config, state)
        self.generated: dict[int, list[int]] = {}

    def admit(self, slot: int, gated: bool, keep: bool, generated: list[int], marker: str = "toy", **expected) -> None:
        """expected: fingerprint, weights, thoughts and prefix that it asks for; `generated` begins with the prefix."""
        from vllm import SamplingParams

        request = GateRequest(SPEC, keep, marker, SENTINEL, frozenset({EOS}), **expected)
        extra = gate_parameters(request) if gated else None
        begun = min(expected.get("prefix_length", 0), len(generated))
        self.prompt_len[slot] = len(PROMPT) + begun  # the runner has stored the request before it tells the processor
        params = SamplingParams(extra_args=extra, stop_token_ids=[SENTINEL])
        assert self.processor.add_request(slot, params) == gated
        self.history[slot] = -7  # what an earlier occupant left must not be read
        self.generated[slot] = []
        for token in [*PROMPT, *generated]:
            self.append(slot, token)
        self.processor.apply_staged_writes()

    def append(self, slot: int, token: int) -> None:
        tokens = self.generated[slot]
        self.history[slot, len(tokens)] = token
        tokens.append(token)

    def apply(self, slots: list[int]) -> torch.Tensor:
        """Logits after one call of `apply` on zeros."""
        from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext

        seen = [len(self.generated[slot]) for slot in slots]
        mapping = np.array(slots, dtype=np.int32)
        ctx = LogitsContext(
            expanded_idx_mapping=torch.from_numpy(mapping),
            idx_mapping=torch.from_numpy(mapping),
            idx_mapping_np=mapping,
            expanded_local_pos=torch.zeros(len(slots), dtype=torch.int32),
            input_ids=torch.tensor([self.generated[slot][-1] for slot in slots]),
            pos=torch.tensor(seen) - 1,
            seq_lens_upper_bound_np=np.array(seen),
        )
        return self.processor.apply(torch.zeros(len(slots), len(VOCABULARY)), ctx)


def natural_rollout(random: np.random.Generator) -> list[int]:
    length = int(random.integers(1, 40))
    return random.choice([A, B, C], p=[0.15, 0.15, 0.7], size=length).tolist() + [EOS]


def test_forced_stops_are_those_of_algorithm_1_behind_prefixes_in_thoughts_and_in_slots_used_again(monkeypatch):
    from duet_trl.engines.vllm import DUETLogitsProcessor

    random, runner, outcomes = np.random.default_rng(0), Runner(DUETLogitsProcessor, monkeypatch), set()
    thoughts = [{}, {"delimiters": THOUGHT}, {"delimiters": THOUGHT, "in_thought": True}]
    for row in range(200):
        natural, keep, asked, slot = natural_rollout(random), row % 5 < 2, thoughts[row % 3], row % NUM_SLOTS
        begun = int(random.integers(len(natural))) if row % 2 else 0
        ids, stop = natural[:begun], False
        runner.admit(slot, True, keep, ids, **asked, prefix_length=begun)
        while not stop and len(ids) < len(natural):
            (logits,) = runner.apply([slot])
            stop = bool(logits[SENTINEL] == FORCED)
            assert (logits[:SENTINEL] == 0.0).all() and logits[SENTINEL] in (FORCED, -torch.inf)
            if not stop:
                ids.append(natural[len(ids)])
                runner.append(slot, ids[-1])
        ends = toy_ends(natural, **asked)
        expected = continued(SPEC, natural, keep, np.full(len(natural) + 1, np.inf), ends, begun)
        assert (ids, stop) == (expected.ids, expected.stopped)
        outcomes.add(expected.outcome)
    assert outcomes == set(Outcome)


def test_ungated_requests_are_declined_and_their_rows_untouched(monkeypatch):
    from duet_trl.engines.vllm import DUETLogitsProcessor

    runner = Runner(DUETLogitsProcessor, monkeypatch)
    runner.admit(0, False, False, [C] * 20)
    runner.admit(1, True, False, [C] * 13)
    untouched, forced = runner.apply([0, 1])
    assert (untouched == 0.0).all() and forced.tolist() == [0.0] * 4 + [FORCED]  # at K2 + G
    runner.admit(1, False, False, [C] * 13)  # the slot is used again
    assert (runner.apply([1, 0]) == 0.0).all()


@pytest.mark.slow
def test_real_v2_runner_stops_rollouts_where_algorithm_1_does(tiny_path):
    result = subprocess.run(
        [sys.executable, "-m", "tests.engines.v2_runner", str(tiny_path)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert result.returncode == 0, result.stderr[-2000:]  # a rollout that differs ends the process
    report = json.loads(next(line for line in result.stdout.splitlines() if line.startswith("REPORT"))[7:])
    assert report["runner"].startswith("vllm.v1.worker.cpu.") and report["kernel"] and report["preemptions"] > 0
    assert min(report["outcomes"]) > 0 and report["at_the_end"] > 0 and report["early"] > 0
    assert report["forced_logprobs"] == [0.0] and report["ungated_forced"] == 0 and report["left_out"] <= 2
    assert report["never_firing"]["equal"] and report["never_firing"]["tokens"] > 40
