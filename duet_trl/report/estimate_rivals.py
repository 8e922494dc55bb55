# SPDX-License-Identifier: Apache-2.0
"""What other methods would have generated, trained and skipped on the completions of a finished GRPO run.

Each method's rule is applied to the logged groups: directly where it only selects (`grpo`, `pods`, `duet` from its
projection), by `estimate_replays.py` where it draws. Intervals come from a bootstrap over the prompts of the run, each
with all its visits. Where groups are drawn or averaged it weighs prompts by exponential variables; where a method
remembers prompts it draws them with replacement. Tokens are shares of those of the run, which is held fixed.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..allocate.subset import max_variance_subset
from .estimate import GatedTokens, Projection
from .estimate_groups import Groups, differs_among, make_groups, rows_of_groups
from .estimate_replays import MAX_BATCHES, PILOT_ROLLOUTS, Tally, dynamic_sampling, pilot, skipping
from .logged_completions import Completions, counted

REPLAYS = 200
"""Replays behind a figure, and as many behind its interval."""

PILOT_REPLAYS, PILOT_STEPS = (5, 16), 3000
"""Minimum and maximum replays of the pilot, and steps of all of them between these: each step is a plan."""

PILOT_BUDGET = 0.5
"""Budget of the pilot that is shown besides those of the settings."""

NORMAL_QUANTILE = 1.96
"""Of a 95% interval."""

FEW_GROUPS = 32
SEED = 0

ASSUMPTIONS = {
    "grpo": "as logged.",
    "dapo": f"prompts drawn instead are like those of neighbouring steps; at most {MAX_BATCHES} batches a step.",
    "greso": "a visit repeats a nearby logged one of its prompt, so it skips a little too much; others do not count.",
    "pods": "rollouts are chosen on the logged rewards, a quarter of each group and at least 2.",
    "pilot": "rollouts beyond those logged of a group repeat these, so that useful % is a little too low.",
    "duet": "counts are equal, where its allocation prefers prompts that differ; aborted rollouts are not trained.",
}
"""What each projection takes for granted, one line each."""


@dataclass(frozen=True)
class Interval:
    """A figure with its 95% interval."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> "Interval":
        """The same in another unit."""
        return Interval(self.value * factor, self.low * factor, self.high * factor)


@dataclass(frozen=True)
class Rival:
    """One method on the logged steps. Figures are None where the method cannot run or nothing is known."""

    method: str
    budget: float | None  # b; None: the method has none
    rollouts: Interval | None = None
    generated: Interval | None = None  # tokens
    generated_share: Interval | None = None  # relative to what was logged
    trained: Interval | None = None  # tokens
    trained_share: Interval | None = None
    skipped: Interval | None = None  # visits without a rollout; pilot: prompts without a second round
    dropped: Interval | None = None  # prompts whose rollouts were generated and not trained
    useful: Interval | None = None  # share of the trained rollouts that are in groups whose rewards differ
    remark: str = ""


@dataclass(frozen=True)
class Rivals:
    """The methods, or why there are none."""

    rows: list[Rival]
    reason: str = ""  # why there are no rows
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Bootstrap:
    """2R weightings of the prompts: the first R, all alike, give the figure, the others its interval."""

    groups: Groups
    prompts: np.ndarray  # weights of the prompts, shape (2R, P)

    def mean(self, values: np.ndarray) -> np.ndarray:
        """Weighted mean over groups, `values` shape (G,), under each weighting, (2R,)."""
        return (self.prompts @ self._by_prompt(values)) / (self.prompts @ self._by_prompt(np.ones(len(values))))

    def share(self, values: np.ndarray) -> np.ndarray:
        """Of the tokens of a logged group, (2R,)."""
        return self.mean(values) / np.maximum(self.mean(self.groups.tokens), 1.0)

    def _by_prompt(self, values: np.ndarray) -> np.ndarray:
        return np.bincount(self.groups.prompt, weights=values, minlength=self.groups.num_prompts)


def project_rivals(
    completions: Completions,
    lengths: np.ndarray,
    reward: np.ndarray,
    gated: GatedTokens | None,
    projections: Sequence[Projection],
    budgets: Sequence[float],
) -> Rivals:
    """All methods on the logged groups.

    Args:
        completions (Completions): N completions of the run.
        lengths (np.ndarray): Their tokens, shape (N,).
        reward (np.ndarray): Their total rewards, shape (N,), nan where unknown.
        gated (GatedTokens | None): What the gate of `duet` leaves of each; None: no gate.
        projections (Sequence[Projection]): Those of `duet` that are shown, with one marker.
        budgets (Sequence[float]): Budgets of the pilot, besides `PILOT_BUDGET`.
    """
    if np.isnan(reward).all():
        return Rivals([], "not known: the files have no reward.")
    rows, sizes = rows_of_groups(completions)
    if sizes.max() == 1:
        return Rivals([], "not projected: each group has one completion, and these methods compare those of a prompt.")
    groups = make_groups(completions, rows, lengths, reward)
    rng = np.random.default_rng(SEED)
    weights = np.ones((2 * REPLAYS, groups.num_prompts))
    weights[REPLAYS:] = rng.exponential(size=(REPLAYS, groups.num_prompts))
    bootstrap = _Bootstrap(groups, weights)
    found = [
        _whole(bootstrap, "grpo", groups.tokens, groups.tokens, groups.differs),
        _drawn(bootstrap, "dapo", dynamic_sampling(groups, weights, rng)),
        _greso(bootstrap, rng),
        _pods(bootstrap),
        *(_pilot(bootstrap, budget, rng) for budget in sorted({PILOT_BUDGET, *budgets}, reverse=True)),
        *(_duet(bootstrap, item, gated, rows) for item in projections),
    ]
    return Rivals(found, notes=tuple(_notes(groups, len(sizes))))


def _interval(values: np.ndarray, factor: float = 1.0) -> Interval | None:
    """The figure, the mean of the first half of its replays, and 1.96 standard deviations of the others around it.

    Around the figure, because drawing prompts twice shifts what is not linear in them. None without a value.
    """
    if np.isnan(values).any():
        return None
    half = len(values) // 2
    value, reach = float(values[:half].mean()), NORMAL_QUANTILE * float(values[half:].std(ddof=1))
    return Interval(value, max(value - reach, 0.0), value + reach).times(factor)


def _rival(bootstrap: _Bootstrap, method: str, budget: float | None, remark: str, **figures: np.ndarray) -> Rival:
    """A row from replays, shape (2R,) each: rollouts, generated and trained relative to the run, skipped and dropped
    prompts for each logged one (default: none), and useful.
    """
    num, tokens, none = len(bootstrap.groups.step), float(bootstrap.groups.tokens.sum()), np.zeros(4)
    generated, trained = _interval(figures["generated"]), _interval(figures["trained"])
    return Rival(
        method,
        budget,
        rollouts=_interval(figures["rollouts"], num * bootstrap.groups.size),
        generated=generated.times(tokens),
        generated_share=generated,
        trained=trained.times(tokens),
        trained_share=trained,
        skipped=_interval(figures.get("skipped", none), num),
        dropped=_interval(figures.get("dropped", none), num),
        useful=_interval(figures["useful"]),
        remark=remark,
    )


def _whole(
    bootstrap: _Bootstrap,
    method: str,
    generated: np.ndarray,
    trained: np.ndarray,
    useful: np.ndarray,
    budget: float | None = None,
    remark: str = "",
) -> Rival:
    """A method that gives every prompt as many rollouts and drops none; values of each group, shape (G,)."""
    rollouts = np.full(2 * REPLAYS, 1.0 if budget is None else budget)
    tokens = {"generated": bootstrap.share(generated), "trained": bootstrap.share(trained)}
    return _rival(bootstrap, method, budget, remark, rollouts=rollouts, **tokens, useful=bootstrap.mean(useful))


def _drawn(bootstrap: _Bootstrap, method: str, tally: Tally, remark: str = "") -> Rival:
    """A method that draws prompts until enough groups differ."""
    groups, num = bootstrap.groups, len(bootstrap.groups.step)
    logged = np.maximum(bootstrap.mean(groups.tokens), 1.0) * num
    remarks = [remark] if remark else []
    if not groups.differs.any():
        remarks.append(f"no group differs: trains on nothing, at {MAX_BATCHES} batches a step")
    elif missing := round(100 * tally.unfilled[:REPLAYS].mean() / num, 1):
        remarks.append(f"{missing:g}% of the prompts stay missing")
    return _rival(
        bootstrap,
        method,
        None,
        "; ".join(remarks),
        rollouts=tally.groups / num,
        generated=tally.generated / logged,
        trained=tally.trained / logged,
        skipped=tally.skipped / num,
        dropped=(tally.groups - tally.trained_groups) / num,
        useful=np.where(tally.trained_groups > 0, 1.0, np.nan),
    )


def _greso(bootstrap: _Bootstrap, rng: np.random.Generator) -> Rival:
    groups, num = bootstrap.groups, bootstrap.groups.num_prompts
    if not groups.revisits:
        tally = dynamic_sampling(groups, bootstrap.prompts, rng, adaptive=True)
        return _drawn(bootstrap, "greso", tally, "no prompt comes back: cannot skip, resamples only")
    slots = _slots(groups, REPLAYS, rng)
    weights = np.stack([np.bincount(row, minlength=num) for row in slots]).astype(np.float64)
    return _drawn(_Bootstrap(groups, weights), "greso", skipping(groups, slots, rng))


def _slots(groups: Groups, num: int, rng: np.random.Generator) -> np.ndarray:
    """Prompts of 2 x num replays, shape (2 num, P): as they are, then drawn with replacement."""
    prompts = groups.num_prompts
    return np.concatenate([np.tile(np.arange(prompts), (num, 1)), rng.integers(prompts, size=(num, prompts))])


def _pods(bootstrap: _Bootstrap) -> Rival:
    groups = bootstrap.groups
    num_kept = max(2, groups.size // 4)
    kept = np.zeros(groups.lengths.shape, dtype=bool)
    for group, rewards in enumerate(groups.rewards):
        known = np.flatnonzero(~np.isnan(rewards))
        if len(known):
            kept[group, known[max_variance_subset(rewards[known], num_kept)]] = True
    trained = (groups.lengths * kept).sum(axis=1)
    remark = "m = n: drops nothing" if num_kept >= groups.size else f"m = {num_kept} of {groups.size}"
    return _whole(bootstrap, "pods", groups.tokens, trained, groups.differs, remark=remark)


def _pilot(bootstrap: _Bootstrap, budget: float, rng: np.random.Generator) -> Rival:
    groups = bootstrap.groups
    if budget * groups.size < PILOT_ROLLOUTS:
        remark = f"b x n = {budget * groups.size:g} rollouts of a prompt: its pilot alone takes {PILOT_ROLLOUTS}"
        return Rival("pilot", budget, remark=remark)
    num = int(np.clip(PILOT_STEPS // (2 * len(groups.steps)), *PILOT_REPLAYS))
    found = pilot(groups, _slots(groups, num, rng), budget, rng)
    share = found.tokens / np.maximum(found.logged_tokens, 1.0)
    return _rival(
        bootstrap,
        "pilot",
        budget,
        "",
        rollouts=found.rollouts / found.logged_groups / groups.size,
        generated=share,
        trained=share,
        skipped=found.unextended / found.logged_groups,
        useful=found.useful / found.rollouts,
    )


def _duet(bootstrap: _Bootstrap, item: Projection, gated: GatedTokens | None, rows: np.ndarray) -> Rival:
    groups, b = bootstrap.groups, item.budget
    generated = groups.tokens if gated is None else gated.generated[rows].sum(axis=1)
    trained = groups.tokens if gated is None else gated.trained[rows].sum(axis=1)
    chance = _at_count(b * groups.size, lambda count: differs_among(groups, count))
    remark = "no marker, no gate" if item.marker is None else f"marker {item.marker}"
    return _whole(bootstrap, "duet", b * generated, b * trained, chance, b, remark)


def _at_count(count: float, of: Callable[[int], np.ndarray]) -> np.ndarray:
    """A function of a whole number of rollouts where the budget gives some prompts one more than others.

    Weighted by rollouts, since it is they that are counted.
    """
    low = math.floor(count)
    more = count - low
    return of(low) if not more else ((1 - more) * low * of(low) + more * (low + 1) * of(low + 1)) / count


def _notes(groups: Groups, num_groups: int) -> list[str]:
    notes = []
    if others := num_groups - len(groups.step):
        notes.append(
            f"Other methods are projected on the {counted(len(groups.step), 'group')} of {groups.size}; "
            f"{others} of another size are left out."
        )
    if not groups.differs.any():
        notes.append("No group differs in reward: nothing is learnt by any method that compares rollouts of a prompt.")
    if len(groups.steps) == 1:
        notes.append("One batch is logged: the intervals know nothing of how the run changes.")
    if len(groups.step) < FEW_GROUPS:
        notes.append(f"{counted(len(groups.step), 'group')}: the intervals of other methods are rough.")
    return notes
