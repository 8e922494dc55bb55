# SPDX-License-Identifier: Apache-2.0
"""Gated rollouts on vLLM's V2 model runner without a GPU, in a process of its own.

    python -m tests.generate.engines.v2_runner <folder of the tiny policy>

The runner's Triton kernels are interpreted, at some 40 tokens a second. vLLM would switch Triton off on a CPU, so its
module that decides so is replaced before vLLM is imported; for tests only.
"""

import json
import os
import sys
from pathlib import Path
from types import ModuleType

import numpy as np

NUM_ROWS, LONGEST = 30, 40


def pretend_triton() -> None:
    os.environ.update(TRITON_INTERPRET="1", VLLM_USE_V2_MODEL_RUNNER="1")
    importing = ModuleType("vllm.triton_utils.importing")
    importing.HAS_TRITON = True
    importing.TritonPlaceholder = importing.TritonLanguagePlaceholder = object
    sys.modules[importing.__name__] = importing


def main(path: Path) -> None:
    pretend_triton()
    import torch
    from vllm import LLM, SamplingParams

    from duet_trl.generate.automaton import compile_automaton
    from duet_trl.generate.engines.colocated import gated_requests, llm_factory
    from duet_trl.generate.gate import GateSpec, replay, split_sentinel
    from duet_trl.generate.markers import get_marker
    from tests.generate.engines.tiny_gate import TinyGate, random_prompts

    llm = llm_factory(LLM, dtype="float32", enforce_eager=True)(
        model=str(path),
        max_model_len=128,
        max_num_seqs=12,
        max_num_batched_tokens=64,
        block_size=32,
        num_gpu_blocks_override=16,  # too few for twelve rollouts: some are preempted
        gpu_memory_utilization=0.1,
        logprobs_mode="processed_logprobs",
        disable_log_stats=False,
        seed=0,
    )
    gate, marker = TinyGate(path), "regex:[42]{2}"
    spec = GateSpec(6, 14, 4, poll_interval=2)
    keep = np.arange(NUM_ROWS) % 3 == 0
    prompts = [{"prompt_token_ids": ids} for ids in random_prompts(NUM_ROWS, seed=1, longest=30)]
    torch.manual_seed(0)
    with gated_requests(llm, [gate.parameters(spec, coin, marker) for coin in keep], gate.eos_ids):
        params = SamplingParams(temperature=1.0, max_tokens=LONGEST, logprobs=0)
        outputs = [output.outputs[0] for output in llm.generate(prompts, params, use_tqdm=False)]
    ids, stopped = split_sentinel([output.token_ids for output in outputs], gate.sentinel)
    replayed = replay(spec, compile_automaton(get_marker(marker), gate.vocabulary), ids, stopped, keep)
    report = {
        "runner": type(llm.llm_engine.model_executor.driver_worker.model_runner).__module__,
        "preemptions": next(m.value for m in llm.get_metrics() if m.name == "vllm:num_preemptions"),
        "outcomes": np.bincount(replayed.outcome, minlength=4).tolist(),
        "trimmed": int(replayed.trimmed.sum()),
        "forced_logprobs": sorted(
            {o.logprobs[-1][gate.sentinel].logprob for o, stop in zip(outputs, stopped, strict=True) if stop}
        ),
    }
    print("REPORT", json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
