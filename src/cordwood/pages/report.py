"""All pages as one file, which works offline: it loads no other file and runs no script."""

from __future__ import annotations

from collections.abc import Sequence

from cordwood.commands.view import NodeLook
from cordwood.commands.view_partition import PartitionLook
from cordwood.pages import groups, node, partition, partitions, transactions
from cordwood.pages.frame import cut, one_file, section
from cordwood.pages.links import FileLinks
from cordwood.pages.markup import Content, tag

#: Maximum number of listed partitions, and of partitions with their own part.
_ROWS_MAX = 2_000
PARTITIONS = 20
_PARTS = (("Node", "#node"), ("Partitions", "#partitions"), ("Groups", "#groups"), ("Transactions", "#transactions"))


def report_page(look: NodeLook, looks: Sequence[PartitionLook]) -> str:
    """Make the file.

    Args:
        looks: scans of the partitions that get their own part.
    """
    links = FileLinks({one.path: f"partition-{number}" for number, one in enumerate(looks, 1)}, _PARTS)
    listing = look.listing
    shown = () if listing is None else listing.partitions[:_ROWS_MAX]
    caption = "" if listing is None else cut(len(shown), len(listing.partitions), "partition")
    listed = partitions.partitions_table(look, shown, caption, links) if shown else None
    return one_file(
        "Report",
        links,
        node.body(look, links),
        section("Partitions", listed, id="partitions"),
        section("Groups", groups.of_file(look, links), id="groups"),
        section("Transactions", transactions.of_file(look, links), id="transactions"),
        [tag("article", _partition(look, one, links)) for one in looks],
    )


def _partition(look: NodeLook, found: PartitionLook, links: FileLinks) -> Content:
    transactions = look.open_in(found.listing.topic_partition)
    return partition.body(found, transactions, links, links.anchors[found.path])
