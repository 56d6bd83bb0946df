"""A log in a bucket is checked and cleaned in little memory and on little disk, at any size."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cordwood.bench.generate import KeyPattern, Shape, write_keyed_log
from cordwood.common.types import TopicPartition
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.formats import checkpoints, filenames
from tests.fs.object_server import BUCKET, environment, running_server
from tests.summary import lines_of
from tests.tasks.spark.workers import peaks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="finds Spark's processes in /proc"),
]

_MB = 1_000_000
_MEMORY_BYTES, _CORES = 256 * _MB, 2
#: Memory of a worker, beside its share of `--memory`; and of a process that only reads.
_BESIDE_BYTES = 250 * _MB
#: The S3 server reads the whole object for each requested range, so objects are small.
_SEGMENT_BYTES = 32 << 20


def write(root: Path, size_bytes: int) -> None:
    """A log directory with one partition, as a broker leaves it that was shut down."""
    partition = root / "orders-0"
    partition.mkdir(parents=True)
    records = size_bytes // 1_000
    keys = KeyPattern(records // 4, "spread")
    made: dict[str, Any] = {"records": records, "keys": keys, "shape": Shape(value_bytes=1_000)}
    end = write_keyed_log(PosixFileSystem(), str(partition), segment_bytes=_SEGMENT_BYTES, **made)
    (partition / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    (root / filenames.HIGH_WATERMARKS).write_bytes(checkpoints.encode({TopicPartition("orders", 0): end}))
    (root / filenames.CLEAN_SHUTDOWN).write_text('{"version":0,"brokerEpoch":1}')


def used_bytes(folder: Path) -> int:
    """Size of all existing files, including unlinked ones that are still open."""
    total = 0
    for path in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if os.readlink(path).startswith(str(folder)):
                total += path.stat().st_size
    return total


@pytest.mark.parametrize("size_bytes", [100 * _MB, pytest.param(5_000 * _MB, marks=pytest.mark.large)])
def test_memory_and_disk_do_not_grow_with_a_log_in_a_bucket(
    tmp_path: Path, size_bytes: int, record_property: Callable[[str, object], None]
) -> None:
    with running_server() as server:
        write(tmp_path / "logs", size_bytes)
        url = server.upload(tmp_path / "logs", "logs")
        shutil.rmtree(tmp_path / "logs")
        temporary = tmp_path / "temporary"
        temporary.mkdir()
        known = {**environment(server.address), "TMPDIR": str(temporary)}
        checked = peaks(["check", url], known)
        disk = 0

        def look() -> None:
            nonlocal disk
            disk = max(disk, used_bytes(temporary))

        words = ["--config", "cleanup.policy=compact", "--config", f"segment.bytes={_SEGMENT_BYTES}", "--ignore-ratio"]
        words += ["--memory", f"{_MEMORY_BYTES}", "--master", f"local[{_CORES}]"]
        cleaned = peaks(["clean", url, "--output", f"s3://{BUCKET}/cleaned", *words], known, look)
    assert cleaned.workers
    sizes = [one // _MB for one in (size_bytes, checked.command, cleaned.workers[0], disk)]
    line = "a bucket of {:,} MB: check {} MB; clean: a worker {} MB, temporary files {} MB".format(*sizes)
    record_property(*lines_of([line]))
    assert checked.command < _BESIDE_BYTES
    assert cleaned.workers[0] < _MEMORY_BYTES // _CORES + _BESIDE_BYTES
    # For each task a segment and its indexes.
    assert 0 < disk < _CORES * 1.1 * _SEGMENT_BYTES
