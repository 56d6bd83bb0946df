"""The key index of a segment: built, written, validated, and searched for keys; compared with plain Python."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cordwood.common.errors import CorruptFileError, DataError
from cordwood.common.types import Codec
from cordwood.fs.posix import PosixFileSystem
from cordwood.record.batch import encode_batch
from cordwood.record.columns import BatchWindow, RecordColumns, decode
from cordwood.record.record import Record
from cordwood.storage.formats import key_index
from cordwood.storage.formats.filenames import index_folder, key_index_path
from cordwood.storage.formats.key_index import KeyIndex, encode
from cordwood.storage.index.build import RECORD_BYTES, build
from cordwood.storage.index.files import indexes_in, read_index, remove_indexes, write_index
from cordwood.storage.index.search import batches_with, find, hash_of_keys, windows_with
from cordwood.storage.log.segment import Segment
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Gap
from cordwood.testing.memory import MemoryFileSystem
from cordwood.testing.reference import siphash128
from tests.storage.damage_sites import FIRST
from tests.storage.index_twins import SECRET, Entry, file_of, parts

PARTITION = "/logs/a-0"
MUCH = 1 << 30


def segment_of(data: bytes, base_offset: int = 100) -> tuple[MemoryFileSystem, Segment]:
    fs = MemoryFileSystem(lambda: 0)
    for path in ("/logs", PARTITION):
        fs.make_directory(path)
    name = f"{PARTITION}/{base_offset:020d}"
    for ending, content in ((".log", data), (".index", b""), (".timeindex", b"")):
        with fs.create(name + ending) as file:
            file.write(0, content)
    (segment,) = LogView(PARTITION, fs=fs).segments
    return fs, segment


def log_of(entries: Sequence[Entry]) -> bytes:
    return b"".join(data for data, _ in entries)


def made(segment: Segment) -> KeyIndex:
    index = build(segment, SECRET, MUCH)
    assert index is not None
    return index


@given(parts())
def test_the_index_of_a_segment_is_that_of_the_twin_byte_for_byte(entries: list[Entry]) -> None:
    _, segment = segment_of(log_of(entries))
    head, payload, _ = encode(made(segment))
    assert head + payload.tobytes() == file_of(entries, 100)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4, Codec.ZSTD])
def test_an_index_of_many_records_is_that_of_the_twin(codec: Codec) -> None:
    entries = []
    for first in range(0, 30_000, 1000):
        some = [Record(100 + first + i, 0, b"k%d" % (i * 7 % 911), None if i % 5 else b"v") for i in range(1000)]
        entries.append((encode_batch(some, codec=codec), some))
    _, segment = segment_of(log_of(entries))
    index = made(segment)
    head, payload, _ = encode(index)
    assert head + payload.tobytes() == file_of(entries, 100)
    assert index.header.bits == 11


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_only_the_sound_start_of_a_segment_is_covered(codec: Codec) -> None:
    batches = [[Record(100 + 2 * at + i, 0, b"%d" % i, b"") for i in range(2)] for at in range(3)]
    entries = [(encode_batch(some, codec=codec), some) for some in batches]
    data = log_of(entries)
    first, second = (len(entry) for entry, _ in entries[:2])
    damages = (data[: first + 30], data[:first] + b"\0" * 200, data[: first + 40] + b"\x77" + data[first + 41 :])
    for damaged in damages:
        _, segment = segment_of(damaged)
        head, payload, _ = encode(made(segment))
        assert head + payload.tobytes() == file_of(entries[:1], 100)
    for nothing in (b"", b"\0" * 100, b"\x77" * 100):
        assert build(segment_of(nothing)[1], SECRET, MUCH) is None
    _, segment = segment_of(data[: first + second])
    assert made(segment).header.next_offset == 104


def test_a_segment_with_more_records_than_fit_the_memory_has_no_index() -> None:
    some = [Record(100 + i, 0, b"%d" % i, b"") for i in range(100)]
    _, segment = segment_of(encode_batch(some))
    assert build(segment, SECRET, 100 * RECORD_BYTES) is not None
    assert build(segment, SECRET, 100 * RECORD_BYTES - 1) is None


# ---- probes ----------------------------------------------------------------------------------------------------------


def keys_in(columns: RecordColumns) -> Iterator[tuple[int, bytes | None]]:
    for row in columns.rows:
        start, size = int(row["key_start"]), int(row["key_size"])
        yield int(row["offset"]), None if size < 0 else bytes(columns.data[start : start + size])


def records_in(items: Iterable[BatchWindow | Gap]) -> set[tuple[int, bytes | None]]:
    found = set()
    for item in items:
        assert isinstance(item, BatchWindow)
        for columns in decode(item):
            found |= set(keys_in(columns))
    return found


def markers_of(entries: Sequence[Entry]) -> set[int]:
    return {at for at, (data, _) in enumerate(entries) if data[16] == 2 and data[22] & 0x20}


def expected(entries: Sequence[Entry], keys: Sequence[bytes]) -> list[int]:
    """The ordinals of the records with one of these keys; markers have no ordinal."""
    found, ordinal = [], 0
    for data, records in entries:
        control = data[16] == 2 and data[22] & 0x20
        for record in records:
            if record.key in keys and not control:
                found.append(ordinal)
            ordinal += 1
    return found


@pytest.mark.more
@given(parts(), st.lists(st.binary(max_size=3), max_size=4), st.integers(0, 40), st.data())
def test_a_probe_finds_the_records_with_a_key_and_their_batches(
    entries: list[Entry], others: list[bytes], unknown: int, draw: st.DataObject
) -> None:
    _, segment = segment_of(log_of(entries))
    index = made(segment)
    known = sorted({record.key for _, records in entries for record in records if record.key is not None})
    keys = [*draw.draw(st.lists(st.sampled_from(known), max_size=5) if known else st.just([])), *others]
    # Many more keys turn the search into a stream.
    hashes = hash_of_keys([*keys, *(b"unknown %d" % at for at in range(unknown))], SECRET)
    found = find(index, hashes)
    assert found.ordinals.tolist() == expected(entries, keys)
    touched = set(batches_with(index, found.ordinals).tolist())
    assert touched == {
        at for at, (_, records) in enumerate(entries) if any(r.key in keys for r in records)
    } - markers_of(entries)
    expected_records = {(record.offset, record.key) for at in touched for record in entries[at][1]}
    assert records_in(windows_with(segment, index, keys)) == expected_records


def test_what_an_index_does_not_cover_is_read_whole() -> None:
    records = [Record(100 + at, 0, b"%d" % (at % 5), b"") for at in range(20)]
    batches = [encode_batch(records[at : at + 2]) for at in range(0, 20, 2)]
    _, segment = segment_of(b"".join(batches[:5]))
    index = made(segment)
    _, segment = segment_of(b"".join(batches))
    found = records_in(windows_with(segment, index, [b"3"]))
    assert found == {(record.offset, record.key) for at, record in enumerate(records) if at >= 10 or at in (2, 3, 8, 9)}


@settings(deadline=None)
@given(st.integers(1, 6000), st.integers(0, 9000), st.integers(0, 2**32))
@example(6000, 9000, 1)
@example(6000, 10, 1)
def test_search_and_stream_find_what_plain_python_finds(records: int, keys: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    numbers = random.integers(0, 4000, records)
    some = [Record(100 + at, 0, b"%d" % number, b"") for at, number in enumerate(numbers.tolist())]
    _, segment = segment_of(encode_batch(some))
    index = made(segment)
    asked = {b"%d" % number for number in random.integers(0, 20_000, keys).tolist()}
    found = find(index, hash_of_keys(sorted(asked), SECRET))
    assert found.ordinals.tolist() == [at for at, record in enumerate(some) if record.key in asked]
    assert found.entries == found.ordinals.size


def forged(index: KeyIndex, key: bytes) -> KeyIndex:
    """The same index with the tag of a key for all entries of its bucket: collisions, as an attacker makes them."""
    hashed = struct.unpack("<QQ", siphash128(key, SECRET))[1]
    bits = index.header.bits
    bucket = hashed >> 64 - bits
    tags = index.tags.copy()
    tags[index.starts[bucket] : index.starts[bucket + 1]] = hashed >> 32 - bits & 0xFFFFFFFF
    return replace(index, tags=tags)


def test_colliding_tags_make_candidates_whose_bytes_tell() -> None:
    some = [Record(100 + at, 0, b"%d" % at, b"") for at in range(200)]
    _, segment = segment_of(encode_batch(some))
    index = forged(made(segment), b"7")
    found = find(index, hash_of_keys([b"7"], SECRET))
    assert found.ordinals.size > 1 and 7 in found.ordinals
    assert [at for at in found.ordinals.tolist() if some[at].key == b"7"] == [7]
    assert (107, b"7") in records_in(windows_with(segment, index, [b"7"]))


@pytest.mark.parametrize("name", ["starts", "ordinals"])
@pytest.mark.parametrize("keys", [1, 2000])
def test_a_probe_of_numbers_that_cannot_be_is_refused(name: str, keys: int) -> None:
    some = [Record(100 + at, 0, b"%d" % at, b"") for at in range(1000)]
    _, segment = segment_of(encode_batch(some))
    index = made(segment)
    getattr(index, name)[1:] = 0xFFFFFFFF
    hashes = hash_of_keys([b"%d" % at for at in range(500, 500 + keys)], SECRET)
    with pytest.raises(CorruptFileError, match="cannot be"):
        find(index, hashes)


def test_what_is_read_for_candidates_is_checked() -> None:
    some = [Record(100 + at, 0, b"%d" % at, b"") for at in range(10)]
    fs, segment = segment_of(encode_batch(some))
    index = made(segment)
    with fs.open_for_update(segment.path) as file:
        file.write(80, b"\x77\x77")
    with pytest.raises(DataError, match="CRC-32C mismatch"):
        records_in(windows_with(segment, index, [b"7"]))


# ---- files -----------------------------------------------------------------------------------------------------------

BATCHES = [encode_batch([Record(100 + 2 * at + i, 0, b"%d" % i, b"value") for i in range(2)]) for at in range(80)]
LOG = b"".join(BATCHES)


def stored() -> tuple[MemoryFileSystem, Segment]:
    fs, segment = segment_of(LOG)
    write_index(fs, PARTITION, made(segment))
    return fs, segment


def test_a_written_index_is_read_and_another_one_replaces_it() -> None:
    fs, segment = stored()
    with fs.create(f"{key_index_path(PARTITION, 100)}.tmp") as file:
        file.write(0, b"left by a run that was killed" * 1000)
    write_index(fs, PARTITION, made(segment))
    assert encode(read_index(segment))[0] == encode(made(segment))[0]
    assert [base for base, _ in indexes_in(fs, PARTITION)] == [100]
    assert len(fs.list(index_folder(PARTITION))) == 1


def change(at: int, data: bytes) -> Callable[[bytes], bytes]:
    return lambda log: log[:at] + data + log[at + len(data) :]


SIZE = len(BATCHES[0])
OTHER = encode_batch([Record(100 + 2 * 40 + i, 0, b"%d" % i, b"other") for i in range(2)])
assert len(OTHER) == SIZE
LAST = encode_batch([Record(100 + 2 * 79 + i, 0, b"%d" % i, b"other") for i in range(2)])
#: Changes to a segment, and the reason why its index is invalid then; empty if it stays valid.
CHANGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "appended": (lambda log: log + b"more", ""),
    "truncated": (lambda log: log[:-1], "it covers"),
    "a batch is gone": (lambda log: log[SIZE:] + bytes(SIZE), "the last batch"),
    "the last batch": (change(79 * SIZE, LAST), "the last batch"),
    "the first batch": (change(0, OTHER), "the batch at position 0 is another"),
    "the second half": (lambda log: log[: 40 * SIZE] + OTHER * 39 + log[79 * SIZE :], "is another"),
    "another log": (lambda log: bytes(len(log)), "the last batch"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_an_index_is_believed_only_for_the_segment_that_it_was_made_of(name: str) -> None:
    changed, what = CHANGES[name]
    fs, segment = stored()
    with fs.open_for_update(segment.path) as file:
        data = changed(LOG)
        file.truncate(len(data))
        file.write(0, data)
    if not what:
        read_index(segment)
        return
    with pytest.raises(CorruptFileError, match=what):
        read_index(segment)


def test_an_index_of_another_base_offset_or_torn_or_missing_is_not_believed() -> None:
    fs, segment = stored()
    _, other = segment_of(LOG, 99)
    with fs.open(key_index_path(PARTITION, 100)) as file:
        data = file.read(0, file.size())
    other_fs = other.fs
    assert isinstance(other_fs, MemoryFileSystem)
    write_index(other_fs, PARTITION, key_index.decode(data))
    with pytest.raises(FileNotFoundError):
        read_index(other)
    other_fs.rename(key_index_path(PARTITION, 100), key_index_path(PARTITION, 99))
    with pytest.raises(CorruptFileError, match="its base offset is 100"):
        read_index(other)
    with fs.open_for_update(key_index_path(PARTITION, 100)) as file:
        file.truncate(len(data) - 1)
    with pytest.raises(CorruptFileError, match="its header says"):
        read_index(segment)


def test_an_index_belongs_to_the_owner_of_the_log_who_alone_may_read_it(tmp_path: Path) -> None:
    fs, partition = PosixFileSystem(), tmp_path / "a-0"
    partition.mkdir()
    (partition / f"{FIRST}.log").write_bytes(encode_batch([Record(0, 0, b"a", b"")]))
    if fs.stat(str(partition)).uid == 0:
        fs.set_owner(str(partition), 12345, 54321)
    (segment,) = LogView(str(partition), fs=fs).segments
    target = tmp_path / "precious"
    target.write_bytes(b"precious")
    for _ in range(2):
        write_index(fs, str(partition), made(segment))
        (partition / ".cordwood/index" / f"{FIRST}.keyhashes.tmp").symlink_to(target)
    owner = fs.stat(str(partition))
    for path in (partition / ".cordwood", partition / ".cordwood/index", Path(key_index_path(str(partition), 0))):
        info = path.stat()
        assert (info.st_uid, info.st_gid) == (owner.uid, owner.gid)
    assert info.st_mode & 0o777 == 0o600
    assert target.read_bytes() == b"precious"


def test_indexes_are_removed_but_those_of_some_segments() -> None:
    fs, segment = stored()
    assert remove_indexes(fs, PARTITION, but=[100]) == 0
    read_index(segment)
    assert remove_indexes(fs, PARTITION, but=[7]) == 1 and not list(indexes_in(fs, PARTITION))
    assert remove_indexes(fs, PARTITION) == 0 and not fs.exists(index_folder(PARTITION))
