"""Every command on every kind of path: all of them work on the same partitions, or refuse the path in words."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from cordwood.cli.main import EXIT_OK, EXIT_REQUEST
from cordwood.common.errors import RequestError
from cordwood.fs.by_url import UrlStore, file_system_for
from cordwood.fs.posix import PosixFileSystem
from cordwood.live.log_manager import LogManager
from cordwood.storage.formats import filenames
from cordwood.storage.node.directory import PathKind, look
from cordwood.tables.source.batch import plan_batch
from cordwood.tables.source.options import parse
from cordwood.tables.source.schema import COLUMNS
from cordwood.testing.memory import MemoryFileSystem
from cordwood.view.running import LiveNode, LiveOptions
from tests.command import run
from tests.logs import batch, write_log

pytestmark = pytest.mark.more

NOW = ("--now", "1795300000000")


def log(path: Path) -> Path:
    """A partition's directory with one record, of the key `k`."""
    return write_log(path, [batch(0)])


def brokers(path: Path, *, node: int = 1, directory: int = 1) -> Path:
    """A broker's log directory without partitions."""
    path.mkdir(parents=True, exist_ok=True)
    for name in filenames.OFFSET_CHECKPOINTS:
        (path / name).write_text("0\n0\n")
    (path / filenames.CLEAN_SHUTDOWN).touch()
    directory_id = f"AAAAAAAAAAAAAAAAAAAA{directory}A"
    text = f"version=1\nnode.id={node}\ncluster.id=AAAAAAAAAAAAAAAAAAAAAA\ndirectory.id={directory_id}\n"
    (path / filenames.META_PROPERTIES).write_text(text)
    return path


def two(path: Path) -> Path:
    log(path / "a-0")
    log(path / "b-0")
    return path


# ---- Kinds of paths: each makes one in an empty folder, and returns the path that a user types -----------------------


def log_directory(home: Path) -> Path:
    return two(brokers(home / "logs"))


def folder_of_partitions(home: Path) -> Path:
    return two(home / "archive")


def file_url(home: Path) -> str:
    return f"file://{two(home / 'archive')}/"


def trailing_slashes(home: Path) -> str:
    return f"{two(home / 'archive')}//"


def this_directory(home: Path) -> str:
    os.chdir(two(home / "archive"))
    return "."


def relative_path(home: Path) -> str:
    two(home / "archive")
    os.chdir(home)
    return "archive/../archive"


def one_partition(home: Path) -> Path:
    return two(home / "archive") / "a-0"


def this_partition(home: Path) -> str:
    os.chdir(two(home / "archive") / "a-0")
    return "."


def lock_in_a_partition(home: Path) -> Path:
    (two(home / "archive") / "a-0" / ".lock").touch()
    return home / "archive"


def lock_in_the_partition_itself(home: Path) -> Path:
    return lock_in_a_partition(home) / "a-0"


def lock_directory_in_a_partition(home: Path) -> Path:
    (two(home / "archive") / "b-0" / ".lock").mkdir()
    return home / "archive"


def lock_in_the_folder(home: Path) -> Path:
    (two(home / "archive") / ".lock").touch()
    return home / "archive"


def lock_directory_in_the_folder(home: Path) -> Path:
    (two(home / "archive") / ".lock").mkdir()
    return home / "archive"


def brokers_files_in_a_partition(home: Path) -> Path:
    brokers(two(home / "archive") / "a-0")
    return home / "archive"


def brokers_files_in_the_partition_itself(home: Path) -> Path:
    return brokers_files_in_a_partition(home) / "a-0"


def partitions_file_in_a_log_directory(home: Path) -> Path:
    shutil.copy(log(home / "x-0") / "00000000000000000000.log", log_directory(home))
    return home / "logs"


def disks(home: Path) -> Path:
    log(brokers(home / "node" / "d1", directory=1) / "a-0")
    log(brokers(home / "node" / "d2", directory=2) / "b-0")
    return home / "node"


def disks_named_like_partitions_and_one_not_mounted(home: Path) -> Path:
    log(brokers(home / "node" / "data-1", directory=1) / "a-0")
    log(brokers(home / "node" / "data-2", directory=2) / "b-0")
    (home / "node" / "data-0").mkdir()
    return home / "node"


def lock_beside_disks(home: Path) -> Path:
    (disks(home) / ".lock").touch()
    return home / "node"


def cleaned_folder_beside_another(home: Path) -> Path:
    log(home / "archive" / "2025" / "a-0")
    log(home / "archive" / "2026" / "b-0")
    (home / "archive" / "2026" / filenames.CLEANER_OFFSETS).write_text("0\n1\nb 0 1\n")
    return home / "archive"


def folder_named_like_a_partition(home: Path) -> Path:
    return two(home / "backup-1")


def directory_inside_a_partition(home: Path) -> Path:
    log(two(home / "archive") / "a-0" / "old-0")
    return home / "archive"


def partition_with_a_directory_inside(home: Path) -> Path:
    return directory_inside_a_partition(home) / "a-0"


def foreign_files_and_folders_beside(home: Path) -> Path:
    folder = two(home / "archive")
    (folder / "README").touch()
    (folder / "scripts" / "app-1").mkdir(parents=True)
    (folder / "lost+found").mkdir()
    return folder


def odd_names(home: Path) -> Path:
    log(home / "archive" / "my-topic.v1_x-0")
    log(home / "archive" / "-1-12")
    return home / "archive"


def link_to_a_folder(home: Path) -> Path:
    (home / "link").symlink_to(two(home / "archive"))
    return home / "link"


def folder_of_links(home: Path) -> Path:
    two(home / "archive")
    (home / "links").mkdir()
    for name in ("a-0", "b-0"):
        (home / "links" / name).symlink_to(home / "archive" / name)
    (home / "links" / "c-0").symlink_to(home / "gone")
    return home / "links"


def partitions_on_their_way(home: Path) -> Path:
    folder, uniq = home / "archive", 32 * "0"
    for name in ("a-0", f"b-0.{uniq}-delete", f"c-0.{uniq}-stray", f"a-0.{uniq}-future"):
        log(folder / name)
    return folder


def a_stray_partition(home: Path) -> Path:
    return partitions_on_their_way(home) / f"c-0.{32 * '0'}-stray"


A, BOTH = {"a-0"}, {"a-0", "b-0"}
KINDS: Mapping[Callable[[Path], Path | str], set[str]] = {
    log_directory: BOTH,
    folder_of_partitions: BOTH,
    file_url: BOTH,
    trailing_slashes: BOTH,
    this_directory: BOTH,
    relative_path: BOTH,
    one_partition: A,
    this_partition: A,
    lock_in_a_partition: BOTH,
    lock_in_the_partition_itself: A,
    lock_directory_in_a_partition: BOTH,
    lock_in_the_folder: BOTH,
    lock_directory_in_the_folder: BOTH,
    brokers_files_in_a_partition: BOTH,
    brokers_files_in_the_partition_itself: A,
    partitions_file_in_a_log_directory: BOTH,
    disks: BOTH,
    disks_named_like_partitions_and_one_not_mounted: BOTH,
    lock_beside_disks: BOTH,
    cleaned_folder_beside_another: BOTH,
    folder_named_like_a_partition: BOTH,
    directory_inside_a_partition: BOTH,
    partition_with_a_directory_inside: A,
    foreign_files_and_folders_beside: BOTH,
    odd_names: {"my-topic.v1_x-0", "-1-12"},
    link_to_a_folder: BOTH,
    folder_of_links: BOTH,
    partitions_on_their_way: {
        "a-0", f"b-0.{32 * '0'}-delete", f"c-0.{32 * '0'}-stray", f"a-0.{32 * '0'}-future",
    },
    a_stray_partition: {f"c-0.{32 * '0'}-stray"},
}  # fmt: skip


# ---- commands, and the partitions that their JSON shows --------------------------------------------------------------


def _paths(document: Any) -> set[str]:
    return {Path(one["path"]).name for one in document["partitions"]}


#: The effect of a command; its arguments follow DIR. Names of directories in the output are replaced.
LISTING: Mapping[str, tuple[tuple[str, ...], Callable[[Any], set[str]]]] = {
    "ls": ((), _paths),
    "plan": (NOW, _paths),
    "why": ((*NOW, "--no-keys"), _paths),
    "index": (("--index-dir", "INDEXES"), _paths),
    "get": (("--key", "k", *NOW), lambda found: {Path(one["path"]).name for one in found["records"]}),
    "erase-check": (
        ("--key", "k", *NOW),
        lambda found: {Path(one["path"]).parent.name for one in found["traces"]},
    ),
}


def answer(verb: str, path: object, *more: object) -> tuple[int, Any, str]:
    """The exit code of a command, its JSON, and its output including stderr."""
    done = run(verb, path, *more, "--json", exits=None)
    assert done.exit_code in (0, 1, 2), (verb, done.output)
    try:
        return done.exit_code, json.loads(done.stdout or "null"), done.output
    except ValueError:
        return done.exit_code, [json.loads(line) for line in done.stdout.splitlines()], done.output


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_command_works_on_the_same_partitions(
    kind: Callable[[Path], Path | str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path, expected = kind(tmp_path), KINDS[kind]
    current = {one for one in expected if filenames.parse_directory(one).state == ""}
    for verb, (more, names) in LISTING.items():
        arguments = [str(tmp_path / "indexes") if one == "INDEXES" else one for one in more]
        _, found, said = answer(verb, path, *arguments)
        seen = names(found) if found is not None else set()
        # A partition on its way in or out has no clean, index or reader. Keys are searched in foreign files, too.
        assert current <= seen and (seen <= expected or verb == "erase-check"), (verb, said)
        assert current or seen or "No partition" in said or verb in ("get", "index"), (verb, said)
    _, lines, said = answer("check", path)
    summary = lines[-1] if isinstance(lines, list) else lines
    assert summary["partitions"] == len(expected), said
    _, lines, said = answer("dump", path, "--records")
    shown = {f"{one['topic']}-{one['partition']}" for one in (lines if isinstance(lines, list) else [lines])}
    assert shown == {str(filenames.parse_directory(one).topic_partition) for one in expected}, said


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_spark_source_reads_the_same_partitions(
    kind: Callable[[Path], Path | str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path, expected = kind(tmp_path), KINDS[kind]
    options = parse({"path": str(path), "highWatermark": "end"})
    tasks = plan_batch(options, file_system_for([str(path)]), list(COLUMNS), ()).tasks
    current = {one for one in expected if filenames.parse_directory(one).state == ""}
    assert {str(piece.partition) for task in tasks for piece in task} == current


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_bucket_with_the_same_files_has_the_same_partitions(
    kind: Callable[[Path], Path | str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path(str(kind(tmp_path)).removeprefix("file://")).resolve()
    store = UrlStore()
    for folder, _, files in os.walk(path, followlinks=True):
        for file in (Path(folder) / name for name in files):
            if file.is_file():
                store.put(f"memory://{kind.__name__}{file}", file.read_bytes())
    for verb in ("ls", "plan", "get"):
        more, names = LISTING[verb]
        on_disk, in_bucket = (answer(verb, where, *more) for where in (path, f"memory://{kind.__name__}{path}"))
        assert on_disk[0] == in_bucket[0], in_bucket[2]
        if on_disk[1] is not None:
            assert names(on_disk[1]) == names(in_bucket[1]), (verb, in_bucket[2])


# ---- Invalid paths ---------------------------------------------------------------------------------------------------


def missing(home: Path) -> Path:
    return home / "nothing"


def dangling_link(home: Path) -> Path:
    (home / "link").symlink_to(home / "nothing")
    return home / "link"


def empty_folder(home: Path) -> Path:
    (home / "empty").mkdir()
    return home / "empty"


def foreign_folder(home: Path) -> Path:
    (home / "foreign").mkdir()
    (home / "foreign" / "README").touch()
    return home / "foreign"


def partitions_and_log_directories(home: Path) -> Path:
    log(brokers(home / "mixed" / "old") / "b-0")
    log(home / "mixed" / "a-0")
    return home / "mixed"


REFUSED: Mapping[Callable[[Path], Path], str] = {
    missing: "does not exist",
    dangling_link: "is a link whose target is missing",
    empty_folder: "is empty",
    foreign_folder: "neither a log directory",
    partitions_and_log_directories: "holds partitions (",
}
OTHERS: Mapping[str, tuple[str, ...]] = {
    "groups": (),
    "transactions": (),
    "topics": (),
    "configs": (),
    "brokers": (),
    "check": (),
    "dump": (),
    "explain": ("--topic", "a"),
    "abort-transaction": ("--topic", "a", "--producer", "1"),
    "run": (),
    "table": ("--topic", "a"),
    "clean": ("--output", "OUTPUT", "--engine", "here"),
}


@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)
def test_every_command_refuses_what_is_no_log_in_the_same_words(
    kind: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = kind(tmp_path)
    for verb, more in {**{verb: more for verb, (more, _) in LISTING.items()}, **OTHERS}.items():
        code, _, said = answer(verb, path, *more)
        # `erase-check` searches folders whatever their contents.
        if verb != "erase-check":
            assert (code, REFUSED[kind] in said) == (EXIT_REQUEST, True), (verb, said)


def test_a_file_is_a_path_for_dump_and_check_only(tmp_path: Path) -> None:
    file = log(tmp_path / "a-0") / "00000000000000000000.log"
    for verb, more in {**{verb: more for verb, (more, _) in LISTING.items()}, **OTHERS}.items():
        code, _, said = answer(verb, file, *more)
        assert code == (EXIT_OK if verb in ("dump", "check") else EXIT_REQUEST), (verb, said)


# ---- live logs, and stores -------------------------------------------------------------------------------------------


def test_run_takes_the_disks_in_a_folder_and_no_partition(tmp_path: Path) -> None:
    node = LiveNode(PosixFileSystem(), [str(disks(tmp_path))], LiveOptions(port=0))
    node.startup()
    try:
        assert {str(one) for one in node.manager.logs} == BOTH
    finally:
        node.shutdown()
    with pytest.raises(RequestError, match=f"is a partition.*{tmp_path}/node/d1$"):
        LiveNode(PosixFileSystem(), [str(tmp_path / "node" / "d1" / "a-0")], LiveOptions(port=0))


def test_a_new_log_directory_may_be_named_like_a_partition(tmp_path: Path) -> None:
    with LogManager(PosixFileSystem(), [str(tmp_path / "data-0")]) as manager:
        assert not manager.logs
    assert look(PosixFileSystem(), str(tmp_path / "data-0")).kind is PathKind.LOG_DIRECTORY


def test_a_store_decides_as_a_disk_does() -> None:
    fs = MemoryFileSystem(lambda: 0)
    fs.make_directory("/archive")
    for name in ("a-0", "b-0"):
        fs.make_directory(f"/archive/{name}")
        fs.create(f"/archive/{name}/00000000000000000000.log").close()
    fs.create("/archive/a-0/meta.properties").close()
    assert look(fs, "/archive").directories == ("/archive",)
    assert look(fs, "/archive/a-0/").kind is PathKind.PARTITION
