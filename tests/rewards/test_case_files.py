# SPDX-License-Identifier: Apache-2.0
"""No case of a grader is listed twice."""

import json
from collections import Counter

import pytest

from tests.rewards.case_files import FOLDER, cases


@pytest.mark.parametrize("grader", sorted(path.stem for path in FOLDER.glob("*.jsonl")))
def test_no_case_is_listed_twice(grader):
    listed = [{k: v for k, v in case.items() if k != "why"} for kind in cases(grader).values() for case in kind]
    counts = Counter(json.dumps(case, sort_keys=True) for case in listed)
    assert [case for case, count in counts.items() if count > 1] == []
