"""Temporary folders that a kill leaves are removed by the next process that makes one, and no others."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cordwood.fs import temporary
from cordwood.fs.posix import PosixFileSystem
from cordwood.fs.workspace import temporary_directory
from tests import knobs
from tests.command import run_alone, start
from tests.fixtures import fixture

pytestmark = pytest.mark.more

FS = PosixFileSystem()
PREFIX = "cordwood-test-"
NOBODY = 65534
HOLD = f"""
import sys, time
from cordwood.fs.posix import PosixFileSystem
print(PosixFileSystem().make_temporary_directory("{PREFIX}"), flush=True)
time.sleep(600)
"""
#: Makes, uses and removes folders; before it is locked, each of them looks abandoned.
CHURN = f"""
import sys
from pathlib import Path
from cordwood.fs.workspace import temporary_directory
from cordwood.fs.posix import PosixFileSystem
for number in range(int(sys.argv[1])):
    with temporary_directory(PosixFileSystem(), "{PREFIX}") as folder:
        for name in "abc":
            (Path(folder) / name).write_text(name)
        assert sorted(path.name for path in Path(folder).iterdir()) == ["a", "b", "c"], number
"""


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files of this process and its children."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


@contextmanager
def holder() -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another process that holds a folder."""
    with subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


def test_a_folder_whose_process_was_killed_is_removed_by_the_next_one(root: Path) -> None:
    with holder() as (process, left):
        (left / "file").write_bytes(b"much")
        with temporary_directory(FS, PREFIX) as mine:
            assert sorted(root.iterdir()) == sorted([left, Path(mine)]), "it is in use"
        process.kill()
        process.wait()
        assert list(left.iterdir()), "a kill leaves it"
        with temporary_directory(FS, PREFIX) as mine:
            assert list(root.iterdir()) == [Path(mine)]
    assert not list(root.iterdir())


def test_folders_of_one_process_are_all_in_use_until_they_are_removed(root: Path) -> None:
    with temporary_directory(FS, PREFIX) as first, temporary_directory(FS, PREFIX) as second:
        temporary.remove_abandoned(PREFIX)
        assert sorted(root.iterdir()) == sorted([Path(first), Path(second)])


def test_what_may_be_of_another_program_user_or_version_stays(root: Path) -> None:
    target = root / "elsewhere"
    target.mkdir()
    (target / "file").touch()
    (root / f"{PREFIX}link.held").symlink_to(target)
    (root / f"{PREFIX}of-an-older-version").mkdir()
    (root / "other-prefix.held").mkdir()
    (root / f"{PREFIX}file.held").touch()
    if os.geteuid() == 0:
        (root / f"{PREFIX}of-another-user.held").mkdir()
        os.chown(root / f"{PREFIX}of-another-user.held", NOBODY, NOBODY)
    before = sorted(root.rglob("*"))
    (root / f"{PREFIX}mine.held").mkdir()
    temporary.remove_abandoned(PREFIX)
    assert sorted(root.rglob("*")) == before


def test_nothing_is_removed_from_a_network_disk(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / f"{PREFIX}mine.held").mkdir()
    monkeypatch.setattr(temporary, "network_file_system", lambda _: "nfs4")
    temporary.remove_abandoned(PREFIX)
    assert len(list(root.iterdir())) == 1


def test_no_process_takes_a_new_folder_for_an_abandoned_one(root: Path) -> None:
    command = [sys.executable, "-c", CHURN, str(knobs.scaled(200, 5000))]
    running = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait() for process in running] == [0] * 3
    assert not list(root.iterdir())


def test_a_folder_that_is_removed_before_it_is_locked_is_made_anew(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = fcntl.flock

    def removed_first(descriptor: int, kind: int) -> None:
        if folders := list(root.iterdir()):
            monkeypatch.undo()
            monkeypatch.setattr(tempfile, "tempdir", str(root))
            folders[0].rmdir()
        lock(descriptor, kind)

    monkeypatch.setattr(fcntl, "flock", removed_first)
    with temporary_directory(FS, PREFIX) as mine:
        assert list(root.iterdir()) == [Path(mine)]


def test_the_folder_of_a_proof_that_was_killed_is_removed_by_the_next_proof(root: Path) -> None:
    log = str(fixture("kraft-before") / "sessions-0")
    words = ["verify", log, log, "--engine", "here"]
    with start(*words, environment={"TMPDIR": str(root)}) as running:
        while not (left := [*root.glob("cordwood-proof-*")]) and running.poll() is None:
            time.sleep(0.001)
        running.send_signal(signal.SIGKILL)
        assert running.wait() == -signal.SIGKILL
    assert left and left[0].exists()
    run_alone(*words, environment={"TMPDIR": str(root)})
    assert not list(root.glob("cordwood-*"))
