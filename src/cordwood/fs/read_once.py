"""A store that reads the bytes of large files once, and keeps them in memory, up to a limit.

A clean reads a log twice: for its keys, then to copy the kept records. If the log fits this memory, the second pass
does not read the disk, and does not count towards `log.cleaner.io.max.bytes.per.second`.

    file    │ read at first │        │ requested now ─────────────────────┐
    pieces  │ 0 … 8 MiB     │        │ 12 … 20 MiB │                      │
                                     └─ from memory ┴─ read, then a piece ─┘

The files must not change meanwhile. Once the memory is full, further bytes are read each time.
"""

from __future__ import annotations

import bisect
import threading
from dataclasses import dataclass, field

from cordwood.common.types import override
from cordwood.fs.base import ReadableFile, Store
from cordwood.fs.wrapped import WrappedReadableFile, WrappedStore


@dataclass(slots=True)
class _Pieces:
    """The parts of a file that are in memory, as pieces that do not overlap.

    Attributes:
        starts: positions of the pieces, ascending.
    """

    starts: list[int] = field(default_factory=list)
    pieces: list[bytes] = field(default_factory=list)

    def at(self, position: int) -> tuple[memoryview | None, int | None]:
        """Return the bytes from a position on if they are in memory; else None and the start of a later piece."""
        number = bisect.bisect_right(self.starts, position)
        if number:
            start, piece = self.starts[number - 1], self.pieces[number - 1]
            if position < start + len(piece):
                return memoryview(piece)[position - start :], None
        return None, self.starts[number] if number < len(self.starts) else None

    def add(self, position: int, data: memoryview) -> int:
        """Keep bytes that start outside of all pieces, up to the next piece; return the number of kept bytes."""
        held, next_start = self.at(position)
        if held is not None:
            return 0  # another thread has read them in the meantime
        data = data if next_start is None else data[: next_start - position]
        number = bisect.bisect(self.starts, position)
        self.starts.insert(number, position)
        self.pieces.insert(number, bytes(data))
        return len(data)


class ReadOnceStore(WrappedStore):
    """Delegates to another store, and keeps the bytes it reads.

    Args:
        memory_bytes: maximum number of bytes to keep.
        suffix: keep only bytes of files with this suffix.
    """

    def __init__(self, store: Store, memory_bytes: int, *, suffix: str) -> None:
        super().__init__(store)
        self._suffix = suffix
        self._room = memory_bytes
        self._files: dict[str, _Pieces] = {}
        self._lock = threading.Lock()

    @override
    def open(self, path: str) -> ReadableFile:
        file = super().open(path)
        return _ReadOnceFile(file, self) if path.endswith(self._suffix) else file

    def find(self, path: str, position: int) -> tuple[memoryview | None, int | None]:
        """See `_Pieces.at`."""
        with self._lock:
            known = self._files.get(path)
            return (None, None) if known is None else known.at(position)

    def keep(self, path: str, position: int, data: memoryview) -> None:
        """Keep bytes of a file, if the memory has room."""
        with self._lock:
            if data and len(data) <= self._room:
                self._room -= self._files.setdefault(path, _Pieces()).add(position, data)


class _ReadOnceFile(WrappedReadableFile):
    def __init__(self, file: ReadableFile, store: ReadOnceStore) -> None:
        super().__init__(file)
        self._store = store

    @override
    def read_into(self, position: int, target: memoryview) -> int:
        target = target.cast("B")
        done = 0
        while done < len(target):
            at, rest = position + done, target[done:]
            held, next_start = self._store.find(self.path, at)
            if held is not None:
                count = min(len(held), len(rest))
                rest[:count] = held[:count]
            else:
                wanted = rest if next_start is None else rest[: next_start - at]
                count = self._file.read_into(at, wanted)
                self._store.keep(self.path, at, wanted[:count])
                if not count:
                    break
            done += count
        return done

    @override
    def read(self, position: int, size_bytes: int) -> bytes:
        data = bytearray(max(0, min(size_bytes, self.size() - position)))  # the size may come from a damaged file
        return bytes(data[: self.read_into(position, memoryview(data))])
