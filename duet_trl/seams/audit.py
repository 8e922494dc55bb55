# SPDX-License-Identifier: Apache-2.0
"""Per-rollout audit log: what was decided about every single rollout, as parquet."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..gate.replay import Outcome
from ..rollouts import Prompt, StepRecord


class AuditLog:
    """One parquet file per generation step under `output_dir/duet_audit`."""

    def __init__(self, output_dir: str, columns: list[str]) -> None:
        self.folder = Path(output_dir) / "duet_audit"
        self.columns = columns

    def write(self, step: int, rollouts: dict[str, Any], prompts: list[Prompt], group: Iterable[int]) -> Path:
        """Write the rollouts of one step."""
        for column in self.columns:
            if column not in prompts[0].example:
                raise ValueError(f"audit_columns names {column!r}, but the data set has {sorted(prompts[0].example)}.")
        extra = {column: [str(prompts[q].example[column]) for q in group] for column in self.columns}
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"step_{step:06d}.parquet"
        pq.write_table(pa.table({"step": [step] * len(rollouts["prompt"]), **rollouts, **extra}), path)
        return path


def audit_columns(step: StepRecord) -> dict[str, list]:
    """One column per decision, each of length N, for the audit log."""
    group, keys, superseded = step.done.prompt, step.prompts.keys, step.done.superseded

    def outcome(row: int) -> str:
        if superseded[row]:
            return "superseded"
        return "lost" if step.nonfinite[row] else Outcome(step.replay.outcome[row]).name.lower()

    return {
        "prompt": [keys[q] for q in group],
        "round": step.done.round.tolist(),
        "num_rollouts": step.num_rollouts[group].tolist(),
        "outcome": [outcome(row) for row in range(len(group))],
        "trimmed": step.replay.trimmed.tolist(),
        "marker_at": step.replay.marker_at.tolist(),
        "length": step.replay.length.tolist(),
        "new_tokens": step.done.new_tokens.tolist(),
        "propensity": step.judgement.propensity.tolist(),
        "weight": step.judgement.weight.tolist(),
        "reward": step.done.rewards.tolist(),
        "advantage": step.judgement.advantages.tolist(),
        "sum_logp": step.sum_logps.tolist(),
    }
