"""Where a tier is changed: the locked log directories of all brokers concerned, with the tier.

The records of `__remote_log_metadata` list a broker's segments. So a change needs the directories of all replicas of
the partitions with these records, and their brokers must have been stopped properly.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

from cordwood.commands.opening import open_cluster, select_newest
from cordwood.commands.options import NamedBrokers, Selection
from cordwood.common.errors import RequestError
from cordwood.common.types import TopicPartition
from cordwood.fs.base import DirectoryLock, LocalFileSystem
from cordwood.fs.by_url import local_path
from cordwood.fs.locks import check_local, directories_to_lock
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.formats.filenames import DirectoryState
from cordwood.storage.formats.messages.topics import REMOTE_LOG_METADATA
from cordwood.storage.node.cluster import Cluster, check_shut_down
from cordwood.storage.node.node import LocatedPartition, list_places
from cordwood.storage.tier.metadata_log import MetadataLog, metadata_partition
from cordwood.storage.tier.segments import TopicIdPartition
from cordwood.storage.tier.store import TierStore


@dataclass(frozen=True)
class TierSite:
    """Locked log directories of one or more brokers. They are opened with their tier on first use.

    Attributes:
        sources: the paths that the user named.
        single_copy: whether the user confirms that no metadata partition has another replica. It counts only if no
            metadata log lists the replicas.
    """

    fs: LocalFileSystem
    locks: Sequence[DirectoryLock]
    sources: Sequence[str]
    selection: Selection
    single_copy: bool
    now_ms: int
    _opened: dict[TopicPartition, MetadataLog] = field(default_factory=dict, init=False)

    @classmethod
    @contextlib.contextmanager
    def locked(
        cls,
        paths: Sequence[str],
        selection: Selection,
        now_ms: int,
        *,
        single_copy: bool,
        no_broker_elsewhere: bool = False,
    ) -> Iterator[Self]:
        """Lock all log directories at some paths.

        Raises:
            NotFoundError: there is nothing at a path.
            LockedError: a broker or another program holds one of the directories.
            RequestError: a path is a file, or not on this machine.
        """
        fs = PosixFileSystem()
        advice = "The log directories must be on this machine; only the tier may be in a bucket"
        sources = [fs.absolute_path(local_path(path, advice)) for path in paths]
        directories, _ = list_places(fs, sources)
        to_lock = directories_to_lock(fs, [one.path for directory in directories for one in directory.partitions])
        for path in to_lock:
            check_local(fs, path, no_broker_elsewhere=no_broker_elsewhere)
        with ExitStack() as held:
            locks = [held.enter_context(fs.lock_directory(path)) for path in to_lock]
            yield cls(fs, locks, sources, selection, single_copy, now_ms)

    def confirm_locks(self) -> None:
        """Make sure that this process still holds the locks."""
        for lock in self.locks:
            lock.confirm()

    @cached_property
    def store(self) -> TierStore:
        """The directories with their tier.

        Raises:
            RequestError: no tier is given, or it cannot be read.
        """
        store = self.selection.store(self.sources)
        if not isinstance(store, TierStore):
            raise RequestError("give the tier: --tier DIR|URL")
        return store

    @cached_property
    def cluster(self) -> Cluster:
        """The brokers of the directories.

        Raises:
            RequestError: a directory was not shut down cleanly; see also `Cluster.open`.
            DataError: a broker would take a directory offline.
        """
        cluster = open_cluster(self.store, self.sources, self.selection, NamedBrokers())
        for directory in (one for node in cluster.nodes for one in node.directories):
            check_shut_down(directory)
        return cluster

    @cached_property
    def places(self) -> Mapping[str, LocatedPartition]:
        """The selected partitions, by path; of several replicas, the newest.

        Raises:
            NotFoundError: no partition was selected.
        """
        return {
            place.path: place
            for place in select_newest(self.cluster, self.sources, self.selection)
            if place.name is not None and place.name.state is DirectoryState.CURRENT
        }

    # ---- metadata ----------------------------------------------------------------------------------------------------

    def metadata_of(self, partition: TopicIdPartition) -> TopicPartition:
        """Return the metadata partition with the records about a partition.

        Raises:
            RequestError: the number of metadata partitions is unknown.
        """
        return TopicPartition(REMOTE_LOG_METADATA, metadata_partition(partition, self._metadata_partitions))

    @cached_property
    def _metadata_partitions(self) -> int:
        metadata = self.cluster.metadata
        known = None if metadata is None or metadata.problems else metadata.topics.get(REMOTE_LOG_METADATA)
        if known is not None:
            return len(known.partitions)
        here = {one.partition for one in self.cluster.partitions_of(REMOTE_LOG_METADATA)}
        if not here:
            raise RequestError(
                f"no directory has {REMOTE_LOG_METADATA}, the topic by which a broker finds remote segments. Start the "
                "broker with its tier once, and stop it"
            )
        if missing := sorted({*range(max(here))} - here):
            raise RequestError(
                f"no directory has {REMOTE_LOG_METADATA}-{missing[0]}, and no metadata log the number of its "
                "partitions: give all log directories of the broker, or --metadata DIR"
            )
        return len(here)

    def metadata_log(self, path: str) -> MetadataLog:
        """Open the metadata partition with the records about a partition, at all of its replicas.

        Each is opened once, as appends to one follow each other.

        Args:
            path: the directory of a partition that can be tiered.

        Raises:
            RequestError: a replica is missing, or they differ.
        """
        partition = self.store.partition_at(path)
        assert partition is not None, path
        name = self.metadata_of(partition)
        if name not in self._opened:
            is_single = self.single_copy and self.cluster.assignment(name) is None
            replicas = self.cluster.all_replicas(name, single_copy=is_single)
            self._opened[name] = MetadataLog(self.fs, [one.path for one in replicas], self.now_ms)
        return self._opened[name]
