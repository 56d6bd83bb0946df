"""The location of a log as plain values, for a task that opens the log on another machine or in another process."""

from __future__ import annotations

from dataclasses import dataclass

from cordwood.fs.base import Store
from cordwood.fs.location import Location
from cordwood.storage.log.view import LogView


@dataclass(frozen=True, slots=True)
class LogSource:
    """The location of a log that tasks read.

    Attributes:
        location: location of its store.
        path: path of the partition's directory in the store.
        log_start_offset: offset in the log directory's checkpoint.
        live: whether a broker writes to the log.
        index_root: see `LogView`.
    """

    location: Location[Store]
    path: str
    log_start_offset: int
    live: bool
    index_root: str | None = None

    def open(self) -> LogView:
        """Open the log."""
        return self.on(self.location.open())

    def on(self, store: Store) -> LogView:
        """Open the log in a substitute for its store, such as a store that counts bytes read."""
        start, root = self.log_start_offset, self.index_root
        return LogView(self.path, fs=store, live=self.live, log_start_offset=start, index_root=root)
