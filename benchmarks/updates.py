# SPDX-License-Identifier: Apache-2.0
"""python benchmarks/updates.py [--seeds 0 1] [--arms several once ...] [--check]: what each part earns.

The task, the policy and `duet` at half the budget of `make demo`; the learning rate of all starts where that of the
demo does. Each arm has the same prompts in the same order and as many batches; each run is a separate process.
Accuracy is mean@4 on held-out problems, at the end and in the mean of four evaluations, which shows how fast it got
there; differences are to `several` on the same seed.

Needs two CPU cores and about three minutes a run.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "recipes")]

import math_tiny  # noqa: E402
import torch  # noqa: E402
from tiny_math.cpu import ENVIRONMENT  # noqa: E402
from transformers import TrainerCallback  # noqa: E402

from benchmarks.common import RESULTS, argument_parser, write_result  # noqa: E402
from duet_trl.report.environment import hardware, versions  # noqa: E402
from duet_trl.report.intervals import t_interval  # noqa: E402
from duet_trl.report.tables import text_table  # noqa: E402
from duet_trl.update import trust_region  # noqa: E402
from duet_trl.update.trust_region import CUTS  # noqa: E402

BATCHES, EVERY = 28, 7
CLIPPED_OVER, KEPT = 32, 0.8
"""Updates whose median norm clips the next gradient; weight of the past in the average of weights, a batch."""
BELOW = ("once", "sfpo")
"""What `several` is to be better than: `--check`."""


def _no_epsilon(trainer: Any, evaluation: Any) -> None:
    trainer.several.epsilon = None


def _thermostat(trainer: Any, evaluation: Any) -> None:
    trust_region.CEILING = trust_region.LIMIT = math.inf


def _always_fast(trainer: Any, evaluation: Any) -> None:
    trust_region.RISE = trust_region.SEARCH


def _clipped(trainer: Any, evaluation: Any) -> None:
    trainer.add_callback(MedianClipping())


def _averaged(trainer: Any, evaluation: Any) -> None:
    average = AveragedWeights(trainer)
    measure = evaluation.measure_step
    evaluation.measure_step = lambda *args: average.measured(measure, *args)
    trainer.remove_callback(evaluation)  # the average has taken in a batch before it is measured
    trainer.add_callback(average)
    trainer.add_callback(evaluation)


def _as_it_is(trainer: Any, evaluation: Any) -> None:
    pass


SEVERAL = math_tiny.ARMS["duet_updates"].settings
ONCE = {key: value for key, value in SEVERAL.items() if key not in ("updates", "old_logps")}
ARMS: dict[str, tuple[str, dict[str, Any], Callable[[Any, Any], None]]] = {
    "several": ("updates='several'", SEVERAL, _as_it_is),
    "once": ("updates='once'", ONCE, _as_it_is),
    "sfpo": ("updates='sfpo'", SEVERAL | {"updates": "sfpo"}, _as_it_is),
    "low": ("a third of desired_kl", SEVERAL | {"desired_kl": trust_region.DESIRED_KL / 3}, _as_it_is),
    "high": ("three times desired_kl", SEVERAL | {"desired_kl": trust_region.DESIRED_KL * 3}, _as_it_is),
    "fast": ("the rate always rises as fast as at the start", SEVERAL, _always_fast),
    "no_region": ("nothing is skipped or pulled back", SEVERAL, _thermostat),
    "no_epsilon": ("stock epsilon of Adam", SEVERAL, _no_epsilon),
    "clip": ("and gradients clipped to their median norm", SEVERAL, _clipped),
    "average": ("and weights averaged over batches, for evaluation", SEVERAL, _averaged),
}


class MedianClipping(TrainerCallback):
    """Clips each gradient to the median norm of those before it."""

    def __init__(self) -> None:
        self.norms: deque[float] = deque(maxlen=CLIPPED_OVER)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **_: Any) -> None:
        """Note a norm, which was taken before clipping, and bound the next one."""
        if logs.get("grad_norm", 0.0) > 0.0:
            self.norms.append(logs["grad_norm"])
            args.max_grad_norm = statistics.median(self.norms)


class AveragedWeights(TrainerCallback):
    """An exponential average of the weights that each batch led to."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.updates = CUTS[trainer.args.updates].updates
        self.average = [one.detach().clone() for one in trainer.model.parameters()]

    @torch.no_grad()
    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Take in where a batch led, after the last of its updates."""
        if state.global_step % self.updates == 0:
            for mean, one in zip(self.average, self.trainer.model.parameters(), strict=True):
                mean.lerp_(one, 1.0 - KEPT)

    @torch.no_grad()
    def measured(self, measure: Callable[..., dict[str, float]], step: int, seconds: float) -> dict[str, float]:
        """`measure_step` of the average."""
        weights = list(self.trainer.model.parameters())
        trained = [one.clone() for one in weights]
        for one, mean in zip(weights, self.average, strict=True):
            one.copy_(mean)
        found = measure(step, seconds)
        for one, back in zip(weights, trained, strict=True):
            one.copy_(back)
        return found


def run(name: str, seed: int) -> None:
    """Train one arm and write its figures."""
    label, settings, change = ARMS[name]
    args = argparse.Namespace(steps=BATCHES, seed=seed, engine="vllm", eval_problems=100, eval_every=EVERY)
    folder = _folder(name, seed)
    trainer, evaluation = math_tiny.build(args, math_tiny.Arm(label, settings), folder)
    change(trainer, evaluation)
    trainer.train()
    history = [entry for entry in trainer.state.log_history if "duet/generated_tokens" in entry]
    divergences = [entry["duet/update_kl"] for entry in trainer.state.log_history if "duet/update_kl" in entry]
    figures = {
        "accuracy": [one.score.value for one in evaluation.evaluations],
        "tokens": sum(entry["duet/generated_tokens"] for entry in history),
        "update_kl": [statistics.median(divergences), max(divergences)] if divergences else None,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "figures.json").write_text(json.dumps(figures))


def _train(name: str, seed: int) -> None:
    command = [sys.executable, __file__, "--run", name, "--seed", str(seed)]
    with (RESULTS / "updates.log").open("a") as log:
        subprocess.run(command, env=ENVIRONMENT | os.environ, stdout=log, stderr=log, check=True)


def _folder(name: str, seed: int) -> Path:
    return RESULTS / "updates" / f"{name}_{seed}"


def table(found: dict[str, dict[int, dict[str, Any]]]) -> list[list[str]]:
    """A row for each arm; differences in the mean of the evaluations, over the seeds that both have."""
    rows, base = [], _means(found.get("several", {}))
    for name, runs in found.items():
        means = _means(runs)
        apart = [means[seed] - base[seed] for seed in means if seed in base and name != "several"]
        interval = t_interval(apart) if apart else None
        difference = f"{statistics.mean(apart):+.3f}" if apart else ""
        rows.append(
            [
                ARMS[name][0],
                f"{statistics.mean(means.values()):.3f}",
                f"{statistics.mean(one['accuracy'][-1] for one in runs.values()):.3f}",
                difference + (f" [{interval[0]:+.3f}, {interval[1]:+.3f}]" if interval else ""),
                f"{statistics.mean(one['tokens'] for one in runs.values()):,.0f}",
            ]
        )
    return rows


def _means(runs: dict[int, dict[str, Any]]) -> dict[int, float]:
    """Mean accuracy of the evaluations during training, by seed."""
    return {seed: statistics.mean(one["accuracy"][1:]) for seed, one in runs.items()}


def is_below(runs: dict[int, dict[str, Any]], several: dict[int, dict[str, Any]]) -> bool:
    """Whether an arm is below `several` in the mean over the seeds that both have."""
    one, other = _means(runs), _means(several)
    return statistics.mean([one[seed] - other[seed] for seed in one if seed in other] or [0.0]) < 0.0


HEADERS = ("arm", "mean of four evaluations", "at the end", "minus several", "tokens")


def main() -> None:
    """Train what is asked for, one run after the other, and print the table."""
    parser = argument_parser(__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--arms", nargs="+", choices=tuple(ARMS), default=list(ARMS))
    parser.add_argument("--keep", action="store_true", help="do not repeat runs whose figures are there")
    parser.add_argument("--run", choices=tuple(ARMS), help="train this arm only, with --seed, in this process")
    args = parser.parse_args()
    if args.run:
        run(args.run, args.seed)
        return
    RESULTS.mkdir(parents=True, exist_ok=True)
    found: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in args.arms}
    for seed in args.seeds:
        for name in args.arms:
            path = _folder(name, seed) / "figures.json"
            if not (args.keep and path.exists()):
                _train(name, seed)
            found[name][seed] = json.loads(path.read_text())
            print(f"seed {seed}, {ARMS[name][0]}: {found[name][seed]['accuracy'][-1]:.3f}", flush=True)
    print(text_table(HEADERS, table(found)))
    write_result(
        "updates",
        {"hardware": hardware(), "versions": versions("duet-trl", "torch", "transformers", "trl"), "runs": found},
    )
    missed = [name for name in BELOW if name in found and not is_below(found[name], found.get("several", {}))]
    for name in missed:
        print(f"target missed: {ARMS[name][0]} is not below updates='several'")
    if args.check and missed:
        sys.exit(1)


if __name__ == "__main__":
    main()
