"""Apply the rules to a run of consecutive batches, and encode the kept records.

Each batch has one of four outcomes:

    verbatim   all records are kept and no delete horizon is to be set: the bytes are copied
    rebuilt    some records are dropped, a horizon is set, or the magic is 0 or 1: encoded again as magic 2
    emptied    no record is kept, but the header is: it holds a producer's last sequence, or the end of the range
    dropped    nothing is kept

The rules are Kafka's (Cleaner, MemoryRecords.filterTo). Rules for whole batches are masks in this module; rules for a
record, with the argument why it may be dropped, are in `kernels.judge`. Example: a batch holds a=1 and b=1, and a=2
is in the dirty section. The batch is rebuilt with b=1 alone and keeps its base and last offset. If b=2 is also in the
dirty section, no record is kept: the batch is dropped. It is emptied instead if it ends the range, or if it is the last
batch of an active producer: without its last sequence, the producer's next append would be refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np
import numpy.typing as npt

from cordwood.cleaning.rules import thinning
from cordwood.cleaning.rules.held import NOTHING_HELD, HeldOffsets
from cordwood.cleaning.rules.key_table import KnownOutcomes, NewestOffsets
from cordwood.common.config import LONG_MAX
from cordwood.common.errors import RequestError
from cordwood.common.types import NONE, Codec
from cordwood.kernels import judge
from cordwood.kernels.encode import RECORD_EXTRA_BYTES, encode_bodies, measure_bodies, write_headers
from cordwood.kernels.layout import (
    BATCH_ROW,
    CODEC_MASK,
    CONTROL,
    CRC_AT,
    CRC_START,
    DELETE_HORIZON,
    HEADER,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchRows,
    RecordRows,
    U8Array,
    has_flag,
    is_control,
)
from cordwood.record.batch import codec_of, encode_header
from cordwood.record.bodies import compress_bodies
from cordwood.record.columns import RecordColumns
from cordwood.record.compression import compress_stream
from cordwood.record.record import write_varint

BoolArray = npt.NDArray[np.bool_]
Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ActiveProducers:
    """The producers that may write again, and the batch with the last sequence of each, which must be kept.

    Attributes:
        ids: int64[producers], ascending.
        last_offsets: int64[producers], last offset of each producer's newest data batch; NONE without one.
        epochs: int64[producers].
    """

    ids: Int64Array
    last_offsets: Int64Array
    epochs: Int64Array

    def last_of(self, batches: BatchRows) -> BoolArray:
        """bool[batches]: True for the last batch of an active producer.

        For a producer without data batches, this is every control batch of its epoch.
        """
        result = np.zeros(batches.size, np.bool_)
        if not self.ids.size:
            return result
        found = np.minimum(np.searchsorted(self.ids, batches["producer_id"]), self.ids.size - 1)
        known = (batches["producer_id"] >= 0) & (self.ids[found] == batches["producer_id"])
        last = self.last_offsets[found]
        by_offset = (last != NONE) & (last == batches["last_offset"])
        by_epoch = (last == NONE) & is_control(batches) & (self.epochs[found] == batches["producer_epoch"])
        result[:] = known & (by_offset | by_epoch)
        return result


@dataclass(frozen=True, slots=True)
class Elision:
    """Whether expired tombstones and markers may be removed for good.

    If one replica drops a tombstone before the others have it, the deleted key may reappear. So expired tombstones and
    markers stay while there are, or may be, other replicas.

    Attributes:
        is_only_replica: whether there is no other replica, or all replicas lose the same tombstones and markers.
        is_old_segment: whether the segment is older than the last clean minus `delete.retention.ms`; then its
            tombstones of magic 0 and 1, which have no horizon of their own, have expired.
        held: tombstones and markers in batches with these offsets stay whatever their horizon here.
    """

    is_only_replica: bool
    is_old_segment: bool = False
    held: HeldOffsets = NOTHING_HELD

    @classmethod
    def by_only_replica(cls) -> Elision:
        """Expired tombstones and markers are removed."""
        return cls(is_only_replica=True)

    @classmethod
    def beside_replicas(cls) -> Elision:
        """Expired tombstones and markers stay, and are counted."""
        return cls(is_only_replica=False)

    @classmethod
    def of(cls, is_only_replica: bool, held: HeldOffsets = NOTHING_HELD) -> Elision:
        """Choose by whether this is the only replica."""
        return replace(cls.by_only_replica() if is_only_replica else cls.beside_replicas(), held=held)

    def in_segment(self, *, is_old: bool) -> Elision:
        """Return the same rule for the tombstones of one segment."""
        return replace(self, is_old_segment=is_old)

    def allowed(self, batches: BatchRows) -> BoolArray:
        """bool[batches]: whether expired tombstones and markers of a batch may go."""
        if not self.is_only_replica:
            return np.zeros(batches.size, np.bool_)
        return ~self.held.overlap(batches["base_offset"], batches["last_offset"])

    def __str__(self) -> str:
        return "expired tombstones go" if self.is_only_replica else "expired tombstones stay for other replicas"


@dataclass(frozen=True, slots=True)
class Rules:
    """The parameters of the rules, for one clean.

    Attributes:
        now_ms: the time of the clean, the same throughout.
        delete_retention_ms: `delete.retention.ms`; a new horizon is this far after `now_ms`.
        first_uncleanable_offset: end of the cleanable range.
        elision: whether expired tombstones and markers are removed.
        strict_kafka: raise an error, as Kafka does, if a batch of magic 0 or 1 ends the range and keeps no record:
            these formats have no empty batch. If False, the batch is dropped.
    """

    now_ms: int
    delete_retention_ms: int
    first_uncleanable_offset: int
    producers: ActiveProducers
    elision: Elision = field(default_factory=Elision.by_only_replica)
    strict_kafka: bool = False


@dataclass(slots=True)
class Counts:
    """Records, batches and bytes that a clean read, kept and dropped. `check` asserts that the numbers add up."""

    bytes_read: int = 0
    bytes_written: int = 0
    batches_read: int = 0
    batches_verbatim: int = 0
    batches_rebuilt: int = 0
    batches_emptied: int = 0
    batches_dropped: int = 0
    records_read: int = 0
    records_kept: int = 0
    records_superseded: int = 0
    records_without_key: int = 0
    records_aborted: int = 0
    tombstones_expired: int = 0
    markers_expired: int = 0
    #: Expired, and kept only because there may be other replicas (`Elision`); part of `records_kept`.
    tombstones_kept_for_replicas: int = 0
    markers_kept_for_replicas: int = 0

    def add(self, other: Counts) -> None:
        """Add the counts of `other` to these."""
        for name in _COUNTED:
            if more := getattr(other, name):
                setattr(self, name, getattr(self, name) + more)

    def check(self) -> None:
        """Assert that every record was kept or dropped for exactly one reason, and every batch has one outcome."""
        assert self.records_read == (
            self.records_kept
            + self.records_superseded
            + self.records_without_key
            + self.records_aborted
            + self.tombstones_expired
            + self.markers_expired
        ), self
        assert self.batches_read == (
            self.batches_verbatim + self.batches_rebuilt + self.batches_emptied + self.batches_dropped
        ), self


#: Names of the counts; each window's counts are added to those of its clean.
_COUNTED = tuple(one.name for one in fields(Counts))
#: The counts of one batch.
COUNTS_ROW = np.dtype([(name, np.int64) for name in _COUNTED])
#: The counts that `judge.judge_records` finds, in its order.
_JUDGED = (
    "records_read",
    "records_kept",
    "records_superseded",
    "records_without_key",
    "records_aborted",
    "tombstones_expired",
    "markers_expired",
    "tombstones_kept_for_replicas",
)
assert len(_JUDGED) == judge.COUNTS
#: COUNTS_ROW[batches].
CountRows = npt.NDArray[np.void]


class CountsByPart:
    """Counts per numbered part of the cleaned log."""

    def __init__(self, parts: int) -> None:
        self._sums = np.zeros((parts, len(_COUNTED)), np.int64)

    def add(self, parts: Int64Array, rows: CountRows) -> None:
        """Add the counts of batches to their parts (int64[batches], ascending)."""
        firsts = np.flatnonzero(np.diff(parts, prepend=-1))
        if firsts.size:
            columns = rows.view(np.int64).reshape(rows.size, len(_COUNTED))
            self._sums[parts[firsts]] += np.add.reduceat(columns, firsts, axis=0)

    def counts(self) -> list[Counts]:
        """Return the counts of each part."""
        found = [Counts(*row) for row in self._sums.tolist()]
        for counts in found:
            counts.check()
        return found


#: Space for a header, which is written once the size and CRC of its batch are known.
_NO_HEADER = bytes(HEADER.size)
#: In batches above `thinning.LARGE_BYTES`, records up to `COPIED_BYTES` are copied, in runs of about `RUN_BYTES`.
COPIED_BYTES, RUN_BYTES = 256 << 10, 4 << 20
#: A codec reads a large record in pieces of this size; the pieces of its output are no larger.
PIECE_BYTES = 1 << 20
#: The outcome of a batch. Not an enum: NumPy compares arrays with its members slowly.
_DROPPED, _VERBATIM, _REBUILT, _EMPTIED = range(4)
_BY_OUTCOME = ("batches_dropped", "batches_verbatim", "batches_rebuilt", "batches_emptied")


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The output of a run of batches.

    Attributes:
        pieces: the bytes of the kept batches, in order.
        batches: BATCH_ROW[batches] of the kept batches; their positions are still those in the input.
        counts: COUNTS_ROW[batches], outcomes of all batches of the run.
    """

    pieces: Sequence[U8Array]
    batches: BatchRows
    counts: CountRows


def needs_no_decoding(batches: BatchRows, discard: BoolArray, known: KnownOutcomes) -> BoolArray:
    """bool[batches]: True if all records, or none, are known to be kept, so that the batch need not be decoded."""
    dead = known.superseded == known.records
    whole = (known.superseded == 0) & known.plain
    aborted = discard & ~is_control(batches) & (batches["magic"] == 2)
    return np.asarray(aborted | known.known & ~discard & (dead | whole))


def rewrite(
    data: U8Array,
    batches: BatchRows,
    decoded: Sequence[RecordColumns],
    discard: BoolArray,
    known: KnownOutcomes,
    rules: Rules,
    latest: NewestOffsets,
    thinned: thinning.Thinned | None = None,
) -> Rewritten:
    """Decide which records of a run of batches to keep, and encode them.

    Args:
        data: uint8[bytes], the bytes of the batches, without gaps; the first batch starts at 0.
        batches: BATCH_ROW[batches]; positions are those in the file.
        decoded: their records. Each batch is in exactly one item; it may be missing if all its records are discarded,
            if `needs_no_decoding` is True for it, or if it is thinned.
        discard: bool[batches], the result of `AbortTracker.discard`.
        known: outcomes that pass 1 found; the other records are looked up in `latest`.
        rules: the parameters of this clean.
        latest: the newest offset of each key.
        thinned: batches that are already rebuilt, or None.

    Raises:
        RequestError: with `Rules.strict_kafka`, at a batch at which Kafka's cleaner fails.
    """
    counts = np.zeros(batches.size, COUNTS_ROW)
    counts["bytes_read"], counts["batches_read"] = batches["size_bytes"], 1
    control = is_control(batches)
    horizons = has_flag(batches, DELETE_HORIZON)
    expired = horizons & (batches["base_timestamp"] <= rules.now_ms)
    allowed = rules.elision.allowed(batches)
    gone = expired & allowed
    retain_empty = rules.producers.last_of(batches) | (batches["last_offset"] + 1 == rules.first_uncleanable_offset)
    batch_rules = _batch_rules(batches, expired, allowed, is_old=rules.elision.is_old_segment)
    batch_rules["first_ordinal"] = known.first_ordinals
    batch_rules["control"], batch_rules["discarded"] = control, discard & (~control | gone)

    outcomes = np.zeros(batches.size, np.int8)
    outcomes[retain_empty & (batches["magic"] == 2)] = _EMPTIED
    headers = batches.copy() if thinned is None else thinned.headers
    places = _Places(data, batches)
    settled = needs_no_decoding(batches, discard, known) & ~discard
    if thinned is not None:
        settled |= _take_thinned(thinned, outcomes, places)
    _take_settled(settled, known, outcomes, counts)
    for columns in decoded:
        index_of = np.searchsorted(batches["position"], columns.batches["position"])
        keep, found = _judge(columns, index_of, batch_rules, known, latest, counts)
        kept = found[:, judge.STAY]
        some = kept > 0
        horizon_due = some & ((found[:, judge.TOMBSTONES] > 0) | control & discard) & ~horizons
        verbatim = some & (batches["magic"] == 2) & (kept == found[:, judge.TOTAL]) & ~horizon_due
        outcomes[some] = np.where(verbatim, _VERBATIM, _REBUILT)[some]
        anew = some & ~verbatim
        if anew.any():
            horizon_ms = min(rules.now_ms + rules.delete_retention_ms, LONG_MAX)
            judge.renew_headers(headers, anew, horizon_due, horizon_ms, found, columns.rows)
            _encode(headers, columns, index_of, keep, anew, places)
    held_back = discard & control & expired & ~gone
    counts["markers_kept_for_replicas"][held_back] = np.maximum(batches["record_count"][held_back], 0)
    _count_undecoded(batches, decoded, batch_rules["discarded"], control, counts)
    if rules.strict_kafka:
        _fail_as_kafka(batches, retain_empty & (batches["magic"] < 2) & (outcomes == _DROPPED))
    for at in np.flatnonzero(outcomes == _EMPTIED).tolist():
        places.put(_empty(headers, at), np.array([at]), np.zeros(1, np.int64))
    for outcome, name in enumerate(_BY_OUTCOME):
        counts[name] = outcomes == outcome
    stays = outcomes != _DROPPED
    counts["bytes_written"][stays] = headers["size_bytes"][stays]
    return Rewritten(places.pieces(stays, headers["size_bytes"]), headers[stays], counts)


def _batch_rules(batches: BatchRows, expired: BoolArray, allowed: BoolArray, *, is_old: bool) -> np.ndarray:
    """BATCH_RULES[batches] with `tombstone_fate`, for tombstones that no record supersedes; other fields are not set.

    Args:
        batches: BATCH_ROW[batches].
        expired: bool[batches], batches whose delete horizon has passed.
        allowed: bool[batches], see `Elision.allowed`.
        is_old: see `Elision.is_old_segment`.
    """
    rules = np.empty(batches.size, judge.BATCH_RULES)
    is_due = np.where(batches["magic"] == 2, expired, is_old)
    due = np.where(allowed, judge.TOMBSTONES_EXPIRED, judge.KEPT_FOR_REPLICAS)
    rules["tombstone_fate"] = np.where(is_due, due, judge.KEPT)
    return rules


def _fail_as_kafka(batches: BatchRows, lost: BoolArray) -> None:
    """Raise instead of dropping a batch of an old format that ends the range; see `Rules.strict_kafka`."""
    if lost.any():
        batch = batches[lost][0]
        raise RequestError(
            f"The batch of magic {batch['magic']} that ends at offset {batch['last_offset']} keeps no record, and it "
            "ends the range. Kafka's cleaner fails here every time; without --strict-kafka it is dropped"
        )


class _Places:
    """Location of each batch's bytes: in the input, or in a buffer of batches that were encoded again."""

    def __init__(self, data: U8Array, batches: BatchRows) -> None:
        self._buffers = [data]
        self._buffer = np.zeros(batches.size, np.int64)
        self._start = batches["position"] - batches["position"][0] if batches.size else np.empty(0, np.int64)
        self._in_pieces: dict[int, Sequence[U8Array]] = {}

    def put(self, buffer: U8Array, chosen: Int64Array, starts: Int64Array) -> None:
        """Record that the batches with the indexes `chosen` are in `buffer`, at these starts."""
        self._buffer[chosen] = len(self._buffers)
        self._start[chosen] = starts
        self._buffers.append(buffer)

    def put_pieces(self, pieces: Sequence[U8Array], chosen: int) -> None:
        """Record that the batch with the index `chosen` consists of these pieces."""
        self._in_pieces[len(self._buffers)] = pieces
        self.put(pieces[0], np.array([chosen]), np.zeros(1, np.int64))

    def pieces(self, stays: BoolArray, sizes: Int64Array) -> list[U8Array]:
        """Return the bytes of the kept batches, in order; adjacent batches of a buffer are one piece."""
        buffer, start, end = self._buffer[stays], self._start[stays], (self._start + sizes)[stays]
        if not start.size:
            return []
        edges = np.flatnonzero((buffer[1:] != buffer[:-1]) | (start[1:] != end[:-1]))
        firsts, lasts = np.append(0, edges + 1), np.append(edges, start.size - 1)
        runs = zip(buffer[firsts].tolist(), start[firsts].tolist(), end[lasts].tolist(), strict=True)
        result: list[U8Array] = []
        for which, first, last in runs:
            result += self._in_pieces.get(which) or [self._buffers[which][first:last]]
        return result


def _take_thinned(thinned: thinning.Thinned, outcomes: npt.NDArray[np.int8], places: _Places) -> BoolArray:
    """Finish thinned batches and set their outcomes. Return bool[batches], True for thinned batches."""
    outcomes[thinned.done] = _REBUILT
    chosen = np.flatnonzero(thinned.done)
    _finish(thinned.headers, chosen, thinned.target, thinned.starts[chosen], thinned.ends[chosen], places)
    return thinned.done


def _take_settled(chosen: BoolArray, known: KnownOutcomes, outcomes: npt.NDArray[np.int8], counts: CountRows) -> None:
    """Set the outcomes of chosen batches that stay whole, and add the counts of all chosen ones: no record needs
    judging.
    """
    whole = chosen & (known.superseded == 0)
    outcomes[whole] = _VERBATIM
    records, superseded = known.records[chosen], known.superseded[chosen]
    counts["records_read"][chosen] += records
    counts["records_superseded"][chosen] += superseded
    counts["records_kept"][chosen] += records - superseded


def _judge(
    columns: RecordColumns,
    index_of: Int64Array,
    batch_rules: npt.NDArray[np.void],
    known: KnownOutcomes,
    latest: NewestOffsets,
    counts: CountRows,
) -> tuple[BoolArray, Int64Array]:
    """Judge decoded records, and add the counts.

    Returns:
        bool[records], True for a record that is kept; and int64[batches, FINDINGS], see `judge.judge_records`.
    """
    rows = columns.rows
    asked = (~known.known & ~batch_rules["control"] & ~batch_rules["discarded"])[index_of]
    newest = np.empty(0, np.int64)
    if asked.any():
        newest = latest.get(columns, (rows["key_size"] >= 0) & asked[rows["batch"]])
    keep, found = np.empty(rows.size, np.bool_), np.zeros((batch_rules.size, judge.FINDINGS), np.int64)
    sums = np.zeros((batch_rules.size, judge.COUNTS), np.int64)
    judge.judge_records(
        rows,
        index_of,
        batch_rules,
        known.bits,
        newest,
        latest.latest_offset,
        keep,
        found,
        sums,
    )
    for name, column in zip(_JUDGED, sums.T, strict=True):
        counts[name] += column
    return keep, found


def _count_undecoded(
    batches: BatchRows,
    decoded: Sequence[RecordColumns],
    discard_records: BoolArray,
    control: BoolArray,
    counts: CountRows,
) -> None:
    """Add the counts of batches that were not decoded because all their records are discarded."""
    seen = np.zeros(batches.size, np.bool_)
    for columns in decoded:
        seen[np.searchsorted(batches["position"], columns.batches["position"])] = True
    left = ~seen & discard_records
    records = np.maximum(batches["record_count"], 0)
    counts["records_read"] += records * left
    counts["records_aborted"] += records * (left & ~control)
    counts["markers_expired"] += records * (left & control)


def _encode(
    headers: BatchRows, columns: RecordColumns, index_of: Int64Array, keep: BoolArray, anew: BoolArray, places: _Places
) -> None:
    """Encode the batches marked in `anew`; sets their sizes and CRCs in `headers`."""
    address, rows = columns.data.ctypes.data, columns.rows
    chosen = np.flatnonzero(anew)
    # Batches that are decoded together are either all compressed or all uncompressed.
    plain = int(headers["attributes"][chosen[0]]) & CODEC_MASK == Codec.NONE
    room = int(measure_bodies(address, rows, keep, index_of, anew)) + HEADER.size * chosen.size
    if room > thinning.LARGE_BYTES:
        records = _RecordEncoder(columns, index_of, headers)
        for at in chosen.tolist():
            _encode_large(records, columns.rows[keep & (index_of[rows["batch"]] == at)], at, places)
        return
    target = np.empty(room, np.uint8)
    starts, ends = np.zeros(headers.size, np.int64), np.zeros(headers.size, np.int64)
    encode_bodies(address, rows, keep, index_of, anew, headers, target.ctypes.data, plain, starts, ends)
    if plain:
        _finish(headers, chosen, target, starts[chosen], ends[chosen], places)
        return
    codecs = headers["attributes"][chosen] & CODEC_MASK
    for number in np.unique(codecs).tolist():
        same = chosen[codecs == number]
        _finish(
            headers,
            same,
            *compress_bodies(codec_of(number), target, starts[same], ends[same], gap=HEADER.size),
            places,
        )


def _finish(
    headers: BatchRows, chosen: Int64Array, target: U8Array, starts: Int64Array, ends: Int64Array, places: _Places
) -> None:
    """Write the headers of the chosen batches, which are at [starts, ends) in `target`."""
    headers["size_bytes"][chosen] = ends - starts
    written, at = np.zeros(headers.size, np.bool_), np.zeros(headers.size, np.int64)
    written[chosen], at[chosen] = True, starts
    write_headers(headers, written, at, target.ctypes.data)
    places.put(target, chosen, starts)


def _encode_large(records: _RecordEncoder, rows: RecordRows, at: int, places: _Places) -> None:
    """Encode a large batch without a second copy of its large records in memory.

    An uncompressed batch becomes views of the input, with the encoded fields between them. For a compressed batch, the
    codec reads such views, and its output is appended to one growing buffer.

    Args:
        records: the encoder, with the new header of the batch.
        rows: RECORD_ROW[records], the kept records.
        at: index of the batch.
        places: receives the bytes.
    """
    headers = records.headers
    codec = codec_of(int(headers["attributes"][at]))
    if codec is Codec.NONE:
        body = list(records.pieces(rows))
        headers["size_bytes"][at] = HEADER.size + sum(piece.size for piece in body)
        header = encode_header(headers[at], body)
        headers["crc"][at] = headers["computed_crc"][at] = int.from_bytes(header[CRC_AT:CRC_START], "big")
        places.put_pieces([np.frombuffer(header, np.uint8), *body], at)
        return
    whole = bytearray(_NO_HEADER)
    for piece in compress_stream(codec, records.pieces(rows)):
        whole += piece
    headers["size_bytes"][at] = len(whole)
    target = np.frombuffer(whole, np.uint8)
    one = headers[at : at + 1]
    write_headers(one, np.ones(1, np.bool_), np.zeros(1, np.int64), target.ctypes.data)
    places.put(target, np.array([at]), np.zeros(1, np.int64))


@dataclass(frozen=True, slots=True)
class _RecordEncoder:
    """Encodes records of large batches.

    Attributes:
        index_of: int64[batches], for each batch of the columns its index in `headers`.
        headers: BATCH_ROW[batches], the new headers.
    """

    columns: RecordColumns
    index_of: Int64Array
    headers: BatchRows

    def pieces(self, rows: RecordRows) -> Iterator[U8Array]:
        """Yield the bytes of records of one batch: small records encoded in runs, large ones mostly as views."""
        sizes = RECORD_EXTRA_BYTES + sum(
            np.maximum(rows[name], 0, dtype=np.int64) for name in ("key_size", "value_size")
        )
        headed = np.flatnonzero(rows["header_count"] > 0)
        sizes[headed] = [self._room(rows[i : i + 1]) for i in headed.tolist()]
        large = sizes > COPIED_BYTES
        run = np.cumsum(np.where(large, 0, sizes)) // RUN_BYTES
        edges = np.flatnonzero(large[1:] | large[:-1] | (run[1:] != run[:-1])) + 1
        for part, is_large in zip(np.split(rows, edges), large[np.append(0, edges)].tolist(), strict=True):
            if is_large:
                yield from self._large(part)
            else:
                yield self._small(part)

    def _room(self, rows: RecordRows) -> int:
        return int(measure_bodies(self.columns.data.ctypes.data, rows, *self._all(rows)))

    def _all(self, rows: RecordRows) -> tuple[BoolArray, Int64Array, BoolArray]:
        return np.ones(rows.size, np.bool_), self.index_of, np.ones(self.headers.size, np.bool_)

    def _small(self, rows: RecordRows) -> U8Array:
        target = np.empty(self._room(rows), np.uint8)
        edges = np.zeros((2, self.headers.size), np.int64)
        address = self.columns.data.ctypes.data
        size = encode_bodies(address, rows, *self._all(rows), self.headers, target.ctypes.data, False, *edges)
        return target[:size]

    def _large(self, rows: RecordRows) -> Iterator[U8Array]:
        offset, timestamp, batch, key, key_size, value, value_size, headers, count = rows[0].tolist()
        header = self.headers[self.index_of[batch]]
        room = self._room(rows) - RECORD_EXTRA_BYTES  # of key, value and headers
        headers_size = room - max(key_size, 0) - max(value_size, 0)
        before_key = (
            b"\0"
            + write_varint(timestamp - int(header["base_timestamp"]))
            + write_varint(offset - int(header["base_offset"]))
            + write_varint(key_size)
        )
        before_value, before_headers = write_varint(value_size), write_varint(count)
        size = len(before_key) + len(before_value) + len(before_headers) + room
        yield np.frombuffer(write_varint(size) + before_key, np.uint8)
        yield from self._views(key, key_size)
        yield np.frombuffer(before_value, np.uint8)
        yield from self._views(value, value_size)
        yield np.frombuffer(before_headers, np.uint8)
        yield from self._views(headers, headers_size)

    def _views(self, start: int, size_bytes: int) -> Iterator[U8Array]:
        end = start + size_bytes
        return (self.columns.data[at : min(at + PIECE_BYTES, end)] for at in range(start, end, PIECE_BYTES))


def _empty(headers: BatchRows, at: int) -> U8Array:
    """uint8[61]: the header of an emptied batch; its row in `headers` is changed to match."""
    row = headers[at]
    row["attributes"] &= LOG_APPEND_TIME | TRANSACTIONAL | CONTROL
    row["base_timestamp"] = NONE
    row["record_count"] = 0
    row["size_bytes"] = HEADER.size
    row["control_type"] = NONE
    target = np.empty(HEADER.size, np.uint8)
    one = headers[at : at + 1]
    write_headers(one, np.ones(1, np.bool_), np.zeros(1, np.int64), target.ctypes.data)
    return target


assert set(BATCH_ROW.names or ()) >= {"base_offset", "last_offset", "size_bytes", "crc"}
