# SPDX-License-Identifier: Apache-2.0
"""Rows for TRL: only padding goes, whatever the width asked for, and log-probs are padded like their tokens."""

from types import SimpleNamespace

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from duet_trl.gate.replay import Outcome, Replay
from duet_trl.rollouts import Job, Judgement, Prompt, Prompts, Rollouts, StepRecord
from duet_trl.seams.train_rows import count_tokens, trim_columns

rows = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 9)), min_size=1, max_size=5)


def chunk(lengths: list[tuple[int, int]], prompt_width: int, completion_width: int) -> dict[str, torch.Tensor]:
    """Left-padded prompts and right-padded completions whose ids are positive."""
    prompts = torch.zeros(len(lengths), prompt_width, dtype=torch.long)
    completions = torch.zeros(len(lengths), completion_width, dtype=torch.long)
    for row, (prompt, completion) in enumerate(lengths):
        prompts[row, prompt_width - prompt :] = torch.arange(1, prompt + 1)
        completions[row, :completion] = torch.arange(1, completion + 1)
    return {
        "prompt_ids": prompts,
        "prompt_mask": (prompts > 0).long(),
        "completion_ids": completions,
        "completion_mask": (completions > 0).long(),
        "old_per_token_logps": -completions.float(),
        "importance_sampling_ratio": torch.ones(len(lengths), 1),
        "advantages": torch.ones(len(lengths)),
    }


@given(rows, st.integers(0, 7), st.integers(0, 7), st.sampled_from([None, 1, 4]))
def test_trimming_keeps_every_token_and_no_needless_column(lengths, extra_prompt, extra_completion, multiple):
    widest = max(p for p, _ in lengths), max(c for _, c in lengths)
    full = chunk(lengths, widest[0] + extra_prompt, widest[1] + extra_completion)
    trimmed = trim_columns(full, multiple)
    for name in ("prompt", "completion"):
        for kind in ("ids", "mask"):
            assert trimmed[f"{name}_{kind}"].sum() == full[f"{name}_{kind}"].sum()
    limit = widest if multiple is None else tuple(-(-width // multiple) * multiple for width in widest)
    assert trimmed["prompt_ids"].size(1) <= limit[0]
    assert trimmed["completion_ids"].size(1) <= limit[1]
    assert trimmed["old_per_token_logps"].shape == trimmed["completion_ids"].shape
    assert trimmed["importance_sampling_ratio"].shape == (len(lengths), 1)
    assert trimmed["advantages"] is full["advantages"]


def test_prompts_stay_right_aligned():
    trimmed = trim_columns(chunk([(2, 3), (4, 1)], prompt_width=8, completion_width=9), None)
    assert trimmed["prompt_ids"].tolist() == [[0, 0, 1, 2], [1, 2, 3, 4]]
    assert trimmed["completion_ids"].tolist() == [[1, 2, 3], [1, 0, 0]]


def test_a_chunk_of_padding_rows_keeps_one_column():
    full = chunk([(1, 1)], 3, 3)
    full["completion_mask"].zero_()
    assert trim_columns(full, None)["completion_ids"].shape == (1, 1)


def test_an_end_is_taught_after_good_rollouts_that_a_stop_string_or_the_trim_ended():
    """Of the four ways to end: by a string, at the limit, by an EOS, trimmed; a good rollout and a bad one of each."""
    ended = np.array([0, 0, 1, 1, 2, 2, 3, 3])
    length = np.array([4, 4, 9, 9, 4, 4, 6, 6])
    none = np.full(8, -1)
    outcome = np.where(ended == 3, Outcome.ANSWERED, Outcome.NATURAL)
    replay = Replay(outcome, none, ended == 3, length, none, np.where(ended == 3, 5, -1))
    prompts = Prompts([Prompt("a", {"prompt": "a"})], 1, 0, None)
    rewards = np.array([1.0, 0.0] * 4)
    done = Rollouts(
        prompts,
        tuple(Job(0) for _ in range(8)),
        np.zeros(8, dtype=np.int64),
        np.zeros(8, dtype=np.int64),
        replay,
        ended == 2,
        torch.from_numpy(rewards)[:, None],
        rewards,
    )
    every = np.ones(8, dtype=bool)
    args = SimpleNamespace(
        max_completion_length=9, mask_truncated_completions=False, exclude_zero_variance_groups=False
    )
    step = StepRecord(prompts, done=done, judgement=Judgement(rewards - 0.5, np.ones(8), every, every, np.ones(8)))
    count_tokens(step, args, teaches_ending=True)
    assert step.taught_to_end.tolist() == [True, False, False, False, False, False, True, False]
    assert step.row_tokens.tolist() == [4, 4, 9, 9, 4, 4, 5, 5]
    count_tokens(step, args, teaches_ending=False)
    assert not step.taught_to_end.any()
    assert step.row_tokens.tolist() == length.tolist()
