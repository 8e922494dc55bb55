# SPDX-License-Identifier: Apache-2.0
"""The tiny task: right answers, no leak between warm start, pool and held-out set, and a checkpoint that fits."""

import random
import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.tiny_math import policy, task, warm_start
from recipes.tiny_math.problems import HELD_OUT, LEVELS, TRAIN, WARM_START

EXPRESSION = re.compile(r"\d+(?:[-+*]\d+){2,}")  # three or more operands, the least a problem has


def test_problems_have_the_value_that_python_computes():
    for problem in task.sample_problems(TRAIN, 200, seed=3):
        assert problem.answer == eval(problem.expression) >= 0


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


def test_levels_come_in_equal_parts_and_without_repetition():
    problems = task.sample_problems(HELD_OUT, 100, seed=0)
    assert Counter(problem.level for problem in problems) == dict.fromkeys(LEVELS, 20)
    assert len({problem.expression for problem in problems}) == 100


def test_every_sampled_problem_belongs_to_the_split_it_was_asked_for():
    for split in (WARM_START, TRAIN, HELD_OUT):
        assert {task.split_of(p.expression) for p in task.sample_problems(split, 60, seed=1)} == {split}


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_pool_and_held_out_set_are_disjoint_for_any_seeds(pool_seed, held_out_seed):
    pool = {p.expression for p in task.sample_problems(TRAIN, 20, pool_seed)}
    held_out = {p.expression for p in task.sample_problems(HELD_OUT, 20, held_out_seed)}
    assert not pool & held_out


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


def test_no_problem_is_short_enough_to_be_one_line_of_another_solution():
    rng = random.Random(0)
    for _ in range(300):
        assert EXPRESSION.fullmatch(task.sample_problem(rng, 1, WARM_START).expression)


def test_the_easiest_level_cannot_be_enumerated_by_the_corpus():
    # Level 1 has three operands of 1..49 and two signs: about 49^3 * 4 * P(no negative total) > 200,000 expressions.
    rng = random.Random(0)
    draws = [task.sample_problem(rng, 1, WARM_START).expression for _ in range(4000)]
    # n draws out of S equally likely ones leave n^2 / 2S repetitions: 40 for S = 200,000.
    assert len(draws) - len(set(draws)) < 80


def test_checkpoint_files_fit_into_three_megabytes():
    assert sum(path.stat().st_size for path in policy.CHECKPOINT.iterdir()) <= 3 * 2**20


def test_tokenizer_has_single_digits_a_chat_template_and_ends_with_end_of_text():
    tokenizer = policy.load_tokenizer()
    assert tokenizer.tokenize("1234") == ["1", "2", "3", "4"]
    assert tokenizer.eos_token == "<|endoftext|>"
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Compute $1+2+3$."}], add_generation_prompt=True, tokenize=False
    )
    assert prompt == "<|im_start|>user\nCompute $1+2+3$.<|im_end|>\n<|im_start|>assistant\n"


def test_any_text_survives_the_tokenizer():
    tokenizer = policy.load_tokenizer()
    text = "\\boxed{\u00e9\u4e2d}  \t\n x"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_policy_has_a_row_of_the_vocabulary_that_no_token_uses():
    model, tokenizer = policy.load_policy(), policy.load_tokenizer()
    assert model.config.vocab_size == policy.PADDED_VOCABULARY_SIZE > len(tokenizer)
    assert model.config.eos_token_id == tokenizer.eos_token_id


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


@pytest.mark.slow
def test_the_shipped_policy_has_something_to_learn_and_something_to_learn_from():
    # Not a benchmark: between never and always right, so that groups have a spread.
    report = warm_start.evaluate(warm_start.CORPUS, policy.load_policy(), policy.load_tokenizer())
    accuracy = float(re.search(r"accuracy ([\d.]+)", report).group(1))
    assert 0.2 < accuracy < 0.7
