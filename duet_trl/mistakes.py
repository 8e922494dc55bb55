# SPDX-License-Identifier: Apache-2.0
"""What a command shows of a user's mistake: one line with the value and the remedy, and exit status 1."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SHOW = "DUET_TRACEBACK"
"""With this variable set in the environment the traceback is shown."""


@contextmanager
def mistakes(*kinds: type[Exception]) -> Iterator[None]:
    """While active, an error of checked input ends the command with one line; any other error keeps its traceback.

    Only what reads and checks input belongs inside: a ValueError of a training step is not the user's.

    Args:
        kinds (type[Exception]): Errors of input besides ValueError, OSError and ImportError.

    Raises:
        SystemExit: In place of such an error.
    """
    try:
        yield
    except (ValueError, OSError, ImportError, *kinds) as error:
        if os.environ.get(SHOW):
            raise
        text = " ".join(str(error).split())
        if isinstance(error, ModuleNotFoundError):
            text += ". Install it, or the extra that has it (docs/quickstart.md#install)."
        sys.exit(f"error: {text}")
