# SPDX-License-Identifier: Apache-2.0
# python recipes/paper_report.py outputs/experiments/smoke           (needs the extra `report`; no GPU, no model)
"""The paper's tables and figures from a folder of runs, as `recipes/experiment.py` writes it.

Tables are printed, and written to `<folder>/tables/` as Markdown and CSV; figures are written to
`<folder>/figures/<model>/` as PNG and SVG. Quantities that were not logged are left out, and reported.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from paper.paper_tables import CHECKPOINTS, write_tables
from paper.runs import read

from duet_trl.mistakes import mistakes


def main(argv: Sequence[str]) -> int:
    """Write tables and figures. Exit status: 1 if the runs cannot be read."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="folder with run.json files, at any depth")
    parser.add_argument("--output_dir", type=Path, help="where to write; default: the folder of the runs")
    parser.add_argument("--only", choices=("tables", "figures"), help="write only these")
    help_text = "final: the last measurement (default); best: of each suite the best, as the paper does, which selects"
    parser.add_argument("--checkpoint", choices=CHECKPOINTS, default="final", help=f"{help_text} on the test set")
    help_text = "method that speed-ups and differences are against (default: %(default)s)"
    parser.add_argument("--reference", default="grpo", metavar="METHOD", help=help_text)
    args = parser.parse_args(argv)
    output = args.output_dir or args.runs
    with mistakes():
        report = read(args.runs, args.checkpoint, args.reference)
        if args.only != "tables":
            from paper.paper_figures import write_figures
    if args.only != "figures":
        print(f"{write_tables(report, output / 'tables')}\n\nwritten to {output / 'tables'}\n")
    if args.only != "tables":
        notes = write_figures(report, output / "figures")
        print("\n".join([*(f"* {note}" for note in notes), "", f"written to {output / 'figures'}"]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
