"""What cleans with `min_dead` leave in live logs, and where the next clean of each begins.

    Kafka's checkpoint ── not above what superseded a record that was left
    Cordwood's own     ── where the last clean ended; beside it, in the partition, which records were left

The next clean begins at the second one. It compares it with the log again (`engine.sparing`), and begins at Kafka's if
it does not fit. So what is in memory here decides when a log is due, and no more. Cleans that may leave nothing, as
`max.compaction.lag.ms` has passed, begin at Kafka's, and so do those of logs of which much more is left than may be.

The order of what a clean does: Cordwood's checkpoint goes, groups are swapped in, records that are left are noted,
Cordwood's checkpoint, Kafka's. Each is on disk before the next. `cleaning.selection.plan_compaction` has the same rules
for logs that are not in use.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from weakref import WeakKeyDictionary

from cordwood.cleaning.sparing import begins_anew
from cordwood.fs.base import LocalFileSystem
from cordwood.service.log import Log
from cordwood.service.log_to_clean import LogsToClean, LogToClean
from cordwood.storage.formats.clean_checkpoint import CleanCheckpoint
from cordwood.storage.index import files
from cordwood.storage.log.clean_state import believed_checkpoint
from cordwood.storage.log.view import LogView


class Garbage:
    """What was left of all logs of a manager.

    Attributes:
        share: how much of a log may be left.
    """

    def __init__(self, fs: LocalFileSystem, share: float) -> None:
        self._fs, self.share = fs, share
        self._checkpoints: WeakKeyDictionary[Log, CleanCheckpoint | None] = WeakKeyDictionary()
        self._found = LogsToClean()

    def next_clean(self, kafkas: LogToClean, now_ms: int) -> LogToClean:
        """What a clean that may leave garbage would go over.

        Args:
            kafkas: what Kafka's would.
        """
        if kafkas.overdue_ms > 0 or kafkas.force_update_checkpoint:
            return kafkas
        log, usual = kafkas.log, replace(kafkas, garbage_share=self.share)
        own = self.checkpoint(log)
        if own is None or all(segment.base_offset != own.cleaned_to for segment in log.log_segments):
            return usual
        first = log.log_segments[0].base_offset
        left_bytes = sum(one.garbage_bytes for one in own.segments if one.base_offset >= first)
        if begins_anew(left_bytes, self.share, kafkas.total_bytes):
            return usual
        found = self._found.of(kafkas.partition, log, own.cleaned_to, now_ms)
        return replace(found, garbage_share=self.share, restart=kafkas.first_dirty_offset)

    def note(self, log: Log, checkpoint: CleanCheckpoint | None) -> None:
        """A clean has ended."""
        self._checkpoints[log] = checkpoint

    def checkpoint(self, log: Log) -> CleanCheckpoint | None:
        """Where the last clean of a log ended, and what it left; None: nothing, or it is not known."""
        if log not in self._checkpoints:
            view = LogView(log.directory, fs=self._fs, log_start_offset=log.log_start_offset)
            self._checkpoints[log] = believed_checkpoint(view)
        return self._checkpoints[log]


def forget(fs: LocalFileSystem, directory: str) -> None:
    """Remove Cordwood's checkpoint before a clean changes the log, as far as the disk allows it.

    One that stays does not fit the log any more; see `storage.log.clean_state`.
    """
    with contextlib.suppress(OSError):
        files.forget_clean_state(fs, directory)
