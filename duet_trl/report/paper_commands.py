# SPDX-License-Identifier: Apache-2.0
"""`duet-trl tables <runs>` and `duet-trl figures <runs>`: the paper's tables and figures from a folder of runs."""

import argparse
import sys
from pathlib import Path
from typing import Any

from .paper_tables import FORMATS, write_tables
from .runs import CHECKPOINTS, UnreadableRuns


def add_commands(commands: Any) -> None:
    """Add both commands."""
    tables = commands.add_parser("tables", help="the paper's tables from a folder of runs")
    figures = commands.add_parser("figures", help="the paper's figures from a folder of runs")
    for command, default, run in ((tables, "tables", _tables), (figures, "figures", _figures)):
        command.set_defaults(run=_reporting, write=run)
        command.add_argument("runs", type=Path, help="folder with run.json files, at any depth")
        help_text = f"where to write (default: <runs>/{default})"
        command.add_argument("--output_dir", type=Path, metavar="DIR", help=help_text)
    help_text = f"what to write, separated by commas (default: {','.join(FORMATS)})"
    tables.add_argument("--formats", type=_formats, default=list(FORMATS), metavar="NAMES", help=help_text)
    help_text = "final: the last measurement (default); best: of each suite the best, as the paper does, which selects"
    tables.add_argument("--checkpoint", choices=CHECKPOINTS, default="final", help=f"{help_text} on the test set")
    help_text = "method that speed-ups and differences are against (default: %(default)s)"
    tables.add_argument("--reference", default="grpo", metavar="METHOD", help=help_text)


def _reporting(options: argparse.Namespace) -> int:
    folder = options.output_dir or options.runs / options.command
    try:
        lines = options.write(options, folder)
    except (UnreadableRuns, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.write("\n".join([*lines, f"written to {folder}"]) + "\n")
    return 0


def _tables(options: argparse.Namespace, folder: Path) -> list[str]:
    return [write_tables(options.runs, folder, options.formats, options.checkpoint, options.reference)]


def _figures(options: argparse.Namespace, folder: Path) -> list[str]:
    from .paper_figures import write_figures  # needs matplotlib, which only figures do

    paths, notes = write_figures(options.runs, folder)
    return [*map(str, paths), "", *notes]


def _formats(text: str) -> list[str]:
    names = text.split(",")
    if unknown := set(names) - FORMATS.keys():
        raise argparse.ArgumentTypeError(f"{sorted(unknown)} are none of {list(FORMATS)}")
    return names
