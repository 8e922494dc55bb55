# SPDX-License-Identifier: Apache-2.0
"""Blocks of code in the documentation: Python as one script a page, shell as commands that their parsers accept."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md"), ROOT / "notebooks/README.md"])


@dataclass(frozen=True)
class Block:
    """A fenced block: its page, the line of its first line, its language ("": none) and its text."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}" if self.page.is_relative_to(ROOT) else f"{self.line}"


def blocks(page: Path, language: str | None = None) -> list[Block]:
    """The fenced blocks of a page, in order; of one language or of all."""
    text = page.read_text()
    found = re.finditer(r"^( *)```(\w*)\n(.*?)^ *```$", text, flags=re.M | re.S)
    every = [Block(page, text[: one.start(3)].count("\n") + 1, one[2], one[3]) for one in found]
    return [one for one in every if language in (None, one.language)]


def run_python(found: Sequence[Block], replaced: dict[str, str] | None = None, **names: object) -> dict[str, object]:
    """Run the blocks one after the other, as one script, with replacements of which each must be needed."""
    names = {"__name__": "__main__", **names}
    left = dict(replaced or {})
    for block in found:
        text = block.text
        for old, new in (replaced or {}).items():
            if old in text:
                left.pop(old, None)
                text = text.replace(old, new)
        exec(compile("\n" * (block.line - 1) + text, str(block.page), "exec"), names)
    assert left == {}, "no block has what is to be replaced"
    return names


def commands(text: str) -> list[list[str]]:
    """The words of each command, without variables in front of it and `&` behind it."""
    found = []
    for line in filled_in(text).replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words and re.match(r"[A-Z_]+=", words[0]):
            del words[0]
        if words:
            found.append(words[: -1 if words[-1] == "&" else None])
    return found


def filled_in(text: str) -> str:
    """A word in the place of each <word or words> that the reader fills in, which a shell would take for a file."""
    return re.sub(r"<[a-z][\w. ]*>", "filled_in", text)
