"""The result of a fetch, for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from cordwood.common.presentable import register
from cordwood.common.text import bytes_text, number, printable
from cordwood.storage.changes.fetch import FetchResult


def lines(result: FetchResult) -> Iterator[str]:
    """Yield the fetched files and the facts known about them."""
    return map(printable, _lines(result))


def document(result: FetchResult) -> dict[str, Any]:
    """Return the result as one JSON value."""
    return {**asdict(result), "source": printable(result.source), "target": printable(result.target)}


def _lines(result: FetchResult) -> Iterator[str]:
    size = bytes_text(result.size_bytes)
    yield f"{result.target}: {number(result.files, 'file')}, {size}, in {result.seconds:.1f} s"
    if result.has_checksums:
        yield "every file has the checksum in the manifest of the copy"
    else:
        yield f"{result.source} has no manifest, so only lengths were compared; next: cordwood check {result.target}"


register(FetchResult, lines=lines, document=document)
