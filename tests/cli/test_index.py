"""`cordwood index`, and the reads of `dump --key` with key indexes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import cordwood
from cordwood.fs.posix import PosixFileSystem
from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from cordwood.storage.index.files import read_index
from cordwood.storage.log import view
from tests.command import Ended, run
from tests.fixtures import STOPPED, copy_of, fixture
from tests.knobs import in_turns
from tests.storage.index_twins import index_all

pytestmark = pytest.mark.more

SOME = ("kraft-before", "legacy-mixed-before")


def log_of(path: Path, batches: range) -> Path:
    """A partition in a log directory: batches of ten records of 200 bytes, each with the keys 0 to 9 in turn."""
    partition = path / "logs/a-0"
    partition.mkdir(parents=True, exist_ok=True)
    data = b"".join(
        encode_batch([Record(10 * at + i, 1000, b"%d" % ((10 * at + i) % 7), b"v" * 200) for i in range(10)])
        for at in batches
    )
    stem = f"{batches[0] * 10:020d}"
    for ending, content in ((".log", data), (".index", b""), (".timeindex", b"")):
        (partition / f"{stem}{ending}").write_bytes(content)
    return partition


def files(root: Path) -> dict[str, bytes]:
    found = (path for path in root.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(root)): path.read_bytes() for path in found if ".cordwood" not in path.parts}


def row(result: Ended) -> dict[str, object]:
    (found,) = result.json["partitions"]
    return {name: found[name] for name in ("segments", "indexed", "made", "removed")}


def test_indexes_are_made_once_follow_the_log_and_are_dropped(tmp_path: Path) -> None:
    partition = log_of(tmp_path, range(20))
    log_of(tmp_path, range(20, 40))
    before = files(tmp_path)
    both = {"segments": 2, "indexed": 2, "made": 2, "removed": 0}
    assert row(run("index", "--json", partition.parent)) == both
    assert row(run("index", "--json", partition.parent)) == {**both, "made": 0}
    log_of(tmp_path, range(20, 41))
    assert row(run("index", "--json", partition)) == {**both, "made": 1}
    (first, second) = cordwood.open_log(str(partition)).segments
    assert read_index(first).header.secret == read_index(second).header.secret
    for path in partition.glob("00000000000000000000.*"):
        path.unlink()
    assert row(run("index", "--json", partition)) == {"segments": 1, "indexed": 1, "made": 0, "removed": 1}
    assert "a-0" in run("index", partition).stdout
    assert row(run("index", "--json", "--drop", partition)) == {
        "segments": 1,
        "indexed": 0,
        "made": 0,
        "removed": 1,
    }
    assert not (partition / ".cordwood/index").exists()
    assert files(tmp_path) == {name: files(tmp_path)[name] for name in before if "00000000000000000000" not in name}


def test_segments_of_many_small_records_get_no_index(tmp_path: Path) -> None:
    partition = tmp_path / "logs/a-0"
    partition.mkdir(parents=True)
    (partition / "00000000000000000000.log").write_bytes(encode_batch([Record(i, 0, b"k", b"") for i in range(1000)]))
    assert row(run("index", "--json", partition)) == {"segments": 1, "indexed": 0, "made": 0, "removed": 0}


def test_a_held_directory_is_refused(tmp_path: Path) -> None:
    partition = log_of(tmp_path, range(3))
    with PosixFileSystem().lock_directory(str(partition.parent)):
        run("index", partition, exits=3)
    assert not (partition / ".cordwood").exists()


def test_dump_with_a_key_reads_only_the_batches_that_may_have_it(tmp_path: Path) -> None:
    partition = log_of(tmp_path, range(40))
    expected = run("dump", "--key", "3", "--json", partition)
    run("index", partition)
    found = run("dump", "--key", "3", "--json", partition)
    assert found.stdout == expected.stdout
    # With an index, a search for a key in no batch reads no batch, so it does not notice damage. Without the index it
    # does.
    log = partition / "00000000000000000000.log"
    data = log.read_bytes()
    log.write_bytes(data[:500] + b"\x77" + data[501:])
    assert run("dump", "--key", "none", partition).stdout == ""
    assert "DAMAGE" in run("dump", "--key", "3", partition, exits=1).stdout
    run("index", "--drop", partition)
    assert "DAMAGE" in run("dump", "--key", "none", partition, exits=1).stdout


@pytest.mark.parametrize("options", [(), ("--from-offset", "120"), ("--offset", "90:130"), ("--limit", "3")])
def test_dump_with_a_key_shows_the_same_with_an_index_of_half_the_log(options: tuple[str, ...], tmp_path: Path) -> None:
    partition = log_of(tmp_path, range(10))
    run("index", partition)
    log_of(tmp_path, range(20))
    mixed = run("dump", "--key", "5", *options, "--json", partition)
    shutil.rmtree(partition / ".cordwood")
    assert mixed.stdout == run("dump", "--key", "5", *options, "--json", partition).stdout != ""


@pytest.mark.parametrize("name", in_turns(STOPPED, *SOME))
def test_dump_finds_the_same_records_of_real_logs_with_their_indexes(name: str, tmp_path: Path) -> None:
    copy = copy_of(fixture(name), tmp_path / "logs")
    logs = [log for log in sorted(copy.rglob("*-[0-9]")) if any(log.glob("*.log")) and "cluster" not in log.name]
    keys: dict[Path, list[bytes]] = {}
    for log in logs:
        records = cordwood.open_log(str(log)).records(isolation=None, on_damage=lambda _: None)
        keys[log] = sorted({record.key for record in records if record.key})[::7][:4]
    asked = [("dump", "--json", "--key", f"hex:{key.hex()}", log) for log in logs for key in keys[log]]
    before = [run(*arguments).stdout for arguments in asked]
    fs = PosixFileSystem()
    made = [index_all(fs, view.open_log(str(log), fs=fs)) for log in logs]
    assert sum(made) > 0
    assert [run(*arguments).stdout for arguments in asked] == before
    assert not [found for found in cordwood.check(str(copy)) if "keyhashes" in found.path]
