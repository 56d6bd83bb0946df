"""Reads a sample of batches with the plain reader as well, so that a bug of the fast readers is noticed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cordwood.cleaning.proof.facts import Facts
from cordwood.cleaning.proof.pairs import Count, ViolationKind
from cordwood.common.types import Codec
from cordwood.kernels.layout import CODEC_MASK, RecordRows
from cordwood.record import plain
from cordwood.record.columns import BatchWindow, RecordColumns
from cordwood.record.record import to_records

#: One batch in this many, and the first of each range, is read twice.
SAMPLE_EVERY = 8192
_RECORDS_MAX = 2000
_BYTES_MAX = 1 << 20


@dataclass(slots=True)
class Sampler:
    """Chooses batches of one state that are read twice."""

    facts: Facts
    _seen: int = 0

    def choose(self, batches: int) -> range:
        """Choose, among the next batches with records, the indexes to check."""
        first = -self._seen % SAMPLE_EVERY
        self._seen += batches
        return range(first, batches, SAMPLE_EVERY)

    def check(self, columns: RecordColumns, window: BatchWindow, rows: RecordRows) -> None:
        """Read a batch with the plain reader, and compare the results.

        Args:
            columns: the fast reader's output.
            window: the window that has the batch.
            rows: RECORD_ROW[records], the batch's rows in `columns`.
        """
        batch = columns.batches[rows["batch"][0]]
        position, size = int(batch["position"]) - window.position, int(batch["size_bytes"])
        unpacked = int(np.maximum(rows["value_size"], 0).sum() + np.maximum(rows["key_size"], 0).sum())
        is_whole = position + size <= window.data.size and rows.size == batch["record_count"]
        if batch["magic"] < 2:
            ends = rows["offset"][0] == batch["base_offset"], rows["offset"][-1] == batch["last_offset"]
            # LZ4 frames in magic 0 have a wrong header checksum, which the plain reader's library rejects.
            readable = batch["magic"] == 1 or batch["attributes"] & CODEC_MASK != Codec.LZ4
            is_whole = position + size <= window.data.size and all(ends) and readable
        if not is_whole or rows.size > _RECORDS_MAX or max(size, unpacked) > _BYTES_MAX:
            return
        self.facts.count(Count.SAMPLED, rows.size)
        try:
            found = plain.read_batch(window.data[position : position + size].tobytes())
        except plain.BrokenError:
            found = []
        if found != list(to_records(columns.data, rows)):
            self.facts.broken(ViolationKind.READERS, int(rows["offset"][0]))
