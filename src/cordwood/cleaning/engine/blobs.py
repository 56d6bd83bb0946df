"""Checked files of sections, by which tasks of one clean pass results to each other.

    file         section section … directory        section: see `engine.sections`
    directory    JSON: for each section its name, position, size in bytes, CRC-32C

A `Blob` has the position and the CRC of the directory, so a reader accepts exactly the bytes that the writer wrote. If
a file is lost or damaged, the task that wrote it runs again. Blobs need not survive a crash.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import crc32c
import numpy as np
import numpy.typing as npt

from cordwood.cleaning.engine import sections
from cordwood.cleaning.engine.sections import LostSectionError
from cordwood.fs.base import ReadableFile, TargetStore
from cordwood.fs.direct import Appender, read_direct
from cordwood.kernels.layout import U8Array


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
        for piece in sections.encode(arrays):
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
        return sections.decode(self._read(*self._sections[name]), kinds)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
