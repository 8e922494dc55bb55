# SPDX-License-Identifier: Apache-2.0
"""The site builds without a warning, loads nothing from elsewhere, and has what the repository has."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS / "site"))  # as mkdocs does for its hooks

from drawing import drawing  # noqa: E402
from hooks import local_links  # noqa: E402


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; the build fails at a warning."""
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install -e '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
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
    pages = {path.stem for path in DOCS.glob("*.md")}
    linked = set(re.findall(r'class="md-nav__link[^>]*href="(\w+)\.html"', (site / "safety.html").read_text()))
    linked |= set(re.findall(r'href="(\w+)\.html" class="md-nav__link', (site / "safety.html").read_text()))
    assert pages - {"safety"} <= linked and (site / "safety.html").exists()


def test_a_page_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.glob("*.html"))
    assert len(pages) > 15
    for page in pages:
        parser = Loaded()
        parser.feed(page.read_text())
        local = [address.partition("#")[0] for address in parser.addresses if not address.startswith("/")]
        assert len(local) == len(parser.addresses) or page.name == "404.html"
        assert [address for address in local if not (site / address).exists()] == []
        assert 'class="mermaid"' not in page.read_text()  # the theme would fetch mermaid for it


def test_home_page_is_the_first_screen_of_the_readme(site: Path) -> None:
    shown = re.sub(r"<[^>]+>", "", (site / "index.html").read_text())
    for part in ("GRPO under a token budget", "make demo", "-from trl import GRPOConfig, GRPOTrainer"):
        assert part in shown
    assert "Documentation" not in shown  # a section further down
    assert 'src="images/method.svg"' in (site / "index.html").read_text()


def test_no_markdown_is_left(site: Path) -> None:
    for page in site.glob("*.html"):
        text = re.sub(r"<pre.*?</pre>|<code.*?</code>", "", page.read_text(), flags=re.S)
        assert re.findall(r"^(?:<p>)?[*-] .*|^.*\*\*\w.*|^.*\| ?---.*|^```.*", text, flags=re.M) == [], page.name


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
