"""Frames that the kernel accepts decode as in the plain reader; frames that it leaves to that reader only cost time."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.common.errors import DataError
from cordwood.common.types import Codec
from cordwood.kernels.lz4 import decompress_frames
from cordwood.record.compression import compress, decompress

pytestmark = pytest.mark.more

MAX = 1 << 20


def kernel(frames: list[bytes], *, room: int = MAX, enough: int = MAX, frame_max: int = MAX) -> list[bytes]:
    """The kernel's output for frames, up to the first that it does not accept."""
    data = np.frombuffer(b"".join(frames) + bytes(1), np.uint8)
    ends = np.cumsum([len(frame) for frame in frames], dtype=np.int64)
    starts = ends - [len(frame) for frame in frames]
    target = np.full(room + 64, 0xA5, np.uint8)
    made = np.zeros(len(frames), np.int64)
    done = decompress_frames(data.ctypes.data, starts, ends, target.ctypes.data, room, enough, frame_max, made)
    assert (target[room:] == 0xA5).all(), "wrote behind the room it has"
    bounds = [0, *made[:done].tolist()]
    return [target[a:b].tobytes() for a, b in itertools.pairwise(bounds)]


#: Runs, repeats near and far, noise: every way in which a block encodes bytes.
PARTS = st.one_of(
    st.binary(max_size=30),
    st.builds(lambda byte, count: bytes([byte]) * count, st.integers(0, 255), st.integers(1, 600)),
    st.builds(lambda seed, size: random.Random(seed).randbytes(size), st.integers(0, 5), st.integers(1, 400)),
    st.builds(lambda word, count: word * count, st.binary(min_size=1, max_size=12), st.integers(1, 60)),
)
TEXTS = st.lists(PARTS, max_size=12).map(b"".join)


@given(st.lists(TEXTS, min_size=1, max_size=4), st.sampled_from([9, 3, 12]))
def test_frames_of_all_kinds_of_text_come_out_as_they_went_in(texts, level) -> None:
    assert kernel([compress(Codec.LZ4, text, level=level) for text in texts]) == texts


def test_a_text_of_many_blocks_stored_and_packed_comes_out_as_it_went_in() -> None:
    noise = random.Random(1)
    text = noise.randbytes(70_000) + b"cordwood " * 20_000 + noise.randbytes(100_000)
    assert kernel([compress(Codec.LZ4, text)]) == [text]


@given(TEXTS.filter(bool), st.data())
def test_a_changed_frame_is_left_alone_or_read_as_the_plain_reader_reads_it(text, data) -> None:
    frame = bytearray(compress(Codec.LZ4, text))
    for _ in range(data.draw(st.integers(1, 3))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    frame = frame[: data.draw(st.integers(0, len(frame)))] if data.draw(st.booleans()) else frame
    for made in kernel([bytes(frame)]):
        try:
            expected = decompress(Codec.LZ4, bytes(frame), magic=2)
        except DataError as error:
            raise AssertionError(f"the kernel takes what the plain reader refuses: {error}") from error
        assert made == expected


@given(st.binary(max_size=80), st.integers(0, 40))
def test_any_bytes_as_a_block_are_left_alone_or_read_as_the_plain_reader_reads_them(block, room) -> None:
    frame = bytes.fromhex("04224d18604082") + len(block).to_bytes(4, "little") + block + bytes(4)
    for made in [*kernel([frame], room=room), *kernel([frame])]:
        assert made == decompress(Codec.LZ4, frame, magic=2)


@given(st.lists(TEXTS, min_size=1, max_size=5), st.integers(0, 900), st.integers(0, 900), st.integers(0, 900))
def test_it_stops_where_there_is_enough_or_no_room(texts, room, enough, frame_max) -> None:
    found = kernel([compress(Codec.LZ4, text) for text in texts], room=room, enough=enough, frame_max=frame_max)
    assert found == texts[: len(found)]
    before = 0
    for at, text in enumerate(texts):
        if before >= enough or len(text) > min(frame_max, room - before):
            assert len(found) <= at
            break
        # A match may not reach into the last bytes of the room: with so little to spare it may be left alone.
        if len(text) + 12 > min(frame_max, room - before):
            break
        assert len(found) > at
        before += len(text)
