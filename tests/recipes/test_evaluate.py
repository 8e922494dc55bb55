# SPDX-License-Identifier: Apache-2.0
"""recipes/evaluate.py from the command line to the table, on a tiny model in every engine, and its refusals."""

import json
import shutil
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from tests.processes import forked
from tests.tiny import END_OF_TURN, EOS

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data"
FILES = {"math500": "math500_test.jsonl", "gsm8k": "gsm8k_test.jsonl", "aime2024": "aime2024_test.jsonl"}
FILES["humaneval"] = "humaneval_test.jsonl"

# recipes/ is a folder of scripts that import each other by bare name.
sys.path.insert(0, str(ROOT / "recipes"))
try:
    import evaluate
    import evaluation_run
    import samplers
finally:
    sys.path.remove(str(ROOT / "recipes"))

SHORT = [{"question": f"Say {number}", "answer": f"#### {number}"} for number in (2, 4, 42, 24)]
GPQA = [
    {"Record ID": f"r{number}", "Question": f"Which {number}?", "Correct Answer": "x", "Subdomain": "Genetics"}
    | {f"Incorrect Answer {place}": f"w{place}" for place in (1, 2, 3)}
    for number in range(3)
]


@pytest.fixture
def gsm(tmp_path):
    return write(tmp_path / "gsm.jsonl", SHORT)


@pytest.fixture
def base_model(tiny_path, tmp_path):
    """A base model: it declares its end of text only, the end of turn stands in the chat template alone."""
    folder = shutil.copytree(tiny_path, tmp_path / "base")
    end_of_text = AutoTokenizer.from_pretrained(folder).eos_token_id
    GenerationConfig(eos_token_id=end_of_text, do_sample=True, top_k=1, repetition_penalty=9.0).save_pretrained(folder)
    return folder


def write(path: Path, rows: list[dict]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def result_file(folder: Path, model: str, figures: dict[str, float], suite: str = "gsm8k") -> None:
    """The measurement of a model on one suite, whose intervals have no width."""
    path = folder / evaluation_run.folder_name(model) / f"{suite}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    scores = {name: {"value": value, "low": value, "high": value} for name, value in figures.items()}
    path.write_text(json.dumps({"model": model, "suite": suite, "figures": scores}))


def results(folder: Path) -> dict[tuple[str, str], dict]:
    """What a folder of results holds, by model and suite."""
    found = [json.loads(path.read_text()) for path in folder.glob("*/*.json")]
    return {(one["model"], one["suite"]): one for one in found}


def run(*arguments) -> str:
    """The script in a process of its own; what it prints."""
    done = forked(["recipes/evaluate.py", *map(str, arguments)])
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def refused(capsys, *arguments) -> str:
    """Why the script ends before it loads a model."""
    with pytest.raises(SystemExit) as ended:
        evaluate.main([*map(str, arguments)])
    assert "MATH" not in capsys.readouterr().out  # nothing was measured
    return str(ended.value)


def needs(*names):
    missing = [FILES[name] for name in names if not (DATA / FILES[name]).exists()]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)} in ../shared/data")


@pytest.mark.slow
@needs(*FILES)
def test_real_suites_end_to_end_on_transformers(tiny_path, tmp_path):
    sources = [f"{name}={DATA / file}" for name, file in FILES.items()]
    sources.append(f"gpqa_diamond={write(tmp_path / 'gpqa.jsonl', GPQA)}")
    printed = run("--model", tiny_path, "--engine", "transformers", "--sources", *sources, "--limit", 3,
                  "--max_tokens", 40, "--output_dir", tmp_path / "out")  # fmt: skip
    found = results(tmp_path / "out")
    assert sorted(suite for _, suite in found) == sorted([*FILES, "gpqa_diamond"])
    for (model, suite), payload in found.items():
        figures = payload["figures"]
        assert list(figures) == ["mean@4", "best@4", "truncated", "mean_length", "greedy"]
        assert figures["mean@4"]["low"] <= figures["mean@4"]["value"] <= figures["mean@4"]["high"]
        lines = (tmp_path / "out" / evaluation_run.folder_name(model) / f"{suite}.jsonl").read_text().splitlines()
        sampled = [json.loads(line) for line in lines]
        assert (
            [len(line["completions"]) for line in sampled] == [4, 1] * 3 == [len(line["lengths"]) for line in sampled]
        )
        correct = [line["correct"] for line in sampled if line["decoding"] == "sampled"]
        assert sum(map(sum, correct)) / 12 == pytest.approx(figures["mean@4"]["value"])
        assert (payload["sandbox"] in ("bubblewrap", "landlock")) == (suite == "humaneval")
        tokenizer = AutoTokenizer.from_pretrained(tiny_path)
        assert payload["eos_token_ids"] == tokenizer.convert_tokens_to_ids([EOS, END_OF_TURN])
        assert payload["arguments"]["sources"] == sources and payload["arguments"]["max_tokens"] == 40
    assert "| model | figure | MATH-500 | GSM8K | AIME-2024 | HumanEval | GPQA-Diamond |" in printed
    assert (tmp_path / "out" / "table.md").read_text().strip() in printed


@pytest.mark.slow
@pytest.mark.vllm
def test_two_models_one_after_the_other_on_vllm(tiny_path, tmp_path, gsm):
    other = shutil.copytree(tiny_path, tmp_path / "checkpoint-7")
    run("--model", tiny_path, other, "--suites", "gsm8k", "--sources", f"gsm8k={gsm}", "--max_tokens", 60,
        "--output_dir", tmp_path / "out", "--samples", 8)  # fmt: skip
    found = results(tmp_path / "out")
    greedy = [found[str(model), "gsm8k"]["figures"]["greedy"] for model in (tiny_path, other)]
    assert len(found) == 2 and greedy[0] == greedy[1]  # equal weights


def ends(sampler, eos_ids):
    """Sampled completions that end in each id; checks that an end is the last token of its completion."""
    prompts = [[{"role": "user", "content": f"Say {number}"}] for number in range(8)]
    samples = sampler.sample(prompts, 8, temperature=0.9, top_p=1.0, max_tokens=120)
    assert [len(row) for row in samples] == [8] * 8
    flat = [ids for row in samples for ids in row]
    assert len({tuple(ids) for ids in flat}) > 56  # a top-k of 1 from the model's own configuration is not used
    assert all(not set(ids[:-1]) & set(eos_ids) for ids in flat)
    greedy = sampler.sample(prompts, 2, temperature=0.0, max_tokens=20)
    assert all(row[0] == row[1] and len(row[0]) <= 20 for row in greedy)
    return [sum(ids[-1] == end for ids in flat) for end in eos_ids], greedy


def test_transformers_ends_at_every_eos_of_a_base_model(base_model):
    model = samplers.describe_model(str(base_model))
    sampler = samplers.TransformersSampler(model, batch_size=48)
    counts, greedy = ends(sampler, model.eos_ids)
    assert len(counts) == 2 and min(counts) >= 2
    assert sampler.network.generation_config.eos_token_id == list(model.eos_ids)  # cut there only, it would run on
    sampler.close()


def test_greedy_completions_do_not_depend_on_what_else_is_in_the_batch(tiny_path, tmp_path):
    folder = shutil.copytree(tiny_path, tmp_path / "random")
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(folder, initializer_range=0.6)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)  # its next token depends on all before it
    model = samplers.describe_model(str(folder))
    prompts = [[{"role": "user", "content": f"Say {number}{' again' * number}"}] for number in range(6)]
    together, alone = (
        samplers.TransformersSampler(model, batch_size=size).sample(prompts, 1, temperature=0.0, max_tokens=20)
        for size in (6, 1)
    )
    assert together == alone
    assert len({tuple(row[0]) for row in alone}) == 6


@pytest.mark.slow
@pytest.mark.vllm
def test_vllm_ends_at_every_eos_of_a_base_model_and_agrees_with_transformers(base_model):
    model = samplers.describe_model(str(base_model))
    args = Namespace(engine="vllm", gpu_memory_utilization=0.1, tensor_parallel_size=1, seed=3)
    sampler = samplers.build_sampler(args, model, max_model_len=256)
    counts, greedy = ends(sampler, model.eos_ids)
    sampler.close()
    assert len(counts) == 2 and min(counts) >= 2
    assert greedy == ends(samplers.TransformersSampler(model), model.eos_ids)[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--suites", "gsm8k,mmlu"), "unknown suite 'mmlu'. Choose one of math500, gsm8k"),
        (("--suites", "gsm8k", "--sources", "gsm8k=/no/such.jsonl"), "there is no file '/no/such.jsonl'"),
        (("--suites", "gsm8k", "--sources", "math500=x.jsonl"), "takes suite=place, once for a suite of --suites"),
        (("--suites", "gsm8k", "--sources", "gsm8k"), "got ['gsm8k']"),
        (("--suites", "humaneval", "--sandbox", "castle"), "castle"),
        (("--suites", "gsm8k", "--max_tokens", "5000"), "--max_tokens must be in 1.."),
        (("--suites", ","), "--suites names no suite. Choose from math500, gsm8k"),
        (("--suites", "gsm8k", "--batch_size", "0"), "--batch_size must be at least 1, got 0"),
        (("--suites", "gsm8k", "--samples", "0"), "num_samples must be at least 1, got 0"),
        (("--suites", "gsm8k", "--temperature", "0"), "temperature must be positive"),
        (("--suites", "gsm8k", "--limit", "0"), "--limit must be at least 1"),
    ],
)
def test_mistakes_end_the_script_before_a_model_is_loaded(tiny_path, gsm, capsys, arguments, message):
    if "--sources" not in arguments and "humaneval" not in arguments:
        arguments = (*arguments, "--sources", f"gsm8k={gsm}")
    assert message in refused(capsys, "--model", tiny_path, *arguments)


def test_a_model_that_cannot_be_measured_is_refused(tiny_path, tmp_path, gsm, capsys):
    options = ("--suites", "gsm8k", "--sources", f"gsm8k={gsm}")
    assert "there is no folder '/no/such/model'" in refused(capsys, "--model", "/no/such/model", *options)
    (tmp_path / "empty").mkdir()
    assert "holds no model (no config.json)" in refused(capsys, "--model", tmp_path / "empty", *options)
    (tmp_path / "empty" / "adapter_config.json").write_text("{}")
    assert "only a PEFT adapter: merge it first" in refused(capsys, "--model", tmp_path / "empty", *options)
    bare = shutil.copytree(tiny_path, tmp_path / "bare")
    (bare / "chat_template.jinja").unlink()
    assert "has no chat template" in refused(capsys, "--model", bare, *options)
    message = refused(capsys, "--model", "Qwen/Qwen3-1.7B-Base", *options)  # offline here
    assert "the model 'Qwen/Qwen3-1.7B-Base' cannot be loaded" in message and "hf auth login" in message
    assert "nothing to do" in refused(capsys, "--output_dir", tmp_path / "none")


def test_the_table_holds_everything_measured_and_the_best_of_each_suite_behind_a_run(tmp_path, capsys):
    result_file(tmp_path, "base", {"mean@4": 0.9, "mean_length": 1234.56})
    result_file(tmp_path, "base", {"mean@4": 0.25}, suite="mine")
    for step, gsm8k, math500 in ((100, 0.4, 0.3), (30, 0.6, 0.1)):
        result_file(tmp_path, f"a/checkpoint-{step}", {"mean@4": gsm8k, "greedy": 0.5})
        result_file(tmp_path, f"a/checkpoint-{step}", {"mean@4": math500}, suite="math500")
    evaluate.main(["--output_dir", str(tmp_path)])
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["model", "figure", "MATH-500", "GSM8K", "mine"]
    assert lines[2:9] == [
        ["a/checkpoint-30", "mean@4", "10.0 [10.0, 10.0]", "60.0 [60.0, 60.0]", "-"],
        ["a/checkpoint-30", "greedy", "-", "50.0 [50.0, 50.0]", "-"],
        ["a/checkpoint-100", "mean@4", "30.0 [30.0, 30.0]", "40.0 [40.0, 40.0]", "-"],
        ["a/checkpoint-100", "greedy", "-", "50.0 [50.0, 50.0]", "-"],
        ["a, best of each suite", "mean@4", "30.0 [30.0, 30.0]", "60.0 [60.0, 60.0]", "-"],
        ["base", "mean@4", "-", "90.0 [90.0, 90.0]", "25.0 [25.0, 25.0]"],
        ["base", "mean_length", "-", "1,234.6 [1,234.6, 1,234.6]", "-"],
    ]


def test_a_finished_runs_folder_stands_for_its_checkpoints(tmp_path):
    run = tmp_path / "run"
    for name in ("checkpoint-100", "checkpoint-30", "best"):
        (run / name).mkdir(parents=True)
    expected = [str(run / "checkpoint-30"), str(run / "checkpoint-100")]
    assert evaluation_run.expand_models([str(run)]) == expected
    (run / "config.json").write_text("{}")  # the model that a run leaves is the last checkpoint again
    assert evaluation_run.expand_models(["base", str(run)]) == ["base", *expected]
    assert evaluation_run.expand_models([str(run / "best"), "org/name"]) == [str(run / "best"), "org/name"]


def test_completions_get_what_the_context_leaves_of_the_papers_length(tiny_path, gsm, capsys):
    model = samplers.describe_model(str(tiny_path))
    suites = evaluation_run.load_suites(["gsm8k"], [f"gsm8k={gsm}"], None)
    longest = max(len(model.prompt_ids(prompt)) for prompt in suites["gsm8k"]["prompt"])
    left = model.context - longest
    assert evaluation_run.completion_length(model, suites, None) == (left, model.context)
    assert f"end at {left} tokens, the paper's at 3072" in capsys.readouterr().out
    assert evaluation_run.completion_length(model, suites, 8) == (8, longest + 8)
    model.context = 10_000
    assert evaluation_run.completion_length(model, suites, None) == (3072, longest + 3072)
    model.context = longest
    with pytest.raises(ValueError, match=rf"must be in 1..0, got 0: .* sequences of {longest} tokens"):
        evaluation_run.completion_length(model, suites, None)


def test_template_arguments_reach_the_prompt_and_precision_is_that_of_the_checkpoint(tiny_path):
    tokenizer = AutoTokenizer.from_pretrained(tiny_path)
    model = samplers.describe_model(str(tiny_path), template_kwargs={"date_string": "26 Jul 2024"})
    model.tokenizer.chat_template = "{{ date_string }}" + tokenizer.chat_template
    ids = model.prompt_ids([{"role": "user", "content": "Q"}])
    assert model.tokenizer.decode(ids) == "26 Jul 2024<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n"
    assert model.dtype == str(torch.float32).removeprefix("torch.")
