"""`cordwood.verify`: two states of log directories, partition by partition, and what lies around the partitions."""

from __future__ import annotations

import posixpath
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from cordwood.errors import ConfigError, NotFoundError
from cordwood.fs.posix import PosixFileSystem
from cordwood.spark import progress
from cordwood.spark.progress import OnProgress
from cordwood.spark.session import LOCAL_MASTER, session
from cordwood.spark.verifying import MEANINGS, Broken, Count, Pair, Side, Verdict, Violation, verify_pairs
from cordwood.storage.check import Finding, Severity, check
from cordwood.storage.filenames import CLUSTER_METADATA_TOPIC, DirectoryState
from cordwood.storage.listing import is_asked_for
from cordwood.storage.node import Node, Place
from cordwood.storage.producers import DEFAULT_EXPIRATION_MS
from cordwood.tables import bytes_text, number, printable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: An offset below all offsets: nothing was cleaned.
_NOTHING = 0


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """What came of two states.

    Attributes:
        before, after: their paths.
        now_ms: the time that horizons were judged by.
        verdicts: per partition that is in both.
        violations: what is about no partition, or about its files other than the log.
        excused: log starts that moved, and were said to.
        seconds: all of it, without the start of Spark.
    """

    before: str
    after: str
    now_ms: int
    verdicts: tuple[Verdict, ...]
    violations: tuple[Violation, ...] = ()
    excused: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether all is proved."""
        return not self.violations and all(verdict.holds for verdict in self.verdicts)

    @property
    def counts(self) -> Mapping[str, int]:
        """How much was proved, of all partitions."""
        return {name: sum(one.counts[name] for one in self.verdicts) for name in Count}

    @property
    def totals(self) -> Mapping[str, int]:
        """Violations by kind."""
        found = {name: sum(one.totals.get(name, 0) for one in self.verdicts) for name in Broken}
        for one in self.violations:
            found[one.kind] += 1
        return {name: count for name, count in found.items() if count}

    def document(self) -> dict[str, Any]:
        """As one JSON value."""
        every = [*self.violations, *(one for verdict in self.verdicts for one in verdict.violations)]
        return {
            "before": self.before,
            "after": self.after,
            "now_ms": self.now_ms,
            "holds": self.holds,
            "partitions": len(self.verdicts),
            **self.counts,
            "violations": sum(self.totals.values()),
            "by_kind": dict(self.totals),
            "named": [_document(one) for one in every],
            "excused": list(self.excused),
            "seconds": round(self.seconds, 3),
        }

    def __str__(self) -> str:
        total = sum(self.totals.values())
        what = "every guarantee holds" if self.holds else number(total, "violation")
        return f"{self.before} → {self.after}: {number(len(self.verdicts), 'partition')}, {what}"

    def text(self) -> str:
        """What was proved and what not, as `cordwood verify` prints it."""
        return "\n".join(_lines(self))


def verify(
    before: str,
    after: str,
    *,
    spark: SparkSession | None = None,
    master: str = LOCAL_MASTER,
    topics: Sequence[str] = (),
    partitions: Sequence[str] = (),
    now_ms: int | None = None,
    overrides: Iterable[str] = (),
    server_properties: str | None = None,
    metadata: str | None = None,
    high_watermark: int | Literal["end"] | None = None,
    retention: bool = False,
    on_start: Callable[[str, int], None] | None = None,
    on_progress: OnProgress | None = None,
) -> VerifyResult:
    """Prove that one state of log directories is what a clean may leave of another.

    Args:
        before, after: log directories, folders of several, or a partition's directory each; they are only read.
        spark: a session to use; it is left running. Default: one of our own.
        master: where a session of our own runs.
        topics, partitions: only these.
        now_ms: delete horizons up to then have passed; default: the time it is.
        overrides, server_properties, metadata: configs of the state before, as for `make_plan`. They decide which
            partitions may have been cleaned; where nothing says what a topic's policy is, any may.
        high_watermark: what all replicas have; default: the checkpoint of the state before, else the log's end.
        retention: it ran, or records were deleted: a log that starts later than before is excused.
        on_start: called with what will be compared, in words, and the bytes that will be read.
        on_progress: called with the bytes read so far.

    Raises:
        NotFoundError: nothing is there, or nothing that was asked for.
        RequestError: see `Node.open`; or Spark does not start.
    """
    fs = PosixFileSystem()
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    before, after = posixpath.abspath(before), posixpath.abspath(after)
    was = Node.open(fs, [before], metadata, server_properties, overrides)
    now = Node.open(fs, [after])
    twins, violations = _twins(was, now, topics, partitions)
    pairs, excused = [], []
    for mine, theirs in twins:
        one = _pair(was, mine, theirs, now_ms, high_watermark, retention)
        starts = one.before.log_start_offset, one.after.log_start_offset
        if retention and starts[1] > starts[0]:
            excused.append(f"{posixpath.basename(mine.path)} started at {starts[0]}, and starts at {starts[1]}")
        pairs.append(one)
    if on_start is not None:
        size_bytes = sum(place.log().size_bytes for twin in twins for place in twin)
        on_start(f"{number(len(pairs), 'partition')} to compare", size_bytes)
    with session(spark, master=master) as running, tempfile.TemporaryDirectory(prefix="cordwood-verify-") as folder:
        started = time.monotonic()
        with progress.Watch(fs, folder, on_progress):
            verdicts = verify_pairs(running, pairs, progress=folder)
        violations += _checkpoints(twins)
        violations += _files(before, after, [theirs for _, theirs in twins], whole=not topics and not partitions)
        seconds = time.monotonic() - started
    return VerifyResult(before, after, now_ms, tuple(verdicts), tuple(violations), tuple(excused), seconds)


# ---- which partitions, and by what they are judged -------------------------------------------------------------------


def _twins(
    was: Node, now: Node, topics: Sequence[str], partitions: Sequence[str]
) -> tuple[list[tuple[Place, Place]], list[Violation]]:
    """The partitions of both states, and those that only one has."""
    mine = [place for place in was.places if is_asked_for(place, topics, partitions)]
    theirs = [place for place in now.places if is_asked_for(place, topics, partitions)]
    if not mine:
        raise NotFoundError(f"No partition in {', '.join(one.path for one in was.directories)} was asked for")
    if len(mine) == len(theirs) == 1:
        return [(mine[0], theirs[0])], []
    left = {posixpath.basename(place.path): place for place in theirs}
    twins, violations = [], []
    for place in mine:
        twin = left.pop(posixpath.basename(place.path), None)
        if twin is not None:
            twins.append((place, twin))
        elif place.name is None or place.name.state is not DirectoryState.DELETED:  # a broker was about to remove it
            violations.append(Violation(Broken.PARTITION, "the partition is missing", place.path))
    violations += [Violation(Broken.PARTITION, "the partition was not there before", one.path) for one in left.values()]
    return twins, violations


def _pair(
    node: Node, mine: Place, theirs: Place, now_ms: int, mark: int | Literal["end"] | None, retention: bool
) -> Pair:
    before, after = mine.log(), theirs.log()
    name = mine.name.topic_partition if mine.name is not None else None
    legacy: int | None = None
    cleaned = mine.name is None or (mine.name.state is DirectoryState.CURRENT and mine.topic != CLUSTER_METADATA_TOPIC)
    if name is not None and cleaned:
        try:
            config = node.config_of(name.topic)
            if config.policy_known and node.doubt(name.topic) is None:
                cleaned = config.compact
            first_dirty = max(mine.directory.cleaner_offsets.get(name, 0), before.log_start_offset)
            clean = [segment for segment in before.segments if segment.base_offset < first_dirty]
            legacy = clean[-1].mtime_ms - config.integer("delete.retention.ms") if clean else 0
        except ConfigError:
            cleaned = False  # no broker would start with it
    high: int | None = None
    if mark is None and name is not None:
        high = mine.directory.high_watermarks.get(name)
    elif isinstance(mark, int):
        high = mark
    return Pair(
        name,
        Side(mine.path, before.log_start_offset),
        Side(theirs.path, after.log_start_offset),
        first_uncleanable=None if cleaned else _NOTHING,
        high_watermark=high,
        now_ms=now_ms,
        legacy_horizon_ms=legacy,
        retention=retention,
        producer_expiration_ms=DEFAULT_EXPIRATION_MS,
    )


# ---- what lies around ------------------------------------------------------------------------------------------------


def _checkpoints(twins: Sequence[tuple[Place, Place]]) -> Iterator[Violation]:
    """High watermarks and the cleaner's offsets of the state after."""
    for mine, theirs in twins:
        if mine.name is None or theirs.name is None or mine.name.state is not DirectoryState.CURRENT:
            continue
        name = mine.name.topic_partition
        log = theirs.log()
        end, active = log.next_offset, log.segments[-1].base_offset if log.segments else 0
        was, now = (place.directory.high_watermarks.get(name) for place in (mine, theirs))
        of_brokers = mine.directory.is_brokers and theirs.directory.is_brokers
        if of_brokers and was is not None and (now is None or now < min(was, end)):
            what = f"the high watermark was {was}, and is {'gone' if now is None else now}"
            yield Violation(Broken.CHECKPOINT, what, theirs.directory.path, now)
        clean = theirs.directory.cleaner_offsets.get(name)
        if clean is not None and clean > max(active, mine.directory.cleaner_offsets.get(name, 0)):
            what = (
                f"the cleaner's checkpoint says that all is clean up to {clean}; the active segment starts at {active}"
            )
            yield Violation(Broken.CHECKPOINT, what, theirs.directory.path, clean)


def _files(before: str, after: str, places: Sequence[Place], *, whole: bool) -> Iterator[Violation]:
    """Damage that `check` finds in the state after, and does not find in the one before."""
    found = _damage([after] if whole else [place.path for place in places])
    if not found:
        return
    known = {(posixpath.relpath(one.path, before), one.kind, one.offset) for one in _damage([before])}
    for one in found:
        if (posixpath.relpath(one.path, after), one.kind, one.offset) not in known:
            yield Violation(Broken.INDEX, f"{one.kind}: {one.what}", one.path, one.offset)


def _damage(paths: Sequence[str]) -> list[Finding]:
    return [finding for finding in check(*paths) if finding.severity is Severity.DAMAGE]


# ---- words -----------------------------------------------------------------------------------------------------------

_PROVED = (
    (Count.RECORDS_SAME, "records are as they were: key, value, headers, timestamp, offset, order"),
    (Count.KEYS_KEPT, "keys have their last committed value, or its tombstone"),
    (Count.KEYS_DELETED, "deleted keys are gone for good, their tombstones past their horizon"),
    (Count.BATCHES, "batches have the producer, epochs, timestamps and attributes that they had"),
    (Count.BATCHES_ABOVE, "batches above the first uncleanable offset are byte for byte what they were"),
    (Count.MARKERS, "markers are kept"),
    (Count.TRANSACTIONAL, "transactional batches are seen, or not seen, by readers of committed data as before"),
    (Count.PRODUCERS, "active producers keep the batch that their state is rebuilt from"),
    (Count.SAMPLED, "records were read by a second, plain reader, too"),
)


def _lines(result: VerifyResult) -> Iterator[str]:
    for verdict in result.verdicts:
        if verdict.holds:
            continue
        yield f"{printable(verdict.pair.before.path)} → {printable(verdict.pair.after.path)}"
        yield from _violation_lines(verdict.violations, verdict.totals)
    if result.violations:
        yield "Around the partitions"
        totals: dict[str, int] = {}
        for one in result.violations:
            totals[one.kind] = totals.get(one.kind, 0) + 1
        yield from _violation_lines(result.violations, totals)
    counts = result.counts
    yield (
        f"{number(len(result.verdicts), 'partition')}: {counts[Count.RECORDS_BEFORE]:,} records before,"
        f" {counts[Count.RECORDS_AFTER]:,} after"
    )
    for name, what in _PROVED:
        if counts[name]:
            yield f"  {counts[name]:>12,}  {what}"
    if unchanged := counts[Count.UNCHANGED_BYTES]:
        yield f"  {bytes_text(unchanged):>12}  are the same files"
    yield from (f"  excused by retention: {printable(what)}" for what in result.excused)
    total = sum(result.totals.values())
    yield "Every guarantee holds" if result.holds else f"{number(total, 'violation')}: not what a clean may leave"


def _violation_lines(violations: Sequence[Violation], totals: Mapping[str, int]) -> Iterator[str]:
    for kind, total in totals.items():
        named = [one for one in violations if one.kind == kind]
        yield f"  {kind}: {total:,} – {MEANINGS[Broken(kind)]}"
        for one in named:
            offset = "" if one.offset is None else f"offset {one.offset}"
            key = "" if one.key is None else f"key {key_text(one.key)}"
            said = "" if one.what == MEANINGS[one.kind] else printable(one.what)
            yield "    " + ", ".join(part for part in (printable(one.path), offset, key, said) if part)
        if total > len(named):
            yield f"    … and {total - len(named):,} more"


def key_text(key: bytes) -> str:
    """A key as people can read it: text, or what is none as `0x…`."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return f"0x{key.hex()}"
    return text if text.isprintable() else f"0x{key.hex()}"


def _document(one: Violation) -> dict[str, Any]:
    key = None if one.key is None else key_text(one.key)
    return {"kind": one.kind, "what": one.what, "file": one.path, "offset": one.offset, "key": key}
