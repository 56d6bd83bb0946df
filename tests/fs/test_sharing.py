"""Copies that cost less, and that are copies all the same where they don't."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from cordwood.fs.base import FileSystem
from cordwood.fs.memory import MemoryFileSystem
from cordwood.fs.posix import PosixFileSystem
from cordwood.fs.sharing import copy_bytes, hard_link
from tests.fs.trees import content, put


@pytest.mark.parametrize("size", [0, 1, 4096, (2 << 20) + 1])
@pytest.mark.parametrize("kind", ["posix", "memory"])
def test_a_copy_has_the_same_bytes(kind: str, size: int, tmp_path: Path) -> None:
    fs: FileSystem = PosixFileSystem() if kind == "posix" else MemoryFileSystem(now_ns=itertools.count().__next__)
    root = str(tmp_path) if kind == "posix" else ""
    put(fs, f"{root}/source", data := os.urandom(size))
    with fs.open(f"{root}/source") as source, fs.create(f"{root}/target") as target:
        copy_bytes(source, target)
    assert content(fs, f"{root}/target") == data


def test_bytes_go_to_another_file_system_and_links_do_not(other_disk: Path, tmp_path: Path) -> None:
    fs, path = PosixFileSystem(), f"{other_disk}/target"
    put(fs, f"{tmp_path}/source", data := os.urandom(5000))
    with fs.open(f"{tmp_path}/source") as source, fs.create(path) as target:
        copy_bytes(source, target)
    assert content(fs, path) == data
    assert not hard_link(path, f"{tmp_path}/link")


def test_a_link_is_the_same_file(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"abc")
    assert hard_link(f"{tmp_path}/source", f"{tmp_path}/link")
    assert (tmp_path / "link").samefile(tmp_path / "source")
    with pytest.raises(FileNotFoundError):
        hard_link(f"{tmp_path}/missing", f"{tmp_path}/other")


def test_a_link_of_a_symlink_is_a_name_of_the_file_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"abc")
    (tmp_path / "symlink").symlink_to("source")
    (tmp_path / "elsewhere").mkdir()
    assert hard_link(f"{tmp_path}/symlink", f"{tmp_path}/elsewhere/link")
    assert not (tmp_path / "elsewhere/link").is_symlink()
    assert (tmp_path / "elsewhere/link").samefile(tmp_path / "source")
