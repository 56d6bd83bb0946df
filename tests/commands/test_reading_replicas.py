"""`get` and `table` of several brokers read the newest replica of each partition, or the named one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import cordwood
from cordwood.common.errors import NotFoundError, RequestError
from cordwood.common.types import TopicPartition
from cordwood.storage.formats.filenames import META_PROPERTIES
from tests.command import run
from tests.commands.cluster_scene import CLUSTER_ARCHIVE, directories
from tests.fixtures import copy_of, unpacked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def brokers() -> list[Path]:
    """The directories of three brokers; the third stopped first and the first last. Tests must not change them."""
    return directories(unpacked(CLUSTER_ARCHIVE))


def test_get_reads_the_newest_replica(brokers: list[Path]) -> None:
    result = cordwood.get(*brokers, keys=["k1"], topics=["orders"], last=True)
    (newest,) = result.records
    (alone,) = cordwood.get(brokers[0], keys=["k1"], topics=["orders"], last=True).records
    assert newest == alone and newest.value == "while only 1 runs1"
    (read,) = result.replicas
    assert str(read) == "orders-2 is read from broker 1: its end, 110, is the highest in leader epoch 1"
    assert (read.path, read.others) == (str(brokers[0] / "orders-2"), ("2", "3"))
    assert not cordwood.get(brokers[0], keys=["k1"], topics=["orders"]).replicas


@pytest.mark.parametrize("broker", ["1", "2", "3"])
def test_the_replica_that_the_user_names_is_read(brokers: list[Path], broker: str) -> None:
    chosen: dict[str, Any] = {"keys": ["k1", "k2"], "topics": ["orders"]}
    result = cordwood.get(*brokers, replica=broker, **chosen)
    assert result.records == cordwood.get(brokers[int(broker) - 1], **chosen).records
    assert {(one.broker, one.reason) for one in result.replicas} == {(broker, "named by --replica")}


def test_the_choice_is_in_the_text_and_in_the_json(brokers: list[Path]) -> None:
    chosen = ("--key", "k1", "--topic", "orders")
    assert run("get", *brokers, *chosen).output.startswith("orders-2 is read from broker 1: its end, 110, ")
    assert json.loads(run("get", *brokers, *chosen, "--replica", "2", "--json").output)["replicas"] == [
        {
            "topic": "orders",
            "partition": 2,
            "broker": "2",
            "path": str(brokers[1] / "orders-2"),
            "reason": "named by --replica",
            "others": ["1", "3"],
        }
    ]


def test_an_unknown_replica_is_refused(brokers: list[Path]) -> None:
    with pytest.raises(RequestError, match="replica=9: the directories are those of brokers 1, 2, 3"):
        cordwood.get(*brokers, keys=["k1"], replica="9")
    with pytest.raises(NotFoundError, match=r"broker 3 has no partition payments-1; brokers 1, 2 have it"):
        cordwood.table_offsets(*brokers, topic="payments", replica="3")
    assert (
        "the directories are those of broker 1"
        in run("get", brokers[0], "--key", "k", "--replica", "2", exits=2).output
    )


def test_a_table_is_that_of_the_newest_replica(brokers: list[Path], tmp_path: Path) -> None:
    def rows(*given: object) -> list[str]:
        return [line for line in run("table", *given, "--topic", "orders").output.splitlines() if line[:1] == "{"]

    assert rows(*brokers) == rows(brokers[0])
    assert rows(*brokers, "--replica", "3") == rows(brokers[2]) != rows(brokers[0])
    assert cordwood.table_offsets(*brokers, topic="orders") == cordwood.table_offsets(brokers[0], topic="orders")
    written = run("table", *brokers, "--topic", "orders", "--output", tmp_path / "table", "--engine", "here", "--json")
    document = json.loads(written.output)
    assert [(one["partition"], one["broker"]) for one in document["replicas"]] == [(0, "1"), (1, "1"), (2, "1")]
    facts = json.loads((tmp_path / "table" / "_cordwood.json").read_text())
    assert facts["replicas"] == document["replicas"]


def test_brokers_may_be_named_for_directories_without_meta_properties(brokers: list[Path], tmp_path: Path) -> None:
    copies = [copy_of(path, tmp_path / path.name) for path in brokers]
    for path in copies:
        (path / META_PROPERTIES).unlink()
    named = [f"{name}={path}" for name, path in zip("abc", copies, strict=True)]
    (read,) = cordwood.get(brokers=named, keys=["k1"], topics=["orders"]).replicas
    assert (read.topic_partition, read.broker) == (TopicPartition("orders", 2), "a")
    assert cordwood.table_offsets(brokers=named, topic="orders") == {0: 100, 1: 106, 2: 110}


def test_explain_replays_the_newest_replica(brokers: list[Path]) -> None:
    chosen: dict[str, Any] = {"topics": ["orders"], "partitions": ["2"], "overrides": ["max.compaction.lag.ms=1000"]}
    alone, together = (cordwood.explain(*paths, **chosen) for paths in (brokers[:1], brokers))
    third = cordwood.explain(*brokers, **chosen, replica="3")
    assert together.log == alone.log and third.log.records != together.log.records
    assert "orders-2 is read from broker 1: its end, 110, is the highest in leader epoch 1" in together.notes
    assert "orders-2 is read from broker 3: named by --replica" in third.notes


# ---- heal ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def damaged(brokers: list[Path], tmp_path: Path) -> list[Path]:
    """The directories of brokers 1 and 2; the batch 76–80 of orders-1 is damaged in those of broker 1."""
    paths = [copy_of(path, tmp_path / path.name) for path in brokers[:2]]
    log = paths[0] / "orders-1" / "00000000000000000071.log"
    data = bytearray(log.read_bytes())
    data[300] ^= 1
    log.write_bytes(data)
    return paths


def test_a_table_heals_damage_and_counts_it(brokers: list[Path], damaged: list[Path], tmp_path: Path) -> None:
    chosen = ("--topic", "orders")
    refused = " ".join(run("table", *damaged, *chosen, exits=1).output.split())
    assert "CRC-32C mismatch" in refused and "The replica of broker 2 has these bytes undamaged: --heal" in refused
    alone = run("table", damaged[0], *chosen, "--heal", exits=1).output
    assert "CRC-32C mismatch" in alone and "broker 2" not in alone

    def rows(printed: str) -> list[str]:
        return sorted(line for line in printed.splitlines() if line.startswith("{"))

    sound = run("table", *brokers[:2], *chosen).output
    healed = run("table", *damaged, *chosen, "--heal").output
    assert rows(healed) == rows(sound) != []
    assert "healed: 1 damaged batch was read from broker 2, in offsets 76 to 80 of" in healed
    written = run("table", *damaged, *chosen, "--heal", "--output", tmp_path / "t", "--engine", "here", "--json").output
    (one,) = json.loads(written)["healed"]
    assert (one["broker"], one["batches"], one["size_bytes"], one["start_offset"]) == ("2", 1, 191, 76)
    assert cordwood.table_offsets(*damaged, topic="orders", heal=True)[1] == 106


def test_get_heals_damage_and_counts_it(brokers: list[Path], damaged: list[Path]) -> None:
    chosen: dict[str, Any] = {"keys": ["k6"], "partitions": ["orders-1"]}
    sound = cordwood.get(*brokers[:2], **chosen)
    (problem,) = cordwood.get(*damaged, **chosen).problems
    assert str(problem).endswith("The replica of broker 2 has these bytes undamaged: --heal reads them from there")
    healed = cordwood.get(*damaged, **chosen, heal=True)
    assert [one.record for one in healed.records] == [one.record for one in sound.records]
    assert not healed.problems and [one.batches for one in healed.healed] == [1]
    printed = run("get", *damaged, "--key", "k6", "--partition", "orders-1", "--heal", "--json").output
    assert [one["broker"] for one in json.loads(printed)["healed"]] == ["2"]
    printed = run("get", *damaged, "--key", "k6", "--partition", "orders-1", "--heal").output
    assert "healed: 1 damaged batch was read from broker 2" in printed


@pytest.mark.more
def test_a_dataframe_is_healed(brokers: list[Path], damaged: list[Path], spark: SparkSession) -> None:
    healed = cordwood.latest_table(spark, *damaged, topic="orders", heal=True)
    sound = cordwood.latest_table(spark, *brokers[:2], topic="orders")
    assert sorted(healed.collect()) == sorted(sound.collect())


# ---- erase-check -----------------------------------------------------------------------------------------------------


def test_erase_check_names_the_replicas_in_which_a_key_still_is(brokers: list[Path]) -> None:
    result = cordwood.erase_check(*brokers, keys=["k3"], topics=["orders"])
    here = [one for one in result.replicas if one.topic_partition == TopicPartition("orders", 0)]
    assert [(one.broker, one.path) for one in here] == [
        (str(number), str(path / "orders-0")) for number, path in enumerate(brokers, 1)
    ]
    assert {one.broker for one in result.traces} == set(result.brokers) == {"1", "2", "3"}
    for trace in result.traces:
        assert trace.path.startswith(f"{brokers[int(trace.broker) - 1]}/")
    # A folder of all brokers is the same.
    folder = cordwood.erase_check(brokers[0].parent, keys=["k3"], topics=["orders"])
    assert (folder.replicas, folder.brokers) == (result.replicas, result.brokers)
    printed = run("erase-check", *brokers, "--key", "k3", "--topic", "orders", exits=1).output
    assert f"traces in orders-0 of broker 2, {brokers[1] / 'orders-0'}: " in printed


def test_erase_check_names_the_brokers_whose_replicas_were_not_searched(brokers: list[Path], tmp_path: Path) -> None:
    missing = "broker 3 has replicas of 1 partition (payments-0), and no given directory has them"
    assert missing in cordwood.erase_check(*brokers[:2], keys=["nobody"], topics=["payments"]).unknown
    assert not any("no given directory" in one for one in cordwood.erase_check(*brokers, keys=["nobody"]).unknown)
    third = copy_of(brokers[2], tmp_path / "third")
    (third / META_PROPERTIES).unlink()
    result = cordwood.erase_check(*brokers[:2], brokers=[f"3={third}"], keys=["k1"], topics=["payments"])
    assert result.brokers == ("1", "2", "3") and missing not in result.unknown
    document = json.loads(json.dumps(result.document()))
    assert [one["path"] for one in document["replicas"] if one["broker"] == "3"] == [str(third / "payments-0")]
