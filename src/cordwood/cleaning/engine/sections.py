"""Encode arrays as sections, which tasks of one clean exchange in blobs or in rows.

section      sizes array array …       sizes: of each array in bytes, as i64; every array begins at a multiple of 8
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cordwood.common.errors import CordwoodError
from cordwood.kernels.layout import U8Array

_ALIGNMENT = 8


class LostSectionError(CordwoodError):
    """Another task's output is missing, or differs from what its writer recorded.

    Attributes:
        where: path of the blob; or of the partition, for rows.
    """

    def __init__(self, where: str, what: str) -> None:
        super().__init__(where, what)
        self.where = where
        self.what = what

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


def encode(arrays: Sequence[npt.NDArray[Any]]) -> list[U8Array]:
    """Return the bytes of a section, in pieces that are views of the arrays."""
    pieces = [np.array([array.nbytes for array in arrays], np.int64)]
    for array in arrays:
        pieces.append(np.ascontiguousarray(array))
        pieces.append(np.zeros(-array.nbytes % _ALIGNMENT, np.uint8))
    return [piece.reshape(-1).view(np.uint8) for piece in pieces if piece.nbytes]


def decode(data: U8Array, kinds: Sequence[npt.DTypeLike]) -> list[npt.NDArray[Any]]:
    """Return the arrays of a section, of these types and one dimension; views that may be written to."""
    sizes = np.frombuffer(data, np.int64, len(kinds)).tolist()
    arrays = []
    position = len(kinds) * _ALIGNMENT
    for kind, size in zip(kinds, sizes, strict=True):
        of = np.dtype(kind)
        arrays.append(np.frombuffer(data, of, size // of.itemsize, position) if size else np.empty(0, of))
        position += size + -size % _ALIGNMENT
    return arrays
