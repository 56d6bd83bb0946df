"""The keys and values of an append: converts them to records, or refuses them with a reason, and cuts batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from cordwood.common.arguments import check_number, shown
from cordwood.common.config import LONG_MAX
from cordwood.common.errors import RecordTooLargeError
from cordwood.common.types import NONE
from cordwood.kernels.layout import HEADER
from cordwood.record.record import Header, Record, encode_record

Text = str | bytes | None
Headers = Mapping[str, Text] | Iterable[tuple[str, Text]]
#: Keys and values, perhaps with headers; a value of None deletes its key.
Pairs = Mapping[Any, Text] | Iterable[tuple[Text, Text] | tuple[Text, Text, Headers]]


def to_records(pairs: Pairs, timestamp_ms: int) -> list[Record]:
    """Return the records of an append, with offsets from 0 on.

    Raises:
        TypeError, ValueError: a key, value, header or timestamp is not valid.
    """
    check_number("timestamp_ms", timestamp_ms, NONE, LONG_MAX)
    if isinstance(pairs, str | bytes | bytearray | memoryview) or not isinstance(pairs, Iterable):
        raise TypeError(f"append takes a mapping, or pairs of key and value; {shown(pairs)} is none")
    records = []
    for at, pair in enumerate(pairs.items() if isinstance(pairs, Mapping) else pairs):
        if not isinstance(pair, tuple | list) or len(pair) not in (2, 3):
            raise TypeError(f"record {at} is not (key, value) or (key, value, headers), but {shown(pair)}")
        key, value = pair[0], pair[1]
        if not (key is None or type(key) is bytes):
            key = _encoded(key, f"the key of record {at}")
        if not (value is None or type(value) is bytes):
            value = _encoded(value, f"the value of record {at}")
        headers = tuple(_headers(pair[2], at)) if len(pair) == 3 else ()
        records.append(Record(at, timestamp_ms, key, value, headers))
    return records


def _headers(headers: object, at: int) -> Iterator[Header]:
    if isinstance(headers, str | bytes) or not isinstance(headers, Iterable):
        raise TypeError(f"the headers of record {at} are a mapping, or pairs of name and value, not {shown(headers)}")
    for header in headers.items() if isinstance(headers, Mapping) else headers:
        if not isinstance(header, tuple | list) or len(header) != 2 or not isinstance(header[0], str):
            raise TypeError(f"a header of record {at} is not a name, which is text, and a value, but {shown(header)}")
        yield header[0], _encoded(header[1], f"the header {header[0]!r} of record {at}")


def _encoded(text: object, what: str) -> bytes | None:
    match text:
        case None | bytes():
            return text
        case str():
            return text.encode()
        case bytearray() | memoryview():
            return bytes(text)
    raise TypeError(f"{what} is text, bytes or None, not {shown(text)}")


def batches_of(records: list[Record], encode: Callable[[list[Record]], bytes], limit: int) -> Iterator[bytes]:
    """Yield batches within a limit of bytes: a single batch if possible.

    Args:
        records: at least one record, with offsets from 0 on.
        encode: encodes some of the records as a batch; called for a batch only after the previous batch was used.

    Raises:
        RecordTooLargeError: a record alone is above the limit; no batch was yielded.
    """
    if sum([len(record.key or b"") + len(record.value or b"") for record in records]) <= limit:
        batch = encode(records)
        if len(batch) <= limit:
            yield batch
            return
    for first, end in _cuts(records, limit):
        yield encode(records[first:end])


def _cuts(records: list[Record], limit: int) -> list[tuple[int, int]]:
    """Return [first, end) of the records of each batch, with as many records as certainly fit."""
    cuts, first, taken = [], 0, HEADER.size
    for at, record in enumerate(records):
        # Relative to the first record of all, a record's offset takes at least as many bytes as within its batch.
        size = len(encode_record(record, base_offset=0, base_timestamp=record.timestamp))
        if taken + size > limit:
            _check_alone(record, at, limit)
            if at > first:
                cuts.append((first, at))
            first, taken = at, HEADER.size
        taken += size
    return [*cuts, (first, len(records))]


def _check_alone(record: Record, at: int, limit: int) -> None:
    size = HEADER.size + len(encode_record(record, base_offset=record.offset, base_timestamp=record.timestamp))
    if size > limit:
        raise RecordTooLargeError(
            f"Record {at} of the append takes {size} bytes as a batch, which is above {limit}: the smaller of "
            "max.message.bytes and segment.bytes."
        )
