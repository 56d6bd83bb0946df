"""What a broker may do with a file: it runs as the owner of its log directory, whoever asks here.

Whether this process may open a file says nothing of it: a check is often run by root.
"""

from __future__ import annotations

from cordwood.fs.base import FileInfo

READ, WRITE, SEARCH = 4, 2, 1
_WORDS = {READ: "read", WRITE: "write", SEARCH: "enter"}


def may_not(owner: FileInfo, info: FileInfo, wanted: int) -> str:
    """Return the first thing that the owner of a log directory may not do with a file or directory; empty: all may be.

    Args:
        owner: of the log directory: its entry.
        wanted: of READ, WRITE and SEARCH.
    """
    if not info.inode:
        return ""  # a store without permissions
    shift = 6 if info.uid == owner.uid else 3 if info.gid == owner.gid else 0
    missing = wanted & ~(info.mode >> shift)
    return next((word for bit, word in _WORDS.items() if bit & missing), "")
