"""A log directory that is appended to, cleaned in place and killed, again and again, and its expected contents.

As a program, `python -m tests.commands.killing WORD…` is `cordwood WORD…` on a slow disk, so that more of its time
passes between two changes of a directory, where a kill can hit.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cordwood
from cordwood.common.types import TopicPartition
from cordwood.fs.posix import PosixFileSystem
from cordwood.record.batch import Marker, encode_batch, encode_marker
from cordwood.record.record import Record
from cordwood.storage.check import Finding, Kind, Severity
from cordwood.storage.formats import checkpoints, filenames, leader_epochs, properties
from cordwood.storage.formats.filenames import INDEX_FOLDER, WORK_FOLDER, FileKind, Temporary
from cordwood.storage.formats.leader_epochs import EpochEntry
from cordwood.storage.formats.transaction_index import AbortedTransaction
from cordwood.storage.log.segment_writer import IndexLimits, SegmentWriter
from cordwood.storage.log.view import LogView
from tests.kafka_tools import Broker, Line
from tests.logs import window
from tests.storage.index_twins import believed

FS = PosixFileSystem()
KEYS = 24
SEGMENT_BYTES = 2000
CONFIG = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": SEGMENT_BYTES,
    "delete.retention.ms": 0,
    "min.cleanable.dirty.ratio": 0,
}
SLEEP_SECONDS = 0.003
#: Longer than any step needs that does not hang.
WAIT_SECONDS = 240
DAEMON = "tests.commands.killing_daemon"
#: Findings of `check` that a killed run may leave: until the next load, and until the next clean.
LEFT_BY_A_KILL = {
    (Kind.LEFTOVER, Severity.RECOVERY),
    (Kind.SWAP_UNFINISHED, Severity.RECOVERY),
    (Kind.INDEX_WITHOUT_LOG, Severity.RECOVERY),
    (Kind.KEY_INDEX_WITHOUT_LOG, Severity.NOTE),
    (Kind.LEFTOVER, Severity.NOTE),  # in the folder of indexes
}

ISOLATIONS = ("read_uncommitted", "read_committed")

#: Key, value, timestamp.
Content = tuple[bytes | None, bytes | None, int]


# ---- Slow disks ------------------------------------------------------------------------------------------------------


class SlowFileSystem(PosixFileSystem):
    """Waits a little before each change of a directory, so that kills happen between two changes."""

    def rename(self, source: str, target: str) -> None:
        time.sleep(SLEEP_SECONDS)
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        time.sleep(SLEEP_SECONDS)
        super().unlink(path)

    def create(self, path: str, *, exclusive: bool = True, mode: int = 0o666) -> Any:
        time.sleep(SLEEP_SECONDS)
        return super().create(path, exclusive=exclusive, mode=mode)

    def sync_directory(self, path: str) -> None:
        time.sleep(SLEEP_SECONDS)
        super().sync_directory(path)


def be_slow() -> None:
    """Let cleans in this process, and Spark's workers, use slow file systems."""
    from cordwood.commands import clean_in_place
    from cordwood.fs import posix

    for module in (clean_in_place, posix):
        module.PosixFileSystem = SlowFileSystem  # type: ignore[attr-defined]


# ---- Expected and actual contents ------------------------------------------------------------------------------------


@dataclass
class Expected:
    """Expected contents of a partition.

    Attributes:
        written: all records that were ever appended, by offset.
        aborted: offsets of aborted records.
        end_offset: one above the last offset.
        sequences: next sequence number of each producer.
    """

    written: dict[int, Content] = field(default_factory=dict)
    aborted: set[int] = field(default_factory=set)
    end_offset: int = 0
    sequences: Counter[int] = field(default_factory=Counter)

    def last(self) -> dict[bytes | None, int]:
        """By key the offset of the last committed record."""
        return {self.written[offset][0]: offset for offset in sorted(self.written) if offset not in self.aborted}

    def check(self, committed: Iterable[tuple[int, Content]], all_of_it: Iterable[tuple[int, Content]]) -> None:
        """Compare with a consumer's records.

        Args:
            committed: records of a read_committed consumer.
            all_of_it: records of a read_uncommitted consumer.
        """
        seen = dict(committed)
        for offset, content in (*seen.items(), *all_of_it):
            assert self.written.get(offset) == content, f"offset {offset} has {content}, not {self.written.get(offset)}"
        assert not seen.keys() & self.aborted, "aborted records became visible"
        for key, offset in self.last().items():
            assert offset in seen or self.written[offset][1] is None, f"{key!r} at {offset} is lost"
        late = {self.written[offset][0]: offset for offset in sorted(seen)}
        for key, offset in late.items():
            tombstone = self.last()[key]
            assert offset == tombstone or self.written[tombstone][1] is None, f"{key!r} came back from {offset}"


class Directory:
    """A log directory with partitions `t-0`, `t-1`, …; its model."""

    def __init__(self, path: Path, *, partitions: int, seed: int) -> None:
        self.path = path
        self.expected = {TopicPartition("t", number): Expected() for number in range(partitions)}
        self._choose = random.Random(seed)
        self._ordinary: set[Kind] = set()

    def make(self) -> None:
        """Make it, with empty partitions, as a broker does that shuts down cleanly."""
        self.path.mkdir()
        for name in self.expected:
            (self.path / str(name)).mkdir()
            data = leader_epochs.encode([EpochEntry(0, 0)])
            (self.path / str(name) / FileKind.LEADER_EPOCHS).write_bytes(data)
        (self.path / filenames.CLEAN_SHUTDOWN).write_bytes(properties.encode_clean_shutdown(None))

    def remember_what_is_ordinary(self) -> None:
        """Remember the current findings of `check`, which are permitted from now on."""
        self._ordinary = {found.kind for found in cordwood.check(str(self.path)) if found.severity is Severity.NOTE}

    def append(self) -> None:
        """Append some segments to each partition, with transactions that end either way, as a broker would."""
        for name in self.expected:
            self._append(name)
        for file in (filenames.HIGH_WATERMARKS, filenames.RECOVERY_POINTS):
            ends = {name: one.end_offset for name, one in self.expected.items()}
            checkpoints.update(FS, str(self.path / file), ends)

    def _append(self, name: TopicPartition) -> None:
        folder, expected = str(self.path / str(name)), self.expected[name]
        epochs = leader_epochs.decode((self.path / str(name) / FileKind.LEADER_EPOCHS).read_bytes())
        epoch = max((entry.epoch for entry in epochs), default=0)
        open_now: dict[int, list[int]] = {}
        writer = SegmentWriter(FS, folder, expected.end_offset, IndexLimits(interval_bytes=100))
        for number in range(left := self._choose.randint(12, 30)):
            producer = 900_000 + self._choose.randrange(4)
            ends = [one for one in open_now if number + len(open_now) >= left or self._choose.random() < 0.2]
            now_ms = time.time_ns() // 1_000_000
            if ends:
                committed = self._choose.random() < 0.6
                offsets = open_now.pop(ends[0])
                marker = Marker(expected.end_offset, now_ms, ends[0], 0, committed)
                data = encode_marker(marker, leader_epoch=epoch)
                expected.end_offset += 1
                if not committed:
                    expected.aborted.update(offsets)
                    stable = min((one[0] for one in open_now.values()), default=expected.end_offset)
                    writer.add_aborted([AbortedTransaction(ends[0], offsets[0], marker.offset, stable)])
            else:
                data = self._batch(expected, producer, now_ms, epoch, open_now)
            writer.append([window(data).data], window(data).batches)
            if self._choose.random() < 0.25:
                writer.finish()
                writer = SegmentWriter(FS, folder, expected.end_offset, IndexLimits(interval_bytes=100))
        for producer in open_now:
            data = encode_marker(Marker(expected.end_offset, now_ms, producer, 0, True), leader_epoch=epoch)
            expected.end_offset += 1
            writer.append([window(data).data], window(data).batches)
        writer.finish()

    def _batch(
        self, expected: Expected, producer: int, now_ms: int, epoch: int, open_now: dict[int, list[int]]
    ) -> bytes:
        records = []
        for offset in range(expected.end_offset, expected.end_offset + self._choose.randint(1, 4)):
            key = b"key-%d" % self._choose.randrange(KEYS)
            value = None if self._choose.random() < 0.1 else b"%d of %d" % (offset, producer)
            records.append(Record(offset, now_ms, key, value))
            expected.written[offset] = (key, value, now_ms)
        expected.end_offset = records[-1].offset + 1
        transactional = producer > 900_001
        if transactional:
            open_now.setdefault(producer, []).extend(record.offset for record in records)
        sequence = expected.sequences[producer]
        expected.sequences[producer] += len(records)
        return encode_batch(
            records,
            leader_epoch=epoch,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=transactional,
        )

    def append_with(self, broker: Broker, work: Path) -> None:
        """Start a broker on it, which loads the files left by a kill; let it append, read all of it, and stop it."""
        new = not self.path.exists()
        broker.start(self.path, log_cleaner_enable="false")
        broker.client(self.path, [*self._sent(new), *(self._consumed(isolation, work) for isolation in ISOLATIONS)])
        broker("stop", self.path)
        ends, everything = _read(work / "read_uncommitted")
        _, committed = _read(work / "read_committed")
        for name, expected in self.expected.items():
            before = expected.end_offset
            old = (
                [one for one in committed[name] if one[0] < before],
                [one for one in everything[name] if one[0] < before],
            )
            expected.check(*old)
            expected.end_offset = ends[name]
            expected.written |= {offset: content for offset, content in everything[name] if offset >= before}
            expected.aborted |= {offset for offset, _ in everything[name] if offset >= before} - dict(
                committed[name]
            ).keys()

    def _sent(self, new: bool) -> Iterator[Line]:
        if new:
            yield {"do": "create_topic", "topic": "t", "partitions": len(self.expected), "config": CONFIG}
        small = {"batch.size": 200}
        yield {"do": "producer", "id": "plain", "config": small}
        yield {"do": "producer", "id": "transactional", "config": {"transactional.id": "x"} | small}
        for number in range(4):
            yield {"do": "begin", "id": "transactional"}
            for producer in self._choose.choices(("plain", "transactional"), k=20):
                key = f"key-{self._choose.randrange(KEYS)}"
                value = None if self._choose.random() < 0.1 else f"{number} of {self._choose.random()}"
                where = {"topic": "t", "partition": self._choose.randrange(len(self.expected))}
                yield {"do": "send", "id": producer, "key": key, "value": value} | where
            yield {"do": self._choose.choice(("commit", "abort")), "id": "transactional"}
            yield {"do": "flush", "id": "plain"}

    def _consumed(self, isolation: str, work: Path) -> Line:
        return {"do": "consume", "isolation": isolation, "topics": ["t"], "to": str(work / isolation)}

    def check(self, *, killed: bool) -> None:
        """Check that no record is lost or changed, and that `check` finds only what a kill may leave."""
        for name, expected in self.expected.items():
            log = LogView(str(self.path / str(name)), fs=FS)
            assert log.next_offset == expected.end_offset
            expected.check(contents(log, "read_committed"), contents(log, "read_uncommitted"))
        found = [one for one in cordwood.check(str(self.path)) if one.kind not in self._ordinary]
        wrong = [one for one in found if not is_half_a_checkpoint(one) and not (killed and left_by_a_kill(one))]
        assert not wrong, f"{len(wrong)} findings, such as {wrong[0]}"

    def left(self) -> str:
        """Name in a word the files that a kill left."""
        names = [name for _, folders, files in os.walk(self.path) for name in (*folders, *files)]
        for ending in (Temporary.SWAP, Temporary.CLEANED, Temporary.DELETED):
            if any(name.endswith(ending) for name in names):
                return str(ending)
        folders = [
            path for path in self.path.rglob(WORK_FOLDER) if {one.name for one in path.iterdir()} != {INDEX_FOLDER}
        ]
        return WORK_FOLDER if folders else "nothing"

    def believed_indexes(self) -> int:
        """Count the valid key indexes; each must match its segment."""
        return sum(len(list(believed(LogView(str(self.path / str(name)), fs=FS)))) for name in self.expected)


def is_half_a_checkpoint(found: Finding) -> bool:
    """Whether this is a checkpoint half written at a kill; the next write replaces it, as in a broker."""
    return found.kind is Kind.LEFTOVER and found.path.endswith("-checkpoint.tmp")


def left_by_a_kill(found: Finding) -> bool:
    """Whether a run that was killed may leave this; the next one sees to it."""
    return (found.kind, found.severity) in LEFT_BY_A_KILL


def contents(log: LogView, isolation: str) -> list[tuple[int, Content]]:
    """The records that a reader sees."""
    return [(one.offset, (one.key, one.value, one.timestamp)) for one in log.records(isolation=isolation)]


def _read(path: Path) -> tuple[dict[TopicPartition, int], dict[TopicPartition, list[tuple[int, Content]]]]:
    """Parse a consumer's output: end offsets of partitions, and their records."""
    ends: dict[TopicPartition, int] = {}
    found: dict[TopicPartition, list[tuple[int, Content]]] = defaultdict(list)
    for line in map(json.loads, path.read_text().splitlines()):
        name = TopicPartition(line["topic"], line["partition"])
        if "offset" in line:
            key, value = (None if line[one] is None else line[one].encode() for one in ("key", "value"))
            found[name].append((line["offset"], (key, value, line["timestamp"])))
        else:
            ends[name] = line["end_offset"]
    return ends, found


# ---- processes -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Process:
    """One of a session of processes."""

    pid: int
    parent: int
    words: Sequence[str]


def processes(session: int) -> list[Process]:
    """Return the running processes of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            state, parent, _, of = (path / "stat").read_text(errors="replace").rpartition(")")[2].split()[:4]
            words = (path / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if int(of) == session and state not in "ZX":
            found.append(Process(int(path.name), int(parent), words))
    return found


def java(session: int) -> list[Process]:
    """Spark's Java process."""
    return [one for one in processes(session) if os.path.basename(one.words[0]) == "java"]


def workers(session: int) -> list[Process]:
    """Spark's Python workers, without the daemon that they are forks of."""
    python = [one for one in processes(session) if DAEMON in one.words]
    pids = {one.pid for one in python}
    return [one for one in python if one.parent in pids]


def wait_for(condition: Callable[[], object], running: subprocess.Popen[str] | None = None) -> bool:
    """Wait until something is so, or a process has ended."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        if (running is not None and running.poll() is not None) or time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def main() -> None:
    """The command line, on a slow disk."""
    from cordwood.cli.main import main as cli
    from cordwood.tasks.spark import settings

    be_slow()
    settings.SETTINGS = {**settings.SETTINGS, "spark.python.daemon.module": DAEMON}
    sys.argv[0] = "cordwood"
    cli()


if __name__ == "__main__":
    main()
