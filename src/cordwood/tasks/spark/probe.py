"""Probe a Python worker before the first real task: its user, its packages, and the files that it finds at paths.

The module is sent to workers as code, as Cordwood may not be installed there. So it imports only the standard library,
and pyarrow, without which a worker cannot return any row.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import metadata
from typing import Any

#: Distributions that compute results, or whose objects are pickled between processes.
DISTRIBUTIONS = ("cordwood", "numpy", "numba", "pyarrow", "cramjam", "crc32c", "deflate", "lz4", "xxhash", "zstandard")


def environment() -> dict[str, Any]:
    """Return the host, user, Python and package versions of this process."""
    versions: dict[str, str | None] = {}
    for name in DISTRIBUTIONS:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return {
        "host": socket.gethostname(),
        "uid": os.getuid(),
        "python": ".".join(map(str, sys.version_info[:2])),
        "executable": sys.executable,
        "versions": versions,
    }


def identity(path: str) -> str:
    """Hash the content of a directory, independent of its mount point; return an error text if it cannot be read.

    Covers names, sizes and modification times of closed segments: replicas of a partition differ in these times.
    """
    found = hashlib.sha256()
    try:
        names = sorted(os.listdir(path))
        logs = [name for name in names if name.endswith(".log")][:-1]
        for name in logs:
            info = os.stat(f"{path}/{name}")
            found.update(f"{name} {info.st_size} {info.st_mtime_ns}\n".encode(errors="surrogateescape"))
    except OSError as error:
        return f"{error.strerror}"
    return found.hexdigest()


def content(path: str) -> str:
    """Return the text of a small file, or an error text if it cannot be read."""
    try:
        with open(path) as file:
            return file.read(1000)
    except OSError as error:
        return f"{error.strerror}"


def answer(file: str, paths: Sequence[str], seconds: float) -> str:
    """Return this process's environment and the files that it finds, as JSON.

    Args:
        file: path of a small file that the driver wrote; empty to check no file.
        seconds: time to wait, so that one executor cannot take all tasks.
    """
    found = environment()
    found["file"] = content(file) if file else ""
    found["paths"] = {path: identity(path) for path in paths}
    time.sleep(seconds)
    return json.dumps(found)


def in_batches(ask: Callable[[], str]) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Return a function that answers once per Arrow batch."""

    def run(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for _ in batches:
            yield pa.RecordBatch.from_arrays([pa.array([ask()])], ["answer"])

    return run


def in_items(ask: Callable[[], str]) -> Callable[[Iterable[Any]], Iterator[str]]:
    """Return a function that answers once per item."""

    def run(items: Iterable[Any]) -> Iterator[str]:
        for _ in items:
            yield ask()

    return run
