# SPDX-License-Identifier: Apache-2.0
"""A formula of a notebook as MathML, which browsers draw by themselves: a TeX library would come from elsewhere.

It reads the TeX that notebooks/ uses: letters, numbers, scripts, roots, fractions, `\\text` and the commands below.
"""

import re

_COMMANDS = {
    "\\lambda": "<mi>λ</mi>",
    "\\sigma": "<mi>σ</mi>",
    "\\tau": "<mi>τ</mi>",
    "\\varepsilon": "<mi>ε</mi>",
    "\\min": '<mrow><mspace width=".17em"/><mi>min</mi></mrow>',
    "\\sum": "<mo>∑</mo>",
    "\\,": '<mspace width=".17em"/>',
    "\\qquad": '<mspace width="2em"/>',
}
_TOKEN = re.compile(r"\\(?:text|mathrm)\{[^}]*\}|\\[A-Za-z]+|\\.|\d[\d.]*|\S")


def formulas(text: str) -> str:
    """Markdown with `$...$` and `$$...$$` as MathML; code is left alone."""
    parts = re.split(r"(`[^`]*`)", text)
    for number, part in enumerate(parts[::2]):
        part = re.sub(r"\$\$(.+?)\$\$", lambda found: mathml(found[1], "block"), part)
        parts[2 * number] = re.sub(r"\$(.+?)\$", lambda found: mathml(found[1]), part)
    return "".join(parts)


def mathml(formula: str, display: str = "inline") -> str:
    """One formula; inline it is in a `<span>`, because a line that began with `<math>` would be a paragraph.

    Raises:
        ValueError: If it holds a command that is not read here, or a brace too many or too few.
    """
    tokens = _TOKEN.findall(formula)[::-1]
    try:
        row = _row(tokens)
        if tokens:
            raise ValueError("a closing brace too many")
    except (IndexError, KeyError, ValueError) as error:
        raise ValueError(f"docs/site/formulas.py does not read ${formula}$: {error}.") from error
    around = 'div class="scroll"' if display == "block" else "span"
    return f'<{around}><math display="{display}">{row}</math></{around.split()[0]}>'


def _row(tokens: list[str]) -> str:
    """The rest of a formula or of a group; tokens are taken from the end of the list."""
    parts = []
    while tokens and tokens[-1] != "}":
        parts.append(_scripted(tokens))
    return f"<mrow>{''.join(parts)}</mrow>"


def _scripted(tokens: list[str]) -> str:
    base, scripts = _atom(tokens), {"_": "", "^": ""}
    while tokens and tokens[-1] in scripts:
        kind = tokens.pop()
        scripts[kind] = _atom(tokens)
    names = {"_": "sub", "^": "sup"}
    element = "m" + "".join(names[kind] for kind, script in scripts.items() if script)
    return base if element == "m" else f"<{element}>{base}{scripts['_']}{scripts['^']}</{element}>"


def _atom(tokens: list[str]) -> str:
    token = tokens.pop()
    if token == "{":
        row = _row(tokens)
        tokens.pop()
        return row
    if token == "\\frac":
        return f"<mfrac>{_atom(tokens)}{_atom(tokens)}</mfrac>"
    if token == "\\sqrt":
        return f"<msqrt>{_atom(tokens)}</msqrt>"
    if words := re.fullmatch(r"\\(?:text|mathrm)\{(.*)\}", token):
        return f"<mtext>{words[1]}</mtext>".replace(" ", "&#160;")
    if token[0] == "\\":
        return _COMMANDS[token]
    if token.isalpha():
        return f"<mi>{token}</mi>"
    # As numbers of characters, so that Markdown sees no star and no bracket.
    return f"<mn>{token}</mn>" if token[0].isdigit() else f"<mo>&#{ord('−' if token == '-' else token)};</mo>"
