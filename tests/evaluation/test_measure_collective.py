# SPDX-License-Identifier: Apache-2.0
"""Several processes agree on every verdict and decision, and one of them writes."""

import json
from pathlib import Path

import pytest

from duet_trl.evaluation.measure import on_first
from tests.evaluation.policy import write_jsonl
from tests.processes import forked, process_environment


def test_a_process_that_is_alone_does_everything_itself():
    assert on_first(lambda: 7) == 7
    with pytest.raises(OSError, match="full"):
        on_first(lambda: (_ for _ in ()).throw(OSError("full")))


@pytest.mark.distributed
@pytest.mark.slow
def test_process_zero_grades_writes_and_decides_for_all(tmp_path):
    data = write_jsonl(tmp_path / "m.jsonl", [{"problem": f"p{number}", "answer": "42"} for number in range(3)])
    script = str(Path(__file__).with_name("collective_run.py"))
    done = forked([script, data, str(tmp_path)], env=process_environment(), processes=2)
    assert done.returncode == 0, done.stderr[-3000:]
    zero, one = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2))
    assert zero["told"] == one["told"] == "from 0"
    assert zero["correct"] == one["correct"] == [[True, False, True, False]] * 3
    assert zero["errors"] == ["OSError: no space on 0"]
    assert one["errors"] == [
        "RuntimeError: process 0 failed while the others waited for its result; its own message states why."
    ]
    assert zero["metrics"] == one["metrics"] == 0.5
    assert zero["files"] == ["run0/best", "run0/best/evaluation.json"]
    assert one["files"] == ["run1/best"]  # save_model was called there too; nothing else was written
