"""Key indexes as files: read, written, damaged, and compared with their segments by `check`."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from cordwood.common.errors import CorruptFileError
from cordwood.common.types import Codec
from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from cordwood.storage.check import Finding, Kind, Severity
from cordwood.storage.formats import filenames, key_index
from cordwood.storage.formats.key_index import BLOCK_BYTES, HEADER, IDENTITY, FileState, Identity
from tests.command import run
from tests.storage.damage_sites import FIRST, built, check
from tests.storage.index_twins import Entry, file_of, parts

#: Keys, tombstones, a record without a key, a marker, an empty batch, an old message, compression, a delete horizon.
RECORDS = (
    [Record(0, 1000, b"a", b"1"), Record(1, 1001, b"b", None)],
    [Record(2, 1002, b"a", b"2"), Record(3, 1003, None, b"3")],
    [Record(4, 1004, b"c", None)],
)
ENTRIES: Sequence[Entry] = (
    (encode_batch(RECORDS[0]), RECORDS[0]),
    (encode_batch(RECORDS[1], codec=Codec.LZ4), RECORDS[1]),
    (encode_batch(RECORDS[2], delete_horizon_ms=5000), RECORDS[2]),
    (encode_batch([], base_offset=5, last_offset=7), []),
)
SAMPLE = file_of(ENTRIES, 0)


def again(data: bytes) -> bytes:
    return b"".join(map(bytes, key_index.encode(key_index.decode(data))))


@given(parts())
def test_what_the_twin_writes_is_read_and_written_back(entries: list[Entry]) -> None:
    data = file_of(entries, 100)
    assert again(data) == data
    index = key_index.decode(data)
    assert index.header.file_bytes == len(data)
    assert index.lengths.tolist() == [len(entry) for entry, _ in entries]
    assert index.counts.tolist() == [len(records) for _, records in entries]


def test_the_sample_says_all_that_is_in_the_segment() -> None:
    header = key_index.decode(SAMPLE).header
    assert (header.records, header.entries, header.batches, header.next_offset) == (5, 4, 4, 8)
    assert header.flags == key_index.Flag.TOMBSTONES | key_index.Flag.KEYLESS | key_index.Flag.EMPTY_BATCHES
    assert header.delete_horizon_ms == 5000
    assert "secret" not in repr(header)


def test_every_flipped_byte_and_every_length_is_refused() -> None:
    for at in range(len(SAMPLE)):
        with pytest.raises(CorruptFileError):
            key_index.decode(SAMPLE[:at] + bytes([SAMPLE[at] ^ 1]) + SAMPLE[at + 1 :])
        with pytest.raises(CorruptFileError):
            key_index.decode(SAMPLE[:at])
    with pytest.raises(CorruptFileError, match="its header says"):
        key_index.decode(SAMPLE + b"\0")


SEEN = Identity(1, tuple(FileState(9 * at, 9 * at + 1, 9 * at + 2, 9 * at + 3) for at in range(3)), 4096, 2**31 - 1)


def test_an_identity_follows_the_arrays_and_changes_only_the_version() -> None:
    head, payload, end = map(bytes, key_index.encode(key_index.with_identity(key_index.decode(SAMPLE), SEEN)))
    assert len(end) == IDENTITY.itemsize and head[8] == 2
    assert head[9:84] + head[88:] + payload == SAMPLE[9:84] + SAMPLE[88:]
    numbers = [number for at in range(3) for number in (9 * at, 9 * at + 1, 9 * at + 2, 9 * at + 3)]
    assert end[:120] == struct.pack("<15q", 1, 4096, 2**31 - 1, *numbers)
    assert end[120:] == head[84:88] + struct.pack("<I", crc32c(end[:124]))
    index = key_index.decode(head + payload + end)
    assert index.identity == SEEN and index.header.file_bytes == len(head + payload + end)


def test_a_damaged_identity_and_one_of_another_index_are_refused() -> None:
    data = b"".join(map(bytes, key_index.encode(key_index.with_identity(key_index.decode(SAMPLE), SEEN))))
    for at in range(len(SAMPLE), len(data)):
        with pytest.raises(CorruptFileError, match="identity"):
            key_index.decode(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(CorruptFileError):
            key_index.decode(data[:at])
    other = key_index.encode_identity(SEEN, key_index.index_crc(data) ^ 1)
    with pytest.raises(CorruptFileError, match="identity"):
        key_index.decode(data[: -len(other)] + other)


def sealed(data: bytes) -> bytes:
    """A file with right checksums, whatever its contents: an attacker computes the checksums, too."""
    if len(data) < HEADER.itemsize:
        return data
    batches, _, entries = struct.unpack_from("<III", data, 48)
    payload = 4 * (3 * batches + (1 << min(data[10], 30)) + 1 + 2 * entries)
    count = -(-payload // BLOCK_BYTES)
    start = HEADER.itemsize + 4 * count
    if len(data) == start + payload:
        blocks = [crc32c(data[at : at + BLOCK_BYTES]) for at in range(start, len(data), BLOCK_BYTES)]
        data = data[: HEADER.itemsize] + struct.pack(f"<{count}I", *blocks) + data[start:]
        data = data[:80] + struct.pack("<I", crc32c(data[HEADER.itemsize : start])) + data[84:]
    return data[:84] + struct.pack("<I", crc32c(data[:84])) + data[88:]


def test_sealing_what_is_right_changes_nothing() -> None:
    assert sealed(SAMPLE) == SAMPLE


@settings(max_examples=400)
@given(st.data())
def test_damage_under_right_checksums_raises_nothing_but_corrupt_file(draw: st.DataObject) -> None:
    at = draw.draw(st.integers(8, len(SAMPLE) - 1))
    new = draw.draw(st.binary(min_size=1, max_size=8))
    data = sealed((SAMPLE[:at] + new + SAMPLE[at + len(new) :])[: len(SAMPLE)])
    try:
        index = key_index.decode(data)
    except CorruptFileError:
        return
    assert (index.ordinals < index.header.records).all() and index.starts[-1] == index.tags.size


@given(st.binary(max_size=300) | st.binary(max_size=300).map(lambda data: key_index.MAGIC + data))
def test_random_bytes_raise_nothing_but_corrupt_file(data: bytes) -> None:
    for some in (data, sealed(data)):
        with pytest.raises(CorruptFileError):
            key_index.decode(some)


def numbers(at: int, form: str, value: int) -> bytes:
    size = struct.calcsize(form)
    return sealed(SAMPLE[:at] + struct.pack(form, value) + SAMPLE[at + size :])


PAYLOAD = HEADER.itemsize + 4
#: Errors that checksums cannot find: position and format of a number, its new value, and the message.
IMPOSSIBLE: list[tuple[int, str, int, str]] = [
    (8, "<H", 3, "key index version 3, only 1 and 2 are known"),
    (10, "<H", 0, "buckets of 0 bits"),
    (10, "<H", 25, "buckets of 25 bits"),
    (16, "<q", 8, "offsets from 8 to 7"),
    (16, "<q", -1, "offsets from -1 to 7"),
    (32, "<q", 100, "4 batches in 100 bytes"),
    (48, "<I", 0, "0 batches"),
    (52, "<I", 3, "4 keys of 3 records"),
    (12, "<I", 0, "4 keys of 5 records"),
    (52, "<I", 6, "its header says otherwise"),
    (PAYLOAD, "<I", 7, "its header says otherwise"),
    (PAYLOAD + 48, "<I", 1, "do not divide 4 entries"),
    (PAYLOAD + 52, "<I", 5, "do not divide 4 entries"),
    (PAYLOAD + 56, "<I", 3, "do not divide 4 entries"),
    (len(SAMPLE) - 4, "<I", 5, "a record that is none of 5"),
]


@pytest.mark.parametrize(("at", "form", "value", "what"), IMPOSSIBLE)
def test_what_cannot_be_is_refused_although_its_checksums_are_right(at: int, form: str, value: int, what: str) -> None:
    with pytest.raises(CorruptFileError, match=what):
        key_index.decode(numbers(at, form, value))


def test_a_large_index_has_a_checksum_per_block_that_finds_the_block() -> None:
    some = [Record(offset, 0, b"%d" % offset, b"") for offset in range(12_000)]
    data = file_of([(encode_batch(some), some)], 0)
    header = key_index.decode_header(data)
    assert header.blocks == 2 and header.bits == 10
    with pytest.raises(CorruptFileError, match="block 1") as caught:
        key_index.decode(data[:-1] + bytes([data[-1] ^ 1]))
    assert caught.value.position == header.payload_start + BLOCK_BYTES


NAMES = [
    (f"{FIRST}.keyhashes", 0),
    ("09223372036854775807.keyhashes", 2**63 - 1),
    ("09223372036854775808.keyhashes", None),
    ("1.keyhashes", None),
    (f"{FIRST}.keyhashes.tmp", None),
    (f"{FIRST}.log", None),
]


@pytest.mark.parametrize(("name", "offset"), NAMES)
def test_names_of_key_indexes(name: str, offset: int | None) -> None:
    assert filenames.parse_key_index(name) == offset
    if offset is not None:
        path = filenames.key_index_path("/logs/a-0", offset)
        assert path == f"/logs/a-0/.cordwood/index/{name}"
        assert filenames.partition_of_key_index(path) == "/logs/a-0"
    assert filenames.partition_of_key_index(f"/logs/a-0/{name}") is None


# ---- check and dump --------------------------------------------------------------------------------------------------


def partition_with(tmp_path: Path, entries: Sequence[Entry], index: bytes) -> tuple[Path, Path]:
    """A partition of one segment, and its key index."""
    partition = built(tmp_path, *(data for data, _ in entries))
    folder = partition / ".cordwood/index"
    folder.mkdir(parents=True)
    (folder / f"{FIRST}.keyhashes").write_bytes(index)
    return partition, folder / f"{FIRST}.keyhashes"


def notes(findings: list[Finding]) -> list[tuple[Kind, str]]:
    assert all(one.severity is Severity.NOTE for one in findings)
    return [(one.kind, one.what) for one in findings]


@settings(max_examples=30)
@given(parts())
def test_check_finds_nothing_in_an_index_of_its_segment(
    tmp_path_factory: pytest.TempPathFactory, entries: list[Entry]
) -> None:
    folder = tmp_path_factory.mktemp("segment")
    partition = built(folder, *(data for data, _ in entries), base_offset=100)
    path = Path(filenames.key_index_path(str(partition), 100))
    path.parent.mkdir(parents=True)
    path.write_bytes(file_of(entries, 100))
    ours = [found for found in check(partition) if ".cordwood" in found.path]
    assert ours == [] and check(path) == []


def change_log(change: Callable[[bytes], bytes]) -> Callable[[Path, Path], None]:
    def changed(log: Path, _: Path) -> None:
        log.write_bytes(change(log.read_bytes()))

    return changed


def change_index(change: Callable[[bytes], bytes]) -> Callable[[Path, Path], None]:
    def changed(_: Path, index: Path) -> None:
        index.write_bytes(change(index.read_bytes()))

    return changed


OTHER = encode_batch([Record(0, 1000, b"a", b"9"), Record(1, 1001, b"b", None)])
HORIZON = encode_batch([], base_offset=5, last_offset=7, delete_horizon_ms=1)
STALE, TORN = Kind.KEY_INDEX_STALE, Kind.KEY_INDEX_UNREADABLE
#: Damage to the segment or its index, and the finding of `check`.
WRONG: dict[str, tuple[Callable[[Path, Path], None], Kind, str]] = {
    "cut": (change_index(lambda data: data[:100]), TORN, "a key index of 100 bytes"),
    "empty": (change_index(lambda _: b""), TORN, "does not begin like a key index"),
    "flipped": (change_index(lambda data: data[:-1] + b"\x77"), TORN, "CRC-32C mismatch in block 0"),
    "later version": (change_index(lambda _: numbers(8, "<H", 3)), TORN, "version 3"),
    "another log": (change_index(lambda _: file_of(ENTRIES[2:], 0)), STALE, "the batch at position 0"),
    "another segment": (change_index(lambda _: numbers(16, "<q", 1)), STALE, "a segment at offset 1"),
    "rewritten": (change_log(lambda data: OTHER + data[len(OTHER) :]), STALE, "the batch at position 0"),
    "truncated": (change_log(lambda data: data[: -len(ENTRIES[3][0])]), STALE, "covers 4 batches, and the segment has"),
    "last header": (change_index(lambda _: numbers(60, "<I", 1)), STALE, "the header of the last batch"),
    "flags": (change_index(lambda _: numbers(12, "<I", 17)), STALE, "does not fit the headers of the batches"),
    "horizon": (change_index(lambda _: numbers(40, "<q", 4000)), STALE, "does not fit the headers of the batches"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_check_says_what_is_wrong_with_an_index_and_it_is_no_damage(name: str, tmp_path: Path) -> None:
    change, kind, what = WRONG[name]
    partition, index = partition_with(tmp_path, ENTRIES, SAMPLE)
    assert check(partition) == []
    change(partition / f"{FIRST}.log", index)
    ((found, said),) = notes(check(partition))
    assert found is kind and what in said
    assert notes(check(index)) == [(found, said)]


def test_an_index_that_covers_the_start_of_a_segment_is_right(tmp_path: Path) -> None:
    partition, _ = partition_with(tmp_path, ENTRIES, file_of(ENTRIES[:2], 0))
    assert check(partition) == []


def test_check_names_what_does_not_belong_into_the_folder_of_indexes(tmp_path: Path) -> None:
    partition, index = partition_with(tmp_path, ENTRIES, SAMPLE)
    # Earlier versions wrote the last two.
    for name in ("00000000000000000008.keyhashes", f"{FIRST}.keyhashes.tmp", "notes", "cleaned", f"{FIRST}.pending"):
        (index.parent / name).write_bytes(SAMPLE)
    assert notes(check(partition)) == [
        (Kind.LEFTOVER, "an index that was being written"),
        (Kind.FOREIGN_FILE, "not a key index"),
        (Kind.KEY_INDEX_WITHOUT_LOG, "its segment is gone"),
        *[(Kind.FOREIGN_FILE, "not a key index")] * 2,
    ]


def test_dump_prints_an_index_without_its_secret(tmp_path: Path) -> None:
    _, index = partition_with(tmp_path, ENTRIES, SAMPLE)
    result = run("dump", "--json", index)
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["type"] for line in lines] == ["key_index", *["indexed_batch"] * 4, *["indexed_key"] * 4]
    assert lines[0]["holds"] == ["tombstones", "empty_batches", "keyless"]
    assert [line["position"] for line in lines[1:5]] == [sum(len(data) for data, _ in ENTRIES[:at]) for at in range(4)]
    assert sorted(line["record"] for line in lines[5:]) == [0, 1, 2, 4]
    index.write_bytes(SAMPLE[:-1])
    result = run("dump", index, exits=1)
    assert "DAMAGE" in result.stdout
