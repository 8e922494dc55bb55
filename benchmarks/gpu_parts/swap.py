# SPDX-License-Identifier: Apache-2.0
"""One step of benchmarks/gpu.py: a pre-trained model on sums (recipes/sums.py) in bf16, default fields, timed.

The trainer is the one a user gets who changes two names in a GRPO script: weights in float32, bf16 autocast, the
transformers engine. Figures are written after every batch. Medians leave out the first batch, which pays for kernels
and caches. Under `duet` the same rollouts are then generated with a gate that polls and reads logits as in training,
but never stops anybody, and without one, in turns: what the gate adds to a decode step.
"""

import math
import statistics
import sys
import tempfile
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any

import torch
from datasets import Dataset
from transformers import GenerationConfig, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from benchmarks.common import argument_parser, write_result
from duet_trl import DUETGRPOConfig, DUETGRPOTrainer
from duet_trl.engines.transformers import gated_generate
from duet_trl.gate.replay import GateSpec
from duet_trl.gate.streaming import GateRequest
from duet_trl.report.environment import hardware, versions
from duet_trl.seams.gate_setup import prepare_gate
from recipes.pretrained_models import REMEDY
from recipes.sums import MAX_COMPLETION_LENGTH, last_answer_reward, rows, train_problems

CUDA = torch.cuda.is_available()
PHASES = ("plan", "generate", "score", "update")
MAXIMUM_OVERHEAD = 0.01  # of a batch, for the controller
READS_AND_NEVER_STOPS = 1e-30  # nats of entropy, below those of any next token


@dataclass(frozen=True)
class Plan:
    """How much is measured.

    Attributes:
        batches (int): Updates, one generation each.
        micro_batches (int): Of 8 rollouts, the default of TRL.
        tokens (int): Longest completion in training.
        gate_rows (int): Rollouts that are decoded together for the price of the gate.
        gate_tokens (int): Of each of them.
        repeats (int): With and without the gate, after one round to warm up.
    """

    batches: int = 8
    micro_batches: int = 32
    tokens: int = MAX_COMPLETION_LENGTH
    gate_rows: int = 256
    gate_tokens: int = 96
    repeats: int = 3


QUICK = Plan(batches=1, micro_batches=2, tokens=16, gate_rows=2, gate_tokens=8, repeats=1)


class Recorder(TrainerCallback):
    """Collects what every batch logs and writes it at once."""

    def __init__(self, name: str, payload: dict[str, Any]) -> None:
        self.name, self.payload = name, payload
        self.logged: dict[str, float] = {}  # since the last batch
        self.batches: list[dict[str, float]] = []

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: dict[str, float], **of: Any
    ) -> None:
        """A batch is complete with the seconds of its update."""
        self.logged |= logs
        if "duet/seconds_update" not in logs:
            return
        of_batch, self.logged = self.logged, {}
        names = ("reward", "loss", "grad_norm", "entropy", "duet/trim_rate", "duet/abort_rate")
        self.batches.append(
            {
                "tokens": of_batch["duet/generated_tokens"],
                **{f"seconds_{phase}": of_batch[f"duet/seconds_{phase}"] for phase in PHASES},
                "overhead_share": of_batch["duet/overhead_share"],
                **{name.removeprefix("duet/"): of_batch[name] for name in names if name in of_batch},
            }
        )
        self.write(batches=self.batches, medians=medians(self.batches), peak_memory_gib=peak_memory())
        print(f"batch {len(self.batches)}: {self.batches[-1]}", flush=True)

    def write(self, **more: Any) -> None:
        """Add figures to the file."""
        self.payload |= more
        write_result(self.name, self.payload)


def main() -> int:
    """Train, time the gate, write; 1 if a target is missed and --check was given."""
    parser = argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--method", choices=("duet", "grpo"), required=True)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    if not arguments.model.is_dir():
        sys.exit(f"there is no model in {arguments.model}. {REMEDY}")
    plan = QUICK if arguments.quick else Plan()
    payload = {
        "method": arguments.method,
        "model": arguments.model.name,
        "settings": asdict(plan),
        "memory_is": "allocated on the GPU" if CUDA else "resident memory of the process",
        "seed": arguments.seed,
        "hardware": hardware(),
        "versions": versions("torch", "transformers", "trl", "accelerate", "datasets"),
    }
    recorder = Recorder(f"gpu_swap_{arguments.method}", payload)
    with tempfile.TemporaryDirectory() as folder:
        trainer = build(arguments.model, arguments.method, plan, arguments.seed, Path(folder), recorder)
        trainer.train()
        if arguments.method == "duet":
            recorder.write(gate=gate_price(trainer, plan, arguments.seed))
    checks = {
        f"{plan.batches} batches": len(recorder.batches) == plan.batches,
        "losses are finite": all(math.isfinite(batch["loss"]) for batch in recorder.batches),
    }
    if CUDA:
        share = payload["medians"]["overhead_share"]
        checks[f"controller takes at most {MAXIMUM_OVERHEAD:.0%} of a batch"] = share <= MAXIMUM_OVERHEAD
    recorder.write(targets_met=checks)
    print({name: payload[name] for name in ("medians", "peak_memory_gib", "gate", "targets_met") if name in payload})
    return int(arguments.check and not all(checks.values()))


def build(model: Path, method: str, plan: Plan, seed: int, folder: Path, recorder: Recorder) -> DUETGRPOTrainer:
    """Two names, model, data and reward; beyond that only the size of a batch and of a completion."""
    config = DUETGRPOConfig(
        output_dir=str(folder),
        method=method,
        gradient_accumulation_steps=plan.micro_batches,
        max_completion_length=plan.tokens,
        max_steps=plan.batches,
        bf16=True,
        use_cpu=not CUDA,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=seed,
    )
    data = Dataset.from_list(rows(train_problems(seed=seed)))
    return DUETGRPOTrainer(str(model), last_answer_reward, args=config, train_dataset=data, callbacks=[recorder])


def medians(batches: list[dict[str, float]]) -> dict[str, float]:
    """Of the batches after the first, or of a single one."""
    warm = batches[1:] or batches
    found = {name: statistics.median(batch[name] for batch in warm) for name in (*_TIMES, "tokens", "overhead_share")}
    found["seconds"] = statistics.median(sum(batch[name] for name in _TIMES) for batch in warm)
    found["tokens_per_second"] = statistics.median(batch["tokens"] / batch["seconds_generate"] for batch in warm)
    return found


_TIMES = tuple(f"seconds_{phase}" for phase in PHASES)


def peak_memory() -> float:
    """GiB that this process has held at most: tensors on the GPU, or everything."""
    if CUDA:
        return torch.cuda.max_memory_allocated() / 2**30
    return getrusage(RUSAGE_SELF).ru_maxrss / 2**20  # Linux counts in KiB


def gate_price(trainer: DUETGRPOTrainer, plan: Plan, seed: int) -> dict[str, float]:
    """Milliseconds of a decode step with and without the gate, prompts included, and the share that it adds."""
    model, tokenizer = trainer.accelerator.unwrap_model(trainer.model).eval(), trainer.processing_class
    setup = prepare_gate(model, tokenizer, trainer.args)
    beyond = plan.gate_tokens + 1
    spec = GateSpec(1, beyond, beyond, entropy_threshold=READS_AND_NEVER_STOPS)
    gates = [
        GateRequest(spec, row % 2 == 0, setup.marker, setup.sentinel, frozenset(setup.eos_ids))
        for row in range(plan.gate_rows)
    ]
    problems = train_problems(seed=seed)
    texts = [problems[row % len(problems)].prompt for row in range(plan.gate_rows)]
    batch = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left").to(model.device)
    config = GenerationConfig(
        do_sample=True,
        top_k=0,
        min_new_tokens=plan.gate_tokens,  # nobody ends earlier: both sides decode as many steps
        max_new_tokens=plan.gate_tokens,
        eos_token_id=list(setup.eos_ids),
        pad_token_id=tokenizer.pad_token_id,
    )

    def step_ms(gated: bool) -> float:
        torch.manual_seed(seed)
        context = gated_generate(model, gates, {setup.marker: setup.automaton}) if gated else nullcontext()
        begin = time.perf_counter()
        with context:
            ids = model.generate(**batch, generation_config=config)
        if CUDA:
            torch.cuda.synchronize()
        made = ids.shape[1] - batch["input_ids"].shape[1]
        if made != plan.gate_tokens:
            raise RuntimeError(f"{made} tokens were made instead of {plan.gate_tokens}: every rollout was stopped.")
        return 1e3 * (time.perf_counter() - begin) / made

    pairs = [(step_ms(False), step_ms(True)) for _ in range(1 + plan.repeats)][1:]
    return {
        "rollouts": plan.gate_rows,
        "step_ms": statistics.median(plain for plain, _ in pairs),
        "gated_step_ms": statistics.median(gated for _, gated in pairs),
        "gate_share": statistics.median(1 - plain / gated for plain, gated in pairs),
    }


if __name__ == "__main__":
    sys.exit(main())
