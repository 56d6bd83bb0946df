"""Reads the history of a log, as far as the log still holds it: time, key and size of each record, or of a sample.

    the sample holds the keys whose hash is below a limit, and the same share of the records without a key
    a record's time is its append time: the latest timestamp so far, because producers' timestamps may decrease
    a record's size is its share of its batch, so a compressed record is as small as it is on disk

Gaps in the offsets, which cleans leave, show how many records were removed and when they were written, but not their
keys. Each removed record gets the key of a later record; keys with frequent updates are more likely. The update rate of
a key is estimated from the part after the last gap, which is complete, and from the age of the key's last record. The
share of aborted records among the removed is taken from the same complete part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from cordwood.common.errors import DataError
from cordwood.kernels.layout import HEADER, BatchRows, is_control
from cordwood.record.columns import BatchWindow, RecordColumns, about_bytes, decode
from cordwood.record.key_hashes import key_hashes
from cordwood.storage.log.segment import locate_damage
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Gap, GapKind

Int64Array = npt.NDArray[np.int64]
U64Array = npt.NDArray[np.uint64]
BoolArray = npt.NDArray[np.bool_]

#: A record of a log.
TRACE_ROW = np.dtype(
    [
        ("offset", np.int64),
        ("ms", np.int64),
        ("key", np.uint64),
        ("size_bytes", np.int64),
        ("is_tombstone", np.bool_),
        ("is_aborted", np.bool_),
        ("is_gone", np.bool_),
    ]
)
TraceRows = npt.NDArray[np.void]
#: A timestamp this far in the future is wrong, so it is ignored.
_AHEAD_MS = 3_600_000
_BATCH_BYTES_MAX = 256 << 20
_HASH_BITS = 64


@dataclass(frozen=True, slots=True)
class LogTrace:
    """The records written to a log.

    Attributes:
        rows: TRACE_ROW[records], by offset. `key` is a hash. `is_gone` marks removed records, whose keys and sizes are
            estimates.
        factor: number of records that each row represents.
        start_offset, end_offset: the range of offsets.
        records: number of records in the log, before sampling.
        gone: number of records removed between these offsets.
        log_bytes: size of the log's segments.
        batch_records: mean records per batch when the batches were written.
        damage: the first damage; damaged batches count as removed.
    """

    rows: TraceRows
    factor: float
    start_offset: int
    end_offset: int
    records: int
    gone: int
    log_bytes: int
    batch_records: int
    damage: DataError | None = None

    @property
    def first_ms(self) -> int:
        """Append time of the first present record. Records removed before it count as appended just before."""
        return int(self.rows["ms"][~self.rows["is_gone"]][0])

    @property
    def end_ms(self) -> int:
        """One millisecond after the append of the last record."""
        return int(self.rows["ms"][-1]) + 1

    def thinned(self, factor: float) -> LogTrace:
        """Reduce the sample to fewer keys, so that each record represents `factor` records."""
        if factor <= self.factor:
            return self
        return replace(self, rows=self.rows[self.rows["key"] <= _limit(factor)], factor=factor)


def _limit(factor: float) -> np.uint64:
    """Return the largest key hash in a sample in which each key represents `factor` keys."""
    return np.uint64(min(2**_HASH_BITS - 1, int(2**_HASH_BITS / factor)))


def read_trace(
    log: LogView, factor: float, now_ms: int, seed: int, *, on_progress: Callable[[int, int], None] | None = None
) -> LogTrace:
    """Read a whole log.

    Args:
        factor: number of keys that each sampled key represents; 1: read all keys.
        now_ms: timestamps more than an hour later are ignored as wrong.
        on_progress: called with bytes read and total bytes.
    """
    reader = _SampleReader(factor, now_ms, seed, log)
    total, done, zeros = log.size_bytes, 0, 0
    for segment, item in log.windows(start_offset=log.log_start_offset):
        if not isinstance(item, Gap):
            reader.add(item, locate_damage(reader.on_damage, segment))
            done += int(item.batches["size_bytes"].sum())
        elif item.kind is GapKind.ZEROS and log.is_end(segment, item):
            zeros = item.size_bytes  # preallocated
        if on_progress is not None:
            on_progress(done, total)
        del item  # frees a large window before the next one is read
    return reader.trace(total - zeros)


@dataclass
class _SampleReader:
    """Collects the sample from a log's windows."""

    factor: float
    now_ms: int
    seed: int
    log: LogView
    damage: DataError | None = None
    records: int = 0
    _rows: list[TraceRows] = field(default_factory=list)
    _latest_ms: int = 0
    _there: int = 0
    _batches: int = 0
    _written: int = 0

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)
        self._secret = self._random.bytes(16)
        self._transactions = self.log.transactions()
        self._start = self._next = self.log.log_start_offset
        #: One in `factor` of the offsets without a record, and their append times.
        self._gone: list[Int64Array] = []
        self._gone_ms: list[Int64Array] = []
        self._gone_count = 0

    def on_damage(self, error: DataError) -> None:
        self.damage = self.damage or error

    def add(self, window: BatchWindow, on_damage: Callable[[DataError], None]) -> None:
        """Add the records and gaps of a window."""
        batches = window.batches
        if not batches.size:
            return
        times = self._times(batches)
        control = is_control(batches)
        there = int(np.maximum(batches["record_count"][control], 0).sum())
        data = BatchWindow(window.position, window.data, batches[~control], window.read)
        for columns in decode(data, on_damage=on_damage, max_batch_bytes=_BATCH_BYTES_MAX):
            at = np.searchsorted(batches["position"], columns.batches["position"])
            there += self._add(columns, times[at])
            del columns
        self._written += int((data.batches["last_offset"] - data.batches["base_offset"] + 1).sum())
        self._batches += data.batches.size
        self._add_gone(batches, times, there)

    def _times(self, batches: BatchRows) -> Int64Array:
        """int64[batches]: append time of each batch."""
        stamps = np.where(batches["max_timestamp"] > self.now_ms + _AHEAD_MS, 0, batches["max_timestamp"])
        times = np.maximum.accumulate(np.maximum(stamps, self._latest_ms))
        self._latest_ms = int(times[-1])
        return np.asarray(times, np.int64)

    def _add(self, columns: RecordColumns, times: Int64Array) -> int:
        """Sample the records of data batches; return their number before sampling."""
        found = columns.rows
        inside = np.asarray(found["offset"] >= self._start)
        has_key = np.asarray(found["key_size"] >= 0)
        keys = key_hashes(columns, has_key, self._secret)[:, 1].copy()
        keys[~has_key] = self._random.integers(0, 2**_HASH_BITS, int((~has_key).sum()), np.uint64)
        weights = about_bytes(found)
        totals = np.bincount(found["batch"], weights, columns.batches.size)
        sizes = np.maximum(columns.batches["size_bytes"] - HEADER.size, 1)[found["batch"]]
        taken = inside & (keys <= _limit(self.factor))
        rows = np.zeros(int(taken.sum()), TRACE_ROW)
        rows["offset"], rows["key"] = found["offset"][taken], keys[taken]
        rows["ms"] = times[found["batch"][taken]]
        rows["size_bytes"] = np.maximum(1, (weights / totals[found["batch"]] * sizes)[taken])
        rows["is_tombstone"] = (has_key & (found["value_size"] < 0))[taken]
        rows["is_aborted"] = self._transactions.aborted_data(columns.batches)[found["batch"][taken]]
        self._rows.append(rows)
        self.records += int(inside.sum())
        return int(inside.sum())

    def _add_gone(self, batches: BatchRows, times: Int64Array, there: int) -> None:
        """Note the offsets without a record up to the end of the window."""
        behind = max(self._next, int(batches["last_offset"][-1]) + 1)
        gone = max(0, behind - self._next - there)
        # Round cumulative counts, so that the total is exact.
        count = int((self._gone_count + gone) / self.factor) - int(self._gone_count / self.factor)
        self._gone_count += gone
        # Spread them over the range, except for its last offset, which mostly has a record.
        offsets = self._next + ((np.arange(count) + 0.5) * (behind - 1 - self._next) / max(count, 1)).astype(np.int64)
        self._gone.append(offsets)
        self._gone_ms.append(np.interp(offsets, batches["base_offset"], times).astype(np.int64))
        self._next = behind

    def trace(self, log_bytes: int) -> LogTrace:
        """Combine present and estimated records."""
        there = np.concatenate([np.zeros(0, TRACE_ROW), *self._rows])
        offsets = np.concatenate([np.zeros(0, np.int64), *self._gone])
        times = np.concatenate([np.zeros(0, np.int64), *self._gone_ms])
        if there.size:
            times[offsets < there["offset"][0]] = there["ms"][0] - 1
        gone = draw_gone(there, offsets, times, self._next, self._random)
        rows = np.concatenate([there, gone])
        rows = rows[np.argsort(rows["offset"], kind="stable")]
        rows["ms"] = np.maximum.accumulate(rows["ms"]) if rows.size else rows["ms"]
        per_batch = max(1, round(self._written / max(self._batches, 1)))
        return LogTrace(
            rows,
            self.factor,
            self._start,
            self._next,
            self.records,
            self._gone_count,
            log_bytes,
            per_batch,
            self.damage,
        )


def draw_gone(
    there: TraceRows, offsets: Int64Array, times: Int64Array, end: int, random: np.random.Generator
) -> TraceRows:
    """Draw the removed records; each gets the key of a later record. After the last record none are drawn.

    Args:
        there: TRACE_ROW[records], the present records, by offset.
        offsets, times: int64[gone], ascending: offsets of removed records, and their append times.
        end: the end of the log.
    """
    sound = there[~there["is_aborted"]]
    last = sound[last_of_keys(sound["key"])]
    if not last.size or not offsets.size:
        return np.zeros(0, TRACE_ROW)
    rates = _rates(there, last, int(offsets[-1]) + 1, end)
    # Backward from the end: the total rate of all keys whose last record follows an offset.
    last, rates = last[::-1], rates[::-1]
    sums = np.cumsum(rates)
    behind = np.searchsorted(-last["offset"], -offsets, side="left")
    possible = behind > 0
    chosen = np.searchsorted(sums, random.random(int(possible.sum())) * sums[behind[possible] - 1], side="right")
    rows: TraceRows = last[np.minimum(chosen, behind[possible] - 1)]
    rows["offset"], rows["ms"] = offsets[possible], times[possible]
    rows["is_tombstone"], rows["is_gone"] = False, True
    rows["is_aborted"] = _draw_aborted(there[there["offset"] > offsets[-1]]["is_aborted"], rows.size, random)
    return rows


def _draw_aborted(known: BoolArray, count: int, random: np.random.Generator) -> BoolArray:
    """bool[count]: draw which removed records were aborted, with the share and run length of `known`."""
    share = float(known.mean()) if known.size else 0.0
    if not share:
        return np.zeros(count, np.bool_)
    runs = max(1, int((np.diff(known.astype(np.int8), prepend=0) == 1).sum()))
    length = max(1, round(int(known.sum()) / runs))
    fates = random.random(-(-count // length)) < share
    return np.repeat(fates, length)[:count]


def last_of_keys(keys: npt.NDArray[Any]) -> Int64Array:
    """int64[distinct keys], ascending: index of the last occurrence of each key."""
    _, from_end = np.unique(keys[::-1], return_index=True)
    return np.sort(keys.size - 1 - from_end)


def _rates(there: TraceRows, last: TraceRows, dirty: int, end: int) -> npt.NDArray[np.float64]:
    """float64[keys]: estimate the updates per offset of each key of `last`.

    All updates from offset `dirty` on are present. A key with n updates there counts as n + 1 updates in that range
    plus the mean age of all keys; a key without any counts as one update in its own age plus the mean. The extra update
    and the mean reduce the weight of chance where few updates are known.
    """
    ages = np.maximum(end - last["offset"], 1)
    mean_age = float(ages.mean())
    keys, counts = np.unique(there["key"][there["offset"] >= dirty], return_counts=True)
    at = np.minimum(np.searchsorted(keys, last["key"]), max(keys.size - 1, 0))
    found = keys[at] == last["key"] if keys.size else np.zeros(last.size, np.bool_)
    updates = np.where(found, counts[at] if keys.size else 0, 0)
    return np.where(updates > 0, (updates + 1) / (max(end - dirty, 1) + mean_age), 1 / (mean_age + ages))
