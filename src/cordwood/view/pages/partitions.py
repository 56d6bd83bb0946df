"""The list of partitions, searched, sorted and cut before sending, as there may be 100,000."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cordwood.commands import ls as listing_report
from cordwood.commands.ls import ORDERS
from cordwood.commands.why.facts import WhyPartition
from cordwood.common.text import Column, bytes_text, cells_of, number, printable
from cordwood.storage.node.listing import PartitionListing
from cordwood.view.node_look import NodeLook
from cordwood.view.pages.frame import Links, Wanted, cut, link_or_text, page, page_links, paragraph, search_form, table
from cordwood.view.pages.markup import Content, tag
from cordwood.view.pages.under_way import progress

#: Maximum number of rows in a file.
_ROWS_MAX = 2_000
#: A sort order that `ls` does not have: by removable data, descending.
_COULD_GO = "could go"


def document(look: NodeLook, wanted: Wanted) -> dict[str, Any]:
    """Return the page as one JSON value: partitions as in `cordwood ls --json`, and the number of matches."""
    found = _found(look, wanted)
    return {
        "partitions_found": len(found),
        "page": wanted.page,
        "partitions": [listing_report.partition_document(one) for one in wanted.cut(found)],
    }


def partitions_page(look: NodeLook, wanted: Wanted, links: Links) -> str:
    """Make the page."""
    as_json = links.document("partitions", wanted.query)
    return page("Partitions", links, _body(look, wanted, links), document_link=as_json)


def _body(look: NodeLook, wanted: Wanted, links: Links) -> Content:
    found = _found(look, wanted)
    shown = wanted.cut(found)
    total = 0 if look.listing is None else len(look.listing.partitions)
    noun = "replica" if len(look.brokers) > 1 else "partition"
    is_narrowed = wanted.search or wanted.broker
    which = f"{len(found):,} of {number(total, noun)}" if is_narrowed else number(total, noun)
    return [
        tag("h1", "Partitions"),
        progress(look),
        search_form(wanted, [*ORDERS, _COULD_GO], "/partitions", brokers=look.brokers if len(look.brokers) > 1 else ()),
        _table(look, shown, which, links) if shown else paragraph("No partition matches.", role="status"),
        page_links(len(found), wanted, lambda at: links.to_rows("partitions", wanted, at)),
    ]


def of_file(look: NodeLook, links: Links) -> Content:
    """List the partitions, as a part of a file."""
    listed = () if look.listing is None else look.listing.partitions
    shown = listed[:_ROWS_MAX]
    return _table(look, shown, cut(len(shown), len(listed), "partition"), links) if shown else None


def _table(look: NodeLook, partitions: Sequence[PartitionListing], caption: str, links: Links) -> Content:
    """Make a row for each partition, as in `ls`, with its removable data and main cause."""
    assert look.listing is not None, "there are partitions"
    why = _why_by_path(look)
    columns, rows = cells_of(listing_report.shown_columns(look.listing), partitions)
    cells: list[Sequence[Content]] = []
    for one, row in zip(partitions, rows, strict=True):
        cause = why.get(one.path)
        could, what = (
            ("-", "-") if cause is None else (bytes_text(cause.could_lose_disk_bytes), printable(cause.cause.what))
        )
        cells.append([link_or_text(row[0], links.to("partition", path=one.path)), could, what, *row[1:]])
    more = [Column("COULD GO", right=True), Column("WHY")]
    note = listing_report.sample_note(look.listing)
    return [table(caption, [columns[0], *more, *columns[1:]], cells), paragraph(note, class_="quiet") if note else None]


def _why_by_path(look: NodeLook) -> dict[str, WhyPartition]:
    return {one.path: one for one in look.replicas}


def _found(look: NodeLook, wanted: Wanted) -> Sequence[PartitionListing]:
    if look.listing is None:
        return ()
    listed = [one for one in look.listing.partitions if wanted.broker in ("", one.broker)]
    found = wanted.matching(listed, lambda partition: partition.name)
    if wanted.sort in ORDERS:
        found.sort(key=ORDERS[wanted.sort])
    elif wanted.sort == _COULD_GO:
        why = _why_by_path(look)
        found.sort(key=lambda one: -why[one.path].could_lose_disk_bytes if one.path in why else 0)
    return found
