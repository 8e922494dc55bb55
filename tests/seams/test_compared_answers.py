# SPDX-License-Identifier: Apache-2.0
"""A method that compares answers gets classes by the verifier's equivalence, or an error before a model is loaded."""

import numpy as np
import pytest

from duet_trl.methods.seed_grpo import SeedGRPO, SeedGRPOOptions
from duet_trl.rewards import ChoiceVerifier, choice_reward
from duet_trl.rewards.answers import answer_classes
from duet_trl.seams.scoring import answer_verifier
from tests.runs import count_fours, duet_trainer, logged


class FirstFour:
    """Rewards fours; the answer is the number of fours, 1 and 2 being the same."""

    __name__ = "first_four"

    def __init__(self) -> None:
        self.columns: list[list[str]] = []

    def __call__(self, completions: list[str], **columns) -> list[float]:
        return count_fours(completions)

    def answers(self, completions: list[str], **columns) -> list[str | None]:
        self.columns.append(columns["name"])
        return [str(text.count("4")) if "4" in text else None for text in completions]

    def equivalent(self, pairs: list[tuple[str, str]]) -> list[bool]:
        return [{answer, first} == {"1", "2"} for answer, first in pairs]


class Watched(SeedGRPO):
    """Keeps what it saw."""

    def judge(self, done):
        self.seen = done, done.tokens(range(len(done)))
        return super().judge(done)


def test_seed_grpo_trains_on_classes_of_the_verifier(tiny_path, tmp_path) -> None:
    verifier = FirstFour()
    trainer = duet_trainer(
        tiny_path, tmp_path, method="seed_grpo", rewards=[count_fours, verifier], max_steps=2, max_completion_length=24
    )
    method = trainer.loop.method = trainer.method = Watched(trainer.method.setting, SeedGRPOOptions())
    trainer.train()
    done, tokens = method.seen
    texts = trainer.processing_class.batch_decode([ids for ids, _ in tokens], skip_special_tokens=True)
    examples = [done.prompts[q].example["name"] for q in done.prompt]
    assert verifier.columns == [verifier.columns[0], examples]  # once a step, with the columns of each rollout
    expected = answer_classes(verifier.answers(texts, name=examples), done.prompt, verifier.equivalent)
    assert done.answer_class().tolist() == expected.tolist() and len(np.unique(expected)) > 2
    assert len(done.answers) == 32  # the transformers engine has no log-probs
    assert all(0 < entropy <= np.log(4) for entropy in logged(trainer, "duet/semantic_entropy"))


@pytest.mark.parametrize("rewards", [count_fours, [count_fours, choice_reward], ChoiceVerifier, None])
def test_without_a_verifier_that_compares_construction_fails_with_the_remedy(tmp_path, rewards) -> None:
    with pytest.raises(ValueError, match=r"no reward function can: .*Pass an object such as .*MathVerifier\(\)"):
        duet_trainer("no such model", tmp_path, method="seed_grpo", rewards=rewards)


def test_the_first_that_can_is_taken() -> None:
    first, second = ChoiceVerifier(), FirstFour()
    assert answer_verifier([count_fours, first, second]) is first and answer_verifier(second) is second
