"""A cluster: the log directories of several brokers, with a node for each, and the replicas of each partition.

    directories ─► brokers       by `node.id` in meta.properties, or by the user's name for it; all of one `cluster.id`
        ├────────► metadata      the newest of all metadata logs, for every node
        └────────► replicas      the directories of a partition, at most one per broker; files are read on first use

Replicas of a partition may differ: a follower was behind when it stopped, or a leader wrote records that were never
committed. A verb that reads each partition once reads the newest replica; see `storage.log.position`.

A verb about one broker gets a cluster of one. A change made without a broker must be the same on all replicas, or one
of them undoes it later: `all_replicas` returns them only if none is missing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from cordwood.common.errors import NotFoundError, RequestError
from cordwood.common.text import names_text
from cordwood.common.types import NONE, TopicPartition
from cordwood.fs.base import Store
from cordwood.storage.formats.cluster_metadata import ClusterMetadata, PartitionReplicas
from cordwood.storage.formats.leader_epochs import LeaderEpochs
from cordwood.storage.log.files import read_leader_epochs
from cordwood.storage.log.position import LogPosition, log_position
from cordwood.storage.log.view import LogView
from cordwood.storage.node.directory import LogDirectory
from cordwood.storage.node.node import (
    LocatedPartition,
    Node,
    check_one_cluster,
    given_layers,
    list_places,
    newest_metadata,
    other_directories,
    place_order,
)


@dataclass(frozen=True)
class Replica:
    """A partition in the directories of one broker. Its files are read on first use.

    Attributes:
        name: the partition.
        node: the broker's node.
        place: the partition's directory.
    """

    name: TopicPartition
    node: Node
    place: LocatedPartition

    def __str__(self) -> str:
        return f"{self.name} of {brokers_text([self.broker])}"

    @property
    def broker(self) -> str:
        """The broker's name; see `Node.name`."""
        return self.node.name

    @property
    def path(self) -> str:
        """Path of the partition's directory."""
        return self.place.path

    @cached_property
    def log(self) -> LogView:
        """The log, as listed on first use.

        Raises:
            OSError, NotFoundError: it is unreadable, or a running broker deleted it.
        """
        return self.place.log()

    @cached_property
    def leader_epochs(self) -> LeaderEpochs:
        """The history of leaders in `leader-epoch-checkpoint`; empty without the file.

        Raises:
            CorruptFileError, OSError: the file is unreadable.
        """
        return read_leader_epochs(self.place.directory.fs, self.place.path)

    @property
    def log_start_offset(self) -> int:
        """The lowest offset that a consumer gets; see `LogView`."""
        return self.log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record, from the last batches of the log."""
        return self.position.end_offset

    @cached_property
    def position(self) -> LogPosition:
        """The last leader epoch and the end, by which replicas are compared.

        Raises:
            OSError, NotFoundError: the log is unreadable, or a running broker deleted it.
        """
        return log_position(self.log)

    @property
    def high_watermark(self) -> int | None:
        """The entry in the directory's checkpoint of high watermarks; None without one."""
        return self.place.directory.high_watermarks.get(self.name)

    @property
    def recovery_point(self) -> int | None:
        """The entry in the directory's checkpoint of recovery points; None without one."""
        return self.place.directory.recovery_points.get(self.name)

    @property
    def first_dirty_offset(self) -> int | None:
        """The entry in the directory's checkpoint of the cleaner; None without one."""
        return self.place.directory.cleaner_offsets.get(self.name)


@dataclass(frozen=True, slots=True)
class ChosenReplica:
    """The replica of a partition that a verb reads.

    Attributes:
        reason: why this one, in words that follow the broker's name.
        others: the other replicas in the directories.
    """

    replica: Replica
    reason: str
    others: tuple[Replica, ...] = ()

    def __str__(self) -> str:
        return f"{brokers_text([self.replica.broker])}: {self.reason}"


@dataclass(frozen=True)
class Cluster:
    """Log directories of one or more brokers of a cluster.

    Attributes:
        nodes: a node for each broker, by node.id, then name; all with the same metadata.
        metadata: the newest metadata in the directories; None without a metadata log.
        metadata_path: path of its log.
    """

    nodes: tuple[Node, ...]
    metadata: ClusterMetadata | None = None
    metadata_path: str | None = None

    @classmethod
    def open(
        cls,
        fs: Store,
        paths: Sequence[str],
        metadata: str | None = None,
        server_properties: str | None = None,
        overrides: Iterable[str] = (),
        *,
        named: Sequence[tuple[str, str]] = (),
    ) -> Cluster:
        """List the directories of one or more brokers, and read their cluster's newest metadata.

        Args:
            paths: log directories, folders of several, or partitions' directories.
            metadata, server_properties, overrides: see `Node.open`; default: metadata in any of the directories.
            named: further paths, each after the name of its broker.

        Raises:
            NotFoundError: a path does not exist or has no log, or `metadata` has no metadata log.
            RequestError: a path is a file; the directories belong to different clusters; one is a copy of another; or
                it is unknown, or contradictory, which broker a directory belongs to.
            ConfigError: Kafka would reject a setting.
        """
        said = given_layers(fs, server_properties, overrides)
        by_broker, places = list_brokers(fs, paths, named)
        directories = [directory for some in by_broker.values() for directory in some]
        groups = {name for name, _ in named}
        everything = [*paths, *(path for _, path in named)]
        others = other_directories(fs, everything, directories, server_properties)
        read, path_read = newest_metadata(fs, [*directories, *others], metadata)
        places = sorted(places, key=place_order)
        nodes = []
        for broker, some in by_broker.items():
            of = {directory.path for directory in some}
            here = tuple(place for place in places if place.directory.path in of)
            own = tuple(everything) if len(by_broker) == 1 else _own_paths(some, here)
            said_name = broker if broker in groups else None
            nodes.append(Node(fs, tuple(some), here, read, path_read, own, said, broker=said_name))
        return cls(tuple(sorted(nodes, key=_order)), read, path_read)

    @classmethod
    def of(cls, node: Node) -> Cluster:
        """Return the cluster of a single node."""
        return cls((node,), node.metadata, node.metadata_path)

    def listed_again(self) -> Cluster:
        """Return the cluster with its directories as they are now; its metadata is not read again."""
        return replace(self, nodes=tuple(node.listed_again() for node in self.nodes))

    def without(self, brokers: Collection[str]) -> Cluster:
        """Return the cluster without the nodes of some brokers."""
        return replace(self, nodes=tuple(node for node in self.nodes if node.name not in brokers))

    @property
    def fs(self) -> Store:
        """The store of all directories."""
        return self.nodes[0].fs

    @property
    def is_one_broker(self) -> bool:
        """Whether the directories belong to a single broker."""
        return len(self.nodes) == 1

    @property
    def brokers(self) -> tuple[str, ...]:
        """Names of the brokers."""
        return tuple(node.name for node in self.nodes)

    def node_of(self, place: LocatedPartition) -> Node:
        """Return the node that has a partition's directory."""
        return next(node for node in self.nodes if place.directory in node.directories)

    def named(self, broker: str) -> Node:
        """Return the node of a broker.

        Raises:
            RequestError: no directory belongs to it.
        """
        for node in self.nodes:
            if node.name == broker:
                return node
        raise RequestError(f"--replica {broker}: the directories are those of {brokers_text(self.brokers)}")

    # ---- replicas ----------------------------------------------------------------------------------------------------

    @cached_property
    def partitions(self) -> Mapping[TopicPartition, tuple[Replica, ...]]:
        """The replicas of each partition in the directories, in the order of the nodes; partitions are sorted.

        Those of a partition that the user named by its path are only the named ones. Directories that are future, stray
        or to be deleted are no replicas.
        """
        found: dict[TopicPartition, list[Replica]] = {}
        named: dict[TopicPartition, list[Replica]] = {}
        for node in self.nodes:
            paths = {place.path for place in node.places}
            for name, place in node.partitions.items():
                replica = Replica(name, node, place)
                found.setdefault(name, []).append(replica)
                if place.path in paths:
                    named.setdefault(name, []).append(replica)
        return {name: tuple(named.get(name, some)) for name, some in sorted(found.items())}

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        """Return the partitions of a topic in any broker's directories."""
        return [name for name in self.partitions if name.topic == topic]

    def replicas(self, name: TopicPartition) -> tuple[Replica, ...]:
        """Return the replicas of a partition in the directories; empty without one."""
        return self.partitions.get(name, ())

    def assignment(self, name: TopicPartition) -> PartitionReplicas | None:
        """Return the replicas of a partition by the metadata; None if they are unknown."""
        if self.metadata is None or self.metadata.problems:
            return None
        topic = self.metadata.topics.get(name.topic)
        return None if topic is None else topic.partitions.get(name.partition)

    def leader(self, name: TopicPartition) -> Replica | None:
        """Return the leader of a partition by the metadata; None if it is unknown or not in the directories.

        After all its brokers have stopped, none leads. Then it is the only replica that may lead next.

        Source: KIP-966, eligible leader replicas.
        """
        known = self.assignment(name)
        if known is None:
            return None
        next_ids = known.eligible_leader_replicas or known.last_known_elr
        leader = next_ids[0] if known.leader == NONE and len(next_ids) == 1 else known.leader
        return next((one for one in self.replicas(name) if one.node.node_id == leader), None)

    def choose_replica(self, name: TopicPartition, broker: str | None = None) -> ChosenReplica:
        """Choose the replica of a partition to read: with the newest last leader epoch, then the highest end.

        Of equal replicas the leader by the metadata is chosen, else the first. An unreadable replica is chosen last.

        Args:
            broker: name of the broker whose replica the user wants; None: the newest replica.

        Raises:
            NotFoundError: no directory has the partition, or the broker's directories do not have it.
            RequestError: no directory belongs to the broker.
        """
        replicas = self.replicas(name)
        if not replicas:
            raise NotFoundError(f"no directory has partition {name}")
        if broker is not None:
            node = self.named(broker)
            chosen = next((one for one in replicas if one.node is node), None)
            if chosen is None:
                have = brokers_text([one.broker for one in replicas])
                raise NotFoundError(f"--replica {broker}: broker {broker} has no partition {name}; {have} have it")
            return _choice(chosen, replicas, "named by --replica")
        if len(replicas) == 1:
            return ChosenReplica(replicas[0], "the only replica here")
        positions = [(one, _position(one)) for one in replicas]
        best = max(position for _, position in positions)
        equal = [one for one, position in positions if position == best]
        if len(equal) == 1:
            with_epoch = sum(position.epoch == best.epoch for _, position in positions)
            newest = f"its last leader epoch, {best.epoch}, is the newest" if best.epoch != NONE else ""
            longest = f"its end, {best.end_offset}, is the highest"
            longest += f" in leader epoch {best.epoch}" if best.epoch != NONE else ""
            return _choice(equal[0], replicas, newest if with_epoch == 1 and newest else longest)
        leader = next((one for one in equal if one is self.leader(name)), None)
        which = "the first" if leader is None else "the leader by the metadata"
        epoch = f"last leader epoch {best.epoch}, " if best.epoch != NONE else ""
        same = f"{brokers_text([one.broker for one in equal])} are equal ({epoch}end {best.end_offset})"
        return _choice(equal[0] if leader is None else leader, replicas, f"{which}; {same}")

    # ---- all replicas, for changes -----------------------------------------------------------------------------------

    def all_replicas(self, name: TopicPartition, *, single_copy: bool = False) -> tuple[Replica, ...]:
        """Return all replicas of a partition in the cluster.

        Args:
            single_copy: whether the user confirms that the replica in the directories is the only one.

        Raises:
            NotFoundError: no directory has the partition.
            RequestError: replicas are missing, the number of replicas is unknown, or a replica is being moved.
        """
        replicas = self.replicas(name)
        if not replicas:
            raise NotFoundError(f"no directory has partition {name}")
        for node in self.nodes:
            _check_not_twice(node, name)
        if not single_copy:
            self._check_complete(name, [one.node.node_id for one in replicas])
        elif len(replicas) > 1:
            raise RequestError(f"{name} is in the directories of {len(replicas)} brokers, so it has no single copy")
        return replicas

    def _check_complete(self, name: TopicPartition, here: Sequence[int | None]) -> None:
        partition = self.assignment(name)
        if partition is None:
            raise RequestError(
                f"the number of replicas of {name} is unknown: give --metadata DIR, with __cluster_metadata-0; or, if "
                "it has no other replica, --single-copy"
            )
        wanted = set(partition.replicas)
        if len(wanted) == 1 and len(here) == 1 and here[0] is None:
            return
        if missing := sorted(wanted.difference(here)):
            raise RequestError(
                f"{name} has replicas on {brokers_text(sorted(wanted))}, and no directory of {brokers_text(missing)} "
                "is given. Stop all of them and give all of their directories, which are changed alike"
            )
        if others := sorted(str(one) for one in here if one not in wanted):
            raise RequestError(
                f"{name} is in a directory of {brokers_text(others)}, but by the metadata its replicas are only on "
                f"{brokers_text(sorted(wanted))}"
            )

    def has_current(self, name: TopicPartition) -> bool:
        """Whether a replica with all committed records is present: an in-sync or eligible one, or all replicas.

        After all brokers of a partition have stopped, the metadata lists no in-sync replica.
        """
        known = None if self.metadata is None else self.metadata.topics.get(name.topic)
        partition = None if known is None else known.partitions.get(name.partition)
        here = {one.node.node_id for one in self.replicas(name)}
        if partition is None or here == {None}:
            return bool(here)
        current = {*partition.isr, *partition.eligible_leader_replicas}
        return here.issuperset(partition.replicas) or not here.isdisjoint(current)


def check_shut_down(directory: LogDirectory) -> None:
    """Raise for a directory whose logs must first be recovered.

    Raises:
        RequestError: it was not shut down cleanly.
        DataError: its broker would take it offline.
    """
    if directory.crashed:
        raise RequestError(
            f"{directory.path} was not shut down cleanly, so its logs have to be recovered first: start its broker and "
            "stop it properly, or do so with cordwood run"
        )
    if directory.failure is not None:
        raise directory.failure


def brokers_text(names: Sequence[object]) -> str:
    """Return the names of brokers in words: `brokers 1, 2, 3`."""
    return f"{'broker' if len(names) == 1 else 'brokers'} {names_text([str(one) for one in names])}"


# ---- which directory belongs to which broker -------------------------------------------------------------------------


def list_brokers(
    fs: Store, paths: Sequence[str], named: Sequence[tuple[str, str]] = ()
) -> tuple[Mapping[str | None, list[LogDirectory]], list[LocatedPartition]]:
    """Return the directories of each broker by its name, and the partitions at the paths; see `Cluster.open`."""
    groups: dict[str | None, list[str]] = {None: list(paths)} if paths or not named else {}
    for name, path in named:
        groups.setdefault(name, []).append(path)
    listed = {name: list_places(fs, some) for name, some in groups.items()}
    given = [(name, directory) for name, (directories, _) in listed.items() for directory in directories]
    _check_named_once(given)
    check_one_cluster([directory for _, directory in given])
    return _by_broker(given), [place for _, some in listed.values() for place in some]


def _by_broker(given: Sequence[tuple[str | None, LogDirectory]]) -> Mapping[str | None, list[LogDirectory]]:
    """Return the directories of each broker, by its name; None as name if none of them has one.

    Directories without a name or `node.id` belong to the broker of the others if those are all one broker's.

    Args:
        given: directories, each with the name that the user gave its broker, or None.

    Raises:
        RequestError: the broker of a directory is unknown, or names contradict `node.id`.
    """
    found: dict[str | None, list[LogDirectory]] = {}
    for name, directory in given:
        node_id = _node_id(directory)
        found.setdefault(name if name is not None or node_id is None else str(node_id), []).append(directory)
    unknown = found.pop(None, [])
    if unknown and len(found) > 1:
        path = unknown[0].path
        raise RequestError(
            f"{path} has no meta.properties with a node.id, so its broker is not known: give --broker NAME={path}"
        )
    if unknown:
        found[next(iter(found), None)] = [*next(iter(found.values()), []), *unknown]
    owners: dict[int, tuple[str | None, LogDirectory]] = {}
    for name, directories in found.items():
        for directory in directories:
            node_id = _node_id(directory)
            if node_id is None:
                continue
            other, first = owners.setdefault(node_id, (name, directory))
            if other != name:
                raise RequestError(
                    f"{first.path} and {directory.path} are both of node {node_id}, so they cannot be of the brokers "
                    f"{other} and {name}"
                )
        ids = {one: directory for directory in directories if (one := _node_id(directory)) is not None}
        if len(ids) > 1:
            paths = " and ".join(f"{directory.path} is of node {one}" for one, directory in ids.items())
            raise RequestError(f"--broker {name}: {paths}. Give each broker its own name")
    return found


def _check_named_once(given: Sequence[tuple[str | None, LogDirectory]]) -> None:
    """Raise RequestError for a directory that the user named for two brokers."""
    names: dict[str, str | None] = {}
    for name, directory in given:
        other = names.setdefault(directory.path, name)
        if other != name:
            which = " and ".join("no broker" if one is None else f"--broker {one}" for one in (other, name))
            raise RequestError(f"{directory.path} is given twice: for {which}")


def _node_id(directory: LogDirectory) -> int | None:
    return None if directory.meta is None else directory.meta.node_id


def _own_paths(directories: Sequence[LogDirectory], places: Sequence[LocatedPartition]) -> tuple[str, ...]:
    """Return the paths of a broker: its log directories, or those of partitions if the user named only these."""
    paths: list[str] = []
    for directory in directories:
        named = [place.path for place in places if place.directory is directory]
        whole = {one.path for one in directory.partitions}.issubset(named)
        paths += [directory.path] if whole else named
    return tuple(paths)


def _order(node: Node) -> tuple[bool, int, str]:
    return node.node_id is None, node.node_id or 0, node.name


# ---- the newest replica ----------------------------------------------------------------------------------------------


def _position(replica: Replica) -> LogPosition:
    """Return the position of a replica's log; one below all others if the log is unreadable."""
    try:
        return replica.position
    except (OSError, NotFoundError):
        return LogPosition(NONE, NONE)


def _choice(replica: Replica, replicas: Sequence[Replica], reason: str) -> ChosenReplica:
    return ChosenReplica(replica, reason, tuple(one for one in replicas if one is not replica))


# ---- checks before a change ------------------------------------------------------------------------------------------


def _check_not_twice(node: Node, name: TopicPartition) -> None:
    """Raise RequestError for a partition that occurs twice in a broker's directories."""
    for other in node.futures(name):
        raise RequestError(f"{name} is being moved to {other.path}. Let its broker finish that, or cancel it, first")
    if twins := node.duplicates(name):
        raise RequestError(f"{name} is in {names_text([twin.path for twin in twins])}: no broker starts with both")
