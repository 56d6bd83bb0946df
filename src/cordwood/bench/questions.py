"""Counts the bytes that commands read of one large log: to answer a question, and to clean it when little is new.

The same questions are then asked of a node with 10,000 partitions, of 30 brokers with 1,000 partitions each, and of
2 TB in 2,000 sparse segments. In the last row a log of a hundred segments is cleaned each time that it has one more,
whose records update a small range of keys.

Logs to clean have key indexes from an earlier clean. Each command runs in a process of its own, with the log's files
dropped from the page cache before. The same command on a log of one record gives its start, which is subtracted:
imports, compiled kernels, small files.

    by calls   bytes that read calls returned, of all processes of the command; memory maps do not count
    off disk   bytes that the block device delivered, read-ahead of the kernel included

    again      time of a second run, with the log's files in the page cache
    first      time until the first rows of the output
    memory     peak of the command's process

Source: Linux's /proc/PID/io, whose counters include child processes that have ended.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from cordwood.bench.generate import KeyPattern, Shape, write_keyed_log
from cordwood.bench.large_nodes import write_cluster, write_many, write_terabytes
from cordwood.bench.workloads import TOPIC, WORKLOADS, BenchWorkload, write
from cordwood.commands.index import index
from cordwood.commands.options import IndexingOptions
from cordwood.common.errors import RequestError
from cordwood.common.types import TopicPartition
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.formats import checkpoints, filenames, producer_state
from cordwood.storage.formats.filenames import FileKind, offset_name

_MIB = 1 << 20
#: Later than all generated timestamps.
_NOW = ("--now", "1800000000000")
_COMPACT = ("--config", "cleanup.policy=compact")
_IN_PLACE = ("clean", "--in-place", *_NOW, *_COMPACT, "--ignore-ratio", "--single-copy", "--engine", "here", "--index")
#: The files' change times have to be older than an index by more than the clock's steps, for the index to trust them.
_SETTLE_SECONDS = 0.1


def _answer(segments: int, _: float) -> float:
    return 8 + segments


@dataclass(frozen=True, slots=True)
class Question:
    """A command to measure, without its path.

    Attributes:
        most: returns the bound in MiB for a number of segments and a share of the full size; None without a bound.
        changes: whether it changes the log.
        writer: writes the log directory to ask about, with this many partitions or segments; None: the one large log.
        count: that number in full size.
        exits: its exit codes; the generated log of one record has no leader epochs, which `check` reports.
        start_exits: its exit codes for the log of one record; None: the same. That log has no groups.
    """

    words: tuple[str, ...]
    most: Callable[[int, float], float] | None = _answer
    changes: bool = False
    writer: Callable[[Path, int], None] | None = None
    count: int = 0
    exits: tuple[int, ...] = (0,)
    start_exits: tuple[int, ...] | None = None


_CHECK = ("check", "--quick")
QUESTIONS = {
    "ls": Question(("ls",)),
    "plan": Question(("plan", *_NOW, *_COMPACT)),
    "why": Question(("why", *_NOW, *_COMPACT, "--no-keys")),
    "why, keys sampled": Question(("why", *_NOW, *_COMPACT)),
    "view, one file": Question(("view", *_NOW, *_COMPACT, "--output", os.devnull)),
    "clean in place": Question((*_IN_PLACE, "--no-verify"), lambda _, share: 1150 * share, changes=True),
    "clean in place, proved": Question(_IN_PLACE, lambda _, share: 1900 * share, changes=True),
    "ls, 10,000 partitions": Question(("ls", *_COMPACT), None, writer=write_many, count=10_000),
    "why, 10,000 partitions": Question(("why", *_NOW, *_COMPACT, "--no-keys"), None, writer=write_many, count=10_000),
    "check --quick, 10,000 partitions": Question(_CHECK, None, writer=write_many, count=10_000, exits=(0, 1)),
    "ls, 30 brokers of 1,000 partitions": Question(("ls", *_COMPACT), None, writer=write_cluster, count=1_000),
    "why, 30 brokers of 1,000 partitions": Question(("why", *_NOW, *_COMPACT), None, writer=write_cluster, count=1_000),
    "groups, 30 brokers of 1,000 partitions": Question(
        ("groups",), None, writer=write_cluster, count=1_000, start_exits=(2,)
    ),
    "ls, 2 TB": Question(("ls", *_COMPACT), writer=write_terabytes, count=2_000),
    "why, 2 TB": Question(("why", *_NOW, *_COMPACT, "--no-keys"), writer=write_terabytes, count=2_000),
    "check --quick, 2 TB": Question(_CHECK, writer=write_terabytes, count=2_000, exits=(0, 1)),
}


@dataclass(frozen=True, slots=True)
class Reads:
    """The bytes and the time of one run of a command.

    Attributes:
        call_bytes, disk_bytes: by read calls, and off the block device.
        first_seconds: until the first output.
        memory_bytes: peak of the command's own process.
        cpu_seconds: of all processes of the command.
    """

    call_bytes: int
    disk_bytes: int
    seconds: float
    first_seconds: float
    memory_bytes: int
    cpu_seconds: float

    def __add__(self, other: Reads) -> Reads:
        """Return the sum of two runs, with the maximum of memory and time to the first output."""
        return Reads(
            self.call_bytes + other.call_bytes,
            self.disk_bytes + other.disk_bytes,
            self.seconds + other.seconds,
            max(self.first_seconds, other.first_seconds),
            max(self.memory_bytes, other.memory_bytes),
            self.cpu_seconds + other.cpu_seconds,
        )


@dataclass(frozen=True, slots=True)
class MeasuredQuestion:
    """A measured question, without the start of its command.

    Attributes:
        start: the same command on a log of one record.
        most_mib: the bound for the bytes by calls, or None.
        new_bytes: bytes that were new in rounds of cleans; 0 for other questions.
        again: the same command once more, with the log in the page cache; None if it changes the log.
    """

    question: str
    log_bytes: int
    segments: int
    reads: Reads
    start: Reads
    most_mib: float | None
    new_bytes: int = 0
    again: Reads | None = None

    @property
    def call_mib(self) -> float:
        """MiB that read calls returned, without the start."""
        return max(0, self.reads.call_bytes - self.start.call_bytes) / _MIB

    @property
    def disk_mib(self) -> float:
        """MiB off the disk, without the start."""
        return max(0, self.reads.disk_bytes - self.start.disk_bytes) / _MIB

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds without the start."""
        return max(0.0, self.reads.cpu_seconds - self.start.cpu_seconds)

    @property
    def per_new_byte(self) -> float | None:
        """Bytes by calls per new byte, without the start; None without new bytes."""
        return self.call_mib * _MIB / self.new_bytes if self.new_bytes else None


def ask(folder: Path, share: float, show_step: Callable[[str], None]) -> list[MeasuredQuestion]:
    """Write the log, ask each question, and remove the log.

    Args:
        share: share of the full size, 2 GB.
    """
    log, tiny = folder / "log", folder / "tiny"
    workload = WORKLOADS["IH"]
    write(log, workload, share)
    write(tiny, BenchWorkload("one record", 1, workload.keys, Shape(batch_bytes=1, round_batches=1), incremental=True))
    for made in (log, tiny):
        index([str(made)], IndexingOptions())
    found = []
    writer = None
    for name, question in QUESTIONS.items():
        show_step(f"{name} …")
        if question.writer is not None and question.writer is not writer:
            writer = question.writer
            shutil.rmtree(log)
            writer(log, max(1, round(question.count * share)))
        files = list(log.rglob(f"*{FileKind.LOG}"))
        log_bytes, segments = sum(file.stat().st_size for file in files), len(files)
        # With the generated segment size, segments without garbage stay unchanged.
        config = f"segment.bytes={workload.segment_bytes(share)}"
        first = question if question.start_exits is None else replace(question, exits=question.start_exits)
        start = _measured(first, tiny, folder / "changed", config)
        reads = _measured(question, log, folder / "changed", config)
        again = None if question.changes else _run(question.words, log, exits=question.exits)
        most = None if question.most is None else question.most(segments, share)
        found.append(MeasuredQuestion(name, log_bytes, segments, reads, start, most, again=again))
    shutil.rmtree(log)
    shutil.rmtree(tiny)
    show_step(f"{ROUNDS} …")
    start = next(one.start for one in found if QUESTIONS[one.question].words == _IN_PLACE)
    return [*found, _rounds(folder, share, start)]


def _measured(question: Question, log: Path, changed: Path, config: str) -> Reads:
    """Run a command on a log that is not in the page cache; a command that changes it gets a copy with own indexes."""
    path = log
    if question.changes:
        path = changed
        shutil.copytree(log, path, ignore=shutil.ignore_patterns(".cordwood"))
        time.sleep(_SETTLE_SECONDS)
        index([str(path)], IndexingOptions())
    _drop_from_cache(path)
    found = _run(question.words, path, *(("--config", config) if question.changes else ()), exits=question.exits)
    if question.changes:
        shutil.rmtree(path)
    return found


#: Runs a command, and writes its peak of memory in KiB to a file descriptor. A process starts with the peak of the one
#: that it is forked from, and this one is small.
_LAUNCHER = """
import os, resource, sys
code = os.spawnv(os.P_WAIT, sys.argv[2], sys.argv[2:])
os.write(int(sys.argv[1]), str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss).encode())
os._exit(code)
"""


def _run(words: tuple[str, ...], path: Path, *more: str, exits: tuple[int, ...] = (0,)) -> Reads:
    """Run a command in a process of its own."""
    command = [sys.executable, "-m", "cordwood", words[0], str(path), *words[1:], *more]
    before, began = _counters(), time.monotonic()
    with tempfile.TemporaryFile() as errors, tempfile.TemporaryFile() as memory:
        running = subprocess.Popen(
            [sys.executable, "-ISc", _LAUNCHER, str(memory.fileno()), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            pass_fds=[memory.fileno()],
        )
        assert running.stdout is not None, "it is a pipe"
        with running.stdout as output:
            output.read(1)
            first_seconds = time.monotonic() - began
            while output.read(1 << 20):
                pass
        _, status, usage = os.wait4(running.pid, 0)
        running.returncode = os.waitstatus_to_exitcode(status)
        seconds, after = time.monotonic() - began, _counters()
        memory.seek(0)
        memory_kib = int(memory.read() or 0)
        errors.seek(0)
        said = errors.read().decode(errors="replace").strip()
    if running.returncode not in exits:
        raise RequestError(f"{' '.join(command)} failed: {said[-2000:]}")
    return Reads(
        after[0] - before[0],
        after[1] - before[1],
        seconds,
        first_seconds,
        memory_kib << 10,
        usage.ru_utime + usage.ru_stime,
    )


def _drop_from_cache(path: Path) -> None:
    os.sync()  # only written pages can be dropped
    for file in path.rglob("*"):
        if file.is_file():
            handle = os.open(file, os.O_RDONLY)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)


def _counters() -> tuple[int, int]:
    """Return the bytes of this process and its ended children: by read calls, and off the disk."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError as error:
        raise RequestError(f"--questions needs the counters of Linux in /proc/self/io: {error.strerror}") from error
    fields = {name: int(value) for name, value in (line.split(": ") for line in lines)}
    return fields["rchar"], fields["read_bytes"]


# ---- rounds ----------------------------------------------------------------------------------------------------------

ROUNDS = "rounds of 1 % new, proved"
#: Bound for the bytes read per new byte.
_PER_NEW_BYTE = 60
#: Segments of the log, and number of rounds that are counted. Each round has one segment of new records.
_SEGMENTS, _COUNTED = 100, 6


def _rounds(folder: Path, share: float, start: Reads) -> MeasuredQuestion:
    """Clean a log each time that a segment of updates is complete.

    Args:
        start: the reads of the same command on a log of one record.
    """
    size, fs = WORKLOADS["IH"], PosixFileSystem()
    keys = int(size.records * share)
    segment_bytes = int(size.segment_bytes(1.0) * share) * 8 // _SEGMENTS
    shape = Shape()
    # In small segments there are only a few different batches.
    shape = replace(shape, round_batches=min(shape.round_batches, max(1, segment_bytes // shape.batch_bytes)))
    later, log = folder / "later", folder / "rounds"
    partition = log / f"{TOPIC}-0"
    for made in (later, partition):
        made.mkdir(parents=True)
    write_keyed_log(
        fs,
        str(later),
        records=keys * (_SEGMENTS + _COUNTED + 1) // _SEGMENTS,
        keys=KeyPattern(keys, "window"),
        shape=shape,
        segment_bytes=segment_bytes,
    )
    bases = sorted(int(path.stem) for path in later.glob(f"*{FileKind.LOG}"))
    sizes = {base: (later / offset_name(base, FileKind.LOG)).stat().st_size for base in bases}
    first = next(at for at, base in enumerate(bases) if base >= keys)

    def move(at: int) -> None:
        """Let a segment be complete, as a broker leaves it after a clean shutdown."""
        for path in later.glob(f"{bases[at]:020d}.*"):
            path.rename(partition / path.name)
        (partition / offset_name(bases[at + 1], FileKind.PRODUCER_SNAPSHOT)).write_bytes(producer_state.encode([]))

    for at in range(first + 1):
        move(at)
    clean = {TopicPartition(TOPIC, 0): bases[first]}
    (log / filenames.CLEANER_OFFSETS).write_bytes(checkpoints.encode(clean))
    (log / filenames.CLEAN_SHUTDOWN).write_text('{"version":0,"brokerEpoch":1}')
    time.sleep(_SETTLE_SECONDS)
    index([str(log)], IndexingOptions())
    reads, starts, new_bytes = Reads(0, 0, 0, 0, 0, 0), Reads(0, 0, 0, 0, 0, 0), 0
    log_bytes = sum(sizes[base] for base in bases[:first])
    for at in range(first, min(first + _COUNTED, len(bases) - 2)):
        move(at + 1)
        _drop_from_cache(log)
        reads += _run(_IN_PLACE, log, "--high-watermark", "end", "--config", f"internal.segment.bytes={segment_bytes}")
        starts += start
        new_bytes += sizes[bases[at]]
    shutil.rmtree(log)
    shutil.rmtree(later)
    return MeasuredQuestion(ROUNDS, log_bytes, first, reads, starts, _PER_NEW_BYTE * new_bytes / _MIB, new_bytes)
