# SPDX-License-Identifier: Apache-2.0
"""Result files: the layout of lm-evaluation-harness as written, and files of three harnesses as read."""

import json
from pathlib import Path

import pytest

from duet_trl.evaluation.ends import eos_token_ids
from duet_trl.evaluation.measure import Settings, build_graders, measure
from duet_trl.evaluation.reading import Figure, parse_results, read_results, suite_of
from duet_trl.evaluation.results import Subject, results_payload, sample_lines, sanitized, write_results
from duet_trl.evaluation.suites import load_suite, suite_checksum
from tests.evaluation.policy import TOKENIZER, Scripted, ids, write_jsonl

RIGHT, WRONG = ids(r"\boxed{42}"), ids(r"\boxed{41}")
SUBJECT = Subject(model="org/name", engine="transformers", step=30, limit=None, chat_template="T", eos_ids=(3, 4))
SETTINGS = Settings(num_samples=2, max_tokens=20)

# As lm-evaluation-harness writes it: one task, two filters, a group, a figure without an error, a version.
LM_EVAL = {
    "results": {
        "gsm8k": {
            "alias": "gsm8k",
            "exact_match,strict-match": 0.62,
            "exact_match_stderr,strict-match": 0.01,
            "exact_match,flexible-extract": 0.65,
            "exact_match_stderr,flexible-extract": "N/A",
            "sample_len": 1319,
        },
        "leaderboard": {" ": " ", "alias": "leaderboard"},
        "gpqa_diamond_cot_zeroshot": {"alias": "gpqa", "acc_norm,none": 0.25, "acc_norm_stderr,none": 0.03},
        "triviaqa": {"alias": "triviaqa", "exact_match,none": 0.4},
    },
    "configs": {"gsm8k": {"task": "gsm8k"}},
    "versions": {"gsm8k": 3.0},
    "n-shot": {"gsm8k": 5},
    "config": {"model": "hf", "model_args": "dtype=auto,pretrained=Qwen/Qwen3-1.7B-Base,revision=main"},
    "git_hash": "abc",
}
LIGHTEVAL = {
    "config_general": {"lighteval_sha": "abc", "model_name": "Qwen/Qwen2.5-1.5B-Instruct"},
    "results": {
        "lighteval|math_500|0": {"extractive_match": 0.5, "extractive_match_stderr": 0.02},
        "lighteval|gpqa:diamond|0": {"extractive_match": 0.25},
        "all": {"extractive_match": 0.375, "extractive_match_stderr": 0.01},
    },
    "versions": {"lighteval|math_500|0": 1},
}


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
    assert (found.model, found.origin, found.step, found.path) == ("org/name", "duet", 30, path)
    score = measured[0]["math500"].headline
    assert found.figures["math500"]["mean@2,sampled"] == Figure(score.value, score.low, score.high)
    write_results(tmp_path / "bare", "a", *measured, SUBJECT, samples=False)
    assert [file.name for file in (tmp_path / "bare").iterdir()] == ["results_a.json"]


def test_file_of_lm_eval_gives_its_figures_with_normal_intervals():
    found = parse_results(LM_EVAL)
    assert (found.model, found.origin, found.step) == ("Qwen/Qwen3-1.7B-Base", "lm-eval", None)
    assert found.figures.keys() == {"gsm8k", "gpqa_diamond", "triviaqa"}
    assert found.figures["gsm8k"].keys() == {"exact_match,strict-match", "exact_match,flexible-extract"}
    strict = found.figures["gsm8k"]["exact_match,strict-match"]
    assert (strict.value, strict.low, strict.high) == pytest.approx((0.62, 0.6004, 0.6396))
    assert found.figures["gsm8k"]["exact_match,flexible-extract"] == Figure(0.65)
    assert found.figures["triviaqa"]["exact_match,none"] == Figure(0.4)


def test_file_of_lighteval_gives_its_figures_without_the_total():
    found = parse_results(LIGHTEVAL)
    assert (found.model, found.origin) == ("Qwen/Qwen2.5-1.5B-Instruct", "lighteval")
    assert found.figures.keys() == {"math500", "gpqa_diamond"}
    assert found.figures["math500"]["extractive_match"].low == pytest.approx(0.5 - 1.96 * 0.02)
    newer = LIGHTEVAL | {"config_general": {"model_config": {"model_name": "org/other"}}}
    assert parse_results(newer).model == "org/other"


@pytest.mark.parametrize(
    ("task", "suite"),
    [
        ("math500", "math500"),
        ("hendrycks_math500", "math500"),
        ("lighteval|math_500|0", "math500"),
        ("math_500|0", "math500"),
        ("lighteval|aime24|0", "aime2024"),
        ("aime24", "aime2024"),
        ("aime25", "aime25"),
        ("humaneval_instruct", "humaneval"),
        ("humaneval_plus", "humaneval_plus"),
        ("gsm8k_platinum", "gsm8k_platinum"),
        ("lighteval|gpqa:diamond|0", "gpqa_diamond"),
        ("gpqa_main_zeroshot", "gpqa_main_zeroshot"),
    ],
)
def test_task_names_of_other_harnesses_map_to_the_same_benchmark_only(task, suite):
    assert suite_of(task) == suite


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
        ("[]", "no 'results'"),
        ('{"results": {"gsm8k": 0.5}}', "no 'results'"),
        ('{"results": {"gsm8k": {"alias": "gsm8k"}}}', "hold no figures"),
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
