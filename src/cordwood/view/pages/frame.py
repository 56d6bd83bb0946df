"""Common parts of all pages: links, head, navigation, foot, tables, lists of facts.

A table that may have 100,000 rows is searched, sorted and cut before the server sends it.
"""

from __future__ import annotations

import base64
import hashlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from types import MappingProxyType
from typing import TypeVar
from urllib.parse import urlencode

from cordwood.common.text import Column, number
from cordwood.view.pages.markup import Content, Markup, document, join, raw, tag

# ---- links -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Links:
    """Addresses of the pages of a server, or of the parts of one file, which has parts of some pages only.

    Attributes:
        pages: names and addresses for the head of each page, the start page first.
        anchors: for a file, its parts by the address of the page on a server; None for a server.
    """

    pages: Sequence[tuple[str, str]] = ()
    anchors: Mapping[str, str] | None = None

    def to(self, page: str, /, **query: str | int) -> str | None:
        """Return the address of a page, or None if the file does not contain it."""
        if self.anchors is None:
            return address(page, query)
        anchor = self.anchors.get(address(page, query))
        return None if anchor is None else f"#{anchor}"

    def to_rows(self, page: str, wanted: Wanted, number: int, /, **query: str) -> str | None:
        """Return the address of one page of a table, searched and sorted as wanted; see `to`."""
        at = "" if number == 1 else str(number)
        given = {"search": wanted.search, "broker": wanted.broker, "sort": wanted.sort, "page": at}
        return self.to(page, **query, **{name: value for name, value in given.items() if value})

    def document(self, page: str, query: Mapping[str, str | int]) -> str | None:
        """Return the address of a page's JSON; None in a file."""
        return self.to(f"{page}.json", **query)


def address(page: str, query: Mapping[str, str | int]) -> str:
    """Return the address of a server's page; the start page has no name."""
    return f"/{page}?{urlencode(query, errors='surrogateescape')}" if query else f"/{page}"


#: A cell with more letters than this wraps.
_LINE_MAX = 48
#: Maximum number of listed names; further names are only counted.
NAMES_MAX = 6


@cache
def style() -> str:
    """Return the style sheet of all pages."""
    data = pkgutil.get_data(__package__, "style.css")
    assert data is not None, "it is part of the package"
    return data.decode()


def style_hash() -> str:
    """Return the hash by which a Content-Security-Policy allows an embedded style sheet."""
    return f"sha256-{base64.b64encode(hashlib.sha256(style().encode()).digest()).decode()}"


def page(
    title: str,
    links: Links,
    *body: Content,
    document_link: str | None = None,
    refresh_seconds: int | None = None,
) -> str:
    """Make a page of a server.

    Args:
        document_link: address of the page's JSON.
        refresh_seconds: delay before an incomplete page reloads itself.
    """
    head = [
        tag("link", rel="stylesheet", href="/style.css"),
        tag("link", rel="icon", href="data:,"),
        None if refresh_seconds is None else tag("meta", http_equiv="refresh", content=str(refresh_seconds)),
    ]
    as_json = None if document_link is None else tag("a", "this page as JSON", href=document_link)
    return document(f"{title} · Cordwood", head, _around(links, body, as_json))


def one_file(title: str, links: Links, *body: Content) -> str:
    """Make a page as one file, which loads no other file and runs no script."""
    policy = f"default-src 'none'; style-src '{style_hash()}'; base-uri 'none'; form-action 'none'"
    head = [
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("style", raw(style())),
    ]
    return document(f"{title} · Cordwood", head, _around(links, body, None))


def _around(links: Links, body: Content, as_json: Content) -> Markup:
    pages = links.pages
    return join(
        [
            tag("a", "Skip to the content", href="#content", class_="skip"),
            tag(
                "header",
                tag(
                    "nav",
                    tag("a", "Cordwood", href=pages[0][1] if pages else None, class_="brand"),
                    [tag("a", name, href=address) for name, address in pages],
                    as_json,
                    aria_label="Pages",
                ),
            ),
            "\n",
            tag("main", body, id="content"),
            "\n",
            tag("footer", f"cordwood {version('cordwood')}; this page changes nothing."),
        ]
    )


# ---- parts -----------------------------------------------------------------------------------------------------------


def section(title: str, *content: Content, id: str | None = None) -> Markup:
    """Make a part of a page under a heading."""
    return join(["\n", tag("section", tag("h2", title), content, id=id)])


def table(caption: str, columns: Sequence[Column], rows: Sequence[Sequence[Content]]) -> Markup:
    """Make a table that scrolls by itself if the screen is too narrow."""
    head = tag("tr", [tag("th", column.title, scope="col", class_=_side(column)) for column in columns])
    lines = [
        tag("tr", [tag("td", cell, class_=_class(column, cell, at == 0)) for at, (column, cell) in enumerate(cells)])
        for cells in (list(zip(columns, row, strict=True)) for row in rows)
    ]
    inner = tag(
        "table", tag("caption", caption), tag("thead", head), "\n", tag("tbody", [[one, "\n"] for one in lines])
    )
    return tag("div", inner, class_="scroll", role="region", aria_label=caption, tabindex="0")


def _side(column: Column) -> str | None:
    return "right" if column.right else None


def _class(column: Column, cell: Content, is_first: bool) -> str | None:
    if column.right:
        return "right"
    if is_first:
        return "name"
    is_long = len(cell) > _LINE_MAX if isinstance(cell, str) else cell is not None
    return "text" if is_long and not isinstance(cell, Markup) else None


def figures(*pairs: tuple[str, str]) -> Markup:
    """List the most important numbers of a page."""
    return tag("dl", [tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs], class_="figures")


def facts(pairs: Iterable[tuple[str, Content]]) -> Markup:
    """Make a list of names and values."""
    return tag("dl", [[tag("dt", name), tag("dd", value)] for name, value in pairs], class_="facts")


def paragraph(*content: Content, class_: str | None = None, role: str | None = None) -> Markup:
    """Make a paragraph."""
    return tag("p", *content, class_=class_, role=role)


def link_or_text(words: str, href: str | None) -> Content:
    """Make a link, or plain text without a target."""
    return words if href is None else tag("a", words, href=href)


def linked_names(names: Sequence[tuple[str, str | None]], total: int) -> Content:
    """List names with links, and the number of names not listed."""
    shown = [[", " if at else None, link_or_text(*name)] for at, name in enumerate(names)]
    return [shown, f" and {total - len(names):,} more" if total > len(names) else None]


def cut(shown: int, total: int, noun: str) -> str:
    """Return the caption of a table that may be cut."""
    return number(total, noun) if shown == total else f"the first {shown:,} of {number(total, noun)}"


# ---- searched tables -------------------------------------------------------------------------------------------------

_T = TypeVar("_T")

#: Maximum number of rows of one page.
ROWS_MAX = 100


@dataclass(frozen=True, slots=True)
class Wanted:
    """The requested rows and their order.

    Attributes:
        search: text that names must contain; case does not matter.
        page: page number, from 1.
        broker: only rows of the broker with this name; empty: of all.
    """

    search: str = ""
    sort: str = ""
    page: int = 1
    broker: str = ""

    @property
    def query(self) -> dict[str, str | int]:
        """The same as values of a URL query."""
        broker = {"broker": self.broker} if self.broker else {}
        return {"search": self.search, "sort": self.sort, "page": self.page, **broker}

    def matching(self, values: Iterable[_T], name: Callable[[_T], str]) -> list[_T]:
        """Return the values whose names match."""
        search = self.search.casefold()
        return [value for value in values if search in name(value).casefold()]

    def cut(self, found: Sequence[_T]) -> Sequence[_T]:
        """Return the values of this page."""
        return found[ROWS_MAX * (self.page - 1) : ROWS_MAX * self.page]


def search_form(
    wanted: Wanted,
    orders: Sequence[str],
    action: str,
    more: Mapping[str, str] = MappingProxyType({}),
    *,
    brokers: Sequence[str] = (),
) -> Content:
    """Make a form that searches and sorts.

    Args:
        orders: sort orders, the default first; empty: the table cannot be sorted.
        more: further values of the query.
        brokers: names of brokers to choose from; empty: no choice.
    """
    return tag(
        "form",
        [tag("input", type="hidden", name=name, value=value) for name, value in more.items()],
        tag("label", "Name contains ", tag("input", type="search", name="search", value=wanted.search)),
        _choice("Broker ", "broker", {"": "all", **{one: one for one in brokers}}, wanted.broker) if brokers else None,
        _choice("Sorted by ", "sort", {one: one for one in orders}, wanted.sort or orders[0]) if orders else None,
        tag("button", "Show"),
        action=action,
        role="search",
    )


def _choice(label: str, name: str, choices: Mapping[str, str], chosen: str) -> Content:
    """Make a choice among values, shown by their words."""
    options = [tag("option", words, value=value, selected=value == chosen) for value, words in choices.items()]
    return tag("label", label, tag("select", options, name=name))


def page_links(total: int, wanted: Wanted, link: Callable[[int], str | None]) -> Content:
    """Make links to the other pages of the table; return None for a single page.

    Args:
        link: returns the address of a page by its number.
    """
    last = max(1, -(-total // ROWS_MAX))
    if last == 1:
        return None

    def to(words: str, number: int) -> Content:
        return tag("a", words, href=link(number)) if 1 <= number <= last else None

    where = tag("span", f"page {wanted.page:,} of {last:,}")
    steps = [to("first", 1), to("previous", wanted.page - 1), where, to("next", wanted.page + 1), to("last", last)]
    return tag("nav", steps, class_="pages", aria_label="Pages of the table")
