"""Every reader of a directory skips the files of a killed clean in place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.changes.copy import copy_partition
from cordwood.storage.formats.filenames import WORK_FOLDER
from cordwood.storage.log.view import LogView
from tests.command import run
from tests.fixtures import copy_of, fixture

pytestmark = pytest.mark.more

COMMANDS = [
    ("ls", "--json", "--segments"),
    ("dump", "--json"),
    ("check", "--json"),
    ("plan", "--json", "--now", "1800000000000"),
]


def plant(partition: Path) -> None:
    """Leave the outputs of a killed run, which look like a broker's files, and some that don't."""
    attempt = partition / WORK_FOLDER / "attempt-7"
    attempt.mkdir(parents=True)
    for path in partition.glob("*.log"):
        (attempt / path.name).write_bytes(path.read_bytes()[:-1])
        (partition / WORK_FOLDER / f"{path.name}.cleaned").write_bytes(b"")
    (partition / WORK_FOLDER / ".lock").write_bytes(b"")
    (partition / WORK_FOLDER / "notes.txt").write_bytes(b"not Kafka's")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return copy_of(fixture("kraft-jbod-before") / "a", tmp_path / "a")


@pytest.mark.parametrize("of", ["directory", "partition"])
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: str(command[0]))
def test_reading_verbs_say_the_same_with_a_work_folder(directory: Path, command: tuple[str, ...], of: str) -> None:
    verb, *options = command
    partition = sorted(directory.glob("disk-*"))[0]

    def shown() -> tuple[int, str, str]:
        done = run(verb, directory if of == "directory" else partition, *options, exits=None)
        return done.exit_code, _but_leftovers(done.stdout), done.stderr

    before = shown()
    for path in directory.glob("*-*"):
        if path.is_dir():
            plant(path)
    assert shown() == before
    # The node's other disk is not given.
    assert before[0] == (1 if (verb, of) == ("check", "directory") else 0) and before[1]


def _but_leftovers(shown: str) -> str:
    """A verb's output without disk usage, which `du` counts, and without its notes about leftovers."""
    return re.sub(r'"disk_(bytes|share)": [^,}]+|"usage": \{[^}]*\}|"cause": "[^"]*"', "", shown)


def test_a_copy_has_no_work_folder_and_a_loader_would_not_touch_it(directory: Path, tmp_path: Path) -> None:
    partition = sorted(directory.glob("disk-*"))[0]
    actions = LogView(str(partition), fs=PosixFileSystem()).recovery.actions
    plant(partition)
    log = LogView(str(partition), fs=PosixFileSystem())
    assert (log.recovery.foreign, log.recovery.actions) == ((), actions)
    (tmp_path / "copy").mkdir()
    copy_partition(PosixFileSystem(), log, str(tmp_path / "copy"))
    assert {path.name for path in (tmp_path / "copy").iterdir()} == {p.name for p in partition.iterdir() if p.is_file()}


def test_a_file_of_that_name_is_nobodys(directory: Path) -> None:
    partition = sorted(directory.glob("disk-*"))[0]
    (partition / WORK_FOLDER).write_bytes(b"")
    assert LogView(str(partition), fs=PosixFileSystem()).recovery.foreign == (WORK_FOLDER,)
