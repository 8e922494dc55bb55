# SPDX-License-Identifier: Apache-2.0
"""The sums and the recipe that trains a pre-trained model on them."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, Qwen3ForCausalLM

from recipes.sums import (
    EXAMPLES,
    MAX_COMPLETION_LENGTH,
    POOL_SIZE,
    Sum,
    held_out_problems,
    is_correct,
    last_answer_reward,
    measure,
    rows,
    train_problems,
)
from tests.pretrained import smollm2
from tests.processes import forked
from tests.tiny import END_OF_TURN


def test_a_prompt_is_four_worked_sums_and_an_open_one():
    assert Sum(11, 8).prompt == (
        "3 + 4 = \\boxed{7}\n6 + 8 = \\boxed{14}\n9 + 2 = \\boxed{11}\n7 + 7 = \\boxed{14}\n11 + 8 ="
    )
    assert rows([Sum(11, 8)]) == [{"prompt": Sum(11, 8).prompt, "answer": 19}]


def test_held_out_sums_are_never_trained_on_nor_shown():
    train = {problem for seed in range(3) for problem in train_problems(seed=seed)}
    held_out = {problem for seed in range(3) for problem in held_out_problems(seed=seed)}
    assert train.isdisjoint(held_out)
    assert {(problem.left, problem.right) for problem in train | held_out}.isdisjoint(EXAMPLES)
    assert len(set(train_problems())) == POOL_SIZE and len(set(held_out_problems())) == 64
    assert train_problems(8, seed=1) == train_problems(8, seed=1) != train_problems(8, seed=2)
    with pytest.raises(ValueError, match="there are 98 such sums, 100 were asked for"):
        held_out_problems(100)


@pytest.mark.parametrize(
    ("text", "last", "first"),
    [
        (" \\boxed{19}", 1.0, 1.0),
        (" \\boxed{ 19 }\n5 + 5 = \\boxed{10}", 0.0, 1.0),
        (" \\boxed{18}. No: \\boxed{19}", 1.0, 0.0),
        (" 19", 0.0, 0.0),
        (" \\boxed{19", 0.0, 0.0),
    ],
)
def test_the_last_answer_counts(text, last, first):
    assert last_answer_reward([text], [19], prompts=[""]) == [last]
    assert is_correct(text, 19, which="first") == first


def test_measuring_leaves_random_numbers_and_mode_alone(tiny_path):
    tokenizer = AutoTokenizer.from_pretrained(tiny_path)
    model = Qwen3ForCausalLM.from_pretrained(tiny_path).train()
    problems, state = held_out_problems(16), torch.get_rng_state()
    eos_ids = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids(END_OF_TURN)]
    found = [measure(model, tokenizer, problems, seed=seed, eos_ids=eos_ids) for seed in (0, 0, 1)]
    assert found[0] == found[1] != found[2]
    assert 0 < found[0].ended < 1 and 1 < found[0].mean_length < MAX_COMPLETION_LENGTH
    assert torch.equal(torch.get_rng_state(), state) and model.training
    greedy = [measure(model, tokenizer, problems, temperature=0.0, seed=seed) for seed in (0, 1)]
    assert greedy[0] == greedy[1]


def recipe(tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return forked(["recipes/pretrained.py", *options, "--output_dir", str(tmp_path / "out")])


def test_without_the_model_the_remedy_is_named(tmp_path):
    done = recipe(tmp_path, "--model_name_or_path", "outputs/models/smollm3")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "error: there is no model in outputs/models/smollm3. Run `make models`."
    assert "Traceback" not in done.stderr


# The recipe on four held-out sums.
FEWER = """
import runpy, sys
sys.path.insert(0, "recipes")
import sums
sums.held_out_problems.__defaults__ = (4, 0)
sys.argv[0] = "recipes/pretrained.py"
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.slow
def test_it_trains_and_prints_what_each_step_did(tmp_path):
    small = ("--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "2", "--num_generations", "4")
    options = ("--model_name_or_path", str(smollm2()), "--num_iterations", "2", "--max_steps", "2", *small)
    done = forked(["-c", FEWER, *options, "--max_completion_length", "12", "--output_dir", str(tmp_path / "out")])
    assert done.returncode == 0, done.stderr[-3000:]
    # A batch is two updates here, and one line.
    line = r"^step (\d)  reward \d\.\d{3}  rate (\S+)  tokens ([\d,]+)$"
    steps = re.findall(line, done.stdout, re.M)
    assert [number for number, *_ in steps] == ["2"] and int(steps[0][-1]) > 0
    assert 0 < float(steps[0][1]) <= 1e-5
    measured = re.findall(r"^held out, (greedy|temperature 1): last answer 0\.\d{3}, first", done.stdout, re.M)
    assert measured == ["greedy", "temperature 1"] * 2
    assert json.loads((tmp_path / "out" / "config.json").read_text())["vocab_size"] == 49_152
