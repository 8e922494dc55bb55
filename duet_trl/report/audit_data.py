# SPDX-License-Identifier: Apache-2.0
"""What the audit log says of single rollouts: how long they were, and how hard their prompts (`audit_log=True`)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from .arm_figures import mean
from .arms import Arm
from .figure_data import NotDrawn, Subject
from .layout import Value
from .runs import RunRecord, series

FOLDER = "duet_audit"
LEVEL = "level"
LATE_SHARE = 0.1
"""The last tenth of the steps is the trained policy."""


@dataclass(frozen=True)
class Difficulty:
    """Difficulty of the prompts of an arm.

    Attributes:
        epochs (list[int]): Epochs, from 1.
        by_epoch (list[Value]): Mean level of the prompts of an epoch, each counted as often as it has rollouts.
        average (Value): The same over the whole run.
        reference (float): Mean level of the prompts that were trained on, each counted once.
    """

    epochs: list[int]
    by_epoch: list[Value]
    average: Value
    reference: float


def read_audit(subject: Subject, run: RunRecord, columns: Sequence[str]) -> pd.DataFrame:
    """Columns of the audit log, a row per rollout, beginnings that a later rollout took up left out.

    Raises:
        NotDrawn: If the run has no audit log, or not with these columns.
    """
    files = sorted((subject.folders[run.model, run.name] / FOLDER).glob("*.parquet"))
    if not files:
        raise NotDrawn("no audit log. Train with audit_log=True.")
    missing = sorted(set(columns) - set(pq.read_schema(files[0]).names))
    if missing:
        raise NotDrawn(f"no {', '.join(missing)} in the audit log. Train with audit_columns={missing}.")
    wanted = ["step", "outcome", *columns]
    rows = pd.concat([pq.read_table(file, columns=wanted).to_pandas() for file in files], ignore_index=True)
    return rows[rows["outcome"] != "superseded"]


def difficulty(subject: Subject, arm: Arm) -> Difficulty:
    """How hard the prompts are on which an arm spent its rollouts, over its seeds.

    Raises:
        NotDrawn: If a run has no audit log with the level of its prompts, or no numbers there.
    """
    tables = [_levels(subject, run) for run in arm.runs.values()]
    epochs = sorted(set.intersection(*(set(table["epoch"]) for table in tables)))
    levels = [table.groupby("epoch")[LEVEL].mean() for table in tables]
    return Difficulty(
        epochs,
        [mean(float(level[epoch]) for level in levels) for epoch in epochs],
        mean(float(table[LEVEL].mean()) for table in tables),
        float(pd.concat(tables).groupby("prompt")[LEVEL].first().mean()),
    )


def epochs_of(run: RunRecord, steps: np.ndarray) -> np.ndarray:
    """Epoch of each step, from 1, shape (K,): that in which the step ended, by the `epoch` of the log.

    Raises:
        NotDrawn: If the log has no epochs.
    """
    logged, ends = series([entry for entry in run.log if entry["step"] > 0], "epoch")
    if not logged.size:
        raise NotDrawn("no epoch in the log.")
    # The end of a step that was not logged itself lies on the line between its neighbours; training begins at 0.
    at = np.interp(steps, np.concatenate([[0], logged]), np.concatenate([[0.0], ends]))
    return np.maximum(np.ceil(at - 1e-6), 1).astype(np.int64)


def lengths(subject: Subject, arm: Arm, *, late: bool) -> np.ndarray:
    """Tokens of the rollouts of an arm's first step, or of its last steps (`LATE_SHARE`), shape (N,).

    Raises:
        NotDrawn: If a run has no audit log.
    """
    found = []
    for run in arm.runs.values():
        rows = read_audit(subject, run, ["length"])
        step, last = rows["step"], rows["step"].max()
        chosen = step > (1 - LATE_SHARE) * last if late else step == step.min()
        found.append(rows.loc[chosen, "length"].to_numpy())
    return np.concatenate(found)


def density(values: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Gaussian kernel density of lengths at `at`, shape (P,), per token; its mass below 0 is reflected.

    The bandwidth is Silverman's, 0.9 min(deviation, interquartile range / 1.34) N^(-1/5), and at least one token.
    """
    places, counts = np.unique(values, return_counts=True)
    quartiles = np.subtract(*np.percentile(values, [75, 25]))
    width = max(1.0, 0.9 * min(values.std(), quartiles / 1.34) * len(values) ** -0.2)
    kernels = sum(np.exp(-0.5 * np.square((at[:, None] - sign * places) / width)) for sign in (1, -1))  # (P, values)
    return kernels @ counts / (len(values) * width * np.sqrt(2 * np.pi))


def _levels(subject: Subject, run: RunRecord) -> pd.DataFrame:
    """Epoch, prompt and level of each rollout; those whose level is no number are left out."""
    rows = read_audit(subject, run, ["prompt", LEVEL])
    rows[LEVEL] = pd.to_numeric(rows[LEVEL], errors="coerce")  # written as text
    rows = rows.dropna(subset=[LEVEL])
    if rows.empty:
        raise NotDrawn(f"no number in the column {LEVEL!r} of the data set.")
    return rows.assign(epoch=epochs_of(run, rows["step"].to_numpy()))
