"""Progress of tasks, reported in small files, as Spark's own counters arrive only when a task ends."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from uuid import uuid4

from cordwood.common.errors import NotFoundError
from cordwood.common.types import override
from cordwood.fs.base import FileInfo, Store, TargetStore
from cordwood.fs.location import Location
from cordwood.fs.wrapped import CountedStore
from cordwood.storage.log.files import read_file
from cordwood.storage.log.segment import Segment
from cordwood.storage.log.view import LogSource, LogView

_WRITE_EVERY_SECONDS = 0.5
_READ_EVERY_SECONDS = 0.25
#: Wait this many times the duration of a write or poll after it: in an object store they are requests.
_PAUSE = 10

#: Called with the bytes read so far.
OnProgress = Callable[[int], None]


class Counted(CountedStore):
    """A store that counts the bytes read from all files, and periodically writes the sum to a file.

    Args:
        fs: file system for the sum.
        path: path of the file with the sum.
    """

    def __init__(self, store: Store, fs: TargetStore, path: str) -> None:
        super().__init__(store)
        self._fs = fs
        self._path = path
        self._next_flush = time.monotonic() + _WRITE_EVERY_SECONDS

    @override
    def add(self, count: int) -> None:
        super().add(count)
        if time.monotonic() > self._next_flush:
            self.flush()

    def flush(self) -> None:
        """Write the sum. A full disk must not fail a task here.

        Raises:
            FileNotFoundError: the folder is missing, so the result of this task is no longer wanted.
        """
        began = time.monotonic()
        self._next_flush = began + _WRITE_EVERY_SECONDS
        try:
            with self._fs.create(self._path, exclusive=False) as file:
                file.write(0, b"%d\n" % self.bytes_read)
        except FileNotFoundError:
            raise
        except OSError:
            pass
        now = time.monotonic()
        self._next_flush = max(self._next_flush, now + _PAUSE * (now - began))


@dataclass(frozen=True, slots=True)
class Counters:
    """The folder to which tasks write their sums. A plain value that can be pickled."""

    location: Location[TargetStore]
    path: str

    def counted(self, store: Store) -> Counted:
        """Return a store that counts bytes read, and writes the sum to a new file of the folder."""
        return Counted(store, self.location.open(), f"{self.path}/{uuid4().hex}")

    @contextlib.contextmanager
    def counting(self, store: Store) -> Iterator[Store]:
        """Count the bytes read from a store in a `with` block; the sum is complete at its end."""
        counted = self.counted(store)
        try:
            yield counted
        finally:
            with contextlib.suppress(FileNotFoundError):  # the result is no longer wanted
                counted.flush()


@dataclass(frozen=True, slots=True)
class CountedLog:
    """A log that tasks read, and their counters. A plain value that can be pickled."""

    source: LogSource
    counters: Counters | None

    @property
    def path(self) -> str:
        """Path of the log's directory."""
        return self.source.path

    def open(self) -> LogView:
        """Open the log, within a task."""
        store = self.source.location.open()
        return self.source.on(store if self.counters is None else self.counters.counted(store))

    def segment(self, base_offset: int) -> Segment:
        """Open a segment of the log, within a task.

        Raises:
            NotFoundError: the segment is missing.
        """
        segments = self.open().segments
        found = next((segment for segment in segments if segment.base_offset == base_offset), None)
        if found is None:
            raise NotFoundError(f"{self.path}: a segment is gone that was here a moment ago; run this again")
        return found


class ProgressWatch:
    """Sums up the tasks' counters while a `with` block runs."""

    def __init__(self, fs: TargetStore, path: str, on_progress: OnProgress | None) -> None:
        self._fs = fs
        self._path = path
        self._on_progress = on_progress
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        if self._on_progress is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        assert self._on_progress is not None
        known: dict[FileInfo, int] = {}
        pause = _READ_EVERY_SECONDS
        while not self._ended.wait(pause):
            began = time.monotonic()
            self._on_progress(total(self._fs, self._path, known))
            pause = max(_READ_EVERY_SECONDS, _PAUSE * (time.monotonic() - began))


def total(fs: TargetStore, path: str, known: dict[FileInfo, int] | None = None) -> int:
    """Return the sum of all counters in a folder; a counter that is being written is counted next time.

    Args:
        known: counters that were read before; only changed ones are read again. New counters are added.
    """
    known = {} if known is None else known
    done = 0
    for info in fs.list(path):
        try:
            if info not in known:
                known[info] = int(read_file(fs, f"{path}/{info.name}") or b"0")
            done += known[info]
        except (OSError, ValueError):
            continue
    return done
