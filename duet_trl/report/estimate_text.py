# SPDX-License-Identifier: Apache-2.0
"""The estimate of `estimate.py` as text and as JSON: what is measured, what is projected, under which assumptions."""

import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .estimate import GroupSpread, Interval, Lengths, MarkerEstimate, Projection, Settings
from .logged_completions import Completions, counted
from .tables import text_table
from .tokens import LoggedThoughts

WIDTH = 119
"""Characters of a line of prose."""

RARE = 0.1
"""A marker shown in a smaller share of completions is probably not the run's."""


@dataclass(frozen=True)
class Estimate:
    """Everything there is to say about a run."""

    run: Path  # folder of the files
    completions: Completions  # what was read
    token_source: str  # where token counts come from
    chars_per_token: float | None  # the ratio if they are estimated; None if a tokenizer counted them
    thoughts: LoggedThoughts  # where the completions think
    lengths: Lengths  # measured lengths, K1 and K2
    groups: GroupSpread  # measured spread of rewards
    reward_columns: list[str]  # columns it was measured on
    markers: list[MarkerEstimate]  # measured per marker
    projections: list[Projection]  # projected cost
    seconds_per_step: float | None  # of the run; None if unknown
    seconds_source: str  # where they come from, or what to do
    num_steps: int | None  # optimizer steps of the run; None if unknown
    settings: Settings  # what was assumed
    notes: list[str]  # what the reader should know about this run

    @property
    def usual_marker(self) -> str | None:
        """The marker that most completions show; None if none shows any."""
        usual = max(self.markers, key=lambda marker: marker.shown)
        return usual.marker if usual.shown else None


def report_text(estimate: Estimate) -> str:
    """The tables for a terminal, without a final newline."""
    window = estimate.settings.grace_window
    parts = [
        "What would DUET save on this run?\n" + _verdict(estimate),
        "MEASURED on the logged completions\n" + _measured(estimate),
        f"MEASURED per marker, in % (G = {window})\n" + _marker_table(estimate),
        "PROJECTED for the logged batches\n" + _projection_table(estimate),
        "NOTES\n" + "\n".join(_wrapped(line, "* ") for line in [*estimate.notes, *_assumptions(estimate)]),
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
    rows = {
        "completions": f"{len(estimate.completions.texts):,} in {counted(groups.num_groups, 'group')} (step, prompt), "
        f"{counted(len(steps), 'batch', 'batches')} logged at {when}",
        "tokens": f"{about}{lengths.total:,}, {estimate.token_source}",
        "length": f"mean {lengths.mean:.1f} tokens; first batch {lengths.first_batch:.1f}, "
        f"last batch {lengths.last_batch:.1f}",
        "thresholds": f"{_poll(estimate)}, K2 per marker, abort gate at K2 + G",
        **_group_rows(groups, estimate.reward_columns),
        "seconds": _seconds_text(estimate),
    }
    return "\n".join(f"  {name:<14} {text}" for name, text in rows.items())


def _poll(estimate: Estimate) -> str:
    if estimate.settings.abort_rule == "price":
        return "K1 = 1 (polled from the start)"
    return f"K1 = {estimate.lengths.poll_threshold} (quantile {estimate.settings.poll_quantile:g} of the lengths)"


def _rule(settings: Settings) -> str:
    if settings.abort_rule == "length":
        return f"quantile {settings.abort_quantile:g} of the lengths"
    return (
        "where going on without an answer earns less per token than another rollout would; an answer time is the "
        "first poll that would see the answer, also behind the end"
    )


def _group_rows(groups: GroupSpread, columns: Sequence[str]) -> dict[str, str]:
    if groups.zero_variance is None:
        return {"zero variance": "not known: no group has two completions with a reward or an advantage"}
    share = _percent(groups.zero_variance, groups.zero_variance_interval, "%")
    zero = f"{share} of {groups.num_scored:,} groups: all rewards equal, nothing to learn"
    named = f"columns: {', '.join(columns)}" if columns else "not known: the files have no reward column"
    return {"zero variance": zero, "rewards": named}


def _seconds_text(estimate: Estimate) -> str:
    seconds, steps = estimate.seconds_per_step, estimate.num_steps
    if seconds is None:
        return estimate.seconds_source
    text = f"{seconds:.4g} per step ({estimate.seconds_source})"
    return text if steps is None else f"{text}; {seconds * steps:,.4g} in {counted(steps, 'step')}"


def remark(marker: MarkerEstimate, settings: Settings) -> str:
    """Why the row of a marker should not be believed, or saves nothing; empty if there is nothing to say."""
    if marker.shown == 0:
        return "not shown: wrong marker?"
    parts = ["rare: wrong marker?"] if marker.shown < RARE else []
    parts += ["trim cannot act"] if settings.trim and not marker.trim_can_act else []
    parts += ["abort cannot act"] if settings.abort and not marker.abort_can_act else []
    return "; ".join(parts)


def _marker_table(estimate: Estimate) -> str:
    settings, thinks = estimate.settings, estimate.thoughts.delimiters is not None
    rows = []
    for marker in estimate.markers:
        shares = {
            "shown in": marker.shown,
            **({"in thought": marker.in_thought} if thinks else {}),
            "tokens after answer": _percent(marker.tokens_after_answer, marker.tokens_after_answer_interval),
            "trim saves": marker.trim_saves if marker.trim_can_act else None,
            "tail": _percent(marker.tail, marker.tail_interval),
            "tail tokens": marker.tail_tokens,
            "abort saves": marker.abort_saves if marker.abort_can_act else None,
            "tail above mean": marker.tail_above_mean,
            "answer changes": marker.answer_changes,
        }
        cells = [share if isinstance(share, str) else _rounded(share) for share in shares.values()]
        rows.append([marker.marker, marker.abort_threshold, *cells, remark(marker, settings)])
    legend = (
        f"K2: {_rule(settings)}. shown in: completions with the marker. "
        + ("in thought: those that show it first inside a thought, where it does not count. " if thinks else "")
        + "tokens after answer, trim saves, tail tokens, abort saves: of all tokens. trim saves: those beyond tau + "
        "G. tail: completions without a marker at K2 + G. tail tokens: theirs beyond K2 + G. abort saves: 1 - eps of "
        "these. tail above mean: of the tail, completions better than their group. answer changes: of the trimmed, "
        "completions whose last answer is another one after the cut. cannot act: comes behind the end of the longest "
        "completion. In brackets: 95% intervals over the prompts of the run."
    )
    table = text_table(["marker", "K2", *shares, "remark"], rows)
    return f"{textwrap.indent(table, '  ')}\n{_wrapped(legend)}"


def _projection_table(estimate: Estimate) -> str:
    seconds = estimate.seconds_per_step
    headers = ["gate", "budget %", "rollouts", "tokens", "tokens %", "time % (rest stays)"]
    headers += ["s/step (rest stays)", "s/step (rest shrinks)"] if seconds is not None else []
    remarks = {marker.marker: remark(marker, estimate.settings) for marker in estimate.markers}
    rows = []
    for item in estimate.projections:
        row = ["none" if item.marker is None else item.marker, _rounded(item.budget), round(item.rollouts)]
        share = _percent(item.token_share, item.token_share_interval)
        row += [round(item.tokens), share, _rounded(item.time_share_high)]
        if seconds is not None:
            row += [seconds * item.time_share_high, seconds * item.time_share_low]
        rows.append([*row, remarks.get(item.marker, "")])
    return textwrap.indent(text_table([*headers, "remark"], rows), "  ")


def _percent(share: float, interval: Interval | None, unit: str = "") -> str:
    """A share in %, with its interval where there is one that is no point."""
    text = f"{100 * share:.1f}{unit}"
    if interval is None or interval[0] == interval[1]:
        return text
    return f"{text} [{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]"


def _assumptions(estimate: Estimate) -> list[str]:
    settings = estimate.settings
    share = f"{100 * settings.generation_share:g}"
    trim, abort = ("on" if on else "off" for on in (settings.trim, settings.abort))
    keep = "as in training" if settings.keep_probability is None else f"{settings.keep_probability:g}"
    return [
        "Tokens at budget b = b x logged completions x mean length under the gate (eps "
        f"{keep}, poll every {settings.poll_interval}, trim {trim}, abort {abort}). "
        "K1 and K2 are those of all logged completions; in training they follow the rollouts.",
        "Not in it: allocation moves rollouts between prompts of different length; the entropy rule stops answered "
        "rollouts before tau + G; a policy trained with the gate writes other lengths.",
        f"Time: generation is taken as proportional to tokens and as {share}% of a step (--generation_share). The "
        "rest of the step stays as it is, or shrinks with the tokens as training does; then time % is tokens %.",
        "Accuracy is NOT predicted: fewer rollouts and shorter ones may learn less per step.",
    ]


def as_json(estimate: Estimate) -> dict[str, Any]:
    """Every figure, unrounded, in JSON types."""
    completions, thoughts, seconds = estimate.completions, estimate.thoughts, estimate.seconds_per_step
    return {
        "inputs": {"run": str(estimate.run), "steps": list(completions.steps), "completions": len(completions.texts)},
        "settings": asdict(estimate.settings),
        "measured": {
            "token_source": estimate.token_source,
            "tokens_are_estimated": estimate.chars_per_token is not None,
            "chars_per_token": estimate.chars_per_token,
            "reward_columns": estimate.reward_columns,
            "thought_delimiters": [] if thoughts.delimiters is None else list(thoughts.delimiters.parts),
            "begin_in_thought": int(thoughts.opened.sum()),
            "lengths": asdict(estimate.lengths),
            "groups": asdict(estimate.groups),
            "markers": [asdict(marker) for marker in estimate.markers],
            "seconds_per_step": seconds,
            "seconds_source": estimate.seconds_source,
            "num_steps": estimate.num_steps,
        },
        "projected": [
            asdict(item)
            | {
                f"seconds_per_step_{end}": None if seconds is None else seconds * share
                for end, share in (("low", item.time_share_low), ("high", item.time_share_high))
            }
            for item in estimate.projections
        ],
        "notes": estimate.notes,
        "assumptions": _assumptions(estimate),
    }


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 1)


def _wrapped(text: str, bullet: str = "") -> str:
    indent = "  " + " " * len(bullet)
    return textwrap.fill(text, WIDTH, initial_indent=f"  {bullet}", subsequent_indent=indent, break_on_hyphens=False)
