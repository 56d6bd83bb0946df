"""The lock of a log directory, against other processes: real ones, as POSIX record locks mean nothing within one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import cordwood
from cordwood.common.errors import LockedError, RequestError
from cordwood.fs.base import DirectoryLock, LocalFileSystem
from cordwood.fs.locks import check_local, directories_to_lock, lock_holder, network_file_system
from cordwood.fs.posix import PosixFileSystem
from cordwood.fs.wrapped import WrappedFileSystem
from cordwood.testing.memory import MemoryFileSystem
from tests.command import run
from tests.fixtures import copy_of, fixture
from tests.fs.lock_holders import CHURN, HOLD, HOLD_AS_WE_DO, HOLD_WITH_AN_ODD_NAME, is_held, on_linux, open_up, other
from tests.kafka_tools import Broker, KafkaToolError

pytestmark = pytest.mark.more

FS = PosixFileSystem()
NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be someone else")


# ---- who gets it -----------------------------------------------------------------------------------------------------


def test_a_lock_keeps_other_processes_out_until_it_is_released_and_its_file_stays(tmp_path: Path) -> None:
    lock = FS.lock_directory(str(tmp_path))
    assert is_held(tmp_path)
    lock.confirm()
    assert is_held(tmp_path)
    lock.release()
    assert not is_held(tmp_path)
    lock.release()
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]
    with FS.lock_directory(str(tmp_path)):
        assert is_held(tmp_path)
    assert not is_held(tmp_path)


@on_linux
@pytest.mark.parametrize("program", [HOLD, HOLD_AS_WE_DO], ids=["as a broker does", "as we do"])
def test_a_lock_that_another_process_holds_is_refused_with_its_name(tmp_path: Path, program: str) -> None:
    with other(program, tmp_path / ".lock" if program is HOLD else tmp_path) as holder:
        with pytest.raises(LockedError, match=rf"{tmp_path} is held by .* \(pid {holder.pid}\), so .*Stop that first"):
            FS.lock_directory(str(tmp_path))
        assert is_held(tmp_path), "the attempt did not take it away"
    deadline = time.monotonic() + 10
    while is_held(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.01)
    FS.lock_directory(str(tmp_path)).release()


@on_linux
def test_a_holder_may_have_any_bytes_in_its_name(tmp_path: Path) -> None:
    refused = pytest.raises(LockedError, match="is held by caf\N{REPLACEMENT CHARACTER} ")
    with other(HOLD_WITH_AN_ODD_NAME, tmp_path / ".lock"), refused:
        FS.lock_directory(str(tmp_path))


def test_a_second_attempt_in_the_same_process_is_refused_and_does_not_drop_the_lock(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "spelled").symlink_to("logs")
    with FS.lock_directory(str(tmp_path / "spelled")) as lock:
        assert lock.directory == str(tmp_path / "logs")
        for path in ("logs", "logs/", "spelled", "spelled/../logs"):
            with pytest.raises(LockedError, match="held by this process already"):
                FS.lock_directory(f"{tmp_path}/{path}")
        assert is_held(tmp_path / "logs")


def test_directories_that_share_a_lock_file_are_one_lock(tmp_path: Path) -> None:
    # As `cp -al` makes them. Trying the second would open the file of the first, and closing it would drop the lock.
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "a/.lock").touch()
    os.link(tmp_path / "a/.lock", tmp_path / "b/.lock")
    with FS.lock_directory(str(tmp_path / "a")):
        with pytest.raises(LockedError, match="this process"):
            FS.lock_directory(str(tmp_path / "b"))
        assert is_held(tmp_path / "a")


def test_only_one_of_many_threads_gets_it(tmp_path: Path) -> None:
    taken: list[DirectoryLock] = []
    refused: list[None] = []
    start = threading.Barrier(8)

    def attempt() -> None:
        start.wait()
        try:
            taken.append(FS.lock_directory(str(tmp_path)))
        except LockedError:
            refused.append(None)

    threads = [threading.Thread(target=attempt) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(taken), len(refused)) == (1, 7)
    assert is_held(tmp_path)
    taken[0].release()


# ---- Lock files that are created and deleted -------------------------------------------------------------------------


def test_the_lock_is_on_the_file_that_is_there_however_often_it_is_made_anew(tmp_path: Path) -> None:
    with other(CHURN, tmp_path / ".lock") as churn:
        taken = 0
        deadline = time.monotonic() + 5
        while taken < 20 and time.monotonic() < deadline:
            with contextlib.suppress(LockedError), FS.lock_directory(str(tmp_path)) as lock:
                taken += 1
                if taken == 20:
                    churn.kill()
                    churn.wait()
                    lock.confirm()
                    assert is_held(tmp_path)
        assert taken == 20, "it is to be had between two unlinks"


def test_lock_file_replaced_between_open_and_lock_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced: list[int] = []

    def replace_first(descriptor: int, how: int) -> None:
        if not replaced:
            replaced.append((tmp_path / ".lock").stat().st_ino)
            (tmp_path / "new").touch()
            os.replace(tmp_path / "new", tmp_path / ".lock")
        lockf(descriptor, how)

    lockf = fcntl.lockf
    monkeypatch.setattr(fcntl, "lockf", replace_first)
    with FS.lock_directory(str(tmp_path)):
        assert replaced and (tmp_path / ".lock").stat().st_ino != replaced[0]
        assert is_held(tmp_path)


def test_what_a_stopping_broker_unlinks_under_us_is_locked_again_by_confirm(tmp_path: Path) -> None:
    # Kafka's FileLock.destroy unlocks first and unlinks the file then; we may lock it in between.
    with FS.lock_directory(str(tmp_path)) as lock:
        (tmp_path / ".lock").unlink()
        lock.confirm()
        assert is_held(tmp_path)
        (tmp_path / ".lock").unlink()
        with other(HOLD, tmp_path / ".lock") as faster, pytest.raises(LockedError, match=f"pid {faster.pid}"):
            lock.confirm()


def test_a_lock_file_that_never_stays_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def remove_first(descriptor: int, how: int) -> None:
        (tmp_path / ".lock").unlink()
        lockf(descriptor, how)

    lockf = fcntl.lockf
    monkeypatch.setattr(fcntl, "lockf", remove_first)
    before = len(os.listdir("/dev/fd"))
    with pytest.raises(LockedError, match="made again all the time"):
        FS.lock_directory(str(tmp_path))
    assert len(os.listdir("/dev/fd")) == before


# ---- this process and its children -----------------------------------------------------------------------------------


def test_reading_verbs_do_not_drop_a_lock_that_their_process_holds(tmp_path: Path) -> None:
    directory = copy_of(fixture("kraft-jbod-before") / "a", tmp_path / "a")
    partition = str(sorted(directory.glob("disk-*"))[0])
    with FS.lock_directory(str(directory)):
        for verb in ("ls", "dump", "check", "plan"):
            for path in (str(directory), partition):
                done = run(verb, path, "--json", exits=None)
                # The broker of one disk of two would not start.
                expected = 1 if (verb, path) == ("check", str(directory)) else 0
                assert done.exit_code == expected, f"{verb}: {done.output[-500:]}"
                assert is_held(directory), f"{verb} {path} dropped the lock"
        cordwood.ls(str(directory))
        list(cordwood.check(str(directory)))
        list(cordwood.open_log(partition).records(isolation=None))
        assert is_held(directory)
        for verb in ("dump", "check"):
            run(verb, directory / ".lock", exits=None)
            assert is_held(directory), f"{verb} of the lock file dropped the lock"


def test_children_do_not_hold_it(tmp_path: Path) -> None:
    lock = FS.lock_directory(str(tmp_path))
    with subprocess.Popen(["sleep", "60"], close_fds=False) as child:
        forked = os.fork()
        if forked == 0:
            time.sleep(60)
            os._exit(0)
        assert is_held(tmp_path)
        lock.release()
        assert not is_held(tmp_path)
        child.kill()
        os.kill(forked, 9)
        os.waitpid(forked, 0)


def test_a_forked_child_knows_that_the_lock_is_not_its_own_and_does_not_drop_it(tmp_path: Path) -> None:
    with FS.lock_directory(str(tmp_path)) as lock:
        child = os.fork()
        if child == 0:
            try:
                FS.lock_directory(str(tmp_path))
            except LockedError as error:
                lock.release()
                os._exit(1 if "this process" in str(error) else 0)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert is_held(tmp_path)


# ---- whose file it is ------------------------------------------------------------------------------------------------


def as_nobody(directory: Path) -> tuple[int, str]:
    """Lock a directory as a user without rights; gives the exit code, 0 or 7, and the message of a refusal."""
    program = f"""
import os, sys
from cordwood.common.errors import RequestError
from cordwood.fs.posix import PosixFileSystem
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
try:
    PosixFileSystem().lock_directory(sys.argv[1])
except RequestError as error:
    print(error)
    sys.exit(7)
"""
    done = subprocess.run([sys.executable, "-c", program, directory], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 7), done.stderr
    return done.returncode, done.stdout


@pytest.fixture
def open_to_all(tmp_path: Path) -> Path:
    """A directory that others than root reach."""
    open_up(tmp_path)
    return tmp_path


@as_root
def test_a_new_lock_file_belongs_to_the_owner_of_the_directory(open_to_all: Path) -> None:
    os.chown(open_to_all, NOBODY, 1234)
    FS.lock_directory(str(open_to_all)).release()
    made = (open_to_all / ".lock").stat()
    assert (made.st_uid, made.st_gid, stat.S_IMODE(made.st_mode) & 0o600) == (NOBODY, 1234, 0o600)
    assert as_nobody(open_to_all) == (0, "")
    (open_to_all / ".lock").unlink()
    assert as_nobody(open_to_all) == (0, "")


@as_root
def test_a_lock_file_that_would_keep_the_owner_out_is_not_made(open_to_all: Path) -> None:
    open_to_all.chmod(0o777)
    code, message = as_nobody(open_to_all)
    assert code == 7
    assert "is missing" in message and "Run this as root (uid 0)" in message
    assert not (open_to_all / ".lock").exists()


@as_root
def test_another_users_lock_file_is_refused_with_whom_to_run_as(open_to_all: Path) -> None:
    (open_to_all / ".lock").touch(mode=0o644)
    code, message = as_nobody(open_to_all)
    assert code == 7
    assert "may not write to it" in message and "Run this as root (uid 0)" in message
    assert f"uid {NOBODY}" in message


@as_root
def test_a_read_only_file_system_cannot_be_locked(tmp_path: Path) -> None:
    if subprocess.run(["mount", "--bind", tmp_path, tmp_path], capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", tmp_path], check=True)
        with pytest.raises(RequestError, match="read-only"):
            FS.lock_directory(str(tmp_path))
    finally:
        subprocess.run(["umount", tmp_path], check=True)


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_what_is_no_file_is_no_lock(tmp_path: Path, make: object) -> None:
    assert callable(make)
    make(tmp_path / ".lock")
    with pytest.raises(RequestError, match="not a regular file"):
        FS.lock_directory(str(tmp_path))


# ---- which directory -------------------------------------------------------------------------------------------------


def test_a_partitions_lock_is_its_parents_and_that_of_where_it_really_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "b/t-0", "a/t-1"):
        (tmp_path / name).mkdir()
    (tmp_path / "a/t-0").symlink_to(tmp_path / "b/t-0")
    (tmp_path / "spelled").symlink_to("a")
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    assert directories_to_lock(FS, [f"{a}/t-1"]) == [a]
    assert directories_to_lock(FS, [f"{tmp_path}/spelled/t-1/", f"{a}/t-1"]) == [a]
    assert directories_to_lock(FS, [f"{a}/t-1", f"{a}/t-0"]) == [a, b]
    monkeypatch.chdir(a)
    assert directories_to_lock(FS, ["t-1"]) == [a]


@pytest.mark.parametrize("fs", [MemoryFileSystem(lambda: 0), WrappedFileSystem(MemoryFileSystem(lambda: 0))])
def test_in_memory_a_lock_is_held_once_and_ends_with_the_power(fs: LocalFileSystem) -> None:
    fs.make_directory("logs")
    lock = fs.lock_directory("logs")
    with pytest.raises(LockedError):
        fs.lock_directory("/logs/")
    lock.confirm()
    lock.release()
    with fs.lock_directory("logs"):
        if isinstance(fs, MemoryFileSystem):
            fs.sync_directory("/")
            with fs.crash(lambda change: 0).lock_directory("logs"):
                pass


# ---- network file systems --------------------------------------------------------------------------------------------


@on_linux
@pytest.mark.parametrize(
    ("kind", "network"),
    [
        ("nfs4", True),
        ("cifs", True),
        ("9p", True),
        ("fuse.sshfs", True),
        ("fuse.fuse-overlayfs", False),
        ("ext4", False),
        ("xfs", False),
        ("overlay", False),
        ("tmpfs", False),
        ("fuseblk", False),
    ],
)
def test_what_is_shared_by_hosts_is_known_by_the_kind_of_its_file_system(
    tmp_path: Path, kind: str, network: bool
) -> None:
    assert network_file_system(str(tmp_path)) is None
    mounts = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, source = line.partition(" - ")
        mounts.append(f"{before} - {kind} {source.split(maxsplit=1)[1]}")
    (tmp_path / "mountinfo").write_text("\n".join(mounts))
    assert network_file_system(str(tmp_path), tmp_path / "mountinfo") == (kind if network else None)


def test_a_network_file_system_is_refused_unless_no_broker_is_elsewhere() -> None:
    fs = MemoryFileSystem(lambda: 0)
    check_local(fs, "/logs", no_broker_elsewhere=False)
    fs.network = "nfs4"
    check_local(fs, "/logs", no_broker_elsewhere=True)
    with pytest.raises(RequestError, match=r"\(nfs4\).*--no-broker-elsewhere"):
        check_local(fs, "/logs", no_broker_elsewhere=False)


@on_linux
def test_the_mount_is_the_one_that_holds_the_path(tmp_path: Path) -> None:
    mounts = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, source = line.partition(" - ")
        kind = "nfs" if before.split()[4] == "/proc" else "ext4"
        mounts.append(f"{before} - {kind} {source.split(maxsplit=1)[1]}")
    (tmp_path / "mountinfo").write_text("\n".join(mounts))
    (tmp_path / "symlink").symlink_to("/proc")
    for path, found in (("/proc", "nfs"), (str(tmp_path / "symlink"), "nfs"), (str(tmp_path), None)):
        assert network_file_system(path, tmp_path / "mountinfo") == found


@on_linux
def test_mounts_may_have_any_bytes_in_their_names(tmp_path: Path) -> None:
    odd = [b"/disks/caf\xe9", b"/disks/a\rb", "/disks/a\u2028b".encode(), "/disks/a\x85".encode()]
    lines = [b"1 1 0:1 / %b rw - ext4 %b rw" % (name, name) for name in odd]
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        before, _, source = line.partition(b" - ")
        lines.append(b"%b - nfs4 %b" % (before, source.partition(b" ")[2]))
    (tmp_path / "mountinfo").write_bytes(b"\n".join(lines) + b"\n")
    assert network_file_system(str(tmp_path), tmp_path / "mountinfo") == "nfs4"


# ---- a real broker ---------------------------------------------------------------------------------------------------


def test_a_running_broker_keeps_us_out_and_we_keep_a_broker_out(kafka_broker: Broker, tmp_path: Path) -> None:
    data = tmp_path / "data"
    kafka_broker.start(data)
    pid = int(kafka_broker("status", data).split()[1])
    with pytest.raises(LockedError, match=rf"held by java \(pid {pid}\)"):
        FS.lock_directory(str(data))
    holder = lock_holder(str(data))
    assert holder is not None and holder.pid == pid, "our attempt dropped the broker's lock"
    kafka_broker("stop", data)
    with FS.lock_directory(str(data)):
        with pytest.raises(KafkaToolError, match="ended with status 1"):
            kafka_broker("start", data)
        assert f"Failed to acquire lock on file .lock in {data}" in kafka_broker("logs", data)
        assert is_held(data)
    kafka_broker.start(data)
    assert kafka_broker("status", data).startswith("running")


def test_we_get_the_lock_of_a_broker_that_stops_only_when_it_has_ended(kafka_broker: Broker, tmp_path: Path) -> None:
    data = tmp_path / "data"
    kafka_broker.start(data)
    taken = None
    stop = threading.Thread(target=kafka_broker, args=("stop", data))
    stop.start()
    deadline = time.monotonic() + 60
    while taken is None and time.monotonic() < deadline:
        with contextlib.suppress(LockedError):
            taken = FS.lock_directory(str(data))
    stop.join()
    assert taken is not None
    taken.confirm()
    assert is_held(data)
    assert (data / ".kafka_cleanshutdown").exists()
    taken.release()
