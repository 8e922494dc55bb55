# SPDX-License-Identifier: Apache-2.0
"""The gate around the tiny policy, and what the oracle needs to know about its rollouts."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel, Qwen3ForCausalLM

from duet_trl.generate.automaton import TokenAutomaton, compile_automaton
from duet_trl.generate.gate import GateSpec
from duet_trl.generate.markers import completion_ends, get_marker
from duet_trl.generate.parameters import gate_parameters
from duet_trl.generate.sentinel import find_sentinel
from duet_trl.generate.vocabulary import vocabulary_bytes
from tests.tiny import END_OF_TURN, MODEL_VOCAB, tiny_tokenizer

MARKER = "math"
CAP = 100
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
    def model(self) -> PreTrainedModel:
        return Qwen3ForCausalLM.from_pretrained(self.path, dtype=torch.float32).eval()

    def parameters(self, spec: GateSpec, keep: bool, marker: str = MARKER) -> dict:
        return gate_parameters(spec, marker, bool(keep), self.sentinel, self.eos_ids)

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
        """Entropy of the next token after the prompt and each prefix of the rollout, (L + 1,); inf where EOS is likeliest."""
        with torch.no_grad():
            logits = self.model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 :]
        entropy = torch.distributions.Categorical(logits=logits).entropy().double().numpy()
        return np.where(np.isin(logits.argmax(-1).numpy(), self.eos_ids), np.inf, entropy)


def random_prompts(num_prompts: int, seed: int, longest: int = 60) -> list[list[int]]:
    """Prompts of 3 to `longest` printable bytes."""
    random = np.random.default_rng(seed)
    return [random.integers(33, 250, size=random.integers(3, longest)).tolist() for _ in range(num_prompts)]
