"""Read a segment's headers: transactional batches, possible starts of runs, the end of the log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from cordwood.cleaning.engine.progress import CountedLog
from cordwood.common.types import NONE
from cordwood.kernels.layout import BATCH_ROW, BatchRows
from cordwood.record.headers import concerns_transactions
from cordwood.storage.log.segment import gap_error
from cordwood.storage.log.transactions import Transactions
from cordwood.storage.log.windows import Gap, GapKind


@dataclass(frozen=True, slots=True)
class SegmentTask:
    """A task that reads the headers of a segment.

    Attributes:
        run_bytes: approximate size of a run in bytes.
    """

    log: CountedLog
    base_offset: int
    is_last: bool
    run_bytes: int

    @property
    def path(self) -> str:
        """The log's directory, for errors."""
        return self.log.path


@dataclass(frozen=True, slots=True)
class SegmentHeaders:
    """The needed facts from the headers of a segment.

    Attributes:
        transactional: BATCH_ROW[batches], markers and transactional data.
        starts: for each run, the position of its first batch, and the offset behind the batch before it.
        end: position behind the last batch.
        next_offset: offset behind the last batch; the segment's base offset if it is empty.
    """

    base_offset: int
    transactional: BatchRows
    starts: tuple[tuple[int, int], ...]
    end: int
    next_offset: int


def read_segment_headers(task: SegmentTask) -> SegmentHeaders:
    """Read the headers of a segment.

    Raises:
        CorruptBatchError: bytes between batches do not form a batch, or a batch is out of order.
        NotFoundError: the segment was deleted.
    """
    segment = task.log.segment(task.base_offset)
    transactional = [np.empty(0, BATCH_ROW)]
    starts: list[tuple[int, int]] = []
    end, next_offset, last_number = 0, task.base_offset, NONE
    for item in segment.headers_and_gaps(search=not task.log.source.live, ordered=True):
        if isinstance(item, Gap):
            if task.is_last and (task.log.source.live or item.kind is not GapKind.DAMAGE):
                break  # an incomplete write after a crash, or one that a broker has not finished
            raise gap_error(segment, item)
        transactional.append(item[concerns_transactions(item)])
        # A compressed message of magic 0 or 1 has no base offset; it is the offset behind the batch before.
        firsts = np.append(next_offset, item["last_offset"][:-1] + 1)
        numbers = item["position"] // task.run_bytes
        for at in np.flatnonzero(np.diff(numbers, prepend=last_number)).tolist():
            starts.append((int(item["position"][at]), int(firsts[at])))
        last_number = int(numbers[-1])
        end = int(item["position"][-1] + item["size_bytes"][-1])
        next_offset = int(item["last_offset"][-1]) + 1
    return SegmentHeaders(task.base_offset, np.concatenate(transactional), tuple(starts), end, next_offset)


def transactions_of(headers: Iterable[SegmentHeaders]) -> Transactions:
    """Collect the transactions of a log from the headers of its segments, in log order."""
    found = Transactions()
    for one in headers:
        found.add(one.transactional)
    return found
