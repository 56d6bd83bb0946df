"""Disks that report little free space."""

from __future__ import annotations

from cordwood.fs.posix import PosixFileSystem


class Room(PosixFileSystem):
    """This machine's files, on a disk that reports a given free space, and shares no blocks."""

    def __init__(self, free: int | None) -> None:
        self._free = free

    def free_bytes(self, path: str) -> int | None:
        return self._free

    def shares_blocks(self, path: str) -> bool:
        return False
