"""States of live logs, claims of cleans, checkpoints, and logs that cannot be cleaned: Kafka's rules, and ours."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from cordwood.common.errors import IllegalStateError, LogCleaningAbortedError
from cordwood.common.types import TopicPartition
from cordwood.live.cleaner_manager import ABORTED, IN_PROGRESS, Claim, LogCleanerManager, Paused
from cordwood.live.log import Log
from cordwood.live.log_to_clean import log_to_clean
from cordwood.storage.formats import checkpoints
from cordwood.storage.formats.filenames import FileKind
from cordwood.storage.log.files import read_file, write_file
from tests.live.cleaner_nodes import PARTITION, Node, damage, layers, newest, repair, send

OTHER = TopicPartition("t", 1)


def manager_of(node: Node) -> LogCleanerManager:
    return node.cleaner.manager


def claimed(node: Node) -> Claim:
    """The claim of a clean of the node's log."""
    claim = manager_of(node).claim_filthiest_compacted_log(node.now_ms)
    assert claim is not None
    return claim


def with_policy(policy: str) -> Node:
    """A node whose topic may get another policy."""
    node = Node(*(line for line in layers() if "policy" not in line))
    node.manager.update_topic_config("t", {"cleanup.policy": policy})
    return node


def other_log(node: Node, rounds: int) -> Log:
    log = node.manager.get_or_create_log(OTHER, is_new=True)
    for number in range(rounds):
        send(log, f"a{number}")
    return log


# ---- states ----------------------------------------------------------------------------------------------------------


def test_a_deletion_while_retention_has_paused_the_log_leaves_no_state() -> None:
    # case 57
    node = Node(*layers(**{"cleanup.policy": "delete"}))
    assert list(manager_of(node).pause_cleaning_for_non_compacted_partitions()) == [PARTITION]
    manager_of(node).abort_cleaning(PARTITION)
    assert manager_of(node).cleaning_state(PARTITION) == Paused(1)
    manager_of(node).resume_cleaning([PARTITION])
    assert manager_of(node).cleaning_state(PARTITION) is None


def test_a_log_paused_by_retention_that_becomes_compact_waits_for_the_resume() -> None:
    # case 58
    node = with_policy("delete")
    node.fill()
    manager = manager_of(node)
    manager.pause_cleaning_for_non_compacted_partitions()
    node.manager.update_topic_config("t", {"cleanup.policy": "compact"})
    assert manager.grab_filthiest_compacted_log(node.now_ms) is None
    manager.resume_cleaning([PARTITION])
    assert manager.grab_filthiest_compacted_log(node.now_ms) is not None
    node.log.update_config(node.manager.topic_config("u"))  # its policy is delete
    assert manager.pause_cleaning_for_non_compacted_partitions() == {}
    manager.done_cleaning(PARTITION, "d1", 3)
    assert list(manager.pause_cleaning_for_non_compacted_partitions()) == [PARTITION]


@pytest.mark.parametrize(("policy", "deletable"), [("delete", 0), ("compact", 1), ("compact,delete", 1)])
def test_retention_pauses_what_is_not_compacted_and_the_cleaner_has_the_rest(policy: str, deletable: int) -> None:
    # case 59
    node = Node(*layers(**{"cleanup.policy": policy}))
    manager = manager_of(node)
    paused = manager.pause_cleaning_for_non_compacted_partitions()
    assert len(paused) == 1 - deletable
    manager.resume_cleaning(paused)
    found = manager.deletable_logs()
    assert len(found) == deletable
    manager.done_deleting(found)
    manager.mark_partition_uncleanable("d1", PARTITION)
    assert manager.deletable_logs() == {}


def test_a_policy_that_stops_to_be_compact_aborts_the_clean_and_the_reverse_does_not() -> None:
    # case 166
    node = with_policy("compact")
    node.fill()
    claim = claimed(node)
    node.manager.update_topic_config("t", {"cleanup.policy": "delete"})
    assert claim.is_lost and manager_of(node).cleaning_state(PARTITION) is None
    node.manager.update_topic_config("t", {"cleanup.policy": "compact"})
    claim = claimed(node)
    node.manager.update_topic_config("t", {"cleanup.policy": "compact,delete"})
    assert not claim.is_lost


# ---- claims ----------------------------------------------------------------------------------------------------------


def test_an_abort_takes_the_claim_away_and_waits_for_nobody() -> None:
    # case 21
    node = Node()
    node.fill()
    claim = claimed(node)
    assert manager_of(node).cleaning_state(PARTITION) == IN_PROGRESS
    claim.check()
    manager_of(node).abort_and_pause_cleaning(PARTITION)
    assert manager_of(node).cleaning_state(PARTITION) == Paused(1)
    with pytest.raises(LogCleaningAbortedError, match="t-0"):
        claim.check()
    with pytest.raises(LogCleaningAbortedError), claim.changing():
        raise AssertionError("a clean without a claim must not get here")
    manager_of(node).release(claim, 7)
    assert manager_of(node).cleaning_state(PARTITION) == Paused(1) and node.checkpoint() is None


def test_a_clean_that_was_aborted_disturbs_none_that_began_later() -> None:
    node = Node()
    node.fill()
    before = claimed(node)
    manager_of(node).abort_cleaning(PARTITION)
    after = claimed(node)
    manager_of(node).release(before, 5)
    after.check()
    assert manager_of(node).cleaning_state(PARTITION) == IN_PROGRESS
    manager_of(node).release(after, 7)
    assert manager_of(node).cleaning_state(PARTITION) is None and node.checkpoint() == 7


def test_an_abort_waits_for_the_group_that_is_being_swapped_in_and_no_longer() -> None:
    node = Node()
    node.fill()
    manager, claim, ended = manager_of(node), claimed(node), threading.Event()

    def abort() -> None:
        manager.abort_and_pause_cleaning(PARTITION)
        ended.set()

    thread = threading.Thread(target=abort)
    with claim.changing():
        thread.start()
        while manager.cleaning_state(PARTITION) != ABORTED:
            pass
        assert not ended.wait(0.3) and not claim.is_lost
        with pytest.raises(IllegalStateError, match="since it is in aborted state"):
            manager.abort_and_pause_cleaning(PARTITION)
    thread.join()
    assert claim.is_lost and manager.cleaning_state(PARTITION) == Paused(1)


def test_a_log_is_not_in_progress_for_good_whatever_fails_at_the_end_of_its_clean() -> None:
    node = Node()
    node.fill()
    manager = manager_of(node)
    # Kafka's cleaner thread dies of this error, and the log stays in progress.
    write_file(node.fs, "d1/cleaner-offset-checkpoint", b"0\n1\nt 0 x\n")
    claim = claimed(node)
    manager.release(claim, 7)
    assert manager.cleaning_state(PARTITION) is None and node.checkpoint() == 7
    claim = claimed(node)
    with mock.patch.object(manager, "update_checkpoints", side_effect=MemoryError), pytest.raises(MemoryError):
        manager.release(claim, 9)
    assert manager.cleaning_state(PARTITION) is None


# ---- choosing --------------------------------------------------------------------------------------------------------


def test_the_filthiest_log_is_claimed_and_only_that_one_is_in_progress() -> None:
    node = Node()
    node.fill()
    log = other_log(node, 40)
    node.pass_time()
    node.fill()
    for number in range(5):
        send(log, f"b{number}")
    first = claimed(node)
    assert first.selection.cleanable_partitions == 2
    assert (first.found.partition, manager_of(node).cleaning_state(OTHER)) == (PARTITION, None)
    second = claimed(node)
    assert second.found.partition == OTHER
    assert first.found.cleanable_ratio > second.found.cleanable_ratio


def test_a_log_that_cannot_be_looked_at_is_uncleanable_and_the_others_are_cleaned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # case 46
    node = Node(*layers(**{"min.compaction.lag.ms": "1000"}))
    node.fill()
    log = other_log(node, 20)
    broken = {one.path(FileKind.LOG) for one in node.log.log_segments}

    def fail(segment: Any) -> int:
        if segment.path(FileKind.LOG) in broken:
            raise ValueError("no such timestamp")
        return 0

    monkeypatch.setattr("cordwood.live.segment.LogSegment.largest_timestamp", property(fail))
    node.pass_time()
    marked = manager_of(node).uncleanable(PARTITION)
    assert marked is not None and "no such timestamp" in marked.reason and node.cleaner.restarts == 0
    assert len(newest(log)) == 1 and len(list(log.records())) < 10
    assert manager_of(node).uncleanable_bytes("d1", node.now_ms) == 0, "that cannot be said, either"


@pytest.mark.parametrize("seed", range(8))
def test_what_was_found_of_a_log_before_is_used_only_while_it_holds(seed: int) -> None:
    node, chosen = Node(), random.Random(seed)
    manager = manager_of(node)
    acts: list[Callable[[], object]] = [
        lambda: node.append("a1"),
        lambda: node.append("b1", "c1", "d1"),
        node.log.roll,
        lambda: node.log.update_high_watermark(chosen.randrange(node.log.log_end_offset + 1)),
        lambda: node.log.maybe_increment_log_start_offset(chosen.randrange(node.log.high_watermark + 1)),
        lambda: node.manager.truncate_to({PARTITION: chosen.randrange(node.log.log_end_offset + 1)}),
        node.log.delete_old_segments,
        lambda: manager.update_checkpoints("d1", add=(PARTITION, chosen.randrange(node.log.log_end_offset + 2))),
        lambda: node.manager.update_topic_config("t", {"delete.retention.ms": chosen.choice("01")}),
        node.pass_time,
    ]
    for _ in range(60):
        chosen.choice([*acts, *acts[:2] * 4])()
        known = manager.all_cleaner_checkpoints().get(PARTITION)
        expected = log_to_clean(PARTITION, node.log, known, node.now_ms)
        claim = manager.claim_filthiest_compacted_log(node.now_ms)
        assert (claim and claim.found) == (expected if expected.is_due else None)
        if claim is not None:
            manager.abort_cleaning(PARTITION)
            manager.release(claim, 0)


# ---- checkpoints -----------------------------------------------------------------------------------------------------


def test_the_entries_of_a_directory_that_failed_are_gone() -> None:
    # case 61
    node = Node(dirs=("d1", "d2"))
    other_log(node, 2)
    manager = manager_of(node)
    places = {log.parent_directory: one for one, log in node.manager.logs.items()}
    for path, one in places.items():
        manager.update_checkpoints(path, add=(one, 17))
    assert manager.all_cleaner_checkpoints() == dict.fromkeys(places.values(), 17)
    manager.handle_log_dir_failure("d1")
    assert manager.all_cleaner_checkpoints() == {places["/d2"]: 17}
    manager.update_checkpoints("d1", add=(PARTITION, 3))
    assert manager.all_cleaner_checkpoints() == {places["/d2"]: 17}


def test_the_entry_of_a_log_that_moves_is_in_the_other_file_and_goes_with_it() -> None:
    # case 63
    node = Node(dirs=("d1", "d2"))
    manager = manager_of(node)
    manager.update_checkpoints("d1", add=(PARTITION, 17))
    manager.alter_checkpoint_dir(PARTITION, "d1", "d2")
    assert manager.all_cleaner_checkpoints() == {PARTITION: 17}
    assert checkpoints.decode(read_file(node.fs, "d1/cleaner-offset-checkpoint")) == {}
    manager.handle_log_dir_failure("d2")
    assert manager.all_cleaner_checkpoints() == {}


def test_a_partition_in_the_files_of_two_directories_counts_where_its_log_is() -> None:
    node = Node(dirs=("d1", "d2"))
    node.fill()
    for path, offset in (("d1", 3), ("d2", 5)):
        write_file(node.fs, f"{path}/cleaner-offset-checkpoint", checkpoints.encode({PARTITION: offset, OTHER: offset}))
    expected = {"/d1": 3, "/d2": 5}[node.log.parent_directory]
    assert manager_of(node).all_cleaner_checkpoints() == {PARTITION: expected, OTHER: 3}
    node.pass_time()
    assert len(list(node.log.records())) < 20, "Kafka's cleaner thread would be dead"


# ---- logs that cannot be cleaned -------------------------------------------------------------------------------------


def test_a_log_that_moves_stays_uncleanable_for_the_same_time() -> None:
    node = Node(dirs=("d1", "d2"))
    node.fill()
    byte = damage(node)
    node.pass_time()
    marked = manager_of(node).uncleanable(PARTITION)
    assert marked is not None
    repair(node, byte)
    (target,) = set(node.manager.live_log_dirs) - {node.log.parent_directory}
    moved = node.manager.move_partition(PARTITION, target)
    assert manager_of(node).uncleanable(PARTITION) == marked
    assert manager_of(node).uncleanable_partitions(target) == {PARTITION}
    node.pass_time()
    assert len(list(moved.records())) == 40, "too early"
    node.pass_time(60_000)
    assert manager_of(node).uncleanable(PARTITION) is None and len(list(moved.records())) < 10


def test_a_new_log_of_the_same_name_is_cleaned_at_once() -> None:
    node = Node()
    node.fill()
    damage(node)
    node.pass_time()
    assert manager_of(node).uncleanable(PARTITION) is not None
    node.manager.async_delete(PARTITION)
    node.log = node.manager.get_or_create_log(PARTITION, is_new=True)
    assert manager_of(node).uncleanable(PARTITION) is None
    node.fill()
    node.pass_time()
    assert len(list(node.log.records())) < 10


def test_the_pause_doubles_with_each_failure_up_to_an_hour() -> None:
    node = Node()
    manager = manager_of(node)
    pauses = [(manager.note_failure("d1", PARTITION, "why").retry_at_ms or 0) - node.now_ms for _ in range(9)]
    assert pauses == [60_000 * 2**at for at in range(6)] + [3_600_000] * 3
    manager.mark_partition_cleanable("d1", PARTITION)
    assert manager.note_failure("d1", PARTITION, "why").retry_at_ms == node.now_ms + 60_000
