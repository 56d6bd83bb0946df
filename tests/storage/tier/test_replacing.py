"""Which segments of a tier are replaced, and what brokers read after the events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from cordwood.common.errors import RequestError
from cordwood.storage.tier.remote_log import answers
from cordwood.storage.tier.replacing import (
    SegmentPiece,
    epochs_of,
    events_of,
    fault_after,
    lineage_at_end,
    pieces_of,
    plan_replacement,
)
from cordwood.storage.tier.segments import CopyState, RemoteSegment
from tests.storage.tier.events import epochs, remote_log, segment_id

#: A, B, C and D as in the module's docstring; B answers for two ranges around C's.
EVENTS = "A[0..174] {0:0}; A=1; B[175..853] {0:175, 2:819}; B=1; C[500..900] {0:500}; C=1; D[854..999] {2:854}; D=1"
LINEAGE = epochs("{0:0, 2:819}")
BASES = (0, 175, 500, 819, 854)
#: Last offset of each of these parts.
ENDS = dict(zip(BASES, (174, 499, 818, 853, 999), strict=True))


def pieces(*written: int, empty: Sequence[int] = (), ends: dict[int, int] = ENDS) -> list[SegmentPiece]:
    """A piece per part of the log, with the parts that a clean wrote."""
    kept = [base for base in ends if base not in written]
    return pieces_of([([base], [base]) for base in ends], kept, ends, {base: base not in empty for base in ends})


def replaced(*written: int, empty: Sequence[int] = ()) -> tuple[list[tuple[int, int]], list[str]]:
    """The offsets of new segments, and the names of the old ones."""
    found = plan_replacement(pieces(*written, empty=empty), answers(remote_log(EVENTS), LINEAGE, 0, 1000))
    names = {segment_id(name): name for name in "ABCD"}
    return [(one.first_offset, one.last_offset) for one in found.pieces], [names[one.id] for one in found.replaced]


def test_only_segments_that_lose_records_are_replaced() -> None:
    assert replaced(0) == ([(0, 174)], ["A"])
    assert replaced(500) == ([(500, 818)], ["C"])
    assert replaced() == ([], [])


def test_all_parts_of_a_segment_are_replaced_together() -> None:
    assert replaced(175) == ([(175, 499), (819, 853)], ["B"])


def test_a_part_without_records_joins_a_neighbour() -> None:
    assert replaced(500, empty=[500]) == ([(175, 818), (819, 853)], ["B", "C"])
    assert replaced(0, empty=[0]) == ([(0, 499), (819, 853)], ["A", "B"])
    assert replaced(0, 175, empty=[0, 175]) == ([(0, 818), (819, 853)], ["A", "B", "C"])
    assert replaced(854, empty=[854]) == ([(175, 499), (819, 999)], ["B", "D"])
    assert replaced(*BASES, empty=BASES) == ([], [])


def test_several_outputs_of_a_group_cover_its_offsets() -> None:
    found = pieces_of([((0, 175), (0, 90, 300))], [], ENDS, {0: 1, 90: 1, 300: 1})
    assert [(one.base_offset, one.first_offset, one.last_offset) for one in found] == [
        (0, 0, 89),
        (90, 90, 299),
        (300, 300, 499),
    ]


def test_a_segment_that_answers_above_the_cleaned_range_cannot_be_replaced() -> None:
    below = {base: end for base, end in ENDS.items() if base < 500}
    with pytest.raises(RequestError, match="answers for offsets of the cleaned range, and for 819 to 853"):
        plan_replacement(pieces(175, ends=below), answers(remote_log(EVENTS), LINEAGE, 0, 1000))


@pytest.mark.parametrize(
    ("first", "last", "own", "lineage", "at_end"),
    [
        (0, 174, "{0:0}", "{0:0, 2:819}", "{0:0}"),
        (500, 853, "{0:500, 2:819}", "{0:0, 2:819}", "{0:0, 2:819}"),
        (819, 853, "{2:819}", "{0:0, 2:819}", "{0:0, 2:819}"),
        (900, 950, "{2:900}", "{0:0, 2:819}", "{0:0, 2:819}"),
        (150, 474, "{0:150}", "{0:300, 2:819}", "{0:150}"),
        (150, 853, "{0:150, 2:819}", "{0:300, 2:819}", "{0:150, 2:819}"),
    ],
)
def test_a_new_segment_has_its_part_of_the_lineage(first: int, last: int, own: str, lineage: str, at_end: str) -> None:
    piece = SegmentPiece(first, first, last, 1, is_written=True, is_new=True)
    sources = answers(remote_log(f"A[{first}..{last}] {{0:{first}}}; A=1"), epochs("{0:0}"), first, last + 1)
    found = epochs_of(piece, sources, epochs(lineage))
    assert found == epochs(own)
    assert lineage_at_end(piece, found, epochs(lineage)) == list(epochs(at_end))


def new_segment(name: str, piece: SegmentPiece, like: RemoteSegment) -> RemoteSegment:
    own = epochs_of(piece, answers(remote_log(EVENTS), LINEAGE, 0, 1000), LINEAGE)
    return replace(
        like,
        id=segment_id(name),
        start_offset=piece.first_offset,
        end_offset=piece.last_offset,
        epochs=own,
        state=CopyState.COPY_STARTED,
    )


@pytest.mark.parametrize("written", [(0,), (175,), (500,), (0, 175, 500, 819), BASES])
@pytest.mark.parametrize("is_deleted", [False, True])
def test_brokers_read_the_new_segments_after_the_events(written: tuple[int, ...], is_deleted: bool) -> None:
    log = remote_log(EVENTS)
    found = plan_replacement(pieces(*written), answers(log, LINEAGE, 0, 1000))
    new = [new_segment(name, piece, found.replaced[0]) for name, piece in zip("NOPQR", found.pieces, strict=False)]
    events = events_of([(one, None) for one in new], found.replaced, is_deleted=is_deleted)
    ids = [one.id for one in new]
    assert fault_after(log, events, found, ids, LINEAGE, 0, 1000) == ""
    # Without the last new segment, or with an old one that stays, brokers would read something else.
    assert fault_after(log, events[: 2 * len(new) - 2] + events[2 * len(new) :], found, ids, LINEAGE, 0, 1000)
    assert "ignore" in fault_after(log, events[1:], found, ids, LINEAGE, 0, 1000)
