"""Directories of brokers, stopped cleanly, in which a transaction of producer 7 hangs; written by a live log.

t-0                     a b | c 7:x 7:y | 7:z d …      and further records of a scene
__transaction_state-0   the coordinator's records; none of producer 7, unless a scene adds some
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cordwood.common.types import TopicPartition
from cordwood.fs.posix import PosixFileSystem
from cordwood.live.log import Log
from cordwood.live.producer_state import AppendOrigin
from cordwood.record.batch import Marker, encode_marker
from cordwood.storage.formats.filenames import HIGH_WATERMARKS
from cordwood.testing.memory import MemoryFileSystem
from tests.commands.made_broker import T0, MadeBroker, Pair
from tests.commands.made_broker import batch as made_batch
from tests.fs.trees import put, sync_everything, tree
from tests.live.live_logs import NOW_MS, batch
from tests.live.nodes import Node
from tests.storage.internal_logs import internal_record

T = TopicPartition("t", 0)
HANGING, OTHER = 7, 8
_CONFIGS = ("transaction.partition.verification.enable=false", "internal.segment.bytes=400", "file.delete.delay.ms=0")

Fill = Callable[[Log], None]


def coordinator_record(transactional_id: str, producer_id: int, status: int, *partitions: int, **more: Any) -> Pair:
    """A coordinator's record of a producer; the partitions are those of topic t."""
    value = {
        "producer_id": producer_id, "producer_epoch": 0, "transaction_timeout_ms": 60_000, "transaction_status": status,
        "transaction_start_timestamp_ms": T0, "transaction_last_update_timestamp_ms": T0,
        "transaction_partitions": ({"topic": "t", "partition_ids": partitions},) if partitions else (), **more,
    }  # fmt: skip
    return internal_record("TransactionLog", value, {"transactional_id": transactional_id}, 0)


def stopped_broker(
    path: Path,
    fill: Fill,
    *,
    node_id: int = 1,
    replicas: Sequence[int] = (1,),
    states: Sequence[Pair] = (),
    state_partitions: int = 1,
    leader_epoch: int = 5,
) -> Path:
    """A broker's directory with partition t-0, filled by a live log, and one of `__transaction_state`."""
    broker = MadeBroker(path, node_id=node_id)
    broker.topic("t", replicas=replicas, cleanup_policy="compact")
    broker.topic("__transaction_state", state_partitions, cleanup_policy="compact")
    broker.log("__transaction_state-0", [made_batch(0, *states)] if states else [])
    broker.checkpoints[HIGH_WATERMARKS][TopicPartition("__transaction_state", 0)] = len(states)
    broker.finish(clean=False)
    node = Node(*_CONFIGS, fs=PosixFileSystem(), dirs=(str(path),))
    node.manager.startup()
    log = node.manager.get_or_create_log(T, is_new=True)
    log.assign_epoch_start_offset(leader_epoch, 0)
    fill(log)
    log.update_high_watermark(log.log_end_offset)
    node.pass_time(1)
    node.manager.shutdown()
    (path / ".lock").unlink()  # as a broker does, and none can read it
    return path


def data(log: Log, *values: str, producer_id: int = -1, sequence: int = 0, epoch: int = 5) -> None:
    """Append a batch; one with a producer belongs to a transaction."""
    sent = batch(*values, producer_id=producer_id, sequence=sequence, transactional=producer_id >= 0)
    log.append_as_leader(sent, epoch)


def end(log: Log, producer_id: int, *, committed: bool = True, coordinator_epoch: int = 3) -> None:
    """Append a marker."""
    marker = Marker(0, NOW_MS, producer_id, 0, committed, coordinator_epoch)
    log.append_as_leader(encode_marker(marker), 5, AppendOrigin.COORDINATOR)


def in_the_middle(log: Log) -> None:
    """The transaction is open over several segments; another one is open behind its start."""
    data(log, "a0", "b0")
    data(log, "x0", producer_id=HANGING)
    end(log, HANGING)
    data(log, "a1", "b1", "c" * 300)
    data(log, "x1", "y1", producer_id=HANGING, sequence=1)
    data(log, "o1", producer_id=OTHER)
    data(log, "a2", "b2", "c" * 300)
    data(log, "z2", producer_id=HANGING, sequence=3)
    data(log, "a3")


def one_segment(log: Log) -> None:
    """The log has one segment, and so one producer snapshot: that at its end."""
    data(log, "a0", "b0")
    data(log, "x1", "y1", producer_id=HANGING)
    data(log, "o1", producer_id=OTHER)
    data(log, "a2")


def empty_active(log: Log) -> None:
    """The active segment is empty."""
    data(log, "a0", "b0")
    data(log, "x1", "y1", producer_id=HANGING)
    data(log, "a2")
    log.roll()


def start_deleted(log: Log) -> None:
    """The records of the transaction are deleted: only the producer snapshot still lists it."""
    in_the_middle(log)
    log.update_high_watermark(log.log_end_offset)
    log.maybe_increment_log_start_offset(14)
    log.delete_old_segments()


SCENES: dict[str, Fill] = {
    "in the middle": in_the_middle,
    "one segment": one_segment,
    "empty active": empty_active,
    "start deleted": start_deleted,
}


def in_memory(*roots: Path) -> MemoryFileSystem:
    """Directories as they are on disk, under their names, and durable."""
    fs, disk = MemoryFileSystem(lambda: NOW_MS * 1_000_000), PosixFileSystem()
    for root in roots:
        fs.make_directory(f"/{root.name}")
        for path, content in sorted(tree(disk, str(root)).items()):
            if content is None:
                fs.make_directory(f"/{root.name}/{path}")
            else:
                put(fs, f"/{root.name}/{path}", content)
    sync_everything(fs)
    return fs
