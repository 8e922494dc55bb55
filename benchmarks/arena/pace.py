# SPDX-License-Identifier: Apache-2.0
"""Processor seconds of different hours on one scale.

The speed of a shared machine changes by a third from hour to hour, and a run that was made in a slow hour is not a
slow method. So a fixed piece of work, the yardstick, is timed with every step (`measuring.Yardstick`), and the seconds
of a run are scaled to a machine on which it always takes `NOMINAL`. Runs without it have no seconds that compare.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np

from .records import Run

NOMINAL = 0.01
"""Processor seconds of the yardstick on the machine whose seconds the tables speak of."""
CURVE = "yardstick"
"""Its processor seconds beside each step, among a run's curves."""
SECONDS = "processor_seconds"
"""The cost that is scaled, by the name that measurements have for it."""


def is_timed(run: Run) -> bool:
    """Whether the yardstick stood beside a run."""
    return CURVE in run.curves


def paced(run: Run) -> Run:
    """A reported run with the processor seconds that it would have taken at the nominal speed.

    What it spent between two measurements is scaled by the mean of the yardstick between them.

    Args:
        run (Run): The run. One without the yardstick stays as it is.
    """
    if not is_timed(run):
        return run
    steps = [0, *(point.step for point in run.measurements)]
    spent = np.diff([0.0, *(point.processor_seconds for point in run.measurements)])
    pace = [np.mean(run.curves[CURVE][a:b]) for a, b in pairwise(steps)]
    seconds = np.cumsum(spent * NOMINAL / np.array(pace)).tolist()
    points = [replace(point, processor_seconds=value) for point, value in zip(run.measurements, seconds, strict=True)]
    return replace(run, measurements=points)
