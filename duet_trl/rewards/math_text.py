# SPDX-License-Identifier: Apache-2.0
r"""Answers as models write them, in the notation that Math-Verify reads: Unicode, spacing, wrappers, thousands.

Math-Verify reads what the golds of MATH look like. A policy under training also writes `90°`, `20~\text{cm}`,
`12,348\pi`, `\(3,5\)` and `(−∞, 2)`, which are as right. Everything here is a rewriting of notation, in time at most
quadratic in the length of an answer; it never raises.
"""

import re

from .math_plain import closing, plain_as_latex

_UNICODE = {
    **{"°": r"^\circ ", "∞": r"\infty ", "π": r"\pi ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset "},
    **{"≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "±": r"\pm ", "×": r"\times ", "·": r"\cdot ", "ℝ": r"\mathbb{R} "},
    **{"½": r"\frac{1}{2}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}"},
    **dict.fromkeys("\u2212\u2010\u2011\u2013\ufe63\uff0d", "-"),
    **dict.fromkeys("\u00a0\u2002\u2003\u2009\u200a\u202f\u3000~", " "),
    **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff", ""),
    **{"％": r"\%", "，": ",", "（": "(", "）": ")"},
}
_CHARACTERS = str.maketrans(_UNICODE)
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_SUPERSCRIPT = re.compile(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+")
_ROOT_SIGN = re.compile(r"(?:√\s*|(?<![a-zA-Z\\])sqrt(?=\d))(\d+|[a-zA-Z])")
_CONJUNCTION = re.compile(r",?\s*\\(?:text|mbox|textrm|mathrm)\s?\{\s*,?\s*(?:and|or)\s*\}\s*,?")
_SURE_SEPARATOR = re.compile(r"(?<=\d)(?:\{,\}|,\\!|\\!,|\\,)\s*(?=\d{3}(?!\d))")
_GROUPED = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:,\d{3})+(?![\d,])")
_BRACKETS = re.compile(r"[(\[|]|\\[{|a-z]*(?:brace|vert|langle)")
_REPEATING = re.compile(r"(-?)(\d{0,20})\.(\d{0,20})\\(?:overline|bar)\s?\{(\d{1,20})\}")
_LEADING = re.compile(
    r"(?:\s|\\[,;:!> ]|\\q?quad(?![a-zA-Z])|\\(?:(?:display|text)style|bf|large|color\s?\{\w+\})(?![a-zA-Z]))+"
)
_TRAILING = re.compile(r"(?:\s|\\[,;:!> ]|\\q?quad|\\)+\Z")
_FULL_STOP = re.compile(r"(?<!\.)(?<!\\right)\.\Z")
"""The end of a sentence that was put into the box; neither an ellipsis nor an invisible delimiter."""
_WRAPPER = re.compile(
    r"(?:\\(?:mathbf|boldsymbol|bm|boxed|fbox|ensuremath|underline|emph|(?:math|text)tt|textcolor\{\w+\})\s?)?\{"
)
_TEXT = r"\\(?:text|mbox|textrm|mathrm)\s?"
_TEXT_SUBSCRIPT = re.compile(rf"_\s?(?:\{{\s?{_TEXT}\{{([\w, ]*)\}}\s?\}}|{_TEXT}\{{([\w, ]*)\}})")
_SHORT_SUBSCRIPT = re.compile(r"_\s?\{\s?(\w)\s?\}")
_BASE_IN_WORDS = re.compile(rf"[ (]{{0,4}}{_TEXT}\{{[ (]{{0,4}}(?:in )?base[ -]?(\w*)[) ]{{0,4}}\}} ?(\w*)\)?\Z")
_NUMBER_NAMES = "two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen".split()
_BASE_BY_NAME = re.compile(rf"(?<=\w)_\{{?({'|'.join(_NUMBER_NAMES)})\}}?(?![a-z])")
_CAPITALS = re.compile(r"(\\(?:text|mbox|math)[a-z]*\s?\{[^{}]*\}|\\[a-zA-Z]+)|(\*I)|I|E(?=\s?_)")
_MOST_WRAPPERS = 8


def readable(answer: str) -> str:
    r"""The answer in plain LaTeX, without what changes its looks only.

    Example:
        >>> readable(r"\(12{,}348~\text{cm}\)"), readable("(−∞, 90°]")
        ('12348 \\text{cm}', '(-\\infty , 90^\\circ ]')
    """
    text = _SUPERSCRIPT.sub(lambda match: f"^{{{match[0].translate(_SUPERSCRIPTS)}}}", answer)
    text = _ROOT_SIGN.sub(r"\\sqrt{\1}", text).translate(_CHARACTERS)
    text = _plain_letters(_without_wrappers(plain_as_latex(_without_wrappers(text))))
    text = _SURE_SEPARATOR.sub("", _CONJUNCTION.sub(", ", text))
    if "," in text and not _BRACKETS.search(text):
        joined = _GROUPED.sub(lambda match: match[0].replace(",", ""), text)
        text = text if "," in joined else joined  # a comma that is left says that it is a list
    return _REPEATING.sub(_fraction, text) if _REPEATING.fullmatch(text) else text


def _plain_letters(text: str) -> str:
    r"""The text with each base and subscript written in one way, and capitals that the parser knows as letters only.

    It takes `I` for the imaginary unit, as SymPy writes it (`2*I`), and cannot read `E_1`.
    """
    text = _BASE_IN_WORDS.sub(lambda match: f"_{{{match[1] or match[2]}}}", text)
    text = _TEXT_SUBSCRIPT.sub(lambda match: f"_{{{(match[1] or match[2] or '').strip()}}}", text)
    text = _BASE_BY_NAME.sub(lambda match: f"_{{{_NUMBER_NAMES.index(match[1]) + 2}}}", text)
    text = _SHORT_SUBSCRIPT.sub(r"_\1", text)
    return _CAPITALS.sub(lambda match: match[1] or ("*i" if match[2] else rf"\mathit{{{match[0]}}}"), text)


def _without_wrappers(text: str) -> str:
    """The text without the spacing, dollar signs, `\\( \\)`, braces, bold type and full stop around all of it."""
    for _ in range(_MOST_WRAPPERS):
        before = text
        if match := _LEADING.match(text):
            text = text[match.end() :]
        text = _TRAILING.sub("", text) if not text.endswith(("\\)", "\\]")) else text
        for left, right in (("\\(", "\\)"), ("\\[", "\\]"), ("$$", "$$"), ("$", "$")):
            inside = text[len(left) : -len(right)]
            if len(text) > len(left + right) and text == left + inside + right and right not in inside:
                text = inside
        if (match := _WRAPPER.match(text)) and closing(text, match.end()) == len(text) - 1:
            text = text[match.end() : -1]
        text = _FULL_STOP.sub("", text)
        if text == before:
            break
    return text


def _fraction(match: re.Match[str]) -> str:
    r"""`0.1\overline{6}` as a fraction: the digits up to the end of the first period, less those before it."""
    sign, whole, fixed, period = match.groups()
    numerator = int(whole + fixed + period) - int((whole + fixed) or "0")
    return rf"{sign}\frac{{{numerator}}}{{{'9' * len(period) + '0' * len(fixed)}}}"
