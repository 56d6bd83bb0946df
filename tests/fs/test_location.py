"""Locations: tasks find the file system of their driver."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys

import pytest

from cordwood.fs.posix import PosixFileSystem
from cordwood.fs.wrapped import Overlay
from cordwood.testing.memory import MemoryFileSystem


def test_a_location_of_the_machine_opens_in_any_process() -> None:
    location = PosixFileSystem().location()
    assert not location.in_this_process
    assert isinstance(pickle.loads(pickle.dumps(location)).open(), PosixFileSystem)


def test_a_location_in_memory_finds_the_same_object() -> None:
    memory = MemoryFileSystem(lambda: 0)
    for fs in (memory, Overlay(memory, "d", {})):
        location = pickle.loads(pickle.dumps(fs.location()))
        assert location.in_this_process and location.open() is fs


def test_a_location_in_memory_opens_in_no_other_process() -> None:
    fs = MemoryFileSystem(lambda: 0)
    program = f"import pickle; pickle.loads({pickle.dumps(fs.location())!r}).open()"
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert "is in the memory of another process" in done.stderr


def test_a_location_keeps_no_file_system_alive() -> None:
    location = MemoryFileSystem(lambda: 0).location()
    gc.collect()
    with pytest.raises(LookupError, match="is gone"):
        location.open()
