"""Tiered topics that tests fill, read, and change until a crash."""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.formats.filenames import LOCK
from cordwood.storage.log.view import LogView
from cordwood.storage.tier.store import with_tier
from tests.kafka_tools import Broker, Line


def records(logs: Path, tier: Path, partition: str = "orders-0") -> list[tuple[int, bytes | None, bytes | None]]:
    log = LogView(f"{logs}/{partition}", fs=with_tier(PosixFileSystem(), str(tier)))
    return [(one.offset, one.key, one.value) for one in log.records()]


def contents(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file() and path.name != LOCK}


class Cut(BaseException):
    """The end of the process."""


def cut_after(steps: int, monkeypatch: pytest.MonkeyPatch, begin: str = "new-remote-segments") -> Callable[[], int]:
    """Let every change of a file fail after some changes, counted from a file on; return the count so far."""
    counted = itertools.count(1)
    state = {"began": False, "done": 0}

    def cutting(verb: Callable[..., Any]) -> Callable[..., Any]:
        def changed(fs: PosixFileSystem, path: str, *arguments: Any, **options: Any) -> Any:
            state["began"] = state["began"] or begin in path
            if state["began"]:
                state["done"] = next(counted)
                if state["done"] > steps:
                    raise Cut
            return verb(fs, path, *arguments, **options)

        return changed

    for name in ("create", "rename", "unlink", "copy", "make_directory", "remove_directory"):
        monkeypatch.setattr(PosixFileSystem, name, cutting(getattr(PosixFileSystem, name)))
    return lambda: state["done"]


def sent(seed: int) -> list[Line]:
    """Commands that fill topic orders: plain batches, tombstones, and transactions that commit or abort."""
    found: list[Line] = [
        {"do": "producer", "id": "p", "config": {"compression.type": "lz4", "batch.size": "1000"}},
        {"do": "producer", "id": "t", "config": {"transactional.id": "tx", "batch.size": "1000"}},
    ]
    for turn in range(6):
        how = {"topic": "orders", "keys": 40, "size": 100, "tombstones": 0.1, "seed": 10 * seed + turn}
        found += [{"do": "fill", "id": "p", "partition": turn % 2, "records": 150, **how}, {"do": "begin", "id": "t"}]
        found += [{"do": "fill", "id": "t", "partition": turn % 2, "records": 20, **how}]
        found += [{"do": "commit" if turn % 3 else "abort", "id": "t"}]
    return [*found, {"do": "tier_offsets", "topics": ["orders"], "wait_ms": 60_000}]


def consumed(broker: Broker, logs: Path, to: Path) -> list[Line]:
    """All records as a consumer gets them; look-ups by offset and time find the same."""
    asked = {"do": "consume", "isolation": "read_committed", "topics": ["orders"], "to": str(to), "probes": 40}
    (answer,) = broker.client(logs, [asked])
    assert answer["wrong_lookups"] == 0, answer
    with gzip.open(to, "rt") as lines:
        return [one for one in map(json.loads, lines) if "key" in one]


def values(records: list[Line]) -> dict[tuple[int, str], str]:
    """The last value of each key that has one."""
    last = {(one["partition"], one["key"]): one["value"] for one in records}
    return {key: value for key, value in last.items() if value is not None}
