"""Results that show themselves: `print(result.text())`, `result.document()`, and a table in a notebook.

A result is a plain value of a low layer, while text, JSON and HTML are made in `report`, a high one. So `report`
registers a presenter for each class here, and the class finds it at run time. Commands, which return results, import
`report`. Pages, which are higher still, are registered by `pages.results`, which the Python calls and the command line
import.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import escape
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Presenter(Generic[_T]):
    """How the values of one class are shown.

    Attributes:
        lines: for a terminal or a pipe, without line ends.
        document: for `--json`: one JSON value.
        html: for a notebook; None: it shows the lines.
        svg: as a chart; None: there is none.
    """

    lines: Callable[[_T], Iterator[str]]
    document: Callable[[_T], dict[str, Any]]
    html: Callable[[_T], str] | None = None
    svg: Callable[[_T], str] | None = None


_presenters: dict[type, Presenter[Any]] = {}
_pages: dict[type, Callable[[Any], str]] = {}


def register(
    kind: type[_T],
    *,
    lines: Callable[[_T], Iterator[str]],
    document: Callable[[_T], dict[str, Any]],
    html: Callable[[_T], str] | None = None,
    svg: Callable[[_T], str] | None = None,
) -> None:
    """Show all values of a class this way."""
    _presenters[kind] = Presenter(lines, document, html, svg)


def register_page(kind: type[_T], page: Callable[[_T], str]) -> None:
    """Write all values of a class as this page, one HTML file."""
    _pages[kind] = page


class Presentable:
    """Base of results that a presenter is registered for."""

    __slots__ = ()

    def text(self) -> str:
        """The result for people, as the command prints it."""
        return "\n".join(_presenters[type(self)].lines(self))

    def document(self) -> dict[str, Any]:
        """The result as one JSON value, as the command prints it with `--json`."""
        return _presenters[type(self)].document(self)

    def _repr_html_(self) -> str:
        """The result for a notebook."""
        html = _presenters[type(self)].html
        return f"<pre>{escape(self.text())}</pre>" if html is None else html(self)


class Paged(Presentable):
    """Base of results that have a page of their own."""

    __slots__ = ()

    def page(self) -> str:
        """The result as one HTML file, which needs no network."""
        return _pages[type(self)](self)


class Charted(Paged):
    """Base of results that have a page and a chart."""

    __slots__ = ()

    def svg(self) -> str:
        """The result as a chart: the text of an SVG file."""
        svg = _presenters[type(self)].svg
        assert svg is not None, "it is registered with one"
        return svg(self)
