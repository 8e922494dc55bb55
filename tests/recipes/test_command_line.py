# SPDX-License-Identifier: Apache-2.0
"""Configurations that build on each other, and a batch that is the same on any number of processes."""

import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "recipes"))

import torch  # noqa: E402
from command_line import RecipeArguments, RecipeConfig, accumulation_steps, parse  # noqa: E402
from config_files import read_yaml  # noqa: E402

CPU = {"use_cpu": True, "bf16": False, "report_to": "none"}


def write(folder: Path, name: str, **fields) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(fields))
    return path


def test_the_nearest_value_of_a_field_holds(tmp_path):
    write(tmp_path, "base/root.yaml", seed=1, beta=0.1, temperature=0.1)
    write(tmp_path, "base/middle.yaml", extends="root.yaml", beta=0.2, temperature=0.2)
    write(tmp_path, "other.yaml", temperature=0.3, top_p=0.3)
    path = write(tmp_path, "own.yaml", extends=["base/middle.yaml", "other.yaml"], top_p=0.4)
    assert read_yaml(path) == {"seed": 1, "beta": 0.2, "temperature": 0.3, "top_p": 0.4}


def test_the_command_line_has_the_last_word(tmp_path):
    write(tmp_path, "base.yaml", **CPU, seed=1, beta=0.1, temperature=0.5, eval_suites=["gsm8k"])
    path = write(tmp_path, "own.yaml", extends="base.yaml", beta=0.2, output_dir=str(tmp_path), eval_samples=2)
    arguments, config, _ = parse("math_qwen3", ["--config", str(path), "--temperature", "0.7", "--eval_samples", "3"])
    assert (config.seed, config.beta, config.temperature) == (1, 0.2, 0.7)
    assert (arguments.eval_suites, arguments.eval_samples) == (["gsm8k"], 3)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"own.yaml": {"extends": "own.yaml"}}, "extends itself: own.yaml -> own.yaml"),
        ({"own.yaml": {"extends": "b.yaml"}, "b.yaml": {"extends": "own.yaml"}}, "own.yaml -> b.yaml -> own.yaml"),
        ({"own.yaml": {"extends": "absent.yaml"}}, r"no configuration .*absent.yaml, which .*own.yaml extends"),
        ({"own.yaml": {"temprature": 1.0}}, "temprature"),
        ({"own.yaml": {"recipe": "code_qwen3"}}, r"made for recipes/code_qwen3.py, not for math_qwen3.py"),
        ({"own.yaml": {"recipe": "math_qwen4"}}, "recipe must be one of"),
        ({"own.yaml": {"num_gpus": 0}}, "num_gpus must be at least 1, got 0"),
        ({"own.yaml": {"eval_temperature": -1}}, r"eval_temperature must be in \(0, inf\], got -1"),
        ({"own.yaml": {"eval_every": -1}}, "eval_every must be at least 0, got -1"),
        ({"own.yaml": {"eval_temperature": 0.0}}, r"eval_temperature must be in \(0, inf\], got 0"),
        ({"own.yaml": {"eval_top_p": 95.0}}, r"eval_top_p must be in \(0, 1\], got 95"),
        ({"own.yaml": {"prompts_per_step": 4, "gradient_accumulation_steps": 3}}, "contradicts prompts_per_step=4"),
    ],
)
def test_a_configuration_that_cannot_be_meant_is_refused(tmp_path, files, message):
    for name, fields in files.items():
        write(tmp_path, name, **{**CPU, **fields})
    with pytest.raises(ValueError, match=message):
        parse("math_qwen3", ["--config", str(tmp_path / "own.yaml"), "--output_dir", str(tmp_path)])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "must hold fields and their values, got nothing"),
        (b"- seed\n", "must hold fields and their values, got a list"),
        (b"seed: [1\n", r"own.yaml is no YAML"),
        (b"seed: \xe9\n", r"own.yaml is no YAML"),
    ],
)
def test_a_file_that_is_no_configuration_is_named(tmp_path, content, message):
    (tmp_path / "own.yaml").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        parse("math_qwen3", ["--config", str(tmp_path / "own.yaml")])


def test_a_configuration_may_begin_with_a_mark_have_windows_line_ends_and_extend_nothing(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_bytes(b"\xef\xbb\xbfextends:\r\nseed: 3\r\n")
    assert read_yaml(path) == {"seed": 3}


def test_a_configuration_is_found_in_every_spelling_of_the_option(tmp_path, capsys):
    path = write(tmp_path, "own.yaml", extends="base.yaml", output_dir=str(tmp_path))
    write(tmp_path, "base.yaml", **CPU, seed=3)
    for argv in (["--config", str(path)], [f"--config={path}"]):
        assert parse("math_qwen3", argv)[1].seed == 3
    assert parse("math_qwen3", ["--use_cpu", "true", "--bf16", "false", "--output_dir", str(tmp_path)])[1].seed == 42
    with pytest.raises(ValueError, match="--config takes one value, got 2"):
        parse("math_qwen3", ["--config", str(path), "--config", str(path)])
    with pytest.raises(SystemExit):
        parse("math_qwen3", ["--seed", "1", "--config"])
    assert "--config: expected one argument" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU that computes in bf16 needs no help")
def test_every_spelling_of_a_dry_run_admits_bf16_without_a_gpu_and_no_other_run_does(tmp_path):
    path = write(tmp_path, "own.yaml", bf16=True, output_dir=str(tmp_path))
    dry = write(tmp_path, "dry.yaml", extends="own.yaml", dry_run=True)
    given = [[f"--config={dry}"]]
    given += [[f"--config={path}", *option] for option in (["--dry_run"], ["--dry_run=true"], ["--dry-run", "True"])]
    for argv in given:
        arguments, config, _ = parse("math_qwen3", argv)
        assert arguments.dry_run and config.use_cpu, argv
    for argv in ([f"--config={path}", "--dry_run", "false"], [f"--config={dry}", "--dry_run=false"]):
        with pytest.raises(ValueError, match="bf16"):
            parse("math_qwen3", argv)


def test_suites_are_a_list_however_they_are_written():
    for written in (["gsm8k", "math500"], ["gsm8k,math500", "gsm8k"], "gsm8k, math500"):
        assert RecipeArguments(eval_suites=written).eval_suites == ["gsm8k", "math500"]
    assert RecipeArguments(eval_suites=["none"]).eval_suites == []
    assert RecipeArguments(eval_suites="gsm8k", eval_sources="gsm8k=a,b.jsonl").sources == {"gsm8k": "a,b.jsonl"}


def test_model_and_cell_come_between_a_file_and_the_command_line(tmp_path):
    own = write(tmp_path, "own.yaml", **CPU, extends="paper", num_gpus=2, output_dir="out")
    options = ["--config", str(own), "--dry_run"]
    arguments, config, model = parse("math_qwen3", [*options, "--model", "llama3_3b", "--method", "grpo"])
    assert (arguments.num_gpus, config.output_dir) == (2, "out")
    assert (model.model_name_or_path, config.learning_rate) == ("meta-llama/Llama-3.2-3B-Instruct", 1e-6)
    # the cell's own line wins over the model's file, the command line over both
    options += ["--cell", "recommended/llama3_3b", "--model", "llama3_3b"]
    arguments, config, _ = parse("math_qwen3", [*options, "--learning_rate", "2e-6"])
    assert (arguments.num_gpus, config.beta, config.learning_rate) == (2, 0.0, 2e-6)
    assert config.output_dir == "outputs/recommended/llama3_3b_llama3_3b"
    for name in ("Qwen/Qwen3-8B", str(tmp_path)):
        assert parse("math_qwen3", ["--config", "paper", "--model", name, "--dry_run"])[2].model_name_or_path == name


def test_settings_of_the_gate_hold_where_rollouts_are_gated_only():
    paper = ["--config", "paper", "--model", "qwen3_1.7b", "--dry_run"]
    assert parse("math_qwen3", [*paper, "--method", "paper"])[1].marker == "math"
    assert parse("math_qwen3", [*paper, "--abort", "false"])[1].grace_window == 150
    ungated = (["--method", "grpo"], ["--method=grpo"], ["--trim", "false", "--abort", "false"])
    for options in ungated:  # none is refused for a field that it cannot use
        assert not parse("math_qwen3", [*paper, *options])[1].gated
    with pytest.raises(ValueError, match="grace_window=150 cannot have an effect under method='grpo'"):
        parse("math_qwen3", [*paper, "--method", "grpo", "--grace_window", "150"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--cell", "table9/a"], "there is no grid 'table9'. Choose from recommended, rivals, smoke"),
        (["--cell", "table3/eps_0.3"], "there is no cell 'eps_0.3' in table3.yaml. Choose from eps_0.01, eps_0.05"),
        (["--config", "papre"], "there is no configuration .*papre"),
        (["--cell", "table3/eps_0.10", "--cell", "table3/eps_0.20"], "--cell takes one value, got 2"),
    ],
)
def test_a_name_that_is_none_is_answered_with_those_that_are(options, message):
    with pytest.raises(ValueError, match=message):
        parse("math_qwen3", [*options, "--dry_run"])


def test_a_misspelt_option_is_no_abbreviation(tmp_path):
    path = write(tmp_path, "own.yaml", **CPU, output_dir=str(tmp_path))
    with pytest.raises(ValueError, match="--learning_rat"):
        parse("math_qwen3", ["--config", str(path), "--learning_rat", "1.0"])


def test_another_recipes_configuration_can_be_looked_at(tmp_path):
    path = write(tmp_path, "own.yaml", **CPU, recipe="code_qwen3")
    arguments, _, _ = parse("math_qwen3", ["--config", str(path), "--output_dir", str(tmp_path), "--dry_run"])
    assert (arguments.recipe, arguments.dry_run) == ("code_qwen3", True)


@given(prompts=st.integers(1, 64), rollouts=st.integers(1, 8), micro=st.integers(1, 16), processes=st.integers(1, 8))
def test_a_step_has_the_prompts_asked_for_on_any_number_of_processes(prompts, rollouts, micro, processes):
    if prompts * rollouts % (micro * processes):
        with pytest.raises(ValueError, match=f"cannot be shared by {processes} processes"):
            accumulation_steps(prompts, rollouts, micro, processes)
    else:
        assert accumulation_steps(prompts, rollouts, micro, processes) * micro * processes == prompts * rollouts


def test_a_configuration_takes_its_batch_from_the_prompts_of_a_step(tmp_path):
    config = RecipeConfig(str(tmp_path), **CPU, prompts_per_step=6, num_generations=4, per_device_train_batch_size=3)
    assert (config.gradient_accumulation_steps, config.generation_batch_size, config.num_prompts) == (8, 24, 6)


def test_places_of_suites_are_told_apart_from_suites_that_are_not_measured():
    arguments = RecipeArguments(eval_suites=["math500"], eval_sources=["math500=a/b=c.jsonl"])
    assert arguments.sources == {"math500": "a/b=c.jsonl"}
    for entry in ("math500", "math500=", "gsm8k=x.jsonl"):
        with pytest.raises(ValueError, match="eval_sources takes 'suite=place'"):
            RecipeArguments(eval_suites=["math500"], eval_sources=[entry]).sources  # noqa: B018
