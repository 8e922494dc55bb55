# SPDX-License-Identifier: Apache-2.0
"""Answers that keep a computer algebra system busy, break a parser or pretend; shared by tests and benchmarks.

`hostile_answers.yaml` has them as they are written, or as an expression where they are long or hold what YAML cannot.
"""

from pathlib import Path

import yaml

_TABLE = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


def _written(listed: dict[str, str | dict[str, str]]) -> dict[str, str]:
    return {name: one if isinstance(one, str) else eval(one["python"]) for name, one in listed.items()}


HOSTILE_ANSWERS = _written(_TABLE["answers"])
"""Contents of a box. None of them is 7."""
HOSTILE_TEXTS = _written(_TABLE["texts"])
"""Completions whose answer is not 7 either."""
