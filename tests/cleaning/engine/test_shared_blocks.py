"""Unchanged ranges of batches share their blocks with the source segment, on disks that can share."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cordwood.cleaning.engine.facts import CleanSettings
from cordwood.cleaning.engine.partition import Cleaned, CleanRequest, clean_partition
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.log.files import read_file
from cordwood.storage.log.view import LogView
from cordwood.storage.recovery.replay import Producers
from cordwood.testing.memory import MemoryFileSystem
from tests.logs import batch, make_log

pytestmark = pytest.mark.more

#: Enough to be worth sharing, in batches whose ends are at no block's.
BATCHES = 300


def log_in(folder: Path) -> LogView:
    """A log whose first segment has a long unchanged prefix, followed by a dropped record."""
    first = [batch(number, (b"key-%d" % number, b"v" * (1_000 + number))) for number in range(BATCHES)]
    goes = batch(BATCHES, (b"x", b"v" * 900))
    later = [batch(number, (b"key-%d" % number, b"v" * 700)) for number in range(BATCHES + 1, BATCHES + 100)]
    return make_log(folder, (0, [*first, goes, *later]), [batch(BATCHES + 200, "x=v")], (10_000, []))


def clean(log: LogView, fs: PosixFileSystem | MemoryFileSystem, target: str) -> Cleaned:
    fs.make_directory(target)
    return clean_partition(
        fs,
        log,
        target,
        CleanRequest(
            first_dirty=0,
            first_uncleanable=10_000,
            now_ms=10,
            settings=CleanSettings(),
            producers=Producers(),
        ),
    )


class Sharing(PosixFileSystem):
    """Reports that its disk shares blocks, on any disk."""

    def shares_blocks(self, path: str) -> bool:
        return True


def test_a_disk_that_cannot_share_after_all_gets_copies(tmp_path: Path) -> None:
    log = log_in(tmp_path / "t-0")
    clean(log, PosixFileSystem(), str(tmp_path / "plain"))
    clean(log, Sharing(), str(tmp_path / "shared"))
    for path in (tmp_path / "plain").iterdir():
        assert (tmp_path / "shared" / path.name).read_bytes() == path.read_bytes()


def test_what_is_asked_to_be_shared_is_what_the_source_has() -> None:
    # The memory file system compares.
    fs = MemoryFileSystem(lambda: 0)
    fs.can_clone = True
    fs.make_directory("t-0")
    folder = Path(os.environ.get("TMPDIR", "/tmp")) / f"shared-{os.getpid()}"
    try:
        for path in Path(log_in(folder).path).iterdir():
            with fs.create(f"t-0/{path.name}") as file:
                file.write(0, path.read_bytes())
    finally:
        shutil.rmtree(folder)
    clean(LogView("t-0", fs=fs), fs, "out")
    size = len(read_file(fs, "out/00000000000000000000.index")) and fs.stat("out/00000000000000000000.log").size_bytes
    assert fs.shared_bytes > 0.9 * size


@pytest.fixture
def xfs(tmp_path: Path) -> Iterator[Path]:
    """A new XFS, whose files may share blocks; skipped where it cannot be made."""
    if os.geteuid() or shutil.which("mkfs.xfs") is None:
        pytest.skip("needs root and mkfs.xfs")
    image, mount = tmp_path / "image", tmp_path / "xfs"
    with image.open("wb") as file:
        file.truncate(400 << 20)
    mount.mkdir()
    subprocess.run(["mkfs.xfs", "-q", image], check=True)
    if subprocess.run(["mount", "-o", "loop", image, mount], capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield mount
    finally:
        subprocess.run(["umount", mount], check=True)


def test_on_xfs_the_prefix_that_stays_takes_no_room(xfs: Path, tmp_path: Path) -> None:
    log = log_in(xfs / "t-0")
    os.sync()
    clean(log, PosixFileSystem(), str(tmp_path / "plain"))
    before = os.statvfs(xfs).f_bfree
    clean(log, PosixFileSystem(), str(xfs / "out"))
    os.sync()
    taken = (before - os.statvfs(xfs).f_bfree) * os.statvfs(xfs).f_frsize
    size = (xfs / "out" / "00000000000000000000.log").stat().st_size
    assert taken < size / 2, f"{taken} of {size} bytes"
    for path in (tmp_path / "plain").iterdir():
        assert (xfs / "out" / path.name).read_bytes() == path.read_bytes()
