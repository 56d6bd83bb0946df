"""Batches as the columns that kernels read."""

from __future__ import annotations

import numpy as np

from cordwood.kernels import scan
from cordwood.kernels.layout import BATCH_ROW
from cordwood.record.columns import BatchWindow, decode
from cordwood.record.record import Record, to_records


def window(data: bytes) -> BatchWindow:
    array = np.frombuffer(data, np.uint8)
    rows = np.empty(len(data) // 26 + 1, BATCH_ROW)
    count, taken, status = scan.scan_batches(array.ctypes.data, len(data), len(data), 0, True, rows)
    scan.compute_crcs(array.ctypes.data, len(data), 0, rows[:count])
    assert (taken, status) == (len(data), scan.END)
    return BatchWindow(0, array, rows[:count], lambda at, size: iter([data[at : at + size]]))


def read(data: bytes) -> list[Record]:
    return [record for columns in decode(window(data)) for record in to_records(columns.data, columns.rows)]
