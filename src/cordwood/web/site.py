"""The pages of `view` by their paths, each with its JSON.

/               the node                     /node.json
/partitions     the list of partitions       /partitions.json

A request names what it wants by values of its query. A partition is named by its directory, which is looked up in the
listing: nothing from a request is ever opened.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from cordwood.commands.view import NodeLook
from cordwood.pages import frame, node, partitions
from cordwood.pages.links import ServerLinks
from cordwood.pages.partitions import Wanted
from cordwood.web.http_server import Answer, Request, Route

_PAGES_MAX = 10**6


class Site:
    """The pages of one node."""

    def __init__(self, latest: Callable[[], NodeLook]) -> None:
        """Nothing is made yet.

        Args:
            latest: what is known of the node now.
        """
        self._latest = latest
        self._links = ServerLinks()

    def routes(self) -> Mapping[str, Route]:
        """The answers by path."""
        return {
            "/": lambda _: _html(node.node_page(self._latest(), self._links)),
            "/node.json": lambda _: _json(node.document(self._latest())),
            "/partitions": lambda request: _html(
                partitions.partitions_page(self._latest(), _wanted(request), self._links)
            ),
            "/partitions.json": lambda request: _json(partitions.document(self._latest(), _wanted(request))),
            "/style.css": lambda _: Answer(HTTPStatus.OK, frame.style().encode(), "text/css; charset=utf-8"),
        }


def _wanted(request: Request) -> Wanted:
    return Wanted(request.query.get("search", ""), request.query.get("sort", ""), number_of(request, "page") or 1)


def number_of(request: Request, name: str) -> int | None:
    """A number of a query; None if there is none."""
    text = request.query.get(name, "")
    return min(int(text), _PAGES_MAX) if text.isascii() and text.isdigit() else None


def _html(page: str) -> Answer:
    return Answer(HTTPStatus.OK, page.encode(), "text/html; charset=utf-8")


def _json(document: Mapping[str, Any]) -> Answer:
    return Answer(HTTPStatus.OK, json.dumps(document, indent=1).encode() + b"\n", "application/json")
