"""Targets of links: other pages of a server, or other parts of the same file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from cordwood.view.pages.listed import Wanted


@dataclass(frozen=True, slots=True)
class Links:
    """Addresses of the pages of a server, or of the parts of one file, which has a part per partition at most.

    Attributes:
        pages: names and addresses for the head of each page, the start page first.
        anchors: for a file, its parts by partition directory; None for a server.
    """

    pages: Sequence[tuple[str, str]] = ()
    anchors: Mapping[str, str] | None = None

    def to(self, page: str, /, **query: str | int) -> str | None:
        """Return the address of a page, or None if the file does not contain it."""
        if self.anchors is None:
            return address(page, query)
        anchor = self.anchors.get(str(query.get("path"))) if page == "partition" else None
        return None if anchor is None else f"#{anchor}"

    def to_rows(self, page: str, wanted: Wanted, number: int, /, **query: str) -> str | None:
        """Return the address of one page of a table, searched and sorted as wanted; see `to`."""
        given = {"search": wanted.search, "sort": wanted.sort, "page": "" if number == 1 else str(number)}
        return self.to(page, **query, **{name: value for name, value in given.items() if value})

    def document(self, page: str, query: Mapping[str, str | int]) -> str | None:
        """Return the address of a page's JSON; None in a file."""
        return self.to(f"{page}.json", **query)


def address(page: str, query: Mapping[str, str | int]) -> str:
    """Return the address of a server's page; the start page has no name."""
    return f"/{page}?{urlencode(query, errors='surrogateescape')}" if query else f"/{page}"
