"""Records as columns: arrays of the fields of many records, with positions in the bytes that were read.

A `BatchWindow` is part of a log file, with one row per batch header from the scan kernel. `decode` converts it to
`RecordColumns`, without an object per record. Adjacent batches of the same kind are decoded in one kernel call:

    plain     magic 2, not compressed    records are in the window itself
    packed    magic 2, compressed        decompressed one after the other into one buffer
    message   magic 0 and 1, plain       each entry is one record
    wrapper   magic 0 and 1, compressed  the value contains messages; in magic 1 their offsets are relative

Kafka limits only the compressed size of a batch, so a small batch may contain gigabytes. A batch that decompresses to
more than `STREAM_BYTES` is decoded in pieces: memory holds only one piece of it, or its largest record.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from cordwood.common.errors import BatchProblem, BatchTooLargeError, CorruptBatchError, DataError
from cordwood.common.types import Codec
from cordwood.fs.machine import memory_bytes
from cordwood.kernels import Deferred
from cordwood.kernels.layout import (
    CODEC_MASK,
    CRC_START_BY_MAGIC,
    HEADER,
    HEADER_BYTES_BY_MAGIC,
    LOG_APPEND_TIME,
    MIN_ENTRY_BYTES,
    MIN_RECORD_BYTES,
    RECORD_ROW,
    BatchRows,
    RecordRows,
    U8Array,
)
from cordwood.record.batch import codec_of
from cordwood.record.bodies import decompress_bodies, has_fast_decompressor
from cordwood.record.compression import FileBytes, Payload, decompress, decompress_stream, largest_batch_bytes

if TYPE_CHECKING:
    from cordwood.kernels import decode as kernel
else:
    kernel = Deferred("decode")

#: Decompressed bytes above which a batch is decoded in pieces.
STREAM_BYTES = 4 << 20
#: Decompressed bytes that are collected in one buffer before they are decoded; about the size of an L2 cache.
ARENA_BYTES = 1 << 20
#: Size of that buffer for the fast decompressors: `ARENA_BYTES`, and room for one more body.
_FAST_ROOM_BYTES = 2 * ARENA_BYTES
#: Approximate size of a record besides key and value.
_RECORD_BYTES = 8
#: Marks a batch without a fast decompressor among the codecs of adjacent batches.
_NO_FAST_CODEC = -1
#: Maximum number of rows in one RecordColumns.
MAX_ROWS = 1 << 17

OnDamage = Callable[[DataError], None]


@dataclass(frozen=True, slots=True)
class BatchWindow:
    """Complete, consecutive entries of a log file.

    Attributes:
        position: position of data[0] in the file.
        data: uint8[bytes]; only the header of an entry that is too large for a window.
        batches: BATCH_ROW[entries].
        read: yields the bytes at (position, size_bytes) of the file in pieces, for an entry that is too large.
    """

    position: int
    data: U8Array
    batches: BatchRows
    read: Callable[[int, int], Iterator[bytes]]


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """Records of one or more batches.

    Attributes:
        data: uint8[bytes]; the rows contain positions in it.
        batches: BATCH_ROW[batches]; rows["batch"] is an index into it. A decoded wrapper has its base offset filled in.
    """

    data: U8Array
    rows: RecordRows
    batches: BatchRows

    def select(self, mask: npt.NDArray[np.bool_]) -> RecordColumns:
        """Keep only the records where `mask`, bool[records], is set."""
        return self if mask.all() else RecordColumns(self.data, self.rows[mask], self.batches)


#: Returns int64[records], the rank of each record under a keep rule; see `cleaning.rules.precedence`.
Ranks: TypeAlias = Callable[[RecordColumns], npt.NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class Bodies:
    """Complete bodies of adjacent batches of magic 2, uncompressed or decompressed.

    Attributes:
        data: uint8[bytes] that contains them.
        starts, ends: int64[batches], positions of each body in the data.
        batches: BATCH_ROW[batches].
        on_damage: called with each error that `columns` finds.
    """

    data: U8Array
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    batches: BatchRows
    on_damage: OnDamage

    def capacity(self) -> int:
        """Return the most records that they can contain: the counts in the headers, limited by the bytes."""
        room = (self.ends - self.starts) // MIN_RECORD_BYTES
        return int(np.clip(self.batches["record_count"], 0, room).sum(dtype=np.int64))

    def columns(self) -> Iterator[RecordColumns]:
        """Decode their records; see `decode`."""
        batches, ends = self.batches, self.ends
        batch, at, done = 0, int(self.starts[0]), 0
        while batch < batches.size:
            rows = np.empty(_capacity(batches[batch:], int(ends[-1]) - at, done), RECORD_ROW)
            status, count, batch, at, done, _ = kernel.decode_records(
                self.data.ctypes.data, self.starts, ends, True, batches, batch, at, done, rows
            )
            rows = rows[:count]
            if status < 0:
                # Drop all records of the broken batch, unless an earlier call already yielded some of them.
                broken = rows["batch"] == batch
                rows = rows[~broken] if np.count_nonzero(broken) == done else rows
            if rows.size:
                yield RecordColumns(self.data, rows, batches)
            if status < 0:
                self.on_damage(_located(batches[batch], _problem_error(status)))
                batch, done = batch + 1, 0
                at = int(self.starts[batch]) if batch < batches.size else 0


class _Kind(IntEnum):
    SKIP = 0
    PLAIN = 1
    PACKED = 2
    MESSAGE = 3
    WRAPPER = 4


#: Kinds by [magic is 2, is compressed].
_KINDS = np.array([[_Kind.MESSAGE, _Kind.WRAPPER], [_Kind.PLAIN, _Kind.PACKED]], np.int8)


def is_valid(batches: BatchRows) -> npt.NDArray[np.bool_]:
    """Mark the batches whose CRC matches, or was not checked, bool[batches]."""
    return np.asarray(batches["crc"] == batches["computed_crc"])


def about_bytes(rows: npt.NDArray[np.void]) -> npt.NDArray[np.int64]:
    """Return the approximate size of each record (RECORD_ROW) in its batch before compression, int64[records]."""
    sizes = np.maximum(rows["key_size"], 0).astype(np.int64) + np.maximum(rows["value_size"], 0)
    return np.asarray(sizes + _RECORD_BYTES)


def crc_error(batch: np.void) -> CorruptBatchError:
    """Return the error for a batch whose CRC does not match."""
    name = "CRC-32C" if batch["magic"] == 2 else "CRC-32"
    covered = int(batch["size_bytes"]) - CRC_START_BY_MAGIC[batch["magic"]]
    return CorruptBatchError(
        f"{name} mismatch: stored 0x{batch['crc']:08x}, computed 0x{batch['computed_crc']:08x} over {covered} bytes",
        position=int(batch["position"]),
        offset=int(batch["base_offset"]) if batch["base_offset"] >= 0 else int(batch["last_offset"]),
    )


def report_wrong(batches: BatchRows, on_damage: OnDamage) -> None:
    """Report each batch whose CRC does not match, for batches that are used without being decoded."""
    for batch in batches[~is_valid(batches)]:
        on_damage(crc_error(batch))


def raise_damage(error: DataError) -> None:
    """Raise the first error; the default of `on_damage`."""
    raise error


def decode(
    window: BatchWindow,
    *,
    on_damage: OnDamage = raise_damage,
    max_batch_bytes: int | None = None,
    even_invalid: bool = False,
    whole_batches: bool = False,
) -> Iterator[RecordColumns]:
    """Decode all records of a window.

    Args:
        window: the entries. CRCs that were not computed count as correct.
        on_damage: called with each error; if it returns, decoding continues after the damaged batch. No record of that
            batch is yielded, except those that were yielded before the error if the batch is decoded in pieces.
        max_batch_bytes: decompressed bytes above which a batch is an error; default: depends on the machine's memory.
        even_invalid: also decode batches with a wrong CRC, after reporting them.
        whole_batches: decompress a compressed batch of magic 2 into one buffer, however large. For a caller that keeps
            all records of a batch, this takes half the memory of joining pieces later.

    Yields:
        records in the order of the window.

    Raises:
        CorruptBatchError, BatchTooLargeError: from the default `on_damage`.
    """
    found = decompress_window(
        window,
        on_damage=on_damage,
        max_batch_bytes=max_batch_bytes,
        even_invalid=even_invalid,
        whole_batches=whole_batches,
    )
    for some in found:
        if isinstance(some, Bodies):
            yield from some.columns()
        else:
            yield some
        del some  # free a large item before decompressing the next


def decompress_window(
    window: BatchWindow,
    *,
    on_damage: OnDamage = raise_damage,
    max_batch_bytes: int | None = None,
    even_invalid: bool = False,
    whole_batches: bool = False,
) -> Iterator[Bodies | RecordColumns]:
    """Like `decode`, but let the caller decode bodies of magic 2, unless they are too large for a buffer."""
    if max_batch_bytes is None:
        max_batch_bytes = largest_batch_bytes(memory_bytes())
    batches = window.batches
    kinds = _KINDS[(batches["magic"] == 2).view(np.int8), (batches["attributes"] & CODEC_MASK != 0).view(np.int8)]
    invalid = ~is_valid(batches)
    if invalid.any():
        for batch in batches[invalid]:
            on_damage(crc_error(batch))
        if not even_invalid:
            kinds[invalid] = _Kind.SKIP
    edges = [0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), batches.size]
    for first, end in itertools.pairwise(edges):
        if first == end:
            continue
        reader = _BatchDecoder(window, batches[first:end], on_damage, max_batch_bytes, whole_batches)
        match _Kind(int(kinds[first])):
            case _Kind.PLAIN:
                yield from reader.plain()
            case _Kind.PACKED:
                yield from reader.packed()
            case _Kind.MESSAGE:
                yield from reader.messages()
            case _Kind.WRAPPER:
                yield from reader.wrappers()
            case _Kind.SKIP:
                pass


@functools.cache
def _fast_codecs() -> npt.NDArray[np.bool_]:
    """Mark the codecs that `decompress_bodies` supports, bool[codec number]."""
    fast = np.zeros(CODEC_MASK + 1, np.bool_)
    fast[[codec for codec in Codec if has_fast_decompressor(codec)]] = True
    return fast


class _BatchDecoder:
    """Decodes adjacent batches of one kind."""

    def __init__(
        self,
        window: BatchWindow,
        batches: BatchRows,
        on_damage: OnDamage,
        max_batch_bytes: int,
        whole_batches: bool,
    ) -> None:
        self.window = window
        self.batches = batches
        self.on_damage = on_damage
        self.max_batch_bytes = max_batch_bytes
        self.whole_batches = whole_batches

    def plain(self) -> Iterator[Bodies | RecordColumns]:
        if self._too_large(self.batches[0]):
            yield from self._pieces(self.batches, self._body(self.batches[0], HEADER.size))
            return
        starts = self.batches["position"] - self.window.position
        yield Bodies(
            self.window.data, starts + HEADER.size, starts + self.batches["size_bytes"], self.batches, self.on_damage
        )

    def packed(self) -> Iterator[Bodies | RecordColumns]:
        batches, window_end = self.batches, self.window.position + self.window.data.size
        codecs = batches["attributes"] & CODEC_MASK
        fast = _fast_codecs()[codecs]
        fast &= (batches["record_count"] > 0) & (batches["position"] + batches["size_bytes"] <= window_end)
        runs = np.where(fast, codecs, _NO_FAST_CODEC)
        edges = [0, *(np.flatnonzero(np.diff(runs)) + 1).tolist(), batches.size]
        for first, stop in itertools.pairwise(edges):
            if not fast[first]:
                yield from self._packed(first, stop)
                continue
            while first < stop:
                done = yield from self._fast(codec_of(int(runs[first])), first, stop)
                if not done:
                    yield from self._packed(first, first + 1)
                first += max(done, 1)

    def _fast(self, codec: Codec, first: int, stop: int) -> Generator[Bodies, None, int]:
        """Decompress batches of one codec from `first` on until its fast decompressor fails; return their number."""
        batches = self.batches[first:stop]
        starts = batches["position"] - self.window.position
        target = np.empty(_FAST_ROOM_BYTES, np.uint8)
        ends = decompress_bodies(
            codec,
            self.window.data,
            starts + HEADER.size,
            starts + batches["size_bytes"],
            target,
            enough=ARENA_BYTES,
            body_max=min(STREAM_BYTES, self.max_batch_bytes),
        )
        if ends.size:
            yield Bodies(target[: ends[-1]], np.append(0, ends[:-1]), ends, batches[: ends.size], self.on_damage)
        return ends.size

    def _packed(self, first: int, stop: int) -> Iterator[Bodies | RecordColumns]:
        """Decompress batches [first, stop) of any codec."""
        arena: list[bytes | bytearray] = []
        size = 0
        limit = min(STREAM_BYTES, self.max_batch_bytes)
        for i, batch in enumerate(self.batches[first:stop], first):
            body: bytes | bytearray = b""
            try:
                codec, payload = self._payload(batch, HEADER.size)
                # Kafka does not read the body of a batch with a record count of 0.
                if batch["record_count"] > 0:
                    body = decompress(codec, payload, magic=2, max_bytes=limit)
            except DataError as error:
                yield from self._arena(arena, first, i)
                arena, first, size = [], i + 1, 0
                if isinstance(error, BatchTooLargeError) and limit < self.max_batch_bytes:
                    stream = decompress_stream(codec, payload, magic=2, max_bytes=self.max_batch_bytes)
                    read = self._whole if self.whole_batches else self._pieces
                    yield from read(self.batches[i : i + 1], stream)
                else:
                    self._damaged(batch, error)
                continue
            arena.append(body)
            size += len(body)
            if size >= ARENA_BYTES:
                yield from self._arena(arena, first, i + 1)
                arena, first, size = [], i + 1, 0
        yield from self._arena(arena, first, stop)

    def messages(self) -> Iterator[RecordColumns]:
        for first in range(0, self.batches.size, MAX_ROWS):
            end = min(first + MAX_ROWS, self.batches.size)
            while first < end:
                rows = np.empty(end - first, RECORD_ROW)
                data, position = self.window.data, self.window.position
                if self._too_large(self.batches[first]):
                    whole = bytearray()
                    for piece in self._body(self.batches[first], 0):
                        whole += piece
                    data = _bytes_array(whole)
                    position = int(self.batches[first]["position"])
                status, count = kernel.decode_messages(data.ctypes.data, position, self.batches[first:end], first, rows)
                if count:
                    yield RecordColumns(data, rows[:count], self.batches)
                first += count
                if status != kernel.DONE:
                    self._problem(self.batches[first], status)
                    first += 1

    def wrappers(self) -> Iterator[RecordColumns]:
        for batch in self.batches:
            try:
                yield from self._wrapper(batch)
            except DataError as error:
                self._damaged(batch, error)

    # ---- bodies of magic 2 -------------------------------------------------------------------------------------------

    def _arena(self, bodies: list[bytes | bytearray], first: int, end: int) -> Iterator[Bodies]:
        if bodies:
            ends = np.cumsum([len(body) for body in bodies], dtype=np.int64)
            starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
            yield Bodies(_bytes_array(b"".join(bodies)), starts, ends, self.batches[first:end], self.on_damage)

    def _whole(self, batches: BatchRows, pieces: Iterator[bytes]) -> Iterator[Bodies]:
        """Yield one batch whose body arrives in pieces, joined in one buffer."""
        body = bytearray()
        try:
            for piece in pieces:
                body += piece
        except DataError as error:
            self._damaged(batches[0], error)
            return
        starts, ends = np.zeros(1, np.int64), np.array([len(body)], np.int64)
        yield Bodies(_bytes_array(body), starts, ends, batches, self.on_damage)

    def _pieces(self, batches: BatchRows, pieces: Iterator[bytes]) -> Iterator[RecordColumns]:
        """Decode one batch whose body arrives in pieces, piece by piece."""
        done, needed = 0, 1
        feed, held = _Feed(pieces), bytearray()
        try:
            while True:
                final = feed.gather(held, needed)
                data = _bytes_array(held)
                ends = np.array([data.size], np.int64)
                at, status = 0, kernel.ROWS
                while status == kernel.ROWS:
                    rows = np.empty(_capacity(batches, data.size - at, done), RECORD_ROW)
                    status, count, _, at, done, needed = kernel.decode_records(
                        data.ctypes.data, np.zeros(1, np.int64), ends, final, batches, 0, at, done, rows
                    )
                    if count:
                        yield RecordColumns(data, rows[:count], batches)
                if status < 0:
                    self._problem(batches[0], status)
                if status != kernel.MORE:
                    return
                del data  # free this buffer before the next record is collected in another one
                held = held[at:]
                needed -= at
        except DataError as error:
            self._damaged(batches[0], error)

    # ---- wrappers of magic 0 and 1 -----------------------------------------------------------------------------------

    def _wrapper(self, batch: np.void) -> Iterator[RecordColumns]:
        sets = self._inner_sets(batch)
        only = next(sets, None)
        if only is None:
            raise _inner_error("a compressed message set holds no message")
        first_inner, last_inner = int(only[1]["offset"][0]), int(only[1]["offset"][-1])
        if only[0].size > STREAM_BYTES:
            only = None
        for _, rows, _ in sets:
            # Too large to keep in memory. The last message's offset is needed before the first record can be yielded,
            # so decompress the set twice.
            only, last_inner = None, int(rows["offset"][-1])
        shift = 0
        if batch["magic"] == 1 and batch["last_offset"] != 0:
            # Some early clients left the wrapper's offset at 0; inner offsets are absolute then.
            if batch["last_offset"] < last_inner:
                raise _inner_error(
                    f"a wrapper's offset {batch['last_offset']} is below that of its last inner message, {last_inner}"
                )
            shift = int(batch["last_offset"]) - last_inner
        found = np.array([batch], self.batches.dtype)
        found["base_offset"] = first_inner + shift
        for data, rows, magics in self._inner_sets(batch) if only is None else [only]:
            rows["offset"] += shift
            if batch["attributes"] & LOG_APPEND_TIME and batch["magic"] == 1:
                rows["timestamp"][magics == 1] = batch["max_timestamp"]
            yield RecordColumns(data, rows, found)
            del data

    def _inner_sets(self, batch: np.void) -> Iterator[tuple[U8Array, RecordRows, npt.NDArray[np.int8]]]:
        codec, payload = self._value(batch)
        magic = int(batch["magic"])
        pieces: Iterator[bytes | bytearray]
        try:
            limit = min(STREAM_BYTES, self.max_batch_bytes)
            pieces = iter([decompress(codec, payload, magic=magic, max_bytes=limit)])
        except BatchTooLargeError:
            pieces = decompress_stream(codec, payload, magic=magic, max_bytes=self.max_batch_bytes)
        feed, held = _Feed(pieces), bytearray()
        needed = 1
        while True:
            final = feed.gather(held, needed)
            data = _bytes_array(held)
            at, status = 0, kernel.ROWS
            while status == kernel.ROWS:
                rows = np.empty(min(MAX_ROWS, max(1, (data.size - at) // MIN_ENTRY_BYTES[0])), RECORD_ROW)
                magics = np.empty(rows.size, np.int8)
                status, count, at, needed = kernel.decode_message_set(
                    data.ctypes.data, data.size, at, final, True, rows, magics
                )
                if status < 0:
                    raise _problem_error(status)
                if count:
                    yield data, rows[:count], magics[:count]
            if status == kernel.DONE:
                return
            del data
            held = held[at:]
            needed -= at

    def _value(self, batch: np.void) -> tuple[Codec, Payload]:
        """Return a wrapper's codec, and its value: the compressed bytes. Like Kafka, skip a key if there is one."""
        codec, message = self._payload(batch, 0)
        at = HEADER_BYTES_BY_MAGIC[batch["magic"]]
        for _ in range(2):
            if len(message) < at + 4:
                raise _inner_error("a wrapper ends before its value")
            size = int.from_bytes(message[at : at + 4], "big", signed=True)
            at += 4
            end = at + max(size, 0)
            value = message.part(at, end) if isinstance(message, FileBytes) else message[at:end]
            at += max(size, 0)
        if size < 0 or len(value) < size:
            raise _inner_error("a wrapper has no value" if size < 0 else "a wrapper's value is cut off")
        return codec, value

    # ---- bytes and damage --------------------------------------------------------------------------------------------

    def _too_large(self, batch: np.void) -> bool:
        return int(batch["position"]) - self.window.position + int(batch["size_bytes"]) > self.window.data.size

    def _body(self, batch: np.void, skip: int) -> Iterator[bytes]:
        return self.window.read(int(batch["position"]) + skip, int(batch["size_bytes"]) - skip)

    def _payload(self, batch: np.void, skip: int) -> tuple[Codec, Payload]:
        codec = codec_of(int(batch["attributes"]))
        if self._too_large(batch):
            return codec, FileBytes(self.window.read, int(batch["position"]) + skip, int(batch["size_bytes"]) - skip)
        start = int(batch["position"]) - self.window.position
        return codec, memoryview(self.window.data)[start + skip : start + int(batch["size_bytes"])]

    def _problem(self, batch: np.void, status: int) -> None:
        self._damaged(batch, _problem_error(status))

    def _damaged(self, batch: np.void, error: DataError) -> None:
        self.on_damage(_located(batch, error))


def _located(batch: np.void, error: DataError) -> DataError:
    """Return the error with the position of its batch, unless it has one."""
    if error.position is None:
        error.position = int(batch["position"])
        error.offset = int(batch["base_offset"]) if batch["base_offset"] >= 0 else int(batch["last_offset"])
    return error


@functools.cache
def _problems() -> dict[int, BatchProblem]:
    """Return the batch problem for each negative status of a decoding kernel."""
    problems = {
        kernel.BAD_VARINT: BatchProblem.RECORD,
        kernel.BAD_LENGTH: BatchProblem.RECORD,
        kernel.RECORD_OVERRUN: BatchProblem.RECORD,
        kernel.LENGTH_MISMATCH: BatchProblem.RECORD,
        kernel.BAD_HEADERS: BatchProblem.RECORD,
        kernel.TRAILING_BYTES: BatchProblem.TRAILING_BYTES,
        kernel.MISSING_RECORDS: BatchProblem.MISSING_RECORDS,
        kernel.NESTED_WRAPPER: BatchProblem.INNER_MESSAGE,
        kernel.BAD_MESSAGE_SIZE: BatchProblem.INNER_MESSAGE,
        kernel.BAD_MESSAGE_MAGIC: BatchProblem.INNER_MESSAGE,
        kernel.BAD_MESSAGE_CRC: BatchProblem.INNER_CRC,
    }
    assert set(problems) == set(kernel.PROBLEMS)
    return problems


def _problem_error(status: int) -> CorruptBatchError:
    """Return the error for a negative status of a decoding kernel."""
    return CorruptBatchError(kernel.PROBLEMS[status], kind=_problems()[status])


def _inner_error(what: str) -> CorruptBatchError:
    """Return the error for an invalid compressed message set."""
    return CorruptBatchError(what, kind=BatchProblem.INNER_MESSAGE)


class _Feed:
    """Collects the pieces of a body until a record is complete."""

    def __init__(self, pieces: Iterator[bytes | bytearray]) -> None:
        self._pieces = pieces
        self._next: bytes | bytearray = b""

    def gather(self, held: bytearray, needed: int) -> bool:
        """Append pieces to `held` until it has `needed` bytes; return True if there are no more pieces.

        A bytearray grows in place where the system can remap pages, so a large record needs its size in memory, not
        twice that. Memory is allocated only for bytes that arrive, not for declared sizes. A large record ends its
        buffer: the caller can use the buffer without a copy, and positions stay below 2 GiB.
        """
        while len(held) < needed:
            piece = self._next or next(self._pieces, None)
            self._next = b""
            if piece is None:
                return True
            held += piece
        if needed > STREAM_BYTES and len(held) > needed:
            self._next = held[needed:]
            del held[needed:]
        return False


def _capacity(batches: BatchRows, left_bytes: int, done: int) -> int:
    """Return the number of rows to allocate: the counts in the headers, limited by the bytes and by MAX_ROWS."""
    announced = int(np.maximum(batches["record_count"], 0).sum(dtype=np.int64)) - done
    return max(1, min(MAX_ROWS, announced, left_bytes // MIN_RECORD_BYTES + 1))


def _bytes_array(data: bytes | bytearray) -> U8Array:
    return np.frombuffer(data, np.uint8)
