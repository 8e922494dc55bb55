# SPDX-License-Identifier: Apache-2.0
"""Result files: the layout of lm-evaluation-harness as written, and read back."""

import json
from pathlib import Path

import pytest

from duet_trl.evaluation.measure import Settings, build_graders, measure
from duet_trl.evaluation.prompts import eos_token_ids
from duet_trl.evaluation.results import (
    Figure,
    Subject,
    read_results,
    results_payload,
    sample_lines,
    sanitized,
    write_results,
)
from duet_trl.evaluation.suites import load_suite, suite_checksum
from tests.evaluation.policy import TOKENIZER, Scripted, ids, write_jsonl

RIGHT, WRONG = ids(r"\boxed{42}"), ids(r"\boxed{41}")
SUBJECT = Subject(model="org/name", engine="transformers", step=30, limit=None, chat_template="T", eos_ids=(3, 4))
SETTINGS = Settings(num_samples=2, max_tokens=20)


@pytest.fixture
def measured(tmp_path):
    rows = [{"problem": f"{word}?", "answer": "42", "unique_id": word} for word in ("alpha", "beta")]
    suites = {"math500": load_suite("math500", write_jsonl(tmp_path / "math.jsonl", rows))}
    policy = Scripted({"alpha": [RIGHT, RIGHT], "beta": [WRONG, RIGHT]}, {"alpha": RIGHT, "beta": WRONG})
    found = measure(policy, suites, build_graders(suites), TOKENIZER, eos_token_ids(TOKENIZER), SETTINGS)
    return found, suites


def test_figures_stand_under_metric_and_filter_with_their_standard_error(measured):
    table = results_payload(*measured, SUBJECT)["results"]["math500"]
    assert table["alias"] == "MATH-500"
    assert (table["mean@2,sampled"], table["best@2,sampled"], table["mean@1,greedy"]) == (0.75, 1.0, 0.5)
    # per problem (1, 1/2): deviation sqrt(1/8), over sqrt(2)
    assert table["mean@2_stderr,sampled"] == pytest.approx(0.25)
    assert (table["truncated,sampled"], table["mean_length,greedy"]) == (0.0, len(RIGHT))
    names = {name for name in table if name != "alias"}
    assert all(name.count(",") == 1 for name in names)
    assert {name.replace("_stderr,", ",") for name in names if "_stderr" in name} == {
        name for name in names if "_stderr" not in name
    }


def test_everything_the_harness_puts_beside_the_figures_is_there(measured):
    payload = results_payload(*measured, SUBJECT)
    assert payload["n-samples"] == {"math500": {"original": 500, "effective": 2}}
    assert payload["model_name"] == "org/name" and payload["model_name_sanitized"] == "org__name"
    config = payload["configs"]["math500"]
    assert config["dataset_path"] == "HuggingFaceH4/MATH-500" and config["test_split"] == "test"
    assert config["generation_kwargs"]["sampled"] == {
        "num_samples": 2,
        "temperature": 0.9,
        "top_p": 0.95,
        "max_tokens": 20,
    }
    assert config["metadata"]["checksum"] == suite_checksum_of(measured)
    assert {"versions", "n-shot", "higher_is_better", "config", "group_subtasks"} <= payload.keys()
    assert payload["higher_is_better"]["math500"]["mean@2"] is True
    assert payload["higher_is_better"]["math500"]["truncated"] is False
    assert json.loads(json.dumps(payload)) == payload


def suite_checksum_of(measured) -> str:
    from duet_trl.evaluation.suites import SUITES

    return suite_checksum(SUITES["math500"], measured[1]["math500"])


def test_a_single_problem_has_no_standard_error(measured):
    found, suites = measured
    one = {"math500": suites["math500"].select([0])}
    policy = Scripted({"alpha": [RIGHT, WRONG]}, {"alpha": RIGHT})
    found = measure(policy, one, build_graders(one), TOKENIZER, eos_token_ids(TOKENIZER), SETTINGS)
    assert results_payload(found, one, SUBJECT)["results"]["math500"]["mean@2_stderr,sampled"] == "N/A"


def test_sample_lines_hold_problem_target_responses_and_each_verdict(measured):
    lines = list(sample_lines(measured[0]["math500"], measured[1]["math500"]))
    assert [(line["doc_id"], line["filter"]) for line in lines] == [
        (0, "sampled"),
        (0, "greedy"),
        (1, "sampled"),
        (1, "greedy"),
    ]
    beta = lines[2]
    assert beta["doc"]["id"] == "beta" and beta["target"] == "42"
    assert beta["resps"] == [[r"\boxed{41}", r"\boxed{42}"]]
    assert beta["correct"] == [0, 1] and beta["mean@2"] == 0.5 and beta["best@2"] == 1.0
    assert beta["lengths"] == [len(WRONG), len(RIGHT)] and beta["truncated"] == [False, False]
    assert beta["arguments"]["gen_args_0"]["arg_0"].startswith("beta?\nPlease reason")
    assert lines[3]["mean@1"] == 0.0 and len(beta["doc_hash"]) == 64


def test_files_are_named_as_the_harness_names_them_and_read_back(measured, tmp_path):
    path = write_results(tmp_path / "out", "step-000030", *measured, SUBJECT)
    assert sorted(file.name for file in path.parent.iterdir()) == [
        "results_step-000030.json",
        "samples_math500_step-000030.jsonl",
    ]
    assert len((path.parent / "samples_math500_step-000030.jsonl").read_text().splitlines()) == 4
    (found,) = read_results(path.parent)
    assert (found.model, found.step, found.path) == ("org/name", 30, path)
    score = measured[0]["math500"].scores["mean@2", "sampled"]
    assert found.figures["math500"]["mean@2,sampled"] == Figure(score.value, score.low, score.high)
    write_results(tmp_path / "bare", "a", *measured, SUBJECT, samples=False)
    assert [file.name for file in (tmp_path / "bare").iterdir()] == ["results_a.json"]


def test_a_folder_is_read_by_steps_and_other_files_in_it_are_left_alone(measured, tmp_path):
    for step in (120, 30, 0):
        subject = Subject(model="m", engine="e", step=step)
        write_results(tmp_path / "run", f"step-{step:06d}", *measured, subject)
    (tmp_path / "run" / "summary.json").write_text("{}")
    assert [found.step for found in read_results(tmp_path / "run")] == [0, 30, 120]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"results": {"a": {', r"is no JSON.*cut off"),
        ("[]", "no result file of recipes/evaluate.py"),
        (
            '{"results": {"gsm8k": {"exact_match,strict-match": 0.5}}, "model_name": "m"}',
            "other harnesses are not read",
        ),
        ('{"results": {}, "intervals": {"gsm8k": {"mean@4,sampled": [0, 1]}}, "model_name": "m", "step": 0}', "gsm8k"),
        ('{"results": {}, "intervals": [], "model_name": "m", "step": 0}', "no result file"),
    ],
)
def test_a_file_that_is_none_of_these_is_an_error_that_names_it(tmp_path, text, message):
    path = tmp_path / "results_x.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"results_x.json.*{message}"):
        read_results(path)


def test_missing_file_and_empty_folder_are_named(tmp_path):
    with pytest.raises(ValueError, match="there is no file or folder '.*gone'"):
        read_results(tmp_path / "gone")
    with pytest.raises(ValueError, match=r"has no results\*.json"):
        read_results(tmp_path)


def test_model_names_become_folder_names():
    assert sanitized("Qwen/Qwen3-1.7B") == "Qwen__Qwen3-1.7B"
    assert "/" not in sanitized(str(Path("/a/b").resolve()))
