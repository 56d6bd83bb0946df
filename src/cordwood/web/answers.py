"""Answers with pages, JSON and the style sheet; and what the query of a request asks for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from cordwood.pages import frame
from cordwood.pages.listed import Wanted
from cordwood.web.http_server import Answer, Request

_PAGES_MAX = 10**6


def html(page: str, status: HTTPStatus = HTTPStatus.OK) -> Answer:
    """A page."""
    return Answer(status, page.encode(), "text/html; charset=utf-8")


def json_document(document: Mapping[str, Any]) -> Answer:
    """A page's values."""
    return Answer(HTTPStatus.OK, json.dumps(document, indent=1).encode() + b"\n", "application/json")


def not_yet() -> Answer:
    """What a program gets that asks too early."""
    return Answer(HTTPStatus.SERVICE_UNAVAILABLE, b"Not known yet; ask again.\n", headers={"Retry-After": "1"})


def style_sheet(_: Request) -> Answer:
    """The style sheet of all pages."""
    return Answer(HTTPStatus.OK, frame.style().encode(), "text/css; charset=utf-8")


def wanted(request: Request) -> Wanted:
    """Which rows of a table a request asks for."""
    at = number(request, "page", _PAGES_MAX) or 1
    return Wanted(request.query.get("search", ""), request.query.get("sort", ""), at)


def number(request: Request, name: str, most: int) -> int | None:
    """A number of a query; None if there is none."""
    text = request.query.get(name, "")
    return min(int(text[:20]), most) if text.isascii() and text.isdigit() else None
