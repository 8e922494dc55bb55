# SPDX-License-Identifier: Apache-2.0
"""What mkdocs does with a page before it is HTML (mkdocs.yml names this file).

The home page takes the first screen of README.md, the configuration reference its tables from the declarations, a
notebook becomes a page, a flowchart a drawing, and a link to a file that is no page of the site its text and path.
Afterwards the cells of tables get what narrow screens need.
"""

import posixpath
import re
import shutil
import subprocess
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

from drawing import drawing
from notebook_pages import EXECUTED, NOTEBOOKS, notebook_page
from reference import BEGIN, END, written

DOCS = Path(__file__).resolve().parent.parent
FIRST_SCREEN = re.compile(r"<!-- first screen -->\n(.*?)<!-- end of the first screen -->", flags=re.S)


def on_config(config: Any, **_: Any) -> None:
    """The repository that this clone comes from, in the header of every page."""
    if shutil.which("git"):
        command = ["git", "-C", str(DOCS), "config", "--get", "remote.origin.url"]
        config.repo_url = repository(subprocess.run(command, capture_output=True, text=True).stdout.strip())
        config.repo_name = "/".join(config.repo_url.split("/")[-2:])


def on_files(files: Any, config: Any, **_: Any) -> None:
    """A page for every notebook, and the notebook itself beside it."""
    from mkdocs.structure.files import File  # the tests of the functions below do without mkdocs

    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        page = notebook_page(path, EXECUTED / path.name)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=page))
        files.append(File.generated(config, f"notebooks/{path.name}", abs_src_path=str(path)))


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The Markdown of a page as the site needs it."""
    name = page.file.src_uri
    if name == "index.md":
        markdown = home(markdown, (DOCS.parent / "README.md").read_text())
    if name == "configuration.md":
        markdown = written(markdown).replace(BEGIN, '<div class="reference" markdown>').replace(END, "</div>")
    markdown = re.sub(r"^```mermaid\n(.*?)^```", lambda block: drawn(block[1]), markdown, flags=re.M | re.S)
    return outside_code(markdown, lambda text: python_markdown(local_links(text, name)))


def on_page_content(html: str, **_: Any) -> str:
    """The HTML of a page with tables that fit a narrow screen."""
    return re.sub(r"<table>.*?</table>", lambda table: narrow(table[0]), html, flags=re.S)


def on_post_page(output: str, **_: Any) -> str:
    """Without what makes the theme ask GitHub for the stars of the repository."""
    return output.replace('data-md-component="source"', "")


def repository(origin: str) -> str:
    """Address of a repository's page by that of its clone, without credentials; empty for a folder."""
    found = re.fullmatch(r"(?:\w+://)?(?:[^@/]+@)?([\w-]+(?:\.[\w-]+)+)(?::\d+)?[:/](.+?)(?:\.git)?/?", origin)
    return f"https://{found[1]}/{found[2]}" if found else ""


def narrow(table: str) -> str:
    """A table whose cells know the heading of their column and whose code may break after a joint of its name."""
    heads = re.findall(r"<th[^>]*>(.*?)</th>", table, flags=re.S)
    columns = cycle(re.sub(r"<[^>]+>", "", head).replace('"', "&quot;") for head in heads)
    table = re.sub(r"<td", lambda _: f'<td data-column="{next(columns)}"', table)
    joint = re.compile(r"(?<=[_/=,])(?=\w)|(?<=\.)(?=[a-z_])")
    return re.sub(r"(?<=<code>)[^<]+", lambda code: joint.sub("<wbr>", code[0]), table)


def home(page: str, readme: str) -> str:
    """The home page with the first screen of the README in the place of the line that names it."""
    found = FIRST_SCREEN.search(readme)
    if found is None or page.count("<!-- first screen -->") != 1:
        raise ValueError("README.md needs `<!-- first screen -->` and its end, docs/index.md the first of them once.")
    return page.replace("<!-- first screen -->", found[1].replace("](docs/", "]("))


def drawn(flowchart: str) -> str:
    """The drawing of a flowchart, in a box that scrolls."""
    return f'<div class="scroll">{drawing(flowchart)}</div>'


def outside_code(markdown: str, change: Callable[[str], str]) -> str:
    """Markdown with its text changed and its blocks of code left alone."""
    parts = re.split(r"(^```.*?^```)", markdown, flags=re.M | re.S)
    return "".join(part if part.startswith("```") else change(part) for part in parts)


def python_markdown(text: str) -> str:
    """GitHub's Markdown as Python's wants it: four spaces for a list inside a list, an empty line before one."""
    text = re.sub(r"^(?![*-] )([^\s|#].*)\n(?=[*-] |\|)", r"\1\n\n", text, flags=re.M)
    return re.sub(r"^ +", lambda spaces: 2 * spaces[0], text, flags=re.M)


def local_links(text: str, name: str) -> str:
    """Links to files that are no part of the site, as their text and, where it says something else, the path."""

    def written_out(link: re.Match) -> str:
        words, target = link[1], link[2].partition("#")[0]
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(name), target))
        if not target or re.match(r"[a-z]+:", target) or path.startswith("docs/"):
            return link[0]
        return words if path in words else f"{words} (`{path}`)"

    return re.sub(r"(?<!!)\[([^]]*)\]\(([^)\s]+)\)", written_out, text)
