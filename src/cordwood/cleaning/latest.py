"""The newest offset of every key of the dirty section: what the rest of the log is held against.

A record goes when the dirty section has a newer one with its key. The table takes any number of keys: it grows as they
come, by 24 bytes a slot and at least two slots a key. It is never full, so a clean always covers the whole range that
may be cleaned, unlike Kafka's with its map of fixed size (`cleaning.offset_map`). Only memory bounds it, and that one
is asked before the table grows.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cordwood.errors import RequestError
from cordwood.kernels.hashing import hash_keys
from cordwood.kernels.latest import latest_offsets, move_table, put_latest
from cordwood.record.columns import RecordColumns
from cordwood.types import NONE

BoolArray = npt.NDArray[np.bool_]
Int64Array = npt.NDArray[np.int64]

_FIRST_SLOTS = 1 << 12
#: Two numbers for the hash of a key, and an offset.
_SLOT_BYTES = 24


@dataclass(frozen=True, slots=True)
class MemoryShare:
    """What a task may take for keys.

    Attributes:
        size_bytes: its share of `--memory`.
        tasks: how many run at once and have as much.
    """

    size_bytes: int
    tasks: int = 1

    def check(self, needed_bytes: int, keys: int) -> None:
        """Refuse a table that is too large.

        Raises:
            RequestError: it is.
        """
        if needed_bytes > self.size_bytes:
            raise RequestError(
                f"A table of {keys} keys takes {needed_bytes} bytes, and each of {self.tasks} tasks has "
                f"{self.size_bytes} of --memory {self.size_bytes * self.tasks}. "
                f"Give at least --memory {needed_bytes * self.tasks}, or fewer partitions at a time"
            )


class LatestOffsets:
    """Key to newest offset, for the keys that were put.

    Attributes:
        keys: how many there are.
        latest_offset: the last offset that the table speaks for; records above it are kept whatever their key.
    """

    def __init__(self, memory: MemoryShare | None = None) -> None:
        self.keys = 0
        self._memory = memory
        self.latest_offset = NONE
        self._secret = np.frombuffer(secrets.token_bytes(16), np.uint64)
        self._slots = np.empty((_FIRST_SLOTS, 2), np.uint64)
        self._offsets = np.full(_FIRST_SLOTS, -1, np.int64)

    def put(self, columns: RecordColumns, chosen: BoolArray) -> None:
        """Enter the chosen (bool[records]) ones of some records, all of them with a key, in log order.

        Raises:
            RequestError: their table would take more memory than it may.
        """
        count = int(np.count_nonzero(chosen))
        if not count:
            return
        self._make_room(self.keys + count)
        hashes = self._hashes(columns)
        self.keys += put_latest(hashes, columns.rows["offset"], chosen, self._slots, self._offsets)

    def get(self, columns: RecordColumns, chosen: BoolArray) -> Int64Array:
        """int64[records]: the newest offset of the key of each chosen record; NONE for the others and unknown keys."""
        found = np.full(columns.rows.size, NONE, np.int64)
        if chosen.any():
            latest_offsets(self._hashes(columns), chosen, self._slots, self._offsets, found)
        return found

    def _hashes(self, columns: RecordColumns) -> npt.NDArray[np.uint64]:
        rows = columns.rows
        hashes = np.empty((rows.size, 2), np.uint64)
        low, high = self._secret
        hash_keys(columns.data.ctypes.data, rows["key_start"], rows["key_size"], low, high, hashes)
        return hashes

    def _make_room(self, keys: int) -> None:
        size = self._offsets.size
        if 2 * keys <= size:
            return
        while size < 2 * keys:
            size *= 2
        if self._memory is not None:
            # While it grows the old one is there, too.
            self._memory.check(_SLOT_BYTES * (size + self._offsets.size), keys)
        slots, offsets = np.empty((size, 2), np.uint64), np.full(size, -1, np.int64)
        move_table(self._slots, self._offsets, slots, offsets)
        self._slots, self._offsets = slots, offsets
