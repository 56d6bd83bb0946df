"""The interface of decoders, bytes of keys or values in, an Arrow array of one type out; and decoders without schemas.

    bytes     unchanged                                     binary
    hex       00ff                                          string
    utf8      text                                          string
    json      the text of a JSON value, after a check       string
    short     2 bytes, big-endian                           smallint
    int       4 bytes                                       int
    long      8 bytes                                       bigint
    float     4 bytes, IEEE 754                             float
    double    8 bytes                                       double
    uuid      36 characters, as Kafka's UUIDSerializer      string

Source: Kafka org.apache.kafka.common.serialization.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cordwood.common.errors import UndecodableError
from cordwood.common.text import number
from cordwood.kernels.layout import U8Array
from cordwood.storage.log.arrow import numbers

# ---- interface -------------------------------------------------------------------------------------------------------

BoolArray = npt.NDArray[np.bool_]
Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Decoded:
    """Decoded keys or values.

    Attributes:
        values: one element per input; null for a null input and for a problem.
        problems: the reason why a value cannot be decoded, by index.
    """

    values: pa.Array
    problems: Mapping[int, str] = field(default_factory=dict)


class Decoder(Protocol):
    """Decodes keys or values. A plain value that is sent to tasks."""

    @property
    def type(self) -> pa.DataType:
        """Type of the decoded values."""
        ...

    @property
    def is_json(self) -> bool:
        """Whether the decoded values are JSON text."""
        ...

    def decode(self, raw: pa.BinaryArray) -> Decoded:
        """Decode keys or values.

        Args:
            raw: the bytes, in an array that is not a slice of another array.
        """
        ...


def undecodable(column: str, found: Decoded, path: str, offsets: Int64Array) -> UndecodableError:
    """Return the error of the first key or value that cannot be decoded.

    Args:
        column: `key` or `value`.
        offsets: int64[values], offsets of the records.
    """
    first = min(found.problems)
    advice = f"choose another decoder for {column}s, such as hex, or set undecodable to null"
    return UndecodableError(
        f"the {column} cannot be decoded ({advice}): {found.problems[first]}", path=path, offset=int(offsets[first])
    )


@dataclass(frozen=True, slots=True)
class RawBytes:
    """The parts of an Arrow array of bytes.

    Attributes:
        starts, sizes: int64[values].
        valid: bool[values], False for null.
    """

    data: U8Array
    starts: Int64Array
    sizes: Int64Array
    valid: BoolArray

    @classmethod
    def of(cls, raw: pa.BinaryArray) -> RawBytes:
        """Split an array that is not a slice of another array into its parts."""
        assert raw.offset == 0, "it is no part of another array"
        _, offsets, data = raw.buffers()
        ends = np.frombuffer(offsets, np.int32, len(raw) + 1).astype(np.int64)
        bytes_ = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
        valid = np.asarray(raw.is_valid().to_numpy(zero_copy_only=False))
        return cls(bytes_, ends[:-1], np.diff(ends), valid)


_UUID = r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"


@dataclass(frozen=True, slots=True)
class BytesDecoder:
    """Returns bytes unchanged."""

    type: pa.DataType = pa.binary()  # noqa: RUF009 - it is a constant
    is_json: bool = False

    def decode(self, raw: pa.BinaryArray) -> Decoded:
        """See `Decoder.decode`."""
        return Decoded(raw)


@dataclass(frozen=True, slots=True)
class NumberDecoder:
    """Decodes big-endian numbers of a fixed size.

    Attributes:
        code: numpy's type code, such as `i4`.
    """

    code: str
    is_json: bool = False

    @property
    def type(self) -> pa.DataType:
        """See `Decoder.type`."""
        return pa.from_numpy_dtype(np.dtype(self.code))

    def decode(self, raw: pa.BinaryArray) -> Decoded:
        """See `Decoder.decode`."""
        parts, kind = RawBytes.of(raw), np.dtype(f">{self.code}")
        good = parts.valid & (parts.sizes == kind.itemsize)
        found = np.zeros(len(raw), self.code)
        places = parts.starts[good, None] + np.arange(kind.itemsize)
        found[good] = parts.data[places].reshape(-1).view(kind)
        bad = np.flatnonzero(parts.valid & ~good)
        wanted = f"where {kind.itemsize} are wanted"
        problems = {i: f"{number(int(parts.sizes[i]), 'byte')} {wanted}" for i in bad.tolist()}
        return Decoded(numbers(found, self.type, good), problems)


@dataclass(frozen=True, slots=True)
class TextDecoder:
    """Decodes UTF-8 text and checks it.

    Attributes:
        check: returns the problem of a text, or None; None accepts all texts.
    """

    check: Callable[[str], str | None] | None = None
    is_json: bool = False

    @property
    def type(self) -> pa.DataType:
        """See `Decoder.type`."""
        return pa.string()

    def decode(self, raw: pa.BinaryArray) -> Decoded:
        """See `Decoder.decode`."""
        texts, problems = _texts(raw)
        if self.check is not None:
            for i, text in enumerate(texts.to_pylist()):
                if text is not None and (problem := self.check(text)) is not None:
                    problems[i] = problem
        return Decoded(without(texts, problems), problems)


@dataclass(frozen=True, slots=True)
class HexDecoder:
    """Converts bytes to hexadecimal digits."""

    is_json: bool = False

    @property
    def type(self) -> pa.DataType:
        """See `Decoder.type`."""
        return pa.string()

    def decode(self, raw: pa.BinaryArray) -> Decoded:
        """See `Decoder.decode`."""
        return Decoded(pa.array([None if one is None else one.hex() for one in raw.to_pylist()], pa.string()))


@dataclass(frozen=True, slots=True)
class UuidDecoder:
    """Decodes uuids in text form."""

    is_json: bool = False

    @property
    def type(self) -> pa.DataType:
        """See `Decoder.type`."""
        return pa.string()

    def decode(self, raw: pa.BinaryArray) -> Decoded:
        """See `Decoder.decode`."""
        import pyarrow.compute as pc

        texts, problems = _texts(raw)
        fits = pc.fill_null(pc.match_substring_regex(texts, _UUID), True)
        for i in np.flatnonzero(~fits.to_numpy(zero_copy_only=False)).tolist():
            problems[i] = "not a uuid of 36 characters"
        return Decoded(without(texts, problems), problems)


def _texts(raw: pa.BinaryArray) -> tuple[pa.StringArray, dict[int, str]]:
    """Decode UTF-8; return null for each invalid value, with its problem by index."""
    try:
        return raw.cast(pa.string()), {}
    except pa.ArrowInvalid:
        pass
    problems: dict[int, str] = {}
    found: list[str | None] = []
    for i, one in enumerate(raw.to_pylist()):
        try:
            found.append(None if one is None else str(one, "utf-8"))
        except UnicodeDecodeError as error:
            problems[i] = f"not UTF-8, from byte {error.start} on"
            found.append(None)
    return pa.array(found, pa.string()), problems


def without(values: pa.Array, problems: Mapping[int, str]) -> pa.Array:
    """Replace the values that have problems by null."""
    if not problems:
        return values
    found = values.to_pylist()
    for i in problems:
        found[i] = None
    return pa.array(found, values.type)


def json_problem(text: str) -> str | None:
    """Return why a text is not JSON, or None if it is."""
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        return f"not JSON: {error}"
    return None


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


#: The decoders by name.
PLAIN: Mapping[str, Decoder] = {
    "utf8": TextDecoder(),
    "json": TextDecoder(json_problem, is_json=True),
    "bytes": BytesDecoder(),
    "hex": HexDecoder(),
    "short": NumberDecoder("i2"),
    "int": NumberDecoder("i4"),
    "long": NumberDecoder("i8"),
    "float": NumberDecoder("f4"),
    "double": NumberDecoder("f8"),
    "uuid": UuidDecoder(),
}
