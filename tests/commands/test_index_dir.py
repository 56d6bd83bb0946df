"""Key indexes in a separate folder: for a log that is read-only, or whose folder must stay free of other files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import cordwood
from cordwood.common.errors import RequestError
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.index.files import indexes_in
from cordwood.storage.log.view import LogView
from tests.command import run
from tests.commands.growing_logs import (
    FS,
    clean,
    clean_copy,
    closed,
    everything,
    files,
    indexed,
    segments_searched,
    start,
)
from tests.commands.in_process import InThisProcess
from tests.logs import batch, make_log
from tests.storage.index_twins import believed

pytestmark = pytest.mark.more


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    return segments_searched(monkeypatch)


def indexed_in(folder: Path, logs: Path, topic: str = "t-0") -> list[int]:
    """Return the segments with a valid index in a folder; fail if there are other index files."""
    log = LogView(str(logs / topic), fs=FS, log_start_offset=0, index_root=str(folder))
    found = list(believed(log))
    assert {base for base, _ in indexes_in(FS, log.path, str(folder))} == set(found)
    return found


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    start(tmp_path / "logs")
    little(tmp_path / "logs", 400)
    return tmp_path / "logs"


def little(logs: Path, base: int) -> None:
    """Append two short segments."""
    for first in (base, base + 5):
        make_log(
            logs / "t-0", (first, [batch(at, (b"%d" % (at % 13), b"v" * 2_000)) for at in range(first, first + 5)])
        )


def bases(logs: Path, topic: str = "t-0") -> list[int]:
    return sorted(int(path.stem) for path in (logs / topic).glob("*.log"))


def test_a_log_that_is_only_read_gets_indexes_elsewhere_which_get_and_a_copy_use(
    logs: Path, tmp_path: Path, searched: list[int]
) -> None:
    folder = tmp_path / "indexes"
    before = everything(logs)
    result = cordwood.index(str(logs), index_dir=str(folder))
    assert result.partitions[0].indexed == len(indexed_in(folder, logs)) > 5
    assert {path.stat().st_mode & 0o777 for path in folder.rglob("*.keyhashes")} == {0o600}
    (found,) = cordwood.get(str(logs), keys=["17"], index_dir=str(folder)).searched
    assert found.indexed == result.partitions[0].indexed
    records = cordwood.open_log(str(logs / "t-0"), index_dir=str(folder)).get("17")
    assert [one.offset for one in records] == [one.offset for one in cordwood.open_log(str(logs / "t-0")).get("17")]
    here = {"engine": None, "spark": InThisProcess()}
    clean_copy(logs, tmp_path / "copy", index_dir=str(folder), first_dirty=400, **here)
    assert len(searched) > 5
    clean_copy(logs, tmp_path / "twin", first_dirty=400)
    assert files(tmp_path / "copy" / "t-0") == files(tmp_path / "twin" / "t-0")
    # The copy has its own.
    assert set(closed(tmp_path / "copy")) <= set(indexed(tmp_path / "copy"))
    assert everything(logs) == before


def test_a_clean_in_place_keeps_the_log_free_of_indexes(logs: Path, tmp_path: Path, searched: list[int]) -> None:
    folder, twin = tmp_path / "indexes", tmp_path / "twin"
    for number in range(3):
        shutil.rmtree(twin, ignore_errors=True)
        shutil.copytree(logs, twin)
        clean(twin)
        clean(logs, index=number == 0, index_dir=str(folder), engine=None, spark=InThisProcess())
        assert files(logs / "t-0") == files(twin / "t-0")
        assert not (logs / "t-0" / ".cordwood").exists()
        assert indexed_in(folder, logs) == closed(logs)
        assert (len(searched) > 0) == (number > 0)
        little(logs, 410 + 10 * number)


def test_what_a_partition_has_itself_of_segments_that_are_replaced_is_removed(logs: Path, tmp_path: Path) -> None:
    cordwood.index(str(logs))
    clean(logs, index=True, index_dir=str(tmp_path / "indexes"))
    assert set(indexed(logs)) <= set(bases(logs))
    assert indexed_in(tmp_path / "indexes", logs) == closed(logs)


@pytest.mark.parametrize("is_in", ["logs", "logs/deeper", "logs/t-0"])
def test_a_folder_in_a_log_directory_is_refused(logs: Path, tmp_path: Path, is_in: str) -> None:
    (tmp_path / is_in).mkdir(exist_ok=True)
    before = everything(logs)
    for drop in (False, True):
        with pytest.raises(RequestError, match="may hold logs only"):
            cordwood.index(str(logs / "t-0"), index_dir=str(tmp_path / is_in), drop=drop)
    with pytest.raises(RequestError, match="may hold logs only"):
        clean(logs, index=True, index_dir=str(tmp_path / is_in))
    assert everything(logs).items() - {(".lock", b"")} == before.items()


@pytest.mark.parametrize("is_in", ["others", "others/deeper"])
def test_a_folder_in_the_log_directory_of_another_disk_is_refused(logs: Path, tmp_path: Path, is_in: str) -> None:
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "meta.properties").touch()
    with pytest.raises(RequestError, match="where a broker would stumble over it"):
        cordwood.index(str(logs / "t-0"), index_dir=str(tmp_path / is_in))
    assert [path.name for path in (tmp_path / "others").iterdir()] == ["meta.properties"]


def test_partitions_of_the_same_name_do_not_share_a_folder(logs: Path, tmp_path: Path) -> None:
    shutil.copytree(logs, tmp_path / "other")
    with pytest.raises(RequestError, match="share the key indexes"):
        cordwood.index(str(logs / "t-0"), str(tmp_path / "other" / "t-0"), index_dir=str(tmp_path / "indexes"))
    assert not (tmp_path / "indexes").exists()


def test_indexes_of_another_log_are_not_believed(logs: Path, tmp_path: Path) -> None:
    other, folder = tmp_path / "other", tmp_path / "indexes"
    (other / "t-0").mkdir(parents=True)
    for base in bases(logs):
        make_log(other / "t-0", (base, [batch(at, (b"o%d" % at, b"v" * 2_000)) for at in range(base, base + 5)]))
    cordwood.index(str(other), index_dir=str(folder))
    clean_copy(logs, tmp_path / "twin", first_dirty=400)
    clean_copy(logs, tmp_path / "copy", index_dir=str(folder), first_dirty=400)
    assert files(tmp_path / "copy" / "t-0") == files(tmp_path / "twin" / "t-0")


def test_indexes_elsewhere_are_dropped_limited_listed_and_searched_for_traces(logs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "indexes"
    run("index", logs, "--index-dir", folder, "--index-max", "5k")
    taken = sum(path.stat().st_size for path in folder.rglob("*.keyhashes"))
    assert 0 < taken <= 5 << 10
    (row,) = run("ls", logs, "--index-dir", folder, "--json").json["partitions"]
    assert row["index_bytes"] == taken
    (row,) = run("ls", logs, "--json").json["partitions"]
    assert not row["index_bytes"]
    found = run("erase-check", folder, "--key", "17", "--json", exits=1).json
    assert {file["role"] for file in found["files"]} == {"key index"}
    (folder / "t-0" / "mine").write_text("of the user")
    run("index", logs, "--index-dir", folder, "--drop")
    assert os.listdir(folder / "t-0") == ["mine"]


def test_a_folder_that_is_full_costs_the_indexes_alone(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, twin, original = tmp_path / "indexes", tmp_path / "twin", PosixFileSystem.copy
    shutil.copytree(logs, twin)
    clean(twin)
    cordwood.index(str(logs), index_dir=str(folder))

    def full(self: PosixFileSystem, source: str, target: str, *, mode: int = 0o666) -> None:
        if target.startswith(str(folder)):
            Path(target).write_bytes(b"half")
            raise OSError(28, "full", target)
        original(self, source, target, mode=mode)

    monkeypatch.setattr(PosixFileSystem, "copy", full)
    clean(logs, index_dir=str(folder))
    assert files(logs / "t-0") == files(twin / "t-0")
    monkeypatch.undo()
    assert set(indexed_in(folder, logs)) <= set(bases(logs))
    cordwood.index(str(logs), index_dir=str(folder))
    assert not list(folder.rglob("*.tmp"))
