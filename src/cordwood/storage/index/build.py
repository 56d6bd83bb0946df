"""Makes the key index of a segment.

    segment ──► windows ──► records of data batches ──► `Gatherer`: hashes and ordinals, 12 bytes per record
    who knows the keys already ──► `Keys` ─────────────────►│
                                                            └─ finish ──► sorted by hash into the arrays of an index

An index covers a segment up to the first bytes that are no sound batch; it is not made if they come first. Memory is
bounded: at most 24 bytes per record, and of a segment with more records than fit there is no index.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cordwood.errors import DataError
from cordwood.fs.base import ReadableFile
from cordwood.kernels import key_index as kernel
from cordwood.kernels.layout import BATCH_ROW, CONTROL, DELETE_HORIZON, TRANSACTIONAL, BatchRows
from cordwood.record.columns import BatchWindow, RecordColumns, decode, is_valid
from cordwood.record.headers import has_flag, is_control
from cordwood.record.key_hashes import key_hashes
from cordwood.storage.formats.key_index import (
    BITS_MAX,
    BITS_MIN,
    NO_HORIZON,
    Flag,
    Header,
    KeyIndex,
    crc_of_header,
    index_in,
)
from cordwood.storage.log.segment import Segment
from cordwood.storage.log.windows import Gap

#: Memory per record while an index is sorted: its hash and ordinal, twice.
RECORD_BYTES = 24

#: An index larger than a tenth of its segment is not kept: so many small records are read as fast.
SEGMENT_SHARE = 10
_SECRET_BYTES = 16

#: Of a batch that was added.
_BATCH = np.dtype([(name, BATCH_ROW[name]) for name in ("size_bytes", "last_offset", "crc")])

U32Array = npt.NDArray[np.uint32]
U64Array = npt.NDArray[np.uint64]


class TooManyRecordsError(Exception):
    """A segment has more records than there is memory for."""


def build(
    segment: Segment, secret: bytes, memory_bytes: int, windows: Iterator[BatchWindow] | None = None
) -> KeyIndex | None:
    """The index of a segment.

    Args:
        secret: 16 bytes, the same for all segments of a log.
        memory_bytes: that the keys may take.
        windows: those of the segment whose checksums are known to be right; None: they are read and compared here.

    Returns:
        None: the segment has no sound batch at its start, or too many records.
    """
    gatherer = Gatherer(segment.base_offset, secret, memory_bytes // RECORD_BYTES)
    try:
        for window in _sound_windows(segment) if windows is None else windows:
            gatherer.add(window)
    except DataError:
        # A batch whose records cannot be decoded. What came before it would be an index, but not a useful one.
        return None
    except TooManyRecordsError:
        return None
    with segment.open() as file:
        return gatherer.finish(file)


def bucket_bits(entries: int) -> int:
    """How many bits of a hash choose a bucket of an index with so many keys."""
    return max(BITS_MIN, min(BITS_MAX, (entries // 8).bit_length() - 1))


def fields_of(batches: BatchRows, kind: np.dtype[np.void]) -> BatchRows:
    """The fields of a type alone."""
    rows = np.empty(batches.size, kind)
    for name in kind.names or ():
        rows[name] = batches[name]
    return rows


def is_worth_keeping(index: KeyIndex) -> bool:
    """Whether an index is small beside what it covers."""
    return SEGMENT_SHARE * index.header.file_bytes <= index.header.covered_bytes


def new_secret() -> bytes:
    """The secret for a log without indexes."""
    return secrets.token_bytes(_SECRET_BYTES)


def _sound_windows(segment: Segment) -> Iterator[BatchWindow]:
    """The windows of a segment, up to the first gap or the first batch with a wrong checksum."""
    for item in segment.windows():
        if isinstance(item, Gap):
            return
        wrong = np.flatnonzero(~is_valid(item.batches))
        if wrong.size:
            yield BatchWindow(item.position, item.data, item.batches[: wrong[0]], item.read)
            return
        yield item


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys of some records.

    Attributes:
        hashes: uint64[keys], the upper halves.
        ordinals: uint32[keys], of the records.
    """

    hashes: U64Array
    ordinals: U32Array


class Gatherer:
    """Collects what an index says of a segment, from its start on: of windows that are read, or of keys that are known.

    The batches of a segment come in their order.
    """

    def __init__(self, base_offset: int, secret: bytes, records_max: int) -> None:
        self._base_offset = base_offset
        self._secret = secret
        self._records_max = records_max
        self._records = 0
        self._flags = Flag(0)
        self._horizon = NO_HORIZON
        self._batches: list[BatchRows] = []
        self._counts: list[npt.NDArray[np.int64]] = []
        self._keys: list[Keys] = []

    @property
    def records(self) -> int:
        """How many records were added."""
        return self._records

    def add(self, window: BatchWindow) -> None:
        """Take the next batches, which are sound.

        Raises:
            DataError: the records of one cannot be decoded.
            TooManyRecordsError: there are too many.
        """
        batches = window.batches
        if not batches.size:
            return
        self._note(batches)
        data = ~is_control(batches) & (batches["record_count"] != 0)
        # The header of a compressed set of messages does not say how many there are.
        counts = np.where(batches["record_count"] < 0, 0, batches["record_count"]).astype(np.int64)
        chosen = window if data.all() else BatchWindow(window.position, window.data, batches[data], window.read)
        done = np.zeros(batches.size, np.int64)
        for columns in decode(chosen) if chosen.batches.size else ():
            self._check_room(counts)
            at = np.searchsorted(batches["position"], columns.batches["position"])
            firsts = self._records + np.cumsum(counts) - counts
            ordinals = firsts[at] + done[at]
            self._gather(columns, ordinals)
            done[at] = ordinals - firsts[at]
            np.maximum(counts, done, out=counts)
        self._close(batches, counts)

    def take(self, batches: BatchRows, keys: Sequence[Keys]) -> None:
        """Take the next batches, of magic 2, whose keys are known. All records have one, but markers.

        Args:
            batches: with the fields of BATCH_ROW that `_note` and `finish` look at.
            keys: of their records; ordinals count from the first record that was added.

        Raises:
            TooManyRecordsError: there are too many.
        """
        self._note(batches)
        self._close(batches, batches["record_count"].astype(np.int64))
        self._keys += keys

    def _close(self, batches: BatchRows, counts: npt.NDArray[np.int64]) -> None:
        self._check_room(counts)
        self._records += int(counts.sum())
        self._batches.append(fields_of(batches, _BATCH))
        self._counts.append(counts)

    def _check_room(self, counts: npt.NDArray[np.int64]) -> None:
        if self._records + int(counts.sum()) > min(self._records_max, (1 << 32) - 1):
            raise TooManyRecordsError

    def _note(self, batches: BatchRows) -> None:
        """Note what headers say."""
        horizons = batches["base_timestamp"][has_flag(batches, DELETE_HORIZON)]
        self._horizon = min(self._horizon, int(horizons.min(initial=NO_HORIZON)))
        for flag, is_present in (
            (Flag.CONTROL, has_flag(batches, CONTROL).any()),
            (Flag.TRANSACTIONAL, has_flag(batches, TRANSACTIONAL).any()),
            (Flag.EMPTY_BATCHES, (batches["record_count"] == 0).any()),
            (Flag.OLD_MAGIC, (batches["magic"] < 2).any()),
        ):
            self._flags |= flag if is_present else Flag(0)

    def _gather(self, columns: RecordColumns, next_ordinals: npt.NDArray[np.int64]) -> None:
        rows = columns.rows
        hashes = key_hashes(columns, rows["key_size"] >= 0, self._secret)
        taken, ordinals = np.empty(rows.size, np.uint64), np.empty(rows.size, np.uint32)
        horizon = has_flag(columns.batches, DELETE_HORIZON)
        count, keyless, tombstones = kernel.gather(rows, hashes, next_ordinals, horizon, taken, ordinals)
        self._flags |= (Flag.KEYLESS if keyless else Flag(0)) | (Flag.TOMBSTONES if tombstones else Flag(0))
        if count:
            self._keys.append(Keys(taken[:count], ordinals[:count]))

    def finish(self, file: ReadableFile) -> KeyIndex | None:
        """The index of all that was added, which is in a file; None: nothing was. Nothing may be added any more."""
        if not self._batches:
            return None
        batches = np.concatenate(self._batches)
        entries = sum(keys.hashes.size for keys in self._keys)
        covered_bytes, last_bytes = int(batches["size_bytes"].sum()), int(batches["size_bytes"][-1])
        header = Header(
            self._secret,
            bits=bucket_bits(entries),
            flags=int(self._flags),
            base_offset=self._base_offset,
            next_offset=int(batches["last_offset"][-1]) + 1,
            covered_bytes=covered_bytes,
            delete_horizon_ms=self._horizon,
            batches=batches.size,
            records=self._records,
            entries=entries,
            last_header_crc=crc_of_header(file, covered_bytes - last_bytes, last_bytes),
        )
        if header.next_offset <= header.base_offset:
            return None  # some early clients left the offset of a compressed set at 0
        index = index_in(header, np.empty(header.payload_bytes, np.uint8))
        index.lengths[:] = batches["size_bytes"]
        index.counts[:] = np.concatenate(self._counts)
        index.crcs[:] = batches["crc"]
        self._sort(index)
        return index

    def _sort(self, index: KeyIndex) -> None:
        """Fill the arrays of keys; hashes that were collected are released on the way."""
        bits, entries = index.header.bits, index.header.entries
        coarse_bits = min(kernel.COARSE_BITS, bits)
        shift = 64 - coarse_bits
        starts = np.zeros((1 << coarse_bits) + 1, np.int64)
        for keys in self._keys:
            kernel.count(keys.hashes, shift, starts[1:])
        np.cumsum(starts, out=starts)
        sorted_hashes, sorted_ordinals = np.empty(entries, np.uint64), np.empty(entries, np.uint32)
        ends = starts[:-1].copy()
        self._keys.reverse()
        while self._keys:
            keys = self._keys.pop()
            kernel.scatter(keys.hashes, keys.ordinals, shift, ends, sorted_hashes, sorted_ordinals)
        kernel.fill(sorted_hashes, sorted_ordinals, starts, coarse_bits, bits, index.starts, index.tags, index.ordinals)
