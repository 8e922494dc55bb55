# SPDX-License-Identifier: Apache-2.0
"""The documentation agrees with the tree: links, commands, names, fields and differences between methods."""

import ast
import doctest
import importlib
import json
import re
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PACKAGE = ROOT / "duet_trl"
FOLDERS = (ROOT, *(ROOT / name for name in ("docs", "notebooks", "benchmarks", "benchmarks/arena", "recipes/paper")))
PAGES = sorted(page for folder in FOLDERS for page in folder.glob("*.md"))
CORE = ("allocate", "gate", "update")


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """What a fragment may point to: explicit ids and GitHub's slugs of the headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    headings = re.findall(r"^#{1,6} +(.+?)\s*$", text, flags=re.M)
    slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r'<a id="([^"]+)">', text))


def broken_links(page: Path) -> list[str]:
    found = []
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, fragment = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or (fragment and fragment not in anchors(file)):
            found.append(target)
    return found


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_links_inside_the_docs_resolve(page: Path) -> None:
    assert broken_links(page) == []


def test_docstrings_point_at_sections_that_exist() -> None:
    broken = []
    for path in PACKAGE.rglob("*.py"):
        for name, fragment in re.findall(r"((?:docs|benchmarks)/[\w-]+\.md)(?:#([\w-]+))?", path.read_text()):
            page = ROOT / name
            if not page.exists() or (fragment and fragment not in anchors(page)):
                broken.append(f"{relative(path)}: {name}#{fragment}")
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_make_commands_in_the_text_are_targets(page: Path) -> None:
    """Those in blocks are read by tests/test_code_blocks.py."""
    commands = re.findall(r"`make((?: [a-z-]+\b(?!=))+)", page.read_text())
    targets = set(re.findall(r"^([a-z-]+):(?!=)", (ROOT / "Makefile").read_text(), flags=re.M))
    assert {word for command in commands for word in command.split()} <= targets


def test_help_names_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    documented = set(re.findall(r"^([a-z-]+):.*## ", makefile, flags=re.M))
    phony = set(re.search(r"^\.PHONY: (.*)$", makefile, flags=re.M).group(1).split())
    assert documented == phony
    every_day = {"help", "install", "install-check", "demo", "test", "test-slow", "chaos", "lint", "docs", "build"}
    assert phony == every_day | {"models", "bench", "gpu", "arena", "notebooks"}


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_scripts_named_in_the_docs_exist(page: Path) -> None:
    pattern = (
        r"\b(?:recipes|benchmarks|tests|duet_trl|notebooks|requirements|docs)/[\w/.-]+\.(?:py|yaml|txt|md|ipynb)\b"
    )
    missing = {name for name in re.findall(pattern, page.read_text()) if not (ROOT / name).exists()}
    assert missing == set()


def test_readme_cites_what_the_citation_file_cites() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    entries = re.split(r"^@", (ROOT / "README.md").read_text().split("## Cite")[1], flags=re.M)[1:]
    paper, software = (dict(re.findall(r"^  (\w+) += \{(.*)\}", entry, flags=re.M)) for entry in entries)
    preferred = citation["preferred-citation"]
    names = " and ".join(f"{one['family-names']}, {one['given-names']}" for one in preferred["authors"])
    wanted = {"title": preferred["title"], "author": names, "journal": preferred["journal"]}
    assert paper == wanted | {"year": str(preferred["year"])}
    assert (software["title"], software["version"]) == (citation["title"], citation["version"])


def test_methods_md_has_every_method() -> None:
    from duet_trl.methods import METHODS

    table = (DOCS / "methods.md").read_text().split("## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, flags=re.M) == list(METHODS)


def test_quickstart_md_shows_the_estimate_of_the_bundled_log(capsys: pytest.CaptureFixture[str]) -> None:
    from duet_trl.__main__ import main

    block = re.search(r"```\n(It would have.*?)```", (DOCS / "quickstart.md").read_text(), flags=re.S)[1]
    log, tokenizer = ROOT / "notebooks" / "data" / "grpo_log", ROOT / "recipes" / "tiny_math" / "checkpoint"
    assert main(["estimate", str(log), "--tokenizer", str(tokenizer)]) == 0
    printed = {line.strip() for line in capsys.readouterr().out.splitlines()}
    assert len(block.splitlines()) == 3
    assert set(block.splitlines()) - printed == set()


def test_quickstart_md_shows_the_log_of_the_demo() -> None:
    section = (DOCS / "quickstart.md").read_text().split("## A healthy log")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([^`]+)` \| ([\d.]+) \| ([\d.]+) \|", section, flags=re.M)
    assert len(rows) == 8
    run = json.loads((ROOT / "benchmarks" / "results" / "demo_smollm2.json").read_text())["runs"]["duet"]
    assert f" {run['points'][-1]['batches']} batches" in section
    for name, *shown in rows:
        for text, batch in zip(shown, ("first", "last"), strict=True):
            digits = len(text.partition(".")[2])
            assert float(text) == round(run[batch][name], digits), name


def defined_names(path: Path) -> set[str]:
    """Top-level functions and classes of a file, and Class.method."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return names


def test_functions_named_in_how_it_works_md_exist() -> None:
    references = re.findall(r"`([\w/]+\.py)::([\w.]+)`", (DOCS / "how_it_works.md").read_text())
    assert len(references) > 20
    missing = [
        f"{path}::{name}"
        for path, name in references
        if not (PACKAGE / path).exists() or name not in defined_names(PACKAGE / path)
    ]
    assert missing == []


def listed_names(page: Path) -> set[str]:
    """Names in backticks before the first colon of every item of a list."""
    heads = re.findall(r"^\* ((?:`[^`]+`(?:, )?)+):", page.read_text(), flags=re.M)
    return {name for head in heads for name in re.findall(r"`([^`]+)`", head)}


def test_configuration_md_has_the_tables_of_fields_that_are_declared() -> None:
    from docs.site.reference import written

    page = (DOCS / "configuration.md").read_text()
    assert page == written(page), "run python docs/site/reference.py and commit docs/configuration.md"


def method_table() -> dict[str, list[object]]:
    """The table of docs/fidelity.md as field -> values of paper, duet; remarks in parentheses left out."""
    section = (DOCS / "fidelity.md").read_text().split("## Defaults that differ")[1].split("\n### ")[0]
    rows = {}
    for line in re.findall(r"^\| \[`.*$", section, flags=re.M):
        name, *cells = (re.sub(r"[`\[]|\].*|\(.*", "", cell).strip() for cell in line.strip("|").split("|"))
        rows[name] = [value_of(cell) for cell in cells]
    return rows


def value_of(cell: str) -> object:
    try:
        return ast.literal_eval(cell)
    except (ValueError, SyntaxError):
        return cell


def test_fidelity_md_names_every_default_in_which_duet_and_paper_differ() -> None:
    from duet_trl.config import defaults_of, reads
    from duet_trl.methods import METHODS

    def defaults(name: str) -> dict[str, object]:
        fields_read = {field: value for field, value in defaults_of(name).items() if field in reads(name)}
        return fields_read | {one.name: one.default for one in fields(METHODS[name].options)}

    rows, paper, duet = method_table(), defaults("paper"), defaults("duet")
    computed = {"num_rollouts_min"} | {name for name, default in duet.items() if default is None and name not in paper}
    differ = {name for name in duet if paper.get(name) != duet[name]} | {"keep_probability", "allocate"} | computed
    assert set(rows) == differ
    for name in rows.keys() - computed:
        assert rows[name] == [paper.get(name, "-"), duet.get(name, "-")], name
    assert set(rows) <= anchors(DOCS / "fidelity.md")


def literal_keys(node: ast.AST) -> set[str]:
    """String keys of the dict literals inside a node."""
    dicts = [inner for inner in ast.walk(node) if isinstance(inner, ast.Dict)]
    return {key.value for d in dicts for key in d.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}


def reported_metrics() -> set[str]:
    """Metrics that the source writes by name: step metrics, those of methods and allocators, the trainer's reports."""
    source = ast.parse((PACKAGE / "seams" / "metrics.py").read_text())
    found = set().union(*(literal_keys(node) for node in source.body if getattr(node, "name", "") != "write_audit"))
    for path in [*(PACKAGE / "allocate").glob("*.py"), *(PACKAGE / "methods").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            is_metrics = isinstance(node, ast.FunctionDef) and node.name.endswith("metrics")
            is_assigned = isinstance(node, ast.Assign | ast.AugAssign) and "self._metrics" in ast.unparse(node)
            if is_metrics or is_assigned:
                found |= literal_keys(node)
    for node in ast.walk(ast.parse((PACKAGE / "trainer.py").read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "self._report":
            found |= literal_keys(node)
    return found


def test_metrics_md_lists_the_metrics() -> None:
    documented = listed_names(DOCS / "metrics.md")
    reported = reported_metrics()
    assert {"generated_tokens", "poll_threshold", "dual", "overhead_share"} <= reported
    assert reported - documented == set()


def messages_in_the_source() -> str:
    """Every string of the package, one a line, with what is filled in left out, and every class name."""
    lines = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            lines.append("".join(str(part.value) if isinstance(part, ast.Constant) else "" for part in parts))
            if isinstance(node, ast.ClassDef):
                lines.append(node.name)
    return "\n".join(lines)


def test_messages_in_troubleshooting_md_are_the_ones_that_are_raised() -> None:
    section = (DOCS / "troubleshooting.md").read_text().split("## Errors and warnings")[1]
    first_cells = re.findall(r"^\|([^|]*)\|", section, flags=re.M)
    quoted = [message for cell in first_cells for message in re.findall(r"`([^`]+)`", cell)]
    assert len(quoted) > 30
    source = messages_in_the_source()
    pieces = {piece.strip() for message in quoted for piece in message.split("...") if piece.strip()}
    assert {piece for piece in pieces if piece not in source} == set()


def test_every_fault_names_tests_that_exist() -> None:
    section = (ROOT / "tests" / "FAULTS.md").read_text()
    lines = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(lines) >= 25
    for line in lines:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", line)
        assert named, line
        for path, name in named:
            assert re.search(rf"^def {name}\(", (ROOT / path).read_text(), flags=re.M), name


def test_examples_in_docstrings_run() -> None:
    files = [*(path for room in CORE for path in (PACKAGE / room).rglob("*.py")), PACKAGE / "exchange.py"]
    paths = [path.relative_to(ROOT).with_suffix("") for path in files]
    results = [doctest.testmod(importlib.import_module(".".join(path.parts))) for path in paths]
    assert sum(result.failed for result in results) == 0 < sum(result.attempted for result in results)
