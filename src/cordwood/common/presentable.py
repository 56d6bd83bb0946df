"""Results that present themselves: `print(result.text())`, `result.document()`, and a table in a notebook.

A result is a plain value of a low room, while text, JSON and HTML are made in `commands.report`, a high one. So it
registers a presenter for each class here, and the class finds it at run time. Commands, which return results, import
`report`. Pages take longer to load, so `result_pages`, the table of all, is imported when the first page is made.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import escape
from typing import Any, Generic, TypeVar

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
