"""A log drawn to scale: its bytes from left to right, segment by segment.

    lines      log start, first dirty offset, last stable offset, high watermark, end
    band       clean, dirty, active
    columns    the bytes of each segment by kind; see `storage.index.contents`
    strip      the range that key indexes cover
    strips     producers with the most data, from their first batch to their last
    strips     open transactions, from their first offset to the end
    axis       offsets and times at the starts of segments

Batches have about the same size, so an offset is placed by its share of the segment's offsets. Segments that would be
too narrow to see are drawn together.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cordwood.common.text import bytes_text, estimate_text, number, time_text
from cordwood.storage.index.contents import Content as Kind
from cordwood.storage.index.contents import LogContents
from cordwood.view.pages.drawing import Box, fitting, line, rect, svg, text, text_width
from cordwood.view.pages.frame import Links
from cordwood.view.pages.markup import Content, Markup, join, tag

#: Minimum width of a column, in pixels.
_COLUMN_MIN = 4.0
_LINE, _BAND, _COLUMNS, _STRIP, _GAP = 17, 24, 120, 9, 8
_STRIP_MIN = 3.0
#: Maximum number of open transactions, and of producers, in the drawing.
_STRIPS_MAX = 5
#: Hatched kinds, as some readers cannot distinguish their colours from others.
_HATCHED = (Kind.ABORTED, Kind.DEAD, Kind.UNKNOWN)


@dataclass(frozen=True, slots=True)
class DrawnSegment:
    """A segment in the drawing.

    Attributes:
        end_offset: base offset of the next segment, or the log end.
        bytes_of: bytes by kind; empty if unknown.
        indexed_bytes: bytes covered by a key index.
        is_estimate: whether the bytes by kind are estimates.
    """

    base_offset: int
    end_offset: int
    size_bytes: int
    newest_ms: int | None
    bytes_of: Mapping[Kind, int]
    indexed_bytes: int
    is_estimate: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """A vertical line at an offset."""

    label: str
    offset: int


@dataclass(frozen=True, slots=True)
class DrawnLog:
    """The log to draw.

    Attributes:
        name: distinguishes the drawing from others on the same page.
        first_dirty: the first dirty offset, or None if the log is not compacted.
        producers: producers with the most data: id, first and last offset.
        open_offsets: the first offsets of open transactions.
    """

    path: str
    name: str
    segments: tuple[DrawnSegment, ...]
    first_dirty: int | None
    marks: tuple[Mark, ...]
    producers: tuple[tuple[int, int, int], ...]
    open_offsets: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Size of all segments."""
        return sum(one.size_bytes for one in self.segments)


class _Scale:
    """Maps bytes and offsets to horizontal positions."""

    def __init__(self, log: DrawnLog, width: float) -> None:
        self._segments = log.segments
        self._bases = [one.base_offset for one in log.segments]
        self.starts = [0.0]
        total = log.size_bytes or 1
        for one in log.segments:
            self.starts.append(self.starts[-1] + width * one.size_bytes / total)
        self.width = width

    def of_offset(self, offset: int) -> float:
        """Return the horizontal position of an offset."""
        at = bisect.bisect_right(self._bases, offset) - 1
        if at < 0:
            return 0.0
        segment = self._segments[at]
        offsets = segment.end_offset - segment.base_offset
        share = min(1.0, (offset - segment.base_offset) / offsets) if offsets > 0 else 0.0
        return self.starts[at] + share * (self.starts[at + 1] - self.starts[at])


def draw_log(log: DrawnLog, links: Links, width: int) -> Markup:
    """Draw a log."""
    scale = _Scale(log, width)
    labels, top = _marks(log, scale)
    shapes: list[Content] = [_hatch(log, width)]
    bottom = top + _BAND
    shapes += _band(log, scale, top)
    bottom += _GAP
    shapes += _columns(log, scale, bottom, links, f"url(#{_hatch_id(log, width)})")
    bottom += _COLUMNS
    if any(one.indexed_bytes for one in log.segments):
        bottom += _GAP
        shapes += _indexes(log, scale, bottom)
        bottom += _STRIP
    for box, class_, title in _strips(log, scale, bottom):
        shapes.append(rect(box, class_, title))
        bottom = box.y + box.height
    shapes += [line(x, 0, x, bottom, "mark") for x in sorted({x for x, _ in labels})]
    shapes += [words for _, words in labels]
    bottom += 4
    shapes += _axis(log, scale, bottom)
    label = f"The log of {log.path} by segment, {bytes_text(log.size_bytes)}; the tables below have the figures"
    return svg(width, bottom + 2 * _LINE + 4, label, shapes, has_links=True)


# ---- lines -----------------------------------------------------------------------------------------------------------


def _marks(log: DrawnLog, scale: _Scale) -> tuple[list[tuple[float, Markup]], float]:
    """Place the labels of lines in as few rows as they need; return the labels with positions, and the total height."""
    at_offset: dict[int, list[str]] = {}
    for mark in log.marks:
        at_offset.setdefault(mark.offset, []).append(mark.label)
    ends: list[float] = []
    placed: list[tuple[float, Markup]] = []
    for offset in sorted(at_offset):
        x = min(max(scale.of_offset(offset), 1.0), scale.width - 1)
        words = fitting(f"{', '.join(at_offset[offset])} {offset}", scale.width - 10)
        length = text_width(words)
        is_left = x + 4 + length > scale.width
        start = x - 4 - length if is_left else x + 4
        start, is_left = (start, is_left) if start >= 0 else (0.0, False)
        row = next((row for row, end in enumerate(ends) if end + 8 <= start), len(ends))
        ends[row : row + 1] = [start + length]
        placed.append(
            (
                x,
                text(
                    x - 4 if is_left else start,
                    _LINE * row + 12,
                    words,
                    anchor="end" if is_left else None,
                    class_="label",
                ),
            )
        )
    return placed, _LINE * len(ends) + 4


def _axis(log: DrawnLog, scale: _Scale, top: float) -> list[Content]:
    """Draw the base offsets of as many segments as fit, with the times below the offsets."""
    shapes: list[Content] = [line(0, top, scale.width, top, "axis")]
    free = 0.0
    for one, x in zip(log.segments, scale.starts, strict=False):
        words = str(one.base_offset), time_text(one.newest_ms)
        length = max(map(text_width, words))
        if x < free or x + length > scale.width:
            continue
        shapes.append(line(x, top, x, top + 5, "axis"))
        shapes += [text(x + 2, top + _LINE * at, each, class_="quiet") for at, each in enumerate(words, 1)]
        free = x + length + 16
    return shapes


# ---- rectangles ------------------------------------------------------------------------------------------------------


def _band(log: DrawnLog, scale: _Scale, top: float) -> list[Content]:
    active = scale.starts[-2] if log.segments else 0.0
    dirty = active if log.first_dirty is None else min(scale.of_offset(log.first_dirty), active)
    before = "kept" if log.first_dirty is None else "clean"
    parts = [
        (before, 0.0, dirty, "of-clean" if log.first_dirty is not None else "tile"),
        ("dirty", dirty, active, "of-dirty"),
        ("active", active, scale.width, "of-active"),
    ]
    shapes: list[Content] = []
    for words, start, end, class_ in parts:
        if end > start:
            shapes.append(rect(Box(start, top, end - start, _BAND), class_, words))
            shapes.append(text(start + 5, top + 17, fitting(words, end - start - 8), class_="on-colour"))
    shapes += [line(x, top, x, top + _BAND, "edge") for x in _apart(scale.starts[1:-1])]
    return shapes


def _apart(places: Sequence[float]) -> list[float]:
    found: list[float] = []
    for x in places:
        if not found or x - found[-1] >= _COLUMN_MIN:
            found.append(x)
    return found


def _columns(log: DrawnLog, scale: _Scale, top: float, links: Links, hatch: str) -> list[Content]:
    shapes: list[Content] = []
    at = 0
    while at < len(log.segments):
        end = at + 1
        while end < len(log.segments) and scale.starts[end] - scale.starts[at] < _COLUMN_MIN:
            end += 1
        box = Box(scale.starts[at], top, scale.starts[end] - scale.starts[at], _COLUMNS)
        column = _column(log.segments[at:end], box, hatch)
        href = links.to("batches", path=log.path, offset=log.segments[at].base_offset)
        words = _words(log.segments[at:end])
        shapes.append(column if href is None else tag("a", column, href=href, aria_label=words))
        at = end
    return shapes


def _words(segments: Sequence[DrawnSegment]) -> str:
    sizes = _sums(segments)
    about = any(one.is_estimate for one in segments)
    what = ", ".join(f"{estimate_text(size, is_estimate=about)} {kind}" for kind, size in sizes.items()) or "empty"
    which = f"segment {segments[0].base_offset}"
    if len(segments) > 1:
        which = f"{number(len(segments), 'segment')} from {segments[0].base_offset} on"
    return f"{which}: {what}"


def _sums(segments: Sequence[DrawnSegment]) -> dict[Kind, int]:
    sizes: dict[Kind, int] = {}
    for one in segments:
        for kind, size in (one.bytes_of or {Kind.UNKNOWN: one.size_bytes}).items():
            sizes[kind] = sizes.get(kind, 0) + size
    return {kind: sizes[kind] for kind in Kind if sizes.get(kind)}


def _column(segments: Sequence[DrawnSegment], box: Box, hatch: str) -> Markup:
    """Draw a column: live data at the bottom, removable data above."""
    sizes, title = _sums(segments), _words(segments)
    total, bottom = sum(sizes.values()) or 1, box.y + box.height
    shapes: list[Markup] = []
    for kind, size in sizes.items():
        height = box.height * size / total
        part = Box(box.x, bottom - height, box.width, height)
        shapes += kind_rects(part, kind, hatch, title)
        bottom -= height
    shapes.append(line(box.x + box.width, box.y, box.x + box.width, box.y + box.height, "edge"))
    return join(shapes)


def kind_rects(box: Box, kind: Kind, hatch: str, title: str = "") -> list[Markup]:
    """Draw a rectangle in the colour of a kind."""
    found = [rect(box, f"of-{kind}", title)]
    return [*found, rect(box, "", title, fill=hatch)] if kind in _HATCHED else found


def _indexes(log: DrawnLog, scale: _Scale, top: float) -> list[Content]:
    shapes: list[Content] = []
    for one, x, end in zip(log.segments, scale.starts, scale.starts[1:], strict=False):
        if one.indexed_bytes and one.size_bytes:
            share = min(1.0, one.indexed_bytes / one.size_bytes)
            shapes.append(rect(Box(x, top, max(1.0, (end - x) * share - 1), _STRIP), "of-index", "key index"))
    return shapes


def _strips(log: DrawnLog, scale: _Scale, top: float) -> Iterator[tuple[Box, str, str]]:
    """Yield the strips of producers and open transactions, from top to bottom: rectangle, style and words."""
    ends = [
        *(
            (first, scale.of_offset(last + 1), "of-producer", f"producer {id}: offsets {first} to {last}")
            for id, first, last in log.producers[:_STRIPS_MAX]
        ),
        *(
            (first, scale.width, "of-open", f"open transaction from offset {first} on")
            for first in log.open_offsets[:_STRIPS_MAX]
        ),
    ]
    for row, (first, end, class_, title) in enumerate(ends):
        x = min(scale.of_offset(first), scale.width - _STRIP_MIN)
        y = top + _GAP / 2 + row * (_STRIP + _GAP / 2)
        yield Box(x, y, max(_STRIP_MIN, end - x), _STRIP), class_, title


def _hatch_id(log: DrawnLog, width: int) -> str:
    return f"hatch-{log.name}-{width}"


def _hatch(log: DrawnLog, width: int) -> Markup:
    return hatch_pattern(_hatch_id(log, width))


def hatch_pattern(id: str) -> Markup:
    """Define the pattern for hatched kinds."""
    stripes = tag("path", d="M-1,7 L7,-1 M-1,1 L1,-1 M5,7 L7,5", class_="hatch", fill="none")
    return tag("defs", tag("pattern", stripes, id=id, width=6, height=6, patternUnits="userSpaceOnUse"))


# ---- the whole log ---------------------------------------------------------------------------------------------------


def draw_whole(contents: LogContents, name: str, width: int) -> Markup:
    """Draw the bytes of the whole log by kind, as one bar."""
    id = f"hatch-whole-{name}-{width}"
    total = sum(contents.estimate.values()) or 1
    shapes: list[Content] = [hatch_pattern(id)]
    x = 0.0
    for kind, size in contents.estimate.items():
        part = width * size / total
        shapes += kind_rects(Box(x, 0, part, 26), kind, f"url(#{id})", f"{kind}: {_estimate(contents, kind)}")
        x += part
    return svg(width, 26, "What the bytes of the whole log are; the list below has the figures", shapes)


def _estimate(contents: LogContents, kind: Kind) -> str:
    error = contents.errors.get(kind, 0)
    return estimate_text(contents.estimate[kind], error, is_estimate=not contents.is_exact)


def legend(contents: LogContents, name: str) -> Markup:
    """List the colours with the bytes of each kind."""
    total = sum(contents.estimate.values()) or 1
    items = [
        tag(
            "li",
            tag(
                "svg",
                hatch_pattern(f"hatch-{name}-{kind}"),
                kind_rects(Box(0, 0, 14, 14), kind, f"url(#hatch-{name}-{kind})"),
                viewBox="0 0 14 14",
                aria_hidden="true",
            ),
            f"{kind}: {_estimate(contents, kind)}, {size / total:.0%}",
        )
        for kind, size in contents.estimate.items()
    ]
    return tag("ul", items, class_="legend")
