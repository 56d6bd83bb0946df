"""Flags in the attributes of batches, as boolean masks over rows.

Magic 0 has only the codec, magic 1 also the timestamp type; all other bits exist in magic 2 only. `kernels.layout`
defines the bits; `record.batch.Batch` has the same properties for one batch.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cordwood.kernels.layout import CONTROL, TRANSACTIONAL, BatchRows

BoolArray = npt.NDArray[np.bool_]


def has_flag(batches: BatchRows, flag: int) -> BoolArray:
    """Mark the batches of magic 2 with this bit (TRANSACTIONAL, CONTROL or DELETE_HORIZON), bool[batches]."""
    return np.asarray((batches["magic"] == 2) & (batches["attributes"] & flag != 0))


def is_control(batches: BatchRows) -> BoolArray:
    """Mark the control batches, transactional or not, bool[batches]."""
    return has_flag(batches, CONTROL)


def is_marker(batches: BatchRows) -> BoolArray:
    """Mark the control batches that end a transaction, bool[batches]."""
    return _has_exactly(batches, CONTROL | TRANSACTIONAL)


def is_transactional_data(batches: BatchRows) -> BoolArray:
    """Mark the batches with data of a transaction, bool[batches]."""
    return _has_exactly(batches, TRANSACTIONAL)


def concerns_transactions(batches: BatchRows) -> BoolArray:
    """Mark the data of transactions and all control batches, bool[batches]: all that a replay of transactions needs."""
    return is_control(batches) | is_transactional_data(batches)


def _has_exactly(batches: BatchRows, flags: int) -> BoolArray:
    return np.asarray((batches["magic"] == 2) & (batches["attributes"] & (CONTROL | TRANSACTIONAL) == flags))
