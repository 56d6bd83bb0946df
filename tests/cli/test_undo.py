"""The command `cordwood undo`: its text, its JSON, its exit codes; and real brokers that ran after the clean."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from cordwood.api import clean_in_place
from cordwood.cli.main import EXIT_REQUEST
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.changes.backup import files_by_name
from cordwood.storage.formats import filenames
from cordwood.storage.formats.filenames import FileKind, offset_name
from tests.command import run
from tests.commands.in_process import InThisProcess
from tests.fixtures import PACKED, copy_of, fixture
from tests.kafka_tools import FOLDER, Broker
from tests.storage.in_place import Tree, clean, make_directory, tree

pytestmark = pytest.mark.more

fs = PosixFileSystem()


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """A partition whose files are of several permissions, before a clean."""
    path = Path(make_directory(fs, str(tmp_path / "logs")))
    for number, file in enumerate(sorted(path.iterdir())):
        file.chmod((0o600, 0o640, 0o644)[number % 3])
    return path


def all_of(partition: Path) -> Tree:
    return tree(fs, str(partition.parent))


@pytest.mark.parametrize("retained", [0, 6])
def test_everything_is_put_back_and_said(partition: Path, retained: int) -> None:
    before, kept = all_of(partition), partition.parents[1] / "kept"
    clean(fs, str(partition), str(kept), retained=retained)
    assert all_of(partition) != before
    result = run("undo", kept)
    assert re.search(r"^t-0 +7 +1\.5 kB +\d+ B$", result.stdout, re.MULTILINE)
    assert f"restored: {partition.parent}/{filenames.CLEANER_OFFSETS}\n" in result.stdout
    assert result.stdout.endswith(f"1 partition: 7 segments restored\n{kept} is no longer needed, and was removed\n")
    assert all_of(partition) == before
    assert not kept.exists()


def test_the_files_are_the_very_ones_that_were_there(partition: Path) -> None:
    before = {file.name: file.stat().st_ino for file in partition.iterdir()}
    kept = partition.parents[1] / "kept"
    clean(fs, str(partition), str(kept))
    run("undo", kept)
    assert {file.name: file.stat().st_ino for file in partition.iterdir()} == before


def test_json_has_what_was_put_back(partition: Path) -> None:
    kept = partition.parents[1] / "kept"
    clean(fs, str(partition), str(kept))
    found = run("undo", kept, "--json").json
    (one,) = found.pop("partitions")
    assert (one.pop("size_bytes") > one.pop("removed_bytes")) > 0
    assert one == {"path": str(partition), "segments": 7, "removed_segments": 4}
    checkpoint = f"{partition.parent}/{filenames.CLEANER_OFFSETS}"
    assert found == {
        "folder": str(kept),
        "done": True,
        "removed": True,
        "checkpoints": [checkpoint],
        "changes": [],
    }


def test_a_log_that_went_on_is_left_as_it_is(partition: Path) -> None:
    kept = partition.parents[1] / "kept"
    clean(fs, str(partition), str(kept))
    active = partition / offset_name(21, FileKind.LOG)
    with active.open("ab") as file:
        file.write(b"more")
    before = all_of(partition)
    said = run("undo", kept, exits=1)
    assert f"  {active}: appended to since" in said.stdout
    assert said.stdout.endswith(
        f"Nothing was restored, as these changes would be lost. The old files are still in {kept}\n"
    )
    (change,) = run("undo", kept, "--json", exits=1).json["changes"]
    assert change["path"] == str(active)
    assert all_of(partition) == before


def test_a_directory_that_is_held_is_refused(partition: Path) -> None:
    kept = partition.parents[1] / "kept"
    clean(fs, str(partition), str(kept))
    before = all_of(partition)
    with fs.lock_directory(str(partition.parent)):
        run("undo", kept, exits=3)
    assert all_of(partition) == before
    run("undo", kept)


def test_copied_files_whose_inode_numbers_changed_are_refused_in_words(partition: Path) -> None:
    kept = partition.parents[1] / "kept"
    clean(fs, str(partition), str(kept))
    copy = kept.with_name("copy")
    shutil.copytree(kept, copy)  # with times, as `cp -a` does
    shutil.rmtree(kept)
    copy.rename(kept)
    before = all_of(partition)
    result = run("undo", kept, exits=EXIT_REQUEST)
    assert "its inode number has changed" in result.stderr
    assert "To restore the old files by hand" in result.stderr
    assert all_of(partition) == before


def test_a_folder_that_nothing_was_kept_in_is_wrong_usage(tmp_path: Path) -> None:
    result = run("undo", tmp_path, exits=2)
    assert f"{tmp_path} has no manifest.jsonl: no clean kept old files there" in result.stderr


# ---- real logs and brokers -------------------------------------------------------------------------------------------

#: Two days after the last of the fixtures was made.
NOW_MS = 1_795_430_000_000
#: Retention by size, which a broker's own metadata does not contain.
LIMIT = ["log.retention.bytes=5000", "log.retention.ms=-1"]
#: For a broker that only starts and stops.
STILL = {
    "log_cleaner_enable": "false",
    "log_retention_check_interval_ms": 86_400_000,
    "offsets_retention_minutes": 2147483,
}


def cleaned(name: str, tmp_path: Path, *, retention: bool = False) -> tuple[Path, Tree]:
    """A fixture that was cleaned in place, and its files after a load, before the clean."""
    data = copy_of(fixture(name), tmp_path / "data")
    before = tree(fs, str(data))
    for path in {log.parent for log in data.rglob("*.log*")}:
        prefix = f"{path.relative_to(data)}/"
        was = {path / name.removeprefix(prefix): before.pop(name) for name in list(before) if name.startswith(prefix)}
        inodes = {file.stat().st_ino: one for file, one in was.items()}
        loaded = files_by_name(fs, str(path)).values()
        before.update({prefix + info.name: inodes[info.inode] for info in loaded}, **{prefix: ()})
    clean_in_place(
        str(data),
        keep_old=str(tmp_path / "kept"),
        spark=InThisProcess(),  # type: ignore[arg-type]
        verify=False,  # undo puts back the same with and without a proof, and the proof needs Spark
        now_ms=NOW_MS,
        ignore_ratio=True,
        high_watermark="end",
        retention=retention,
        overrides=LIMIT if retention else [],
    )
    assert tree(fs, str(data)) != before
    return data, before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "retention"),
    [
        ("kraft-before", False),
        ("kraft-classic-before", True),
        ("kraft-crashed-torn", True),
        ("kraft-crashed-swap", False),
    ],
)
def test_a_brokers_directory_is_put_back(name: str, retention: bool, tmp_path: Path) -> None:
    data, before = cleaned(name, tmp_path, retention=retention)
    run("undo", tmp_path / "kept")
    assert tree(fs, str(data)) == before


def logs(found: Tree) -> Tree:
    """Logs of the topics that a broker does not write to by itself."""
    return {name: one for name, one in found.items() if name.endswith(FileKind.LOG) and not name.startswith("__")}


def test_a_broker_that_only_started_and_stopped_is_no_reason_to_refuse(kafka_broker: Broker, tmp_path: Path) -> None:
    data, before = cleaned("kraft-before", tmp_path)
    kafka_broker.start(data, **STILL)
    kafka_broker("stop", data)
    run("undo", tmp_path / "kept")
    assert logs(tree(fs, str(data))) == logs(before)
    for command in (
        (FOLDER / "broker-check", data, "--to", tmp_path / "read", "--no-indexes"),
        (FOLDER / "broker-compare", read_before("kraft-before"), tmp_path / "read" / "read_committed.jsonl"),
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def read_before(name: str) -> Path:
    """A consumer's records of a fixture."""
    (found,) = PACKED.glob(f"*/{name}.read_committed.jsonl.gz")
    return found


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        pytest.param({}, "appended to since", id="to-a-segment"),
        pytest.param({"log_roll_ms": 1}, "written since", id="to-a-new-one", marks=pytest.mark.slow),
    ],
)
def test_what_a_broker_appended_is_not_undone(
    settings: dict[str, int], what: str, kafka_broker: Broker, tmp_path: Path
) -> None:
    data, _ = cleaned("kraft-before", tmp_path)
    kafka_broker.start(data, **STILL, **settings)
    sent = {"do": "send", "id": "p", "topic": "orders", "partition": 1, "key": "k", "value": "v"}
    kafka_broker.client(data, [{"do": "producer", "id": "p", "config": {}}, sent, {"do": "flush", "id": "p"}])
    run("undo", tmp_path / "kept", exits=3)
    kafka_broker("stop", data)
    before = tree(fs, str(data))
    result = run("undo", tmp_path / "kept", exits=1)
    (line,) = re.findall(r"^  (.*)$", result.stdout, re.MULTILINE)
    assert re.match(rf"{data}/orders-1/\d+\.log: {what}", line)
    assert tree(fs, str(data)) == before
