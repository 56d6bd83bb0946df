"""The gauges of partitions: their values, and their limited number."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from cordwood.cleaning.rules.plan import Reason
from cordwood.common.errors import CleanFailedError
from cordwood.common.types import TopicPartition
from cordwood.live.gauges import PARTITIONS_MAX, of_partitions
from cordwood.live.report import PartitionStatus
from cordwood.live.status import statuses
from tests.live.cleaner_nodes import PARTITION, Node, damage, layers

OF = "topic=t,partition=0"


def shown(found: Sequence[PartitionStatus], longest_due_ms: int = 0) -> dict[str, Any]:
    """By the end of the name; that of a partition has its tags."""
    return {
        str(name).removeprefix("cordwood.log:type=").replace(",name=", " "): value
        for name, value in of_partitions(found, longest_due_ms)
    }


def of_node(node: Node) -> dict[str, Any]:
    return shown(statuses(node.manager, node.now_ms, {}, {}))


def test_a_dirty_log_is_so_until_it_is_cleaned_and_then_its_age_begins_anew() -> None:
    node = Node(*layers("log.cleaner.backoff.ms=20000"))
    node.pass_time(1)
    node.fill()
    node.pass_time(10_000)
    before = of_node(node)
    closed = sum(segment.size_bytes for segment in node.log.log_segments[:-1])
    assert before[f"Partition dirty-bytes,{OF}"] == before["Partitions dirty-bytes"] == closed
    assert before[f"Partition dirty-ratio,{OF}"] == 1
    assert (before["Partitions due-count"], before["Partitions due-bytes"]) == (1, closed)
    assert before[f"Partition size-bytes,{OF}"] == before["Partitions size-bytes"] == node.log.size_bytes
    assert before[f"Partition seconds-since-clean,{OF}"] == 10, "since the start"
    node.pass_time(10_000)
    after = of_node(node)
    assert after[f"Partition dirty-bytes,{OF}"] < closed
    assert after[f"Partition seconds-since-clean,{OF}"] == 0
    node.pass_time(7_000)
    assert of_node(node)[f"Partition seconds-since-clean,{OF}"] == 7


def test_a_log_that_is_not_compacted_has_a_size_and_no_dirty_part() -> None:
    node = Node("t:cleanup.policy=delete")
    node.fill()
    found = of_node(node)
    assert found[f"Partition size-bytes,{OF}"] == node.log.size_bytes
    assert [name for name in found if name.startswith("Partition ")] == [f"Partition size-bytes,{OF}"]


def test_a_log_that_cannot_be_cleaned_says_of_which_kind_its_failure_is() -> None:
    node = Node()
    assert of_node(node)["Partitions uncleanable-count,kind=damage"] == 0
    node.fill()
    damage(node)
    node.pass_time()
    found = of_node(node)
    assert found[f"Partition uncleanable,{OF},kind=damage"] == 1
    assert found["Partitions uncleanable-count,kind=damage"] == 1
    node.pass_time(60_000)
    assert of_node(node)[f"Partition uncleanable,{OF},kind=damage"] == 2, "so often it was tried"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.ENOSPC, "no space"), "full"),
        (CleanFailedError("no room for the keys", "memory"), "memory"),
        (ValueError("a bug"), "bug"),
    ],
)
def test_the_kind_of_a_failure_is_that_of_its_error(
    error: Exception, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node()
    node.fill()

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(node.cleaner.runner, "run", fail)
    node.pass_time()
    assert of_node(node)[f"Partition uncleanable,{OF},kind={kind}"] == 1


def test_a_log_that_a_program_has_marked_is_of_a_kind_of_its_own() -> None:
    node = Node()
    node.cleaner.manager.mark_partition_uncleanable("d1", PARTITION)
    assert of_node(node)[f"Partition uncleanable,{OF},kind=marked"] == 1


def many(count: int) -> list[PartitionStatus]:
    """Logs, each dirtier than the previous one; one in the middle cannot be cleaned."""
    one = PartitionStatus(
        *(TopicPartition("t", 0), "d", "compact", 1, 1_000, 0, 0, 0, 10, 10, 0.0, None),
        is_due=False,
        failures=0,
        reason=Reason(""),
        seconds_since_clean=5,
    )
    found = [
        replace(one, partition=TopicPartition("t", at), cleanable_ratio=at / count, dirty_bytes=at)
        for at in range(count)
    ]
    found[count // 2] = replace(found[count // 2], failures=3, failure_kind="other")
    return found


def test_of_very_many_partitions_there_are_sums_and_the_worst_ones() -> None:
    count = PARTITIONS_MAX + 1
    limited = shown(many(count))
    assert (limited["Partitions is-limited"], limited["Partitions shown-count"]) == (1, 100)
    assert limited["Partitions count"] == count
    assert limited["Partitions size-bytes"] == 1_000 * count
    assert limited["Partitions dirty-bytes"] == sum(range(count))
    sizes = [name for name in limited if name.startswith("Partition size-bytes")]
    worst = [count // 2, *range(count - 99, count)]
    assert sorted(sizes) == sorted(f"Partition size-bytes,topic=t,partition={at}" for at in worst)
    assert limited[f"Partition uncleanable,topic=t,partition={count // 2},kind=other"] == 3
    assert len(limited) < 450


def test_up_to_the_limit_each_partition_has_its_gauges() -> None:
    found = shown(many(PARTITIONS_MAX))
    assert (found["Partitions is-limited"], found["Partitions shown-count"]) == (0, PARTITIONS_MAX)
    assert sum(name.startswith("Partition size-bytes") for name in found) == PARTITIONS_MAX


def test_without_partitions_all_sums_are_zero() -> None:
    found = shown([])
    assert found and not any(found.values())


def test_how_long_the_longest_has_been_due_is_in_seconds() -> None:
    assert shown([], 90_500)["Partitions longest-due-seconds"] == 90.5
