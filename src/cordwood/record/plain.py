"""Read the records of a batch in plain Python: slow, obvious, and without any code of the fast readers.

Tests compare the kernels with it, and `cordwood verify` reads a sample with it, so that a bug in the fast readers does
not stay unnoticed. It slices bytes, decompresses with pyarrow, and returns `Record` objects.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from cordwood.common.types import NONE
from cordwood.record.record import Header, Record

#: pyarrow's names of the codecs, by the lowest three bits of a batch's attributes.
_CODECS = {1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}
_SNAPPY_FRAME = b"\x82SNAPPY\x00"


class BrokenError(Exception):
    """The bytes violate the format."""


@dataclass
class Cursor:
    """A cursor over bytes that never reads beyond their end."""

    data: bytes
    at: int = 0

    def take(self, size_bytes: int) -> bytes:
        """Return the next `size_bytes` bytes; BrokenError if there are fewer."""
        if size_bytes < 0 or self.at + size_bytes > len(self.data):
            raise BrokenError("cut off")
        self.at += size_bytes
        return self.data[self.at - size_bytes : self.at]

    def number(self, form: str) -> int:
        """Return the next number in a `struct` format."""
        size = struct.calcsize(form)
        return int(struct.unpack(form, self.take(size))[0])

    def zigzag(self, bits: int) -> int:
        """Return the next varint of up to `bits` bits; surplus bits of its last byte are dropped."""
        raw = 0
        for count in range(-(-bits // 7)):
            if self.at >= len(self.data):
                raise BrokenError("cut off")
            byte = self.data[self.at]
            self.at += 1
            raw |= (byte & 0x7F) << 7 * count
            if byte < 0x80:
                raw &= (1 << bits) - 1
                return raw >> 1 ^ -(raw & 1)
        raise BrokenError("too long")

    def nullable(self, size: Callable[[], int]) -> bytes | None:
        """Return bytes that follow their size, or None if the size is negative."""
        count = size()
        return None if count < 0 else self.take(count)

    @property
    def rest(self) -> bytes:
        """The bytes that were not read yet."""
        return self.data[self.at :]


def signed(value: int, bits: int) -> int:
    """Wrap a number to a signed integer of `bits` bits."""
    return (value + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)


def read_record(data: Cursor, base_offset: int, base_timestamp: int) -> Record:
    """Read one record of magic 2."""
    body = Cursor(data.take(data.zigzag(32)))
    body.take(1)
    timestamp = signed(base_timestamp + body.zigzag(64), 64)
    offset = signed(base_offset + body.zigzag(32), 64)
    key = body.nullable(lambda: body.zigzag(32))
    value = body.nullable(lambda: body.zigzag(32))
    count = body.zigzag(32)
    if count < 0 or count > len(body.rest):
        raise BrokenError("header count")
    headers: list[Header] = []
    for _ in range(count):
        name = body.take(body.zigzag(32)).decode("utf-8", "replace")
        headers.append((name, body.nullable(lambda: body.zigzag(32))))
    if body.rest:
        raise BrokenError("length")
    return Record(offset, timestamp, key, value, tuple(headers))


def read_body(
    body: bytes, count: int, base_offset: int, base_timestamp: int, append_time: int | None = None
) -> list[Record]:
    """Read the records of a batch of magic 2 from its decompressed body."""
    if count < 0:
        raise BrokenError("count")
    if count == 0:
        return []
    data = Cursor(body)
    records = [read_record(data, base_offset, base_timestamp) for _ in range(count)]
    if data.rest:
        raise BrokenError("trailing bytes")
    if append_time is not None:
        records = [Record(r.offset, append_time, r.key, r.value, r.headers) for r in records]
    return records


def read_message_set(data: bytes) -> Iterator[tuple[int, Record]]:
    """Yield (magic, message) for each message of a decompressed set of magic 0 or 1; offsets are not adjusted."""
    at = 0
    while len(data) - at >= 12:
        offset, size = struct.unpack_from(">qi", data, at)
        if size < 14:
            raise BrokenError("message size")
        if at + 12 + size > len(data):
            return
        message = Cursor(data[at + 12 : at + 12 + size])
        at += 12 + size
        stored = message.number(">I")
        covered = message.rest
        magic, attributes = message.number(">b"), message.number(">b")
        if magic not in (0, 1) or attributes & 7 or zlib.crc32(covered) != stored:
            raise BrokenError("message")
        timestamp = message.number(">q") if magic == 1 else NONE
        key = message.nullable(lambda message=message: message.number(">i"))  # type: ignore[misc]
        value = message.nullable(lambda message=message: message.number(">i"))  # type: ignore[misc]
        yield magic, Record(offset, timestamp, key, value)


def read_batch(entry: bytes) -> list[Record]:
    """Read the records of one complete entry of a log file, of any magic."""
    offset, _, _, magic = struct.unpack_from(">qiib", entry)
    if magic == 2:
        attributes, _, base_timestamp, max_timestamp = struct.unpack_from(">hiqq", entry, 21)
        (count,) = struct.unpack_from(">i", entry, 57)
        body = unpacked(attributes & 7, entry[61:]) if count > 0 else b""
        return read_body(body, count, offset, base_timestamp, max_timestamp if attributes & 8 else None)
    attributes = entry[17]
    if not attributes & 7:
        return [record for _, record in read_message_set(entry)]
    wrapper = Cursor(entry[18:])
    append_time = wrapper.number(">q") if magic == 1 else NONE
    wrapper.nullable(lambda: wrapper.number(">i"))
    inner = list(read_message_set(unpacked(attributes & 7, wrapper.nullable(lambda: wrapper.number(">i")) or b"")))
    if not inner:
        raise BrokenError("an empty set")
    # Inner offsets of magic 1 are relative to the first message. Some early clients left the wrapper's offset at 0;
    # inner offsets are absolute then.
    shift = offset - inner[-1][1].offset if magic == 1 and offset else 0
    late = magic == 1 and attributes & 8
    return [
        replace(one, offset=one.offset + shift, timestamp=append_time if late and its_magic == 1 else one.timestamp)
        for its_magic, one in inner
    ]


def unpacked(codec: int, data: bytes) -> bytes:
    """Decompress bytes; `codec` is the lowest three bits of the attributes."""
    import pyarrow as pa

    if not codec:
        return data
    if codec not in _CODECS:
        raise BrokenError("codec")
    try:
        if codec != 2:
            with pa.CompressedInputStream(pa.BufferReader(data), _CODECS[codec]) as stream:
                return bytes(stream.read())
        if not data.startswith(_SNAPPY_FRAME):
            return _snappy(data)
        frame, parts = Cursor(data[16:]), []
        while frame.rest:
            parts.append(_snappy(frame.take(frame.number(">i"))))
        return b"".join(parts)
    except (OSError, pa.ArrowException) as error:
        raise BrokenError(str(error)) from error


def _snappy(block: bytes) -> bytes:
    import pyarrow as pa

    size = 0
    for count, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            break
    return bytes(pa.Codec("snappy").decompress(block, size, asbytes=True))
