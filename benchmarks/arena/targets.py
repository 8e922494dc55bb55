# SPDX-License-Identifier: Apache-2.0
"""What `duet` is to reach, and whether it does.

Everything is relative to the reference, GRPO with all rollouts, on the same task. "Nowhere" is on none of the tasks
that have runs of the reference; an entrant without runs there has missed. "The target" is that of `contest.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .contest import Contest
from .entrants import ENTRANTS, REFERENCE
from .pace import SECONDS
from .quantities import DIFFERENCE, Figures, Quantity, figure_of
from .ranking import HALF, TOKENS, best_rivals

SUBJECTS = ("duet", "duet_quarter")
"""Entrants that are held to the targets: with at most half of the reference's rollouts."""
TOLERANCE = 0.01
"""Accuracy that may be lost."""
NO_RIVALS = (REFERENCE, *(name for name, entrant in ENTRANTS.items() if entrant.method == "duet"))
"""The reference, which the other targets are about, and forms of `duet`."""


@dataclass(frozen=True)
class Verdict:
    """Of a target and an entrant.

    Attributes:
        met (bool): Whether it is reached.
        text (str): By which figures.
    """

    met: bool
    text: str


@dataclass(frozen=True)
class Target:
    """Something to reach.

    Attributes:
        claim (str): As tables have it.
        judge (Callable[[Mapping[str, Contest], Figures, str], Verdict]): Of the contests, the figures by task and
            entrant, and an entrant.
    """

    claim: str
    judge: Callable[[Mapping[str, Contest], Figures, str], Verdict]


def _below(quantity: Quantity, most: float) -> bool:
    """Whether all of the interval is."""
    return quantity.interval is not None and quantity.interval[1] <= most


def cheap_on_two(tokens: float, seconds: float) -> Target:
    """On two tasks the target is reached with such shares of the reference's tokens and processor seconds at most."""

    def judge(contests: Mapping[str, Contest], figures: Figures, entrant: str) -> Verdict:
        found = [
            task
            for task in contests
            if _below(figure_of(figures, task, entrant, "generated_tokens_share"), tokens)
            and _below(figure_of(figures, task, entrant, "processor_seconds_share"), seconds)
        ]
        return Verdict(len(found) >= 2, ", ".join(found) or "on none")

    claim = f"at the target after at most {tokens:.0%} of {REFERENCE}'s tokens and {seconds:.0%} of its seconds"
    return Target(f"{claim}, intervals included, on two tasks", judge)


def nowhere_below(cost: str, share: float, name: str) -> Target:
    """After a share of what the reference spent, on no task more than `TOLERANCE` below where the reference ends."""

    def judge(contests: Mapping[str, Contest], _: Figures, entrant: str) -> Verdict:
        found = {task: one.at_cost(entrant, cost, share) for task, one in contests.items() if entrant in one.runs}
        missing = [task for task in contests if found.get(task) is None]
        if missing:
            return Verdict(False, f"no figure on {', '.join(missing)}")
        worst = min(found, key=lambda task: found[task].to_end.value)
        text = Quantity(found[worst].to_end, DIFFERENCE).full_text
        return Verdict(found[worst].to_end.value >= -TOLERANCE, f"{text} on {worst}")

    claim = f"after {share:.0%} of {REFERENCE}'s {name} nowhere more than {TOLERANCE} below its final accuracy"
    return Target(claim, judge)


def share_on(task: str, most: float) -> Target:
    """On a task the target is reached with such a share of the reference's tokens at most."""

    def judge(_: Mapping[str, Contest], figures: Figures, entrant: str) -> Verdict:
        share = figure_of(figures, task, entrant, "generated_tokens_share")
        return Verdict(share.value is not None and share.value <= most, share.full_text)

    return Target(f"{task}: at the target after at most {most:.0%} of {REFERENCE}'s tokens", judge)


def ahead_of_rivals() -> Target:
    """At half of the reference's tokens ahead of the best rival on two tasks, and resolvably behind it on none."""

    def judge(contests: Mapping[str, Contest], _: Figures, entrant: str) -> Verdict:
        ahead, behind = [], []
        for task, contest in contests.items():
            for rival in best_rivals(contest, NO_RIVALS, 1):
                lead = contest.lead(entrant, rival, TOKENS, HALF) if entrant in contest.runs else None
                if lead is None:
                    behind.append(f"not compared with {rival} on {task}")
                elif lead.value > 0:
                    ahead.append(f"{lead.value:+.3f} over {rival} on {task}")
                elif lead.resolvable is not None and -lead.value > lead.resolvable:
                    behind.append(f"{lead.value:+.3f} over {rival} on {task}")
        return Verdict(len(ahead) >= 2 and not behind, ", ".join([*ahead, *behind]) or "no rival has runs")

    return Target(f"ahead of the best rival after half of {REFERENCE}'s tokens on two tasks, nowhere behind", judge)


TARGETS = (
    cheap_on_two(1 / 3, 1 / 2.5),
    nowhere_below(TOKENS, HALF, "tokens"),
    nowhere_below(SECONDS, 1 / 3.4, "seconds"),
    share_on("two_ways", 0.6),
    share_on("one_epoch", 1 / 1.5),
    ahead_of_rivals(),
)


def verdicts(contests: Mapping[str, Contest], figures: Figures) -> dict[str, list[Verdict]]:
    """Of every subject that has runs, in the order of `TARGETS`."""
    subjects = [name for name in SUBJECTS if any(name in own for own in figures.values())]
    return {name: [target.judge(contests, figures, name) for target in TARGETS] for name in subjects}


def missed(found: Mapping[str, list[Verdict]]) -> list[str]:
    """What no subject can show: empty if one of them reaches every target.

    Args:
        found (Mapping[str, list[Verdict]]): `verdicts`.

    Returns:
        list[str]: Targets that the subject nearest to all of them misses, with its figures.
    """
    lines = [
        [
            f"{name} misses: {target.claim} ({one.text})"
            for target, one in zip(TARGETS, own, strict=True)
            if not one.met
        ]
        for name, own in found.items()
    ]
    return min(lines, key=len, default=[f"none of {', '.join(SUBJECTS)} has runs"])
