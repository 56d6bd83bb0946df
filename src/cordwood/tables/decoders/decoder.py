"""The interface of decoders: bytes of keys or values in, an Arrow array of one type out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cordwood.common.errors import UndecodableError
from cordwood.kernels.layout import U8Array

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
