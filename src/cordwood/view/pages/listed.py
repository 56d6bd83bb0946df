"""A table that the server searches, sorts and cuts before sending, as it may have 100,000 rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

from cordwood.view.pages.markup import Content, tag

_T = TypeVar("_T")

#: Maximum number of rows of one page.
ROWS_MAX = 100


@dataclass(frozen=True, slots=True)
class Wanted:
    """The requested rows and their order.

    Attributes:
        search: text that names must contain; case does not matter.
        page: page number, from 1.
    """

    search: str = ""
    sort: str = ""
    page: int = 1

    @property
    def query(self) -> dict[str, str | int]:
        """The same as values of a URL query."""
        return {"search": self.search, "sort": self.sort, "page": self.page}

    def matching(self, values: Iterable[_T], name: Callable[[_T], str]) -> list[_T]:
        """Return the values whose names match."""
        search = self.search.casefold()
        return [value for value in values if search in name(value).casefold()]

    def cut(self, found: Sequence[_T]) -> Sequence[_T]:
        """Return the values of this page."""
        return found[ROWS_MAX * (self.page - 1) : ROWS_MAX * self.page]


def search_form(
    wanted: Wanted, orders: Sequence[str], action: str, more: Mapping[str, str] = MappingProxyType({})
) -> Content:
    """Make a form that searches and sorts.

    Args:
        orders: sort orders, the default first; empty: the table cannot be sorted.
        more: further values of the query.
    """
    return tag(
        "form",
        [tag("input", type="hidden", name=name, value=value) for name, value in more.items()],
        tag("label", "Name contains ", tag("input", type="search", name="search", value=wanted.search)),
        _sorting(orders, wanted.sort or orders[0]) if orders else None,
        tag("button", "Show"),
        action=action,
        role="search",
    )


def _sorting(orders: Sequence[str], chosen: str) -> Content:
    options = [tag("option", one, value=one, selected=one == chosen) for one in orders]
    return tag("label", "Sorted by ", tag("select", options, name="sort"))


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
