# SPDX-License-Identifier: Apache-2.0
"""Steps of `evaluate.py`: what is measured, on what, for how long, and the table at the end."""

import argparse
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from samplers import Model, build_sampler

from duet_trl.evaluation.measure import Grader, Measurement, Settings, measure
from duet_trl.evaluation.suites import SUITES, load_suite, suite_named
from duet_trl.report.environment import hardware, versions
from duet_trl.report.tables import markdown_table

MAX_TOKENS = 3072  # the paper's
PACKAGES = ("duet-trl", "torch", "transformers", "datasets", "vllm", "math-verify")


def expand_models(names: Sequence[str]) -> list[str]:
    """The models; a run's folder stands for its checkpoints in the order of their steps.

    The model that a run leaves next to them is the last checkpoint again.
    """
    found: list[str] = []
    for name in names:
        nested = [str(path) for path in Path(name).glob("checkpoint-*") if path.is_dir()]
        found += sorted(nested, key=step_of) or [name]
    return found


def step_of(model: str) -> int:
    """Optimizer steps of a checkpoint; 0 of any other model."""
    match = re.fullmatch(r"checkpoint-(\d+)", Path(model).name)
    return int(match[1]) if match else 0


def load_suites(names: Sequence[str], sources: Sequence[str], limit: int | None) -> dict[str, Dataset]:
    """Problems by suite. ValueError if a source is not suite=place of one of them, and as `load_suite`."""
    if not names:
        raise ValueError(f"--suites names no suite. Choose from {', '.join(SUITES)}.")
    if limit is not None and limit < 1:
        raise ValueError(f"--limit must be at least 1, got {limit}.")
    places = dict(entry.split("=", 1) for entry in sources if "=" in entry)
    if len(places) < len(sources) or not places.keys() <= set(names):
        raise ValueError(f"--sources takes suite=place, once for a suite of --suites, got {[*sources]}.")
    problems = {name: load_suite(name, places.get(name)) for name in names}
    return {name: rows.select(range(min(limit or len(rows), len(rows)))) for name, rows in problems.items()}


def completion_length(model: Model, suites: Mapping[str, Dataset], asked: int | None) -> tuple[int, int]:
    """Tokens of the longest completion, and of the longest sequence that the engine must take.

    `asked` is None for the paper's length, or what is left if that is less. ValueError if the prompts and what was
    asked for do not fit.
    """
    longest = max(len(model.prompt_ids(prompt)) for problems in suites.values() for prompt in problems["prompt"])
    left = model.context - longest
    chosen = min(MAX_TOKENS, left) if asked is None else asked
    if not 1 <= chosen <= left:
        raise ValueError(
            f"--max_tokens must be in 1..{left}, got {chosen}: {model.name!r} takes sequences of {model.context} "
            f"tokens, and the longest prompt has {longest}."
        )
    if chosen < MAX_TOKENS:
        print(f"note: completions of {model.name} end at {chosen} tokens, the paper's at {MAX_TOKENS}.")
    return chosen, longest + chosen


def measure_model(
    args: argparse.Namespace,
    model: Model,
    settings: Settings,
    sequence: int,
    suites: Mapping[str, Dataset],
    graders: Mapping[str, Grader],
) -> None:
    """Load a model, measure it, free it; write a file of figures and one of completions for each suite."""
    print(f"{model.name}: {args.engine}, {settings}", flush=True)
    sampler = build_sampler(args, model, sequence)
    try:
        found = measure(sampler, suites, graders, model.tokenizer, model.eos_ids, settings)
    finally:
        sampler.close()
    folder = args.output_dir / folder_name(model.name)
    folder.mkdir(parents=True, exist_ok=True)
    for suite, measurement in found.items():
        ungraded = sum(graded.num_ungraded for graded in measurement.graded.values())
        payload = {
            "model": model.name,
            "suite": suite,
            "problems": len(suites[suite]),
            "figures": {name: score.to_dict() for name, score in measurement.scores.items()},
            "ungraded": ungraded,
            "sandbox": measurement.sandbox,
            "seconds": measurement.seconds,
            "arguments": vars(args) | {"max_tokens": settings.max_tokens},
            "dtype": model.dtype,
            "eos_token_ids": model.eos_ids,
            "versions": versions(*PACKAGES),
            "hardware": hardware(),
        }
        (folder / f"{suite}.json").write_text(json.dumps(payload, indent=2, default=str) + "\n", encoding="utf-8")
        lines = [json.dumps(problem) + "\n" for problem in graded_problems(measurement, suites[suite])]
        (folder / f"{suite}.jsonl").write_text("".join(lines), encoding="utf-8")
        if ungraded:
            print(f"  {suite}: {ungraded} completions have no verdict, because of their gold, and count as wrong")


def graded_problems(measurement: Measurement, problems: Dataset) -> Iterator[dict[str, Any]]:
    """Each problem with its completions, once for each way of decoding."""
    for number, problem in enumerate(problems):
        for way, graded in measurement.graded.items():
            columns = {name: getattr(graded, name)[number].tolist() for name in ("correct", "lengths", "truncated")}
            yield {**problem, "decoding": way, "completions": graded.texts[number], **columns}


def folder_name(model: str) -> str:
    """A model's name as a folder name; "", "." and ".." are not names of a folder below."""
    return re.sub(r'["<>:/|\\?*\[\]]+|^\.{0,2}$', "__", model)


def table(folder: Path) -> str:
    """Table of a folder of results, a row per model and figure, a column per suite; also written to `table.md`.

    Checkpoints are in the order of their steps, and after those of a run comes the best mean@k of each suite.
    """
    found = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*/*.json")]
    rows: dict[tuple[str, float, str], dict[str, dict[str, Any]]] = {}
    for one in found:
        step = step_of(one["model"])
        run = str(Path(one["model"]).parent) if step else one["model"]
        for figure, score in one["figures"].items():
            rows.setdefault((run, step, one["model"]), {}).setdefault(figure, {})[one["suite"]] = score
            if step and figure.startswith("mean@"):
                best = rows.setdefault((run, math.inf, f"{run}, best of each suite"), {}).setdefault(figure, {})
                best[one["suite"]] = max(best.get(one["suite"], score), score, key=lambda score: score["value"])
    if not rows:
        raise ValueError(f"nothing to do: {str(folder)!r} holds no results, and no --model is named.")
    suites = sorted({one["suite"] for one in found}, key=lambda name: [*SUITES, name].index(name))
    headers = ["model", "figure", *(suite_named(name).title for name in suites)]
    lines = [
        [model, figure, *(shown(figure, scores.get(name)) for name in suites)]
        for (_, _, model), figures in sorted(rows.items())
        for figure, scores in figures.items()
    ]
    text = f"{markdown_table(headers, lines)}\n\nShares in percent, 95% bootstrap intervals over problems."
    (folder / "table.md").write_text(text + "\n", encoding="utf-8")
    return text


def shown(figure: str, score: Mapping[str, float] | None) -> str | None:
    """A figure with its interval: lengths in tokens, all others in percent; None where it was not measured."""
    if score is None:
        return None
    scale = 1 if figure == "mean_length" else 100
    value, low, high = (f"{scale * score[name]:,.1f}" for name in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"
