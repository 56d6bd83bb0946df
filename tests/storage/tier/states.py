"""States of a tier for tests: segments in a short notation, and scripts of changes that Hypothesis draws."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from cordwood.common.types import NONE
from cordwood.storage.formats.leader_epochs import EpochEntry
from cordwood.storage.tier.manifest import GoneSegment, TierState, Writer
from cordwood.storage.tier.packed import TierSegment
from cordwood.storage.tier.segments import CopyState, RemoteSegment, TopicIdPartition
from tests.storage.tier.events import segment_id

PARTITION = TopicIdPartition(segment_id("topic"), "t", 0)


def segment(name: str, start: int, end: int) -> TierSegment:
    epochs, state = (EpochEntry(0, start),), CopyState.COPY_FINISHED
    remote = RemoteSegment(
        PARTITION.topic, PARTITION.topic_id, PARTITION.partition, segment_id(name), start, end, 10 * (end - start + 1),
        1000 + end, 2000, -1, epochs, None, state, True,
    )  # fmt: skip
    return TierSegment(remote, 0x1234 + start, (16, 24, NONE, 10))


def state(*segments: TierSegment, epoch: int = 1, run: str = "run") -> TierState:
    """A state without a generation."""
    return TierState(PARTITION, 0, Writer(epoch, run, "host"), 0, 0, None, segments, ())


_OFFSETS = st.integers(0, 2**40)
_INT64 = st.integers(-(2**63), 2**63 - 1)


@st.composite
def _next_segment(draw: st.DrawFn, name: int, start: int) -> TierSegment:
    start += draw(st.sampled_from([0, 0, 0, 1, 2**33]))
    one = segment(str(name), start, start + draw(st.integers(0, 500)))
    later = draw(st.lists(st.integers(1, 2**31 - 1), max_size=2, unique=True).map(sorted))
    return TierSegment(
        replace(
            one.segment,
            size_bytes=draw(st.integers(1, 2**31 - 1)),
            max_timestamp_ms=draw(_INT64),
            event_time_ms=draw(_INT64),
            broker=draw(st.integers(-1, 2**31 - 1)),
            epochs=(*one.segment.epochs, *(EpochEntry(epoch, one.segment.end_offset) for epoch in later)),
            custom_metadata=draw(st.one_of(st.none(), st.binary(max_size=3))),
            transaction_index_empty=draw(st.booleans()),
        ),
        draw(st.integers(0, 2**32 - 1)),
        tuple(draw(st.lists(st.integers(-1, 2**31 - 1), min_size=4, max_size=4))),
    )


@st.composite
def scripts(draw: st.DrawFn) -> list[TierState]:
    """Draw the states of a log: in each, some segments are copied, replaced by a clean, or deleted."""
    states = [state()]
    for step in range(draw(st.integers(1, 12))):
        before = states[-1]
        segments, gone = list(before.segments), list(before.gone)
        for number in range(draw(st.sampled_from([0, 1, 1, 2, 9]))):
            start = segments[-1].segment.end_offset + 1 if segments else draw(_OFFSETS)
            segments.append(draw(_next_segment(100 * step + number, start)))
        first, end = (draw(st.integers(0, len(segments))) for _ in range(2))
        removed = segments[first:end] if draw(st.booleans()) else []
        if removed:
            gone += [GoneSegment(one.segment, draw(_INT64)) for one in removed]
            new = replace(removed[0].segment, id=segment_id(f"clean {step}"), end_offset=removed[-1].segment.end_offset)
            segments[first:end] = draw(st.sampled_from([[], [TierSegment(new, 7, removed[0].index_bytes)]]))
        states.append(
            replace(
                before,
                writer=Writer(before.writer.epoch + draw(st.integers(0, 1)), draw(st.text(max_size=9)), "host"),
                log_start_offset=draw(_OFFSETS),
                local_floor=draw(_OFFSETS),
                cleaner_checkpoint=draw(st.one_of(st.none(), _OFFSETS)),
                segments=tuple(segments),
                gone=tuple(gone[draw(st.integers(0, len(gone))) :]),
            )
        )
    return states
