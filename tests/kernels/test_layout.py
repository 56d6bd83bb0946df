"""The masks over headers, compared with the properties of each `Batch`."""

from __future__ import annotations

import numpy as np

from cordwood.kernels.layout import (
    BATCH_ROW,
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    has_flag,
    is_control,
    is_marker,
    is_transactional_data,
)
from cordwood.record.batch import to_batches

BITS = CODEC_MASK | LOG_APPEND_TIME | TRANSACTIONAL | CONTROL | DELETE_HORIZON


def test_masks_say_of_every_header_what_a_batch_says() -> None:
    rows = np.zeros(3 * (BITS + 1), BATCH_ROW)
    rows["magic"] = np.repeat(np.arange(3), BITS + 1)
    rows["attributes"] = np.tile(np.arange(BITS + 1), 3)
    batches = to_batches(rows)
    assert is_control(rows).tolist() == [batch.is_control for batch in batches]
    assert is_marker(rows).tolist() == [batch.is_control and batch.is_transactional for batch in batches]
    assert is_transactional_data(rows).tolist() == [b.is_transactional and not b.is_control for b in batches]
    assert has_flag(rows, DELETE_HORIZON).tolist() == [batch.delete_horizon_ms is not None for batch in batches]
