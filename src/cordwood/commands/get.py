"""`get`: all records of a key in a log, and the fate of each record.

By default a producer writes all records of a key to one partition, which Kafka's partitioner computes from the key and
the number of partitions. `get` searches that partition first, and other partitions only if the key is not in it, so it
usually reads one partition of many.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from cordwood.cleaning.rules.precedence import KEEP_RULE
from cordwood.commands.opening import open_cluster, select_replicas
from cordwood.commands.options import GetOptions
from cordwood.commands.replicas import healed_documents, know_replicas, replica_documents, replica_lines
from cordwood.commands.why.found_keys import FoundRecord, GetResult, SearchedLog
from cordwood.commands.why.next_step import NextStep, StepKind, prospects_of
from cordwood.common.errors import CorruptFileError, DataError, NotFoundError, RequestError
from cordwood.common.json_text import json_text, json_value
from cordwood.common.partitioner import partition_of
from cordwood.common.text import Column, cells_of, cut_off, number, printable, register, table, time_text
from cordwood.common.types import NONE, Clock, system_clock
from cordwood.fs.base import Store
from cordwood.storage.formats.filenames import CLUSTER_METADATA_TOPIC, DirectoryState
from cordwood.storage.index.history import KeyHistory, KeyRecord, by_key
from cordwood.storage.log.files import why_unreadable
from cordwood.storage.log.healing import Healer
from cordwood.storage.log.view import LogView
from cordwood.storage.node.cluster import Cluster
from cordwood.storage.node.node import LocatedPartition
from cordwood.storage.node.read_replica import ReadReplica
from cordwood.tables.decoders.keys import Coder, schema_folder

#: Called with the bytes of logs searched so far, and the total as far as it is known.
_OnProgress = Callable[[int, int], None]


def get(
    paths: Sequence[str],
    keys: Sequence[bytes | str],
    options: GetOptions,
    *,
    on_progress: Callable[[int, int], None] | None = None,
    fs: Store | None = None,
    clock: Clock = system_clock,
) -> GetResult:
    """Find all records of some keys, and predict the next change of each.

    The directories are only read; a broker may be running. Segments with a key index are searched through it, all
    other segments are read. If the number of partitions is known, the search for a key begins in the partition that
    Kafka's partitioner chooses, and continues in other partitions only if the key is not there.

    Args:
        paths: log directories of one or more brokers, folders of several, or partition directories.
        keys: bytes, or text in the form that `key_as` names.
        on_progress: called with the bytes of segments that were searched, and of all.

    Raises:
        NotFoundError: there is nothing at a path, or no partition was selected.
        RequestError: a path is a file; the directories belong to different clusters; no directory belongs to the broker
            that `replica` names; or a key is not what `key_as` says.
        ConfigError: Kafka would not accept a config.
    """
    chosen = options.selection
    if not keys:
        raise RequestError("no key was given")
    folders = [schema_folder(one) for one in (options.key_as, options.value_as)]
    given = options.replicas.with_paths(paths)
    fs = fs or chosen.store([*given, options.index_place.index_dir, *folders])
    coder = Coder(options.key_as, fs)
    forms = {key: coder.encode(key) for key in keys}
    cluster = open_cluster(fs, paths, chosen, options.replicas)
    selected, choices = select_replicas(cluster, given, chosen, options.replicas.replica)
    places = [place for place in selected if _may_have_keys(place)]
    if not places:
        raise NotFoundError(f"There is no partition of any topic in {', '.join(given)}")
    root = options.index_place.root(fs, [place.path for place in places])
    healer = Healer(options.replicas.heal)
    know_replicas(healer, choices.values())
    now_ms = clock() if options.now_ms is None else options.now_ms
    search = _Search(cluster, options, now_ms, root, on_progress, healer)
    order = {key: at for at, key in enumerate(dict.fromkeys(itertools.chain.from_iterable(forms.values())))}
    for topic in sorted({place.topic or "" for place in places}):
        search.topic([place for place in places if place.topic == topic], list(order))
    found = sorted(search.found, key=lambda one: order[one[1].key])
    known = {record.key for _, record, _ in found}
    shown_keys = dict(zip(order, coder.decode(list(order)), strict=True))
    searched = {one.path for one in search.searched}
    values = Coder(options.value_as, fs).decode([record.value for _, record, _ in found])
    return GetResult(
        tuple(
            FoundRecord(place.name.topic_partition, place.path, record, shown_keys[record.key], value, step)
            for (place, record, step), value in zip(found, values, strict=True)
            if place.name is not None
        ),
        # A key with several encodings has records if any encoding has.
        tuple(key for key, some in forms.items() if not known.intersection(some)),
        tuple(search.searched),
        tuple(search.notes),
        tuple(search.problems),
        tuple(ReadReplica.of(choice) for choice in choices.values() if choice.replica.path in searched),
        healer.logs,
    )


def _may_have_keys(place: LocatedPartition) -> bool:
    is_current = place.name is not None and place.name.state is DirectoryState.CURRENT
    return is_current and place.topic != CLUSTER_METADATA_TOPIC


@dataclass
class _Search:
    """A running search and its results so far."""

    cluster: Cluster
    options: GetOptions
    now_ms: int
    index_root: str | None
    on_progress: _OnProgress | None
    healer: Healer
    found: list[tuple[LocatedPartition, KeyRecord, NextStep]] = field(default_factory=list)
    searched: list[SearchedLog] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[DataError] = field(default_factory=list)
    _done_bytes: int = 0
    _all_bytes: int = 0

    def topic(self, places: Sequence[LocatedPartition], keys: Sequence[bytes]) -> None:
        """Search the partitions of one topic."""
        count = self._partition_count(places[0].topic or "")
        if self.options.selection.partitions or not count or len(places) == 1:
            self._logs([(place, keys) for place in places])
            return
        by_number: dict[int, list[bytes]] = {}
        for key in keys:
            by_number.setdefault(partition_of(key, count), []).append(key)
        of_kafka = [(place, by_number.get(_number(place), [])) for place in places]
        self._logs([(place, some) for place, some in of_kafka if some])
        known = {record.key for place, record, _ in self.found if place in places}
        self._logs(
            [
                (place, rest)
                for place, some in of_kafka
                if (rest := [key for key in keys if key not in known and key not in some])
            ]
        )
        if known:
            what = "keys were looked for in the partition that Kafka's partitioner writes them to"
            self.notes.append(f"{places[0].topic}: {what}; --partition '*' searches all")

    def _partition_count(self, topic: str) -> int:
        metadata = self.cluster.metadata
        known = None if metadata is None or metadata.problems else metadata.topics.get(topic)
        return 0 if known is None else len(known.partitions)

    def _logs(self, wanted: Sequence[tuple[LocatedPartition, Sequence[bytes]]]) -> None:
        opened = [(place, place.log().with_indexes_in(self.index_root), keys) for place, keys in wanted]
        self._all_bytes += sum(log.size_bytes for _, log, _ in opened)
        for place, log, keys in opened:
            if log.segments:
                self._log(place, log, keys)

    def _log(self, place: LocatedPartition, log: LogView, keys: Sequence[bytes]) -> None:
        problems: list[DataError] = []
        history = KeyHistory(keys, problems.append, KEEP_RULE.ranks)
        records = history.of(log, lambda segment: self._has_searched(segment.size_bytes), last=self.options.last)
        while problems and self.healer.heal(problems):
            log = self.healer.healed(log)
            problems.clear()
            records = history.of(log, last=self.options.last)
        self.problems += problems
        self.searched.append(SearchedLog(place.path, len(keys), history.indexed, history.scanned))
        if not records:
            return
        try:
            prospects = prospects_of(self.cluster.node_of(place), place, log, self.now_ms)
        except (OSError, CorruptFileError) as error:
            why = why_unreadable(error) if isinstance(error, OSError) else str(error)
            steps = [NextStep(StepKind.KEPT, f"not known: {why}")] * len(records)
            self.found += ((place, record, step) for record, step in zip(records, steps, strict=True))
            return
        for some in by_key(records).values():
            self.found += ((place, *pair) for pair in zip(some, prospects.steps(some), strict=True))

    def _has_searched(self, size_bytes: int) -> None:
        self._done_bytes += size_bytes
        if self.on_progress is not None:
            self.on_progress(self._done_bytes, self._all_bytes)


def _number(place: LocatedPartition) -> int:
    assert place.name is not None, "only partitions with names are searched"
    return place.name.topic_partition.partition


# ---- the result as text and JSON -------------------------------------------------------------------------------------

#: Maximum number of characters in a cell on a terminal.
_CELL_MAX = 40


def shown(value: Any) -> str:
    """Return a key or value on one line; bytes as hexadecimal digits."""
    if value is None:
        return "∅"
    if isinstance(value, bytes | bytearray):
        text = f"hex:{value[:_CELL_MAX].hex()}"
    else:
        text = value if isinstance(value, str) else json_text(value)
    return cut_off(text, _CELL_MAX)


RECORD_COLUMNS: Sequence[tuple[Column, Callable[[FoundRecord], str]]] = (
    (Column("OFFSET", right=True), lambda one: str(one.record.offset)),
    (Column("TIME (UTC)"), lambda one: "-" if one.record.timestamp == NONE else time_text(one.record.timestamp)),
    (Column("VALUE"), lambda one: shown(one.value)),
    (Column("TRANSACTION"), lambda one: one.record.outcome if one.record.producer_id >= 0 else "-"),
    (Column("BATCH", right=True), lambda one: str(one.record.base_offset)),
    (Column("SEGMENT", right=True), lambda one: str(one.record.segment)),
    (Column("POSITION", right=True), lambda one: str(one.record.position)),
    (Column("NEXT"), lambda one: printable(one.next_step.what)),
)


def lines(result: GetResult, limit: int | None = None) -> Iterator[str]:
    """Yield the choice of replicas, a table for each key and partition, then notes and problems.

    Args:
        limit: maximum rows of each table, the newest records; older records are counted by their fate.
    """
    yield from replica_lines(result.replicas)
    if result.replicas:
        yield ""
    for found in _by_key(result):
        older = [] if limit is None else found[: max(len(found) - limit, 0)]
        yield f"{printable(str(found[0].topic_partition))}, key {shown(found[0].key)}"
        if newest := found[len(older) :]:
            yield from table(*cells_of(RECORD_COLUMNS, newest))
        for what, some in _by_reason(older).items():
            offsets = f"offset {some[0]}" if len(some) == 1 else f"offsets {some[0]} to {some[-1]}"
            yield f"and {len(some):,} older, {offsets}: {printable(what)}"
        yield ""
    for one in result.unknown:
        yield f"there is no record of key {shown(one)}"
    indexed, scanned = (sum(getattr(one, name) for one in result.searched) for name in ("indexed", "scanned"))
    how = f"{number(indexed, 'segment')} searched by index, {scanned:,} read"
    yield f"{number(len(result.records), 'record')} in {number(len(result.searched), 'log')}; {how}"
    for note in result.notes:
        yield f"note: {printable(note)}"
    yield from (printable(str(one)) for one in result.healed)
    for problem in result.problems:
        yield f"DAMAGE, whose records are not known: {printable(str(problem))}"


def _by_key(result: GetResult) -> Iterator[list[FoundRecord]]:
    """Yield the records of each key in each partition, by offset."""
    for _, some in groupby(result.records, lambda one: (one.topic_partition, one.path, one.record.key)):
        yield list(some)


def _by_reason(records: Sequence[FoundRecord]) -> dict[str, list[int]]:
    """Group the offsets of records by fate. All superseded records form one group, whichever record superseded them."""
    found: dict[str, list[int]] = {}
    for one in records:
        what = re.sub(r"^superseded by offset [0-9]+", "superseded", one.next_step.what)
        found.setdefault(what, []).append(one.record.offset)
    return found


def document(result: GetResult, limit: int | None = None) -> dict[str, Any]:
    """Return the result as one JSON value, with at most the `limit` newest records per key and partition."""
    records = [one for found in _by_key(result) for one in found[0 if limit is None else max(len(found) - limit, 0) :]]
    return {
        "records": [_record(one) for one in records],
        "unknown": json_value(result.unknown),
        "searched": [
            {"path": printable(one.path), "keys": one.keys, "indexed": one.indexed, "scanned": one.scanned}
            for one in result.searched
        ],
        "replicas": replica_documents(result.replicas),
        "healed": healed_documents(result.healed),
        "notes": list(result.notes),
        "problems": [printable(str(one)) for one in result.problems],
    }


def _record(found: FoundRecord) -> dict[str, Any]:
    record, step = found.record, found.next_step
    return {
        "topic": found.topic_partition.topic,
        "partition": found.topic_partition.partition,
        "path": printable(found.path),
        "key": json_value(found.key),
        "value": json_value(found.value),
        "offset": record.offset,
        "timestamp": record.timestamp,
        "tombstone": record.is_tombstone,
        "batch": record.base_offset,
        "segment": record.segment,
        "position": record.position,
        "transactional": record.producer_id >= 0,
        "outcome": record.outcome,
        "superseded_by": record.superseded_by,
        "delete_horizon_ms": record.delete_horizon_ms,
        "next": {"kind": step.kind, "what": printable(step.what), "from_ms": step.from_ms, "by_ms": step.by_ms},
    }


register(GetResult, lines=lines, document=document)
