"""A broker's permissions for files.

A broker is assumed to run as the owner of its log directory. This process's own permissions prove nothing, because
often root runs a check.
"""

from __future__ import annotations

from cordwood.fs.base import FileInfo

READ, WRITE, SEARCH = 4, 2, 1
_WORDS = {READ: "read", WRITE: "write", SEARCH: "enter"}


def may_not(owner: FileInfo, info: FileInfo, wanted: int) -> str:
    """Return the first operation (read, write or enter) that a broker may not perform; empty if it may perform all.

    Args:
        owner: entry of the log directory. The broker runs as the user and group in this entry.
        info: entry of the file or directory to check.
        wanted: bit mask of READ, WRITE and SEARCH.
    """
    if not info.inode:
        return ""  # a store without permissions
    shift = 6 if info.uid == owner.uid else 3 if info.gid == owner.gid else 0
    missing = wanted & ~(info.mode >> shift)
    return next((word for bit, word in _WORDS.items() if bit & missing), "")
