# SPDX-License-Identifier: Apache-2.0
"""No case of a grader is listed twice."""

import json
from collections import Counter

import pytest

from tests.rewards.case_files import FOLDER, cases


@pytest.mark.parametrize("grader", sorted(path.stem for path in FOLDER.glob("*.jsonl")))
def test_no_case_is_listed_twice(grader):
    listed = [
        json.dumps({"kind": kind} | {name: value for name, value in case.items() if name != "why"}, sort_keys=True)
        for kind, of_kind in cases(grader).items()
        for case in of_kind
    ]
    assert [case for case, count in Counter(listed).items() if count > 1] == []
