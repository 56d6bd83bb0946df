"""Hash the keys of many records; separate from `record.columns`, as most code that decodes records hashes no keys."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cordwood.kernels.hashing import hash_keys
from cordwood.record.columns import RecordColumns


def key_hashes(columns: RecordColumns, chosen: npt.NDArray[np.bool_], secret: bytes) -> npt.NDArray[np.uint64]:
    """Hash the keys of records, uint64[records, 2].

    Args:
        chosen: bool[records], records with a key to hash; the hashes of others are undefined.
        secret: 16-byte secret of the hash function.
    """
    rows = columns.rows
    hashes = np.empty((rows.size, 2), np.uint64)
    low, high = np.frombuffer(secret, np.uint64)
    hash_keys(columns.data.ctypes.data, rows["key_start"], rows["key_size"], chosen, low, high, hashes)
    return hashes
