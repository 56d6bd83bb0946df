"""Checks that a broker may read and write its files.

A broker is assumed to run as the owner of its log directory. This process's own permissions prove nothing, because
often root runs a check.
"""

from __future__ import annotations

import posixpath

from cordwood.fs.base import FileInfo, Store
from cordwood.storage.check.findings import Findings, Kind
from cordwood.storage.formats import filenames
from cordwood.storage.formats.filenames import FileKind, parse_file
from cordwood.storage.log.view import LogView
from cordwood.storage.node.directory import LogDirectory

_READ, _WRITE, _SEARCH = 4, 2, 1
_WORDS = {_READ: "read", _WRITE: "write", _SEARCH: "enter"}


def check_directory_files(fs: Store, directory: LogDirectory, findings: Findings, *, holds_metadata: bool) -> None:
    """Report a log directory, or files in it, that its owner may not read or write.

    Args:
        holds_metadata: whether the node's metadata log is, or may be, in this directory.
    """
    try:
        owner = fs.stat(directory.path)
    except OSError:
        return
    if missing := _may_not(owner, owner, _READ | _WRITE | _SEARCH):
        findings.add(Kind.NOT_WRITABLE, directory.path, f"its owner may not {missing} in it")
    read: tuple[str, ...] = (filenames.META_PROPERTIES, *filenames.OFFSET_CHECKPOINTS)
    if holds_metadata:
        read = (*read, filenames.BOOTSTRAP_CHECKPOINT)
    for name in (filenames.LOCK, *read):
        info, wanted = directory.info(name), _READ | _WRITE if name == filenames.LOCK else _READ
        if info is not None and (missing := _may_not(owner, info, wanted)):
            what = f"the owner of the log directory may not {missing} it"
            findings.add(Kind.NOT_WRITABLE, f"{directory.path}/{name}", what)


def check_partition_files(fs: Store, path: str, log: LogView, findings: Findings) -> None:
    """Report the first file of a partition that its broker may not read or write.

    One such file takes the whole log directory offline, so further ones do not matter.
    """
    owner, here = fs.stat(posixpath.dirname(path) or "."), fs.stat(path)
    if missing := _may_not(owner, here, _READ | _WRITE | _SEARCH):
        findings.add(Kind.NOT_WRITABLE, path, f"the owner of the log directory may not {missing} in it")
        return
    for info in log.entries:
        file = None if info.is_directory else parse_file(info.name)
        opened = file is not None and file.kind in (FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX)
        if not info.is_directory and (missing := _may_not(owner, info, _READ | _WRITE if opened else _READ)):
            what = f"the owner of the log directory may not {missing} it"
            findings.add(Kind.NOT_WRITABLE, f"{path}/{info.name}", what)
            return


def _may_not(owner: FileInfo, info: FileInfo, wanted: int) -> str:
    """Return the first operation (read, write or enter) that a broker may not perform; empty if it may perform all.

    Args:
        owner: entry of the log directory. The broker runs as the user and group in this entry.
        info: entry of the file or directory to check.
        wanted: bit mask of _READ, _WRITE and _SEARCH.
    """
    if not info.inode:
        return ""  # a store without permissions
    shift = 6 if info.uid == owner.uid else 3 if info.gid == owner.gid else 0
    missing = wanted & ~(info.mode >> shift)
    return next((word for bit, word in _WORDS.items() if bit & missing), "")
