# SPDX-License-Identifier: Apache-2.0
"""What a rollout with a reused prefix is sampled from, by enumerating every draft and every acceptance.

The policy is a Markov chain over four tokens, of which the last ends a rollout. With a limit of four tokens there are
121 rollouts. The new policy is the old one with its logits shifted along a random direction.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from duet_trl.methods.spec_rl import SpecRL, SpecRLOptions, accepted

from .simulator import make_prompts, rollouts, setting

NUM_TOKENS, LIMIT = 4, 4
END = NUM_TOKENS - 1
RANDOM = np.random.default_rng(0)
LOGITS = RANDOM.normal(size=(NUM_TOKENS, NUM_TOKENS)) - 0.5 * (np.arange(NUM_TOKENS) == END)
DIRECTION = RANDOM.normal(size=(NUM_TOKENS, NUM_TOKENS))
Sequence = tuple[int, ...]
Law = dict[Sequence, float]


def policy(shift: float) -> np.ndarray:
    """Next-token probabilities, shape (V, V); row: the token before, that of `END` the first token of a rollout."""
    weights = np.exp(LOGITS + shift * DIRECTION)
    return weights / weights.sum(axis=1, keepdims=True)


def sequences(prefix: Sequence = ()) -> Iterator[Sequence]:
    """All whole rollouts with a prefix."""
    if len(prefix) == LIMIT or END in prefix:
        yield prefix
    else:
        for token in range(NUM_TOKENS):
            yield from sequences((*prefix, token))


def probabilities(table: np.ndarray, ids: Sequence) -> np.ndarray:
    """Of each token, shape (T,)."""
    return table[[END, *ids[:-1]], list(ids)]


def law(table: np.ndarray, prefix: Sequence = (), first: np.ndarray | None = None) -> Law:
    """Rollouts behind a prefix; `first`: another law of the token right behind it, shape (V,)."""
    found = {}
    for ids in sequences(prefix):
        each = probabilities(table, ids)[len(prefix) :]
        if first is not None:
            each[0] = first[ids[len(prefix)]]
        found[ids] = float(each.prod())
    return found


def resampled(rule: str, old: np.ndarray, new: np.ndarray, rejected: int) -> np.ndarray | None:
    """Law of the token at the place of a rejected one; rows of both policies, shape (V,). None: the policy's own."""
    if rule == "residual":
        rest = np.maximum(new - old, 0.0)
        return rest / rest.sum()
    return new * (np.arange(NUM_TOKENS) != rejected) / (1 - new[rejected]) if rule == "another" else None


def reused(old: np.ndarray, new: np.ndarray, lenience: float = 0.0, rule: str = "plain", redraw_end: bool = False):
    """The law of a rollout that begins with a draft, and the share of its tokens that are the draft's.

    The package's test decides: each token of a draft is given a coin that it passes, and one that it fails where there
    is one; their probabilities are min(1, ratio) and the rest.
    """
    total, kept_tokens = dict.fromkeys(sequences(), 0.0), 0.0
    for draft, weight in law(old).items():
        logps = [np.log(probabilities(table, draft)) for table in (old, new)]
        passes = np.minimum(1.0, np.exp(np.minimum(logps[1] - logps[0] + lenience, 0.0)))
        for failing in range(len(draft) + 1):  # the first token that gets a coin of the failing kind
            chance = weight * passes[:failing].prod() * (1.0 if failing == len(draft) else 1.0 - passes[failing])
            if chance < 1e-15:  # a last bit of the ratio is no chance
                continue
            coins = passes / 2
            if failing < len(draft):
                coins[failing] = (1.0 + passes[failing]) / 2
            kept = accepted(logps[0], logps[1], coins, lenience)
            assert kept == failing
            kept_tokens += chance * kept
            if kept == len(draft) and not redraw_end:
                total[draft] += chance
                continue
            kept = min(kept, len(draft) - 1)
            before = draft[kept - 1] if kept else END
            first = resampled(rule, old[before], new[before], draft[kept]) if failing < len(draft) else None
            for ids, share in law(new, draft[:kept], first).items():
                total[ids] += chance * share
    assert sum(total.values()) == pytest.approx(1.0, abs=1e-12)
    return total, kept_tokens / sum(len(ids) * share for ids, share in total.items())


def distance(first: Law, second: Law) -> float:
    """Total variation."""
    return 0.5 * sum(abs(first[ids] - second[ids]) for ids in first)


SHIFTS = [0.05, 0.1, 0.2, 0.5, 1.0]


@pytest.mark.parametrize("lenience", [0.0, 0.5])
def test_an_unchanged_policy_is_left_exactly_as_it_is(lenience):
    found, share = reused(policy(0.0), policy(0.0), lenience)
    assert distance(found, law(policy(0.0))) < 1e-12
    assert share == pytest.approx(1.0)


def test_to_draw_the_end_of_a_whole_draft_again_would_favour_long_rollouts():
    same = policy(0.0)
    found, _ = reused(same, same, redraw_end=True)
    assert distance(found, law(same)) > 0.3
    lengths = [sum(len(ids) * share for ids, share in each.items()) for each in (found, law(same))]
    assert lengths[0] > lengths[1] + 0.5


@pytest.mark.parametrize("shift", SHIFTS)
def test_a_changed_policy_is_exact_with_residual_resampling_only(shift):
    old, new = policy(0.0), policy(shift)
    target = law(new)
    assert distance(reused(old, new, rule="residual")[0], target) < 1e-12
    plain, another = (distance(reused(old, new, rule=rule)[0], target) for rule in ("plain", "another"))
    assert 0 < another < plain < distance(law(old), target)


@pytest.mark.parametrize("shift", SHIFTS)
def test_a_token_behind_the_same_tokens_has_the_law_of_the_docstring(shift):
    # One token behind the start: rollouts that agree from there on are summed.
    old, new = policy(0.0), policy(shift)
    found = reused(old, new)[0]
    first = np.array([sum(p for ids, p in found.items() if ids[0] == token) for token in range(NUM_TOKENS)])
    common = np.minimum(old[END], new[END])
    alpha = common.sum()
    np.testing.assert_allclose(first, common + (1 - alpha) * new[END], atol=1e-12)
    assert 0.5 * np.abs(first - new[END]).sum() <= alpha * (1 - alpha) + 1e-12


def test_the_distances_that_docs_fidelity_md_quotes():
    rows = []
    for shift in SHIFTS:
        old, new = policy(0.0), policy(shift)
        target = law(new)
        plain, share = reused(old, new)
        lenient, lenient_share = reused(old, new, lenience=0.5)
        another = distance(reused(old, new, rule="another")[0], target)
        rows.append([distance(law(old), target), distance(plain, target), another, share])
        rows[-1] += [distance(lenient, target), lenient_share]
    expected = [  # draft, lenience 0, without the rejected token, its share reused; lenience 0.5, its share reused
        [0.021, 0.013, 0.010, 0.97, 0.021, 1.00],
        [0.043, 0.024, 0.019, 0.94, 0.043, 1.00],
        [0.086, 0.044, 0.035, 0.89, 0.086, 1.00],
        [0.213, 0.083, 0.071, 0.73, 0.213, 1.00],
        [0.403, 0.121, 0.104, 0.55, 0.217, 0.74],
    ]
    np.testing.assert_allclose(rows, expected, atol=0.006)


def standardised(found: dict[Sequence, int], expected: Law) -> float:
    """Chi-square of counts against a law, less its mean, in its standard deviations."""
    count = sum(found.values())
    statistic = sum((found[ids] - count * share) ** 2 / (count * share) for ids, share in expected.items())
    return (statistic - (len(expected) - 1)) / np.sqrt(2 * (len(expected) - 1))


def test_the_method_samples_from_the_enumerated_law():
    """The method itself, with its own coins, on 20,000 drafts; the new policy continues what it keeps."""
    old, new, count = policy(0.0), policy(0.5), 20_000
    random, every = np.random.default_rng(1), list(sequences())
    run = replace(setting(1, count, count), max_completion_length=LIMIT)
    method = SpecRL(run, SpecRLOptions(lenience=0.0))
    drafts = [every[draft] for draft in random.choice(len(every), count, p=list(law(old).values()))]
    fetched = [(list(ids), np.log(probabilities(old, ids)).tolist()) for ids in drafts]
    prompts = make_prompts(["p"])
    done = replace(
        rollouts(prompts, [method.jobs(prompts, None)], np.zeros(count), [len(ids) for ids in drafts]),
        terminated=np.array([ids[-1] == END for ids in drafts]),
        tokens=lambda rows: [fetched[row] for row in rows],
    )
    assert not method.jobs(prompts, done)
    method.observe(done, method.judge(done), np.zeros(count))

    prompts = make_prompts(["p"], step=2)
    answers = [np.log(probabilities(new, query.ids)) for query in method.jobs(prompts, None)]
    found = dict.fromkeys(every, 0)
    for job in method.jobs(prompts, rollouts(prompts, [], [], answers=answers)):
        ids = job.prefix
        while not job.whole and len(ids) < LIMIT and END not in ids:
            ids = (*ids, int(random.choice(NUM_TOKENS, p=new[ids[-1] if ids else END])))
        found[ids] += 1
        if job.prefix:
            assert job.prefix_logprobs == pytest.approx(np.log(probabilities(new, job.prefix)))
    assert abs(standardised(found, reused(old, new)[0])) < 3
    assert standardised(found, law(new)) > 30  # the same numbers tell it from the new policy's
