# SPDX-License-Identifier: Apache-2.0
"""The notebooks as pages of the site: their prose, their code, and what it printed and drew.

Outputs are not stored in notebooks/. They come from the copies that `make notebooks` leaves in outputs/notebooks; a
copy of an older text is not used.
"""

import json
import re
from pathlib import Path
from typing import Any

from formulas import formulas

_LAST_IN_SEARCH = "---\nsearch: {boost: 0.3}\n---"
ROOT = Path(__file__).resolve().parent.parent.parent
NOTEBOOKS = ROOT / "notebooks"
EXECUTED = ROOT / "outputs" / "notebooks"


def notebook_page(path: Path, executed: Path) -> str:
    """A notebook as Markdown.

    Args:
        path (Path): The notebook.
        executed (Path): Its executed copy, which need not exist.
    """
    cells = json.loads(path.read_text())["cells"]
    ran = json.loads(executed.read_text())["cells"] if executed.exists() else []
    fresh = [_source(cell) for cell in ran if not _injected(cell)] == [_source(cell) for cell in cells]
    note = "outputs of a run on a CPU without the Hub" if fresh else "without outputs"
    title, *others = ran if fresh else cells
    link = f"[`{path.name}`]({path.name}), {note}; `make notebooks` runs it."
    return "\n\n".join([_LAST_IN_SEARCH, _shown(title), link, *map(_shown, others)])


def _source(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def _injected(cell: dict[str, Any]) -> bool:
    """Values that notebooks/execute.py put in the place of those in the parameters cell."""
    return "injected-parameters" in cell["metadata"].get("tags", [])


def _shown(cell: dict[str, Any]) -> str:
    if cell["cell_type"] == "markdown":
        return formulas(_source(cell))
    return "\n\n".join([_block(_source(cell), "python"), *map(_output, cell["outputs"])])


def _output(output: dict[str, Any]) -> str:
    """What a cell printed, showed or drew; warnings and progress bars on stderr are left out."""
    data = output.get("data", {})
    if "image/png" in data:
        return f'<img alt="Figure of the cell above" src="data:image/png;base64,{"".join(data["image/png"]).strip()}">'
    if "text/markdown" in data:
        return "".join(data["text/markdown"])
    text = "".join(data.get("text/plain", "") or (output.get("text", "") if output.get("name") == "stdout" else ""))
    text = re.sub(r"\x1b\[[\d;]*m", "", text).replace(f"{ROOT}/", "").replace(str(ROOT), ".").strip("\n")
    return f'<div class="output" markdown>\n\n{_block(text, "text")}\n\n</div>' if text else ""


def _block(text: str, language: str) -> str:
    return f"```{language}\n{text}\n```"
