# SPDX-License-Identifier: Apache-2.0
r"""Checks that need both answer and gold, before Math-Verify sees them: choices, units, bases, the case of letters.

Math-Verify takes `I` for `i`, ignores the base of a number, and takes words for products. Words after an answer:
`5\text{ cm}` is 5 and 50 mm, `3\text{ dozen}` 36, `5\text{ below zero}` not 5. One is dropped only if it is known to
change nothing: a unit, a thing that is counted, a number (which multiplies). Any other must be on both sides. Two
units are converted, or the answer is wrong. In LaTeX a bare letter is a variable: a unit is a unit by its font
(`\text{}`, `\mathrm{}`) or by being a word that no product spells. Time is at most quadratic.
"""

import re
from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction

from .choice import choice_letter
from .unit_words import GENERIC, NUMBERS, SHORT_BARE, THINGS, UNITS, Unit

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
_FONT = r"\\(?:text|textrm|textnormal|mbox|mathrm|rm)\s?"
_INSIDE = r"\{((?:[^{}]|\{[^{}]*\})*)\}"
_POWER = r"\s?\^\s?(?:-?\d|\{-?\d\})"
_UNIT = re.compile(rf"{_FONT}{_INSIDE}((?:{_POWER})?)\Z")
_UNIT_FRACTION = re.compile(rf"\\[dt]?frac\s?\{{{_FONT}{_INSIDE}\}}\{{{_FONT}{_INSIDE}((?:{_POWER})?)\}}\Z")
_WORDS_WITHIN = re.compile(rf"{_FONT}{_INSIDE}(?:_\w|_\{{[^{{}}]*\}})?")
_BARE = re.compile(rf"(?<![a-zA-Z\\])([a-zA-Z]+\.?)((?:{_POWER})?)\Z")
_BARE_UNIT = re.compile(r"(?<![a-zA-Z\\])[a-zA-Z]+(?:\^\d)?(?:/[a-zA-Z]+(?:\^\d)?)?\Z")
_SPACE = re.compile(r"(?:\s|\\[,;:!> ])+\Z")
_JOINT = re.compile(r"(/|\\cdot|\\times)\s*\Z")
_LAST_COMMAND = re.compile(r"\\[a-zA-Z]+\Z")
_VALUE_END = re.compile(r"[\w)\]}%!|']\Z")
_NUMBERS = ("\\pi", "\\infty", "\\circ", "\\theta", "\\alpha", "\\beta", "\\lambda", "\\mu", "\\phi", "\\omega")
"""Commands that a value may end with; after others, `\\angle` or `\\sin`, text is not a unit."""
_NO_UNIT = re.compile(r"\b(?:or|and|not)\b|(?<![a-zA-Z^{-])\d|[=<>]|\\(?:le|ge|ne|in)")
_SUFFIX = rf"{_FONT}\{{\s*(st|nd|rd|th)\s*\}}"
_ORDINAL = re.compile(rf"(?<=\d)(?:\s?\^\s?\{{\s*{_SUFFIX}\s*\}}|\s?\^?\s?{_SUFFIX}|\^\{{(th)\}}|\^?(th)(?![a-zA-Z]))")
_NUMBER_IN_TEXT = re.compile(rf"{_FONT}\{{\s*(-?\$?\d[\d,.]*)\s*([a-zA-Z][a-zA-Z .]*)\}}")
_CONSTANT = re.compile(rf"(?:{_FONT}|\\operatorname)\{{\s*([ie]|\\pi)\s*\}}|\{{\s*\\rm\s+([ie])\s*\}}")
_CURRENCY = re.compile(r"(-?)\s*(?:\\?\$|([€£¥₹]))\s*(?=[\d.])")
_CURRENCIES = {"": "dollar", "€": "euro", "£": "sterling", "¥": "yen", "₹": "rupee"}
_TOKEN = re.compile(r"[^\W\d_]+|\^-?\d+|/")
_NO_WORDS = re.compile(r"[.{}]")
_NO_NUMBER = re.compile(r"[,;=<>]|\\(?:l?eq?|g?eq?|le|ge|ne|in|cup|pm|text|mbox)(?![a-zA-Z])")
_TURNS = {"degree", "celsius", "fahrenheit", "kelvin"}
"""Base units that are written with a degree sign or the word."""
_MOST_UNITS, _LONGEST_UNIT = 8, 40


@dataclass
class _Words:
    """The meaning of the words after a value: a factor, powers of base units, what is counted, and words not known."""

    factor: Fraction = Fraction(1)
    dimension: Counter[str] = field(default_factory=Counter)
    things: set[str] = field(default_factory=set)
    unknown: list[str] = field(default_factory=list)
    operations: str = ""  # LaTeX after the value

    def multiply(self, unit: Unit, power: int) -> None:
        """Multiply by a unit to a power, which is small in any phrase that means something."""
        factor, dimension = unit
        self.factor *= factor ** max(-9, min(power, 9))
        for base, count in dimension.items():
            self.dimension[base] += count * power
            if not self.dimension[base]:
                del self.dimension[base]


def comparable(answer: str, gold: str) -> tuple[str | None, str]:
    r"""The pair that Math-Verify is to compare, of an answer and a gold after `readable`; None for a wrong answer.

    Example:
        >>> comparable(r"\text{(C) Plane}", "C"), comparable("5 cm", "5"), comparable(r"\pi R^2", r"\pi r^2")
        (('C', 'C'), ('5', '5'), (None, '\\pi r^2'))
    """
    if _written(answer) == _written(gold):
        return gold, gold
    (is_choice, letter, own_words), (is_gold_choice, wanted, words) = _choice(answer), _choice(gold)
    if (is_choice or is_gold_choice) and wanted is not None:
        contradicted = letter != wanted or words and own_words and words != own_words
        return (None if contradicted else gold), gold
    answer, gold = without_units(answer, gold)
    if answer is None or contradicts(answer, gold):
        return None, gold
    answer, gold = (_LONG_TEXT.sub(lambda match: match[0].lower(), text) for text in (answer, gold))
    return answer, gold


def contradicts(answer: str, gold: str) -> bool:
    """Whether they differ in what Math-Verify does not look at: `12_5`, `12_6`; words `AB`, `BA`; `R_1`, `r_1`."""
    words = [_CAPITALS.fullmatch(text) for text in (answer, gold)]
    if all(words) and words[0][1] != words[1][1]:
        return True
    # letters that stand for something: not those of words and commands
    found = [_LETTER.findall(_LONG_TEXT.sub("", text)) for text in (answer, gold)]
    letters, gold_letters = ({one for one in ones if one[0] != "\\" or one.lower() in _GREEK} for ones in found)
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


def _choice(text: str) -> tuple[bool, str | None, str]:
    """Whether it is a letter in parentheses or text font; the letter, None for none or two; the words after it."""
    plain = _TEXT.sub(r"\1", text).strip()
    match = _CHOICE.fullmatch(plain)
    is_choice = _LETTER_IN_TEXT.fullmatch(text) is not None
    if match is None:
        return is_choice, None, ""
    if match[1][0] == "(":
        is_choice = match[2] is None or plain != text
    words = match[2] or ""
    return is_choice, choice_letter(f"{match[1].upper()} {words}".strip()), re.sub(r"\W", "", words).lower()


def without_units(answer: str, gold: str) -> tuple[str | None, str]:
    r"""Answer and gold without the words after them; None in place of an answer whose words contradict the gold's.

    Example:
        >>> without_units(r"5\text{ cm}", "5"), without_units("5s", "5"), without_units("5 m", r"5\text{ m}")
        (('5', '5'), ('5s', '5'), ('5', '5'))
        >>> without_units(r"5\text{ cm}", r"50\text{ mm}")
        ('\\left(5\\right)\\cdot10', '50')
    """
    texts = [_plain_ordinals(_CONSTANT.sub(r"\1\2", text)) for text in (answer, gold)]
    (value, phrase), (gold_value, gold_phrase) = map(_split, texts)
    if gold_phrase and not phrase:
        value, gold_value, phrase, gold_phrase = _with_bare(texts[0], texts[1], gold_value, gold_phrase)
    elif phrase and not gold_phrase:
        gold_value, value, gold_phrase, phrase = _with_bare(texts[1], texts[0], value, phrase)
    value, words = _with_currency(value, _read(phrase))
    gold_value, gold_words = _with_currency(gold_value, _read(gold_phrase))
    sides = ((value, words, gold_words), (gold_value, gold_words, words))
    # a value with `^\circ`, a unit that needs no words, meets no other unit
    if any("\\circ" in text and not own.dimension and other.dimension.keys() - _TURNS for text, own, other in sides):
        return None, gold_value
    if not _compatible(words, gold_words):
        return None, gold_value
    ratio = words.factor / gold_words.factor if words.dimension and gold_words.dimension else Fraction(1)
    value, gold_value = value + words.operations, gold_value + gold_words.operations
    if ratio != 1 and (_NO_NUMBER.search(value) or _NO_NUMBER.search(gold_value)):
        return None, gold_value
    factors = ((value, ratio.numerator), (gold_value, ratio.denominator))
    answer, gold = (text if factor == 1 else rf"\left({text}\right)\cdot{factor}" for text, factor in factors)
    return answer, gold


def _compatible(one: _Words, other: _Words) -> bool:
    """Whether the words of two values may be left out: those on both sides must agree, those on one be harmless."""
    if sorted(one.unknown) != sorted(other.unknown):
        return False
    if one.dimension and other.dimension:
        return one.dimension == other.dimension
    if one.dimension and other.things or other.dimension and one.things:
        return False
    return not (one.things and other.things) or bool(one.things & other.things)


def _read(phrase: str) -> _Words:
    """The meaning of a phrase such as "million square miles per hour"."""
    found, sign, power, last = _Words(), 1, 1, None
    tokens = _TOKEN.findall(_NO_WORDS.sub("", phrase.replace(r"\cdot", " ")))
    for token in tokens:
        name = _singular(token)
        if token in ("/", "per"):
            sign = -1
        elif token[0] == "^" or name in ("squared", "cubed") and last:
            times = int(token[1:]) if token[0] == "^" else 2 if name == "squared" else 3
            if last is not None:
                found.multiply(last, sign * (times - 1))
        elif name in ("square", "sq", "cubic", "cu") and token is not tokens[-1]:
            power = 2 if name[0] == "s" else 3
        elif name in NUMBERS and not found.dimension:
            found.operations += NUMBERS[name]
        elif (unit := UNITS.get(token) or (UNITS.get(name) if len(token) > 1 else None)) is not None:
            last = unit
            found.multiply(unit, sign * power)
            power = 1
        elif name in THINGS:
            found.things.add(name)
        elif name not in GENERIC:
            found.unknown.append(name)
    if found.dimension.keys() & _TURNS - {"degree"}:
        del found.dimension["degree"]
    return found


def _singular(word: str) -> str:
    word = word.lower()
    for ending, single in (("ies", "y"), ("sses", "ss"), ("xes", "x"), ("ches", "ch"), ("shes", "sh"), ("oes", "o")):
        if word.endswith(ending) and len(word) > 4 and word != "shoes":
            return word.removesuffix(ending) + single
    return word[:-1] if len(word) > 2 and word.endswith("s") and not word.endswith(("ss", "us")) else word


def _with_currency(text: str, words: _Words) -> tuple[str, _Words]:
    """The value without a dollar sign before it, which counts as the word."""
    if (match := _CURRENCY.match(text)) and not words.dimension:
        words.multiply(UNITS[_CURRENCIES[match[2] or ""]], 1)
        return match[1] + text[match.end() :], words
    return text, words


def _plain_ordinals(text: str) -> str:
    r"""`12^{\text{th}}` as `12\text{th}`, and `\text{12th grade}` as `12\text{ th grade}`."""
    if match := _NUMBER_IN_TEXT.fullmatch(text):
        return f"{match[1]}\\text{{{match[2]}}}"
    return _ORDINAL.sub(r"\\text{\1\2\3\4}", text)


def _split(text: str) -> tuple[str, str]:
    """The value and the phrase after it; no phrase where nothing is before it."""
    phrase = ""
    for _ in range(_MOST_UNITS):
        in_font = _UNIT.search(text) or _UNIT_FRACTION.search(text)
        match = in_font or _BARE.search(text)
        if match is None or not in_font and not _is_word(match[1]):
            break
        if in_font and any(_NO_UNIT.search(part) for part in match.groups("")[:-1]):
            break
        value = _SPACE.sub("", text[: match.start()])
        joint = _JOINT.search(value)
        is_quotient = joint is not None and joint[1] == "/" and bool(phrase)
        if joint and (is_quotient or _UNIT.search(value[: joint.start()].rstrip())):
            value, is_quotient = value[: joint.start()].rstrip(), joint[1] == "/"
        is_short = not in_font and match[1] in SHORT_BARE
        if not (_is_value(value) or not in_font and not is_short and _VALUE_END.search(value)):
            break
        if is_short and len(value) == match.start() and re.search(r"[a-zA-Z]", _bare(value)):
            break  # the letters after a variable: a unit is set off by a blank
        *words, power = match.groups("")
        text, phrase = value, "/" * is_quotient + "/".join(words) + re.sub(r"[\s{}]", "", power) + " " + phrase
    return text, phrase


def _is_word(word: str) -> bool:
    """Whether a word without a text font is one, and no product of variables."""
    word = word.removesuffix(".")
    if len(word) <= 3:
        return word in SHORT_BARE or _singular(word) in SHORT_BARE or word in ("per", "sq")
    return any(_singular(word) in words for words in (UNITS, NUMBERS, THINGS, GENERIC, ("square", "cubic")))


def _is_value(text: str) -> bool:
    if match := _LAST_COMMAND.search(text):
        return match[0] in _NUMBERS
    return _VALUE_END.search(text) is not None and re.search(r"[^\W_]", _WORDS_WITHIN.sub("", text)) is not None


def _bare(text: str) -> str:
    """The text without commands and what is in text font."""
    return re.sub(r"\\[a-zA-Z]+", "", _WORDS_WITHIN.sub("", text))


def _with_bare(text: str, other: str, value: str, phrase: str) -> tuple[str, str, str, str]:
    """Values and phrases of a text that may write the unit of the other as letters: `5 m`, `\\frac{37m}{4}`."""
    unit = re.sub(r"[\s{}]", "", phrase)
    letters = r"\s*".join(rf"\{{?{re.escape(letter)}\}}?" for letter in unit[:_LONGEST_UNIT])
    tail = re.search(rf"(?<![a-zA-Z\\]){letters}\Z", text) or _BARE_UNIT.search(text)
    if tail and _is_value(before := text[: tail.start()].rstrip()):
        bare = _read(tail[0])
        if re.sub(r"[\s{}]", "", tail[0]) == unit or not bare.unknown and bare.dimension == _read(phrase).dimension:
            return before, value, tail[0], phrase
    return (text, other, "", "") if len(unit) == 1 and unit in _bare(text) else (text, value, "", phrase)
