"""Replaces large values by digests, because two large values, one of each state, may not fit in memory."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from cordwood.kernels.layout import U8Array

#: Values of at least this size are replaced, in both states. Smaller ones are compared, which is faster than a digest.
SMALLEST_BYTES = 8 << 20
_PIECE_BYTES = 1 << 20
_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class Digests:
    """Replaces large values by keyed digests. Within one comparison, equal values have equal digests.

    Attributes:
        secret: the key of the digests, so that no producer can forge a small value equal to a large one's digest.
        smallest_bytes: values of at least this size are replaced.
    """

    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    smallest_bytes: int = SMALLEST_BYTES

    def replace(self, data: U8Array, rows: npt.NDArray[np.void]) -> tuple[U8Array, npt.NDArray[np.void]]:
        """Replace the large values of records by their digests.

        Args:
            data: uint8[bytes], the data of the records.
            rows: RECORD_ROW[records], in the order of their values in `data`.

        Returns:
            (data, rows), where each large value is replaced by a digest of 32 bytes. Without large values, the
            arguments themselves.
        """
        large = np.flatnonzero(rows["value_size"] >= self.smallest_bytes)
        if not large.size:
            return data, rows
        rows = rows.copy()
        # Copy all bytes between large values unchanged.
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
        # A position moves by the bytes removed before it. The start of a large value moves only for earlier values.
        moves = np.array([0, *shifts], np.int64)
        for name in ("key_start", "value_start", "headers_start"):
            rows[name] -= moves[np.searchsorted(np.array(cuts, np.int64), rows[name], side="left")].astype(np.int32)
        return np.concatenate(pieces), rows

    def _digest(self, value: U8Array) -> U8Array:
        digest = hashlib.blake2b(digest_size=_DIGEST_BYTES, key=self.secret)
        for start in range(0, value.size, _PIECE_BYTES):
            digest.update(value[start : start + _PIECE_BYTES])
        return np.frombuffer(digest.digest(), np.uint8)
