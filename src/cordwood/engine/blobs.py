"""Checked files of arrays, through which the tasks of one clean hand each other what they found.

    file         section section … section directory
    section      the bytes of an array
    directory    JSON: for each section its name, type, position, number of elements, CRC-32C

A `Blob` says where the directory is, and what its CRC is, so a reader accepts exactly the bytes that the writer made.
A file that is lost or damaged is made again by the task that made it. It need not survive a crash.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import crc32c
import numpy as np
import numpy.typing as npt

from cordwood.errors import CordwoodError
from cordwood.fs.base import File, LocalFileSystem, ReadableFile

_TYPES = {"<u8": np.uint64, "<u4": np.uint32, "<i8": np.int64, "<i4": np.int32, "|u1": np.uint8}


class LostBlobError(CordwoodError):
    """A blob is not there any more, or not as it was written.

    Attributes:
        path: of the file.
    """

    def __init__(self, path: str, what: str) -> None:
        super().__init__(path, what)
        self.path = path
        self.what = what

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


@dataclass(frozen=True, slots=True)
class Blob:
    """A file of arrays, complete.

    Attributes:
        path: of the file.
        directory: position of the directory.
        size_bytes: of the file.
        crc: CRC-32C of the directory.
    """

    path: str
    directory: int
    size_bytes: int
    crc: int


class BlobWriter:
    """Writes a new file, section after section; for a `with` block."""

    def __init__(self, fs: LocalFileSystem, path: str) -> None:
        self._path = path
        self._file: File = fs.create(path)
        self._position = 0
        self._sections: list[tuple[str, str, int, int, int]] = []

    def add(self, name: str, array: npt.NDArray[Any]) -> None:
        """Append an array under a new name; nothing of an empty one."""
        if array.size:
            data = memoryview(np.ascontiguousarray(array)).cast("B")
            self._file.write(self._position, data)
            self._sections.append((name, array.dtype.str, self._position, array.size, crc32c.crc32c(data)))
            self._position += len(data)

    def finish(self) -> Blob:
        """Write the directory."""
        directory = json.dumps(self._sections).encode()
        self._file.write(self._position, directory)
        return Blob(self._path, self._position, self._position + len(directory), crc32c.crc32c(directory))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class BlobReader:
    """Reads a file of arrays; for a `with` block.

    Raises:
        LostBlobError: from every method: the file is gone, or not as it was written.
    """

    def __init__(self, fs: LocalFileSystem, blob: Blob) -> None:
        self._blob = blob
        try:
            self._file: ReadableFile = fs.open(blob.path)
        except FileNotFoundError:
            raise LostBlobError(blob.path, "the file is gone") from None
        try:
            directory = self._read(blob.directory, blob.size_bytes - blob.directory, blob.crc)
            self._sections = {section[0]: section[1:] for section in json.loads(directory)}
        except BaseException:
            self._file.close()
            raise

    def _read(self, position: int, size_bytes: int, crc: int) -> bytes:
        data = self._file.read(position, size_bytes)
        if len(data) != size_bytes or crc32c.crc32c(data) != crc:
            raise LostBlobError(self._blob.path, f"the {size_bytes} bytes at {position} are not what was written")
        return data

    @property
    def names(self) -> list[str]:
        """Of the sections that are not empty."""
        return list(self._sections)

    def get(self, name: str, kind: npt.DTypeLike) -> npt.NDArray[Any]:
        """The array of that name; an empty one (of `kind`) if it was empty."""
        if name not in self._sections:
            return np.empty(0, kind)
        # The directory's CRC was right, so that its numbers are the writer's.
        dtype, position, count, crc = self._sections[name]
        found = np.dtype(_TYPES[dtype])
        return np.frombuffer(bytearray(self._read(position, count * found.itemsize, crc)), found)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
