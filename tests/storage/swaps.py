"""Small logs with cleaned segments that wait to be swapped in, and the valid states after an interrupted swap."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path

from cordwood.cleaning.engine.facts import CleanSettings
from cordwood.cleaning.engine.partition import CleanRequest, clean_partition
from cordwood.fs.base import LocalFileSystem
from cordwood.fs.posix import PosixFileSystem
from cordwood.record.batch import Marker, encode_batch, encode_marker
from cordwood.record.record import Record
from cordwood.storage.changes.copy import Replacement
from cordwood.storage.changes.swap import swap_in
from cordwood.storage.formats import producer_state
from cordwood.storage.formats.filenames import WORK_FOLDER, FileKind, offset_name, parse_file
from cordwood.storage.log.files import read_file, write_file
from cordwood.storage.log.recovery import SEGMENT_KINDS, next_offset
from cordwood.storage.log.segment_writer import IndexLimits
from cordwood.storage.log.view import LogView
from cordwood.storage.recovery.replay import Producers
from cordwood.testing.memory import MemoryFileSystem
from tests.cleaning.scripted import LIVE, ScriptedLog
from tests.crashes import durable
from tests.fs.trees import tree
from tests.kafka_tools import Oracle

PATH = f"{LIVE}/t-0"
OUTPUTS = f"{PATH}/{WORK_FOLDER}/1"
NOW_MS = 1_000_000
DAY_MS = 86_400_000

#: Names and bytes of the files of segments.
Files = Mapping[str, bytes]


@dataclass(frozen=True)
class Scene:
    """A log, and outputs of a clean of it.

    Attributes:
        name: what the scene tests.
        fs: the log and the outputs; all of it is durable.
        replacements: the swaps, in order.
    """

    name: str
    fs: MemoryFileSystem
    replacements: Sequence[Replacement]

    def swap(self, fs: LocalFileSystem) -> None:
        """Swap in all outputs."""
        for one in self.replacements:
            swap_in(fs, PATH, one)

    @cached_property
    def whole(self) -> list[Files]:
        """Files before any swap, after the first, …"""
        fs = durable(self.fs)
        found: list[Files] = [segment_files(fs)]
        for one in self.replacements:
            swap_in(fs, PATH, one)
            found.append(segment_files(fs))
        return found

    @cached_property
    def allowed(self) -> list[Files]:
        """Valid states once an interrupted swap has been loaded, besides empty transaction indexes."""
        found: list[Files] = list(self.whole)
        for replacement, before, after in zip(self.replacements, self.whole, self.whole[1:], strict=False):
            tail = [base for base in sorted(replacement.replaced) if base >= self.end_of(replacement)]
            for first in tail:
                left = {name: data for name, data in before.items() if first <= offset_of(name) <= tail[-1]}
                found.append({**left, **after})
        return found

    def end_of(self, replacement: Replacement) -> int:
        """Where the outputs end, as a loader sees it."""
        last = max(replacement.outputs)
        return next_offset(self.fs, f"{replacement.folder}/{offset_name(last, FileKind.LOG)}", last)


def offset_of(name: str) -> int:
    """The offset in a file's name."""
    return int(name.partition(".")[0])


def segment_files(fs: LocalFileSystem, path: str = PATH) -> dict[str, bytes]:
    """The files of the segments by their names; an empty transaction index is as good as none."""
    found = {}
    for info in fs.list(path):
        file = None if info.is_directory else parse_file(info.name)
        if file is not None and file.kind in SEGMENT_KINDS:
            data = read_file(fs, f"{path}/{info.name}")
            if data or file.kind is not FileKind.TRANSACTION_INDEX or file.temporary:
                found[info.name] = data
    return found


def seen_files(log: LogView) -> dict[str, bytes]:
    """Files as seen by a reader that completes an interrupted swap."""
    found = {}
    for segment in log.segments:
        for kind, info in [(FileKind.LOG, segment.files.log), *segment.files.indexes.items()]:
            data = read_file(log.fs, f"{log.path}/{info.name}")
            if data or kind is not FileKind.TRANSACTION_INDEX:
                found[offset_name(segment.base_offset, kind)] = data
    return found


def snapshots(fs: MemoryFileSystem) -> set[int]:
    """The offsets of the producer snapshots."""
    files = (parse_file(info.name) for info in fs.list(PATH) if not info.is_directory)
    return {file.offset for file in files if file is not None and file.kind is FileKind.PRODUCER_SNAPSHOT}


# ---- logs ------------------------------------------------------------------------------------------------------------


@dataclass
class Script:
    """Writes a log: `a=1 b=∅` is a batch, `7:a=1` one of a transaction of producer 7, `7:abort` its end, `|` a roll."""

    config: Mapping[str, object] = field(default_factory=dict)

    def __call__(self, text: str) -> ScriptedLog:
        log = ScriptedLog(dict(self.config), now_ms=NOW_MS)
        for word in text.split():
            if word == "|":
                log.roll()
            else:
                log.append(appended(log.next_offset, word))
        return log


def appended(offset: int, word: str) -> bytes:
    """The batch that a word of a script appends."""
    producer, _, what = word.rpartition(":")
    if what in ("abort", "commit"):
        return encode_marker(Marker(offset, NOW_MS, int(producer), 0, what == "commit"))
    return _batch(offset, what.split(","), int(producer or -1))


def _batch(offset: int, pairs: Iterable[str], producer: int) -> bytes:
    records = []
    for number, pair in enumerate(pairs):
        key, _, value = pair.partition("=")
        records.append(Record(offset + number, NOW_MS, key.encode(), None if value == "∅" else value.encode()))
    if producer < 0:
        return encode_batch(records, leader_epoch=0)
    return encode_batch(
        records, leader_epoch=0, producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True
    )


def scene(
    name: str, text: str, *, settings: CleanSettings | None = None, cleaned_before: bool = False, synced: bool = True
) -> Scene:
    """A log as a stopped broker leaves it, and the output of a clean of all but its active segment.

    Args:
        name: what the scene tests.
        text: batches to write.
        settings: settings of the clean.
        cleaned_before: clean once before, so that this clean drops all that it may.
        synced: whether the names of the outputs are durable, too.
    """
    log = Script()(text)
    now_ms = NOW_MS
    if cleaned_before:
        log.producers = Producers()
        log.clean(first_dirty=0, now_ms=now_ms)
        now_ms += 2 * DAY_MS
    for segment in log.log().segments:
        write_file(log.fs, f"{PATH}/{offset_name(segment.base_offset, FileKind.PRODUCER_SNAPSHOT)}", EMPTY_SNAPSHOT)
    log.stop(clean=True)
    return with_outputs(name, durable(log.fs), settings=settings, now_ms=now_ms, synced=synced)


def with_outputs(
    name: str, fs: MemoryFileSystem, *, settings: CleanSettings | None = None, now_ms: int, synced: bool = True
) -> Scene:
    """Clean all of a log but its active segment, once more."""
    log = LogView(PATH, fs=fs, log_start_offset=0)
    for path in (f"{PATH}/{WORK_FOLDER}", OUTPUTS):
        if not fs.exists(path):
            fs.make_directory(path)
    done = clean_partition(
        fs,
        log,
        OUTPUTS,
        CleanRequest(
            first_dirty=0,
            first_uncleanable=log.segments[-1].base_offset,
            now_ms=now_ms,
            settings=settings or CleanSettings(index=IndexLimits(interval_bytes=1)),
            producers=Producers(),
        ),
    )
    replacements = replacements_of(fs, done.written)
    return Scene(name, durable(fs) if synced else fs, replacements)


def replacements_of(
    fs: MemoryFileSystem, groups: Iterable[tuple[Sequence[int], Sequence[int]]], folder: str = OUTPUTS
) -> list[Replacement]:
    """The outputs in a folder as values."""
    names = [info.name for info in fs.list(folder)]
    return [
        Replacement(
            folder,
            tuple(name for name in names if offset_of(name) in outputs),
            frozenset(replaced),
            frozenset(outputs),
            0,
        )
        for replaced, outputs in groups
    ]


def crafted(
    name: str, text: str, groups: Sequence[tuple[Sequence[int], Sequence[int]]], *, empty: bool = False
) -> Scene:
    """Outputs that are copies of the group's segments, or without any batch."""
    log = Script()(text)
    fs = log.fs
    for path in (f"{PATH}/{WORK_FOLDER}", OUTPUTS):
        fs.make_directory(path)
    for base in itertools.chain.from_iterable(outputs for _, outputs in groups):
        for kind in SEGMENT_KINDS:
            file = offset_name(base, kind)
            if fs.exists(f"{PATH}/{file}") and not (empty and kind is FileKind.TRANSACTION_INDEX):
                write_file(fs, f"{OUTPUTS}/{file}", b"" if empty else read_file(fs, f"{PATH}/{file}"))
    log.stop(clean=True)
    return Scene(name, durable(fs), replacements_of(fs, groups))


def twice(name: str, text: str) -> Scene:
    """A clean, and a second clean of the first one's output."""
    first = scene(name, text)
    then = durable(first.fs)
    first.swap(then)
    second = with_outputs(name, then, now_ms=NOW_MS + 2 * DAY_MS)
    fs, folder = durable(first.fs), f"{PATH}/{WORK_FOLDER}/2"
    fs.make_directory(folder)
    for info in second.fs.list(OUTPUTS):
        write_file(fs, f"{folder}/{info.name}", read_file(second.fs, f"{OUTPUTS}/{info.name}"))
    replacements = [*first.replacements, *(replace(one, folder=folder) for one in second.replacements)]
    return Scene(name, durable(fs), replacements)


EMPTY_SNAPSHOT = producer_state.encode(())
TRANSACTIONS = "7:a=1 8:b=1 7:abort | a=2 8:commit b=2 | 9:c=1 b=3 9:abort d=1 | a=3 d=2 | a=9"
ACTIVE = "| x=1"

SCENES: Mapping[str, Callable[[], Scene]] = {
    "one output": lambda: scene("one output", "a=1 b=1 | a=2 c=1 | b=2 c=2 d=1 | a=9"),
    "transactions": lambda: scene("transactions", TRANSACTIONS),
    "transaction index gone": lambda: scene("transaction index gone", TRANSACTIONS, cleaned_before=True),
    "twice": lambda: twice("twice", TRANSACTIONS),
    "two groups": lambda: scene(
        "two groups",
        TRANSACTIONS + " | e=1 a=4 | a=5 7:f=1 7:abort | a=6",
        settings=CleanSettings(segment_bytes=450, index=IndexLimits(interval_bytes=1)),
    ),
    "several outputs": lambda: scene(
        "several outputs",
        "a=1 b=1 c=1 d=1 | e=1 7:f=1 7:abort g=1 | h=1 i=1 j=1 | a=2",
        settings=CleanSettings(index=IndexLimits(interval_bytes=1, size_bytes=24)),
    ),
    "no record left": lambda: crafted(
        "no record left", "7:a=1 7:abort | 7:b=1 b=2 7:commit | x=1", [((0, 2), (0,))], empty=True
    ),
    "nothing is left of the last": lambda: crafted(
        "nothing is left of the last", "a=1 | 7:k=1 7:abort | k=∅ | x=1", [((0, 1, 3), (0,))]
    ),
    "outputs not synced": lambda: scene("outputs not synced", "a=1 b=1 | a=2 | a=3", synced=False),
}


# ---- interrupted swaps -----------------------------------------------------------------------------------------------


@cache
def built(name: str) -> Scene:
    return SCENES[name]()


def only_logs(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if name.endswith(FileKind.LOG)}


def loaded_by_kafka(
    states: Sequence[MemoryFileSystem], root: Path, oracle: Oracle, *, clean: bool
) -> list[dict[str, bytes]]:
    """Let Kafka load partitions and close them; return their files."""
    for number, fs in enumerate(states):
        for path, data in tree(fs, PATH).items():
            target = root / f"t-{number}" / path
            if data is None:
                target.mkdir(parents=True, exist_ok=True)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
    if clean:
        (root / ".kafka_cleanshutdown").write_bytes(b"")
    lines = oracle("select", root, "--now", str(NOW_MS))
    assert len([line for line in lines if line["type"] == "log"]) == len(states)
    found = []
    for number in range(len(states)):
        path = str(root / f"t-{number}")
        names = {info.name for info in PosixFileSystem().list(path)}
        assert not any(name.endswith((".cleaned", ".swap")) for name in names)  # files are renamed before deletion
        found.append(segment_files(PosixFileSystem(), path))
    return found
