# SPDX-License-Identifier: Apache-2.0
"""python benchmarks/overlap.py [--tasks two_ways smollm2] [--check]: what generation while training saves.

A `vllm serve` in another process generates, this machine's other core trains. Three arms take the same prompts in as
many batches: `overlap=True`, one core for the server and one for the trainer; the same two cores in turn, where one of
them always waits; and in turn with both cores for whoever works. Every run is a separate process, on the same
servers. Seconds are those between the first step and the last, without evaluation.

--phases prints where the seconds of a batch go instead, with vLLM in the process and both cores (phases.json).

Needs two quiet CPU cores; about two minutes a run of `two_ways`, four of `smollm2` (`make models`).
"""

import argparse
import json
import os
import secrets
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "recipes")]

from benchmarks.common import RESULTS, argument_parser, finish, spread  # noqa: E402
from duet_trl.report.intervals import t_interval  # noqa: E402
from duet_trl.report.tables import text_table  # noqa: E402
from tests.processes import free_port  # noqa: E402

SMOLLM2 = ROOT / "outputs" / "models" / "smollm2_135m"
TWO_WAYS = ROOT / "recipes" / "tiny_two_ways" / "checkpoint"
PHASES = ("plan", "generate", "score", "update")
ALONE = "alone"
"""Arm without a server: vLLM in the process, both cores, bfloat16 for SmolLM2."""
ARMS = {
    "overlap": ("overlap, a core each", True, 1),
    "in_turn": ("in turn, a core each", False, 1),
    "both_cores": ("in turn, both cores each", False, 2),
}
BATCHES = {"two_ways": 40, "smollm2": 12}
WANTED = 1.6
"""Seconds in turn over seconds with overlap, a core each."""
EVALUATED = 96
HEADERS = ("task", "arm", "s a batch", "waiting for rollouts", "/ overlap", "at most", "tokens", "accuracy")
"""The ratio at most: whole batch over the longer of waiting and the rest."""


def settings(task: str) -> dict[str, Any]:
    """Fields of a run; the batch of `duet` as in the arena and in recipes/pretrained.py."""
    import yaml

    file = "math_tiny" if task == "two_ways" else "pretrained_135m"
    fields = yaml.safe_load((ROOT / "recipes" / "configs" / f"{file}.yaml").read_text())
    for name in ("model_name_or_path", "dtype", "vllm_importance_sampling_correction"):
        fields.pop(name, None)
    fields |= {"method": "duet", "use_vllm": True, "vllm_mode": "server", "max_steps": BATCHES[task]}
    # The server computes in float32, where the policy moves by updates that bfloat16 would round away.
    return fields | {"model_init_kwargs": {"dtype": "float32"}, "bf16": False}


def problems(task: str) -> tuple[Path, list[dict[str, Any]], list[dict[str, Any]], dict[str, Any]]:
    """Model, rows to train on, held-out rows, and the fields that are the task's."""
    if task == "smollm2":
        from sums import held_out_problems, rows, train_problems

        return SMOLLM2, rows(train_problems()), rows(held_out_problems(EVALUATED)), {}
    from recipes.tiny_math.problems import HELD_OUT, TRAIN
    from recipes.tiny_two_ways import task as two_ways

    rows = [
        [{"prompt": one.messages, "answer": one.answer} for one in split]
        for split in (two_ways.sample_problems(TRAIN, 320, 3), two_ways.sample_problems(HELD_OUT, EVALUATED, 1))
    ]
    fields = {"marker": "math", "max_completion_length": two_ways.MAX_COMPLETION_LENGTH}
    return TWO_WAYS, *rows, fields | {"num_generations": 8, "learning_rate": 6e-4}


def reward(completions: list, answer: list[int], **_: Any) -> list[float]:
    """1 where the last boxed answer is right, else 0."""
    from sums import is_correct

    texts = [one if isinstance(one, str) else one[0]["content"] for one in completions]
    return [float(is_correct(text, right)) for text, right in zip(texts, answer, strict=True)]


def run(task: str, arm: str, seed: int, url: str) -> dict[str, Any]:
    """Train one arm in this process."""
    import torch
    from datasets import Dataset

    from duet_trl import DUETGRPOConfig, DUETGRPOTrainer

    _, overlap, cores = ARMS.get(arm, ("", False, 2))
    torch.set_num_threads(cores)
    model, train, held_out, fields = problems(task)
    own = {"seed": seed, "overlap": overlap, "vllm_server_base_url": url, "use_cpu": True, "report_to": "none"}
    if arm == ALONE:
        own |= {"vllm_mode": "colocate", "vllm_max_model_length": 512, "vllm_gpu_memory_utilization": 0.2}
        own |= {"bf16": task == "smollm2"}
    own |= {"output_dir": str(RESULTS / "overlap" / arm), "disable_tqdm": True}
    config = DUETGRPOConfig(**(settings(task) | fields | own))
    trainer = DUETGRPOTrainer(str(model), reward, config, Dataset.from_list(train))
    trainer.train()
    steps = [entry for entry in trainer.state.log_history if "step_time" in entry][1:]
    texts = [
        trainer.processing_class.batch_decode(ids, skip_special_tokens=True)[0]
        for ids in trainer.sample([row["prompt"] for row in held_out], 1, temperature=1.0)
    ]
    return {
        "seconds": statistics.mean(entry["step_time"] for entry in steps),
        "waiting": statistics.mean(entry["duet/seconds_generate"] for entry in steps),
        "phases": {name: statistics.median(entry[f"duet/seconds_{name}"] for entry in steps) for name in PHASES},
        "median": statistics.median(entry["step_time"] for entry in steps),
        "overhead_share": statistics.median(entry["duet/overhead_share"] for entry in steps),
        "tokens": sum(entry["duet/generated_tokens"] for entry in steps),
        "accuracy": statistics.mean(reward(texts, [row["answer"] for row in held_out])),
    }


@contextmanager
def serving(model: Path, cores: int, folder: Path) -> Iterator[dict[str, str]]:
    """A server with the gate on one core, or on two; yields the environment of its trainers."""
    from duet_trl.engines.colocated import PROCESSOR
    from duet_trl.engines.server import GateServer

    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    shared = {
        "DUET_SERVER_TOKEN": secrets.token_urlsafe(32),
        "DUET_WEIGHTS_DIR": str((folder / "weights").absolute()),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_SERVER_DEV_MODE": "1",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": str(cores),
    }
    Path(shared["DUET_WEIGHTS_DIR"]).mkdir(exist_ok=True)
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(model), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--dtype", "float32", "--enforce-eager", "--max-model-len", "512"]
    command += ["--gpu-memory-utilization", "0.1", "--logprobs-mode", "processed_logprobs"]
    command += ["--logits-processors", PROCESSOR, "--middleware", "duet_trl.engines.guard.TokenGuard"]
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(
            _on_cores([0] if cores == 1 else [0, 1], command),
            env=os.environ | shared,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        GateServer(url, shared["DUET_SERVER_TOKEN"]).wait(300.0)
        yield shared | {"SERVER_URL": url}
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _on_cores(cores: list[int], command: list[str]) -> list[str]:
    return ["taskset", "-c", ",".join(map(str, cores)), *command]


def compare(task: str, seeds: list[int]) -> dict[str, list[dict[str, Any]]]:
    """Train all arms for every seed, in another order each time."""
    found: dict[str, list[dict[str, Any]]] = {arm: [] for arm in ARMS}
    with ExitStack() as stack:
        model = problems(task)[0]
        servers = {
            cores: stack.enter_context(serving(model, cores, RESULTS / "overlap" / f"{task}_{cores}"))
            for cores in (1, 2)
        }
        for number, seed in enumerate(seeds):
            order = list(ARMS)[number % len(ARMS) :] + list(ARMS)[: number % len(ARMS)]
            for arm in order:
                cores = ARMS[arm][2]
                command = [sys.executable, __file__, "--run", task, arm, "--seed", str(seed)]
                began = time.perf_counter()
                done = subprocess.run(
                    _on_cores([1] if cores == 1 else [0, 1], command),
                    env=os.environ | servers[cores],
                    stdout=subprocess.PIPE,
                    check=True,
                    text=True,
                )
                found[arm].append(json.loads(done.stdout.splitlines()[-1]))
                print(f"{task}, seed {seed}, {ARMS[arm][0]}: {time.perf_counter() - began:.0f} s", flush=True)
    return found


def phases(tasks: list[str], args: argparse.Namespace) -> int:
    """Print where the seconds of a batch go."""
    from recipes.tiny_math.cpu import ENVIRONMENT

    found, rows = {}, []
    for task in tasks:
        command = [sys.executable, __file__, "--run", task, ALONE, "--seed", str(args.seed)]
        own = ENVIRONMENT | {"OMP_NUM_THREADS": "2", "SERVER_URL": ""}
        done = subprocess.run(command, env=os.environ | own, stdout=subprocess.PIPE, check=True, text=True)
        found[task] = one = json.loads(done.stdout.splitlines()[-1])
        rest = one["median"] - sum(one["phases"].values())
        seconds = [one["median"], *one["phases"].values(), rest]
        rows.append([task, *(f"{value:.3f}" for value in seconds), f"{one['overhead_share']:.2%}"])
    print("\n" + text_table(("task", "s a batch", *PHASES, "rest", "overhead_share"), rows))
    return finish("phases", {"runs": found}, {}, args, "duet-trl", "torch", "transformers", "trl", "vllm")


def _bound(one: dict[str, Any]) -> float:
    """How much faster a run could be if its two phases ran at the same time."""
    return one["seconds"] / max(one["waiting"], one["seconds"] - one["waiting"])


def main() -> int:
    """Compare the arms on each task, and print the table."""
    parser = argument_parser(__doc__)
    parser.add_argument("--tasks", nargs="+", choices=tuple(BATCHES), default=["two_ways"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--phases", action="store_true", help="only where the seconds of a batch go")
    parser.add_argument("--run", nargs=2, metavar=("TASK", "ARM"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        print(json.dumps(run(*args.run, args.seed, os.environ["SERVER_URL"])))
        return 0
    if args.phases:
        return phases(args.tasks, args)
    rows, met, figures = [], {}, {}
    for task in args.tasks:
        found = figures[task] = compare(task, args.seeds)
        for arm, runs in found.items():
            ratios = [one["seconds"] / base["seconds"] for one, base in zip(runs, found["overlap"], strict=True)]
            apart = [base["accuracy"] - one["accuracy"] for one, base in zip(runs, found["overlap"], strict=True)]
            rows.append(
                [
                    task,
                    ARMS[arm][0],
                    f"{statistics.median(one['seconds'] for one in runs):.2f}",
                    f"{statistics.median(one['waiting'] for one in runs):.2f}",
                    f"{spread(ratios)['median']:.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
                    f"{statistics.median(map(_bound, runs)):.2f}",
                    f"{statistics.mean(one['tokens'] for one in runs):,.0f}",
                    f"{statistics.mean(one['accuracy'] for one in runs):.3f}",
                ]
            )
            if arm == "in_turn":
                met[f"{task}: {WANTED} times as fast as in turn"] = statistics.median(ratios) >= WANTED
                met[f"{task}: no loss of accuracy is resolved"] = (
                    t_interval(apart)[1] >= 0 if len(apart) > 1 else apart[0] >= -0.05
                )
    print("\n" + text_table(HEADERS, rows))
    return finish("overlap", {"runs": figures}, met, args, "duet-trl", "torch", "transformers", "trl", "vllm")


if __name__ == "__main__":
    sys.exit(main())
