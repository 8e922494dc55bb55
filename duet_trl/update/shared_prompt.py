# SPDX-License-Identifier: Apache-2.0
"""Rows of one prompt share its forward pass.

A micro-batch of n answers to a prompt of P tokens computes the prompt n times. Here it becomes one row: each prompt
once, without its last token, then every answer after a copy of that token, so that each of its positions predicts one
token. Everything but attention works token by token and takes the row as it is. Attention splits it: prompts attend to
themselves, answers to their prompt and to themselves. No pair of tokens is computed that a mask would always hide, no
padding passes a linear layer, and log-probs and gradients are those of the separate rows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch

NO_LABEL = -100
"""Label of a position that predicts nothing, as in transformers."""
Pattern = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Which keys a query sees, from the positions of both in their sequence, counted from 0; broadcast over both."""
Attention = Callable[..., torch.Tensor]
"""query, key, value (R, H, Q or K, D) and a mask (R, 1, Q, K), True where a key is seen -> (R, Q, H, D)."""


@dataclass(frozen=True)
class Block:
    """R sequences side by side: all prompts, or all answers with the prompt of each in front.

    Attributes:
        tokens (Tensor): Where in the row the token of each column is, shape (R, K); 0 where there is none.
        known (Tensor): Where there is one, shape (R, K), bool.
        places (Tensor): Place of each column in its sequence, shape (R, K); the first token has 0.
        first_query (int): Column of the first token that attends; those before it are keys only.
    """

    tokens: torch.Tensor
    known: torch.Tensor
    places: torch.Tensor
    first_query: int

    @cached_property
    def outputs(self) -> torch.Tensor:
        """Numbers of the queries that are tokens, in the order of the row, shape (queries,)."""
        return self.known[:, self.first_query :].flatten().nonzero()[:, 0]

    def mask(self, pattern: Pattern) -> torch.Tensor:
        """Which keys each query sees, shape (R, 1, Q, K), bool."""
        queries = self.places[:, self.first_query :]
        seen = pattern(queries[:, None, :, None], self.places[:, None, None, :]) & self.known[:, None, None, :]
        # A query of padding sees everything: a softmax over nothing is NaN.
        return seen | ~self.known[:, None, self.first_query :, None]


@dataclass(frozen=True)
class SharedMask:
    """Replaces the mask in layers with the same pattern: a mask for each block."""

    blocks: tuple[Block, ...]
    masks: tuple[torch.Tensor, ...]

    def attend(self, *inputs: torch.Tensor, attention: Attention) -> torch.Tensor:
        """Attention of all tokens, block by block: of query, key and value (1, H, T, D) each, shape (1, T, H, D)."""
        query, key, value = (one[0].transpose(0, 1) for one in inputs)  # (T, H, D)
        parts = []
        for block, mask in zip(self.blocks, self.masks, strict=True):
            asked = _gathered(query, block.tokens[:, block.first_query :])
            found = attention(asked, _gathered(key, block.tokens), _gathered(value, block.tokens), mask)
            parts.append(found.flatten(0, 1).index_select(0, block.outputs))
        return torch.cat(parts)[None]


@dataclass(frozen=True)
class SharedRow:
    """A micro-batch of B rows as one row of T tokens: the distinct prompts, then the answers.

    Attributes:
        ids (Tensor): Tokens, shape (1, T).
        positions (Tensor): Column that each token had in the micro-batch, shape (1, T): its position there.
        labels (Tensor): The token that each position predicts, or `NO_LABEL`, shape (1, T).
        blocks (tuple[Block, ...]): How attention splits the row, in the order of the row.
        in_answer (Tensor): Where the micro-batch has tokens of answers, shape (B, C), bool.
        saving (float): Tokens of the micro-batch, padding of rows included, over those of the row.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    labels: torch.Tensor
    blocks: tuple[Block, ...]
    in_answer: torch.Tensor
    saving: float

    def mask(self, pattern: Pattern) -> SharedMask:
        """The mask of layers that see by this pattern."""
        return SharedMask(self.blocks, tuple(block.mask(pattern) for block in self.blocks))

    def unpacked(self, values: torch.Tensor) -> torch.Tensor:
        """Values at each position of the row (1, T) in the layout of the micro-batch, (B, C); 0 for padding."""
        of_answers = values[0, -len(self.blocks[-1].outputs) :]
        return values.new_zeros(self.in_answer.shape).masked_scatter(self.in_answer, of_answers)


def shared_row(input_ids: torch.Tensor, attention_mask: torch.Tensor, num_answer_tokens: int) -> SharedRow | None:
    """Lays a micro-batch out as one row; None if no row of it has a token of an answer.

    Args:
        input_ids (Tensor): Prompts padded on the left, answers padded on the right, shape (B, P + C).
        attention_mask (Tensor): Nonzero where there is a token, same shape.
        num_answer_tokens (int): C.

    Raises:
        ValueError: If a prompt does not end where the answers begin.
    """
    mask = attention_mask.bool()
    width = input_ids.size(1) - num_answer_tokens
    in_answer = mask[:, width:]
    used = in_answer.any(dim=1)
    if not used.any():
        return None
    if not mask[used, width - 1].all():
        raise ValueError("A prompt does not end where the answers begin. Pad prompts on the left.")
    columns = mask[used].any(dim=0).nonzero()[:, 0]  # all others are padding
    ids = torch.where(mask, input_ids, -1)[used][:, columns]  # -1: no token
    tokens_apart = len(mask) * len(columns)
    last = int((columns < width).sum()) - 1  # last column of the prompts
    # The target of a column is the next one, so the first column of an answer is the prompt's last.
    columns = columns[:-1]
    prompts, of_prompt = torch.unique(ids[:, : last + 1], dim=0, return_inverse=True)
    begins = columns[(prompts >= 0).int().argmax(dim=1)]  # (G,), column of a prompt's first token

    prompts, labels, answers = prompts[:, :last], ids[:, last + 1 :], ids[:, last:-1]
    in_prompt, in_row = prompts >= 0, labels >= 0
    count = int(in_prompt.sum())
    at_prompt, at_answer = _numbered(in_prompt, 0), _numbered(in_row, count)
    tokens = torch.cat([at_prompt[of_prompt], at_answer], dim=1)
    known = torch.cat([in_prompt[of_prompt], in_row], dim=1)
    of_prompts = Block(at_prompt, in_prompt, columns[:last] - begins[:, None], 0)
    of_answers = Block(tokens, known, columns - begins[of_prompt][:, None], last)
    positions = columns[:last].expand(in_prompt.shape)[in_prompt], columns[last:].expand(in_row.shape)[in_row]
    row = torch.cat([prompts[in_prompt], answers[in_row]])[None]
    return SharedRow(
        ids=row,
        positions=torch.cat(positions)[None],
        labels=torch.cat([row.new_full((count,), NO_LABEL), labels[in_row]])[None],
        blocks=(of_prompts, of_answers) if count else (of_answers,),
        in_answer=in_answer,
        saving=tokens_apart / row.numel(),
    )


def _numbered(there: torch.Tensor, first: int) -> torch.Tensor:
    """Consecutive numbers from `first` on where there is a token, row by row, and 0 elsewhere."""
    return torch.where(there, there.flatten().cumsum(0).view_as(there) - 1 + first, 0)


def _gathered(values: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Of values (T, H, D) those of tokens (R, K), shape (R, H, K, D)."""
    return values.index_select(0, tokens.flatten()).unflatten(0, tokens.shape).transpose(1, 2)
