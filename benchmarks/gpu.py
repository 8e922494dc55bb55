# SPDX-License-Identifier: Apache-2.0
"""python benchmarks/gpu.py [--check]: what is worth knowing of one GPU, in less than ten minutes.

Steps run one after the other, the most valuable first, each in its own process and within its own time limit.
outputs/bench/gpu.json is rewritten after each. A step that fails, misses its own target or runs out of time is
recorded as that, with what it had measured by then and the last lines it printed; the next one runs all the same.

    gate_kernel   gpu_gate.py: the gate's kernel against its oracle (CUDA only)
    swap_duet     gpu_parts/swap.py: the two-name swap on SmolLM2 in bf16, and what the gate adds to a decode step
    swap_grpo     the same script with method="grpo"
    mixed_135m    gpu_parts/pretrained.py: GRPO with a stop string against `duet` on a task of the arena, equal seconds

Nothing of it needs a network, vLLM or a configuration of accelerate. `make gpu` and `make models` make the model.
Several commands on one machine (--steps) add to one file, as long as machine, versions and arguments stay the same.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from benchmarks.common import RESULTS, argument_parser, write_result  # noqa: E402
from duet_trl.report.environment import hardware, versions  # noqa: E402
from duet_trl.report.tables import text_table  # noqa: E402
from recipes.pretrained_models import FOLDER  # noqa: E402

PACKAGES = ("torch", "triton", "transformers", "trl", "accelerate", "datasets", "peft", "numpy")
LAST_LINES = 20
DONE, FAILED, OUT_OF_TIME, SKIPPED = "done", "failed", "out of time", "skipped"


@dataclass(frozen=True)
class Step:
    """One command.

    Attributes:
        name (str): In `--steps` and in the file.
        command (Sequence[str]): Exits non-zero when a target is missed.
        seconds (float): After which it is killed.
        result (str | None): Name under which it writes figures below outputs/bench, as it goes or at its end.
        cuda (str | None): Why it is skipped without a GPU; None: it runs on a CPU too.
    """

    name: str
    command: Sequence[str]
    seconds: float
    result: str | None = None
    cuda: str | None = None


def all_steps(model: Path, seed: int, quick: bool) -> list[Step]:
    """What is measured, in this order; together less than ten minutes."""

    def script(name: str, *arguments: str) -> list[str]:
        return [sys.executable, str(ROOT / "benchmarks" / name), "--check", "--seed", str(seed), *arguments]

    swap = ["gpu_parts/swap.py", "--model", str(model), *["--quick"] * quick, "--method"]
    pretrained = ["gpu_parts/pretrained.py", "--model", str(model), *["--quick"] * quick]
    return [
        Step(
            "gate_kernel",
            script("gpu_gate.py"),
            90,
            "gpu_gate",
            cuda="There is no GPU. benchmarks/gpu_gate.py compares the kernel under Triton's interpreter, untimed.",
        ),
        Step("swap_duet", script(*swap, "duet"), 95, "gpu_swap_duet"),
        Step("swap_grpo", script(*swap, "grpo"), 75, "gpu_swap_grpo"),
        Step("mixed_135m", script(*pretrained), 270, "gpu_mixed_135m"),
    ]


def main() -> int:
    """Run the steps that are asked for; 1 if one of them was not done and --check was given."""
    names = [step.name for step in all_steps(FOLDER, 0, False)]
    parser = argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--steps", nargs="+", choices=names, default=names, help="default: all")
    parser.add_argument("--model", type=Path, default=FOLDER / "smollm2_135m", help="folder of the policy")
    parser.add_argument("--limit_scale", type=float, default=1.0, help="factor on every time limit")
    parser.add_argument("--quick", action="store_true", help="fewest batches and tokens, for a CPU")
    arguments = parser.parse_args()
    chosen = [s for s in all_steps(arguments.model, arguments.seed, arguments.quick) if s.name in arguments.steps]
    found = run_all(chosen, about(arguments.model, arguments.seed, arguments.quick), arguments.limit_scale)
    rows = [(name, one["status"], f"{one['seconds']:.0f}", f"{one['limit']:.0f}") for name, one in found.items()]
    print(text_table(("step", "status", "seconds", "limit"), rows))
    print(f"\nwritten to {RESULTS / 'gpu.json'}")
    return int(arguments.check and any(one["status"] not in (DONE, SKIPPED) for one in found.values()))


def about(model: Path, seed: int, quick: bool) -> dict[str, Any]:
    """What all figures of a file have in common."""
    machine = hardware()
    card = machine["gpu"] or "no GPU"
    processor = f"{machine['cores']} cores of {machine['processor']} ({machine['machine']})"
    return {
        "device": f"{card}, {processor}, {machine['memory_gib']} GiB",
        "hardware": machine,
        "versions": versions(*PACKAGES),
        "cuda": torch.version.cuda,
        "model": model.name,
        "seed": seed,
        "quick": quick,
    }


def run_all(steps: Sequence[Step], common: dict[str, Any], limit_scale: float = 1.0) -> dict[str, dict[str, Any]]:
    """Run steps one after the other and write gpu.json after each; the records of these steps by name."""
    kept = earlier(common)
    found: dict[str, dict[str, Any]] = {}
    for step in steps:
        print(f"==> {step.name}", flush=True)
        found[step.name] = run(step, limit_scale * step.seconds)
        print(f"    {found[step.name]['status']}, {found[step.name]['seconds']:.0f} s", flush=True)
        write_result("gpu", {**common, "steps": {**kept, **found}})
    return found


def earlier(common: dict[str, Any]) -> dict[str, Any]:
    """Steps that gpu.json has already, if they were run on this machine with the same versions and arguments."""
    path = RESULTS / "gpu.json"
    written = json.loads(path.read_text()) if path.exists() else {"steps": {}}
    steps = written.pop("steps")
    return steps if written == common else {}


def run(step: Step, limit: float) -> dict[str, Any]:
    """Run one command in its own process group, for at most this many seconds, and report how it ended."""
    if step.cuda is not None and not torch.cuda.is_available():
        return {"status": SKIPPED, "why": step.cuda, "seconds": 0.0, "limit": limit}
    result = None if step.result is None else RESULTS / f"{step.result}.json"
    if result is not None:
        result.unlink(missing_ok=True)  # a file found there afterwards is from this run
    RESULTS.mkdir(parents=True, exist_ok=True)
    log = RESULTS / f"gpu_{step.name}.log"
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    # Unbuffered, so that a command that is killed has printed everything; without progress bars among its last lines.
    own = {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "TQDM_DISABLE": "1", "HF_HUB_OFFLINE": "1"}
    begin = time.monotonic()
    with log.open("w") as file:
        process = subprocess.Popen(
            step.command, stdout=file, stderr=subprocess.STDOUT, env={**os.environ, **own}, start_new_session=True
        )
        try:
            process.wait(limit)
            status = FAILED if process.returncode else DONE
        except subprocess.TimeoutExpired:
            status = OUT_OF_TIME
        finally:
            if process.poll() is None:  # out of time, or this process was interrupted
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    record: dict[str, Any] = {"status": status, "seconds": round(time.monotonic() - begin, 2), "limit": limit}
    if status == FAILED:
        record["exit_status"] = process.returncode
    if status != DONE:
        record["last_lines"] = log.read_text(errors="replace").splitlines()[-LAST_LINES:]
    if result is not None:
        record["result"] = json.loads(result.read_text()) if result.exists() else None
    return record


if __name__ == "__main__":
    sys.exit(main())
