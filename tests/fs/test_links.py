"""Links where a file system supports them, and the answer where it does not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cordwood.fs.base import Link
from cordwood.fs.posix import PosixFileSystem
from cordwood.testing.memory import MemoryFileSystem
from tests.fs.trees import content, put

FS = PosixFileSystem()


def test_a_copy_goes_to_another_disk_and_a_hard_link_does_not(other_disk: Path, tmp_path: Path) -> None:
    put(FS, f"{tmp_path}/source", data := os.urandom(5000))
    FS.copy(f"{tmp_path}/source", f"{other_disk}/target")
    assert content(FS, f"{other_disk}/target") == data
    assert not FS.try_link(Link.HARD, f"{other_disk}/target", f"{tmp_path}/link")
    assert FS.try_link(Link.SYMBOLIC, f"{other_disk}/target", f"{tmp_path}/link")
    assert content(FS, f"{tmp_path}/link") == data


def test_a_hard_link_is_the_same_file(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"abc")
    assert FS.try_link(Link.HARD, f"{tmp_path}/source", f"{tmp_path}/link")
    assert (tmp_path / "link").samefile(tmp_path / "source")
    with pytest.raises(FileNotFoundError):
        FS.try_link(Link.HARD, f"{tmp_path}/missing", f"{tmp_path}/other")


def test_a_hard_link_of_a_symlink_is_a_name_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"abc")
    (tmp_path / "symlink").symlink_to("source")
    (tmp_path / "elsewhere").mkdir()
    assert FS.try_link(Link.HARD, f"{tmp_path}/symlink", f"{tmp_path}/elsewhere/link")
    assert not (tmp_path / "elsewhere/link").is_symlink()
    assert (tmp_path / "elsewhere/link").samefile(tmp_path / "source")


def test_memory_supports_hard_links_and_no_symlinks() -> None:
    fs = MemoryFileSystem(lambda: 0)
    put(fs, "f", b"abc")
    assert fs.try_link(Link.HARD, "f", "g")
    assert not fs.try_link(Link.SYMBOLIC, "f", "h")
    assert content(fs, "g") == b"abc" and not fs.exists("h")
