"""A log in memory that tests write, roll and clean step by step, as a broker would: no Java, no disk.

Every append rewrites the active segment, so all files always exist. Cleans run the same code as on disk; their outputs
replace their sources at once.
"""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from cordwood.api import plan as make_plan
from cordwood.cleaning.engine.facts import CleanSettings, load_producers, segment_facts
from cordwood.cleaning.engine.partition import Cleaned, GroupRange
from cordwood.cleaning.rules.plan import PartitionPlan, SegmentFacts
from cordwood.cleaning.rules.rewrite import Counts
from cordwood.cleaning.rules.selection import (
    MAX_OFFSET_SPAN,
    clean_range,
    first_dirty_offset,
    group_segments,
    segments_between,
)
from cordwood.common.types import TopicPartition
from cordwood.fs.base import LocalFileSystem
from cordwood.fs.posix import PosixFileSystem
from cordwood.record.batch import Batch, to_batches
from cordwood.record.columns import decode
from cordwood.record.record import Record, to_records
from cordwood.storage.changes.copy import Replacement, copy_partition, remove_segments
from cordwood.storage.changes.swap import swap_in
from cordwood.storage.formats import checkpoints, leader_epochs, producer_state
from cordwood.storage.formats.filenames import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    WORK_FOLDER,
    FileKind,
    offset_name,
    parse_file,
)
from cordwood.storage.formats.leader_epochs import LeaderEpochs
from cordwood.storage.formats.transaction_index import AbortedTransaction
from cordwood.storage.log.files import read_file, write_file
from cordwood.storage.log.recovery import SEGMENT_KINDS
from cordwood.storage.log.segment import Segment
from cordwood.storage.log.segment_writer import IndexLimits, SegmentWriter
from cordwood.storage.log.view import LogView
from cordwood.storage.recovery.in_place import recover_in_place
from cordwood.storage.recovery.into_copy import RecoverySettings, complete_indexes, recover_into_copy
from cordwood.storage.recovery.replay import DEFAULT_EXPIRATION_MS, Producers
from cordwood.testing.memory import MemoryFileSystem
from tests.cleaning.modes import clean_log
from tests.logs import window

# ---- a clean in place ------------------------------------------------------------------------------------------------


def in_parts(
    clean: Callable[[GroupRange], Cleaned], facts: Sequence[SegmentFacts], end: int, settings: CleanSettings
) -> Cleaned:
    """Clean one group after the other; pickle the state between groups, as between tasks.

    Args:
        clean: cleans some groups, and swaps them in.
        facts: facts of the log before the first group.
        end: the first uncleanable offset.
        settings: of the clean.
    """
    segment_bytes, index_bytes = settings.segment_bytes, settings.index.size_bytes
    found = group_segments(segments_between(facts, 0, end), end, segment_bytes=segment_bytes, index_bytes=index_bytes)
    groups = [tuple(one.base_offset for one in group) for group in found]
    done: list[Cleaned] = []
    for group, after in zip(groups, [*(one[0] for one in groups[1:]), end], strict=True):
        carried = pickle.loads(pickle.dumps(done[-1].carried)) if done else None
        done.append(clean(GroupRange((group,), after, carried)))
    counts = Counts()
    for one in done:
        counts.add(one.counts)
    return Cleaned(
        done[-1].end_offset,
        tuple(group for one in done for group in one.replaced),
        tuple(group for one in done for group in one.outputs),
        counts,
        tuple(group for one in done for group in one.segments),
    )


def swap_in_groups(fs: LocalFileSystem, partition: str, folder: str, cleaned: Cleaned) -> None:
    """Swap in the segments that a clean wrote to a folder."""
    written = [(info.name, parse_file(info.name)) for info in fs.list(folder)]
    for replaced, outputs in cleaned.written:
        names = tuple(name for name, file in written if file is not None and file.offset in outputs)
        swap_in(fs, partition, Replacement(folder, names, frozenset(replaced), frozenset(outputs), cleaned.end_offset))


def clean_in_place(
    log: LogView, target: Path, *, first_uncleanable: int, settings: CleanSettings, **choice: Any
) -> Cleaned:
    """Clean a copy of a log in place, as far as it has groups of its own, without Kafka's offset map."""
    shutil.copytree(log.path, target, ignore=shutil.ignore_patterns("*.deleted"))  # as loading leaves it
    folder = target / WORK_FOLDER / "outputs"

    def clean(part: GroupRange) -> Cleaned:
        folder.mkdir(parents=True)
        fs = PosixFileSystem()
        now = LogView(str(target), log_start_offset=log.log_start_offset, fs=fs)
        done = clean_log(
            fs, now, str(folder), first_uncleanable=first_uncleanable, settings=settings, part=part, **choice
        )
        swap_in_groups(fs, str(target), str(folder), done)
        folder.rmdir()
        return done

    facts = [segment_facts(segment) for segment in log.segments]
    return in_parts(clean, facts, first_uncleanable, settings)


LIVE, OUTPUTS, LOADED = "live", "out", "loaded"
#: Interval at which a broker looks for expired producers.
EXPIRY_INTERVAL_MS = 600_000


def settings_of(config: Mapping[str, Any]) -> CleanSettings:
    """The settings of a clean from topic configs."""
    return CleanSettings(
        delete_retention_ms=int(config.get("delete.retention.ms", 86_400_000)),
        segment_bytes=int(config.get("segment.bytes", 1 << 30)),
        index=IndexLimits(
            interval_bytes=int(config.get("index.interval.bytes", 4096)),
            size_bytes=int(config.get("segment.index.bytes", 10_485_760)),
        ),
    )


_EPOCHS = ("magic", "leader_epoch", "base_offset")


@dataclass
class _Active:
    """The segment that is written to."""

    base: int
    data: bytes = b""
    aborted: list[AbortedTransaction] = field(default_factory=list)
    mtime_ms: int = 0


class ScriptedLog:
    """One partition.

    Attributes:
        config: topic configs by Kafka's names; may be changed.
        now_ms: the broker's clock; `set_clock` moves it.
        next_offset: the log end offset.
        producers: the broker's producer states.
        checkpoint: the cleaner's checkpoint; None before the first clean.
        high_watermark: high watermark; None follows the log end.
        deletes_for_good: whether cleans drop expired tombstones and markers.
        log_start: the log start offset.
        epochs: the history of leader epochs.
        in_place: clean in place: each group is cleaned and swapped in before the next; loading is in place, too.
    """

    def __init__(
        self, config: Mapping[str, Any] | None = None, *, now_ms: int = 0, start: int = 0, name: str = "t-0"
    ) -> None:
        self.now_ms = now_ms
        self.fs = MemoryFileSystem(lambda: self.now_ms * 1_000_000)
        self.name = name
        self.path = f"{LIVE}/{name}"
        for path in (LIVE, self.path, OUTPUTS, LOADED):
            self.fs.make_directory(path)
        self.config: dict[str, Any] = dict(config or {})
        self.next_offset = start
        self.log_start = 0
        self.epochs = LeaderEpochs()
        self.producers = Producers()
        self.checkpoint: int | None = None
        self.high_watermark: int | None = None
        self.deletes_for_good = True
        self.in_place = False
        self._expiry_due_ms = now_ms + EXPIRY_INTERVAL_MS
        self._active = _Active(start, mtime_ms=now_ms)
        self._write_active()

    # ---- writing -----------------------------------------------------------------------------------------------------

    def append(self, data: bytes, coordinator_epochs: Mapping[int, int] | None = None) -> None:
        """Append whole batches that have their offsets, rolling first if they no longer fit."""
        rows = window(data).batches
        index, times = self._index_entries()
        limit = settings_of(self.config).index.size_bytes
        full = index >= limit // 8 or times >= limit // 12 - 1
        large = len(self._active.data) + len(data) > settings_of(self.config).segment_bytes
        if int(rows["last_offset"][-1]) - self._active.base > MAX_OFFSET_SPAN or (
            self._active.data and (large or full)
        ):
            first = int(rows["base_offset"][0])
            self.roll(first if first >= 0 else None)
        self._active.data += data
        self._active.mtime_ms = self.now_ms
        self._active.aborted += self.producers.replay(rows, coordinator_epochs or {})
        for magic, epoch, first in zip(*(rows[name].tolist() for name in _EPOCHS), strict=True):
            if magic < 2:
                self.epochs = LeaderEpochs()
            elif epoch >= 0:
                self.epochs = self.epochs.assigned(epoch, first)
        self.next_offset = int(rows["last_offset"][-1]) + 1
        self._write_active()

    def roll(self, base: int | None = None) -> int:
        """Start a new segment, unless the active one is empty there; its base offset, which may leave a gap."""
        self.next_offset = base = max(self.next_offset, base or 0)
        if self._active.base != base:
            self._active = _Active(base, mtime_ms=self.now_ms)
            self._write_active()
        return base

    def set_mtime(self, base: int, mtime_ms: int) -> None:
        """Set when a segment counts as last modified."""
        if base == self._active.base:
            self._active.mtime_ms = mtime_ms
        self.fs.set_mtime_ns(self._path(base, FileKind.LOG), mtime_ms * 1_000_000)

    def set_clock(self, now_ms: int) -> None:
        """Move the broker's clock; producers expire when their check is due."""
        self.now_ms = now_ms
        if now_ms >= self._expiry_due_ms:
            self.producers.expire(now_ms=now_ms, expiration_ms=DEFAULT_EXPIRATION_MS)
            self._expiry_due_ms = now_ms + EXPIRY_INTERVAL_MS

    def _index_entries(self) -> tuple[int, int]:
        facts = segment_facts(self.log().segments[-1])
        return facts.index_bytes // 8, facts.time_index_bytes // 12

    def _write_active(self) -> None:
        active = self._active
        writer = SegmentWriter(self.fs, self.path, active.base, settings_of(self.config).index)
        if active.data:
            writer.append([np.frombuffer(active.data, np.uint8)], window(active.data).batches)
        writer.add_aborted(active.aborted)
        writer.finish(mtime_ns=active.mtime_ms * 1_000_000)

    def _path(self, base: int, kind: FileKind) -> str:
        return f"{self.path}/{offset_name(base, kind)}"

    # ---- cleaning ----------------------------------------------------------------------------------------------------

    def log(self) -> LogView:
        """The log as it is now."""
        return LogView(self.path, fs=self.fs, log_start_offset=self.log_start)

    @property
    def last_stable_offset(self) -> int:
        """Below it everything is decided and replicated."""
        end = self.next_offset if self.high_watermark is None else self.high_watermark
        unstable = self.producers.first_unstable_offset
        return end if unstable is None else min(end, unstable)

    def clean(
        self,
        *,
        first_dirty: int | None = None,
        first_uncleanable: int | None = None,
        now_ms: int | None = None,
        **settings: Any,
    ) -> tuple[int, int, Cleaned | None]:
        """Clean as far as the plan allows, or the given range; `settings` are further ones of `CleanSettings`.

        Returns:
            first dirty and first uncleanable offset, and the clean's report; None if no data was cleanable.
        """
        now_ms = self.now_ms if now_ms is None else now_ms
        log = self.log()
        facts = [segment_facts(segment) for segment in log.segments]
        dirty, _ = first_dirty_offset(self.checkpoint, self.log_start, self.next_offset)
        lag = int(self.config.get("min.compaction.lag.ms", 0))
        stable = self.last_stable_offset
        planned = clean_range(facts, dirty, stable, min_compaction_lag_ms=lag, now_ms=now_ms)
        end = planned.first_uncleanable_offset
        if first_uncleanable is not None:
            end = clean_range(facts, 0, first_uncleanable).first_uncleanable_offset
        if first_dirty is not None:
            dirty = first_dirty
        elif first_uncleanable is None and not sum(f.size_bytes for f in segments_between(facts, min(dirty, end), end)):
            return dirty, end, None
        goes_by = replace(settings_of(self.config), deletes_for_good=self.deletes_for_good, **settings)

        def part(of: GroupRange | None) -> Cleaned:
            done = clean_log(
                self.fs,
                self.log(),
                OUTPUTS,
                first_dirty=dirty,
                first_uncleanable=end,
                now_ms=now_ms,
                settings=goes_by,
                producers=self.producers,
                part=of,
            )
            self._swap(done)
            return done

        one_by_one = self.in_place and goes_by.offset_map_slots is None and dirty < end
        cleaned = in_parts(part, facts, end, goes_by) if one_by_one else part(None)
        self.checkpoint = cleaned.end_offset
        return dirty, end, cleaned

    def _swap(self, cleaned: Cleaned) -> None:
        if self.in_place:
            swap_in_groups(self.fs, self.path, OUTPUTS, cleaned)
            return
        for base in (base for replaced, _ in cleaned.written for base in replaced):
            for kind in SEGMENT_KINDS:
                if self.fs.exists(self._path(base, kind)):
                    self.fs.unlink(self._path(base, kind))
        self._move_in(OUTPUTS)

    def _move_in(self, folder: str) -> None:
        for info in self.fs.list(folder):
            self.fs.rename(f"{folder}/{info.name}", f"{self.path}/{info.name}")

    def plan(self, *, now_ms: int | None = None, **choice: Any) -> PartitionPlan:
        """The plan for this log, from the files on disk."""
        name = TopicPartition(*self._topic_and_number())
        mark = self.next_offset if self.high_watermark is None else self.high_watermark
        checkpointed = {HIGH_WATERMARKS: mark, LOG_START_OFFSETS: self.log_start, CLEANER_OFFSETS: self.checkpoint}
        for file, offset in checkpointed.items():
            write_file(self.fs, f"{LIVE}/{file}", checkpoints.encode({} if offset is None else {name: offset}))
        said = [f"{'internal.' * (key == 'segment.bytes')}{key}={value}" for key, value in self.config.items()]
        now_ms = self.now_ms if now_ms is None else now_ms
        return make_plan(self.path, now_ms=now_ms, overrides=said, single_copy=True, fs=self.fs, **choice).partitions[0]

    def _topic_and_number(self) -> tuple[str, int]:
        topic, _, number = self.name.rpartition("-")
        return topic, int(number)

    # ---- stopping and starting ---------------------------------------------------------------------------------------

    def stop(self, *, clean: bool) -> None:
        """Write the files that a stopped broker leaves; without a clean stop the newest producer snapshot is
        missing.
        """
        write_file(self.fs, f"{self.path}/{FileKind.LEADER_EPOCHS}", leader_epochs.encode(self.epochs.entries))
        if clean:
            snapshot = f"{self.path}/{offset_name(self.next_offset, FileKind.PRODUCER_SNAPSHOT)}"
            write_file(self.fs, snapshot, producer_state.encode_rows(self.producers.rows()))

    def start(self, *, recovery_point: int | None) -> None:
        """Load the log as our copies are loaded; with a recovery point, after a crash."""
        log, loaded = self.log(), RecoverySettings(settings_of(self.config).index.interval_bytes)
        if self.in_place:
            crashed, flushed = recovery_point is not None, recovery_point or 0
            recover_in_place(
                self.fs,
                log,
                crashed=crashed,
                recovery_point=flushed,
                now_ms=self.now_ms,
                settings=loaded,
                keep=lambda *_: None,  # the truncated data need not be kept here
            )
            self._load()
            return
        if recovery_point is not None:
            recover_into_copy(self.fs, log, LOADED, recovery_point=recovery_point, now_ms=self.now_ms, settings=loaded)
        else:
            copy_partition(self.fs, log, LOADED)
            complete_indexes(self.fs, LogView(LOADED, fs=self.fs), LOADED, now_ms=self.now_ms, settings=loaded)
        for info in self.fs.list(self.path):
            self.fs.unlink(f"{self.path}/{info.name}")
        self._move_in(LOADED)
        self._load()

    def _load(self) -> None:
        log = self.log()
        last = log.segments[-1]
        data = read_file(self.fs, last.path)
        self._active = _Active(last.base_offset, data, list(aborted(last)), last.mtime_ms)
        self.next_offset = log.next_offset
        self.producers = load_producers(log, now_ms=self.now_ms)
        self.epochs = leader_epochs.history(
            leader_epochs.decode(read_file(self.fs, f"{self.path}/{FileKind.LEADER_EPOCHS}"))
        )

    def delete_segments(self, base_offsets: Sequence[int]) -> None:
        """Delete old segments as retention does, and update the log start."""
        self.stop(clean=True)
        remove_segments(self.fs, self.path, base_offsets, self.next_offset)
        self.log_start = max(self.log_start, self.log().segments[0].base_offset)
        producers, epochs = self.producers, self.epochs
        self._load()
        self.producers, self.epochs = producers, epochs

    # ---- looking -----------------------------------------------------------------------------------------------------

    def files(self) -> dict[str, bytes]:
        """The files of all segments."""
        return {info.name: read_file(self.fs, f"{self.path}/{info.name}") for info in self.fs.list(self.path)}


def contents(segment: Segment) -> list[tuple[Batch, list[Record]]]:
    """The batches of a segment and their records."""
    data = read_file(segment.fs, segment.path)
    if not data:
        return []
    found: dict[int, list[Record]] = {}
    read = window(data)
    for columns in decode(read):
        positions = columns.batches["position"][columns.rows["batch"]].tolist()
        for position, record in zip(positions, to_records(columns.data, columns.rows), strict=True):
            found.setdefault(position, []).append(record)
    return [(batch, found.get(batch.position, [])) for batch in to_batches(read.batches)]


def aborted(segment: Segment) -> Sequence[AbortedTransaction]:
    """The transaction index of a segment."""
    index = segment.transaction_index()
    return [] if index is None else list(index.transactions())
