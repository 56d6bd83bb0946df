"""The folder of the arrays that tasks of a comparison of logs write for later tasks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from cordwood.common.errors import DataError, NoSpaceError
from cordwood.fs.base import ReadableFile, TargetStore, is_full
from cordwood.fs.direct import Appender, read_direct
from cordwood.fs.location import Location
from cordwood.fs.temporary import temporary_root
from cordwood.kernels.crc import crc32c_each

#: Arrays begin at multiples of this, so that processors can read their elements directly.
_ALIGNMENT = 8


class LostError(DataError):
    """A task's output for other tasks is missing, or its checksum differs."""

    def __init__(self, path: str) -> None:
        super().__init__("what another task wrote is gone or damaged", path=path)


def no_space(error: OSError, folder: str) -> NoSpaceError:
    """Return the error to raise if the disk of the folder is full."""
    what = f"{error.strerror or error}: {error.filename or folder}, a temporary file, so there is no result"
    return NoSpaceError(f"{what}. Free some of that disk, or name a folder on another one with TMPDIR")


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Turn ENOSPC into a NoSpaceError that names the temporary folder."""
    try:
        yield
    except OSError as error:
        if not is_full(error):
            raise
        raise no_space(error, temporary_root()) from error


@dataclass(frozen=True, slots=True)
class Scratch:
    """The scratch folder. All fields can be pickled."""

    location: Location[TargetStore]
    path: str

    def writer(self, *, here_bytes: int) -> ScratchWriter:
        """Return a writer that keeps up to `here_bytes` in memory; more arrays go to a new file."""
        return ScratchWriter(self, here_bytes)

    def reader(self) -> ScratchReader:
        """Return a reader of the tasks' files."""
        return ScratchReader(self)


@dataclass(frozen=True, slots=True)
class Kept:
    """An array in sections: in a file, or in memory.

    Attributes:
        path: path of the file; empty if `here` is the array.
        position: position of the array in the file.
        starts: int64[sections + 1], start index of each section, and the end.
        crcs: uint32[sections], CRC-32C of each section's bytes in the file.
    """

    path: str
    position: int
    starts: npt.NDArray[np.int64]
    crcs: npt.NDArray[np.uint32]
    here: npt.NDArray[Any] | None = None

    def size(self, section: int) -> int:
        """Return the number of elements of a section."""
        return int(self.starts[section + 1] - self.starts[section])

    @property
    def here_bytes(self) -> int:
        """Size of the array in memory; 0 if it is in a file."""
        return 0 if self.here is None else self.here.nbytes

    def sections(self, first: int, end: int) -> Kept:
        """Return the array with only some of its sections."""
        starts = self.starts[first : end + 1]
        return Kept(self.path, self.position, starts, self.crcs[first:end], self.here)


def kept_here(array: npt.NDArray[Any], starts: Sequence[int] | npt.NDArray[np.int64]) -> Kept:
    """Return an array that stays in this process, or is part of a task's result."""
    return Kept("", 0, np.asarray(starts, np.int64), np.empty(0, np.uint32), array)


@dataclass(slots=True)
class ScratchWriter:
    """Keeps arrays for later tasks: in memory as long as there is room, then in one file.

    Attributes:
        here_bytes: remaining room in memory.
    """

    scratch: Scratch
    here_bytes: int
    _appender: Appender | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._appender is not None:
            with self._appender.file:
                if kind is None:
                    self._appender.flush()

    def write(self, array: npt.NDArray[Any], starts: Sequence[int] | npt.NDArray[np.int64]) -> Kept:
        """Keep an array in sections, which no longer changes; it can be read once the `with` block has ended."""
        if array.nbytes <= self.here_bytes:
            self.here_bytes -= array.nbytes
            # A part of an array would keep all of it in memory.
            return kept_here(array if array.base is None else array.copy(), starts)
        if self._appender is None:
            self._appender = Appender(self.scratch.location.open().create(f"{self.scratch.path}/{uuid4().hex}"))
        starts = np.asarray(starts, np.int64)
        crcs = np.empty(starts.size - 1, np.uint32)
        crc32c_each(array.ctypes.data + starts * array.itemsize, crcs)
        kept = Kept(self._appender.file.path, self._appender.position, starts, crcs)
        self._appender.append(array.view(np.uint8))
        self._appender.append(np.zeros(-array.nbytes % _ALIGNMENT, np.uint8))
        return kept


@dataclass(slots=True)
class ScratchReader:
    """Reads arrays from the files of many writers, and keeps the files open."""

    scratch: Scratch
    _files: dict[str, ReadableFile] = field(default_factory=dict)
    _open: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.__exit__(kind, error, trace)

    def load(self, kept: Kept, dtype: npt.DTypeLike) -> Kept:
        """Read all sections of an array at once into memory.

        Raises:
            LostError: the file is missing or its checksum differs.
        """
        if kept.here is not None:
            return kept
        first = int(kept.starts[0])
        itemsize = np.dtype(dtype).itemsize
        file = self._files.get(kept.path)
        if file is None:
            try:
                opened = self.scratch.location.open().open(kept.path)
            except FileNotFoundError:
                raise LostError(kept.path) from None
            file = self._files[kept.path] = self._open.enter_context(opened)
        starts = kept.starts - first
        size_bytes = int(starts[-1]) * itemsize
        data = read_direct(file, kept.position + first * itemsize, size_bytes)
        if data.size != size_bytes:
            raise LostError(kept.path)
        crcs = np.empty_like(kept.crcs)
        crc32c_each(data.ctypes.data + starts * itemsize, crcs)
        if not np.array_equal(crcs, kept.crcs):
            raise LostError(kept.path)
        return kept_here(data.view(dtype), starts)

    def read(self, kept: Kept, section: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return the elements of a section.

        Raises:
            LostError: the file is missing or its checksum differs.
        """
        if kept.here is None:
            kept, section = self.load(kept.sections(section, section + 1), dtype), 0
        assert kept.here is not None
        found: npt.NDArray[Any] = kept.here[kept.starts[section] : kept.starts[section + 1]]
        return found
