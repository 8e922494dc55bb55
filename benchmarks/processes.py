# SPDX-License-Identifier: Apache-2.0
"""Whether a run depends on the number of its processes: 1, 2 and 4 under DDP, 2 under FSDP2, on a CPU over gloo.

All runs of a method have the same global batch and SGD. Rollouts are scripted and go through the gate, which trims,
aborts and throws coins. Printed is the largest difference of each quantity from the run of one process. Plans, coins
and outcomes must be equal, weights within 1e-5. FSDP2 must have been on: every parameter sharded, half on each side.

    python benchmarks/processes.py [--check] [--steps 3] [--methods duet grpo pilot]
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
if str(ROOT) not in sys.path:  # run as a script
    sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
from accelerate.commands.launch import _validate_launch_command, launch_command_parser  # noqa: E402
from accelerate.utils.launch import prepare_multi_gpu_env  # noqa: E402
from safetensors.numpy import load_file  # noqa: E402

from benchmarks.common import argument_parser, process_environment, python_command, write_result  # noqa: E402
from duet_trl.report.environment import hardware, versions  # noqa: E402
from duet_trl.report.tables import text_table  # noqa: E402

METHODS = ("duet", "grpo", "pilot")
SETUPS = {"1 process": (1, False), "2, DDP": (2, False), "4, DDP": (4, False), "2, FSDP2": (2, True)}
"""Processes, and whether their weights are sharded."""

ROWS = 8
"""Rows of a micro-batch, at which 32 rollouts are 4 micro-batches of one process or 1 of four."""

PLANS = ("prompts", "counts", "rounds")
STOPS = ("outcomes", "trimmed", "lengths", "trained", "divisor")
DECISIONS = (*PLANS, "coins", "thresholds", *STOPS)
VALUES = ("rewards", "advantages", "sum_logps", "losses", "weights")
TOLERANCE = 1e-5
LONGEST = 1800
"""Seconds after which a run hangs."""

Reports = dict[str, list[dict[str, Any]]]
"""What each process reports, by method."""


def fsdp_environment() -> dict[str, str]:
    """What `accelerate launch --config_file recipes/accelerate/fsdp2.yaml` sets for its processes."""
    line = ["--config_file", str(ROOT / "recipes" / "accelerate" / "fsdp2.yaml"), "--num_processes", "2"]
    arguments, _, _ = _validate_launch_command(
        launch_command_parser().parse_args([*line, "--main_process_port", "0", "--mixed_precision", "no", "script.py"])
    )
    found = prepare_multi_gpu_env(arguments)
    return {name: value for name, value in found.items() if name.startswith("FSDP_")} | {"ACCELERATE_USE_FSDP": "true"}


def launch(methods: Sequence[str], processes: int, sharded: bool, folder: Path, **options: Any) -> Reports:
    """Train each method on so many processes; what each process reports of it, weights included."""
    for method in methods:
        (folder / method).mkdir(parents=True)
    script = str(Path(__file__).parent / "process_parts" / "run.py")
    options = {"per_device_train_batch_size": ROWS, "gradient_accumulation_steps": 4 // processes, **options}
    done = subprocess.run(
        [*python_command(processes), script, ",".join(methods), str(folder), json.dumps(options)],
        env=process_environment() | (fsdp_environment() if sharded else {}),
        capture_output=True,
        text=True,
        timeout=LONGEST,
    )
    if done.returncode:
        raise RuntimeError(f"{processes} processes ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return {
        method: [
            json.loads((folder / method / f"rank{rank}.json").read_text())
            | {"weights": load_file(folder / method / f"rank{rank}.safetensors")}
            for rank in range(processes)
        ]
        for method in methods
    }


def check_sharding(reports: list[dict[str, Any]], sharded: bool) -> None:
    """Refuse a run whose weights do not lie as they were asked to: accelerate falls back without a word."""
    for report in reports:
        found = report["sharding"]
        wanted = "FSDP" if sharded else ("MULTI_CPU" if len(reports) > 1 else "NO")
        if found["type"] != wanted or found["sharded"] != (found["parameters"] if sharded else 0):
            raise RuntimeError(f"asked for {wanted}, got {found}.")
    held = sum(report["sharding"]["local_elements"] for report in reports)
    if sharded and held != reports[0]["sharding"]["elements"]:
        raise RuntimeError(f"the processes hold {held} elements of {reports[0]['sharding']['elements']}.")


def differences(one: dict[str, Any], other: dict[str, Any]) -> dict[str, float]:
    """Largest difference of each quantity between two reports; infinite where shapes or texts differ."""
    found = {}
    for name in (*DECISIONS, *VALUES):
        if name == "losses":
            pairs = [(one[name], other[name])]
        elif name == "weights":
            pairs = [(one[name][key], other[name].get(key)) for key in one[name]]
        else:
            pairs = [(a[name], b[name]) for a, b in zip(one["steps"], other["steps"], strict=True)]
        found[name] = max(largest(a, b) for a, b in pairs)
    return found


def largest(one: Any, other: Any) -> float:
    """The largest absolute difference of two arrays, 0 or infinity for texts."""
    one, other = np.asarray(one), np.asarray(other)
    if one.shape != other.shape or one.dtype.kind == "U":
        return 0.0 if np.array_equal(one, other) else float("inf")
    return float(np.abs(one.astype(np.float64) - other.astype(np.float64)).max(initial=0.0))


def compare(methods: Sequence[str], setups: dict[str, tuple[int, bool]], **options: Any) -> dict[str, Any]:
    """All set-ups against the first of them, and every process of a run against its first, by method."""
    runs: dict[str, Reports] = {}
    for name, (processes, sharded) in setups.items():
        with tempfile.TemporaryDirectory() as folder:
            runs[name] = launch(methods, processes, sharded, Path(folder), **options)
        for reports in runs[name].values():
            check_sharding(reports, sharded)
        print(f"{name}: done", file=sys.stderr, flush=True)
    return {method: describe({name: reports[method] for name, reports in runs.items()}) for method in methods}


def describe(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """The differences of one method's runs, and what happened in the first of them."""
    single = next(iter(runs.values()))[0]
    outcomes = np.concatenate([step["outcomes"] for step in single["steps"]])
    return {
        "differences": {name: differences(single, reports[0]) for name, reports in runs.items()},
        "between_processes": {
            name: max(max(differences(reports[0], other).values()) for other in reports)
            for name, reports in runs.items()
        },
        "sharding": {name: [report["sharding"] for report in reports] for name, reports in runs.items()},
        "moved": single["moved"],
        "rollouts": sum(sum(step["counts"]) for step in single["steps"]),
        "rounds": max(max(step["rounds"]) for step in single["steps"]) + 1,
        "outcomes": np.bincount(outcomes, minlength=4).tolist(),
        "trimmed": sum(sum(step["trimmed"]) for step in single["steps"]),
    }


def missed(method: str, result: dict[str, Any]) -> list[str]:
    """Targets that a method misses."""
    found = []
    for setup, by_name in result["differences"].items():
        found += [f"{method}, {setup}: {name}" for name in DECISIONS if by_name[name] != 0.0]
        found += [f"{method}, {setup}: {name}" for name in VALUES if not by_name[name] <= limit(name)]
    found += [f"{method}, {setup}: processes" for setup, gap in result["between_processes"].items() if gap != 0.0]
    if result["moved"] < 1e-3:
        found.append(f"{method}: the weights moved by {result['moved']} only")
    if method == "duet" and not (min(result["outcomes"]) and result["trimmed"]):
        found.append(f"{method}: an outcome of the gate is missing")
    return found


def limit(name: str) -> float:
    """The largest difference that may be."""
    return 1e-3 if name == "sum_logps" else TOLERANCE  # a sum of up to 64 log-probabilities after some steps of SGD


def table(results: dict[str, Any]) -> str:
    """A row for each method and set-up."""
    rows = []
    for method, result in results.items():
        for setup, by_name in result["differences"].items():
            plans, stops = (max(by_name[name] for name in names) for names in (PLANS, STOPS))
            values = [f"{by_name[name]:.1e}" for name in VALUES]
            row = [f"{x:g}" for x in (plans, by_name["coins"], by_name["thresholds"], stops)]
            rows.append([method, setup, *row, *values, f"{result['between_processes'][setup]:.1e}"])
    headers = ["method", "processes", "plans", "coins", "thresholds", "outcomes", *VALUES, "between processes"]
    return text_table(headers, rows)


def main() -> int:
    """Run, compare, print, write; 1 if a target is missed and --check was given."""
    parser = argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    arguments = parser.parse_args()
    results = compare(arguments.methods, SETUPS, max_steps=arguments.steps, seed=7 + arguments.seed)
    print(f"Largest differences from one process, {arguments.steps} steps of 32 rollouts, SGD\n")
    print(table(results))
    for name, result in results.items():
        natural, answered, kept, aborted = result["outcomes"]
        print(
            f"{name}: {result['rollouts']} rollouts in up to {result['rounds']} rounds a step; {natural} natural, "
            f"{answered} answered ({result['trimmed']} trimmed), {kept} kept, {aborted} aborted; "
            f"weights moved by up to {result['moved']:.2g}"
        )
    failed = [line for name, result in results.items() for line in missed(name, result)]
    print("all targets met" if not failed else "MISSED: " + "; ".join(failed))
    payload = {
        "results": results,
        "steps": arguments.steps,
        "tolerance": TOLERANCE,
        "met": not failed,
        "seed": arguments.seed,
        "hardware": hardware(),
        "versions": versions("duet-trl", "torch", "accelerate", "transformers", "trl"),
    }
    print(f"written to {write_result('processes', payload)}")
    return int(arguments.check and bool(failed))


if __name__ == "__main__":
    sys.exit(main())
