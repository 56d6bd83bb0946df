"""Detail pages of a partition: batches, records, and all records of a key."""

from __future__ import annotations

from collections.abc import Sequence

from cordwood.commands.get import RECORD_COLUMNS
from cordwood.commands.why.found_keys import GetResult
from cordwood.common.text import Column, bytes_text, cells_of, printable, time_text
from cordwood.common.types import NONE
from cordwood.record.batch import Batch
from cordwood.view.pages.drawing import Box, both, rect, svg
from cordwood.view.pages.frame import Links, link_or_text, page, paragraph, table
from cordwood.view.pages.markup import Content, Markup, tag
from cordwood.view.pages.partition import find_form
from cordwood.view.partition_look import SHOWN_BYTES, ShownBatches, ShownRecords

#: Maximum number of rows of a page.
ROWS_MAX = 100


def batches_page(path: str, found: ShownBatches, offset: int, links: Links) -> str:
    """Make the page of the batches from an offset on."""
    columns = [
        Column("BASE OFFSET", right=True),
        Column("LAST", right=True),
        Column("RECORDS", right=True),
        Column("BYTES", right=True),
        Column("SEGMENT", right=True),
        Column("POSITION", right=True),
        Column("CODEC"),
        Column("KIND"),
        Column("PRODUCER", right=True),
        Column("MAX TIMESTAMP (UTC)"),
    ]
    rows = [
        [
            link_or_text(str(one.base_offset), links.to("records", path=path, offset=max(one.base_offset, 0))),
            *_batch(one, segment),
        ]
        for one, segment in zip(found.batches, found.segments, strict=True)
    ]
    next_page = None if found.next_offset is None else links.to("batches", path=path, offset=found.next_offset)
    return page(
        f"Batches of {_name(path)}",
        links,
        _head(path, f"Batches from offset {offset} on", links),
        tag("figure", both(lambda width: _strip(path, found.batches, links, width))) if rows else None,
        _problems(found.problems),
        table("Batches, in the drawing as wide as their bytes", columns, rows)
        if rows
        else paragraph("There is none from here on."),
        _next(next_page),
        find_form(path),
        document_link=links.document("batches", {"path": path, "offset": offset}),
    )


def _batch(batch: Batch, segment: int) -> list[str]:
    kinds = [
        "control" if batch.is_control else "transactional" if batch.is_transactional else "data",
        *([f"magic {batch.magic}"] if batch.magic < 2 else []),
    ]
    time = None if batch.max_timestamp == NONE else batch.max_timestamp
    return [
        str(batch.last_offset),
        "?" if batch.record_count < 0 else f"{batch.record_count:,}",
        bytes_text(batch.size_bytes),
        str(segment),
        f"{batch.position:,}",
        batch.codec_label,
        ", ".join(kinds),
        "-" if batch.producer_id == NONE else f"{batch.producer_id} epoch {batch.producer_epoch}",
        time_text(time),
    ]


def _strip(path: str, batches: Sequence[Batch], links: Links, width: int) -> Markup:
    """Draw batches side by side, each as wide as its share of the bytes."""
    total, x = sum(one.size_bytes for one in batches) or 1, 0.0
    shapes: list[Content] = []
    for one in batches:
        part = width * one.size_bytes / total
        class_ = "of-active" if one.is_control else "of-dirty" if one.is_transactional else "of-live"
        words = f"offsets {one.base_offset} to {one.last_offset}, {bytes_text(one.size_bytes)}"
        shape = rect(Box(x, 0, max(part - 1, 0.5), 40), class_, words)
        href = links.to("records", path=path, offset=max(one.base_offset, 0))
        shapes.append(shape if href is None else tag("a", shape, href=href, aria_label=words))
        x += part
    return svg(
        width, 40, "Batches by their bytes: data blue, of transactions yellow, control grey", shapes, has_links=True
    )


def records_page(path: str, found: ShownRecords, offset: int, links: Links) -> str:
    """Make the page of the records from an offset on."""
    columns = [
        Column("OFFSET", right=True),
        Column("TIME (UTC)"),
        Column("KEY"),
        Column("VALUE"),
        Column("HEADERS", right=True),
        Column("BATCH", right=True),
    ]
    rows: list[Sequence[Content]] = [
        [
            str(one.offset),
            time_text(None if one.timestamp == NONE else one.timestamp),
            "control record" if one.is_control else _bytes(one.key, one.key_size),
            "-" if one.is_control else _bytes(one.value, one.value_size),
            str(one.headers),
            link_or_text(str(one.batch), links.to("batches", path=path, offset=max(one.batch, 0))),
        ]
        for one in found.records
    ]
    next_page = None if found.next_offset is None else links.to("records", path=path, offset=found.next_offset)
    return page(
        f"Records of {_name(path)}",
        links,
        _head(path, f"Records from offset {offset} on", links),
        _problems(found.problems),
        table(f"Records, keys and values up to {SHOWN_BYTES} bytes", columns, rows)
        if rows
        else paragraph("There is none from here on."),
        _next(next_page),
        find_form(path),
        document_link=links.document("records", {"path": path, "offset": offset}),
    )


def _bytes(data: bytes | None, size: int) -> Content:
    """Show bytes as text if they are UTF-8, else as hexadecimal digits."""
    if data is None:
        return tag("span", "null", class_="quiet")
    more = f"… {size:,} B in all" if size > len(data) else ""
    try:
        text = data.decode() if not more else data.decode(errors="ignore")
    except UnicodeDecodeError:
        text = f"hex:{data.hex()}"
    return [tag("code", printable(text)), more]


def key_page(path: str, key: str, found: GetResult, links: Links) -> str:
    """Make the page of all records of a key, and of their fate."""
    columns, rows = cells_of(RECORD_COLUMNS, found.records[:ROWS_MAX])
    linked: list[Sequence[Content]] = [
        [link_or_text(row[0], links.to("records", path=path, offset=one.record.offset)), *row[1:]]
        for one, row in zip(found.records, rows, strict=False)
    ]
    indexed, scanned = (sum(getattr(one, name) for one in found.searched) for name in ("indexed", "scanned"))
    return page(
        f"Key in {_name(path)}",
        links,
        _head(path, "Records of a key", links),
        paragraph("Key ", tag("code", printable(key[:SHOWN_BYTES]))),
        table("Records, the oldest first", columns, linked) if rows else paragraph("There is no record of this key."),
        _problems([str(one) for one in found.problems]),
        paragraph(f"{indexed:,} segments were searched by key index, {scanned:,} were read.", class_="quiet"),
        find_form(path),
        document_link=links.document("get", {"path": path, "key": key}),
    )


def refused_page(path: str, why: str, links: Links) -> str:
    """Make the page that explains why a search failed."""
    return page(f"Find in {_name(path)}", links, _head(path, "Not found", links), paragraph(why), find_form(path))


def _head(path: str, title: str, links: Links) -> Content:
    return [tag("h1", title), paragraph("Partition ", link_or_text(_name(path), links.to("partition", path=path)))]


def _name(path: str) -> str:
    return printable(path.rpartition("/")[2])


def _problems(problems: Sequence[str]) -> Content:
    return [paragraph("Damage: ", printable(one), class_="wrong") for one in problems[:ROWS_MAX]]


def _next(href: str | None) -> Content:
    return None if href is None else tag("nav", tag("a", "Next", href=href), class_="pages", aria_label="More")
