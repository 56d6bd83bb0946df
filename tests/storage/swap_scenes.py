"""Logs in the middle of a swap, and files that an interrupted swap leaves."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.formats.filenames import FileKind
from cordwood.testing.memory import MemoryFileSystem
from tests.fs.trees import tree
from tests.kafka_tools import Oracle
from tests.storage.swaps import (
    NOW_MS,
    PATH,
    SCENES,
    Scene,
    segment_files,
)


@cache
def built(name: str) -> Scene:
    return SCENES[name]()


def only_logs(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if name.endswith(FileKind.LOG)}


def loaded_by_kafka(
    states: Sequence[MemoryFileSystem], root: Path, oracle: Oracle, *, clean: bool
) -> list[dict[str, bytes]]:
    """Let Kafka load partitions and close them; return their files."""
    for number, fs in enumerate(states):
        for path, data in tree(fs, PATH).items():
            target = root / f"t-{number}" / path
            if data is None:
                target.mkdir(parents=True, exist_ok=True)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
    if clean:
        (root / ".kafka_cleanshutdown").write_bytes(b"")
    lines = oracle("select", root, "--now", str(NOW_MS))
    assert len([line for line in lines if line["type"] == "log"]) == len(states)
    found = []
    for number in range(len(states)):
        path = str(root / f"t-{number}")
        names = {info.name for info in PosixFileSystem().list(path)}
        assert not any(name.endswith((".cleaned", ".swap")) for name in names)  # files are renamed before deletion
        found.append(segment_files(PosixFileSystem(), path))
    return found
