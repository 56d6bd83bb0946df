"""Generates a workload's records over time, at random."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cordwood.simulation.batches import Appender, Records, Room, Written
from cordwood.simulation.sizing.workload import Keys, Workload

#: Records to encode at once when all keys are preloaded.
_PRELOAD_RECORDS = 4096


class Traffic:
    """The records of one partition over time."""

    def __init__(
        self,
        workload: Workload,
        keys: Keys,
        source: np.random.Generator,
        *,
        records_per_ms: float,
        record_bytes: int,
        batch_records: int,
        start_ms: int,
    ) -> None:
        """Prepare the workload; `until` writes.

        Args:
            record_bytes: size of a record with a value, without a share of the batch header.
            start_ms: time at which producers start.
        """
        self._keys, self._source = keys, source
        self._record_bytes = record_bytes
        self._preload = keys.count if workload.preload else None
        self._transaction = workload.transactions
        self._aborted = workload.aborted
        self._records_per_ms, self._batch_records, self._start_ms = records_per_ms, batch_records, start_ms
        self._appender = Appender(batch_records)
        self._records = 0

    def until(self, until_ms: int, now_ms: int, next_offset: int, room: Room) -> Iterator[Written]:
        """Yield the records up to a time, in parts; the caller appends each part before it takes the next."""
        if self._preload is not None:
            count, self._preload = self._preload, None
            at_once = self._batch_records * max(1, _PRELOAD_RECORDS // self._batch_records)
            for start in range(0, count, at_once):
                keys = np.arange(start, min(start + at_once, count))
                loaded = Records.alike(keys, np.zeros(keys.size, np.bool_), self._record_bytes)
                yield from self._appender.plain(next_offset + start, loaded, now_ms, room)
            next_offset += count
        # Write whole batches or whole transactions, each as soon as it is full.
        unit = self._transaction or self._batch_records
        due = int((until_ms - self._start_ms) * self._records_per_ms / unit) * unit
        count, self._records = due - self._records, due
        if not count:
            return
        records = Records.alike(*self._keys.draw(count), self._record_bytes)
        if self._transaction is None:
            yield from self._appender.plain(next_offset, records, now_ms, room)
            return
        for start in range(0, count, self._transaction):
            own = records.part(slice(start, start + self._transaction))
            aborted = bool(self._source.random() < self._aborted)
            yield from self._appender.transaction(next_offset, own, now_ms, room, aborted=aborted)
            next_offset += self._transaction + 1
