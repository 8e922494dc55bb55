# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from duet_trl.__main__ import main

SMALL = [
    "--steps",
    "4",
    "--batch",
    "16",
    "--num_prompts",
    "100",
    "--max_completion_length",
    "512",
    "--gpus",
    "8",
    "64",
]
LENGTHS = ["--answer_tokens", "150"]


def test_tokens_and_seconds_of_each_method_and_number_of_gpus(capsys, tmp_path):
    path = tmp_path / "figures.json"
    assert main(["simulate", "--methods", "duet", "grpo", *SMALL, *LENGTHS, "--json", str(path)]) == 0
    found, printed = json.loads(path.read_text()), capsys.readouterr().out
    grpo, duet = found["grpo"], found["duet"]
    assert grpo["rollouts"] == 16 * 8 == 2 * duet["rollouts"] and grpo["rounds"] == 1.0
    assert duet["generated_tokens"] < 0.6 * grpo["generated_tokens"]
    assert grpo["generated_tokens"] == grpo["trained_tokens"] and grpo["right_lost"] == 0.0
    for one in found.values():
        eight, many = one["seconds"]["8"], one["seconds"]["64"]
        assert eight["total"] > many["total"] > many["fixed"]
        assert f"{eight['total']:,.1f} ({eight['tail'] / eight['total']:.0%})" in printed
    assert f"{grpo['generated_tokens']:,.0f}" in printed


def test_a_budget_reaches_the_methods_that_read_one(capsys, tmp_path):
    path = tmp_path / "figures.json"
    main(["simulate", "--methods", "duet", "pods", *SMALL, *LENGTHS, "--budget_fraction", "1", "--json", str(path)])
    found = json.loads(path.read_text())
    assert found["duet"]["rollouts"] == pytest.approx(128, rel=0.15) and found["pods"]["rollouts"] == 128


def test_a_model_that_does_not_fit_is_an_error(capsys):
    assert main(["simulate", "--methods", "grpo", *SMALL, "--parameters", "7e10"]) == 1
    assert "leave no room" in capsys.readouterr().err


def test_an_unknown_method_is_refused(capsys):
    assert main(["simulate", "--methods", "own", "duet"]) == 1
    assert "no method is named own. Choose of duet, paper," in capsys.readouterr().err
