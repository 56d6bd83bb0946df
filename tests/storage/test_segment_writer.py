"""A segment is written in large blocks, is on its way to the disk before it is synced, and is synced once."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest

from cordwood.fs.base import Bytes, File, LocalFileSystem
from cordwood.fs.posix import PosixFileSystem
from cordwood.fs.wrapped import WrappedFile, WrappedFileSystem
from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from cordwood.storage.log.segment_writer import IndexLimits, SegmentWriter
from tests.logs import window


class Disk(WrappedFileSystem):
    """Notes the operations on a log; syncing it can fail."""

    def __init__(self, fs: LocalFileSystem, *, fails: bool = False) -> None:
        super().__init__(fs)
        self.notes: list[str] = []
        self.fails = fails

    def create(self, path: str, *, exclusive: bool = True, mode: int = 0o666) -> File:
        file = super().create(path, exclusive=exclusive, mode=mode)
        return Noted(file, self) if path.endswith(".log") else file


class Noted(WrappedFile):
    def __init__(self, file: File, disk: Disk) -> None:
        super().__init__(file)
        self.disk = disk

    def write(self, position: int, data: Bytes) -> None:
        super().write(position, data)
        self.disk.notes.append("write")

    def write_back(self, position: int, size_bytes: int) -> None:
        super().write_back(position, size_bytes)
        self.disk.notes.append(f"write back {position}+{size_bytes}")

    def sync(self) -> None:
        self.disk.notes.append("sync")
        if self.disk.fails:
            raise OSError(errno.EIO, "the disk fails")
        super().sync()

    def close(self) -> None:
        super().close()
        self.disk.notes.append("close")


def write_three(disk: Disk, folder: Path) -> bytes:
    """Write three batches, one by one; return the log's contents."""
    batches = [encode_batch([Record(at, 7, b"key", bytes(100))]) for at in range(3)]
    writer = SegmentWriter(disk, str(folder), 0, IndexLimits())
    try:
        for batch in batches:
            writer.append([np.frombuffer(batch, np.uint8)], window(batch).batches)
        writer.finish()
    finally:
        writer.close()
    return b"".join(batches)


def test_what_was_written_is_on_its_way_before_all_of_it_is_synced(tmp_path) -> None:
    disk = Disk(PosixFileSystem())
    data = write_three(disk, tmp_path)
    assert disk.notes == ["write", f"write back 0+{len(data)}", "sync", "close", "close"]
    assert (tmp_path / "00000000000000000000.log").read_bytes() == data


def test_a_disk_that_fails_to_sync_fails_the_segment_and_is_not_asked_again(tmp_path) -> None:
    # A second sync after an error may report success although data was lost.
    disk = Disk(PosixFileSystem(), fails=True)
    with pytest.raises(OSError, match="the disk fails"):
        write_three(disk, tmp_path)
    assert disk.notes.count("sync") == 1
