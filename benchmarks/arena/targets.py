# SPDX-License-Identifier: Apache-2.0
"""What `duet` and its parts are to reach on a task, and whether they do.

"In every seed" and "interval" are meant: a target with too few seeds for an interval is missed. Whether nothing else
got worse is a separate question: greedy decoding and pass@8 are not inferior if the interval of the difference ends
above -`NOT_INFERIOR`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from .contest import COSTS, MARGIN, SECONDS, TOKENS, WORDS, Contest, Estimate
from .entrants import REFERENCE

SUBJECT = "duet_stop"
"""Entrant that is held to the targets."""
UNGATED = "grpo_4"
"""GRPO with as many rollouts: the subject without its gate and its end token."""
FEWER = "grpo_2"
"""GRPO with half as many."""
SWAP, PLAIN, SWAP_UNGATED = "duet", "grpo_8", "grpo_4_no_stop"
"""The three without a stop string, as where none ends every answer: \\boxed{...} has none."""
NOT_INFERIOR = 0.02
HALF = 0.5


@dataclass(frozen=True)
class Verdict:
    """Of a target on a task: whether it is met (None: nobody ran what it is about), and by which figures."""

    met: bool | None
    text: str

    def __str__(self) -> str:
        return {True: "met: ", False: "not met: ", None: ""}[self.met] + self.text


@dataclass(frozen=True)
class Target:
    """Something to reach: a claim, as tables have it, who judges it, and the entrants that it is about."""

    claim: str
    judge: Callable[[Contest], Verdict]
    entrants: frozenset[str] = frozenset({SUBJECT})


def signed(estimate: Estimate | None) -> str:
    """A difference with its interval."""
    if estimate is None:
        return "not measured"
    if estimate.interval is None:
        return f"{estimate.mean:+z.3f} (one seed)"
    return f"{estimate.mean:+z.3f} [{estimate.interval[0]:+z.3f}, {estimate.interval[1]:+z.3f}]"


def is_above(estimate: Estimate | None, bound: float) -> bool:
    """Whether the whole interval is."""
    return estimate is not None and estimate.interval is not None and estimate.interval[0] > bound


def _reaches(cost: str, share: float) -> Target:
    def judge(contest: Contest) -> Verdict:
        found = contest.reached(SUBJECT, cost)
        met = bool(found) and all(one is not None and one <= share for one in found)
        return Verdict(met, "; ".join("never" if one is None else f"{one:.0%}" for one in found))

    return Target(
        f"as far as {REFERENCE}'s end - {MARGIN} after <= {share:.0%} of its {WORDS[cost]}, every seed", judge
    )


def _not_worse(figure: str, name: str) -> Target:
    def judge(contest: Contest) -> Verdict:
        lead = contest.final_lead(SUBJECT, figure, contest.serving)
        return Verdict(is_above(lead, -NOT_INFERIOR), signed(lead))

    return Target(f"{name} at the end not {NOT_INFERIOR} below {REFERENCE}'s", judge)


def _ahead(cost: str, other: str, own: str = SUBJECT) -> Target:
    def judge(contest: Contest) -> Verdict:
        lead = contest.lead(own, other, cost, HALF)
        return Verdict(is_above(lead, 0), f"{signed(lead)} over {other}")

    who = "" if own == SUBJECT else f"{own} "
    return Target(f"{who}ahead of {other} at half of {REFERENCE}'s {WORDS[cost]}", judge, frozenset({own, other}))


TARGETS = (
    _reaches(TOKENS, 1 / 3),
    _reaches(SECONDS, 1 / 2.5),
    _not_worse("greedy", "greedy decoding"),
    _not_worse("pass_8", "pass@8"),
    *(_ahead(cost, other) for other in (FEWER, UNGATED) for cost in COSTS),
    *(_ahead(cost, other, SWAP) for other in (PLAIN, SWAP_UNGATED) for cost in COSTS),
)


def verdicts(contest: Contest) -> list[Verdict]:
    """In the order of `TARGETS`."""
    return [
        target.judge(contest) if target.entrants <= contest.runs.keys() else Verdict(None, "not run")
        for target in TARGETS
    ]
