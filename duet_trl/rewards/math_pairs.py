# SPDX-License-Identifier: Apache-2.0
r"""What only answer and gold together show, before Math-Verify sees them: choices, units, bases, the case of letters.

Math-Verify takes `I` for `i` and `\Gamma` for `\gamma`, overlooks the base of a number, and takes words for products.
"""

import re

from .choice import choice_letter
from .math_units import without_units

_TEXT = re.compile(r"\\(?:text(?:bf|it|rm|normal)?|mbox|math(?:rm|bf|it)|boldsymbol)\s?\{((?:[^{}]|\{[^{}]*\})*)\}")
_LONG_TEXT = re.compile(r"\\(?:text|mbox|textrm|mathrm)\s?\{[^{}]{2,}\}")
_LETTER_IN_TEXT = re.compile(r"\\(?:text(?:bf|rm)?|mbox|mathrm)\s?\{\s*[A-Za-z]\s*\}[.,]?")
_CHOICE = re.compile(r"(\(\s*[A-Za-z]\s*\)|[A-Za-z](?=[.,:]?\Z))[.,:]?(?:(?:\s|\\ |~)*([A-Za-z0-9$\\][^+*/=^_]*))?")
_BLANK = re.compile(r"(?<!\d)\s+|\s+(?!\d)")  # one between digits separates numbers
_WORDS = re.compile(r"(?=.*[a-z]{2})[A-Z]?[a-z]+(?: [A-Z]?[a-z]+)*|[Nn][Oo]")
_BASE = re.compile(r"(?<![a-zA-Z\\_\d])0*(\d[0-9A-Z]*|[A-Z]\d[0-9A-Z]*)_\{?(\d+)\}?")
_CAPITALS = re.compile(r"(?:\\(?:text|textbf|mathrm)\{)?\(?([A-Z]{2,})\)?\}?")
_LETTER = re.compile(r"\\[a-zA-Z]+|(?<!\d)[eE]|[a-df-zA-DF-Z]|[eE](?![+-]?\d)")
_GREEK = frozenset("\\gamma \\delta \\theta \\lambda \\xi \\pi \\sigma \\upsilon \\phi \\psi \\omega".split())
"""Greek letters that LaTeX has in both cases."""


def comparable(answer: str, gold: str) -> tuple[str | None, str]:
    r"""The pair that Math-Verify is to compare, of an answer and a gold answer after `readable`.

    The same text twice where they are equal as they are written; None in place of an answer that contradicts the gold
    in what Math-Verify does not look at.

    Example:
        >>> comparable(r"\text{(C) Plane}", "C"), comparable("5 cm", "5"), comparable(r"\pi R^2", r"\pi r^2")
        (('C', 'C'), ('5', '5'), (None, '\\pi r^2'))
    """
    if _written(answer) == _written(gold):
        return gold, gold
    if _is_choice(answer) or _is_choice(gold):
        (wanted, words), (letter, own_words) = _choice(gold), _choice(answer)
        if wanted is not None:
            contradicted = letter != wanted or words and own_words and words != own_words
            return (None if contradicted else gold), gold
    answer, gold = without_units(answer, gold)
    if answer is None or contradicts(answer, gold):
        return None, gold
    return _LONG_TEXT.sub(_lower, answer), _LONG_TEXT.sub(_lower, gold)


def contradicts(answer: str, gold: str) -> bool:
    r"""Whether the two differ in what Math-Verify does not look at.

    So do `12_5` and `12_6`, the words `AB` and `BA`, which it takes for products, and `R_1` and `r_1`: letters that
    are the same but for their case.
    """
    words = [_CAPITALS.fullmatch(text) for text in (answer, gold)]
    if all(words) and words[0][1] != words[1][1]:
        return True
    letters, gold_letters = _letters(answer), _letters(gold)
    if letters != gold_letters and {one.lower() for one in letters} == {one.lower() for one in gold_letters}:
        return True
    numbers, gold_numbers = (sorted(_BASE.findall(text)) for text in (answer, gold))
    if len(numbers) == len(gold_numbers) > 1:
        return numbers != gold_numbers
    bases, gold_bases = {base for _, base in numbers}, {base for _, base in gold_numbers}
    return bool(bases and gold_bases) and bases != gold_bases


def _written(text: str) -> str:
    """The text without fonts and without blanks that do not count; words in lower case."""
    plain = _TEXT.sub(r"\1", text).strip()
    return _BLANK.sub("", plain.lower() if _WORDS.fullmatch(plain) else plain)


def _lower(match: re.Match[str]) -> str:
    return match[0].lower()


def _is_choice(text: str) -> bool:
    """Whether it is a letter in parentheses or in text font, or in parentheses before words."""
    plain = _TEXT.sub(r"\1", text).strip()
    match = _CHOICE.fullmatch(plain)
    if match is None or match[1][0] != "(":
        return _LETTER_IN_TEXT.fullmatch(text) is not None
    return match[2] is None or plain != text


def _choice(text: str) -> tuple[str | None, str]:
    """Letter of the option and the words behind it; no letter where the text names none, or two."""
    match = _CHOICE.fullmatch(_TEXT.sub(r"\1", text).strip())
    if match is None:
        return None, ""
    words = match[2] or ""
    return choice_letter(f"{match[1].upper()} {words}".strip()), re.sub(r"\W", "", words).lower()


def _letters(text: str) -> set[str]:
    """Letters that stand for something, those of words and commands left out."""
    found = _LETTER.findall(_LONG_TEXT.sub("", text))
    return {one for one in found if one[0] != "\\" or one.lower() in _GREEK}
