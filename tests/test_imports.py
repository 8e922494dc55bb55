# SPDX-License-Identifier: Apache-2.0
"""The rooms of docs/architecture.md stay apart: who may import whom, read from the syntax tree of every file."""

import ast
import configparser
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "duet_trl"
ENGINES = ("transformers", "vllm")
NUMERIC = frozenset({"numpy", "torch"})
VERIFIER_AND_REPORT_LIBRARIES = frozenset({"math_verify", "latex2sympy2_extended", "sympy", "pyarrow", "pandas"})


@dataclass(frozen=True)
class Room:
    """One row of the import table.

    libraries: third-party top-level packages the room may import; None = any.
    rooms: rooms of the package it may import, besides itself; None = any.
    """

    libraries: frozenset[str] | None
    rooms: frozenset[str] | None


CORE = frozenset({"allocate", "gate", "update", "state"})
TABLE = {
    "state": Room(frozenset({"numpy"}), frozenset()),
    "allocate": Room(NUMERIC, frozenset({"state"})),
    "gate": Room(NUMERIC, frozenset({"state"})),
    "update": Room(NUMERIC, frozenset({"allocate", "gate", "state"})),
    "rollouts": Room(NUMERIC, frozenset({"gate"})),
    "engines": Room(NUMERIC | set(ENGINES) | {"aiohttp", "triton"}, frozenset({"gate"})),
    "methods": Room(NUMERIC | {"sklearn"}, CORE | {"rollouts", "field_types"}),
    "field_types": Room(frozenset(), frozenset()),
    "upstream": Room(frozenset({"trl"}), frozenset()),
    "config": Room(NUMERIC | {"trl"}, CORE | {"methods", "field_types", "upstream"}),
    "exchange": Room(NUMERIC | {"accelerate"}, frozenset()),
    "loop": Room(NUMERIC, frozenset({"gate", "update", "rollouts", "methods", "exchange"})),
    "seams": Room(
        None,
        CORE | {"rollouts", "methods", "engines", "config", "exchange", "loop"} | {"evaluation", "report", "rewards"},
    ),
    "trainer": Room(None, None),
    "rewards": Room(NUMERIC | VERIFIER_AND_REPORT_LIBRARIES, frozenset({"gate"})),
    "evaluation": Room(NUMERIC | {"transformers", "datasets"}, frozenset({"gate", "rewards"})),
    "report": Room(
        NUMERIC | VERIFIER_AND_REPORT_LIBRARIES | {"tokenizers"},
        frozenset({"allocate", "gate", "methods", "config"}),
    ),
    "check": Room(None, None),
    "mistakes": Room(frozenset(), frozenset()),
    "__main__": Room(frozenset(), frozenset({"report", "check", "mistakes"})),
    "root": Room(frozenset(), frozenset({"config", "trainer"})),
}


def room_of(module: str) -> str:
    """Room of a dotted module name inside the package, e.g. duet_trl.allocate.neyman -> allocate."""
    parts = module.split(".")
    if len(parts) == 1:
        return "root"
    return parts[1]


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(source: str, module: str, is_package: bool) -> set[str]:
    """Every module a source file imports, at any depth, relative imports resolved against its own name."""
    package = module.split(".") if is_package else module.split(".")[:-1]
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            target = ".".join([*base, *([node.module] if node.module else [])])
            names |= {f"{target}.{alias.name}" for alias in node.names}
    return names


def violations(source: str, module: str, is_package: bool = False) -> list[str]:
    """What in a source file breaks the table; empty when nothing does."""
    room = room_of(module)
    if room not in TABLE:
        return [f"{module} is in no room of the import table"]
    row, found = TABLE[room], []
    for name in sorted(imported_modules(source, module, is_package)):
        top = name.split(".")[0]
        if top == "duet_trl":
            other = "root" if len(name.split(".")) == 2 and name.split(".")[1] not in TABLE else room_of(name)
            if other not in {room, "root"} and row.rooms is not None and other not in row.rooms:
                found.append(f"{module} ({room}) imports {name} ({other})")
        elif top not in sys.stdlib_module_names and row.libraries is not None and top not in row.libraries:
            found.append(f"{module} ({room}) imports {name}")
    return found


def sources(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


@pytest.mark.parametrize("path", sources(PACKAGE), ids=lambda path: str(path.relative_to(ROOT)))
def test_file_imports_only_what_its_room_may(path: Path) -> None:
    assert violations(path.read_text(), module_name(path), path.name == "__init__.py") == []


def test_table_catches_a_core_file_that_imports_an_engine() -> None:
    assert violations("import transformers", "duet_trl.allocate.neyman")
    assert violations("def f():\n    from trl import GRPOConfig", "duet_trl.update.advantages")
    assert violations("from duet_trl.gate import replay", "duet_trl.allocate.neyman")
    assert violations("from ...engines import vllm", "duet_trl.gate.sub.gate")
    assert violations("from ..engines import vllm", "duet_trl.gate.replay")
    assert violations("import vllm", "duet_trl.config")
    assert violations("from duet_trl.trainer import DUETGRPOTrainer", "duet_trl.report.card")
    assert violations("", "duet_trl.utils")
    assert not violations("import json\nimport numpy as np\nfrom . import budget", "duet_trl.allocate.neyman")


def edges_of_the_drawing() -> set[tuple[str, str]]:
    """(imported room, importing room) for each arrow of docs/architecture.md."""
    drawing = (ROOT / "docs" / "architecture.md").read_text().split("```mermaid")[1].split("```")[0]
    arrows = re.findall(r"^ *(\w[\w &]*) --> (\w+)$", drawing, flags=re.M)
    return {(source, target) for sources_, target in arrows for source in sources_.split(" & ")}


def test_the_drawing_shows_every_import_and_no_arrow_runs_back_up() -> None:
    edges = edges_of_the_drawing()
    above: dict[str, set[str]] = {}

    def rooms_above(room: str, below: tuple[str, ...] = ()) -> set[str]:
        assert room not in below, f"the drawing has a circle: {[*below, room]}"
        if room not in above:
            targets = {target for source, target in edges if source == room}
            above[room] = targets.union(*(rooms_above(target, (*below, room)) for target in targets))
        return above[room]

    assert {room for edge in edges for room in edge} == TABLE.keys() - {"root"}
    for path in sources(PACKAGE):
        module = module_name(path)
        for name in imported_modules(path.read_text(), module, path.name == "__init__.py"):
            room, other = room_of(module), room_of(name)
            if name.startswith("duet_trl.") and other in TABLE and "root" not in (room, other) and room != other:
                assert room in rooms_above(other), (
                    f"{module} imports {name}, and no arrow leads from {other} to {room}"
                )


IMPORTED_AS = {"pyyaml": "yaml", "huggingface-hub": "huggingface_hub", "math-verify": "math_verify"}
BROUGHT_BY = {"triton": "torch", "latex2sympy2_extended": "math_verify", "sympy": "math_verify"}
NEEDS_EXTRA = {
    "duet_trl.engines.cpu_worker": "vllm",
    "duet_trl.engines.server": "vllm",
    "duet_trl.engines.stream": "vllm",
    "duet_trl.engines.vllm": "vllm",
    "duet_trl.rewards.math_worker": "math",
    "duet_trl.seams.server_generation": "vllm",
}
"""Modules that a plain installation cannot import; all others import them, if at all, where they are needed."""


def declared(section: str, key: str) -> set[str]:
    """Import names of the requirements under a key of setup.cfg."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(ROOT / "setup.cfg")
    lines = [line.strip() for line in parser[section][key].splitlines()]
    names = [re.match(r"[\w.-]+", line)[0] for line in lines if line and not line.startswith("#")]
    return {IMPORTED_AS.get(name, name) for name in names}


def imported_at_once(path: Path) -> set[str]:
    """What importing a module imports: functions, and what only a type checker runs, left out."""
    tree = ast.parse(path.read_text())
    kept = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)]
    kept += [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for node in kept:
        node.body = [ast.Pass()]
    return imported_modules(ast.unparse(tree), module_name(path), path.name == "__init__.py")


def test_every_import_of_a_plain_installation_is_declared() -> None:
    files = {module_name(path): path for path in sources(PACKAGE)}
    base = declared("options", "install_requires")
    direct = {name: imported_at_once(path) for name, path in files.items()}

    def libraries(module: str, seen: set[str]) -> set[str]:
        """Third-party packages that importing a module imports, through others of the package too."""
        seen.add(module)
        found = set()
        for name in direct[module] | {module.rpartition(".")[0]} - {""}:
            inside = next((m for m in (name, name.rpartition(".")[0]) if m in files), None)
            if inside is None:
                found.add(name.split(".")[0])
            elif inside not in seen:
                found |= libraries(inside, seen)
        return {BROUGHT_BY.get(name, name) for name in found} - sys.stdlib_module_names - {"__future__"}

    missing = {name: libraries(name, set()) - base for name in files}
    assert {name for name, libs in missing.items() if libs} == set(NEEDS_EXTRA)
    for module, extra in NEEDS_EXTRA.items():
        assert missing[module] <= declared("options.extras_require", extra), module


def public_names(module: str) -> set[str] | None:
    """`__all__` of a module of the package as written in its source; None where it has none."""
    path = ROOT / Path(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return set(ast.literal_eval(node.value))
    return None


def private_imports(source: str) -> list[str]:
    """Names of the package a script imports that are not public: a leading underscore, or absent from `__all__`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names if a.name.startswith("duet_trl.") and "._" in a.name]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "duet_trl":
            public = public_names(node.module)
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                if "._" in name or (public is not None and alias.name not in public):
                    found.append(name)
    return found


@pytest.mark.parametrize("path", sources(ROOT / "recipes"), ids=lambda path: str(path.relative_to(ROOT)))
def test_recipe_imports_public_names_only(path: Path) -> None:
    assert private_imports(path.read_text()) == []


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)


def test_package_itself_loads_nothing_until_a_name_is_used() -> None:
    result = run_python("import sys, duet_trl; print('torch' in sys.modules, 'trl' in sys.modules, dir(duet_trl))")
    assert result.stdout.strip() == "False False ['DUETGRPOConfig', 'DUETGRPOTrainer', '__version__']"


@pytest.mark.parametrize("name", ["DUETGRPOConfig", "DUETGRPOTrainer"])
@pytest.mark.parametrize("found", ["1.0.0", "1.10.0", "1.14.0", "1.17.0.dev0", "2.0.0"])
def test_another_trl_is_named_before_its_import_fails(
    name: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import duet_trl

    information = tmp_path / f"trl-{found}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: trl\nVersion: {found}\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match=f"needs trl>=1.16,<1.17 and found {found}.*pip install 'trl>=1.16,<1.17'"):
        getattr(duet_trl, name)


def test_trl_range_is_that_of_setup_cfg() -> None:
    from duet_trl import TRL_RANGE

    low, high = (".".join(map(str, bound)) for bound in TRL_RANGE)
    assert f"\n    trl>={low},<{high}\n" in (ROOT / "setup.cfg").read_text()
