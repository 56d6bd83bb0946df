"""Power cuts at each file operation of a manager, with any subset of the unsynced changes lost.

All data that the manager reported as flushed exists after the next start, for us and for Kafka's loader; data that it
reported as deleted may exist or not; and every record was appended at some time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cordwood.common.errors import IllegalStateError
from cordwood.common.types import TopicPartition
from cordwood.fs.base import LocalFileSystem
from cordwood.fs.posix import PosixFileSystem
from cordwood.live.log import Log
from cordwood.live.log_manager import LogManager
from cordwood.live.scheduler import SteppedScheduler
from cordwood.storage.formats import filenames
from cordwood.storage.log.files import read_file
from cordwood.storage.log.view import LogView
from cordwood.testing.memory import MemoryFileSystem
from cordwood.testing.memory_journal import keep_all, lose_all
from tests.crashes import EVERY, Cuts, durable
from tests.kafka_tools import Oracle
from tests.live.live_logs import NOW_MS, batch, read_all
from tests.live.nodes import ONE, TWO, Node

pytestmark = pytest.mark.more

CONFIGS = (
    "segment.index.bytes=64",
    "index.interval.bytes=0",
    "internal.segment.bytes=200",
    "file.delete.delay.ms=0",
    "log.segment.delete.delay.ms=0",
    "k:cleanup.policy=compact",
    "k:min.cleanable.dirty.ratio=0.01",
)
COMPACTED = TopicPartition("k", 0)
#: No batch has this number of zeros in a row; a file has them if its length survived and its bytes did not.
_HOLE = bytes(32)


@dataclass
class Known:
    """The manager's promises before the power cut.

    Attributes:
        flushed: required values, by partition and offset.
        written: values appended at an offset, by partition; several after a truncation.
        ends: partitions that may be deleted, or have lost the records below an offset.
    """

    flushed: dict[TopicPartition, dict[int, str]] = field(default_factory=dict)
    written: dict[TopicPartition, dict[int, set[str]]] = field(default_factory=dict)
    may_be_gone: set[TopicPartition] = field(default_factory=set)
    start: dict[TopicPartition, int] = field(default_factory=dict)

    def forget(self) -> None:
        self.flushed, self.written, self.may_be_gone, self.start = {}, {}, set(), {}

    def value(self) -> Hashable:
        return (
            tuple((one, tuple(values)) for one, values in sorted(self.flushed.items())),
            tuple(sorted(self.may_be_gone)),
            tuple(sorted(self.start.items())),
        )


@dataclass
class Story:
    """A manager, and the expected state of its logs."""

    node: Node
    known: Known

    def append(self, partition: TopicPartition, *values: str) -> Log:
        log = self.node.manager.get_or_create_log(partition, is_new=True)
        for value in values:
            self.known.written.setdefault(partition, {}).setdefault(log.log_end_offset, set()).add(value)
            log.append_as_leader(batch(value), 0)
        log.update_high_watermark(log.log_end_offset)
        return log

    def flush(self, partition: TopicPartition) -> None:
        log = self.node.manager.logs[partition]
        log.flush()
        self.known.flushed[partition] = read_all(log)


def checkpoints(story: Story) -> None:
    log = story.append(ONE, "a0", "a1", "a2")
    story.flush(ONE)
    story.node.manager.checkpoint_log_recovery_offsets()
    story.append(ONE, "a3", "a4")
    story.flush(ONE)
    story.known.start[ONE] = 2
    log.delete_records(2)
    story.node.manager.checkpoint_log_start_offsets()
    story.node.manager.checkpoint_high_watermarks()
    story.append(ONE, "a5")
    story.node.manager.checkpoint_log_recovery_offsets()


def retains(story: Story) -> None:
    story.append(ONE, *(f"a{number}" for number in range(8)))
    story.flush(ONE)
    story.known.start[ONE] = 8
    story.node.manager.update_topic_config("t", {"retention.bytes": "150"})
    story.node.manager.cleanup_logs()
    story.node.pass_time(1)


def deletes(story: Story) -> None:
    for partition in (ONE, TWO):
        story.append(partition, "a0", "a1")
        story.flush(partition)
    story.known.may_be_gone.add(ONE)
    story.node.manager.async_delete(ONE)
    story.node.pass_time(60_000)


def truncates(story: Story) -> None:
    story.append(ONE, *(f"a{number}" for number in range(6)))
    story.flush(ONE)
    story.node.manager.checkpoint_log_recovery_offsets()
    story.known.flushed[ONE] = {0: "a0", 1: "a1"}
    story.node.manager.truncate_to({ONE: 2})
    story.append(ONE, "b2", "b3")
    story.flush(ONE)
    story.known.flushed[ONE] = {}
    story.known.may_be_gone.add(ONE)
    story.node.manager.truncate_fully_and_start_at(ONE, 9)
    story.append(ONE, "c9")


def cleans(story: Story) -> None:
    story.append(COMPACTED, *(f"{key}{number}" for number in range(4) for key in "abc"))
    log = story.node.manager.logs[COMPACTED]
    log.flush()
    newest = {value[:1]: (offset, value) for offset, value in read_all(log).items()}
    story.known.flushed[COMPACTED] = dict(sorted(newest.values()))
    story.node.pass_time(15_000)
    story.node.pass_time(1)


def shuts_down(story: Story) -> None:
    story.append(ONE, "a0", "a1", "a2")
    story.append(COMPACTED, "a0", "b1")
    story.node.manager.shutdown()
    # The manager treats a power cut in one of its threads as a disk failure, and warns; then it has promised nothing.
    fs = story.node.fs
    if not all(fs.exists(f"{disk}/{filenames.CLEAN_SHUTDOWN}") for disk in ("d1", "d2") if fs.exists(disk)):
        return
    story.known.flushed = {ONE: {0: "a0", 1: "a1", 2: "a2"}, COMPACTED: {0: "a0", 1: "b1"}}


ACTS = (checkpoints, retains, deletes, truncates, cleans, shuts_down)


def cuts_of(
    act: Callable[[Story], None],
    known: Known,
    dirs: tuple[str, ...] = ("d1", "d2"),
    always: Callable[[MemoryFileSystem], bool] = lambda _: False,
) -> Cuts:
    def run(fs: LocalFileSystem) -> None:
        known.forget()
        node = Node(*CONFIGS, fs=fs, dirs=dirs)
        node.manager.startup()
        act(Story(node, known))

    start = MemoryFileSystem(lambda: NOW_MS * 1_000_000)
    every = max(1, EVERY // 4)
    return Cuts(durable(start), run, sampled=3, subsets_max=3, every=every, always=always, known=known.value)


def check(known: Known, found: dict[TopicPartition, dict[int, str]], starts: dict[TopicPartition, int]) -> None:
    """Check that logs hold all required values, and only allowed ones."""
    for partition, values in known.flushed.items():
        if partition in known.may_be_gone and partition not in found:
            continue
        start = max(known.start.get(partition, 0), starts.get(partition, 0))
        for offset, value in values.items():
            if offset >= start and partition not in known.may_be_gone:
                assert found.get(partition, {}).get(offset) == value, f"{partition}, offset {offset} was flushed"
    for partition, values in found.items():
        for offset, value in values.items():
            assert value in known.written[partition][offset], "nothing is there that was never appended"


@pytest.mark.parametrize("act", ACTS)
def test_what_a_manager_has_flushed_is_there_after_a_power_cut(
    act: Callable[[Story], None], record_property: Callable[[str, object], None]
) -> None:
    known = Known()
    cuts = cuts_of(act, known)
    for after in cuts:
        node = Node(*CONFIGS, fs=after)
        node.manager.startup()
        logs = node.manager.logs
        starts = {partition: log.log_start_offset for partition, log in logs.items()}
        check(known, {partition: read_all(log) for partition, log in logs.items()}, starts)
        log = node.append(ONE, "z1")
        assert read_all(log)[log.log_end_offset - 1] == "z1", "it goes on from there"
    cuts.tell(record_property, f"a manager that {act.__name__.replace('_', ' ')}")
    assert cuts.different > 10


def test_a_log_that_moves_is_whole_in_one_directory_whenever_the_power_is_cut(
    record_property: Callable[[str, object], None],
) -> None:
    known = Known()
    values = {number: f"a{number}" for number in range(5)}

    def moves(story: Story) -> None:
        log = story.append(ONE, *values.values())
        story.flush(ONE)
        (target,) = set(story.node.manager.live_log_dirs) - {log.parent_directory}
        story.node.manager.move_partition(ONE, target)
        story.node.pass_time(60_000)

    def is_between_the_two_renames(fs: MemoryFileSystem) -> bool:
        return fs.exists("d1/t-0") and fs.exists("d2/t-0")

    cuts, refused = cuts_of(moves, known, always=is_between_the_two_renames), 0
    for after in cuts:
        try:
            node = Node(*CONFIGS, fs=after)
            node.manager.startup()
        except IllegalStateError:  # as a broker would
            refused += 1
            assert known.flushed
            for directory in ("d1", "d2"):
                kept = {record.offset: record.value for record in LogView(f"{directory}/t-0", fs=after).records()}
                assert kept == {offset: value.encode() for offset, value in values.items()}
            continue
        check(known, {partition: read_all(log) for partition, log in node.manager.logs.items()}, {})
    cuts.tell(record_property, "a manager that moves a log")
    assert cuts.different > 10 and refused


@pytest.mark.kafka
@pytest.mark.parametrize("act", ACTS)
def test_kafka_finds_what_was_flushed_after_a_power_cut(
    act: Callable[[Story], None], kafka_oracle: Oracle, tmp_path: Path
) -> None:
    known = Known()
    cases: list[tuple[Path, Known]] = []
    states = [
        (fs, Known(dict(known.flushed), dict(known.written), set(known.may_be_gone), dict(known.start)))
        for fs in cuts_of(act, known, dirs=("d1",))
    ]
    chosen = random.Random(1).sample(states, min(25, len(states)))
    for number, (fs, then) in enumerate(chosen):
        place = tmp_path / str(number)
        _write(fs, "d1", place)
        cases.append((place, then))
    config = [word for text in CONFIGS[:3] for word in ("--config", text.replace("internal.", ""))]
    # Without a partition it wants no configs.
    asked = [
        ("select", place, "--now", str(NOW_MS), *(config if list(place.glob("*/*.log")) else ())) for place, _ in cases
    ]
    for (place, then), lines in zip(cases, kafka_oracle.batch(asked, exits=(0, 1)), strict=True):
        if not lines:
            # Where an index is missing, Kafka reads the segments below before it has recovered them, and fails on bytes
            # that were lost. No order of writing helps: a broker's own crash leaves the same.
            assert any(_HOLE in path.read_bytes() for path in place.glob("*/*.log")), place
            continue
        found: dict[TopicPartition, dict[int, str]] = {}
        starts: dict[TopicPartition, int] = {}
        for line in lines:
            if line["type"] == "log":
                topic, _, partition = line["partition"].rpartition("-")
                name = TopicPartition(topic, int(partition))
                log = LogView(str(place / line["partition"]), fs=PosixFileSystem())
                starts[name] = max(line["log_start"], log.segments[0].base_offset)
                found[name] = {
                    record.offset: (record.value or b"").decode()
                    for record in log.records()
                    if record.offset >= starts[name]
                }
        check(then, found, starts)


def _write(fs: MemoryFileSystem, directory: str, place: Path) -> None:
    """Write the contents of a directory to disk; the lock is free."""
    place.mkdir(parents=True, exist_ok=True)
    if not fs.exists(directory):
        return
    for info in fs.list(directory):
        if info.is_directory:
            if not info.name.endswith(("-delete", filenames.WORK_FOLDER)):
                _write(fs, f"{directory}/{info.name}", place / info.name)
        elif info.name != filenames.LOCK:
            (place / info.name).write_bytes(read_file(fs, f"{directory}/{info.name}"))


def test_a_power_cut_after_a_start_does_not_bring_back_the_mark_of_a_clean_shutdown() -> None:
    fs = MemoryFileSystem(lambda: NOW_MS * 1_000_000)

    def started() -> LogManager:
        manager = LogManager(fs, ["logs"], scheduler=SteppedScheduler(lambda: NOW_MS))
        manager.startup()
        return manager

    started().shutdown()
    fs = fs.crash(keep_all)
    mark = f"logs/{filenames.CLEAN_SHUTDOWN}"
    assert fs.exists(mark)
    started()
    assert not fs.crash(lose_all).exists(mark)
