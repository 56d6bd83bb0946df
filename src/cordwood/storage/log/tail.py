"""Find the end of a log that a broker may be writing.

A reader can see a part of an append, as its bytes appear in order: the last batch then ends beyond the end of the file,
or in the zeros of a preallocated file. Only the last batch can be incomplete. It counts once it is whole and its
checksum is right.

A search can start from the previous tail: while the last batch of that tail is still in its place, only newer bytes are
read.

A reader of committed records stops at the last stable offset and must continue from there, not from the log's end:
records of an open transaction count once its marker is written. `FollowedLog` remembers that offset.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

from cordwood.common.errors import CorruptBatchError, NotFoundError
from cordwood.common.types import Isolation
from cordwood.fs.base import ReadableFile
from cordwood.kernels.layout import BatchRows
from cordwood.record.columns import crc_error, is_valid
from cordwood.storage.log.cuts import Cut, cut_before
from cordwood.storage.log.order import headers_in_order
from cordwood.storage.log.outcomes import follow
from cordwood.storage.log.segment import MAX_OFFSET, Segment, gap_error
from cordwood.storage.log.transactions import READ_COMMITTED, Transactions
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Checks, Gap, GapKind, WindowReader, read_headers

#: Number of attempts to read a log whose files vanish meanwhile.
_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a log.

    Attributes:
        next_offset: offset after the last whole batch.
        last_batch: the cut before that batch, from which the next tail is searched.
        damage: damaged bytes after the last whole batch, other than the start of another batch; None without damage.
    """

    next_offset: int
    end: Cut
    last_batch: Cut
    damage: CorruptBatchError | None = None


def find_tail(log: LogView, known: Tail | None = None, *, search: bool = False) -> Tail:
    """Find the end of a log with at least one segment.

    Args:
        log: a view whose list of segments includes the newest segment.
        known: an earlier tail of the log.
        search: look for batches after damage.

    Raises:
        FileNotFoundError: a file vanished; open the log again.
    """
    last = log.segments[-1]
    with last.open() as file:
        # Nothing follows the last batch, not even zeros of a preallocated file.
        if known is not None and (known.end.segment, known.end.position) == (last.base_offset, file.size()):
            return known
        start = _start(file, last, known)
        rows: list[BatchRows] = []
        damage: CorruptBatchError | None = None
        headers = read_headers(file, base_offset=last.base_offset, start=start, search=search)
        for item in headers_in_order(headers, last.order(start)):
            if isinstance(item, Gap):
                damage = gap_error(last, item) if item.kind is GapKind.DAMAGE else None
            else:
                rows, damage = [*rows[-1:], item], None  # the last two items hold the last two batches
        batches = [batch for some in rows for batch in some[-2:]]
        if batches and (wrong := _crc_error(file, last, int(batches[-1]["position"]))) is not None:
            damage = wrong
            batches.pop()
    if not batches:
        # The segment is empty, so its base offset is that of the next record.
        at_start = Cut(last.base_offset, 0, last.base_offset)
        return Tail(last.base_offset, at_start, at_start, damage)
    batch = batches[-1]
    position, next_offset = int(batch["position"] + batch["size_bytes"]), int(batch["last_offset"]) + 1
    return Tail(next_offset, Cut(last.base_offset, position, next_offset), cut_before(last.base_offset, batch), damage)


@dataclass
class FollowedLog:
    """A log that grows while it is read, with at least one segment.

    Attributes:
        next_offset: first offset that is not read yet; the reader advances it, up to `end_offset`.
        isolation: isolation level; None if everything up to the log's end is readable.
        end_offset: end of the readable records at the last poll: the log's end, or its last stable offset.
        transactions: transactions below the log's end at the last poll, without aborted ones that end below
            `next_offset`.
    """

    log: LogView
    next_offset: int
    isolation: Isolation | None
    end_offset: int = 0
    transactions: Transactions = field(default_factory=Transactions)
    _tail: Tail | None = None
    _resume: Cut | None = None

    def look(self) -> None:
        """Update the end of the readable records.

        Raises:
            NotFoundError: the log was deleted, or changes too fast to be read.
        """
        for _ in range(_ATTEMPTS):
            self.log.list_again()
            with contextlib.suppress(FileNotFoundError):  # a segment was rolled or deleted meanwhile
                self._look()
                return
        raise NotFoundError(f"{self.log.path} changes too fast to be read")

    def _look(self) -> None:
        tail = find_tail(self.log, self._tail)
        if self._tail is not None and tail.next_offset < self._tail.next_offset:
            # Truncated: the offsets after the new end will have other records.
            self.next_offset = min(self.next_offset, tail.next_offset)
            self.transactions = Transactions()
        self._tail = tail
        self.end_offset = tail.next_offset
        if self.isolation == READ_COMMITTED:
            self.transactions.forget_below(self.next_offset)
            self._resume = follow(self.transactions, self.log, tail.next_offset, self._resume) or self._resume
            stable = self.transactions.last_stable_offset
            self.end_offset = tail.next_offset if stable is None else stable


def _start(file: ReadableFile, segment: Segment, known: Tail | None) -> int:
    """Return the position of a batch near the end of a segment."""
    if known is not None and known.last_batch.segment == segment.base_offset and known.last_batch.still_holds(file):
        return known.last_batch.position
    return segment.position_of(file, MAX_OFFSET)


def _crc_error(file: ReadableFile, segment: Segment, position: int) -> CorruptBatchError | None:
    """Return the fault of the batch at a position; None if it is whole."""
    for item in WindowReader(file, Checks.WHOLE, base_offset=segment.base_offset, start=position, search=False):
        if isinstance(item, Gap):
            return None  # truncated meanwhile
        return None if is_valid(item.batches[:1])[0] else crc_error(item.batches[0]).at(segment.path)
    return None
