# SPDX-License-Identifier: Apache-2.0
"""Result files of measurements, written and read; the layout is lm-evaluation-harness's, whose tools can read them.

`results` holds "metric,filter" and "metric_stderr,filter" per task, where the filter is the way of decoding;
`samples_<task>` has one line per problem and way of decoding. What the harness does not know stands in keys of its
own (`intervals`, `step`, `environment`), which its tools pass over.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datasets import Dataset

from .measure import Measurement
from .protocol import CONFIDENCE, Score, mean_over_problems
from .suites import suite_checksum, suite_named

TASK_VERSION = 1.0
"""Of all tasks here: prompts, gold answers and verifiers as `suites` has them."""


@dataclass(frozen=True)
class Subject:
    """What was measured, and how the engine ran."""

    model: str  # name on the Hub or folder
    engine: str  # what generated the completions
    step: int | None = None  # optimizer steps of a training run done before; None: not of a run
    # place of each suite that was not read from its own place on the Hub
    sources: dict[str, str] = field(default_factory=dict)
    limit: int | None = None  # problems taken of each suite; None: all
    chat_template: str | None = None  # of the tokenizer
    eos_ids: tuple[int, ...] = ()  # ids that ended a completion
    details: dict[str, Any] = field(default_factory=dict)  # more settings of the engine, JSON types
    environment: dict[str, Any] = field(default_factory=dict)  # versions and hardware, JSON types


def results_payload(
    measurements: Mapping[str, Measurement], suites: Mapping[str, Dataset], subject: Subject
) -> dict[str, Any]:
    """One measurement of all suites as the harness would write it, in JSON types."""
    figures = {name: _figures(measurement) for name, measurement in measurements.items()}
    return {
        "results": {
            name: {"alias": suite_named(name).title}
            | {f"{metric},{way}": score.value for (metric, way), score in found.items()}
            | {
                f"{metric}_stderr,{way}": score.standard_error if score.num_problems > 1 else "N/A"
                for (metric, way), score in found.items()
            }
            for name, found in figures.items()
        },
        "intervals": {
            name: {f"{metric},{way}": [score.low, score.high] for (metric, way), score in found.items()}
            for name, found in figures.items()
        },
        "confidence": CONFIDENCE,
        "group_subtasks": {name: [] for name in measurements},
        "configs": {name: _config(measurements[name], suites[name], subject) for name in measurements},
        "versions": dict.fromkeys(measurements, TASK_VERSION),
        "n-shot": dict.fromkeys(measurements, 0),
        "higher_is_better": {
            name: {metric: metric not in ("truncated", "mean_length") for metric, _ in found}
            for name, found in figures.items()
        },
        "n-samples": {
            name: {"original": suite_named(name).num_problems or len(suites[name]), "effective": len(suites[name])}
            for name in measurements
        },
        "config": {
            "model": subject.engine,
            "model_args": {"pretrained": subject.model, **subject.details},
            "limit": subject.limit,
            "bootstrap_iters": 4000,
        },
        "model_source": subject.engine,
        "model_name": subject.model,
        "model_name_sanitized": sanitized(subject.model),
        "step": subject.step,
        "eos_token_ids": list(subject.eos_ids),
        "chat_template": subject.chat_template,
        "chat_template_sha": None if subject.chat_template is None else _sha(subject.chat_template),
        "total_evaluation_time_seconds": str(sum(m.seconds for m in measurements.values())),
        "environment": subject.environment,
    }


def write_results(
    folder: Path,
    label: str,
    measurements: Mapping[str, Measurement],
    suites: Mapping[str, Dataset],
    subject: Subject,
    *,
    samples: bool = True,
) -> Path:
    """Write `results_<label>.json`, the path returned, and `samples_<suite>_<label>.jsonl` per suite if asked for.

    The harness has a time stamp in the place of the label, which holds no underscore.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if samples:
        for name, measurement in measurements.items():
            with (folder / f"samples_{name}_{label}.jsonl").open("w", encoding="utf-8") as file:
                file.writelines(json.dumps(line) + "\n" for line in sample_lines(measurement, suites[name]))
    path = folder / f"results_{label}.json"
    write_json(path, results_payload(measurements, suites, subject))
    return path


def write_json(path: Path, payload: Any) -> None:
    """Write a JSON file at once: a run that is killed leaves the old one or the new one."""
    beginning = path.with_suffix(".part")
    beginning.write_text(json.dumps(payload, indent=2) + "\n", encoding="utf-8")
    beginning.replace(path)


@dataclass(frozen=True)
class Figure:
    """A figure of a result file, accuracies in [0, 1], and the ends of its 95% interval where it has one."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Results:
    """A result file."""

    model: str  # model as the file names it
    step: int | None  # optimizer steps of a training run; None where the file does not say
    figures: dict[str, dict[str, Figure]]  # by suite and by metric and way of decoding: "mean@4,sampled"
    path: Path | None = field(default=None, compare=False)  # where it was read


def read_results(place: str | Path) -> list[Results]:
    """The result file of this path, or every `results*.json` in and below this folder, by step, then by path.

    ValueError if there is none, or `write_results` did not write a file.
    """
    place = Path(place)
    if not place.exists():
        raise ValueError(f"there is no file or folder {str(place)!r} with results.")
    paths = sorted(place.rglob("results*.json")) if place.is_dir() else [place]
    if not paths:
        raise ValueError(f"{str(place)!r} has no results*.json, in no folder below it either.")
    return sorted(map(_read, paths), key=lambda results: math.inf if results.step is None else results.step)


def _read(path: Path) -> Results:
    try:
        payload = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is no JSON: {error}. It may be cut off: measure again.") from error
    try:
        model, step, tables = payload["model_name"], payload["step"], payload["results"]
        figures = {
            suite: {name: Figure(tables[suite][name], low, high) for name, (low, high) in intervals.items()}
            for suite, intervals in payload["intervals"].items()
        }
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise ValueError(
            f"{path} is no result file of recipes/evaluate.py or of a training run ({type(error).__name__}: {error}). "
            "Files of other harnesses are not read."
        ) from error
    return Results(model, step, figures, path)


def sample_lines(measurement: Measurement, problems: Dataset) -> Iterator[dict[str, Any]]:
    """One line per problem and way of decoding, as in the harness's sample files.

    `correct`, `lengths` and `truncated` have one entry per response.
    """
    decoding = measurement.settings.decoding()
    for number, problem in enumerate(problems):
        prompt = problem["prompt"][0]["content"]
        code = f"{problem['test']}\ncheck({problem['entry_point']})" if "test" in problem else None
        target = code or str(problem["answer"])
        for way, graded in measurement.graded.items():
            correct = graded.correct[number]
            metrics = {f"mean@{len(correct)}": float(correct.mean())}
            if way != "greedy":
                metrics[f"best@{len(correct)}"] = float(correct.any())
            yield {
                "doc_id": number,
                "doc": problem,
                "target": target,
                "arguments": {"gen_args_0": {"arg_0": prompt, "arg_1": decoding[way]}},
                "resps": [graded.texts[number]],
                "filtered_resps": graded.texts[number],
                "filter": way,
                "metrics": list(metrics),
                "doc_hash": _sha(json.dumps(problem, sort_keys=True)),
                "prompt_hash": _sha(prompt),
                "target_hash": _sha(target),
                **metrics,
                "correct": correct.astype(int).tolist(),
                "lengths": graded.lengths[number].tolist(),
                "truncated": graded.truncated[number].tolist(),
            }


def sanitized(model: str) -> str:
    """A model's name as the harness makes a folder of it; "", "." and ".." are no names of a folder below."""
    return re.sub(r'["<>:/|\\?*\[\]]+|^\.{0,2}$', "__", model)


def _figures(measurement: Measurement) -> dict[tuple[str, str], Score]:
    """All figures of a suite by metric and way of decoding."""
    figures, seed = dict(measurement.scores), measurement.settings.seed
    for way, graded in measurement.graded.items():
        figures["truncated", way] = mean_over_problems(graded.truncated, seed=seed)
        figures["mean_length", way] = mean_over_problems(graded.lengths, seed=seed)
    return figures


def _config(measurement: Measurement, problems: Dataset, subject: Subject) -> dict[str, Any]:
    suite = suite_named(measurement.suite)
    return {
        "task": measurement.suite,
        "dataset_path": subject.sources.get(measurement.suite, suite.hub_id),
        "dataset_name": suite.config,
        "test_split": suite.split,
        "num_fewshot": 0,
        "output_type": "generate_until",
        "repeats": measurement.settings.num_samples,
        "generation_kwargs": measurement.settings.decoding(),
        "metadata": {
            "version": TASK_VERSION,
            "checksum": suite_checksum(suite, problems),
            "published_checksum": suite.checksum,
            "grader": suite.grader,
            "sandbox": measurement.sandbox,
            "ungraded": {way: graded.num_ungraded for way, graded in measurement.graded.items()},
            "seconds": measurement.seconds,
        },
    }


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
