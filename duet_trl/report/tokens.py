# SPDX-License-Identifier: Apache-2.0
"""How many tokens logged texts have, and at which of them a marker completes.

Logs hold text. With the run's tokenizer its tokens are counted; without, they are estimated from characters.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..gate.automaton import compile_automaton
from ..gate.markers import Marker, count_characters
from ..gate.replay import NEVER
from ..gate.vocabulary import vocabulary_bytes
from .logged_completions import Completions, RunLog, UnreadableRun

CHARS_PER_TOKEN = 3.0
"""Of mathematical text: 480 solutions of MATH problems have 3.01 under a tokenizer of 131,072 tokens (Tekken)."""

_CHUNK = 1024
"""Texts that are searched or tokenized at a time."""

_BYTES = tuple(bytes([value]) for value in range(256))


class TokenCounts(Protocol):
    """Lengths and positions in tokens of N texts.

    Attributes:
        lengths (np.ndarray): Tokens of each text, shape (N,), int64.
    """

    lengths: np.ndarray

    def answered_at(self, marker: Marker, opened: np.ndarray | None = None) -> np.ndarray:
        """Tokens up to and including the one that first completes the marker, (N,) int64; `NEVER` without it.

        `opened` (N,) bool says which texts begin inside a thought; None: none does.
        """

    def prefix(self, row: int, num_tokens: int) -> str:
        """The first tokens of a text, as text."""


class CharacterCounts:
    """Tokens estimated from characters: n characters are ceil(n / ratio) tokens.

    Args:
        texts (Sequence[str]): N texts.
        chars_per_token (float): The ratio, > 0.
    """

    def __init__(self, texts: Sequence[str], chars_per_token: float) -> None:
        self.texts = texts
        self.chars_per_token = chars_per_token
        self.lengths = self._tokens(np.fromiter(map(len, texts), np.int64, len(texts)))

    def answered_at(self, marker: Marker, opened: np.ndarray | None = None) -> np.ndarray:
        """See `TokenCounts`."""
        chars = np.full(len(self.texts), NEVER)
        for start in range(0, len(self.texts), _CHUNK):
            data = [text.encode("utf-8", "surrogatepass") for text in self.texts[start : start + _CHUNK]]
            inside = None if opened is None else opened[start : start + _CHUNK]
            ends = first_completions(marker, _BYTES, [np.frombuffer(text, np.uint8) for text in data], inside)
            for row in np.flatnonzero(ends < NEVER):
                chars[start + row] = count_characters(data[row][: ends[row]])
        shown = chars < NEVER
        return np.where(shown, self._tokens(np.where(shown, chars, 0)), NEVER)

    def prefix(self, row: int, num_tokens: int) -> str:
        """See `TokenCounts`."""
        return self.texts[row][: int(num_tokens * self.chars_per_token)]

    def _tokens(self, chars: np.ndarray) -> np.ndarray:
        # The margin keeps 3 characters at a ratio of 0.3 at 10 tokens, where the quotient is 10.000000000000002.
        return np.ceil(chars / self.chars_per_token * (1.0 - 1e-12)).astype(np.int64)


class TokenizerCounts:
    """Tokens counted with the run's tokenizer, markers found by the trainer's own token automaton.

    Sampled tokens may differ a little from those of the tokenized text, and the end token is not in the text.

    Args:
        texts (Sequence[str]): N texts.
        tokenizer (Any): A `tokenizers.Tokenizer`.

    Raises:
        ValueError: If it is not known how this tokenizer writes text.
    """

    def __init__(self, texts: Sequence[str], tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.backend_tokenizer = tokenizer  # what vocabulary_bytes reads of transformers' fast tokenizers
        self.ids: list[np.ndarray] = []
        for start in range(0, len(texts), _CHUNK):
            encoded = tokenizer.encode_batch(list(texts[start : start + _CHUNK]), add_special_tokens=False)
            self.ids += [np.array(encoding.ids, np.int32) for encoding in encoded]
        self.lengths = np.fromiter(map(len, self.ids), np.int64, len(self.ids))

    def answered_at(self, marker: Marker, opened: np.ndarray | None = None) -> np.ndarray:
        """See `TokenCounts`."""
        shown = () if marker.delimiters is None else marker.delimiters.parts
        vocabulary = vocabulary_bytes(self, shown=shown)
        inside = np.zeros(len(self.ids), dtype=bool) if opened is None else opened
        chunks = [slice(start, start + _CHUNK) for start in range(0, len(self.ids), _CHUNK)]
        return np.concatenate([first_completions(marker, vocabulary, self.ids[c], inside[c]) for c in chunks])

    def prefix(self, row: int, num_tokens: int) -> str:
        """See `TokenCounts`."""
        return self.tokenizer.decode(self.ids[row][:num_tokens].tolist(), skip_special_tokens=False)


def first_completions(
    marker: Marker, vocabulary: Sequence[bytes | None], rows: Sequence[np.ndarray], opened: np.ndarray | None = None
) -> np.ndarray:
    """Number of tokens of each row up to the first completion of the marker.

    Args:
        marker (Marker): The marker.
        vocabulary (Sequence[bytes | None]): Bytes of each token id.
        rows (Sequence[np.ndarray]): Token ids of N texts.
        opened (np.ndarray | None): Whether each begins inside a thought, shape (N,), bool; None: none does.

    Returns:
        np.ndarray: Shape (N,), int64; `NEVER` where it does not complete.
    """
    ends = np.full(len(rows), NEVER)
    row, position = compile_automaton(marker, vocabulary).completions(rows, opened)
    np.minimum.at(ends, row, position)
    return ends


def load_tokenizer(path_or_name: str) -> Any:
    """The tokenizer in a folder, in a `tokenizer.json`, or of a model on the Hub.

    Args:
        path_or_name (str): The folder, the file, or the name.

    Returns:
        Any: A `tokenizers.Tokenizer` that neither truncates nor pads.

    Raises:
        UnreadableRun: If there is none.
    """
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


def logged_tokens(completions: Completions, logs: Mapping[Path, RunLog]) -> np.ndarray:
    """Tokens of a batch's completions by the run's own `completions/mean_length`, end tokens included.

    Args:
        completions (Completions): Logged completions in B batches.
        logs (Mapping[Path, RunLog]): Log of each run that has one.

    Returns:
        np.ndarray: Mean tokens per completion, shape (B,); nan where the log has no entry at the step.
    """
    means = {run: log.values("completions/mean_length") for run, log in logs.items()}
    return np.array([means.get(run, {}).get(step, np.nan) for run, step in completions.batches])


def mean_over_logged(completions: Completions, values: np.ndarray, logged: np.ndarray) -> float | None:
    """Mean of one value per completion over the batches that have an entry in the log; None if none has.

    Args:
        completions (Completions): N completions in B batches.
        values (np.ndarray): Shape (N,).
        logged (np.ndarray): Shape (B,), nan where there is no entry.

    Returns:
        float | None: The mean.
    """
    chosen = values[~np.isnan(logged)[completions.batch]]
    return float(chosen.mean()) if len(chosen) else None
