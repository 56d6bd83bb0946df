"""Decide which segments a clean that may leave garbage (`--min-dead`) spares, and record facts for the next clean.

    pass 1: superseded records ───────────────┐
    pending records, if they are valid ───────┴─► garbage of each segment ──► groups to write: `rules.sparing`
    expired tombstones ──► stay if a spared record may have their key
    spared segments ──► pending records, for the next clean: `storage.formats.pending_records`

A record is pending if a newer record superseded it and a clean left it in place. Its bit is only set after the bytes of
its key were compared, and it counts as superseded for every later clean that accepts the pending records. Three things
keep it dead:

    its superseding record stays  or is dropped for a newer one of the key, which supersedes both; if it is a tombstone,
                                  it stays while a pending record may have its key, by the hashes in the key indexes
    transactions                  segments with aborted data are written. The tracker sees the headers of spared
                                  segments, so a marker is not mistaken for one without data
    Kafka's checkpoint            stays at the start of the dirty section in which the first of them was superseded. So
                                  a clean that ignores pending records finds all of them again

Segments are written at any cost if more than superseded records would change in them: delete horizons to be set,
markers or tombstones to be removed, aborted data; also dirty segments with a record to be dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from cordwood.cleaning.engine.facts import aborted_transactions
from cordwood.cleaning.engine.readahead import decode_batches, with_upper_bounds
from cordwood.cleaning.engine.staying import Staying, read_through_gaps
from cordwood.cleaning.rules.key_table import BoolArray, Int64Array, UInt64Array
from cordwood.cleaning.rules.rewrite import Counts
from cordwood.cleaning.rules.sparing import GroupShare, groups_to_write
from cordwood.cleaning.rules.superseded import HELD, ScannedKeys, SegmentOutcomes
from cordwood.cleaning.rules.transactions import AbortTracker
from cordwood.common.errors import CorruptBatchError, CorruptFileError
from cordwood.kernels.layout import BATCH_ROW, DELETE_HORIZON, BatchRows, U8Array
from cordwood.kernels.superseded import HAS_KEYLESS, HAS_TOMBSTONE, set_bits
from cordwood.record.columns import BatchWindow
from cordwood.record.headers import has_flag, is_control, is_transactional_data
from cordwood.record.key_hashes import key_hashes
from cordwood.storage.formats.clean_checkpoint import CleanSegment
from cordwood.storage.formats.key_index import TAG_BITS, crc_of_header
from cordwood.storage.formats.pending_records import PendingRecords, crc_of_batches, ordinals, pending_of
from cordwood.storage.index.files import read_index
from cordwood.storage.index.probe import hashes_in
from cordwood.storage.log.clean_state import believed_checkpoint, read_pending
from cordwood.storage.log.segment import Segment
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import compute_crcs


class StaleStateError(Exception):
    """The state of the last clean does not match this log as it is now: the clean begins at Kafka's checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The parameters of a clean that may leave garbage.

    Attributes:
        garbage_share: garbage that may be left, as a share of the cleaned range.
        first_dirty: first offset whose key pass 1 read; no record below it has superseded others in this clean.
        relies_on_state: whether records below that superseded others in earlier cleans; the pending records of the last
            clean's checkpoint list those that are left.
        now_ms: the time of the clean.
        elides: whether expired tombstones and markers are removed.
        segment_bytes: `segment.bytes`.
        index_secret: secret of the key indexes; None without indexes.
    """

    garbage_share: float
    first_dirty: int
    relies_on_state: bool
    now_ms: int
    elides: bool
    segment_bytes: int
    index_secret: bytes | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class SparedSegment:
    """A segment that keeps its files.

    Attributes:
        counts: counts of all that stays.
        has_transactions: whether the tracker has to see its headers.
        known: its entry in a checkpoint.
        pending: its records that may be dropped; None without any.
    """

    counts: Counts
    has_transactions: bool
    known: CleanSegment
    pending: PendingRecords | None


@dataclass(frozen=True, slots=True)
class Spared:
    """Written and spared segments.

    Attributes:
        groups: the segments of each group; each spared segment is a group of its own.
        segments: the spared segments, by base offset.
        written_ms: when each segment was written, as far as a checkpoint contains it.
    """

    groups: list[list[Segment]]
    segments: Mapping[int, SparedSegment]
    written_ms: Mapping[int, int]

    @property
    def first_killer(self) -> int | None:
        """See `PendingRecords`; None without pending records."""
        killers = [one.pending.header.first_killer for one in self.segments.values() if one.pending is not None]
        return min(killers, default=None)


@dataclass(slots=True)
class _Surveyed:
    """Facts about a segment before the decision to spare it.

    Attributes:
        batches: number of batches.
        bits: uint8, a bit per record, set for superseded ones.
        due: int64[batches with expired tombstones], their indexes.
        must: whether it has to be written.
        is_old: whether it has entries of magic 0 or 1.
    """

    segment: Segment
    outcomes: SegmentOutcomes
    batches: int
    records: int
    bits: U8Array
    batches_crc: int
    last_position: int
    last_header_crc: int
    garbage_bytes: int
    first_killer: int
    written_ms: int
    due: Int64Array
    must: bool
    is_old: bool
    has_transactions: bool


def spare(
    log: LogView, groups: Sequence[Sequence[Segment]], newest: ScannedKeys, tracker: AbortTracker, terms: Terms
) -> Spared:
    """Decide which segments are spared. Mark pending records as superseded in `newest`.

    Args:
        log: the partition's log; it is only read.
        groups: the segments that would be written together.
        newest: result of pass 1, for all records.
        tracker: tracker of pass 2, at the first group; changed.

    Raises:
        StaleStateError: the clean relies on an invalid checkpoint.
    """
    checkpoint = believed_checkpoint(log)
    if terms.relies_on_state and (checkpoint is None or checkpoint.cleaned_to != terms.first_dirty):
        raise StaleStateError
    known = {} if checkpoint is None else {one.base_offset: one for one in checkpoint.segments}
    surveyed = [
        [
            _survey(log, segment, upper, newest.segments[segment.base_offset], known, tracker, terms)
            for segment, upper in with_upper_bounds(group)
        ]
        for group in groups
    ]
    written_ms = {base: one.written_ms for base, one in known.items()}
    if any(one.is_old for group in surveyed for one in group):
        # Tombstones of magic 0 and 1 have no horizon of their own, so they could not be held back.
        return Spared([list(group) for group in groups], {}, written_ms)
    for group in surveyed:
        if any(one.must for one in group):
            for one in group:
                one.must = True
    _hold_tombstones([one for group in surveyed for one in group], terms)
    return _chosen(surveyed, terms, written_ms)


def _chosen(surveyed: Sequence[Sequence[_Surveyed]], terms: Terms, written_ms: Mapping[int, int]) -> Spared:
    shares = [
        GroupShare(
            len(group),
            sum(one.segment.size_bytes for one in group),
            sum(one.garbage_bytes for one in group),
            max(0, terms.now_ms - max(one.written_ms for one in group)),
            any(one.must for one in group),
        )
        for group in surveyed
    ]
    garbage_max = terms.garbage_share * sum(share.size_bytes for share in shares)
    groups: list[list[Segment]] = []
    spared = {}
    for group, is_written in zip(surveyed, groups_to_write(shares, garbage_max, terms.segment_bytes), strict=True):
        if is_written:
            groups.append([one.segment for one in group])
            continue
        for one in group:
            groups.append([one.segment])
            spared[one.segment.base_offset] = _spared(one)
    return Spared(groups, spared, written_ms)


def _spared(facts: _Surveyed) -> SparedSegment:
    base, size = facts.segment.base_offset, facts.segment.size_bytes
    counts = Counts(
        bytes_read=size,
        bytes_written=size,
        batches_read=facts.batches,
        batches_verbatim=facts.batches,
        records_read=facts.records,
        records_kept=facts.records,
    )
    pending = None
    if facts.garbage_bytes:
        pending = pending_of(
            facts.bits,
            records=facts.records,
            base_offset=base,
            size_bytes=size,
            first_killer=facts.first_killer,
            batches_crc=facts.batches_crc,
        )
    known = CleanSegment(
        base,
        size,
        facts.last_position,
        facts.written_ms,
        facts.garbage_bytes,
        facts.last_header_crc,
        0 if pending is None else pending.header.header_crc,
    )
    return SparedSegment(counts, facts.has_transactions, known, pending)


# ---- one segment -----------------------------------------------------------------------------------------------------


def _survey(
    log: LogView,
    segment: Segment,
    upper: int | None,
    outcomes: SegmentOutcomes,
    known: Mapping[int, CleanSegment],
    tracker: AbortTracker,
    terms: Terms,
) -> _Surveyed:
    base = segment.base_offset
    tracker.add(aborted_transactions(log, base, upper))
    batches, discard = _headers(segment, outcomes, tracker)
    counts = np.maximum(batches["record_count"], 0).astype(np.int64)
    batches_crc = crc_of_batches(batches["position"], batches["crc"])
    same = np.array_equal(outcomes.positions, batches["position"]) and np.array_equal(outcomes.crcs, batches["crc"])
    if not same:
        what = "the file was changed while it was being cleaned: other batches were here a moment ago"
        raise CorruptBatchError(what, path=segment.path)
    own, first_killer = known.get(base), terms.first_dirty
    if terms.relies_on_state and own is not None:
        pending = _pending(segment, own, batches_crc, int(counts.sum()))
        if pending is not None:
            _add_pending(outcomes, counts, pending)
            first_killer = min(first_killer, pending.header.first_killer)
    superseded = outcomes.superseded
    sizes = np.diff(np.append(batches["position"].astype(np.int64), segment.size_bytes))
    garbage = int((sizes * superseded // np.maximum(counts, 1)).sum())
    tombstones = (outcomes.flags & HAS_TOMBSTONE != 0) & (superseded < outcomes.counts)
    horizons = has_flag(batches, DELETE_HORIZON)
    expired = horizons & (batches["base_timestamp"] <= terms.now_ms) & terms.elides
    last = int(batches["position"][-1]) if batches.size else 0
    return _Surveyed(
        segment,
        outcomes,
        batches.size,
        int(counts.sum()),
        _bits_of_all(outcomes, counts),
        batches_crc,
        last,
        _header_crc(segment, last),
        # Count at least a byte for superseded records, so that 0 means there are none.
        max(garbage, int(superseded.any())),
        first_killer,
        segment.mtime_ms if own is None else own.written_ms,
        due=np.flatnonzero(tombstones & expired),
        must=bool(
            (tombstones & ~horizons).any()
            or _changes(batches, discard, horizons, expired)
            or (outcomes.flags & HAS_KEYLESS).any()
            or (base >= terms.first_dirty and superseded.any())
        ),
        is_old=bool((batches["magic"] < 2).any()),
        has_transactions=bool((is_control(batches) | is_transactional_data(batches)).any()),
    )


def _headers(segment: Segment, outcomes: SegmentOutcomes, tracker: AbortTracker) -> tuple[BatchRows, BoolArray]:
    """Return BATCH_ROW[batches] of a segment, and the tracker's decisions; it need not see plain batches."""
    plain = outcomes.plain_batches
    if plain is not None:
        return plain, np.zeros(plain.size, np.bool_)
    found, discard = [np.empty(0, BATCH_ROW)], [np.zeros(0, np.bool_)]
    for batches in segment.headers():
        found.append(batches)
        discard.append(tracker.discard(batches)[0])
    return np.concatenate(found), np.concatenate(discard)


def _changes(batches: BatchRows, discard: BoolArray, horizons: BoolArray, expired: BoolArray) -> bool:
    """Whether a clean changes anything in a segment besides tombstones and superseded records."""
    control = is_control(batches)
    markers = discard & control & (batches["record_count"] > 0)
    return bool(((discard & ~control) | (markers & (~horizons | expired))).any())


def _pending(segment: Segment, known: CleanSegment, batches_crc: int, records: int) -> PendingRecords | None:
    try:
        found = read_pending(segment, known)
    except (OSError, CorruptFileError) as error:
        raise StaleStateError from error
    if found is not None and (found.header.batches_crc, found.header.records) != (batches_crc, records):
        raise StaleStateError
    return found


def _add_pending(outcomes: SegmentOutcomes, counts: Int64Array, pending: PendingRecords) -> None:
    """Mark pending records as superseded.

    Args:
        counts: int64[batches], number of records, control records included.
    """
    numbers, ends = ordinals(pending.bits), np.cumsum(counts)
    at = np.searchsorted(ends, numbers, side="right")
    if (outcomes.counts[at] != counts[at]).any():
        raise StaleStateError
    own = outcomes.first_ordinals[at] + numbers - (ends - counts)[at]
    set_bits(own.astype(np.uint32), outcomes.bits)


def _bits_of_all(outcomes: SegmentOutcomes, counts: Int64Array) -> U8Array:
    """uint8: a bit for each record of a segment, control records included, set for superseded ones."""
    numbers = ordinals(outcomes.bits)
    at = np.searchsorted(outcomes.first_ordinals + outcomes.counts, numbers, side="right")
    own = (np.cumsum(counts) - counts)[at] + numbers - outcomes.first_ordinals[at]
    bits = np.zeros(-(-int(counts.sum()) // 8), np.uint8)
    set_bits(own.astype(np.uint32), bits)
    return bits


# ---- tombstones ------------------------------------------------------------------------------------------------------


def _hold_tombstones(surveyed: Sequence[_Surveyed], terms: Terms) -> None:
    """Hold expired tombstones back: if a pending record may have the key of one, its batch keeps all its tombstones.

    Segments with other expired tombstones have to be written. The superseded records of every segment that may be
    spared count as pending. If such a segment is written nevertheless, a later clean removes the tombstone.
    """
    with_due = [one for one in surveyed if one.due.size]
    if not with_due:
        return
    garbage = [one for one in surveyed if one.garbage_bytes and not one.must]
    prefixes = _prefixes(garbage, terms.index_secret)
    for one in with_due:
        if prefixes is None:
            one.outcomes.flags[one.due] |= HELD
            continue
        held, due = (np.zeros(one.outcomes.flags.size, np.bool_) for _ in range(2))
        for at, hashes in _due_tombstones(one, terms.index_secret or bytes(16)):
            due[at] = True
            for mask, known in prefixes:
                held[at[np.isin(hashes & mask, known)]] = True
        one.outcomes.flags[held] |= HELD
        one.must = one.must or bool((due & ~held).any())


def _prefixes(garbage: Sequence[_Surveyed], index_secret: bytes | None) -> list[tuple[np.uint64, UInt64Array]] | None:
    """Return, per segment, the upper bits of its superseded records' hashes that its key index holds, and their mask.

    Return None if a segment has no valid index.
    """
    found = []
    for one in garbage:
        try:
            index = read_index(one.segment)
        except (OSError, CorruptFileError):
            return None
        header = index.header
        if header.secret != index_secret or not np.array_equal(index.crcs, one.outcomes.crcs):
            return None
        is_superseded = np.unpackbits(one.bits, bitorder="little")[index.ordinals] == 1
        mask = ~np.uint64(0) << np.uint64(64 - TAG_BITS - header.bits)
        found.append((mask, np.unique(hashes_in(index)[is_superseded])))
    return found


def _due_tombstones(facts: _Surveyed, secret: bytes) -> Iterator[tuple[Int64Array, UInt64Array]]:
    """Yield the expired tombstones that are not superseded: their batches, and the hashes of their keys."""
    segment, outcomes = facts.segment, facts.outcomes
    edges = np.append(outcomes.positions, segment.size_bytes).astype(np.int64)
    wanted = np.zeros(outcomes.positions.size, np.bool_)
    wanted[facts.due] = True
    is_read = wanted.copy()
    read_through_gaps(segment, edges, is_read)
    for read in Staying(segment, edges, is_read).windows():
        at = np.searchsorted(outcomes.positions, read.batches["position"])
        window = BatchWindow(read.position, read.data, read.batches[wanted[at]], read.read)
        compute_crcs(window)
        for columns in decode_batches(segment, window, np.ones(window.batches.size, np.bool_)):
            rows = columns.rows
            batches = np.searchsorted(outcomes.positions, columns.batches["position"])[rows["batch"]]
            starts = np.searchsorted(rows["batch"], rows["batch"], side="left")
            numbers = outcomes.first_ordinals[batches] + np.arange(rows.size) - starts
            superseded = outcomes.bits[numbers >> 3] >> (numbers & 7).astype(np.uint8) & 1
            chosen = (rows["value_size"] < 0) & (rows["key_size"] >= 0) & (superseded == 0)
            yield batches[chosen], key_hashes(columns, chosen, secret)[chosen, 1]


# ---- facts for the next clean ----------------------------------------------------------------------------------------


def known_of(segment: Segment, written_ms: int) -> CleanSegment:
    """Return a checkpoint's entry for a segment without pending records."""
    last = 0
    for batches in segment.headers():
        last = int(batches["position"][-1])
    return CleanSegment(segment.base_offset, segment.size_bytes, last, written_ms, 0, _header_crc(segment, last), 0)


def _header_crc(segment: Segment, position: int) -> int:
    """Return `crc_of_header` of the batch at a position of a segment; 0 if the segment is empty."""
    if not segment.size_bytes:
        return 0
    with segment.open() as file:
        return crc_of_header(file, position, segment.size_bytes - position)
