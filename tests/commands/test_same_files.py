"""Cleans by key indexes read nothing of a segment that is the same file, and are not misled by one that is another."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cordwood.cleaning.engine.facts import CleanSettings
from cordwood.cleaning.engine.partition import CleanRequest, clean_partition
from cordwood.fs.wrapped import CountedStore
from cordwood.storage.formats.key_index import decode, with_identity
from cordwood.storage.index.files import read_index, secret_of_most, write_index
from cordwood.storage.index.identity import TICK_NS, look
from cordwood.storage.log.view import LogView
from cordwood.storage.recovery.replay import Producers
from tests.commands.growing_logs import FS, clean, clean_copy, closed, files, indexed
from tests.logs import batch, make_log

pytestmark = pytest.mark.more

SEGMENTS, BATCHES = 5, 600


def segment_batches(base: int, **other: bytes) -> list[bytes]:
    keys = [b"%05d" % at for at in range(base, base + BATCHES)]
    keys[17] = other.get("key", keys[17])
    return [batch(base + at, (key, b"v" * 2_000)) for at, key in enumerate(keys)]


#: No two segments fit one, so none are merged.
SEGMENT_BYTES = sum(map(len, segment_batches(0))) + 50
SIZES = {"overrides": ["cleanup.policy=compact", f"internal.segment.bytes={SEGMENT_BYTES}"]}


def cleaned_log(logs: Path) -> Path:
    """A log that a clean has left with key indexes."""
    partition = logs / "t-0"
    make_log(partition, *((base, segment_batches(base)) for base in range(0, SEGMENTS * BATCHES, BATCHES)))
    make_log(partition, [batch(SEGMENTS * BATCHES, (b"active", b"v"))])
    clean(logs, index=True, **SIZES)
    assert indexed(logs) == closed(logs)
    return partition


def dirty(logs: Path) -> None:
    """Append a record of another key of the first segment, and an active segment."""
    end = max(log_bytes(logs / "t-0")) + 5
    make_log(logs / "t-0", [batch(end, (b"%05d" % (end % BATCHES), b"new" * 700))], [batch(end + 1, (b"active", b"v"))])


def log_bytes(partition: Path) -> dict[int, int]:
    return {int(path.stem): path.stat().st_size for path in partition.glob("*.log")}


def bytes_read(logs: Path) -> int:
    """Return the bytes of segments that a clean by index reads, without its plan; keep its outputs elsewhere."""
    counted, folder = CountedStore(FS, suffix=".log"), logs.with_name("outputs")
    log = LogView(str(logs / "t-0"), fs=counted, log_start_offset=0)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    request = CleanRequest(
        first_dirty=SEGMENTS * BATCHES,
        first_uncleanable=log.segments[-1].base_offset,
        now_ms=10,
        settings=CleanSettings(segment_bytes=SEGMENT_BYTES),
        producers=Producers(),
        probing=True,
        index_secret=secret_of_most(FS, log.path),
    )
    cleaned = clean_partition(FS, log, str(folder), request)
    assert len(cleaned.kept) == SEGMENTS - 1
    return counted.bytes_read


def is_small(logs: Path) -> bool:
    """Whether a clean reads little but the first segment, which is written again."""
    first = log_bytes(logs / "t-0")[0]
    return first < bytes_read(logs) < 1.1 * first


def test_a_clean_reads_the_new_part_and_segments_that_lose_records(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    partition = cleaned_log(logs)
    for _ in range(3):
        dirty(logs)
        assert is_small(logs)
        shutil.copytree(logs, tmp_path / "twin", ignore=shutil.ignore_patterns(".cordwood"))
        clean(logs, **SIZES)
        clean(tmp_path / "twin", **SIZES)
        assert files(partition) == files(tmp_path / "twin" / "t-0")
        shutil.rmtree(tmp_path / "twin")


def test_a_copied_log_is_compared_once_and_then_is_the_same(tmp_path: Path) -> None:
    cleaned_log(tmp_path / "from")
    logs = tmp_path / "logs"
    shutil.copytree(tmp_path / "from", logs)
    dirty(logs)
    assert bytes_read(logs) > sum(log_bytes(logs / "t-0").values())
    clean(logs, **SIZES)
    dirty(logs)
    assert is_small(logs)


@pytest.mark.parametrize("is_dirty", [False, True])
@pytest.mark.parametrize("is_same", [False, True])
def test_the_clean_of_a_copy_reads_none_of_the_segments_that_lose_nothing(
    tmp_path: Path, is_dirty: bool, is_same: bool
) -> None:
    logs, copy = tmp_path / "logs", tmp_path / "copy"
    partition = cleaned_log(logs)
    if is_dirty:
        dirty(logs)
    if not is_same:
        for path in partition.glob("*.log"):
            os.utime(path)
    clean_copy(logs, copy, **SIZES)
    dirty(copy)
    # Only a clean compares all headers; a copy of indexes relies on samples.
    assert is_small(copy) is (is_same or is_dirty)


def test_an_index_of_the_first_version_is_compared_and_written_again(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    partition = cleaned_log(logs)
    for path in (partition / ".cordwood" / "index").iterdir():
        write_index(FS, str(partition), with_identity(decode(path.read_bytes()), None))
    dirty(logs)
    assert not is_small(logs)
    clean(logs, **SIZES)
    dirty(logs)
    assert is_small(logs)


def test_a_clean_that_reads_all_does_not_rely_on_files_being_the_same(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    cleaned_log(logs)
    dirty(logs)
    result = clean(logs, read_all=True, **SIZES).in_place
    assert result is not None and result.bytes_read > sum(log_bytes(logs / "t-0").values())


# ---- files that changed unnoticed ------------------------------------------------------------------------------------

THIRD = 2 * BATCHES


def other_data(partition: Path) -> bytes:
    """Return the third segment with another key, which is dirty; as many bytes, and the same offsets."""
    data = b"".join(segment_batches(THIRD, key=b"other"))
    assert len(data) == log_bytes(partition)[THIRD]
    return data


def third(partition: Path) -> Path:
    return partition / f"{THIRD:020d}.log"


def restored_with_old_times(partition: Path) -> None:
    path = third(partition)
    info = path.stat()
    path.write_bytes(other_data(partition))
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


def rsynced(partition: Path) -> None:
    path, beside = third(partition), third(partition).with_suffix(".new")
    info = path.stat()
    beside.write_bytes(other_data(partition))
    os.utime(beside, ns=(info.st_atime_ns, info.st_mtime_ns))
    beside.replace(path)


def truncated_and_appended(partition: Path) -> None:
    data = other_data(partition)
    with third(partition).open("r+b") as file:
        file.truncate(len(data) // 100)
        file.seek(0)
        file.write(data)


def copied_along(partition: Path) -> None:
    """Give another log the folder of indexes."""
    elsewhere = partition.with_name("elsewhere-0")
    shutil.copytree(partition, elsewhere)
    third(elsewhere).write_bytes(other_data(partition))
    shutil.copystat(third(partition), third(elsewhere))
    shutil.rmtree(partition)
    elsewhere.replace(partition)


def looked_at_again(partition: Path, after_ns: int) -> None:
    """Change a segment, and make its index as if it had been looked at some time after that, but of the old bytes."""
    (segment,) = (one for one in LogView(str(partition), fs=FS).segments if one.base_offset == THIRD)
    index = read_index(segment)
    assert index.identity is not None
    truncated_and_appended(partition)
    now = look(FS, str(partition), THIRD)
    assert now is not None
    seen = replace(index.identity, files=now.files, looked_ns=now.files[0].ctime_ns + after_ns)
    write_index(FS, str(partition), with_identity(index, seen))


def changed_within_a_tick(partition: Path) -> None:
    looked_at_again(partition, TICK_NS // 2)


def changed_before_the_clock_was_set_back(partition: Path) -> None:
    looked_at_again(partition, 3_600 * 10**9)


def cleaned_without_indexes(partition: Path) -> None:
    """Clean the log elsewhere and bring its files back, as a broker that cleans between leaves our folder alone."""
    restored_with_old_times(partition)
    other = partition.parent.with_name("broker")
    shutil.copytree(partition, other / "t-0", ignore=shutil.ignore_patterns(".cordwood"))
    end = max(log_bytes(partition)) + 1
    make_log(other / "t-0", [batch(end, (b"other", b"v" * 2_000))], [batch(end + 1, (b"active", b"v" * 2_000))])
    clean(other, **SIZES)
    for path in partition.glob("0*"):
        path.unlink()
    for path in (other / "t-0").glob("0*"):
        shutil.copy2(path, partition)


CHANGES: list[Callable[[Path], None]] = [
    restored_with_old_times,
    rsynced,
    truncated_and_appended,
    copied_along,
    changed_within_a_tick,
    changed_before_the_clock_was_set_back,
    cleaned_without_indexes,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_file_that_changed_unnoticed_is_cleaned_as_without_indexes(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    logs, twin = tmp_path / "logs", tmp_path / "twin"
    partition = cleaned_log(logs)
    change(partition)
    end = max(log_bytes(partition)) + 5
    for one in (b"00005", b"other", b"active"):
        make_log(partition, [batch(end, (one, b"new" * 700))])
        end += 1
    shutil.copytree(logs, twin, ignore=shutil.ignore_patterns(".cordwood"))
    clean(logs, **SIZES)
    clean(twin, **SIZES)
    assert files(partition) == files(twin / "t-0")
    assert b"other" not in third(partition).read_bytes()
    assert set(indexed(logs)) <= set(closed(logs))
