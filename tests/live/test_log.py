"""A live log beyond the scripts that are compared with Kafka: guards, policies, failing disks."""

from __future__ import annotations

import errno
from random import Random

import pytest

from cordwood.common.errors import (
    IllegalArgumentError,
    InvalidTxnStateError,
    KafkaStorageError,
    OutOfOrderSequenceError,
    PolicyViolationError,
    RecordValidationError,
)
from cordwood.fs.base import Bytes, File, LocalFileSystem
from cordwood.fs.wrapped import WrappedFile, WrappedFileSystem
from cordwood.live.log import FetchIsolation, ProducerLimits
from cordwood.live.producer_state import NO_GUARD
from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from tests.live.live_logs import NOW_MS, World, batch, read_all


def test_a_batch_that_is_sent_again_is_answered_with_the_offsets_it_has() -> None:
    log = World().load()
    first = log.append_as_leader(batch("a1", "b1", producer_id=7), 0)
    log.append_as_leader(batch("c1", producer_id=7, sequence=2), 0)
    again = log.append_as_leader(batch("a1", "b1", producer_id=7), 0)
    assert (again.is_duplicate, again.first_offset, again.last_offset) == (True, first.first_offset, first.last_offset)
    assert read_all(log) == {0: "a1", 1: "b1", 2: "c1"}


def test_a_transaction_needs_the_guard_that_was_given_for_it() -> None:
    log = World().load()
    guard = log.maybe_start_transaction_verification(7, 0, 0, supports_epoch_bump=False)
    data = batch("a1", producer_id=7, transactional=True)
    for wrong in (NO_GUARD, guard + 1):
        with pytest.raises(InvalidTxnStateError):
            log.append_as_leader(data, 0, guard=wrong)
    log.append_as_leader(data, 0, guard=guard)
    # The transaction is open now: no guard is needed, and none is given.
    assert log.maybe_start_transaction_verification(7, 1, 0, supports_epoch_bump=False) == NO_GUARD
    log.append_as_leader(batch("b1", producer_id=7, sequence=1, transactional=True), 0)
    assert log.last_stable_offset == 0


def test_the_jitter_of_segments_comes_from_the_source_that_is_passed_in() -> None:
    log = World().load({"segment.jitter.ms": "1000"}, random=Random(7))
    log.append_as_leader(batch("a1"), 0)
    expected = Random(7)
    jitters = [expected.randrange(1000) for _ in range(2)]
    assert [log.active_segment.roll_jitter_ms, log.roll().roll_jitter_ms] == jitters


def test_a_guard_of_version_2_wants_the_first_sequence() -> None:
    log = World().load()
    guard = log.maybe_start_transaction_verification(7, 3, 0, supports_epoch_bump=True)
    with pytest.raises(OutOfOrderSequenceError, match="Expected sequence 0"):
        log.append_as_leader(batch("a1", producer_id=7, sequence=3, transactional=True), 0, guard=guard)


@pytest.mark.parametrize(("silent", "is_late"), [(7, True), (8, False)], ids=["the first", "the second"])
def test_of_two_open_transactions_the_one_with_the_smaller_offset_may_be_late(silent: int, is_late: bool) -> None:
    world = World()
    log = world.load(limits=ProducerLimits(transaction_max_timeout_ms=1000, transaction_verification=False))

    def send(producer_id: int, sequence: int) -> None:
        data = encode_batch(
            [Record(0, world.now_ms, b"a", b"a")],
            base_offset=0,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=True,
        )
        log.append_as_leader(data, 0)

    send(7, 0)
    send(8, 0)
    world.pass_time(301_001)  # Kafka allows five minutes more than the longest timeout
    send(15 - silent, 1)
    assert log.has_late_transaction(world.now_ms) is is_late


def test_a_guard_is_forgotten_with_expired_producers() -> None:
    world = World()
    log = world.load(limits=ProducerLimits(expiration_ms=1000, expiration_check_interval_ms=1000))
    guard = log.maybe_start_transaction_verification(7, 0, 0, supports_epoch_bump=False)
    world.pass_time(1000)
    with pytest.raises(InvalidTxnStateError):
        log.append_as_leader(batch("a1", producer_id=7, transactional=True), 0, guard=guard)


def test_records_of_a_compacted_topic_are_not_deleted_on_request() -> None:
    log = World().load({"cleanup.policy": "compact"})
    log.append_as_leader(batch("a1"), 0)
    log.update_high_watermark(1)
    with pytest.raises(PolicyViolationError):
        log.delete_records(-1)
    both = World().load({"cleanup.policy": "compact,delete"})
    both.append_as_leader(batch("a1"), 0)
    both.update_high_watermark(1)
    assert both.delete_records(-1) == 1


def test_a_refused_batch_says_which_records_are_wrong() -> None:
    log = World().load({"cleanup.policy": "compact", "message.timestamp.before.max.ms": "1000"})
    good, keyless = Record(0, NOW_MS, b"a", b"1"), Record(1, NOW_MS, None, b"2")
    with pytest.raises(RecordValidationError, match="without key") as caught:
        log.append_as_leader(encode_batch([good, keyless]), 0)
    assert ([one.index for one in caught.value.problems], caught.value.protocol_error) == ([1], "INVALID_RECORD")
    old = Record(2, NOW_MS - 1001, b"c", b"3")
    with pytest.raises(RecordValidationError, match="out of range") as caught:
        log.append_as_leader(encode_batch([good, keyless, old]), 0)
    assert ([one.index for one in caught.value.problems], caught.value.protocol_error) == ([1, 2], "INVALID_TIMESTAMP")
    assert log.log_end_offset == 0


class FailingDisk(WrappedFileSystem):
    """A disk whose logs cannot be written any more once `fails` is set."""

    def __init__(self, fs: LocalFileSystem) -> None:
        super().__init__(fs)
        self.fails = False

    def create(self, path: str, *, exclusive: bool = True, mode: int = 0o666) -> File:
        return _Failing(super().create(path, exclusive=exclusive, mode=mode), self)


class _Failing(WrappedFile):
    def __init__(self, file: File, disk: FailingDisk) -> None:
        super().__init__(file)
        self._disk = disk

    def write(self, position: int, data: Bytes) -> None:
        if self._disk.fails:
            raise OSError(errno.EIO, "the disk fails")
        super().write(position, data)


def test_a_failing_disk_takes_the_log_directory_offline() -> None:
    disk = FailingDisk(World().fs)
    world = World(disk)
    log = world.load()
    log.append_as_leader(batch("a1"), 0)
    disk.fails = True
    with pytest.raises(KafkaStorageError) as caught:
        log.append_as_leader(batch("b1"), 0)
    assert isinstance(caught.value.__cause__, OSError)
    assert [failure.directory for failure in world.failures.failures] == ["/logs"]
    disk.fails = False
    # From now on every call fails at once.
    with pytest.raises(KafkaStorageError, match="already offline") as caught:
        log.read(0, 100, FetchIsolation.LOG_END)
    assert caught.value.__cause__ is None


def test_no_reader_gets_what_a_failed_append_left_behind_the_log_end() -> None:
    log = World().load({"segment.index.bytes": "24", "index.interval.bytes": "1"})
    first, *others = (batch(value, base_offset=at) for at, value in enumerate("abcdef"))
    log.append_as_follower(first, 0)
    with pytest.raises(IllegalArgumentError, match="a full "):
        log.append_as_follower(b"".join(others), 0)
    assert (log.log_end_offset, log.size_bytes) == (1, 6 * len(first))
    assert log.read(0, 1 << 20, FetchIsolation.LOG_END).records == first


def test_a_high_watermark_set_below_the_log_start_moves_to_the_first_batch() -> None:
    log = World().load()
    log.truncate_fully_and_start_at(5)
    assert log.update_high_watermark(0) == 5
    log.append_as_follower(batch("a1", base_offset=10), 0)
    log.read(5, 100)
    assert log.high_watermark == 10


def test_a_closed_log_refuses_what_would_change_it() -> None:
    log = World().load()
    log.append_as_leader(batch("a1"), 0)
    log.close_handlers()
    for call in (lambda: log.append_as_leader(batch("b1"), 0), log.roll, log.close):
        with pytest.raises(KafkaStorageError, match="already closed"):
            call()


def test_deleted_segments_are_removed_after_their_delay_and_not_before() -> None:
    world = World()
    log = world.load({"retention.bytes": "0", "segment.bytes": "200", "file.delete.delay.ms": "1000"})
    for value in ("a1", "b1", "c1", "d1"):
        log.append_as_leader(batch(value), 0)
    log.update_high_watermark(log.log_end_offset)
    assert log.delete_old_segments() == 2

    def waiting() -> list[str]:
        return sorted(info.name for info in world.fs.list(log.directory) if info.name.endswith(".log.deleted"))

    assert waiting() == ["00000000000000000000.log.deleted", "00000000000000000002.log.deleted"]
    world.pass_time(999)
    assert len(waiting()) == 2
    world.pass_time(1)
    assert waiting() == []
    assert (log.log_start_offset, read_all(log)) == (4, {})
