# SPDX-License-Identifier: Apache-2.0
"""`duet-trl <command>`, or `python -m duet_trl <command>`.

`estimate` says what DUET would save on a run that stock TRL GRPO did; `check` says whether this machine can train.
Only `check` loads a model, one of its own. None needs a network. Exit status: 0 done, 1 unreadable input or a failed
check, 2 wrong usage.
"""

import argparse
import sys
from collections.abc import Sequence

from . import __version__, check
from .report import estimate_command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, by default that of this process; the exit status."""
    parser = argparse.ArgumentParser(prog="duet-trl", description="GRPO under a token budget: reports and checks.")
    parser.add_argument("--version", action="version", version=f"duet-trl {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    estimate_command.add_command(commands)
    check.add_command(commands)
    options = parser.parse_args(arguments)
    return options.run(options)


if __name__ == "__main__":
    sys.exit(main())
