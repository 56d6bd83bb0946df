"""Hypothesis strategies for records, batches and whole log files of every format."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from cordwood.common.types import Codec, TimestampType
from cordwood.record.batch import encode_batch, encode_message_set
from cordwood.record.record import Record

#: Short enough to shrink well, long enough for sizes of more than one byte.
payloads = st.one_of(st.none(), st.binary(max_size=8), st.binary(min_size=60, max_size=200))
timestamps = st.one_of(st.just(-1), st.integers(0, 2**40), st.integers(1_700_000_000_000, 1_700_000_100_000))
headers = st.lists(st.tuples(st.text(max_size=4), st.one_of(st.none(), st.binary(max_size=5))), max_size=3).map(tuple)


@st.composite
def records(
    draw: st.DrawFn, base_offset: int = 0, *, magic: int = 2, min_size: int = 1, max_size: int = 8
) -> list[Record]:
    """Draw records with increasing offsets, with gaps as compaction leaves them."""
    count = draw(st.integers(min_size, max_size))
    offset = base_offset
    made = []
    for _ in range(count):
        made.append(
            Record(
                offset,
                -1 if magic == 0 else draw(timestamps),
                draw(payloads),
                draw(payloads),
                draw(headers) if magic == 2 else (),
            )
        )
        offset += draw(st.sampled_from([1, 1, 1, 2, 70]))
    return made


@st.composite
def batches(draw: st.DrawFn, base_offset: int = 0) -> tuple[bytes, list[Record]]:
    """Draw a batch of magic 2, or entries of magic 0 or 1, with the records that a reader must find in it."""
    magic = draw(st.sampled_from([2, 2, 2, 1, 0]))
    codec = draw(st.sampled_from([codec for codec in Codec if magic >= codec.magic_min]))
    chosen = draw(records(base_offset, magic=magic))
    late = draw(st.booleans()) and magic > 0
    kind = TimestampType.LOG_APPEND_TIME if late else TimestampType.CREATE_TIME
    append_time = draw(st.integers(0, 2**40))
    if magic == 2:
        data = encode_batch(
            chosen,
            codec=codec,
            timestamp_type=kind,
            max_timestamp=append_time if late else None,
            last_offset=chosen[-1].offset + draw(st.integers(0, 3)),
            delete_horizon_ms=draw(st.one_of(st.none(), st.integers(0, 2**41))),
            producer_id=draw(st.sampled_from([-1, 7])),
            leader_epoch=draw(st.integers(-1, 3)),
        )
    else:
        data = encode_message_set(magic, chosen, codec=codec, timestamp_type=kind, append_time=append_time)
    if late:
        chosen = [replace(record, timestamp=append_time) for record in chosen]
    return data, chosen


@st.composite
def logs(draw: st.DrawFn, base_offset: int = 0, *, max_batches: int = 6) -> tuple[bytes, list[Record]]:
    """Draw a log file and its records."""
    data = b""
    found: list[Record] = []
    offset = base_offset
    for _ in range(draw(st.integers(0, max_batches))):
        part, chosen = draw(batches(offset))
        data += part
        found += chosen
        offset = chosen[-1].offset + 4
    return data, found
