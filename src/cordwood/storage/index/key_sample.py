"""Counts the keys of a log and its superseded records, in bounded time.

    key indexes     the hashes of a sample of the keys, see `search.sampled_hashes`; of the log, only uncovered data
    all records     for a small log
    a sample        for a large log: pieces at equal distances

Keys are counted by their hashes. If there are too many, only hashes below a limit are kept as a sample of all keys; the
limit is halved as often as needed. So counts from indexes and from all records have a small error, which is known: the
number of keys in the sample is binomial.

A sample shows how often keys repeat in it. From the numbers of keys that occur once and twice, an estimator (Chao,
1984) computes the number of different keys that producers write. From this follows the number of different keys in the
log, if each record has a random key. A key that is written in bursts repeats within a piece, so the estimate may be too
low.
"""

from __future__ import annotations

import bisect
import math
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from cordwood.common.errors import CorruptBatchError, DataError
from cordwood.kernels.layout import is_control
from cordwood.record.columns import BatchWindow, RecordColumns, decode
from cordwood.record.key_hashes import key_hashes
from cordwood.storage.formats import offset_index
from cordwood.storage.formats.filenames import FileKind
from cordwood.storage.index.files import indexes_in
from cordwood.storage.index.search import ENTRIES_MAX, SampledHashes, sampled_hashes
from cordwood.storage.log.files import IndexEntries
from cordwood.storage.log.segment import Segment, joined, locate_damage, parts_of
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Checks, Gap, WindowReader

#: Size of a sample's pieces; a piece has at least one batch.
_PIECE_BYTES = 1 << 20
#: Maximum number of kept hashes.
_HASHES_MAX = ENTRIES_MAX
#: Skip batches that decompress to more.
_BATCH_BYTES_MAX = 256 << 20
_HASH_BITS = 64

U64Array = npt.NDArray[np.uint64]


class CountSource(StrEnum):
    """The source of the counts."""

    INDEX = "key indexes"
    ALL = "all records"
    SAMPLE = "a sample"


@dataclass(frozen=True, slots=True)
class KeyCounts:
    """The key counts of a log.

    Attributes:
        read_bytes: bytes of the log that were read.
        log_bytes: size of the whole log.
        records: data records that were counted, including aborted ones.
        keyless: counted records without a key.
        tombstones: counted records with a key but no value; None if counted from indexes.
        keys, once, twice: distinct keys of the counted records, and keys that occur exactly once or twice.
        key_bytes, value_bytes: sizes in the records with a key; None if counted from indexes.
        damage: the first damage found.
        keys_error: twice the standard error of `keys`, if only hashes below a limit were counted; else 0.
    """

    source: CountSource
    read_bytes: int
    log_bytes: int
    records: int
    keyless: int
    tombstones: int | None
    keys: int
    once: int
    twice: int
    key_bytes: int | None
    value_bytes: int | None
    damage: DataError | None = None
    keys_error: int = 0

    @property
    def is_sample(self) -> bool:
        """Whether only a sample of the log was read."""
        return self.source is CountSource.SAMPLE

    @property
    def keyed(self) -> int:
        """Counted records with a key."""
        return self.records - self.keyless

    @property
    def keyed_in_log(self) -> int:
        """Estimated records with a key in the whole log."""
        if not self.is_sample or not self.read_bytes:
            return self.keyed
        return max(self.keyed, round(self.keyed * self.log_bytes / self.read_bytes))

    @property
    def keys_in_log(self) -> int:
        """Estimated distinct keys in the whole log."""
        if not self.is_sample:
            return min(max(self.keys, 1), self.keyed)  # a sample may have none of a few keys
        written = self.keys + self.once * (self.once - 1) / (2 * (self.twice + 1))
        occur = written * -math.expm1(-self.keyed_in_log / written) if written else 0
        return max(self.keys, min(round(occur), self.keyed_in_log))

    @property
    def superseded_share(self) -> float:
        """Estimated share of the records with a key that a newer record supersedes."""
        return 1 - self.keys_in_log / self.keyed_in_log if self.keyed_in_log else 0.0

    @property
    def removable_share(self) -> float:
        """Estimated share of all records that a compaction of the whole log would remove, not counting tombstones."""
        if not self.records:
            return 0.0
        return (self.keyless + self.superseded_share * self.keyed) / self.records


def count_keys(log: LogView, budget_bytes: int, *, read_all: bool = False, exact: bool = False) -> KeyCounts | None:
    """Count the keys of a log.

    Args:
        budget_bytes: maximum bytes of the log to read, if key indexes do not suffice.
        read_all: read the whole log, whatever its size.
        exact: read whole key indexes, not a sample of their keys.

    Returns:
        None if the log is empty, or the budget is 0.

    Raises:
        OSError: a segment cannot be read.
    """
    segments = [segment for segment in log.segments if segment.size_bytes]
    if not segments or budget_bytes <= 0:
        return None
    size = sum(segment.size_bytes for segment in segments)
    found = None if read_all else _from_indexes(log, segments, budget_bytes, exact=exact)
    if found is None:
        tally = _Tally(secrets.token_bytes(16))
        is_whole = read_all or size <= budget_bytes
        items = _whole(segments) if is_whole else _pieces(segments, max(1, budget_bytes // _PIECE_BYTES))
        tally.add_all(items)
        found = tally.counts(CountSource.ALL if is_whole else CountSource.SAMPLE)
    return replace(found, log_bytes=size)


# ---- reading ---------------------------------------------------------------------------------------------------------


def _whole(segments: Sequence[Segment]) -> Iterator[tuple[Segment, BatchWindow]]:
    for segment in joined(segments):
        try:
            yield from _windows(segment)
        except CorruptBatchError:
            for part in parts_of(segment):
                yield from _windows(part)


def _windows(segment: Segment) -> Iterator[tuple[Segment, BatchWindow]]:
    for item in segment.windows():
        if not isinstance(item, Gap):
            yield segment, item


def _pieces(segments: Sequence[Segment], count: int) -> Iterator[tuple[Segment, BatchWindow]]:
    """Yield pieces of a log at equal distances, found through the offset indexes of its segments."""
    ends = np.cumsum([segment.size_bytes for segment in segments])
    seen: set[tuple[int, int]] = set()
    for at in ((np.arange(count) + 0.5) * ends[-1] / count).astype(np.int64).tolist():
        number = int(np.searchsorted(ends, at, side="right"))
        segment = segments[number]
        position = at - (int(ends[number]) - segment.size_bytes)
        with segment.open() as file:
            start = _position_below(segment, position)
            if (segment.base_offset, start) in seen:
                continue
            seen.add((segment.base_offset, start))
            reader = WindowReader(
                file,
                Checks.WHOLE,
                base_offset=segment.base_offset,
                start=start,
                search=False,
                window_bytes=_PIECE_BYTES,
            )
            first = next(iter(reader), None)
            if first is not None and not isinstance(first, Gap):
                yield segment, first


def _position_below(segment: Segment, position: int) -> int:
    """Return the start of a batch at or before a position, by the offset index; 0 without an index.

    The reader checks the batch: if the position holds no batch, the piece is skipped.
    """
    path = segment.index_path(FileKind.OFFSET_INDEX)
    if path is None:
        return 0
    try:
        with segment.fs.open(path) as file:
            entries = IndexEntries(file, offset_index.ENTRY)
            behind = bisect.bisect_right(entries, position, key=lambda entry: int(entry["position"]))
            return int(entries[behind - 1]["position"]) if behind else 0
    except OSError:
        return 0


# ---- key indexes -----------------------------------------------------------------------------------------------------


def _from_indexes(log: LogView, segments: Sequence[Segment], budget_bytes: int, *, exact: bool) -> KeyCounts | None:
    """Count by key indexes, and read at most `budget_bytes` that no index covers.

    Returns:
        None if more bytes are uncovered, if there is no valid index, or if the secrets of the indexes differ.
    """
    if not any(True for _ in indexes_in(log.fs, log.path, log.index_root)):
        return None
    sampled = sampled_hashes(segments, exact=exact)
    if sampled is None:
        return None
    samples, limit_bits = sampled
    covered = [0 if one is None else one.covered_bytes for one in samples]
    rest = [(one, start) for one, start in zip(segments, covered, strict=True) if one.size_bytes > start]
    if sum(one.size_bytes - start for one, start in rest) > budget_bytes:
        return None
    known = [one for one in samples if one is not None]
    tally = _Tally(known[0].secret, limit_bits)
    for one in known:
        tally.add_sample(one)
    for segment, start in rest:
        with segment.open() as file:
            reader = WindowReader(file, Checks.WHOLE, base_offset=segment.base_offset, start=start)
            tally.add_all((segment, item) for item in reader if not isinstance(item, Gap))
    found = tally.counts(CountSource.INDEX, bits=min(one.bits for one in known))
    return replace(found, tombstones=None, key_bytes=None, value_bytes=None)


# ---- counting --------------------------------------------------------------------------------------------------------


class _Tally:
    """Counts so far, and the hashes of keys below a limit."""

    def __init__(self, secret: bytes, limit_bits: int = 0) -> None:
        self.secret = secret
        self._limit_bits = limit_bits
        self._hashes: list[U64Array] = []
        self._kept = 0
        self.records = self.keyless = self.tombstones = self.key_bytes = self.value_bytes = self.read_bytes = 0
        self.damage: DataError | None = None

    def add_all(self, items: Iterator[tuple[Segment, BatchWindow]]) -> None:
        """Add windows of a log."""
        for segment, window in items:
            data = window.batches[~is_control(window.batches)]
            self.read_bytes += int(window.batches["size_bytes"].sum())
            of_data = BatchWindow(window.position, window.data, data, window.read)
            on_damage = locate_damage(self._on_damage, segment)
            for columns in decode(of_data, on_damage=on_damage, max_batch_bytes=_BATCH_BYTES_MAX):
                self._add(columns)
                del columns

    def _on_damage(self, error: DataError) -> None:
        self.damage = self.damage or error

    def _add(self, columns: RecordColumns) -> None:
        rows = columns.rows
        has_key = np.asarray(rows["key_size"] >= 0)
        self.records += rows.size
        self.keyless += int((~has_key).sum())
        self.tombstones += int((has_key & (rows["value_size"] < 0)).sum())
        self.key_bytes += int(rows["key_size"][has_key].sum(dtype=np.int64))
        self.value_bytes += int(np.maximum(rows["value_size"][has_key], 0).sum(dtype=np.int64))
        self._keep(key_hashes(columns, has_key, self.secret)[has_key, 1])

    def add_sample(self, sample: SampledHashes) -> None:
        """Add the keys of a segment. An index does not distinguish markers from records without a key."""
        self.records += sample.entries
        self._keep(sample.hashes)

    def _keep(self, hashes: U64Array) -> None:
        self._hashes.append(self._below_limit(hashes))
        self._kept += self._hashes[-1].size
        while self._kept > _HASHES_MAX and self._limit_bits < _HASH_BITS // 2:
            self._limit_bits += 1
            self._hashes = [self._below_limit(np.concatenate(self._hashes))]
            self._kept = self._hashes[0].size

    def _below_limit(self, hashes: U64Array) -> U64Array:
        """Keep the hashes whose upper `_limit_bits` are 0."""
        if not self._limit_bits:
            return hashes
        return np.asarray(hashes[hashes >> np.uint64(_HASH_BITS - self._limit_bits) == 0])

    def counts(self, source: CountSource, *, bits: int = _HASH_BITS) -> KeyCounts:
        """Compute the result.

        Args:
            bits: number of known upper bits of each hash.
        """
        kept = np.concatenate([np.empty(0, np.uint64), *self._hashes])
        if bits < _HASH_BITS:
            kept = kept >> np.uint64(_HASH_BITS - bits)
        _, times = np.unique(kept, return_counts=True)
        scale = 1 << self._limit_bits
        # One more than there are, as a sample without any key does not prove that there is none.
        error = 2 * scale * math.sqrt((times.size + 1) * (1 - 1 / scale))
        return KeyCounts(
            source,
            self.read_bytes,
            0,
            self.records,
            self.keyless,
            self.tombstones,
            scale * times.size,
            scale * int((times == 1).sum()),
            scale * int((times == 2).sum()),
            self.key_bytes,
            self.value_bytes,
            self.damage,
            round(error),
        )
