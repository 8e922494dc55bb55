# SPDX-License-Identifier: Apache-2.0
r"""Mathematics in plain text, Markdown and siunitx as LaTeX: `pi/6`, `exp(9)`, `x**2`, `**73**`, `\num{12345}`.

And TeX's rule for arguments, which Math-Verify does not know: one without braces is one token (`\sqrt[4]3`,
`\frac\pi2`).
"""

import re

from ..gate.markers import extract_boxed

_EMPHASIS = re.compile(r"(\*{1,3}|_{1,2}|`+)(?=[^\s*`])(.*[^\s*`])\1", re.DOTALL)
_FONTS = r"\\(?:text(?:rm|bf|it|normal)?|mbox|math(?:rm|bf|it|sf|bb|cal)|operatorname\*?)\s?\{[^{}]*\}"
_NAMED = re.compile(r"\\(?:text|textrm|mathrm|operatorname)\s?\{\s*([a-zA-Z]+)\s*\}")
_FUNCTIONS = "arcsin arccos arctan sinh cosh tanh sin cos tan cot csc ln log gcd det".split()
_ALIASES = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "lg": "log", "infinity": "infty", "oo": "infty"}
_GREEK = "alpha beta gamma delta epsilon theta lambda sigma omega phi psi rho tau mu pi".split()
_ENCLOSING = {
    **{"sqrt": (r"\sqrt{", "}"), "cbrt": (r"\sqrt[3]{", "}"), "exp": ("e^{", "}"), "^": ("^{", "}")},
    **{"abs": (r"\left|", r"\right|"), "floor": (r"\lfloor ", r"\rfloor "), "factorial": ("(", ")!")},
    **dict.fromkeys(("ceil", "ceiling"), (r"\lceil ", r"\rceil ")),
}
"""What takes the brackets behind it into LaTeX's own."""
_CALL = re.compile(r"(?:(?<![a-zA-Z\\])(?:sqrt|cbrt|exp|abs|floor|ceil|ceiling|factorial)|\\(?:sqrt|exp)|√|\^)\s?\(")
_NAME = re.compile(
    rf"{_FONTS}|\\[a-zA-Z]+|(?<![a-zA-Z])(?:({'|'.join(_FUNCTIONS)})(?=[^a-zA-Z]|[a-zA-Z](?![a-zA-Z])|\Z)"
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
"""A clause behind a formula that says nothing about its letters: `\\text{ for any } c`."""
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
_DEEPEST = 20
_BRACES, _BRACKETS = re.compile(r"\\.|[{}]", re.DOTALL), re.compile(r"[()]")
_DEPTH = {**dict.fromkeys("{(", 1), **dict.fromkeys("})", -1)}


def plain_as_latex(text: str) -> str:
    r"""The text with everything that plain text writes without LaTeX in LaTeX.

    Example:
        >>> plain_as_latex("-4 + exp(9)"), plain_as_latex("x**2 + pi/6"), plain_as_latex(r"\sqrt[4]3")
        ('-4 + e^{9}', 'x^2 + \\pi /6', '\\sqrt[4]{3}')
    """
    if match := _EMPHASIS.fullmatch(text.strip()):
        text = match[2]
    text = _QUANTITY.sub(_quantity, _NUM.sub(lambda match: re.sub(r"[\s,]", "", match[1]), text))
    text = _CLAUSE.sub("", text)
    for pattern, sign in _SIGNS:
        text = pattern.sub(sign, text)
    text = _NAME.sub(_command, _NAMED.sub(_function, _enclosed(text)))
    return _braced(text, 0)


def gold_answer(gold: str) -> str:
    r"""The answer of a gold, which may be a solution that states it; empty where it is prose that states none.

    Example:
        >>> gold_answer("The answer is 5."), gold_answer("2 + 3 = 5\n#### 5"), gold_answer("It grows because x > 0.")
        ('5', '5', '')
    """
    boxed = extract_boxed(gold, "last")
    answer = stated_answer((boxed or gold.rpartition("####")[2]).strip())
    return "" if _is_prose(answer) else answer


def stated_answer(text: str) -> str:
    """What a sentence such as "The answer is 5." says; the text as it is without one."""
    match = _STATED.fullmatch(text.strip()) if "nswer" in text or "NSWER" in text else None
    return match[1] if match else text


def _is_prose(text: str) -> bool:
    """Whether it is a sentence, which no answer can be compared with: an expression or a name is none."""
    words = _PROSE_WORD.findall(_COMMAND.sub(" ", text))
    reasons = sum(word.lower() in _REASONING for word in words)
    is_whole = len(words) >= 4 and text.rstrip("$} ").endswith(".")
    return len(words) >= _MOST_WORDS or is_whole or len(words) >= 3 and reasons > 0


def _quantity(match: re.Match[str]) -> str:
    unit = _SIUNITX_PREFIX.sub(r"\1", match[2])
    unit = re.sub(r"\\per\s*\\?", "/", unit).replace("\\", " ").replace("squared", "^2")
    return f"{(match[1] or '').strip()}\\text{{{unit.strip()}}}"


def _function(match: re.Match[str]) -> str:
    is_known = match[1] in _FUNCTIONS or match[1] in _GREEK or match[1] in _ALIASES
    return f"\\{_ALIASES.get(match[1], match[1])} " if is_known else match[0]


def _command(match: re.Match[str]) -> str:
    name = match[1] or match[2] or match[3]
    return match[0] if name is None else f"\\{_ALIASES.get(name, name)} "


def _enclosed(text: str) -> str:
    """The text with the brackets behind `sqrt`, `exp`, `^` and the like as LaTeX's own."""
    place = 0
    for _ in range(len(text)):
        match = _CALL.search(text, place)
        if match is None:
            break
        end = closing(text, match.end(), _BRACKETS)
        place = match.end()
        if end < 0:
            break
        name = match[0].rstrip("( ").removeprefix("\\").replace("√", "sqrt")
        left, right = _ENCLOSING[name]
        text = text[: match.start()] + left + text[match.end() : end] + right + text[end + 1 :]
        place = match.start() + len(left)
    return text


def _braced(text: str, depth: int) -> str:
    """The text with braces around every argument of a fraction, root or binomial that is a bare token."""
    parts, place = [], 0
    while depth < _DEEPEST and (match := _WITH_ARGUMENTS.search(text, place)):
        parts.append(text[place : match.end()])
        place = match.end()
        if match[1] == "sqrt" and (index := re.compile(r"\s*\[[^\[\]]*\]").match(text, place)):
            parts.append(index[0].strip())
            place = index.end()
        for _ in range(_ARGUMENTS.get(match[1], 1)):
            argument, place = _argument(text, place)
            parts.append(f"{{{_braced(argument, depth + 1)}}}" if argument else "")
    return "".join([*parts, text[place:]])


def _argument(text: str, place: int) -> tuple[str, int]:
    """The next argument without its braces, and where it ends: a group, a command with its own arguments, a token."""
    while text[place : place + 1].isspace():
        place += 1
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
