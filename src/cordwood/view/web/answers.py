"""Builds answers with pages, JSON and the style sheet, and reads the query of a request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from cordwood.view.pages import frame
from cordwood.view.pages.listed import Wanted
from cordwood.view.web.http_server import Answer, Request

_PAGES_MAX = 10**6


def html(page: str, status: HTTPStatus = HTTPStatus.OK) -> Answer:
    """Answer with a page."""
    return Answer(status, page.encode(), "text/html; charset=utf-8")


def json_document(document: Mapping[str, Any]) -> Answer:
    """Answer with a page's values as JSON."""
    return Answer(HTTPStatus.OK, json.dumps(document, indent=1).encode() + b"\n", "application/json")


def not_yet() -> Answer:
    """Answer 503, as the result is not available yet."""
    return Answer(HTTPStatus.SERVICE_UNAVAILABLE, b"Not known yet; ask again.\n", headers={"Retry-After": "1"})


def style_sheet(_: Request) -> Answer:
    """Answer with the style sheet of all pages."""
    return Answer(HTTPStatus.OK, frame.style().encode(), "text/css; charset=utf-8")


def wanted(request: Request) -> Wanted:
    """Read the requested rows and order of a table from the query."""
    at = number(request, "page", _PAGES_MAX) or 1
    return Wanted(request.query.get("search", ""), request.query.get("sort", ""), at)


def number(request: Request, name: str, most: int) -> int | None:
    """Read a number from the query, at most `most`; None if the query has no valid number."""
    text = request.query.get(name, "")
    return min(int(text[:20]), most) if text.isascii() and text.isdigit() else None
