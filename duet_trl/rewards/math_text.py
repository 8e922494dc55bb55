# SPDX-License-Identifier: Apache-2.0
r"""Answers as models write them, in the notation that Math-Verify reads, and the answers that golds state.

Math-Verify reads what the golds of MATH look like. A policy also writes `90°`, `20~\text{cm}`, `12,348\pi`, `(−∞, 2)`,
plain text, Markdown and siunitx (`pi/6`, `exp(9)`, `x**2`, `**73**`, `\num{12345}`), and arguments by TeX's rule
(`\sqrt[4]3`, `\frac\pi2`). Everything here rewrites notation, in time at most quadratic in the length of an answer; it
never raises.
"""

import re

from ..gate.markers import extract_boxed

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
    r"\A(?:\s|\\[,;:!> ]|\\q?quad(?![a-zA-Z])|\\(?:(?:display|text)style|bf|large|color\s?\{\w+\})(?![a-zA-Z]))+"
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
_EMPHASIS = re.compile(r"(\*{1,3}|_{1,2}|`+)(?=[^\s*`])(.*[^\s*`])\1", re.DOTALL)
_FONTS = r"\\(?:text(?:rm|bf|it|normal)?|mbox|math(?:rm|bf|it|sf|bb|cal)|operatorname\*?)\s?\{[^{}]*\}"
_FUNCTIONS = "arcsin arccos arctan sinh cosh tanh sin cos tan cot csc ln log gcd det".split()
_ALIASES = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "lg": "log", "infinity": "infty", "oo": "infty"}
_GREEK = "alpha beta gamma delta epsilon theta lambda sigma omega phi psi rho tau mu pi".split()
_ENCLOSING = {
    **{"sqrt": (r"\sqrt{", "}"), "cbrt": (r"\sqrt[3]{", "}"), "exp": ("e^{", "}"), "^": ("^{", "}")},
    **{"abs": (r"\left|", r"\right|"), "floor": (r"\lfloor ", r"\rfloor "), "factorial": ("(", ")!")},
    **dict.fromkeys(("ceil", "ceiling"), (r"\lceil ", r"\rceil ")),
}
"""Commands after which brackets become LaTeX's own."""
_CALL = re.compile(r"(?:(?<![a-zA-Z\\])(?:sqrt|cbrt|exp|abs|floor|ceil|ceiling|factorial)|\\(?:sqrt|exp)|√|\^)\s?\(")
_NAME = re.compile(
    rf"\\(?:text|textrm|mathrm|operatorname)\s?\{{\s*({'|'.join([*_FUNCTIONS, *_GREEK, *_ALIASES])})\s*\}}"
    rf"|{_FONTS}|\\[a-zA-Z]+|(?<![a-zA-Z])(?:({'|'.join(_FUNCTIONS)})(?=[^a-zA-Z]|[a-zA-Z](?![a-zA-Z])|\Z)"
    rf"|({'|'.join([*_ALIASES, *_GREEK])})(?![a-zA-Z])|(max|min|sec)(?=\s?\())"
)
_SIGNS = (
    (re.compile(r"\\degree(?![a-zA-Z])"), r"^\\circ "),
    (re.compile(r"\\varnothing(?![a-zA-Z])"), r"\\emptyset "),
    (re.compile(r"\*\*"), "^"),
    (re.compile(r"(?<![\w.])(\d+)\s+(\d+)/(\d+)(?![\w/.])"), r"\1\\frac{\2}{\3}"),
    (re.compile(r"/\s?(\d+)\s+(?=[a-zA-Z\\])"), r"\\cdot\\frac{1}{\1} "),  # 1/2 x, which the parser takes for 1/(2x)
    (re.compile(r"(?<=\d)\s?x\s?(?=10\s?\^)"), r"\\times "),
    (re.compile(r"(?<![a-zA-Z\\])log(10|2)(?=\s?\()"), r"\\log_{\1}"),
    (re.compile(r"<=|=<"), r"\\le "),
    (re.compile(r">="), r"\\ge "),
    (re.compile(r"!=(?!=)"), r"\\ne "),
    (re.compile(r"=="), "="),
    (re.compile(r"\+\s?/\s?-|(?:\A|(?<=[=(,\s]))\+-(?=[\d\\a-z(])"), r"\\pm "),
    (re.compile(r"(?<=[)\]}])\s*(?:U|∪|\\text\{\s*U\s*\})\s*(?=[(\[{\\])"), r" \\cup "),
    (re.compile(r"\A\s*([a-zA-Z])\s+in\s+(?=[(\[{])"), r"\1 \\in "),
    (re.compile(r"\^\s?-\s?(\d+|[a-zA-Z])"), r"^{-\1}"),
    (re.compile(r"≡"), r"\\equiv "),
    (
        re.compile(r"(?:\\pmod|\\pod)\s?(\d+|[a-z])|\(\s?(?:\\?b?mod|\\text\{\s*mod\s*\})\s*\{?(\w+)\}?\s?\)"),
        r"\\pmod{\1\2}",
    ),
)
_NUM = re.compile(r"\\(?:num|ang)\s?\{\s*([-+\d.,e\s]+)\}")
_QUANTITY = re.compile(r"\\(?:(?:SI|qty)\s?\{\s*([-+\d.,e\s]+)\}|si|unit)\s?\{([^{}]*)\}")
_SIUNITX_PREFIX = re.compile(r"\\(nano|micro|milli|centi|deci|kilo|mega|giga)\s*\\")
_CLAUSE_WORD = r"(?:any|all|every|each|some|arbitrary|an?|constants?|values?|of|is|are|[a-zA-Z])"
_CLAUSE = re.compile(
    rf"(?<=\S)\s*,?\s*(?:\\text\s?\{{\s*,?\s*(?:for|where)(?:\s+{_CLAUSE_WORD})*\s*\}}\s*\$?[a-zA-Z]?\$?\s*"
    rf"(?:\\text\s?\{{\s*{_CLAUSE_WORD}(?:\s+{_CLAUSE_WORD})*\s*\}})?|\s(?:for|where)(?:\s+{_CLAUSE_WORD})+)\Z"
)
"""A clause after a formula that tells nothing about its letters: `\\text{ for any } c`."""
_STATED = re.compile(
    r"(?:[^.\n]*\b)?(?:the\s+)?(?:(?:final|correct)\s+)?answers?\s*(?:(?:is|are)\s*:?|:)\**\s+(\S.*?)\s*\.?\s*\Z",
    re.IGNORECASE | re.DOTALL,
)
_COMMAND = re.compile(r"\\(?!text|mbox|mathrm)[a-zA-Z]+")
_PROSE_WORD = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{2,}(?![a-zA-Z{])")
_REASONING = frozenset(
    "is are was were be has have had we it its this that there so then thus hence therefore because since must can "
    "cannot if when will would get gives give find found let using use which".split()
)
_MOST_WORDS = 12
"""Words of a gold that is a sentence whatever they are; fewer with one of those before."""
_TOKEN = re.compile(r"\\[a-zA-Z]+|\\.|[^\\\s]", re.DOTALL)
_ARGUMENTS = {
    **dict.fromkeys("mathrm operatorname sqrt".split(), 1),
    **dict.fromkeys("frac dfrac tfrac cfrac binom dbinom tbinom".split(), 2),
}
_WITH_ARGUMENTS = re.compile(rf"\\({'|'.join(_ARGUMENTS)})(?![a-zA-Z])|\^\s*(?=\\[dt]?frac)")
_BLANKS, _INDEX = re.compile(r"\s*"), re.compile(r"\s*\[[^\[\]]*\]")
_DEEPEST = 20
_BRACES, _PARENTHESES = re.compile(r"\\.|[{}]", re.DOTALL), re.compile(r"[()]")
_DEPTH = {**dict.fromkeys("{(", 1), **dict.fromkeys("})", -1)}


def readable(answer: str) -> str:
    r"""The answer in plain LaTeX, without what changes only its appearance.

    Example:
        >>> readable(r"\(12{,}348~\text{cm}\)"), readable("(−∞, 90°]")
        ('12348 \\text{cm}', '(-\\infty , 90^\\circ ]')
    """
    text = _SUPERSCRIPT.sub(lambda match: f"^{{{match[0].translate(_SUPERSCRIPTS)}}}", answer)
    text = _ROOT_SIGN.sub(r"\\sqrt{\1}", text).translate(_CHARACTERS)
    text = _without_wrappers(plain_as_latex(_without_wrappers(text)))
    # each base and subscript in one way
    text = _BASE_IN_WORDS.sub(lambda match: f"_{{{match[1] or match[2]}}}", text)
    text = _TEXT_SUBSCRIPT.sub(lambda match: f"_{{{(match[1] or match[2] or '').strip()}}}", text)
    text = _BASE_BY_NAME.sub(lambda match: f"_{{{_NUMBER_NAMES.index(match[1]) + 2}}}", text)
    text = _SHORT_SUBSCRIPT.sub(r"_\1", text)
    # the parser takes I for the imaginary unit, as SymPy writes it (2*I), and cannot read E_1
    text = _CAPITALS.sub(lambda match: match[1] or ("*i" if match[2] else rf"\mathit{{{match[0]}}}"), text)
    text = _SURE_SEPARATOR.sub("", _CONJUNCTION.sub(", ", text))
    if "," in text and not _BRACKETS.search(text):
        joined = _GROUPED.sub(lambda match: match[0].replace(",", ""), text)
        text = text if "," in joined else joined  # a comma that is left shows that it is a list
    return _REPEATING.sub(_fraction, text) if _REPEATING.fullmatch(text) else text


def _without_wrappers(text: str) -> str:
    """The text without the spacing, dollar signs, `\\( \\)`, braces, bold type and full stop around all of it."""
    for _ in range(_MOST_WRAPPERS):
        before = text
        text = _LEADING.sub("", text, count=1)
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


def plain_as_latex(text: str) -> str:
    r"""The text with plain-text notation rewritten in LaTeX.

    Example:
        >>> plain_as_latex("-4 + exp(9)"), plain_as_latex("x**2 + pi/6"), plain_as_latex(r"\sqrt[4]3")
        ('-4 + e^{9}', 'x^2 + \\pi /6', '\\sqrt[4]{3}')
    """
    if match := _EMPHASIS.fullmatch(text.strip()):
        text = match[2]
    text = _QUANTITY.sub(_quantity, _NUM.sub(lambda match: re.sub(r"[\s,]", "", match[1]), text))
    for pattern, sign in ((_CLAUSE, ""), *_SIGNS):
        text = pattern.sub(sign, text)
    return _braced(_NAME.sub(_command, _enclosed(text)), 0)


def gold_answer(gold: str) -> str:
    r"""The answer of a gold, which may be a solution that states it; empty where it is prose that states none.

    Example:
        >>> gold_answer("The answer is 5."), gold_answer("2 + 3 = 5\n#### 5"), gold_answer("It grows because x > 0.")
        ('5', '5', '')
    """
    boxed = extract_boxed(gold, "last")
    answer = stated_answer((boxed or gold.rpartition("####")[2]).strip())
    words = _PROSE_WORD.findall(_COMMAND.sub(" ", answer))
    reasons = any(word.lower() in _REASONING for word in words)
    is_whole = len(words) >= 4 and answer.rstrip("$} ").endswith(".")
    # no answer can be compared with a sentence; an expression or a name is not one
    return "" if len(words) >= _MOST_WORDS or is_whole or len(words) >= 3 and reasons else answer


def stated_answer(text: str) -> str:
    """What a sentence such as "The answer is 5." states; the text as it is without one."""
    match = _STATED.fullmatch(text.strip()) if "nswer" in text or "NSWER" in text else None
    return match[1] if match else text


def _quantity(match: re.Match[str]) -> str:
    unit = _SIUNITX_PREFIX.sub(r"\1", match[2])
    unit = re.sub(r"\\per\s*\\?", "/", unit).replace("\\", " ").replace("squared", "^2")
    return f"{(match[1] or '').strip()}\\text{{{unit.strip()}}}"


def _command(match: re.Match[str]) -> str:
    name = match.lastindex and match[match.lastindex]
    return f"\\{_ALIASES.get(name, name)} " if name else match[0]


def _enclosed(text: str) -> str:
    """The text with the brackets after `sqrt`, `exp`, `^` and the like as LaTeX's own."""
    place = 0
    while (match := _CALL.search(text, place)) and (end := closing(text, match.end(), _PARENTHESES)) >= 0:
        left, right = _ENCLOSING[match[0][:-1].rstrip().removeprefix("\\").replace("√", "sqrt")]
        text = text[: match.start()] + left + text[match.end() : end] + right + text[end + 1 :]
        place = match.start() + len(left)
    return text


def _braced(text: str, depth: int) -> str:
    """The text with braces around every argument of a fraction, root or binomial that is a bare token."""
    parts, place = [], 0
    while depth < _DEEPEST and (match := _WITH_ARGUMENTS.search(text, place)):
        parts.append(text[place : match.end()])
        place = match.end()
        if match[1] == "sqrt" and (index := _INDEX.match(text, place)):
            parts.append(index[0].strip())
            place = index.end()
        for _ in range(_ARGUMENTS.get(match[1], 1)):
            argument, place = _argument(text, place)
            parts.append(f"{{{_braced(argument, depth + 1)}}}" if argument else "")
    return "".join([*parts, text[place:]])


def _argument(text: str, place: int) -> tuple[str, int]:
    """The next argument without its braces, and where it ends: a group, a command with its own arguments, a token."""
    place = _BLANKS.match(text, place).end()
    token = _TOKEN.match(text, place)
    if token is None or token[0] == "}":
        return "", place
    if token[0] == "{":
        end = closing(text, token.end())
        return (text[token.end() : end], end + 1) if end >= 0 else ("", place)
    end = token.end()
    for _ in range(_ARGUMENTS.get(token[0][1:], 0) if len(token[0]) > 1 else 0):
        _, end = _argument(text, end)
    return text[place:end], end


def closing(text: str, begin: int, signs: re.Pattern[str] = _BRACES) -> int:
    """Place of the brace, or other sign, that closes the one before `begin`; -1 if none does."""
    depth = 1
    for match in signs.finditer(text, begin):
        depth += _DEPTH.get(match[0], 0)
        if depth == 0:
            return match.start()
    return -1
