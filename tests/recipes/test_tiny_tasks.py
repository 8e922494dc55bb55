# SPDX-License-Identifier: Apache-2.0
"""The three tiny tasks: right answers, splits that never meet, a checkpoint that fits."""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.tiny_math import policy
from recipes.tiny_math import task as sums
from recipes.tiny_math.problems import HELD_OUT, LEVELS, TRAIN, WARM_START
from recipes.tiny_products import task as products
from recipes.tiny_two_ways import task as two_ways


def values_of(expression: str) -> dict[str, int]:
    """What Python says the values of a chain are, without remainders on the way."""
    values: dict[str, int] = {}
    for equation in expression.split(","):
        name, right = equation.split("=")
        values[name] = eval(re.sub(r"(\d)([a-z])", r"\1*\2", right), {}, values)
    return values


@dataclass(frozen=True)
class Task:
    """Its module; how Python computes a value; a line of a solution; the question."""

    module: ModuleType
    value: Callable[[str], int]
    line: str
    question: str

    @property
    def checkpoint(self) -> Path:
        """Folder of the shipped policy."""
        return Path(self.module.__file__).parent / "checkpoint"


def last_value(expression: str) -> int:
    return [*values_of(expression).values()][-1] % two_ways.MODULUS


TASKS = {
    "math": Task(sums, eval, "1234", "Compute ${}$."),
    "products": Task(products, eval, "7*6+0=42", "Multiply {}."),
    "two_ways": Task(two_ways, last_value, "b=7*3+4=25=1", "Find the last value of ${}$ modulo 4."),
}


@pytest.mark.parametrize("name", TASKS)
def test_problems_have_the_value_that_python_computes(name):
    for problem in TASKS[name].module.sample_problems(TRAIN, 200, 3):
        assert problem.answer == TASKS[name].value(problem.expression) >= 0


@pytest.mark.parametrize("name", TASKS)
def test_levels_come_in_equal_parts_and_without_repetition(name):
    # As many as the pools' candidates: the smallest level has enough of them.
    problems = TASKS[name].module.sample_problems(TRAIN, 2400, seed=1)
    assert Counter(problem.level for problem in problems) == dict.fromkeys(LEVELS, 480)
    assert len({problem.expression for problem in problems}) == 2400


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("split", [WARM_START, TRAIN, HELD_OUT])
def test_every_sampled_problem_belongs_to_the_split_it_was_asked_for(name, split):
    task = TASKS[name].module
    assert {task.split_of(problem.expression) for problem in task.sample_problems(split, 60, seed=1)} == {split}


@pytest.mark.parametrize("name", TASKS)
def test_the_checkpoint_fits_into_three_megabytes_and_its_policy_has_a_row_that_no_token_uses(name):
    folder = TASKS[name].checkpoint
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 3 * 2**20
    tokenizer, model = policy.load_tokenizer(folder), policy.load_policy(folder)
    assert model.config.vocab_size == 384 > len(tokenizer)
    assert model.config.eos_token_id == tokenizer.eos_token_id == tokenizer.convert_tokens_to_ids("<|endoftext|>")


@pytest.mark.parametrize("name", TASKS)
def test_the_tokenizer_has_single_digits_a_chat_template_and_keeps_any_text(name):
    tokenizer = policy.load_tokenizer(TASKS[name].checkpoint)
    assert tokenizer.tokenize(TASKS[name].line) == [*TASKS[name].line]
    (problem,) = TASKS[name].module.sample_problems(TRAIN, 1, seed=0)
    prompt = tokenizer.apply_chat_template(problem.messages, add_generation_prompt=True, tokenize=False)
    question = TASKS[name].question.format(problem.expression)
    assert prompt == f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    text = "\\boxed{\u00e9\u4e2d}$ ```  \t\n x"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


@pytest.mark.parametrize("name", TASKS)
@settings(deadline=None, max_examples=20)
@given(pool_seed=st.integers(0, 10**6), held_out_seed=st.integers(0, 10**6))
def test_pool_and_held_out_set_are_disjoint_for_any_seeds(name, pool_seed, held_out_seed):
    found = [
        {problem.expression for problem in TASKS[name].module.sample_problems(split, 20, seed)}
        for split, seed in ((TRAIN, pool_seed), (HELD_OUT, held_out_seed))
    ]
    assert found[0].isdisjoint(found[1])


@settings(deadline=None)
@given(st.integers(2, 9999), st.integers(2, 9999))
def test_factors_may_be_exchanged_without_changing_the_split(first, second):
    assert products.split_of(f"{first}*{second}") == products.split_of(f"{second}*{first}")


@settings(deadline=None)
@given(st.integers(0, 10**9), st.sampled_from(LEVELS), st.sampled_from([WARM_START, TRAIN, HELD_OUT]))
def test_a_chain_that_begins_another_is_of_the_same_split(seed, level, split):
    equations = two_ways.sample_problem(Random(seed), level, split).expression.split(",")
    beginnings = [",".join(equations[: steps + 1]) for steps in two_ways.STEPS.values()]
    assert {two_ways.split_of(beginning) for beginning in beginnings} == {split}


@settings(deadline=None)
@given(st.integers(0, 10**9), st.sampled_from(LEVELS), st.integers(0, 9))
def test_nothing_is_known_about_the_answer_without_any_single_addend(seed, level, place):
    # Every addend at one place, everything else fixed: the answers are the four remainders, once each.
    equations = two_ways.sample_problem(Random(seed), level, WARM_START).expression.split(",")
    place %= len(equations)
    answers = set()
    for addend in two_ways.ADDENDS:
        changed = equations[place][:-1] + str(addend % two_ways.MODULUS if place == 0 else addend)
        answers.add(two_ways.value_of(",".join([*equations[:place], changed, *equations[place + 1 :]])))
    assert answers == set(range(two_ways.MODULUS))


@pytest.mark.parametrize(
    ("text", "careful"),
    [
        ("Line by line:\nb=7*3+4=25=1\nc=5*1+2=07=3\nSo the answer is $\\boxed{3}$.", True),
        ("My guess is that the last value is $\\boxed{3}$.", False),
        ("So the answer is $\\boxed{3}$.", False),
        ("Find the last value of $a=3,b=7a+4,c=5b+2$ modulo 4.", False),
    ],
)
def test_the_two_ways_are_told_apart_by_their_text(text, careful):
    assert two_ways.is_careful(text) == careful
