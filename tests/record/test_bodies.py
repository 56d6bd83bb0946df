"""Encoding and decoding many bodies per call equals `record.compression`, which also reads bodies that a kernel
rejects.
"""

from __future__ import annotations

import ctypes
import gzip
import itertools
import mmap
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from cordwood.common.errors import DataError
from cordwood.common.types import Codec
from cordwood.kernels.layout import U8Array
from cordwood.record import bodies
from cordwood.record.bodies import compress_bodies, decompress_bodies, has_fast_decompressor
from cordwood.record.compression import compress, decompress

MAX = 1 << 20
GUARD_BYTES = 64
FAST = [Codec.LZ4, Codec.SNAPPY, Codec.ZSTD, Codec.GZIP]


def joined(parts: list[bytes]) -> tuple[bytes, np.ndarray, np.ndarray]:
    ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
    return b"".join(parts), ends - [len(part) for part in parts], ends


def at_the_end_of_memory(data: bytes) -> U8Array:
    """A copy of `data` that is followed by a page that cannot be read."""
    size = -(-len(data) // mmap.PAGESIZE) * mmap.PAGESIZE
    whole = np.frombuffer(mmap.mmap(-1, size + mmap.PAGESIZE), np.uint8)
    whole[size - len(data) : size] = np.frombuffer(data, np.uint8)
    last = ctypes.c_void_p(whole.ctypes.data + size)
    assert ctypes.CDLL(None).mprotect(last, ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    return whole[size - len(data) : size]


def decompressed(
    codec: Codec, payloads: list[bytes], *, room: int = MAX, enough: int = MAX, body_max: int = MAX
) -> list[bytes]:
    """The bodies from the fast decompressor, up to the first that it rejects."""
    data, starts, ends = joined(payloads)
    memory = np.full(room + 2 * GUARD_BYTES, 0xA5, np.uint8)
    target = memory[GUARD_BYTES : GUARD_BYTES + room]
    source = at_the_end_of_memory(data)
    made = decompress_bodies(codec, source, starts, ends, target, enough=enough, body_max=body_max)
    assert (memory[:GUARD_BYTES] == 0xA5).all(), "wrote before the target"
    assert (memory[GUARD_BYTES + room :] == 0xA5).all(), "wrote behind the target"
    return [target[a:b].tobytes() for a, b in itertools.pairwise([0, *made.tolist()])]


def compressed(codec: Codec, texts: list[bytes], *, gap: int = 0) -> list[bytes]:
    data, starts, ends = joined(texts)
    source = at_the_end_of_memory(data)
    target, target_starts, target_ends = compress_bodies(codec, source, starts, ends, gap=gap)
    assert target_ends[-1] == target.size
    assert target_starts.tolist() == [0, *target_ends[:-1].tolist()]
    bounds = zip(target_starts.tolist(), target_ends.tolist(), strict=True)
    return [target[start + gap : end].tobytes() for start, end in bounds]


#: Runs, repeats near and far, noise, and lengths around the limits of an element.
PARTS = st.one_of(
    st.binary(max_size=30),
    st.builds(lambda byte, count: bytes([byte]) * count, st.integers(0, 255), st.integers(1, 600)),
    st.builds(lambda seed, size: random.Random(seed).randbytes(size), st.integers(0, 5), st.integers(1, 400)),
    st.builds(lambda word, count: word * count, st.binary(min_size=1, max_size=70), st.integers(1, 60)),
)
TEXTS = st.lists(PARTS, max_size=12).map(b"".join)


def long_texts() -> list[bytes]:
    """Texts of several blocks or chunks, and around their limits."""
    source = random.Random(1)
    words = [source.randbytes(source.randrange(3, 12)) for _ in range(500)]
    mixed = b"".join(source.choice(words) if source.random() < 0.9 else source.randbytes(40) for _ in range(20_000))
    noise = source.randbytes(200_000)
    limits = [size + more for size in (32 << 10, 64 << 10) for more in (-1, 0, 1, 12, 13, 16)]
    return [
        noise[:70_000] + b"cordwood " * 20_000 + noise[70_000:],
        mixed,
        *(mixed[:size] for size in limits),
        *(noise[:size] for size in limits),
        *(bytes(size) for size in limits),
    ]


@pytest.mark.parametrize("codec", FAST)
def test_the_packages_export_the_functions_that_kernels_call(codec) -> None:
    assert has_fast_decompressor(codec)


@pytest.mark.parametrize("codec", FAST)
@given(texts=st.lists(TEXTS.filter(bool), min_size=1, max_size=4))
def test_payloads_of_all_kinds_of_text_are_decompressed(codec, texts) -> None:
    assert decompressed(codec, [compress(codec, text) for text in texts]) == texts


@pytest.mark.parametrize("codec", FAST)
@given(texts=st.lists(TEXTS.filter(bool), min_size=1, max_size=4), gap=st.sampled_from([0, 61]))
def test_all_kinds_of_text_are_compressed_so_that_the_plain_reader_reads_them(codec, texts, gap) -> None:
    made = compressed(codec, texts, gap=gap)
    assert [decompress(codec, payload, magic=2) for payload in made] == texts
    assert decompressed(codec, made) == texts


@pytest.mark.parametrize("codec", FAST)
def test_long_texts_are_compressed_and_decompressed(codec) -> None:
    for text in long_texts():
        for payload in (compress(codec, text), *compressed(codec, [text])):
            assert decompress(codec, payload, magic=2) == text
            assert decompressed(codec, [payload]) == [text]


@pytest.mark.parametrize("codec", FAST)
def test_the_ratio_is_close_to_that_of_the_library(codec) -> None:
    text = long_texts()[1]
    assert len(compressed(codec, [text])[0]) < 1.03 * len(compress(codec, text))


@given(texts=st.lists(TEXTS.filter(bool), min_size=1, max_size=4))
def test_zstd_frames_have_the_bytes_that_the_plain_writer_writes(texts) -> None:
    assert compressed(Codec.ZSTD, texts) == [compress(Codec.ZSTD, text) for text in texts]


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.SNAPPY])
def test_frames_begin_with_the_header_that_the_plain_writer_writes(codec) -> None:
    size = 16 if codec is Codec.SNAPPY else 7
    assert compressed(codec, [b"cordwood"])[0][:size] == compress(codec, b"cordwood")[:size]


def check_against_plain_reader(codec: Codec, payload: bytes, *, room: int = MAX) -> None:
    for made in decompressed(codec, [payload], room=room):
        try:
            expected = decompress(codec, payload, magic=2)
        except DataError as error:
            raise AssertionError(f"the fast decompressor takes what the plain reader refuses: {error}") from error
        assert made == expected


@pytest.mark.parametrize("codec", FAST)
@given(text=TEXTS.filter(bool), data=st.data())
def test_a_changed_payload_is_rejected_or_read_as_the_plain_reader_reads_it(codec, text, data) -> None:
    payload = bytearray(compress(codec, text))
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(1, len(payload))) if data.draw(st.booleans()) else len(payload)
    check_against_plain_reader(codec, bytes(payload[:end]), room=data.draw(st.sampled_from([0, 1, len(text), MAX])))


@given(chunk=st.binary(min_size=1, max_size=80), length=st.integers(0, 300), room=st.sampled_from([0, 40, MAX]))
def test_any_bytes_as_snappy_are_rejected_or_read_as_the_plain_reader_reads_them(chunk, length, room) -> None:
    declared = bytes([length & 0x7F | 0x80, length >> 7]) + chunk
    header = b"\x82SNAPPY\0" + bytes([0, 0, 0, 1, 0, 0, 0, 1])
    for payload in (chunk, declared, header + len(declared).to_bytes(4, "big") + declared):
        check_against_plain_reader(Codec.SNAPPY, payload, room=room)


@given(kind=st.integers(0, 3), size=st.integers(0, 70_000), window=st.integers(0, 255), descriptor=st.integers(0, 255))
def test_zstd_frames_of_any_header_are_read_as_the_plain_reader_reads_them(kind, size, window, descriptor) -> None:
    header = b"\x28\xb5\x2f\xfd" + bytes([descriptor, window])
    block = (size << 3 | kind << 1 | 1).to_bytes(3, "little") + bytes(size if kind != 1 else 1)
    check_against_plain_reader(Codec.ZSTD, header + block)


@pytest.mark.parametrize("extra", [{"write_content_size": True}, {"write_checksum": True}])
def test_zstd_frames_of_other_writers_are_decompressed(extra) -> None:
    texts = [text for text in long_texts() if len(text) < 200_000]
    writer = zstandard.ZstdCompressor(3, **extra)
    assert [decompressed(Codec.ZSTD, [writer.compress(text)]) for text in texts] == [[text] for text in texts]


def test_a_zstd_frame_with_a_wrong_checksum_is_rejected() -> None:
    payload = bytearray(zstandard.ZstdCompressor(3, write_checksum=True).compress(b"cordwood" * 100))
    payload[-1] ^= 1
    assert decompressed(Codec.ZSTD, [bytes(payload)]) == []


def test_several_zstd_frames_in_one_payload_are_left_to_the_plain_reader() -> None:
    assert decompressed(Codec.ZSTD, [compress(Codec.ZSTD, b"one") + compress(Codec.ZSTD, b"two")]) == []


@pytest.mark.parametrize(
    "payload",
    [
        gzip.compress(b"one") + gzip.compress(b"two"),
        gzip.compress(b"one") + b"more",
        b"\x1f\x8b\x08\x08" + gzip.compress(b"one")[4:10] + b"name\0" + gzip.compress(b"one")[10:],
    ],
    ids=["two members", "bytes behind it", "a name"],
)
def test_gzip_with_more_than_a_plain_member_is_left_to_the_plain_reader(payload) -> None:
    assert decompressed(Codec.GZIP, [payload]) == []
    assert decompress(Codec.GZIP, payload, magic=2).startswith(b"one")


@pytest.mark.parametrize("at", [-8, -4], ids=["CRC", "size"])
def test_a_gzip_member_with_a_wrong_trailer_is_rejected(at) -> None:
    payload = bytearray(compress(Codec.GZIP, b"cordwood" * 100))
    payload[at] ^= 1
    assert decompressed(Codec.GZIP, [bytes(payload)]) == []


def test_raw_snappy_and_short_trailing_bytes_are_decompressed() -> None:
    framed = compress(Codec.SNAPPY, b"cordwood")
    assert decompressed(Codec.SNAPPY, [framed[20:], framed + b"\0\0\0"]) == [b"cordwood"] * 2


def test_a_second_snappy_header_is_left_to_the_plain_reader() -> None:
    framed = compress(Codec.SNAPPY, b"cordwood")
    assert decompress(Codec.SNAPPY, framed * 2, magic=2) == b"cordwood" * 2
    assert decompressed(Codec.SNAPPY, [framed * 2]) == []


@pytest.mark.parametrize("codec", FAST)
def test_a_small_payload_that_grows_beyond_the_limit_is_rejected(codec) -> None:
    bomb = compress(codec, bytes(MAX))
    assert decompressed(codec, [bomb], room=MAX + 64, body_max=MAX - 1) == []
    assert decompressed(codec, [bomb], room=MAX - 1, body_max=MAX) == []
    assert decompressed(codec, [bomb], room=MAX + 64, body_max=MAX) == [bytes(MAX)]


@pytest.mark.parametrize("codec", FAST)
@given(
    texts=st.lists(TEXTS.filter(bool), min_size=1, max_size=5),
    room=st.integers(0, 900),
    enough=st.integers(0, 900),
    body_max=st.integers(0, 900),
)
def test_it_stops_where_there_is_enough_or_no_room(codec, texts, room, enough, body_max) -> None:
    payloads = [compress(codec, text) for text in texts]
    found = decompressed(codec, payloads, room=room, enough=enough, body_max=body_max)
    assert found == texts[: len(found)]
    before = 0
    for at, text in enumerate(texts):
        if before >= enough or len(text) > min(body_max, room - before):
            assert len(found) <= at
            break
        # A match of LZ4 may not reach into the last bytes of the room.
        if len(text) + 12 > min(body_max, room - before):
            break
        assert len(found) > at
        before += len(text)


@pytest.mark.parametrize("codec", FAST)
def test_threads_compress_and_decompress_at_the_same_time(codec) -> None:
    texts = [text for text in long_texts() if text.strip(b"\0")][:6]
    with ThreadPoolExecutor(8) as pool:
        results = pool.map(lambda text: decompressed(codec, compressed(codec, [text] * 2)), texts * 4)
        assert list(results) == [[text] * 2 for text in texts * 4]


@pytest.mark.parametrize(("codec", "library"), [(Codec.ZSTD, "libzstd"), (Codec.GZIP, "libdeflate")])
def test_without_the_functions_of_a_library_the_plain_writer_compresses(monkeypatch, codec, library) -> None:
    monkeypatch.setattr(bodies, library, lambda: None)
    assert not has_fast_decompressor(codec)
    assert compressed(codec, [b"cordwood" * 9]) == [compress(codec, b"cordwood" * 9)]
