"""`erase-check`: search directories of brokers, copies and backups for any trace of some keys.

    every file ──► is searched, whatever its type ──► traces ──► the step that removes each trace
                       │                                  ▲
                       size, SHA-256                      the record's log: superseded, and the clean that removes it

The check trusts no index or checkpoint: it reads all bytes of all files, including files that brokers ignore. Files
that appear or change during the check are searched again.
"""

from __future__ import annotations

import hashlib
import posixpath
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from importlib.metadata import version
from threading import Lock
from typing import Any

from cordwood.cleaning.rules.plan import utc
from cordwood.cleaning.rules.precedence import KEEP_RULE
from cordwood.commands.get import shown
from cordwood.commands.options import EraseCheckOptions, Selection
from cordwood.commands.why.found_keys import CheckedFile, ErasureResult, FoundTrace, ReplicaTraces, Role, TraceRecord
from cordwood.commands.why.next_step import NextStep, StepKind, prospects_of
from cordwood.common.errors import ConfigError, CordwoodError, NotFoundError, RequestError
from cordwood.common.json_text import json_value
from cordwood.common.text import (
    Column,
    bytes_text,
    cells_of,
    html_table,
    names_text,
    number,
    printable,
    register,
    table,
)
from cordwood.common.threads import in_parallel
from cordwood.common.types import Clock, TopicPartition, system_clock
from cordwood.fs.base import FileInfo, Store
from cordwood.fs.machine import local_cores
from cordwood.storage.changes.backup import MANIFEST
from cordwood.storage.formats import filenames
from cordwood.storage.formats.filenames import (
    DIRECTORY_NAME_LENGTH_MAX,
    WORK_FOLDER,
    DirectoryState,
    FileKind,
    PartitionDirectory,
    Temporary,
    is_key_index,
    parse_file,
)
from cordwood.storage.index.history import KeyRecord, TransactionOutcome, by_key, judged
from cordwood.storage.index.traces import KEY_BYTES_MIN, SearchedFile, Trace, TraceKind, TraceSearch
from cordwood.storage.log.files import why_unreadable
from cordwood.storage.log.view import LogView
from cordwood.storage.node.cluster import Cluster
from cordwood.storage.node.directory import is_wanted
from cordwood.storage.node.node import LocatedPartition, Node
from cordwood.tables.decoders.keys import Coder, schema_folder

_ROUNDS = 4
#: Called with the bytes searched so far, and the bytes of all files.
_OnProgress = Callable[[int, int], None]


def erase_check(
    paths: Sequence[str],
    keys: Sequence[bytes | str],
    options: EraseCheckOptions,
    *,
    on_progress: Callable[[int, int], None] | None = None,
    fs: Store | None = None,
    clock: Clock = system_clock,
) -> ErasureResult:
    """Look for traces of keys in all files of some directories, and list the steps that remain.

    Every byte of every file is read, and nothing is changed; brokers may be running. `page()` of the result is the
    certificate as an HTML file.

    Args:
        paths: all places that may have traces: directories of all brokers, copies, folders of kept files.
        keys: bytes, or text in the form that `key_as` names.
        on_progress: called with the bytes of searched files, and of all files.

    Raises:
        NotFoundError: there is nothing at a path, or no file was selected.
        RequestError: a path is a file; or a key does not have the form that `key_as` names.
        ConfigError: Kafka would not accept a config.
    """
    chosen = options.selection
    if not keys:
        raise RequestError("no key was given")
    folder = schema_folder(options.key_as)
    given = options.named.with_paths(paths)
    fs = fs or chosen.store([*given, folder])
    coder = Coder(options.key_as, fs)
    raw = sorted({key for one in keys for key in coder.encode(one)})
    started_ms = clock()
    search = TraceSearch(fs, raw, values=options.values, ranks=KEEP_RULE.ranks)
    opened = [_cluster(fs, chosen, [path]) for path in paths]
    opened += [_cluster(fs, chosen, [], [one]) for one in options.named.named]
    clusters = [one for one in opened if one is not None]
    files, looked_at, unknown = _look_at_all(fs, given, chosen, search, on_progress)
    judge = _StepChooser(
        fs,
        [node for cluster in clusters for node in cluster.nodes],
        started_ms if options.now_ms is None else options.now_ms,
    )
    judge.judge_logs(files, looked_at)
    traces = [trace for file in files for trace in judge.traces(file, looked_at[file.path])]
    checked = tuple(_checked(files, looked_at, traces, judge))
    shown = dict(zip(raw, coder.decode(raw), strict=True))
    return ErasureResult(
        version("cordwood"),
        started_ms,
        clock(),
        given,
        tuple(fs.absolute_path(path) for path in given),
        tuple(chosen.topics),
        tuple(chosen.partitions),
        len(raw),
        _digest(raw),
        options.values,
        checked,
        tuple(replace(trace, key=shown[trace.key]) for trace in traces),
        (*_never_known(raw, options), *_missing_replicas(clusters, chosen), *unknown, *judge.notes),
        tuple(_with_traces(files, checked)),
        tuple(sorted({node.name for node in judge.nodes if node.name})),
    )


def _cluster(
    fs: Store, chosen: Selection, paths: Sequence[str], named: Sequence[tuple[str, str]] = ()
) -> Cluster | None:
    """Open directories as those of brokers, for their names and configs; None if they are no broker's."""
    try:
        sources = chosen.metadata, chosen.server_properties, chosen.overrides
        return Cluster.open(fs, paths, *sources, named=named)
    except ConfigError:
        raise
    except RequestError:
        return None


def _missing_replicas(clusters: Sequence[Cluster], chosen: Selection) -> Iterator[str]:
    """Yield the brokers that have further replicas, by the newest metadata."""
    known = [one for one in clusters if one.metadata is not None and not one.metadata.problems]
    if not known:
        return
    newest = max(known, key=lambda one: 0 if one.metadata is None else one.metadata.next_offset)
    here: dict[TopicPartition, set[int | None]] = {}
    for cluster in clusters:
        for name, replicas in cluster.partitions.items():
            if is_wanted(name, chosen.topics, chosen.partitions):
                here.setdefault(name, set()).update(one.node.node_id for one in replicas)
    missing: dict[int, list[TopicPartition]] = {}
    for name, nodes in sorted(here.items()):
        assigned = newest.assignment(name)
        for broker in () if assigned is None else set(assigned.replicas) - nodes:
            missing.setdefault(broker, []).append(name)
    for broker, names in sorted(missing.items()):
        what = f"broker {broker} has replicas of {number(len(names), 'partition')}"
        yield f"{what} ({names_text(list(map(str, names)))}), and no given directory has them"


def _with_traces(files: Sequence[_FileToCheck], checked: Sequence[CheckedFile]) -> Iterator[ReplicaTraces]:
    """Yield the replicas of partitions that have traces, with the traces of all their files."""
    found: dict[tuple[TopicPartition, str, str], Counter[TraceKind]] = {}
    for file, one in zip(files, checked, strict=True):
        if one.counts and file.directory is not None and file.partition is not None:
            replica = file.partition.topic_partition, one.broker, file.directory
            found.setdefault(replica, Counter()).update(one.counts)
    for replica, counts in sorted(found.items(), key=lambda item: item[0]):
        yield ReplicaTraces(*replica, dict(counts))


def _digest(keys: Sequence[bytes]) -> str:
    found = hashlib.sha256()
    for key in keys:
        found.update(len(key).to_bytes(4, "big") + key)
    return found.hexdigest()


def _checked(
    files: Iterable[_FileToCheck],
    looked_at: Mapping[str, SearchedFile],
    traces: Iterable[FoundTrace],
    judge: _StepChooser,
) -> Iterator[CheckedFile]:
    """Yield the files with their traces by kind; a record counts as superseded only if its trace has a description."""
    superseded: Counter[tuple[str, TraceKind]] = Counter()
    for trace in traces:
        if trace.kind is TraceKind.SUPERSEDED and trace.record is not None:
            superseded[trace.path, TraceKind.TOMBSTONE if trace.record.is_tombstone else TraceKind.RECORD] += 1
    for file in files:
        found = looked_at[file.path]
        counts = Counter(found.counts)
        for kind in (TraceKind.RECORD, TraceKind.TOMBSTONE):
            counts[kind] -= superseded[file.path, kind]
            counts[TraceKind.SUPERSEDED] += superseded[file.path, kind]
        positive = {kind: count for kind, count in counts.items() if count > 0}
        yield CheckedFile(file.role, found, positive, judge.broker_of(file.path))


# ---- searching ------------------------------------------------------------------------------------------------------


def _look_at_all(
    fs: Store, paths: Sequence[str], chosen: Selection, search: TraceSearch, on_progress: _OnProgress | None
) -> tuple[list[_FileToCheck], dict[str, SearchedFile], list[str]]:
    """Search all files, and changed files again; the third value has notes on files that kept changing."""
    states: dict[str, tuple[int, int, int]] = {}
    done: dict[str, SearchedFile] = {}
    mutex, progress = Lock(), [0, 0]

    def look_at(file: _FileToCheck) -> None:
        try:
            found = SearchedFile(file.path, problems=[file.problem]) if file.problem else search.look_at(file.path)
        except FileNotFoundError:
            return  # the next listing has its new name, if any
        with mutex:
            done[file.path], states[file.path] = found, file.state
            progress[0] += found.size_bytes
            if on_progress is not None:
                on_progress(*progress)

    files: list[_FileToCheck] = []
    changed: list[_FileToCheck] = []
    for _ in range(_ROUNDS):
        files = [file for path in paths for file in _files_in(fs, path.rstrip("/") or "/", chosen)]
        changed = [file for file in files if states.get(file.path) != file.state]
        if not changed:
            break
        progress[1] += sum(file.info.size_bytes for file in changed)
        in_parallel(max(fs.concurrency, local_cores()), look_at, changed)
    if not files:
        what = ", ".join([*chosen.topics, *chosen.partitions])
        raise NotFoundError(f"There is no file in {', '.join(paths)}" + (f" that belongs to {what}" if what else ""))
    late = [file.path for file in files if file.path not in done]
    for path in late:
        done[path] = SearchedFile(path, problems=["it appeared or changed too often to be looked at"])
    grown = [file.path for file in changed if file.path not in late]
    notes = [f"it is being written to; later bytes were not searched: {path}" for path in grown]
    return files, done, notes


def _never_known(keys: Sequence[bytes], options: EraseCheckOptions) -> Iterator[str]:
    """Yield the limits of any search through files."""
    yield "blocks that a disk or store has freed, its snapshots, old versions of objects and backups may hold the bytes"
    yield "other replicas, tiers, mirrors, archives and consumers have copies of their own: give all their directories"
    yield "keys are compared byte by byte: the same person under another key or encoding is not found"
    if not options.values:
        yield "values and headers were not searched: --values looks for the keys in them"
    else:
        yield "values that a producer compressed or encrypted are searched as they are"
    short = sum(len(key) < KEY_BYTES_MIN for key in keys)
    if short:
        yield f"{short} keys of fewer than {KEY_BYTES_MIN} bytes were looked for as keys of records only, not as bytes"


# ---- the files to search ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _FileToCheck:
    """A file to search.

    Attributes:
        directory: directory of the file's partition, in any state; None outside partitions.
        partition: the parsed name of that directory.
        problem: the error if this is a directory that cannot be listed; else empty.
    """

    path: str
    info: FileInfo
    role: Role
    directory: str | None
    partition: PartitionDirectory | None
    problem: str = ""

    @property
    def state(self) -> tuple[int, int, int]:
        """A value that changes whenever the file does."""
        return self.info.inode, self.info.size_bytes, self.info.mtime_ns


def _files_in(fs: Store, root: str, chosen: Selection) -> Iterator[_FileToCheck]:
    """Yield all selected files in a directory and its subdirectories.

    Raises:
        NotFoundError: the directory does not exist.
    """
    if not fs.exists(root):
        raise NotFoundError(f"{root} does not exist")
    #: Visited directories, each alone and with the names of the partitions through which they were visited.
    seen: set[tuple[int, int] | tuple[int, int, str]] = set()
    is_kept = _is_within_kept(fs, root)

    def walk(path: str, directory: str | None, *, kept: bool, work: bool) -> Iterator[_FileToCheck]:
        try:
            listed, dead = fs.list(path), fs.dead_links(path)
        except FileNotFoundError:
            return  # removed or renamed meanwhile
        except OSError as error:
            yield _FileToCheck(path, fs.stat(path), Role.OTHER, directory, None, why_unreadable(error))
            return
        kept = kept or any(info.name == MANIFEST and not info.is_directory for info in listed)
        if not work and filenames.parsed_directory(path) is not None:
            directory = path
        what = None if directory is None else filenames.parsed_directory(directory)
        for name in dead:
            below, info = f"{path.rstrip('/')}/{name}", FileInfo(name, 0, 0, is_directory=False)
            yield _FileToCheck(below, info, Role.OTHER, directory, what, "it is a link whose target is missing")
        # Visit links last: their target often has its own name here too, which identifies the partition.
        paths = [(f"{path.rstrip('/')}/{info.name}", info) for info in listed]
        for below, info in sorted(paths, key=lambda found: found[1].is_directory and fs.is_link(found[0])):
            if info.is_directory:
                identity = info.device, info.inode
                partition = below if filenames.parsed_directory(below) is not None else directory
                name = "" if partition is None or work else posixpath.basename(partition)
                if info.inode and ((*identity, name) if name else identity) in seen:
                    continue  # a symlink to a parent, or to a directory that was already visited
                seen.update((identity, (*identity, name)))
                yield from walk(below, directory, kept=kept, work=work or info.name == WORK_FOLDER)
            elif info.name != filenames.LOCK:
                yield _FileToCheck(below, info, _role(below, what, kept=kept, work=work), directory, what)

    if not fs.stat(root).is_directory:
        raise RequestError(f"{root} is a file, not a directory")
    for file in walk(root, None, kept=is_kept, work=f"/{WORK_FOLDER}/" in f"{root}/"):
        if file.problem or _is_asked_for(file.partition, chosen):
            yield file


def _is_within_kept(fs: Store, root: str) -> bool:
    """Whether a directory is within a folder of kept files: a log directory's part of it, or a partition's."""
    if fs.path_on_disk(root) is None:
        return False  # only a clean in place keeps files
    parent = posixpath.dirname(fs.absolute_path(root))
    return any(fs.exists(f"{path}/{MANIFEST}") for path in (parent, posixpath.dirname(parent)))


def _is_asked_for(partition: PartitionDirectory | None, chosen: Selection) -> bool:
    if not chosen.topics and not chosen.partitions:
        return True
    if partition is None:
        return False
    if is_wanted(partition.topic_partition, chosen.topics, chosen.partitions):
        return True
    # The name of a directory that a broker is about to delete may lack the end of its topic.
    is_cut = partition.state is not DirectoryState.CURRENT and len(partition.name) >= DIRECTORY_NAME_LENGTH_MAX
    start = partition.topic_partition.topic
    return is_cut and any(topic.startswith(start) or fnmatchcase(start, topic) for topic in chosen.topics)


def _role(path: str, partition: PartitionDirectory | None, *, kept: bool, work: bool) -> Role:
    name = posixpath.basename(path)
    if kept:
        return Role.KEPT
    if is_key_index(name):
        return Role.KEY_INDEX
    if work:
        return Role.WORK
    file = parse_file(name)
    if partition is None or file is None:
        return Role.OTHER
    if partition.state is not DirectoryState.CURRENT or file.temporary is not Temporary.NONE:
        return Role.LEFTOVER
    return Role.LOG if file.kind is FileKind.LOG else Role.OTHER


# ---- the step that removes a trace -----------------------------------------------------------------------------------

#: Kinds of records before their whole log has been judged.
_OF_RECORDS = (TraceKind.RECORD, TraceKind.TOMBSTONE)

_OF_FILES: Mapping[Role, str] = {
    Role.WORK: "left by a run of Cordwood that was stopped: the next clean of the partition removes it",
    Role.KEPT: "kept by a clean, for cordwood undo: remove the folder once nothing has to be restored",
    Role.KEY_INDEX: "cordwood index makes it again from the segment's present records, and --drop removes it",
    Role.OTHER: "no clean changes it: remove the file, or the key from it",
}
_OF_STATES: Mapping[DirectoryState, str] = {
    DirectoryState.STRAY: "no broker uses the directory: remove it",
    DirectoryState.FUTURE: "goes when the move to another disk ends, or with the directory",
}


def _described(record: KeyRecord | None) -> TraceRecord | None:
    if record is None:
        return None
    return TraceRecord(record.offset, record.timestamp, record.is_tombstone, record.superseded_by)


@dataclass
class _StepChooser:
    """Decides which step removes each trace.

    Attributes:
        notes: gaps in the result, where a log cannot be judged.
    """

    fs: Store
    nodes: Sequence[Node]
    now_ms: int
    notes: list[str] = field(default_factory=list)
    #: By the directory of a partition, then by the location of a record.
    _records: dict[str, dict[tuple[int, int, int], tuple[KeyRecord, NextStep]]] = field(default_factory=dict)

    #: Names of brokers by the path of a log directory.
    _brokers: dict[str, str] = field(default_factory=dict)
    _places: dict[str, tuple[Node, LocatedPartition]] = field(default_factory=dict)

    def traces(self, file: _FileToCheck, found: SearchedFile) -> Iterator[FoundTrace]:
        """Yield the traces in a file, each with the step that removes it."""
        of_log = self._records.get(file.directory or "", {}) if file.role is Role.LOG else {}
        for trace in found.traces:
            known = of_log.get(_place(trace.record)) if trace.kind in _OF_RECORDS and trace.record else None
            kind, record = trace.kind, trace.record
            if known is None:
                step = self._step(file, trace)
            else:
                record, step = known
                if record.superseded_by is not None or record.outcome is TransactionOutcome.ABORTED:
                    kind = TraceKind.SUPERSEDED
            yield FoundTrace(
                file.path,
                file.role,
                kind,
                trace.key,
                trace.position,
                _described(record),
                step,
                self.broker_of(file.path),
            )

    def broker_of(self, path: str) -> str:
        """Return the name of the broker in whose directories a file is; empty if it is unknown."""
        if not self._brokers:
            pairs = [(node.name, directory) for node in self.nodes for directory in node.directories]
            self._brokers.update((self.fs.absolute_path(directory.path), name) for name, directory in pairs)
        folder = self.fs.absolute_path(path)
        while folder not in self._brokers and (above := posixpath.dirname(folder)) != folder:
            folder = above
        return self._brokers.get(folder, "")

    def _step(self, file: _FileToCheck, trace: Trace) -> NextStep:
        if file.role is Role.LEFTOVER:
            return self._of_leftover(file)
        if file.role is not Role.LOG:
            return NextStep(StepKind.KEPT, _OF_FILES[file.role])
        if trace.kind is TraceKind.VALUE:
            return NextStep(
                StepKind.STAYS, "part of a record of another key: it goes when that key is written or deleted"
            )
        if trace.kind in _OF_RECORDS:
            return NextStep(StepKind.KEPT, "not known: its log could not be followed")
        return NextStep(StepKind.KEPT, "not in a record that can be read: only a repair, or its removal, takes it")

    def _of_leftover(self, file: _FileToCheck) -> NextStep:
        state = DirectoryState.CURRENT if file.partition is None else file.partition.state
        if state in _OF_STATES:
            return NextStep(StepKind.KEPT, _OF_STATES[state])
        name = parse_file(posixpath.basename(file.path))
        place = self._place_of(file.directory)
        if state is DirectoryState.CURRENT and name is not None and name.temporary is not Temporary.DELETED:
            what = "the next start of a broker, or the next clean in place, removes or finishes it"
            if place is not None and place[1].directory.holder is not None:
                what = f"the output of a running clean, which replaces segments with it; otherwise {what}"
            return NextStep(StepKind.WAITS, what)
        what, delay_ms = "file.delete.delay.ms", None
        if place is not None and place[1].topic is not None:
            try:
                delay_ms = place[0].config_of(place[1].topic).integer("file.delete.delay.ms")
            except ConfigError:
                delay_ms = None
            what += "" if delay_ms is None else f"={delay_ms}"
        is_live = place is not None and place[1].directory.live
        by_ms = self.now_ms + delay_ms if is_live and delay_ms is not None else None
        return NextStep(
            StepKind.WAITS, f"a broker deletes it {what} after its renaming, and when it starts", by_ms=by_ms
        )

    def _place_of(self, directory: str | None) -> tuple[Node, LocatedPartition] | None:
        if not self._places:
            pairs = [(node, place) for node in self.nodes for place in node.places]
            self._places.update((self.fs.absolute_path(place.path), (node, place)) for node, place in pairs)
        return None if directory is None else self._places.get(self.fs.absolute_path(directory))

    def judge_logs(self, files: Sequence[_FileToCheck], looked_at: Mapping[str, SearchedFile]) -> None:
        """Judge the records of each log, before `traces` needs them."""
        by_log: dict[str, list[SearchedFile]] = {}
        for file in files:
            if file.role is Role.LOG and file.directory is not None:
                by_log.setdefault(file.directory, []).append(looked_at[file.path])
        for directory, some in by_log.items():
            traces = [trace for one in some for trace in one.traces]
            records = [one.record for one in traces if one.kind in _OF_RECORDS and one.record is not None]
            if sum(one.counts.total() for one in some) > len(traces):
                what = f"which records in {directory} are superseded: there are too many"
                self.notes.append(f"{what}. Give fewer keys at a time")
            elif records:
                self._judge_log(directory, sorted(records, key=lambda one: (one.offset, one.position)))

    def _judge_log(self, directory: str, records: Sequence[KeyRecord]) -> None:
        place = self._place_of(directory)
        try:
            log = LogView(directory, fs=self.fs) if place is None else place[1].log()
            known = judged(log, records)
            prospects = None if place is None else prospects_of(*place, log, self.now_ms)
        except (OSError, CordwoodError) as error:
            self.notes.append(f"what happens to the records in {directory} next: {error}")
            return
        found = self._records.setdefault(directory, {})
        for some in by_key(known).values():
            nothing = NextStep(StepKind.KEPT, "no broker's directory: it stays until the copy is cleaned or removed")
            steps = [nothing] * len(some) if prospects is None else prospects.steps(some)
            for record, step in zip(some, steps, strict=True):
                found[_place(record)] = record, _explained(record, step, log)


def _place(record: KeyRecord) -> tuple[int, int, int]:
    return record.segment, record.position, record.offset


def _explained(record: KeyRecord, step: NextStep, log: LogView) -> NextStep:
    """Rephrase the fate of a record for a user who wants the record to disappear."""
    if record.offset < log.log_start_offset:
        return NextStep(
            StepKind.RETENTION, "below the log start offset: a broker deletes its segment once all of it is"
        )
    if step.kind is StepKind.STAYS:
        return replace(step, what="the value of its key: it stays until a tombstone for the key is written and cleaned")
    return step


# ---- the result as text and JSON -------------------------------------------------------------------------------------

#: Maximum number of rows on a terminal.
_SHOWN_ROWS = 50


def _offset(trace: FoundTrace) -> str:
    return "-" if trace.record is None else str(trace.record.offset)


def _due(trace: FoundTrace) -> str:
    step = trace.next_step
    if step.from_ms is not None and step.from_ms == step.by_ms:
        return utc(step.from_ms)
    times = [f"{word} {utc(ms)}" for word, ms in (("from", step.from_ms), ("by", step.by_ms)) if ms is not None]
    return ", ".join(times) or "-"


def counts_text(counts: Mapping[TraceKind, int]) -> str:
    """Return the number of traces of each kind, without kinds that do not occur."""
    return ", ".join(f"{kind}: {count:,}" for kind, count in counts.items() if count) or "-"


#: Columns of a table of traces.
TRACES: Sequence[tuple[Column, Callable[[FoundTrace], str]]] = (
    (Column("KEY"), lambda one: shown(one.key)),
    (Column("TRACE"), lambda one: one.kind),
    (Column("IN"), lambda one: one.role),
    (Column("FILE"), lambda one: printable(one.path)),
    (Column("POSITION", right=True), lambda one: str(one.position)),
    (Column("OFFSET", right=True), _offset),
    (Column("SO THAT IT GOES"), lambda one: printable(one.next_step.what)),
    (Column("DUE (UTC)"), _due),
)
#: Columns of the same table if directories of several brokers were searched.
_TRACES_BY_BROKER = (*TRACES[:3], (Column("BROKER"), lambda one: printable(one.broker) or "-"), *TRACES[3:])
FILES: Sequence[tuple[Column, Callable[[CheckedFile], str]]] = (
    (Column("FILE"), lambda one: printable(one.found.path)),
    (Column("IS"), lambda one: one.role),
    (Column("BYTES", right=True), lambda one: f"{one.found.size_bytes:,}"),
    (Column("SHA-256"), lambda one: one.found.sha256),
    (Column("BATCHES", right=True), lambda one: f"{one.found.batches:,}"),
    (Column("RECORDS", right=True), lambda one: f"{one.found.records:,}"),
    (Column("TRACES"), lambda one: counts_text(one.counts)),
    (Column("NOT READ"), lambda one: "; ".join(map(printable, one.found.problems)) or "-"),
)


def trace_columns(result: ErasureResult) -> Sequence[tuple[Column, Callable[[FoundTrace], str]]]:
    """Return the columns of the table of traces: with the broker if directories of several were searched."""
    return _TRACES_BY_BROKER if len(result.brokers) > 1 else TRACES


def _looked_at(result: ErasureResult) -> str:
    size = bytes_text(sum(one.found.size_bytes for one in result.files))
    records = sum(one.found.records for one in result.files)
    what = f"{number(len(result.files), 'file')}, {size}, {number(records, 'record')}"
    return f"{number(result.keys, 'key')} looked for in {what}, {utc(result.started_ms)} to {utc(result.ended_ms)}"


def _lines(result: ErasureResult) -> Iterator[str]:
    if result.traces:
        yield from table(*cells_of(trace_columns(result), result.traces[:_SHOWN_ROWS]))
        yield ""
    found = sum(result.counts.values())
    if found > _SHOWN_ROWS:
        yield f"the first {_SHOWN_ROWS} of {number(found, 'trace')}; the certificate has more"
    for one in result.files:
        for problem in one.found.problems:
            yield f"not read: {printable(one.found.path)}: {printable(problem)}"
    for replica in result.replicas if len(result.brokers) > 1 else ():
        name = f"{replica.topic_partition} of broker {replica.broker or '-'}"
        yield f"traces in {printable(name)}, {printable(replica.path)}: {counts_text(replica.counts)}"
    roles = {role: sum(one.role is role for one in result.files) for role in Role}
    yield _looked_at(result)
    yield "of these: " + ", ".join(f"{role}: {count:,}" for role, count in roles.items() if count)
    for line in result.unknown:
        yield f"not known: {printable(line)}"
    yield f"{result.verdict.upper()}{'' if not found else ' (' + counts_text(result.counts) + ')'}"


def _document(result: ErasureResult) -> dict[str, Any]:
    return {
        "verdict": result.verdict,
        "cordwood": result.version,
        "started_ms": result.started_ms,
        "started": utc(result.started_ms),
        "ended_ms": result.ended_ms,
        "ended": utc(result.ended_ms),
        "paths": list(map(printable, result.paths)),
        "absolute_paths": list(map(printable, result.absolute_paths)),
        "topics": list(result.topics),
        "partitions": list(result.partitions),
        "keys": {"count": result.keys, "sha256": result.keys_sha256},
        "values_searched": result.values,
        "counts": dict(result.counts),
        "traces": [_trace(one) for one in result.traces],
        "brokers": list(result.brokers),
        "replicas": [
            {
                "topic": one.topic_partition.topic,
                "partition": one.topic_partition.partition,
                "broker": one.broker,
                "path": printable(one.path),
                "traces": dict(one.counts),
            }
            for one in result.replicas
        ],
        "files": [_file(one) for one in result.files],
        "unknown": list(map(printable, result.unknown)),
    }


def _trace(trace: FoundTrace) -> dict[str, Any]:
    record, step = trace.record, trace.next_step
    return {
        "path": printable(trace.path),
        "broker": trace.broker,
        "role": trace.role,
        "kind": trace.kind,
        "key": json_value(trace.key),
        "position": trace.position,
        "offset": None if record is None else record.offset,
        "timestamp": None if record is None else record.timestamp,
        "tombstone": None if record is None else record.is_tombstone,
        "superseded_by": None if record is None else record.superseded_by,
        "next": {"kind": step.kind, "what": printable(step.what), "from_ms": step.from_ms, "by_ms": step.by_ms},
    }


def _file(file: CheckedFile) -> dict[str, Any]:
    found = file.found
    return {
        "path": printable(found.path),
        "broker": file.broker,
        "role": file.role,
        "size_bytes": found.size_bytes,
        "mtime_ms": found.mtime_ns // 1_000_000,
        "sha256": found.sha256,
        "batches": found.batches,
        "records": found.records,
        "traces": dict(file.counts),
        "problems": list(map(printable, found.problems)),
    }


def _notebook(result: ErasureResult) -> str:
    """Return the verdict and a table of the traces, for a notebook."""
    return html_table(*cells_of(trace_columns(result), result.traces), f"{result}, {utc(result.ended_ms)}")


register(ErasureResult, lines=_lines, document=_document, html=_notebook)
