# SPDX-License-Identifier: Apache-2.0
"""`duet-trl estimate <files>`: what would DUET save on a run that stock TRL GRPO did?"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from ..gate.markers import MARKERS, get_marker
from .estimate import (
    GroupSpread,
    Logged,
    MarkerEstimate,
    Settings,
    logged_price,
    measure_groups,
    measure_lengths,
    measure_marker,
    project,
    total_reward,
)
from .estimate_text import RARE, Estimate, as_json, report_text
from .logged_completions import (
    Completions,
    RunLog,
    UnreadableRun,
    counted,
    find_files,
    read_completions,
    read_run_log,
)
from .tokens import CHARS_PER_TOKEN, Tokens, cut_texts, find_thoughts, load_tokenizer, thought_notes, tokenize

FEW_COMPLETIONS = 32
"""Fewer say little about length quantiles: the trainer, too, waits for as many before its first refit."""

FEW_GROUPS = 32
"""Intervals over fewer are rough."""

DISAGREEMENT = 0.1
"""Relative difference from the mean length in the run's log that is reported."""

DESCRIPTION = """\
What would DUET save on a run that trl.GRPOTrainer did with log_completions=True? Reads the parquet files that it wrote
to <output_dir>/completions and prints, per answer marker, the tokens after the answer and the marker-less tail, the
groups without any difference in reward, and projected tokens and seconds under each budget, with 95% intervals over
the prompts of the run. Works offline and needs no model. Accuracy is not predicted."""


def add_command(commands: Any) -> None:
    """Add the command; an option that is a field of `Settings` has its name and its default."""
    estimate = commands.add_parser(
        "estimate", help="what would DUET save on a run that stock TRL GRPO did?", description=DESCRIPTION
    )
    estimate.set_defaults(run=estimate_run, error=estimate.error, **vars(Settings()))
    add = estimate.add_argument
    add("paths", nargs="+", type=Path, metavar="PATH", help="output_dir of the run, its folder of files, or files")
    add("--json", type=Path, metavar="FILE", help="also write every figure, unrounded, to this file")
    gate = estimate.add_argument_group("gate and budget (names and defaults as in DUETGRPOConfig)")
    add = gate.add_argument
    help_text = f"a marker besides {', '.join(MARKERS)}: opening...closing; may be repeated"
    add("--marker", type=_marker, action="append", default=[], metavar="NAME", help=help_text)
    help_text = "what opens and closes a thought; nothing: there are none (default: as the completions show)"
    add("--thought_delimiters", nargs="*", metavar="TEXT", help=help_text)
    for name, kind, meaning in (
        ("poll_interval", _in("[1, inf)", int), "tokens between two marker checks"),
        ("keep_probability", _in("(0, 1]"), "eps of the coin at the abort gate; None: as training would set it"),
        ("poll_quantile", _in("[0, 1]"), "length quantile of K1 with --abort_rule length"),
        ("abort_quantile", _in("[0, 1]"), "length quantile of K2 with --abort_rule length"),
    ):
        add(f"--{name}", type=kind, metavar="X", help=f"{meaning} (default: %(default)s)")
    help_text = "K2 and the coin from what answers earn per token, or from quantiles of lengths (default: %(default)s)"
    add("--abort_rule", choices=("price", "length"), help=help_text)
    help_text = "G, tokens after the answer and past K2 (default: 150 of 3,072 of the longest completion, at least 8)"
    add("--grace_window", type=_in("[0, inf)", int), metavar="X", help=help_text)
    add("--no_trim", dest="trim", action="store_false", help="let answered rollouts run to their end")
    add("--no_abort", dest="abort", action="store_false", help="let marker-less rollouts run to their end")
    help_text = "shares of the full number of rollouts, in (0, 1] (default: %(default)s)"
    add("--budgets", type=_in("(0, 1]"), nargs="+", metavar="B", help=help_text)
    _add_sources(estimate)


def estimate_run(options: argparse.Namespace) -> int:
    """Run the command; the exit status."""
    if options.poll_quantile > options.abort_quantile:
        options.error(f"--poll_quantile {options.poll_quantile} is above --abort_quantile {options.abort_quantile}.")
    try:
        estimate = _estimate(options)
        sys.stdout.write(report_text(estimate) + "\n")
        if options.json is not None:
            options.json.write_text(json.dumps(as_json(estimate), indent=2) + "\n", encoding="utf-8")
            sys.stdout.write(f"\nwritten: {options.json}\n")
    except (UnreadableRun, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


def _add_sources(estimate: argparse.ArgumentParser) -> None:
    """Where tokens, rewards and seconds come from."""
    add = estimate.add_argument_group("tokens and rewards").add_argument
    add("--tokenizer", metavar="PATH_OR_NAME", help="count tokens: folder with a tokenizer.json, or a model's name")
    help_text = "without a tokenizer (default: from completions/mean_length in the run's log, else "
    help_text += f"{CHARS_PER_TOKEN:g}, which is that of mathematical text)"
    add("--chars_per_token", type=_in("(0, inf)"), metavar="X", help=help_text)
    columns = "reward functions (default: those in the run's log, else all numeric columns)"
    add("--reward_columns", nargs="+", metavar="NAME", help=columns)
    add("--reward_weights", nargs="+", type=_in("(-inf, inf)"), metavar="W", help="as in GRPOConfig (default: 1 each)")
    add = estimate.add_argument_group("seconds").add_argument
    add("--trainer_state", type=Path, metavar="FILE", help="log of the run (default: looked for beside the files)")
    add("--seconds_per_step", type=_in("(0, inf)"), metavar="X", help="(default: mean step_time in the run's log)")
    help_text = (
        "share of a step that is generation (default: %(default)s, an assumption; TRL logs its seconds to W&B, "
    )
    help_text += "MLflow and Trackio as profiling/Time taken: GRPOTrainer.vLLM.generate or .transformers.generate)"
    add("--generation_share", type=_in("[0, 1]"), metavar="X", help=help_text)


def _estimate(options: argparse.Namespace) -> Estimate:
    files = find_files(options.paths)
    run = files[0].parent
    log = read_run_log(run, options.trainer_state)
    completions = read_completions(files, log.evaluated_steps)
    chosen = {field.name: getattr(options, field.name) for field in fields(Settings)}
    chosen |= {"markers": tuple(dict.fromkeys([*MARKERS, *options.marker])), "budgets": tuple(options.budgets)}
    settings = Settings(**chosen)
    tokens, source, ratio, notes = _tokens(completions, log, options)
    lengths = measure_lengths(completions, tokens, settings)
    settings = settings.with_limit(lengths.longest)
    columns, guessed = _reward_columns(completions, log, options.reward_columns)
    reward = total_reward(completions, columns, options.reward_weights)
    try:
        thoughts = find_thoughts(completions, options.thought_delimiters)
        price = logged_price(completions, tokens.lengths, reward)
        logged = Logged(tokens, thoughts, lengths, settings, reward, price)
        markers = [measure_marker(name, completions, logged) for name in settings.markers]
    except ValueError as error:  # delimiters that are no pair, or a tokenizer that is not known
        raise UnreadableRun(str(error)) from error
    projections = project(lengths, markers, len(completions.texts), settings)
    groups = measure_groups(completions, columns, reward)
    seconds, seconds_source = _seconds(log, options.seconds_per_step)
    notes = [*completions.notes, *thought_notes(thoughts), *notes, *guessed]
    if same := [name for name in columns if _constant(completions.numbers[name])]:
        notes.append(f"The same reward everywhere: {', '.join(same)}. No group differs by it.")
    if len(columns) > 1 and options.reward_weights is None:
        notes.append("Reward functions are added with weight 1 each; --reward_weights gives others.")
    return Estimate(
        run=run,
        completions=completions,
        token_source=source,
        chars_per_token=ratio,
        thoughts=thoughts,
        lengths=lengths,
        groups=groups,
        reward_columns=columns,
        markers=markers,
        projections=projections,
        seconds_per_step=seconds,
        seconds_source=seconds_source,
        num_steps=log.num_steps or None,
        settings=settings,
        notes=[*notes, *_notes(completions, markers, log, settings), *_interval_notes(completions, groups)],
    )


def _reward_columns(completions: Completions, log: RunLog, given: list[str] | None) -> tuple[list[str], list[str]]:
    """Columns that hold rewards, and a note if that had to be guessed."""
    numbers = list(completions.numbers)
    if given is not None:
        return given, []
    if named := [name for name in numbers if name in log.reward_names]:
        return named, []
    guess = f"Taken as rewards, because they are numbers: {', '.join(numbers)}. Choose with --reward_columns."
    return numbers, [guess] if len(numbers) > 1 else []


def _constant(values: np.ndarray) -> bool:
    known = values[~np.isnan(values)]
    return len(known) > 0 and bool(known.min() == known.max())


def _tokens(
    completions: Completions, log: RunLog, options: argparse.Namespace
) -> tuple[Tokens, str, float | None, list[str]]:
    """Tokens, where they come from, the ratio if they are an estimate, and a note if the log disagrees."""
    ratio, means = None, log.values("completions/mean_length")  # tokens, end tokens included
    logged = np.array([means.get(step, np.nan) for step in completions.steps])[completions.batch]  # (N,)
    known = ~np.isnan(logged)
    mean = float(logged[known].mean()) if known.any() else 0.0
    if options.tokenizer is not None:
        tokens = tokenize(completions.texts, load_tokenizer(options.tokenizer))
        source = f"counted with the tokenizer {options.tokenizer}, end tokens left out"
    else:
        chars = np.fromiter(map(len, completions.texts), np.float64, len(completions.texts))
        if options.chars_per_token is not None:
            ratio, source = options.chars_per_token, "--chars_per_token"
        elif mean and chars[known].any():
            ratio, source = float(chars[known].mean()) / mean, "from completions/mean_length in the run's log"
        else:
            ratio, source = CHARS_PER_TOKEN, "the default, for mathematical text; --tokenizer counts exactly"
        tokens = cut_texts(completions.texts, ratio)
        source = f"ESTIMATED at {ratio:.3g} characters per token ({source})"
    here = float(tokens.lengths[known].mean()) if mean else 0.0
    if not mean or abs(here / mean - 1.0) <= DISAGREEMENT:
        return tokens, source, ratio, []
    note = f"{here:.1f} tokens per completion here, {mean:.1f} in the run's log. Wrong tokenizer or ratio?"
    return tokens, source, ratio, [note]


def _seconds(log: RunLog, given: float | None) -> tuple[float | None, str]:
    if given is not None:
        return given, "--seconds_per_step"
    if log.path is None:
        return None, "not known: no trainer_state.json was found. Give --trainer_state or --seconds_per_step"
    if times := log.values("step_time"):
        return sum(times.values()) / len(times), f"mean step_time of {log.path}"
    if (runtime := log.values("train_runtime")) and log.num_steps:
        return list(runtime.values())[-1] / log.num_steps, f"train_runtime of {log.path} over its steps"
    return None, f"not known: {log.path} has no step_time. Give --seconds_per_step"


def _notes(completions: Completions, markers: Sequence[MarkerEstimate], log: RunLog, settings: Settings) -> list[str]:
    notes = []
    if log.is_gated:
        notes.append("DUETGRPOTrainer made this run: its completions were gated already, and so this understates.")
    if len(completions.texts) < FEW_COMPLETIONS:
        notes.append(f"{len(completions.texts)} completions are few: K1 and K2 are quantiles of what is there.")
    if (settings.trim or settings.abort) and not any(m.trim_saves or m.abort_saves for m in markers):
        notes.append(
            f"The gate stops nothing: no completion reaches K2 + G without a marker, or runs {settings.grace_window} "
            "tokens past one. Where it cannot act, lower --grace_window."
        )
    if not any(marker.shown for marker in markers):
        notes.append(
            "NO COMPLETION SHOWS ANY OF THE MARKERS: trimming saves nothing and aborting would stop long rollouts "
            'blindly. Give the form of this run\'s answers with --marker "opening...closing".'
        )
    if any(0 < marker.shown < RARE for marker in markers):
        notes.append("A rare marker saves little by trimming, and aborting stops answers in another form too.")
    return notes


def _interval_notes(completions: Completions, groups: GroupSpread) -> list[str]:
    notes = []
    if groups.zero_variance == 1.0:
        notes.append("No group differs in reward: nothing is learnt by any method that compares rollouts of a prompt.")
    if not completions.prompt_number.any():
        notes.append("All completions are of one prompt: there are no intervals.")
    elif groups.num_groups < FEW_GROUPS:
        notes.append(f"{counted(groups.num_groups, 'group')}: the intervals are rough.")
    if len(completions.steps) == 1:
        notes.append("One batch is logged: the intervals know nothing of how the run changes.")
    return notes


def _marker(name: str) -> str:
    try:
        get_marker(name)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return name


def _in(interval: str, kind: type = float) -> Callable[[str], float]:
    """Reads a number of an interval such as "(0, 1]"; argparse words the ValueError of what is no number."""
    low, high = map(float, interval[1:-1].split(","))

    def read(text: str) -> float:
        value = kind(text)
        above = value > low if interval[0] == "(" else value >= low
        if not (above and (value < high if interval[-1] == ")" else value <= high)):
            raise argparse.ArgumentTypeError(f"must be in {interval}, got {text}")
        return value

    read.__name__ = kind.__name__
    return read
