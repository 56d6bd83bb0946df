"""The directories of one or more stopped brokers of a cluster, and the replicas of a partition in them.

A change made without a broker must be the same on all replicas, or one of them undoes it later. So a partition is
changed only if it has a single replica, or if all of its replicas are present.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cordwood.commands.coordinators import Beside
from cordwood.common.errors import LockedError, NotFoundError, RequestError
from cordwood.common.text import names_text
from cordwood.common.types import TopicPartition
from cordwood.fs.base import Store
from cordwood.storage.formats.cluster_metadata import ClusterMetadata
from cordwood.storage.node.directory import LogDirectory
from cordwood.storage.node.node import LocatedPartition, Node, list_places


@dataclass(frozen=True, slots=True)
class Brokers:
    """Directories by broker.

    Attributes:
        nodes: a node for each broker, all with the same metadata.
        metadata: the newest metadata in the directories, or None.
    """

    nodes: tuple[Node, ...]
    metadata: ClusterMetadata | None

    @classmethod
    def open(
        cls,
        fs: Store,
        paths: Sequence[str],
        metadata: str | None,
        server_properties: str | None = None,
        overrides: Sequence[str] = (),
    ) -> Brokers:
        """Open directories, which may belong to several brokers of one cluster.

        Args:
            metadata, server_properties, overrides: see `Node.open`; default: metadata in any of the directories.

        Raises:
            NotFoundError: a path does not exist.
            RequestError: a path is a file; the directories belong to different clusters; or one is a copy of another.
        """
        directories, _ = list_places(fs, paths)
        by_broker: dict[int | None, list[str]] = {}
        for directory in directories:
            node_id = None if directory.meta is None else directory.meta.node_id
            by_broker.setdefault(node_id, []).append(directory.path)
        _check_one_cluster(directories)
        nodes = [Node.open(fs, some, metadata, server_properties, overrides) for some in by_broker.values()]
        newest = max(nodes, key=lambda node: -1 if node.metadata is None else node.metadata.next_offset)
        told = [replace(node, metadata=newest.metadata, metadata_path=newest.metadata_path) for node in nodes]
        return cls(tuple(told), newest.metadata)

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        """Return the partitions of a topic in any broker's directories."""
        return sorted({name for node in self.nodes for name in Beside(node).partitions if name.topic == topic})

    def replicas(self, name: TopicPartition, *, single_copy: bool) -> list[LocatedPartition]:
        """Return all replicas of a partition.

        Args:
            single_copy: whether the user confirms that the present replica is the only one.

        Raises:
            RequestError: replicas are missing, the number of replicas is unknown, or a replica is being moved.
        """
        found = {node.node_id: Beside(node).partitions.get(name) for node in self.nodes}
        places = {node_id: place for node_id, place in found.items() if place is not None}
        if not places:
            raise NotFoundError(f"no directory has partition {name}")
        for node in self.nodes:
            _check_not_twice(node, name)
        if single_copy:
            if len(places) > 1:
                raise RequestError(f"{name} is in the directories of {len(places)} brokers, so it has no single copy")
        else:
            self._check_complete(name, list(places))
        return [place for _, place in sorted(places.items(), key=lambda item: item[0] or 0)]

    def _check_complete(self, name: TopicPartition, here: Sequence[int | None]) -> None:
        known = None if self.metadata is None or self.metadata.problems else self.metadata.topics.get(name.topic)
        partition = None if known is None else known.partitions.get(name.partition)
        if partition is None:
            raise RequestError(
                f"nothing says how many replicas {name} has: give --metadata DIR, with __cluster_metadata-0; or, if it "
                "has no other replica, --single-copy"
            )
        wanted = set(partition.replicas)
        if len(wanted) == 1 and len(here) == 1 and here[0] is None:
            return
        if missing := sorted(wanted.difference(here)):
            raise RequestError(
                f"{name} has replicas on {_brokers(sorted(wanted))}, and no directory of {_brokers(missing)} is given. "
                "Stop all of them and give all of their directories, which are changed alike; or let them run, and "
                "use kafka-transactions.sh"
            )
        if others := sorted(str(one) for one in here if one not in wanted):
            raise RequestError(
                f"{name} is in a directory of {_brokers(others)}, but the metadata knows it on "
                f"{_brokers(sorted(wanted))} only"
            )

    def has_current(self, name: TopicPartition) -> bool:
        """Whether a replica with all records of a partition is present: an in-sync replica is, or all replicas are.

        After all brokers of a partition have stopped, the metadata lists no in-sync replica.
        """
        known = None if self.metadata is None else self.metadata.topics.get(name.topic)
        partition = None if known is None else known.partitions.get(name.partition)
        here = {node.node_id for node in self.nodes if name in Beside(node).partitions}
        if partition is None or here == {None}:
            return bool(here)
        return here.issuperset(partition.replicas) or not here.isdisjoint(partition.isr)


def check_stopped(directory: LogDirectory) -> None:
    """Raise for a directory that is in use, or whose logs must first be recovered.

    Raises:
        LockedError: a program holds it.
        RequestError: it was not shut down cleanly.
        DataError: its broker would take it offline.
    """
    if directory.holder is not None:
        raise LockedError(
            f"{directory.path} is held by {directory.holder}. Stop it first; while the broker runs, "
            "kafka-transactions.sh aborts transactions"
        )
    if directory.crashed:
        raise RequestError(
            f"{directory.path} was not shut down cleanly, so its logs have to be recovered first: start its broker and "
            "stop it properly, or do so with cordwood run"
        )
    if directory.failure is not None:
        raise directory.failure


def _check_one_cluster(directories: Sequence[LogDirectory]) -> None:
    clusters = {one.meta.cluster_id: one.path for one in directories if one.meta is not None and one.meta.cluster_id}
    if len(clusters) > 1:
        raise RequestError(f"{names_text(sorted(clusters.values()))} belong to different clusters")


def _check_not_twice(node: Node, name: TopicPartition) -> None:
    """Raise RequestError for a partition that occurs twice in a broker's directories."""
    for other in node.futures(name):
        raise RequestError(f"{name} is being moved to {other.path}. Let its broker finish that, or cancel it, first")
    if twins := node.duplicates(name):
        raise RequestError(f"{name} is in {names_text([twin.path for twin in twins])}: no broker starts with both")


def _brokers(ids: Sequence[object]) -> str:
    return f"{'broker' if len(ids) == 1 else 'brokers'} {names_text([str(one) for one in ids])}"
