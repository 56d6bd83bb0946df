"""Cleans in place that leave key indexes, and use those that the clean before left."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

import cordwood
from cordwood.engine.results import Fate
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.index.files import indexes_in
from cordwood.storage.log.view import LogView
from tests.engine.logs import data, make_log
from tests.storage.indexes import believed

FS = PosixFileSystem()


def files(partition: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(partition.iterdir()) if path.is_file()}


def clean(logs: Path, **choice: Any) -> None:
    result = cordwood.clean_in_place(
        str(logs),
        overrides=["cleanup.policy=compact", "internal.segment.bytes=120000"],
        high_watermark="end",
        ignore_ratio=True,
        single_copy=True,
        verify=False,
        engine="here",
        **choice,
    )
    assert not result.with_fate(Fate.FAILED), result.text()


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


@pytest.mark.parametrize("seed", range(3))
def test_rounds_with_the_index_of_the_round_before_leave_what_rounds_without_do(tmp_path: Path, seed: int) -> None:
    source, logs, twin = random.Random(seed), tmp_path / "logs", tmp_path / "twin"
    end = start(logs)
    for number in range(5):
        end = grown(logs, source, end)
        shutil.rmtree(twin, ignore_errors=True)
        shutil.copytree(logs, twin)
        clean(twin, read_all=True)
        # Once it has indexes, they are kept up to date.
        clean(logs, index=number == 0)
        assert files(logs / "t-0") == files(twin / "t-0")
        assert [path.name for path in (logs / "t-0" / ".cordwood").iterdir()] == ["index"]
        closed = sorted(int(path.stem) for path in (logs / "t-0").glob("*.log"))[:-1]
        assert list(believed(LogView(str(logs / "t-0"), fs=FS, log_start_offset=0))) == closed
        assert {base for base, _ in indexes_in(FS, str(logs / "t-0"))} == set(closed)
        modes = {path.stat().st_mode & 0o777 for path in (logs / "t-0" / ".cordwood" / "index").iterdir()}
        assert modes == {0o600}


def test_a_clean_makes_no_index_unless_asked_or_there_are_some(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    end = start(logs)
    grown(logs, random.Random(1), end)
    clean(logs)
    assert not (logs / "t-0" / ".cordwood").exists()


def test_an_index_that_would_be_large_beside_its_segment_is_not_made(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    end = start(logs, size=30)
    grown(logs, random.Random(1), end)
    clean(logs, index=True)
    assert not list(believed(LogView(str(logs / "t-0"), fs=FS, log_start_offset=0)))
