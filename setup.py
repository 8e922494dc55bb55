# SPDX-License-Identifier: Apache-2.0
"""The description of the package; all else is in setup.cfg.

A package index shows the README without the repository around it, so that relative links and images would be broken:
links become their text, images go. The files that they name are in the sdist.
"""

import re
from pathlib import Path

from setuptools import setup

README = Path(__file__).with_name("README.md")


def description(readme: str) -> str:
    """The README without what only works inside the repository."""
    readme = re.sub(r"!\[[^]]*]\((?!https://)[^)]*\)\n*", "", readme)
    return re.sub(r"(?<!!)\[([^]]*)]\((?!https://)[^)]*\)", r"\1", readme)


if __name__ == "__main__":
    setup(long_description=description(README.read_text(encoding="utf-8")))
