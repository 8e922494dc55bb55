# SPDX-License-Identifier: Apache-2.0
"""`duet-trl estimate <output_dir>`: what would DUET save on a run that stock TRL GRPO did?"""

import argparse
import json
import sys
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..gate.markers import MARKERS, get_marker
from ..gate.thresholds import scaled_grace_window
from .estimate import Interval, MarkerEstimate, Texts, logged_price, measure_marker, tokenize, zero_variance
from .logged_completions import UnreadableRun, find_tokenizer, read_run
from .tables import text_table

BUDGETS = (1.0, 0.5, 0.25)
"""Shares of the full number of rollouts that are projected."""

RARE = 0.1
"""A marker shown in a smaller share of completions is probably not the run's."""

DESCRIPTION = """\
What would DUET save on a run that trl.GRPOTrainer did with log_completions=True? Prints, per answer marker, the tokens
after the answer and the marker-less tail, the groups without any difference in reward, and projected tokens at each
budget, with 95% intervals over the prompts of the run. Works offline and needs no model. Accuracy is not predicted."""

LEGEND = (
    "K2: where continuing without an answer earns less per token than another rollout would. tokens after answer, "
    "trim saves, tail tokens, abort saves: of all tokens. trim saves: beyond tau + G. tail: without a marker at "
    "K2 + G. tail tokens: theirs beyond it. abort saves: 1 - eps of these. tail above mean: of the tail, completions "
    "better than their group. answer changes: of the trimmed, completions whose last answer is another one after the "
    "cut. In brackets: 95% intervals over the prompts of the run."
)

ASSUMPTIONS = (
    "Tokens at budget b = b x logged completions x mean length under the gate (poll every 8 tokens, eps as in "
    "training). K2 is that of all logged completions; in training it follows the rollouts.",
    "Not included: the entropy rule stops answered rollouts before tau + G; a policy trained with the gate writes "
    "other lengths.",
    "Accuracy is NOT predicted: fewer rollouts and shorter ones may learn less per step.",
)


def add_command(commands: Any) -> None:
    """Add the command."""
    estimate = commands.add_parser(
        "estimate", help="what would DUET save on a run that stock TRL GRPO did?", description=DESCRIPTION
    )
    estimate.set_defaults(run=estimate_run)
    add = estimate.add_argument
    add("path", type=Path, help="output_dir of the run, or its folder of completions")
    help_text = "folder with a tokenizer.json, or a model's name (default: that of the run's last checkpoint)"
    add("--tokenizer", metavar="PATH_OR_NAME", help=help_text)
    help_text = f"a marker besides {', '.join(MARKERS)}: opening...closing; may be repeated"
    add("--marker", type=_marker, action="append", default=[], metavar="NAME", help=help_text)
    help_text = "G, tokens after the answer and past K2 (default: 150 of 3,072 of the longest completion, at least 8)"
    add("--grace_window", type=int, metavar="TOKENS", help=help_text)
    add("--reward_weights", nargs="+", type=float, metavar="W", help="as in GRPOConfig (default: 1 each)")
    add("--json", type=Path, metavar="FILE", help="also write every figure, unrounded, to this file")


def estimate_run(options: argparse.Namespace) -> int:
    """Run the command; the exit status."""
    found = _estimate(options)
    sys.stdout.write(_text(found) + "\n")
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0


def _estimate(options: argparse.Namespace) -> dict[str, Any]:
    """Every figure, in JSON types."""
    run = read_run(options.path, options.reward_weights)
    texts = tokenize(run, find_tokenizer(options.path, options.tokenizer))
    lengths = texts.lengths
    if not lengths.any():
        raise UnreadableRun("every completion is empty: there are no tokens to save.")
    window = scaled_grace_window(int(lengths.max())) if options.grace_window is None else options.grace_window
    price = logged_price(run, lengths)
    markers = [measure_marker(name, texts, window, price) for name in dict.fromkeys([*MARKERS, *options.marker])]
    num_scored, share, interval = zero_variance(run)
    return {
        "inputs": {"run": str(options.path), "steps": run.steps, "completions": len(lengths)},
        "measured": {
            "reward_columns": run.rewards,
            "grace_window": window,
            "lengths": {"total": int(lengths.sum()), "mean": float(lengths.mean()), "longest": int(lengths.max())},
            "groups": {
                "num_groups": int(run.group.max()) + 1,
                "num_scored": num_scored,
                "zero_variance": share,
                "zero_variance_interval": interval,
            },
            "markers": [asdict(marker) for marker in markers],
        },
        "projected": _project(float(lengths.mean()), markers),
        "notes": [*run.notes, *_notes(texts, markers, options)],
        "assumptions": list(ASSUMPTIONS),
    }


def _project(mean: float, markers: list[MarkerEstimate]) -> list[dict[str, Any]]:
    """Tokens relative to the log at each budget, without a gate and with that of each marker a completion shows."""
    gates: list[tuple[str | None, float, Interval | None]] = [(None, 1.0, None)]
    gates += [(one.marker, one.gated_mean / mean, one.gated_share_interval) for one in markers if one.shown]
    return [
        {
            "marker": marker,
            "budget": budget,
            "token_share": budget * share,
            "token_share_interval": None if interval is None else [budget * end for end in interval],
        }
        for marker, share, interval in gates
        for budget in BUDGETS
    ]


def _notes(texts: Texts, markers: list[MarkerEstimate], options: argparse.Namespace) -> list[str]:
    """Reasons to doubt a figure."""
    rewards, notes = texts.run.rewards, []
    if len(rewards) > 1 and options.reward_weights is None:
        notes.append(f"Added as rewards with weight 1 each: {', '.join(rewards)}; --reward_weights gives others.")
    if texts.delimiters is not None:
        notes.append(
            f"Thoughts are between {' and '.join(texts.delimiters.parts)}; answers inside of them do not count. "
            f"{texts.opened.sum():,} completions begin inside one."
        )
    if not any(marker.shown for marker in markers):
        notes.append(
            "NO COMPLETION SHOWS ANY OF THE MARKERS: trimming saves nothing and aborting would stop long rollouts "
            'blindly. Give the form of this run\'s answers with --marker "opening...closing".'
        )
    return notes


def _text(found: dict[str, Any]) -> str:
    """Verdict, what is measured, and what it rests on, for a terminal."""
    measured, steps, groups = found["measured"], found["inputs"]["steps"], found["measured"]["groups"]
    usual = max(measured["markers"], key=lambda marker: marker["shown"])
    gate = usual["marker"] if usual["shown"] else None
    shares = [
        f"{_percent(item['token_share'], item['token_share_interval'], '%')} at a budget of {100 * item['budget']:g}%"
        for item in found["projected"]
        if item["marker"] == gate
    ]
    words = f"with the gate of marker {gate}" if gate else "without a gate, as no completion shows a marker"
    zero = "not known: no group has two completions with a reward or an advantage"
    if groups["zero_variance"] is not None:
        share = _percent(groups["zero_variance"], groups["zero_variance_interval"], "%")
        zero = f"{share} of {groups['num_scored']:,} groups: all rewards equal, nothing to learn"
    facts = {
        "completions": f"{found['inputs']['completions']:,} in {groups['num_groups']:,} groups (step, prompt), "
        f"{len(steps)} batches logged at steps {steps[0]} to {steps[-1]}",
        "tokens": "{total:,}, mean {mean:.1f}, at most {longest:,}".format(**measured["lengths"]),
        "rewards": ", ".join(measured["reward_columns"]) or "not known: the files have no reward column",
        "zero variance": zero,
    }
    headers = ("marker", "K2", "shown in", "tokens after answer", "trim saves", "tail", "tail tokens")
    headers += ("abort saves", "tail above mean", "answer changes", "remark")
    parts = [
        "What would DUET save on this run?",
        _wrapped(f"It would have generated, of the logged tokens, {', '.join(shares)}, {words}."),
        "\nMEASURED on the logged completions",
        *(f"  {name:<14} {text}" for name, text in facts.items()),
        f"\nMEASURED per marker, in % (G = {measured['grace_window']})",
        textwrap.indent(text_table(headers, [_row(marker) for marker in measured["markers"]]), "  "),
        _wrapped(LEGEND),
        "\nNOTES",
        *(_wrapped(line, "* ") for line in [*found["notes"], *ASSUMPTIONS]),
    ]
    return "\n".join(parts)


def _row(marker: dict[str, Any]) -> list[Any]:
    remark = "rare: wrong marker?" if marker["shown"] < RARE else ""
    shares = [
        marker["shown"],
        _percent(marker["tokens_after_answer"], marker["tokens_after_answer_interval"]),
        marker["trim_saves"],
        _percent(marker["tail"], marker["tail_interval"]),
        *(marker[name] for name in ("tail_tokens", "abort_saves", "tail_above_mean", "answer_changes")),
    ]
    cells = [round(100 * share, 1) if isinstance(share, float) else share for share in shares]
    return [
        marker["marker"],
        marker["abort_threshold"],
        *cells,
        remark if marker["shown"] else "not shown: wrong marker?",
    ]


def _percent(share: float, interval: Interval | None, unit: str = "") -> str:
    """A share in %, with its interval if there is one wider than a point."""
    text = f"{100 * share:.1f}{unit}"
    if interval is None or interval[0] == interval[1]:
        return text
    return f"{text} [{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]"


def _marker(name: str) -> str:
    try:
        get_marker(name)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return name


def _wrapped(text: str, bullet: str = "") -> str:
    indent = "  " + " " * len(bullet)
    return textwrap.fill(text, 119, initial_indent=f"  {bullet}", subsequent_indent=indent, break_on_hyphens=False)
