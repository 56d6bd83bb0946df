"""Small log directories in memory that are cleaned in place, and the states that an interrupted clean may leave."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from cordwood.api import clean_in_place
from cordwood.cleaning.engine.results import CleanResult, Fate
from cordwood.commands.in_place.work import PROGRESS
from cordwood.common.types import TopicPartition
from cordwood.fs.base import LocalFileSystem
from cordwood.storage.formats import checkpoints, filenames
from cordwood.storage.formats.filenames import WORK_FOLDER, FileKind, Temporary, offset_name, parse_file
from cordwood.storage.log.files import read_file, write_file
from cordwood.storage.log.recovery import next_offset
from cordwood.storage.log.view import LogView
from cordwood.storage.recovery.in_place import recover_in_place
from cordwood.storage.recovery.into_copy import RecoverySettings
from cordwood.testing.memory import MemoryFileSystem
from tests.cleaning.scripted import LIVE, ScriptedLog
from tests.commands.in_process import InThisProcess
from tests.crashes import durable
from tests.fs.acting import Acting
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


@dataclass
class Scene:
    """A log directory with two partitions, and how it is cleaned.

    Attributes:
        name: what the scene tests.
        fs: the log directory; all of it is durable.
        options: options of the clean.
    """

    name: str
    fs: MemoryFileSystem
    options: Mapping[str, Any] = field(default_factory=dict)

    def clean(self, fs: LocalFileSystem, **changes: Any) -> CleanResult:
        """Clean all in place."""
        # Without the proof: a scene is cleaned hundreds of times, and each proof on Spark needs seconds.
        options: dict[str, Any] = {"now_ms": LATER_MS, "single_copy": True, "ignore_ratio": True, "verify": False}
        options |= {"no_broker_elsewhere": True, **self.options, **changes}
        return clean_in_place(ROOT, fs=fs, **options)

    def again(self, fs: LocalFileSystem) -> CleanResult:
        """Clean once more, without keeping the old files."""
        return self.clean(fs, keep_old=None)

    @cached_property
    def after(self) -> MemoryFileSystem:
        """Return the files after an uninterrupted clean."""
        fs = durable(self.fs)
        result = self.clean(fs)
        assert not result.with_fate(Fate.FAILED) and len(result.with_fate(Fate.CLEANED)) == len(PATHS), result.text()
        return fs

    @cached_property
    def allowed(self) -> dict[str, set[View]]:
        """Valid states of each partition: each group is old or new, and retention deletes the oldest segments."""
        fs = durable(self.fs)
        seen = {path: Changes(fs, path) for path in PATHS}
        loaded = False

        def observe(verb: str, path: str) -> None:
            nonlocal loaded
            # Loading renames files, too. Tasks begin after it, and write their progress.
            loaded |= verb == "create" and f"/{WORK_FOLDER}/{PROGRESS}/" in path
            for partition, changes in seen.items():
                if loaded and verb == "rename" and path.startswith(f"{partition}/"):
                    changes.renames(path)

        self.clean(Acting(fs, observe))
        for changes in seen.values():
            changes.end()
        return {path: changes.views for path, changes in seen.items()}


class Changes:
    """Watches how swaps of groups and retention change a partition, and collects the valid states.

    Attributes:
        views: records that a reader may see before, between and after all steps.
    """

    def __init__(self, fs: LocalFileSystem, path: str) -> None:
        self._fs = fs
        self._path = path
        self._before = view_of(fs, path)
        self._outputs: set[int] = set()
        self._removed: set[int] = set()
        self.views = {self._before}

    def renames(self, source: str) -> None:
        """A file is about to get another name."""
        names = [info.name for info in self._fs.list(self._path)]
        if not any(name.endswith((Temporary.CLEANED, Temporary.SWAP, Temporary.DELETED)) for name in names):
            self.end()
        folder, name = posixpath.split(source)
        if name.endswith(FileKind.LOG):
            file = parse_file(name)
            assert file is not None and file.offset is not None
            (self._removed if folder == self._path else self._outputs).add(file.offset)

    def end(self) -> None:
        """Called when the last act has ended."""
        before, after, removed = self._before, view_of(self._fs, self._path), sorted(self._removed)
        self.views.add(after)
        bases = [segment.base_offset for segment in LogView(self._path, fs=self._fs).segments]
        if self._outputs:
            # Segments after the outputs' end are deleted afterwards, in order of offset.
            end = next_offset(self._fs, f"{self._path}/{offset_name(max(self._outputs), FileKind.LOG)}", 0)
            behind = min(base for base in bases if base > removed[-1])
            new = [one for one in after if one[0] < behind]
            rest = [one for one in after if one[0] >= behind]
            for base in removed[1:]:
                if base >= end:
                    left = [one for one in before if base <= one[0] < behind]
                    self.views.add((*new, *left, *rest))
        else:
            for base in [*removed, *bases[:1]]:
                self.views.add(tuple(one for one in before if one[0] >= base))
        self._before, self._outputs, self._removed = after, set(), set()


def view_of(fs: LocalFileSystem, path: str) -> View:
    """The records that a reader sees once the partition has been loaded, if the broker did not shut down cleanly."""
    return view(opened(fs, path))


def view(log: LogView) -> View:
    """The records that a reader sees."""
    return tuple((one.offset, one.timestamp, one.key, one.value) for one in log.records())


def table(log: LogView) -> dict[bytes | None, bytes | None]:
    """Last value of each key for a consumer of committed records."""
    found = {one.key: one.value for one in log.records(isolation="read_committed")}
    return {key: value for key, value in found.items() if value is not None}


def opened(fs: LocalFileSystem, path: str) -> LogView:
    """The log, loaded aside if need be."""
    if not fs.exists(f"{ROOT}/{filenames.CLEAN_SHUTDOWN}"):
        assert isinstance(fs, MemoryFileSystem)
        point = offsets_in(fs, filenames.RECOVERY_POINTS).get(NAMES[PATHS.index(path)], 0)
        fs = durable(fs)
        settings = RecoverySettings(INTERVAL_BYTES)
        recover_in_place(
            fs, LogView(path, fs=fs), crashed=True, recovery_point=point, now_ms=LATER_MS, settings=settings
        )
    return LogView(path, fs=fs)


def offsets_in(fs: LocalFileSystem, name: str) -> dict[TopicPartition, int]:
    """The entries of a checkpoint."""
    return dict(checkpoints.decode(read_file(fs, f"{ROOT}/{name}")))


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


def with_leftovers(fs: MemoryFileSystem) -> MemoryFileSystem:
    """Leftovers of two killed runs and a broker: files of segments, half written, and work folders."""
    fs = durable(fs)
    for path in PATHS:
        bases = [segment.base_offset for segment in LogView(path, fs=fs).segments]
        for base, suffix in zip(bases[1:], (".cleaned", ".cleaned", ".swap", ".deleted"), strict=False):
            for kind in (FileKind.LOG, FileKind.OFFSET_INDEX):
                if fs.exists(name := f"{path}/{offset_name(base, kind)}"):
                    data = read_file(fs, name)
                    write_file(fs, f"{name}{suffix}", data[: len(data) // 2])
        fs.make_directory(f"{path}/{WORK_FOLDER}")
        for attempt in ("1", "2"):
            fs.make_directory(f"{path}/{WORK_FOLDER}/{attempt}")
            for kind in (FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX):
                write_file(fs, f"{path}/{WORK_FOLDER}/{attempt}/{offset_name(bases[1], kind)}", b"of a run before")
    return durable(fs)


#: Bytes that outputs may occupy at a time in tests that need several waves.
LITTLE_BYTES = 55_000

SCENES: Mapping[str, Callable[[], Scene]] = {
    "all at once": lambda: Scene("all at once", directory(FIRST, SECOND), {"overrides": CONFIG}),
    "waves": lambda: Scene("waves", directory(FIRST, SECOND), {"overrides": CONFIG, "work_space": LITTLE_BYTES}),
    "kept": lambda: Scene("kept", directory(FIRST, SECOND), {"overrides": CONFIG, "keep_old": "/kept"}),
    "retention": lambda: Scene(
        "retention",
        directory(FIRST, SECOND),
        {
            "overrides": (*CONFIG, "b:cleanup.policy=compact,delete", "b:retention.bytes=250", "b:retention.ms=-1"),
            "retention": True,
        },
    ),
    "crashed": lambda: Scene("crashed", crashed(), {"overrides": CONFIG}),
    "crashed, kept": lambda: Scene("crashed, kept", crashed(), {"overrides": CONFIG, "keep_old": "/kept"}),
    "crashed, leftovers": lambda: Scene("crashed, leftovers", with_leftovers(crashed()), {"overrides": CONFIG}),
    "leftovers": lambda: Scene("leftovers", with_leftovers(directory(FIRST, SECOND)), {"overrides": CONFIG}),
}
