"""Batches that lose some of their records, rebuilt without decoding them: the usual case of a rewritten batch.

Pass 1 knows which records go, and that all have a key and a value, so no rule looks at a record again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cordwood.cleaning.key_table import BoolArray, Int64Array, KnownOutcomes
from cordwood.kernels.layout import CODEC_MASK, CONTROL, DELETE_HORIZON, LOG_APPEND_TIME, BatchRows, U8Array
from cordwood.kernels.thinning import GROWTH_BYTES, thin_batches
from cordwood.record.columns import BatchWindow, is_valid

#: If batches that are rebuilt together exceed this size, their large records are referred to instead of copied.
LARGE_BYTES = 16 << 20
#: Of these, times or the record's fate hang on more than the records.
_UNUSUAL = CODEC_MASK | CONTROL | DELETE_HORIZON | LOG_APPEND_TIME


@dataclass(frozen=True, slots=True)
class Thinned:
    """Batches that are rebuilt, but for their headers.

    Attributes:
        done: bool[batches], those that are.
        headers: BATCH_ROW[batches], those of the batches that are done renewed, without sizes and CRCs.
        target: uint8[bytes], that hold the batches that are done, with room for their headers.
        starts, ends: int64[batches], where in `target`.
    """

    done: BoolArray
    headers: BatchRows
    target: U8Array
    starts: Int64Array
    ends: Int64Array


def thin(window: BatchWindow, settled: BoolArray, known: KnownOutcomes) -> Thinned | None:
    """Rebuild batches of a window, those with a right checksum; None: there are none.

    Args:
        settled: bool[batches], those that are not to be rebuilt.
        known: what pass 1 knows of their records.
    """
    batches = window.batches
    done = ~settled & known.plain & (known.superseded > 0) & (known.superseded < known.records)
    done &= (batches["attributes"] & _UNUSUAL == 0) & (batches["record_count"] == known.records) & is_valid(batches)
    done &= batches["position"] - window.position + batches["size_bytes"] <= window.data.size
    room = int(batches["size_bytes"][done].sum()) + GROWTH_BYTES * int(known.records[done].sum())
    if not done.any() or room > LARGE_BYTES:
        return None
    headers, target = batches.copy(), np.empty(room, np.uint8)
    starts: npt.NDArray[np.int64] = np.zeros(batches.size, np.int64)
    ends = starts.copy()
    thin_batches(
        window.data.ctypes.data,
        window.position,
        headers,
        done,
        known.first_ordinals,
        known.bits,
        target.ctypes.data,
        starts,
        ends,
    )
    return Thinned(done, headers, target, starts, ends)
