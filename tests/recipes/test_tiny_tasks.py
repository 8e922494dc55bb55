# SPDX-License-Identifier: Apache-2.0
"""What the three tiny tasks share, and sums: right answers, no leak between the splits, a checkpoint that fits."""

import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import pytest

from recipes.tiny_math import policy, task, warm_start
from recipes.tiny_math.problems import HELD_OUT, LEVELS, TRAIN, WARM_START
from recipes.tiny_math.reward import first_box_reward, is_correct, last_box_reward
from recipes.tiny_products import task as products
from recipes.tiny_products import warm_start as of_products
from recipes.tiny_two_ways import task as two_ways
from recipes.tiny_two_ways import warm_start as of_two_ways
from tests.recipes.test_tiny_two_ways import values_of

EXPRESSION = re.compile(r"\d+(?:[-+*]\d+){2,}")  # three or more operands, the least a problem has


@dataclass(frozen=True)
class Task:
    """Its module and corpus; how Python computes a value; a line of a solution; the question."""

    task: ModuleType
    corpus: warm_start.Corpus
    value: Callable[[str], int]
    line: str
    question: str


TASKS = {
    "math": Task(task, warm_start.CORPUS, eval, "1234", "Compute ${}$."),
    "products": Task(
        products,
        of_products.CORPUS,
        eval,
        "7*6+0=42",
        "Multiply {}.",
    ),
    "two_ways": Task(
        two_ways,
        of_two_ways.CORPUS,
        lambda expression: [*values_of(expression).values()][-1] % two_ways.MODULUS,
        "b=7*3+4=25=1",
        "Find the last value of ${}$ modulo 4.",
    ),
}


@pytest.mark.parametrize("name", TASKS)
def test_problems_have_the_value_that_python_computes(name):
    for problem in TASKS[name].task.sample_problems(TRAIN, 200, 3):
        assert problem.answer == TASKS[name].value(problem.expression) >= 0


@pytest.mark.parametrize("name", TASKS)
def test_levels_come_in_equal_parts_and_without_repetition(name):
    # As many as the pools' candidates: the smallest level has enough of them.
    problems = TASKS[name].task.sample_problems(TRAIN, 2400, seed=1)
    assert Counter(problem.level for problem in problems) == dict.fromkeys(LEVELS, 480)
    assert len({problem.expression for problem in problems}) == 2400


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("split", [WARM_START, TRAIN, HELD_OUT])
def test_every_sampled_problem_belongs_to_the_split_it_was_asked_for(name, split):
    task = TASKS[name].task
    assert {task.split_of(problem.expression) for problem in task.sample_problems(split, 60, seed=1)} == {split}


@pytest.mark.parametrize("name", TASKS)
def test_the_checkpoint_fits_into_three_megabytes_and_its_policy_has_a_row_that_no_token_uses(name):
    folder = TASKS[name].corpus.checkpoint
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 3 * 2**20
    tokenizer, model = policy.load_tokenizer(folder), policy.load_policy(folder)
    assert model.config.vocab_size == policy.PADDED_VOCABULARY_SIZE > len(tokenizer)
    assert model.config.eos_token_id == tokenizer.eos_token_id == tokenizer.convert_tokens_to_ids("<|endoftext|>")


@pytest.mark.parametrize("name", TASKS)
def test_the_tokenizer_has_single_digits_a_chat_template_and_keeps_any_text(name):
    tokenizer = policy.load_tokenizer(TASKS[name].corpus.checkpoint)
    assert tokenizer.tokenize(TASKS[name].line) == [*TASKS[name].line]
    (problem,) = TASKS[name].task.sample_problems(TRAIN, 1, seed=0)
    prompt = tokenizer.apply_chat_template(problem.messages, add_generation_prompt=True, tokenize=False)
    question = TASKS[name].question.format(problem.expression)
    assert prompt == f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    text = "\\boxed{\u00e9\u4e2d}$ ```  \t\n x"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


# ---- Sums ----


def test_a_clean_solution_computes_every_line_and_boxes_the_answer():
    rng = random.Random(0)
    for level in LEVELS:
        problem = task.sample_problem(rng, level, WARM_START)
        first, *lines, last = task.write_answer(rng, problem, warm_start.CLEAN).rstrip().split("\n")
        assert first == problem.expression
        assert all(eval(left) == int(right) for left, right in (line.split("=") for line in lines))
        assert len(lines) == problem.expression.count("+") + problem.expression.count("-") + first.count("*")
        assert f"\\boxed{{{problem.answer}}}" in last


def test_a_slip_is_carried_on_to_the_answer():
    author = task.Author(slip=1.0, looper=(0,) * 5, again_looper=0, again=0, tail=0, tail_again=0)
    problem = task.Problem("2+3+4", 1, 9)
    _, first, second, last = task.write_answer(random.Random(0), problem, author).rstrip().split("\n")
    total = int(first.split("=")[1])
    assert total != 5
    assert second.startswith(f"{total}+4=")
    assert f"\\boxed{{{second.split('=')[1]}}}" in last


def test_no_problem_stated_or_restated_in_the_warm_start_corpus_is_of_the_pool_or_held_out():
    # Everything a warm-start author writes, next turns and re-checks included, regenerated from the seed of the run.
    rng = random.Random(0)
    stated = set()
    for _ in range(3000):
        problem, document = warm_start.CORPUS.sample_document(rng, clean_share=0.2)
        stated |= {problem.expression, *re.findall(r"Compute \$(.*?)\$", document)}
        stated |= {line for line in document.split("\n") if EXPRESSION.fullmatch(line)}
    assert len(stated) > 3000
    assert {task.split_of(expression) for expression in stated} == {WARM_START}
    pool = {p.expression for p in task.sample_problems(TRAIN, 320, seed=0)}
    held_out = {p.expression for p in task.sample_problems(HELD_OUT, 320, seed=0)}
    assert not stated & (pool | held_out)


def test_the_training_documents_are_cut_at_the_completion_limit():
    tokenizer = policy.load_tokenizer()
    problem = task.Problem("1+2+3", 1, 6)
    ids, prompt_length = warm_start.encode_document(warm_start.CORPUS, tokenizer, problem, "1+2=3\n" * 500)
    assert len(ids) - prompt_length == task.MAX_COMPLETION_LENGTH


def test_packed_documents_do_not_see_each_other():
    tokenizer = policy.load_tokenizer()
    batch = next(warm_start.batches(warm_start.CORPUS, tokenizer, random.Random(0), clean_share=0.2))
    starts = (batch["position_ids"] == 0) & (batch["labels"] == warm_start.IGNORED)
    for row in range(warm_start.ROWS):
        boundary = starts[row].nonzero().flatten()
        second = int(boundary[1])
        assert not batch["attention_mask"][row, 0, second:, :second].any()
        assert batch["attention_mask"][row, 0, second - 1, :second].all()


@pytest.mark.parametrize(
    ("text", "answer", "last", "first"),
    [
        ("12+3=15\nThe answer is $\\boxed{15}$.", 15, True, True),
        ("So we get \\boxed{-4}.", -4, True, True),
        ("\\boxed{15} and then \\boxed{16}", 16, True, False),
        ("\\boxed{15} and then \\boxed{16}", 15, False, True),
        ("\\boxed{}, I mean \\boxed{7}", 7, True, True),  # an empty box is no answer
        ("\\boxed{1", 1, False, False),
        ("15", 15, False, False),
        ("\\boxed{15.0}", 15, False, False),
        ("\\boxed{x}", 0, False, False),
    ],
)
def test_the_rewards_compare_the_last_or_the_first_boxed_integer(text, answer, last, first):
    completions = [[{"role": "assistant", "content": text}]]
    assert is_correct(text, answer) is last
    assert last_box_reward(completions, [answer]) == [float(last)]
    assert first_box_reward(completions, [answer]) == [float(first)]
