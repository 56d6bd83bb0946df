"""Three stopped brokers of a cluster, given together: Cordwood's answers are those of Kafka's tools before the stop.

`tests/data/cluster` has the directories and the tools' output; `cluster_scene` made them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import cordwood
from cordwood.commands import ls, why_node
from cordwood.commands.options import ListOptions
from cordwood.commands.why.facts import sums
from cordwood.common.types import TopicPartition, override
from cordwood.fs.base import FileInfo
from cordwood.fs.object_targets import ObjectTargetStore
from cordwood.fs.posix import PosixFileSystem
from cordwood.fs.wrapped import WrappedFileSystem
from cordwood.storage.formats.filenames import META_PROPERTIES
from cordwood.storage.node.listing import ReplicaRole
from cordwood.tasks.in_forks import in_forks
from tests.command import run
from tests.commands import cluster_scene
from tests.commands.cluster_scene import CLUSTER_ARCHIVE, ClusterAnswers, directories
from tests.commands.coordinator_scene import groups_as_told, hanging_as_told, transactions_as_told, without_defaults
from tests.fixtures import copy_of, unpacked
from tests.kafka_tools import Broker

NOW = 1_796_000_000_000
#: A partition with three replicas.
ORDERS = TopicPartition("orders", 0)


def recorded() -> ClusterAnswers:
    said = json.loads(CLUSTER_ARCHIVE.with_name("answers.json").read_text())
    return ClusterAnswers(**said | {"hanging": [(partition, id) for partition, id in said["hanging"]]})


@pytest.fixture
def brokers() -> list[Path]:
    """The directories of the three brokers; not to be changed."""
    return directories(unpacked(CLUSTER_ARCHIVE))


def agree(paths: list[Path], told: ClusterAnswers) -> None:
    """Assert that Cordwood answers as Kafka's tools did."""
    groups = cordwood.groups(*paths)
    assert groups_as_told(groups) == without_defaults(told.groups)
    assert groups.offsets_topic.is_whole and not groups.problems
    committed = [one for group in groups.groups for one in group.offsets if one.offset >= 0]
    assert len(committed) > 4
    for one in committed:
        _, _, end = told.ends[str(one.partition)]
        assert one.lag == end - one.offset, one
    configs = cordwood.configs(*paths).configs
    assert {" ".join(filter(None, (one.scope, one.subject, one.name))): one.value for one in configs} == told.configs
    transactions = cordwood.transactions(*paths)
    assert transactions_as_told(transactions) == told.transactions
    assert hanging_as_told(transactions) == told.hanging
    asked = datetime.fromtimestamp(told.asked_ms / 1000, UTC)
    topics = cordwood.topics(*paths, at=asked.isoformat())
    assert {
        f"{topic.name}-{number}": [one.leader, list(one.replicas), sorted(one.isr)]
        for topic in topics.topics
        for number, one in topic.partitions.items()
    } == told.partitions
    listing = cordwood.ls(*paths)
    sizes = {
        f"{one.broker} {one.name}": one.size_bytes for one in listing.partitions if one.name != "__cluster_metadata-0"
    }
    # The coordinators write to their logs when a broker stops, so only the others have the same size afterwards.
    data = {name for name in told.replicas if "__" not in name}
    assert {name: sizes[name] for name in data} == {name: told.replicas[name][0] for name in data}
    assert set(sizes) == set(told.replicas)
    ends = {str(one.topic_partition): one for one in listing.by_partition}
    for name, (start, _, end) in told.ends.items():
        newest = max(ends[name].replicas, key=lambda one: one.log_end_offset)
        assert (newest.log_start_offset, newest.log_end_offset) == (start, end), name


def test_answers_for_three_stopped_brokers_are_those_of_kafkas_tools(brokers: list[Path]) -> None:
    agree(brokers, recorded())


def test_brokers_that_the_user_names_answer_like_those_with_meta_properties(
    brokers: list[Path], tmp_path: Path
) -> None:
    copies = [copy_of(path, tmp_path / path.name) for path in brokers]
    for path in copies:
        (path / META_PROPERTIES).unlink()
    named, told = [f"{number}={path}" for number, path in enumerate(copies, 1)], recorded()
    assert groups_as_told(cordwood.groups(brokers=named)) == without_defaults(told.groups)
    assert transactions_as_told(cordwood.transactions(brokers=named)) == told.transactions
    replicas = {one.topic_partition: one.replicas for one in cordwood.ls(brokers=named).by_partition}
    assert [(one.broker, one.role) for one in replicas[ORDERS]] == [
        ("1", ReplicaRole.ELIGIBLE), ("2", ReplicaRole.NOT_IN_SYNC), ("3", ReplicaRole.NOT_IN_SYNC)
    ]  # fmt: skip
    assert "--broker a: give NAME=DIR" in run("ls", "--broker", "a", exits=2).output
    assert "Missing argument: give DIR" in run("groups", exits=2).output


def test_brokers_in_a_bucket_answer_alike(brokers: list[Path]) -> None:
    root = "memory://cluster/date=2026-11-29"
    for path in brokers:
        for file in filter(Path.is_file, path.rglob("*")):
            ObjectTargetStore().put(f"{root}/{file.relative_to(path.parent)}", file.read_bytes())
    urls = [f"{root}/{path.name}" for path in brokers]
    told = without_defaults(recorded().groups)
    assert groups_as_told(cordwood.groups(*urls)) == told
    # The name ends at the first equals sign.
    listing = cordwood.groups(brokers=[f"{name}={url}" for name, url in zip("abc", urls, strict=True)])
    assert (groups_as_told(listing), listing.brokers) == (told, ("a", "b", "c"))


def test_without_the_broker_that_stopped_last_the_next_one_is_read(brokers: list[Path]) -> None:
    listing = cordwood.groups(*brokers[1:], groups=["export"])
    offsets = {str(one.partition): one.offset for one in listing.groups[0].offsets}
    assert offsets == {"orders-0": 30, "orders-1": 8, "orders-2": 9}
    assert {log.broker for one in cordwood.transactions(*brokers[1:]).transactions for log in one.logs} == {"2", "3"}


def test_why_has_a_line_for_replicas_that_differ(brokers: list[Path]) -> None:
    result = cordwood.why(*brokers, partitions=["orders-0", "__consumer_offsets-0"])
    orders, offsets = sorted(result.partitions, key=lambda one: one.name, reverse=True)
    assert (orders.on_broker, [one.on_broker for one in orders.replicas]) == ("1", ["2", "3"])
    assert [orders.differs_from(one) for one in orders.replicas] == [True, True]
    assert not any(offsets.differs_from(one) for one in offsets.replicas)
    text = result.text()
    assert text.count("differs   broker 3: ") == 1 and "of brokers 1, 2, 3, up to " in text
    alone = [cordwood.why(path, partitions=["orders-0"]).partitions[0] for path in brokers]
    assert sums([orders])[0] == sum(one.usage.total_bytes for one in alone)
    differing = {one["topic"]: one["differing"] for one in result.document()["partitions"]}
    assert differing == {"orders": ["2", "3"], "__consumer_offsets": []}


def test_ls_has_a_line_per_replica_partition_topic_or_broker(brokers: list[Path]) -> None:
    def rows(by: str) -> list[list[str]]:
        printed = run("ls", *brokers, "--by", by, "--topic", "orders").output
        table = printed.split("\n\n")[1]
        return [line.split() for line in table.splitlines()[1:]]

    assert [row[:2] for row in rows("replica")] == [[f"orders-{n}", f"{b}"] for n in range(3) for b in (1, 2, 3)]
    assert [row[0] for row in rows("partition")] == ["orders-0", "orders-1", "orders-2"]
    assert " 60 – 100 " in run("ls", *brokers, "--by", "partition").output
    assert [row[:3] for row in rows("topic")] == [["orders", "3", "9"]]
    assert [row[0] for row in rows("broker")] == ["1", "2", "3"]
    assert "3 brokers, 3 partitions, 9 replicas" in run("ls", *brokers, "--topic", "orders").output


def test_a_plan_has_a_line_per_replica_and_a_copy_takes_one_broker(brokers: list[Path], tmp_path: Path) -> None:
    plan = cordwood.plan(*brokers, topics=["orders"], partitions=["0"])
    assert [one.name for one in plan.partitions] == [f"orders-0 (broker {number})" for number in (1, 2, 3)]
    refused = run("clean", *brokers, "--output", tmp_path / "new", exits=2).output
    assert "This takes the directories of one broker at a time" in " ".join(refused.split())


def test_each_broker_is_checked_by_itself(brokers: list[Path]) -> None:
    result = cordwood.check(*brokers)
    assert not result and list(result.brokers) == ["1", "2", "3"]
    assert [one.start.line for one in result.brokers.values()] == [
        f"a broker starts and serves all {count} partitions" for count in (12, 10, 10)
    ]
    assert "their metadata logs agree, as far as each goes" in result.text()
    lines = run("check", *brokers, "--json").lines
    assert [(one["type"], one["broker"], one["partitions"]) for one in lines] == [
        ("summary", "1", 13), ("summary", "2", 11), ("summary", "3", 11), ("summary", "", 35)
    ]  # fmt: skip


@pytest.mark.slow
def test_three_real_brokers_that_stop_one_by_one(kafka_broker: Broker, tmp_path: Path) -> None:
    told = cluster_scene.play(kafka_broker, tmp_path)
    agree(directories(tmp_path), told)


def test_several_processes_answer_like_one(brokers: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    alone = cordwood.ls(*brokers).document(), cordwood.why(*brokers, now_ms=NOW).document()
    pids = set()

    def noted(function: Callable[..., Any]) -> Callable[..., Iterator[Any]]:
        def call(forks: int, work: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
            for pid, result in function(forks, lambda item: (os.getpid(), work(item)), items):
                pids.add(pid)
                yield result

        return call

    for module in (ls, why_node):
        monkeypatch.setattr(module, "forks_for_brokers", lambda *_: 2)
        monkeypatch.setattr(module, "in_forks", noted(in_forks))
    assert (cordwood.ls(*brokers).document(), cordwood.why(*brokers, now_ms=NOW).document()) == alone
    assert len(pids) == 4 and os.getpid() not in pids


def test_a_listing_of_one_broker_lists_no_directory_of_another_one(brokers: list[Path]) -> None:
    listed = []

    class Noted(WrappedFileSystem):
        @override
        def list(self, path: str) -> Sequence[FileInfo]:
            listed.append(path)
            return super().list(path)

    ls.ls([str(brokers[0])], ListOptions(), fs=Noted(PosixFileSystem()))
    assert str(brokers[0]) in listed
    assert not [path for path in listed if path.startswith((str(brokers[1]), str(brokers[2])))]
