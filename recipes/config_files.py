# SPDX-License-Identifier: Apache-2.0
"""The fields of a run from YAML files: `--config`, then `--model`, then the line of `--cell`; the nearest value holds.

A file may begin with `extends:`, the name or the path of another file or a list of them: it then holds only what it
changes. A name stands for the file of that name below `recipes/configs/`.

A grid, one per table of the paper, holds what its cells share and `cells:`, one line for each of them. Two of its keys
are no fields: `config` and `model`, which the options of the same names replace.

The block `gate:` holds only where rollouts are gated. GRPO, and the allocator alone, refuse such fields.
"""

from pathlib import Path
from typing import Any

import yaml

CONFIGS = Path(__file__).parent / "configs"
GRIDS = Path(__file__).parent / "grids"


def read_fields(config: str | None, model: str | None, cell: str | None) -> dict[str, Any]:
    """Fields of a run before the command line.

    Args:
        config (str | None): Name or path of a file.
        model (str | None): Name of a file below `configs/models/`, a name on the Hub or a folder.
        cell (str | None): A line of a grid, `grid/line`.

    Raises:
        ValueError: If a file or a cell is missing, or a file is no YAML or no mapping, or extends itself.
    """
    line = {} if cell is None else read_line(cell)
    if cell is not None:
        line["output_dir"] = f"outputs/{cell}" + ("" if model is None else f"_{Path(model).name}")
    config, model = config or line.pop("config", None), model or line.pop("model", None)
    line = {key: value for key, value in line.items() if key not in ("config", "model")}
    fields = {} if config is None else read_yaml(find(config, Path()))
    if model is not None:
        known = CONFIGS / "models" / f"{model}.yaml"
        fields |= read_yaml(known) if known.is_file() else {"model_name_or_path": model}
    return fields | line


def read_line(cell: str) -> dict[str, Any]:
    """What a grid says of one cell, its `config` and `model` included."""
    grid, _, name = cell.partition("/")
    place = GRIDS / f"{grid}.yaml"
    if not place.is_file():
        raise ValueError(
            f"there is no grid {grid!r}. Choose from {', '.join(sorted(p.stem for p in GRIDS.iterdir()))}."
        )
    shared = _mapping(place)
    cells = shared.pop("cells")
    if name not in cells:
        raise ValueError(f"there is no cell {name!r} in {place.name}. Choose from {', '.join(cells)}.")
    return shared | cells[name]


def cell_names() -> list[str]:
    """Every cell, as `--cell` takes it."""
    return [f"{place.stem}/{name}" for place in sorted(GRIDS.glob("*.yaml")) for name in _mapping(place)["cells"]]


def find(name: str, folder: Path) -> Path:
    """The file at a path, seen from a folder, or of a name below `configs/`."""
    places = [folder / name, *(place for place in CONFIGS.rglob("*.yaml") if place.stem == name)]
    return next((place for place in places if place.is_file()), places[0])


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file with what it extends; of several values of a field the one nearest to the file holds.

    Args:
        path (Path): The file.

    Raises:
        ValueError: If a file is missing, is no YAML or no mapping, or extends itself.
    """
    return _read(path, ())


def _read(path: Path, above: tuple[Path, ...]) -> dict[str, Any]:
    path = path.resolve()
    if path in above:
        raise ValueError(f"{path} extends itself: {' -> '.join(p.name for p in (*above, path))}.")
    if not path.is_file():
        where = f", which {above[-1]} extends" if above else ""
        raise ValueError(f"there is no configuration {path}{where}.")
    own = _mapping(path)
    bases = own.pop("extends", None) or []
    merged: dict[str, Any] = {}
    for base in [bases] if isinstance(bases, str) else bases:
        merged |= _read(find(base, path.parent), (*above, path))
    return merged | own


def _mapping(path: Path) -> dict[str, Any]:
    try:
        own = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no YAML: {error}") from error
    if not isinstance(own, dict):
        found = "nothing" if own is None else f"a {type(own).__name__}"
        raise ValueError(f"{path} must hold fields and their values, got {found}.")
    return own
