# SPDX-License-Identifier: Apache-2.0
r"""Units behind an answer: `5\text{ cm}` and `5 cm` are 5, but `5s`, `3m` and `2\mathbf{v}` are products.

In LaTeX a blank between letters means nothing, so that a bare letter is a variable, and a unit is a unit by its font
(`\text{}`, `\mathrm{}` and the like) or by being a word that no product spells. Math-Verify's own option takes every
letter on its list for a unit, and everything behind the first `\text{` that a brace ends. Time is at most quadratic.
"""

import re

_FONT = r"\\(?:text|textrm|textnormal|mbox|mathrm|rm)\s?"
_INSIDE = r"\{((?:[^{}]|\{[^{}]*\})*)\}"
_POWER = r"\s?\^\s?(?:-?\d|\{-?\d\})"
_UNIT = re.compile(rf"{_FONT}{_INSIDE}(?:{_POWER})?\Z")
_UNIT_FRACTION = re.compile(rf"\\[dt]?frac\s?\{{{_FONT}{_INSIDE}\}}\{{{_FONT}{_INSIDE}(?:{_POWER})?\}}\Z")
_WORDS_WITHIN = re.compile(rf"{_FONT}{_INSIDE}(?:_\w|_\{{[^{{}}]*\}})?")
_LONG_WORDS = (
    "digit point foot feet inch mile yard meter metre centimeter centimetre millimeter millimetre kilometer kilometre "
    "liter litre gallon acre hectare degree hour minute second week month year pound ounce gram kilogram dollar cent "
    "euro rupee unit student ticket apple coin meal edge tile mark round woman women soldier number multiple"
)
_SHORT_WORDS = "cm mm km kg ft lb hr yr min sec mph kmph kmh deg gal day man men way toy"
"""Behind a number or a blank, where they are hardly a product of variables."""
_WORD = re.compile(
    rf"(?<![a-zA-Z\\])(?:(?:per|sq\.?|square|cubic)\s+)?"
    rf"(?:({'|'.join(_LONG_WORDS.split())})(?:e?s)?|(?:{'|'.join(_SHORT_WORDS.split())})s?)(?:{_POWER})?\Z"
)
_SPACE = re.compile(r"(?:\s|\\[,;:!> ])+\Z")
_JOINT = re.compile(r"(?:/|\\cdot|\\times)\s*\Z")
_LAST_COMMAND = re.compile(r"\\[a-zA-Z]+\Z")
_VALUE_END = re.compile(r"[\w)\]}%!|']\Z")
_NUMBERS = ("\\pi", "\\infty", "\\circ", "\\theta", "\\alpha", "\\beta", "\\lambda", "\\mu", "\\phi", "\\omega")
"""Commands that a value may end with; behind others, `\\angle` or `\\sin`, text is no unit."""
_NO_UNIT = re.compile(r"\b(?:or|and|not)\b|(?<![a-zA-Z^{-])\d|[=<>]|\\(?:le|ge|ne|in)")
_SUFFIX = rf"{_FONT}\{{\s*(st|nd|rd|th)\s*\}}"
_ORDINALS = (
    (re.compile(rf"(?<=\d)\s?\^\s?\{{\s*{_SUFFIX}\s*\}}"), r"\\text{\1}"),
    (re.compile(rf"(?<=\d)\s?\^?\s?{_SUFFIX}"), r"\\text{\1}"),
    (re.compile(r"(?<=\d)(?:\^\{th\}|\^?th(?![a-zA-Z]))"), r"\\text{th}"),
)
_NUMBER_IN_TEXT = re.compile(rf"{_FONT}\{{\s*(-?\d[\d,.]*)\s*([a-zA-Z][a-zA-Z .]*)\}}")
_SAME = (
    "mm millimeter millimetre;cm centimeter centimetre;m meter metre;km kilometer kilometre;inch inches in;"
    "ft foot feet;yd yard;mi mile;s sec second;min minute;h hr hour;day;week;month;yr year;g gram;kg kilogram;"
    "lb pound;cent;dollar;am;pm"
)
_KIND = {word: kind for kind, words in enumerate(_SAME.split(";")) for word in words.split()}
_MOST_UNITS, _LONGEST_UNIT = 8, 40


def without_units(answer: str, gold: str) -> tuple[str | None, str]:
    r"""Answer and gold without the units behind them; None in place of an answer in another unit than the gold's.

    A bare unit (`5 m`, `12th`) goes where the other side writes the same as text.

    Example:
        >>> without_units(r"5\text{ cm}", "5"), without_units("5s", "5"), without_units("5 m", r"5\text{ m}")
        (('5', '5'), ('5s', '5'), ('5', '5'))
    """
    (value, unit), (gold_value, gold_unit) = _split(_plain_ordinals(answer)), _split(_plain_ordinals(gold))
    if gold_unit and not unit:
        value, gold_value = _with_bare(answer, gold, gold_value, gold_unit)
    elif unit and not gold_unit:
        gold_value, value = _with_bare(gold, answer, value, unit)
    kinds = [_KIND.get(one, _KIND.get(one.removesuffix("s"))) for one in (_letters(unit), _letters(gold_unit))]
    return (None if None not in kinds and kinds[0] != kinds[1] else value), gold_value


def _plain_ordinals(text: str) -> str:
    r"""`12^{\text{th}}` as `12\text{th}`, and `\text{12th grade}` as `12\text{ th grade}`."""
    if match := _NUMBER_IN_TEXT.fullmatch(text):
        return f"{match[1]}\\text{{{match[2]}}}"
    for pattern, plain in _ORDINALS:
        text = pattern.sub(plain, text)
    return text


def _split(text: str) -> tuple[str, str]:
    """The value and the units behind it, without blanks, fonts and braces; no unit where nothing is before it."""
    unit = ""
    for _ in range(_MOST_UNITS):
        match = _UNIT.search(text) or _UNIT_FRACTION.search(text)
        if match is not None and any(_NO_UNIT.search(part) for part in match.groups() if part):
            break
        is_word = match is None
        match = match or _WORD.search(text)
        if match is None:
            break
        value = _SPACE.sub("", text[: match.start()])
        if (joint := _JOINT.search(value)) and _UNIT.search(value[: joint.start()].rstrip()):
            value = value[: joint.start()].rstrip()
        is_long = is_word and match[1] is not None
        if not (_is_value(value) or is_long and _VALUE_END.search(value)):
            break
        if is_word and not is_long and len(value) == match.start() and not _is_number(value):
            break  # the letters after a variable: a unit is set off by a blank
        text, unit = value, _bare(match[0]) + unit
    return text, unit


def _is_value(text: str) -> bool:
    if match := _LAST_COMMAND.search(text):
        return match[0] in _NUMBERS
    return _VALUE_END.search(text) is not None and re.search(r"[^\W_]", _WORDS_WITHIN.sub("", text)) is not None


def _is_number(text: str) -> bool:
    return re.search(r"[a-zA-Z]", re.sub(r"\\[a-zA-Z]+", "", _WORDS_WITHIN.sub("", text))) is None


def _bare(unit: str) -> str:
    return re.sub(r"[\s{}]", "", re.sub(_FONT, "", unit))


def _letters(unit: str) -> str:
    return re.sub(r"[^a-z^\d/]", "", unit.lower())


def _with_bare(text: str, other: str, value: str, unit: str) -> tuple[str, str]:
    """A text without a unit in text font, and the value of the other, which has one.

    The text may write the same unit as letters, at its end (`5 m`) or as a factor (`\\frac{37m}{4}`).
    """
    letters = r"\s*".join(rf"\{{?{re.escape(letter)}\}}?" for letter in unit[:_LONGEST_UNIT])
    if (match := re.search(rf"(?<![a-zA-Z\\]){letters}\Z", text)) and _is_value(
        before := text[: match.start()].rstrip()
    ):
        return before, value
    is_factor = len(unit) == 1 and unit in re.sub(r"\\[a-zA-Z]+", "", _WORDS_WITHIN.sub("", text))
    return _split(_plain_ordinals(text))[0], other if is_factor else value
