"""Small log directories in memory that are cleaned in place, and the states that an interrupted clean may leave."""

from __future__ import annotations

from typing import Any

from cordwood.common.types import TopicPartition
from cordwood.storage.formats import checkpoints, filenames
from cordwood.storage.formats.filenames import FileKind, offset_name
from cordwood.storage.log.files import write_file
from cordwood.storage.log.view import LogView
from cordwood.testing.memory import MemoryFileSystem
from tests.cleaning.scripted import LIVE, ScriptedLog
from tests.commands.in_process import InThisProcess
from tests.crashes import durable
from tests.fs.trees import tree
from tests.storage.swaps import DAY_MS, EMPTY_SNAPSHOT, NOW_MS, PATH, Script

ROOT = "/logs"
NAMES = (TopicPartition("a", 0), TopicPartition("b", 0))
PATHS = tuple(f"{ROOT}/{name}" for name in NAMES)
#: A partition of the directory's checkpoints that is not there.
OTHER = TopicPartition("other", 7)
LATER_MS = NOW_MS + 2 * DAY_MS
INTERVAL_BYTES = 60

#: Offset, time, key and value of each record.
View = tuple[tuple[int, int, bytes | None, bytes | None], ...]


def session() -> Any:
    """Stands in for the Spark session."""
    return InThisProcess()


def view(log: LogView) -> View:
    """The records that a reader sees."""
    return tuple((one.offset, one.timestamp, one.key, one.value) for one in log.records())


# ---- directories -----------------------------------------------------------------------------------------------------

FIRST = "7:a=1 8:b=1 7:abort | a=2 8:commit b=2 | 9:c=1 b=3 9:abort d=1 | a=3 d=2 | e=1 a=4 | c=2 a=∅ | a=6 f=1 | x=1"
SECOND = "k=1 l=1 z=1 | z=∅ l=2 | 7:m=1 7:n=1 7:commit | k=3 l=∅ | w=1 m=2 | 8:m=3 8:abort w=∅ | n=2 | n=3 m=4 | y=1"
CONFIG = ("cleanup.policy=compact", "internal.segment.bytes=450", f"index.interval.bytes={INTERVAL_BYTES}")


def directory(*texts: str, clean: bool = True, concurrency: int = 1) -> MemoryFileSystem:
    """A log directory as a broker leaves it. All but the first log were cleaned once, two days before."""
    fs = MemoryFileSystem(lambda: NOW_MS * 1_000_000, concurrency=concurrency)
    fs.make_directory(ROOT)
    ends = {}
    for number, (path, name, text) in enumerate(zip(PATHS, NAMES, texts, strict=True)):
        log = Script({"index.interval.bytes": INTERVAL_BYTES})(text)
        if number:
            log.clean(first_dirty=0, first_uncleanable=log.log().segments[4].base_offset, now_ms=NOW_MS)
        ends[name] = log.next_offset
        place(fs, path, log, clean=clean)
    recovery = ends if clean else dict.fromkeys(ends, 0)
    for file, offsets in (
        (filenames.RECOVERY_POINTS, {**recovery, OTHER: 3}),
        (filenames.HIGH_WATERMARKS, {OTHER: 3, **ends}),
        (filenames.CLEANER_OFFSETS, {OTHER: 3}),
        (filenames.LOG_START_OFFSETS, {OTHER: 3}),
    ):
        write_file(fs, f"{ROOT}/{file}", checkpoints.encode(offsets))
    if clean:
        write_file(fs, f"{ROOT}/{filenames.CLEAN_SHUTDOWN}", b'{"version":0,"brokerEpoch":1}')
    return durable(fs)


def place(fs: MemoryFileSystem, path: str, log: ScriptedLog, *, clean: bool) -> None:
    """Copy a log into a directory."""
    for segment in log.log().segments:
        write_file(log.fs, f"{PATH}/{offset_name(segment.base_offset, FileKind.PRODUCER_SNAPSHOT)}", EMPTY_SNAPSHOT)
    log.stop(clean=clean)
    fs.make_directory(path)
    for name, data in tree(log.fs, f"{LIVE}/t-0").items():
        if data is not None:
            write_file(fs, f"{path}/{name}", data)
            if name.endswith(FileKind.LOG):
                fs.set_mtime_ns(f"{path}/{name}", NOW_MS * 1_000_000)


def crashed() -> MemoryFileSystem:
    """A broker that died: a torn segment, indexes of zeros, one missing, and a swap that came to its commit."""
    fs = directory(FIRST, SECOND, clean=False)
    path = PATHS[0]
    bases = [segment.base_offset for segment in LogView(path, fs=fs).segments]
    with fs.open_for_update(f"{path}/{offset_name(bases[-1], FileKind.LOG)}") as file:
        file.truncate(file.size() - 3)
    write_file(fs, f"{path}/{offset_name(bases[-2], FileKind.TIME_INDEX)}", bytes(120))
    fs.unlink(f"{path}/{offset_name(bases[1], FileKind.OFFSET_INDEX)}")
    name = f"{PATHS[1]}/{offset_name(0, FileKind.LOG)}"
    fs.rename(name, f"{name}.swap")
    return durable(fs)
