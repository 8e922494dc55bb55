# SPDX-License-Identifier: Apache-2.0
"""Policies that say what a test wants them to say, in the tokens of the tiny tokenizer."""

import json
from pathlib import Path

from tests.tiny import EOS, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
EOS_ID = TOKENIZER.convert_tokens_to_ids(EOS)


def ids(text: str, end: str | None = EOS) -> list[int]:
    """Token ids of a completion and its end; None: it was cut."""
    return TOKENIZER(text, add_special_tokens=False)["input_ids"] + (
        [] if end is None else [TOKENIZER.convert_tokens_to_ids(end)]
    )


class Scripted:
    """Answers by a table: completion of sample s of the prompt whose text contains a word.

    Args:
        sampled: Completions, token ids, of each word.
        greedy: Completion of each word at temperature 0; None: the first of the sampled ones.
    """

    def __init__(self, sampled: dict[str, list[list[int]]], greedy: dict[str, list[int]] | None = None):
        self.sampled, self.calls = sampled, []
        self.by_greedy = greedy or {word: completions[0] for word, completions in sampled.items()}

    def sample(self, prompts, num_samples, *, temperature=None, top_p=None, max_tokens=None):
        self.calls.append((len(prompts), num_samples, temperature, top_p, max_tokens))
        words = [next(word for word in self.sampled if word in prompt[0]["content"]) for prompt in prompts]
        if temperature == 0.0:
            return [[self.by_greedy[word]] * num_samples for word in words]
        return [self.sampled[word][:num_samples] for word in words]


def write_jsonl(path: Path, rows: list[dict]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)
