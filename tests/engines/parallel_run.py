# SPDX-License-Identifier: Apache-2.0
"""Processes that test_vllm_parallel.py starts; each writes what it saw as JSON into a folder.

parallel_run.py tensor <tiny policy> <folder>      in one process
parallel_run.py train <tiny policy> <folder>       in each of two
"""

import hashlib
import json
import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback

from duet_trl.gate.parameters import gate_parameters
from duet_trl.gate.streaming import GateRequest
from tests.engines.tiny_gate import CAP, CROWDED, SPECS, TinyGate, random_prompts
from tests.states import plain

NUM_CROWDED, NUM_ALIKE = 120, 32
PROMPTS = random_prompts(NUM_CROWDED, seed=5)
KEEP = np.random.default_rng(0).random(NUM_CROWDED) < 0.4
SPEC_OF_ROW = [SPECS[row % len(SPECS)] for row in range(NUM_CROWDED)]
SHORT_PROMPTS = [ids[:11] for ids in PROMPTS[:NUM_ALIKE]]
OTHER_ENGINE = ({"fingerprint": "other tokenizer"}, {"weights": "/elsewhere"}, {"prefix_length": 10**6})
LOGGED = ("duet/abort_rate", "duet/trim_rate", "duet/keep_rate", "sampling/sampling_logp_difference/max")


# Every process: what its processor makes of the logits


def watch(worker: Any) -> None:
    """Let the gate of one worker keep a digest of the logits that it hands to the sampler."""
    processor = _processor(worker)
    processor.calls, processor.digest = 0, hashlib.sha256()
    apply = type(processor).apply

    def watched(logits: torch.Tensor, ctx: Any = None) -> torch.Tensor:
        edited = apply(processor, logits, ctx)
        processor.calls += 1
        processor.digest.update(edited.numpy().tobytes())
        return edited

    processor.apply = watched


def seen(worker: Any) -> list:
    """Rank, calls and digest of one worker."""
    processor = _processor(worker)
    return [worker.rank, processor.calls, processor.digest.hexdigest()]


def _processor(worker: Any) -> Any:
    processors = worker.model_runner.input_batch.logitsprocs.non_argmax_invariant
    (found,) = [processor for processor in processors if type(processor).__name__ == "DUETLogitsProcessor"]
    return found


# tensor: one engine, and one with two ranks


def tensor(path: Path, folder: Path) -> dict:
    from vllm import LLM

    gate = TinyGate(path)
    build = partial(LLM, model=str(path), **CROWDED)
    alone = build()
    report = {"alone": alike(alone, gate)}
    llm = build(tensor_parallel_size=2, distributed_executor_backend="mp")
    llm.collective_rpc(watch)
    report["together"] = alike(llm, gate)
    rows = [gate.request(spec, keep) for spec, keep in zip(SPEC_OF_ROW, KEEP, strict=True)]
    report["crowded"] = sample(llm, gate, rows, PROMPTS)
    report["preemptions"] = next(m.value for m in llm.get_metrics() if m.name == "vllm:num_preemptions")
    report["refused"] = sample(llm, gate, [replace(rows[0], **changes) for changes in OTHER_ENGINE], PROMPTS[:3])
    weights = str(folder / "changed")
    llm.collective_rpc("reload_weights", kwargs={"weights_path": weights})
    llm.reset_prefix_cache()
    named = [replace(row, weights=weights) for row in rows[:NUM_ALIKE]]
    report["changed"] = sample(llm, gate, named, PROMPTS[:NUM_ALIKE])
    report["ranks"] = llm.collective_rpc(seen)
    return report


def alike(llm: Any, gate: TinyGate) -> dict:
    """Rollouts that do not depend on the batch they are in: each has its own random numbers, or none.

    vLLM's CPU backend cannot prefill a seeded request in chunks, so these come a few at a time.
    """
    rows = [gate.request(*row) for row in zip(SPEC_OF_ROW, KEEP, strict=True)][:NUM_ALIKE]
    parts = [slice(first, first + 8) for first in range(0, NUM_ALIKE, 8)]
    seeded = [sample(llm, gate, rows[part], SHORT_PROMPTS[part], seed=part.start)["ids"] for part in parts]
    return {"greedy": sample(llm, gate, rows, SHORT_PROMPTS, temperature=0.0)["ids"], "seeded": sum(seeded, [])}


def sample(
    llm: Any, gate: TinyGate, rows: list[GateRequest], prompts: list[list[int]], seed: int = -1, **changes: Any
) -> dict:
    """Tokens and log-probabilities of gated rollouts; the first is drawn with `seed`, the next with the next."""
    from vllm import SamplingParams

    options = {"temperature": 1.0, "max_tokens": CAP, "logprobs": 0, **changes}
    stops = [*gate.eos_ids, gate.sentinel]
    params = [
        SamplingParams(
            **options, extra_args=gate_parameters(row), stop_token_ids=stops, seed=seed + index if seed >= 0 else None
        )
        for index, row in enumerate(rows)
    ]
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
    found = [output.outputs[0] for output in outputs]
    logprobs = [[step[t].logprob for step, t in zip(c.logprobs, c.token_ids, strict=True)] for c in found]
    return {"ids": [list(c.token_ids) for c in found], "logprobs": logprobs}


# train: one of two training processes that share an engine


def name_shared_memory(name: str) -> list[Path]:
    """Make this process's part of vLLM's CPU communicator the run's own; the files that it will have.

    vLLM names it after the port of its rendezvous. An engine inside a torchrun process has none, so that all such
    runs on a machine have one name, and a run that ended without tidying up keeps the next from starting.
    """
    from vllm.distributed.device_communicators.cpu_communicator import _CPUSHMDistributed

    named = _CPUSHMDistributed.make_group_name
    _CPUSHMDistributed.make_group_name = staticmethod(lambda communicator: f"{name}{Path(named(communicator)).name}")
    return [Path(f"/dev/shm/{name}-tp:0-[0-1]-cpushm_{rank}") for rank in range(2)]


class Dropout(TrainerCallback):
    """From the third step on every process draws random numbers of its own in the forward pass."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **of: Any) -> None:
        if state.global_step == 2:
            for layer in of["model"].model.layers:
                layer.self_attn.attention_dropout = 0.2


def train(path: Path, folder: Path) -> dict:
    from tests.runs import duet_trainer, logged

    shared = name_shared_memory(os.environ["MASTER_PORT"])
    trainer = duet_trainer(
        path,
        folder,
        use_vllm=True,
        vllm_mode="colocate",
        vllm_tensor_parallel_size=2,
        gradient_accumulation_steps=2,
        max_steps=4,
        callbacks=[Dropout()],
    )
    llm = trainer.vllm_generation.llm
    llm.collective_rpc(watch)
    start = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    trainer.train()
    end = [parameter.detach() for parameter in trainer.model.parameters()]
    torch.distributed.barrier()
    shared[int(os.environ["RANK"])].unlink()  # mapped by now, and the process leaves without closing it
    return {
        "state": plain(trainer.loop.state_dict()),
        "weights": hashlib.sha256(b"".join(parameter.numpy().tobytes() for parameter in end)).hexdigest(),
        "moved": max((a - b).abs().max().item() for a, b in zip(start, end, strict=True)),
        "samples": trainer.sample(["Say 1 ", "Say 2 ", "Say 3 "], 1, max_tokens=9),
        "decisions": llm.collective_rpc(seen)[0][1:],
        "random_state": hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest(),
        "logged": {name: logged(trainer, name) for name in LOGGED},
    }


def main() -> None:
    mode, path, folder = sys.argv[1:]
    found = {"tensor": tensor, "train": train}[mode](Path(path), Path(folder))
    rank = os.environ.get("RANK", "0")  # from torchrun
    (Path(folder) / f"{mode}{rank}.json").write_text(json.dumps(found))
    if torch.distributed.is_initialized():
        from tests.processes import leave

        torch.distributed.barrier()
        leave()


if __name__ == "__main__":
    main()
