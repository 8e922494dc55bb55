# SPDX-License-Identifier: Apache-2.0
"""Every figure of the paper from a folder of runs, a folder per model (and task, where records name several).

    <output_dir>/<model>/<figure>.png, .svg             methods against each other (comparison_figures.py)
    <output_dir>/<model>/<figure>_<method>.png, .svg    what the controller did (controller_figures.py)

What is not logged is not drawn, and is said.
"""

import re
from collections.abc import Callable
from pathlib import Path

from . import comparison_figures, controller_figures
from .figure_data import NotDrawn, Subject, find_subjects
from .figure_style import FORMATS
from .runs import read_runs
from .titles import method_title


def write_figures(folder: Path, output_dir: Path) -> tuple[list[Path], list[str]]:
    """Draw every figure of the runs in and below a folder, as PNG and SVG.

    Args:
        folder (Path): Runs, as `runs.read_runs` takes them.
        output_dir (Path): Where figures are written; it is made.

    Returns:
        tuple[list[Path], list[str]]: Files that were written, and a line for all that was left out, with the reason.

    Raises:
        UnreadableRuns: If the folder holds no run that is done.
    """
    runs = read_runs(folder)
    subjects, repeated = find_subjects(runs.done)
    written, notes = [], [f"left out: {line}" for line in runs.left_out] + repeated
    for name, subject in subjects.items():
        paths, more = _of_subject(subject, output_dir / re.sub(r"[^\w.-]+", "_", name))
        written += paths
        notes += [f"{name}: {note}" for note in more]
    return written, notes


def _of_subject(subject: Subject, folder: Path) -> tuple[list[Path], list[str]]:
    written: list[Path] = []
    notes: list[str] = []
    if others := [arm.first.cell for arm in subject.arms if arm not in subject.shown]:
        notes.append(f"not among the methods that are compared (ablations and other settings): {', '.join(others)}.")

    def draw(name: str, figure: Callable[[Path], list[str]]) -> str | None:
        """Reason why it is not drawn."""
        try:
            notes.extend(f"{name}: {note}" for note in figure(folder / name))
        except NotDrawn as reason:
            return str(reason)
        written.extend(folder / (name + ending) for ending in FORMATS)
        return None

    for name, figure in comparison_figures.FIGURES.items():
        if reason := draw(name, lambda path, figure=figure: figure(subject, path)):
            notes.append(f"{name} is not drawn: {reason}")
    methods = [method for method in dict.fromkeys(arm.method for arm in subject.shown) if method != "grpo"]
    if not methods:
        notes.append("what a controller did is not drawn: only GRPO was run.")
    for name, figure in controller_figures.FIGURES.items():
        left_out: dict[str, list[str]] = {}
        for method in methods:
            if reason := draw(f"{name}_{method}", lambda path, f=figure, method=method: f(subject, method, path)):
                left_out.setdefault(reason, []).append(method_title(method))
        notes += [f"{name} is not drawn of {', '.join(names)}: {reason}" for reason, names in left_out.items()]
    return written, notes
