# SPDX-License-Identifier: Apache-2.0
"""What other methods would have done on a run, against the methods themselves and against closed forms."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duet_trl.allocate.statistics import PromptStatistics
from duet_trl.methods import greso as greso_method
from duet_trl.methods.dapo import Dapo, DapoOptions, ResamplingOptions
from duet_trl.methods.greso import Greso
from duet_trl.methods.pilot import Pilot, PilotOptions
from duet_trl.methods.pods import Pods, PodsOptions
from duet_trl.report import estimate_groups, estimate_replays
from duet_trl.report.estimate_groups import Groups, differs_among, make_groups, rows_of_groups
from duet_trl.report.estimate_rivals import ASSUMPTIONS, PILOT_BUDGET, project_rivals
from duet_trl.report.logged_completions import Completions
from tests.methods.simulator import make_prompts, run_step, setting
from tests.report.logged_run import BOX, figures, projected, run, write

M, N = 8, 8  # prompts of a step, rollouts of a prompt


class World:
    """Prompts with a success rate and a mean length, and the order in which a sampler draws them, epoch by epoch."""

    def __init__(self, seed: int, num_prompts: int, num_steps: int, rates=lambda rng, size: rng.beta(0.5, 0.5, size)):
        rng = np.random.default_rng([seed, 0])
        self.seed, self.keys = seed, [f"q{number}" for number in range(num_prompts)]
        self.rate = dict(zip(self.keys, rates(rng, num_prompts), strict=True))
        self.length = dict(zip(self.keys, rng.integers(50, 400, num_prompts), strict=True))
        epochs = -(-num_steps * M // num_prompts)
        order = np.concatenate([rng.permutation(num_prompts) for _ in range(epochs)])
        self.steps = [[f"q{number}" for number in order[t * M : (t + 1) * M]] for t in range(num_steps)]

    def draws(self, seed):
        """Reward and length of a rollout of a prompt, and the generator behind them."""
        rng = np.random.default_rng([self.seed, seed])
        reward = lambda key, number: float(rng.random() < self.rate[key])  # noqa: E731
        return reward, lambda key, number: int(self.length[key] * rng.uniform(0.5, 1.5)), rng

    def grpo(self):
        """What stock GRPO logs: completions, lengths and rewards."""
        reward, length, _ = self.draws(1)
        keys = [key for step in self.steps for key in step for _ in range(N)]
        batch = np.repeat(np.arange(len(self.steps)), M * N)
        rewards = np.array([reward(key, 0) for key in keys])
        return of_rewards(keys, batch, rewards), np.array([length(key, 0) for key in keys]), rewards

    def truth(self, method):
        """What the method itself does on the same steps, with rollouts of its own."""
        reward, length, rng = self.draws(2)
        found = dict.fromkeys(("rollouts", "generated", "trained", "skipped", "dropped", "useful"), 0.0)
        num_trained = 0
        for t, keys in enumerate(self.steps):
            pool = [self.keys[number] for number in rng.permutation(len(self.keys))]
            prompts = make_prompts(keys, pool, t + 1, t * M // len(self.keys))
            done, judgement = run_step(method, prompts, reward, length)
            rows, size = judgement.in_gradient, len(prompts)
            drawn, kept = (np.bincount(done.prompt[which], minlength=size) for which in (slice(None), rows))
            right = np.bincount(done.prompt, weights=done.rewards, minlength=size)
            differs = (0 < right) & (right < drawn)
            found["rollouts"] += len(done)
            found["generated"] += done.new_tokens.sum()
            found["trained"] += done.new_tokens[rows].sum()
            found["skipped"] += (drawn == (2 if isinstance(method, Pilot) else 0)).sum()
            found["dropped"] += ((drawn > 0) & (kept == 0)).sum()
            found["useful"] += differs[done.prompt[rows]].sum()
            num_trained += rows.sum()
        return found | {"useful": found["useful"] / num_trained}


def of_rewards(prompts, batch, rewards, advantage=None):
    """Logged completions with these prompts, batch and rewards, shape (N,) each."""
    keys = list(zip(np.asarray(batch).tolist(), prompts, strict=True))
    number = {key: index for index, key in enumerate(dict.fromkeys(keys))}
    return Completions(
        steps=tuple(range(max(batch) + 1)),
        batch=np.asarray(batch),
        prompts=tuple(prompts),
        group=np.array([number[key] for key in keys]),
        texts=("",) * len(keys),
        numbers={"accuracy": np.asarray(rewards)},
        advantage=np.full(len(keys), np.nan) if advantage is None else advantage,
        notes=(),
    )


def build(name):
    """A method with its defaults, at half the budget where it has one."""
    many = setting(M, N, max_rollouts=10 * M * N, budget_fraction=0.5)
    once = setting(M, N, max_rollouts=M * N, budget_fraction=0.5)
    return {
        "dapo": lambda: Dapo(many, DapoOptions()),
        "greso": lambda: Greso(many, ResamplingOptions()),
        "pods": lambda: Pods(once, PodsOptions()),
        "pilot": lambda: Pilot(once, PilotOptions()),
    }[name]()


def row_of(rivals, method, budget=None):
    return next(row for row in rivals.rows if row.method == method and row.budget == budget)


def groups_of(completions, lengths, rewards):
    return make_groups(completions, rows_of_groups(completions)[0], lengths, rewards)


# against the methods themselves


@pytest.fixture(scope="module", params=[(800, 40), (160, 60)], ids=["one epoch", "three epochs"])
def worlds(request):
    num_prompts, num_steps = request.param
    found = [World(seed, num_prompts, num_steps) for seed in range(3)]
    return [(world, project_rivals(*world.grpo(), None, [], [PILOT_BUDGET])) for world in found]


@pytest.mark.parametrize(
    ("method", "predicted"),
    [
        ("dapo", ("rollouts", "generated", "trained", "dropped")),
        ("greso", ("rollouts", "generated", "trained", "dropped")),
        ("pods", ("useful",)),
        ("pilot", ("rollouts", "generated", "skipped", "useful")),
    ],
)
def test_what_the_method_itself_does_is_within_the_interval(worlds, method, predicted):
    """Three worlds a figure. In all of them it is within two reaches of an interval (3.9 sd), in most within one."""
    budget = PILOT_BUDGET if method == "pilot" else None
    truths = [world.truth(build(method)) for world, _ in worlds]
    for name in predicted:
        distance = []
        for (_, rivals), truth in zip(worlds, truths, strict=True):
            figure = vars(row_of(rivals, method, budget))[name]
            assert figure.low < figure.value < figure.high
            distance.append(abs(truth[name] - figure.value) / (figure.high - figure.value))
        assert max(distance) < 2 and np.median(distance) < 1, (name, distance)


def test_down_sampling_of_the_logged_rewards_is_that_of_the_method():
    world = World(0, 50, 6)
    completions, lengths, rewards = world.grpo()
    row = row_of(project_rivals(completions, lengths, rewards, None, [], []), "pods")
    trained, method = 0, build("pods")
    for t, keys in enumerate(world.steps):
        rows = iter(range(t * M * N, (t + 1) * M * N))
        at = [next(rows) for _ in range(M * N)]  # the simulator asks prompt by prompt, as the log has them
        found, tokens = iter(rewards[at]), iter(lengths[at])
        done, judgement = run_step(
            method, make_prompts(keys), lambda key, n, it=found: next(it), lambda key, n, it=tokens: int(next(it))
        )
        trained += done.new_tokens[judgement.in_gradient].sum()
    assert row.trained.value == pytest.approx(trained) and row.trained.value < 0.4 * lengths.sum()
    assert row.generated.low == row.generated.high == lengths.sum()
    assert row.remark == "m = 2 of 8"


def test_a_pilot_over_prompts_without_any_chance_is_replayed_to_the_rollout():
    """Every reward and length of a prompt is one number: which rollouts are the pilot makes no difference."""
    world = World(1, 24, 9, rates=lambda rng, size: rng.integers(2, size=size).astype(float))
    world.draws = lambda seed: (lambda key, n: world.rate[key], lambda key, n: int(world.length[key]), RNG(0))
    row = row_of(project_rivals(*world.grpo(), None, [], []), "pilot", PILOT_BUDGET)
    truth = world.truth(build("pilot"))
    for name in ("rollouts", "generated", "trained", "skipped"):
        assert vars(row)[name].value == pytest.approx(truth[name]), name
    assert truth["skipped"] > 0 and row.useful.value == truth["useful"] == 0


def test_skipping_prompts_without_any_chance_is_that_of_the_method():
    """A third of the prompts always solved, a third never, a third open: what a visit shows is what it will show."""
    world = World(2, 96, 60, rates=lambda rng, size: rng.permutation(np.arange(size) % 3 / 2))
    reward = lambda key, number: float(number % 2) if world.rate[key] == 0.5 else world.rate[key]  # noqa: E731
    flip = {"now": 0}

    def logged(key, number):
        flip["now"] += 1
        return reward(key, flip["now"])

    world.draws = lambda seed: (logged, lambda key, n: 100, RNG(seed))
    row = row_of(project_rivals(*world.grpo(), None, [], []), "greso")
    runs = []
    for seed in range(6):
        world.draws = lambda _, seed=seed: (reward, lambda key, n: 100, RNG(seed))
        method = Greso(setting(M, N, max_rollouts=10 * M * N, seed=seed), ResamplingOptions())
        runs.append(world.truth(method))
    for name in ("rollouts", "skipped", "dropped"):
        truth = np.mean([found[name] for found in runs])
        assert vars(row)[name].low < truth < vars(row)[name].high, name
        assert vars(row)[name].value == pytest.approx(truth, rel=0.1), name
    assert row.skipped.value > 100


RNG = np.random.default_rng


def test_constants_are_the_defaults_of_the_methods():
    assert estimate_replays.MAX_BATCHES == DapoOptions().max_batches == ResamplingOptions().max_batches
    assert DapoOptions().oversample == ResamplingOptions().oversample == 1.0
    assert estimate_replays.PILOT_ROLLOUTS == PilotOptions().pilot_rollouts
    assert estimate_replays.REWARD_DECAY == PromptStatistics().reward_decay
    assert estimate_replays.MOST_ROLLOUTS == setting().num_rollouts_max
    for name in ("START", "STEP", "RANGE", "LEAST", "SAFETY", "SMALLEST", "TARGETS"):
        assert vars(estimate_replays)[name] == vars(greso_method)[name]
    assert (estimate_groups.EASY, estimate_groups.HARD) == (greso_method.EASY, greso_method.HARD)


# closed forms


def expected_batches(chance, ceiling):
    """Batches of M prompts until M of them differ, each with this chance, at most `ceiling`: a Markov chain."""
    state, batches = np.eye(1, M + 1)[0], 0.0  # found so far, M stands for M and more
    one = np.array([estimate_binomial(k, chance) for k in range(M + 1)])
    for _ in range(ceiling):
        batches += state[:M].sum()
        after = np.zeros(M + 1)
        for found in range(M):
            for more in range(M + 1):
                after[min(found + more, M)] += state[found] * one[more]
        state = after + state * np.eye(1, M + 1, M)[0]
    return batches


def estimate_binomial(k, chance):
    from math import comb

    return comb(M, k) * chance**k * (1 - chance) ** (M - k)


@pytest.mark.parametrize("every", [1, 2, 4, 16])
def test_batches_of_dynamic_sampling_are_those_of_a_markov_chain(every):
    """One group in `every` differs, evenly over the run; at one in sixteen many steps end at the ceiling."""
    num = 16 * M
    rewards = np.zeros((num, 2))
    rewards[::every, 0] = 1.0
    groups = Groups(np.arange(num) // M, np.arange(num), rewards, np.full((num, 2), 10), rewards[:, 0] == 1)
    tally = estimate_replays.dynamic_sampling(groups, np.ones((500, num)), RNG(0))
    expected = 16 * M * expected_batches(1 / every, 10)
    assert tally.groups.mean() == pytest.approx(expected, rel=0.01)
    assert (tally.generated == 20 * tally.groups).all()
    assert (tally.trained == 20 * tally.trained_groups).all()
    assert (tally.trained_groups + tally.unfilled == num).all()
    assert (tally.unfilled.mean() > 0) == (every == 16)


@given(st.lists(st.integers(0, 2), min_size=2, max_size=6), st.integers(0, 6))
@settings(deadline=None)
def test_chance_that_a_part_of_a_group_differs_is_the_share_of_its_subsets(rewards, count):
    group = np.array([rewards], dtype=float)
    groups = Groups(np.zeros(1, int), np.zeros(1, int), group, np.ones(group.shape, int), np.ptp(group, axis=1) > 0)
    subsets = list(combinations(rewards, min(count, len(rewards))))
    expected = np.mean([len(set(subset)) > 1 for subset in subsets])
    assert differs_among(groups, count)[0] == pytest.approx(expected)


def test_every_interval_of_a_share_holds_its_value_and_the_seed_fixes_all():
    given_ = World(3, 60, 12).grpo()
    one, two = (project_rivals(*given_, None, [], [0.25]) for _ in range(2))
    assert one == two
    for row in one.rows:
        assert row.generated_share.low <= row.generated_share.value <= row.generated_share.high
        assert row.generated.value == pytest.approx(row.generated_share.value * given_[1].sum())
        assert 0 <= row.useful.value <= 1


# what the command line says


def many(num_prompts=16, num_steps=3, size=4, reward=lambda q, i: float(q % 2 and i % 2), visit=lambda step, q: q):
    """Files of a run: rows of each step, no two steps alike (a batch that is logged twice counts once)."""
    steps = [[visit(step, q) for q in range(num_prompts)] for step in range(num_steps)]
    return [
        [(f"p{q}", "x" * (40 + q % 16 + t) + BOX, reward(q, i)) for q in step for i in range(size)]
        for t, step in enumerate(steps)
    ]


def write_run(folder, steps):
    for number, rows in enumerate(steps, start=1):
        write(folder / "completions", number, rows)
    return folder


def rival(result, method, budget=None):
    return next(row for row in result["rivals"]["rows"] if (row["method"], row["budget"]) == (method, budget))


def test_text_and_json_have_a_row_for_every_method_and_one_line_for_each_assumption(tmp_path, capsys):
    folder = write_run(tmp_path / "run", many())
    result = figures(capsys, tmp_path, folder, "--budgets", 1, 0.5)
    budgets = [(row["method"], row["budget"]) for row in result["rivals"]["rows"]]
    expected = [*((name, None) for name in ("grpo", "dapo", "greso", "pods"))]
    assert budgets == [*expected, *((name, b) for name in ("pilot", "duet") for b in (1.0, 0.5))]
    assert result["rivals"]["assumptions"] == ASSUMPTIONS and {name for name, _ in budgets} == set(ASSUMPTIONS)
    out = run(capsys, folder)[1]
    section = out.split("PROJECTED for other methods")[1].split("\n\n")[0].splitlines()
    for name, text in ASSUMPTIONS.items():
        assert f"  * {name}: {text}" in section
        assert any(line.split()[:1] == [name] for line in section)


def test_the_rows_of_duet_are_those_of_the_projection_at_its_most_frequent_marker(tmp_path, capsys):
    steps = [[(prompt, text + "y" * 60, reward) for prompt, text, reward in rows] for rows in many()]
    folder = write_run(tmp_path / "run", steps)
    result = figures(capsys, tmp_path, folder, "--chars_per_token", 1, "--grace_window", 8)
    for budget in (1.0, 0.5, 0.25):
        row = rival(result, "duet", budget)
        assert row["remark"] == "marker math"
        assert row["generated"]["value"] == pytest.approx(projected(result, "math", budget)["tokens"])
        assert row["generated_share"]["value"] < budget
        assert row["trained"]["value"] == pytest.approx(row["generated"]["value"])  # none is aborted


def test_aborted_completions_of_duet_are_generated_and_not_trained(tmp_path, capsys):
    # Quantiles of 29 x 6, 200 x 2: K1 = K2 = 29. The two without an answer are aborted at 29 + 10 but for eps = 0.1.
    rows = [("p", "x" * 20 + BOX, 1.0)] * 6 + [("p", "x" * 200, 0.0)] * 2
    flags = "--chars_per_token 1 --grace_window 10 --keep_probability 0.1 --budgets 1".split()
    flags += "--abort_rule length --abort_quantile 0.7".split()
    result = figures(capsys, tmp_path, write_run(tmp_path / "run", [rows]), *flags)
    row = rival(result, "duet", 1.0)
    assert row["generated"]["value"] == pytest.approx(6 * 29 + 2 * (0.9 * 39 + 0.1 * 200))
    assert row["trained"]["value"] == pytest.approx(6 * 29 + 2 * 0.1 * 200)


def test_prompts_that_never_come_back_cannot_be_skipped(tmp_path, capsys):
    once = figures(capsys, tmp_path, write_run(tmp_path / "once", many(visit=lambda step, q: 16 * step + q)))
    row = rival(once, "greso")
    assert row["remark"].startswith("no prompt comes back: cannot skip, resamples only")
    assert row["skipped"]["value"] == row["skipped"]["high"] == 0
    twice = figures(capsys, tmp_path, write_run(tmp_path / "twice", many()))
    assert "cannot skip" not in rival(twice, "greso")["remark"] and rival(twice, "greso")["skipped"]["value"] > 0


def test_a_run_in_which_no_group_differs_would_end_at_the_ceiling(tmp_path, capsys):
    folder = write_run(tmp_path / "run", many(reward=lambda q, i: 1.0))
    result = figures(capsys, tmp_path, folder)
    for name in ("dapo", "greso"):
        row = rival(result, name)
        assert row["remark"].endswith("no group differs: trains on nothing, at 10 batches a step")
        assert row["rollouts"]["value"] == 10 * 3 * 16 * 4 and row["trained"]["value"] == 0
        assert row["dropped"]["value"] == 10 * 3 * 16 and row["useful"] is None
    assert rival(result, "grpo")["useful"]["value"] == 0
    out = run(capsys, folder)[1]
    assert "The same reward everywhere: accuracy. No group differs by it." in out
    assert "No group differs in reward: nothing is learnt by any method that compares rollouts of a prompt." in out


def test_one_batch_has_intervals_and_a_warning(tmp_path, capsys):
    folder = write_run(tmp_path / "run", many(num_prompts=40, num_steps=1))
    row = rival(figures(capsys, tmp_path, folder), "dapo")
    assert row["rollouts"]["low"] < row["rollouts"]["value"] < row["rollouts"]["high"]
    assert "One batch is logged: the intervals know nothing of how the run changes." in run(capsys, folder)[1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"size": 1}, "not projected: each group has one completion"),
        ({"reward": lambda q, i: float("nan")}, "not known: the files have no reward."),
        ({"size": 2, "num_prompts": 3}, "m = n: drops nothing"),
        ({"size": 4}, "b x n = 1 rollouts of a prompt: its pilot alone takes 2"),
        ({"num_prompts": 3}, "9 groups: the intervals of other methods are rough."),
    ],
)
def test_what_cannot_be_projected_is_said(tmp_path, capsys, change, said):
    status, out, _ = run(capsys, write_run(tmp_path / "run", many(**change)), "--budgets", 0.25)
    assert status == 0 and said in out


def test_groups_of_another_size_are_left_out_and_counted(tmp_path, capsys):
    steps = many()
    steps[0] += [("an evaluation", "x", 0.0)] * 3
    folder = write_run(tmp_path / "run", steps)
    assert (
        "Other methods are projected on the 48 groups of 4; 1 of another size are left out." in run(capsys, folder)[1]
    )
    assert rival(figures(capsys, tmp_path, folder), "grpo")["rollouts"]["value"] == 3 * 16 * 4


def test_advantages_overrule_rewards_whose_weights_are_not_known():
    """Two rewards cancel under the run's weights: the group teaches nothing, though their sum differs."""
    rewards = np.tile([0.0, 1.0], 8)
    advantage = np.where(np.arange(16) < 8, rewards - 0.5, 0.0)
    completions = of_rewards([f"p{number // 4}" for number in range(16)], [0] * 16, rewards, advantage)
    assert groups_of(completions, np.ones(16), rewards).differs.tolist() == [True, True, False, False]
