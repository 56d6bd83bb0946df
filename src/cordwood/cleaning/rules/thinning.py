"""Rebuild, without decoding, batches that lose some of their records: the usual case of a rewritten batch.

Pass 1 found which records are dropped, and that all have a key and a value, so no rule has to judge a record again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cordwood.cleaning.rules.key_table import BoolArray, Int64Array, KnownOutcomes
from cordwood.kernels.encode import GROWTH_BYTES, thin_batches
from cordwood.kernels.layout import CODEC_MASK, CONTROL, DELETE_HORIZON, LOG_APPEND_TIME, BatchRows, U8Array
from cordwood.record.columns import BatchWindow, is_valid

#: If batches that are rebuilt together exceed this size, refer to their large records instead of copying them.
LARGE_BYTES = 16 << 20
#: Attributes of batches that are not thinned: compressed ones, and those whose timestamps or records' fate depend on
#: more than pass 1 found.
_UNUSUAL = CODEC_MASK | CONTROL | DELETE_HORIZON | LOG_APPEND_TIME


@dataclass(frozen=True, slots=True)
class Thinned:
    """Rebuilt batches, without their headers' sizes and CRCs.

    Attributes:
        done: bool[batches], whether a batch is rebuilt.
        headers: BATCH_ROW[batches]; renewed for rebuilt batches, without sizes and CRCs.
        target: uint8[bytes], the rebuilt batches, with room for their headers.
        starts, ends: int64[batches], positions in `target`.
    """

    done: BoolArray
    headers: BatchRows
    target: U8Array
    starts: Int64Array
    ends: Int64Array


def thin(window: BatchWindow, settled: BoolArray, known: KnownOutcomes) -> Thinned | None:
    """Rebuild batches of a window that have a correct checksum; return None if there are none.

    Args:
        settled: bool[batches], batches that are not to be rebuilt.
        known: the outcomes of their records, from pass 1.
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
