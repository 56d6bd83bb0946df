"""Find the holder of a log directory's lock, and lock it.

A broker holds a POSIX record lock on `.lock` in its log directory, and so do we while we change the directory. Such a
lock has three traps:

* A process loses it as soon as it closes *any* descriptor of that file. So only this module opens the file, and never
  twice: a table lists the locks of this process, and `cordwood.fs.base.refuse_lock_file` stops all other code. We do
  not open the file to find the holder either: Linux lists all locks in `/proc/locks`, by device and inode. On other
  systems the holder is unknown.
* It belongs to a file, not to a name. Since 4.0, a broker that stops releases the lock and then unlinks `.lock`. So
  after locking the file we check that the name still refers to it, and check again later (`confirm`). We never unlink
  the file: another process may have it open, about to lock it.
* It covers this machine only. On a network file system it neither shows nor excludes a broker on another host.
"""

from __future__ import annotations

import errno
import fcntl
import os
import posixpath
import stat
import threading
from collections.abc import Iterable
from pathlib import Path

from cordwood.common.errors import LockedError, RequestError
from cordwood.common.types import override
from cordwood.fs.base import DirectoryLock, LocalFileSystem, LockHolder
from cordwood.fs.users import user_name

_LOCKS = Path("/proc/locks")
_MOUNTS = Path("/proc/self/mountinfo")
_NAME = ".lock"
#: Maximum number of retries if `.lock` was replaced by another file before we locked it.
_ATTEMPTS = 1000
#: File systems whose files another host may have open. Most FUSE file systems (`fuse.sshfs`) count as such, too.
_NETWORK = frozenset(
    # In this order: shared disks; file servers; folders that a host shares with its guests.
    {"gfs2", "gpfs", "lustre", "ocfs2"}
    | {"afs", "beegfs", "ceph", "cifs", "fuse", "ncpfs", "nfs", "nfs4", "orangefs", "pvfs2", "smb3", "smbfs"}
    | {"9p", "vboxsf", "virtiofs"}
)
_LOCAL_FUSE = frozenset(["fuse.fuse-overlayfs"])

#: Device and inode.
_Identity = tuple[int, int]


# ---- the holder ------------------------------------------------------------------------------------------------------


def lock_holder(directory: str) -> LockHolder | None:
    """Return the process that holds the lock of a log directory; see `Store.lock_holder`."""
    try:
        return _holder_of(*_identity(os.stat(f"{directory}/{_NAME}")))
    except OSError:
        return None


def _holder_of(device: int, inode: int) -> LockHolder | None:
    try:
        lines = _LOCKS.read_text().splitlines()
    except OSError:
        return None
    wanted = f"{os.major(device):02x}:{os.minor(device):02x}:{inode}"
    for line in lines:
        # 1: POSIX  ADVISORY  WRITE 4242 fd:01:131077 0 EOF
        fields = line.split()
        if len(fields) >= 6 and fields[5] == wanted and fields[1] != "->":
            pid = int(fields[4])
            return LockHolder(pid, _program(pid))
    return None


def _program(pid: int) -> str:
    try:
        return _told(Path(f"/proc/{pid}/comm")).strip()
    except OSError:
        return ""


def _told(file: Path) -> str:
    """Read a file of /proc, whose names of programs and mounts may contain any bytes."""
    return file.read_bytes().decode(errors="replace")


# ---- locking ---------------------------------------------------------------------------------------------------------


class RecordLock(DirectoryLock):
    """The lock of a log directory, held by this process until `release`. Child processes do not hold it."""

    def __init__(self, directory: str, identity: _Identity, descriptor: int) -> None:
        self.directory = directory
        self._place = identity
        self._descriptor = descriptor

    @override
    def confirm(self) -> None:
        """Make sure that the lock is on the file that others will try to lock; if `.lock` is a new file, lock that.

        Raises:
            LockedError: another process has locked the new file.
        """
        with _table:
            assert self in _held, "it was released"
            if not _leads_to(f"{self.directory}/{_NAME}", self._descriptor):
                newer = _acquire(self.directory)
                os.close(self._descriptor)
                self._descriptor = newer

    @override
    def release(self) -> None:
        """Release the lock, and leave the file in place. Releasing again does nothing."""
        with _table:
            if self in _held:
                _held.remove(self)
                os.close(self._descriptor)

    def _is(self, directory: _Identity, file: _Identity | None) -> bool:
        return directory == self._place or file == _identity(os.fstat(self._descriptor))


#: The locks that this process holds; read and changed only while `_table` is held.
_held: set[RecordLock] = set()
_table = threading.Lock()


def _forget() -> None:
    _held.clear()
    _table.release()


# A forked child inherits the descriptors, but not the locks.
os.register_at_fork(before=_table.acquire, after_in_parent=_table.release, after_in_child=_forget)


def record_lock(path: str) -> RecordLock:
    """Lock a log directory of this machine, as a broker does; see `LocalFileSystem.lock_directory`.

    Two spellings of a path are the same lock, and so are two directories whose `.lock` is one linked file.
    """
    directory = os.path.realpath(path)
    identity = _identity(os.stat(directory))
    with _table:
        try:
            file: _Identity | None = _identity(os.stat(f"{directory}/{_NAME}"))
        except OSError:
            file = None
        if any(lock._is(identity, file) for lock in _held):
            raise LockedError(
                f"{directory} is held by this process already, which is changing it. Wait until that has ended"
            )
        lock = RecordLock(directory, identity, _acquire(directory))
        _held.add(lock)
    return lock


def _acquire(directory: str) -> int:
    """Lock the file of a directory, and return its descriptor."""
    path = f"{directory}/{_NAME}"
    for _ in range(_ATTEMPTS):
        if (descriptor := _open(path, os.stat(directory))) is None:
            continue
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise RequestError(f"{path} is not a regular file, so no broker could lock it. Remove it")
            # Lock the whole file, also beyond its end, as Java's FileChannel.lock does.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _leads_to(path, descriptor):
                return descriptor
        except OSError as error:
            try:
                raise _why_not(directory, descriptor, error) from error
            finally:
                os.close(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    raise LockedError(f"{path} is removed and made again all the time. Find out by whom, and stop that first")


def _open(path: str, directory: os.stat_result) -> int | None:
    """Open the file, or create it for the directory's owner; return None if another process just created it (retry)."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        pass
    except OSError as error:
        _explain(path, error)
        raise
    owner = directory.st_uid
    if os.geteuid() not in (0, owner):
        raise RequestError(
            f"{path} is missing; one of {user_name(os.geteuid())} would keep a broker out that runs as the owner of "
            f"the directory. Run this as {user_name(owner)}"
        )
    try:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return None
    except OSError as error:
        _explain(path, error)
        raise
    try:
        os.fchown(descriptor, owner, directory.st_gid)
    except OSError as error:
        # chown fails for root on a network share that maps root to nobody, and for an owner outside the group. Only a
        # wrong owner matters.
        if os.fstat(descriptor).st_uid != owner:
            os.close(descriptor)
            raise RequestError(
                f"{path} was made, but cannot be given to {user_name(owner)} ({error.strerror}), so it would keep a "
                f"broker out. Remove it, and run this as {user_name(owner)}"
            ) from error
    return descriptor


def _explain(path: str, error: OSError) -> None:
    """Raise RequestError for errors of opening the file that the user can fix."""
    if error.errno == errno.EROFS:
        what = f"{path} cannot be locked: the file system is read-only, so nothing can be changed there"
        raise RequestError(what) from error
    if error.errno in (errno.EACCES, errno.EPERM):
        try:
            owner = os.stat(path).st_uid
        except OSError:
            owner = os.stat(posixpath.dirname(path)).st_uid
        what = f"{path} cannot be locked: {user_name(os.geteuid())} may not write to it. Run this as {user_name(owner)}"
        raise RequestError(what) from error
    if error.errno in (errno.EISDIR, errno.ENXIO, errno.ELOOP):
        what = f"{path} is not a regular file ({error.strerror}), so no broker could lock it. Remove it"
        raise RequestError(what) from error


def _why_not(directory: str, descriptor: int, error: OSError) -> RequestError:
    if error.errno not in (errno.EAGAIN, errno.EACCES):
        return RequestError(
            f"{directory}/{_NAME} cannot be locked: {error.strerror}. Without locks nothing is changed there"
        )
    holder = _holder_of(*_identity(os.fstat(descriptor)))
    return LockedError(
        f"{directory} is held by {holder or 'another process'}, so nothing in it may be changed. "
        "Stop that first, or clean a snapshot of the disk"
    )


def _leads_to(path: str, descriptor: int) -> bool:
    try:
        return _identity(os.stat(path)) == _identity(os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _identity(status: os.stat_result) -> _Identity:
    return status.st_dev, status.st_ino


def directories_to_lock(fs: LocalFileSystem, partitions: Iterable[str]) -> list[str]:
    """Return the log directories whose locks protect some partitions: real paths, sorted, so that the order is fixed.

    A partition that is a symlink has two, as a broker on either directory would use it.
    """
    paths = [path.rstrip("/") or "/" for path in partitions]
    parents = {fs.real_path(posixpath.dirname(path) or ".") for path in paths}
    return sorted(parents | {posixpath.dirname(fs.real_path(path)) for path in paths})


# ---- other machines --------------------------------------------------------------------------------------------------


def network_file_system(path: str, mounts: Path = _MOUNTS) -> str | None:
    """Return the kind of network file system (`nfs4`, `cifs`, `fuse.sshfs`) of a path; None if local or unknown."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except AttributeError:  # not Linux
        return None
    try:
        about = Path(f"/proc/self/fdinfo/{descriptor}").read_text()
        mounted = _told(mounts)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    mount = next((line.split()[1] for line in about.splitlines() if line.startswith("mnt_id:")), "")
    # Do not use Python's splitlines and split: the kernel escapes only newlines, blanks and tabs in a path.
    for line in mounted.split("\n"):
        # 36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
        fields, _, source = line.partition(" - ")
        if fields.partition(" ")[0] == mount:
            kind = source.partition(" ")[0]
            network = kind in _NETWORK or (kind.startswith("fuse.") and kind not in _LOCAL_FUSE)
            return kind if network else None
    return None


def check_local(fs: LocalFileSystem, path: str, *, no_broker_elsewhere: bool) -> None:
    """Raise RequestError if a broker on another host may be using a directory.

    Raises:
        RequestError: the path is on a network file system, and `no_broker_elsewhere` is not set.
    """
    kind = None if no_broker_elsewhere else fs.network_kind(path)
    if kind is not None:
        raise RequestError(
            f"{path} is on a network file system ({kind}), and locks do not show a broker on another host. "
            "Make sure that none uses it, and give --no-broker-elsewhere"
        )
