"""`ls` of more partitions than are shown at once: rows appear as they are read, the worst first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from cordwood.bench.large_nodes import SEGMENTS, write_many
from cordwood.commands.ls import SHOWN_AT_ONCE, ls, ls_as_read
from cordwood.commands.options import ListOptions, Selection
from cordwood.common.types import override
from cordwood.fs.base import File, FileInfo
from cordwood.fs.posix import PosixFileSystem
from cordwood.fs.wrapped import WrappedFileSystem
from cordwood.storage.node.listing import Listing, PartitionListing
from tests.command import run

PARTITIONS = SHOWN_AT_ONCE + 20
COMPACT = ("--config", "cleanup.policy=compact")


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("many") / "logs"
    write_many(folder, PARTITIONS)
    return folder


class Noted(WrappedFileSystem):
    """Counts the listings and opened files of each partition's directory."""

    def __init__(self) -> None:
        super().__init__(PosixFileSystem())
        self.calls: Counter[str] = Counter()

    def _note(self, directory: str) -> None:
        if "/topic-" in directory:
            self.calls[directory] += 1

    @override
    def list(self, path: str) -> Sequence[FileInfo]:
        self._note(path)
        return super().list(path)

    @override
    def open(self, path: str) -> File:
        self._note(path.rpartition("/")[0])
        return super().open(path)


OPTIONS = ListOptions(selection=Selection(overrides=(COMPACT[1],)))


def test_first_rows_are_there_before_other_partitions_are_opened(many: Path) -> None:
    fs, opened = Noted(), list[int]()

    def note(head: Listing, partitions: Sequence[PartitionListing]) -> bool:
        assert [one.path for one in head.directories] == [str(many)]
        opened.append(len(fs.calls))
        return True

    ls_as_read([str(many)], OPTIONS, note, fs=fs)
    # Without a metadata log, the configs of a topic may be in any of its 100 partitions.
    assert opened[0] < 110
    assert opened[-1] == PARTITIONS


def test_each_partition_takes_a_listing_and_a_file_per_segment_and_one_for_configs(many: Path) -> None:
    fs = Noted()
    ls([str(many)], OPTIONS, fs=fs)
    assert {*fs.calls.values()} == {1 + SEGMENTS + 1}


def test_rows_come_with_the_most_dirty_offsets_first_and_the_result_by_name(many: Path) -> None:
    rows = list[PartitionListing]()

    def note(_: Listing, partitions: Sequence[PartitionListing]) -> bool:
        rows.extend(partitions)
        return True

    found = ls_as_read([str(many)], OPTIONS, note)
    assert sorted(map(str, rows)) == sorted(map(str, found.partitions))
    dirty = [one.dirty_bytes or 0 for one in rows]
    assert dirty == sorted(dirty, reverse=True)
    assert len(set(dirty)) == SEGMENTS + 1
    assert [one.path for one in found.partitions] == [one.path for one in ls([str(many)], OPTIONS).partitions]


def test_a_reader_that_has_enough_ends_the_listing(many: Path) -> None:
    fs = Noted()
    found = ls_as_read([str(many)], OPTIONS, lambda *_: False, fs=fs)
    assert len(found.partitions) < 10
    assert len(fs.calls) < 110


def test_the_text_has_all_rows_in_one_table_and_names_the_dirtiest_again(many: Path) -> None:
    lines = run("ls", many, *COMPACT).stdout.splitlines()
    titles = [line for line in lines if line.startswith("PARTITION")]
    assert len(titles) == 1
    rows = [line for line in lines if line.startswith("topic-")]
    assert len(rows) == PARTITIONS
    assert rows[0].split()[0] == "topic-000-0", "never cleaned"
    assert lines[-2].startswith(f"{PARTITIONS} partitions, {PARTITIONS * SEGMENTS} segments")
    assert lines[-1].startswith("most dirty bytes: topic-000-0 (23.4 kB), ")


def test_an_order_and_json_show_all_at_the_end(many: Path) -> None:
    by_name = [line.split()[0] for line in run("ls", many, *COMPACT, "--sort", "name").stdout.splitlines()[3:-2]]
    document = run("ls", many, *COMPACT, "--json").json["partitions"]
    assert by_name == [f"{one['topic']}-{one['partition']}" for one in document]
    assert by_name[:2] == ["topic-000-0", "topic-000-1"]
