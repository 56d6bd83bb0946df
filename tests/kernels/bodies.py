"""Bodies of batches that were changed by hand, and their errors by a slow reader."""

from __future__ import annotations

from hypothesis import strategies as st

from cordwood.record.record import Record
from cordwood.testing import reference

changes = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=3)


def changed(data: bytes, edits: list[tuple[int, int]], cut: int) -> bytes:
    body = bytearray(data)
    for at, byte in edits:
        if at < len(body):
            body[at] = byte
    return bytes(body[: len(body) - cut])


def twin(
    body: bytes, count: int, base_offset: int, base_timestamp: int, append_time: int | None
) -> list[Record] | None:
    try:
        return reference.read_body(body, count, base_offset, base_timestamp, append_time)
    except reference.BrokenError:
        return None
