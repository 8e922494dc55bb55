# SPDX-License-Identifier: Apache-2.0
r"""Choice reward: a multiple-choice letter or a short answer against its gold.

The extractor of the marker that the gate watches finds the answer. Letters are accepted as models write them ("(B)",
"\text{B}", "B) because ..."), an option's text instead of its letter where the row has its options. Short answers are
compared as in SQuAD's exact match, except that a number keeps its sign and its decimal point.
"""

import logging
import re
import string
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from ..gate.markers import Which, extract_answer, get_marker
from .completions import MAX_ANSWER_LENGTH, Completion, checked_which, gold_text, read_completions

logger = logging.getLogger(__name__)


def choice_reward(
    completions: list[Completion], answer: list[Any], options: list[Any] | None = None, **kwargs: Any
) -> list[float | None]:
    r"""TRL reward function: 1 if the answer in tags (or after "Therefore the answer is") is right, else 0.

    `ChoiceVerifier(marker="math")` is the same for answers in `\boxed{}`.

    Args:
        completions (list[str] | list[list[dict]]): Plain or conversational completions.
        answer (list[str | list[str]]): Gold letter or short answer of each, or several (the data-set column `answer`).
        options (list[list[str] | None] | None): Options of each row in the order of their letters (column `options`).
        **kwargs: Other columns and helpers that TRL passes; of these the thoughts of the completions are read.

    Returns:
        list[float | None]: 1.0 or 0.0; None, ungraded, where there is no gold or it is not one of the options.
    """
    return _default_verifier()(completions, answer, options, **kwargs)


class ChoiceVerifier:
    """Grades letters and short answers; callable as a TRL reward function.

    Args:
        marker (str): Where the answer is: "qa" for answer tags and "Therefore the answer is", "math" for a box, or
            any other marker of the gate.
        which (str): "last" answer of a completion, or the "first".

    Raises:
        ValueError: If the marker is unknown or `which` is neither "first" nor "last".
    """

    __name__ = "choice_reward"  # TRL names the reward's metrics after it

    def __init__(self, *, marker: str = "qa", which: Which = "last") -> None:
        get_marker(marker)
        self._marker = marker
        self._which = checked_which(which)
        self._warned = False

    def __call__(
        self, completions: list[Completion], answer: list[Any], options: list[Any] | None = None, **kwargs: Any
    ) -> list[float | None]:
        """Rewards of completions; arguments and result as in :func:`choice_reward`."""
        written = read_completions(completions, kwargs)
        return self.grade([extract_answer(self._marker, text, self._which) for text in written], answer, options)

    def grade(
        self, answers: Sequence[str | None], golds: Sequence[Any], options: Sequence[Any] | None = None
    ) -> list[float | None]:
        """Verdicts on extracted answers, None where there was none; the rest as in :func:`choice_reward`."""
        options = [None] * len(answers) if options is None else options
        verdicts = [_verdict(*row) for row in zip(answers, golds, options, strict=True)]
        if None in verdicts and not self._warned:
            self._warned = True
            logger.warning(
                "Rows without a gold answer, or with one that is not an option, stay ungraded: %d of this batch.",
                verdicts.count(None),
            )
        return verdicts


_default_verifier = cache(ChoiceVerifier)


def normalize_answer(text: str) -> str:
    """A short answer without what does not matter: case, articles, punctuation, blanks, LaTeX around words.

    Unlike in SQuAD's exact match a number keeps decimal point and sign; its commas and last zeros go. An answer of
    nothing but articles and punctuation stays as it is.
    """
    plain = unicodedata.normalize("NFKC", _without_latex(text)).translate(_MINUS_SIGNS).casefold()
    plain = _LAST_ZEROS.sub(r"\1", _BARE_POINT.sub("0.", _DROPPED.sub("", plain)))
    plain = _INITIALS.sub(lambda match: match[0].replace(".", ""), plain)
    words = _ARTICLES.sub(" ", _PUNCTUATION.sub(" ", plain)).split()
    return " ".join(words) or _DELIMITER_PARTS.sub("", plain).strip() or text.strip()


def choice_letter(answer: str, num_options: int = 26, options: Sequence[str] = ()) -> str | None:
    """The capital letter of the option that an answer names by letter or text; None if it names none or several.

    A letter may be followed by a reason ("C because ...") or words that name no other option.
    """
    letters = string.ascii_uppercase[:num_options]
    plain = unicodedata.normalize("NFKC", _without_latex(answer)).strip().strip(_QUOTES).strip()
    if match := _BARE_LETTER.fullmatch(plain):
        return match[1].upper() if match[1].upper() in letters else None
    texts = [normalize_answer(option) for option in options]
    wanted = normalize_answer(plain)
    if texts.count(wanted) == 1:
        return letters[texts.index(wanted)]
    match = _LETTER_AND_TEXT.fullmatch(plain)
    if match is None or (letter := (match[1] or match[2] or match[3]).upper()) not in letters:
        return None
    words = match[4].strip()
    own = texts[letters.index(letter)] if texts else ""
    if own and normalize_answer(words) == own:
        return letter
    reason = _REASON.search(words)
    head = words[: reason.start()] if reason else words
    if match[3] and not (reason and not head.strip(" ,;(")):
        return None  # "A metal" starts with an article
    named = normalize_answer(head).replace(own, " ") if own else normalize_answer(head)
    if _DOUBTED.search(named) and (texts or _DENIED.match(head)):
        return None
    if any(text and text != own and re.search(rf"(?<!\w){re.escape(text)}(?!\w)", named) for text in texts):
        return None
    # "B) or C)" hedges, and "A. B. C. D." lists
    following = letters if texts else letters[letters.index(letter) + 1 :][:1]
    seconds = {found.upper() for pair in _SECOND_LETTER.findall(words) for found in pair if found}
    seconds |= {found.upper() for found in _LABEL.findall(head) if found.upper() in following}
    return None if (seconds & set(letters)) - {letter} or _LETTERS_ONLY.fullmatch(words) else letter


def _verdict(answer: str | None, gold: Any, options: Sequence[str] | None) -> float | None:
    several = isinstance(gold, Iterable) and not isinstance(gold, str)
    golds = [text for one in (gold if several else [gold]) if (text := gold_text(one)).strip()]
    texts = _texts(options)
    if texts:
        golds = [letter for one in golds if (letter := choice_letter(one, len(texts), texts))]
    if not golds:
        return None
    is_read = answer is not None and len(answer) <= MAX_ANSWER_LENGTH
    return float(is_read and any(_agrees(answer, one, texts) for one in golds))


def _agrees(answer: str, gold: str, options: list[str]) -> bool:
    if options:
        return choice_letter(answer, len(options), options) == gold
    if match := _BARE_LETTER.fullmatch(gold.strip()):
        return choice_letter(answer) == match[1].upper()
    return normalize_answer(answer) == normalize_answer(gold)


def _texts(options: Any) -> list[str]:
    """Texts of the options in the order of their letters, of a list or of a mapping by letter."""
    texts = options.values() if isinstance(options, Mapping) else () if options is None else options
    return [str(option) for option in texts][: len(string.ascii_uppercase)]


def _without_latex(text: str) -> str:
    """The text without dollar signs, `\\( \\)`, and the commands that only set a font."""
    previous = None
    while previous != text:  # one level of nesting per round; each round shortens the text
        previous, text = text, _FONT.sub(r"\1", text)
    text = _SUBSCRIPT.sub(r"\1\2", _MATH_DELIMITERS.sub("", text))
    return text.replace("\\ ", " ").replace("~", " ")


_FONT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|boxed|mbox)\s?\{([^{}]*)\}")
_MATH_DELIMITERS = re.compile(r"\\[()\[\]]|\$|\*\*")
_DELIMITER_PARTS = re.compile(r"[\\$*()\[\]]")  # what is left of them can make another: `*$*`
_MINUS_SIGNS = str.maketrans("\u2212\u2013\u2014", "---")
# Apostrophes, and commas between the thousands of a number.
_DROPPED = re.compile(r"['\u2019]|(?<=\d),(?=\d{3}(?!\d))")
_BARE_POINT = re.compile(r"(?<![\d.])\.+(?=\d)|(?<=\.)\.(?=\d)")
_LAST_ZEROS = re.compile(r"(?<![\d.])(\d+(?:\.\d*[1-9])?)\.?0*(?![\d.])")
_INITIALS = re.compile(r"(?<!\w)(?:[^\W\d_]\.){2,}")
_SUBSCRIPT = re.compile(r"_(?:\{(\d+)\}|(\d))")  # as in H_2O
_QUOTES = "\"'`\u2018\u2019\u201c\u201d<>"
# A decimal point and the sign of a number are not punctuation.
_PUNCTUATION = re.compile(r"\.(?!\d)|-(?!\d)|(?<=\w)-|[^\w\s.\-+#]|(?<!\w)[+#]|[+#](?=\w)|_")
_ARTICLES = re.compile(r"\b(?:a|an|the)\b(?=\s+\S)")
_NAMED = (
    r"(?:[Ii]t(?:\s+is|['\u2019]s)\s+)?"
    r"(?:(?:[Tt]he\s+)?(?:correct\s+|final\s+|best\s+)?(?:[Oo]ption|[Cc]hoice|[Aa]nswer)\b(?:\s+is\b)?:?\s*){0,2}"
)
_BARE_LETTER = re.compile(rf"{_NAMED}[(\[{{]?\s*([A-Za-z])\s*[)\]}}]?[.:,;!]?", re.IGNORECASE)
_LETTER_AND_TEXT = re.compile(
    rf"{_NAMED}(?:[(\[]?([A-Z])(?:[)\].:]|\s[-\u2013\u2014]\s)|[(\[]?([a-z])[).:]\s|([A-Za-z])(?:\s?[,(]|(?=\s)))\s*(.+)",
    re.DOTALL,
)
_REASON = re.compile(
    r"(?<!\w)(?:because|since|as(?! well)|which|given|due to"
    r"|is (?:the )?(?:correct|right|best)(?: (?:answer|option|choice))?)(?!\w)",
    re.IGNORECASE,
)
_SECOND_LETTER = re.compile(
    r"(?:\b(?:(?<![A-Z] )and|or|maybe|perhaps|is|mean|actually)\b|[,/&(;|+])\s*\(?([A-Z])(?!\w)|(?<!\w)([A-Za-z])\)"
)
_DENIED = re.compile(r"(?:is|was|isn['\u2019]t|can(?:not|['\u2019]t)?)(?!\w)", re.IGNORECASE)
_DOUBTED = re.compile(r"(?<!\w)(?:not?|cannot|isnt|cant|incorrect|wrong|false|instead|actually)(?!\w)")
_LABEL = re.compile(r"(?<![\w.])([A-Za-z])[.:](?=\s|\Z)")
_LETTERS_ONLY = re.compile(r"(?:[^\w]*\b(?:[A-Z]|and|or|both|to)\b)+[^\w]*")
