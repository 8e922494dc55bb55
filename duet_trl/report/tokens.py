# SPDX-License-Identifier: Apache-2.0
"""Tokens and thoughts of logged texts. With the run's tokenizer tokens are counted; without, a text is cut into pieces
of so many characters, which stand for tokens. Answers inside a thought do not count, as under the gate.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from ..gate.automaton import TokenAutomaton, compile_automaton
from ..gate.markers import Marker, extract_answer, get_marker
from ..gate.replay import NEVER
from ..gate.thoughts import Delimiters, Written, ends_in_thought, parse_delimiters, recognise
from ..gate.vocabulary import vocabulary_bytes
from .logged_completions import Completions, UnreadableRun, counted

CHARS_PER_TOKEN = 3.0
"""Of mathematical text: 480 solutions of MATH problems have 3.01 under a tokenizer of 131,072 tokens (Tekken)."""

_CHUNK = 1024
"""Texts that are tokenized at a time."""


@dataclass(frozen=True)
class Tokens:
    """N texts in tokens."""

    ids: list[np.ndarray]  # token ids of each text
    # bytes of each token id, given the texts of thought delimiters
    vocabulary: Callable[[Sequence[str]], Sequence[bytes | None]]
    decode: Callable[[np.ndarray], str]  # token ids as text

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each text, shape (N,), int64."""
        return np.fromiter(map(len, self.ids), np.int64, len(self.ids))

    def automaton(self, marker: Marker) -> TokenAutomaton:
        """A marker over these tokens."""
        return compile_automaton(marker, self.vocabulary(() if marker.delimiters is None else marker.delimiters.parts))

    def answered_at(self, marker: Marker, opened: np.ndarray | None = None) -> np.ndarray:
        """Tokens up to and including the one that first completes the marker, (N,) int64; `NEVER` without it.

        `opened` (N,) bool says which texts begin inside a thought; None: none does.
        """
        ends = np.full(len(self.ids), NEVER)
        row, position = self.automaton(marker).completions(self.ids, opened)
        np.minimum.at(ends, row, position)
        return ends

    def prefix(self, row: int, num_tokens: int) -> str:
        """The first tokens of a text, as text."""
        return self.decode(self.ids[row][:num_tokens])


def cut_texts(texts: Sequence[str], chars_per_token: float) -> Tokens:
    """Tokens estimated from characters: the first k tokens of a text are its first k x ratio characters."""
    number: dict[str, int] = {}
    ids = []
    for text in texts:
        # The margin keeps 3 characters at a ratio of 0.3 at 10 tokens, where the quotient is 10.000000000000002.
        count = int(np.ceil(len(text) / chars_per_token * (1.0 - 1e-12)))
        ends = [*(np.arange(count) * chars_per_token * (1.0 + 1e-12)).astype(np.int64).tolist(), len(text)]
        pieces = [text[begin:end] for begin, end in pairwise(ends)]
        ids.append(np.array([number.setdefault(piece, len(number)) for piece in pieces], dtype=np.int32))
    pieces = list(number)
    vocabulary = [piece.encode("utf-8", "surrogatepass") for piece in pieces]
    return Tokens(ids, lambda shown: vocabulary, lambda row: "".join(pieces[token] for token in row))


def tokenize(texts: Sequence[str], tokenizer: Any) -> Tokens:
    """Tokens counted with the run's `tokenizers.Tokenizer`.

    Sampled tokens may differ a little from those of the tokenized text, and the end token is not in the text. The
    vocabulary raises ValueError if it is not known how this tokenizer writes text.
    """
    chunks = (list(texts[start : start + _CHUNK]) for start in range(0, len(texts), _CHUNK))
    encoded = chain.from_iterable(tokenizer.encode_batch(chunk, add_special_tokens=False) for chunk in chunks)
    ids = [np.array(encoding.ids, np.int32) for encoding in encoded]
    fast = SimpleNamespace(backend_tokenizer=tokenizer)  # what is read of transformers' fast tokenizers
    return Tokens(
        ids,
        lambda shown: vocabulary_bytes(fast, shown=shown),
        lambda row: tokenizer.decode(row.tolist(), skip_special_tokens=False),
    )


def load_tokenizer(path_or_name: str) -> Any:
    """The `tokenizers.Tokenizer` in a folder, in a `tokenizer.json`, or of a model on the Hub, without truncation."""
    # Not torch or transformers: this is all that counting tokens needs.
    from tokenizers import Tokenizer

    path = Path(path_or_name)
    if path.is_dir():
        path /= "tokenizer.json"
    try:
        if path.suffix == ".json":
            tokenizer = Tokenizer.from_str(path.read_text(encoding="utf-8"))
        else:
            tokenizer = Tokenizer.from_pretrained(path_or_name)
    except (OSError, ValueError) as error:
        raise UnreadableRun(
            f"no tokenizer in {path_or_name!r} ({error}). Give a folder with a tokenizer.json, or a model name that "
            "is in the local Hub cache or can be downloaded."
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


@dataclass(frozen=True)
class LoggedThoughts:
    """The thoughts of N completions."""

    delimiters: Delimiters | None  # what opens and closes them; None: there are none
    opened: np.ndarray  # whether each begins inside one, shape (N,), bool

    def marker(self, name: str) -> Marker:
        """The marker that completes outside of these thoughts only."""
        return get_marker(name, self.delimiters)

    def answer_changes(self, name: str, texts: Sequence[str], tokens: Tokens, stop: np.ndarray) -> float | None:
        """Share of the completions stopped early, at `stop` (N,) tokens, whose last answer is another one then."""

        def last_answer(row: int, text: str) -> str | None:
            return extract_answer(name, Written(text, self.delimiters, bool(self.opened[row])), "last")

        changed = [
            last_answer(row, tokens.prefix(row, stop[row])) != last_answer(row, texts[row])
            for row in np.flatnonzero(stop < tokens.lengths)
        ]
        return float(np.mean(changed)) if changed else None


def find_thoughts(completions: Completions, names: Sequence[str] | None) -> LoggedThoughts:
    """The delimiters of logged completions, and which of these begin inside a thought.

    Special tokens are in no log: of a thought between two of them nothing can be known. `names` are the delimiters,
    none of them, or None: those known ones that most completions show. ValueError if they are neither none nor two.
    """
    found = [recognise(text) for text in completions.texts]
    if names is not None:
        delimiters = parse_delimiters(names)
    else:
        seen = Counter(written.delimiters for written in found if written.delimiters is not None)
        delimiters = seen.most_common(1)[0][0] if seen else None
    if delimiters is None:
        return LoggedThoughts(None, np.zeros(len(found), dtype=bool))
    opened = [
        ends_in_thought(prompt, delimiters) or _closes_first(text, delimiters)
        for prompt, text in zip(completions.prompts, completions.texts, strict=True)
    ]
    return LoggedThoughts(delimiters, np.array(opened, dtype=bool))


def thought_notes(thoughts: LoggedThoughts) -> list[str]:
    """What the reader should know about them."""
    if thoughts.delimiters is None:
        return []
    opening, closing = thoughts.delimiters.parts
    begin = counted(int(thoughts.opened.sum()), "completion begins", "completions begin")
    return [
        f"Thoughts stand between {opening} and {closing}; answers inside of them do not count. {begin} inside one, "
        "because the prompt opened it. --thought_delimiters names others, or none."
    ]


def _closes_first(text: str, delimiters: Delimiters) -> bool:
    close, open_ = text.find(delimiters.closing), text.find(delimiters.opening)
    return 0 <= close and (open_ < 0 or close < open_)
