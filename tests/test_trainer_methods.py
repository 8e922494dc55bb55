# SPDX-License-Identifier: Apache-2.0
"""Methods of one's own in a run: names of metrics, states, identities, and rollouts that are taken whole."""

from collections.abc import Sequence

import numpy as np
import pytest

from duet_trl.engines.engine import Completion, Policy, Request
from duet_trl.rollouts import Job
from tests.engines.table_engine import TableEngine
from tests.test_loop import Curious, own_trainer
from tests.tiny import MODEL_VOCAB


class Plain(Curious):
    """One round of two rollouts for each prompt."""

    def jobs(self, of, done):
        return [] if done is not None else [Job(prompt) for prompt in range(len(of)) for _ in range(2)]


@pytest.mark.parametrize("name", ["rounds", "nonfinite_rollouts", "seconds_update"])
def test_a_metric_has_one_reporter(tiny_path, tmp_path, name):
    class Reporting(Plain):
        def metrics(self):
            return {name: 1.0}

    trainer = own_trainer(tiny_path, tmp_path, Reporting(), max_steps=1)
    with pytest.raises(ValueError, match=rf"reports the metric '{name}', which .* reports too. Give it another name"):
        trainer.train()


def test_a_metric_is_a_number(tiny_path, tmp_path):
    class Reporting(Plain):
        def metrics(self):
            return {"means": np.zeros(2)}

    trainer = own_trainer(tiny_path, tmp_path, Reporting(), max_steps=1)
    with pytest.raises(TypeError, match=r"Reporting.metrics\(\) reports the metric 'means' as array.*Use float\(x\)"):
        trainer.train()


def test_a_state_that_no_checkpoint_holds_is_named_in_the_first_step(tiny_path, tmp_path):
    """Nothing is saved in this run; one that saves every thousand steps would have lost them."""

    class Remembering(Plain):
        def state_dict(self):
            return {"means": {one[0].prompts.keys[0]: np.float32(0.5) for one in self.seen}}

        def load_state_dict(self, state):
            self.restored = state

    trainer = own_trainer(tiny_path, tmp_path, Remembering(), max_steps=5)
    with pytest.raises(TypeError, match=r"Remembering.state_dict\(\)\['means'\]\['.*'\] is .*0.5.* of type float32"):
        trainer.train()
    assert trainer.state.global_step == 0


def test_a_method_without_an_identity_loads_no_other_ones_state(tiny_path, tmp_path):
    class Nameless(Plain):
        identity = {}

    class Other(Nameless):
        pass

    own_trainer(tiny_path, tmp_path, Nameless(), max_steps=1, save_strategy="steps", save_steps=1).train()
    with pytest.raises(ValueError, match="method: 'Nameless' in the state, 'Other' now"):
        own_trainer(tiny_path, tmp_path, Other(), max_steps=2).train(resume_from_checkpoint=True)
    own_trainer(tiny_path, tmp_path, Nameless(), max_steps=2).train(resume_from_checkpoint=True)


class Counting(TableEngine):
    """Notes how many rollouts it is asked for."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy, np.full((MODEL_VOCAB, MODEL_VOCAB), 1 / MODEL_VOCAB))
        self.asked: list[int] = []

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        self.asked.append(len(requests))
        return super().generate(requests)


@pytest.mark.parametrize(("whole", "asked"), [(16, 1), (13, 3), (0, 16)])
def test_a_rollout_that_is_taken_whole_costs_the_engine_nothing(tiny_path, tmp_path, whole, asked):
    """One request tells whether the engine has log-probs, also where all rollouts are whole."""

    class Drafted(Plain):
        def jobs(self, of, done):
            planned = super().jobs(of, done)
            drafted = [Job(job.prompt, (5, 6, end), whole=True) for job in planned[:whole]]
            return [*planned[whole:], *drafted]

    trainer = own_trainer(tiny_path, tmp_path, method := Drafted(), max_steps=1, engine=Counting)
    end = trainer.eos_token_ids[0]
    trainer.train()
    done = method.seen[0][0]
    assert trainer.engine.asked == [asked]
    assert [ids for ids, _ in done.tokens(range(len(done)))][16 - whole :] == [[5, 6, end]] * whole
    assert (done.new_tokens[: 16 - whole] > 0).all() and not done.new_tokens[16 - whole :].any()
