"""The producer snapshots of a log: its producer state at some offsets, in files.

Source: the files of Kafka's ProducerStateManager.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable

from cordwood.common.errors import CorruptFileError
from cordwood.fs.base import LocalFileSystem
from cordwood.live.producer_state import ProducerState
from cordwood.storage.formats import producer_state
from cordwood.storage.formats.filenames import FileKind, Temporary, offset_name
from cordwood.storage.log.files import read_file
from cordwood.storage.log.recovered import strays


class ProducerSnapshots:
    """A producer state that is saved to files, and loaded from them."""

    def __init__(self, fs: LocalFileSystem, directory: str, state: ProducerState, offsets: list[int]) -> None:
        """Keep `offsets`: the offsets of the directory's snapshots, ascending."""
        self.state = state
        self.directory = directory
        self._fs = fs
        self._offsets = offsets
        self._last_offset = 0

    def fresh(self) -> ProducerSnapshots:
        """Return an empty state for the same files; both objects share the list of snapshots."""
        return ProducerSnapshots(self._fs, self.directory, self.state.fresh(), self._offsets)

    @property
    def latest_offset(self) -> int | None:
        """Offset of the newest snapshot."""
        return self._offsets[-1] if self._offsets else None

    def _forget(self, offset: int) -> bool:
        """Drop an offset from the list; return whether it had a snapshot."""
        at = bisect_left(self._offsets, offset)
        is_known = self._offsets[at : at + 1] == [offset]
        if is_known:
            del self._offsets[at]
        return is_known

    def path(self, offset: int) -> str:
        """Return the path for the snapshot of an offset."""
        return f"{self.directory}/{offset_name(offset, FileKind.PRODUCER_SNAPSHOT)}"

    def take(self, *, sync: bool = True) -> str | None:
        """Write a snapshot and return its path; None if the state covers no more than the last snapshot."""
        offset = self.state.end_offset
        if offset <= self._last_offset:
            return None
        path = self.path(offset)
        with self._fs.create(path, exclusive=False) as file:
            file.write(0, producer_state.encode_rows(self.state.rows()))
            if sync:
                file.sync()
        if sync:
            self._fs.sync_directory(self.directory)
        self._forget(offset)
        insort(self._offsets, offset)
        self._last_offset = offset
        return path

    def delete(self, offset: int) -> None:
        """Remove a snapshot, if it exists."""
        self._forget(offset)
        if self._fs.exists(self.path(offset)):
            self._fs.unlink(self.path(offset))

    def mark_deleted(self, offset: int) -> str | None:
        """Rename a snapshot, to be removed later; return its new path."""
        if not self._forget(offset):
            return None
        target = self.path(offset) + Temporary.DELETED
        try:
            self._fs.rename(self.path(offset), target)
        except FileNotFoundError:
            return None
        return target

    def remove_strays(self, bases: Iterable[int]) -> None:
        """Remove the `strays` of a log whose segments have these base offsets."""
        for offset in strays(self._offsets, bases):
            self.delete(offset)

    def truncate_and_reload(self, log_start_offset: int, log_end_offset: int, now_ms: int) -> None:
        """Remove the snapshots outside of (log start, log end], and load the newest readable one.

        A state that already ends at the log end is kept instead.
        """
        offsets = self._offsets
        before, behind = bisect_right(offsets, log_start_offset), bisect_right(offsets, log_end_offset)
        for offset in (*offsets[:before], *offsets[max(before, behind) :]):
            self.delete(offset)
        if self.state.end_offset == log_end_offset:
            self.on_log_start(log_start_offset)
            return
        self.state.clear()
        while (latest := self.latest_offset) is not None:
            try:
                rows = producer_state.decode_rows(read_file(self._fs, self.path(latest)))
            except CorruptFileError:
                self.delete(latest)
                continue
            self.state.load(rows, now_ms=now_ms, expiration_ms=self.state.expiration_ms)
            self._last_offset = self.state.end_offset = latest
            return
        self._last_offset = self.state.end_offset = log_start_offset

    def on_log_start(self, offset: int) -> None:
        """Follow a rise of the log start offset."""
        self.state.on_log_start(offset)
        latest = self.latest_offset
        self._last_offset = offset if latest is None else latest

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Clear the state, and remove all snapshots."""
        self.state.clear()
        for one in tuple(self._offsets):
            self.delete(one)
        self._last_offset = 0
        self.state.end_offset = offset
