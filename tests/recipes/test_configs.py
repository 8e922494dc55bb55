# SPDX-License-Identifier: Apache-2.0
"""The configurations against the table of the paper's values (docs/fidelity.md), each other, and as dry runs."""

import dataclasses
import functools
import itertools
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from trl import ModelConfig

from duet_trl import DUETGRPOConfig
from duet_trl.presets import PRESETS

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "recipes" / "configs"
FILES = sorted(CONFIGS.glob("*.yaml"))
PAPER = ROOT.parent / "shared" / "reference" / "000_291c0f71b01052bf.txt"
# recipes/ is a folder of scripts that import each other by their file names.
sys.path.insert(0, str(ROOT / "recipes"))

from cell import build_cell, print_cell  # noqa: E402
from command_line import RecipeArguments, RecipeConfig, parse, read_yaml  # noqa: E402

MODELS = ("math_qwen3_1.7b", "math_qwen3_4b", "math_llama3_3b")
HALF = "math_qwen3_1.7b_duet_50"
# The rows of the paper's tables for GRPO and DUET. Main and quarter-budget table, for every model:
CELLS = {f"{model}_{method}_{b}" for model in MODELS for method in ("grpo", "duet") for b in (100, 50, 25)}
# the sweep of eps_abort (0.05 is the half-budget cell), k_warmup at eps 0.01 (1 is that cell), the ablation (with both
# parts it is the half-budget cell, the anchor is GRPO at half budget):
CELLS |= {f"{HALF}_eps_{eps}" for eps in ("0.01", "0.10", "0.20")} | {f"{HALF}_eps_0.01_k_warmup_2"}
CELLS |= {f"{HALF}_allocator_only", f"{HALF}_abort_only"}
# Beside the paper's: other tasks, other machines, and the tiny ones.
OTHERS = {f"{task}_qwen3_1.7b_{cell}" for task in ("code", "qa") for cell in ("grpo_100", "duet_50")}
OTHERS |= {f"{HALF}_8xh100_server", "math_qwen3_1.7b_lora_24gb", "math_qwen3_0.6b_lora_t4", "math_tiny"}
OTHERS |= {"math_tiny_smoke"} | {f"{model}_duet_50_recommended" for model in MODELS}

VARIES = {
    "num_generations": {cell for cell in CELLS if re.search(r"grpo_(50|25)$", cell)},
    "budget_fraction": {cell for cell in CELLS if "duet" in cell},
    "keep_probability": {cell for cell in CELLS if "eps" in cell},
    "surrogate_warmup": {cell for cell in CELLS if "k_warmup" in cell},
    "learning_rate": {cell for cell in CELLS if "llama3" in cell},
    "beta": {cell for cell in CELLS if "llama3" in cell},
}
"""Keys of the table that some of the paper's cells exist to vary, and which."""


@dataclasses.dataclass(frozen=True)
class Row:
    """A line of the table: the paper's words, where the values stand, and the values."""

    paper: str
    place: str
    values: list[tuple[str, Any]]


@functools.cache
def table() -> list[Row]:
    section = (ROOT / "docs" / "fidelity.md").read_text().split("## Experimental values")[1]
    rows = []
    for line in re.findall(r"^\|(.*)\|$", section, flags=re.M)[2:]:
        _, paper, place, keys = (cell.strip() for cell in line.split("|"))
        pairs = (yaml.safe_load(text) for text in re.findall(r"`([^`]+)`", keys))
        rows.append(Row(paper, place.replace("`", ""), [item for pair in pairs for item in pair.items()]))
    return rows


def rows(place: str) -> list[tuple[str, Any, Row]]:
    return [(key, value, row) for row in table() if row.place == place for key, value in row.values]


def numbers(text: str) -> list[float]:
    """Numbers of a text; parts of a name such as GSM8K or 1.7B are none, 10% is 0.1."""
    found = re.findall(r"(?<![\w.-])(\d[\d,]*(?:\.\d+)?(?:e-?\d+)?)(%?)(?![\w-]|\.\d)", text)
    return [float(number.replace(",", "")) / (100 if percent else 1) for number, percent in found]


@functools.cache
def resolved(name: str):
    """Arguments, configuration and model of a file."""
    return parse("math_qwen3", ["--config", str(CONFIGS / f"{name}.yaml"), "--dry_run"])


def value_of(name: str, key: str) -> Any:
    found = [part.__dict__[key] for part in resolved(name) if key in part.__dict__]
    assert found, f"{key} is no field"
    return found[0].value if key in ("optim", "lr_scheduler_type") else found[0]


def own(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text())


# ---- The table --------------------------------------------------------------------------------------------------


def test_table_has_the_values_of_the_appendix() -> None:
    assert len(table()) > 35
    places = {row.place for row in table()}
    bases = {f"base/{name}.yaml" for name in ("paper", "qwen3_1.7b", "qwen3_4b", "llama3_3b")}
    assert places == bases | {"cells", "default", "preset paper", "follows", "not used"}
    assert [row.paper for row in table() if not row.values] == ["512"]  # the mini-batch, which is not used


def test_numbers_of_the_papers_column_are_those_of_the_keys() -> None:
    for row in table():
        if row.values:
            keys = [float(value) for _, value in row.values if isinstance(value, int | float) and value is not True]
            assert numbers(row.paper) == keys, row


@pytest.mark.skipif(not PAPER.exists(), reason=f"{PAPER} is not there")
def test_numbers_of_the_table_stand_in_the_papers_setup() -> None:
    text = PAPER.read_text().split("{Detailed Experimental Setup}")[1].split("{Theory--Empirics Alignment}")[0]
    sweep = PAPER.read_text().split("{Sensitivity to the abort floor")[1].split("{table}")[0]
    warmup = PAPER.read_text().split("{Robustness and Sensitivity}")[1].split("{table}")[0]
    reach = "n_q \\in [1, 32]"
    assert reach in PAPER.read_text()
    text = " ".join((text, sweep, warmup, reach)).replace("{,}", "").replace("$3 \\times 10^{-6}$", " 3e-6 ")
    said = {float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*(?:\.\d+)?(?:e-6)?", text)}
    wanted = {number for row in table() for number in numbers(row.paper)}
    assert {number for number in wanted if number not in said and round(100 * number, 6) not in said} == set()


@pytest.mark.parametrize("name", ["paper", "qwen3_1.7b", "qwen3_4b", "llama3_3b"])
def test_values_of_a_base_file_stand_in_it(name: str) -> None:
    values = own(CONFIGS / "base" / f"{name}.yaml")
    listed = rows(f"base/{name}.yaml")
    assert listed
    assert {key: values[key] for key, _, _ in listed} == {key: value for key, value, _ in listed}


def test_defaults_are_the_papers() -> None:
    defaults = {field.name: field.default for field in dataclasses.fields(DUETGRPOConfig)}
    listed = rows("default")
    assert {key: defaults[key] for key, _, _ in listed} == {key: value for key, value, _ in listed}


def test_preset_paper_is_the_papers() -> None:
    listed = rows("preset paper")
    assert {key: PRESETS["paper"][key] for key, _, _ in listed} == {key: value for key, value, _ in listed}


def test_varied_values_stand_in_the_cells_that_vary_them() -> None:
    for key, value, _ in rows("cells"):
        assert value in {value_of(cell, key) for cell in VARIES[key]}, (key, value)
    for key, cells in VARIES.items():
        if key in {key for key, _, _ in rows("cells")}:
            listed = {value for row in table() for name, value in row.values if name == key}
            assert {value_of(cell, key) for cell in cells} <= listed


def test_a_value_of_the_paper_stands_once_and_no_cell_changes_it_that_does_not_exist_to() -> None:
    files = [*(CONFIGS / f"{cell}.yaml" for cell in sorted(CELLS)), *sorted((CONFIGS / "base").glob("*.yaml"))]
    for row in table():
        for key, _ in row.values:
            if key in ("model_name_or_path", "optimizer_steps"):
                continue
            home = CONFIGS / row.place if row.place.startswith("base/") else None
            for path in files:
                if path == home or path.stem in ("code", "qa") or key not in own(path):
                    continue
                varying = VARIES.get(key, set()) | ({"llama3_3b"} if key in ("learning_rate", "beta") else set())
                varying |= {"paper"} if row.place == "cells" else set()
                assert path.stem in varying, f"{path.name} sets {key}"


def test_every_cell_resolves_to_the_values_of_the_table() -> None:
    fixed = rows("base/paper.yaml") + rows("default")
    assert len(fixed) > 30
    for cell, (key, value, _) in itertools.product(sorted(CELLS), fixed):
        if cell not in VARIES.get(key, set()):
            assert value_of(cell, key) == value, (cell, key)


def test_cells_take_the_papers_steps() -> None:
    [(_, steps, _)] = rows("follows")
    cells = [build_cell(*resolved(cell)) for cell in sorted(CELLS)]
    assert {cell.optimizer_steps for cell in cells} == {steps}
    assert {cell.prompts_per_step for cell in cells} == {128} and {cell.num_processes for cell in cells} == {8}


# ---- The set of files -------------------------------------------------------------------------------------------


def test_there_is_a_file_for_every_row_of_the_papers_tables_and_no_other() -> None:
    assert {path.stem for path in FILES} == CELLS | OTHERS


@pytest.mark.parametrize("model", MODELS)
def test_cells_of_a_model_differ_in_method_and_budget_only(model: str) -> None:
    allowed = {"method", "budget_fraction", "num_generations", "output_dir"}
    reference = read_yaml(CONFIGS / f"{model}_grpo_100.yaml")
    for method, budget in itertools.product(("grpo", "duet"), (100, 50, 25)):
        values = read_yaml(CONFIGS / f"{model}_{method}_{budget}.yaml")
        differing = {key for key in values | reference if values.get(key) != reference.get(key)}
        assert differing <= allowed, differing - allowed
        assert values["method"] == method
        share = values["num_generations"] / 8 * values.get("budget_fraction", 1)
        assert share == budget / 100


@pytest.mark.parametrize(
    ("name", "base", "changed"),
    [
        ("eps_0.01", HALF, {"keep_probability": 0.01}),
        ("eps_0.10", HALF, {"keep_probability": 0.1}),
        ("eps_0.20", HALF, {"keep_probability": 0.2}),
        ("eps_0.01_k_warmup_2", f"{HALF}_eps_0.01", {"surrogate_warmup": 2}),
        ("allocator_only", HALF, {"trim": False, "abort": False}),
        ("abort_only", HALF, {"allocate": False}),
    ],
)
def test_sweeps_and_ablations_change_one_thing(name: str, base: str, changed: dict[str, Any]) -> None:
    values, reference = read_yaml(CONFIGS / f"{HALF}_{name}.yaml"), read_yaml(CONFIGS / f"{base}.yaml")
    differing = {key: values[key] for key in values if values[key] != reference.get(key)}
    assert differing == changed | {"output_dir": f"outputs/{HALF}_{name}"}


@pytest.mark.parametrize("model", MODELS)
def test_recommended_cells_differ_from_the_papers_in_what_the_dry_run_notes(model: str, capsys) -> None:
    paper, recommended = (f"{model}_duet_50{ending}" for ending in ("", "_recommended"))
    values, reference = (read_yaml(CONFIGS / f"{name}.yaml") for name in (recommended, paper))
    differing = {key: values[key] for key in values if values[key] != reference.get(key)}
    assert differing == {"beta": 0, "ending_reward_weight": 0.1, "output_dir": f"outputs/{recommended}"}
    assert resolved(recommended)[1].drop_zero_advantage and not resolved(paper)[1].drop_zero_advantage
    print_cell(build_cell(*resolved(recommended)))
    assert "  notes" not in capsys.readouterr().out
    print_cell(build_cell(*resolved(paper)))
    notes = capsys.readouterr().out.split("  notes")[1]
    assert "ending_reward_weight is 0, as in the paper" in notes and "advantage_cutoff are off" in notes
    path = str(CONFIGS / f"{paper}.yaml")
    print_cell(build_cell(*parse("math_qwen3", ["--config", path, "--dry_run", "--graded", "first"])))
    assert "ending_reward_weight" not in capsys.readouterr().out


def test_what_grades_the_last_answer_and_is_no_cell_of_the_paper_rewards_the_ending() -> None:
    for path in FILES:
        arguments, config, _ = resolved(path.stem)
        literal = path.stem in CELLS or path.stem.endswith("server") or "tiny" in path.stem
        rewarded = config.method == "duet" and arguments.recipe != "code_qwen3" and not literal
        assert config.ending_reward_weight == (0.1 if rewarded else 0.0), path.stem


def test_llamas_prompts_do_not_change_with_the_day_and_base_models_end_their_turn() -> None:
    for cell in CELLS:
        _, config, _ = resolved(cell)
        if "llama3" in cell:
            assert config.chat_template_kwargs == {"date_string": "26 Jul 2024"} and config.extra_eos_tokens is None
            assert (config.learning_rate, config.beta) == (1e-6, 1e-2)
        else:
            assert config.extra_eos_tokens == ["<|im_end|>"] and config.chat_template_kwargs is None


def test_markers_fit_their_tasks() -> None:
    for path in FILES:
        arguments, config, _ = resolved(path.stem)
        assert config.marker == {"code_qwen3": "code", "qa_qwen3": "qa"}.get(arguments.recipe, "math")


# ---- Every file -------------------------------------------------------------------------------------------------


def pairs(node: yaml.Node) -> Iterator[tuple[str, yaml.Node]]:
    return ((key.value, value) for key, value in node.value)


@pytest.mark.parametrize("path", [*FILES, *sorted((CONFIGS / "base").glob("*.yaml"))], ids=lambda path: path.stem)
def test_every_key_is_a_field_stands_once_and_is_read_as_its_type(path: Path) -> None:
    keys = [key for key, _ in pairs(yaml.compose(path.read_text()))]
    assert len(keys) == len(set(keys))
    known = {field.name for kind in (RecipeArguments, RecipeConfig, ModelConfig) for field in dataclasses.fields(kind)}
    assert set(keys) - {"extends"} <= known
    for key, value in own(path).items():
        # YAML reads 3e-6 as a word
        assert not (isinstance(value, str) and re.fullmatch(r"[\d.]+(e-?\d+)?", value)), (key, value)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_first_comment_has_the_hardware_and_the_launch_line(path: Path) -> None:
    if path.stem == "math_tiny":
        pytest.skip("the settings of math_tiny.py, which is started without a configuration")
    comment = re.match(r"(?:#.*\n)+", path.read_text()).group()
    assert re.search(r"GPU|H100|T4|CPU", comment)
    words = " ".join(line.strip("# \\") for line in comment.splitlines())
    config = re.search(r"--config (\S+)", words).group(1)
    arguments, _, _ = resolved(path.stem)
    assert f"recipes/{arguments.recipe}.py" in words
    assert config == f"recipes/configs/{path.name}"
    for file in re.findall(r"recipes/[\w/.]+\.(?:py|yaml)", words):
        assert (ROOT / file).exists(), file
    if "fsdp2.yaml" in words or "ddp.yaml" in words:
        # 16 bytes per parameter of the 3B and 4B models do not fit beside the rest on a GPU of 80 GB.
        assert ("fsdp2.yaml" in words) == ("3b" in path.stem or "4b_duet" in path.stem or "4b_grpo" in path.stem)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_configuration_dry_runs_without_a_network(path: Path, monkeypatch, capsys) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a dry run opened a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    arguments, config, model = parse("math_qwen3", ["--config", str(path), "--dry_run"])
    cell = build_cell(arguments, config, model)
    print_cell(cell)
    printed = capsys.readouterr().out
    assert cell.optimizer_steps > 0 and f"{cell.optimizer_steps:,} optimizer steps" in printed
    assert f"recipes/{arguments.recipe}.py" in printed
    if path.stem.startswith("math_tiny"):
        assert "none is named: give --model_name_or_path" in printed
    else:
        share = f"LoRA, r = {model.lora_r}" if model.use_peft else "all parameters trained"
        assert f"{model.model_name_or_path}: {share}" in printed
        assert Path(config.output_dir).name == path.stem
