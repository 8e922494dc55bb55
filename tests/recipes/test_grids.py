# SPDX-License-Identifier: Apache-2.0
"""The cells of the paper's tables: against its table of values (docs/fidelity.md), each other, and as dry runs."""

import dataclasses
import functools
import itertools
import re
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from duet_trl.methods import METHODS

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "recipes" / "configs"
PAPER = ROOT.parent / "shared" / "reference" / "000_291c0f71b01052bf.txt"
# recipes/ is a folder of scripts that import each other by their file names.
sys.path.insert(0, str(ROOT / "recipes"))

import config_files  # noqa: E402
from command_line import parse  # noqa: E402
from config_files import GRIDS, cell_names, read_yaml  # noqa: E402
from dry_run import notes, print_run, resolve  # noqa: E402

CELLS = cell_names()
TABLES = [cell for cell in CELLS if cell.startswith("table")]
FILES = sorted(path.stem for path in CONFIGS.glob("*.yaml"))

VARIES = {
    "num_generations": r"(grpo|dapo|arrol)_(50|25)$|table2/grpo$",
    "keep_probability": r"table[35]",
    "surrogate_warmup": r"table5",
    "learning_rate": r"llama3",
    "beta": r"llama3",
}
"""Values of the table that some cells of the paper exist to vary, and which."""


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


def rows(place: str) -> list[tuple[str, Any]]:
    return [item for row in table() if row.place == place for item in row.values]


def numbers(text: str) -> list[float]:
    """Numbers of a text; parts of a name such as GSM8K or 1.7B are none, 10% is 0.1."""
    found = re.findall(r"(?<![\w.-])(\d[\d,]*(?:\.\d+)?(?:e-?\d+)?)(%?)(?![\w-]|\.\d)", text)
    return [float(number.replace(",", "")) / (100 if percent else 1) for number, percent in found]


@functools.cache
def resolved(cell: str):
    """Arguments, configuration and model of a cell."""
    return parse("math_qwen3", ["--cell", cell, "--dry_run"])


def value_of(cell: str, key: str) -> Any:
    arguments, config, model = resolved(cell)
    found = [part.__dict__[key] for part in (arguments, config, model, config.options) if key in part.__dict__]
    assert found, f"{key} is no field"
    return found[0].value if key in ("optim", "lr_scheduler_type") else found[0]


# ---- The paper's values ---------------------------------------------------------------------------------------------


def test_numbers_of_the_papers_column_are_those_of_the_keys() -> None:
    assert len(table()) > 35
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


OWN_MODEL = "tiny_math"
MODELS = [f"models/{path.name}" for path in CONFIGS.glob("models/*.yaml") if path.stem != OWN_MODEL]


@pytest.mark.parametrize("place", ["base/paper.yaml", *MODELS])
def test_values_of_a_file_stand_in_it(place: str) -> None:
    values = yaml.safe_load((CONFIGS / place).read_text())
    values |= values.pop("gate", {})
    assert rows(place)
    assert {key: values[key] for key, _ in rows(place)} == dict(rows(place))


def test_every_cell_of_a_table_resolves_to_the_papers_values() -> None:
    fixed, of_method = rows("base/paper.yaml"), rows("method paper")
    assert len(fixed) > 20 and len(of_method) == 10
    for cell in TABLES:
        config = resolved(cell)[1]
        expected = fixed + (of_method if config.method == "paper" else [])
        for key, value in expected:
            if re.search(VARIES.get(key, "^$"), cell) or (not config.gated and key == "grace_window"):
                continue
            if key == "keep_probability" and not config.abort:
                continue
            assert value_of(cell, key) == value, (cell, key)


def test_varied_values_are_those_of_the_table_and_all_of_them_occur() -> None:
    for key, value in rows("cells"):
        assert value in {
            value_of(cell, key) for cell in TABLES if resolved(cell)[1].method == "paper" or key[0] == "n"
        }
    for key in {key for key, _ in rows("cells")}:
        listed = {value for row in table() for name, value in row.values if name == key}
        assert {value_of(cell, key) for cell in TABLES if re.search(VARIES.get(key, "duet"), cell)} <= listed, key


def test_cells_of_the_tables_take_the_papers_steps_and_share_of_the_budget() -> None:
    for cell in TABLES:
        run = resolve(*resolved(cell))
        assert [("optimizer_steps", run.optimizer_steps)] == rows("follows"), cell
        assert (run.prompts_per_step, run.num_processes) == (128, 8)
        share = re.search(r"_(100|50|25)$", cell)  # of 1,024 rollouts; what names none has half
        assert run.planned_rollouts == 1024 * int(share[1] if share else 50) / 100, cell


# ---- Every line builds another method -------------------------------------------------------------------------------


def parts(built: Any) -> Any:
    """What an object is made of: numbers, texts and the parts of its parts, to be compared."""
    if isinstance(built, torch.Tensor | np.ndarray):
        return np.asarray(built).tolist()
    if isinstance(built, Mapping):
        return {str(key): parts(value) for key, value in built.items()}
    if isinstance(built, list | tuple | set | frozenset):
        return [parts(value) for value in built]
    if isinstance(built, functools.partial):
        return [built.func.__qualname__, parts(built.args), parts(built.keywords)]
    if hasattr(built, "__dict__") and not isinstance(built, type) and not callable(built):
        return [type(built).__qualname__, parts(vars(built))]
    return getattr(built, "__qualname__", None) or repr(built)


def built(cell: str) -> dict[str, Any]:
    """What a cell comes to: model, task, rollouts and the method itself, which names no file and no field."""
    arguments, config, model = resolved(cell)
    method = METHODS[config.method].build(config)
    return {"task": arguments.recipe, "model": model.model_name_or_path, "n": config.num_generations} | {
        "method": parts(method)
    }


def twins(grid: str) -> list[tuple[str, str]]:
    """Lines of a grid that come to the same."""
    lines = {cell: built(cell) for cell in cell_names() if cell.startswith(f"{grid}/")}
    assert len(lines) > 1
    return [(a, b) for a, b in itertools.combinations(lines, 2) if lines[a] == lines[b]]


@pytest.mark.parametrize("grid", sorted(path.stem for path in GRIDS.glob("*.yaml")))
def test_every_line_of_a_grid_builds_another_method(grid: str) -> None:
    assert twins(grid) == []


def test_a_line_that_changes_nothing_is_found(tmp_path: Path, monkeypatch) -> None:
    base = {"config": "paper", "model": "qwen3_1.7b", "method": "paper", "budget_fraction": 0.5}
    lines = {"one": {}, "two": {"output_dir": "elsewhere"}, "three": {"keep_probability": 0.2}}
    (tmp_path / "idle.yaml").write_text(yaml.safe_dump(base | {"cells": lines}))
    monkeypatch.setattr(config_files, "GRIDS", tmp_path)
    resolved.cache_clear()
    assert twins("idle") == [("idle/one", "idle/two")]


def test_a_field_of_another_allocation_is_refused(tmp_path: Path, monkeypatch) -> None:
    """The old cell eps_0.01_k_warmup_2: under `duet` no sigma is asked for, so k_warmup changed nothing."""
    line = {"method": "duet", "budget_fraction": 0.5, "method_kwargs": {"surrogate_warmup": 2}}
    (tmp_path / "old.yaml").write_text(
        yaml.safe_dump({"config": "paper", "model": "qwen3_1.7b", "cells": {"k": line}})
    )
    monkeypatch.setattr(config_files, "GRIDS", tmp_path)
    with pytest.raises(ValueError, match="surrogate_warmup=2 cannot have an effect"):
        parse("math_qwen3", ["--cell", "old/k", "--dry_run"])


# ---- Every cell and file --------------------------------------------------------------------------------------------


def test_there_is_a_grid_for_every_table_that_has_cells_of_ours() -> None:
    tables = {f"table{n}" for n in (1, 2, 3, 5, 6, 7)}
    assert {path.stem for path in GRIDS.iterdir()} == tables | {"recommended", "rivals", "surrogate", "tasks", "smoke"}
    models, rivals = ("qwen3_1.7b", "qwen3_4b", "llama3_3b"), ("grpo", "dapo", "arrol", "vip")
    expected = {*(f"{rival}_100" for rival in rivals), "duet_100", "duet_50"}
    assert {cell for cell in CELLS if cell.startswith("table1/")} == {
        f"table1/{model}_{method}" for model, method in itertools.product(models, expected)
    }
    smaller = {f"table6/{method}_{share}" for method in (*rivals, "duet") for share in (50, 25)}
    assert {cell for cell in CELLS if cell.startswith("table6/")} == smaller
    every = {resolved(cell)[1].method for cell in CELLS if cell.startswith("rivals/")}
    assert every == METHODS.keys() - {"own"}


@pytest.mark.parametrize("options", [*(["--cell", cell] for cell in CELLS), *(["--config", file] for file in FILES)])
def test_every_cell_and_file_dry_runs_without_a_network(options: list[str], monkeypatch, capsys) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a dry run opened a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    arguments, config, model = parse("math_qwen3", [*options, "--dry_run"])
    run = resolve(arguments, config, model)
    print_run(run)
    printed = capsys.readouterr().out
    assert run.optimizer_steps > 0 and f"{run.optimizer_steps:,} optimizer steps" in printed
    if options[0] == "--cell":
        assert config.output_dir == f"outputs/{options[1]}" and f"{model.model_name_or_path}: all para" in printed
        task = {"code_qwen3": "code", "qa_qwen3": "qa"}.get(arguments.recipe, "math")
        assert not config.gated or config.marker == task


def test_recommended_cells_have_no_note_and_literal_ones_of_duet_have() -> None:
    for model in ("qwen3_1.7b", "qwen3_4b", "llama3_3b"):
        run = resolve(*resolved(f"recommended/{model}"))
        assert run.config.options.drop_zero_advantage
        assert notes(run) == []
    literal = resolve(*parse("math_qwen3", ["--cell", "table1/qwen3_1.7b_duet_50", "--method", "duet", "--dry_run"]))
    found = notes(literal)
    assert len(found) == 1 and "advantage_cutoff are off" in found[0]


def test_what_is_trimmed_and_is_no_cell_of_the_paper_teaches_the_ending() -> None:
    for cell in CELLS:
        _, config, _ = resolved(cell)
        if config.method in ("duet", "paper"):
            assert config.options.teach_ending == (config.method != "paper"), cell


def test_llamas_prompts_do_not_change_with_the_day_and_base_models_end_their_turn() -> None:
    for cell in CELLS:
        _, config, model = resolved(cell)
        if "Llama" in model.model_name_or_path:
            assert config.chat_template_kwargs == {"date_string": "26 Jul 2024"} and config.extra_eos_tokens is None
        elif "Qwen" in model.model_name_or_path:
            assert config.extra_eos_tokens == ["<|im_end|>"] and config.chat_template_kwargs is None


@pytest.mark.parametrize("path", sorted([*CONFIGS.rglob("*.yaml"), *GRIDS.iterdir()]), ids=lambda path: path.stem)
def test_keys_stand_once_are_read_as_their_type_and_the_launch_line_is_true(path: Path) -> None:
    keys = [key.value for key, _ in yaml.compose(path.read_text()).value]
    assert len(keys) == len(set(keys))
    for key, value in yaml.safe_load(path.read_text()).items():
        # YAML reads 3e-6 as a word
        assert not (isinstance(value, str) and re.fullmatch(r"[\d.]+(e-?\d+)?", value)), (key, value)
    comment = " ".join(line.strip("# \\") for line in re.match(r"(?:#.*\n)+", path.read_text()).group().splitlines())
    if path.parent.name == "models" or path.stem == "math_tiny":
        return  # no run of their own
    assert re.search(r"GPU|H100|T4|CPU", comment)
    if path.parent == GRIDS:
        assert (
            f"{path.stem}/" in re.search(r"--cell (\S+)", comment)[1]
            and re.search(r"--cell (\S+)", comment)[1] in CELLS
        )
    else:
        assert re.search(r"--config (\S+)", comment)[1] == path.stem
        read_yaml(path)
    for file in re.findall(r"recipes/[\w/.]+\.(?:py|yaml)", comment):
        assert (ROOT / file).exists(), file
