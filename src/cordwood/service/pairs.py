"""The keys and values that a caller appends: converted to records or refused with a reason, and cut into batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from cordwood.arguments import shown
from cordwood.config import LONG_MAX
from cordwood.errors import RecordTooLargeError
from cordwood.kernels.layout import HEADER
from cordwood.record.record import Header, Record, encode_record
from cordwood.types import NONE

Text = str | bytes | None
Headers = Mapping[str, Text] | Iterable[tuple[str, Text]]
#: Keys and values, perhaps with headers; a value that is None deletes its key.
Pairs = Mapping[Any, Text] | Iterable[tuple[Text, Text] | tuple[Text, Text, Headers]]


def to_records(pairs: Pairs, timestamp_ms: int) -> list[Record]:
    """The records of an append, from offset 0 on.

    Raises:
        TypeError, ValueError: something is not what a record is made of.
    """
    check_number("timestamp_ms", timestamp_ms, NONE, LONG_MAX)
    if isinstance(pairs, str | bytes | bytearray | memoryview) or not isinstance(pairs, Iterable):
        raise TypeError(f"append takes a mapping, or pairs of key and value; {shown(pairs)} is none")
    records = []
    for at, pair in enumerate(pairs.items() if isinstance(pairs, Mapping) else pairs):
        if not isinstance(pair, tuple | list) or len(pair) not in (2, 3):
            raise TypeError(f"record {at} is not (key, value) or (key, value, headers), but {shown(pair)}")
        key, value = _encoded(pair[0], f"the key of record {at}"), _encoded(pair[1], f"the value of record {at}")
        headers = tuple(_headers(pair[2], at)) if len(pair) == 3 else ()
        records.append(Record(at, timestamp_ms, key, value, headers))
    return records


def check_number(name: str, number: object, least: int, most: int) -> None:
    """Refuse what is not a whole number in a range."""
    if not isinstance(number, int) or isinstance(number, bool):
        raise TypeError(f"{name} is a whole number, not {shown(number)}")
    if not least <= number <= most:
        raise ValueError(f"{name} is {number}; it can be {least} to {most}")


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
    """Batches that are within a limit of bytes: one if possible, else halves, and halves of these.

    Args:
        records: at least one.
        encode: makes a batch of some of them, from offset 0 on; called for a batch once the one before it was used.

    Raises:
        RecordTooLargeError: a record alone is above the limit; no batch was yielded.
    """
    batch = encode(records)
    if len(batch) <= limit:
        yield batch
        return
    for at, record in enumerate(records):
        size = HEADER.size + len(encode_record(record, base_offset=record.offset, base_timestamp=record.timestamp))
        if size > limit:
            raise RecordTooLargeError(
                f"Record {at} of the append takes {size} bytes as a batch, which is above {limit}: the smaller of "
                "max.message.bytes and segment.bytes."
            )
    yield from _halves(records, encode, limit)


def _halves(records: list[Record], encode: Callable[[list[Record]], bytes], limit: int) -> Iterator[bytes]:
    middle = len(records) // 2
    for half in records[:middle], records[middle:]:
        batch = encode(half)
        if len(batch) <= limit:
            yield batch
        else:
            yield from _halves(half, encode, limit)
