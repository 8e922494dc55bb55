# SPDX-License-Identifier: Apache-2.0
"""The cells of the paper's tables: against its table of values (recipes/paper/values.md) and each other."""

import dataclasses
import functools
import itertools
import re
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
CONFIGS, GRIDS = ROOT / "recipes" / "configs", ROOT / "recipes" / "grids"
# recipes/ is a folder of scripts that import each other by their file names.
sys.path.insert(0, str(ROOT / "recipes"))

from experiment import Run, plan  # noqa: E402
from run_file import new_record  # noqa: E402
from script_arguments import parse  # noqa: E402

GPUS = 8

VARIES = {
    "num_generations": r"(grpo|dapo|arrol)_(50|25)$|table2/grpo$",
    "keep_probability": r"table[35]",
    "surrogate_warmup": r"table5",
    "model_name_or_path": r"llama3|qwen3_4b",
    "learning_rate": r"llama3",
    "beta": r"llama3",
}
"""Values of the table that some cells of the paper exist to vary, and which."""


def runs(grid: Path) -> dict[str, Run]:
    """One run of each cell, by grid and cell."""
    return {f"{grid.stem}/{run.folder.parent.name}": run for run in plan(grid, Path("out"))}


CELLS = {cell: run for grid in sorted(GRIDS.iterdir()) for cell, run in runs(grid).items()}
TABLES = [cell for cell in CELLS if cell.startswith("table")]


@dataclasses.dataclass(frozen=True)
class Row:
    """A line of the table: the paper's words, where the values stand, and the values."""

    paper: str
    place: str
    values: list[tuple[str, Any]]


@functools.cache
def table() -> list[Row]:
    page = (ROOT / "recipes" / "paper" / "values.md").read_text()
    rows = []
    for line in re.findall(r"^\|(.*)\|$", page, flags=re.M)[2:]:
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


def resolve(run: Run, folder: Path) -> tuple:
    """Arguments, configuration and model of a run; bf16 is admitted on a CPU by name."""
    place = folder / "config.yaml"
    place.write_text(yaml.safe_dump(run.fields | {"use_cpu": True}))
    return parse(["--config", str(place)])


@pytest.fixture(scope="module")
def resolved(tmp_path_factory) -> dict[str, tuple]:
    folder = tmp_path_factory.mktemp("grids")
    return {cell: resolve(run, folder) for cell, run in CELLS.items()}


def value_of(parts: tuple, key: str) -> Any:
    arguments, config, model = parts
    found = [part.__dict__[key] for part in (arguments, config, model, config.options) if key in part.__dict__]
    assert found, f"{key} is no field"
    return found[0].value if key in ("optim", "lr_scheduler_type") else found[0]


def test_the_page_counts_the_runs_of_each_grid() -> None:
    page = (ROOT / "docs" / "paper.md").read_text()
    found = re.findall(r"`(\w+)` (?:\((\d+) runs\)|\|[^|]*\|[^|]*\| (\d+) )", page)
    assert len(found) == 10
    for name, in_text, in_table in found:
        assert int(in_text or in_table) == len(plan(GRIDS / f"{name}.yaml", Path("out"))), name


# ---- The paper's values ---------------------------------------------------------------------------------------------


def test_numbers_of_the_papers_column_are_those_of_the_keys() -> None:
    assert len(table()) > 35
    for row in table():
        if row.values:
            keys = [float(value) for _, value in row.values if isinstance(value, int | float) and value is not True]
            assert numbers(row.paper) == keys, row


def test_every_cell_of_a_table_resolves_to_the_papers_values(resolved) -> None:
    fixed, of_method = rows("paper.yaml"), rows("method paper")
    assert len(fixed) > 20 and len(of_method) > 5
    values = yaml.safe_load((CONFIGS / "paper.yaml").read_text())
    assert {key: values[key] for key, _ in fixed} == dict(fixed)
    for cell in TABLES:
        config = resolved[cell][1]
        for key, value in fixed + (of_method if config.method == "paper" else []):
            gated = config.abort if key == "keep_probability" else config.gated or key != "grace_window"
            if gated and not re.search(VARIES.get(key, "^$"), cell):
                assert value_of(resolved[cell], key) == value, (cell, key)


def test_varied_values_are_those_of_the_table_and_all_of_them_occur(resolved) -> None:
    for key in {key for key, _ in rows("cells")}:
        found = [value_of(resolved[cell], key) for cell in TABLES if re.search(VARIES.get(key, "duet"), cell)]
        listed = [value for row in table() for name, value in row.values if name == key]
        assert set(found) <= set(listed), key
        assert {value for name, value in rows("cells") if name == key} <= set(found) | {listed[0]}, key


def test_cells_of_the_tables_take_the_papers_prompts_steps_and_share_of_the_budget(resolved) -> None:
    for cell in TABLES:
        _, config, _ = resolved[cell]
        rollouts = config.per_device_train_batch_size * config.gradient_accumulation_steps * GPUS
        assert rollouts / config.num_generations == 128, cell
        # 7,496 prompts and the paper's 7,431 are both 58 whole batches an epoch
        steps = config.num_train_epochs * (7496 // 128)
        assert [("optimizer_steps", steps)] == rows("follows") and 7431 // 128 == 58, cell
        share = re.search(r"_(100|50|25)$", cell)  # what names none has half
        record = new_record(*resolved[cell])
        assert record.budget == int(share[1] if share else 50) / 100, cell
        assert (record.grid, record.cell) == tuple(cell.split("/"))


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


def twins(lines: dict[str, tuple]) -> list[tuple[str, str]]:
    """Lines that come to the same: data, model, rollouts and the method itself, which names no file and no field."""
    built = {
        cell: [arguments.dataset_name, model.model_name_or_path, config.num_generations]
        + [parts(METHODS[config.method].build(config))]
        for cell, (arguments, config, model) in lines.items()
    }
    return [(a, b) for a, b in itertools.combinations(built, 2) if built[a] == built[b]]


def test_every_line_of_a_grid_builds_another_method(resolved) -> None:
    for grid in GRIDS.iterdir():
        lines = {cell: found for cell, found in resolved.items() if cell.startswith(f"{grid.stem}/")}
        assert len(lines) > 1 and twins(lines) == []


# ---- Every cell and file --------------------------------------------------------------------------------------------


def test_there_is_a_grid_for_every_table_that_has_cells_of_ours(resolved) -> None:
    tables = {f"table{n}" for n in (1, 2, 3, 5, 6, 7)}
    assert {path.stem for path in GRIDS.iterdir()} == tables | {"recommended", "rivals", "surrogate", "tasks", "smoke"}
    models, rivals = ("qwen3_1.7b", "qwen3_4b", "llama3_3b"), ("grpo", "dapo", "arrol", "vip")
    expected = {*(f"{rival}_100" for rival in rivals), "duet_100", "duet_50"}
    cells = {f"table1/{model}_{method}": model for model, method in itertools.product(models, expected)}
    assert {cell for cell in CELLS if cell.startswith("table1/")} == cells.keys()
    for cell, model in cells.items():
        _, config, policy = resolved[cell]
        name = policy.model_name_or_path.lower().replace("-", "").replace(".", "")
        assert name.split("/")[1].startswith(model.replace("_", "").replace(".", "")[:5]), cell
        assert config.method == {"duet": "paper"}.get(method := cell.rsplit("_", 2)[1], method)
        assert CELLS[cell].accelerate == (None if model == "qwen3_1.7b" else "fsdp2")
    smaller = {f"table6/{method}_{share}" for method in (*rivals, "duet") for share in (50, 25)}
    assert {cell for cell in CELLS if cell.startswith("table6/")} == smaller
    every = {config.method for cell, (_, config, _) in resolved.items() if cell.startswith("rivals/")}
    assert every == METHODS.keys() - {"own"}


def test_what_each_task_and_model_needs_is_set(resolved) -> None:
    for cell, (_, config, model) in resolved.items():
        task = {"code_qwen3": "code", "qa_qwen3": "qa"}.get(Path(CELLS[cell].script).stem, "math")
        assert not config.gated or config.marker == task, cell
        assert config.method != "duet" or config.options.teach_ending, cell
        if "Llama" in model.model_name_or_path:
            assert config.chat_template_kwargs == {"date_string": "26 Jul 2024"} and config.extra_eos_tokens is None
        elif "Qwen" in model.model_name_or_path:
            assert config.extra_eos_tokens == ["<|im_end|>"] and config.chat_template_kwargs is None
        if cell.startswith("recommended/"):
            assert config.options.drop_zero_advantage, cell


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_configuration_is_accepted(path: Path) -> None:
    parse(["--config", str(path), "--use_cpu", "true"])


@pytest.mark.parametrize("path", sorted([*CONFIGS.glob("*.yaml"), *GRIDS.iterdir()]), ids=lambda path: path.stem)
def test_keys_stand_once_are_read_as_their_type_and_the_launch_line_is_true(path: Path) -> None:
    keys = [key.value for key, _ in yaml.compose(path.read_text()).value]
    assert len(keys) == len(set(keys))
    for key, value in yaml.safe_load(path.read_text()).items():
        # YAML reads 3e-6 as a word
        assert not (isinstance(value, str) and re.fullmatch(r"[\d.]+(e-?\d+)?", value)), (key, value)
    comment = " ".join(line.strip("# \\") for line in re.match(r"(?:#.*\n)+", path.read_text()).group().splitlines())
    if path.stem == "math_tiny":
        return  # no run of its own
    assert re.search(r"GPU|H100|T4|CPU", comment)
    assert f"{path.parent.name}/{path.name}" in comment
    for file in re.findall(r"recipes/[\w/.]+\.(?:py|yaml)", comment):
        assert (ROOT / file).exists(), file
