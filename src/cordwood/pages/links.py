"""Where the parts of a page lead to: to other pages of a server, or to other parts of the same file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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

    def document(self, name: str, query: Mapping[str, str | int]) -> str | None:
        """The JSON of a page."""


class ServerLinks:
    """The pages of `view`."""

    def pages(self) -> Sequence[tuple[str, str]]:
        """See `Navigation`."""
        return ("Node", "/"), ("Partitions", self.partitions())

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
        node_anchor: of the part about the node; None: there is none.
    """

    anchors: Mapping[str, str] = field(default_factory=dict)
    node_anchor: str | None = "#node"

    def pages(self) -> Sequence[tuple[str, str]]:
        """See `Navigation`."""
        return () if self.node_anchor is None else (("Node", self.node_anchor),)

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

    def document(self, name: str, query: Mapping[str, str | int]) -> None:
        """See `Links`."""


def _of_table(path: str, search: str, sort: str, page: int) -> str:
    given = {"search": search, "sort": sort, "page": "" if page == 1 else str(page)}
    return _url(path, {name: value for name, value in given.items() if value})


def _url(path: str, query: Mapping[str, str | int]) -> str:
    return f"{path}?{urlencode(query, errors='surrogateescape')}" if query else path
