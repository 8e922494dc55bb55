# SPDX-License-Identifier: Apache-2.0
"""What every benchmark needs: arguments, the machine, a table on screen and a result file."""

import argparse
import importlib.metadata
import json
import os
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path("outputs/bench")


def argument_parser(description: str) -> argparse.ArgumentParser:
    """A parser with the arguments that all benchmarks share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--check", action="store_true", help="exit with an error if a target is missed")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def hardware() -> dict[str, Any]:
    """Processor, cores, memory in GiB and graphics card of this machine."""
    import torch

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 2**30, 1),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def versions(*names: str) -> dict[str, str]:
    """Versions of Python and of these distributions."""
    return {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in names}}


def print_table(headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print rows under their headers, columns aligned."""
    cells = [[str(cell) for cell in row] for row in [headers, *rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headers))]
    for number, row in enumerate(cells):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        if number == 0:
            print("  ".join("-" * width for width in widths))


def write_result(name: str, payload: dict[str, Any]) -> Path:
    """Write the figures of a benchmark to outputs/bench/<name>.json."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(payload, indent=2) + "\n")
    return path


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
