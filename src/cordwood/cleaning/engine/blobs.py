"""Checked files of sections of arrays, by which tasks of one clean pass results to each other.

    file         section section … directory
    section      sizes array array …       sizes: of each array in bytes, as i64; every array begins at a multiple of 8
    directory    JSON: for each section its name, position, size in bytes, CRC-32C

A `Blob` has the position and the CRC of the directory, so a reader accepts exactly the bytes that the writer wrote. If
a file is lost or damaged, the task that wrote it runs again. Blobs need not survive a crash. Few arrays are passed as a
section in a row, without a file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import crc32c
import numpy as np
import numpy.typing as npt

from cordwood.common.errors import CordwoodError
from cordwood.fs.base import ReadableFile, TargetStore
from cordwood.fs.direct import Appender, read_direct
from cordwood.kernels.layout import U8Array

# ---- sections --------------------------------------------------------------------------------------------------------

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


@dataclass(frozen=True, slots=True)
class Blob:
    """A complete file of sections.

    Attributes:
        directory: position of the directory.
        crc: CRC-32C of the directory.
    """

    path: str
    directory: int
    size_bytes: int
    crc: int


class BlobWriter:
    """Writes a new file, section after section."""

    def __init__(self, fs: TargetStore, path: str) -> None:
        self._path = path
        self._appender = Appender(fs.create(path))
        self._sections: list[tuple[str, int, int, int]] = []

    def add(self, name: str, *arrays: npt.NDArray[Any]) -> None:
        """Append a section under a new name."""
        start, crc = self._appender.position, 0
        for piece in encode(arrays):
            self._appender.append(piece)
            crc = crc32c.crc32c(piece, crc)
        self._sections.append((name, start, self._appender.position - start, crc))

    def finish(self) -> Blob:
        """Write the directory."""
        directory, position = json.dumps(self._sections).encode(), self._appender.position
        self._appender.append(np.frombuffer(directory, np.uint8))
        self._appender.flush()
        return Blob(self._path, position, self._appender.position, crc32c.crc32c(directory))

    def close(self) -> None:
        """Close the file."""
        self._appender.file.close()


class BlobReader:
    """Reads a file of sections.

    Raises:
        LostSectionError: from every method: the file is missing, or differs from what its writer recorded.
    """

    def __init__(self, fs: TargetStore, blob: Blob) -> None:
        self._blob = blob
        try:
            self._file: ReadableFile = fs.open(blob.path)
        except FileNotFoundError:
            raise LostSectionError(blob.path, "the file is gone") from None
        try:
            directory = self._read(blob.directory, blob.size_bytes - blob.directory, blob.crc)
            self._sections = {section[0]: section[1:] for section in json.loads(bytes(directory))}
        except BaseException:
            self._file.close()
            raise

    def _read(self, position: int, size_bytes: int, crc: int) -> U8Array:
        data = read_direct(self._file, position, size_bytes)
        if data.size != size_bytes or crc32c.crc32c(data) != crc:
            raise LostSectionError(self._blob.path, f"the {size_bytes} bytes at {position} are not what was written")
        return data

    def get(self, name: str, *kinds: npt.DTypeLike) -> list[npt.NDArray[Any]]:
        """Return the arrays of a section, which have these types."""
        # The directory's CRC was correct, so its numbers are the writer's.
        return decode(self._read(*self._sections[name]), kinds)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
