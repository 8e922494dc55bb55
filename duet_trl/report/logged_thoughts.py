# SPDX-License-Identifier: Apache-2.0
"""Where logged completions think: answers inside a thought do not count, as under the gate."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..gate.markers import Marker, extract_answer, get_marker
from ..gate.replay import NEVER
from ..gate.thoughts import Delimiters, Written, ends_in_thought, parse_delimiters, recognise
from .logged_completions import Completions, counted
from .tokens import Tokens


@dataclass(frozen=True)
class LoggedThoughts:
    """The thoughts of N completions."""

    delimiters: Delimiters | None  # what opens and closes them; None: there are none
    opened: np.ndarray  # whether each begins inside one, shape (N,), bool

    def marker(self, name: str) -> Marker:
        """The marker that completes outside of these thoughts only."""
        return get_marker(name, self.delimiters)

    def hides_first(self, name: str, tokens: Tokens) -> np.ndarray:
        """Completions whose first completed marker stands inside a thought, (N,) bool."""
        hidden = np.zeros(len(self.opened), dtype=bool)
        if self.delimiters is None:
            return hidden
        first = tokens.answered_at(get_marker(name))
        for row in np.flatnonzero(first < NEVER):
            prefix = tokens.prefix(row, first[row])
            unopened = prefix if not self.opened[row] else self.delimiters.opening + prefix
            hidden[row] = ends_in_thought(unopened, self.delimiters)
        return hidden

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
