# SPDX-License-Identifier: Apache-2.0
"""The loop under any method: rounds, prefixes, questions to the model, and what it refuses."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from accelerate import Accelerator

from duet_trl.exchange import Exchange
from duet_trl.gate.replay import GateSpec
from duet_trl.loop import MAX_ROUNDS, Loop
from duet_trl.methods.grouping import group_relative
from duet_trl.methods.method import Method, Setting
from duet_trl.rollouts import Job, Judgement, LocalRollout, NoMorePrompts, Prompt, Prompts, Query, Rollouts, StepRecord
from duet_trl.seams.metrics import step_metrics
from tests.runs import duet_trainer, logged, prompts, weights

PREFIX = 6


class Curious(Method):
    """Looks at the first tokens of two rollouts for each prompt, asks the model about them, and continues one.

    Every other prompt gets nothing in round 1, and one prompt is added from the data set.
    """

    gated = True
    identity = {"method": "curious"}

    def __init__(self) -> None:
        self.asked: list[np.ndarray] = []
        self.seen: list[tuple[Rollouts, Judgement, np.ndarray]] = []

    def jobs(self, of: Prompts, done: Rollouts | None) -> Sequence[Job | Query]:
        if done is None:
            visited = [*range(0, len(of), 2), *of.more(1)]
            return [Job(prompt, max_tokens=PREFIX) for prompt in visited for _ in range(2)]
        tokens = done.tokens(range(len(done)))
        open_ = [row for row in range(len(done)) if not done.terminated[row]][:4]
        if not done.answers:
            ids = [tuple(tokens[row][0]) for row in open_]
            logps = [Query(int(done.prompt[row]), one) for row, one in zip(open_, ids, strict=True)]
            return [*logps, Query(int(done.prompt[open_[0]]), ids[0], hidden_at=len(ids[0]) - 1)]
        if done.round.max() == 0:
            self.asked = list(done.answers)
            gate = GateSpec(8, 16, 4, poll_interval=4)
            return [
                Job(int(done.prompt[row]), tuple(tokens[row][0]), self._given(tokens[row][1]), None, gate, keep=True)
                for row in open_
            ]
        return []

    @staticmethod
    def _given(logprobs: list[float] | None) -> tuple[float, ...] | None:
        return None if logprobs is None else tuple(logprobs)

    def judge(self, done: Rollouts) -> Judgement:
        return Judgement.of(done.rewards - done.rewards.mean(), in_gradient=done.round == 1)

    def observe(self, done: Rollouts, judgement: Judgement, sum_logps: np.ndarray) -> None:
        self.seen.append((done, judgement, sum_logps))

    def state_dict(self) -> dict:
        return {"steps": np.array([len(self.seen)])}

    def load_state_dict(self, state: dict) -> None:
        self.restored = int(state["steps"][0])

    def metrics(self) -> dict[str, float]:
        return {"curious": 1.0}


def own_trainer(model, folder, method: Method, **options):
    data = prompts(12)
    return duet_trainer(model, folder, rewards=length_reward, data=data, own=method, method="own", **options)


def length_reward(completions: list[str], **kwargs) -> list[float]:
    return [len(text) / 10 for text in completions]


def test_a_method_of_a_test_file_uses_everything_a_method_may_ask_for(tiny_path, tmp_path):
    method = Curious()
    trainer = own_trainer(
        tiny_path, tmp_path, method, max_steps=2, max_rollouts=40, save_strategy="steps", save_steps=2
    )
    start = weights(trainer)
    trainer.train()
    assert len(method.seen) == 2
    done, judgement, sum_logps = method.seen[0]
    assert (done.prompts.num_drawn, len(done.prompts)) == (8, 9) and len(set(done.prompts.keys)) == 9
    visits = np.bincount(done.prompt[done.round == 0], minlength=9)
    assert visits.tolist() == [2, 0, 2, 0, 2, 0, 2, 0, 2]
    assert logged(trainer, "duet/rounds") == [2.0, 2.0] and logged(trainer, "duet/curious") == [1.0, 1.0]
    # The model in training gave the hidden state at a token and the log-prob of every token.
    *logps, hidden = method.asked
    assert {answer.shape for answer in logps} == {(PREFIX,)} and hidden.shape == (trainer.model.config.hidden_size,)
    # A rollout that continues another begins with its tokens. Only what is new was generated; the whole is trained.
    tokens = done.tokens(range(len(done)))
    for row in np.flatnonzero(done.round == 1):
        assert tuple(tokens[row][0][:PREFIX]) == done.jobs[row].prefix
    lengths = done.replay.length
    first = lengths[done.round == 0].sum() + (lengths[done.round == 1] - PREFIX).sum()
    assert logged(trainer, "duet/generated_tokens")[0] == done.new_tokens.sum() == first
    assert logged(trainer, "duet/asked_tokens") == [5.0 * PREFIX] * 2
    assert logged(trainer, "duet/trained_tokens")[0] == lengths[done.round == 1].sum()
    np.testing.assert_array_equal(np.isfinite(sum_logps), judgement.in_gradient)
    assert min(logged(trainer, "grad_norm")) > 0 and not torch.equal(weights(trainer), start)

    resumed = own_trainer(tiny_path, tmp_path, Curious(), max_steps=3, max_rollouts=40)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.method.restored == 2 and resumed.loop.num_steps == 3


def test_a_query_for_log_probs_gives_those_of_the_policy(tiny_path, tmp_path):
    method = Curious()
    trainer = own_trainer(tiny_path, tmp_path, method, max_steps=1, max_rollouts=40)
    model = trainer.model
    asked = []
    answer = trainer.generation.answer

    def recorded(step, queries):
        found = answer(step, queries)
        for query, logps in zip(queries, found, strict=True):
            prompt = trainer._tokenize_prompts([step.prompts[query.prompt].example["prompt"]])[0][0]
            output = model(torch.tensor([[*prompt, *query.ids]]), output_hidden_states=True)
            if query.hidden_at is None:
                expected = output.logits[0, len(prompt) - 1 : -1].log_softmax(-1)[range(len(query.ids)), query.ids]
            else:
                expected = output.hidden_states[-1][0, len(prompt) + query.hidden_at]
            asked.append((logps, expected.detach().numpy()))
        return found

    trainer.generation.answer = recorded
    trainer.train()
    assert len(asked) == 5
    for logps, expected in asked:
        np.testing.assert_allclose(logps, expected, atol=1e-4)


@pytest.mark.parametrize(("method", "name"), [(Curious(), "duet"), (None, "own")])
def test_a_method_and_the_field_that_announces_it_go_together(tiny_path, tmp_path, method, name):
    with pytest.raises(ValueError, match=r"DUETGRPOConfig\(method='own'\) and DUETGRPOTrainer\(method=...\)"):
        duet_trainer(tiny_path, tmp_path, own=method, method=name)


# ---- What the loop refuses ----------------------------------------------------------------------------------------


class TableHost:
    """Rollouts of five tokens without a model; what the loop asks of a trainer."""

    reward_weights = torch.ones(1)

    def generate(self, step: StepRecord, jobs: Sequence[Job], padding: int) -> list[LocalRollout]:
        return [LocalRollout([1], [5] * 5, "text", None)] * (len(jobs) + padding)

    def score(self, step: StepRecord, jobs: Sequence[Job], rollouts: Sequence[LocalRollout]) -> torch.Tensor:
        return torch.ones(len(jobs), 1)

    def share_logs(self, rows: np.ndarray) -> dict[str, list]:
        return {}

    def answer(self, step: StepRecord, queries: Sequence[Query]) -> list[np.ndarray]:
        return [np.zeros(len(query.ids)) for query in queries]


class Scripted(Method):
    """Asks for what it is told, then judges as it is told."""

    def __init__(self, jobs: Callable, judge: Callable[[Rollouts], Judgement] | None = None) -> None:
        self.wanted = jobs
        self.judged = judge or (lambda done: Judgement.of(np.zeros(len(done))))

    def jobs(self, of: Prompts, done: Rollouts | None) -> Sequence[Job | Query]:
        return self.wanted(of, done)

    def judge(self, done: Rollouts) -> Judgement:
        return self.judged(done)


def run(method: Method) -> StepRecord:
    exchange = Exchange(Accelerator(cpu=True))
    limits = {"max_rollouts": 8, "max_tokens": 20, "vocab_size": 10, "end_ids": {0}}
    loop = Loop(method, TableHost(), exchange, automaton=None, interleaved=True, **limits)
    step = StepRecord(Prompts([Prompt(key, {}) for key in "abc"]))
    loop.run(step)
    loop.judge(step)
    return step


def once(*wanted: Job | Query) -> Callable:
    return lambda of, done: wanted if done is None else []


def then(*wanted: Job | Query) -> Callable:
    """One rollout of prompt 0, and these jobs in the second round."""
    return lambda of, done: [Job(0)] if done is None else wanted if done.round.max() == 0 else []


GATE = GateSpec(8, 16, 4)
FIVES = (5,) * 5


@pytest.mark.parametrize(
    ("jobs", "error", "message"),
    [
        (once(Job(3)), ValueError, "asks for prompt 3 of 3. Use an index into the prompts"),
        (once(Job(-1)), ValueError, "asks for prompt -1 of 3"),
        (once("a"), ValueError, "jobs returned 'a'. It must return a list of Job and Query"),
        (
            lambda of, done: None,
            TypeError,
            "Scripted.jobs returned None. It must return a list, empty to end the step",
        ),
        (once(Query(0, (5, 10))), ValueError, r"asks about ids outside the vocabulary. Use ids in \[0, 10\)"),
        (once(Query(0, (-1,))), ValueError, "asks about ids outside the vocabulary"),
        (once(*[Job(0)] * 9), ValueError, "asks for 9 rollouts in one step, max_rollouts is 8. Raise max_rollouts"),
        (once(Job(0, prefix=(5, 0, 5))), ValueError, "a prefix that holds 0, which no unfinished rollout does"),
        (once(Job(0, prefix=(5, 10))), ValueError, r"a prefix that holds 10.*token ids in \[0, 10\)"),
        (once(Job(0, prefix=(5,) * 20)), ValueError, "a rollout of 20 tokens with a prefix of 20"),
        (
            once(Job(0, (5, 5), whole=True)),
            ValueError,
            "of 2 tokens, of at most 20, that has not ended",
        ),
        (once(Job(0, (0, 5, 0), whole=True)), ValueError, "a prefix that holds 0, which no unfinished rollout does"),
        (once(Job(0, (5,) * 21, whole=True)), ValueError, "a rollout of 20 tokens with a prefix of 21"),
        (once(Job(0, max_tokens=21)), ValueError, r"at most max_completion_length \(20\)"),
        (once(Job(0, prefix=(5, 5), prefix_logprobs=(-1.0,))), ValueError, "1 log-probs for a prefix of 2 tokens"),
        (once(Job(0, gate=GATE)), ValueError, "a gated rollout, but its attribute `gated` is False. Set it to True"),
        (once(Query(0, ())), ValueError, "asks about no token of its ids"),
        (once(Query(0, (5,), hidden_at=1)), ValueError, "asks about no token of its ids"),
        (lambda of, done: [Job(0)] if done is None or len(done) < 9 else [], ValueError, "asks for 9 rollouts"),
        (then(Job(0, FIVES, continues=1)), ValueError, "continues rollout 1 of 1 with a job for prompt 0"),
        (then(Job(1, FIVES, continues=0)), ValueError, "Name a rollout of an earlier round and the same prompt"),
        (then(*[Job(0, FIVES, continues=0)] * 2), ValueError, "and each one once"),
        (then(Job(0, FIVES[1:], continues=0)), ValueError, "rollout 0 of 5 tokens with a prefix of 4. Give all"),
        (lambda of, done: [Query(0, (5,))], RuntimeError, f"still asks for rollouts after {MAX_ROUNDS} rounds"),
        (lambda of, done: [], RuntimeError, "asked for no rollout in generation step 1"),
        (lambda of, done: [Job(i) for i in of.more(1)], NoMorePrompts, "no source of more prompts, and 1 were asked"),
    ],
)
def test_what_a_method_must_not_ask_for(jobs, error, message):
    with pytest.raises(error, match=message):
        run(Scripted(jobs))


def but(**changes: object) -> Callable[[Rollouts], Judgement]:
    """A judgement of two rollouts with something else in it."""
    return lambda done: replace(Judgement.of(np.ones(len(done))), **changes)


@pytest.mark.parametrize(
    ("judged", "error", "message"),
    [
        (but(weight=np.ones(1)), ValueError, r"weight of shape \(1,\) for 2 rollouts"),
        (but(advantages=np.array([np.nan, 1.0])), ValueError, "advantages nan for rollout 0"),
        (but(weight=np.array([1.0, np.inf])), ValueError, "weight inf for rollout 1"),
        (but(in_divisor=np.array([True, False])), ValueError, "rollout 1 into the gradient but not into the divisor"),
        (but(in_gradient=np.array([1, 1])), TypeError, r"array\(\[1, 1\]\). It must hold True and False"),
        (lambda done: done.rewards, TypeError, r"Scripted.judge returned array\(.*It must return a Judgement"),
        (lambda done: None, TypeError, "Scripted.judge returned None. It must return a Judgement"),
    ],
)
def test_what_a_judgement_must_not_be(judged, error, message):
    with pytest.raises(error, match=message):
        run(Scripted(once(Job(0), Job(1)), judged))


def test_rounds_add_up_and_answers_come_in_their_order():
    def jobs(of, done):
        if done is None:
            return [Job(0), Query(0, (5, 6))]
        return [Job(2), Query(1, (5,))] if len(done) == 1 else []

    step = run(Scripted(jobs))
    assert step.done.prompt.tolist() == [0, 2] and step.done.round.tolist() == [0, 1]
    assert [answer.shape for answer in step.done.answers] == [(2,), (1,)]
    assert (step.rounds, step.asked_tokens, step.num_rollouts.tolist()) == (2, 3, [1, 0, 1])


def test_questions_may_come_before_the_first_rollout():
    seen = []

    def jobs(of, done):
        if done is None:
            return [Query(1, (5, 6, 7))]
        seen.append((len(done), [answer.shape for answer in done.answers]))
        return [Job(1)] if len(done) == 0 else []

    step = run(Scripted(jobs))
    assert seen == [(0, [(3,)]), (1, [(3,)])]
    assert (len(step.done), step.done.round.tolist(), step.rounds, step.asked_tokens) == (1, [0], 1, 3)


def test_a_whole_rollout_ends_with_an_end_token_or_at_its_limit():
    wanted = [Job(0, (5, 0), whole=True), Job(1, FIVES * 4, whole=True), Job(1, FIVES, max_tokens=5, whole=True)]
    assert run(Scripted(once(*wanted))).jobs == wanted


def test_a_continued_rollout_is_superseded_by_the_one_that_goes_on():
    judge = partial(group_relative, setting=Setting(3, 2, 20, 8))
    method = Scripted(
        lambda of, done: (
            [Job(0), Job(0), Job(2)] if done is None else [Job(0, FIVES, continues=1)] if done.round.max() == 0 else []
        ),
        lambda done: Judgement.of(judge(done), in_gradient=~done.superseded),
    )
    step = run(method)
    assert step.done.superseded.tolist() == [False, True, False, False]
    np.testing.assert_array_equal(step.done.rewards, [1, np.nan, 1, 1])
    assert step.num_rollouts.tolist() == [2, 0, 1] and not step.nonfinite.any()
    step.row_tokens = step.replay.length
    figures = step_metrics(step, 2, 20)
    # Two rows of prompt 0 that last, one of prompt 2. The prefix was generated in this step: nothing is reused.
    assert (figures["num_rollouts/max"], figures["reused_tokens"]) == (2, 0)
    assert figures["generated_tokens"] == 3 * 5 + step.done.new_tokens[3]

    counted = Scripted(method.wanted, lambda done: Judgement.of(np.zeros(len(done))))
    with pytest.raises(ValueError, match="counts rollout 1, which another one continues"):
        run(counted)
