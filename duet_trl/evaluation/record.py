# SPDX-License-Identifier: Apache-2.0
"""The record that a training run keeps of its measurements: one result file each, and the best checkpoint.

    <output_dir>/evaluations/results_step-000030.json   one measurement of all suites
    <output_dir>/evaluations/samples_<suite>_step-...   its completions, if asked for
    <output_dir>/evaluations/summary.json               best of each suite, best checkpoint, last
    <output_dir>/best/                                  the best checkpoint; evaluation.json is its measurement

A resumed run continues the record. What `best` holds is compared by its own evaluation.json, so that its figures are
those of its weights whatever was measured again in between.
"""

import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import count
from pathlib import Path

from datasets import Dataset

from .compare import average, best_and_last, headline
from .measure import Measurement
from .results import Results, Subject, read_results, write_json, write_results

logger = logging.getLogger(__name__)

FOLDER = "evaluations"
BEST_FOLDER = "best"
BEST_EVALUATION = "evaluation.json"


class Record:
    """Measurements of a run in its output folder; used by process 0 only."""

    def __init__(self, output_dir: Path) -> None:
        self.folder = output_dir / FOLDER
        self.best_folder = output_dir / BEST_FOLDER

    def begin(self, step: int) -> bool:
        """Take up the record of a run, and say whether this step is to be measured now: step 0 of a new run.

        Step 0 begins a new run, whose folder may hold the record of an earlier one: that is put aside, and its best
        checkpoint is no candidate any more. A later step is that of the checkpoint that the run resumes from: later
        measurements are put aside, the best checkpoint stays the best until it is beaten.
        """
        if step > 0:
            self._put_aside([run.path for run in self.runs() if run.step is not None and run.step > step])
            if 0 not in [run.step for run in self.runs()]:
                logger.warning(
                    f"{self.folder} has no measurement of step 0, and a resumed run cannot make one up: measure the "
                    "model that training began with by recipes/evaluate.py if you need it."
                )
            return False
        self._put_aside(sorted(self.folder.glob("*")))
        (self.best_folder / BEST_EVALUATION).unlink(missing_ok=True)
        return True

    def runs(self) -> list[Results]:
        """All measurements by step."""
        return read_results(self.folder) if any(self.folder.glob("results*.json")) else []

    def logged(self, step: int) -> dict[str, float] | None:
        """What a run logs of the measurement of a step, as it stands in the record; None if there is none."""
        found = next((run for run in self.runs() if run.step == step), None)
        if found is None:
            return None
        main = headline(found)
        metrics = {"held_out/average": average(found, main) or 0.0}
        for suite, figures in found.figures.items():
            for name, figure in figures.items():
                metric, _, way = name.partition(",")
                if way == "sampled" or metric == "mean@1":
                    metrics[f"held_out/{suite}/{metric}"] = figure.value
                if name == main and figure.low is not None and figure.high is not None:
                    metrics[f"held_out/{suite}/{metric}_low"] = figure.low
                    metrics[f"held_out/{suite}/{metric}_high"] = figure.high
        return metrics

    def write(
        self, step: int, measurements: Mapping[str, Measurement], suites: Mapping[str, Dataset], subject: Subject
    ) -> bool:
        """Add a measurement; one of the same step, made before a resume, is replaced.

        Returns whether this checkpoint beats the best one, by the mean over suites of mean@k. Step 0 never does.
        """
        write_results(self.folder, _label(step), measurements, suites, subject, samples=False)
        own, best = self._summarize(step), self.best()
        if step == 0 or best is None:
            return step > 0
        if not _alike(best, own):
            logger.warning(
                f"The best checkpoint so far (step {best.step}) was measured on {sorted(best.figures)}, now it is "
                f"{sorted(own.figures)}: the two cannot be compared, and this step takes its place."
            )
            return True
        metric = headline(own)
        return average(own, metric) > average(best, metric)

    def best(self) -> Results | None:
        """Measurement of the checkpoint in the best folder; None if there is none."""
        path = self.best_folder / BEST_EVALUATION
        return read_results(path)[0] if path.exists() else None

    def before_best(self) -> None:
        """Call before the weights in the best folder are replaced: a run killed meanwhile has no best one."""
        (self.best_folder / BEST_EVALUATION).unlink(missing_ok=True)

    def after_best(self, step: int) -> None:
        """Call once they are written."""
        shutil.copyfile(self._path(step), self.best_folder / BEST_EVALUATION)
        self._summarize(step)

    def _put_aside(self, paths: Sequence[Path]) -> None:
        if not paths:
            return
        names = (self.folder.with_name(f"{FOLDER}_earlier_{number}") for number in count(1))
        aside = next(name for name in names if not name.exists())
        aside.mkdir()
        for path in paths:
            path.rename(aside / path.name)
        logger.warning("%s held measurements that this run has not made: moved to %s.", self.folder, aside.name)

    def _path(self, step: int) -> Path:
        return self.folder / f"results_{_label(step)}.json"

    def _summarize(self, step: int) -> Results:
        """Write what the model card and a table need in one place; the measurement of this step."""
        (own,) = read_results(self._path(step))
        # Suites may have been changed before a resume: only what was measured alike can be compared.
        selected = best_and_last([run for run in self.runs() if _alike(run, own)])
        kept = self.best()
        summary = {
            "selections": [{"name": run.model, "figures": asdict(run)["figures"]} for run in selected],
            "best_checkpoint": None if kept is None else {"folder": BEST_FOLDER, "step": kept.step},
        }
        write_json(self.folder / "summary.json", summary)
        return own


def _alike(one: Results, other: Results) -> bool:
    return one.figures.keys() == other.figures.keys() and headline(one) == headline(other)


def _label(step: int) -> str:
    return f"step-{step:06d}"
