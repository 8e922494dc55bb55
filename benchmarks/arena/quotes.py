# SPDX-License-Identifier: Apache-2.0
"""What documents quote stands between comments that no reader sees, so that it can be written and checked.

A table:                                     A value, inside of a line:

    <!-- arena: pairs mixed_135m -->         ends at <!-- arena: value mixed_135m duet free accuracy -->
    | ... |                                  0.393<!-- end -->, where it is one line
    <!-- end -->
"""

import re
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

MARKERS = re.compile(r"<!--\s*arena:\s*(?P<name>[^\n]*?)\s*-->|<!-- end -->")
BEGINNING = re.compile(r"(?:\s|>|[-*+]\s|\d+[.)]\s)*")
"""A comment after it begins a new block, in a quotation and in a list too."""


class Block(NamedTuple):
    """What stands between two markers."""

    name: str
    start: int
    end: int
    line: int
    alone: bool
    """Whether its first marker is at the beginning of a line, where tables have theirs and values do not."""


def blocks(text: str, name: str) -> list[Block]:
    """Blocks of a document.

    Args:
        text (str): The document.
        name (str): Of its file, for messages.

    Raises:
        ValueError: If one is not ended.
    """
    found, opened = [], None
    for marker in [*MARKERS.finditer(text), None]:
        if opened is not None:
            line = text.count("\n", 0, opened.start()) + 1
            if marker is None or marker["name"] is not None or "<!--" in text[opened.end() : marker.start()]:
                raise ValueError(f"{name}:{line}: {opened['name']} is not ended. Put <!-- end --> after it.")
            before = text[: opened.start()].rpartition("\n")[2]
            alone = BEGINNING.fullmatch(before) is not None
            found.append(Block(opened["name"], opened.end(), marker.start(), line, alone))
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
        ValueError: If a block is unknown, not ended, or stands where Markdown does not read it.
    """
    parts, last = [], 0
    for block in blocks(text, name):
        if (problem := _problem(block, values)) is not None:
            raise ValueError(f"{name}:{block.line}: {problem}")
        parts += [text[last : block.start], _written(block, values[block.name])]
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
        if (problem := _problem(block, values)) is not None:
            yield f"{name}:{block.line}: {problem}"
            continue
        pairs = zip_longest(
            text[block.start : block.end].split("\n"),
            _written(block, values[block.name]).split("\n"),
            fillvalue="nothing",
        )
        for number, (quoted, computed) in enumerate(pairs):
            if quoted != computed:
                yield f"{name}:{block.line + number}: {block.name}: quoted {quoted!r}, computed {computed!r}"


def _problem(block: Block, values: Mapping[str, str]) -> str | None:
    """Why a block cannot be written."""
    if block.name not in values:
        return f"no figure has the name {block.name!r}.{_near(block.name, values)}"
    if block.alone != ("\n" in values[block.name]):
        place = "inside of a line, after a word" if block.alone else "on a separate line"
        return f"{block.name} must be {place}: Markdown reads it only there."
    return None


def _written(block: Block, value: str) -> str:
    """What stands between the markers; a table needs empty lines around it."""
    return f"\n\n{value}\n\n" if block.alone else value


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
