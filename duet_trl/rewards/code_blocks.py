# SPDX-License-Identifier: Apache-2.0
"""The program among the fenced blocks of a completion: Markdown's longer and indented fences, other languages."""

import re
from collections.abc import Generator, Sequence

from ..gate.extract import Which, every_answer
from ..gate.thoughts import Written

_FENCE = re.compile(r"([ \t]*(?:(?:[-*+]|\d{1,3}[.)])[ \t]+)?)(`{3,}|~{3,})(.*)")
_PYTHON = ("py", "ipython", "sage", "{", ".")
"""How the info string of a program begins. A block without one may be a program too."""
_SCRIPT = re.compile(
    r"(?<![\w.])(?:(?:print|input|open)\s*\(|(?:sys|os)\.)"
    r"|^[ \t]*(?:import[ \t]+[\w., \t\r]+$|from[ \t]+[\w.]+[ \t]+import)",
    re.MULTILINE,
)


def program_of(text: str | Written, which: Which, names: Sequence[str]) -> str | None:
    """The last closed block, or the first that defines these names; None without a closed block.

    Blocks in another language are passed over. Where none of the others defines the names, the first may be the body
    of a function. The text of a policy is never parsed here: Python's own parser can be brought down.
    """
    blocks = every_answer(_blocks, text)
    if which == "last" or not blocks:
        return blocks[-1] if blocks else None
    patterns = [_defines(name) for name in names]
    return next((body for body in blocks if all(pattern.search(body) for pattern in patterns)), blocks[0])


def _defines(name: str) -> re.Pattern[str]:
    if name == "run_script":
        return _SCRIPT
    return re.compile(
        rf"^[ \t]*(?:(?:(?:async[ \t]+)?def|class)[ \t]+{name}\b"
        rf"|(?:\w+[ \t]*[,=][ \t]*)*{name}[ \t]*(?:[,=]|:[^\n=]*=)(?!=))",
        re.MULTILINE,
    )


def _blocks(text: str, opening: str | None) -> Generator[str, None, int | None]:
    """A finder of the bodies of closed blocks that have content and no other language than Python."""
    body: list[str] | None = None
    indent, marks, end = 0, "", 0
    is_program = False
    for line in text.split("\n"):
        begin, end = end, end + len(line) + 1
        fence = _FENCE.match(line)
        if body is None:
            if opening is not None and (thought := text.find(opening, begin, end)) >= 0:
                return thought + len(opening)
            if fence and "`" not in fence[3]:
                indent, marks, body = len(fence[1].expandtabs()), fence[2], []
                language = fence[3].strip().lower()
                is_program = not language or language.startswith(_PYTHON) or not language[0].isalpha()
        elif fence and fence[2].startswith(marks) and not fence[1].strip() and (indent > 1 or len(fence[1]) <= indent):
            if is_program and any(part.strip() for part in body):
                yield "\n".join(body)
            body = None
        else:
            body.append(_dedented(line, indent) if indent > 1 else line)
    return None


def _dedented(line: str, indent: int) -> str:
    blanks = len(line) - len(line.lstrip(" \t"))
    return line.expandtabs()[min(indent, len(line[:blanks].expandtabs())) :]
