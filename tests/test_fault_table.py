# SPDX-License-Identifier: Apache-2.0
"""The table of faults names tests that exist, and its counts are those of pytest."""

import re
from pathlib import Path

from tests import fault_table


def test_every_line_names_tests_that_exist():
    found = fault_table.rows()
    assert len(found) >= 25
    for row in found:
        assert row.tests, row.fault
        for test in row.tests:
            path, name = test.split("::")
            assert re.search(rf"^def {name}\(", (fault_table.ROOT / path).read_text(), flags=re.M), test


def test_a_fault_that_is_not_survived_is_counted(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text(
        "## Faults\n\n| fault | test |\n|---|---|\n| fire | `tests/a.py::test_b`, `tests/a.py::test_c` |\n"
    )
    fire = fault_table.rows(page)
    text, lost = fault_table.table(
        fire, {"tests/a.py::test_b": ["passed", "failed"], "tests/a.py::test_c": ["skipped"]}
    )
    assert lost == 1 and re.search(r"^fire +1 of 2, 1 skipped$", text, flags=re.M)
    text, lost = fault_table.table(fire, {"tests/a.py::test_b": ["passed"]})
    assert lost == 1 and re.search(r"^fire +1 of 2$", text, flags=re.M)  # a test that did not run
    assert fault_table.table(fire, {f"tests/a.py::test_{name}": ["passed"] for name in "bc"})[1] == 0


def test_results_are_those_of_the_runner():
    name = "tests/test_fault_table.py::test_every_line_names_tests_that_exist"
    assert fault_table.results([name], ["-p", "no:cacheprovider"]) == {name: ["passed"]}
