"""Finds keys as bytes within other bytes: in values, in bytes outside batches, in files of unknown formats.

A position is a candidate if a key may begin with the four bytes there; a table of the hashes of the keys' first four
bytes rejects most positions. At each candidate, as many bytes as a key has are hashed, for each length of a key, and
then compared with the keys. Keys of fewer than four bytes are not searched, because they occur everywhere by chance.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator

import numpy as np
import numpy.typing as npt

from cordwood.fs.base import ReadableFile
from cordwood.kernels.hashing import hash_keys
from cordwood.kernels.layout import U8Array
from cordwood.storage.index.probe import hash_of_keys

#: Shorter keys are not searched.
KEY_BYTES_MIN = 4
_PIECE_BYTES = 4 << 20
_TABLE_BITS = 16
_MULTIPLIER = np.uint32(0x9E3779B1)

Int64Array = npt.NDArray[np.int64]


class ByteSearch:
    """Searches bytes for any of several keys."""

    def __init__(self, keys: Collection[bytes]) -> None:
        self.keys = frozenset(key for key in keys if len(key) >= KEY_BYTES_MIN)
        self._secret = secrets.token_bytes(16)
        self._by_length = {
            length: hash_of_keys([key for key in self.keys if len(key) == length], self._secret)
            for length in sorted({len(key) for key in self.keys})
        }
        starts = np.frombuffer(b"".join(key[:KEY_BYTES_MIN] for key in sorted(self.keys)), "<u4")
        self._begins = np.zeros(1 << _TABLE_BITS, np.bool_)
        self._begins[_hashes(starts)] = True
        self.longest = max(self._by_length, default=0)

    def find(self, data: U8Array) -> Iterator[tuple[int, bytes]]:
        """Yield the start of each occurrence with its key; shorter keys first."""
        candidates = self._candidates(data)
        low, high = np.frombuffer(self._secret, np.uint64)
        for length, wanted in self._by_length.items():
            starts = candidates[candidates + length <= data.size]
            hashes = np.empty((starts.size, 2), np.uint64)
            sizes = np.full(starts.size, length, np.int32)
            all_of_them = np.ones(starts.size, np.bool_)
            hash_keys(data.ctypes.data, starts.astype(np.int32), sizes, all_of_them, low, high, hashes)
            at = np.minimum(np.searchsorted(wanted, hashes[:, 1]), wanted.size - 1)
            for start in starts[wanted[at] == hashes[:, 1]].tolist():
                key = data[start : start + length].tobytes()
                if key in self.keys:
                    yield start, key

    def _candidates(self, data: U8Array) -> Int64Array:
        """Return the positions at which a key may begin, int64[candidates], ascending."""
        if data.size < KEY_BYTES_MIN or not self.keys:
            return np.empty(0, np.int64)
        found = []
        for first in range(KEY_BYTES_MIN):
            words = data[first : first + (data.size - first) // 4 * 4].view("<u4")
            found.append(4 * np.flatnonzero(self._begins[_hashes(words)]) + first)
        return np.sort(np.concatenate(found))

    def find_in_file(self, file: ReadableFile, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Yield the position of each occurrence in a part of a file, with its key."""
        overlap = max(0, self.longest - 1)
        for position in range(start, end, _PIECE_BYTES):
            size = min(end, position + _PIECE_BYTES + overlap) - position
            data = np.frombuffer(file.read(position, size), np.uint8)
            for at, key in self.find(data):
                # The next piece finds a key that begins in the overlap.
                if at < _PIECE_BYTES:
                    yield position + at, key


def _hashes(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    return np.asarray((words * _MULTIPLIER) >> np.uint32(32 - _TABLE_BITS))
