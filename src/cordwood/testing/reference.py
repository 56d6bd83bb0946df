"""The reading rules of the log format in plain Python: slow and obvious; tests compare the kernels with them.

Nothing here shares code with the kernels. A file is cut with slices; `record.plain` reads the records.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from cordwood.record.plain import BrokenError as BrokenError
from cordwood.record.plain import read_body as read_body
from cordwood.record.plain import read_message_set as read_message_set


def crc(data: bytes, polynomial: int) -> int:
    """Return a 32-bit CRC, computed bit by bit; 0x82F63B78 is CRC-32C, 0xEDB88320 CRC-32."""
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (polynomial if register & 1 else 0)
    return register ^ 0xFFFFFFFF


@dataclass(frozen=True)
class Entry:
    """An entry of a log file: its position and its common fields."""

    position: int
    size_bytes: int
    magic: int
    offset: int
    is_valid: bool


def read_entries(data: bytes) -> tuple[list[Entry], str, int]:
    """Return the entries of a log file, why the walk ended (end, partial, size, magic) and where."""
    entries: list[Entry] = []
    at = 0
    while len(data) - at > 17:
        offset, size = struct.unpack_from(">qi", data, at)
        magic = struct.unpack_from(">b", data, at + 16)[0]
        if size < 14:
            return entries, "size", at
        if magic not in (0, 1, 2):
            return entries, "magic", at
        if size + 12 < (26, 34, 61)[magic]:
            return entries, "size", at
        if at + 12 + size > len(data):
            return entries, "partial", at
        entry = data[at : at + 12 + size]
        if magic == 2:
            good = crc(entry[21:], 0x82F63B78) == struct.unpack_from(">I", entry, 17)[0]
        else:
            good = crc(entry[16:], 0xEDB88320) == struct.unpack_from(">I", entry, 12)[0]
        entries.append(Entry(at, len(entry), magic, offset, good))
        at += len(entry)
    return entries, "end" if at == len(data) else "partial", at


def siphash128(data: bytes, secret: bytes) -> bytes:
    """Return the 128-bit SipHash-2-4; the secret has 16 bytes."""
    k0, k1 = struct.unpack("<QQ", secret)
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D ^ 0xEE, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]
    mask = (1 << 64) - 1

    def rotate(word: int, bits: int) -> int:
        return (word << bits | word >> 64 - bits) & mask

    def mix(rounds: int) -> None:
        for _ in range(rounds):
            for a, b, c, d, left, right in ((0, 1, 2, 3, 13, 16), (2, 1, 0, 3, 17, 21)):
                v[a] = v[a] + v[b] & mask
                v[c] = v[c] + v[d] & mask
                v[b] = rotate(v[b], left) ^ v[a]
                v[d] = rotate(v[d], right) ^ v[c]
                v[a] = rotate(v[a], 32)

    whole = len(data) // 8 * 8
    last = data[whole:].ljust(7, b"\0") + bytes([len(data) & 0xFF])
    for (word,) in struct.iter_unpack("<Q", data[:whole] + last):
        v[3] ^= word
        mix(2)
        v[0] ^= word
    v[2] ^= 0xEE
    mix(4)
    low = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    mix(4)
    return struct.pack("<QQ", low, v[0] ^ v[1] ^ v[2] ^ v[3])


def index_entries(
    batches: Sequence[tuple[int, int, int]], interval_bytes: int, room: int, time_room: int
) -> tuple[int, list[list[int]], list[list[int]], tuple[int, int]]:
    """Return the index entries of a segment made of batches of (size, last offset, max timestamp).

    Before a batch is written, both indexes get an entry if more than `interval_bytes` were written since the last one;
    the batch's own timestamp already counts. The time index skips timestamps that do not rise, and reserves one place.

    Returns:
        the number of batches that fit, the entries (offset, position), the entries (timestamp, offset), and the largest
        timestamp with the last offset of the first batch that has it; (-1, -1) without a timestamp.
    """
    index: list[list[int]] = []
    times: list[list[int]] = []
    behind = position = 0
    for at, (size, last_offset, _) in enumerate(batches):
        if behind > interval_bytes:
            largest = _first_largest(batches[: at + 1])
            if len(index) == room or len(times) >= time_room - 1:
                return at, index, times, _first_largest(batches[:at])
            index.append([last_offset, position])
            if largest[0] > (times[-1][0] if times else -1):
                times.append([*largest])
            behind = 0
        position += size
        behind += size
    return len(batches), index, times, _first_largest(batches)


def _first_largest(batches: Sequence[tuple[int, int, int]]) -> tuple[int, int]:
    best = max(batches, key=lambda one: one[2], default=(0, -1, -1))
    return (best[2], best[1]) if best[2] > -1 else (-1, -1)


class SlowOffsetMap:
    """Kafka's offset map, an entry at a time.

    Attributes:
        size: number of keys.
    """

    def __init__(self, slots: int) -> None:
        self.size = 0
        self.latest_offset = -1
        self._slots: list[tuple[bytes, int] | None] = [None] * slots

    def put(self, key: bytes, offset: int) -> None:
        """Enter a key; raise ValueError if the map is full."""
        if self.size >= len(self._slots):
            raise ValueError("full")
        digest, attempt = hashlib.md5(key, usedforsecurity=False).digest(), 0
        while (found := self._slots[self._slot(digest, attempt)]) is not None and found[0] != digest:
            attempt += 1
        self._slots[self._slot(digest, attempt)] = digest, offset
        self.size += found is None
        self.latest_offset = offset

    def get(self, key: bytes) -> int:
        """Return the offset of a key; -1 if it is not found."""
        digest = hashlib.md5(key, usedforsecurity=False).digest()
        for attempt in range(len(self._slots) + 12):
            found = self._slots[self._slot(digest, attempt)]
            if found is None:
                return -1
            if found[0] == digest:
                return found[1]
        return -1

    def _slot(self, digest: bytes, attempt: int) -> int:
        at = min(attempt, 12)
        probe = int.from_bytes(digest[at : at + 4], "big", signed=True) + max(0, attempt - 12)
        probe = (probe + 2**31) % 2**32 - 2**31
        return 0 if probe == -(2**31) else abs(probe) % len(self._slots)
