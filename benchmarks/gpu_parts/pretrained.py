# SPDX-License-Identifier: Apache-2.0
"""One step of benchmarks/gpu.py: GRPO against `duet` on the arena's task mixed_135m, for equal seconds of training.

GRPO has 8 rollouts, `duet` half of them; stop string, learning rate, scorer and order of the problems are the same.
The last of the training pool are held out, so that the arena's other splits stay unseen. They are served with the stop
string and without a gate, before training and after it. One seed: which method is better, only the arena says.

The transformers engine has no stop strings in training: tokens that write one are EOS tokens (`extra_eos_tokens`), in
the gradient as they are with vLLM. Unlike vLLM's stop string they are known to the gate, which never stops a rollout
that is about to end so. A gate knows at most 32 EOS tokens. SmolLM2 has 129 tokens with a newline, all of blanks only:
the 31 shortest end a rollout, the rare others do not.
"""

import gc
import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PrinterCallback

from benchmarks.arena.cell import leave_out_idle
from benchmarks.arena.entrants import ENTRANTS, REFERENCE, configuration
from benchmarks.arena.measuring import Limits, Ruler, Watch, ids_of
from benchmarks.arena.mixed import POOL
from benchmarks.arena.problem import ArenaReward, Problem
from benchmarks.arena.profiles import PROFILES, Size
from benchmarks.arena.records import STOPPED, Serving
from benchmarks.arena.tasks import TASKS, Task
from benchmarks.common import argument_parser, finish, write_result
from duet_trl import DUETGRPOConfig, DUETGRPOTrainer
from duet_trl.engines.engine import Sampling
from duet_trl.gate.streaming import MAX_EOS_IDS
from duet_trl.gate.vocabulary import vocabulary_bytes
from recipes.pretrained_models import REMEDY

CUDA = torch.cuda.is_available()
COMPARED = (REFERENCE, "duet_stop")
LEARNING_RATE = 3e-5
HELD_OUT = 150  # ten of each kind and level
CURVES = ("reward", "loss", "grad_norm", "frac_reward_zero_std", "duet/trim_rate", "duet/abort_rate")
CURVES += ("duet/generated_tokens", "duet/seconds_generate", "duet/seconds_update")


@dataclass(frozen=True)
class Plan:
    """Prompts of a batch, when training ends, and how much is served."""

    prompts: int
    limits: Limits
    size: Size


QUICK = Plan(2, Limits((), batches=1), Size(4, 2, True))


class EngineRuler(Ruler):
    """A ruler whose `llm` is a trainer with any engine, which ends rollouts at the stop string by itself."""

    def _sample(self, problems: Sequence[Problem], stop: Any, n: int = 1, temperature: float = 1.0) -> Any:
        prompts = [ids_of(self.tokenizer, problem) for problem in problems]
        sampling = Sampling(temperature, 1.0, self.task.max_completion_length)
        drawn = [self.llm.engine.sample(prompts, sampling) for _ in range(n)]
        texts = [self.tokenizer.batch_decode(each, skip_special_tokens=True) for each in drawn]
        all_ids = [ids for each in drawn for ids in each]
        ended = [ids[-1] in self.llm.eos_token_ids for ids in all_ids]
        return list(zip(*texts, strict=True)), [len(ids) for ids in all_ids], ended


class Recorder(Watch):
    """The arena's watch, which serves before the first training too, and writes after every batch."""

    def __init__(self, ruler: EngineRuler, plan: Plan, name: str, payload: dict[str, Any]) -> None:
        super().__init__(ruler.llm, ruler, plan.limits, plan.size, {STOPPED: plan.size})
        self.curves = {curve: [] for curve in CURVES}
        self.name, self.payload = name, payload

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Serve only now: from here on the policy runs in the precision of training."""
        if "before" not in self.payload:
            self.payload["before"] = shares(self.ruler.serve(STOPPED, self.sizes[True][STOPPED]))
        if CUDA:
            torch.cuda.reset_peak_memory_stats()
        super().on_train_begin()

    def on_log(self, *arguments: Any, **of: Any) -> None:
        """Write what is known so far."""
        super().on_log(*arguments, **of)
        self.payload["methods"][self.name] = {
            **asdict(self.cost),
            "tokens_per_second": self.cost.generated_tokens / self.cost.phases["generate"],
            "peak_memory_gib": torch.cuda.max_memory_allocated() / 2**30 if CUDA else None,
            "after": shares(self.measurements[-1].servings[STOPPED]) if self.measurements else None,
            "curves": self.curves,
        }
        write_result("gpu_mixed_135m", self.payload)


def main() -> int:
    """Train and serve both, write; 1 if something is broken and --check was given."""
    parser = argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=90.0, help="of training, for each method")
    parser.add_argument("--prompts", type=int, default=PROFILES["full"].prompts, help="of a batch")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    if not arguments.model.is_dir():
        sys.exit(f"there is no model in {arguments.model}. {REMEDY}")
    timed = Plan(arguments.prompts, Limits((), seconds=arguments.seconds), Size(HELD_OUT, 4, True))
    plan = QUICK if arguments.quick else timed
    settings = asdict(plan) | {"learning_rate": LEARNING_RATE}
    payload: dict[str, Any] = {"model": arguments.model.name, "settings": settings, "methods": {}}
    for name in COMPARED:
        print(f"==> {name}", flush=True)
        train(replace(TASKS["mixed_135m"], model=arguments.model), name, plan, arguments.seed, payload)
        gc.collect()  # a trainer refers to itself; its memory is not the next one's
    checks = {f"{name}: batches, and finite figures": is_sound(one) for name, one in payload["methods"].items()}
    packages = ("torch", "transformers", "trl", "accelerate", "datasets", "reasoning-gym")
    return finish("gpu_mixed_135m", payload, checks, arguments, *packages)


def train(task: Task, name: str, plan: Plan, seed: int, payload: dict[str, Any]) -> None:
    """Train one method as the arena does."""
    entrant, pool = ENTRANTS[name], task.problems(POOL)
    fields = configuration(replace(entrant, stops=False), task, LEARNING_RATE, seed, plan.prompts)
    ends = line_ends(AutoTokenizer.from_pretrained(task.model), task.stop)
    fields |= {"use_vllm": False, "use_cpu": not CUDA, "extra_eos_tokens": ends, "max_steps": 100_000}
    with tempfile.TemporaryDirectory() as folder:
        trainer = DUETGRPOTrainer(
            str(task.model),
            ArenaReward(pool, task.marker),
            args=DUETGRPOConfig(output_dir=folder, **fields),
            train_dataset=Dataset.from_list(
                [{"prompt": one.prompt, "index": place} for place, one in enumerate(pool[:-HELD_OUT])]
            ),
        )
        leave_out_idle(trainer.method)
        ruler = EngineRuler(trainer, trainer.processing_class, task, pool[-HELD_OUT:])
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(Recorder(ruler, plan, name, payload))
        trainer.train()


def line_ends(tokenizer: PreTrainedTokenizerBase, stop: Sequence[str]) -> list[str]:
    """Tokens that write a stop string of one character: the shortest, as many as a gate holds with the EOS."""
    written = [text or b"" for text in vocabulary_bytes(tokenizer)]
    found = [number for number, text in enumerate(written) if any(one.encode() in text for one in stop)]
    return tokenizer.convert_ids_to_tokens(sorted(found, key=lambda number: len(written[number]))[: MAX_EOS_IDS - 1])


def is_sound(figures: dict[str, Any]) -> bool:
    """Whether there are batches, and every figure of theirs is a number."""
    values = [value for curve in figures["curves"].values() for value in curve if value is not None]
    return figures["batch"] > 0 and all(map(math.isfinite, values))


def shares(serving: Serving) -> dict[str, float]:
    """Right at temperature 1 and greedily, ended within the limit, of 1; and the mean length, tokens."""
    greedy = sum(serving.greedy) / len(serving.greedy)
    return {"accuracy": serving.accuracy, "greedy": greedy, "ended": serving.ended, "length": serving.length}


if __name__ == "__main__":
    sys.exit(main())
