"""The table of all pages; and all pages as one file, which loads no other file and runs no script."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cordwood.commands.options import WhyOptions
from cordwood.fs.base import Store
from cordwood.view.node_look import NodeLook, Step, look_at_all
from cordwood.view.pages import cluster, groups, node, partition, partitions, transactions
from cordwood.view.pages.frame import Links, Wanted, address, one_file, section
from cordwood.view.pages.markup import Content, tag
from cordwood.view.partition_look import PartitionLook

#: Maximum number of partitions with their own part.
PARTITIONS = 20


@dataclass(frozen=True, slots=True)
class NodePage:
    """A page of the node or the cluster, with a link at the head of every page.

    Attributes:
        title: the words of the link.
        path: its path without the slash; the JSON is at `name.json`.
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
        return self.path or self.title.lower()


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
#: The pages of several brokers. Each broker has the page of a node, too; see `of_broker`.
CLUSTER_PAGES = (NodePage("Cluster", "", cluster.cluster_page, node.document, cluster.body), *NODE_PAGES[1:])


def pages_of(look: NodeLook) -> Sequence[NodePage]:
    """Return the pages of a scan, the start page first."""
    return CLUSTER_PAGES if len(look.brokers) > 1 else NODE_PAGES


def view_html(
    paths: Sequence[str],
    options: WhyOptions,
    *,
    on_progress: Callable[[int, int], None] | None = None,
    fs: Store | None = None,
) -> str:
    """Return the pages of the directories of one or more brokers as the text of one HTML file, which needs no network.

    The directories are only read; a broker may be running.

    Args:
        on_progress: called with how many partitions a step has looked at, and how many there are.

    Raises:
        NotFoundError: there is nothing at a path, or no partition was selected.
        RequestError: a path is a file; or the directories belong to different clusters.
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
    brokers = look.brokers if len(look.brokers) > 1 else ()
    of_brokers = {name: f"broker-{number}" for number, name in enumerate(brokers, 1)}
    of_partitions = {one.path: f"partition-{number}" for number, one in enumerate(looks, 1)}
    anchors = {address("node", {"broker": name}): anchor for name, anchor in of_brokers.items()}
    anchors |= {address("partition", {"path": path}): anchor for path, anchor in of_partitions.items()}
    links = Links([(one.title, f"#{one.name}") for one in pages_of(look)], anchors)
    first, *rest = pages_of(look)
    nodes = [tag("article", node.body(look.of_broker(name), links, anchor)) for name, anchor in of_brokers.items()]
    return one_file(
        "Report",
        links,
        first.part(look, links),
        [section(one.title, one.part(look, links), id=one.name) for one in rest],
        nodes,
        [tag("article", _partition(look, one, links, of_partitions[one.path])) for one in looks],
    )


def _partition(look: NodeLook, found: PartitionLook, links: Links, anchor: str) -> Content:
    name = found.listing.topic_partition
    return partition.body(found, look.open_in(name), links, anchor, look.replicas_of(name))
