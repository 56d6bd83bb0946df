"""Tables and figures for people, and results that present themselves as text, JSON, HTML or a page."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from html import escape
from typing import Any, Generic, TypeVar

#: Maximum width of a first column, in characters.
NAME_WIDTH_MAX = 40
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Maximum number of names to list; further names are only counted.
_NAMES_SHOWN = 6
#: From this number of sentences on that differ only in offsets and sizes, show one sentence for all.
_ALIKE_MIN = 3
_OWN_FIGURES = re.compile(r"(offsets? )\d+( to \d+)?|\b\d[\d.,]* [kMGTPE]?B\b|\b\d[\d,]*(?= batch)")
_THOUSANDS = ("", " k", " M", " G", " T", " P")
_UNITS = ("kB", "MB", "GB", "TB", "PB", "EB")


@dataclass(frozen=True, slots=True)
class Column:
    """A column's title and alignment."""

    title: str
    right: bool = False


def table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], *, widths: list[int] | None = None
) -> Iterable[str]:
    """Yield aligned lines. A first cell that is too long gets a line of its own, before its row.

    Args:
        widths: widths of an earlier part of the same table, or an empty list; they grow to those of this part.
    """
    titles = [column.title for column in columns]
    widths = [] if widths is None else widths
    needed = [max(map(len, cells)) for cells in zip(titles, *rows, strict=True)]
    needed[0] = max((len(row[0]) for row in [titles, *rows] if len(row[0]) <= NAME_WIDTH_MAX), default=0)
    widths[:] = map(max, needed, widths or needed)
    for row in [titles, *rows]:
        first = row[0]
        if len(first) > widths[0]:
            yield first
            first = ""
        cells = zip((first, *row[1:]), columns, widths, strict=True)
        yield "  ".join(
            cell.rjust(width) if column.right else cell.ljust(width) for cell, column, width in cells
        ).rstrip()


#: Columns, each with a function that formats its cell of a value.
Cells = Sequence[tuple[Column, Callable[[Any], str]]]


def cells_of(columns: Cells, values: Iterable[Any]) -> tuple[list[Column], list[list[str]]]:
    """Return the columns of a table, and a row for each value."""
    return [column for column, _ in columns], [[cell(one) for _, cell in columns] for one in values]


def html_table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    caption: str,
    *,
    last_rows: Sequence[Sequence[str]] = (),
    rows_max: int = 50,
) -> str:
    """Return a small HTML table with a caption; all texts are escaped.

    Args:
        last_rows: rows such as totals, always shown, below the others.
        rows_max: maximum number of the other rows to show.
    """
    sides = ["right" if column.right else "left" for column in columns]

    def line(tag: str, cells: Iterable[str]) -> str:
        inner = "".join(
            f'<{tag} style="text-align: {side}">{escape(printable(cell))}</{tag}>'
            for side, cell in zip(sides, cells, strict=True)
        )
        return f"<tr>{inner}</tr>"

    more = [f'<tr><td colspan="{len(columns)}">and {len(rows) - rows_max:,} more</td></tr>'] * (len(rows) > rows_max)
    body = "\n".join([*(line("td", row) for row in rows[:rows_max]), *more, *(line("td", row) for row in last_rows)])
    head = line("th", (column.title for column in columns))
    return f"<table>\n<caption>{escape(printable(caption))}</caption>\n{head}\n{body}\n</table>"


def printable(text: str) -> str:
    """Escape all characters that a terminal might interpret, as names from disk may contain them."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def names_text(names: Sequence[str]) -> str:
    """List the first names, and count the rest."""
    more = f" and {len(names) - _NAMES_SHOWN:,} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(names[:_NAMES_SHOWN]) + more


def by_sentence(sentences: Iterable[tuple[str, str]]) -> Mapping[str, Sequence[str]]:
    """Group names by the sentence about them.

    Sentences of many partitions that differ only in offsets and sizes become one, with … in place of these.

    Args:
        sentences: pairs of a sentence and the name of its subject.
    """
    names: dict[str, list[str]] = {}
    for sentence, name in sentences:
        names.setdefault(sentence, []).append(name)
    general = {sentence: _OWN_FIGURES.sub(lambda found: f"{found[1] or ''}…", sentence) for sentence in names}
    alike = Counter(general.values())
    found: dict[str, list[str]] = {}
    for sentence, some in names.items():
        is_one_of_many = alike[general[sentence]] >= _ALIKE_MIN
        found.setdefault(general[sentence] if is_one_of_many else sentence, []).extend(some)
    return found


def number(count: int, noun: str) -> str:
    """Format a count with its noun."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def bytes_text(size_bytes: int | None) -> str:
    """Format bytes in powers of 1000, to about three digits."""
    if size_bytes is None:
        return "-"
    if size_bytes < 1000:
        return f"{size_bytes} B"
    power = 1
    while power < len(_UNITS) and size_bytes >= 999.95 * 1000**power:
        power += 1
    return f"{size_bytes / 1000**power:.1f} {_UNITS[power - 1]}"


def count_text(count: int, *, is_exact: bool = True, is_estimate: bool = False) -> str:
    """Format a count; one that is not exact as a lower bound, or as an estimate to three digits, such as ≈ 16.0 M."""
    if not is_estimate:
        return f"{count:,}" if is_exact else f"≥{count:,}"
    power = 0
    while power < len(_THOUSANDS) - 1 and count >= 999.95 * 1000**power:
        power += 1
    return f"≈ {count / 1000**power:.{min(power, 1)}f}{_THOUSANDS[power]}"


def estimate_text(size_bytes: int, error_bytes: int = 0, *, is_estimate: bool = True) -> str:
    """Format bytes; an estimate with its error, if that is known, such as ≈ 16.0 MB ± 120.0 kB."""
    error = f" ± {bytes_text(error_bytes)}" if error_bytes else ""
    return f"≈ {bytes_text(size_bytes)}{error}" if is_estimate else bytes_text(size_bytes)


def time_text(timestamp_ms: int | None) -> str:
    """Format a timestamp to the second; a timestamp outside the calendar, in milliseconds."""
    if timestamp_ms is None:
        return "-"
    try:
        moment = _EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return f"{timestamp_ms} ms"
    return moment.replace(tzinfo=None).isoformat(" ", "seconds")


def rounded(value: float) -> str:
    """Format a number to three digits, or as a whole number if it has more."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


#: Units of time with their milliseconds, the largest first.
_TIMES = (("day", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000))


def duration_text(ms: float | None) -> str:
    """Format a duration to about three digits, in the largest unit that it holds at least twice, or exactly once."""
    if ms is None:
        return "-"
    for unit, size_ms in _TIMES:
        if ms >= 2 * size_ms or (ms == size_ms and unit != "s"):
            amount = rounded(ms / size_ms)
            return f"{amount} {unit}{'s' if unit == 'day' and amount != '1' else ''}"
    return f"{ms:g} ms"


# ---- values ----------------------------------------------------------------------------------------------------------

# Keys and values in a cell of a table.


def key_text(key: bytes) -> str:
    """Return a key as readable text, or as `0x…` if it is not UTF-8."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return f"0x{key.hex()}"
    return text if text.isprintable() else f"0x{key.hex()}"


def cut_off(text: str, characters_max: int) -> str:
    """Cut a text to the size of a cell. Only its start is made printable, so a huge text costs little."""
    text = printable(text[: characters_max + 1])
    return text if len(text) <= characters_max else f"{text[: characters_max - 1]}…"


# ---- results ---------------------------------------------------------------------------------------------------------

# A result is a plain value of a low room, while text, JSON and HTML are made in `commands`, a high one. So it
# registers a presenter for each class here, and the class finds it at run time. Loading a command loads the presenters
# of its results. Pages take longer to load, so `result_pages`, the table of all, is imported for the first page.

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Presenter(Generic[_T]):
    """The presentation of the values of one class.

    Attributes:
        lines: yields lines for a terminal or a pipe, without line ends.
        document: returns one JSON value for `--json`.
        html: returns HTML for a notebook; None to show the lines.
        svg: returns a chart; None if there is no chart.
    """

    lines: Callable[[_T], Iterator[str]]
    document: Callable[[_T], dict[str, Any]]
    html: Callable[[_T], str] | None = None
    svg: Callable[[_T], str] | None = None


_presenters: dict[type, Presenter[Any]] = {}


def register(
    kind: type[_T],
    *,
    lines: Callable[[_T], Iterator[str]],
    document: Callable[[_T], dict[str, Any]],
    html: Callable[[_T], str] | None = None,
    svg: Callable[[_T], str] | None = None,
) -> None:
    """Register the presenter of a class."""
    _presenters[kind] = Presenter(lines, document, html, svg)


class Presentable:
    """Base of results with a registered presenter."""

    __slots__ = ()

    def text(self) -> str:
        """Return the result for people, as the command prints it."""
        return "\n".join(_presenters[type(self)].lines(self))

    def document(self) -> dict[str, Any]:
        """Return the result as one JSON value, as the command prints it with `--json`."""
        return _presenters[type(self)].document(self)

    def _repr_html_(self) -> str:
        """Return the result for a notebook."""
        html = _presenters[type(self)].html
        return f"<pre>{escape(self.text())}</pre>" if html is None else html(self)


class Paged(Presentable):
    """Base of results with a page of their own."""

    __slots__ = ()

    def page(self) -> str:
        """Return the result as one HTML file, which needs no network."""
        return str(importlib.import_module("cordwood.result_pages").file_page(self))


class Charted(Paged):
    """Base of results with a page and a chart."""

    __slots__ = ()

    def svg(self) -> str:
        """Return the result as a chart: the text of an SVG file."""
        svg = _presenters[type(self)].svg
        assert svg is not None, "it is registered with one"
        return svg(self)
