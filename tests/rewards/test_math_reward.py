# SPDX-License-Identifier: Apache-2.0
"""The math reward against labelled real solutions, hostile answers and a dying worker."""

import logging
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("math_verify", reason="needs the extra 'math'")

from math_verify import verify

from duet_trl.gate.markers import extract_boxed
from duet_trl.rewards import MathVerifier, math_reward, math_worker
from duet_trl.rewards import math as math_module
from tests.rewards.case_files import rows_of

# Arithmetic in C, a symbolic blow-up, and a deep parse: no Python-level alarm ends the first.
HANGING = [r"9^{9^{9^{9}}}", "(10^7)!", r"\sum_{k=1}^{10^{9}} \frac{1}{k^2+k}", "(" * 200 + "1" + ")" * 200]


@pytest.fixture(scope="module")
def verifier():
    verifier = MathVerifier(timeout=1.0, workers=2)
    verifier.grade(["1"], ["1"])  # starts the workers, so that tests time the grading only
    yield verifier
    verifier.close()


def test_agrees_with_the_labels_of_real_boxed_solutions(verifier):
    rows = [row for row in rows_of("model_outputs_math.jsonl") if row["label"] is not None]
    rows = [row for row in rows if extract_boxed(row["text"], "last") is not None]
    assert len(rows) > 400
    rewards = verifier([row["text"] for row in rows], [row["gold"] for row in rows])
    agreement = sum(reward == row["label"] for reward, row in zip(rewards, rows, strict=True)) / len(rows)
    assert agreement >= 0.99


def test_every_gold_answer_of_math_equals_itself_except_the_two_empty_ones(verifier):
    golds = [row["answer"] for row in rows_of("math_train_clean.jsonl")]
    sample = [*golds[::20], ""]
    verdicts = verifier.grade(sample, sample)
    assert [gold for gold, verdict in zip(sample, verdicts, strict=True) if verdict != 1.0] == [
        gold for gold in sample if not gold
    ]
    assert verdicts[-1] is None


def bare(text: str) -> str | None:
    """The answer of a test-suite string that is nothing but an answer, without its `$` or box; None for prose."""
    text = re.sub(r"^\$+([^$]*)\$+$", r"\1", text.strip())
    text = re.sub(r"^\\boxed\{(.*)\}$", r"\1", text.strip())
    return None if re.search(r"(?<![\\a-zA-Z{])[A-Za-z]{3,}|[^\x20-\x7e]|boxed|\$", text) else text


def test_labelled_pairs_of_bare_answers(verifier):
    rows = rows_of("answer_pairs_labelled.jsonl")
    triples = [(bare(row["pred"]), bare(row["gold"]), row["expected"]) for row in rows]
    triples = [triple for triple in triples if triple[0] and triple[1]]
    assert len(triples) >= 80
    verdicts = verifier.grade([pred for pred, _, _ in triples], [gold for _, gold, _ in triples])
    wrong = {triple[:2] for triple, verdict in zip(triples, verdicts, strict=True) if verdict != triple[2]}
    # Conventions in which the suites differ from Math-Verify on a boxed answer: the order of a list, rounding, spaces
    # and commas inside a number, and "and" between assignments. A relation is the set that it describes.
    assert wrong <= {
        ("10, 4, -2", "4, 10, -2"),
        ("0.3333333333", "1/3"),
        (r"-2 \\le x \\le 7", r"x \in [-2,7]"),
        ("1 000", "1000"),
        ("1.22", "1,22"),
        ("p=5,q=2;p=7,q=2", r" p = 5, q = 2 \quad \text{and} \quad p = 7, q = 2"),
    }


def test_hanging_answers_score_zero_within_their_limit_and_do_not_hurt_their_neighbours(verifier):
    answers = [part for hanging in HANGING for part in (hanging, "7")]
    start = time.monotonic()
    verdicts = verifier.grade(answers, ["7"] * len(answers))
    seconds = time.monotonic() - start
    assert verdicts == [0.0, 1.0] * len(HANGING)
    # One CPU second each over two workers; the slack is for a busy machine.
    assert seconds < 5 * len(HANGING)


def test_answer_too_long_to_be_one_is_wrong_unread_and_reported_once(caplog):
    verifier = MathVerifier(workers=1)
    with caplog.at_level(logging.WARNING):
        hostile = ["7+" * (1 << 19) + "0", "7" * (1 << 20), "{}" * (1 << 19)]
        assert verifier([rf"\boxed{{{answer}}}" for answer in hostile], ["7"] * 3) == [0.0] * 3
        assert verifier.grade([hostile[0]], [""]) == [None]
    assert [record.message.count("more than 2000 characters") for record in caplog.records] == [1, 0]
    assert "used up its time" not in caplog.text
    verifier.close()


@given(st.integers(-(10**13), 10**13), st.integers(-20, 20), st.booleans())
@settings(max_examples=50)
def test_integers_are_compared_as_the_parser_would(number, other, padded):
    answer, gold = f"{number % 41 - 20}", f"{'0' if padded and other >= 0 else ''}{other}"
    for pair in ((answer, gold), (str(number), str(number)), (str(number), gold)):
        parsed = [math_worker._parse(text) for text in pair]
        assert math_worker.grade(*pair) == (b"1" if verify(*parsed, timeout_seconds=None) else b"0")


RETIRING = """
import importlib.util, os, sys
spec = importlib.util.spec_from_file_location("math_worker", sys.argv[1])
worker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker)
for worker.RETIREMENT_BYTES in (0, 1 << 40):
    grader = worker.Grader(20.0)
    pids = set()
    verdicts = ""
    for pairs in ([["1/2", "0.5"]] * 2 + [["1/3", "0.5"]], [["x", "x"], [None, "x"], ["x", ""]]):
        verdicts += grader.grade_all(pairs)
        pids.add(grader._pid)
    print(verdicts, len(pids))
"""


def test_fork_whose_memory_has_grown_is_replaced_without_a_lost_verdict():
    arguments = [sys.executable, "-P", "-c", RETIRING, str(math_module.WORKER_SCRIPT)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines() == ["11010n 2", "11010n 1"]


def test_killed_answer_and_unparsable_gold_are_reported_once(caplog):
    verifier = MathVerifier(timeout=0.2, workers=1)
    with caplog.at_level(logging.WARNING):
        verifier.grade([HANGING[0], HANGING[0] + "+1"], ["7", "7"])
        assert verifier.grade(["1", "2"], ["", ""]) == [None, None]
    killed, unparsable = [record.message for record in caplog.records]
    assert "used up its time" in killed and "cannot be parsed" in unparsable
    verifier.close()


def test_last_box_by_default_first_on_request():
    text = r"First \boxed{3}, no: \boxed{4}. And an echo of the prompt: \boxed{}."
    assert math_reward([text, text, "4"], ["4", "3", "4"]) == [1.0, 0.0, 0.0]
    assert math_reward([], []) == []
    first = MathVerifier(workers=1, which="first")
    assert first([text, text], ["4", "3"]) == [0.0, 1.0]
    first.close()


def test_thousands_of_rows_with_few_distinct_answers_are_graded_in_order(verifier):
    answers = [str(i % 7) for i in range(4000)]
    start = time.monotonic()
    verdicts = verifier.grade(answers, [str(i % 3) for i in range(4000)])
    assert verdicts == [float(i % 7 == i % 3) for i in range(4000)]
    assert time.monotonic() - start < 5


def test_killed_worker_process_is_replaced(verifier):
    verifier.grade(["110"], ["1"])
    running = [worker._process.pid for worker in verifier._workers.all if worker._process]
    assert running
    for pid in running:
        os.killpg(pid, signal.SIGKILL)
    assert verifier.grade(["111", "112"], ["111", "111"]) == [1.0, 0.0]


def test_worker_that_cannot_start_leaves_rows_ungraded_and_says_so(monkeypatch, tmp_path, caplog):
    broken = tmp_path / "broken.py"
    broken.write_text("raise SystemExit(3)")
    monkeypatch.setattr(math_module, "WORKER_SCRIPT", broken)
    verifier = MathVerifier(workers=1)
    with caplog.at_level(logging.WARNING):
        assert verifier.grade(["1"], ["1"]) == [None]
    assert "died twice" in caplog.text


def test_unguarded_script_with_torch_threads_grades_once_and_leaves_no_process():
    # multiprocessing's spawn would run this script again in every worker, its fork would copy torch's locks.
    script = (
        "import torch\n"
        "torch.randn(512, 512) @ torch.randn(512, 512)\n"
        "from duet_trl.rewards import MathVerifier\n"
        "verifier = MathVerifier(workers=1)\n"
        "print(verifier.grade(['1', '2'], ['1', '1']), *(w._process.pid for w in verifier._workers.all))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    verdicts, _, pids = done.stdout.partition("] ")
    assert verdicts == "[1.0, 0.0"
    for pid in pids.split():
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


def test_worker_imports_no_training_library():
    source = (Path(math_module.__file__).parent / "math_worker.py").read_text()
    modules = set(re.findall(r"^(?:import|from) (\w+)", source, flags=re.MULTILINE))
    assert modules <= {"latex2sympy2_extended", "math_verify", "sympy"} | sys.stdlib_module_names
