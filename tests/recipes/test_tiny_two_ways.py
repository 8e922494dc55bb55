# SPDX-License-Identifier: Apache-2.0
"""The task of two ways: right chains, guesses that stay guesses, no leak between splits, a checkpoint that fits."""

import random
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duet_trl.gate.markers import completion_ends, extract_answer, get_marker
from recipes.tiny_math import policy
from recipes.tiny_math import warm_start as training
from recipes.tiny_math.problems import HELD_OUT, LEVELS, TRAIN, WARM_START
from recipes.tiny_two_ways import task, warm_start

LINE = re.compile(r"([a-z])=(\d\*\d\+\d)=(\d\d)=(\d)")
CHAIN = re.compile(r"a=\d(?:,[a-z]=\d[a-z]\+\d)+")
GUESSER = replace(warm_start.SLOPPY, careful=0.0)
SEEDS = st.integers(0, 10**9)


def clean_document(level: int, seed: int = 0) -> tuple[task.Problem, str]:
    rng = random.Random(seed)
    problem = task.sample_problem(rng, level, WARM_START)
    return problem, task.write_document(rng, problem, warm_start.CLEAN)


def values_of(expression: str) -> dict[str, int]:
    """What Python says the values are, without remainders on the way."""
    values: dict[str, int] = {}
    for equation in expression.split(","):
        name, right = equation.split("=")
        values[name] = eval(re.sub(r"(\d)([a-z])", r"\1*\2", right), {}, values)
    return values


@pytest.mark.parametrize("level", LEVELS)
def test_every_line_of_a_clean_solution_is_true(level):
    for seed in range(40):
        problem, document = clean_document(level, seed)
        _, *lines, closing = document.split("\n")
        values = values_of(problem.expression)
        found = [LINE.fullmatch(line).groups() for line in lines]
        assert [name for name, *_ in found] == list(values)[1:]
        for name, calculation, total, result in found:
            assert eval(calculation) == int(total)
            assert int(total) % task.MODULUS == int(result) == values[name] % task.MODULUS
        assert f"\\boxed{{{problem.answer}}}" in closing


def test_a_slip_is_carried_on_to_the_answer():
    author = replace(warm_start.CLEAN, slip=1.0)
    problem = task.Problem("a=2,b=3a+1,c=5b+4", 1, 3)
    seen = set()
    for seed in range(60):
        _, first, second, closing = task.write_document(random.Random(seed), problem, author).split("\n")
        slipped = int(first.removeprefix("b=3*2+1=07="))
        assert slipped in {0, 1, 2}  # 3 would be right
        total = 5 * slipped + 4
        result = int(second.removeprefix(f"c=5*{slipped}+4={total:02d}="))
        assert result != total % 4
        assert f"\\boxed{{{result}}}" in closing
        seen.add((slipped, result))
    assert len(seen) == 9  # any wrong remainder, in either line


@settings(deadline=None)
@given(SEEDS, st.sampled_from(LEVELS), st.integers(0, 9))
def test_nothing_is_known_about_the_answer_without_any_single_addend(seed, level, place):
    # Every addend at one place, everything else fixed: the answers are the four remainders, once each.
    problem = task.sample_problem(random.Random(seed), level, WARM_START)
    equations = problem.expression.split(",")
    place %= len(equations)
    answers = set()
    for addend in task.ADDENDS:
        changed = equations[place][:-1] + str(addend % task.MODULUS if place == 0 else addend)
        answers.add(task.value_of(",".join([*equations[:place], changed, *equations[place + 1 :]])))
    assert answers == set(range(task.MODULUS))


def test_a_guess_is_short_and_right_one_time_in_four():
    rng = random.Random(0)
    right = 0
    for _ in range(2000):
        problem = task.sample_problem(rng, rng.choice(LEVELS), WARM_START)
        document = task.write_document(rng, problem, GUESSER)
        assert "\n" not in document
        right += extract_answer("math", document) == str(problem.answer)
    assert abs(right - 500) < 90  # sd sqrt(2000 / 4 * 3 / 4) = 19


@settings(deadline=None)
@given(SEEDS, st.sampled_from(LEVELS))
def test_the_two_ways_are_told_apart_by_their_text(seed, level):
    rng = random.Random(seed)
    problem = task.sample_problem(rng, level, WARM_START)
    assert not task.is_careful(task.write_document(rng, problem, GUESSER))
    worked = task.write_document(rng, problem, replace(warm_start.SLOPPY, careful=1.0))
    assert task.is_careful(worked)
    assert not task.is_careful(worked[worked.rindex("\n") :])  # an answer alone
    assert not task.is_careful(problem.question)


@settings(deadline=None)
@given(SEEDS, st.sampled_from(LEVELS))
def test_a_document_has_one_answer_that_the_library_reads_and_next_to_nothing_behind_it(seed, level):
    rng = random.Random(seed)
    problem = task.sample_problem(rng, level, WARM_START)
    document = task.write_document(rng, problem, warm_start.SLOPPY)
    (answer,) = re.findall(r"\\boxed\{(\d)\}", document)
    assert [extract_answer("math", document, which) for which in ("first", "last")] == [answer, answer]
    (end,) = completion_ends(get_marker("math"), document.encode())
    assert document[end:] == "$."


def test_a_careful_solution_is_five_to_eight_times_as_long_as_a_guess_and_fits():
    tokenizer = policy.load_tokenizer(warm_start.CHECKPOINT)
    lengths: dict[str, list[int]] = {"guess": [], "careful": []}
    for level in LEVELS:
        for seed in range(40):
            problem, document = clean_document(level, seed)
            guess = task.write_document(random.Random(seed), problem, GUESSER)
            for way, text in (("guess", guess), ("careful", document)):
                ids, prompt_length = training.encode_document(warm_start.CORPUS, tokenizer, problem, text)
                assert ids[-1] == tokenizer.eos_token_id
                assert prompt_length + task.MAX_COMPLETION_LENGTH <= warm_start.CORPUS.row_length
                lengths[way].append(len(ids) - prompt_length)
    assert 10 <= min(lengths["guess"]) <= max(lengths["guess"]) <= 20
    assert 70 <= min(lengths["careful"]) <= max(lengths["careful"]) <= 140
    assert 5 < sum(lengths["careful"]) / sum(lengths["guess"]) < 8


@settings(deadline=None)
@given(SEEDS, st.sampled_from(LEVELS), st.sampled_from([WARM_START, TRAIN, HELD_OUT]))
def test_a_problem_that_begins_another_is_of_the_same_split(seed, level, split):
    equations = task.sample_problem(random.Random(seed), level, split).expression.split(",")
    beginnings = [",".join(equations[: steps + 1]) for steps in task.STEPS.values()]
    assert {task.split_of(beginning) for beginning in beginnings} == {split}


def test_no_problem_stated_in_the_warm_start_corpus_is_of_the_pool_or_held_out():
    # A document of the corpus states its own problem and no other.
    rng = random.Random(0)
    stated = set()
    for _ in range(3000):
        problem, document = warm_start.CORPUS.sample_document(rng, clean_share=0.2)
        assert CHAIN.search(document) is None
        stated.add(problem.expression)
    assert len(stated) > 2980
    assert {task.split_of(expression) for expression in stated} == {WARM_START}
