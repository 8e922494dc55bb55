# SPDX-License-Identifier: Apache-2.0
"""House rules that a machine can see and ruff does not: licence lines, sizes, names of files, requirements."""

import ast
import configparser
import re
import runpy
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "duet_trl"
CODE_FOLDERS = ("duet_trl", "recipes", "benchmarks", "notebooks", "docs", "tests")
TEXT_SUFFIXES = {".py", ".md", ".cfg", ".toml", ".txt", ".yaml", ".yml", ".cff", ".ipynb", ".in", ".css", ".svg"}
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


CODE = sorted(path for folder in CODE_FOLDERS for path in (ROOT / folder).rglob("*.py"))
PACKAGE_CODE = sorted(PACKAGE.rglob("*.py"))


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("path", CODE, ids=relative)
def test_first_line_is_the_licence(path: Path) -> None:
    assert path.read_text().split("\n", 1)[0] == "# SPDX-License-Identifier: Apache-2.0"


def lines_of_code(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring, which says as much as it needs to."""
    documented = ast.get_docstring(function) is not None
    docstring = function.body[0].end_lineno - function.body[0].lineno + 1 if documented else 0
    return function.end_lineno - function.lineno + 1 - docstring


@pytest.mark.parametrize("path", PACKAGE_CODE, ids=relative)
def test_file_and_functions_hold_one_idea(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= MAX_FILE_LINES
    sizes = {f.name: lines_of_code(f) for f in functions(ast.parse(text))}
    assert {name: size for name, size in sizes.items() if size > MAX_FUNCTION_LINES} == {}


def test_no_two_files_have_one_name() -> None:
    tasks = {"tiny_math", "tiny_products", "tiny_two_ways"}  # the same files for every task
    files = [
        path for path in CODE if relative(path).startswith(("duet_trl", "recipes")) and path.parent.name not in tasks
    ]
    names = Counter(path.name for path in files if path.name != "__init__.py")
    assert [name for name, count in names.items() if count > 1] == []


def text_files() -> list[Path]:
    folders = (*CODE_FOLDERS, "requirements", ".ci", ".github")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    files += list(ROOT.iterdir())
    named = {"Makefile", "LICENSE", ".gitignore", "run"}
    return sorted(p for p in files if p.is_file() and (p.suffix in TEXT_SUFFIXES or p.name in named))


def test_no_file_carries_a_path_of_one_machine() -> None:
    pattern = re.compile(r"(?<![\w.$}])/(?:work|root|home|Users)/\w")
    assert [relative(path) for path in text_files() if pattern.search(path.read_text())] == []


def setup_cfg() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(ROOT / "setup.cfg")
    return parser


def requirements(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def test_pinned_cpu_set_satisfies_setup_cfg() -> None:
    """Every requirement of the package and of the extras in the CPU set is pinned there, inside its range."""
    packaging = pytest.importorskip("packaging.requirements")
    pins = {}
    for line in requirements((ROOT / "requirements" / "cpu.txt").read_text()):
        requirement = packaging.Requirement(line)
        assert str(requirement.specifier).startswith("=="), f"{line} is not pinned"
        if requirement.marker is None or requirement.marker.evaluate():
            pins[requirement.name.lower().replace("_", "-")] = str(requirement.specifier).removeprefix("==")
    parser = setup_cfg()
    wanted = requirements(parser["options"]["install_requires"])
    for extra in ("peft", "math", "eval", "report", "notebooks", "test", "lint", "docs"):
        wanted += requirements(parser["options.extras_require"][extra])
    for line in wanted:
        requirement = packaging.Requirement(line)
        if requirement.name != "torch":  # installed first and alone, see the Makefile
            assert requirement.specifier.contains(pins[requirement.name.lower()]), line


def links(markdown: str) -> list[str]:
    return re.findall(r"]\(([^)]+)\)", markdown)


def test_description_of_the_package_has_no_link_into_the_repository() -> None:
    readme = (ROOT / "README.md").read_text()
    text = runpy.run_path(str(ROOT / "setup.py"))["description"](readme)
    assert links(text) == [link for link in links(readme) if link.startswith("https://")] != []
    assert "![" not in text and "CITATION.cff. Licence" in text  # a link's words stay
    assert text.count("\n```") == readme.count("\n```")


def test_sdist_holds_what_its_readme_links_to_and_no_part_of_the_tests(tmp_path: Path) -> None:
    code = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=True, capture_output=True, timeout=120)
    (path,) = tmp_path.iterdir()
    with tarfile.open(path) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
        metadata = sdist.extractfile(f"{path.name.removesuffix('.tar.gz')}/PKG-INFO").read().decode()
    relative_links = [link for link in links((ROOT / "README.md").read_text()) if not link.startswith("https://")]
    assert {link.partition("#")[0] for link in relative_links} <= names
    assert not [name for name in names if name.startswith("tests")]
    assert "Project-URL: Paper, https://arxiv.org/abs/2605.08441" in metadata
    assert all(link.startswith("https://") for link in links(metadata))
