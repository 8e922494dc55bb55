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

from arguments import RecipeArguments, RecipeConfig, accumulation_steps, parse, read_yaml  # noqa: E402

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
        ({"own.yaml": {"sharding": "half"}}, "sharding must be one of"),
        ({"own.yaml": {"num_gpus": 0}}, "num_gpus must be at least 1, got 0"),
        ({"own.yaml": {"prompts_per_step": 4, "gradient_accumulation_steps": 3}}, "contradicts prompts_per_step=4"),
    ],
)
def test_a_configuration_that_cannot_be_meant_is_refused(tmp_path, files, message):
    for name, fields in files.items():
        write(tmp_path, name, **{**CPU, **fields})
    with pytest.raises(ValueError, match=message):
        parse("math_qwen3", ["--config", str(tmp_path / "own.yaml"), "--output_dir", str(tmp_path)])


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
    for entry in ("math500", "gsm8k=x.jsonl"):
        with pytest.raises(ValueError, match="eval_sources takes 'suite=place'"):
            RecipeArguments(eval_suites=["math500"], eval_sources=[entry]).sources  # noqa: B018
