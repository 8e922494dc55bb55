# SPDX-License-Identifier: Apache-2.0
"""Gated rollouts on vLLM's V2 model runner without a GPU, in a process of its own.

    python -m tests.engines.v2_runner <folder of the tiny policy>

The runner's Triton kernels are interpreted, at some 40 tokens a second. vLLM would switch Triton off on a CPU, so its
module that decides so is replaced before vLLM is imported; for tests only.
"""

import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from vllm import LLM

    from tests.engines.tiny_gate import TinyGate

NUM_ROWS, LONGEST = 36, 36


def pretend_triton() -> None:
    os.environ.update(TRITON_INTERPRET="1", VLLM_USE_V2_MODEL_RUNNER="1")
    importing = ModuleType("vllm.triton_utils.importing")
    importing.HAS_TRITON = True
    importing.TritonPlaceholder = importing.TritonLanguagePlaceholder = object
    sys.modules[importing.__name__] = importing


def main(path: Path) -> None:
    pretend_triton()
    import torch
    from vllm import LLM

    from tests.engines.tiny_gate import CROWDED, TinyGate

    # 16 blocks are too few for twelve rollouts: some are preempted
    sizes = {"max_model_len": 128, "max_num_seqs": 12, "max_num_batched_tokens": 64, "num_gpu_blocks_override": 16}
    llm = LLM(model=str(path), **{**CROWDED, **sizes})
    torch.manual_seed(0)
    gate = TinyGate(path)
    report = {
        "runner": type(llm.llm_engine.model_executor.driver_worker.model_runner).__module__,
        **check_gates(llm, gate),
        "preemptions": next(m.value for m in llm.get_metrics() if m.name == "vllm:num_preemptions"),
        "kernel": "duet_trl.engines.gate_kernel" in sys.modules,
        **check_never_firing(llm, gate),
    }
    print("REPORT", json.dumps(report))


def check_gates(llm: "LLM", gate: "TinyGate") -> dict[str, Any]:
    """Two gates with a marker each, the second of which trims by entropy, and rollouts without one, in one batch."""
    from vllm import SamplingParams

    from duet_trl.engines.colocated import gated_requests
    from duet_trl.gate.automaton import compile_automaton
    from duet_trl.gate.markers import get_marker
    from duet_trl.gate.replay import GateSpec, Outcome, split_sentinel
    from tests.engines.tiny_gate import random_prompts
    from tests.gate.oracle import algorithm_1

    gates = [
        (GateSpec(6, 14, 4, poll_interval=2), "4...2"),
        (GateSpec(4, 20, 12, poll_interval=2, entropy_threshold=3.36), "{...}"),  # near the policy's median
        None,
    ]
    asked = [gates[row % 3] for row in range(NUM_ROWS)]
    keep = [row % 4 == 0 for row in range(NUM_ROWS)]
    prompts = random_prompts(NUM_ROWS, seed=1, longest=30)
    rows = [None if g is None else gate.request(g[0], coin, g[1]) for g, coin in zip(asked, keep, strict=True)]
    params = SamplingParams(temperature=1.0, max_tokens=LONGEST, logprobs=0)
    with gated_requests(llm, rows, gate.eos_ids):
        outputs = [
            o.outputs[0] for o in llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
        ]
    report = {"outcomes": [0] * len(Outcome), "at_the_end": 0, "early": 0, "left_out": 0, "ungated_forced": 0}
    logprobs = set()
    for g, coin, prompt, output in zip(asked, keep, prompts, outputs, strict=True):
        if g is None:
            report["ungated_forced"] += output.logprobs[-1][output.token_ids[-1]].logprob == 0.0
            continue
        spec, automaton = g[0], compile_automaton(get_marker(g[1]), gate.vocabulary)
        (ids,), (stopped,) = split_sentinel([output.token_ids], gate.sentinel)
        entropy = gate.entropies(prompt, ids)
        if np.abs(entropy - spec.entropy_threshold).min() < 1e-4:  # rounding decides
            report["left_out"] += 1
            continue
        expected = algorithm_1(spec, ids + [0] * int(stopped), coin, entropy, automaton.completions([ids])[1].tolist())
        assert (ids, stopped) == (expected.ids, expected.stopped), (g, coin, ids, stopped, expected)
        report["outcomes"][expected.outcome] += 1
        if stopped:
            logprobs.add(output.logprobs[-1][gate.sentinel].logprob)
            late = len(ids) == expected.marker_at + spec.grace_window
            report["at_the_end" if late else "early"] += expected.outcome == Outcome.ANSWERED
    return {**report, "forced_logprobs": sorted(logprobs)}


def check_never_firing(llm: "LLM", gate: "TinyGate") -> dict[str, Any]:
    """The tokens of seeded requests with a gate whose thresholds lie beyond their length, and with no gate."""
    from vllm import SamplingParams

    from duet_trl.engines.colocated import gated_requests
    from duet_trl.gate.replay import GateSpec
    from tests.engines.tiny_gate import random_prompts

    prompts = [{"prompt_token_ids": ids} for ids in random_prompts(5, seed=2, longest=6)]
    params = SamplingParams(temperature=1.0, max_tokens=16, seed=7, logit_bias={gate.sentinel: -100.0})
    spec = GateSpec(100, 110, 10, entropy_threshold=1.0)
    tokens = []
    for row in (gate.request(spec, False), None):
        with gated_requests(llm, [row] * len(prompts), gate.eos_ids):
            outputs = llm.generate(prompts, params, use_tqdm=False)
        tokens.append([list(output.outputs[0].token_ids) for output in outputs])
    return {"never_firing": {"equal": tokens[0] == tokens[1], "tokens": sum(map(len, tokens[0]))}}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
