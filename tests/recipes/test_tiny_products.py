# SPDX-License-Identifier: Apache-2.0
"""The task of products: right chains, fences the library reads, no leak between the splits, a checkpoint that fits."""

import random
import re
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from duet_trl.gate.markers import completion_ends, extract_answer, first_marker_end, get_marker
from recipes.tiny_math import policy
from recipes.tiny_math import warm_start as training
from recipes.tiny_math.problems import HELD_OUT, LEVELS, WARM_START
from recipes.tiny_products import task, warm_start

STEP = re.compile(r"(\d)([*+])(\d)\+(\d)=(\d\d)")
PRODUCT = re.compile(r"\d+\*\d+")
SUM = re.compile(r"(\d+)\+(\d+)")


def clean_document(level: int, seed: int = 0) -> tuple[task.Problem, str]:
    rng = random.Random(seed)
    problem = task.sample_problem(rng, level, WARM_START)
    return problem, task.write_document(rng, problem, warm_start.CLEAN)


@pytest.mark.parametrize("level", LEVELS)
def test_every_line_of_a_clean_solution_is_true(level):
    for seed in range(40):
        problem, document = clean_document(level, seed)
        working, answer = document.removesuffix("\n```").split("\n```\n")
        restated, *lines = working.split("\n")
        assert (restated, answer) == (problem.expression, str(problem.answer))
        value = None  # of the row or the sum that the steps below work out
        for line in lines:
            if step := STEP.fullmatch(line):
                left, operator, right, carry, result = step.groups()
                assert eval(f"{left}{operator}{right}+{carry}") == int(result)
            elif line.isdigit():
                assert int(line) == value
            else:
                value = eval(re.sub(r"\b0+(?=\d)", "", line))  # Python reads no padded numbers


def test_a_slip_is_carried_on_to_the_answer():
    author = replace(warm_start.CLEAN, slip=1.0, forget=1.0)
    _, row, *steps, total, fence, answer, end = task.write_document(
        random.Random(0), task.Problem("47311*8", 1, 378488), author
    ).split("\n")
    assert (row, fence, end) == ("47311*8", "```", "```")
    carry, units = 0, ""
    for line, digit in zip(steps, "11374", strict=True):
        assert line.startswith(f"{digit}*8+{carry}=")
        result = int(line[-2:])
        assert result != int(digit) * 8 + carry
        carry, units = result // 10, f"{result % 10}{units}"
    assert total == f"{carry}{units}"
    assert answer == str(int(total)) != "378488"


def test_only_large_carries_are_forgotten_and_the_rest_of_the_step_is_right():
    author = replace(warm_start.CLEAN, forget=1.0)
    rng = random.Random(0)
    forgotten = 0
    for _ in range(40):
        document = task.write_document(rng, task.sample_problem(rng, 5, WARM_START), author)
        for left, operator, right, carry, result in re.findall(STEP, document):
            large = int(carry) >= task.LARGE_CARRY
            assert int(result) == eval(f"{left}{operator}{right}") + (0 if large else int(carry))
            forgotten += large
    # 40 problems, six products each that follow another one; of 100 pairs of digits 28 give 30 or more
    assert 40 * 6 * 0.15 < forgotten < 40 * 6 * 0.45


@settings(deadline=None)
@given(st.integers(0, 10**9), st.sampled_from(LEVELS))
def test_a_document_completes_the_marker_and_the_library_reads_its_answer(seed, level):
    rng = random.Random(seed)
    problem = task.sample_problem(rng, level, WARM_START)
    document = task.write_document(rng, problem, warm_start.SLOPPY)
    assert document.endswith("\n```")
    answers = re.findall(r"^```\n(\d+)\n```$", document, re.MULTILINE)
    assert 1 <= len(answers) <= 2
    assert [extract_answer("code", document, which) for which in ("first", "last")] == [answers[0], answers[-1]]
    ends = list(completion_ends(get_marker("code"), document.encode()))
    assert len(ends) == len(answers)
    assert ends[-1] == len(document)
    assert extract_answer("code", document[: first_marker_end(get_marker("code"), document)]) == answers[0]


def test_clean_solutions_fit_the_limit_and_the_rows_of_the_warm_start():
    tokenizer = policy.load_tokenizer(warm_start.CHECKPOINT)
    longest = 0
    for level in LEVELS:
        for seed in range(20):
            ids, prompt_length = training.encode_document(warm_start.CORPUS, tokenizer, *clean_document(level, seed))
            assert ids[-1] == tokenizer.eos_token_id
            longest = max(longest, len(ids) - prompt_length)
            assert prompt_length + task.MAX_COMPLETION_LENGTH <= warm_start.CORPUS.row_length
    assert 200 < longest < 300


@settings(deadline=None)
@given(st.integers(2, 9999), st.integers(2, 9999))
def test_factors_may_be_exchanged_without_changing_the_split(first, second):
    assert task.split_of(f"{first}*{second}") == task.split_of(f"{second}*{first}")


def test_no_problem_stated_or_restated_in_the_warm_start_corpus_is_of_the_pool_or_held_out():
    # Everything a warm-start author writes. Rows of level 2 and up count where they could be a problem: they cannot.
    rng = random.Random(0)
    stated = set()
    for _ in range(3000):
        problem, document = warm_start.CORPUS.sample_document(rng, clean_share=0.2)
        lines = [line for line in document.split("\n") if PRODUCT.fullmatch(line)]
        assert lines[0] == problem.expression
        stated |= {line for line in lines if tuple(map(len, line.split("*"))) in task.DIGITS.values()}
    assert len(stated) > 2000
    assert {task.split_of(expression) for expression in stated} == {WARM_START}


@torch.no_grad()
def probability_of_result(texts: list[str]) -> torch.Tensor:
    """Of the last two digits of each text, by the shipped policy at temperature 1; shape (len(texts),)."""
    tokenizer, model = policy.load_tokenizer(warm_start.CHECKPOINT), policy.load_policy(warm_start.CHECKPOINT)
    batch = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left")
    ids = batch["input_ids"]
    log_p = model(**batch).logits.log_softmax(-1)[:, -3:-1]  # predictions of the last two tokens
    return log_p.gather(-1, ids[:, -2:, None]).sum((1, 2)).exp()


def test_the_shipped_policy_usually_forgets_a_large_carry_and_could_remember_it():
    # So greedy decoding is wrong by habit, and reinforcement learning must move the mode. True lines come before.
    tokenizer = policy.load_tokenizer(warm_start.CHECKPOINT)
    right, forgotten = [], []
    for problem in task.sample_problems(HELD_OUT, 60, seed=1):
        document = task.write_document(random.Random(0), problem, warm_start.CLEAN)
        for step in STEP.finditer(document):
            if int(step[4]) < task.LARGE_CARRY:
                continue
            prompt = tokenizer.apply_chat_template(problem.messages, add_generation_prompt=True, tokenize=False)
            right.append(prompt + document[: step.end()])
            forgotten.append(f"{right[-1][:-2]}{int(step[1]) * int(step[3]):02d}")
            break
    assert len(right) > 30
    p_right, p_forgotten = probability_of_result(right), probability_of_result(forgotten)
    assert ((p_right > 0.2) & (p_forgotten > 0.3)).float().mean() > 0.7
    assert (p_forgotten > p_right).float().mean() > 0.7
