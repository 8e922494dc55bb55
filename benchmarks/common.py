# SPDX-License-Identifier: Apache-2.0
"""What every benchmark needs besides `duet_trl.report`: its arguments and a result file."""

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path("outputs/bench")


def argument_parser(description: str) -> argparse.ArgumentParser:
    """A parser with the arguments that all benchmarks share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--check", action="store_true", help="exit with an error if a target is missed")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def open_engine(path: Path, max_model_length: int, dtype: str = "float32") -> Any:
    """vLLM (`vllm.LLM`) in this process for a small policy, with room for this many tokens."""
    from vllm import LLM

    return LLM(
        str(path),
        dtype=dtype,
        max_model_len=max_model_length,
        enforce_eager=True,
        gpu_memory_utilization=0.2,
        logprobs_mode="processed_logprobs",  # of the distribution that is sampled
    )


def spread(values: Sequence[float] | np.ndarray) -> dict[str, float]:
    """10th percentile, median and 90th percentile."""
    low, median, high = np.quantile(values, (0.1, 0.5, 0.9)).tolist()
    return {"p10": low, "median": median, "p90": high}


def between(values: Mapping[str, float], form: str) -> str:
    """A `spread` in a table, its figures written in this form."""
    return f"{values['median']:{form}} ({values['p10']:{form}} to {values['p90']:{form}})"


def finish(
    name: str, figures: dict[str, Any], met: Mapping[str, bool], arguments: argparse.Namespace, *packages: str
) -> int:
    """Print which targets are met, and write the figures with seed, machine and versions of these packages.

    Returns:
        int: Exit status: 1 if a target is missed and --check was given.
    """
    # Not above: it loads torch, before which some benchmarks set the environment.
    from duet_trl.report.environment import hardware, versions
    from duet_trl.report.tables import text_table

    if met:
        print(
            "\n" + text_table(["target", "met"], [[target, "yes" if good else "NO"] for target, good in met.items()])
        )
    about = {
        "targets_met": {target: bool(good) for target, good in met.items()},
        "load_average": os.getloadavg(),
        "seed": arguments.seed,
    }
    about |= {"hardware": hardware(), "versions": versions(*packages)}
    print(f"\nwritten to {write_result(name, figures | about)}")
    return int(arguments.check and not all(met.values()))


def write_result(name: str, payload: dict[str, Any]) -> Path:
    """Write the figures of a benchmark to outputs/bench/<name>.json, which is never there in part."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(payload, indent=2) + "\n")
    partial.replace(path)
    return path
