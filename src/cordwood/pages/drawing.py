"""Drawings as SVG within a page: the page's style sheet colours them, so they follow its light and dark.

A drawing is made twice, for wide and for narrow screens, as text in it must not shrink with it; the style sheet shows
one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cordwood.pages.markup import Content, Markup, join, tag

#: Widths that drawings are made for, in the pixels that they have on a screen.
WIDE, NARROW = 1080, 330
#: About the width of a letter, as a share of the size of the type.
_LETTER = 0.6
_SIZE = 13


class Box(NamedTuple):
    """A rectangle."""

    x: float
    y: float
    width: float
    height: float


def both(draw: Callable[[int], Markup]) -> Markup:
    """A drawing for each width of screen."""
    return join([tag("div", draw(WIDE), class_="wide"), tag("div", draw(NARROW), class_="narrow")])


def svg(width: float, height: float, label: str, *content: Content, has_links: bool = False) -> Markup:
    """A drawing.

    Args:
        label: what it shows, for who does not see it; the figures are in a table beside it.
        has_links: parts of it lead somewhere, so that it is not one image.
    """
    role = "group" if has_links else "img"
    return tag("svg", *content, viewBox=f"0 0 {width:g} {height:g}", role=role, aria_label=label)


def rect(box: Box, class_: str, title: str = "", *, fill: str | None = None) -> Markup:
    """A filled rectangle, with words for who points at it."""
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
    """A line."""
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def text(x: float, y: float, words: str, *, anchor: str | None = None, class_: str | None = None) -> Markup:
    """A line of text; `y` is its base line."""
    return tag("text", words, x=x, y=y, text_anchor=anchor, class_=class_)


def text_width(words: str) -> float:
    """About how long a line of text is."""
    return _LETTER * _SIZE * len(words)


def fitting(words: str, width: float) -> str:
    """Text that is cut so that it fits; empty if that leaves nothing of use."""
    letters = int(width / (_LETTER * _SIZE))
    if len(words) <= letters:
        return words
    return words[: letters - 1] + "…" if letters >= 4 else ""


# ---- bars ------------------------------------------------------------------------------------------------------------


def share_bar(share: float, label: str) -> Markup:
    """A bar of which a part is filled."""
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
    """A row of a bar chart: how much, and which part of that."""

    label: str
    value: float
    part: float
    words: str


def bars(rows: Sequence[Bar], label: str, width: int) -> Markup:
    """A bar for each row with its label above it; a part of each is marked as what could go."""
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
        part: the share of it that is marked, from 0 to 1.
        words: a second line.
        link: where it leads to; None: nowhere.
    """

    label: str
    size: float
    part: float
    words: str
    link: str | None = None


def treemap(tiles: Sequence[Tile], label: str, width: int, height: int) -> Markup:
    """A rectangle for each tile, as large as its share of all; the largest first."""
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
    # A drawing within the drawing cuts off what is too long.
    drawn = tag("svg", shapes, x=box.x, y=box.y, width=box.width, height=box.height)
    # Its name, and what who points at it reads, is all of the text, however much of that is drawn.
    return tag("g" if tile.link is None else "a", tag("title", title), drawn, href=tile.link)


def squarified(sizes: Sequence[float], area: Box) -> list[Box]:
    """Rectangles with areas in proportion to some sizes, which descend; as near to squares as rows allow.

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
    """The worst ratio of sides in a row along a side."""
    total = sum(row) * scale
    if not total or not min(row):
        return float("inf")
    return max(side * side * max(row) * scale / total**2, total**2 / (side * side * min(row) * scale))


def _row(row: Sequence[float], depth: float, area: Box) -> tuple[list[Box], Box]:
    """The rectangles of a row along the shorter side, and the area that is left."""
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
