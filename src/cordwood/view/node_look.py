"""`view`: combines the results of other commands for the pages of a node, or of a cluster of several brokers.

A scan takes these steps; pages are useful after the first:

    ls              sizes, states, policies: names, and a sample of the batch headers
    why             removable data, and its causes; for compacted partitions from a sample of the keys
    groups          if any partition of `__consumer_offsets` is present
    transactions    open in any log; of a large log all headers are read only if a sample has transactions

With `--exact`, all headers are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from cordwood.commands.groups import groups_of_cluster
from cordwood.commands.ls import list_cluster
from cordwood.commands.opening import open_cluster, select_partitions
from cordwood.commands.options import GroupOptions, ListOptions, TransactionOptions, WhyOptions
from cordwood.commands.transactions import transactions_of_cluster
from cordwood.commands.why.facts import WhyPartition, WhyResult
from cordwood.commands.why_node import could_lose_most, why_cluster
from cordwood.common.errors import CordwoodError, NotFoundError
from cordwood.common.types import Clock, TopicPartition, system_clock
from cordwood.fs.base import Store
from cordwood.storage.formats.messages.topics import CONSUMER_OFFSETS
from cordwood.storage.log.files import why_unreadable
from cordwood.storage.node.cluster import Cluster
from cordwood.storage.node.groups import GroupListing
from cordwood.storage.node.listing import Listing, PartitionListing, sum_topics
from cordwood.storage.node.transactions import OpenTransaction, TransactionListing
from cordwood.view.partition_look import PartitionLook, look_at_partition, options_for


class Step(StrEnum):
    """A step of a scan, by its command."""

    LS = "ls"
    WHY = "why"
    GROUPS = "groups"
    TRANSACTIONS = "transactions"


@dataclass(frozen=True, slots=True)
class NodeLook:
    """The results of a scan of a node so far.

    Attributes:
        paths: the user's paths.
        began_ms: start of the scan, and the time of all decisions.
        brokers: names of the brokers; an unknown name is empty.
        listing, why, groups, transactions: results of the steps; None: not yet, or failed.
        step: the running step; None when all are done.
        partitions_done, partitions_all: progress of the running step.
        failures: errors of failed steps, in words.
        broker: name of the broker to which `of_broker` narrowed the results; None: all brokers, or the only one.
    """

    paths: tuple[str, ...]
    began_ms: int
    brokers: tuple[str, ...] = ()
    listing: Listing | None = None
    why: WhyResult | None = None
    groups: GroupListing | None = None
    transactions: TransactionListing | None = None
    step: Step | None = Step.LS
    partitions_done: int = 0
    partitions_all: int = 0
    failures: Mapping[Step, str] = field(default_factory=dict)
    broker: str | None = None

    @property
    def replicas(self) -> Sequence[WhyPartition]:
        """The causes of each replica's size; empty until they are known."""
        found = () if self.why is None else self.why.partitions
        return [replica for one in found for replica in one.all_replicas]

    def of_broker(self, name: str) -> NodeLook:
        """Return the sizes and causes of a single broker's partitions, without groups and transactions."""
        listing, why = self.listing, self.why
        if listing is not None:
            partitions = tuple(one for one in listing.partitions if one.broker == name)
            listing = replace(
                listing,
                directories=tuple(one for one in listing.directories if one.broker == name),
                partitions=partitions,
                topics=tuple(sum_topics(partitions)),
                brokers=tuple(one for one in listing.brokers if one.name == name),
                by_partition=(),
            )
        if why is not None:
            own = [replace(one, replicas=()) for one in self.replicas if one.on_broker == name]
            why = replace(why, brokers=(name,), partitions=tuple(sorted(own, key=could_lose_most)))
        return replace(self, listing=listing, why=why, groups=None, transactions=None, broker=name)

    def replicas_of(self, partition: TopicPartition | None) -> Sequence[PartitionListing]:
        """Return the replicas of a partition, in the order of the brokers."""
        found = () if self.listing is None else self.listing.by_partition
        return next((one.replicas for one in found if one.topic_partition == partition), ())

    def open_in(self, partition: TopicPartition | None) -> list[OpenTransaction]:
        """Return the known open transactions of a partition."""
        found = () if self.transactions is None else self.transactions.transactions
        return [one for one in found if any(log.partition == partition for log in one.logs)]

    @property
    def is_done(self) -> bool:
        """Whether all steps are done."""
        return self.step is None


#: Called with the results of a scan so far.
OnLook = Callable[[NodeLook], None]


def before_look(
    paths: Sequence[str], options: WhyOptions, *, fs: Store | None = None, clock: Clock = system_clock
) -> NodeLook:
    """Return the state before a scan: only the number of partitions is known.

    Raises:
        RequestError, NotFoundError, ConfigError: as `cordwood.ls`.
    """
    cluster, given = _open(paths, options, fs)
    now_ms = clock() if options.now_ms is None else options.now_ms
    return NodeLook(given, now_ms, cluster.brokers, partitions_all=_count(cluster))


def _open(paths: Sequence[str], options: WhyOptions, fs: Store | None) -> tuple[Cluster, tuple[str, ...]]:
    """Open the directories; return also the paths of all of them."""
    chosen, given = options.selection, options.named.with_paths(paths)
    fs = fs or chosen.store([*given, options.index_place.index_dir])
    cluster = open_cluster(fs, paths, chosen, options.named)
    select_partitions((place for node in cluster.nodes for place in node.places), given, chosen)
    return cluster, given


def _count(cluster: Cluster) -> int:
    return sum(len(node.places) for node in cluster.nodes)


def look_at_node(
    paths: Sequence[str],
    options: WhyOptions,
    *,
    on_look: OnLook | None = None,
    fs: Store | None = None,
    clock: Clock = system_clock,
) -> NodeLook:
    """Scan the directories of one or more brokers, step by step.

    Args:
        on_look: called after each partition and each step.

    Raises:
        RequestError, NotFoundError, ConfigError: as `cordwood.ls`, before the first step.
    """
    now_ms = clock() if options.now_ms is None else options.now_ms
    return _Looking(*_open(paths, options, fs), replace(options, now_ms=now_ms), on_look).run()


class _Looking:
    """A running scan."""

    def __init__(self, cluster: Cluster, paths: tuple[str, ...], options: WhyOptions, on_look: OnLook | None) -> None:
        assert options.now_ms is not None, "all steps decide as of one time"
        self._cluster = cluster
        self._paths = paths
        self._options = options
        self._on_look = on_look or (lambda _: None)
        self._look = NodeLook(paths, options.now_ms, cluster.brokers)

    def run(self) -> NodeLook:
        """Run all steps."""
        for step in Step:
            self._say(replace(self._look, step=step, partitions_done=0, partitions_all=_count(self._cluster)))
            try:
                found = self._take(step)
            except (CordwoodError, OSError) as error:
                self._look = replace(self._look, failures={**self._look.failures, step: why_failed(error)})
            else:
                self._look = replace(self._look, **found)
        self._say(replace(self._look, step=None))
        return self._look

    def _say(self, look: NodeLook) -> None:
        self._look = look
        self._on_look(look)

    def _progress(self, done: int, total: int) -> None:
        self._say(replace(self._look, partitions_done=done, partitions_all=total))

    def _take(self, step: Step) -> Mapping[str, Any]:
        cluster, paths, options, on_progress = self._cluster, self._paths, self._options, self._progress
        selection = options.selection
        match step:
            case Step.LS:
                asked = ListOptions(selection=selection, index_place=options.index_place, exact=options.exact)
                return {"listing": list_cluster(cluster, paths, asked, on_progress=on_progress)}
            case Step.WHY:
                return {"why": why_cluster(cluster, paths, options, on_progress=on_progress)}
            case Step.GROUPS:
                if not any(place.topic == CONSUMER_OFFSETS for node in cluster.nodes for place in node.places):
                    return {}
                of_groups = GroupOptions(metadata=selection.metadata)
                return {"groups": groups_of_cluster(cluster, paths, of_groups, on_progress=on_progress)}
            case Step.TRANSACTIONS:
                of_transactions = TransactionOptions(selection=selection, now_ms=options.now_ms)
                found = transactions_of_cluster(
                    cluster, paths, of_transactions, exact=options.exact, on_progress=on_progress
                )
                return {"transactions": found}


def look_at_all(
    paths: Sequence[str],
    options: WhyOptions,
    limit: int,
    *,
    on_look: OnLook | None = None,
    fs: Store | None = None,
    clock: Clock = system_clock,
) -> tuple[NodeLook, list[PartitionLook]]:
    """Scan the directories of one or more brokers, then the partitions with the most removable data, each by itself.

    Args:
        limit: maximum number of partitions to scan.

    Raises:
        RequestError, NotFoundError, ConfigError: as `cordwood.ls`.
    """
    options = replace(options, now_ms=clock() if options.now_ms is None else options.now_ms)
    cluster, given = _open(paths, options, fs)
    look = _Looking(cluster, given, options, on_look).run()
    found = []
    why = {one.path: one for one in look.replicas}
    nodes = {place.path: node for node in cluster.nodes for place in node.places}
    for path in _that_could_lose_most(look)[:limit]:
        try:
            of_one = options_for(path, options, cluster.metadata_path)
            found.append(look_at_partition(path, of_one, node=nodes[path], why=why.get(path)))
        except (CordwoodError, OSError):
            continue  # the scan of the node reports the error; or a running broker has deleted the partition
    return look, found


def _that_could_lose_most(look: NodeLook) -> list[str]:
    """Return the directories of all partitions by removable data; in listing order if that is unknown."""
    if look.why is not None:
        return [one.path for one in look.why.partitions]
    return [] if look.listing is None else [one.path for one in look.listing.partitions]


def why_failed(error: CordwoodError | OSError) -> str:
    """Describe an error in words."""
    if isinstance(error, OSError) and not isinstance(error, NotFoundError):
        return f"{error.filename or 'a file'} {why_unreadable(error)}"
    return str(error)
