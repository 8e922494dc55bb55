# SPDX-License-Identifier: Apache-2.0
"""Every recipe from its command line: two steps of a tiny local policy, what they leave, what they refuse."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
import yaml
from trl import ModelConfig

from duet_trl import DUETGRPOConfig
from duet_trl.config import DECLARED
from duet_trl.mistakes import SHOW
from duet_trl.rewards import SandboxError
from tests.processes import forked, fresh

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "recipes"))

import code_qwen3  # noqa: E402
import math_qwen3  # noqa: E402
import pretrained  # noqa: E402
import qa_qwen3  # noqa: E402
from run import recipe_yaml, start  # noqa: E402
from script_arguments import GROUPS, OF_TRL, ScriptArguments, parse  # noqa: E402

SMOKE = ROOT / "recipes" / "configs" / "math_tiny_smoke.yaml"

MATH_ROWS = [{"problem": f"What is ${i} + {i}$?", "answer": str(2 * i)} for i in range(16)]
CODE_ROWS = [
    {
        "task_id": i,
        "text": f"Write a function that adds {i}.",
        "test_list": [f"assert add_{i}(1) == {i + 1}", f"assert add_{i}(0) == {i}"],
        "test_setup_code": "",
    }
    for i in range(16)
]
QA_ROWS = [{"question": f"What number follows {i}?", "correct_answer": str(i + 1)} for i in range(16)]
RECIPES = {
    "math_qwen3": (MATH_ROWS, "MathVerifier"),
    "code_qwen3": (CODE_ROWS, "code_reward"),
    "qa_qwen3": (QA_ROWS, "choice_reward"),
}
MARKERS = {"code_qwen3": "code", "qa_qwen3": "qa"}


def arguments(recipe: str, folder: Path, model: Path, *options: str) -> list[str]:
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in RECIPES[recipe][0]))
    command = ["--config", str(SMOKE), "--model_name_or_path", str(model)]
    command += ["--dataset_name", str(data), "--heldout", "none", "--output_dir", str(folder / "out")]
    return [*command, "--marker", MARKERS.get(recipe, "math"), *options]


def run(
    recipe: str, folder: Path, tiny_path: Path, *options: str, start: Callable = forked
) -> subprocess.CompletedProcess[str]:
    return start([f"recipes/{recipe}.py", *arguments(recipe, folder, tiny_path, *options)])


def history(folder: Path) -> list[dict]:
    state = json.loads((folder / "out" / "checkpoint-2" / "trainer_state.json").read_text())
    return [entry for entry in state["log_history"] if "loss" in entry]


@pytest.mark.parametrize(
    "recipe",
    ["math_qwen3", *(pytest.param(name, marks=pytest.mark.slow) for name in ("code_qwen3", "qa_qwen3"))],
)
def test_a_recipe_trains_with_its_own_reward_and_leaves_its_configuration(tiny_path, tmp_path, recipe):
    start = fresh if recipe == "math_qwen3" else forked  # one of them as users start it
    done = run(recipe, tmp_path, tiny_path, "--save_strategy", "steps", "--save_steps", "2", start=start)
    assert done.returncode == 0, done.stderr[-3000:]
    steps = history(tmp_path)
    assert [entry["step"] for entry in steps] == [1, 2]
    rewards = {name for entry in steps for name in entry if name.startswith("rewards/") and name.endswith("/mean")}
    assert rewards == {f"rewards/{RECIPES[recipe][1]}/mean"} or rewards == {"rewards/math_reward/mean"}
    for name in ("model.safetensors", "tokenizer.json", "duet_state.json", "README.md"):
        assert (tmp_path / "out" / name).exists(), name
    written = yaml.safe_load((tmp_path / "out" / "recipe.yaml").read_text())
    assert written["model_name_or_path"] == str(tiny_path)
    assert (written["max_steps"], written["num_generations"]) == (2, 4)


@pytest.mark.slow
def test_suites_are_measured_the_best_is_kept_and_a_push_that_fails_comes_after_saving(tiny_path, tmp_path):
    suite = tmp_path / "gsm8k.jsonl"
    rows = [{"question": f"What is {i} + {i}?", "answer": f"It is {2 * i}. #### {2 * i}"} for i in range(6)]
    suite.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ("--eval_suites", "gsm8k", "--eval_sources", f"gsm8k={suite}", "--eval_samples", "2")
    done = run("math_qwen3", tmp_path, tiny_path, *options, "--push_to_hub", "true", "--hub_model_id", "me/model")
    out = tmp_path / "out"
    assert done.returncode != 0
    assert f"the model is saved in {out} but was not pushed" in done.stderr, done.stderr[-3000:]
    for name in ("model.safetensors", "tokenizer.json", "duet_state.json", "README.md", "recipe.yaml"):
        assert (out / name).exists(), name
    best = json.loads((out / "best" / "evaluation.json").read_text())
    assert best["step"] == 2 and 0 <= best["held_out/gsm8k/mean@2"] <= 1
    assert (out / "best" / "model.safetensors").exists()
    card = (out / "README.md").read_text()
    (row,) = [line for line in card.splitlines() if line.startswith("| held_out/gsm8k/mean@2 |")]
    assert row.split("|")[3].strip() == f"{best['held_out/gsm8k/mean@2']:.4g}"
    assert "# Model Card for model\n" in card and (out / "recipe.yaml").read_text().strip() in card
    assert "datasets" not in yaml.safe_load(card.split("---")[1])  # the Hub refuses a path as the name of a data set


@pytest.mark.slow
def test_the_configuration_that_a_run_leaves_repeats_it(tiny_path, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    saving = ("--save_strategy", "steps", "--save_steps", "2", "--resume_from_checkpoint", "false")
    assert run("math_qwen3", first, tiny_path, *saving, "--learning_rate", "1e-3").returncode == 0
    again = ["recipes/math_qwen3.py", "--config", str(first / "out" / "recipe.yaml")]
    done = forked([*again, "--output_dir", str(second / "out")])
    assert done.returncode == 0, done.stderr[-3000:]
    assert [entry["loss"] for entry in history(second)] == [entry["loss"] for entry in history(first)]
    assert (second / "out" / "recipe.yaml").read_text() == (first / "out" / "recipe.yaml").read_text()
    # What the run was started with, and what `train` makes of dtype and revision, would win over a command line.
    kept = yaml.safe_load((second / "out" / "recipe.yaml").open()).keys()
    assert not {"resume_from_checkpoint", "model_init_kwargs"} & kept


def test_the_configuration_that_a_run_leaves_takes_other_micro_batches_and_keeps_what_was_chosen(tmp_path):
    def left(*options: str) -> str:
        path = tmp_path / "recipe.yaml"
        path.write_text(recipe_yaml(*parse(["--config", str(SMOKE), "--output_dir", str(tmp_path), *options])))
        return str(path)

    other = ["--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "4"]
    _, again, _ = parse(["--config", left(), "--output_dir", str(tmp_path), *other])
    assert (again.generation_batch_size, again.num_prompts, again.steps_per_generation) == (16, 4, 4)
    _, again, _ = parse(["--config", left("--steps_per_generation", "4", "--max_rollouts", "24")])
    assert (again.steps_per_generation, again.max_rollouts, again.gradient_accumulation_steps) == (4, 24, 2)


def test_the_command_line_has_the_last_word_and_a_misspelt_option_is_refused(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text("use_cpu: true\nbf16: false\nbeta: 0.2\ntemperature: 0.5\neval_suites: [gsm8k]\neval_samples: 2\n")
    arguments, config, _ = parse(["--config", str(path), "--temperature", "0.7", "--eval_samples", "3"])
    assert (config.beta, config.temperature) == (0.2, 0.7)
    assert (arguments.eval_suites, arguments.eval_samples) == (["gsm8k"], 3)
    assert parse(["--config", str(path), "--eval_suites", "none"])[0].eval_suites == []
    misspelt = "has '--temperatur', which is not an option. Did you mean 'temperature'?"
    with pytest.raises(ValueError, match=f"the command line {misspelt}"):
        parse(["--config", str(path), "--temperatur", "0.7"])
    path.write_text("temperatur: 0.7\n")
    with pytest.raises(ValueError, match=f"the file of --config {misspelt}"):
        parse(["--config", str(path), "--use_cpu", "true"])


def test_places_of_suites_are_told_apart_from_suites_that_are_not_measured():
    assert ScriptArguments(eval_suites=["mine"], eval_sources=["mine=a/b=c.jsonl"]).sources == {"mine": "a/b=c.jsonl"}
    for entry in ("math500", "math500=", "gsm8k=x.jsonl"):
        with pytest.raises(ValueError, match="eval_sources takes 'suite=place'"):
            ScriptArguments(eval_suites=["math500"], eval_sources=[entry]).sources  # noqa: B018


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--sandbox", "no_such_isolation"), "no_such_isolation"),
        (("--dataset_name", "absent.jsonl"), "there is no file 'absent.jsonl'"),
        (("--extra_eos_tokens", "<|no_token|>"), "is not a single token of the tokenizer"),
        (
            ("--model_name_or_path", "/no/such/model"),
            "the tokenizer of '/no/such/model' cannot be loaded.*hf auth login",
        ),
        (("--eval_suites", "gsm9k"), "unknown suite 'gsm9k'"),
        (("--eval_suites", "gsm8k", "--eval_sources", "gsm8k=absent.jsonl"), "there is no file 'absent.jsonl'"),
    ],
    ids=["sandbox", "data", "end-token", "model", "suite", "source"],
)
def test_what_is_wrong_is_said_before_a_model_is_loaded(tiny_path, tmp_path, options, message):
    hollow = tmp_path / "hollow"  # everything but weights
    hollow.mkdir()
    for path in tiny_path.iterdir():
        if path.suffix != ".safetensors":
            (hollow / path.name).write_bytes(path.read_bytes())
    command = arguments("code_qwen3", tmp_path, hollow, *options)
    with pytest.raises((ValueError, SandboxError), match=f"(?s){message}"):
        code_qwen3.main(*parse(command))


@pytest.mark.parametrize("recipe", [math_qwen3, code_qwen3, qa_qwen3, pretrained], ids=lambda module: module.__name__)
def test_help_has_the_options_of_this_package_in_groups_and_ends_with_a_command_that_runs(capsys, recipe):
    start(recipe.main, ["--config", "absent.yaml", "--help"])
    shown = capsys.readouterr().out
    headings = re.findall(r"^(\w.*):$", shown.split("Example:")[0], flags=re.M)
    assert headings == ["run", "data and evaluation", *GROUPS.values()]
    own = {*DECLARED} - {"filled_in"} | {one.name for one in fields(ScriptArguments)}
    options = re.findall(r"^  --(\w+)", shown, flags=re.M)
    assert sorted(options) == sorted(own | {*OF_TRL, "config"})
    words = shlex.split(shown.split("Example:")[1].replace("\\\n", ""), comments=True)
    begin = words.index(f"recipes/{recipe.__name__}.py")
    given = words[begin + 1 :] if recipe is not pretrained else pretrained.options(words[begin + 1 :])
    parse([*given, "--output_dir", "out", "--use_cpu", "true"])


def test_a_group_of_the_help_begins_with_its_own_field_and_an_option_has_its_default_there(capsys):
    start(math_qwen3.main, ["-h"])
    shown = " ".join(capsys.readouterr().out.split())
    for first, title in GROUPS.items():
        assert f"{title}: --{first} " in shown
    assert "share of the full budget, in (0, 1] (default: 0.5)" in shown  # of duet


def test_help_all_shows_every_option(capsys):
    with pytest.raises(SystemExit) as ended:
        start(math_qwen3.main, ["--help_all"])
    shown, code = capsys.readouterr().out, ended.value.code
    every = {one.name for kind in (ScriptArguments, DUETGRPOConfig, ModelConfig) for one in fields(kind) if one.init}
    assert code == 0 and every <= set(re.findall(r"^  --(\w+)", shown, flags=re.M))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--config",), "--config needs a YAML file"),
        (("--config", "absent.yaml"), "there is no file 'absent.yaml'"),
        (("--config", "{folder}/broken.yaml"), "broken.yaml is not YAML: mapping values are not allowed here"),
        (("--config", "{folder}/list.yaml"), "list.yaml must hold fields and their values, got list"),
        (("--temperature", "warm"), "argument --temperature: invalid float value: 'warm'"),
        (("--teach_ending", "no"), "teach_ending is an option of .'duet'.. Write method_kwargs="),
        (("stray",), "the command line has 'stray', which is not an option"),
        (("--keep_probability", "2"), r"keep_probability must be in \(0, 1\].* got 2.0"),
        (("--num_generations", "5"), "must be divisible by num_generations .5."),
        (("--model_name_or_path", "/no/such/model"), "the tokenizer of '/no/such/model' cannot be loaded.*folder"),
        (("--dataset_name", "absent.jsonl"), "there is no file 'absent.jsonl'"),
        (("--resume_from_checkpoint", "true"), "there is no checkpoint in '.*out'"),
        (("--resume_from_checkpoint", "absent"), "there is no checkpoint in 'absent'"),
        (("--report_to", "no_tracker"), "report_to names .'no_tracker'., not installed"),
    ],
    ids=lambda value: value[-1].rpartition("/")[-1] if isinstance(value, tuple) else "",
)
def test_a_mistake_ends_a_recipe_with_one_line(tiny_path, tmp_path, capsys, options, message):
    (tmp_path / "broken.yaml").write_text("beta: 0.1: 0.2\n")
    (tmp_path / "list.yaml").write_text("- beta\n")
    given = [word.format(folder=tmp_path) for word in options]
    command = given if "--config" in given else [*arguments("math_qwen3", tmp_path, tiny_path), *given]
    with pytest.raises(SystemExit, match=f"^error: .*{message}") as ended:
        start(math_qwen3.main, command)
    assert "\n" not in str(ended.value)


def test_the_traceback_of_a_mistake_is_shown_on_demand(monkeypatch):
    monkeypatch.setenv(SHOW, "1")
    with pytest.raises(ValueError, match="there is no file 'absent.yaml'"):
        start(math_qwen3.main, ["--config", "absent.yaml"])


def test_an_error_that_is_not_of_the_input_keeps_its_traceback(tmp_path):
    def with_a_bug(*given: object) -> Callable[[], object]:
        return {}["absent"]

    def failing_in_training(*given: object) -> Callable[[], object]:
        return lambda: int("no number")

    command = ["--config", str(SMOKE), "--output_dir", str(tmp_path)]
    with pytest.raises(KeyError):
        start(with_a_bug, command)
    with pytest.raises(ValueError, match="no number"):
        start(failing_in_training, command)
