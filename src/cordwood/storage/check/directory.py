"""Checks log directories: checkpoints, names, and partitions that are in several directories.

`Check` accepts any path that a user names: a log directory, a folder of several (one node's disks), a partition, or a
file. It compares a file with the files that must agree with it, and reports only findings about the file itself.

While a broker runs, files change between one read and the next. So a finding in a live directory is reported only if a
second check finds it again.

A partition is first read and compared with itself, by a quick check in threads (`_read_partition`); then, in the order
of the directory, with its node (`_conclude`).
"""

from __future__ import annotations

import functools
import posixpath
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from cordwood.common.errors import CorruptFileError, DataError, NotFoundError, StoreAccessError, TextProblem
from cordwood.common.text import Presentable
from cordwood.common.types import NONE, TopicPartition, system_clock
from cordwood.fs.base import FileInfo, Store
from cordwood.fs.wrapped import CountedStore
from cordwood.storage.check.findings import CLEANER_ENDS, STRAY_ONLY, VITAL, Finding, Findings, Kind, Severity
from cordwood.storage.check.node import NodeToCheck, nodes_of
from cordwood.storage.check.partition import (
    InThreads,
    PartitionCheck,
    check_metadata_snapshot,
    is_cluster_metadata,
    is_deleted,
    open_log,
)
from cordwood.storage.check.permissions import check_partition_files
from cordwood.storage.check.placement import check_directories, check_missing, check_topic_id
from cordwood.storage.check.sampling import Looked, Quick
from cordwood.storage.check.tier import add_damaged_manifest, check_remote_part, check_tier
from cordwood.storage.formats import checkpoints, filenames, properties
from cordwood.storage.formats.filenames import (
    CLUSTER_METADATA_TOPIC,
    DirectoryState,
    FileKind,
    PartitionFile,
    Temporary,
    parse_directory,
    parse_file,
    parse_key_index,
    partition_of_key_index,
)
from cordwood.storage.log.files import read_file, why_unreadable
from cordwood.storage.log.loaded import Stop, as_loaded
from cordwood.storage.log.recovery import SEGMENT_KINDS
from cordwood.storage.log.view import LogView
from cordwood.storage.node.directory import LogDirectory, Partition, PathKind, look
from cordwood.storage.node.start import NOT_SERVED, Effect, Event, Served, Start
from cordwood.storage.tier.segments import TopicIdPartition
from cordwood.storage.tier.store import TierStore

#: Effect of a well-formed checkpoint with an impossible value on a broker, by file name.
_WRONG_VALUE = {
    filenames.RECOVERY_POINTS: "a broker warns and uses 0 for all partitions: after a crash it reads whole logs again",
    filenames.LOG_START_OFFSETS: (
        "a broker warns and starts all logs at their first segment: deleted records can be read again"
    ),
    filenames.CLEANER_OFFSETS: CLEANER_ENDS,
    filenames.HIGH_WATERMARKS: (
        "a broker starts, but stops to lead partitions at the first one of this log directory: most get no leader"
    ),
}
_KNOWN_FILES = {
    *filenames.OFFSET_CHECKPOINTS,
    filenames.META_PROPERTIES,
    filenames.CLEAN_SHUTDOWN,
    filenames.LOCK,
    filenames.BOOTSTRAP_CHECKPOINT,
}
#: Consequence of an offset beyond the log's end for a broker, by file name of the checkpoint.
_BEYOND = {
    filenames.RECOVERY_POINTS: "the log has lost records that were flushed",
    filenames.LOG_START_OFFSETS: "a load deletes the whole log and starts an empty one at this offset",
    filenames.CLEANER_OFFSETS: "the cleaner starts over from the log's start",
    filenames.HIGH_WATERMARKS: "records that consumers may have read are not there any more",
}
#: Repair of an offset below zero by a broker, by file name of the checkpoint. In other checkpoints it is damage.
_BELOW_ZERO = {
    filenames.RECOVERY_POINTS: "a broker takes it for 0: after a crash it reads the whole log again",
    filenames.CLEANER_OFFSETS: _BEYOND[filenames.CLEANER_OFFSETS],
}


@dataclass
class Summary:
    """Counts of checked files and of findings.

    Attributes:
        partitions: number of partition directories by state.
        files: number of files in partitions and log directories.
        findings: number of findings by severity.
        looked: what a quick check read; None after a whole check.
    """

    partitions: Counter[DirectoryState] = field(default_factory=Counter)
    files: int = 0
    size_bytes: int = 0
    findings: Counter[Severity] = field(default_factory=Counter)
    looked: Looked | None = None

    @property
    def damaged(self) -> bool:
        """Whether there is any damage, or signs of it. Findings that recovery repairs are not damage."""
        return self.findings[Severity.DAMAGE] > 0 or (self.looked is not None and bool(self.looked.doubtful))


@dataclass(frozen=True, slots=True)
class _PartitionRead:
    """A partition whose files were compared with each other.

    Attributes:
        findings: the findings so far.
        only: the base offset of the segment that was checked; None for all.
        check: None if the partition could not be opened.
    """

    findings: Findings
    only: int | None
    check: PartitionCheck | None = None


class CheckResult(list[Finding], Presentable):
    """The findings of a check, and the effects of a broker's start on the checked files.

    Of several brokers, the summary has the sums, and the start all events.

    Attributes:
        brokers: the results of each broker by name; empty for the files of one broker.
    """

    def __init__(
        self,
        findings: Iterable[Finding],
        summary: Summary,
        start: Start,
        brokers: Mapping[str, CheckResult] | None = None,
    ) -> None:
        super().__init__(findings)
        self.summary = summary
        self.start = start
        self.brokers = brokers or {}


class Check:
    """Checks paths, and counts files and findings.

    Attributes:
        quick: parts of large segments that a quick check reads; None: everything is read.
        bytes_total: size of the files to check, without holes; a single file is added when it is checked.
        partitions_done: number of partitions that were checked.
    """

    def __init__(
        self, fs: Store, on_progress: Callable[[Check], None] = lambda _: None, quick: Quick | None = None
    ) -> None:
        """Prepare a check.

        Args:
            quick: read only parts of large segments; None: read everything.
        """
        self._tiers = fs.to_check() if isinstance(fs, TierStore) else None
        fs = self._tiers or fs
        self.fs = fs if quick is None else CountedStore(fs)
        self.quick = quick
        self.summary = Summary(looked=None if quick is None else Looked())
        self.partitions_done = 0
        #: Live logs whose part in the tier was checked with their directories.
        self._live_logs: set[TopicIdPartition] = set()
        self._pools: list[ThreadPoolExecutor] = []
        self.bytes_total = 0
        self.bytes_done = 0
        self._on_progress = on_progress
        self._findings = Findings()
        self._nodes: list[NodeToCheck] = []
        self._events: list[Event] = []
        self._served: dict[TopicPartition, Served] = {}
        self._missing = 0
        self._gone: set[TopicPartition] = set()
        #: Start offset of the first leader epoch, for logs that start below it and have no entry in the checkpoint of
        #: log start offsets.
        self._deleted_below: dict[TopicPartition, int] = {}

    def run(self, paths: Sequence[str]) -> Iterator[Finding]:
        """Check paths, and yield all findings, partition by partition.

        Raises:
            NotFoundError: a path does not exist or has no log. If log directories are among the other paths, this is a
                finding instead.
        """
        if self.quick is not None:
            # A thread for partitions waits for threads for segments, so they are not of one pool.
            self._pools = [ThreadPoolExecutor(self.fs.concurrency) for _ in range(2)]
        try:
            yield from self._run(paths)
        finally:
            for pool in self._pools:
                pool.shutdown(cancel_futures=True)
            if self._pools:
                self._progress(0)

    def _run(self, paths: Sequence[str]) -> Iterator[Finding]:
        todo: list[Callable[[], Iterator[Finding]]] = []
        directories: list[LogDirectory] = []
        lost: list[NotFoundError] = []
        files: list[str] = []
        partitions: list[str] = []
        for path in dict.fromkeys(path.rstrip("/") or "/" for path in paths):
            try:
                todo += self._plan(path, directories, partitions, files)
            except NotFoundError as error:
                # Report a disk of the broker that is not mounted, instead of stopping the check.
                if len(paths) == 1:
                    raise
                lost.append(error)
                meaning = "a broker does not start while a disk of it is not mounted"
                effect = Effect.DOES_NOT_START
                what = "there is no log directory"
                self._findings.add(Kind.DIRECTORY_MISSING, path, what, meaning=meaning, effect=effect)
        if lost and not directories:
            raise lost[0]
        known = {directory.path for directory in directories}
        for path in partitions:
            if posixpath.dirname(path) not in known:
                self._count(self.fs.list(path))
                todo.append(functools.partial(self._lone_partition, path))
        self._nodes = nodes_of(self.fs, directories, files)
        for node in self._nodes:
            check_directories(node, self._findings)
            self._missing += len(list(check_missing(node, self._findings)))
        yield from self._counted(self._findings.take())
        for step in todo:
            yield from self._counted(step())
        self._duplicates(directories)
        self._log_starts()
        if self._tiers is not None and directories:
            self._check_tier(self._tiers, directories)
        yield from self._counted(self._findings.take())

    @property
    def start(self) -> Start:
        """Effects of a broker's start on the checked files; complete once `run` has ended."""
        offline = [event.path for event in self._events if event.effect is Effect.DIRECTORY_OFFLINE]
        inside = [
            partition.name.topic_partition
            for node in self._nodes
            for directory in node.directories
            if directory.path in offline
            for partition in directory.partitions
            if partition.name.state is DirectoryState.CURRENT
            and partition.name.topic_partition.topic != CLUSTER_METADATA_TOPIC
        ]
        gone = self._gone | {event.partition for event in self._events if event.effect is Effect.PARTITION_OFFLINE}
        metadata = sum(one in node.directories for node in self._nodes for one, _ in node.metadata_places)
        return Start(
            is_node=any(node.is_broker for node in self._nodes),
            partitions=self.summary.partitions[DirectoryState.CURRENT] + self._missing - metadata,
            events=tuple(sorted(self._events, key=lambda event: list(Effect).index(event.effect))),
            served={name: at for name, at in self._served.items() if name not in gone and name not in inside},
            offline=len(inside),
            unread_bytes=0 if self.summary.looked is None else self.summary.looked.recovered_bytes,
        )

    def _counted(self, findings: Iterator[Finding] | list[Finding]) -> Iterator[Finding]:
        for finding in findings:
            settled = self._settled(finding)
            self.summary.findings[settled.severity] += 1
            yield settled

    def _settled(self, finding: Finding) -> Finding:
        """Note the effect of a finding on the start, and return the finding.

        A node that loses its only log directory or its metadata log does not start; then the finding's effect and
        meaning become worse.
        """
        if finding.effect is None:
            return finding
        node, directory = self._place_of(finding.path)
        if finding.effect is Effect.DIRECTORY_OFFLINE and directory is not None and node.is_vital(directory.path):
            finding = replace(finding, effect=Effect.DOES_NOT_START, meaning=VITAL)
        effect = finding.effect
        assert effect is not None
        path = finding.path
        if effect is Effect.DIRECTORY_OFFLINE and directory is not None:
            path = directory.path
            if any(event.effect is effect and event.path == path for event in self._events):
                return finding
        if effect is Effect.PARTITION_OFFLINE and directory is not None and posixpath.dirname(path) == directory.path:
            self._no_leader(path, finding.what, node.without_leader(directory, posixpath.basename(path)))
            return finding
        inside = (
            None
            if directory is None
            else _partition_name(f"{directory.path}/{_first_part(directory.path, finding.path)}")
        )
        partition = None
        if inside is not None and inside.state is DirectoryState.CURRENT:
            partition = inside.topic_partition
        if partition is not None and partition.topic == CLUSTER_METADATA_TOPIC:
            partition = None
        if effect is Effect.PARTITION_OFFLINE and partition is not None and finding.kind is Kind.TOPIC_ID:
            # If the broker has a replica, it fails when it becomes leader of this partition, and later partitions in
            # its order get no leader either. Without a replica, it never tries to lead the partition.
            names = node.behind_in_map({partition}) if node.has_replica(partition) else [partition]
            self._no_leader(path, finding.what, names)
            return finding
        if effect is Effect.STRAY and partition is not None and not node.has_replica(partition):
            self._gone.add(partition)
        elif effect in NOT_SERVED and partition is not None and not node.has_twin(partition):
            self._served[partition] = Served(0, 0)
        name = posixpath.basename(finding.path)
        why = finding.what if path == finding.path or name in finding.what else f"{name}: {finding.what}"
        self._events.append(Event(effect, path, why, partition))
        return finding

    def _no_leader(self, path: str, why: str, names: Sequence[TopicPartition]) -> None:
        known = {event.partition for event in self._events if event.effect is Effect.PARTITION_OFFLINE}
        self._events += [Event(Effect.PARTITION_OFFLINE, path, why, name) for name in names if name not in known]

    def _place_of(self, path: str) -> tuple[NodeToCheck, LogDirectory | None]:
        for node in self._nodes:
            for directory in node.directories:
                if path.startswith(f"{directory.path.rstrip('/')}/") or path == directory.path:
                    return node, directory
        return NodeToCheck(self.fs, ()), None

    def _progress(self, count: int) -> None:
        self.bytes_done += count
        if self.summary.looked is not None and isinstance(self.fs, CountedStore):
            self.summary.looked.read_bytes = self.fs.bytes_read
        self._on_progress(self)

    def _plan(
        self, path: str, directories: list[LogDirectory], partitions: list[str], files: list[str]
    ) -> list[Callable[[], Iterator[Finding]]]:
        found = look(self.fs, path)
        if found.kind is PathKind.FILE:
            name = posixpath.basename(path)
            parsed = parse_file(name)
            if directories and name not in _KNOWN_FILES and parsed is not None and parsed.kind is FileKind.FOREIGN:
                files.append(path)
                return []
            return [lambda: self._file(path)]
        if found.kind is PathKind.PARTITION:
            partitions.append(found.path)
            return []
        steps: list[Callable[[], Iterator[Finding]]] = []
        known = {directory.path for directory in directories}
        for one in found.directories:
            if one in known:
                continue
            directory = LogDirectory.open(self.fs, one)
            directories.append(directory)
            self._count(directory.entries)
            for entries in self._mapped(0)(self._entries, [partition.path for partition in directory.partitions]):
                self._count(entries)
            steps.append(functools.partial(self._directory, directory))
        return steps

    def _mapped(self, pool: int) -> InThreads:
        """Return `map`, or one that uses the threads of a quick check."""
        return self._pools[pool].map if self._pools else map

    def _entries(self, path: str) -> Sequence[FileInfo]:
        try:
            return self.fs.list(path)
        except OSError:
            return ()  # reported when the partition is checked

    def _count(self, entries: Sequence[FileInfo]) -> None:
        files = [info for info in entries if not info.is_directory]
        # A broker preallocates indexes of 10 MB as holes.
        size = sum(min(info.size_bytes, info.disk_bytes) for info in files)
        self.summary.files += len(files)
        self.summary.size_bytes += size
        self.bytes_total += size

    # ---- partitions --------------------------------------------------------------------------------------------------

    def _partition(
        self,
        directory: LogDirectory | None,
        path: str,
        node: NodeToCheck | None,
        ends: dict[TopicPartition, int],
        only: int | None = None,
    ) -> list[Finding]:
        """Return the findings in one partition."""
        return self._conclude(self._read_partition(directory, path, node, only), directory, path, node, ends)

    def _read_partition(
        self, directory: LogDirectory | None, path: str, node: NodeToCheck | None, only: int | None = None
    ) -> _PartitionRead:
        """Check the files of one partition; in a live directory, keep only findings that a second check repeats."""
        read = self._look(directory, path, node, only)
        if directory is not None and directory.live and read.findings.found:
            read.findings.keep_repeated(self._look(directory, path, node, only).findings)
        return read

    def _look(
        self, directory: LogDirectory | None, path: str, node: NodeToCheck | None, only: int | None
    ) -> _PartitionRead:
        findings = Findings()
        live = directory is not None and directory.live
        start = 0
        name = _partition_name(path)
        if directory is not None and name is not None and name.state is DirectoryState.CURRENT:
            start = max(0, directory.log_start_offsets.get(name.topic_partition, 0))
        log = open_log(self.fs, path, live=live, log_start_offset=start, findings=findings)
        if log is None:
            return _PartitionRead(findings, only)
        in_threads, progress = self._mapped(1), self._progress if self.quick is None else _no_progress
        check = PartitionCheck(log, _stop(directory, log), findings, progress, self.quick, in_threads)
        if node is not None and node.is_broker and not live and not is_deleted(log) and only is None:
            check_partition_files(self.fs, path, log, findings)
        check.run(only=only)
        part = None
        if self._tiers is not None and only is None:
            # What a broker changes while it runs is read anew each time.
            tiers = self._tiers.to_check() if live else self._tiers
            if (part := tiers.remote_part(path)) is not None:
                check_remote_part(path, part, tiers.layout, check.unread_remote, findings, live=live)
                if part.state is not None:
                    self._live_logs.add(part.state.partition)
            elif path in tiers.damaged:
                partition, error = tiers.damaged[path]
                add_damaged_manifest(error, findings)
                self._live_logs.add(partition)
        if part is None and check.unread_remote:
            raise next(iter(check.unread_remote.values()))
        return _PartitionRead(findings, only, check)

    def _conclude(
        self,
        read: _PartitionRead,
        directory: LogDirectory | None,
        path: str,
        node: NodeToCheck | None,
        ends: dict[TopicPartition, int],
    ) -> list[Finding]:
        """Compare a partition with its node, and return all findings in it."""
        findings, check, only = read.findings, read.check, read.only
        self.partitions_done += 1
        if check is None:
            return findings.take()
        log, name = check.log, _partition_name(path)
        if self.summary.looked is not None:
            self.summary.looked.add(check.looked)
            self._progress(0)
        if name is not None and name.state is DirectoryState.CURRENT:
            if not check.damaged and check.ends and log.segments:
                ends[name.topic_partition] = check.log_end_offset
            if node is not None and not (check.names_topic and check.topic_id is None):
                check_topic_id(node, name.topic_partition, path, check.topic_id, findings)
            if only is None:
                self._loaded(name.topic_partition, log, check)
                self._holes(directory, node, name.topic_partition, check, findings)
                if node is not None:
                    self._misdated(node, name.topic_partition, log, check)
        elif name is not None and node is not None and node.is_stray_future(name):
            what = "a partition that the cluster's metadata does not have was being moved here"
            findings.add(Kind.TOPIC_ID, path, what, meaning=STRAY_ONLY)
        elif name is not None and node is not None and node.is_promoted(name):
            self._missing += 1
            self._loaded(name.topic_partition, log, check)
        found = findings.take()
        if is_deleted(log):
            note = "the directory only waits to be deleted"
            found = [Finding(f.path, f.kind, Severity.NOTE, f.what, note, f.position, f.offset) for f in found]
        return found

    def _loaded(self, name: TopicPartition, log: LogView, check: PartitionCheck) -> None:
        """Note the first and the end offset of a log after a load, and the events that lose records in the load."""
        if name.topic == CLUSTER_METADATA_TOPIC or not check.ends:
            return
        lost, end = check.lost, check.log_end_offset if check.loaded_end is None else check.loaded_end
        if check.stop.crashed and lost.path is not None:
            end = lost.offset
            why, records = "a batch is damaged there", lost.records
            self._events.append(Event(Effect.CUT, lost.path, why, name, end, records, at_least=lost.is_sampled))
        elif check.loaded_end is not None and end < check.log_end_offset:
            why = "its offset index leads behind the end of the log, so that a broker takes the segment for empty"
            at = log.segments[-1].path
            self._events.append(Event(Effect.CUT, at, why, name, offset=end, records=check.log_end_offset - end))
        start = log.log_start_offset
        if log.segments and end < start:
            why = f"the log ends at {end:,}, below its log start offset {start:,}"
            self._events.append(Event(Effect.STARTS_EMPTY, log.path, why, name, offset=start))
        self._served.setdefault(name, Served(start, max(start, end)))

    def _misdated(self, node: NodeToCheck, name: TopicPartition, log: LogView, check: PartitionCheck) -> None:
        """Note segments that retention deletes because wrong time indexes make them look older than their records.

        Source: Kafka UnifiedLog.deleteRetentionMsBreachedSegments.
        """
        config = node.config_of(name.topic)
        if config is None or not config.delete or not config["retention.ms"].explicit:
            return
        now_ms, keep_ms = system_clock(), config.integer("retention.ms")
        if keep_ms < 0 or check.stop.live or check.damaged:
            return
        for one in as_loaded(log, check.stop, now_ms).segments:
            if now_ms - one.largest_timestamp <= keep_ms:
                return
            base, newest_ms = one.segment.base_offset, check.newest_ms.get(one.segment.base_offset, NONE)
            if newest_ms >= 0 and now_ms - newest_ms <= keep_ms:
                why = "retention takes the segment for older than its records are"
                path = f"{log.path}/{PartitionFile(FileKind.TIME_INDEX, base).name}"
                self._events.append(Event(Effect.SEGMENT_DELETED, path, why, name, offset=base))

    def _holes(
        self,
        directory: LogDirectory | None,
        node: NodeToCheck | None,
        name: TopicPartition,
        check: PartitionCheck,
        findings: Findings,
    ) -> None:
        """Report missing records that no clean, retention or deletion explains."""
        log = check.log
        metadata = None if node is None else node.believed
        if check.stop.live or check.damaged or not log.segments or name.topic == CLUSTER_METADATA_TOPIC:
            return
        never = "the log was never cleaned" if not check.looked.sampled else "no sample of the log shows a clean"
        if metadata is None or metadata.is_tiered(name.topic):
            return  # a tiered topic has records in remote storage; without metadata, any topic may be tiered
        config = None if node is None else node.config_of(name.topic)
        entries = () if node is None else node.directories
        cleaned = (
            check.has_inner_holes
            or directory is None
            or (config is None or config.compact)
            or any(name in one.cleaner_offsets for one in entries)
        )
        for first, behind, path in () if cleaned else check.holes:
            if behind > log.log_start_offset:
                what = f"records {first:,} to {behind - 1:,} are missing, and {never}"
                findings.add(Kind.SEGMENT_MISSING, path, what, offset=first, effect=Effect.RECORDS_MISSING)
        stated = None if directory is None else directory.log_start_offsets.get(name)
        begun = check.first_epoch_start if stated is None else stated
        if stated is None and begun is not None and log.log_start_offset < begun <= check.log_end_offset:
            self._deleted_below[name] = begun
        if check.stop.crashed:
            # The log start in the checkpoint may be stale. Leader epochs are current: a broker updates them before it
            # removes files.
            begun = None if _has_deleted(log) else check.first_epoch_start
        if (check.stop.clean or check.stop.crashed) and begun is not None and 0 <= begun < log.first_offset:
            what = f"the log began at {begun:,}, but its first segment begins at {log.first_offset:,}"
            path = log.segments[0].path
            findings.add(Kind.SEGMENT_MISSING, path, what, offset=begun, effect=Effect.RECORDS_MISSING)

    def _lone_partition(self, path: str) -> Iterator[Finding]:
        directory = self._parent(path)
        name = _partition_name(path)
        self.summary.partitions[name.state if name else DirectoryState.CURRENT] += 1
        ends: dict[TopicPartition, int] = {}
        yield from self._partition(directory, path, None, ends)
        if directory is not None and name is not None and name.topic_partition in ends:
            findings = Findings()
            for checkpoint in filenames.OFFSET_CHECKPOINTS:
                self._checkpoint(directory, checkpoint, findings, ends, ends)
            yield from findings.take()

    def _parent(self, path: str) -> LogDirectory | None:
        """Return the broker's log directory that contains a partition, or None."""
        try:
            directory = LogDirectory.open(self.fs, posixpath.dirname(path) or ".")
        except (OSError, StoreAccessError):
            return None  # a user who may read a partition may lack permission to read its parent
        return directory if directory.is_brokers else None

    # ---- log directories ---------------------------------------------------------------------------------------------

    def _directory(self, directory: LogDirectory) -> Iterator[Finding]:
        node, _ = self._place_of(directory.path)
        ends: dict[TopicPartition, int] = {}
        paths = [partition.path for partition in directory.partitions]
        reads = self._mapped(0)(lambda path: self._read_partition(directory, path, node), paths)
        for partition, read in zip(directory.partitions, reads, strict=True):
            self.summary.partitions[partition.name.state] += 1
            yield from self._conclude(read, directory, partition.path, node, ends)
        findings = Findings()
        self._directory_names(directory, findings)
        self._directory_files(directory, findings, ends, _present(directory))
        yield from findings.take()

    def _directory_names(self, directory: LogDirectory, findings: Findings) -> None:
        parsed = {posixpath.basename(partition.path): partition for partition in directory.partitions}
        current = {p.name.topic_partition for p in directory.partitions if p.name.state is DirectoryState.CURRENT}
        for info in directory.entries:
            path = f"{directory.path}/{info.name}"
            partition = parsed.get(info.name)
            if partition is not None:
                if partition.name.name != info.name:
                    findings.add(Kind.NAME_NOT_CANONICAL, path, f"Kafka would name it {partition.name.name}")
                elif partition.name.topic_partition.partition < 0:
                    findings.add(Kind.BAD_DIRECTORY_NAME, path, "a partition's number is not negative")
                elif partition.name.state is DirectoryState.FUTURE and partition.name.topic_partition in current:
                    findings.add(Kind.FUTURE_TWIN, path, f"{partition.name.topic_partition} is in the same directory")
            elif info.is_directory and info.name != filenames.REMOTE_INDEX_CACHE:
                if directory.is_brokers:
                    findings.add(Kind.BAD_DIRECTORY_NAME, path, "a directory that is not named like a partition")
                else:
                    findings.add(Kind.FOREIGN_FILE, path, "a directory that is not named like a partition")
            elif not info.is_directory and info.name not in _KNOWN_FILES and directory.is_brokers:
                if info.name.removesuffix(Temporary.TMP) in _KNOWN_FILES:
                    if not directory.live:
                        meaning = "the next write of the file replaces it"
                        findings.add(Kind.LEFTOVER, path, "a file that was being written", meaning=meaning)
                else:
                    findings.add(Kind.FOREIGN_FILE, path, "not a file that Kafka knows")

    def _directory_files(
        self,
        directory: LogDirectory,
        findings: Findings,
        ends: Mapping[TopicPartition, int],
        present: set[TopicPartition],
    ) -> None:
        for name in filenames.OFFSET_CHECKPOINTS:
            self._checkpoint(directory, name, findings, ends, present)
        data = self._read(directory, filenames.CLEAN_SHUTDOWN, findings)
        if data and properties.decode_clean_shutdown(data) is None:
            path = f"{directory.path}/{filenames.CLEAN_SHUTDOWN}"
            findings.add(Kind.CLEAN_SHUTDOWN, path, f"{len(data)} bytes that hold no broker epoch")
        if directory.info(filenames.BOOTSTRAP_CHECKPOINT) is not None:
            path = f"{directory.path}/{filenames.BOOTSTRAP_CHECKPOINT}"
            node, _ = self._place_of(path)
            holder = node.metadata_place
            is_used = holder is None or holder[0].path == directory.path
            check_metadata_snapshot(self.fs, path, findings, self._progress, is_used=is_used)

    def _checkpoint(
        self,
        directory: LogDirectory,
        name: str,
        findings: Findings,
        ends: Mapping[TopicPartition, int],
        present: set[TopicPartition] | Mapping[TopicPartition, int],
    ) -> None:
        """Check a checkpoint file against the end offsets of the logs.

        Args:
            ends: end offset of each log whose end is known.
            present: the partitions that the checkpoint may contain. A mapping if only one partition is checked: then
                entries of other partitions are not reported.
        """
        path = f"{directory.path}/{name}"
        data = self._read(directory, name, findings)
        if data is None:
            return
        try:
            offsets = checkpoints.decode(data, path)
        except CorruptFileError as error:
            meaning = _WRONG_VALUE[name] if error.kind is TextProblem.VALUE else None
            stops = meaning is not None and name == filenames.HIGH_WATERMARKS
            repaired = meaning is not None and name == filenames.RECOVERY_POINTS
            findings.add(
                Kind.CHECKPOINT_UNREADABLE,
                path,
                error.what,
                position=error.position,
                severity=Severity.RECOVERY if repaired else None,
                meaning=meaning,
                effect=Effect.PARTITION_OFFLINE if stops else None,
            )
            return
        for partition, offset in offsets.items():
            if offset < 0 or partition.partition < 0:
                what = f"{partition}: offset {offset}"
                severity, meaning = None, None
                if name in _BELOW_ZERO and partition.partition >= 0:
                    severity, meaning = Severity.RECOVERY, _BELOW_ZERO[name]
                findings.add(Kind.CHECKPOINT_OFFSET, path, what, offset=offset, severity=severity, meaning=meaning)
            elif partition not in present:
                if isinstance(present, set) and not directory.live:
                    findings.add(
                        Kind.CHECKPOINT_PARTITION, path, f"{partition} is not in this directory", offset=offset
                    )
            elif partition in ends and offset > ends[partition] and not directory.live:
                crashed = not directory.clean_shutdown
                findings.add(
                    Kind.CHECKPOINT_BEYOND_END,
                    path,
                    f"{partition}: offset {offset} is beyond the log's end, {ends[partition]}",
                    offset=offset,
                    # After a power cut, the log may end below the high watermark, but not below flushed or deleted
                    # offsets.
                    severity=Severity.RECOVERY if crashed and name == filenames.HIGH_WATERMARKS else None,
                    meaning=_BEYOND[name],
                )

    def _read(self, directory: LogDirectory, name: str, findings: Findings) -> bytes | None:
        if directory.info(name) is None:
            return None
        path = f"{directory.path}/{name}"
        try:
            return read_file(self.fs, path)
        except FileNotFoundError:
            return None  # replaced by a running broker
        except OSError as error:
            findings.add(Kind.UNREADABLE, path, why_unreadable(error))
            return None

    def _duplicates(self, directories: Sequence[LogDirectory]) -> None:
        """Report partitions in two log directories of one node. Copies of the same log directory are not reported."""
        seen: dict[tuple[object, ...], list[tuple[object, Partition]]] = {}
        strays = {path for node in self._nodes for path in node.strays}
        for directory in directories:
            meta = directory.meta
            node = (meta.cluster_id, meta.node_id) if meta is not None else (None, directory.path)
            for partition in directory.partitions:
                if partition.path in strays:
                    continue  # a broker renames strays before it looks for duplicates
                state = partition.name.state
                if state not in (DirectoryState.CURRENT, DirectoryState.FUTURE) or (
                    partition.name.topic_partition.topic == CLUSTER_METADATA_TOPIC
                ):
                    continue
                where = (meta.directory_id if meta is not None else None) or directory.path
                others = seen.setdefault((node, partition.name.topic_partition, state), [])
                for other_where, other in others:
                    if other_where != where or posixpath.dirname(other.path) == directory.path:
                        what = f"{partition.name.topic_partition} is also in {other.path}"
                        self._findings.add(Kind.DUPLICATE_PARTITION, partition.path, what)
                        break
                others.append((where, partition))

    def _check_tier(self, tiers: TierStore, directories: Sequence[LogDirectory]) -> None:
        """Check the metadata topic and the tier's objects; with a running broker, keep only what is found twice."""
        paths = [directory.path for directory in directories]
        found = [Findings() for _ in range(1 + any(directory.live for directory in directories))]
        for findings in found:
            check_tier(tiers, paths, self._live_logs, findings)
            tiers = tiers.to_check()
        found[0].keep_repeated(found[-1])
        self._findings.merge(found[0])

    def _log_starts(self) -> None:
        """Report deleted records that become readable again, because the log start offset is lost or is in the
        checkpoint of another log directory.
        """
        for node in self._nodes:
            for directory in () if node.live else node.directories:
                path, meaning = f"{directory.path}/{filenames.LOG_START_OFFSETS}", "deleted records can be read again"
                for name, offset in directory.log_start_offsets.items():
                    home, served = node.homes.get(name), self._served.get(name)
                    if home is None or home is directory or name in home.log_start_offsets or served is None:
                        continue
                    if served.log_start_offset < offset <= served.log_end_offset:
                        what = f"{name} is in {home.path}, and begins there at {served.log_start_offset:,}"
                        self._findings.add(
                            Kind.CHECKPOINT_PARTITION,
                            path,
                            what,
                            offset=offset,
                            severity=Severity.DAMAGE,
                            meaning=meaning,
                        )
                written = directory.info(filenames.RECOVERY_POINTS) is not None
                checkpoint = directory.info(filenames.LOG_START_OFFSETS)
                # Kafka creates the file empty, so the leader epochs have to show that entries are lost.
                if written and (checkpoint is None or not checkpoint.size_bytes):
                    state = "missing" if checkpoint is None else "empty"
                    for name, offset in self._deleted_below.items():
                        if node.homes.get(name) is directory:
                            what = f"{state}, and by its leader epochs {name} began at {offset:,}"
                            self._findings.add(Kind.CHECKPOINT_UNREADABLE, path, what, offset=offset, meaning=meaning)

    # ---- single files ------------------------------------------------------------------------------------------------

    def _file(self, path: str) -> Iterator[Finding]:
        parent, name = posixpath.dirname(path) or ".", posixpath.basename(path)
        self._count([self.fs.stat(path)])
        found: list[Finding]
        own = f"{parent}/{name}"
        parsed = parse_file(name)
        if name == filenames.BOOTSTRAP_CHECKPOINT or (parsed and parsed.kind is FileKind.CHECKPOINT_SNAPSHOT):
            findings = Findings()
            check_metadata_snapshot(self.fs, own, findings, self._progress)
            found = findings.take()
        elif (partition := partition_of_key_index(own)) is not None:
            found = self._partition(self._parent(partition), partition, None, {}, parse_key_index(name))
        elif name in _KNOWN_FILES:
            directory = LogDirectory.open(self.fs, parent)
            findings = Findings()
            self._directory_files(directory, findings, self._ends(directory), _present(directory))
            found = findings.take()
        else:
            only = None
            if parsed and parsed.temporary is Temporary.NONE and parsed.kind in SEGMENT_KINDS:
                only = parsed.offset
            found = self._partition(self._parent(parent), parent, None, {}, only)
        yield from (finding for finding in found if finding.path == own)

    def _ends(self, directory: LogDirectory) -> dict[TopicPartition, int]:
        """Return the end offsets of a directory's logs, read from their last batches."""
        ends = {}
        for partition in directory.partitions:
            if partition.name.state is DirectoryState.CURRENT:
                try:
                    ends[partition.name.topic_partition] = directory.log(partition).next_offset
                except (OSError, NotFoundError):
                    continue
        return ends


def _no_progress(_: int) -> None:
    """Report nothing: a thread that reads a partition leaves progress to the thread that concludes."""


def _has_deleted(log: LogView) -> bool:
    return any(info.name.endswith(f"{FileKind.LOG}{Temporary.DELETED}") for info in log.entries)


def _present(directory: LogDirectory) -> set[TopicPartition]:
    """Return the partitions that the checkpoints of a directory may contain."""
    states = (DirectoryState.CURRENT, DirectoryState.FUTURE)
    return {p.name.topic_partition for p in directory.partitions if p.name.state in states}


def _partition_name(path: str) -> filenames.PartitionDirectory | None:
    try:
        return parse_directory(posixpath.basename(path))
    except DataError:
        return None


def _first_part(directory: str, path: str) -> str:
    """Return the first part of a path, relative to a directory that contains it."""
    return path.removeprefix(directory.rstrip("/") + "/").partition("/")[0]


def _stop(directory: LogDirectory | None, log: LogView) -> Stop:
    """Return how the broker of a partition stopped, from the files of its log directory."""
    if directory is not None and directory.live:
        return Stop(live=True)
    if is_cluster_metadata(log):
        return Stop(recovery_point=0)  # KRaft's metadata log is recovered at every start
    if directory is None or not directory.is_brokers:
        return Stop()
    state = log.name.state if log.name is not None else DirectoryState.CURRENT
    if directory.clean_shutdown or state is DirectoryState.DELETED:
        return Stop(clean=True, set_aside=state in (DirectoryState.DELETED, DirectoryState.STRAY))
    name = log.name.topic_partition if log.name is not None else TopicPartition("", NONE)
    return Stop(recovery_point=max(0, directory.recovery_points.get(name, 0)))
