"""Live logs with key indexes: the same files as without, and every valid index is correct, whatever happens."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cordwood.cleaning.engine.scan import scan_by_index
from cordwood.common.errors import CorruptFileError
from cordwood.fs.base import LocalFileSystem
from cordwood.fs.posix import PosixFileSystem
from cordwood.live.log import Log
from cordwood.record.batch import encode_batch
from cordwood.record.columns import BatchWindow
from cordwood.record.record import Record
from cordwood.storage.formats.filenames import index_folder
from cordwood.storage.index.build import build
from cordwood.storage.index.files import indexes_in, read_index
from cordwood.storage.log.files import read_file
from cordwood.storage.log.view import LogView
from tests.live.cleaner_nodes import PARTITION, Node, layers
from tests.storage.index_twins import index_all

pytestmark = pytest.mark.more

POLICY = {"cleanup.policy": "compact,delete", "retention.ms": "-1"}
CONFIGS = layers("log.cleaner.threads=1", **POLICY, **{"internal.segment.bytes": "120000"})
LARGE = layers("log.cleaner.threads=1", **POLICY, **{"internal.segment.bytes": "500000"})
KEYS = 400


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> Counter[bool]:
    """Count the segments with a valid index, and those without."""
    found: Counter[bool] = Counter()

    def scan(*args: Any, **choice: Any) -> Any:
        run = scan_by_index(*args, **choice)
        found[run is not None] += 1
        return run

    monkeypatch.setattr("cordwood.cleaning.engine.scan.scan_by_index", scan)
    return found


def send(log: Log, *keys: int, together: int = 1) -> None:
    """Append records that are large compared with their index entries, several of them in each batch."""
    for first in range(0, len(keys), together):
        values = [(key, b"%d at %d" % (key, log.log_end_offset)) for key in keys[first : first + together]]
        records = [Record(at, 1_000, b"%d" % key, value.ljust(2_000)) for at, (key, value) in enumerate(values)]
        log.append_as_leader(encode_batch(records), 0)
    log.update_high_watermark(log.log_end_offset)


def files(fs: LocalFileSystem, log: Log) -> dict[str, bytes]:
    names = [one.name for one in fs.list(log.directory) if not one.is_directory and not one.name.endswith(".deleted")]
    return {name: read_file(fs, f"{log.directory}/{name}") for name in names if name.endswith((".log", ".index"))}


def indexed(fs: LocalFileSystem, log: Log) -> set[int]:
    """Return the segments with a valid index; check that each equals an index rebuilt from its segment."""
    found = set()
    for segment in LogView(log.directory, fs=fs, log_start_offset=0).segments:
        try:
            index = read_index(segment)
        except (OSError, CorruptFileError):
            continue
        covered = segment.windows(end_offset=index.header.next_offset)
        again = build(segment, index.header.secret, 1 << 30, (one for one in covered if isinstance(one, BatchWindow)))
        assert again is not None and again.payload.tobytes() == index.payload.tobytes()
        found.add(segment.base_offset)
    return found


def closed(log: Log) -> set[int]:
    return {segment.base_offset for segment in log.log_segments[:-1] if segment.size_bytes}


def pair(configs: list[str] = CONFIGS, *, keys: int = KEYS, together: int = 1) -> tuple[Node, Node]:
    """A node that makes indexes, and a node that does not; both have a log that was cleaned once."""
    nodes = Node(*configs, index=True), Node(*configs)
    for node in nodes:
        send(node.log, *range(keys), together=together)
        node.log.roll()
        node.pass_time()
    return nodes


def act(node: Node, name: str, source: random.Random, *, index: bool) -> Node:
    log = node.log
    if name == "append":
        send(log, *(source.randrange(KEYS) for _ in range(source.randint(1, 20))))
    elif name == "truncate":
        log.truncate_to(max(log.log_start_offset, log.log_end_offset - source.randint(1, 60)))
        log.update_high_watermark(log.log_end_offset)
    elif name == "delete records":
        log.delete_records(min(log.high_watermark, log.log_start_offset + source.randint(1, 30)))
        log.delete_old_segments()
    elif name == "load again":
        node.manager.shutdown()
        return Node(*CONFIGS, fs=node.fs, index=index)
    elif name == "index":
        if index:
            index_all(node.fs, LogView(log.directory, fs=node.fs))
    elif name == "truncate fully":
        log.truncate_fully_and_start_at(log.log_end_offset + 5)
    return node


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_to_a_log_its_files_are_those_of_one_without_indexes(seed: int, used: Counter[bool]) -> None:
    source, nodes = random.Random(seed), list(pair())
    weights = {"append": 8, "truncate": 2, "delete records": 1, "load again": 1, "index": 1, "truncate fully": 0.1}
    for _ in range(30):
        (name,), chosen = source.choices(list(weights), list(weights.values())), source.random()
        nodes = [act(one, name, random.Random(chosen), index=at == 0) for at, one in enumerate(nodes)]
        if source.random() < 0.7:
            for node in nodes:
                node.log.roll()
                node.pass_time()
        mine, twin = nodes
        assert files(mine.fs, mine.log) == files(twin.fs, twin.log), name
        indexed(mine.fs, mine.log)
        gone = {base for base, _ in indexes_in(mine.fs, mine.log.directory)}
        assert gone <= {segment.base_offset for segment in mine.log.log_segments}
        assert not twin.fs.exists(index_folder(twin.log.directory))
    assert used[True] > 5, used


def read_but_for_the_check(node: Node) -> int:
    """The bytes that cleans have read, but for the check, which reads all outputs once."""
    traffic = node.cleaner.runner.traffic
    return traffic.read - traffic.written


def test_the_next_clean_reads_what_is_dirty_and_what_may_go(used: Counter[bool]) -> None:
    # Headers are read in pieces of 64 KiB: of small batches that would be all.
    # Of three segments the first loses records, the last is merged with the dirty one.
    mine, twin = pair(LARGE, keys=600, together=200)
    assert indexed(mine.fs, mine.log) == closed(mine.log)
    read = []
    for node in (mine, twin):
        before = read_but_for_the_check(node)
        send(node.log, 7, 7, *range(7, 17))
        node.log.roll()
        node.pass_time()
        read.append(read_but_for_the_check(node) - before)
        traffic = node.cleaner.runner.traffic
        assert traffic.new > (600 + 10) * 2_000 and traffic.written > 0
    assert read[0] < 0.75 * read[1]
    assert files(mine.fs, mine.log) == files(twin.fs, twin.log)
    assert indexed(mine.fs, mine.log) == closed(mine.log)
    assert used[True] >= 2


def test_the_next_clean_reads_nothing_of_files_that_are_the_same(tmp_path: Path) -> None:
    sizes = {"internal.segment.bytes": "1200000", "min.cleanable.dirty.ratio": "0"}
    configs = layers("log.cleaner.threads=1", **POLICY, **sizes)
    nodes = [
        Node(*configs, fs=PosixFileSystem(), dirs=(str(tmp_path / name),), index=name == "mine")
        for name in ("mine", "twin")
    ]
    read = []
    for node in nodes:
        send(node.log, *range(2_300))
        node.log.roll()
        node.pass_time()
        before = read_but_for_the_check(node)
        # The first of four segments loses a record; the last is merged with the dirty one.
        send(node.log, 7)
        node.log.roll()
        node.pass_time()
        read.append(read_but_for_the_check(node) - before)
    mine, twin = nodes
    assert files(mine.fs, mine.log) == files(twin.fs, twin.log)
    assert indexed(mine.fs, mine.log) == closed(mine.log)
    assert 1_200_000 < read[0] < 2_600_000 < read[1]


def test_indexes_that_are_there_are_kept_up_to_date_without_being_asked_for() -> None:
    mine, _ = pair()
    mine.manager.shutdown()
    again = Node(*CONFIGS, fs=mine.fs)
    send(again.log, *range(5))
    again.log.roll()
    again.pass_time()
    assert indexed(again.fs, again.log) == closed(again.log)


def test_a_log_that_is_deleted_takes_its_indexes_along() -> None:
    mine, _ = pair()
    mine.manager.async_delete(PARTITION)
    mine.pass_time(10 * 60_000)
    assert not [one for one in mine.fs.list("d1") if one.name.startswith("t-0")]


@pytest.mark.parametrize("name", ["forget_indexes", "take_over_indexes"])
def test_a_disk_that_fails_for_indexes_costs_the_log_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, twin = pair()

    def fail(*_: object) -> None:
        raise OSError(5, "an I/O error")

    monkeypatch.setattr(f"cordwood.storage.index.files.{name}", fail)
    for node in (mine, twin):
        send(node.log, *range(30))
        node.log.roll()
        node.pass_time()
        node.log.truncate_to(node.log.log_end_offset - 3)
        assert not node.manager.failures.failures
    assert files(mine.fs, mine.log) == files(twin.fs, twin.log)
    indexed(mine.fs, mine.log)
