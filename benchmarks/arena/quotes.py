# SPDX-License-Identifier: Apache-2.0
"""What documents quote stands between comments that no reader sees, so that it can be written and checked.

A table:                                     A value, inside of a line:

    <!-- arena: leaderboard sums -->         takes <!-- arena: value sums duet accuracy_50 -->0.512<!-- end --> of
                                             the tokens
    | entrant | ... |

    <!-- end -->
"""

import re
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

MARKERS = re.compile(r"<!-- arena: (?P<name>[^\n]*?) -->|<!-- end -->")


class Block(NamedTuple):
    """What stands between two markers."""

    name: str
    start: int
    end: int
    line: int
    alone: bool
    """Whether its first marker stands at the beginning of a line, as that of a table has to, and no value may."""


def blocks(text: str, name: str) -> list[Block]:
    """Blocks of a document.

    Args:
        text (str): The document.
        name (str): Of its file, for messages.

    Raises:
        ValueError: If a marker is left open.
    """
    found, opened = [], None
    for marker in [*MARKERS.finditer(text), None]:
        if opened is not None:
            line = text.count("\n", 0, opened.start()) + 1
            if marker is None or marker["name"] is not None or "<!--" in text[opened.end() : marker.start()]:
                raise ValueError(f"{name}:{line}: {opened['name']} is not ended. Put <!-- end --> behind it.")
            before = text[: opened.start()].rpartition("\n")[2]
            found.append(Block(opened["name"], opened.end(), marker.start(), line, not before.strip(" >-*")))
            opened = None
        elif marker is not None and marker["name"] is not None:
            opened = marker
    return found


def rewritten(text: str, values: Mapping[str, str], name: str) -> str:
    """A document with the text of every block as it is computed.

    Args:
        text (str): The document.
        values (Mapping[str, str]): Text by name of a block; those of tables have several lines.
        name (str): Of its file, for messages.

    Raises:
        ValueError: If a block is unknown or stands where Markdown does not read it.
    """
    parts, last = [], 0
    for block in blocks(text, name):
        if block.name not in values:
            raise ValueError(f"{name}:{block.line}: no figure has the name {block.name!r}.{_near(block.name, values)}")
        value = values[block.name]
        if block.alone != ("\n" in value):
            place = "inside of a line, behind a word" if block.alone else "on a line of its own"
            raise ValueError(f"{name}:{block.line}: {block.name} must stand {place}: Markdown reads it only there.")
        parts += [text[last : block.start], f"\n\n{value}\n\n" if block.alone else value]
        last = block.end
    return "".join([*parts, text[last:]])


def differences(text: str, values: Mapping[str, str], name: str) -> Iterator[str]:
    """Lines of a document that are not as they are computed: file, line, block, quoted and computed.

    Args:
        text (str): The document.
        values (Mapping[str, str]): As in `rewritten`.
        name (str): Of its file.
    """
    for block in blocks(text, name):
        if block.name not in values:
            yield f"{name}:{block.line}: no figure has the name {block.name!r}.{_near(block.name, values)}"
            continue
        quoted, computed = text[block.start : block.end].strip(), values[block.name]
        first = block.line + text[block.start : block.end].partition(quoted[:1] or "\n")[0].count("\n")
        pairs = zip_longest(quoted.split("\n"), computed.split("\n"), fillvalue="nothing")
        for number, (line, expected) in enumerate(pairs):
            if line != expected:
                yield f"{name}:{first + number}: {block.name}: quoted {line}, computed {expected}"


def documents(root: Path) -> list[Path]:
    """Documents that may quote."""
    return [path for path in [root / "README.md", *sorted((root / "docs").glob("*.md"))] if path.exists()]


def _near(name: str, values: Mapping[str, str]) -> str:
    """Names that begin alike, to choose from."""
    words = name.split(" ")
    while words := words[:-1]:
        if near := [other for other in values if other.startswith(" ".join([*words, ""]))]:
            return f" There are {', '.join(near[:8])}{', ...' if len(near) > 8 else ''}."
    return ""
