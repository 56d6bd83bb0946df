"""What the attributes of batches say, as masks over rows: each question has one answer here.

Messages of magic 0 and 1 know the codec and, in magic 1, the timestamp type; all other bits are those of magic 2.
`kernels.layout` has the bits; `record.batch.Batch` answers the same for one batch.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cordwood.kernels.layout import CONTROL, TRANSACTIONAL, BatchRows

BoolArray = npt.NDArray[np.bool_]


def has_flag(batches: BatchRows, flag: int) -> BoolArray:
    """bool[batches]: batches of magic 2 that have an attribute set (TRANSACTIONAL, CONTROL, DELETE_HORIZON)."""
    return np.asarray((batches["magic"] == 2) & (batches["attributes"] & flag != 0))


def is_control(batches: BatchRows) -> BoolArray:
    """bool[batches]: control batches, with or without a transaction."""
    return has_flag(batches, CONTROL)


def is_marker(batches: BatchRows) -> BoolArray:
    """bool[batches]: control batches that end a transaction."""
    return _has_exactly(batches, CONTROL | TRANSACTIONAL)


def is_transactional_data(batches: BatchRows) -> BoolArray:
    """bool[batches]: data that belongs to a transaction."""
    return _has_exactly(batches, TRANSACTIONAL)


def _has_exactly(batches: BatchRows, flags: int) -> BoolArray:
    return np.asarray((batches["magic"] == 2) & (batches["attributes"] & (CONTROL | TRANSACTIONAL) == flags))
