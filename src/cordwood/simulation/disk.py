"""What logs take on a disk in memory: their segments and indexes, whichever suffix they have just now."""

from __future__ import annotations

from cordwood.storage.formats.filenames import FileKind, Temporary

_KINDS = (FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX, FileKind.TRANSACTION_INDEX)
#: How names end, from their first dot on; files that wait for their removal count, as does what a clean is writing.
_COUNTED = frozenset(kind + suffix for kind in _KINDS for suffix in Temporary)


class DiskMeter:
    """Follows the bytes that a file system stores; the preallocated rest of an index is a hole and takes none.

    Checkpoints, snapshots and the like have no size that counts.
    """

    def __init__(self) -> None:
        self.used_bytes = 0
        self._peak_bytes = 0

    def __call__(self, name: str, size_bytes: int) -> None:
        """A file of a name has so many more bytes."""
        if name[name.find(".") :] in _COUNTED:
            self.used_bytes += size_bytes
            self._peak_bytes = max(self._peak_bytes, self.used_bytes)

    def take_peak(self) -> int:
        """The most that was used since the last call, or ever."""
        peak, self._peak_bytes = self._peak_bytes, self.used_bytes
        return peak
