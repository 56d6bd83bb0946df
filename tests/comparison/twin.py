"""Whether two replicas agree on the last committed value of each key: slow and obvious, with plain dictionaries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cordwood.common.types import ControlType
from cordwood.fs.posix import PosixFileSystem
from cordwood.record.batch import Batch
from cordwood.record.record import Record
from cordwood.storage.log.view import LogView


class Seen:
    """The last records of each key in one replica, as of an offset.

    Attributes:
        last: the last committed record of each key below the end.
        above: the highest offset of each key that is committed only as of a higher offset.
    """

    def __init__(self, path: Path, start: int, end: int) -> None:
        self.last: dict[bytes, Record] = {}
        self.above: dict[bytes, int] = {}
        log = LogView(str(path), fs=PosixFileSystem())
        batches = list(log.batches())
        for batch, record in _records(log, batches):
            if batch.is_control or record.key is None or record.offset < start:
                continue
            committed_at = _committed_at(batch, batches)
            if committed_at is None:
                continue
            if committed_at < end:
                self.last[record.key] = record
            else:
                self.above[record.key] = record.offset


def _records(log: LogView, batches: list[Batch]) -> Iterator[tuple[Batch, Record]]:
    at = 0
    for record in log.records(start_offset=0, isolation=None):
        while batches[at].last_offset < record.offset:
            at += 1
        yield batches[at], record


def _committed_at(batch: Batch, batches: list[Batch]) -> int | None:
    """Return the offset of the record or marker that commits a batch; None without one."""
    if not batch.is_transactional:
        return batch.last_offset
    for other in batches:
        is_marker = other.is_control and other.control_type in (ControlType.ABORT, ControlType.COMMIT)
        if is_marker and other.producer_id == batch.producer_id and other.last_offset > batch.last_offset:
            return other.last_offset if other.control_type == ControlType.COMMIT else None
    return None


def differing_keys(newest: Path, other: Path, start: int, end: int) -> set[bytes]:
    """Return the keys whose last values consumers of the two replicas see differently."""
    one, two = Seen(newest, start, end), Seen(other, start, end)
    found = set()
    for key in {*one.last, *two.last}:
        left, right = one.last.get(key), two.last.get(key)
        if left == right or (_value(left) is None and _value(right) is None):
            continue
        offsets = (-1 if left is None else left.offset), (-1 if right is None else right.offset)
        lags = one if offsets[0] < offsets[1] else two
        if lags.above.get(key, -1) < max(offsets):
            found.add(key)
    return found


def _value(record: Record | None) -> bytes | None:
    return None if record is None else record.value
