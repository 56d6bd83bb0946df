"""Directories full of nonsense: reading any bytes ends, and raises only Cordwood's own errors.

Bytes are random, or valid files cut and joined; half of the time all checksums are corrected afterwards, so that
nonsense passes them and reaches the decoders.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cordwood.common.errors import CordwoodError, DataError
from cordwood.common.types import Isolation
from cordwood.kernels.layout import HEADER
from cordwood.record.batch import encode_batch, seal
from cordwood.record.record import Record
from cordwood.storage.check import Check
from cordwood.storage.formats import filenames
from cordwood.storage.formats.filenames import FileKind, Temporary, offset_name
from cordwood.storage.log.view import LogView
from cordwood.storage.node.directory import LogDirectory, look
from cordwood.testing.memory import MemoryFileSystem
from tests.damage.samples import PARTITION, entries, logs, memory, small_files

pytestmark = pytest.mark.more

GOOD = [sample.data for sample in logs()] + [sample.data for sample in small_files()]
GOOD_LOGS = [sample.data for sample in logs()]
ODD_NUMBERS = [0, 1, 100, 2**31 - 1, 2**31, 2**63 - 1]
NAMES = [offset_name(offset, kind) for offset in ODD_NUMBERS for kind in filenames.OFFSET_KINDS]
NAMES += [name + temporary for name in NAMES[:8] for temporary in Temporary if temporary]
NAMES += [FileKind.LEADER_EPOCHS, FileKind.PARTITION_METADATA, FileKind.QUORUM_STATE, "+7.log", "x.log", "core"]
DIRECTORY_NAMES = [*filenames.OFFSET_CHECKPOINTS, filenames.META_PROPERTIES, filenames.CLEAN_SHUTDOWN]
PARTITIONS = [
    "orders-0",
    "orders-1",
    "orders-0.0123456789abcdef0123456789abcdef-future",
    "__cluster_metadata-0",
    "junk",
]


def sealed(log: bytes) -> bytes:
    """The same log with every checksum right, as far as it has entries."""
    data = bytearray(log)
    position = 0
    while position + 26 <= len(data):
        end = position + 12 + int.from_bytes(data[position + 8 : position + 12], "big")
        if not position + 26 <= end <= len(data):
            break
        if data[position + 16] == 2 and end - position >= HEADER.size:
            data[position:end] = seal(bytes(data[position:end]))
        elif data[position + 16] < 2:
            data[position + 12 : position + 16] = zlib.crc32(data[position + 16 : end]).to_bytes(4, "big")
        position = end
    return bytes(data)


@st.composite
def spliced(draw: st.DrawFn, sources: list[bytes] = GOOD) -> bytes:
    """Parts of good files, some with a few bytes changed."""
    parts = []
    for _ in range(draw(st.integers(1, 3))):
        data = draw(st.sampled_from(sources))
        if draw(st.booleans()):
            start = draw(st.integers(0, len(data)))
            data = data[start : draw(st.integers(start, len(data)))]
        changed = bytearray(data)
        for _ in range(draw(st.integers(0, 3)) if data else 0):
            position = draw(st.integers(0, len(data) - 1))
            new = draw(
                st.binary(min_size=1, max_size=4) | st.sampled_from([b"\xff" * 8, b"\x7f" + b"\xff" * 7, bytes(8)])
            )
            changed[position : position + len(new)] = new
        parts.append(bytes(changed))
    found = b"".join(parts)
    return sealed(found) if draw(st.booleans()) else found


CONTENT = st.binary(max_size=120) | spliced()
OFFSETS = st.none() | st.sampled_from(ODD_NUMBERS) | st.integers(-5, 200)


def quietly(call: Callable[[], object]) -> None:
    """Only Cordwood's errors may be raised, and each must format its message."""
    said = "no error"
    try:
        call()
    except CordwoodError as error:
        said = str(error)
    assert said


def read_everything(fs: MemoryFileSystem, path: str, **bounds: int | None) -> None:
    """Every verb of a log, stopping at the first damage and going on behind it."""
    log = LogView(path, fs=fs)
    damage: list[DataError] = []
    for isolation in (None, *Isolation):
        quietly(lambda isolation=isolation: list(log.records(isolation=isolation, **bounds)))  # type: ignore[misc, arg-type]
        quietly(
            lambda isolation=isolation: list(  # type: ignore[misc]
                log.columns(isolation=isolation, on_damage=damage.append, max_batch_bytes=1 << 16, **bounds)
            )
        )
    quietly(lambda: list(log.batches()))
    quietly(lambda: list(log.batches(on_damage=damage.append)))
    quietly(lambda: log.to_arrow(on_damage=damage.append))
    quietly(lambda: log.next_offset)
    quietly(log.transactions)
    quietly(lambda: (log.log_start_offset, log.first_offset, log.size_bytes, repr(log)))
    for segment in log.segments:
        quietly(segment.offset_index)
        quietly(segment.time_index)
        quietly(segment.transaction_index)
    assert all(str(error) for error in damage)


@settings(max_examples=150)
@given(st.binary(max_size=300) | spliced(GOOD_LOGS), OFFSETS, OFFSETS, OFFSETS)
@example(encode_batch([Record(2**63 - 1, 2**63 - 1, b"k", b"v")]), 0, 2**63 - 1, 2**63 - 1)
def test_any_bytes_as_a_log_raise_only_our_errors(
    data: bytes, start_offset: int | None, end_offset: int | None, since_ms: int | None
) -> None:
    fs = memory({f"{PARTITION}/{offset_name(0, FileKind.LOG)}": data})
    read_everything(fs, PARTITION, start_offset=start_offset, end_offset=end_offset, since_ms=since_ms)


@settings(max_examples=80)
@given(st.dictionaries(st.sampled_from(NAMES), CONTENT, min_size=1, max_size=8), OFFSETS, OFFSETS)
# Once the range of offsets that may follow damage did not fit 64 bits, a swapped index without a log was looked for by
# the name it would get, and a partition without segments had no last one.
@example({offset_name(2**63 - 1, FileKind.LOG): b"\0" * 16 + b"\5" + GOOD_LOGS[0]}, None, None)
@example({offset_name(0, FileKind.TRANSACTION_INDEX) + Temporary.SWAP: b""}, None, None)
@example({offset_name(0, FileKind.OFFSET_INDEX): b""}, None, None)
def test_any_partition_raises_only_our_errors(
    files: dict[str, bytes], start_offset: int | None, since_ms: int | None
) -> None:
    fs = memory({f"{PARTITION}/{name}": data for name, data in files.items()})
    read_everything(fs, PARTITION, start_offset=start_offset, since_ms=since_ms)
    before = list(fs.operations)
    quietly(lambda: list(Check(fs).run([PARTITION])))
    assert fs.operations == before, "reading changes nothing"


@settings(max_examples=50)
@given(
    st.dictionaries(st.sampled_from(DIRECTORY_NAMES), CONTENT, max_size=5),
    st.dictionaries(
        st.sampled_from(PARTITIONS),
        st.dictionaries(st.sampled_from(NAMES), CONTENT, max_size=4),
        min_size=1,
        max_size=3,
    ),
)
def test_any_log_directory_raises_only_our_errors(
    files: dict[str, bytes], partitions: dict[str, dict[str, bytes]]
) -> None:
    tree = {f"/data/{name}": data for name, data in files.items()}
    tree |= {
        f"/data/{partition}/{name}": data for partition, inner in partitions.items() for name, data in inner.items()
    }
    if not tree:
        return
    fs = memory(tree)
    quietly(lambda: look(fs, "/data"))
    directory = LogDirectory.open(fs, "/data")
    for partition in directory.partitions:
        quietly(lambda partition=partition: list(directory.log(partition).records(isolation="read_committed")))  # type: ignore[misc]
    quietly(lambda: (directory.meta, directory.high_watermarks, directory.cleaner_offsets, directory.recovery_points))
    quietly(lambda: list(Check(fs).run(["/data"])))


@pytest.mark.slow
@settings(max_examples=3_000)
@given(st.binary(max_size=300) | spliced(GOOD_LOGS), OFFSETS, OFFSETS)
def test_many_more_bytes_as_a_log_raise_only_our_errors(
    data: bytes, start_offset: int | None, since_ms: int | None
) -> None:
    fs = memory({f"{PARTITION}/{offset_name(0, FileKind.LOG)}": data})
    read_everything(fs, PARTITION, start_offset=start_offset, since_ms=since_ms)


def test_sealing_makes_every_checksum_right() -> None:
    for data in GOOD_LOGS:
        assert sealed(data) == data
        for start, end, magic in entries(data):
            at = start + (17 if magic == 2 else 12)
            damaged = data[:at] + b"\0\0\0\0" + data[at + 4 :]
            assert sealed(damaged)[start:end] == data[start:end]
