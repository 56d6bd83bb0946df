"""The file system that proves that sources are only read: every verb of the protocol only reads, or is refused."""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import pytest

from cordwood.fs.base import LocalFileSystem
from cordwood.testing.memory import MemoryFileSystem
from tests.fs.disks import READING, READING_THE_FIRST, VERBS, OnlyRead
from tests.fs.trees import put, sync_everything, tree

pytestmark = pytest.mark.more


@pytest.mark.parametrize("verb", sorted(VERBS - READING))
def test_a_verb_that_may_change_something_is_refused(verb: str) -> None:
    memory = MemoryFileSystem(now_ns=itertools.count().__next__)
    memory.make_directory("/logs")
    put(memory, "/logs/f", b"abc")
    sync_everything(memory, "/")
    fs = OnlyRead(memory, "/logs")
    before, operations = tree(memory, "/"), len(memory.operations)
    names = list(inspect.signature(getattr(LocalFileSystem, verb)).parameters)[1:]
    values: dict[str, Any] = {
        "path": "/logs/f",
        "paths": ["/logs/f"],
        "source": "/logs/f",
        "target": "/logs/g",
        "data": b"x",
    }
    numbers = dict.fromkeys(("mtime_ns", "uid", "gid"), 0)
    options: dict[str, Any] = {name: value for name, value in {**values, **numbers}.items() if name in names}
    if "mode" in names and verb == "set_mode":
        options["mode"] = 0
    with pytest.raises(AssertionError, match="only to be read"):
        getattr(fs, verb)(**options)
    assert tree(memory, "/") == before and len(memory.operations) == operations


def test_what_only_reads_goes_through() -> None:
    memory = MemoryFileSystem(now_ns=itertools.count().__next__)
    memory.make_directory("/logs")
    put(memory, "/logs/f", b"abc")
    fs = OnlyRead(memory, "/logs")
    with fs.open("/logs/f") as file:
        assert file.read(0, 9) == b"abc"
        with pytest.raises(OSError):
            file.write(0, b"x")
    fs.copy("/logs/f", "/copy")
    assert {info.name for info in fs.list("/logs")} == {"f"} and fs.seen == []
    assert VERBS >= READING_THE_FIRST
