"""Values that are too large to be held of both states at a time: a digest stands for each."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from cordwood.kernels.layout import U8Array

#: Values from this size on are replaced, in both states: a digest takes longer than to compare.
SMALLEST_BYTES = 8 << 20
_PIECE_BYTES = 1 << 20
_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class Digests:
    """Replaces large values by keyed digests, the same of the same value, within one comparison.

    Attributes:
        secret: nobody can write a small value that passes for the digest of a large one.
        smallest_bytes: size of the smallest value that is replaced.
    """

    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    smallest_bytes: int = SMALLEST_BYTES

    def replace(self, data: U8Array, rows: npt.NDArray[np.void]) -> tuple[U8Array, npt.NDArray[np.void]]:
        """The same records in less memory.

        Args:
            data: what the records are in.
            rows: RECORD_ROW[records], in the order in which their values lie in `data`.

        Returns:
            (data, rows) with a value of 32 bytes in the place of each large one.
        """
        large = np.flatnonzero(rows["value_size"] >= self.smallest_bytes)
        if not large.size:
            return data, rows
        rows = rows.copy()
        # Between large values all is copied as it is.
        pieces, done, removed = [], 0, 0
        cuts, shifts = [], []
        for at in large.tolist():
            start, size = int(rows["value_start"][at]), int(rows["value_size"][at])
            assert start >= done, "decoding goes through the data once"
            pieces += [data[done:start], self._digest(data[start : start + size])]
            done = start + size
            removed += size - _DIGEST_BYTES
            cuts.append(start)
            shifts.append(removed)
            rows["value_size"][at] = _DIGEST_BYTES
        pieces.append(data[done:])
        # What lies behind a value moves by what is removed up to there; the value itself by what is removed before it.
        moves = np.array([0, *shifts], np.int64)
        for name in ("key_start", "value_start", "headers_start"):
            rows[name] -= moves[np.searchsorted(np.array(cuts, np.int64), rows[name], side="left")].astype(np.int32)
        return np.concatenate(pieces), rows

    def _digest(self, value: U8Array) -> U8Array:
        digest = hashlib.blake2b(digest_size=_DIGEST_BYTES, key=self.secret)
        for start in range(0, value.size, _PIECE_BYTES):
            digest.update(value[start : start + _PIECE_BYTES])
        return np.frombuffer(digest.digest(), np.uint8)
