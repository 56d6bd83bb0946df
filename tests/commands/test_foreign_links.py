"""Cordwood removes its own symlinks but never follows them: the target belongs to the user."""

from __future__ import annotations

from pathlib import Path

import pytest

from cordwood.fs.posix import PosixFileSystem
from cordwood.fs.workspace import remove_tree
from cordwood.live.work_folder import remove_leftovers
from tests.command import run
from tests.fixtures import copy_of, fixture

pytestmark = pytest.mark.more

CLEAN = ("--engine", "here", "--single-copy", "--ignore-ratio", "--config", "cleanup.policy=compact")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return copy_of(fixture("kraft-before"), tmp_path / "logs")


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A user's folder outside the log directory."""
    folder = tmp_path / "precious"
    (folder / "db").mkdir(parents=True)
    for name in ("a.txt", "db/b", "x.tmp"):
        (folder / name).write_text("precious")
    return folder


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_link_goes_and_what_it_leads_to_stays(tmp_path: Path, precious: Path) -> None:
    for place in ("itself", "within"):
        folder = tmp_path / place
        if place == "within":
            (folder / "sub").mkdir(parents=True)
            folder = folder / "sub"
        (folder if place == "itself" else folder / "link").symlink_to(precious)
        remove_tree(PosixFileSystem(), str(tmp_path / place))
        assert not (tmp_path / place).exists() and not (tmp_path / place).is_symlink()
        assert files(precious) == {"a.txt", "db/b", "x.tmp"}


@pytest.mark.parametrize("where", [".cordwood", ".cordwood/x", ".cordwood/index"])
@pytest.mark.parametrize("words", [("clean", "--in-place", *CLEAN), ("index",), ("index", "--drop")])
def test_a_link_in_the_place_of_a_work_folder_costs_nobody_a_file(
    where: str, words: tuple[str, ...], directory: Path, precious: Path
) -> None:
    before = files(precious)
    for partition in directory.glob("*-[0-9]"):
        (partition / where).parent.mkdir(exist_ok=True)
        (partition / where).symlink_to(precious)
    done = run(*words, directory, exits=None)
    assert before <= files(precious), done.output
    if where == ".cordwood" and words[0] == "clean":
        assert done.exit_code == 2 and "is a link" in done.output and "Remove the link" in done.output


def test_one_directory_under_two_names_is_not_changed(directory: Path) -> None:
    (directory / ".lock").touch()
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    (directory / "other-0").symlink_to(directory / "orders-0")
    for words in (("clean", "--in-place", *CLEAN), ("index",)):
        assert "are the same directory" in run(*words, directory, exits=2).output
    (directory / "other-0").unlink()
    assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("deeper", ["", "/sub"])
def test_nothing_new_is_made_in_a_log_directory_of_another_run(deeper: str, directory: Path, tmp_path: Path) -> None:
    other = copy_of(fixture("kraft-before"), tmp_path / "other")
    if deeper:
        (other / "sub").mkdir()
    for words in (
        ("--in-place", "--keep-old", f"{other}{deeper}/old", *CLEAN),
        ("--output", f"{other}{deeper}/copy", *CLEAN),
    ):
        assert "where a broker would stumble over it" in run("clean", *words, directory, exits=2).output
    assert not (other / "old").exists() and not (other / "copy").exists()


def test_a_live_log_leaves_a_linked_work_folder_alone(directory: Path, precious: Path) -> None:
    (precious / ("0" * 32)).mkdir()
    (precious / ("0" * 32) / "f").write_text("precious")
    (directory / "orders-0" / ".cordwood").symlink_to(precious)
    remove_leftovers(PosixFileSystem(), str(directory / "orders-0"))
    assert (precious / ("0" * 32) / "f").exists()
