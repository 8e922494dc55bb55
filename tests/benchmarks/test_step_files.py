# SPDX-License-Identifier: Apache-2.0
"""What a reader of one step has to open stays small."""

from benchmarks.step_files import entered

MAX_FILES = 27
"""It may only go down."""


def test_a_default_step_enters_few_files(tmp_path):
    found = entered(tmp_path)
    assert {"trainer.py", "loop.py", "seams/generating.py"} <= found.keys()
    assert len(found) <= MAX_FILES, sorted(found)
