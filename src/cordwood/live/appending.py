"""One append: checks its batches and their producers, and gives the batches their offsets.

Source: Kafka UnifiedLog.analyzeAndValidateRecords, UnifiedLog.append.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cordwood.common.errors import (
    IllegalArgumentError,
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTxnStateError,
    OffsetsOutOfOrderError,
    RecordTooLargeError,
    UnexpectedAppendOffsetError,
)
from cordwood.common.types import NONE, Codec
from cordwood.kernels.layout import CODEC_MASK
from cordwood.live.environment import LogConfig
from cordwood.live.producer_state import AppendOrigin, ProducerAppend, ProducerState, read_marker
from cordwood.live.validation import Leader, check_crc, read_batches, read_records
from cordwood.record.batch import Batch
from cordwood.storage.recovery.replay import CompletedTransaction, RememberedBatch


class AppendInfo(NamedTuple):
    """The result of an append.

    Attributes:
        first_offset: offset of the first record; NONE without batches, or if a follower's first batch has magic 0 or 1.
        append_time: append time with LogAppendTime; for a duplicate, the timestamp of the stored batch; else NONE.
        last_leader_epoch: leader epoch of the last batch, as it was sent.
        codec: codec of the last compressed batch.
        is_duplicate: nothing was written, because the log already has the batch, at these offsets.
    """

    first_offset: int = NONE
    last_offset: int = NONE
    max_timestamp: int = NONE
    append_time: int = NONE
    log_start_offset: int = NONE
    last_leader_epoch: int = NONE
    codec: Codec = Codec.NONE
    valid_bytes: int = 0
    last_offset_of_first_batch: int = NONE
    is_duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Append:
    """The origin of an append, and its rules.

    Attributes:
        magic: format for the stored batches; None if they have their offsets already and must not change.
    """

    name: str
    origin: AppendOrigin
    leader_epoch: int
    config: LogConfig
    magic: int | None

    def analyse(self, data: bytearray, log_start_offset: int) -> tuple[AppendInfo, list[Batch]]:
        """Check the batches without looking at the log.

        Returns:
            a summary of the batches, and their headers. A partial batch at the end is left out; a follower also leaves
            out the first batch of a later leader, and all batches after it.

        Raises:
            InvalidRecordError, RecordTooLargeError, CorruptRecordError, OffsetsOutOfOrderError, IllegalArgumentError:
                the batches must not be appended.
        """
        batches: list[Batch] = []
        last_offset, codec, in_order, is_later = NONE, Codec.NONE, True, False
        for batch in read_batches(data):
            self._check_start(batch)
            is_later = is_later or self._is_of_later_leader(batch)
            if is_later:
                continue
            in_order = in_order and batch.last_offset > last_offset
            last_offset = batch.last_offset
            self._check_size(batch)
            check_crc(data, batch)
            if batch.attributes & CODEC_MASK:
                codec = _codec(batch)
            batches.append(batch)
            if self.magic is None and not in_order:
                offsets = [batch.last_offset for batch in batches]
                raise OffsetsOutOfOrderError(f"Out of order offsets found in append to {self.name}: {offsets}")
        if not batches:
            return AppendInfo(log_start_offset=log_start_offset), []
        first, last = batches[0], batches[-1]
        info = AppendInfo(
            first_offset=first.base_offset if first.magic == 2 else NONE,
            last_offset=last_offset,
            max_timestamp=max(NONE, *(batch.max_timestamp for batch in batches)),
            log_start_offset=log_start_offset,
            last_leader_epoch=last.leader_epoch,
            codec=codec,
            valid_bytes=last.position + last.size_bytes,
            last_offset_of_first_batch=first.last_offset,
        )
        return info, batches

    def _is_of_later_leader(self, batch: Batch) -> bool:
        replicates = self.origin is AppendOrigin.REPLICATION
        return replicates and batch.leader_epoch != NONE and batch.leader_epoch > self.leader_epoch

    def _check_start(self, batch: Batch) -> None:
        if self.origin is AppendOrigin.RAFT_LEADER and batch.leader_epoch != self.leader_epoch:
            raise InvalidRecordError(
                f"Append from Raft leader did not set the batch epoch correctly, expected {self.leader_epoch} but the "
                f"batch has {batch.leader_epoch}"
            )
        if self.origin is AppendOrigin.CLIENT and batch.magic == 2 and batch.base_offset != 0:
            raise InvalidRecordError(
                f"The baseOffset of the record batch in the append to {self.name} should be 0, but it is "
                f"{batch.base_offset}"
            )

    def _check_size(self, batch: Batch) -> None:
        limit = self.config.max_message_bytes
        leads = self.magic is not None or self.origin is AppendOrigin.RAFT_LEADER
        if leads and batch.size_bytes > limit:
            raise RecordTooLargeError(
                f"The record batch size in the append to {self.name} is {batch.size_bytes} bytes which exceeds the "
                f"maximum configured value of {limit}."
            )

    def place(
        self, data: bytearray, batches: list[Batch], info: AppendInfo, end_offset: int, now_ms: int
    ) -> tuple[bytearray, list[Batch], AppendInfo]:
        """Assign offsets to the records, from `end_offset` on. If `magic` is None, only check the offsets.

        Args:
            data: the batches; may be changed.

        Raises:
            UnexpectedAppendOffsetError: a follower's batches begin below the end of the log.
            LogError: the records are not valid; see `Leader.validate`.
        """
        if self.magic is None:
            self._check_offsets(info, end_offset)
            return data, batches, info
        leader = Leader(self.config, self.origin, self.leader_epoch, now_ms, self.magic)
        data, batches, last_offset, max_timestamp = leader.validate(data, batches, end_offset)
        for batch in batches:
            if batch.size_bytes > self.config.max_message_bytes:
                raise RecordTooLargeError(
                    f"Message batch size is {batch.size_bytes} bytes in append to partition {self.name} which exceeds "
                    f"the maximum configured size of {self.config.max_message_bytes}."
                )
        placed = info._replace(
            first_offset=end_offset,
            last_offset=last_offset,
            max_timestamp=max_timestamp,
            append_time=now_ms if self.config.log_append_time else NONE,
        )
        return data, batches, placed

    def _check_offsets(self, info: AppendInfo, end_offset: int) -> None:
        first = info.first_offset if info.first_offset != NONE else info.last_offset_of_first_batch
        if first < end_offset:
            what = "First offset" if info.first_offset != NONE else "Last offset of the first batch"
            raise UnexpectedAppendOffsetError(
                f"Unexpected offset in append to {self.name}. {what} {first} is less than the next offset "
                f"{end_offset}.",
                first,
                info.last_offset,
            )


def check_producers(
    state: ProducerState,
    data: bytearray,
    batches: Sequence[Batch],
    origin: AppendOrigin,
    guard: int,
    transaction_version: int,
    *,
    name: str,
) -> tuple[RememberedBatch | None, dict[int, ProducerAppend], list[CompletedTransaction]]:
    """Check the producers of placed batches, without changing their state.

    Args:
        name: topic and partition, for errors.

    Returns:
        a batch that the log already has, or None; the producers' new states; the transactions that markers end.

    Raises:
        LogError: a producer must not write such a batch.
    """
    appends: dict[int, ProducerAppend] = {}
    completed: list[CompletedTransaction] = []
    for batch in batches:
        if batch.producer_id < 0:
            continue
        known = state.of(batch.producer_id)
        if origin is AppendOrigin.CLIENT and known is not None:
            duplicate = known.find_duplicate(batch)
            if duplicate is not None:
                return duplicate, appends, completed
        if origin in (AppendOrigin.CLIENT, AppendOrigin.COORDINATOR) and batch.is_transactional:
            is_open = known is not None and known.transaction_start != NONE and known.epoch == batch.producer_epoch
            if not is_open:
                _check_verified(state, batch, guard, name)
        marker = None
        if batch.is_control and batch.record_count != 0:
            marker = read_marker(read_records(data, batch))
        done = state.check(appends, batch, marker, origin, transaction_version)
        if done is not None:
            completed.append(done)
    return None, appends, completed


def _check_verified(state: ProducerState, batch: Batch, guard: int, name: str) -> None:
    """Check a batch that opens a transaction: the guard must be the one of its verification."""
    known = state.of(batch.producer_id)
    if known is not None and batch.producer_epoch < known.epoch:
        raise InvalidProducerEpochError(
            f"Epoch of producer {batch.producer_id} is {batch.producer_epoch}, which is smaller than the last seen "
            f"epoch {known.epoch}"
        )
    if state.transaction_verification and not batch.is_control and not state.is_verified(batch.producer_id, guard):
        raise InvalidTxnStateError(
            f"Record was not part of an ongoing transaction: producer {batch.producer_id} in {name}"
        )


def _codec(batch: Batch) -> Codec:
    codec = Codec.of(batch.attributes)
    if codec is None:
        raise IllegalArgumentError(f"Unknown compression type id: {batch.attributes & CODEC_MASK}")
    return codec
