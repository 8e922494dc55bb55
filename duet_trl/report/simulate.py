# SPDX-License-Identifier: Apache-2.0
"""`duet-trl simulate`: tokens and seconds of a step by method and number of GPUs, without a model."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from ..simulation.population import Population
from ..simulation.serving import Machine, StepSeconds, step_seconds
from .tables import text_table

DESCRIPTION = """\
What would a step generate, train and take? The real method plans and learns over prompts whose pass rates and lengths
are drawn and drift as a policy improves; continuous batching, the wait for the longest rollout and the update are
turned into seconds for each number of GPUs. Assumptions: docs/operations.md#simulate-a-large-run. No model, no GPU."""

GPUS = (8, 16, 32, 64, 128, 256, 512)
TIMED_STEPS = 10
"""Steps, evenly spaced, whose lengths are turned into seconds."""

POPULATION = {
    "num_prompts": "prompts of the data set",
    "difficulty_spread": "standard deviation of the prompts' log-odds of success",
    "start_skill": "log-odds of success on the average prompt at the start",
    "learned": "what training adds to it",
    "answer_tokens": "median tokens at the answer of the average prompt",
    "length_slope": "longer answers of harder prompts, per unit of log-odds",
    "length_spread": "spread of the log of the answer's length within a prompt",
    "growth": "factor on lengths by the end of the run",
    "late": "share of rollouts that answer late",
    "late_factor": "how much later",
    "silent": "share of rollouts that run to the limit without an answer",
    "tail_tokens": "mean tokens behind an answer",
}
MACHINE = {
    "parameters": "of the model",
    "cache_bytes": "of the KV cache, per token",
    "flops": "peak of a GPU, bf16, per second",
    "bandwidth": "of its memory, bytes per second",
    "memory_bytes": "of it",
    "training_efficiency": "share of the flops in forward and backward passes",
    "decoding_efficiency": "share of bandwidth and flops in decoding",
    "iteration_seconds": "of an engine beside weights, cache and compute",
    "gpus_per_engine": "GPUs that share an engine",
    "most_running": "rollouts that an engine runs at once, at most",
    "fixed_seconds": "of a step: weights to the engines, verification, logging",
}


def add_command(commands: Any) -> None:
    """Add the command."""
    command = commands.add_parser(
        "simulate", help="tokens and seconds of a step without a model", description=DESCRIPTION
    )
    command.set_defaults(run=simulate)
    add = command.add_argument
    add("--methods", nargs="+", metavar="NAME", help="(default: all)")
    add("--gpus", nargs="+", type=int, default=list(GPUS), metavar="N", help="(default: %(default)s)")
    help_text = "of the run, over which the policy learns; figures are of the second half (default: %(default)s)"
    add("--steps", type=int, default=60, metavar="N", help=help_text)
    add("--batch", type=int, default=256, metavar="M", help="prompts of a step (default: %(default)s)")
    add("--num_generations", type=int, default=8, metavar="G", help="rollouts per prompt (default: %(default)s)")
    add("--budget_fraction", type=float, metavar="B", help="of methods that read it (default: the method's)")
    add("--max_completion_length", type=int, default=3072, metavar="L", help="tokens (default: %(default)s)")
    add("--prompt_tokens", type=float, default=200.0, metavar="X", help="mean (default: %(default)s)")
    add("--seed", type=int, default=0, help="(default: %(default)s)")
    add("--json", type=Path, metavar="FILE", help="also write every figure, unrounded, to this file")
    defaults = {one.name: one.default for one in fields(Population)} | {"num_prompts": 2560}
    for title, help_texts, given in (
        ("prompts and lengths", POPULATION, defaults),
        ("machine", MACHINE, vars(Machine())),
    ):
        group = command.add_argument_group(title)
        for name, help_text in help_texts.items():
            value = given[name]
            group.add_argument(
                f"--{name}", type=type(value), default=value, metavar="X", help=f"{help_text} (default: {value:g})"
            )


def simulate(options: argparse.Namespace) -> int:
    """Run the command; the exit status."""
    machine = Machine(**{name: vars(options)[name] for name in MACHINE})
    population = Population(
        max_length=options.max_completion_length,
        horizon=options.steps,
        seed=options.seed,
        **{name: vars(options)[name] for name in POPULATION},
    )
    found = {}
    try:
        for name in methods_of(options.methods):
            found[name] = predict(name, population, machine, options)
    except ValueError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.write(as_text(found, options.gpus) + "\n")
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
        sys.stdout.write(f"\nwritten: {options.json}\n")
    return 0


def predict(name: str, population: Population, machine: Machine, options: argparse.Namespace) -> dict[str, Any]:
    """Figures of a method: means over the second half of the steps, and seconds by number of GPUs."""
    from ..simulation.course import Course  # loads torch, which no other report needs

    course = Course(method_of(name, options), population, options.batch, options.seed)
    steps = list(course.run(options.steps))[options.steps // 2 :]  # a method has a history by then
    timed = steps[:: max(len(steps) // TIMED_STEPS, 1)]
    seconds = {gpus: _mean_seconds(machine, gpus, timed, options.prompt_tokens) for gpus in options.gpus}
    return {
        "rollouts": float(np.mean([sum(map(len, step.rounds)) for step in steps])),
        "rounds": float(np.mean([len(step.rounds) for step in steps])),
        "generated_tokens": float(np.mean([step.generated_tokens for step in steps])),
        "trained_tokens": float(np.mean([step.trained_tokens for step in steps])),
        "asked_tokens": float(np.mean([step.asked_tokens for step in steps])),
        "right_lost": course.right[1] / max(course.right[0], 1),
        "seconds": seconds,
    }


def methods_of(asked: Sequence[str] | None) -> list[str]:
    """Names of the methods that are asked for, None: all; ValueError for one that the package does not have."""
    from ..methods import METHODS

    known = [name for name in METHODS if name != "own"]
    unknown = [name for name in asked or () if name not in known]
    if unknown:
        raise ValueError(f"no method is named {', '.join(unknown)}. Choose of {', '.join(known)}.")
    return list(asked or known)


def method_of(name: str, options: Any) -> Any:
    """The method as a run of this size has it; `options` has the sizes of the command."""
    from ..config import DUETGRPOConfig  # loads trl, which no other report needs
    from ..methods import METHODS, build_method

    own = {"budget_fraction": options.budget_fraction} if "budget_fraction" in METHODS[name].reads else {}
    config = DUETGRPOConfig(
        output_dir="simulated",
        method=name,
        num_generations=options.num_generations,
        per_device_train_batch_size=options.num_generations,
        gradient_accumulation_steps=options.batch,
        max_completion_length=options.max_completion_length,
        seed=options.seed,
        use_cpu=True,
        bf16=False,
        report_to="none",
        **own,
    )
    return build_method(config)


def as_text(found: Mapping[str, Mapping[str, Any]], gpus: Sequence[int]) -> str:
    """Two tables: tokens of a step, and its seconds with the share of them that the tail of generation takes."""
    columns = ("rollouts", "rounds", "generated_tokens", "trained_tokens", "asked_tokens")
    tokens = [
        [name, *(f"{one[column]:,.{int(column == 'rounds')}f}" for column in columns), f"{one['right_lost']:.2%}"]
        for name, one in found.items()
    ]
    times = [
        [name, *(f"{one['seconds'][n]['total']:,.1f} ({_tail_share(one['seconds'][n]):.0%})" for n in gpus)]
        for name, one in found.items()
    ]
    heads = ["method", *(column.replace("_", " ") for column in columns), "right answers aborted"]
    return "\n".join(
        [
            "Means over the second half of the steps. Tokens are those of rollouts; prompts are not counted.",
            text_table(heads, tokens),
            "",
            "Seconds of a step by number of GPUs (share in which at most half of its rollouts still run).",
            text_table(["method", *map(str, gpus)], times),
        ]
    )


def _tail_share(seconds: Mapping[str, float]) -> float:
    return seconds["tail"] / seconds["total"]


def _mean_seconds(machine: Machine, gpus: int, steps: Sequence[Any], prompt_tokens: float) -> dict[str, float]:
    found: list[StepSeconds] = [
        step_seconds(
            machine,
            gpus,
            step.rounds,
            prompt_tokens,
            (step.trained_rollouts, step.trained_tokens),
            step.asked_tokens,
        )
        for step in steps
    ]
    means = {name: float(np.mean([vars(one)[name] for one in found])) for name in vars(found[0])}
    return means | {"total": float(np.mean([one.total for one in found]))}
