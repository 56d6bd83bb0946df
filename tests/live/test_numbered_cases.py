"""Cases of `docs/cases.md` that only a live log has, and no scenario."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext

import pytest

from cordwood.live.clean import LiveClean, run_here
from cordwood.live.indexes import LiveTransactionIndex
from cordwood.live.log_to_clean import log_to_clean
from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from cordwood.storage.formats.transaction_index import AbortedTransaction
from cordwood.testing.memory import MemoryFileSystem
from tests.live.cleaner_nodes import PARTITION, Node, layers, newest
from tests.live.live_logs import NOW_MS, World, read_all
from tests.live.nodes import ONE
from tests.live.nodes import Node as TwoDirectories

pytestmark = pytest.mark.more


@pytest.mark.parametrize("gone", ["some", "all"])
def test_retention_removes_segments_while_they_are_cleaned(gone: str) -> None:
    # case 153
    node = Node(*layers(**{"internal.segment.bytes": "100000", "cleanup.policy": "compact,delete"}))
    for number in range(5):
        node.append(f"a{number}", f"b{number}")
        node.log.roll()
    bases = [segment.base_offset for segment in node.log.log_segments]
    found = log_to_clean(PARTITION, node.log, None, node.now_ms)
    with LiveClean(node.fs, found, node.now_ms, lambda: None) as clean:
        outcome = run_here(clean.task, lambda: None)
        node.log.delete_records(bases[2] if gone == "some" else bases[-1])
        assert node.log.delete_old_segments() == (2 if gone == "some" else 5)
        clean.finish(outcome, nullcontext)
    # Kafka recreates a segment even after all were deleted; the next retention removes it.
    left = [0, bases[-1]] if gone == "some" else bases[-1:]
    assert [segment.base_offset for segment in node.log.log_segments] == left
    assert newest(node.log) == ({"a": "a4", "b": "b4"} if gone == "some" else {})
    assert isinstance(node.fs, MemoryFileSystem)
    deleted = Counter(line for line in node.fs.operations if line.startswith("rename") and ".log.deleted" in line)
    assert len(deleted) == 5 and set(deleted.values()) == {1}
    assert node.manager.failures.failures == ()
    node.manager.shutdown()
    again = Node(fs=node.fs)
    assert [segment.base_offset for segment in again.log.log_segments] == left


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_the_retention_task_leaves_compacted_logs_to_the_cleaner(policy: str) -> None:
    # case 165
    node = Node(*layers(**{"cleanup.policy": policy, "retention.ms": "1000", "retention.bytes": "100"}))
    for number in range(200):
        node.append(f"a{number}")
    node.now_ms += 10_000
    segments = node.log.log_segments
    node.manager.cleanup_logs()
    assert node.log.log_segments == segments and len(segments) > 20


def test_an_offset_that_does_not_fit_the_segment_begins_another_with_a_snapshot() -> None:
    # case 167
    world, far = World(), 2**31 + 1
    log = world.load({"segment.index.bytes": "1000"})
    for offset in (0, far):
        record = Record(offset, NOW_MS, b"k", b"v")
        log.append_as_follower(encode_batch([record], base_offset=offset, leader_epoch=0), 0)
        assert log.log_end_offset == offset + 1
    assert [segment.base_offset for segment in log.log_segments] == [0, far]
    assert world.fs.exists(f"logs/t-0/{far:020}.snapshot")


def test_a_transaction_index_is_cut_at_a_marker() -> None:
    # case 173
    aborted = [AbortedTransaction(7, *one) for one in ((0, 10, 11), (5, 15, 13), (18, 35, 25), (32, 50, 40))]
    fs = MemoryFileSystem(lambda: 0)
    index = LiveTransactionIndex(fs, "0.txnindex")
    for one in aborted:
        index.append(one)
    for offset, left in ((51, aborted), (50, aborted[:3])):
        index.truncate_to(offset)
        assert index.entries() == LiveTransactionIndex(fs, "0.txnindex").entries() == left


def test_a_start_that_is_broken_off_after_a_crash_leaves_no_mark_of_a_clean_shutdown() -> None:
    # case 180
    node = TwoDirectories()
    node.manager.startup()
    node.append(ONE, "a1", "b1")
    node.manager.shutdown()
    for path in node.dirs:
        node.fs.unlink(f"{path}/.kafka_cleanshutdown")
    node.start()

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        node.manager.startup(stop)
    node.manager.shutdown()
    assert not any(node.fs.exists(f"{path}/.kafka_cleanshutdown") for path in node.dirs)
    node.start()
    node.manager.startup()
    log = node.manager.get_log(ONE)
    assert log is not None and read_all(log) == {0: "a1", 1: "b1"}
    node.manager.shutdown()
    assert all(node.fs.exists(f"{path}/.kafka_cleanshutdown") for path in node.dirs)
