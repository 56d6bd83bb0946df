"""Small disks and read-only disks, where tests may mount file systems."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(path: Path, size_kib: int) -> Iterator[Path]:
    """A file system of this size, mounted on a new folder."""
    path.mkdir()
    with _mounted(path, "-t", "tmpfs", "-o", f"size={size_kib}k", "tmpfs"):
        yield path


@contextlib.contextmanager
def read_only(path: Path, target: Path) -> Iterator[Path]:
    """Mount a directory read-only on a new folder."""
    target.mkdir()
    with _mounted(target, "--bind", str(path)):
        _mount("-o", "remount,bind,ro", str(target))
        yield target


@contextlib.contextmanager
def _mounted(path: Path, *words: str) -> Iterator[None]:
    _mount(*words, str(path))
    try:
        yield
    finally:
        # Lazily, as a worker that Spark keeps may still use it as its current directory.
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def _mount(*words: str) -> None:
    try:
        done = subprocess.run(["mount", *words], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no `mount` here")
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
