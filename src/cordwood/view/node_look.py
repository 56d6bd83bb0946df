"""`view`: combines the results of other commands for the pages of a node.

A scan of a node takes these steps; pages are useful after the first:

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
from cordwood.commands.opening import open_node, select_partitions
from cordwood.commands.options import GroupOptions, ListOptions, TransactionOptions, WhyOptions
from cordwood.commands.transactions import transactions_of_cluster
from cordwood.commands.why.facts import WhyResult
from cordwood.commands.why_node import why_cluster
from cordwood.common.errors import CordwoodError, NotFoundError
from cordwood.common.types import Clock, TopicPartition, system_clock
from cordwood.fs.base import Store
from cordwood.storage.formats.messages.topics import CONSUMER_OFFSETS
from cordwood.storage.log.files import why_unreadable
from cordwood.storage.node.cluster import Cluster
from cordwood.storage.node.groups import GroupListing
from cordwood.storage.node.listing import Listing
from cordwood.storage.node.node import Node
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
        listing, why, groups, transactions: results of the steps; None: not yet, or failed.
        step: the running step; None when all are done.
        partitions_done, partitions_all: progress of the running step.
        failures: errors of failed steps, in words.
    """

    paths: tuple[str, ...]
    began_ms: int
    listing: Listing | None = None
    why: WhyResult | None = None
    groups: GroupListing | None = None
    transactions: TransactionListing | None = None
    step: Step | None = Step.LS
    partitions_done: int = 0
    partitions_all: int = 0
    failures: Mapping[Step, str] = field(default_factory=dict)

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
    node = _open(paths, options, fs)
    now_ms = clock() if options.now_ms is None else options.now_ms
    return NodeLook(tuple(paths), now_ms, partitions_all=len(node.places))


def _open(paths: Sequence[str], options: WhyOptions, fs: Store | None) -> Node:
    options.named.refuse("view")
    chosen = options.selection
    fs = fs or chosen.store([*paths, options.index_place.index_dir])
    node = open_node(fs, paths, chosen)
    select_partitions(node.places, paths, chosen)
    return node


def look_at_node(
    paths: Sequence[str],
    options: WhyOptions,
    *,
    on_look: OnLook | None = None,
    fs: Store | None = None,
    clock: Clock = system_clock,
) -> NodeLook:
    """Scan one broker's directories, step by step.

    Args:
        on_look: called after each partition and each step.

    Raises:
        RequestError, NotFoundError, ConfigError: as `cordwood.ls`, before the first step.
    """
    now_ms = clock() if options.now_ms is None else options.now_ms
    return _Looking(_open(paths, options, fs), paths, replace(options, now_ms=now_ms), on_look).run()


class _Looking:
    """A running scan."""

    def __init__(self, node: Node, paths: Sequence[str], options: WhyOptions, on_look: OnLook | None) -> None:
        assert options.now_ms is not None, "all steps decide as of one time"
        self._node = node
        self._paths = paths
        self._options = options
        self._on_look = on_look or (lambda _: None)
        self._look = NodeLook(tuple(paths), options.now_ms)

    def run(self) -> NodeLook:
        """Run all steps."""
        for step in Step:
            self._say(replace(self._look, step=step, partitions_done=0, partitions_all=len(self._node.places)))
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
        node, paths, options, on_progress = self._node, self._paths, self._options, self._progress
        selection = options.selection
        match step:
            case Step.LS:
                asked = ListOptions(selection=selection, index_place=options.index_place, exact=options.exact)
                return {"listing": list_cluster(Cluster.of(node), paths, asked, on_progress=on_progress)}
            case Step.WHY:
                return {"why": why_cluster(Cluster.of(node), paths, options, on_progress=on_progress)}
            case Step.GROUPS:
                if not any(place.topic == CONSUMER_OFFSETS for place in node.places):
                    return {}
                of_groups = GroupOptions(metadata=selection.metadata)
                return {"groups": groups_of_cluster(Cluster.of(node), paths, of_groups, on_progress=on_progress)}
            case Step.TRANSACTIONS:
                of_transactions = TransactionOptions(selection=selection, now_ms=options.now_ms)
                found = transactions_of_cluster(
                    Cluster.of(node), paths, of_transactions, exact=options.exact, on_progress=on_progress
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
    """Scan one broker's directories, then the partitions with the most removable data, each by itself.

    Args:
        limit: maximum number of partitions to scan.

    Raises:
        RequestError, NotFoundError, ConfigError: as `cordwood.ls`.
    """
    options = replace(options, now_ms=clock() if options.now_ms is None else options.now_ms)
    node = _open(paths, options, fs)
    look = _Looking(node, paths, options, on_look).run()
    found = []
    why = {} if look.why is None else {one.path: one for one in look.why.partitions}
    for path in _that_could_lose_most(look)[:limit]:
        try:
            of_one = options_for(path, options, node.metadata_path)
            found.append(look_at_partition(path, of_one, node=node, why=why.get(path)))
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
