"""Logs that grow, change in a way that nothing reports, and are cleaned again and again with key indexes.

A way of changing is a function of a log and a random source, in `WAYS`. All but the first two leave other bytes of the
same size in a closed segment, or other segments, beside the indexes of the bytes before.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

import cordwood
from cordwood.cleaning.engine.facts import load_producers
from cordwood.cleaning.engine.results import CleanResult, Fate
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.formats.filenames import CLEAN_SHUTDOWN, WORK_FOLDER
from cordwood.storage.formats.key_index import KeyIndex, with_identity
from cordwood.storage.index.build import build
from cordwood.storage.index.files import read_index, write_index
from cordwood.storage.index.identity import TICK_NS, is_same_log, look
from cordwood.storage.log.segment import Segment
from cordwood.storage.log.segment_writer import IndexLimits, SegmentWriter
from cordwood.storage.log.view import LogView
from cordwood.storage.recovery.replay import Producers
from tests.cleaning.proof.planting import Stored
from tests.commands.in_process import InThisProcess
from tests.logs import T0, batch, marker, put_snapshot, window

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FS = PosixFileSystem()
#: All keys have this length, so that one can replace another.
KEYS = [b"k%02d" % number for number in range(40)]
RETENTION_MS = 1500


@dataclass
class ChangedLog:
    """One log, `t-0` in a log directory.

    Attributes:
        root: the log directory; some ways move it.
        elsewhere: an empty folder on another file system, if there is one.
        rounds: number of cleans so far, by Cordwood or Kafka.
    """

    root: Path
    elsewhere: Path
    source: random.Random
    rounds: int = 0
    producers: Producers = field(default_factory=Producers)
    end: int = 0
    segment_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.partition.mkdir(parents=True)
        (self.root / CLEAN_SHUTDOWN).write_text("version=0\n")
        # Either most segments are merged with others, or few are.
        self.segment_bytes = self.source.choice([18_000, 18_000, 60_000])

    @property
    def partition(self) -> Path:
        return self.root / "t-0"

    @property
    def now_ms(self) -> int:
        return T0 + 10_000 + 1000 * self.rounds

    def view(self) -> LogView:
        return LogView(str(self.partition), fs=FS, log_start_offset=0)

    def closed(self) -> list[Segment]:
        return [*self.view().segments[:-1]]

    # ---- growing -----------------------------------------------------------------------------------------------------

    def grow(self, segments: int) -> None:
        """Append closed segments, and an active one."""
        log = self.view()
        self.end, self.producers = log.next_offset if log.segments else 0, load_producers(log, now_ms=self.now_ms)
        for _ in range(segments):
            base, batches = self.end, list[bytes]()
            for _ in range(self.source.randint(2, 9)):
                batches += self._transaction() if self.source.random() < 0.1 else [self._batch()]
            self._write(base, batches)
        self._write(self.end, [self._batch()])
        put_snapshot(self.partition, self.end, self.producers)

    def _batch(self, producer: int | None = None) -> bytes:
        count = self.source.choice([1, 1, 1, 2, 4])
        records = [(self.source.choice(KEYS), self._value()) for _ in range(count)]
        self.end += count
        return batch(self.end - count, *records, producer=producer, time=T0 + self.end)

    def _value(self) -> bytes | None:
        return None if self.source.random() < 0.1 else self.source.randbytes(2) * self.source.randint(300, 1200)

    def _transaction(self) -> list[bytes]:
        producer = self.source.randint(7, 8)
        data = [self._batch(producer) for _ in range(self.source.randint(1, 2))]
        self.end += 1
        return [*data, marker(self.end - 1, producer, committed=self.source.random() < 0.5, time=T0 + self.end)]

    def _write(self, base: int, batches: list[bytes]) -> None:
        data = b"".join(batches)
        rows = window(data).batches
        writer = SegmentWriter(FS, str(self.partition), base, IndexLimits())
        writer.append([np.frombuffer(data, np.uint8)], rows)
        writer.add_aborted(self.producers.replay(rows))
        writer.finish(mtime_ns=(self.now_ms - 5000) * 1_000_000)

    # ---- cleaning ----------------------------------------------------------------------------------------------------

    def clean(self) -> None:
        """Clean in place, with key indexes of what the clean before has left; every third log is proved, too."""
        result = self._clean(verify=self.segment_bytes == 60_000)
        if "a deleted key has a value again" in result.text():
            # With another key, a record of the clean part may be older than a due tombstone, which Kafka removes first.
            result = self._clean(verify=False)
        assert not result.with_fate(Fate.FAILED), result.text()

    def _clean(self, *, verify: bool) -> CleanResult:
        return cordwood.clean_in_place(
            str(self.root),
            spark=cast("SparkSession", InThisProcess()),
            now_ms=self.now_ms,
            overrides=["cleanup.policy=compact", *self.configs("internal.segment.bytes")],
            high_watermark="end",
            ignore_ratio=True,
            single_copy=True,
            index=True,
            verify=verify,
        )

    def configs(self, segment_bytes: str) -> list[str]:
        """The configs of a clean; `segment_bytes` is the name of that config."""
        return [f"{segment_bytes}={self.segment_bytes}", f"delete.retention.ms={RETENTION_MS}"]

    def indexed(self) -> list[tuple[Segment, KeyIndex]]:
        """Return the closed segments that have an index of their size; Kafka's cleans leave indexes of other sizes."""
        found = list[tuple[Segment, KeyIndex]]()
        for segment in self.closed():
            with contextlib.suppress(OSError, cordwood.DataError):
                found.append((segment, read_index(segment)))
        return found

    def trusted(self) -> int:
        """Return the number of indexes whose segment counts as the same file; fail if one has other keys."""
        found = 0
        for segment, index in self.indexed():
            if is_same_log(index.identity, segment):
                again = build(segment, index.header.secret, 1 << 30)
                assert again is not None and again.payload.tobytes() == index.payload.tobytes(), segment.path
                found += 1
        return found


# ---- ways of changing ------------------------------------------------------------------------------------------------

Way = Callable[[ChangedLog], None]


def nothing(_: ChangedLog) -> None:
    """Leave the log as it is."""


def copied_to_another_directory(log: ChangedLog) -> None:
    """Continue in a copy that has the indexes, as `cp -a` makes it."""
    _moved(log, log.root.with_name(f"{log.root.name}+"))


def copied_to_another_file_system(log: ChangedLog) -> None:
    _moved(log, log.elsewhere / f"{log.root.name}{log.rounds}")
    _rewrite(_some_segment(log), log.source)


def indexes_beside_another_log(log: ChangedLog) -> None:
    """Continue with a copy of the log, with the indexes, that had other records in one segment from its start."""
    _moved(log, log.root.with_name(f"{log.root.name}+"))
    _rewrite(_some_segment(log), log.source)


def restored(log: ChangedLog) -> None:
    """Put the files from before the last clean back into their place, with their times; keep the indexes of now."""
    backup = backup_of(log)
    for path in log.partition.glob("0*"):
        path.unlink()
    for path in backup.glob("0*"):
        shutil.copy2(path, log.partition)


def rewritten_with_old_times(log: ChangedLog) -> None:
    _rewrite(_some_segment(log), log.source)


def rsynced(log: ChangedLog) -> None:
    """Replace a segment by another file that has its times, as rsync does."""
    path = _some_segment(log)
    beside = path.with_suffix(".new")
    shutil.copy2(path, beside)
    _rewrite(beside, log.source)
    beside.replace(path)


def truncated_and_appended(log: ChangedLog) -> None:
    """Cut a segment, append other records up to its length, and set its time back."""
    path = _some_segment(log)
    data, info = other_keys(path.read_bytes(), log.source), path.stat()
    with path.open("r+b") as file:
        file.truncate(len(data) // 3)
        file.seek(0)
        file.write(data)
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


def created_again_with_its_inode(log: ChangedLog) -> None:
    """Remove a segment and create it again: most file systems give it the inode that became free."""
    path = _some_segment(log)
    data, info = other_keys(path.read_bytes(), log.source), path.stat()
    for _ in range(20):
        path.unlink()
        path.write_bytes(data)
        if path.stat().st_ino == info.st_ino:
            break
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


def changed_within_a_tick(log: ChangedLog) -> None:
    """Change a segment so soon after the look that its ctime may stay: as if looked at then, at the bytes before."""
    _looked_at_again(log, TICK_NS // 2)


def clock_was_set_back(log: ChangedLog) -> None:
    """Change a segment after the clock was set back by an hour: its ctime may return, and the look is in the future."""
    _looked_at_again(log, 3600 * 10**9)


def cleaned_by_kafka(_: ChangedLog) -> None:
    """Leave the log as it is; in this round Kafka cleans it."""


WAYS: list[Way] = [
    nothing,
    copied_to_another_directory,
    copied_to_another_file_system,
    indexes_beside_another_log,
    restored,
    rewritten_with_old_times,
    rsynced,
    truncated_and_appended,
    created_again_with_its_inode,
    changed_within_a_tick,
    clock_was_set_back,
    cleaned_by_kafka,
]


def backup_of(log: ChangedLog) -> Path:
    """The folder for the partition's files from before the last clean."""
    return log.root.parent / "backups" / log.root.name.rstrip("+")


def keep_backup(log: ChangedLog) -> None:
    """Copy the partition's files, with their times."""
    shutil.rmtree(backup_of(log), ignore_errors=True)
    shutil.copytree(log.partition, backup_of(log), ignore=shutil.ignore_patterns(WORK_FOLDER))


def other_keys(data: bytes, source: random.Random) -> bytes:
    """Return batches with the same offsets and as many bytes, some with other keys."""
    found, at = list[Stored](), 0
    while at < len(data):
        size = 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        found.append(Stored.of(data[at : at + size]))
        at += size
    may_change = [at for at, one in enumerate(found) if one.records and not one.header.is_control]
    for at in may_change and {source.choice(may_change), *source.sample(may_change, len(may_change) // 3)}:
        records = [replace(one, key=source.choice(KEYS)) for one in found[at].records]
        found[at] = found[at].rebuilt(records)
    changed = b"".join(one.data for one in found)
    assert len(changed) == len(data)
    return changed


def _some_segment(log: ChangedLog) -> Path:
    return Path(log.source.choice(log.closed()).path)


def _rewrite(path: Path, source: random.Random) -> None:
    """Write other keys into a file, and set its time back."""
    info = path.stat()
    path.write_bytes(other_keys(path.read_bytes(), source))
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


def _moved(log: ChangedLog, target: Path) -> None:
    shutil.copytree(log.root, target)
    shutil.rmtree(log.root)
    log.root = target


def _looked_at_again(log: ChangedLog, after_ns: int) -> None:
    some = log.indexed()
    if not some:
        return
    segment, index = log.source.choice(some)
    _rewrite(Path(segment.path), log.source)
    now = look(FS, str(log.partition), segment.base_offset)
    assert index.identity is not None and now is not None
    seen = replace(index.identity, files=now.files, looked_ns=now.files[0].ctime_ns + after_ns)
    write_index(FS, str(log.partition), with_identity(index, seen))
