"""Counts the requests and measures the memory and time that logs in a tier take, beside an S3 server on this machine.

    open      the state of a live log with 10,000 segments is read, and the log is claimed; the tier has manifests alone
    read      all records from the tier, of large and of small segments, as commands read them and as a live log does
    restore   `fetch --tier`, beside `cp` of the same bytes on the same disk
    copy      the closed segments of a live log are copied to the tier
    clean     the cleaner of a live log puts new segments into the tier: half of the log is dirty, without key indexes;
              or, with them, records die in one segment of a hundred

Requests and bytes are counted by the server. Times are by the wall clock, best of several runs.
"""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import time
import tracemalloc
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import crc32c

from cordwood.bench.bucket_server import BucketServer, serving
from cordwood.bench.generate import KeyPattern, Shape, write_keyed_log
from cordwood.commands.fetch import fetch
from cordwood.common.config import overrides
from cordwood.common.types import NONE, TopicPartition
from cordwood.fs.by_url import file_system_for
from cordwood.fs.objects import PART_BYTES
from cordwood.fs.posix import PosixFileSystem
from cordwood.live.log import Log
from cordwood.live.log_manager import LogManager
from cordwood.live.scheduler import SteppedScheduler
from cordwood.live.validation import read_batches
from cordwood.storage.formats import leader_epochs, producer_state
from cordwood.storage.formats.filenames import FileKind
from cordwood.storage.formats.leader_epochs import EpochEntry
from cordwood.storage.formats.properties import PartitionMetadata, encode_id, encode_partition_metadata
from cordwood.storage.log.files import write_file
from cordwood.storage.log.view import LogView
from cordwood.storage.tier.aiven import AivenLayout
from cordwood.storage.tier.generations import Generations
from cordwood.storage.tier.manifest import empty_state
from cordwood.storage.tier.packed import SIZED, TierSegment
from cordwood.storage.tier.segments import CopyState, RemoteSegment, TopicIdPartition
from cordwood.storage.tier.store import with_tier

_MIB = 1 << 20
_BUCKET = "tier"
_URL = f"s3://{_BUCKET}/logs"
_TOPIC_ID = uuid.UUID(int=7)
_PARTITION = TopicIdPartition(encode_id(_TOPIC_ID), "bench", 0)
_SEGMENTS = 10_000
#: Segments to read, large and small: bytes of each, and of all.
_READS = {"16 MiB": (16 << 20, 64 << 20), "100 kB": (100_000, 2_000_000)}
_FS = PosixFileSystem()


@dataclass(frozen=True, slots=True)
class TierFigure:
    """A measurement.

    Attributes:
        limit: the largest value that it should have; None without a bound.
    """

    title: str
    value: float
    unit: str
    limit: float | None = None


def measure(folder: Path, size_bytes: int, runs: int) -> list[TierFigure]:
    """Measure everything, in folders that are removed.

    Args:
        folder: on the disk to measure.
        size_bytes: size of the restored log.
    """
    bucket = folder / "buckets" / _BUCKET
    bucket.mkdir(parents=True)
    with serving(bucket.parent) as server, _environment(server.environment):
        found = [*_opening(folder, bucket, server)]
        for name, (segment_bytes, all_bytes) in _READS.items():
            _write(folder, bucket, all_bytes, segment_bytes)
            found += _reading(name, folder, bucket, server)
            shutil.rmtree(bucket / "logs")
        _write(folder, bucket, size_bytes, size_bytes // 16)
        found += _restoring(folder, bucket, runs)
        for measured in (_cleaning, _cleaning_by_index):
            shutil.rmtree(bucket / "logs")
            found += measured(folder, server, max(size_bytes // 10, _CLEANED_BYTES_MIN))
    return found


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


# ---- opening ---------------------------------------------------------------------------------------------------------


def _opening(folder: Path, bucket: Path, server: BucketServer) -> Iterator[TierFigure]:
    segments = tuple(_segment(100 * at, 100 * at + 99, 1 << 30) for at in range(_SEGMENTS))
    writer = Generations(_FS, AivenLayout(_FS, f"{bucket}/logs/"), _PARTITION)
    state = writer.commit(replace(empty_state(_PARTITION), segments=segments[:-1]))
    writer.commit(replace(state, segments=segments))
    store = file_system_for([_URL])
    other = file_system_for([_URL])
    Generations(other, AivenLayout(other, f"{_URL}/"), _PARTITION).newest()  # imports take memory, too
    server.requests()
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    generations = Generations(store, AivenLayout(store, f"{_URL}/"), _PARTITION)
    read = generations.newest()
    gc.collect()
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert read is not None and len(read.segments) == _SEGMENTS, "it is what was written"
    title = f"open a log of {_SEGMENTS:,} segments"
    yield TierFigure(title, len(server.requests()), "requests", 3)
    yield TierFigure(f"{title}: memory of each", taken / _SEGMENTS, "B", 200)
    generations.claim("bench", "bench")
    yield TierFigure(f"{title}: claim it, too", len(server.requests()), "requests")
    shutil.rmtree(bucket / "logs")


def _segment(start: int, end: int, size_bytes: int) -> TierSegment:
    return TierSegment(
        RemoteSegment(
            topic=_PARTITION.topic,
            topic_id=_PARTITION.topic_id,
            partition=_PARTITION.partition,
            id=encode_id(uuid.uuid4()),
            start_offset=start,
            end_offset=end,
            size_bytes=size_bytes,
            max_timestamp_ms=1_700_000_000_000 + end,
            event_time_ms=1_800_000_000_000,
            broker=1,
            epochs=(EpochEntry(0, start),),
            custom_metadata=None,
            state=CopyState.COPY_FINISHED,
            transaction_index_empty=True,
        ),
        7,
        (NONE,) * len(SIZED),
    )


# ---- reading ---------------------------------------------------------------------------------------------------------


def _write(folder: Path, bucket: Path, size_bytes: int, segment_bytes: int) -> None:
    """Write a log whose closed segments are in the tier alone."""
    made = folder / "made"
    made.mkdir()
    shape = Shape(value_bytes=1000)
    records = size_bytes // (shape.value_bytes + shape.key_bytes + 11)
    write_keyed_log(_FS, str(made), records=records, keys=KeyPattern(records), shape=shape, segment_bytes=segment_bytes)
    layout = AivenLayout(_FS, f"{bucket}/logs/")
    Path(layout.folder(_PARTITION)).mkdir(parents=True)
    log = LogView(str(made), fs=_FS)
    work = folder / "work"
    work.mkdir()
    write_file(_FS, f"{work}/epochs", leader_epochs.encode([EpochEntry(0, 0)]))
    write_file(_FS, f"{work}/producers", producer_state.encode([]))
    found = []
    for segment in log.segments[:-1]:
        assert segment.following is not None, "the active segment follows"
        one = _segment(segment.base_offset, segment.following.base_offset - 1, segment.size_bytes)
        files = {FileKind.LOG: segment.path, FileKind.LEADER_EPOCHS: f"{work}/epochs"}
        files[FileKind.PRODUCER_SNAPSHOT] = f"{work}/producers"
        for kind in (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX):
            if (path := segment.index_path(kind)) is not None:
                files[kind] = path
        layout.write(one.segment, files, None)
        sizes = tuple(os.path.getsize(files[kind]) if kind in files else NONE for kind in SIZED)
        found.append(replace(one, crc32c=crc32c.crc32c(Path(segment.path).read_bytes()), index_bytes=sizes))
    Generations(_FS, layout, _PARTITION).commit(replace(empty_state(_PARTITION), segments=found))
    for done in (made, work):
        shutil.rmtree(done)
    directory = folder / "logs" / f"{_PARTITION.topic}-{_PARTITION.partition}"
    shutil.rmtree(directory.parent, ignore_errors=True)
    directory.mkdir(parents=True)
    metadata = encode_partition_metadata(PartitionMetadata(_TOPIC_ID))
    write_file(_FS, f"{directory}/{FileKind.PARTITION_METADATA}", metadata)


def _reading(name: str, folder: Path, bucket: Path, server: BucketServer) -> Iterator[TierFigure]:
    sizes = [path.stat().st_size for path in bucket.rglob("*.log")]
    limit = sum(-(-size // PART_BYTES) for size in sizes) + len(sizes)
    directory = f"{folder}/logs/{_PARTITION.topic}-{_PARTITION.partition}"
    server.requests()
    log = LogView(directory, fs=with_tier(file_system_for([_URL]), _URL))
    which = f"{len(sizes)} segments of {name}"
    yield TierFigure(f"list {which}", len(server.requests()), "requests")
    for _ in log.columns():
        pass
    yield TierFigure(f"read {which}, as commands do", _gets(server), "GETs", limit)
    with _live(folder) as live:
        server.requests()
        at = live.log_start_offset
        while at < live.log_end_offset:
            for one in read_batches(live.read(at, _MIB).records):
                at = one.last_offset + 1
        yield TierFigure(f"read {which}, as a live log does", _gets(server), "GETs", limit)
    with _live(folder) as live:
        server.requests()
        live.read(at // 2, 1)
        yield TierFigure("read a batch in the middle, as a live log does", _gets(server), "GETs")


def _gets(server: BucketServer) -> int:
    return sum(one.startswith("GET") and "list-type" not in one for one in server.requests())


def _forget(server: BucketServer) -> None:
    server.requests()
    server.moved()


def _puts(server: BucketServer) -> int:
    return sum(one.startswith("PUT") for one in server.requests())


@contextmanager
def _live(folder: Path) -> Iterator[Log]:
    """Open the log in the tier as a live one, on a new disk."""
    wanted = ("remote.storage.enable=true", "cleanup.policy=delete", "retention.ms=-1")
    configs = overrides([f"{_PARTITION.topic}:{one}" for one in wanted])
    live = folder / "live"
    live.mkdir()
    with LogManager(_FS, [str(live)], configs, tier=_URL) as manager:
        yield manager.logs[TopicPartition(_PARTITION.topic, _PARTITION.partition)]
    shutil.rmtree(live)


# ---- restoring -------------------------------------------------------------------------------------------------------


def _restoring(folder: Path, bucket: Path, runs: int) -> Iterator[TierFigure]:
    times: list[tuple[float, float]] = []
    for _ in range(runs + 1):
        began = time.perf_counter()
        subprocess.run(["cp", "-r", str(bucket), f"{folder}/copied"], check=True)
        copied = time.perf_counter() - began
        shutil.rmtree(folder / "copied")
        began = time.perf_counter()
        fetch(None, f"{folder}/fetched", tier=_URL)
        times.append((copied, time.perf_counter() - began))
        shutil.rmtree(folder / "fetched")
    copied, fetched = (min(each) for each in zip(*times[1:], strict=True))
    size = sum(path.stat().st_size for path in bucket.rglob("*.log"))
    yield TierFigure(f"restore {size / 1e6:,.0f} MB", fetched, "s")
    yield TierFigure(f"cp of {size / 1e6:,.0f} MB", copied, "s")
    yield TierFigure("restore ÷ cp", fetched / copied, "", 6)


# ---- copies and cleans -----------------------------------------------------------------------------------------------

_VALUE_BYTES = 1000
_RECORD_BYTES = _VALUE_BYTES + 20
_BATCH_RECORDS = 50
_CLEANED_BYTES_MIN = 20_000_000
_CLEANED_SEGMENTS = 100
#: The server takes no larger objects, which are uploaded in parts.
_SEGMENT_BYTES_MAX = 4 << 20
_VALUE = "0" * _VALUE_BYTES


class _Compacted:
    """A live compacted log with a tier, whose tasks run on demand."""

    def __init__(self, folder: Path, segment_bytes: int) -> None:
        self.now_ms = 1_800_000_000_000
        self.scheduler = SteppedScheduler(lambda: self.now_ms)
        wanted = {
            "remote.storage.enable": "true",
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0",
            "local.retention.bytes": "1",
            "internal.segment.bytes": str(segment_bytes),
        }
        folder.mkdir()
        configs = overrides([f"{_PARTITION.topic}:{key}={value}" for key, value in wanted.items()])
        self.manager = LogManager(
            _FS, [str(folder)], configs, clock=lambda: self.now_ms, scheduler=self.scheduler, tier=_URL
        )

    @property
    def log(self) -> Log:
        return self.manager.get_or_create_log(TopicPartition(_PARTITION.topic, _PARTITION.partition))

    @property
    def segments(self) -> dict[str, int]:
        """Ids of the segments in the tier, with the sizes of their `.log`."""
        remote = self.log.remote
        assert remote is not None, "it is open in the tier"
        return {one.segment.id: one.segment.size_bytes for one in remote.state.segments}

    def append(self, keys: Sequence[int]) -> int:
        """Append records with these keys, and copy them to the tier; return the bytes that were appended."""
        before = self.log.size_bytes
        for at in range(0, len(keys), _BATCH_RECORDS):
            self.log.append({f"{key:09d}": _VALUE for key in keys[at : at + _BATCH_RECORDS]}, timestamp_ms=self.now_ms)
        appended = self.log.size_bytes - before
        self.log.roll()
        self.log.flush()
        tiering = self.manager.tiering
        assert tiering is not None, "it was given a tier"
        tiering.run()
        self.manager.cleanup_logs()
        return appended

    def clean(self) -> None:
        """Run the cleaner."""
        self.now_ms += 60_000
        self.scheduler.run_due()


@contextmanager
def _compacted(folder: Path, segment_bytes: int, *, index: bool) -> Iterator[_Compacted]:
    live = folder / "live"
    one = _Compacted(live, segment_bytes)
    one.manager.startup(index=index)
    try:
        yield one
    finally:
        one.manager.shutdown()
        shutil.rmtree(live)


def _cleaning(folder: Path, server: BucketServer, size_bytes: int) -> Iterator[TierFigure]:
    """Measure copies, and a clean: half of the log is dirty, and still on the disk; half of the other half dies."""
    count, segment_bytes = size_bytes // _RECORD_BYTES // 2, min(size_bytes // 32, _SEGMENT_BYTES_MAX)
    with _compacted(folder, segment_bytes, index=False) as log:
        log.append([-1])  # opens the log in the tier
        _forget(server)
        appended = log.append(range(count))
        segments, large = len(log.segments) - 1, segment_bytes >= _MIB
        yield TierFigure("copy a segment, beside the commit", (_puts(server) - 1) / segments, "puts", 3)
        uploads = server.moved()[1] / appended
        yield TierFigure("uploads ÷ appended bytes", uploads, "", 1.01 if large else None)
        log.clean()
        dirty = log.append([*range(0, count, 2), *range(count, count + count // 2)])
        ratio, before = dirty / (dirty + appended), log.segments
        _forget(server)
        log.clean()
        outputs, puts, (read, written) = log.segments.keys() - before.keys(), _puts(server), server.moved()
        name = f"clean {(appended + dirty) / 1e6:,.0f} MB, of which {ratio:.0%} is dirty"
        yield TierFigure(f"{name}: requests per output, beside reads", (puts - 1) / len(outputs), "puts", 4)
        yield TierFigure(f"{name}: read from the tier per dirty byte", read / dirty, "", 2 / ratio)
        yield TierFigure(f"{name}: written to it per dirty byte", written / dirty, "", 1 / ratio)


def _cleaning_by_index(folder: Path, server: BucketServer, size_bytes: int) -> Iterator[TierFigure]:
    """Measure a clean that removes records from one segment of a hundred."""
    count, segment_bytes = size_bytes // _RECORD_BYTES, min(size_bytes // _CLEANED_SEGMENTS, _SEGMENT_BYTES_MAX)
    with _compacted(folder, segment_bytes, index=True) as log:
        log.append(range(count))
        log.clean()
        middle = count // 2
        log.append([*range(middle, middle + 5), *range(count, count + segment_bytes // _RECORD_BYTES // 2)])
        before = log.segments
        _forget(server)
        log.clean()
        touched, outputs = before.keys() - log.segments.keys(), log.segments.keys() - before.keys()
        moved = sum(server.moved()) / sum(before.values())
        requests = server.requests()
        name = f"clean {sum(before.values()) / 1e6:,.0f} MB with key indexes, {len(touched)} of {len(before)} segments"
        yield TierFigure(f"{name}: share of the log moved", 100 * moved, "%", 300 * len(touched) / len(before))
        puts = sum(one.startswith("PUT") and any(each in one for each in outputs) for one in requests)
        yield TierFigure(f"{name}: requests per output, beside reads", puts / len(outputs), "puts", 4)
        yield TierFigure(f"{name}: all requests", len(requests), "requests")
