"""A log in a bucket is checked and cleaned in little memory and on little disk, whatever its size.

`CORDWOOD_LARGE=1` takes one of 5 GB.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cordwood.testing import workloads
from cordwood.testing.generate import Keys, Shape
from cordwood.testing.workloads import Workload
from tests.fs.object_server import BUCKET, environment, running_server
from tests.spark.workers import peaks
from tests.summary import lines_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="finds Spark's processes in /proc"),
]

_MB = 1_000_000
_SIZE_BYTES = 5_000 * _MB if os.environ.get("CORDWOOD_LARGE") else 100 * _MB
_MEMORY_BYTES, _CORES = 256 * _MB, 2
#: Of a worker, beside its share of `--memory`; and of a process that only reads.
_BESIDE_BYTES = 250 * _MB
#: Of a segment as a clean writes them, with its indexes.
_SEGMENT_BYTES = 110 * _MB


def used_bytes(folder: Path) -> int:
    """Of all files that are there now, also of those that have no name any more."""
    total = 0
    for path in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if os.readlink(path).startswith(str(folder)):
                total += path.stat().st_size
    return total


def test_memory_and_disk_do_not_grow_with_a_log_in_a_bucket(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with running_server() as server:
        records = _SIZE_BYTES // 1_000
        workload = Workload("", records, Keys(records // 4, "spread"), Shape(value_bytes=1_000))
        workloads.write(tmp_path / "logs", workload)
        (tmp_path / "logs" / "bench-0" / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
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

        words = ["--config", "cleanup.policy=compact", "--config", "segment.bytes=104857600", "--ignore-ratio"]
        words += ["--memory", f"{_MEMORY_BYTES}", "--master", f"local[{_CORES}]"]
        cleaned = peaks(["clean", url, "--output", f"s3://{BUCKET}/cleaned", *words], known, look)
    assert cleaned.workers
    sizes = [one // _MB for one in (_SIZE_BYTES, checked.command, cleaned.workers[0], disk)]
    line = "a bucket of {:,} MB: check {} MB; clean: a worker {} MB, temporary files {} MB".format(*sizes)
    record_property(*lines_of([line]))
    assert checked.command < _BESIDE_BYTES
    assert cleaned.workers[0] < _MEMORY_BYTES // _CORES + _BESIDE_BYTES
    assert 0 < disk < _CORES * _SEGMENT_BYTES
