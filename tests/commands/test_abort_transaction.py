"""`abort-transaction`: its preview, its writes, its refusals; the power cut after each of its operations."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import cordwood
from cordwood.cli.demo import unpack
from cordwood.cli.main import EXIT_LOCKED, EXIT_REQUEST
from cordwood.common.errors import CordwoodError, DataError, LockedError, NotFoundError, RequestError
from cordwood.common.types import NONE, TopicPartition, override
from cordwood.fs.base import LocalFileSystem
from cordwood.fs.posix import PosixFileSystem
from cordwood.fs.wrapped import WrappedFileSystem
from cordwood.live.log import Log
from cordwood.live.producer_state import AppendOrigin
from cordwood.record.batch import Batch, Marker, encode_marker
from cordwood.storage.formats import checkpoints, leader_epochs, producer_state
from cordwood.storage.formats.filenames import (
    CLEAN_SHUTDOWN,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    FileKind,
    offset_name,
)
from cordwood.storage.formats.leader_epochs import EpochEntry
from cordwood.storage.log.view import LogView
from cordwood.storage.node.transactions import Outlook
from cordwood.storage.recovery import marker as recovery_marker
from cordwood.testing.memory import MemoryFileSystem
from tests.command import run
from tests.commands.made_broker import MadeBroker
from tests.crashes import Cuts
from tests.fs.lock_holders import HOLD_AS_A_BROKER, on_linux, other
from tests.fs.trees import put, sync_everything, tree
from tests.kafka_tools import Oracle
from tests.knobs import in_turns
from tests.live.live_logs import NOW_MS, batch, read_all
from tests.live.nodes import Node
from tests.logs import T0, Pair
from tests.logs import batch as made_batch
from tests.storage.messages import internal_record

# ---- directories with a hanging transaction --------------------------------------------------------------------------

# Directories of brokers, stopped cleanly, in which a transaction of producer 7 hangs; written by a live log.
#
# t-0                     a b | c 7:x 7:y | 7:z d …      and further records of a scene
# __transaction_state-0   the coordinator's records; none of producer 7, unless a scene adds some

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


pytestmark = pytest.mark.more

RecordProperty = Callable[[str, object], None]


def abort(*paths: Path | str, producer: int = HANGING, **choice: Any) -> cordwood.AbortResult:
    return cordwood.abort_transaction(*map(str, paths), topic="t", producer_id=producer, **choice)


def batches(path: Path | str) -> list[Batch]:
    return list(LogView(str(path), fs=PosixFileSystem()).batches())


def committed(path: Path | str) -> list[str]:
    log = LogView(str(path), fs=PosixFileSystem())
    return [str(record.value, "utf8")[:2] for record in log.records(isolation="read_committed") if record.value]


def files(root: Path) -> dict[str, bytes]:
    """All files but the lock, which may be unreadable, and which stays after unlocking."""
    paths = (path for path in root.rglob("*") if path.name != ".lock")
    return {str(path.relative_to(root)): path.read_bytes() if path.is_file() else b"" for path in paths}


# ---- Effects ---------------------------------------------------------------------------------------------------------


def test_without_yes_it_shows_what_it_would_do_and_changes_nothing(tmp_path: Path) -> None:
    broker = stopped_broker(tmp_path / "broker", in_the_middle)
    before = files(broker)
    result = abort(broker)
    assert files(broker) == before and not result.done
    assert result.text().splitlines() == [
        "t-0: the transaction of producer 7 hangs",
        "  open      from offset 7 on, 2023-11-14 22:13:20 UTC; epoch 0",
        "  data      3 records in 2 batches, 152 B",
        "  why       no coordinator has a record of the producer",
        "  marker    ABORT at offset 15, coordinator epoch 3, leader epoch 5",
        "  then      its data is aborted; the last stable offset moves from 7 to 9",
        f"  write to  {broker}/t-0",
        "",
        "Nothing was changed. To abort, give --yes",
    ]


@pytest.mark.parametrize("name", SCENES)
def test_the_marker_ends_the_transaction_and_nothing_else(tmp_path: Path, name: str) -> None:
    broker = stopped_broker(tmp_path / "broker", SCENES[name])
    log, before = broker / "t-0", batches(broker / "t-0")
    kept = {path: content for path, content in files(broker).items() if content}
    open_before = {one.producer_id for one in cordwood.transactions(str(broker)).transactions}
    found_before = cordwood.check(str(broker))
    (ended,) = abort(broker, yes=True).ends
    assert batches(log)[:-1] == before
    marker = batches(log)[-1]
    assert (marker.base_offset, marker.producer_id, marker.producer_epoch) == (ended.marker.offset, HANGING, 0)
    assert (marker.is_control, marker.is_transactional, marker.leader_epoch) == (True, True, 5)
    assert {one.producer_id for one in cordwood.transactions(str(broker)).transactions} == open_before - {HANGING}
    now = files(broker)
    changed = {path for path in kept if now[path] != kept[path]}
    assert changed == {HIGH_WATERMARKS}, "no file of the log that was there is changed"
    assert checkpoints.decode((broker / HIGH_WATERMARKS).read_bytes())[T] == ended.marker.offset + 1
    assert cordwood.check(str(broker)) == found_before


@pytest.mark.parametrize("name", SCENES)
def test_a_live_log_takes_the_log_over_as_if_a_coordinator_had_written_the_marker(tmp_path: Path, name: str) -> None:
    ours = stopped_broker(tmp_path / "ours", SCENES[name])
    abort(ours, yes=True)

    def with_marker(log: Log) -> None:
        known = log.producers.of(HANGING)
        assert known is not None
        written = Marker(0, NOW_MS, HANGING, 0, committed=False, coordinator_epoch=max(0, known.coordinator_epoch))
        log.append_as_leader(encode_marker(written), 5, AppendOrigin.COORDINATOR)

    theirs = stopped_broker(tmp_path / "theirs", SCENES[name])
    opened(PosixFileSystem(), str(theirs), with_marker)
    state = [opened(PosixFileSystem(), str(one), producers_and_aborted) for one in (ours, theirs)]
    assert state[0] == state[1]


def opened(fs: LocalFileSystem, root: str, act: Callable[[Log], Any]) -> Any:
    """Start a manager on a directory, as a broker would, do something with t-0, and stop."""
    node = Node("transaction.partition.verification.enable=false", fs=fs, dirs=(root,))
    node.manager.startup()
    try:
        return act(node.manager.logs[T])
    finally:
        node.manager.shutdown()


def producers_and_aborted(log: Log) -> Any:
    log.update_high_watermark(log.log_end_offset)
    fetched = log.read_committed(log.log_start_offset, 1 << 20)
    known = {id: (one.epoch, one.coordinator_epoch, one.transaction_start) for id, one in log.producers.by_id.items()}
    return known, fetched.aborted, log.last_stable_offset, log.log_end_offset, [r.offset for r in log.records()]


def test_a_later_marker_of_a_coordinator_is_not_fenced(tmp_path: Path) -> None:
    broker = stopped_broker(tmp_path / "broker", empty_active)
    abort(broker, yes=True)

    def another(log: Log) -> int:
        data(log, "x9", producer_id=HANGING, sequence=2)
        end(log, HANGING, coordinator_epoch=0)
        return log.log_end_offset

    assert opened(PosixFileSystem(), str(broker), another) == 8


def test_a_clean_goes_past_it(tmp_path: Path) -> None:
    broker = stopped_broker(tmp_path / "broker", empty_active)
    held = cordwood.why(str(broker), topics=["t"]).partitions[0]
    assert held.cause.kind is cordwood.CauseKind.HANGING_TRANSACTION
    assert f"cordwood abort-transaction DIR… --topic t --partition 0 --producer {HANGING}" in held.cause.next_step
    abort(broker, yes=True)
    (plan,) = cordwood.plan(str(broker), topics=["t"]).partitions
    assert plan.compaction is not None and plan.compaction.range.first_uncleanable_offset == 5
    result = cordwood.clean_in_place(str(broker), topics=["t"], ignore_ratio=True, verify=False, engine="here")
    assert result.partitions[0].failure is None
    assert committed(broker / "t-0") == ["b0", "a2"]


def test_all_partitions_of_the_topic_in_which_it_hangs_are_ended(tmp_path: Path) -> None:
    unpack(tmp_path)
    result = cordwood.abort_transaction(str(tmp_path / "kafka-groups"), topic="payments", producer_id=424242, yes=True)
    assert [str(one.open_in_log.partition) for one in result.ends] == ["payments-0"]
    result = cordwood.abort_transaction(str(tmp_path / "kafka-groups"), topic="orders", producer_id=1, yes=True)
    (ended,) = result.ends
    assert ended.known is not None and ended.known.transactional_id == "payments-1"
    left = cordwood.transactions(str(tmp_path / "kafka-groups"))
    assert not left.with_outlook(cordwood.Outlook.HANGING)
    assert list(cordwood.check(str(tmp_path / "kafka-groups"))) == []


def test_json_says_it_all(tmp_path: Path) -> None:
    broker = stopped_broker(tmp_path / "broker", empty_active)
    words = ["abort-transaction", str(broker), "--topic", "t", "--producer", "7", "--json"]
    shown = run(*words).json
    assert not shown["done"]
    done = run(*words, "--yes").json
    assert done["done"]
    (one,) = done["transactions"]
    assert (one["first_offset"], one["last_stable_offset_before"], one["last_stable_offset_after"]) == (2, 2, 6)
    assert one["marker"] | {"timestamp": 0} == {
        "type": "ABORT", "offset": 5, "timestamp": 0, "coordinator_epoch": 0, "leader_epoch": 5,
    }  # fmt: skip
    again = run(*words, exits=EXIT_REQUEST)
    assert "producer 7 has no open transaction in t-0" in again.stderr


# ---- several replicas ------------------------------------------------------------------------------------------------


def two_brokers(tmp_path: Path, fill: Fill = in_the_middle, **choice: Any) -> tuple[Path, Path]:
    first, second = (
        stopped_broker(tmp_path / f"broker-{id}", fill, node_id=id, replicas=(1, 2), **choice) for id in (1, 2)
    )
    return first, second


def last_bytes(path: Path) -> bytes:
    return max(path.glob("*.log")).read_bytes()


def test_all_replicas_get_the_same_bytes_with_the_last_leader_epoch(tmp_path: Path) -> None:
    first, second = two_brokers(tmp_path)
    # The second became the leader when the first was stopped, and has appended no batch since.
    epochs = second / "t-0" / FileKind.LEADER_EPOCHS
    epochs.write_bytes(leader_epochs.encode([EpochEntry(5, 0), EpochEntry(6, 15)]))
    (ended,) = abort(first, second, yes=True).ends
    assert ended.leader_epoch == 6 and ended.replicas == (f"{first}/t-0", f"{second}/t-0")
    assert last_bytes(first / "t-0") == last_bytes(second / "t-0")
    assert [one.leader_epoch for one in batches(first / "t-0")][-2:] == [5, 6]
    for broker in (first, second):
        found = (broker / "t-0" / FileKind.LEADER_EPOCHS).read_bytes()
        assert leader_epochs.decode(found) == (EpochEntry(5, 0), EpochEntry(6, 15))
        assert not {one.producer_id for one in cordwood.transactions(str(broker)).transactions} & {HANGING}


class FailingAt(WrappedFileSystem):
    """A disk on which no file can be created in one broker's directory."""

    def __init__(self, broker: str) -> None:
        super().__init__(PosixFileSystem())
        self._broker = broker

    @override
    def make_directory(self, path: str, *, mode: int = 0o777) -> None:
        if path.startswith(self._broker):
            raise OSError(5, "Input/output error", path)
        super().make_directory(path, mode=mode)


def test_a_run_that_ended_between_two_replicas_goes_on_with_the_same_marker(tmp_path: Path) -> None:
    first, second = two_brokers(tmp_path)
    with pytest.raises(OSError):
        abort(first, second, yes=True, fs=FailingAt(str(second)))
    written = last_bytes(first / "t-0")
    assert last_bytes(second / "t-0") != written
    (shown,) = abort(first, second).ends
    assert (shown.replicas, shown.done_before) == ((f"{second}/t-0",), (f"{first}/t-0",))
    abort(first, second, yes=True)
    assert last_bytes(first / "t-0") == last_bytes(second / "t-0") == written


def _one_more(broker: Path) -> None:
    opened(PosixFileSystem(), str(broker), lambda log: data(log, "a9"))


def _ended(broker: Path) -> None:
    opened(PosixFileSystem(), str(broker), lambda log: end(log, HANGING))


def _ended_and_more(broker: Path) -> None:
    _ended(broker)
    _one_more(broker)


DIFFERENT = {
    "longer": (_one_more, "ends at offset 15, .* at 16"),
    "committed there": (_ended, "the transaction is not open in"),
    "ended long ago": (_ended_and_more, "the transaction is not open in"),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_replicas_that_differ_are_refused(tmp_path: Path, name: str) -> None:
    change, what = DIFFERENT[name]
    first, second = two_brokers(tmp_path)
    change(second)
    _refused((first, second), RequestError, f"the replicas of t-0 differ: .*{what}")


def test_replicas_with_other_records_are_refused(tmp_path: Path) -> None:
    def others(log: Log) -> None:
        in_the_middle(log)
        data(log, "b9")

    def these(log: Log) -> None:
        in_the_middle(log)
        data(log, "a9")

    first = stopped_broker(tmp_path / "broker-1", these, node_id=1, replicas=(1, 2))
    second = stopped_broker(tmp_path / "broker-2", others, node_id=2, replicas=(1, 2))
    _refused((first, second), RequestError, "hold different batches from offset 7 on")


def test_a_missing_replica_is_named(tmp_path: Path) -> None:
    first, second = two_brokers(tmp_path)
    _refused((first,), RequestError, "t-0 has replicas on brokers 1, 2, and no directory of broker 2 is given")
    _refused((first, second), RequestError, "2 brokers, so it has no single copy", single_copy=True)
    # The user vouches that there is no other copy.
    assert abort(first, single_copy=True).ends


# ---- Refusals --------------------------------------------------------------------------------------------------------


def _refused(paths: Sequence[Path], error: type[CordwoodError], what: str, **choice: Any) -> None:
    """It is refused with and without --yes, and only `.lock` changes."""
    before = [files(path) for path in paths]
    for yes in (False, True):
        with pytest.raises(error, match=what):
            abort(*paths, yes=yes, **choice)
    assert [files(path) for path in paths] == before


def _append(path: Path, more: bytes) -> None:
    log = max((path / "t-0").glob("*.log"))
    log.write_bytes(log.read_bytes() + more)


def _flip(path: Path) -> None:
    log = path / "t-0" / offset_name(10, FileKind.LOG)
    content = bytearray(log.read_bytes())
    content[70] ^= 1
    log.write_bytes(content)


def _contradiction(path: Path) -> None:
    """The snapshot lists the transaction as open, but the log has a marker."""
    snapshot = path / "t-0" / offset_name(15, FileKind.PRODUCER_SNAPSHOT)
    content = snapshot.read_bytes()
    _ended(path)
    (path / "t-0" / offset_name(16, FileKind.PRODUCER_SNAPSHOT)).write_bytes(content)


Break = Callable[[Path], object]
DAMAGED: dict[str, tuple[Break, type[CordwoodError], str]] = {
    "crash": (lambda path: (path / CLEAN_SHUTDOWN).unlink(), RequestError, "was not shut down cleanly"),
    "torn": (lambda path: _append(path, last_bytes(path / "t-0")[:50]), DataError, "a broker's start cuts off a torn"),
    "zeros": (lambda path: _append(path, bytes(100)), DataError, "nothing is appended behind damage"),
    "damage": (_flip, DataError, "nothing is appended behind damage"),
    "contradiction": (_contradiction, DataError, "the snapshot and the log contradict each other"),
    "checkpoint": (lambda path: (path / RECOVERY_POINTS).write_text("x"), DataError, "recovery-point"),
    "epochs": (lambda path: (path / "t-0" / FileKind.LEADER_EPOCHS).write_text("x"), DataError, "leader-epoch"),
    "no index": (
        lambda path: (path / "t-0" / offset_name(13, FileKind.OFFSET_INDEX)).unlink(), RequestError, "would rebuild"
    ),
    "no state": (lambda path: shutil.rmtree(path / "__transaction_state-0"), RequestError, "no directory has a part"),
    "moving": (
        lambda path: (path / f"t-0.{'a' * 32}-future").mkdir(), RequestError, "t-0 is being moved to"
    ),
    "no metadata": (
        lambda path: shutil.rmtree(path / "__cluster_metadata-0"),
        RequestError,
        "the number of replicas of t-0 is unknown",
    ),
    "no partition": (lambda path: shutil.rmtree(path / "t-0"), NotFoundError, "no partition t in"),
    "no segment": (
        lambda path: list(map(Path.unlink, (path / "t-0").glob("0*"))), NotFoundError, "has no segment"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_a_log_is_refused_that_is_not_as_a_stopped_broker_leaves_it(tmp_path: Path, name: str) -> None:
    change, error, what = DAMAGED[name]
    broker = stopped_broker(tmp_path / "broker", in_the_middle)
    change(broker)
    _refused([broker], error, what)


RECENT = {"transaction_timeout_ms": 2**31 - 1, "transaction_start_timestamp_ms": int(time.time() * 1000)}
KNOWN: dict[str, tuple[dict[str, Any], str]] = {
    "ongoing": (
        {"states": [coordinator_record("payer", 7, 1, 0, **RECENT)]},
        r"payer, state Ongoing, timeout 24\.9 days\) does not hang: its producer ends it",
    ),
    "long": ({"states": [coordinator_record("payer", 7, 1, 0)]}, "does not hang: its coordinator aborts it as soon as"),
    "to be committed": ({"states": [coordinator_record("payer", 7, 2, 0)]}, "does not hang: it is decided"),
    "to be aborted": ({"states": [coordinator_record("payer", 7, 3, 0)]}, "does not hang: it is decided"),
    "a later version": ({"states": [coordinator_record("payer", 7, 99)]}, "of a later version"),
    "one of two": ({"state_partitions": 2}, "may hang, or not: 1 of 2 partitions of __transaction_state are here"),
    "one of two, known": (
        {"state_partitions": 2, "states": [coordinator_record("payer", 7, 0)]}, "1 of 2 partitions",
    ),
    "unreadable": ({"states": [(b"\0\0\0", b"\0\0")]}, "may hang, or not: "),
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_a_transaction_is_refused_that_does_not_hang_for_sure(tmp_path: Path, name: str) -> None:
    choice, what = KNOWN[name]
    _refused([stopped_broker(tmp_path / "broker", in_the_middle, **choice)], RequestError, what)


COUNT = "transaction.state.log.num.partitions"
#: Partitions of `__transaction_state` without a metadata log, the given count, and why it is not certain.
WITHOUT_METADATA: dict[str, tuple[list[int], str, str]] = {
    "a higher partition is here": ([0, 1, 49], "3", "is wrong: partition 49 is here"),
    "more partitions than given": ([0, 1, 2], "2", "is wrong: partition 2 is here"),
    "some are missing": ([0, 2], "3", "2 of 3 partitions"),
}


@pytest.mark.parametrize("name", WITHOUT_METADATA)
def test_without_metadata_a_count_that_does_not_fit_proves_nothing(tmp_path: Path, name: str) -> None:
    partitions, count, what = WITHOUT_METADATA[name]
    broker = stopped_broker(tmp_path / "broker", in_the_middle)
    shutil.rmtree(broker / "__cluster_metadata-0")
    for partition in partitions[1:]:
        shutil.copytree(broker / "__transaction_state-0", broker / f"__transaction_state-{partition}")
    overrides = [f"{COUNT}={count}", "cleanup.policy=compact"]
    found = cordwood.transactions(str(broker), overrides=overrides)
    assert {one.outlook for one in found.transactions} == {Outlook.UNKNOWN}
    with pytest.raises(RequestError, match=what):
        abort(broker, single_copy=True, overrides=overrides)


def test_a_transaction_of_a_named_partition_is_judged_by_all_of_the_coordinators_log(tmp_path: Path) -> None:
    broker = stopped_broker(tmp_path / "broker", in_the_middle)
    shutil.rmtree(broker / "__cluster_metadata-0")
    shutil.copytree(broker / "__transaction_state-0", broker / "__transaction_state-1")
    paths = (str(broker / "t-0"), str(broker / "__transaction_state-1"))

    def outlooks() -> set[Outlook]:
        return {one.outlook for one in cordwood.transactions(*paths, overrides=[f"{COUNT}=2"]).transactions}

    assert outlooks() == {Outlook.HANGING}
    for file in (broker / "__transaction_state-0").iterdir():
        file.unlink()
    assert outlooks() == {Outlook.UNKNOWN}


def test_a_coordinator_that_has_ended_its_transaction_long_ago_lets_it_hang(tmp_path: Path) -> None:
    states = [coordinator_record("payer", HANGING, 1, 1), coordinator_record("payer", HANGING, 4)]
    (shown,) = abort(stopped_broker(tmp_path / "broker", in_the_middle, states=states)).ends
    assert shown.known is not None and shown.known.state == "CompleteCommit"


def test_one_replica_that_knows_the_transaction_is_enough_to_refuse_it(tmp_path: Path) -> None:
    first = stopped_broker(tmp_path / "broker-1", in_the_middle, node_id=1, replicas=(1, 2))
    known = [coordinator_record("payer", HANGING, 1, 0)]
    second = stopped_broker(tmp_path / "broker-2", in_the_middle, node_id=2, replicas=(1, 2), states=known)
    _refused((first, second), RequestError, "does not hang")


def test_a_replica_of_the_coordinators_log_that_may_be_stale_is_not_believed(tmp_path: Path) -> None:
    # The metadata assigns __transaction_state-0 to broker 1 only.
    first = stopped_broker(tmp_path / "broker-1", in_the_middle, node_id=1, replicas=(1, 2))
    second = stopped_broker(tmp_path / "broker-2", in_the_middle, node_id=2, replicas=(1, 2))
    shutil.rmtree(first / "__transaction_state-0")
    _refused((first, second), RequestError, "no replica of __transaction_state-0 that is here is known to be in sync")


def test_an_unknown_producer_is_told_which_are_open(tmp_path: Path) -> None:
    broker = stopped_broker(tmp_path / "broker", in_the_middle)
    _refused([broker], RequestError, f"producer 99 has no open transaction in t-0; open are those of 7, {OTHER}",
             producer=99)  # fmt: skip
    _refused([broker], NotFoundError, "no partition t-3 in", partition=3)


def test_directories_of_two_clusters_are_refused(tmp_path: Path) -> None:
    first, second = two_brokers(tmp_path)
    meta = second / "meta.properties"
    meta.write_text(meta.read_text().replace("AAAA", "BBBB"))
    _refused((first, second), RequestError, "is of the cluster AAAA.*, .* of BBBB")


@on_linux
def test_a_directory_that_a_broker_holds_is_refused(tmp_path: Path) -> None:
    broker = stopped_broker(tmp_path / "broker", in_the_middle)
    with other(HOLD_AS_A_BROKER, broker / ".lock"):
        _refused([broker], LockedError, "Stop it first")
        words = ["abort-transaction", str(broker), "--topic", "t", "--producer", "7", "--yes"]
        run(*words, exits=EXIT_LOCKED)


# ---- power cuts ------------------------------------------------------------------------------------------------------


def cuts_of(tmp_path: Path, name: str, **choice: Any) -> Cuts:
    start = in_memory(stopped_broker(tmp_path / "broker", SCENES[name]))
    return Cuts(start, lambda fs: abort("/broker", fs=fs, yes=True), **choice)


def facts(log: Log) -> tuple[int, bool, Any, Any, dict[int, str]]:
    """The log end, whether the transaction is open, the committed records, the other producer's state, and all data."""
    log.update_high_watermark(log.log_end_offset)
    known = log.producers.of(HANGING)
    assert known is not None
    offsets = tuple(record.offset for record in log.records())
    return log.log_end_offset, known.transaction_start != NONE, offsets, log.producers.of(OTHER), read_all(log)


@pytest.mark.parametrize("name", in_turns(SCENES, "one segment"))
def test_a_power_cut_leaves_the_log_with_the_marker_or_without(
    tmp_path: Path, name: str, record_property: RecordProperty
) -> None:
    cuts = cuts_of(tmp_path, name, subsets_max=3, sampled=4)
    before = opened(cuts.start.crash(lambda change: change.parts), "/broker", facts)
    done = cuts.start.crash(lambda change: change.parts)
    abort("/broker", fs=done, yes=True)
    after = opened(done, "/broker", facts)
    assert before[:2] == (after[0] - 1, True) and not after[1] and before[3] == after[3]
    assert set(before[2]) <= set(after[2])
    seen = set()
    for fs in cuts:
        assert fs.exists(f"/broker/{CLEAN_SHUTDOWN}"), "the directory stays shut down cleanly"
        again = fs.crash(lambda change: change.parts)
        found = opened(fs, "/broker", facts)
        seen.add(found[0])
        assert found == (before if found[0] == before[0] else after)
        _goes_on(again, found[1], after)
    assert seen == {before[0], after[0]}
    cuts.tell(record_property, "a marker that is appended")


def _goes_on(fs: MemoryFileSystem, is_open: bool, after: Any) -> None:
    """Call it again: it finishes the remaining work."""
    if is_open:
        abort("/broker", fs=fs, yes=True)
    else:
        with pytest.raises(RequestError, match="producer 7 has no open transaction"):
            abort("/broker", fs=fs, yes=True)
    assert opened(fs, "/broker", facts) == after


class WithoutTheSnapshot(WrappedFileSystem):
    """Loses the producer snapshot behind the marker."""

    @override
    def rename(self, source: str, target: str) -> None:
        if target != f"/broker/t-0/{offset_name(16, FileKind.PRODUCER_SNAPSHOT)}":
            super().rename(source, target)


@pytest.mark.parametrize("left_out", ["the empty segment", "the snapshot"])
def test_without_a_step_before_the_swap_a_crash_could_forget_producers(
    tmp_path: Path, left_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, forgotten = in_memory(stopped_broker(tmp_path / "broker", SCENES["start deleted"])), 0
    if left_out == "the empty segment":
        monkeypatch.setattr(recovery_marker, "make_empty_segment", lambda *_: None)

    def act(fs: MemoryFileSystem) -> None:
        with contextlib.suppress(OSError):
            abort("/broker", fs=WithoutTheSnapshot(fs) if left_out == "the snapshot" else fs, yes=True)

    for fs in Cuts(start, act, subsets_max=3, sampled=4):
        forgotten += opened(fs, "/broker", lambda log: log.producers.of(OTHER)) is None
    assert forgotten


@pytest.mark.kafka
@pytest.mark.parametrize("name", SCENES)
def test_kafka_loads_what_a_power_cut_leaves(tmp_path: Path, name: str, kafka_oracle: Oracle) -> None:
    states = list(cuts_of(tmp_path, name, subsets_max=2, sampled=2))
    root = tmp_path / "kafka"
    starts = {}
    for number, fs in enumerate(states):
        for path, content in tree(fs, "/broker/t-0").items():
            target = root / f"t-{number}" / path
            if content is None:
                target.mkdir(parents=True, exist_ok=True)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
        text = tree(fs, "/broker")[LOG_START_OFFSETS]
        assert text is not None
        known = checkpoints.decode(text)
        if T in known:
            starts[TopicPartition("t", number)] = known[T]
    (root / CLEAN_SHUTDOWN).write_bytes(b"")
    (root / LOG_START_OFFSETS).write_bytes(checkpoints.encode(starts))
    lines = [line for line in kafka_oracle("select", root, "--now", str(NOW_MS)) if line["type"] == "log"]
    ends = {line["partition"]: line["end"] for line in lines}
    assert len(ends) == len(states)
    first_end = min(ends.values())
    assert set(ends.values()) == {first_end, first_end + 1}
    for partition, log_end in ends.items():
        path = root / partition
        assert not [one for one in path.iterdir() if one.name.endswith((".cleaned", ".swap"))]
        snapshot = (path / offset_name(log_end, FileKind.PRODUCER_SNAPSHOT)).read_bytes()
        open_ = {one.producer_id: one.current_transaction_first_offset for one in producer_state.decode(snapshot)}
        is_open = open_[HANGING] >= 0
        assert is_open == (log_end == first_end), partition
        if name != "empty active":
            assert open_[OTHER] == (4 if name == "one segment" else 9)
        index = path / offset_name(first_end, FileKind.TRANSACTION_INDEX)
        assert index.exists() == (not is_open), "without it the transaction would look committed"
