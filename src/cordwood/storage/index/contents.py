"""Classifies the bytes of a log, segment by segment: how much a compaction could remove, and why.

    live         the last record of its key; in a log that is not compacted, every record
    superseded   a newer record of the same key follows
    tombstones   the last record of its key, without a value: it deletes the key
    aborted      records of an aborted transaction
    markers      ends of transactions, and batches that are kept empty
    dead         below the log start offset, without a key in a compacted log, or not a batch at all
    unknown      not read

The sources:

    headers      all batch headers: enough for a log that is not compacted
    records      all records of a log that is not too large
    indexes      key indexes: they only show which records are superseded; segments without an index are unknown
    sample       a sample of a large log: an estimate for the whole log, not for its segments

A record's bytes are its share of its batch, by the sizes of key and value. Records of open transactions are live, and
do not supersede others yet.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from cordwood.common.errors import CorruptFileError
from cordwood.kernels.layout import BatchRows, is_control
from cordwood.record.columns import BatchWindow, Ranks, RecordColumns, about_bytes, decode
from cordwood.record.key_hashes import key_hashes
from cordwood.storage.formats.key_index import TAG_BITS
from cordwood.storage.index.files import indexes_in, read_index
from cordwood.storage.index.key_sample import count_keys
from cordwood.storage.index.search import U64Array, hashes_in
from cordwood.storage.log.segment import Segment, skip_gap
from cordwood.storage.log.transactions import Transactions
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Gap

#: Limits for reading all records of a log: number of records, and their decoded bytes.
_RECORDS_MAX = 4 << 20
_BODIES_MAX = 1 << 30
#: Maximum number of index entries to compare.
_ENTRIES_MAX = 8 << 20
_BATCH_BYTES_MAX = 64 << 20
_HASH_BITS = 64
#: A random secret, so that no producer can construct colliding keys.
_SECRET = secrets.token_bytes(16)


class Content(StrEnum):
    """A class of bytes in a log; see the head of the module."""

    LIVE = "live"
    SUPERSEDED = "superseded"
    TOMBSTONES = "tombstones"
    ABORTED = "aborted"
    MARKERS = "markers"
    DEAD = "dead"
    UNKNOWN = "unknown"


_NUMBER = {content: at for at, content in enumerate(Content)}


class ContentSource(StrEnum):
    """The source of a classification."""

    HEADERS = "all batch headers"
    RECORDS = "all records"
    INDEXES = "key indexes"
    SAMPLE = "a sample"


@dataclass(frozen=True, slots=True)
class SegmentContents:
    """The bytes of one segment by class; they add up to its size."""

    base_offset: int
    bytes_of: Mapping[Content, int]


@dataclass(frozen=True, slots=True)
class LogContents:
    """The bytes of a log by class.

    Attributes:
        estimate: bytes of the whole log by class: an estimate if the segments are unknown, else their sums.
    """

    source: ContentSource
    segments: tuple[SegmentContents, ...]
    estimate: Mapping[Content, int]

    @property
    def is_exact(self) -> bool:
        """Whether the result needs no estimate."""
        return self.source in (ContentSource.HEADERS, ContentSource.RECORDS)

    @classmethod
    def of(cls, source: ContentSource, segments: Sequence[SegmentContents]) -> LogContents:
        """Add up the segments."""
        sums = {content: sum(one.bytes_of.get(content, 0) for one in segments) for content in Content}
        return cls(source, tuple(segments), {content: size for content, size in sums.items() if size})


def contents_of(
    log: LogView, budget_bytes: int, *, is_compacted: bool, read_all: bool = False, ranks: Ranks | None = None
) -> LogContents | None:
    """Classify the bytes of a log in bounded time.

    Args:
        budget_bytes: a log up to this size is read as a whole. A sample of a larger log has an eighth of this size.
        read_all: read the whole log, whatever its size.
        ranks: ranks of the keep rule, which key indexes lack; None for newest offset.

    Returns:
        None if the log has no segment.

    Raises:
        OSError: the log cannot be read.
        NotFoundError: the log was deleted.
    """
    if not log.segments:
        return None
    if not is_compacted:
        return _from_headers(log)
    found = _from_records(log, ranks) if read_all or log.size_bytes <= budget_bytes else None
    if found is None and ranks is None:
        found = _from_indexes(log)
    return found or _from_sample(log, max(1, budget_bytes // 8))


class _Sums:
    """Bytes by segment and class."""

    def __init__(self, log: LogView) -> None:
        self._segments = log.segments
        self.bytes = np.zeros((len(log.segments), len(Content)))

    def result(self, source: ContentSource) -> LogContents:
        """Round to whole bytes. Bytes outside batches are dead, and the largest class gets the rounding error."""
        found = []
        for segment, parts in zip(self._segments, self.bytes, strict=True):
            parts[_NUMBER[Content.DEAD]] += max(0.0, segment.size_bytes - parts.sum())
            whole = np.floor(parts).astype(np.int64)
            whole[np.argmax(parts)] += segment.size_bytes - whole.sum()
            sizes = {content: int(size) for content, size in zip(Content, whole, strict=True) if size}
            found.append(SegmentContents(segment.base_offset, sizes))
        return LogContents.of(source, found)


def _batch_contents(batches: BatchRows, transactions: Transactions, log_start: int) -> npt.NDArray[np.int8]:
    """Classify batches by their headers, int8[batches]; LIVE if the class depends on the records."""
    found = np.full(batches.size, _NUMBER[Content.LIVE], np.int8)
    found[transactions.aborted_data(batches)] = _NUMBER[Content.ABORTED]
    found[is_control(batches) | (batches["record_count"] == 0)] = _NUMBER[Content.MARKERS]
    found[batches["last_offset"] < log_start] = _NUMBER[Content.DEAD]
    return found


# ---- from headers ----------------------------------------------------------------------------------------------------


def _from_headers(log: LogView) -> LogContents:
    transactions, sums = log.transactions(), _Sums(log)
    for number, segment in enumerate(log.segments):
        for batches in segment.headers(skip_gap, search=not log.live):
            contents = _batch_contents(batches, transactions, log.log_start_offset)
            np.add.at(sums.bytes[number], contents, batches["size_bytes"])
    return sums.result(ContentSource.HEADERS)


# ---- from records ----------------------------------------------------------------------------------------------------


@dataclass
class _Records:
    """The records of a log in order, as arrays to concatenate; `rank` returns their ranks, see `contents_of`."""

    rank: Ranks | None = None
    hashes: list[U64Array] = field(default_factory=list)
    batches: list[npt.NDArray[np.int64]] = field(default_factory=list)
    weights: list[npt.NDArray[np.int64]] = field(default_factory=list)
    contents: list[npt.NDArray[np.int8]] = field(default_factory=list)
    competes: list[npt.NDArray[np.bool_]] = field(default_factory=list)
    ranks: list[npt.NDArray[np.int64]] = field(default_factory=list)
    count: int = 0
    body_bytes: int = 0

    @property
    def is_too_much(self) -> bool:
        """Whether the records exceed a limit."""
        return self.count > _RECORDS_MAX or self.body_bytes > _BODIES_MAX

    def add(
        self,
        columns: RecordColumns,
        numbers: npt.NDArray[np.int64],
        can_supersede: npt.NDArray[np.bool_],
        log_start: int,
    ) -> None:
        """Add records of data batches that were not aborted.

        Args:
            numbers: int64[batches], numbers of the batches in the log.
            can_supersede: bool[batches]; False for an open transaction.
        """
        rows = columns.rows
        has_key = np.asarray(rows["key_size"] >= 0)
        below = np.asarray(rows["offset"] < log_start)
        contents = np.where(rows["value_size"] < 0, _NUMBER[Content.TOMBSTONES], _NUMBER[Content.LIVE]).astype(np.int8)
        contents[~has_key | below] = _NUMBER[Content.DEAD]
        weights = about_bytes(rows)
        self.hashes.append(key_hashes(columns, has_key, _SECRET)[:, 1].copy())
        self.batches.append(numbers[rows["batch"]])
        self.weights.append(weights)
        self.contents.append(contents)
        self.competes.append(has_key & ~below & can_supersede[rows["batch"]])
        if self.rank is not None:
            self.ranks.append(self.rank(columns))
        self.count += rows.size
        self.body_bytes += int(weights.sum())


def _from_records(log: LogView, ranks: Ranks | None) -> LogContents | None:
    """Classify by all records; None if they exceed a limit."""
    transactions, sums, records = log.transactions(), _Sums(log), _Records(ranks)
    sizes: list[npt.NDArray[np.int64]] = []
    numbers: list[npt.NDArray[np.int64]] = []
    whole: list[npt.NDArray[np.int8]] = []
    count = 0
    by_base = {segment.base_offset: number for number, segment in enumerate(log.segments)}
    for segment, item in log.windows():
        if isinstance(item, Gap) or segment.base_offset not in by_base:
            continue
        batches = item.batches
        contents = _batch_contents(batches, transactions, log.log_start_offset)
        sizes.append(batches["size_bytes"].copy())
        numbers.append(np.full(batches.size, by_base[segment.base_offset]))
        whole.append(contents)
        data = contents == _NUMBER[Content.LIVE]
        at = np.flatnonzero(data) + count
        window = BatchWindow(item.position, item.data, batches[data], item.read)
        _add_window(records, window, at, ~transactions.open_data(batches[data]), log.log_start_offset)
        count += batches.size
        if records.is_too_much:
            return None
    if count:
        _sum_records(sums, records, np.concatenate(sizes), np.concatenate(numbers), np.concatenate(whole))
    return sums.result(ContentSource.RECORDS)


def _add_window(
    records: _Records,
    window: BatchWindow,
    numbers: npt.NDArray[np.int64],
    can_supersede: npt.NDArray[np.bool_],
    log_start: int,
) -> None:
    """Add the data of a window; `numbers` are the numbers of its batches in the log."""
    positions = window.batches["position"]
    for columns in decode(window, on_damage=lambda _: None, max_batch_bytes=_BATCH_BYTES_MAX):
        # Each decoded part holds consecutive batches of the window.
        at = np.searchsorted(positions, columns.batches["position"])
        records.add(columns, numbers[at], can_supersede[at], log_start)
        if records.is_too_much:
            return
        del columns


def _sum_records(
    sums: _Sums,
    records: _Records,
    sizes: npt.NDArray[np.int64],
    segments: npt.NDArray[np.int64],
    whole: npt.NDArray[np.int8],
) -> None:
    """Divide the bytes of batches among their records.

    Args:
        sizes, segments, whole: for each batch of the log: bytes, number of the segment, class of the whole batch.
    """
    count = len(Content)
    if not records.count:
        return _sum_whole(sums, sizes, segments, whole)
    batches, weights = np.concatenate(records.batches), np.concatenate(records.weights)
    contents, competes = np.concatenate(records.contents), np.concatenate(records.competes)
    ranks = np.concatenate(records.ranks)[competes] if records.ranks else None
    goes = superseded(np.concatenate(records.hashes)[competes], ranks)
    contents[np.flatnonzero(competes)[goes]] = _NUMBER[Content.SUPERSEDED]
    totals = np.bincount(batches, weights, sizes.size)
    divided = totals > 0
    share = weights / totals[batches] * sizes[batches]
    cells = np.bincount(segments[batches] * count + contents, share, sums.bytes.size)
    sums.bytes += cells.reshape(sums.bytes.shape)
    # Batches without a decodable record are dead.
    rest = np.where(whole == _NUMBER[Content.LIVE], _NUMBER[Content.DEAD], whole)
    _sum_whole(sums, sizes[~divided], segments[~divided], rest[~divided])


def _sum_whole(
    sums: _Sums, sizes: npt.NDArray[np.int64], segments: npt.NDArray[np.int64], contents: npt.NDArray[np.int8]
) -> None:
    cells = np.bincount(segments * len(Content) + contents, sizes, sums.bytes.size)
    sums.bytes += cells.reshape(sums.bytes.shape)


def superseded(hashes: U64Array, ranks: npt.NDArray[np.int64] | None = None) -> npt.NDArray[np.bool_]:
    """Mark every record whose hash occurs again with a larger rank, or later with the same rank, bool[records]."""
    order = np.argsort(hashes, kind="stable") if ranks is None else np.lexsort((ranks, hashes))
    ordered = hashes[order]
    found = np.zeros(hashes.size, np.bool_)
    found[order[:-1][ordered[1:] == ordered[:-1]]] = True
    return found


# ---- from key indexes, or a sample -----------------------------------------------------------------------------------


def _from_indexes(log: LogView) -> LogContents | None:
    """Classify by key indexes; segments without one stay unknown.

    Returns:
        None if there is no valid index, if the secrets of the indexes differ, or if they have too many keys.
    """
    if not any(True for _ in indexes_in(log.fs, log.path, log.index_root)):
        return None
    hashes: list[U64Array] = []
    covered: list[tuple[int, int]] = []
    bits, secret = _HASH_BITS, None
    for segment in log.segments:
        found = _hashes_of(segment) if segment.size_bytes else None
        if found is None:
            hashes.append(np.empty(0, np.uint64))
            covered.append((0, 0))
            continue
        known, size, header_bits, header_secret = found
        if secret not in (None, header_secret):
            return None
        secret, bits = header_secret, min(bits, header_bits)
        hashes.append(known)
        covered.append((size, known.size))
        if sum(one.size for one in hashes) > _ENTRIES_MAX:
            return None
    if secret is None:
        return None
    # The hashes of a segment are not in record order. But of equal hashes only the last one counts as live, and the
    # last record of a key is in the last segment that has the key.
    goes = superseded(np.concatenate(hashes) >> np.uint64(_HASH_BITS - bits))
    return _by_shares(log, covered, goes)


def _hashes_of(segment: Segment) -> tuple[U64Array, int, int, bytes] | None:
    """Return the hashes of a segment's keys, the covered bytes, bits per hash, and secret; None without an index."""
    try:
        index = read_index(segment)
    except (OSError, CorruptFileError):
        return None
    return hashes_in(index), index.header.covered_bytes, index.header.bits + TAG_BITS, index.header.secret


def _by_shares(log: LogView, covered: Sequence[tuple[int, int]], goes: npt.NDArray[np.bool_]) -> LogContents:
    sums, at = _Sums(log), 0
    for number, (segment, (size, count)) in enumerate(zip(log.segments, covered, strict=True)):
        share = float(goes[at : at + count].mean()) if count else 0.0
        at += count
        sums.bytes[number, _NUMBER[Content.SUPERSEDED]] = size * share
        sums.bytes[number, _NUMBER[Content.LIVE]] = size * (1 - share)
        sums.bytes[number, _NUMBER[Content.UNKNOWN]] = segment.size_bytes - size
    return sums.result(ContentSource.INDEXES)


def _from_sample(log: LogView, budget_bytes: int) -> LogContents:
    segments = [SegmentContents(one.base_offset, {Content.UNKNOWN: one.size_bytes}) for one in log.segments]
    counts = count_keys(log, budget_bytes)
    if counts is None or not counts.is_sample or not counts.records:
        return LogContents.of(ContentSource.SAMPLE, segments)
    size = log.size_bytes
    keyless = size * counts.keyless // counts.records
    gone = round(counts.superseded_share * (size - keyless))
    # Sampled tombstones may be superseded too; assume the same share as for other records.
    deletes = round((counts.tombstones or 0) / counts.records * (1 - counts.superseded_share) * size)
    estimate = {
        Content.LIVE: size - keyless - gone - deletes,
        Content.SUPERSEDED: gone,
        Content.TOMBSTONES: deletes,
        Content.DEAD: keyless,
    }
    return LogContents(
        ContentSource.SAMPLE, tuple(segments), {one: number for one, number in estimate.items() if number}
    )
