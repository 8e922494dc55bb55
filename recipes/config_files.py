# SPDX-License-Identifier: Apache-2.0
"""The fields of a run from YAML files: `--config`, then `--model`, then the cell of `--cell`; the nearest value holds.

A file may begin with `extends:`, the name or the path of another file or a list of them: it then holds only what it
changes. A name stands for the file of that name below `recipes/configs/`.

A grid, one per table of the paper, holds what its cells share, and the cells: one on each line of `cells:`, or a
product, or both.

    methods: {grpo: {}, duet: {method: paper}}    models x methods x budgets: the cells <model>_<method>_<percent>
    models: [qwen3_1.7b, qwen3_4b]                without models or budgets the names are shorter; a method or a model
    budgets: [1.0, 0.5]                           may have fields, a method `budgets` of its own
    seeds: [42, 43]                               of each cell's runs (experiment.py)
    hours: {qwen3_1.7b: 2.5}                      of a run of GRPO at full budget, by model or one number (the same)
    workers: 2                                    runs at a time, if nobody says otherwise (the same)

Three fields of a cell are none of its run: `config` and `model`, which the options of the same names replace, and
`accelerate`, the file below `recipes/accelerate/` to launch it with. The block `gate:` holds only where rollouts are
gated. GRPO, and the allocator alone, refuse such fields.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from duet_trl.methods import METHODS, budget_fields

CONFIGS = Path(__file__).parent / "configs"
GRIDS = Path(__file__).parent / "grids"
Fields = dict[str, Any]


@dataclass(frozen=True)
class Grid:
    """A grid with its products expanded.

    Attributes:
        name (str): Name of its file.
        cells (dict[str, Fields]): Fields of each cell, the shared ones included; `full_generations` is
            `num_generations` at full budget.
        seeds (list[int]): Of each cell's runs. Empty: the seed of its configuration.
        hours (dict[str, float]): Of a run of GRPO at full budget, by model; "" is any other model.
        workers (int): Runs at a time.
    """

    name: str
    cells: dict[str, Fields]
    seeds: list[int]
    hours: dict[str, float]
    workers: int


def read_fields(config: str | None, model: str | None, cell: str | None) -> Fields:
    """Fields of a run before the command line.

    Args:
        config (str | None): Name or path of a file.
        model (str | None): Name of a file below `configs/models/`, a name on the Hub or a folder.
        cell (str | None): A cell of a grid, `grid/cell` or `path.yaml/cell`.

    Raises:
        ValueError: If a file or a cell is missing, or a file is no YAML or no mapping, or extends itself.
    """
    line = {} if cell is None else read_cell(cell)
    if cell is not None:
        line["output_dir"] = f"outputs/{line['grid']}/{line['cell']}" + (
            "" if model is None else f"_{Path(model).name}"
        )
    return _base(config or line.get("config"), model or line.get("model")) | _of_the_run(line)


def read_cell(cell: str) -> Fields:
    """What a grid says of one cell, with `config`, `model` and `accelerate`, and the names of both."""
    place, _, name = cell.rpartition("/")
    grid = read_grid(place)
    if name not in grid.cells:
        raise ValueError(f"there is no cell {name!r} in {grid.name}.yaml. Choose from {', '.join(grid.cells)}.")
    return grid.cells[name] | {"grid": grid.name, "cell": name}


def read_grid(name: str) -> Grid:
    """A grid by its name or the path of its file.

    Raises:
        ValueError: If there is no such file, or it holds what no grid can hold.
    """
    place = Path(name) if name.endswith(".yaml") else GRIDS / f"{name}.yaml"
    if not place.is_file():
        known = ", ".join(sorted(path.stem for path in GRIDS.glob("*.yaml")))
        raise ValueError(f"there is no grid {name!r}. Choose from {known}, or give the path of a .yaml file.")
    shared = _mapping(place)
    keys = ("cells", "methods", "models", "budgets", "seeds", "hours", "workers")
    lines, methods, models, budgets, seeds, hours, workers = (shared.pop(key, None) for key in keys)
    cells: dict[str, Fields] = {}
    own = ((cell, _with_full(shared, line)) for cell, line in _entries(place, "cells", lines))
    for cell, line in (*_product(place, shared, methods, models, budgets), *own):
        if cell in cells:
            raise ValueError(f"{place} has the cell {cell!r} twice. Rename the line of `cells`.")
        cells[cell] = line
    if not cells:
        raise ValueError(f"{place} has no cells. Give it `cells:` or `methods:`.")
    if wrong := [cell for cell in cells if "/" in cell or cell in (".", "..")]:  # each is a folder of the grid's
        raise ValueError(f"a cell of {place} is called {wrong[0]!r}: its name may hold no '/' and be neither . nor ..")
    seeds = [] if seeds is None else seeds
    if not isinstance(seeds, list) or not all(type(seed) is int and seed >= 0 for seed in seeds):
        raise ValueError(f"seeds of {place} must be a list of integers from 0, got {seeds!r}.")
    hours = hours if isinstance(hours, dict) else {} if hours is None else {"": hours}
    if wrong := [value for value in hours.values() if not isinstance(value, int | float) or value <= 0]:
        raise ValueError(f"hours of {place} must be positive numbers, got {wrong[0]!r}.")
    workers = 1 if workers is None else workers
    if type(workers) is not int or workers < 1:
        raise ValueError(f"workers of {place} must be an integer from 1, got {workers!r}.")
    return Grid(place.stem, cells, list(dict.fromkeys(seeds)), hours, workers)


def cell_names() -> list[str]:
    """Every cell, as `--cell` takes it."""
    return [f"{place.stem}/{name}" for place in sorted(GRIDS.glob("*.yaml")) for name in read_grid(place.stem).cells]


def _product(place: Path, shared: Fields, methods: Any, models: Any, budgets: Any) -> Iterator[tuple[str, Fields]]:
    """Cells of models x methods x budgets with their fields."""
    if methods is None and not (models is None and budgets is None):
        raise ValueError(f"{place} has models or budgets but no `methods:` to cross them with.")
    for model, of_model in _entries(place, "models", models) if models else [("", {})]:
        for name, of_method in _entries(place, "methods", methods):
            own = {"method": name} | of_method
            shares = own.pop("budgets", budgets)
            line = _with_full(shared | ({"model": model} if model else {}) | of_model | own, {})
            for share in _shares(place, shares):
                parts = [model, name, "" if share is None else f"{100 * share:g}"]
                yield "_".join(part for part in parts if part), line | _budget(place, line, share)


def _shares(place: Path, budgets: Any) -> list[float | None]:
    if budgets is None:
        return [None]
    if not isinstance(budgets, list) or not all(isinstance(b, int | float) and 0 < b <= 1 for b in budgets):
        raise ValueError(f"budgets of {place} must be a list of shares in (0, 1], got {budgets!r}.")
    return budgets


def _budget(place: Path, line: Fields, share: float | None) -> Fields:
    """Fields that put the method of a line at this share of the full budget."""
    if share is None:
        return {}
    if line["method"] not in METHODS:
        raise ValueError(f"{place} names the method {line['method']!r}. Choose from {', '.join(METHODS)}.")
    if line["full_generations"] is None:
        raise ValueError(f"{place} has budgets but no num_generations, of which they are shares. Set it.")
    return budget_fields(line["method"], share, line["full_generations"])


def _with_full(shared: Fields, line: Fields) -> Fields:
    """A line with what is shared, and the full budget that its own `num_generations` is a share of."""
    both = shared | line
    fields = _base(both.get("config"), both.get("model")) | shared
    return both | {"full_generations": fields.get("num_generations", line.get("num_generations"))}


def _entries(place: Path, key: str, value: Any) -> list[tuple[str, Fields]]:
    """A list of names, or a mapping of names to fields."""
    if isinstance(value, list):
        value = dict.fromkeys(map(str, value))
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"{key} of {place} must be a list of names or a mapping of names to fields, got {value!r}.")
    for name, fields in (value or {}).items():
        if fields is not None and not isinstance(fields, dict):
            raise ValueError(f"{key} of {place}: {name!r} must have fields and their values, got {fields!r}.")
    return [(str(name), fields or {}) for name, fields in (value or {}).items()]


def _base(config: str | None, model: str | None) -> Fields:
    """Fields of a configuration and, over them, of a model."""
    fields = {} if config is None else read_yaml(find(config, Path()))
    if model is not None:
        known = CONFIGS / "models" / f"{model}.yaml"
        fields |= read_yaml(known) if known.is_file() else {"model_name_or_path": model}
    return fields


def _of_the_run(line: Fields) -> Fields:
    return {key: value for key, value in line.items() if key not in ("config", "model", "accelerate")}


def find(name: str, folder: Path) -> Path:
    """The file at a path, seen from a folder, or of a name below `configs/`."""
    places = [folder / name, *(place for place in CONFIGS.rglob("*.yaml") if place.stem == name)]
    return next((place for place in places if place.is_file()), places[0])


def read_yaml(path: Path) -> Fields:
    """A YAML file with what it extends; of several values of a field the one nearest to the file holds.

    Args:
        path (Path): The file.

    Raises:
        ValueError: If a file is missing, is no YAML or no mapping, or extends itself.
    """
    return _read(path, ())


def _read(path: Path, above: tuple[Path, ...]) -> Fields:
    path = path.resolve()
    if path in above:
        raise ValueError(f"{path} extends itself: {' -> '.join(p.name for p in (*above, path))}.")
    if not path.is_file():
        where = f", which {above[-1]} extends" if above else ""
        raise ValueError(f"there is no configuration {path}{where}.")
    own = _mapping(path)
    bases = own.pop("extends", None) or []
    merged: Fields = {}
    for base in [bases] if isinstance(bases, str) else bases:
        merged |= _read(find(base, path.parent), (*above, path))
    return merged | own


def _mapping(path: Path) -> Fields:
    try:
        own = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no YAML: {error}") from error
    if not isinstance(own, dict):
        found = "nothing" if own is None else f"a {type(own).__name__}"
        raise ValueError(f"{path} must hold fields and their values, got {found}.")
    return own
