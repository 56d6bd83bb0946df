"""Find the superseded records of a log, run by run and hash range by hash range.

A run is a part of a segment, or all of it. The scan of a run hashes the key of every record once, in chunks of a
limited number of records, and marks the records that a newer record of the same chunk supersedes:

    scan     a run's records ──► per batch: position, CRC, count, flags · a bit per record · survivors of each chunk
    merge    survivors of all chunks, by hash range, from the newest chunk to the oldest ──► more bits
             under a keep rule with ranks (`rules.precedence`), chunks and merges are ordered by rank instead
    then     `SegmentOutcomes` holds, per batch, which of its records are superseded

So memory is bounded by the chunk, not by the number of keys: survivors of chunks may be in files, and a merge reads any
range of hashes. A table of all keys (`rules.latest`, `rules.offset_map`) is needed only if the user chose Kafka's
own map, or if offsets do not ascend.

If little is dirty, most records of a chunk would supersede nothing. Then the keys of the dirty section are collected
first, and the scan looks up each record in their table, at once: nothing has to be merged.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from cordwood.cleaning.rules.key_table import BoolArray, Int64Array, KnownOutcomes, SegmentBatches, UInt64Array
from cordwood.cleaning.rules.latest import DirtyTable
from cordwood.common.errors import CorruptBatchError
from cordwood.common.types import NONE
from cordwood.kernels import superseded as kernel
from cordwood.kernels.decode import DONE
from cordwood.kernels.layout import DELETE_HORIZON, BatchRows, has_flag, is_transactional_data
from cordwood.kernels.superseded import keys_of_bodies
from cordwood.record.columns import BatchWindow, Bodies, Ranks, RecordColumns
from cordwood.record.key_hashes import key_hashes

UInt8Array = npt.NDArray[np.uint8]

#: Value of `superseding_from` for a batch whose records supersede nothing.
NEVER = np.iinfo(np.int64).max
#: Flags in addition to the kernel's. `_DECODED`: the scan decoded the batch. `_STAYS_PLAIN`: the batch stays unchanged
#: if no record is superseded and all have a key and a value. `_STAYS_KEYED`: it stays unchanged if no record is
#: superseded and all have a key; its tombstones have not expired.
_DECODED, _STAYS_PLAIN, _STAYS_KEYED = 4, 8, 16
#: The batch was taken from a key index: its bytes were not read, so its checksum was not compared.
UNREAD = 32
#: In addition to UNREAD: its bits mark records that may be superseded, by their hashes in the key index.
UNCONFIRMED = 64
#: Hashes of about this many records of a window are in memory at once; one batch may decompress to any number of
#: records.
_HELD_RECORDS = 1 << 20
_NO_RANKS: Int64Array = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Chunk:
    """The survivors of a chunk: per key, at most one superseding record and all records that it does not supersede.

    Attributes:
        hashes: uint64[entries, 2], bucket after bucket, in log order within each, or by rank.
        ordinals: uint32[entries], counted from the first record of the chunk; see `kernels.superseded`.
        starts: int64[BUCKETS + 1], start of each bucket, and end of the last.
        ranks: int64[entries]; empty if the keep rule has no ranks.
    """

    #: The dtypes of its stored arrays.
    KINDS: ClassVar[Sequence[npt.DTypeLike]] = (np.uint64, np.uint32, np.int64, np.int64)
    hashes: UInt64Array
    ordinals: npt.NDArray[np.uint32]
    starts: Int64Array
    ranks: Int64Array

    @property
    def arrays(self) -> Sequence[npt.NDArray[Any]]:
        """Return the arrays to store."""
        return self.hashes, self.ordinals, self.starts, self.ranks

    @classmethod
    def of(cls, arrays: Sequence[npt.NDArray[Any]]) -> Self:
        """Restore the chunk from stored arrays, each of one dimension."""
        hashes, ordinals, starts, ranks = arrays
        return cls(hashes.reshape(-1, 2), ordinals, starts, ranks)

    def in_ranges(self, count: int) -> Iterator[Chunk]:
        """Split the chunk into `count` ranges of hashes; each is a chunk with the buckets of its range only."""
        width = kernel.BUCKETS // count
        for first in range(0, kernel.BUCKETS, width):
            starts = self.starts[first : first + width + 1]
            part = slice(int(starts[0]), int(starts[-1]))
            yield Chunk(self.hashes[part], self.ordinals[part], starts - starts[0], self.ranks[part])

    def survivors(self, first: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32]]:
        """Return the upper halves of the hashes, and the records' ordinals counted from `first`."""
        return np.ascontiguousarray(self.hashes[:, 1]), (self.ordinals & ~kernel.SUPERSEDES) + np.uint32(first)


#: Yields, in pieces, the upper halves of hashes, and the ordinals in the segment; see `Chunk`.
Survivors: TypeAlias = Callable[[], Iterator[tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32]]]]


@dataclass(slots=True)
class OffsetSpan:
    """The offsets of records in log order.

    Attributes:
        first, last: offsets; NONE without a record.
        ascending: whether each offset is above its predecessor.
    """

    first: int = NONE
    last: int = NONE
    ascending: bool = True

    def add(self, other: OffsetSpan) -> None:
        """Append the next span."""
        if other.first != NONE:
            self.ascending = self.ascending and other.ascending and other.first > self.last
            self.first = other.first if self.first == NONE else self.first
            self.last = other.last
        self.ascending = self.ascending and other.ascending


class KeyPiece(NamedTuple):
    """The keys of consecutive records.

    Attributes:
        hashes: uint64[records, 2]; empty if the records were looked up.
        kinds: uint8[records], see `kernels.superseded`.
        ranks: int64[records]; empty if the keep rule has no ranks.
    """

    hashes: UInt64Array
    kinds: UInt8Array
    ranks: Int64Array

    def part(self, start: int, end: int | None) -> KeyPiece:
        """Return the records of an index range."""
        return KeyPiece(self.hashes[start:end], self.kinds[start:end], self.ranks[start:end])


@dataclass(frozen=True, slots=True)
class WindowKeys:
    """The keys of the records in some batches.

    Attributes:
        counts: int32[batches], number of decoded records.
        flags: uint8[batches], see `kernels.superseded`.
        pieces: the keys in log order; the arrays above change while it yields.
        span: first and last offset of the records so far, and whether they ascend.
    """

    counts: npt.NDArray[np.int32]
    flags: UInt8Array
    pieces: Iterator[KeyPiece]
    span: OffsetSpan


def window_keys(
    batches: BatchRows,
    bodies: Callable[[BoolArray], Iterator[Bodies | RecordColumns]],
    wanted: BoolArray,
    superseding_from: Int64Array,
    secret: bytes,
    now_ms: int,
    *,
    end_offset: int = NEVER,
    table: DirtyTable | None = None,
    ranks: Ranks | None = None,
) -> WindowKeys:
    """Hash the keys of some batches.

    Args:
        batches: BATCH_ROW[batches].
        bodies: returns the bodies, or the records, of the batches that its argument, bool[batches], marks; a batch may
            be split into several parts.
        wanted: bool[batches], batches with records whose keys matter.
        superseding_from: int64[batches], first offset whose record supersedes others; NEVER if none does.
        secret: 16 random bytes that key the hashes, so that no writer of keys can aim collisions at a log.
        now_ms: the time of the clean.
        end_offset: records from here on are ignored.
        table: look up the records in it; it was made with the same secret.
        ranks: see `Precedence.ranks`; None if the records are looked up.
    """
    counts, flags = np.zeros(batches.size, np.int32), flags_of(batches, wanted, now_ms)
    notes = _Notes(batches, superseding_from, secret, end_offset, table, ranks, counts, flags)

    def pieces() -> Iterator[KeyPiece]:
        for some in bodies(wanted):
            if isinstance(some, Bodies):
                yield from notes.of_bodies(some)
            else:
                yield notes.of_columns(some)
            del some  # free a large one before decoding the next

    held, rest = [], pieces()
    records = 0
    for piece in rest:
        held.append(piece)
        records += piece.kinds.size
        if records > _HELD_RECORDS:
            break
    return WindowKeys(counts, flags, itertools.chain(held, rest), notes.span)


@dataclass(slots=True)
class _Notes:
    """Facts collected about records; see `window_keys`."""

    batches: BatchRows
    superseding_from: Int64Array
    secret: bytes
    end_offset: int
    table: DirtyTable | None
    ranks: Ranks | None
    counts: npt.NDArray[np.int32]
    flags: UInt8Array
    span: OffsetSpan = field(default_factory=OffsetSpan)

    def of_bodies(self, bodies: Bodies) -> Iterator[KeyPiece]:
        """Yield the keys of the records in some bodies."""
        if self.ranks is not None:
            yield from (self.of_columns(columns) for columns in bodies.columns())
            return
        room = bodies.capacity()
        kinds, hashes = np.empty(room, np.uint8), np.empty((room, 2), np.uint64)
        offsets = np.empty(0 if self.table is None else room, np.int64)
        counts, flags = self.counts.copy(), self.flags.copy()
        status, records, first, last, in_order = keys_of_bodies(
            bodies.data.ctypes.data, bodies.starts, bodies.ends, bodies.batches, self._index_of(bodies.batches),
            self.superseding_from, self.end_offset, np.frombuffer(self.secret, np.uint64), counts, flags, kinds, hashes,
            offsets,
        )  # fmt: skip
        if status != DONE:
            # The decoder reports the damage and its place.
            yield from (self.of_columns(columns) for columns in bodies.columns())
            return
        self.counts[:], self.flags[:] = counts, flags
        if records:
            self.span.add(OffsetSpan(int(first), int(last), bool(in_order)))
        yield self._looked_up(hashes[:records], offsets[:records], kinds[:records], _NO_RANKS)

    def of_columns(self, columns: RecordColumns) -> KeyPiece:
        """Return the keys of some records."""
        rows = columns.rows
        kinds = np.empty(rows.size, np.uint8)
        index_of = self._index_of(columns.batches)
        noted = kernel.note_records(rows, index_of, self.superseding_from, NONE, kinds, self.counts, self.flags)
        kinds[rows["offset"] >= self.end_offset] = kernel.IGNORED
        if rows.size:
            self.span.add(OffsetSpan(int(rows["offset"][0]), int(noted[0]), bool(noted[1])))
        hashes = key_hashes(columns, kinds != kernel.IGNORED, self.secret)
        return self._looked_up(hashes, rows["offset"], kinds, _NO_RANKS if self.ranks is None else self.ranks(columns))

    def _index_of(self, batches: BatchRows) -> Int64Array:
        return np.searchsorted(self.batches["position"], batches["position"])

    def _looked_up(self, hashes: UInt64Array, offsets: Int64Array, kinds: UInt8Array, ranks: Int64Array) -> KeyPiece:
        if self.table is not None:
            self.table.probe(hashes, offsets, kinds)
            hashes = np.empty((0, 2), np.uint64)  # no longer needed
        return KeyPiece(hashes, kinds, ranks)


def flags_of(batches: BatchRows, wanted: BoolArray, now_ms: int) -> UInt8Array:
    """uint8[batches]: flags derived from the headers; see `window_keys`."""
    flags = np.zeros(batches.size, np.uint8)
    flags[wanted] = _DECODED
    simple = wanted & (batches["magic"] == 2) & ~is_transactional_data(batches)
    horizons = has_flag(batches, DELETE_HORIZON)
    flags[simple & ~horizons] |= _STAYS_PLAIN
    flags[simple & horizons & (batches["base_timestamp"] > now_ms)] |= _STAYS_KEYED
    return flags


@dataclass(frozen=True, slots=True)
class SegmentOutcomes:
    """Location of the records' bits for each batch of a segment or run.

    Attributes:
        positions: uint32[batches], positions in the file, ascending.
        crcs: uint32[batches], stored CRCs: a batch with the same position and CRC has the same records.
        first_ordinals: int64[batches], ordinal of each batch's first record.
        counts: int32[batches], number of records; 0 if the batch was not decoded.
        flags: uint8[batches], see `kernels.superseded`.
        bits: uint8, a bit per ordinal, set for superseded records.
    """

    #: The dtypes of its stored arrays.
    KINDS: ClassVar[Sequence[npt.DTypeLike]] = (np.uint32, np.uint32, np.int64, np.int32, np.uint8, np.uint8)
    positions: npt.NDArray[np.uint32]
    crcs: npt.NDArray[np.uint32]
    first_ordinals: Int64Array
    counts: npt.NDArray[np.int32]
    flags: UInt8Array
    bits: UInt8Array

    @property
    def arrays(self) -> Sequence[npt.NDArray[Any]]:
        """Return the arrays to store."""
        return self.positions, self.crcs, self.first_ordinals, self.counts, self.flags, self.bits

    def of(self, batches: BatchRows, path: str) -> KnownOutcomes:
        """Return the outcomes of some batches (BATCH_ROW[batches]) of the segment.

        Raises:
            CorruptBatchError: other batches were scanned there.
        """
        at = np.searchsorted(self.positions, batches["position"].astype(np.uint32))
        same = at < self.positions.size
        at = np.minimum(at, max(self.positions.size - 1, 0))
        if same.all() and batches.size:
            same = (self.positions[at] == batches["position"]) & (self.crcs[at] == batches["crc"])
        if not same.all():
            batch = batches[~same][0]
            raise CorruptBatchError(
                "the file was changed while it was being cleaned: this batch was not here a moment ago",
                path=path,
                position=int(batch["position"]),
                offset=int(batch["base_offset"]),
            )
        known = (self.flags[at] & _DECODED != 0) & (self.counts[at] > 0)
        first = np.where(known, self.first_ordinals[at], NONE)
        records = self.counts[at].astype(np.int64)
        superseded = np.empty(batches.size, np.int64)
        kernel.count_bits(self.bits, first, records, superseded)
        flags = self.flags[at]
        plain = np.asarray((flags & (kernel.HAS_TOMBSTONE | kernel.HAS_KEYLESS) == 0) & (batches["magic"] == 2))
        unread, unconfirmed = (np.asarray(flags & flag != 0) for flag in (UNREAD, UNCONFIRMED))
        return KnownOutcomes(first, records, superseded, plain, self.bits, unread, unconfirmed)

    def between(self, start: int, end: int) -> SegmentOutcomes:
        """Return the outcomes of the batches between two positions."""
        first, behind = np.searchsorted(self.positions, np.array([start, end], np.uint32)).tolist()
        firsts, counts = self.first_ordinals[first:behind], self.counts[first:behind]
        low = int(firsts[0]) // 8 if firsts.size else 0
        high = -(-int(firsts[-1] + counts[-1]) // 8) if firsts.size else 0
        return SegmentOutcomes(
            self.positions[first:behind],
            self.crcs[first:behind],
            firsts - 8 * low,
            counts,
            self.flags[first:behind],
            self.bits[low:high],
        )

    @property
    def superseded(self) -> Int64Array:
        """int64[batches]: number of superseded records."""
        superseded = np.empty(self.counts.size, np.int64)
        kernel.count_bits(self.bits, self.first_ordinals, self.counts.astype(np.int64), superseded)
        return superseded

    @property
    def batches(self) -> SegmentBatches:
        """See `NewestOffsets.batches`."""
        records, superseded = self.counts.astype(np.int64), self.superseded
        simple = (self.flags & (_STAYS_PLAIN | _STAYS_KEYED) != 0) & (self.flags & UNCONFIRMED == 0)
        return SegmentBatches(
            self.positions.astype(np.int64), records, np.asarray(simple & (records > 0) & (superseded == records))
        )

    @property
    def unchanged(self) -> tuple[int, int] | None:
        """See `NewestOffsets.unchanged`: every record stays, and no batch depends on more than its records."""
        unusual = self.flags & (kernel.HAS_TOMBSTONE | kernel.HAS_KEYLESS)
        stays = (self.flags & _STAYS_PLAIN != 0) & (unusual == 0)
        stays |= (self.flags & _STAYS_KEYED != 0) & (unusual & kernel.HAS_KEYLESS == 0)
        if not (stays & (self.counts > 0)).all() or self.bits.any():
            return None
        return int(self.counts.size), int(self.counts.sum(dtype=np.int64))

    def mark(self, first: int, ordinals: npt.NDArray[np.uint32]) -> None:
        """Mark records as superseded by ordinals that count from `first`, a multiple of 8."""
        kernel.set_bits(ordinals, self.bits[first // 8 :])


def confirmed(
    batches: BatchRows,
    decoded: Callable[[BoolArray], Iterator[RecordColumns]],
    known: KnownOutcomes,
    table: DirtyTable,
) -> tuple[KnownOutcomes, npt.NDArray[np.uint32]]:
    """Look up the records that may be superseded. Return the batches' outcomes, and the ordinals of all that are not.

    Args:
        batches: BATCH_ROW[batches].
        decoded: decodes the batches that its argument, bool[batches], marks; a batch may be split into several parts.
        known: outcomes of the batches so far; its bits are not changed, as another thread may read the same bytes.
        table: the dirty keys.
    """
    asked = known.unconfirmed & (known.superseded > 0)
    refuted = [np.empty(0, np.uint32)]
    if not asked.any():
        return known, refuted[0]
    some = known.known
    start = int(known.first_ordinals[some].min()) // 8 * 8
    end = int((known.first_ordinals + known.records)[some].max())
    bits = known.bits[start // 8 : -(-end // 8)].copy()
    firsts = np.where(some, known.first_ordinals - start, NONE)
    nexts = firsts.copy()
    for columns in decoded(asked):
        rows = columns.rows
        index_of = np.searchsorted(batches["position"], columns.batches["position"])
        kinds, ordinals = np.empty(rows.size, np.uint8), np.empty(rows.size, np.uint32)
        next_ordinals = nexts[index_of]
        kernel.choose_marked(rows, next_ordinals, bits, kinds, ordinals)
        nexts[index_of] = next_ordinals
        is_compared = kinds != kernel.IGNORED
        table.probe(key_hashes(columns, is_compared, table.hash_secret), rows["offset"], kinds)
        kernel.clear_bits(ordinals, kinds, bits)
        refuted.append(ordinals[is_compared & (kinds != kernel.SUPERSEDED)] + np.uint32(start))
        del columns, rows  # free a large one before decoding the next
    superseded = np.empty(batches.size, np.int64)
    kernel.count_bits(bits, firsts, known.records, superseded)
    found = KnownOutcomes(
        firsts, known.records, superseded, known.plain, bits, known.unread, np.zeros(batches.size, np.bool_)
    )
    return found, np.concatenate(refuted)


@dataclass(frozen=True, slots=True)
class ScannedRun:
    """The result of scanning a run.

    Attributes:
        outcomes: outcomes; records superseded within their chunk are marked.
        chunk_records: records per chunk, except the last: a multiple of 8.
        span: the offsets of its records.
    """

    outcomes: SegmentOutcomes
    chunk_records: int
    span: OffsetSpan

    def mark(self, chunk: int, ordinals: npt.NDArray[np.uint32]) -> None:
        """Mark records of a chunk as superseded."""
        self.outcomes.mark(chunk * self.chunk_records, ordinals)


class RunScan:
    """Collects the keys of a run, window after window.

    Args:
        chunk_records: records per chunk, except the last: a multiple of 8.
        keep: receives the survivors of each chunk, in log order; None if the records were looked up, so that their
            outcomes are known.
    """

    def __init__(self, chunk_records: int, keep: Callable[[Chunk], None] | None) -> None:
        assert chunk_records % 8 == 0, "the bits of each chunk begin with a byte"
        assert chunk_records < kernel.SUPERSEDES, "ordinals fit"
        self._chunk_records = chunk_records
        self._keep = keep
        self._pieces: list[KeyPiece] = []
        self._held = 0
        self._records = 0
        self._bits: list[UInt8Array] = []
        self._batches: list[tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32], npt.NDArray[np.int32], UInt8Array]]
        self._batches = []
        self._span = OffsetSpan()

    def add(self, batches: BatchRows, keys: WindowKeys) -> None:
        """Add the next batches (BATCH_ROW[batches]) of the run."""
        for piece in keys.pieces:
            while piece.kinds.size:
                room = self._chunk_records - self._held
                self._pieces.append(piece.part(0, room))
                self._held += min(room, piece.kinds.size)
                piece = piece.part(room, None)
                if self._held == self._chunk_records:
                    self._close_chunk()
        self._span.add(keys.span)
        positions, crcs = batches["position"].astype(np.uint32), batches["crc"].astype(np.uint32)
        self._batches.append((positions, crcs, keys.counts, keys.flags))

    def _close_chunk(self) -> None:
        if self._keep is None:
            kinds = np.concatenate([piece.kinds for piece in self._pieces])
            self._bits.append(np.packbits(kinds == kernel.SUPERSEDED, bitorder="little"))
        else:
            self._bits.append(self._compared(self._keep))
        self._pieces, self._held = [], 0

    def _compared(self, keep: Callable[[Chunk], None]) -> UInt8Array:
        """Compare the records of a chunk. Return a bit for each, set if another record supersedes it."""
        counts = np.zeros(kernel.BUCKETS, np.int64)
        for piece in self._pieces:
            kernel.count_buckets(piece.hashes, piece.kinds, counts)
        starts = np.append(0, np.cumsum(counts))
        ends, left = starts[:-1].copy(), int(starts[-1])
        entries, ordinals = np.empty((left, 2), np.uint64), np.empty(left, np.uint32)
        first = 0
        for piece in self._pieces:
            kernel.scatter(piece.hashes, piece.kinds, first, ends, entries, ordinals)
            first += piece.kinds.size
        ranks = np.concatenate([piece.ranks for piece in self._pieces])
        self._pieces = []  # free memory for the survivors
        if ranks.size:
            kernel.order_by_rank(entries, ordinals, starts, ranks)
        bits = np.zeros(-(-self._held // 8), np.uint8)
        kernel.dedupe(entries, ordinals, starts, bits)
        left = int(starts[-1])
        entries, ordinals = entries[:left].copy(), ordinals[:left].copy()
        keep(Chunk(entries, ordinals, starts, ranks[ordinals & ~kernel.SUPERSEDES] if ranks.size else ranks))
        return bits

    def finish(self) -> ScannedRun:
        """Return the result. Add nothing afterwards."""
        if self._held:
            self._close_chunk()
        none = (np.empty(0, np.uint32), np.empty(0, np.uint32), np.empty(0, np.int32), np.empty(0, np.uint8))
        positions, crcs, counts, flags = map(np.concatenate, zip(none, *self._batches, strict=True))
        ends = np.cumsum(counts, dtype=np.int64)
        bits = np.concatenate([np.empty(0, np.uint8), *self._bits])
        outcomes = SegmentOutcomes(positions, crcs, ends - counts, counts, flags, bits)
        return ScannedRun(outcomes, self._chunk_records, self._span)


def first_bits(runs: Sequence[SegmentOutcomes]) -> list[int]:
    """Return the first bit of each run of a segment; the bits of a run begin with a byte."""
    return list(itertools.accumulate([8 * run.bits.size for run in runs[:-1]], initial=0))


def joined(runs: Sequence[SegmentOutcomes]) -> SegmentOutcomes:
    """Join the outcomes of a segment's runs, in log order."""
    if len(runs) == 1:
        return runs[0]
    firsts = first_bits(runs)
    return SegmentOutcomes(
        np.concatenate([run.positions for run in runs]),
        np.concatenate([run.crcs for run in runs]),
        np.concatenate([run.first_ordinals + first for run, first in zip(runs, firsts, strict=True)]),
        np.concatenate([run.counts for run in runs]),
        np.concatenate([run.flags for run in runs]),
        np.concatenate([run.bits for run in runs]),
    )


def merge(chunks: Sequence[Chunk]) -> list[npt.NDArray[np.uint32]]:
    """Find the records that other chunks supersede: newer chunks, unless the records have ranks.

    Args:
        chunks: survivors of each chunk, or of the same range of buckets of each, in log order; their ordinals are
            changed.

    Returns:
        for each chunk uint32[superseded], the ordinals.
    """
    if any(chunk.ranks.size for chunk in chunks):
        return _merge_by_rank(chunks)
    hashes = np.array([chunk.hashes.ctypes.data for chunk in chunks], np.int64)
    ordinals = np.array([chunk.ordinals.ctypes.data for chunk in chunks], np.int64)
    dead = np.empty(len(chunks), np.int64)
    if chunks:
        kernel.merge(hashes, ordinals, np.array([chunk.starts for chunk in chunks]), dead)
    return [chunk.ordinals[:count] for chunk, count in zip(chunks, dead.tolist(), strict=True)]


def _merge_by_rank(chunks: Sequence[Chunk]) -> list[npt.NDArray[np.uint32]]:
    """Merge chunks as one chunk that has all entries of a bucket side by side, ordered by rank."""
    sizes = np.array([np.diff(chunk.starts) for chunk in chunks])
    starts = np.append(0, np.cumsum(sizes.sum(axis=0)))
    firsts = starts[:-1] + np.cumsum(sizes, axis=0) - sizes
    places = [
        np.repeat(first - chunk.starts[:-1], size) + np.arange(chunk.ordinals.size)
        for first, size, chunk in zip(firsts, sizes, chunks, strict=True)
    ]
    order = np.argsort(np.concatenate(places))
    hashes = np.concatenate([chunk.hashes for chunk in chunks])[order]
    ranks = np.concatenate([chunk.ranks for chunk in chunks])[order]
    supersedes = np.concatenate([chunk.ordinals for chunk in chunks])[order] & kernel.SUPERSEDES
    numbers = np.arange(order.size, dtype=np.uint32) | supersedes
    kernel.order_by_rank(hashes, numbers, starts, ranks)
    (dead,) = merge([Chunk(hashes, numbers, starts, _NO_RANKS)])
    is_dead = np.zeros(order.size, np.bool_)
    is_dead[dead] = True
    return [chunk.ordinals[is_dead[place]] & ~kernel.SUPERSEDES for chunk, place in zip(chunks, places, strict=True)]


@dataclass(slots=True)
class ScannedKeys:
    """The result of a scan for pass 2: the `NewestOffsets` of any number of keys.

    Attributes:
        latest_offset: records above it are kept whatever their key.
        segments: the outcomes, by the base offset of the segment.
        survivors: survivors of the segments' chunks, if they are kept. Newer chunks may supersede some: see `segments`.
        hash_secret: secret of the survivors' hashes.
        table: the dirty keys, if outcomes are to be confirmed; see `confirmed`.
        windows: all windows of small segments, with their checksums computed; a second read would cost more.
    """

    latest_offset: int
    segments: Mapping[int, SegmentOutcomes]
    survivors: Mapping[int, Survivors] = field(default_factory=dict, compare=False)
    hash_secret: bytes | None = field(default=None, repr=False, compare=False)
    table: DirtyTable | None = field(default=None, compare=False)
    windows: Mapping[int, Sequence[BatchWindow]] = field(default_factory=dict, repr=False, compare=False)

    def known_outcomes(self, segment: int, batches: BatchRows, path: str) -> KnownOutcomes:
        """See `NewestOffsets.known_outcomes`."""
        return self.segments[segment].of(batches, path)

    def unchanged(self, segment: int) -> tuple[int, int] | None:
        """See `NewestOffsets.unchanged`."""
        return self.segments[segment].unchanged

    def batches(self, segment: int) -> SegmentBatches:
        """See `NewestOffsets.batches`."""
        return self.segments[segment].batches

    def refute(self, segment: int, ordinals: npt.NDArray[np.uint32]) -> None:
        """Unmark records that are not superseded. Other threads may read the bits, but only one may change them."""
        kinds = np.full(ordinals.size, kernel.IGNORED, np.uint8)
        kernel.clear_bits(ordinals, kinds, self.segments[segment].bits)

    def get(self, columns: RecordColumns, chosen: BoolArray) -> Int64Array:
        """See `NewestOffsets.get`. Never needed: the scan has looked at all records whose keys matter."""
        assert not chosen.any(), "the scan decoded all of them"
        return np.full(columns.rows.size, NONE, np.int64)
