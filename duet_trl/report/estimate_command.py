# SPDX-License-Identifier: Apache-2.0
"""`duet-trl estimate <files>`: what would DUET save on a run that stock TRL GRPO did?"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..gate.markers import MARKERS, get_marker
from ..gate.thresholds import scaled_grace_window
from .estimate import Logged, logged_price, measure_groups, measure_marker, project, total_reward
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

FEW = 32
"""Fewer completions say little about K2 and fewer groups make rough intervals."""

DISAGREEMENT = 0.1
"""Relative difference from the mean length in the run's log that is reported."""

DESCRIPTION = """\
What would DUET save on a run that trl.GRPOTrainer did with log_completions=True? Reads the parquet files that it wrote
to <output_dir>/completions and prints, per answer marker, the tokens after the answer and the marker-less tail, the
groups without any difference in reward, and projected tokens under each budget, with 95% intervals over the prompts of
the run. Works offline and needs no model. Accuracy is not predicted."""


def add_command(commands: Any) -> None:
    """Add the command."""
    estimate = commands.add_parser(
        "estimate", help="what would DUET save on a run that stock TRL GRPO did?", description=DESCRIPTION
    )
    estimate.set_defaults(run=estimate_run)
    add = estimate.add_argument
    add("paths", nargs="+", type=Path, metavar="PATH", help="output_dir of the run, its folder of files, or files")
    add("--json", type=Path, metavar="FILE", help="also write every figure, unrounded, to this file")
    add = estimate.add_argument_group("gate and budget (names and defaults as in DUETGRPOConfig)").add_argument
    help_text = f"a marker besides {', '.join(MARKERS)}: opening...closing; may be repeated"
    add("--marker", type=_marker, action="append", default=[], metavar="NAME", help=help_text)
    help_text = "what opens and closes a thought; nothing: there are none (default: as the completions show)"
    add("--thought_delimiters", nargs="*", metavar="TEXT", help=help_text)
    help_text = "G, tokens after the answer and past K2 (default: 150 of 3,072 of the longest completion, at least 8)"
    add("--grace_window", type=_in("[0, inf)", int), metavar="X", help=help_text)
    help_text = "shares of the full number of rollouts, in (0, 1] (default: %(default)s)"
    add("--budgets", type=_in("(0, 1]"), nargs="+", default=[1.0, 0.5, 0.25], metavar="B", help=help_text)
    add = estimate.add_argument_group("tokens and rewards").add_argument
    add("--tokenizer", metavar="PATH_OR_NAME", help="count tokens: folder with a tokenizer.json, or a model's name")
    help_text = "without a tokenizer (default: from completions/mean_length in the run's log, else "
    help_text += f"{CHARS_PER_TOKEN:g}, which is that of mathematical text)"
    add("--chars_per_token", type=_in("(0, inf)"), metavar="X", help=help_text)
    columns = "reward functions (default: those in the run's log, else all numeric columns)"
    add("--reward_columns", nargs="+", metavar="NAME", help=columns)
    add("--reward_weights", nargs="+", type=_in("(-inf, inf)"), metavar="W", help="as in GRPOConfig (default: 1 each)")


def estimate_run(options: argparse.Namespace) -> int:
    """Run the command; the exit status."""
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


def _estimate(options: argparse.Namespace) -> Estimate:
    files = find_files(options.paths)
    log = read_run_log(files[0].parent)
    completions = read_completions(files, log.evaluated_steps)
    tokens, source, ratio, notes = _tokens(completions, log, options)
    lengths = tokens.lengths
    if not lengths.any():
        raise UnreadableRun("every completion is empty: there are no tokens to save.")
    window = scaled_grace_window(int(lengths.max())) if options.grace_window is None else options.grace_window
    columns, guessed = _reward_columns(completions, log, options.reward_columns)
    reward = total_reward(completions, columns, options.reward_weights)
    try:
        thoughts = find_thoughts(completions, options.thought_delimiters)
        price = logged_price(completions, lengths, reward)
        logged = Logged(completions, tokens, thoughts, reward, price, window)
        markers = [measure_marker(name, logged) for name in dict.fromkeys([*MARKERS, *options.marker])]
    except ValueError as error:  # delimiters that are no pair, or a tokenizer that is not known
        raise UnreadableRun(str(error)) from error
    if len(columns) > 1 and options.reward_weights is None:
        guessed = [*guessed, "Reward functions are added with weight 1 each; --reward_weights gives others."]
    estimate = Estimate(
        run=files[0].parent,
        completions=completions,
        lengths=lengths,
        token_source=source,
        chars_per_token=ratio,
        thoughts=thoughts,
        grace_window=window,
        groups=measure_groups(completions, columns, reward),
        reward_columns=columns,
        markers=markers,
        projections=project(lengths, markers, options.budgets),
        notes=[*completions.notes, *thought_notes(thoughts), *notes, *guessed],
    )
    estimate.notes.extend(_notes(estimate, log))
    return estimate


def _reward_columns(completions: Completions, log: RunLog, given: list[str] | None) -> tuple[list[str], list[str]]:
    """Columns that hold rewards, and a note if that had to be guessed."""
    numbers = list(completions.numbers)
    if given is not None:
        return given, []
    if named := [name for name in numbers if name in log.reward_names]:
        return named, []
    guess = f"Taken as rewards, because they are numbers: {', '.join(numbers)}. Choose with --reward_columns."
    return numbers, [guess] if len(numbers) > 1 else []


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


def _notes(estimate: Estimate, log: RunLog) -> list[str]:
    """What makes a figure doubtful."""
    markers, groups, completions = estimate.markers, estimate.groups, estimate.completions
    notes = {
        "DUETGRPOTrainer made this run: its completions were gated already, and so this understates.": log.is_gated,
        f"{len(estimate.lengths)} completions are few: K2 is learnt from what is there.": len(estimate.lengths) < FEW,
        "The gate stops nothing: no completion reaches K2 + G without a marker, or runs "
        f"{estimate.grace_window} tokens past one. Where it cannot act, lower --grace_window.": not any(
            marker.trim_saves or marker.abort_saves for marker in markers
        ),
        "NO COMPLETION SHOWS ANY OF THE MARKERS: trimming saves nothing and aborting would stop long rollouts "
        'blindly. Give the form of this run\'s answers with --marker "opening...closing".': not any(
            marker.shown for marker in markers
        ),
        "A rare marker saves little by trimming, and aborting stops answers in another form too.": any(
            0 < marker.shown < RARE for marker in markers
        ),
        "No group differs in reward: nothing is learnt by any method that compares rollouts of a prompt.": (
            groups.zero_variance == 1.0
        ),
        "All completions are of one prompt: there are no intervals.": not completions.prompt_number.any(),
        f"{counted(groups.num_groups, 'group')}: the intervals are rough.": (
            bool(completions.prompt_number.any()) and groups.num_groups < FEW
        ),
        "One batch is logged: the intervals know nothing of how the run changes.": len(completions.steps) == 1,
    }
    return [note for note, applies in notes.items() if applies]


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
