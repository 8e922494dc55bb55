# SPDX-License-Identifier: Apache-2.0
"""The gate around the tiny policy, and what the oracle needs to know about its rollouts."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel, Qwen3ForCausalLM

from duet_trl.engines.colocated import PROCESSOR
from duet_trl.engines.engine import Completion, Engine, Request
from duet_trl.gate.automaton import TokenAutomaton, compile_automaton
from duet_trl.gate.markers import completion_ends, get_marker
from duet_trl.gate.replay import GateSpec, Outcome, replay, split_sentinel
from duet_trl.gate.sentinel import find_sentinel
from duet_trl.gate.streaming import GateRequest, GateSetup
from duet_trl.gate.vocabulary import vocabulary_bytes
from tests.gate.oracle import Rollout, algorithm_1, continued
from tests.tiny import END_OF_TURN, MODEL_VOCAB, tiny_tokenizer

MARKER = "math"
CAP = 100
CROWDED = {
    "logits_processors": [PROCESSOR],
    "dtype": "float32",  # vLLM would run the float32 checkpoint in bfloat16
    "enforce_eager": True,
    "max_model_len": 256,
    "max_num_seqs": 48,
    "max_num_batched_tokens": 96,  # prompts of up to 60 tokens are prefilled in chunks
    "block_size": 32,
    "num_gpu_blocks_override": 72,  # a third of what 48 rollouts of full length need
    "gpu_memory_utilization": 0.1,
    "logprobs_mode": "processed_logprobs",
    "disable_log_stats": False,
    "seed": 0,
}
"""Options of a vLLM engine so small that it preempts requests."""
SPECS = (
    GateSpec(16, 32, 8, poll_interval=4),
    GateSpec(8, 40, 12, poll_interval=8, entropy_threshold=3.36),  # near the median entropy of the tiny policy
    GateSpec(16, 24, 0, poll_interval=5, trim=False),
    GateSpec(16, 32, 8, poll_interval=4, abort=False, window=20),
)


@dataclass(frozen=True)
class TinyGate:
    """Tokenizer, compiled marker and special ids of the tiny policy saved at `path`."""

    path: Path
    vocabulary: list[bytes | None] = field(default_factory=lambda: vocabulary_bytes(tiny_tokenizer(), MODEL_VOCAB))

    @cached_property
    def eos_ids(self) -> list[int]:
        tokenizer = tiny_tokenizer()
        return [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids(END_OF_TURN)]

    @cached_property
    def sentinel(self) -> int:
        return find_sentinel(tiny_tokenizer(), MODEL_VOCAB, self.eos_ids)

    @cached_property
    def automaton(self) -> TokenAutomaton:
        return compile_automaton(get_marker(MARKER), self.vocabulary)

    @cached_property
    def setup(self) -> GateSetup:
        return GateSetup(MARKER, self.automaton, self.sentinel, tuple(self.eos_ids))

    @cached_property
    def model(self) -> PreTrainedModel:
        return Qwen3ForCausalLM.from_pretrained(self.path, dtype=torch.float32).eval()

    def changed(self) -> dict[str, torch.Tensor]:
        """Another policy: noise on its embedding, which is its output layer too, and on one MLP."""
        weights = {name: weight.detach().clone() for name, weight in self.model.named_parameters()}
        noise = torch.Generator().manual_seed(0)
        for name in ("model.embed_tokens.weight", "model.layers.1.mlp.down_proj.weight"):
            weights[name] += 0.05 * torch.randn(weights[name].shape, generator=noise)
        return weights

    def logprobs(self, prompt: list[int], ids: list[int], weights: dict | None = None) -> torch.Tensor:
        """Log-probs of the tokens of a rollout under the policy, or under one with other weights, shape (L,), nats."""
        with torch.no_grad():
            tokens = torch.tensor([[*prompt, *ids]])
            logits = torch.func.functional_call(self.model, weights or {}, (tokens,)).logits[0]
        return logits[len(prompt) - 1 : -1].log_softmax(-1)[range(len(ids)), ids]

    def request(self, spec: GateSpec, keep: bool, marker: str = MARKER) -> GateRequest:
        return GateRequest(spec, bool(keep), marker, self.sentinel, frozenset(self.eos_ids))

    def marker_ends(self, ids: list[int]) -> list[int]:
        """Lengths at which a marker is complete, read from the bytes of the text instead of the token table."""
        ends, text, begin = [], b"", 0
        for length, token in enumerate(ids, start=1):
            piece = self.vocabulary[token]
            if piece is None:  # no marker spans a special token
                text, begin = b"", 0
                continue
            text += piece
            if any(begin < end for end in completion_ends(get_marker(MARKER), text)):
                ends.append(length)
            begin = len(text)
        return ends

    def entropies(self, prompt: list[int], ids: list[int]) -> np.ndarray:
        """Entropy of the next token after each prefix of a rollout, shape (L + 1,); inf where an EOS is likeliest."""
        with torch.no_grad():
            logits = self.model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 :]
        entropy = torch.distributions.Categorical(logits=logits).entropy().double().numpy()
        return np.where(np.isin(logits.argmax(-1).numpy(), self.eos_ids), np.inf, entropy)


def random_prompts(num_prompts: int, seed: int, longest: int = 60) -> list[list[int]]:
    """Prompts of 3 to `longest` printable bytes."""
    random = np.random.default_rng(seed)
    return [random.integers(33, 250, size=random.integers(3, longest)).tolist() for _ in range(num_prompts)]


def assert_algorithm_1(
    gate: TinyGate, prompts: list[list[int]], gated: list[list[int]], specs: list[GateSpec], keep: np.ndarray
) -> list[Rollout]:
    """An engine stopped its rollouts exactly where Algorithm 1 stops them, and replay recovers the same outcomes.

    Where a rollout was stopped, what would have followed is unknown but also irrelevant: any token will do. Rollouts
    with an entropy so near its threshold that rounding decides are left out; there must be few.
    """
    ids, stopped = split_sentinel(gated, gate.sentinel)
    checked = []
    for row, spec in enumerate(specs):
        entropy = gate.entropies(prompts[row], ids[row])
        if np.abs(entropy - spec.entropy_threshold).min() < 1e-4:
            continue
        natural = ids[row] + [0] * int(stopped[row])
        expected = algorithm_1(spec, natural, keep[row], entropy, gate.marker_ends(ids[row]))
        assert (ids[row], stopped[row]) == (expected.ids, expected.stopped), row
        replayed = replay(spec, gate.automaton, ids[row : row + 1], stopped[row : row + 1], keep[row : row + 1])
        assert (replayed.outcome[0], replayed.marker_at[0]) == (expected.outcome, expected.marker_at), row
        checked.append(expected)
    assert len(checked) > 0.9 * len(specs)
    assert {rollout.outcome for rollout in checked} == set(Outcome)
    assert any(rollout.stopped and rollout.outcome == Outcome.ANSWERED for rollout in checked)
    return checked


def assert_continues(gate: TinyGate, engine: Engine, cap: int = CAP, num_rows: int = 120) -> None:
    """An engine continues prefixes as Algorithm 1 does, some without a gate and each to a length of its own.

    The prefixes are cut out of a first round without gates. Here, too, entropies near their threshold are left out.
    """
    random, prompts = np.random.default_rng(3), random_prompts(num_rows, seed=7, longest=30)
    first = engine.generate([Request(ids, max_tokens=cap) for ids in prompts])
    assert not any(completion.finish == "gate" for completion in first)
    requests = []
    for row, completion in enumerate(first):
        prefix = tuple(completion.token_ids[: random.integers(len(completion.token_ids)) if row % 4 else 0])
        limit = cap if row % 3 else len(prefix) + int(random.integers(1, cap - len(prefix) + 1))
        spec = SPECS[row % len(SPECS)] if row % 5 else None
        requests.append(Request(prompts[row], prefix, limit, spec, bool(random.random() < 0.4)))
    done = engine.generate(requests)
    assert len(done) == num_rows
    checked = [check_continued(gate, request, found) for request, found in zip(requests, done, strict=True)]
    gated = [request.gate is not None for request in requests]
    assert sum(outcome is not None for outcome in checked) > 0.9 * sum(gated)
    assert {*checked} >= set(Outcome)
    at_once = [found.finish == "gate" and not found.token_ids for found in done]
    cut = [len(r.prefix) + len(f.token_ids) == r.max_tokens < cap for r, f in zip(requests, done, strict=True)]
    assert sum(at_once) > 3 and sum(cut) > 3 and any(np.array(cut) & ~np.array(gated))


def check_continued(gate: TinyGate, request: Request, found: Completion) -> Outcome | None:
    """The outcome of one of them; None where there is no gate, or rounding decides."""
    ids, begun = [*request.prefix, *found.token_ids], len(request.prefix)
    assert len(ids) <= request.max_tokens and (found.logprobs is None or len(found.logprobs) == len(found.token_ids))
    stopped = found.finish == "gate"
    assert found.finish == ("gate" if stopped else "eos" if ids[-1] in gate.eos_ids else "length")
    assert len(ids) == request.max_tokens or found.finish != "length"
    if found.logprobs:
        expected = gate.logprobs(request.input_ids, found.token_ids)
        np.testing.assert_allclose(found.logprobs, expected.numpy(), atol=2e-3)
    if request.gate is None:
        assert not stopped
        return None
    entropy = gate.entropies(request.prompt_ids, ids)
    if np.abs(entropy - request.gate.entropy_threshold).min() < 1e-4:
        return None
    natural = ids + [0] * stopped
    expected = continued(request.gate, natural, request.keep, entropy, gate.marker_ends(ids), begun)
    assert (ids, stopped) == (expected.ids, expected.stopped)
    replayed = replay(
        request.gate,
        gate.automaton,
        [ids],
        np.array([stopped]),
        np.array([request.keep]),
        prefix_length=np.array([begun]),
    )
    assert (replayed.outcome[0], replayed.marker_at[0]) == (expected.outcome, expected.marker_at)
    return expected.outcome


def replay_all(gate: TinyGate, gated: list[list[int]], specs: list[GateSpec], keep: np.ndarray) -> None:
    """Replay the rollouts of each spec; raises if the engine did anything else."""
    ids, stopped = split_sentinel(gated, gate.sentinel)
    for spec in SPECS:
        rows = [row for row, chosen in enumerate(specs) if chosen is spec]
        replay(spec, gate.automaton, [ids[row] for row in rows], stopped[rows], keep[rows])
