# SPDX-License-Identifier: Apache-2.0
"""A mermaid flowchart as SVG, drawn when the site is built: mermaid itself would come from elsewhere when it is read.

It reads what docs/architecture.md uses: `name["text<br/>text"]` and `name --> name`.
"""

import re
import textwrap
from html import escape
from itertools import pairwise

BOX, GAP, ROW, LINE = 136, 12, 40, 15
"""Width of a box, gap beside it, gap between rows, height of a line of text; pixels."""
_PASSAGE = 14  # room in a row for an arrow that crosses it


def drawing(flowchart: str) -> str:
    """The flowchart in rows from top to bottom; every arrow points down.

    Args:
        flowchart (str): The text of a mermaid block.

    Returns:
        str: An `<svg>` element.

    Raises:
        ValueError: If a line is neither a box nor an arrow, an arrow has no box at an end, or arrows form a circle.
    """
    texts, arrows = _read(flowchart)
    rows, chains = _rows(texts, arrows)
    places, size = _places(rows, texts)
    lines = [f'<svg class="drawing" viewBox="0 0 {size[0]} {size[1]}" role="img">']
    lines.append("<title>Who imports whom; every arrow is in the text of the page's source</title>")
    lines += [_arrow([places[stop] for stop in chain]) for chain in chains]
    lines += [_box(texts[name], *places[name]) for name in texts]
    return "\n".join([*lines, "</svg>"])


def _read(flowchart: str) -> tuple[dict[str, list[str]], list[tuple[str, str]]]:
    texts: dict[str, list[str]] = {}
    arrows = []
    for line in flowchart.strip().splitlines()[1:]:
        if box := re.fullmatch(r'\s*(\w+)\["(.*)"\]', line):
            head, _, body = box[2].partition("<br/>")
            texts[box[1]] = [head, *textwrap.wrap(body, 22)]
        elif arrow := re.fullmatch(r"\s*(\w+) --> (\w+)", line):
            arrows.append((arrow[1], arrow[2]))
        else:
            raise ValueError(f"A flowchart has boxes and arrows only, got {line.strip()!r}.")
    unknown = {name for arrow in arrows for name in arrow} - texts.keys()
    if unknown:
        raise ValueError(f"Arrows name {sorted(unknown)}, of which there is no box.")
    return texts, arrows


def _rows(texts: dict[str, list[str]], arrows: list[tuple[str, str]]) -> tuple[list[list], list[list]]:
    """Boxes and passages of each row, in order, and each arrow as the places that it goes through."""
    depth = dict.fromkeys(texts, 0)
    for _ in range(len(texts) + 1):
        changed = [(a, b) for a, b in arrows if depth[b] <= depth[a]]
        for a, b in changed:
            depth[b] = max(depth[b], depth[a] + 1)
    if changed:
        raise ValueError(f"The arrows form a circle through {changed[0][0]!r}.")
    for name in sorted(texts, key=depth.get, reverse=True):  # down to just above what it points to
        depth[name] = min((depth[b] - 1 for a, b in arrows if a == name), default=depth[name])
    chains = [[a, *((a, b, row) for row in range(depth[a] + 1, depth[b])), b] for a, b in arrows]
    rows: list[list] = [[name for name in texts if depth[name] == row] for row in range(max(depth.values()) + 1)]
    for chain in chains:
        for passage in chain[1:-1]:
            rows[passage[2]].append(passage)
    near: dict = {}
    for chain in chains:
        for a, b in pairwise(chain):
            near.setdefault(a, []).append(b)
            near.setdefault(b, []).append(a)
    for _ in range(12):  # what is joined comes to stand above each other
        for row in rows:
            middle = _middles(rows)
            row.sort(key=lambda stop: sum(middle[other] for other in near[stop]) / len(near[stop]))
    return rows, chains


def _width(stop: object) -> int:
    return BOX if isinstance(stop, str) else _PASSAGE


def _middles(rows: list[list]) -> dict:
    """Distance of every stop from the middle of its row."""
    middles = {}
    for row in rows:
        x = -sum(_width(stop) + GAP for stop in row) / 2
        for stop in row:
            middles[stop] = x + (_width(stop) + GAP) / 2
            x += _width(stop) + GAP
    return middles


def _places(rows: list[list], texts: dict[str, list[str]]) -> tuple[dict, tuple[int, int]]:
    """Of every stop: middle, top and bottom; and the size of the drawing."""
    middles = _middles(rows)
    left = min(middles.values()) - BOX / 2
    y, places = 4, {}
    for row in rows:
        height = LINE * max((len(texts[stop]) for stop in row if stop in texts), default=1) + 14
        for stop in row:
            places[stop] = (round(middles[stop] - left + 4), y, y + height)
        y += height + ROW
    return places, (round(max(middles.values()) - left + BOX / 2 + 8), y - ROW + 4)


def _box(lines: list[str], middle: int, top: int, bottom: int) -> str:
    rest = "".join(
        f'<text x="{middle}" y="{top + 5 + LINE * (number + 1)}">{escape(line)}</text>'
        for number, line in enumerate(lines)
    ).replace("<text ", '<text class="name" ', 1)
    return f'<rect x="{middle - BOX // 2}" y="{top}" width="{BOX}" height="{bottom - top}" rx="5"/>{rest}'


def _arrow(stops: list[tuple[int, int, int]]) -> str:
    x, _, y = stops[0]
    path = f"M{x} {y}"
    for end, top, bottom in stops[1:]:
        half = (y + top) / 2
        path += f" C{x} {half} {end} {half} {end} {top} L{end} {bottom}"
        x, y = end, bottom
    path = path.rpartition(" L")[0]
    top = stops[-1][1]
    return f'<path d="{path}"/><path class="head" d="M{x} {top} l-4 -8 h8 z"/>'
