"""The garbage that cleans with `min_dead` leave in live logs, and where each log's next clean begins.

    Kafka's checkpoint  not above any record that superseded remaining garbage
    Cordwood's own      the end of the last clean; beside it, in the partition, is the list of the remaining garbage

The next clean begins at Cordwood's checkpoint. It compares the checkpoint with the log again (`engine.sparing`), and
begins at Kafka's checkpoint if the two do not fit; so the copy in memory only decides when a log is due. A clean also
begins at Kafka's checkpoint if `max.compaction.lag.ms` has passed, because it must then leave no garbage, or if its log
has much more garbage than the limit.

A clean works in this order: remove Cordwood's checkpoint, swap in groups, write the list of remaining garbage, write
Cordwood's checkpoint, write Kafka's. Each step is on disk before the next. `rules.selection.plan_compaction` has the
same rules for logs that are not in use.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from weakref import WeakKeyDictionary

from cordwood.cleaning.rules.sparing import begins_anew
from cordwood.fs.base import LocalFileSystem
from cordwood.live.log import Log
from cordwood.live.log_to_clean import LogsToClean, LogToClean
from cordwood.storage.formats.clean_checkpoint import CleanCheckpoint
from cordwood.storage.index import files
from cordwood.storage.log.clean_state import believed_checkpoint
from cordwood.storage.log.view import LogView


class Garbage:
    """The remaining garbage in the logs of a manager.

    Attributes:
        share: largest share of a log that may remain as garbage.
    """

    def __init__(self, fs: LocalFileSystem, share: float) -> None:
        self._fs, self.share = fs, share
        self._checkpoints: WeakKeyDictionary[Log, CleanCheckpoint | None] = WeakKeyDictionary()
        self._found = LogsToClean()

    def next_clean(self, kafkas: LogToClean, now_ms: int) -> LogToClean:
        """Return the range of a clean that may leave garbage.

        Args:
            kafkas: the range that Kafka's cleaner would cover.
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
        """Store the checkpoint of a clean that has ended."""
        self._checkpoints[log] = checkpoint

    def checkpoint(self, log: Log) -> CleanCheckpoint | None:
        """Return the end of a log's last clean with its remaining garbage; None if nothing remains or it is unknown."""
        if log not in self._checkpoints:
            view = LogView(log.directory, fs=self._fs, log_start_offset=log.log_start_offset)
            self._checkpoints[log] = believed_checkpoint(view)
        return self._checkpoints[log]


def forget(fs: LocalFileSystem, directory: str) -> None:
    """Remove Cordwood's checkpoint before a clean changes the log; ignore errors of the disk.

    A checkpoint that remains does not fit the changed log, and so is ignored; see `storage.log.clean_state`.
    """
    with contextlib.suppress(OSError):
        files.forget_clean_state(fs, directory)
