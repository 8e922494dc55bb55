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

from duet_trl.evaluation.results import Figure, Results, read_results
from tests.scripts import forked
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


def result_file(path: Path, figures: dict, model: str = "m", step: int | None = None) -> Path:
    """A result file whose intervals have no width."""
    intervals = {suite: {name: [value, value] for name, value in table.items()} for suite, table in figures.items()}
    path.write_text(json.dumps({"results": figures, "intervals": intervals, "model_name": model, "step": step}))
    return path


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
    (path,) = (tmp_path / "out").rglob("results_*.json")
    payload = json.loads(path.read_text())
    suites = [*FILES, "gpqa_diamond"]
    assert sorted(payload["results"]) == sorted(suites)
    for suite in suites:
        table, intervals = payload["results"][suite], payload["intervals"][suite]
        assert {"mean@4,sampled", "best@4,sampled", "mean@1,greedy", "truncated,sampled"} <= table.keys()
        assert intervals["mean@4,sampled"][0] <= table["mean@4,sampled"] <= intervals["mean@4,sampled"][1]
        assert payload["n-samples"][suite]["effective"] == 3
        (lines,) = path.parent.glob(f"samples_{suite}_*.jsonl")
        sampled = [json.loads(line) for line in lines.read_text().splitlines()]
        assert [len(line["resps"][0]) for line in sampled] == [4, 1] * 3
        means = [line["mean@4"] for line in sampled if line["filter"] == "sampled"]
        assert sum(means) / 3 == pytest.approx(table["mean@4,sampled"])
    assert payload["configs"]["humaneval"]["metadata"]["sandbox"] in ("bubblewrap", "landlock")
    assert payload["configs"]["math500"]["metadata"]["sandbox"] is None
    assert payload["configs"]["gsm8k"]["dataset_path"] == str(DATA / FILES["gsm8k"])
    tokenizer = AutoTokenizer.from_pretrained(tiny_path)
    assert payload["eos_token_ids"] == tokenizer.convert_tokens_to_ids([EOS, END_OF_TURN])
    assert "| model | metric | MATH-500 | GSM8K | AIME-2024 | HumanEval | GPQA-Diamond | mean of suites |" in printed
    assert (tmp_path / "out" / "table.md").read_text().strip() in printed


@pytest.mark.slow
def test_checkpoints_shift_and_earlier_files_share_a_table(tiny_path, tmp_path, gsm):
    run_folder = tmp_path / "run"
    for step in (100, 30):
        shutil.copytree(tiny_path, run_folder / f"checkpoint-{step}")
    other = result_file(tmp_path / "results_other.json", {"gsm8k": {"mean@2,sampled": 0.625}}, "org/other")
    figures = {"mean@2,sampled": 0.5, "best@2,sampled": 0.5, "mean@1,greedy": 0.5}
    reference = result_file(tmp_path / "results_reference.json", {"gsm8k": figures}, "ref")
    printed = run("--model", tiny_path, run_folder, "--engine", "transformers", "--suites", "gsm8k", "--samples", 2,
                  "--sources", f"gsm8k={gsm}", "--max_tokens", 40, "--output_dir", tmp_path / "out", "--beside", other,
                  "--shift_to", reference)  # fmt: skip
    found = {results.step: results for results in read_results(tmp_path / "out")}
    assert set(found) == {None, 30, 100}
    rows = json.loads((tmp_path / "out" / "table.json").read_text())["rows"]
    headlines = {row[0]: row for row in rows if row[1] == "mean@2 (sampled)"}
    names = [name.replace(str(tmp_path), "") for name in headlines]
    assert names[2:4] == ["/run/checkpoint-30, step 30", "/run/checkpoint-100, step 100"]
    assert names[4] == "best of each suite" and names[5].startswith("best: ") and names[6].startswith("last: ")
    assert names[6].endswith("checkpoint-100, step 100")
    assert rows[0] == ["org/other", "mean@2 (sampled)", "62.5 [62.5, 62.5]", "50.0"]
    begun, last = (found[step].figures["gsm8k"]["mean@2,sampled"].value for step in (None, 100))
    assert headlines[str(tiny_path)][3] == "50.0"  # step 0 becomes the reference
    assert float(list(headlines.values())[-1][3]) == pytest.approx(100 * (last - (begun - 0.5)), abs=0.051)
    assert "selects on the test set" in printed and "baseline correction" in printed


@pytest.mark.slow
@pytest.mark.vllm
def test_two_models_one_after_the_other_on_vllm(tiny_path, tmp_path, gsm):
    other = shutil.copytree(tiny_path, tmp_path / "checkpoint-7")
    run("--model", tiny_path, other, "--suites", "gsm8k", "--sources", f"gsm8k={gsm}", "--max_tokens", 60,
        "--output_dir", tmp_path / "out", "--samples", 8)  # fmt: skip
    first, second = read_results(tmp_path / "out")
    assert [first.step, second.step] == [7, None] and first.figures["gsm8k"].keys() == second.figures["gsm8k"].keys()
    greedy = [results.figures["gsm8k"]["mean_length,greedy"].value for results in (first, second)]
    assert greedy[0] == greedy[1] > 1  # equal weights


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


@pytest.mark.slow
@pytest.mark.vllm
def test_server_ends_at_every_eos_and_is_checked_beforehand(server, tiny_path, tmp_path, gsm, monkeypatch, capsys):
    options = ["--engine", "server", "--server", server.url, "--suites", "gsm8k", "--sources", f"gsm8k={gsm}"]
    options += ["--output_dir", tmp_path / "out", "--samples", 2]
    monkeypatch.delenv("DUET_SERVER_TOKEN", raising=False)
    assert "Set DUET_SERVER_TOKEN" in refused(capsys, "--model", tiny_path, *options)
    monkeypatch.setenv("DUET_SERVER_TOKEN", server.token)
    stranger = shutil.copytree(tiny_path, tmp_path / "stranger")
    assert "serves [" in refused(capsys, "--model", stranger, *options)
    assert "a server serves one model, got 2" in refused(capsys, "--model", tiny_path, stranger, *options)
    message = refused(capsys, "--model", tiny_path, *options, "--max_tokens", 500)
    assert "--max_tokens must be in 1.." in message and "256 tokens in this engine" in message
    evaluate.main([*map(str, ["--model", tiny_path, *options])])
    (found,) = read_results(tmp_path / "out")
    assert found.figures["gsm8k"]["mean_length,sampled"].value > 1
    model = samplers.describe_model(str(tiny_path))
    counts, _ = ends(samplers.ServerSampler(model, server.url), model.eos_ids)
    assert min(counts) >= 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--suites", "gsm8k,mmlu"), "unknown suite 'mmlu'. Choose one of math500, gsm8k"),
        (("--suites", "gsm8k", "--sources", "gsm8k=/no/such.jsonl"), "there is no file '/no/such.jsonl'"),
        (("--suites", "gsm8k", "--sources", "math500=x.jsonl"), "--sources takes suite=place for a suite of --suites"),
        (("--suites", "gsm8k", "--sources", "gsm8k"), "got 'gsm8k'"),
        (("--suites", "humaneval", "--sandbox", "castle"), "castle"),
        (("--suites", "gsm8k", "--engine", "server", "--server", "http://127.0.0.1:9"), "no vLLM server answers"),
        (("--suites", "gsm8k", "--max_tokens", "5000"), "--max_tokens must be in 1.."),
        (("--suites", ","), "--suites ',' names no suite. Choose from math500, gsm8k"),
        (("--suites", "gsm8k", "--batch_size", "0"), "--batch_size must be at least 1, got 0"),
        (("--suites", "gsm8k", "--samples", "0"), "num_samples must be at least 1, got 0"),
        (("--suites", "gsm8k", "--temperature", "0"), "temperature must be positive"),
        (("--suites", "gsm8k", "--limit", "0"), "--limit must be at least 1"),
        (("--suites", "gsm8k", "--beside", "/no/such.json"), "there is no file or folder '/no/such.json'"),
        (("--suites", "gsm8k", "--shift_to", "/no/such.json"), "there is no file or folder '/no/such.json'"),
        (("--suites", "gsm8k", "--step0", "/no/such.json"), "--step0 belongs to --shift_to"),
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
    assert "nothing to do: give --model" in refused(capsys)


def test_a_shift_without_what_it_needs_is_refused(tiny_path, tmp_path, gsm, capsys):
    checkpoint = shutil.copytree(tiny_path, tmp_path / "checkpoint-30")
    reference = result_file(tmp_path / "results_r.json", {"gsm8k": {"mean@4,sampled": 0.5}})
    options = ("--suites", "gsm8k", "--sources", f"gsm8k={gsm}", "--shift_to", reference)
    assert "--shift_to needs step 0 of the run itself" in refused(capsys, "--model", checkpoint, *options)
    message = refused(capsys, "--model", tiny_path, *options, "--samples", 2)
    assert "has no mean@2,sampled of gsm8k" in message


def test_result_files_alone_make_a_table_and_a_record_ends_with_best_and_last(tmp_path, capsys):
    folder = tmp_path / "evaluations"
    folder.mkdir()
    for step, value in ((0, 0.2), (30, 0.6), (60, 0.4)):
        table = {"gsm8k": {"mean@4,sampled": value}, "math500": {"mean@4,sampled": 0.1}}
        result_file(folder / f"results_step-{step:06d}.json", table, step=step)
    shifted = ("--shift_to", str(folder / "results_step-000000.json"))
    evaluate.main(["--beside", str(folder), "--output_dir", str(tmp_path / "out"), *shifted])
    rows = json.loads((tmp_path / "out" / "table.json").read_text())["rows"]
    assert [row[0] for row in rows[3:]] == ["best of each suite", "best: m, step 30", "last: m, step 60"]
    values = ["20.0", "60.0", "40.0", "60.0", "60.0", "40.0"]
    assert [row[4] for row in rows] == [f"{value} [{value}, {value}]" for value in values]
    assert [row[5] for row in rows] == values  # shifted to its own step 0: by nothing
    assert "| best: m, step 30 | mean@4 (sampled) |" in capsys.readouterr().out


def headline(model: str, step: int | None, value: float) -> Results:
    return Results(model, step, {"gsm8k": {"mean@4,sampled": Figure(value)}})


def shown(tmp_path, measured, **options) -> list[tuple[str, ...]]:
    """Model, value and, of a shift, the shifted value of each row."""
    options = {"step0": None, "reference": None} | options
    evaluation_run.print_table(tmp_path / "out", [], measured, **options)
    rows = json.loads((tmp_path / "out" / "table.json").read_text())["rows"]
    return [(row[0], *row[2:]) for row in rows]


def test_each_of_several_runs_has_its_own_best_and_last(tmp_path):
    base = headline("base", None, 0.9)
    runs = [headline(f"{run}/checkpoint-{step}", step, value) for run, step, value in
            (("a", 30, 0.3), ("a", 60, 0.2), ("b", 30, 0.5), ("b", 60, 0.4))]  # fmt: skip
    # base - reference = 0.1, which is taken off every row of both runs
    rows = shown(tmp_path, [base, *runs], reference=headline("common", None, 0.8))
    assert rows == [
        ("base", "90.0", "80.0"),
        ("a/checkpoint-30, step 30", "30.0", "20.0"),
        ("a/checkpoint-60, step 60", "20.0", "10.0"),
        ("best of each suite", "30.0", "20.0"),
        ("best: a/checkpoint-30, step 30", "30.0", "20.0"),
        ("last: a/checkpoint-60, step 60", "20.0", "10.0"),
        ("b/checkpoint-30, step 30", "50.0", "40.0"),
        ("b/checkpoint-60, step 60", "40.0", "30.0"),
        ("best of each suite", "50.0", "40.0"),
        ("best: b/checkpoint-30, step 30", "50.0", "40.0"),
        ("last: b/checkpoint-60, step 60", "40.0", "30.0"),
    ]


def test_models_that_are_no_run_are_not_selected_from(tmp_path):
    rows = shown(tmp_path, [headline("grpo", None, 0.5), headline("duet", None, 0.6)])
    assert rows == [("grpo", "50.0"), ("duet", "60.0")]


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
    longest = max(len(model.prompt_ids(prompt)) for prompt in suites.problems["gsm8k"]["prompt"])
    lengths = evaluation_run.check_lengths(model, suites, None)
    assert lengths == evaluation_run.Lengths(model.context - longest, model.context)
    assert "less than the paper's 3072" in capsys.readouterr().out
    assert evaluation_run.check_lengths(model, suites, 8) == evaluation_run.Lengths(8, longest + 8)
    model.context = 10_000
    assert evaluation_run.check_lengths(model, suites, None).max_tokens == 3072
    with pytest.raises(ValueError, match="larger --max-model-len"):
        evaluation_run.check_lengths(model, suites, None, context=longest)


def test_steps_are_read_from_names_states_and_kept_measurements(tmp_path):
    for name, file, content in (
        ("checkpoint-90", None, None),
        ("final", "trainer_state.json", {"global_step": 232}),
        ("best", "evaluation.json", {"step": 60}),
        ("base", None, None),
    ):
        (tmp_path / name).mkdir()
        if file:
            (tmp_path / name / file).write_text(json.dumps(content))
    steps = [evaluation_run.step_of(str(tmp_path / name)) for name in ("checkpoint-90", "final", "best", "base")]
    assert steps == [90, 232, 60, None] and evaluation_run.step_of("Qwen/Qwen3-1.7B-Base") is None


def test_template_arguments_reach_the_prompt_and_precision_is_that_of_the_checkpoint(tiny_path):
    tokenizer = AutoTokenizer.from_pretrained(tiny_path)
    model = samplers.describe_model(str(tiny_path), template_kwargs={"date_string": "26 Jul 2024"})
    model.tokenizer.chat_template = "{{ date_string }}" + tokenizer.chat_template
    ids = model.prompt_ids([{"role": "user", "content": "Q"}])
    assert model.tokenizer.decode(ids) == "26 Jul 2024<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n"
    assert model.dtype == str(torch.float32).removeprefix("torch.")
