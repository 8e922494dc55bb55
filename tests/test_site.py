# SPDX-License-Identifier: Apache-2.0
"""The site builds without a warning, loads nothing from elsewhere, and has what the repository has."""

import json
import os
import re
import subprocess
import sys
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS / "site"))  # as mkdocs does for its hooks

from drawing import drawing  # noqa: E402
from formulas import formulas, mathml  # noqa: E402
from hooks import local_links, narrow, python_markdown, repository  # noqa: E402
from notebook_pages import notebook_page  # noqa: E402

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
ORIGIN = {
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "remote.origin.url",
    "GIT_CONFIG_VALUE_0": "git@example.org:a/b.git",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; the build fails at a warning."""
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install -e '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"} | ORIGIN
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


class Loaded(HTMLParser):
    """Addresses that a browser fetches by itself when it shows a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag in ("script", "img", "iframe", "source") and found.get("src"):
            self.addresses.append(found["src"])
        if tag == "link" and found.get("rel") != "canonical":
            self.addresses.append(found["href"])


def test_every_page_is_in_the_navigation(site: Path) -> None:
    pages = {path.stem for path in DOCS.glob("*.md")} | {f"notebooks/{path.stem}" for path in NOTEBOOKS}
    linked = set(re.findall(r'class="md-nav__link[^>]*href="([\w/]+)\.html"', (site / "safety.html").read_text()))
    linked |= set(re.findall(r'href="([\w/]+)\.html" class="md-nav__link', (site / "safety.html").read_text()))
    assert pages - {"safety"} <= linked and (site / "safety.html").exists()


def test_a_page_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        parser = Loaded()
        parser.feed(page.read_text())
        fetched = [address for address in parser.addresses if not address.startswith("data:")]
        local = [address.partition("#")[0] for address in fetched if not address.startswith("/")]
        assert len(local) == len(fetched) or page.name == "404.html"
        assert [address for address in local if not (page.parent / address).exists()] == []
        assert 'class="mermaid"' not in page.read_text()  # the theme would fetch mermaid for it


def test_home_page_is_the_first_screen_of_the_readme(site: Path) -> None:
    shown = re.sub(r"<[^>]+>", "", (site / "index.html").read_text())
    for part in ("GRPO under a token budget", "make demo", "-from trl import GRPOConfig, GRPOTrainer"):
        assert part in shown
    assert "Documentation" not in shown  # a section further down
    assert 'src="images/method.svg"' in (site / "index.html").read_text()


def test_no_markdown_is_left(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = re.sub(r"<pre.*?</pre>|<code.*?</code>", "", page.read_text(), flags=re.S)
        assert page.parent == site or "$" not in text, page.name
        assert re.findall(r"^(?:<p>)?[*-] .*|^.*\*\*\w.*|^.*\| ?---.*|^```.*", text, flags=re.M) == [], page.name


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_a_page_with_all_its_cells_and_can_be_downloaded(site: Path, path: Path) -> None:
    page = site / "notebooks" / f"{path.stem}.html"
    shown = unescape(re.sub(r"<[^>]+>", "", page.read_text()))
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code":
            assert source in shown
        else:  # its words between marks, code and formulas
            pieces = re.split(r"`[^`]*`|\$\$?[^$]*\$\$?|[*|#\n]+|^\d\. +|<.*?>", source, flags=re.M)
            assert [piece for piece in pieces if piece.strip(" -") and piece.strip() not in shown] == []
    assert f'href="{path.name}"' in page.read_text()
    assert (site / "notebooks" / path.name).read_bytes() == path.read_bytes()


def test_nothing_on_a_page_has_a_width_of_its_own(site: Path) -> None:
    """How wide tables become only a browser knows; what would keep them wide is not there."""
    for page in site.rglob("*.html"):
        article = page.read_text().partition("<article")[2].partition("</article>")[0]
        article = re.sub(r"<(svg|math).*?</\1>", "", article, flags=re.S)
        assert re.findall(r'<[^>]* (?:width="|style="[^"]*(?:width|nowrap))[^>]*>', article) == [], page.name
        assert "<td>" not in article  # a cell has the heading of its column, which is shown on phones
    style = (DOCS / "site" / "style.css").read_text()
    assert "nowrap" not in style
    assert re.findall(r"^.*width:[^;]*\dpx.*$", style, flags=re.M) == re.findall(
        r"^.*\.drawing \{.*$", style, flags=re.M
    )


def test_the_header_links_the_repository_and_asks_nobody_for_its_stars(site: Path) -> None:
    page = (site / "safety.html").read_text()
    assert re.findall(r'<a href="([^"]+)"[^>]*class="md-source"', page)[0] == "https://example.org/a/b"
    assert 'data-md-component="source"' not in page


@pytest.mark.parametrize(
    "origin, page",
    [
        ("git@example.org:a/b.git", "https://example.org/a/b"),
        ("https://name:secret@example.org/a/b.git", "https://example.org/a/b"),
        ("ssh://git@example.org:22/a/b", "https://example.org/a/b"),
        ("/folder/b.git", ""),
        ("../b", ""),
        ("", ""),
    ],
)
def test_address_of_the_repository(origin: str, page: str) -> None:
    assert repository(origin) == page


def test_cells_know_their_column_and_names_break_at_their_joints() -> None:
    heads = '<table><tr><th>a "b"</th><th><code>c_d</code></th></tr><tr>'
    cells = (
        '<td data-column="a &quot;b&quot;">x_y</td><td data-column="c_d"><code>x_<wbr>y=<wbr>1.5 z.<wbr>py</code></td>'
    )
    made = narrow(f"{heads}<td>x_y</td><td><code>x_y=1.5 z.py</code></td></tr></table>")
    assert made == f"{heads.replace('c_d', 'c_<wbr>d')}{cells}</tr></table>"


def test_a_formula_is_mathml_and_code_is_left_alone() -> None:
    math = ElementTree.fromstring(mathml(r"\lambda_q^{2} - \frac{\sqrt 3}{n + 1} \text{ or } x^*"))
    assert "".join(math.itertext()) == "λq2−3n+1\N{NO-BREAK SPACE}or\N{NO-BREAK SPACE}x*"
    tags = [element.tag for element in math.find("math/mrow")]
    assert tags == ["msubsup", "mo", "mfrac", "mtext", "msup"]
    assert formulas("`$a$` and $a$").startswith("`$a$` and <span><math")


@pytest.mark.parametrize("formula", [r"\unknown", "{a", "a}", r"\frac a", "a_"])
def test_a_formula_that_cannot_be_read_is_an_error(formula: str) -> None:
    with pytest.raises(ValueError, match="does not read"):
        mathml(formula)


def test_outputs_come_from_an_executed_copy_of_the_same_text(tmp_path: Path) -> None:
    def notebook(name: str, source: str, outputs: list[dict]) -> Path:
        injected = {
            "cell_type": "code",
            "source": ["b = 2"],
            "metadata": {"tags": ["injected-parameters"]},
            "outputs": [],
        }
        cells = [
            {"cell_type": "markdown", "source": ["# Title"], "metadata": {}},
            {"cell_type": "code", "source": [source], "metadata": {}, "outputs": outputs},
        ]
        (tmp_path / name).write_text(json.dumps({"cells": [*cells, injected] if outputs else cells}))
        return tmp_path / name

    outputs = [
        {"output_type": "stream", "name": "stdout", "text": ["\x1b[1mprinted\x1b[0m in ", f"{ROOT}/outputs\n"]},
        {"output_type": "stream", "name": "stderr", "text": "a warning"},
        {"output_type": "display_data", "data": {"image/png": "AAAA\n", "text/plain": "<Figure>"}},
        {"output_type": "display_data", "data": {"text/markdown": "| a |", "text/plain": "<Markdown>"}},
    ]
    stored, executed = notebook("a.ipynb", "print(a)", []), notebook("b.ipynb", "print(a)", outputs)
    page = notebook_page(stored, executed)
    assert "```text\nprinted in outputs\n```" in page and "| a |" in page and "```python\nb = 2\n```" in page
    assert 'src="data:image/png;base64,AAAA"' in page
    assert "warning" not in page and "<Figure>" not in page and "<Markdown>" not in page
    for other in (notebook("c.ipynb", "print(b)", outputs), tmp_path / "none.ipynb"):
        assert "printed" not in notebook_page(stored, other) and "print(a)" in notebook_page(stored, other)


def test_first_screen_of_the_readme_fits_a_screen_and_has_its_parts() -> None:
    readme = (ROOT / "README.md").read_text()
    first = readme.partition("<!-- end of the first screen -->")[0]
    assert first.count("\n") <= 40
    assert first.count("```bash") == first.count("```diff") == first.count("![") == 1
    (shell,) = re.findall(r"```bash\n(.*?)```", first, flags=re.S)
    assert [line.split()[0] for line in shell.splitlines()] == ["git", "make", "source", "accelerate"]


@pytest.mark.parametrize(
    "link, shown",
    [
        ("[a test](../tests/test_docs.py)", "a test (`tests/test_docs.py`)"),
        ("[`tests/tiny.py`](../tests/tiny.py)", "`tests/tiny.py`"),
        ("[limits](../README.md#limits)", "limits (`README.md`)"),
        ("[own](own_task.md#1-data)", "[own](own_task.md#1-data)"),
        ("[below](#arena)", "[below](#arena)"),
        ("[TRL](https://example.org/trl)", "[TRL](https://example.org/trl)"),
        ("![picture](images/method.svg)", "![picture](images/method.svg)"),
    ],
)
def test_links_that_leave_the_docs_become_text(link: str, shown: str) -> None:
    assert local_links(link, "performance.md") == shown


def test_a_list_after_a_line_begins_anew_and_a_word_in_italics_does_not() -> None:
    assert python_markdown("text\n* a\n* b\n  * c\n") == "text\n\n* a\n* b\n    * c\n"
    assert python_markdown("**text**\n| a |\n") == "**text**\n\n| a |\n"
    assert python_markdown("text\n*goes* on\n**and** on\n") == "text\n*goes* on\n**and** on\n"


@pytest.mark.parametrize(
    "lines, message",
    [
        ('a["A"]\n b["B"]\n a --> b\n b --> a', "circle"),
        ('a["A"]\n a --> b', r"\['b'\]"),
        ('a["A"]\n subgraph x', "subgraph x"),
    ],
)
def test_a_flowchart_that_cannot_be_drawn_is_an_error(lines: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        drawing(f"flowchart TB\n {lines}\n")
