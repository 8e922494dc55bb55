# SPDX-License-Identifier: Apache-2.0
"""Steps of `evaluate.py`: what is measured, on what, in which engine, and the table at the end."""

import argparse
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset
from samplers import Model, build_sampler

from duet_trl.evaluation.compare import Shift, best_and_last, candidates, shift_of, table
from duet_trl.evaluation.measure import Settings, measure
from duet_trl.evaluation.results import Results, Subject, read_results, sanitized, write_json, write_results
from duet_trl.evaluation.suites import load_suite, suite_named
from duet_trl.report.environment import hardware, versions
from duet_trl.report.tables import markdown_table

MAX_TOKENS = 3072  # the paper's
PACKAGES = ("duet-trl", "torch", "transformers", "datasets", "vllm", "math-verify")
NOTES = {
    "best": (
        "'best of each suite' is the paper's headline: the best mean@k over all checkpoints, for each suite on its "
        "own. It selects on the test set and is too high for that; 'last' selects nothing. Step 0 is no candidate."
    ),
    "shift": (
        "'shifted' = value - (step 0 of the run - common step 0), the paper's baseline correction. It adds the noise "
        "of two measurements of step 0 to every figure; the intervals are those of the raw values."
    ),
}


@dataclass(frozen=True)
class Lengths:
    """Tokens: of the longest completion, and of the longest sequence that the engine must take."""

    max_tokens: int
    sequence: int


@dataclass(frozen=True)
class Suites:
    """Problems by suite, the places that were named for them, and how many of each were taken at most."""

    problems: dict[str, Dataset]
    places: dict[str, str]
    limit: int | None


def expand_models(names: Sequence[str]) -> list[str]:
    """The models; a run's folder stands for its checkpoints in the order of their steps.

    The model that a run leaves beside them is the last checkpoint again.
    """
    found: list[str] = []
    for name in names:
        nested = [path for path in Path(name).glob("checkpoint-*") if path.is_dir()]
        found += [str(path) for path in sorted(nested, key=lambda path: step_of(str(path)) or 0)] or [name]
    return found


def step_of(name: str) -> int | None:
    """Optimizer steps of a checkpoint: by the folder's name, or the state or measurement in it; None of others."""
    folder = Path(name)
    if match := re.fullmatch(r"checkpoint-(\d+)", folder.name):
        return int(match[1])
    for file, key in (("trainer_state.json", "global_step"), ("evaluation.json", "step")):
        if (folder / file).is_file():
            return json.loads((folder / file).read_text(encoding="utf-8")).get(key)
    return None


def load_suites(names: Sequence[str], sources: Sequence[str], limit: int | None) -> Suites:
    """Problems by suite.

    Raises:
        ValueError: If a source is not of the form suite=place or names a suite that is not measured; and as
            `load_suite`.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"--limit must be at least 1, got {limit}.")
    places = {}
    for entry in sources:
        name, separator, place = entry.partition("=")
        if not separator or not place or name not in names:
            raise ValueError(f"--sources takes suite=place for a suite of --suites {','.join(names)}, got {entry!r}.")
        places[name] = place
    problems = {}
    for name in dict.fromkeys(names):
        loaded = load_suite(name, places.get(name))
        problems[name] = loaded if limit is None else loaded.select(range(min(limit, len(loaded))))
    return Suites(problems, places, limit)


def check_lengths(model: Model, suites: Suites, max_tokens: int | None, context: int | None = None) -> Lengths:
    """How long completions may be.

    Args:
        model (Model): The model.
        suites (Suites): Problems.
        max_tokens (int | None): As asked for; None: the paper's, or what the context leaves if that is less.
        context (int | None): Longest sequence of the engine; None: that of the model.

    Raises:
        ValueError: If the context is too short for the prompts and what was asked for.
    """
    prompts = [prompt for problems in suites.problems.values() for prompt in problems["prompt"]]
    longest = max(len(model.prompt_ids(prompt)) for prompt in prompts)
    context = min(model.context, context or model.context)
    left = context - longest
    if left < 1:
        raise ValueError(
            f"{model.name!r} takes sequences of {context} tokens in this engine, the longest prompt has {longest}. "
            "Choose other suites or another model, or start the server with a larger --max-model-len."
        )
    if max_tokens is not None and not 1 <= max_tokens <= left:
        raise ValueError(
            f"--max_tokens must be in 1..{left} for {model.name!r}, got {max_tokens}: it takes sequences of {context} "
            f"tokens in this engine, and the longest prompt has {longest}."
        )
    if max_tokens is None and left < MAX_TOKENS:
        print(f"note: {model.name} leaves {left} tokens for a completion, less than the paper's {MAX_TOKENS}.")
    chosen = max_tokens or min(MAX_TOKENS, left)
    return Lengths(chosen, longest + chosen)


def measure_model(
    args: argparse.Namespace,
    model: Model,
    lengths: Lengths,
    settings: Settings,
    suites: Suites,
    graders: Mapping[str, Any],
) -> Results:
    """Load a model, measure it, write its files, free it."""
    begin = time.perf_counter()
    print(f"{model.name}: {args.engine}, {settings}", flush=True)
    sampler = build_sampler(args, model, lengths.sequence)
    try:
        measurements = measure(sampler, suites.problems, graders, model.tokenizer, model.eos_ids, settings)
    finally:
        sampler.close()
    details = {"dtype": model.dtype, "seed": args.seed, "revision": args.revision, "graded": args.graded}
    subject = Subject(
        model=model.name,
        engine=args.engine,
        step=step_of(model.name),
        sources=suites.places,
        limit=suites.limit,
        chat_template=str(model.tokenizer.chat_template),
        eos_ids=model.eos_ids,
        details=details | {"chat_template_kwargs": model.template_kwargs},
        environment={"versions": versions(*PACKAGES), "hardware": hardware()},
    )
    label = time.strftime("%Y-%m-%dT%H-%M-%S")
    folder = args.output_dir / sanitized(model.name)
    path = write_results(folder, label, measurements, suites.problems, subject, samples=args.save_samples)
    for name, measurement in measurements.items():
        count, seconds = len(suites.problems[name]), f"{measurement.seconds:.1f} s"
        where = "" if measurement.sandbox is None else f", programs ran in the sandbox mode {measurement.sandbox}"
        ungraded = sum(graded.num_ungraded for graded in measurement.graded.values())
        doubt = f", {ungraded} completions without a verdict count as wrong" if ungraded else ""
        print(f"  {suite_named(name).title}: {count} problems, {seconds}{where}{doubt}")
    print(f"  {path} ({time.perf_counter() - begin:.1f} s)", flush=True)
    return read_one(path)


def read_one(place: str | Path) -> Results:
    """A result file.

    Raises:
        ValueError: If the place holds none, or several.
    """
    found = read_results(place)
    if len(found) > 1:
        raise ValueError(f"{str(place)!r} holds {len(found)} result files: name one of them.")
    return found[0]


def check_shift(
    shift_to: str | None,
    step0: str | None,
    models: Sequence[str],
    suites: Sequence[str],
    num_samples: int,
    beside: Sequence[Sequence[Results]],
) -> tuple[Results | None, Results | None]:
    """Files of the common step 0 and of the run's own, checked before anything is measured.

    Raises:
        ValueError: If a file is not there, the reference lacks a figure, or no step 0 of the run will be there.
    """
    if shift_to is None:
        if step0 is not None:
            raise ValueError("--step0 belongs to --shift_to, the common step 0 that figures are shifted to.")
        return None, None
    reference, own = read_one(shift_to), None if step0 is None else read_one(step0)
    wanted = f"mean@{num_samples},sampled"
    for results in filter(None, (reference, own)):
        missing = [suite for suite in suites if wanted not in results.figures.get(suite, {})]
        if missing:
            raise ValueError(f"{results.path} has no {wanted} of {', '.join(missing)}: measure step 0 as the rest.")
    groups = [[step_of(name) for name in models]] if models else [[run.step for run in group] for group in beside]
    if own is None and not any(0 in steps or None in steps for steps in groups):
        raise ValueError(
            "--shift_to needs step 0 of the run itself: give the model that training began with as the first --model, "
            "or its result file as --step0."
        )
    return reference, own


def print_table(
    folder: Path,
    beside: Sequence[Sequence[Results]],
    measured: Sequence[Results],
    step0: Results | None,
    reference: Results | None,
) -> None:
    """Print all results as a Markdown table, runs of several checkpoints with best and last; write table.md and .json.

    Args:
        folder (Path): Where to write.
        beside (Sequence[Sequence[Results]]): Results read from each place.
        measured (Sequence[Results]): Results of the models of the command line, in its order; they come last.
        step0 (Results | None): Own step 0 of the measured runs (of the last one read, if nothing is measured), if it
            is not among their results.
        reference (Results | None): Common step 0; None: no shift.
    """
    runs = _runs(measured)
    groups = [*beside, *runs]
    rows: list[tuple[Results, Shift | None]] = []
    used, doubts = set(), []
    for group in groups:
        selected: list[Results] = []
        # Models without steps are different models, none of which is the best or the last checkpoint of the others.
        if len(candidates(group)) > 1 and any(results.step for results in group):
            try:
                selected = best_and_last(group)
                used.add("best")
            except ValueError as error:
                doubts.append(f"No best and last: {error}")
        shift = None
        if reference is not None:
            begun = step0 if group in (runs or groups[-1:]) else None
            begun = begun or _step0(group) or (_step0(measured) if group in runs else None)
            shift = None if begun is None else shift_of(begun, reference)
            used.add("shift")
        rows += [(results, shift) for results in [*group, *selected]]
    headers, cells = table([results for results, _ in rows], [shift for _, shift in rows])
    notes = ["Accuracies and shares in percent, 95% bootstrap intervals over problems."]
    notes += [text for name, text in NOTES.items() if name in used] + doubts
    text = "\n\n".join([markdown_table(headers, cells), *notes])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.md").write_text(text + "\n", encoding="utf-8")
    write_json(folder / "table.json", {"headers": headers, "rows": cells, "notes": notes})
    print(f"\n{text}\n\n{folder / 'table.md'}")


def _runs(measured: Sequence[Results]) -> list[list[Results]]:
    """Measured models run by run: checkpoints of one folder belong together, models before the first open its run."""
    runs: list[list[Results]] = []
    current: Path | None = None
    for results in measured:
        folder = current if results.step is None else Path(results.model).parent
        if not runs or current not in (None, folder):
            runs.append([])
        runs[-1].append(results)
        current = folder
    return runs


def _step0(run: Sequence[Results]) -> Results | None:
    """Step 0 of a run: the measurement that says so, else the first model without a step."""
    found = [results for results in run if results.step == 0] or [results for results in run if results.step is None]
    return found[0] if found else None
