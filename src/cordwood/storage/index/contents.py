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
    places       a sample of the headers of such a log, if it is large (`storage.log.header_sample`)
    records      all records of a small log
    indexes      key indexes: they only show which records are superseded; segments without an index are unknown
    sample       a sample of the records of a large log: an estimate for the whole log, not for its segments

A record's bytes are its share of its batch, by the sizes of key and value. Records of open transactions are live, and
do not supersede others yet. Aborted data of a sampled log is found by the transaction indexes.

A sample of the keys in key indexes gives the superseded share of each segment. Its error follows from the shares of
16 parts of the sample: each part has the keys whose hashes begin with the same bits.
"""

from __future__ import annotations

import contextlib
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
from cordwood.storage.index.files import indexes_in
from cordwood.storage.index.key_sample import KeyCounts
from cordwood.storage.index.search import U64Array, sampled_hashes
from cordwood.storage.log.header_sample import is_small, ratio_sums, sample_headers
from cordwood.storage.log.segment import skip_gap
from cordwood.storage.log.transactions import Transactions
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Gap

#: Limits for reading all records of a log: number of records, and their decoded bytes.
_RECORDS_MAX = 4 << 20
_BODIES_MAX = 1 << 30
#: Number of leading bits that select a part of a sample of keys.
_PART_BITS = 4
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
    PLACES = "a sample of the batch headers"
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
        errors: twice the standard error of each estimate, as far as it is known.
    """

    source: ContentSource
    segments: tuple[SegmentContents, ...]
    estimate: Mapping[Content, int]
    errors: Mapping[Content, int] = field(default_factory=dict)

    @property
    def is_exact(self) -> bool:
        """Whether the result needs no estimate."""
        return self.source in (ContentSource.HEADERS, ContentSource.RECORDS)

    @classmethod
    def of(
        cls, source: ContentSource, segments: Sequence[SegmentContents], errors: Mapping[Content, int] | None = None
    ) -> LogContents:
        """Add up the segments."""
        sums = {content: sum(one.bytes_of.get(content, 0) for one in segments) for content in Content}
        return cls(source, tuple(segments), {content: size for content, size in sums.items() if size}, errors or {})


def contents_of(
    log: LogView,
    whole_bytes: int,
    *,
    is_compacted: bool,
    read_all: bool = False,
    exact: bool = False,
    ranks: Ranks | None = None,
    keys: KeyCounts | None = None,
) -> LogContents | None:
    """Classify the bytes of a log in bounded time.

    Args:
        whole_bytes: all records of a compacted log up to this size are read.
        read_all: read the whole log, whatever its size.
        exact: read all headers of a large log that is not compacted, not a sample.
        ranks: ranks of the keep rule, which key indexes lack; None for newest offset.
        keys: key counts, for a log that is neither small nor indexed.

    Returns:
        None if the log has no segment, or if nothing is known of its keys.

    Raises:
        OSError: the log cannot be read.
        NotFoundError: the log was deleted.
    """
    if not log.segments:
        return None
    if not is_compacted:
        return _from_headers(log, exact=exact or is_small(log))
    found = _from_records(log, ranks) if read_all or log.size_bytes <= whole_bytes else None
    if found is None and ranks is None:
        found = _from_indexes(log, exact=exact)
    return found or (None if keys is None or not keys.records else _from_sample(log, keys))


class _Sums:
    """Bytes by segment and class."""

    def __init__(self, log: LogView) -> None:
        self._segments = log.segments
        self.bytes = np.zeros((len(log.segments), len(Content)))
        self.variances = np.zeros(len(Content))

    def result(self, source: ContentSource) -> LogContents:
        """Round to whole bytes. Bytes outside batches are dead, and the largest class gets the rounding error."""
        found = []
        for segment, parts in zip(self._segments, self.bytes, strict=True):
            parts[_NUMBER[Content.DEAD]] += max(0.0, segment.size_bytes - parts.sum())
            whole = np.floor(parts).astype(np.int64)
            whole[np.argmax(parts)] += segment.size_bytes - whole.sum()
            sizes = {content: int(size) for content, size in zip(Content, whole, strict=True) if size}
            found.append(SegmentContents(segment.base_offset, sizes))
        errors = np.rint(2 * np.sqrt(self.variances)).astype(np.int64).tolist()
        return LogContents.of(
            source, found, {kind: error for kind, error in zip(Content, errors, strict=True) if error}
        )


def _batch_contents(batches: BatchRows, transactions: Transactions, log_start: int) -> npt.NDArray[np.int8]:
    """Classify batches by their headers, int8[batches]; LIVE if the class depends on the records."""
    found = np.full(batches.size, _NUMBER[Content.LIVE], np.int8)
    found[transactions.aborted_data(batches)] = _NUMBER[Content.ABORTED]
    found[is_control(batches) | (batches["record_count"] == 0)] = _NUMBER[Content.MARKERS]
    found[batches["last_offset"] < log_start] = _NUMBER[Content.DEAD]
    return found


# ---- from headers ----------------------------------------------------------------------------------------------------


def _from_headers(log: LogView, *, exact: bool) -> LogContents:
    transactions, sums = log.transactions() if exact else _aborted_by_indexes(log), _Sums(log)
    live = _NUMBER[Content.LIVE]
    for number, segment in enumerate(log.segments):
        sample = None if exact else sample_headers(segment, search=not log.live)
        if sample is None:
            for batches in segment.headers(skip_gap, search=not log.live):
                contents = _batch_contents(batches, transactions, log.log_start_offset)
                np.add.at(sums.bytes[number], contents, batches["size_bytes"])
            continue
        contents = _batch_contents(sample.rows, transactions, log.log_start_offset)
        found, errors = sample.totals(sample.rows["size_bytes"], contents.astype(np.int64), len(Content))
        # The sum is known, so one estimate follows from the others.
        batches_bytes = segment.size_bytes - sum(gap.size_bytes for gap in sample.gaps)
        found[live] = max(0.0, found[live] + batches_bytes - found.sum())
        sums.bytes[number] = found
        sums.variances += (errors / 2) ** 2
    return sums.result(ContentSource.HEADERS if exact else ContentSource.PLACES)


def _aborted_by_indexes(log: LogView) -> Transactions:
    """Return the aborted transactions in all readable transaction indexes."""
    found = Transactions()
    for segment in log.transaction_indexed_from(log.first_offset):
        with contextlib.suppress(OSError, CorruptFileError):
            index = segment.transaction_index()
            for one in () if index is None else index.transactions():
                found.aborted.setdefault(one.producer_id, []).append((one.first_offset, one.last_offset))
    return found


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


def _from_indexes(log: LogView, *, exact: bool) -> LogContents | None:
    """Classify by key indexes; segments without one stay unknown.

    Returns:
        None if there is no valid index, or if the secrets of the indexes differ.
    """
    if not any(True for _ in indexes_in(log.fs, log.path, log.index_root)):
        return None
    sampled = sampled_hashes(log.segments, exact=exact)
    if sampled is None:
        return None
    samples, limit_bits = sampled
    bits = min(one.bits for one in samples if one is not None)
    hashes = [np.empty(0, np.uint64) if one is None else one.hashes for one in samples]
    # The hashes of a segment are not in record order. But of equal hashes only the last one counts as live, and the
    # last record of a key is in the last segment that has the key.
    goes = superseded(np.concatenate(hashes) >> np.uint64(_HASH_BITS - bits))
    sums, at, superseded_, live = _Sums(log), 0, _NUMBER[Content.SUPERSEDED], _NUMBER[Content.LIVE]
    for number, (segment, one) in enumerate(zip(log.segments, samples, strict=True)):
        if one is None or (one.entries and not one.hashes.size):
            sums.bytes[number, _NUMBER[Content.UNKNOWN]] = segment.size_bytes
            continue
        share, error = _share(one.hashes, goes[at : at + one.hashes.size], limit_bits)
        at += one.hashes.size
        sums.bytes[number, superseded_] = one.covered_bytes * share
        sums.bytes[number, live] = one.covered_bytes * (1 - share)
        sums.bytes[number, _NUMBER[Content.UNKNOWN]] = segment.size_bytes - one.covered_bytes
        sums.variances[[superseded_, live]] += (one.covered_bytes * error / 2) ** 2
    return sums.result(ContentSource.INDEXES)


def _share(hashes: U64Array, goes: npt.NDArray[np.bool_], limit_bits: int) -> tuple[float, float]:
    """Return the share of a segment's entries that are superseded, and twice its standard error."""
    if not limit_bits or not hashes.size:
        return float(goes.mean()) if hashes.size else 0.0, 0.0
    parts = (hashes >> np.uint64(_HASH_BITS - limit_bits - _PART_BITS)).astype(np.int64)
    entries = np.bincount(parts, minlength=1 << _PART_BITS).astype(np.float64)
    sums = np.bincount(parts, goes, minlength=1 << _PART_BITS).astype(np.float64)
    share, error = ratio_sums(sums[np.newaxis], entries, np.ones(entries.size), 1.0)
    return float(share[0]), float(error[0])


def _from_sample(log: LogView, counts: KeyCounts) -> LogContents:
    segments = [SegmentContents(one.base_offset, {Content.UNKNOWN: one.size_bytes}) for one in log.segments]
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
