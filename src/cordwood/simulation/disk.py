"""Measures the disk that logs use in memory: segments and indexes, with any temporary suffix."""

from __future__ import annotations

from cordwood.storage.formats.filenames import FileKind, Temporary

_KINDS = (FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX, FileKind.TRANSACTION_INDEX)
#: File names from their first dot on; files that wait for deletion and the output of a running clean count too.
_COUNTED = frozenset(kind + suffix for kind in _KINDS for suffix in Temporary)


class DiskMeter:
    """Counts the bytes that a file system stores. The preallocated end of an index is a hole and counts as 0 bytes.

    Checkpoints, snapshots and other small files do not count.
    """

    def __init__(self) -> None:
        self.used_bytes = 0
        self._peak_bytes = 0

    def __call__(self, name: str, size_bytes: int) -> None:
        """Add a change in a file's size; the file system calls it with the file's name."""
        if name[name.find(".") :] in _COUNTED:
            self.used_bytes += size_bytes
            self._peak_bytes = max(self._peak_bytes, self.used_bytes)

    def take_peak(self) -> int:
        """Return the largest use since the last call, or since the start."""
        peak, self._peak_bytes = self._peak_bytes, self.used_bytes
        return peak
