"""Time indexes find the same first record at or after a time as a scan of all records."""

from __future__ import annotations

import struct

import pytest

from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from cordwood.storage.formats.filenames import FileKind, offset_name
from cordwood.storage.log.searches import first_since
from cordwood.storage.log.segment import MAX_OFFSET
from cordwood.storage.log.view import LogView
from cordwood.testing.memory import MemoryFileSystem
from tests.knobs import SEED
from tests.tables.source.random_logs import NOW_MS, PARTITIONS, ROOT, random_directory


@pytest.mark.parametrize("seed", range(4))
def test_the_first_record_since_a_time_is_found_by_indexes(seed: int) -> None:
    fs = random_directory(SEED + seed).fs
    for partition in PARTITIONS:
        log = LogView(f"{ROOT}/{partition}", fs=fs)
        records = list(log.records(isolation=None))
        times = sorted({record.timestamp for record in records})
        for since in (0, *times[::5], *(one + 1 for one in times[::7]), NOW_MS + 10**9):
            for start, end in ((0, MAX_OFFSET), (log.next_offset // 3, log.next_offset // 2)):
                wanted = (one.offset for one in records if one.timestamp >= since and start <= one.offset < end)
                found = first_since(log, since, start_offset=start, end_offset=end)
                assert found == next(wanted, None), (partition, since, start, end)


#: Timestamps of the records of a closed segment, and entries (timestamp, offset) of its time index.
INDEXES: dict[str, tuple[list[int], list[tuple[int, int]]]] = {
    "right": ([10, 20, 30, 40], [(20, 1), (40, 3)]),
    "stale": ([10, 20, 30, 40], [(20, 1)]),
    "of another log": ([10, 20, 30, 40], [(5, 1), (9, 3)]),
    "beyond the end": ([10, 20, 30, 40], [(12, 2), (20, 9)]),
    "one entry wrong": ([10, 20, 30, 40], [(15, 2), (40, 3)]),
    "of a record from the future": ([90, 20, 30, 40], [(90, 0)]),
}


@pytest.mark.parametrize("name", INDEXES)
def test_a_time_index_that_contradicts_the_batches_changes_nothing(name: str) -> None:
    times, entries = INDEXES[name]
    fs = MemoryFileSystem(lambda: 0)
    fs.make_directory("t-0")
    batches = [encode_batch([Record(offset, at, b"k", b"v")]) for offset, at in enumerate([*times, 100])]
    files = {offset_name(0, FileKind.LOG): b"".join(batches[:-1]), offset_name(len(times), FileKind.LOG): batches[-1]}
    files[offset_name(0, FileKind.TIME_INDEX)] = b"".join(struct.pack(">qi", *entry) for entry in entries)
    for file_name, content in files.items():
        with fs.create(f"t-0/{file_name}", exclusive=True) as file:
            file.write(0, content)
    log = LogView("t-0", fs=fs)
    for since in range(0, 110, 3):
        wanted = [offset for offset, at in enumerate([*times, 100]) if at >= since]
        assert [record.offset for record in log.records(since_ms=since)] == wanted
        found = first_since(log, since, start_offset=0, end_offset=MAX_OFFSET)
        assert found == next(iter(wanted), None)
