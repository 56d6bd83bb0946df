"""`clean --output --of cluster`: one replica of each partition, in a copy that a single broker starts on."""

from __future__ import annotations

import json
import shutil
import uuid
from pathlib import Path
from typing import Any

import pytest

import cordwood
from cordwood.common.errors import RequestError
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.formats import checkpoints
from cordwood.storage.formats.cluster_metadata import decode, encode_only_replica
from cordwood.storage.formats.filenames import CLEAN_SHUTDOWN, HIGH_WATERMARKS, META_PROPERTIES
from cordwood.storage.formats.properties import encode_id
from cordwood.storage.node.node import Node
from tests.command import run
from tests.commands.cluster_scene import CLUSTER_ARCHIVE, directories
from tests.fixtures import copy_of, unpacked
from tests.kafka_tools import Broker

#: The directory that broker 1 loses, so that the replica of broker 2 is the newest.
LOST = "orders-0"


@pytest.fixture
def brokers(tmp_path: Path) -> list[Path]:
    """Copies of the directories of three brokers; broker 1, which stopped last, has no replica of orders-0."""
    paths = [copy_of(path, tmp_path / path.name) for path in directories(unpacked(CLUSTER_ARCHIVE))]
    shutil.rmtree(paths[0] / LOST)
    return paths


def copied(paths: list[Path], target: Path, **options: Any) -> cordwood.CleanResult:
    return cordwood.clean(*paths, output=target, of="cluster", engine="here", **options)


def records(path: Path) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(one.offset, one.key, one.value) for one in cordwood.open_log(path).records()]


def test_each_partition_is_that_of_the_newest_replica(brokers: list[Path], tmp_path: Path) -> None:
    target = tmp_path / "one"
    result = copied(brokers, target)
    names = {path.name for broker in brokers for path in broker.iterdir() if path.is_dir()}
    assert {path.name for path in target.iterdir() if path.is_dir()} == names
    for name in names - {"__cluster_metadata-0"}:
        source = brokers[1] if name == LOST else brokers[0]
        assert records(target / name) == records(source / name), name
    assert "orders-0 is read from broker 2: its end, 80, is the highest in leader epoch 0" in result.notes
    assert any("make broker 1 the only replica of each partition" in one for one in result.notes)
    marks = checkpoints.decode((target / HIGH_WATERMARKS).read_bytes())
    assert {str(name): offset for name, offset in marks.items()}[LOST] == 80
    assert (target / META_PROPERTIES).read_bytes() == (brokers[0] / META_PROPERTIES).read_bytes()
    assert not (target / "__cluster_metadata-0" / "quorum-state").exists()


def test_the_metadata_makes_one_broker_the_only_replica(brokers: list[Path], tmp_path: Path) -> None:
    copied(brokers, tmp_path / "one")
    metadata = Node.open(PosixFileSystem(), [str(tmp_path / "one")]).metadata
    assert metadata is not None and not metadata.problems
    before = Node.open(PosixFileSystem(), [str(brokers[0])]).metadata
    assert before is not None
    assert {name: topic.topic_id for name, topic in metadata.topics.items()} == {
        name: topic.topic_id for name, topic in before.topics.items()
    }
    for topic in metadata.topics.values():
        for partition in topic.partitions.values():
            assert (partition.replicas, partition.isr, partition.leader) == ((1,), (1,), -1)
            assert len(partition.directories) == 1
            assert not (partition.eligible_leader_replicas or partition.adding_replicas or partition.last_known_elr)
    check = cordwood.check(tmp_path / "one")
    assert not check and check.start.line == "a broker starts and serves all 12 partitions"


@pytest.mark.parametrize(("has_id", "clears", "version"), [(False, False, 0), (True, False, 1), (True, True, 2)])
def test_a_record_has_the_fields_that_its_version_allows(*, has_id: bool, clears: bool, version: int) -> None:
    topic, directory = uuid.uuid4(), uuid.uuid4()
    data = encode_only_replica(topic, 7, 3, directory if has_id else None, clears_eligible=clears)
    assert data[:3] == bytes([1, 5, version])
    message, fields = decode(data) or (None, {})
    assert message is not None and message.name == "PartitionChangeRecord"
    assert (fields["partition_id"], fields["topic_id"], fields["leader"]) == (7, encode_id(topic), -1)
    assert fields["replicas"] == fields["isr"] == (3,) and fields["adding_replicas"] == ()
    assert fields.get("directories") == ((encode_id(directory),) if has_id else None)
    assert fields.get("eligible_leader_replicas") == (() if clears else None)


def test_what_no_directory_has_is_named(brokers: list[Path], tmp_path: Path) -> None:
    result = copied(brokers[:1], tmp_path / "one")
    assert any("no directory has 1 partition, without leader now: orders-0" in one for one in result.notes)


def test_a_copy_that_no_broker_would_start_on_is_refused(brokers: list[Path], tmp_path: Path) -> None:
    target = tmp_path / "one"
    with pytest.raises(RequestError, match=r"give .*broker-1 as a whole, not some of its partitions"):
        copied([brokers[0] / "orders-1", brokers[0] / "__cluster_metadata-0", brokers[1]], target)
    (brokers[1] / CLEAN_SHUTDOWN).unlink()
    with pytest.raises(RequestError, match="broker-2 was not shut down cleanly"):
        copied(brokers, target)
    for path in brokers:
        shutil.rmtree(path / "__cluster_metadata-0")
    with pytest.raises(RequestError, match="no directory has a metadata log"):
        copied(brokers, target)
    with pytest.raises(RequestError, match="so it needs a disk"):
        cordwood.clean(*directories(unpacked(CLUSTER_ARCHIVE)), output="memory://one", of="cluster")
    assert not target.exists()
    assert (
        "--of all: give broker or cluster"
        in run("clean", brokers[0], "--output", target, "--of", "all", exits=2).output
    )


@pytest.mark.more
def test_segments_are_cleaned_on_the_way(brokers: list[Path], tmp_path: Path) -> None:
    """The source is the newest replica, so it is cleaned up to the high watermark of its own broker."""
    chosen: dict[str, Any] = {"first_dirty": 0, "ignore_ratio": True, "topics": ["orders"]}
    result = copied(brokers, tmp_path / "one", **chosen)
    alone = cordwood.clean(brokers[1], output=tmp_path / "two", engine="here", **chosen)
    (here,), (there,) = ([one for one in found.partitions if one.name == LOST] for found in (result, alone))
    assert (here.fate, here.end_offset, here.counts) == (there.fate, there.end_offset, there.counts)
    assert records(tmp_path / "one" / LOST) == records(tmp_path / "two" / LOST)


def test_a_single_broker_serves_the_copy(brokers: list[Path], tmp_path: Path, kafka_broker: Broker) -> None:
    target = tmp_path / "one"
    run("clean", *brokers, "--output", target, "--of", "cluster", "--engine", "here")
    expected = {path.name: records(path) for path in target.iterdir() if path.is_dir()}
    kafka_broker.start(target)
    topics = ["orders", "payments", "plain"]
    answers = kafka_broker.client(target, [{"do": "describe_topics"}, {"do": "consume", "topics": topics}])
    served: dict[str, list[tuple[int, str | None, str | None]]] = {}
    for one in answers:
        if "value" in one:
            served.setdefault(f"{one['topic']}-{one['partition']}", []).append(
                (one["offset"], one["key"], one["value"])
            )
    wanted = {
        name: [(offset, key and key.decode(), value and value.decode()) for offset, key, value in some]
        for name, some in expected.items()
        if name.rpartition("-")[0] in topics
    }
    assert served == {name: some for name, some in wanted.items() if some}
    assert set(map(json.dumps, answers[0]["partitions"].values())) == {"[1, [1], [1]]"}
    assert not [path for path in target.iterdir() if "stray" in path.name]
    kafka_broker("stop", target)
    assert not cordwood.check(target)
