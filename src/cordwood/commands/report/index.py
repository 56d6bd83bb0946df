"""The result of `cordwood index`, for people and as JSON."""

from __future__ import annotations

import dataclasses
import posixpath
from collections.abc import Iterator
from typing import Any

from cordwood.common.presentable import register
from cordwood.common.text import Column, bytes_text, printable, table
from cordwood.storage.index.partition import IndexResult


def lines(result: IndexResult) -> Iterator[str]:
    """Yield a line per partition."""
    columns = (
        Column("PARTITION"),
        Column("SEGMENTS", True),
        Column("INDEXED", True),
        Column("MADE", True),
        Column("REMOVED", True),
        Column("INDEXES", True),
        Column("OF THE LOG", True),
    )
    rows = [
        (
            posixpath.basename(one.path),
            f"{one.segments:,}",
            f"{one.indexed:,}",
            f"{one.made:,}",
            f"{one.removed:,}",
            bytes_text(one.size_bytes),
            f"{100 * one.size_bytes / max(1, one.log_bytes):.1f} %",
        )
        for one in result.partitions
    ]
    return map(printable, table(columns, rows))


def document(result: IndexResult) -> dict[str, Any]:
    """Return the result as one JSON value."""
    rows = (dataclasses.asdict(one) for one in result.partitions)
    return {"partitions": [{**row, "path": printable(row["path"])} for row in rows]}


register(IndexResult, lines=lines, document=document)
