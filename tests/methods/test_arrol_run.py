# SPDX-License-Identifier: Apache-2.0
"""ARRoL's two phases on a real policy: costs, a resume, and that a rollout in two parts is the rollout in one."""

import numpy as np

from tests.runs import count_fours, duet_trainer, logged

DETECT = 8


def arrol_trainer(model, folder, **options):
    """8 prompts x 4 rollouts of 32 tokens, scored after 8."""
    method_kwargs = {"detect_at": DETECT, "head_warmup_steps": 1, **options.pop("method_kwargs", {})}
    arguments = {"max_completion_length": 32, "rewards": count_fours, **options}
    return duet_trainer(model, folder, method="arrol", method_kwargs=method_kwargs, **arguments)


def watched(trainer) -> list:
    """Rollouts and judgement of each step, as the method learns from them."""
    seen, observe = [], trainer.method.observe

    def recorded(done, judgement, sum_logps):
        seen.append((done, judgement, done.tokens(range(len(done)))))
        observe(done, judgement, sum_logps)

    trainer.method.observe = recorded
    return seen


def test_two_phases_train_survivors_only_and_resume_with_the_head(tiny_path, tmp_path):
    trainer = arrol_trainer(tiny_path, tmp_path, max_steps=3, save_strategy="steps", save_steps=2)
    seen = watched(trainer)
    trainer.train()
    assert logged(trainer, "duet/rounds") == [1.0, 2.0, 2.0]
    scored = logged(trainer, "duet/scored_rollouts")
    assert logged(trainer, "duet/asked_tokens") == [DETECT * count for count in scored] and min(scored) > 5
    pruned = logged(trainer, "duet/pruned_rollouts")
    assert pruned[0] == 0 and 0 < pruned[1] < scored[1]
    for done, judgement, tokens in seen[1:]:
        assert (done.replay.length[:32] <= DETECT).all()
        for row in np.flatnonzero(done.round == 1):
            job = done.jobs[row]
            assert tuple(tokens[row][0][:DETECT]) == tuple(tokens[job.continues][0]) == job.prefix
        assert judgement.in_gradient.sum() == 32 - (~judgement.in_gradient & ~done.superseded).sum()
    for index, (done, judgement, _) in enumerate(seen):
        assert logged(trainer, "duet/generated_tokens")[index] == done.new_tokens.sum()
        kept_tokens = done.replay.length[judgement.in_gradient].sum()
        assert logged(trainer, "duet/trained_tokens")[index] == kept_tokens
    resumed = arrol_trainer(tiny_path, tmp_path, max_steps=3)
    again = watched(resumed)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    first, second = (one.method.head.state_dict()["updates"] for one in (trainer, resumed))
    assert len(again) == 1 and first == second == 3
    assert again[0][0].jobs[:32] == seen[2][0].jobs[:32]


def test_with_nobody_pruned_a_rollout_in_two_parts_is_the_rollout_in_one(tiny_path, tmp_path):
    """At a temperature near 0, so that there is one rollout to compare with."""
    trainer = arrol_trainer(
        tiny_path,
        tmp_path,
        max_steps=1,
        temperature=1e-3,
        method_kwargs={"keep_rate": 1.0, "head_warmup_steps": 0},
    )
    seen = watched(trainer)
    trainer.train()
    done, judgement, tokens = seen[0]
    assert logged(trainer, "duet/pruned_rollouts") == [0.0] and judgement.in_gradient.sum() == 32
    fresh = arrol_trainer(tiny_path, tmp_path / "fresh", max_steps=1)
    greedy = fresh.sample([prompt.example["prompt"] for prompt in done.prompts], temperature=0.0)
    ended = {row: list(ids) for row, (ids, _) in enumerate(tokens) if judgement.in_gradient[row]}
    assert any(len(ids) > DETECT for ids in ended.values())
    for row, ids in ended.items():
        assert ids == list(greedy[done.prompt[row]][0])
