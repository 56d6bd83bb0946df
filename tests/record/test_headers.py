"""The walk over headers in Python: the same rows and ends as the kernel's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.kernels import scan
from cordwood.kernels.layout import BATCH_ROW
from cordwood.record import headers
from cordwood.testing.strategies import logs
from tests.command import ENVIRONMENT
from tests.fixtures import fixture


@given(
    logs(base_offset=5),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=3),
    st.integers(0, 60),
    st.integers(1, 40),
    st.sampled_from([17, 30, 61, 100, 1 << 20]),
    st.booleans(),
)
def test_python_walks_headers_as_the_kernel_does(log, changes, cut, capacity, window, whole) -> None:
    changed = bytearray(log[0])
    for at, byte in changes:
        if at < len(changed):
            changed[at] = byte
    data = np.frombuffer(bytes(changed[: max(0, len(changed) - cut)]) + b"\0", np.uint8)[:-1]
    file_left, data = data.size, data[:window]
    expected, rows = np.zeros(capacity, BATCH_ROW), np.zeros(capacity, BATCH_ROW)
    by_kernel = scan.scan_batches(data.ctypes.data, data.size, file_left, 7, whole, expected)
    assert headers._scan_plainly(data, file_left, 7, rows, whole_entries=whole) == by_kernel
    assert rows[: by_kernel[0]].tolist() == expected[: by_kernel[0]].tolist()


#: Reads logs in a process of its own: prints rows with their checksums and control types, and whether numba was loaded.
READ = """
import sys
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.log.view import open_log
how, *paths = sys.argv[1:]
if how == "kernel":
    import cordwood.kernels.scan
for path in paths:
    log = open_log(path, fs=PosixFileSystem())
    for _, window in log.windows():
        print(window.batches.tolist())
    for segment in log.segments:
        print([row for rows in segment.headers() for row in rows.tolist()])
print("numba" in sys.modules)
"""


def read_alone(how: str, logs: list[Path]) -> list[str]:
    command = [sys.executable, "-c", READ, how, *map(str, logs)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.more
def test_small_logs_are_read_without_kernels_and_with_the_same_checksums() -> None:
    found = [path for name in ("kraft-before", "legacy-mixed-before") for path in fixture(name).glob("*-0")]
    logs = [path for path in found if sum(file.stat().st_size for file in path.glob("*.log")) < 60_000]
    *plain, is_loaded = read_alone("plain", logs)
    assert len(logs) > 10 and is_loaded == "False"
    assert plain == read_alone("kernel", logs)[:-1]
