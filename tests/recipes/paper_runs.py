# SPDX-License-Identifier: Apache-2.0
"""A folder of runs like those behind the paper's figures, made up by formulas and written by the real writers."""

import zlib

import numpy as np

from tests.recipes.stored_runs import RunRecord, write_run

METHODS = ("grpo", "dapo", "vip", "arrol", "greso", "reinforce_ada", "spec_rl", "duet")
BUDGETS = (1.0, 0.5, 0.25)
SUITES = {"math500": 0.55, "gsm8k": 0.76, "aime2024": 0.06, "humaneval": 0.46, "gpqa_diamond": 0.28}
GAIN = {"grpo": 0.02, "dapo": 0.03, "vip": 0.025, "arrol": 0.01, "duet": 0.06}
SPEED = {"grpo": 1.0, "dapo": 0.8, "duet": 1.7}


def write_paper_runs(folder, *, methods=METHODS, budgets=BUDGETS, seeds=(0, 1, 2), steps=120, surrogates=True):
    """Every method at every budget; DUET's surrogate variants, too."""
    cells = [(method, budget, "online") for method in methods for budget in budgets]
    if surrogates:
        cells += [("duet", budget, "constant") for budget in budgets]
    for method, budget, surrogate in cells:
        for seed in seeds:
            record = paper_run(method, budget, seed, steps, surrogate)
            write_run(folder / record.cell / f"seed_{seed}", record)
    return folder


def paper_run(method, budget, seed, steps, surrogate="online"):
    """One record with the metrics of its method in every step and five measurements."""
    random = np.random.default_rng([zlib.crc32(f"{method} {budget} {surrogate}".encode()), seed])
    options = {"surrogate": surrogate} if method == "duet" else {}
    settings = {"method": method, "budget_fraction": budget, "seed": seed, "method_kwargs": options}
    if method == "duet":
        settings["keep_probability"] = 0.05
    gain = GAIN.get(method, 0.02) * (0.7 + 0.3 * budget) - (0.03 - 0.02 * budget) * (surrogate != "online")
    log = []
    for step in range(steps + 1):
        if step:
            log.append({"step": step, "epoch": 3 * step / steps, "loss": 0.0, **_step(method, budget, step, random)})
        if step % max(steps // 5, 1) == 0:
            rise = 1 - np.exp(-4 * step / steps)
            found = {name: base + rise * gain + random.normal(0, 0.004) for name, base in SUITES.items()}
            log.append({"step": step, **{f"held_out/{name}/mean@4": float(value) for name, value in found.items()}})
    return RunRecord(
        cell=f"{method}_{100 * budget:g}_{surrogate}",
        seed=seed,
        model="qwen3_1.7b",
        method=method,
        budget=budget,
        num_generations=round(8 * budget) if method == "grpo" else 8,
        settings=settings,
        engine="vllm 0.31.0, colocate",
        hardware={"gpu": "H100"},
        versions={},
        status="done",
        max_steps=steps,
        log=log,
        grid="paper",
    )


def _step(method, budget, step, random):
    generated = 676e3 * budget / SPEED.get(method, 1.0) * random.normal(1, 0.03)
    gated = method == "duet"
    aborted = 0.15 * generated if gated else 0.0
    metrics = {
        "step_time": 100 * (0.2 + 0.8 * budget) / SPEED.get(method, 1.0) * random.normal(1, 0.06),
        "duet/generated_tokens": generated,
        "duet/trained_tokens": 0.7 * (generated - aborted),
        "duet/aborted_tokens": aborted,
        "duet/trimmed_tokens": 0.2 * generated if gated else 0.0,
        "duet/reused_tokens": 0.3 * generated if method == "spec_rl" else 0.0,
        "duet/num_rollouts/min": 8 * budget,
        "duet/num_rollouts/mean": 8 * budget,
        "duet/num_rollouts/max": 8 * budget,
        "duet/num_rollouts/std": 0.0,
        "duet/share_marker_seen": 1.0,
        "duet/share_marker_less": 0.0,
        "duet/abort_rate": 0.0,
    }
    return {name: float(value) for name, value in (metrics | (_gated(budget, step, random) if gated else {})).items()}


def _gated(budget, step, random):
    less = 0.02 + 0.2 * 2 ** (-step / 30) * random.uniform(0.8, 1.2)
    return {
        "duet/num_rollouts/min": max(1, 8 * budget - step // 10),
        "duet/num_rollouts/max": min(32, 8 * budget + step // 3),
        "duet/num_rollouts/std": step / 20,
        "duet/share_marker_seen": 0.28 + random.normal(0, 0.02),
        "duet/share_marker_less": less,
        "duet/abort_rate": 0.95 * less,
        "duet/poll_threshold": 921 if step < 10 else 300 + 200 * budget - step / 10 * 3,
        "duet/abort_threshold": 2150 if step < 10 else 700 + 300 * budget - step,
        "duet/dual": 10 ** (-2 - 2 * min(step, 40) / 40) / budget * random.uniform(0.8, 1.25),
        "duet/surcharge": 1 + 2 * less * random.uniform(0.3, 1),
        "duet/calibration_chi2": (0.05 + 0.4 * 2 ** (-step / 30)) / budget * random.uniform(0.7, 1.4),
    }
