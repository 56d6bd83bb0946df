"""Which remote segments a clean replaces, and the events that make brokers use the new ones; values only.

A clean turns groups of segments into outputs. Each output, written or not, is a piece of the log:

    piece       0..174    175..499    500..818    819..853
    segments    A         B, C        D           B
    written     no        yes         no          no

B also answers for offsets from 819 on. So when C and B are replaced, the last piece gets a new segment, too, with the
same bytes. A piece without records joins a neighbour, as a remote segment cannot be empty.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from cordwood.common.errors import RequestError
from cordwood.storage.formats.leader_epochs import EpochEntry
from cordwood.storage.tier.remote_log import Answer, RemoteLog, answers
from cordwood.storage.tier.segments import CopyState, RemoteSegment, SegmentEvent, UpdateEvent


@dataclass(frozen=True, slots=True)
class SegmentPiece:
    """A part of the log that is one segment after the clean.

    Attributes:
        base_offset: offset in the names of its files.
        first_offset, last_offset: the offsets that it covers; both are included.
        size_bytes: size of its `.log`.
        is_written: the clean wrote its files; otherwise they are those of the log.
        is_new: it gets a new segment.
    """

    base_offset: int
    first_offset: int
    last_offset: int
    size_bytes: int
    is_written: bool
    is_new: bool


def pieces_of(
    groups: Iterable[tuple[Sequence[int], Sequence[int]]],
    kept: Collection[int],
    last_offsets: Mapping[int, int],
    sizes: Mapping[int, int],
) -> list[SegmentPiece]:
    """Return the pieces of a cleaned range, in order.

    Args:
        groups: base offsets of the segments in each group, and of its outputs.
        kept: base offsets of outputs that were not written, as each is the same as its source.
        last_offsets: last offset of each segment of the log, by base offset.
        sizes: size of the `.log` of each output, by base offset.
    """
    found = []
    for replaced, outputs in groups:
        firsts = [replaced[0], *outputs[1:]]
        lasts = [*(first - 1 for first in firsts[1:]), last_offsets[replaced[-1]]]
        for base, first, last in zip(outputs, firsts, lasts, strict=True):
            is_written = base not in kept
            found.append(SegmentPiece(base, first, last, sizes[base], is_written, is_new=is_written))
    return found


@dataclass(frozen=True, slots=True)
class TierReplacement:
    """The new segments of a tier, and the old ones that they replace.

    Attributes:
        pieces: the pieces that get a new segment.
        sources: the answers that each piece replaces.
        replaced: the old segments, by start offset; afterwards they answer for no offset.
        staying: the answers that stay.
    """

    pieces: tuple[SegmentPiece, ...]
    sources: tuple[tuple[Answer, ...], ...]
    replaced: tuple[RemoteSegment, ...]
    staying: tuple[Answer, ...]


def plan_replacement(pieces: Sequence[SegmentPiece], answered: Sequence[Answer]) -> TierReplacement:
    """Decide which pieces get a new segment, and which segments go.

    Args:
        pieces: all pieces of the cleaned range; nothing is replaced if no record is in any of them.
        answered: the answers of the whole log before the clean.

    Raises:
        RequestError: a segment would have to go that also answers for offsets above the cleaned range.
    """
    found = _without_empty(pieces)
    while True:
        going = {one.segment.id for piece in found if piece.is_new for one in _answers_in(piece, answered)}
        shared = [
            not piece.is_new and any(one.segment.id in going for one in _answers_in(piece, answered)) for piece in found
        ]
        if not any(shared):
            break
        found = [replace(one, is_new=one.is_new or is_shared) for one, is_shared in zip(found, shared, strict=True)]
    new = tuple(piece for piece in found if piece.is_new)
    sources = tuple(tuple(_answers_in(piece, answered)) for piece in new)
    taken = {one for some in sources for one in some}
    staying = tuple(one for one in answered if one not in taken)
    for one in staying:
        if one.segment.id in going:
            raise RequestError(
                f"segment {one.segment.id} answers for offsets of the cleaned range, and for {one.first_offset} to "
                f"{one.last_offset}, which cannot be cleaned yet. Clean again after more segments have left the disk"
            )
    replaced = {one.segment.id: one.segment for some in sources for one in some}
    return TierReplacement(new, sources, tuple(replaced.values()), staying)


def _without_empty(pieces: Sequence[SegmentPiece]) -> list[SegmentPiece]:
    """Let pieces without records join the piece before them; at the start, the piece after them."""
    found: list[SegmentPiece] = []
    start = None
    for piece in pieces:
        if not piece.size_bytes:
            if found:
                found[-1] = replace(found[-1], last_offset=piece.last_offset, is_new=True)
            else:
                start = piece.first_offset if start is None else start
            continue
        if start is not None and not found:
            piece = replace(piece, first_offset=start, is_new=True)
        found.append(piece)
    return found


def _answers_in(piece: SegmentPiece, answered: Sequence[Answer]) -> list[Answer]:
    return [one for one in answered if one.first_offset <= piece.last_offset and piece.first_offset <= one.last_offset]


# ---- segments and events ---------------------------------------------------------------------------------------------


def epochs_of(piece: SegmentPiece, sources: Sequence[Answer], lineage: Sequence[EpochEntry]) -> tuple[EpochEntry, ...]:
    """Return the part of the lineage within a piece.

    A lineage begins at the log start, and the first segment may begin below it, in the epoch that it had there.
    """
    before = [entry for entry in lineage if entry.start_offset <= piece.first_offset]
    first = before[-1].epoch if before else sources[0].segment.epochs[0].epoch
    within = [
        entry
        for entry in lineage
        if piece.first_offset < entry.start_offset <= piece.last_offset and entry.epoch > first
    ]
    return (EpochEntry(first, piece.first_offset), *within)


def lineage_at_end(
    piece: SegmentPiece, epochs: Sequence[EpochEntry], lineage: Sequence[EpochEntry]
) -> list[EpochEntry]:
    """Return the lineage up to the end of a piece, as its segment has it; `epochs` are those of the piece."""
    before = [entry for entry in lineage if entry.start_offset <= piece.first_offset]
    return [*(before or epochs[:1]), *epochs[1:]]


def events_of(
    new: Iterable[tuple[RemoteSegment, bytes | None]], replaced: Iterable[RemoteSegment], *, is_deleted: bool
) -> list[SegmentEvent | UpdateEvent]:
    """Return the events that replace segments by new ones.

    Args:
        new: segments whose objects are complete, with their custom metadata.
        is_deleted: no broker shall delete the objects of the replaced segments.
    """
    new, found = list(new), list[SegmentEvent | UpdateEvent]()
    for segment, custom_metadata in new:
        found += [SegmentEvent(segment), _update(segment, CopyState.COPY_FINISHED, custom_metadata, segment)]
    by = new[0][0]
    replaced = list(replaced)
    found += [_update(one, CopyState.DELETE_STARTED, one.custom_metadata, by) for one in replaced]
    return [*found, *deleted(replaced, by)] if is_deleted else found


def deleted(replaced: Iterable[RemoteSegment], by: RemoteSegment) -> list[UpdateEvent]:
    """Return the events after the objects of segments were deleted; `by` has the broker and the time."""
    return [_update(one, CopyState.DELETE_FINISHED, one.custom_metadata, by) for one in replaced]


def _update(segment: RemoteSegment, state: CopyState, custom_metadata: bytes | None, by: RemoteSegment) -> UpdateEvent:
    return UpdateEvent(segment.topic_id_partition, segment.id, by.broker, by.event_time_ms, custom_metadata, state)


def fault_after(
    log: RemoteLog,
    events: Iterable[SegmentEvent | UpdateEvent],
    replacement: TierReplacement,
    new_ids: Sequence[str],
    lineage: Sequence[EpochEntry],
    log_start: int,
    local_start: int,
) -> str:
    """Return how a broker would read another log after the events than it should, or ""."""
    after = copy.deepcopy(log)
    for event in events:
        if not after.apply(event):
            return f"a broker would ignore {event}"
    found = [
        (one.first_offset, one.last_offset, one.segment.id) for one in answers(after, lineage, log_start, local_start)
    ]
    wanted = [(one.first_offset, one.last_offset, one.segment.id) for one in replacement.staying]
    wanted += [
        (max(piece.first_offset, log_start), piece.last_offset, new_id)
        for piece, new_id in zip(replacement.pieces, new_ids, strict=True)
    ]
    wanted.sort()
    return "" if found == wanted else f"offsets would be answered by {found}, and should be by {wanted}"
