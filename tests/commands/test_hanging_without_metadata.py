"""Hanging transactions in directories without a metadata log, as of a ZooKeeper cluster; then a real broker on them.

Kafka 4 needs a metadata log, so it is put back before the broker starts.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import cordwood
from cordwood.cli.demo import unpack
from cordwood.commands.why.facts import CauseKind
from cordwood.common.errors import RequestError
from cordwood.storage.formats.filenames import FileKind, offset_name
from tests.commands.coordinator_scene import DEMO, STILL, hanging, hanging_as_told
from tests.kafka_tools import Broker

pytestmark = pytest.mark.more

METADATA = "__cluster_metadata-0"
COUNT = "transaction.state.log.num.partitions"
#: Configs that the metadata log would contain.
GIVEN = (f"{COUNT}=2", "cleanup.policy=compact")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A stopped broker's directory with two hanging transactions; its metadata log lies beside it."""
    unpack(tmp_path)
    shutil.move(tmp_path / DEMO / METADATA, tmp_path)
    return tmp_path / DEMO


def start(broker: Broker, directory: Path) -> str:
    """Start a broker on the directory and its metadata log."""
    shutil.move(directory.parent / METADATA, directory)
    return broker.start(directory, **STILL)


def why(partition: Path) -> CauseKind:
    """The main cause of a partition's size."""
    return cordwood.why(partition, overrides=GIVEN, keys=False).partitions[0].cause.kind


def emptied(directory: Path, partition: int) -> None:
    """Leave an empty log of a partition of `__transaction_state`."""
    log = directory / f"__transaction_state-{partition}"
    for path in log.iterdir():
        if path.name != "partition.metadata":
            path.unlink()
    for kind in (FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX):
        (log / offset_name(0, kind)).touch()


def test_after_our_markers_a_broker_finds_nothing_that_hangs_and_readers_go_on(
    directory: Path, kafka_broker: Broker
) -> None:
    listing = cordwood.transactions(directory, overrides=GIVEN)
    found = hanging_as_told(listing)
    assert found == [("orders-1", 1), ("payments-0", 424242)]
    # The log is held back by an earlier transaction, which its coordinator will abort.
    assert why(directory / "payments-0") == CauseKind.LONG_TRANSACTION
    stable = {}
    for name, producer in found:
        topic, _, partition = name.rpartition("-")
        (end,) = cordwood.abort_transaction(
            directory,
            topic=topic,
            partition=int(partition),
            producer_id=producer,
            single_copy=True,
            overrides=GIVEN,
            yes=True,
        ).ends
        stable[name] = end.next_stable_offset
    assert hanging_as_told(cordwood.transactions(directory, overrides=GIVEN)) == []
    address = start(kafka_broker, directory)
    assert hanging(kafka_broker, address) == []
    send = {"do": "send", "id": "p", "topic": "orders", "partition": 1, "key": "k", "value": "behind"}
    consume = {"do": "consume", "isolation": "read_committed", "topics": ["orders", "payments"]}
    new = {"do": "producer", "id": "p", "config": {}}
    lines = kafka_broker.client(directory, [consume, new, send, {"do": "flush", "id": "p"}, consume])
    ends = [(f"{one['topic']}-{one['partition']}", one["end_offset"]) for one in lines if "end_offset" in one]
    first, second = dict(ends[: len(ends) // 2]), dict(ends[len(ends) // 2 :])
    assert {name: first[name] for name in stable} == stable
    assert second == {**first, "orders-1": first["orders-1"] + 1}
    values = [one.get("value") for one in lines if one.get("topic") == "orders"]
    assert "behind" in values and "late" not in values


def test_with_an_empty_coordinators_log_all_transactions_hang_as_kafkas_tool_finds(
    directory: Path, kafka_broker: Broker
) -> None:
    for partition in (0, 1):
        emptied(directory, partition)
    found = hanging_as_told(cordwood.transactions(directory, overrides=GIVEN))
    assert {name for name, _ in found} == {"orders-1", "payments-0", "payments-1", "__consumer_offsets-0"}
    assert why(directory / "payments-0") == CauseKind.HANGING_TRANSACTION
    assert hanging(kafka_broker, start(kafka_broker, directory)) == found


@pytest.mark.parametrize("count", [(), ("1",), ("3",), ("50",)])
def test_with_another_count_only_a_coordinators_own_record_makes_a_transaction_hang(
    directory: Path, count: tuple[str, ...]
) -> None:
    overrides = [f"{COUNT}={one}" for one in count]
    listing = cordwood.transactions(directory, overrides=overrides)
    assert hanging_as_told(listing) == [("orders-1", 1)], "its coordinator has ended it"
    with pytest.raises(RequestError, match="may hang, or not"):
        cordwood.abort_transaction(
            directory, topic="payments", producer_id=424242, single_copy=True, overrides=overrides, yes=True
        )
