"""Names of users and groups, and this user's permissions on files."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from cordwood.fs.base import FileInfo

_STATUS = Path("/proc/self/status")
#: CAP_CHOWN and CAP_FOWNER. Root in a container may lack them.
_GIVING = 1 << 0 | 1 << 3


def user_name(uid: int) -> str:
    """Return a user's name with its number: `kafka (uid 999)`; without a name, `uid 999`."""
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def group_name(gid: int) -> str:
    """Return a group's name with its number: `kafka (gid 999)`; without a name, `gid 999`."""
    try:
        return f"{grp.getgrgid(gid).gr_name} (gid {gid})"
    except KeyError:
        return f"gid {gid}"


@dataclass(frozen=True, slots=True)
class User:
    """The user of a process.

    Attributes:
        privileged: may change the owner and permissions of any file.
    """

    uid: int
    gids: frozenset[int]
    privileged: bool

    @classmethod
    def current(cls) -> Self:
        """Return the user of this process."""
        return cls(os.geteuid(), frozenset([os.getegid(), *os.getgroups()]), _privileged())

    def may_write(self, info: FileInfo) -> bool:
        """Return whether the permissions of a file or directory allow writing; ignores `privileged`."""
        if self.uid == info.uid:
            return bool(info.mode & stat.S_IWUSR)
        return bool(info.mode & (stat.S_IWGRP if info.gid in self.gids else stat.S_IWOTH))


def _privileged() -> bool:
    try:
        status = _STATUS.read_text(errors="replace")
    except OSError:  # not Linux
        return os.geteuid() == 0
    (capabilities,) = (int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:"))
    return capabilities & _GIVING == _GIVING
