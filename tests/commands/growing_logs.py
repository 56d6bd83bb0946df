"""Logs of large records that grow and are cleaned, with key indexes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import cordwood
from cordwood.cleaning.engine import scan
from cordwood.cleaning.engine.results import CleanResult, Fate
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.index.files import indexes_in
from cordwood.storage.log.segment import Segment
from cordwood.storage.log.view import LogView
from tests.cleaning.engine.logs import data, make_log
from tests.storage.indexes import believed

FS = PosixFileSystem()


def files(partition: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(partition.iterdir()) if path.is_file()}


OPTIONS: dict[str, Any] = {
    "overrides": ["cleanup.policy=compact", "internal.segment.bytes=120000"],
    "high_watermark": "end",
    "ignore_ratio": True,
    "single_copy": True,
    "engine": "here",
}


def clean(logs: Path, **choice: Any) -> CleanResult:
    result = cordwood.clean_in_place(str(logs), verify=False, **(OPTIONS | choice))
    assert not result.with_fate(Fate.FAILED), result.text()
    return result


def grown(logs: Path, source: random.Random, base: int) -> int:
    """Append segments behind the last one; their end."""
    partition = logs / "t-0"
    for _ in range(source.randint(1, 3)):
        count = source.randint(1, 12)
        keys = [b"%d" % source.randrange(400) for _ in range(count)]
        make_log(partition, (base, [data(base + at, key, size=2_000) for at, key in enumerate(keys)]))
        base += count
    return base


def start(logs: Path, size: int = 2_000) -> int:
    (logs / "t-0").mkdir(parents=True)
    for base in range(0, 400, 40):
        make_log(logs / "t-0", (base, [data(at, b"%d" % at, size=size) for at in range(base, base + 40)]))
    return 400


def indexes(logs: Path) -> list[int]:
    """The sizes of the key indexes, in the order of their segments."""
    return [info.size_bytes for _, info in sorted(indexes_in(FS, str(logs / "t-0")), key=lambda found: found[0])]


def clean_copy(logs: Path | str, output: Path | str, **choice: Any) -> CleanResult:
    result = cordwood.clean(str(logs), output=str(output), **(OPTIONS | choice))
    assert not result.with_fate(Fate.FAILED), result.text()
    return result


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def closed(logs: Path, topic: str = "t-0") -> list[int]:
    return sorted(int(path.stem) for path in (logs / topic).glob("*.log"))[:-1]


def indexed(logs: Path, topic: str = "t-0") -> list[int]:
    """Return the segments with a valid index; fail if there are other index files."""
    found = list(believed(LogView(str(logs / topic), fs=FS, log_start_offset=0)))
    assert {base for base, _ in indexes_in(FS, str(logs / topic))} == set(found)
    return found


def segments_searched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The base offsets of segments that an index speaks for in this process."""
    found: list[int] = []
    original = scan.scan_by_index

    def noted(segment: Segment, *args: Any, **choice: Any) -> Any:
        run = original(segment, *args, **choice)
        found.extend([segment.base_offset] if run is not None else [])
        return run

    monkeypatch.setattr(scan, "scan_by_index", noted)
    return found
