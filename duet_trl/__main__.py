# SPDX-License-Identifier: Apache-2.0
"""`duet-trl <command>`, or `python -m duet_trl <command>`.

`estimate` shows what DUET would save on a run that stock TRL GRPO did; `check` tests whether this machine can train.
Only `check` loads a model, which it makes itself. Neither needs a network. Exit status: 0 done, 1 unreadable input or
a failed check, 2 wrong usage.
"""

import argparse
import sys
from collections.abc import Sequence

from . import __version__, check
from .mistakes import mistakes
from .report import estimate_command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, by default this process's, and return the exit status."""
    parser = argparse.ArgumentParser(prog="duet-trl", description="GRPO under a token budget: reports and checks.")
    parser.add_argument("--version", action="version", version=f"duet-trl {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    estimate_command.add_command(commands)
    check.add_command(commands)
    options = parser.parse_args(arguments)
    with mistakes():
        return options.run(options)


if __name__ == "__main__":
    sys.exit(main())
