# SPDX-License-Identifier: Apache-2.0
"""Reads result files: our own, those of lm-evaluation-harness, and those of lighteval."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .suites import SUITES

NORMAL_95 = 1.96
"""Standard errors to either side of a 95% interval."""

_ALIASES = {
    "math500": "math500",
    "hendrycksmath500": "math500",
    "minervamath500": "math500",
    "gsm8k": "gsm8k",
    "gsm8kcot": "gsm8k",
    "gsm8kcotzeroshot": "gsm8k",
    "gsm8kcotllama": "gsm8k",
    "aime24": "aime2024",
    "aime2024": "aime2024",
    "humaneval": "humaneval",
    "humanevalinstruct": "humaneval",
    "openaihumaneval": "humaneval",
    "gpqadiamond": "gpqa_diamond",
    "gpqadiamondzeroshot": "gpqa_diamond",
    "gpqadiamondnshot": "gpqa_diamond",
    "gpqadiamondcotzeroshot": "gpqa_diamond",
    "gpqadiamondcotnshot": "gpqa_diamond",
    "gpqadiamondgenerativenshot": "gpqa_diamond",
}
"""Names of our suites in both harnesses, in lower case and without anything but letters and digits."""


@dataclass(frozen=True)
class Figure:
    """A figure of a result file.

    Attributes:
        value (float): As it stands there: accuracies in [0, 1].
        low (float | None): Lower end of its 95% interval; None where the file has neither interval nor error.
        high (float | None): Upper end.
    """

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Results:
    """A result file.

    Attributes:
        model (str): Model as the file names it.
        origin (str): "duet", "lm-eval" or "lighteval".
        step (int | None): Optimizer steps of a training run; None where the file does not say.
        figures (dict[str, dict[str, Figure]]): By suite (or the harness's own name of a task that is none of ours) and
            by metric: "mean@4,sampled", "exact_match,strict-match", "extractive_match".
        path (Path | None): Where it was read.
    """

    model: str
    origin: str
    step: int | None
    figures: dict[str, dict[str, Figure]]
    path: Path | None = field(default=None, compare=False)


def read_results(place: str | Path) -> list[Results]:
    """Result files of a place.

    Args:
        place (str | Path): A file, or a folder: every `results*.json` in and below it.

    Returns:
        list[Results]: By step, then by path.

    Raises:
        ValueError: If there is none, or a file is not in one of the three layouts.
    """
    place = Path(place)
    if not place.exists():
        raise ValueError(f"there is no file or folder {str(place)!r} with results.")
    paths = sorted(place.rglob("results*.json")) if place.is_dir() else [place]
    if not paths:
        raise ValueError(f"{str(place)!r} has no results*.json, in no folder below it either.")
    found = [parse_results(_load(path), path) for path in paths]
    return sorted(found, key=lambda results: math.inf if results.step is None else results.step)


def parse_results(payload: Any, path: Path | None = None) -> Results:
    """One result file, whoever wrote it.

    Args:
        payload (Any): Its JSON.
        path (Path | None): Where it was read, for messages.

    Returns:
        Results: What it holds.

    Raises:
        ValueError: If it is in none of the layouts.
    """
    tables = payload.get("results") if isinstance(payload, dict) else None
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise ValueError(
            f"{path}: no results of lm-evaluation-harness, lighteval or recipes/evaluate.py: there is no 'results' "
            "with a table per task."
        )
    if "config_general" in payload:
        origin, model = "lighteval", _lighteval_model(payload["config_general"])
    else:
        origin = "duet" if "intervals" in payload else "lm-eval"
        model = payload.get("model_name") or _model_of_arguments(payload.get("config") or {})
    intervals, step = payload.get("intervals") or {}, payload.get("step")
    figures: dict[str, dict[str, Figure]] = {}
    for task, table in tables.items():
        metrics = _metrics(table, intervals.get(task) or {})
        if metrics and not (origin == "lighteval" and task == "all"):
            figures.setdefault(suite_of(task), {}).update(metrics)
    if not figures:
        raise ValueError(f"{path}: its 'results' hold no figures.")
    return Results(str(model or "unknown"), origin, step if isinstance(step, int) else None, figures, path)


def suite_of(task: str) -> str:
    """Our name of a task of a harness; the task's own where it is none of our suites."""
    if task in SUITES:
        return task
    parts = task.split("|")  # lighteval: suite|task|shots, later task|shots
    bare = max(parts[:2], key=lambda part: _plain(part) in _ALIASES) if len(parts) > 1 else task
    return _ALIASES.get(_plain(bare), task)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _metrics(table: Mapping[str, Any], intervals: Mapping[str, Any]) -> dict[str, Figure]:
    """Figures of a task; errors and intervals go with the figure they belong to."""
    found = {}
    for name, value in table.items():
        metric, comma, way = name.partition(",")
        if not _is_number(value) or metric.endswith("_stderr") or metric in ("alias", "sample_len", "samples"):
            continue
        error = table.get(f"{metric}_stderr{comma}{way}")
        if name in intervals:
            found[name] = Figure(float(value), *map(float, intervals[name]))
        elif _is_number(error):
            found[name] = Figure(float(value), value - NORMAL_95 * error, value + NORMAL_95 * error)
        else:
            found[name] = Figure(float(value))
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _lighteval_model(general: Mapping[str, Any]) -> Any:
    config = general.get("model_config") or {}
    return general.get("model_name") or (config.get("model_name") if isinstance(config, dict) else None)


def _model_of_arguments(config: Mapping[str, Any]) -> Any:
    """The model in lm-eval's arguments, "pretrained=name,dtype=..." or a mapping."""
    arguments = config.get("model_args") or ""
    if isinstance(arguments, dict):
        return arguments.get("pretrained") or arguments.get("model")
    found = re.search(r"(?:^|,)(?:pretrained|model)=([^,]+)", arguments)
    return found[1] if found else config.get("model")


def _load(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is no JSON: {error}. It may be cut off: measure again.") from error
