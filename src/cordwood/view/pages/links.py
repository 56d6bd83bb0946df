"""Targets of links: other pages of a server, or other parts of the same file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol
from urllib.parse import urlencode


class Navigation(Protocol):
    """The links at the head of each page."""

    def pages(self) -> Sequence[tuple[str, str]]:
        """Return names and addresses of pages, the start page first."""


class Links(Navigation, Protocol):
    """Addresses of pages; None if the page does not exist."""

    def partitions(self, search: str = "", sort: str = "", page: int = 1) -> str | None:
        """Address of the list of partitions, searched, sorted and cut into pages."""

    def partition(self, path: str) -> str | None:
        """Address of one partition, by its directory."""

    def batches(self, path: str, offset: int) -> str | None:
        """Address of the batches of a partition from an offset on."""

    def records(self, path: str, offset: int) -> str | None:
        """Address of the records of a partition from an offset on."""

    def groups(self, search: str = "", sort: str = "", page: int = 1) -> str | None:
        """Address of the list of consumer groups, searched, sorted and cut into pages."""

    def group(self, group_id: str, search: str = "", sort: str = "", page: int = 1) -> str | None:
        """Address of one group, with its partitions searched, sorted and cut into pages."""

    def transactions(self, search: str = "", page: int = 1) -> str | None:
        """Address of all transactions, with the transactional ids searched and cut into pages."""

    def document(self, name: str, query: Mapping[str, str | int]) -> str | None:
        """Address of a page's JSON."""


class ServerLinks:
    """Addresses of the pages of `view`."""

    def pages(self) -> Sequence[tuple[str, str]]:
        """See `Navigation`."""
        return (
            ("Node", "/"),
            ("Partitions", self.partitions()),
            ("Groups", self.groups()),
            ("Transactions", self.transactions()),
        )

    def partitions(self, search: str = "", sort: str = "", page: int = 1) -> str:
        """See `Links`."""
        return _of_table("/partitions", search, sort, page)

    def partition(self, path: str) -> str:
        """See `Links`."""
        return _url("/partition", {"path": path})

    def batches(self, path: str, offset: int) -> str:
        """See `Links`."""
        return _url("/batches", {"path": path, "offset": offset})

    def records(self, path: str, offset: int) -> str:
        """See `Links`."""
        return _url("/records", {"path": path, "offset": offset})

    def groups(self, search: str = "", sort: str = "", page: int = 1) -> str:
        """See `Links`."""
        return _of_table("/groups", search, sort, page)

    def group(self, group_id: str, search: str = "", sort: str = "", page: int = 1) -> str:
        """See `Links`."""
        return _of_table("/group", search, sort, page, {"id": group_id})

    def transactions(self, search: str = "", page: int = 1) -> str:
        """See `Links`."""
        return _of_table("/transactions", search, "", page)

    def document(self, name: str, query: Mapping[str, str | int]) -> str:
        """See `Links`."""
        return _url(f"/{name}.json", query)


class LiveLinks:
    """Addresses of the pages of `run --view`."""

    def pages(self) -> Sequence[tuple[str, str]]:
        """See `Navigation`."""
        return ("Live", "/"), ("Partitions", self.partitions())

    def live(self, span: str, refresh: str) -> str:
        """Address of the page with current activity, and its history over a span."""
        return _url("/", {"span": span, "refresh": refresh})

    def partitions(self, search: str = "", sort: str = "", page: int = 1) -> str:
        """Address of the list of partitions, searched, sorted and cut into pages."""
        return _of_table("/partitions", search, sort, page)

    def document(self, name: str, query: Mapping[str, str | int]) -> str:
        """Address of a page's JSON."""
        return _url(f"/{name}.json", query)


@dataclass(frozen=True, slots=True)
class FileLinks:
    """Addresses within one file.

    Attributes:
        anchors: parts of the file by partition directory.
        parts: names and addresses of parts for the head of the file.
    """

    anchors: Mapping[str, str] = field(default_factory=dict)
    parts: Sequence[tuple[str, str]] = ()

    def pages(self) -> Sequence[tuple[str, str]]:
        """See `Navigation`."""
        return self.parts

    def partitions(self, search: str = "", sort: str = "", page: int = 1) -> None:
        """See `Links`."""

    def partition(self, path: str) -> str | None:
        """See `Links`."""
        anchor = self.anchors.get(path)
        return None if anchor is None else f"#{anchor}"

    def batches(self, path: str, offset: int) -> None:
        """See `Links`."""

    def records(self, path: str, offset: int) -> None:
        """See `Links`."""

    def groups(self, search: str = "", sort: str = "", page: int = 1) -> None:
        """See `Links`."""

    def group(self, group_id: str, search: str = "", sort: str = "", page: int = 1) -> None:
        """See `Links`."""

    def transactions(self, search: str = "", page: int = 1) -> None:
        """See `Links`."""

    def document(self, name: str, query: Mapping[str, str | int]) -> None:
        """See `Links`."""


def _of_table(path: str, search: str, sort: str, page: int, more: Mapping[str, str] = MappingProxyType({})) -> str:
    given = {"search": search, "sort": sort, "page": "" if page == 1 else str(page)}
    return _url(path, {**more, **{name: value for name, value in given.items() if value}})


def _url(path: str, query: Mapping[str, str | int]) -> str:
    return f"{path}?{urlencode(query, errors='surrogateescape')}" if query else path
