"""The page of a cluster: its brokers by bytes, replicas that are not well, and the sections of a node over all brokers.

Each broker links to the page of its node.
"""

from __future__ import annotations

from collections.abc import Sequence

from cordwood.commands import ls as listing_report
from cordwood.commands.why.facts import WhyPartition, could_lose
from cordwood.common.text import Column, bytes_text, cells_of, number, printable
from cordwood.storage.node.listing import BrokerListing, Listing, ReplicaRole, ReplicasListing
from cordwood.view.node_look import NodeLook
from cordwood.view.pages import groups, transactions
from cordwood.view.pages.drawing import Bar, bars, both
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
from cordwood.view.pages.node import as_of, could_go, disks, figures_of, topics, wrong
from cordwood.view.pages.under_way import progress, refresh_seconds

#: Maximum number of partitions on this page whose replicas are not well.
_ROWS_MAX = 20
#: The column of brokers with a replica, each with a link to it.
_HERE = "HERE"


def cluster_page(look: NodeLook, _: Wanted, links: Links) -> str:
    """Make the page, with the results of the scan so far."""
    return page(
        _title(look),
        links,
        body(look, links),
        document_link=links.document("cluster", {}),
        refresh_seconds=refresh_seconds(look),
    )


def body(look: NodeLook, links: Links) -> Content:
    """Return the page's content."""
    listing = look.listing
    paths = [(printable(one), None) for one in look.paths[:NAMES_MAX]]
    parts: list[Content] = [
        tag("h1", _title(look), id="cluster"),
        paragraph(linked_names(paths, len(look.paths)), as_of(look), class_="quiet"),
        progress(look),
    ]
    if listing is None:
        return parts
    unwell = sorted((one for one in listing.by_partition if one.state), key=_worst_first)
    return [
        *parts,
        figures(
            ("Brokers", f"{len(listing.brokers):,}"),
            *figures_of(look, listing),
            ("Without a leader", f"{sum(_has_no_leader(one) for one in unwell):,}"),
            ("With replicas not in sync or missing", f"{sum(map(_lacks, unwell)):,}"),
        ),
        section("Brokers", _brokers(look, listing, links)),
        section("Replicas", _replicas(listing, unwell, links)),
        section("Disks", disks(listing)),
        section("Topics by size", topics(look, listing, links)),
        section("What could go", could_go(look, links)),
        section("What is wrong", wrong(look, listing, links)),
        section("Groups that lag", groups.worst(look, links)),
        section("Open transactions", transactions.worst(look, links)),
    ]


def _title(look: NodeLook) -> str:
    return f"Cluster of {number(len(look.brokers), 'broker')}"


# ---- brokers ---------------------------------------------------------------------------------------------------------


def _brokers(look: NodeLook, listing: Listing, links: Links) -> Content:
    replicas: dict[str, list[WhyPartition]] = {}
    for replica in look.replicas:
        replicas.setdefault(replica.on_broker, []).append(replica)
    could = {name: could_lose(some) for name, some in replicas.items()}
    chart = [_bar(one, could.get(one.name)) for one in listing.brokers]
    columns = [
        Column("BROKER"),
        Column("STATE"),
        Column("DIRECTORIES", right=True),
        Column("LEADS", right=True),
        Column("REPLICAS", right=True),
        Column("NOT IN SYNC", right=True),
        Column("ON DISK", right=True),
        Column("COULD GO", right=True),
    ]
    behind: dict[str, int] = {}
    for partition in listing.partitions:
        behind[partition.broker] = behind.get(partition.broker, 0) + (partition.role is ReplicaRole.NOT_IN_SYNC)
    rows: list[Sequence[Content]] = []
    for one in listing.brokers:
        states = dict.fromkeys(directory.summary for directory in listing.directories if directory.broker == one.name)
        rows.append(
            [
                link_or_text(printable(one.name), links.to("node", broker=one.name)),
                printable("; ".join(states)),
                f"{one.directories:,}",
                "-" if one.leads is None else f"{one.leads:,}",
                f"{one.sums.replicas:,}",
                "-" if one.leads is None else f"{behind.get(one.name, 0):,}",
                bytes_text(one.sums.disk_bytes),
                bytes_text(could.get(one.name)),
            ]
        )
    return [
        tag(
            "figure",
            both(lambda width: bars(chart, "Brokers by bytes on disk; the table below has the figures", width)),
            tag("figcaption", "What the partitions of each broker take on the disk. Yellow: what could go, at most."),
        ),
        table(number(len(rows), "broker"), columns, rows),
    ]


def _bar(broker: BrokerListing, could: int | None) -> Bar:
    size = broker.sums.disk_bytes
    words = bytes_text(size) + (f", up to {bytes_text(could)} could go" if could else "")
    return Bar(f"broker {printable(broker.name)}", size, min((could or 0) / size, 1.0) if size else 0, words)


# ---- replicas --------------------------------------------------------------------------------------------------------


def _replicas(listing: Listing, unwell: Sequence[ReplicasListing], links: Links) -> Content:
    """List partitions without a leader, or with replicas that are missing or not in sync."""
    if listing.metadata_path is None:
        return paragraph("Not known: without a metadata log, leaders and assigned replicas are unknown.")
    if not unwell:
        return paragraph("Each partition has a leader, and all of its replicas are in sync.")
    shown = unwell[:_ROWS_MAX]
    columns, rows = cells_of(listing_report.shown_columns(listing, by=listing_report.By.PARTITION), shown)
    here = [column.title for column in columns].index(_HERE)
    linked: list[Sequence[Content]] = []
    for one, row in zip(shown, rows, strict=True):
        names = [(printable(each.broker), links.to("partition", path=each.path)) for each in one.replicas]
        linked.append([*row[:here], tag("span", linked_names(names, len(names))), *row[here + 1 :]])
    return [
        table(f"Partitions that are not well: {cut(len(shown), len(unwell), 'partition')}", columns, linked),
        paragraph(
            "By the metadata log, as of its end. After a broker has stopped, its replicas are not in sync; cordwood "
            "compare finds whether replicas have the same records.",
            class_="quiet",
        ),
    ]


def _has_no_leader(one: ReplicasListing) -> bool:
    return one.known is not None and one.leader is None


def _lacks(one: ReplicasListing) -> bool:
    """Return whether replicas are missing or not in sync."""
    return bool(one.missing) or (one.known is not None and len(one.known.isr) < len(one.known.replicas))


def _worst_first(one: ReplicasListing) -> tuple[bool, bool, int]:
    """Sort key: missing replicas, then no leader, then the fewest replicas in sync."""
    in_sync = 0 if one.known is None else len(one.known.isr)
    return not one.missing, not _has_no_leader(one), in_sync
