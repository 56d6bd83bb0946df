"""The table of all pages of a node; and all pages as one file, which loads no other file and runs no script."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cordwood.commands.options import WhyOptions
from cordwood.fs.base import Store
from cordwood.view.node_look import NodeLook, Step, look_at_all
from cordwood.view.pages import groups, node, partition, partitions, transactions
from cordwood.view.pages.frame import Links, Wanted, one_file, section
from cordwood.view.pages.markup import Content, tag
from cordwood.view.partition_look import PartitionLook

#: Maximum number of partitions with their own part.
PARTITIONS = 20


@dataclass(frozen=True, slots=True)
class NodePage:
    """A page of the node, with a link at the head of every page.

    Attributes:
        title: the words of the link.
        path: its path without the slash; the JSON is at `path.json`, of the start page at `node.json`.
        page: makes the HTML.
        document: makes the JSON, or None if the scan has no result of `step`.
        part: makes its part of a file.
        step: the step of a scan whose result the page shows.
    """

    title: str
    path: str
    page: Callable[[NodeLook, Wanted, Links], str]
    document: Callable[[NodeLook, Wanted], Mapping[str, Any] | None]
    part: Callable[[NodeLook, Links], Content]
    step: Step = Step.LS

    @property
    def name(self) -> str:
        """The name of its JSON, and of its part of a file."""
        return self.path or "node"


#: A new page is a module beside this one and a line here.
NODE_PAGES = (
    NodePage("Node", "", node.node_page, node.document, node.body),
    NodePage("Partitions", "partitions", partitions.partitions_page, partitions.document, partitions.of_file),
    NodePage("Groups", "groups", groups.groups_page, groups.document, groups.of_file, Step.GROUPS),
    NodePage(
        "Transactions",
        "transactions",
        transactions.transactions_page,
        transactions.document,
        transactions.of_file,
        Step.TRANSACTIONS,
    ),
)


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

    return _report_page(*look_at_all(paths, options, PARTITIONS, on_look=report, fs=fs))


def _report_page(look: NodeLook, looks: Sequence[PartitionLook]) -> str:
    """Make the file.

    Args:
        looks: scans of the partitions that get their own part.
    """
    anchors = {one.path: f"partition-{number}" for number, one in enumerate(looks, 1)}
    links = Links([(one.title, f"#{one.name}") for one in NODE_PAGES], anchors)
    first, *rest = NODE_PAGES
    return one_file(
        "Report",
        links,
        first.part(look, links),
        [section(one.title, one.part(look, links), id=one.name) for one in rest],
        [tag("article", _partition(look, one, links, anchors[one.path])) for one in looks],
    )


def _partition(look: NodeLook, found: PartitionLook, links: Links, anchor: str) -> Content:
    transactions = look.open_in(found.listing.topic_partition)
    return partition.body(found, transactions, links, anchor)
