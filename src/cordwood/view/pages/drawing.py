"""SVG drawings within a page. The page's style sheet sets their colours, so they follow its light and dark modes.

Each drawing is made twice, for wide and for narrow screens, because a scaled drawing would shrink its text. The style
sheet shows the fitting one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cordwood.view.pages.markup import Content, Markup, join, tag

#: Widths of the two versions, in screen pixels.
WIDE, NARROW = 1080, 330
#: Approximate width of a letter, as a share of the type size.
_LETTER = 0.6
_SIZE = 13


class Box(NamedTuple):
    """A rectangle in pixels."""

    x: float
    y: float
    width: float
    height: float


def both(draw: Callable[[int], Markup]) -> Markup:
    """Draw a version for each screen width."""
    return join([tag("div", draw(WIDE), class_="wide"), tag("div", draw(NARROW), class_="narrow")])


def svg(width: float, height: float, label: str, *content: Content, has_links: bool = False) -> Markup:
    """Make a drawing.

    Args:
        label: description for screen readers; a table beside the drawing has the figures.
        has_links: whether parts are links, so that the drawing is a group and not one image.
    """
    role = "group" if has_links else "img"
    return tag("svg", *content, viewBox=f"0 0 {width:g} {height:g}", role=role, aria_label=label)


def rect(box: Box, class_: str, title: str = "", *, fill: str | None = None) -> Markup:
    """Make a filled rectangle; `title` appears when a reader points at it."""
    words = tag("title", title) if title else None
    return tag(
        "rect",
        words,
        x=box.x,
        y=box.y,
        width=max(box.width, 0.0),
        height=max(box.height, 0.0),
        class_=class_,
        fill=fill,
    )


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    """Make a line."""
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def text(x: float, y: float, words: str, *, anchor: str | None = None, class_: str | None = None) -> Markup:
    """Make a line of text; `y` is its base line."""
    return tag("text", words, x=x, y=y, text_anchor=anchor, class_=class_)


def text_width(words: str) -> float:
    """Estimate the width of a line of text."""
    return _LETTER * _SIZE * len(words)


def fitting(words: str, width: float) -> str:
    """Cut text to a width; return an empty text if too few letters would remain."""
    letters = int(width / (_LETTER * _SIZE))
    if len(words) <= letters:
        return words
    return words[: letters - 1] + "…" if letters >= 4 else ""


# ---- bars ------------------------------------------------------------------------------------------------------------


def share_bar(share: float, label: str) -> Markup:
    """Draw a bar that is partly filled."""
    width, height = 120, 12
    filled = Box(0, 0, width * min(max(share, 0), 1), height)
    return tag(
        "svg",
        rect(Box(0.5, 0.5, width - 1, height - 1), "bar-ground"),
        rect(filled, "bar"),
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        role="img",
        aria_label=label,
    )


@dataclass(frozen=True, slots=True)
class Bar:
    """A row of a bar chart: a value, and the share of it to mark."""

    label: str
    value: float
    part: float
    words: str


def bars(rows: Sequence[Bar], label: str, width: int) -> Markup:
    """Draw a labelled bar for each row, with its part marked."""
    most, step = max((row.value for row in rows), default=0) or 1, 40
    shapes: list[Markup] = []
    for number, row in enumerate(rows):
        top = step * number
        full = Box(0, top + 18, width * row.value / most, 14)
        shapes += [
            text(0, top + 13, fitting(f"{row.label}: {row.words}", width)),
            rect(full, "tile"),
            rect(full._replace(width=full.width * row.part), "could-go"),
        ]
    return svg(width, step * len(rows) or 1, label, shapes)


# ---- treemap ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tile:
    """A rectangle of a treemap.

    Attributes:
        part: the share of it to mark, from 0 to 1.
        words: a second line.
        link: target of a click, or None.
    """

    label: str
    size: float
    part: float
    words: str
    link: str | None = None


def treemap(tiles: Sequence[Tile], label: str, width: int, height: int) -> Markup:
    """Draw a rectangle for each tile, sized by its share of the total. Pass the tiles by descending size."""
    boxes = squarified([tile.size for tile in tiles], Box(0, 0, width, height))
    shapes = [_tile(tile, box) for tile, box in zip(tiles, boxes, strict=True)]
    return svg(width, height, label, shapes, has_links=True)


def _tile(tile: Tile, box: Box) -> Markup:
    marked = box.height * tile.part
    title = f"{tile.label} {tile.words}"
    shapes = [
        rect(Box(0, 0, box.width, box.height), "tile"),
        rect(Box(0, box.height - marked, box.width, marked), "could-go"),
    ]
    for number, words in enumerate((tile.label, tile.words), 1):
        if box.height >= 19 * number:
            shapes.append(text(6, 17 * number, fitting(words, box.width - 10)))
    # A nested drawing cuts off text that is too long.
    drawn = tag("svg", shapes, x=box.x, y=box.y, width=box.width, height=box.height)
    # The title holds the full text, for screen readers and for readers who point at the tile.
    return tag("g" if tile.link is None else "a", tag("title", title), drawn, href=tile.link)


def squarified(sizes: Sequence[float], area: Box) -> list[Box]:
    """Divide an area into rectangles in proportion to descending sizes, as near to squares as rows allow.

    Source: Bruls, Huizing, van Wijk, "Squarified Treemaps" (2000).
    """
    boxes: list[Box] = []
    left, at = sum(sizes), 0
    while at < len(sizes):
        if left <= 0 or min(area.width, area.height) <= 0:
            return boxes + [area._replace(width=0.0, height=0.0)] * (len(sizes) - at)
        scale = area.width * area.height / left
        side = min(area.width, area.height)
        end, worst = at + 1, _worst(sizes[at : at + 1], scale, side)
        while end < len(sizes) and (wider := _worst(sizes[at : end + 1], scale, side)) <= worst:
            end, worst = end + 1, wider
        row = sizes[at:end]
        placed, area = _row(row, sum(row) * scale / side, area)
        boxes += placed
        left, at = left - sum(row), end
    return boxes


def _worst(row: Sequence[float], scale: float, side: float) -> float:
    """Return the worst aspect ratio of a row along a side."""
    total = sum(row) * scale
    if not total or not min(row):
        return float("inf")
    return max(side * side * max(row) * scale / total**2, total**2 / (side * side * min(row) * scale))


def _row(row: Sequence[float], depth: float, area: Box) -> tuple[list[Box], Box]:
    """Return the rectangles of a row along the shorter side, and the remaining area."""
    total, before = sum(row) or 1.0, 0.0
    placed = []
    for size in row:
        if area.width >= area.height:
            placed.append(Box(area.x, area.y + area.height * before / total, depth, area.height * size / total))
        else:
            placed.append(Box(area.x + area.width * before / total, area.y, area.width * size / total, depth))
        before += size
    if area.width >= area.height:
        return placed, Box(area.x + depth, area.y, area.width - depth, area.height)
    return placed, Box(area.x, area.y + depth, area.width, area.height - depth)
