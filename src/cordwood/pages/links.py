"""Where the parts of a page lead to: to other pages of a server, or to other parts of the same file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol
from urllib.parse import urlencode


class Navigation(Protocol):
    """What each page leads to."""

    def pages(self) -> Sequence[tuple[str, str]]:
        """Names and addresses of pages, the first one first."""


class Links(Navigation, Protocol):
    """The pages that there are; None: there is none."""

    def partitions(self, search: str = "", sort: str = "", page: int = 1) -> str | None:
        """Partitions that match, in an order, cut into pages."""

    def partition(self, path: str) -> str | None:
        """One partition, by its directory."""

    def batches(self, path: str, offset: int) -> str | None:
        """The batches of a partition from an offset on."""

    def records(self, path: str, offset: int) -> str | None:
        """The records of a partition from an offset on."""

    def groups(self, search: str = "", sort: str = "", page: int = 1) -> str | None:
        """Consumer groups that match, in an order, cut into pages."""

    def group(self, group_id: str, search: str = "", sort: str = "", page: int = 1) -> str | None:
        """One group, and its partitions that match, in an order, cut into pages."""

    def transactions(self, search: str = "", page: int = 1) -> str | None:
        """All transactions, and transactional ids that match, cut into pages."""

    def document(self, name: str, query: Mapping[str, str | int]) -> str | None:
        """The JSON of a page."""


class ServerLinks:
    """The pages of `view`."""

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
    """The pages of `run --view`."""

    def pages(self) -> Sequence[tuple[str, str]]:
        """See `Navigation`."""
        return ("Live", "/"), ("Partitions", self.partitions())

    def live(self, span: str, refresh: str) -> str:
        """What is done now, and what was done over a span of time."""
        return _url("/", {"span": span, "refresh": refresh})

    def partitions(self, search: str = "", sort: str = "", page: int = 1) -> str:
        """Partitions that match, in an order, cut into pages."""
        return _of_table("/partitions", search, sort, page)

    def document(self, name: str, query: Mapping[str, str | int]) -> str:
        """The JSON of a page."""
        return _url(f"/{name}.json", query)


@dataclass(frozen=True, slots=True)
class FileLinks:
    """The parts of one file.

    Attributes:
        anchors: of the partitions that have a part of their own, by their directories.
        parts: names and addresses of parts that the head of the file leads to.
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
