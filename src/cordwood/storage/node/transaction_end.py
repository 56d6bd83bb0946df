"""Results of `abort-transaction`: hanging transactions, and the markers that end them."""

from __future__ import annotations

from dataclasses import dataclass

from cordwood.common.presentable import Presentable
from cordwood.common.text import number
from cordwood.record.control import Marker
from cordwood.storage.node.transactions import OpenInLog, TransactionalId


@dataclass(frozen=True, slots=True)
class TransactionEnd:
    """The end of a hanging transaction in one partition.

    Attributes:
        open_in_log: the transaction before its end.
        known: the coordinator's state of the producer; None if no coordinator has any.
        batches, records, size_bytes: totals of the transaction's data in the log.
        marker: the marker to append.
        leader_epoch: leader epoch of the marker; NONE if the log has none.
        next_stable_offset: last stable offset of the log once the marker is appended.
        replicas: directories of the partition to which the marker is appended.
        done_before: directories that already have the marker, from an interrupted run.
    """

    open_in_log: OpenInLog
    known: TransactionalId | None
    batches: int
    records: int
    size_bytes: int
    marker: Marker
    leader_epoch: int
    next_stable_offset: int
    replicas: tuple[str, ...]
    done_before: tuple[str, ...] = ()

    def __str__(self) -> str:
        return (
            f"{self.open_in_log.partition}: the transaction of producer {self.marker.producer_id} from offset "
            + str(self.open_in_log.first_offset)
        )


@dataclass(frozen=True, slots=True)
class AbortResult(Presentable):
    """The transactions that `abort-transaction` aborted, or would abort.

    Attributes:
        done: True if the markers are written and durable; False if nothing was changed.
    """

    ends: tuple[TransactionEnd, ...]
    done: bool

    def __str__(self) -> str:
        return f"{number(len(self.ends), 'transaction')} {'aborted' if self.done else 'could be aborted'}"
