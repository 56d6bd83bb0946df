"""The changes of a disk in memory that a power cut may lose: its inodes, and the journal of their changes.

There are two disks. A running program uses the *live* disk. The *durable* disk must survive a crash. Between them is
the journal: every change, in order, each with the inodes whose sync it still waits for. After a power cut, the disk is
the durable one plus any part of the journal, replayed in order:

    change                         waits for
    bytes, length, mtime, owner    sync of the file
    creation, link, unlink, …      sync_directory of the folder that holds the name
    rename                         sync_directory of both folders

A change that waits for no sync always survives. For each other change, the caller of `crash` chooses how much survives:

* A name operation survives or is lost as a whole. A rename is one operation, as on ext4: no crash leaves half of it.
  But it may be lost until both folders are synced, and a later use of the same name then replaces it.
* Any subset may be lost. A later rename may survive without an earlier one, although journals that keep the order never
  allow that; and a file's sync promises its bytes, not its name.
* A write may survive up to any byte; its end without its start is not modelled. If it extends the file, the new length
  is a separate change: length without bytes reads as zeros, and so does the hole before a later write.
* The names of a file are independent: each is created, moved and removed by separate changes. A rename that survives
  moves the name from wherever the crash left it, or creates it if it did not survive. A file without a name is lost.
"""

from __future__ import annotations

import os
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from cordwood.common.types import override

#: A name in a directory: the directory's inode number, and the name.
Place = tuple[int, str]


class Name(NamedTuple):
    """One name of an inode. A rename keeps its number; the first name is number 0, and a directory has only that."""

    inode: int
    number: int


@dataclass(slots=True, weakref_slot=True)
class Inode:
    """A file or a directory.

    Attributes:
        places: current place of each name, by its number.
        size_bytes: size of the file.
        written: the file's bytes up to the last written one. The zeros behind it are not stored: a live log has
            indexes of ten megabytes with a few entries.
    """

    is_directory: bool
    mode: int
    mtime_ns: int
    uid: int = field(default_factory=os.geteuid)
    gid: int = field(default_factory=os.getegid)
    places: dict[int, Place | None] = field(default_factory=dict)
    size_bytes: int = 0
    written: bytearray = field(default_factory=bytearray)
    entries: dict[str, Name] = field(default_factory=dict)

    @property
    def name(self) -> str | None:
        """The first of its names, or None."""
        return next((place[1] for place in self.places.values() if place is not None), None)

    def copy(self) -> Inode:
        """Return an independent copy."""
        return replace(self, places=dict(self.places), written=self.written[:], entries=dict(self.entries))

    def read(self, position: int, size_bytes: int) -> bytes:
        """Return up to `size_bytes` from a position; fewer at the end of the file."""
        end = min(position + size_bytes, self.size_bytes)
        found = bytes(self.written[position:end])
        return found + bytes(end - position - len(found)) if len(found) < end - position else found

    def write(self, position: int, data: bytes) -> None:
        """Replace or append bytes; a gap before them is filled with zeros."""
        self.written.extend(bytes(max(0, position - len(self.written))))
        self.written[position : position + len(data)] = data
        self.size_bytes = max(self.size_bytes, position + len(data))

    def resize(self, size_bytes: int) -> None:
        """Truncate the file, or extend it with zeros."""
        del self.written[size_bytes:]
        self.size_bytes = size_bytes


#: A disk: inodes by number. An unreachable inode is kept, as it may still be open.
Disk = MutableMapping[int, Inode]


@dataclass(slots=True, kw_only=True)
class Change(ABC):
    """One change in the journal.

    Attributes:
        text: the operation that made it, as in `MemoryFileSystem.operations`.
        waits_for: inodes that must be synced before the change is sure to survive.
    """

    text: str
    inode: int
    mtime_ns: int
    waits_for: set[int]

    @property
    def parts(self) -> int:
        """Number of parts that can survive separately: the bytes of a write, otherwise 1."""
        return 1

    @abstractmethod
    def apply(self, disk: Disk, parts: int) -> None:
        """Apply the first `parts` parts, at least one."""


@dataclass(slots=True, kw_only=True)
class Write(Change):
    """Writes bytes; each byte is a part."""

    position: int
    data: bytes

    @property
    @override
    def parts(self) -> int:
        return len(self.data)

    @override
    def apply(self, disk: Disk, parts: int) -> None:
        disk[self.inode].write(self.position, self.data[:parts])
        disk[self.inode].mtime_ns = self.mtime_ns


@dataclass(slots=True, kw_only=True)
class Resize(Change):
    """Sets the length of a file."""

    size_bytes: int

    @override
    def apply(self, disk: Disk, parts: int) -> None:
        disk[self.inode].resize(self.size_bytes)
        disk[self.inode].mtime_ns = self.mtime_ns


@dataclass(slots=True, kw_only=True)
class Set(Change):
    """Sets fields of an inode: mode, owner, group or mtime."""

    fields: dict[str, int]

    @override
    def apply(self, disk: Disk, parts: int) -> None:
        for name, value in self.fields.items():
            setattr(disk[self.inode], name, value)


@dataclass(slots=True, kw_only=True)
class Move(Change):
    """Moves a name to another place; None is no place. Creation, link, rename and removal are all such moves."""

    number: int
    target: Place | None

    @override
    def apply(self, disk: Disk, parts: int) -> None:
        places = disk[self.inode].places
        if (source := places.get(self.number)) is not None:
            directory, name = source
            del disk[directory].entries[name]
            disk[directory].mtime_ns = self.mtime_ns
        if self.target is not None:
            directory, name = self.target
            if (replaced := disk[directory].entries.get(name)) is not None:
                disk[replaced.inode].places[replaced.number] = None
            disk[directory].entries[name] = Name(self.inode, self.number)
            disk[directory].mtime_ns = self.mtime_ns
        places[self.number] = self.target


def keep_all(change: Change) -> int:
    """Keep every change; an argument for `crash`."""
    return change.parts


def lose_all(change: Change) -> int:
    """Keep only synced changes; an argument for `crash`."""
    return 0


def at_random(source: random.Random) -> Callable[[Change], int]:
    """Return an argument for `crash`: `source` decides at random whether each change is kept, lost or torn."""
    return lambda change: source.choice((0, change.parts, source.randint(0, change.parts)))
