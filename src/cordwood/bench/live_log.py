"""Measures how fast a live log appends, reads, recovers and loads, on one thread; if asked, Kafka's log classes too.

Batches are those of a producer: 16 records of 1 KiB, uncompressed. The log checks them as a broker does, and writes
indexes. As in Kafka, only a roll syncs. Each side does everything once before it is timed; both use the same folder and
take turns.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cordwood.common.config import overrides
from cordwood.common.errors import RequestError
from cordwood.common.types import TopicPartition, system_clock
from cordwood.fs.posix import PosixFileSystem
from cordwood.live.directories import LogDirFailureChannel
from cordwood.live.log import Checkpointed, FetchIsolation, Log, LogEnvironment, load_log
from cordwood.live.log_manager import LogManager
from cordwood.live.scheduler import SteppedScheduler
from cordwood.live.validation import read_batches
from cordwood.record.batch import encode_batch
from cordwood.record.record import Record

_RECORD_BYTES, _BATCH_RECORDS = 1_024, 16
_READ_BYTES = 1 << 20
SINGLES, PARTITIONS, READERS = 50_000, 1_000, 8


#: The measurements of one side: a figure for each of `TARGETS`, by its name.
Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class LiveTarget:
    """A target for a figure.

    Attributes:
        limit: minimum speed relative to `beside`.
        beside: name of another figure of Cordwood; None: the same figure of Kafka.
        unit: unit of the figure, and its divisor for display.
    """

    title: str
    name: str
    limit: float
    unit: tuple[str, float]
    beside: str | None = None


TARGETS = (
    LiveTarget("append 16 KiB batches of 1 KiB records", "append_bytes_per_second", 0.7, ("MB/s", 1e6)),
    LiveTarget("append single records", "single_appends_per_second", 0.3, ("/s", 1)),
    LiveTarget(
        *("append one pair at a time, with Log.append", "pair_appends_per_second", 0.5, ("/s", 1)),
        beside="single_appends_per_second",
    ),
    LiveTarget(
        *("append single records beside eight readers", "appends_beside_readers_per_second", 0.3, ("/s", 1)),
        beside="single_appends_per_second",
    ),
    LiveTarget("read back", "read_bytes_per_second", 0.4, ("MB/s", 1e6)),
    LiveTarget("recover after a kill", "recover_bytes_per_second", 1.2, ("MB/s", 1e6)),
    LiveTarget("load 1,000 partitions after a clean shutdown", "load_seconds", 1, ("s", 1)),
)


def speed(target: LiveTarget, ours: Figures, kafkas: Figures | None) -> float | None:
    """Return the speed relative to the figure to compare with, or None if that was not measured."""
    others = ours if target.beside is not None else kafkas
    if others is None:
        return None
    figure, other = ours[target.name], others[target.beside or target.name]
    return other / figure if target.unit[0] == "s" else figure / other


def measure(folder: Path, size_bytes: int, runs: int, oracle: Path | None) -> tuple[Figures, Figures | None]:
    """Measure Cordwood, and Kafka if there is an oracle, in turns.

    Args:
        folder: folder for the logs, on the disk to measure.
        size_bytes: size of the appended and read log.
        oracle: the program that runs Kafka's log classes, or None to measure Cordwood alone.
    """
    ours: list[Figures] = []
    kafkas: list[Figures] = []
    for number in range(runs + 1):
        here = folder / str(number)
        here.mkdir()
        ours.append(_ours(here, size_bytes))
        if oracle is not None and number:  # the oracle warms up by itself
            kafkas.append(_kafkas(oracle, here / "kafka", size_bytes))
        shutil.rmtree(here)
    return _median(ours[1:]), _median(kafkas) if kafkas else None


def _median(runs: Sequence[Figures]) -> Figures:
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def _kafkas(oracle: Path, folder: Path, size_bytes: int) -> Figures:
    words = [str(oracle), "bench-log", str(folder), "--bytes", str(size_bytes)]
    words += ["--singles", str(SINGLES), "--partitions", str(PARTITIONS)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RequestError(f"Kafka's log classes failed: {done.stderr.strip()}")
    line: Figures = json.loads(done.stdout.splitlines()[-1])
    return {target.name: line[target.name] for target in TARGETS if target.beside is None}


def _ours(folder: Path, size_bytes: int) -> Figures:
    fs = PosixFileSystem()
    manager = LogManager(fs, [str(folder / "ours")], overrides(["log.cleaner.enable=false"]))
    manager.startup()
    log = manager.get_or_create_log(TopicPartition("bench", 0), is_new=True)
    chosen = random.Random(1)
    batch, single = _batch(_BATCH_RECORDS, chosen), _batch(1, chosen)
    append = _seconds(lambda: _append(log, batch, size_bytes // len(batch)))
    log.update_high_watermark(log.log_end_offset)
    read = _seconds(lambda: _read(log))
    stored = log.size_bytes
    topic = manager.topic_config("bench")

    def recover() -> None:
        recovered = load_log(
            log.directory,
            topic,
            LogEnvironment(fs, system_clock, SteppedScheduler(system_clock), LogDirFailureChannel()),
            Checkpointed(clean_shutdown=False),
        )
        assert recovered.size_bytes == stored, "nothing was torn"

    recovery = _seconds(recover)
    other = manager.get_or_create_log(TopicPartition("single", 0), is_new=True)
    singles = _seconds(lambda: _append(other, single, SINGLES))
    pair = [(b"k%09d" % 0, chosen.randbytes(_RECORD_BYTES - 10))]
    pairs = _seconds(lambda: _append_pairs(other, pair, SINGLES))
    with _read_by(log, READERS):
        beside_readers = _seconds(lambda: _append(other, single, SINGLES))
    manager.shutdown()
    return {
        "append_bytes_per_second": stored / append,
        "single_appends_per_second": SINGLES / singles,
        "pair_appends_per_second": SINGLES / pairs,
        "appends_beside_readers_per_second": SINGLES / beside_readers,
        "read_bytes_per_second": stored / read,
        "recover_bytes_per_second": stored / recovery,
        "load_seconds": _load(folder / "many"),
    }


def _load(directory: Path) -> float:
    fs, config = PosixFileSystem(), overrides(["log.cleaner.enable=false"])
    manager = LogManager(fs, [str(directory)], config)
    manager.startup()
    batch = _batch(1, random.Random(1))
    for number in range(PARTITIONS):
        manager.get_or_create_log(TopicPartition("many", number), is_new=True).append_as_leader(batch, 0)
    manager.shutdown()
    again = LogManager(fs, [str(directory)], config)
    seconds = _seconds(again.startup)
    again.shutdown()
    return seconds


def _seconds(do: Callable[[], object]) -> float:
    began = time.perf_counter()
    do()
    return time.perf_counter() - began


def _batch(records: int, chosen: random.Random) -> bytes:
    now_ms = system_clock()
    made = [Record(at, now_ms, b"k%09d" % at, chosen.randbytes(_RECORD_BYTES - 10)) for at in range(records)]
    return encode_batch(made, base_offset=0)


def _append(log: Log, batch: bytes, count: int) -> None:
    for _ in range(count):
        log.append_as_leader(batch, 0)


def _append_pairs(log: Log, pairs: list[tuple[bytes, bytes]], count: int) -> None:
    for _ in range(count):
        log.append(pairs)


@contextlib.contextmanager
def _read_by(log: Log, readers: int) -> Iterator[None]:
    """Run threads that read a log repeatedly while the block runs."""
    over = threading.Event()

    def read_on() -> None:
        while not over.is_set():
            _read(log)

    threads = [threading.Thread(target=read_on) for _ in range(readers)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _read(log: Log) -> None:
    at = log.log_start_offset
    while at < log.log_end_offset:
        data = log.read(at, _READ_BYTES, FetchIsolation.HIGH_WATERMARK).records
        for one in read_batches(data):
            at = one.last_offset + 1
