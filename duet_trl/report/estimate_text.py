# SPDX-License-Identifier: Apache-2.0
"""The estimate of `estimate.py` as text and as JSON: what is measured, what is projected, under which assumptions."""

import textwrap
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .estimate import GroupSpread, Interval, MarkerEstimate, Projection
from .logged_completions import Completions, counted
from .tables import text_table
from .tokens import LoggedThoughts

WIDTH = 119
"""Characters of a line of prose."""

RARE = 0.1
"""A marker shown in a smaller share of completions is probably not the run's."""

LEGEND = (
    "K2: where going on without an answer earns less per token than another rollout would; an answer time is the "
    "first poll that would see the answer, also behind the end. shown in: completions with the marker. "
    "tokens after answer, trim saves, tail tokens, abort saves: of all tokens. trim saves: beyond tau + G. tail: "
    "completions without a marker at K2 + G. tail tokens: theirs beyond K2 + G. abort saves: 1 - eps of these. tail "
    "above mean: of the tail, completions better than their group. answer changes: of the trimmed, completions whose "
    "last answer is another one after the cut. In brackets: 95% intervals over the prompts of the run."
)

ASSUMPTIONS = (
    "Tokens at budget b = b x logged completions x mean length under the gate (poll every 8 tokens, eps as in "
    "training). K2 is that of all logged completions; in training it follows the rollouts.",
    "Not in it: allocation moves rollouts between prompts of different length; the entropy rule stops answered "
    "rollouts before tau + G; a policy trained with the gate writes other lengths.",
    "Accuracy is NOT predicted: fewer rollouts and shorter ones may learn less per step.",
)


@dataclass(frozen=True)
class Estimate:
    """Everything there is to say about a run."""

    run: Path  # folder of the files
    completions: Completions  # what was read
    lengths: np.ndarray  # tokens of each completion, shape (N,)
    token_source: str  # where token counts come from
    chars_per_token: float | None  # the ratio if they are estimated; None if a tokenizer counted them
    thoughts: LoggedThoughts  # where the completions think
    grace_window: int  # G, tokens
    groups: GroupSpread  # groups that taught nothing
    reward_columns: list[str]  # columns that this was measured on
    markers: list[MarkerEstimate]  # measured per marker
    projections: list[Projection]  # projected cost
    notes: list[str]  # what the reader should know about this run

    @property
    def usual_marker(self) -> str | None:
        """The marker that most completions show; None if none shows any."""
        usual = max(self.markers, key=lambda marker: marker.shown)
        return usual.marker if usual.shown else None


def report_text(estimate: Estimate) -> str:
    """The tables for a terminal, without a final newline."""
    parts = [
        "What would DUET save on this run?\n" + _verdict(estimate),
        "MEASURED on the logged completions\n" + _measured(estimate),
        f"MEASURED per marker, in % (G = {estimate.grace_window})\n" + _marker_table(estimate),
        "PROJECTED for the logged batches\n" + _projection_table(estimate),
        "NOTES\n" + "\n".join(_wrapped(line, "* ") for line in [*estimate.notes, *ASSUMPTIONS]),
    ]
    return "\n\n".join(parts)


def _verdict(estimate: Estimate) -> str:
    """Share of the logged tokens at each budget, with the gate of the marker that fits."""
    marker = estimate.usual_marker
    gate = "without a gate, as no completion shows a marker" if marker is None else f"with the gate of marker {marker}"
    shares = [
        f"{_percent(item.token_share, item.token_share_interval, '%')} at a budget of {100 * item.budget:g}%"
        for item in estimate.projections
        if item.marker == marker
    ]
    return _wrapped(f"It would have generated, of the logged tokens, {', '.join(shares)}, {gate}.")


def _measured(estimate: Estimate) -> str:
    lengths, steps, groups = estimate.lengths, estimate.completions.steps, estimate.groups
    when = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    about = "" if estimate.chars_per_token is None else "about "
    zero = "not known: no group has two completions with a reward or an advantage"
    if groups.zero_variance is not None:
        share = _percent(groups.zero_variance, groups.zero_variance_interval, "%")
        zero = f"{share} of {groups.num_scored:,} groups: all rewards equal, nothing to learn"
    rows = {
        "completions": f"{len(lengths):,} in {counted(groups.num_groups, 'group')} (step, prompt), "
        f"{counted(len(steps), 'batch', 'batches')} logged at {when}",
        "tokens": f"{about}{lengths.sum():,}, {estimate.token_source}",
        "length": f"mean {lengths.mean():.1f} tokens, at most {lengths.max():,}",
        "rewards": ", ".join(estimate.reward_columns) or "not known: the files have no reward column",
        "zero variance": zero,
    }
    return "\n".join(f"  {name:<14} {text}" for name, text in rows.items())


def remark(marker: MarkerEstimate) -> str:
    """Why the row of a marker should not be believed; empty if there is nothing to say."""
    if marker.shown == 0:
        return "not shown: wrong marker?"
    return "rare: wrong marker?" if marker.shown < RARE else ""


def _marker_table(estimate: Estimate) -> str:
    rows = []
    for marker in estimate.markers:
        shares = {
            "shown in": marker.shown,
            "tokens after answer": _percent(marker.tokens_after_answer, marker.tokens_after_answer_interval),
            "trim saves": marker.trim_saves,
            "tail": _percent(marker.tail, marker.tail_interval),
            "tail tokens": marker.tail_tokens,
            "abort saves": marker.abort_saves,
            "tail above mean": marker.tail_above_mean,
            "answer changes": marker.answer_changes,
        }
        cells = [share if isinstance(share, str) else _rounded(share) for share in shares.values()]
        rows.append([marker.marker, marker.abort_threshold, *cells, remark(marker)])
    table = text_table(["marker", "K2", *shares, "remark"], rows)
    return f"{textwrap.indent(table, '  ')}\n{_wrapped(LEGEND)}"


def _projection_table(estimate: Estimate) -> str:
    remarks = {marker.marker: remark(marker) for marker in estimate.markers}
    rows = [
        [
            item.marker or "none",
            _rounded(item.budget),
            round(item.rollouts),
            round(item.tokens),
            _percent(item.token_share, item.token_share_interval),
            remarks.get(item.marker or "none", ""),
        ]
        for item in estimate.projections
    ]
    return textwrap.indent(text_table(["gate", "budget %", "rollouts", "tokens", "tokens %", "remark"], rows), "  ")


def _percent(share: float, interval: Interval | None, unit: str = "") -> str:
    """A share in %, with its interval where there is one that is no point."""
    text = f"{100 * share:.1f}{unit}"
    if interval is None or interval[0] == interval[1]:
        return text
    return f"{text} [{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]"


def as_json(estimate: Estimate) -> dict[str, Any]:
    """Every figure, unrounded, in JSON types."""
    completions, thoughts, lengths = estimate.completions, estimate.thoughts, estimate.lengths
    return {
        "inputs": {"run": str(estimate.run), "steps": list(completions.steps), "completions": len(lengths)},
        "measured": {
            "token_source": estimate.token_source,
            "tokens_are_estimated": estimate.chars_per_token is not None,
            "chars_per_token": estimate.chars_per_token,
            "reward_columns": estimate.reward_columns,
            "thought_delimiters": [] if thoughts.delimiters is None else list(thoughts.delimiters.parts),
            "begin_in_thought": int(thoughts.opened.sum()),
            "grace_window": estimate.grace_window,
            "lengths": {"total": int(lengths.sum()), "mean": float(lengths.mean()), "longest": int(lengths.max())},
            "groups": asdict(estimate.groups),
            "markers": [asdict(marker) for marker in estimate.markers],
        },
        "projected": [asdict(item) for item in estimate.projections],
        "notes": estimate.notes,
        "assumptions": list(ASSUMPTIONS),
    }


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 1)


def _wrapped(text: str, bullet: str = "") -> str:
    indent = "  " + " " * len(bullet)
    return textwrap.fill(text, WIDTH, initial_indent=f"  {bullet}", subsequent_indent=indent, break_on_hyphens=False)
