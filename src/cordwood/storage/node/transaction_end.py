"""What `abort-transaction` finds and does: hanging transactions, and the markers that end them."""

from __future__ import annotations

from dataclasses import dataclass

from cordwood.presentable import Presentable
from cordwood.record.control import Marker
from cordwood.storage.node.transactions import OpenInLog, TransactionalId
from cordwood.text import number


@dataclass(frozen=True, slots=True)
class TransactionEnd:
    """The end of a hanging transaction in one partition.

    Attributes:
        open_in_log: the transaction as it was found.
        known: what the producer's coordinator knows; None: no coordinator knows the producer.
        batches, records, size_bytes: of its data in the log.
        marker: what is appended.
        leader_epoch: of the marker; NONE: the log has none.
        next_stable_offset: the last stable offset behind the marker.
        replicas: directories of the partition that get the marker.
        done_before: those that have it already, from a run that was interrupted.
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
    """What `abort-transaction` did, or would do.

    Attributes:
        done: the markers are written, and durable; False: nothing was changed.
    """

    ends: tuple[TransactionEnd, ...]
    done: bool

    def __str__(self) -> str:
        return f"{number(len(self.ends), 'transaction')} {'aborted' if self.done else 'could be aborted'}"
