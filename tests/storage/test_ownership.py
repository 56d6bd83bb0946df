"""Who may clean in place: root, or the owner of all that is replaced, in its groups."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cordwood.common.errors import RequestError
from cordwood.fs.users import User
from cordwood.storage.changes.swap import check_ownership
from cordwood.storage.formats.filenames import CLEANER_OFFSETS, WORK_FOLDER
from cordwood.testing.memory import MemoryFileSystem
from tests.fs.lock_holders import open_up

pytestmark = pytest.mark.more

KAFKA, CONFLUENT = 4000001, 4000002
ROOT = User(0, frozenset([0]), privileged=True)
OWNER = User(KAFKA, frozenset([KAFKA, 77]), privileged=False)
OTHER = User(CONFLUENT, frozenset([CONFLUENT]), privileged=False)
LOG = "logs/t-0/00000000000000000000.log"


def directory() -> MemoryFileSystem:
    """A log directory of Kafka's user."""
    fs = MemoryFileSystem(now_ns=itertools.count().__next__)
    fs.make_directory("logs")
    fs.make_directory("logs/t-0")
    for path in (LOG, f"logs/{CLEANER_OFFSETS}"):
        fs.create(path).close()
    for path in ("logs", "logs/t-0", LOG, f"logs/{CLEANER_OFFSETS}"):
        fs.set_owner(path, KAFKA, KAFKA)
    return fs


def refusal(fs: MemoryFileSystem, user: User) -> str:
    with pytest.raises(RequestError) as raised:
        check_ownership(fs, ["logs/t-0/"], user)
    return str(raised.value)


@pytest.mark.parametrize("user", [ROOT, OWNER])
def test_root_and_the_owner_may_and_nothing_is_written_to_find_out(user: User) -> None:
    fs = directory()
    fs.operations.clear()
    check_ownership(fs, ["logs/t-0"], user)
    assert fs.operations == []


@pytest.mark.parametrize("path", [LOG, f"logs/{CLEANER_OFFSETS}"])
def test_somebody_elses_file_is_refused_with_whom_to_run_as(path: str) -> None:
    fs = directory()
    for folder in ("logs", "logs/t-0"):
        fs.set_mode(folder, 0o777)
    if path != LOG:
        fs.unlink(LOG)
    message = refusal(fs, OTHER)
    assert message.startswith(f"{path} belongs to uid {KAFKA}, and uid {CONFLUENT} cannot")
    assert message.endswith(f"Run this as uid {KAFKA}")


def test_files_of_several_users_need_root() -> None:
    fs = directory()
    fs.set_owner(f"logs/{CLEANER_OFFSETS}", CONFLUENT, CONFLUENT)
    assert refusal(fs, OWNER).endswith("Run this as root (uid 0)")
    check_ownership(fs, ["logs/t-0"], ROOT)


def test_a_group_must_be_one_of_ours() -> None:
    fs = directory()
    fs.set_owner(LOG, KAFKA, 77)
    check_ownership(fs, ["logs/t-0"], OWNER)
    fs.set_owner(LOG, KAFKA, 78)
    assert re.match(rf"{LOG} belongs to the group .*78.*Add the user to the group, or run", refusal(fs, OWNER))


@pytest.mark.parametrize("path", ["logs", "logs/t-0"])
def test_a_directory_must_be_writable(path: str) -> None:
    fs = directory()
    fs.set_mode(path, 0o555)
    assert refusal(fs, OWNER).startswith(f"{path} cannot be changed: uid {KAFKA} may not write to it")
    fs.set_owner(path, CONFLUENT, 77)
    assert refusal(fs, OWNER).endswith("Run this as root (uid 0)")
    fs.set_mode(path, 0o575)  # by a group
    check_ownership(fs, ["logs/t-0"], OWNER)


def test_a_work_folder_that_somebody_else_left_is_refused() -> None:
    fs = directory()
    fs.make_directory(f"logs/t-0/{WORK_FOLDER}", mode=0o700)
    fs.set_owner(f"logs/t-0/{WORK_FOLDER}", 0, 0)
    assert refusal(fs, OWNER).startswith(f"logs/t-0/{WORK_FOLDER} cannot be changed")


AS_NOBODY = """
import os, sys
from cordwood.common.errors import RequestError
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.changes.swap import check_ownership
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    check_ownership(PosixFileSystem(), sys.argv[1:])
except RequestError as error:
    print(error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be someone else")
def test_on_a_disk_it_is_as_the_system_has_it(tmp_path: Path) -> None:
    open_up(tmp_path)
    partition = tmp_path / "logs/t-0"
    partition.mkdir(parents=True)
    (partition / "00000000000000000000.log").touch()

    def as_nobody() -> str:
        return subprocess.run(
            [sys.executable, "-c", AS_NOBODY, partition], capture_output=True, text=True, check=True
        ).stdout

    assert "Run this as root (uid 0)" in as_nobody()
    for path in (partition, partition.parent, partition / "00000000000000000000.log"):
        os.chown(path, 65534, 65534)
    assert as_nobody() == ""
    assert User.current().privileged
