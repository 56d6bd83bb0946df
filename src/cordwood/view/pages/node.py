"""The page of a node: its disks, topics by size, removable data, problems, lagging groups, hanging transactions.

A node of a cluster has no groups and transactions of its own: `cluster` shows those of all brokers. It shares the other
sections.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from cordwood.cleaning.rules.plan import utc
from cordwood.commands import ls as listing_report
from cordwood.commands.why.facts import CauseKind, WhyPartition, could_lose, sums
from cordwood.common.text import Column, bytes_text, cells_of, number, printable
from cordwood.storage.node.listing import Listing, PartitionListing, TopicListing, partition_count
from cordwood.storage.node.transactions import Outlook
from cordwood.view.node_look import NodeLook, Step
from cordwood.view.pages import groups, transactions
from cordwood.view.pages.drawing import WIDE, Bar, Tile, bars, both, share_bar, treemap
from cordwood.view.pages.frame import (
    NAMES_MAX,
    Links,
    Wanted,
    cut,
    figures,
    link_or_text,
    linked_names,
    page,
    paragraph,
    section,
    table,
)
from cordwood.view.pages.markup import Content, tag
from cordwood.view.pages.under_way import not_yet, progress, refresh_seconds

#: Maximum number of rows of a table on this page.
_ROWS_MAX = 20
#: Maximum number of topics with their own tile.
_TILES_MAX = 40
#: Causes that need attention, the worst first.
_WRONG = (
    CauseKind.DAMAGED,
    CauseKind.UNREADABLE,
    CauseKind.OFFLINE,
    CauseKind.DUPLICATE,
    CauseKind.WRONG_CONFIG,
    CauseKind.EMPTIED,
    CauseKind.NO_TIER,
    CauseKind.LOG_START,
    CauseKind.COPIES_FAIL,
    CauseKind.DELETION_FAILS,
    CauseKind.CLEANER_DEAD,
    CauseKind.GIVEN_UP,
    CauseKind.CLEANER_CHECKPOINT,
    CauseKind.CLEANER_OFF,
    CauseKind.HANGING_TRANSACTION,
    CauseKind.LONG_TRANSACTION,
    CauseKind.FUTURE_TIMES,
    CauseKind.NULL_KEYS,
    CauseKind.STRAY,
    CauseKind.NO_PARTITION,
)


def document(look: NodeLook, _: Wanted) -> dict[str, Any]:
    """Return the page as one JSON value: the `--json` output of each command, or null if unknown or missing."""
    return {
        "began_ms": look.began_ms,
        "step": look.step,
        "partitions_done": look.partitions_done,
        "partitions_all": look.partitions_all,
        "failures": dict(look.failures),
        "ls": None if look.listing is None else listing_report.document(look.listing, segments=False),
        "why": None if look.why is None else look.why.document(),
        "groups": None if look.groups is None else look.groups.document(),
        "transactions": None if look.transactions is None else look.transactions.document(),
    }


def node_page(look: NodeLook, _: Wanted, links: Links) -> str:
    """Make the page, with the results of the scan so far."""
    return page(
        _title(look),
        links,
        body(look, links),
        document_link=links.document("node", of_broker(look)),
        refresh_seconds=refresh_seconds(look),
    )


def body(look: NodeLook, links: Links, name: str = "node") -> Content:
    """Return the page's content; `name` is its anchor in a file."""
    listing = look.listing
    paths = look.paths if listing is None else [one.path for one in listing.directories]
    parts: list[Content] = [
        tag("h1", _title(look), id=name),
        paragraph(
            linked_names([(printable(one), None) for one in paths[:NAMES_MAX]], len(paths)), as_of(look), class_="quiet"
        ),
        progress(look),
    ]
    if listing is None:
        return parts
    of_all: list[Content] = []
    if look.broker is None:
        of_all.append(section("Groups that lag", groups.worst(look, links)))
        of_all.append(section("Open transactions", transactions.worst(look, links)))
    return [
        *parts,
        figures(*figures_of(look, listing)),
        section("Disks", disks(listing)),
        section("Topics by size", topics(look, listing, links)),
        section("What could go", could_go(look, links)),
        section("What is wrong", wrong(look, listing, links)),
        *of_all,
    ]


def no_broker_page(name: str, links: Links) -> str:
    """Make the page for a broker that has no directory here."""
    return page(
        "Not here", links, tag("h1", "Not here"), paragraph(f"No directory of broker {printable(name)} is here.")
    )


def as_of(look: NodeLook) -> Content:
    """Return the time of a scan, in words that follow the directories."""
    return f", as of {utc(look.began_ms)}"


def of_broker(look: NodeLook) -> dict[str, str]:
    """Return the query of pages that show a single broker of a cluster; empty for all."""
    return {} if look.broker is None else {"broker": look.broker}


def _title(look: NodeLook) -> str:
    if look.broker is not None:
        return f"Node {printable(look.broker)}"
    ids = {one.node_id for one in (() if look.listing is None else look.listing.directories) if one.node_id is not None}
    return f"Node {min(ids)}" if ids else "Node"


# ---- disks, topics ---------------------------------------------------------------------------------------------------


def figures_of(look: NodeLook, listing: Listing) -> list[tuple[str, str]]:
    """Return the most important numbers of a node, or of a cluster."""
    could = None if look.why is None else could_lose(look.why.partitions)
    hanging = None if look.transactions is None else len(look.transactions.with_outlook(Outlook.HANGING))
    replicas = [("Replicas", f"{len(listing.partitions):,}")] if len(listing.brokers) > 1 else []
    return [
        ("On disk", bytes_text(sum(one.disk_bytes for one in listing.partitions))),
        ("Could go, at most", bytes_text(could)),
        ("Partitions", f"{partition_count(listing.partitions):,}"),
        *replicas,
        ("Topics", f"{len(listing.topics):,}"),
        ("Segments", f"{sum(one.segment_count for one in listing.partitions):,}"),
        ("Damaged partitions", f"{sum(bool(one.damage) for one in listing.partitions):,}"),
        *([] if look.broker is not None else [("Hanging transactions", "-" if hanging is None else f"{hanging:,}")]),
    ]


def disks(listing: Listing) -> Content:
    """List the log directories, with their share of the disk."""
    several = len(listing.brokers) > 1
    by_directory: dict[str, list[PartitionListing]] = {}
    for one in listing.partitions:
        by_directory.setdefault(one.path.rpartition("/")[0], []).append(one)
    columns = [
        Column("DIRECTORY"),
        *([Column("BROKER")] if several else []),
        Column("STATE"),
        Column("PARTITIONS", right=True),
        Column("ON DISK", right=True),
        Column("DISK", right=True),
        Column("SHARE", right=True),
        Column("OF THE DISK"),
    ]
    rows: list[Sequence[Content]] = []
    for directory in listing.directories:
        inside = by_directory.get(directory.path, [])
        taken = directory.own_bytes + sum(one.disk_bytes for one in inside)
        share = taken / directory.disk_size_bytes if directory.disk_size_bytes else None
        words = "-" if share is None else f"{share:.1%}"
        bar = None if share is None else share_bar(share, f"{words} of the disk")
        counts = f"{len(inside):,}", bytes_text(taken), bytes_text(directory.disk_size_bytes)
        broker = [printable(directory.broker)] if several else []
        rows.append([printable(directory.path), *broker, directory.summary, *counts, words, bar])
    metadata = listing.metadata_path
    known = "none, so policies are not known" if metadata is None else f"{printable(metadata)}"
    return [table("Log directories", columns, rows), paragraph(f"Metadata log: {known}", class_="quiet")]


def topics(look: NodeLook, listing: Listing, links: Links) -> Content:
    """Draw the topics by size, and list the largest."""
    ranked = sorted(listing.topics, key=lambda one: (-one.disk_bytes, one.name))
    if not ranked:
        return paragraph("There is no topic.")
    partitions: dict[str, list[WhyPartition]] = {}
    for one in () if look.why is None else look.why.partitions:
        if one.topic_partition is not None:
            partitions.setdefault(one.topic_partition.topic, []).append(one)
    could = {topic: could_lose(some) for topic, some in partitions.items()}
    tiles = [_tile(one, could.get(one.name), _link(look, one, links)) for one in ranked[:_TILES_MAX]]
    others = ranked[_TILES_MAX:]
    if others:
        size = sum(one.disk_bytes for one in others)
        tiles.append(
            Tile(
                number(len(others), "more topic"), size, 0, bytes_text(size), links.to("partitions", **of_broker(look))
            )
        )
        tiles.sort(key=lambda tile: -tile.size)
    label = "Topics by bytes on disk; the table below has the figures"
    drawing = both(lambda width: treemap(tiles, label, width, 380 if width == WIDE else 420))
    columns, rows = cells_of(listing_report.shown_columns(listing, by=listing_report.By.TOPIC), ranked[:_ROWS_MAX])
    linked = [
        [link_or_text(row[0], _link(look, topic, links)), *row[1:], bytes_text(could.get(topic.name))]
        for topic, row in zip(ranked, rows, strict=False)
    ]
    return [
        tag(
            "figure",
            drawing,
            tag(
                "figcaption",
                "Each rectangle is a topic, as large as what it takes on the disk. Yellow: what could go, at most.",
            ),
        ),
        table(
            f"Topics by size: {cut(len(rows), len(ranked), 'topic')}",
            [*columns, Column("COULD GO", right=True)],
            linked,
        ),
        paragraph(note, class_="quiet") if (note := listing_report.sample_note(listing)) else None,
    ]


def _link(look: NodeLook, topic: TopicListing, links: Links) -> str | None:
    """Return the address of the list of a topic's partitions."""
    return links.to("partitions", search=topic.name, **of_broker(look))


def _tile(topic: TopicListing, could_go: int | None, link: str | None) -> Tile:
    part = could_go / topic.disk_bytes if could_go and topic.disk_bytes else 0.0
    words = bytes_text(topic.disk_bytes) + (f", up to {bytes_text(could_go)} could go" if could_go else "")
    return Tile(printable(topic.name), topic.disk_bytes, min(part, 1.0), words, link)


# ---- removable data, problems ----------------------------------------------------------------------------------------


def could_go(look: NodeLook, links: Links) -> Content:
    """Show the removable data by its main cause, and the partitions with the most of it."""
    if look.why is None:
        return not_yet(look, Step.WHY)
    partitions = look.why.partitions
    by_kind: dict[CauseKind, list[WhyPartition]] = {}
    for one in partitions:
        by_kind.setdefault(one.cause.kind, []).append(one)
    ranked = sorted(((kind, *sums(some), some) for kind, some in by_kind.items()), key=lambda row: (-row[2], -row[1]))
    chart = [
        Bar(kind, size, could / size if size else 0, f"{bytes_text(could)} of {bytes_text(size)}")
        for kind, size, could, _ in ranked[:_ROWS_MAX]
    ]
    causes = [
        [
            kind,
            f"{len(some):,}",
            bytes_text(size),
            bytes_text(could),
            _names(some, links),
        ]
        for kind, size, could, some in ranked
    ]
    first = partitions[:_ROWS_MAX]
    rows = [
        [
            link_or_text(*_named(one, links)),
            *map(bytes_text, sums([one])),
            printable(one.cause.what),
            printable(one.cause.next_step) or "-",
        ]
        for one in first
    ]
    sizes = [Column("ON DISK", right=True), Column("COULD GO", right=True)]
    return [
        tag("figure", both(lambda width: bars(chart, "What could go, by its main cause", width))),
        table(
            "Main causes, those first that hold back most",
            [Column("MAIN CAUSE"), Column("PARTITIONS", right=True), *sizes, Column("WHICH")],
            causes,
        ),
        table(
            f"Partitions that could lose most: {cut(len(first), len(partitions), 'partition')}",
            [Column("PARTITION"), *sizes, Column("WHY"), Column("WHAT TO DO")],
            rows,
        ),
        paragraph(_how_known(look), class_="quiet"),
    ]


def _named(partition: WhyPartition, links: Links) -> tuple[str, str | None]:
    return printable(partition.name), links.to("partition", path=partition.path)


def _names(partitions: Sequence[WhyPartition], links: Links, *, with_broker: bool = False) -> Content:
    """List the first few partitions, or replicas with their brokers, and the number of others."""
    names = []
    for one in partitions[:NAMES_MAX]:
        name, href = _named(one, links)
        names.append((f"{name} of broker {printable(one.on_broker)}" if with_broker else name, href))
    return linked_names(names, len(partitions))


def _how_known(look: NodeLook) -> str:
    assert look.why is not None, "it is shown"
    estimated = sum(one.keys is not None for one in look.why.partitions)
    words = f"Keys were counted in {number(estimated, 'partition')}, by key indexes or a sample: an estimate"
    if look.why.keys_not_counted:
        more = number(len(look.why.keys_not_counted), "partition")
        words += f"; of {more} they were not, and what could go there is an upper bound"
    return words + "."


def wrong(look: NodeLook, listing: Listing, links: Links) -> Content:
    """List problems, the worst first."""
    rows: list[Sequence[Content]] = [
        ["directory", printable(where), printable(what), "-"] for where, what in _of_directories(listing)
    ]
    if look.why is None:
        damaged = [one for one in listing.partitions if one.damage or one.unreadable]
        for one in damaged[:_ROWS_MAX]:
            what = str(one.damage[0]) if one.damage else one.unreadable[0]
            of = f" of broker {one.broker}" if len(listing.brokers) > 1 else ""
            name = link_or_text(printable(one.name + of), links.to("partition", path=one.path))
            rows.append(["damage" if one.damage else "unreadable", name, printable(what), "-"])
    else:
        rows += _wrong_causes(look, links)
    columns = [Column("PROBLEM"), Column("WHERE"), Column("WHAT, OF THE FIRST"), Column("WHAT TO DO")]
    checked = (
        "Batch headers were read, of large logs a sample. cordwood check reads everything, and compares checksums."
    )
    return [
        table("Problems, the worst first", columns, rows) if rows else paragraph("No problem was seen."),
        None if look.why is not None else not_yet(look, Step.WHY),
        paragraph(checked, class_="quiet"),
    ]


def _of_directories(listing: Listing) -> Iterator[tuple[str, str]]:
    for directory in listing.directories:
        yield from ((directory.path, str(problem)) for problem in directory.problems)
    yield from ((listing.metadata_path or "", str(problem)) for problem in listing.metadata_problems[:1])


def _wrong_causes(look: NodeLook, links: Links) -> Iterator[Sequence[Content]]:
    by_kind: dict[CauseKind, list[tuple[WhyPartition, int]]] = {}
    for partition in look.replicas:
        for at, cause in enumerate(partition.causes):
            by_kind.setdefault(cause.kind, []).append((partition, at))
    for kind in _WRONG:
        found = by_kind.get(kind, [])
        if found:
            first, at = found[0]
            cause = first.causes[at]
            yield [
                kind,
                _names([one for one, _ in found], links, with_broker=look.broker is None and len(look.brokers) > 1),
                printable(cause.what),
                printable(cause.next_step) or "-",
            ]
