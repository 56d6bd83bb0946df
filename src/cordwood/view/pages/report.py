"""All pages as one file, which works offline: it loads no other file and runs no script."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cordwood.commands.options import WhyOptions
from cordwood.fs.base import Store
from cordwood.view.node_look import NodeLook, look_at_all
from cordwood.view.pages import groups, node, partition, partitions, transactions
from cordwood.view.pages.frame import Links, cut, one_file, section
from cordwood.view.pages.markup import Content, tag
from cordwood.view.partition_look import PartitionLook

#: Maximum number of listed partitions, and of partitions with their own part.
_ROWS_MAX = 2_000
PARTITIONS = 20
_PARTS = (("Node", "#node"), ("Partitions", "#partitions"), ("Groups", "#groups"), ("Transactions", "#transactions"))


def view_html(
    paths: Sequence[str],
    options: WhyOptions,
    *,
    on_progress: Callable[[int, int], None] | None = None,
    fs: Store | None = None,
) -> str:
    """Return the pages of one broker's directories as the text of one HTML file, which needs no network.

    The directories are only read; a broker may be running.

    Args:
        on_progress: called with how many partitions a step has looked at, and how many there are.

    Raises:
        NotFoundError: there is nothing at a path, or no partition was selected.
        RequestError: a path is a file; or the directories belong to different brokers.
        ConfigError: Kafka would not accept a config.
    """

    def report(look: NodeLook) -> None:
        if on_progress is not None and look.partitions_done:
            on_progress(look.partitions_done, look.partitions_all)

    return report_page(*look_at_all(paths, options, PARTITIONS, on_look=report, fs=fs))


def report_page(look: NodeLook, looks: Sequence[PartitionLook]) -> str:
    """Make the file.

    Args:
        looks: scans of the partitions that get their own part.
    """
    anchors = {one.path: f"partition-{number}" for number, one in enumerate(looks, 1)}
    links = Links(_PARTS, anchors)
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
        [tag("article", _partition(look, one, links, anchors[one.path])) for one in looks],
    )


def _partition(look: NodeLook, found: PartitionLook, links: Links, anchor: str) -> Content:
    transactions = look.open_in(found.listing.topic_partition)
    return partition.body(found, transactions, links, anchor)
