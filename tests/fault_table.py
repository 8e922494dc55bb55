# SPDX-License-Identifier: Apache-2.0
"""The table of faults in docs/operations.md, and what became of the tests that it names."""

import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
SECTION = "## Faults"


@dataclass(frozen=True)
class Row:
    """A fault and the tests that prove what its line says, as pytest names them."""

    fault: str
    tests: tuple[str, ...]


def rows(page: Path = ROOT / "docs" / "operations.md") -> list[Row]:
    """The lines of the table."""
    section = page.read_text().split(SECTION + "\n")[1].split("\n## ")[0]
    lines = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return [Row(cells[0].strip(), tuple(re.findall(r"`(tests/[\w/]+\.py::\w+)`", cells[-1]))) for cells in lines[1:]]


def results(tests: list[str], options: list[str]) -> dict[str, list[str]]:
    """passed, failed or skipped for each case of each test."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *options, *tests]
        subprocess.run(command, cwd=ROOT, check=False)
        found: dict[str, list[str]] = {}
        for case in ElementTree.parse(report).iter("testcase"):
            name = f"{case.get('classname').replace('.', '/')}.py::{case.get('name').split('[')[0]}"
            kinds = {child.tag for child in case}
            outcome = "skipped" if "skipped" in kinds else "failed" if kinds & {"failure", "error"} else "passed"
            found.setdefault(name, []).append(outcome)
    return found


def table(faults: list[Row], found: dict[str, list[str]]) -> tuple[str, int]:
    """A line for each fault, and how many of them are not survived."""
    lines, lost = [], 0
    for row in faults:
        cases = [outcome for test in row.tests for outcome in found.get(test, ["failed"])]
        survived, skipped = cases.count("passed"), cases.count("skipped")
        lost += survived + skipped < len(cases)
        note = f", {skipped} skipped" if skipped else ""
        lines.append(f"{row.fault:<72}  {survived} of {len(cases) - skipped}{note}")
    return "\n".join(["fault".ljust(72) + "  survived", *lines]), lost
