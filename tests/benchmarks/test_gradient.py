# SPDX-License-Identifier: Apache-2.0
"""The gradient benchmark: its gain is Adam's, its weights are the loss's, its gate is Algorithm 1; its verdicts."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import TrainerCallback

from benchmarks.arena.tasks import SUMS
from benchmarks.gradient import DUET, FAILURE, GRPO, MASKED, checks, leads
from benchmarks.gradient_parts.estimators import (
    HISTORY,
    Draw,
    Steps,
    draw_steps,
    estimators,
    loss_weights,
    simulate,
    take_step,
)
from benchmarks.gradient_parts.figures import Moments, Resamples, draw_resamples, gain, moments, resampled_gains
from benchmarks.gradient_parts.policies import PromptRollouts
from benchmarks.gradient_parts.recording import (
    Recording,
    accuracy_gradients,
    certainty,
    gate_replays,
    record,
    rollout_gradients,
)
from benchmarks.step_replay import Rollout, Sampling
from benchmarks.step_replay import record as sample_rollouts
from duet_trl.gate.parameters import GateSetup
from duet_trl.gate.replay import GateSpec, Outcome, Replay
from duet_trl.methods import build_method
from duet_trl.rollouts import Job, Prompt, Prompts
from tests.engines.tiny_gate import CAP, MARKER, SPECS, TinyGate
from tests.gate.oracle import algorithm_1
from tests.runs import duet_trainer, prompts
from tests.tiny import tiny_tokenizer

NUM_PROMPTS, NUM_ROLLOUTS = 20, 12
# G = 16 as in every arm; most rollouts of the tiny policy are longer than this K2.
THRESHOLDS = {"poll_threshold": 8, "abort_threshold": 24}


# ---- Gain -----------------------------------------------------------------------------------------------------------


def test_the_gain_of_a_linear_objective_is_the_step_of_adam():
    mean, spread, slope = np.array([2.0, -1.0, 0.5]), np.array([1.0, 3.0, 0.0]), np.array([1.0, 4.0, -2.0])
    estimates = np.stack([mean + spread, mean - spread])
    # sum of g m / sqrt(m^2 + s^2): 2 / sqrt(5) - 4 / sqrt(10) - 2
    expected = 2 / 5**0.5 - 4 / 10**0.5 - 2
    found = moments(torch.eye(2).double().to_sparse(), torch.from_numpy(estimates), slope, blocks=1)
    assert gain(found, slope) == pytest.approx(expected, rel=1e-6)
    assert gain(dataclasses.replace(found, first=3 * found.first, second=9 * found.second), slope) == pytest.approx(
        expected
    )
    theta = torch.zeros(3, requires_grad=True)
    adam = torch.optim.Adam([theta], lr=1e-3, betas=(0.9, 0.999))
    for step in range(4000):
        theta.grad = -torch.from_numpy(estimates[step % 2]).float()
        adam.step()
    assert float(theta.detach() @ torch.from_numpy(slope).float()) / (4000 * 1e-3) == pytest.approx(expected, rel=5e-3)


def test_moments_are_those_of_the_weighted_sums_and_a_step_without_gradient_has_cosine_0():
    rng = np.random.default_rng(0)
    weights, gradients, slope = rng.normal(size=(6, 5)), rng.normal(size=(5, 4)), rng.normal(size=4)
    weights[[1, 3]] = 0.0
    gradients[:, 2] = 0.0
    found = moments(torch.from_numpy(weights).to_sparse(), torch.from_numpy(gradients), slope, blocks=2)
    steps = weights @ gradients
    np.testing.assert_allclose(found.first, [steps[:3].mean(axis=0), steps[3:].mean(axis=0)], atol=1e-12)
    np.testing.assert_allclose(
        found.second, [(steps[:3] ** 2).mean(axis=0), (steps[3:] ** 2).mean(axis=0)], atol=1e-12
    )
    np.testing.assert_allclose(found.cosine[0], steps[0] @ slope / np.linalg.norm(steps[0]) / np.linalg.norm(slope))
    assert found.cosine[1] == found.cosine[3] == 0.0
    live = [0, 1, 3]
    expected = (steps.mean(axis=0) / np.sqrt((steps**2).mean(axis=0) + 1e-300))[live] @ slope[live]
    assert gain(found, slope) == pytest.approx(expected)


def test_a_resample_weighs_blocks_of_steps_and_of_problems():
    rng = np.random.default_rng(1)
    found = Moments(rng.normal(size=(3, 4)), rng.random((3, 4)) + 1.0, np.zeros(3), np.zeros(3))
    held_out = rng.normal(size=(2, 4))
    resamples = Resamples(np.array([[1.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3]]), np.array([[0.0, 1.0], [0.5, 0.5]]))
    first, all_of_it = resampled_gains(found, held_out, resamples)
    assert first == pytest.approx(found.first[0] / np.sqrt(found.second[0]) @ held_out[1])
    assert all_of_it == pytest.approx(gain(found, held_out.mean(axis=0)))
    drawn = draw_resamples(500, 3, 2, seed=0)
    for shares, blocks in ((drawn.steps, 3), (drawn.held_out, 2)):
        np.testing.assert_allclose(shares.sum(axis=1), 1.0)
        assert shares.std(axis=0) == pytest.approx([((1 - 1 / blocks) / blocks**2) ** 0.5] * blocks, rel=0.15)


# ---- Loss -----------------------------------------------------------------------------------------------------------


class GradientCheck(TrainerCallback):
    """Rebuilds the gradient of every optimizer step from the rollouts, with a method of its own."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.method = build_method(trainer.args)
        self.errors: list[float] = []
        self.weights: list[np.ndarray] = []
        self.outcomes: set[int] = set()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Parameters are still those of the forward pass, and the gradients complete."""
        step, model = self.trainer._current, self.trainer.model
        assert self.method.jobs(step.prompts, None) == step.jobs  # counts, gate and coins
        judgement = self.method.judge(step.done)
        weights = loss_weights(judgement, step.done)
        true = torch.cat([p.grad.flatten() for p in model.parameters()])
        rebuilt, sums = torch.zeros_like(true), np.zeros(len(weights))
        for row, rollout in step.local.items():
            ids = rollout.completion_ids
            ((sums[row], gradient),) = rollout_gradients(model, rollout.prompt_ids, ids, [len(ids)])
            rebuilt -= float(weights[row]) * gradient
        self.errors.append(float((rebuilt - true).norm() / true.norm()))
        self.weights.append(judgement.weight[judgement.in_divisor])
        self.outcomes |= set(step.replay.outcome.tolist())
        self.method.observe(step.done, judgement, np.where(judgement.in_gradient, sums, np.nan))


PAPER_LIKE = {"aborted_rollouts": "mask", "stratification": "exact", "teach_ending": False}
PAPER_LIKE |= {"allocate": True, "allocation_objective": "variance"}


@pytest.mark.parametrize(
    "fields", [{"teach_ending": False}, PAPER_LIKE | {"advantage_baseline": "group"}], ids=["duet", "paper_like"]
)
def test_the_weights_are_those_of_the_loss(tiny_path, tmp_path, fields):
    trainer = duet_trainer(tiny_path, tmp_path, data=prompts(8), max_grad_norm=0.0, **fields)
    check = GradientCheck(trainer)
    trainer.add_callback(check)
    trainer.train()
    assert [error < 1e-4 for error in check.errors] == [True] * 3
    assert {Outcome.ANSWERED, Outcome.ABORTED} < check.outcomes
    if len(fields) > 1:
        assert max(w.max() for w in check.weights) > 3.0  # 1 / 0.3 of a kept one, among others


# ---- Gate and gradients ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(tiny_path: Path) -> TinyGate:
    """The gate of the tiny policy."""
    return TinyGate(tiny_path)


@pytest.fixture(scope="module")
def setup(tiny: TinyGate) -> GateSetup:
    """The same as the trainer has it."""
    return GateSetup(MARKER, tiny.automaton, tiny.sentinel, tuple(tiny.eos_ids))


@pytest.fixture(scope="module")
def pool(tiny_path: Path) -> list[PromptRollouts]:
    """Rollouts of the tiny policy."""
    texts = [f"Say {i} " for i in range(NUM_PROMPTS)]
    recorded = sample_rollouts(tiny_path, texts, Sampling(NUM_ROLLOUTS, CAP, 0.0, seed=1), stride=0)
    return [PromptRollouts(list(ids), 4, [r.ids for r in found]) for ids, found in recorded.rollouts.items()]


ROWS = estimators(SUMS, NUM_ROLLOUTS, seed=0)


def test_rollouts_are_cut_where_algorithm_1_cuts_them(tiny, setup, pool):
    seen = set()
    for spec in SPECS:
        rollouts = certainty(tiny.model, pool[:4], setup, spec.entropy_threshold)
        natural = [(entry.prompt_ids, ids) for entry in pool[:4] for ids in entry.ids]
        for keep, found in zip((False, True), gate_replays(spec, setup, rollouts), strict=True):
            for row, (prompt_ids, ids) in enumerate(natural):
                entropy = tiny.entropies(prompt_ids, ids)
                if np.abs(entropy - spec.entropy_threshold).min() < 1e-4:
                    continue  # rounding decides
                expected = algorithm_1(spec, ids, keep, entropy, tiny.marker_ends(ids))
                trimmed = expected.stopped and expected.outcome == Outcome.ANSWERED
                assert (found.length[row], found.outcome[row]) == (len(expected.ids), expected.outcome), (spec, row)
                assert (found.marker_at[row], found.trimmed[row]) == (expected.marker_at, trimmed), (spec, row)
                seen.add((expected.outcome, expected.stopped))
    assert {(Outcome.ANSWERED, True), (Outcome.ABORTED, True), (Outcome.KEPT, False), (Outcome.NATURAL, False)} < seen


def test_the_accuracy_gradient_is_the_mean_over_rollouts_and_problems(tiny):
    tokenizer = tiny_tokenizer()
    texts = ("\\boxed{4} the answer", "\\boxed{2}", "\\boxed{44}")
    ids = [tokenizer(text)["input_ids"] for text in texts]
    prompt = tokenizer("Say 4 ")["input_ids"]
    mixed, solved = PromptRollouts(prompt, 4, ids), PromptRollouts(prompt, 4, [ids[0], ids[0], ids[0]])
    everything = np.arange(sum(p.numel() for p in tiny.model.parameters()))
    found = accuracy_gradients(tiny.model, tokenizer, [mixed, solved], "math", everything, 1)[0]
    one, two, three = (rollout_gradients(tiny.model, prompt, row, [len(row)])[0][1] for row in ids)
    # Rewards 1, 0, 0: over the mean of the others 1, -1/2, -1/2; the mean of three, of two problems.
    torch.testing.assert_close(found, (one - two / 2 - three / 2) / 3 / 2, rtol=1e-3, atol=1e-5)
    apart = accuracy_gradients(tiny.model, tokenizer, [solved, mixed], "math", everything, 2)
    torch.testing.assert_close(apart, torch.stack([torch.zeros_like(found), 2 * found]), rtol=1e-3, atol=1e-5)


# ---- Simulated steps ------------------------------------------------------------------------------------------------


def thresholds() -> dict:
    return ROWS[FAILURE].method(None).gate.state_dict() | THRESHOLDS


def run(name: str, recording: Recording, setup: GateSetup, draws: list[Draw]) -> Steps:
    return simulate(ROWS[name], recording, thresholds(), draws)


@pytest.fixture(scope="module")
def recording(tiny, setup, pool, tmp_path_factory) -> Recording:
    """Real gates and gradients, and random rewards, of which the tiny policy earns too few."""
    rollouts = [Rollout(ids, np.zeros(len(ids), dtype=bool)) for entry in pool for ids in entry.ids]
    specs = {row.method(thresholds()).gate.spec() for row in ROWS.values()}
    replays = {spec: gate_replays(spec, setup, rollouts) for spec in specs}
    assert len(replays) == 3
    arguments = {"pool": pool, "held_out": pool[:2]}, replays, "math", np.arange(0, 20_000, 97), 2
    cache = tmp_path_factory.mktemp("gradients") / "tiny.pt"
    found = record(tiny.model, tiny_tokenizer(), *arguments, cache, {"seed": 0})
    again = record(None, tiny_tokenizer(), *arguments, cache, {"seed": 0})  # no model: read back
    torch.testing.assert_close(again.gradients, found.gradients, rtol=0, atol=0)
    with pytest.raises(AttributeError):  # other gradients are asked for than are there
        record(None, tiny_tokenizer(), *arguments, cache, {"seed": 1})
    return dataclasses.replace(
        found, rewards=np.random.default_rng(5).integers(0, 2, len(found.rewards)).astype(float)
    )


def look_up(recording: Recording, spec: GateSpec, keep: np.ndarray) -> tuple[Replay, np.ndarray]:
    """What a gate makes of every rollout under these coins, shape (N,), and the row of each."""
    jobs = [Job(number // recording.num_rollouts, keep=bool(coin)) for number, coin in enumerate(keep)]
    done, rows = recording.look_up(
        Prompts([Prompt(key, {}) for key in recording.keys]), jobs, spec, np.arange(len(keep))
    )
    return done.replay, rows


def test_a_row_holds_the_gradient_of_what_its_gate_left(tiny, setup, pool, recording):
    aborting = ROWS[FAILURE].method(thresholds()).gate
    rollouts = np.arange(NUM_PROMPTS * NUM_ROLLOUTS)
    keep = aborting.coins(1, [str(i) for i in rollouts])
    found, rows = look_up(recording, aborting.spec(), keep)
    aborted = np.flatnonzero(found.outcome == Outcome.ABORTED)
    trimmed = np.flatnonzero(found.trimmed)
    assert aborted.size > 3 < trimmed.size
    assert (found.outcome == Outcome.KEPT)[keep].any()
    assert not (found.outcome == Outcome.ABORTED)[keep].any()
    for number in (aborted[0], trimmed[0]):
        entry, ids = pool[number // NUM_ROLLOUTS], pool[number // NUM_ROLLOUTS].ids[number % NUM_ROLLOUTS]
        assert found.length[number] < len(ids)
        total, gradient = rollout_gradients(tiny.model, entry.prompt_ids, ids, [found.length[number]])[0]
        assert recording.sum_logps[rows[number]] == pytest.approx(total, rel=1e-5)
        torch.testing.assert_close(recording.gradients[rows[number]], gradient[:20_000:97], rtol=1e-3, atol=1e-4)


def test_what_the_gate_left_is_graded(tiny, setup, tmp_path):
    tokenizer = tiny_tokenizer()
    early, late = (tokenizer(text)["input_ids"] for text in ("\\boxed{4}" + " is" * 60, " is" * 60 + "\\boxed{4}"))
    crafted = [PromptRollouts(tokenizer(text)["input_ids"], 4, [early, late]) for text in ("Say 4 ", "Four? ")]
    spec = ROWS[FAILURE].method(thresholds()).gate.spec()
    whole = [Rollout(ids, np.zeros(len(ids), dtype=bool)) for entry in crafted for ids in entry.ids]
    replays = {spec: gate_replays(spec, setup, whole)}
    found = {"pool": crafted, "held_out": crafted}
    recorded = record(
        tiny.model, tokenizer, found, replays, "math", np.arange(5), 1, tmp_path / "crafted.pt", {"seed": 0}
    )
    for keep, rewards in ((False, [1, 0, 1, 0]), (True, [1, 1, 1, 1])):  # the late answer comes behind K2 + G
        replayed, rows = look_up(recorded, spec, np.full(4, keep))
        assert recorded.rewards[rows].tolist() == rewards
        assert (replayed.length[[0, 2]] < len(early)).all()


def test_steps_of_a_group_share_prompts_with_no_other():
    draws = draw_steps(60, 120, 3, groups=6, seed=0)
    own = [set(np.concatenate([draw.prompts for draw in draws[start : start + 10]])) for start in range(0, 60, 10)]
    assert sorted(q for group in own for q in group) == list(range(120))  # 10 draws of 16 leave none of 20 out
    assert all(len(set(draw.prompts)) == 16 for draw in draws)
    assert len({tuple(draw.order[:, 0]) for draw in draws}) == 60
    assert all((np.sort(draw.order, axis=1) == np.arange(3)).all() for draw in draws)


def test_grpo_weighs_rollouts_by_their_advantage_over_all_tokens(setup, pool, recording):
    draws = draw_steps(3, NUM_PROMPTS, NUM_ROLLOUTS, groups=1, seed=2)
    steps = run(GRPO[4], recording, setup, draws)
    weights = steps.weights.to_dense().numpy()
    table = recording.tables[ROWS[GRPO[4]].method(thresholds()).gate.spec()]
    for number, draw in enumerate(draws):
        expected, tokens, mixed = np.zeros(weights.shape[1]), 0, 0
        for q in draw.prompts:
            rows = table.rows[0, q * NUM_ROLLOUTS + draw.order[q, :4]]
            rewards = recording.rewards[rows]
            tokens += sum(len(pool[q].ids[i]) for i in draw.order[q, :4])
            mixed += 0 < rewards.sum() < 4
            expected[rows] = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-4)
        np.testing.assert_allclose(weights[number], expected / tokens, rtol=1e-5, atol=1e-9)
        assert (steps.generated[number], steps.mixed[number]) == (tokens, mixed)
        assert steps.trained[number] < tokens  # equal rewards have no advantage and no forward pass


def test_a_masked_rollout_has_no_weight_and_a_kept_one_also_theirs(setup, pool, recording):
    name = "trim + abort masked, 1/eps, eps 0.25, 4"
    draws = draw_steps(6, NUM_PROMPTS, NUM_ROLLOUTS, groups=1, seed=3)
    steps = run(name, recording, setup, draws)
    weights, seen = steps.weights.to_dense().numpy(), []
    for number, draw in enumerate(draws):
        method = ROWS[name].method(thresholds())
        done, rows = take_step(method, recording, draw, number + 1)
        found, numbers = done.replay, (draw.prompts[:, None] * NUM_ROLLOUTS + draw.order[draw.prompts, :4]).ravel()
        coins = np.array([job.keep for job in done.jobs], dtype=np.int64)
        np.testing.assert_array_equal(rows, recording.tables[method.gate.spec()].rows[coins, numbers])
        rewards = recording.rewards[rows].reshape(-1, 4)
        spread = rewards.std(axis=1, ddof=1, keepdims=True)
        advantages = ((rewards - rewards.mean(axis=1, keepdims=True)) / (spread + 1e-4)).ravel()
        aborted, kept = found.outcome == Outcome.ABORTED, found.outcome == Outcome.KEPT
        factor = np.where(aborted, 0.0, np.where(kept, 4.0, 1.0))  # 1 / 0.25
        expected = np.zeros(weights.shape[1])
        expected[rows] = factor * advantages / found.length[~aborted].sum()
        np.testing.assert_allclose(weights[number], expected, rtol=1e-5, atol=1e-9)
        assert (steps.generated[number], steps.aborted[number]) == (found.length.sum(), (aborted | kept).mean())
        seen += [(advantages[kept] != 0).any(), (advantages[aborted] != 0).any()]
    assert np.sum(seen) > 6


def test_equal_counts_see_the_same_rollouts_and_a_history_only_moves_the_baseline(setup, recording):
    draws = draw_steps(4, NUM_PROMPTS, NUM_ROLLOUTS, groups=1, seed=4)
    names = (FAILURE, "gate + history baseline, 4")
    plain, history = (run(name, recording, setup, draws) for name in names)
    np.testing.assert_array_equal(plain.generated, history.generated)
    assert (history.trained >= plain.trained).all()  # over a history also equal rewards have an advantage
    assert history.trained.sum() > plain.trained.sum()
    other = [dataclasses.replace(draw, order=draw.order.copy()) for draw in draws]
    for draw in other:  # another history, the same step
        draw.order[:, -HISTORY:] = draw.order[:, -2 * HISTORY : -HISTORY]
    for name, same in zip(names, (True, False), strict=True):
        first, second = (run(name, recording, setup, which).weights.to_dense() for which in (draws, other))
        assert torch.equal(first, second) == same, name


def test_allocators_spend_the_budget_of_uniform_counts(setup, recording):
    draws = draw_steps(10, NUM_PROMPTS, NUM_ROLLOUTS, groups=1, seed=6)
    uniform = run(FAILURE, recording, setup, draws).generated.mean()
    for name, row in ROWS.items():
        if row.config.allocate and name.endswith(", 4"):
            assert run(name, recording, setup, draws).generated.mean() == pytest.approx(uniform, rel=0.12), name


# ---- Verdict --------------------------------------------------------------------------------------------------------


def fine() -> dict[str, dict[str, Any]]:
    """Figures of one policy that meet every target."""
    names, gains = [*GRPO.values(), *DUET.values(), MASKED, FAILURE], (1.0, 0.7, 0.4, 1.2, 1.0, 0.8, 0.5, 0.7)
    return {
        name: {"gain": value, "tokens": 0.4, "gain_resampled": [value, 1.1 * value]}
        for name, value in zip(names, gains, strict=True)
    }


@pytest.mark.parametrize(
    ("name", "field", "value", "target"),
    [
        (DUET[4], "gain", 0.94, "at least 0.95"),
        (DUET[4], "tokens", 0.46, "at most 45%"),
        (DUET[2], "gain", 0.5, "grows"),
        (DUET[8], "gain", 1.5, "grows"),
        (MASKED, "gain", 0.71, "masking"),
    ],
)
def test_a_target_missed_at_one_policy_is_missed(name, field, value, target):
    good, bad = fine(), fine()
    assert all(checks({"start": good, "trained": good}).values())
    bad[name][field] = value
    assert [n for n, met in checks({"start": good, "trained": bad}).items() if not met] == [
        n for n in checks({"start": good}) if target in n
    ]


def test_the_lead_is_over_grpo_with_as_many_rollouts():
    found = leads(fine())
    assert [found[n][0] for n in (8, 4, 2)] == pytest.approx([1.2, 1.0 / 0.7, 2.0])
    assert found[2][1:] == pytest.approx((2.0, 2.0))  # paired: both gains rise together
