"""Find the end of a log that a broker may be writing, and the outcomes of its transactions.

A reader can see a part of an append, as its bytes appear in order: the last batch then ends beyond the end of the file,
or in the zeros of a preallocated file. Only the last batch can be incomplete. It counts once it is whole and its
checksum is right.

A search can start from the previous tail: while the last batch of that tail is still in its place, only newer bytes are
read.

A reader of committed records stops at the last stable offset and must continue from there, not from the log's end:
records of an open transaction count once its marker is written. `FollowedLog` remembers that offset.

Between two polls the log may be truncated and grow again beyond its former end, as a replica does after a change of
leader, or a cleaner may replace segments. Then the last batch of the former tail is replaced: its place holds another
checksum. The transactions are then read again from all headers, and reading continues where the new records begin.

The outcomes of transactions come from the log's indexes, as in a broker, without reading all headers:

    segment 0   segment 1   segment 2   active segment
    .txnindex   .txnindex   .txnindex   headers            aborted transactions, by position of their markers
                                  ▲
                                  .snapshot                transactions that were open there

The transaction indexes of closed segments list the aborted ones, and the newest producer snapshot lists the open ones
at its offset. From there on headers are read. The transaction index may be incomplete if the segment has no offset
index (no broker closed it, or it was copied without indexes), or if it is above the recovery point after a crash. From
the first such segment on, headers are read as well; without any snapshot, all headers are read.
`LogView.transactions` reads all headers and trusts no index; `contradicts` compares a result of `outcomes` with the
markers.
"""

from __future__ import annotations

import contextlib
import itertools
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from cordwood.common.errors import CorruptBatchError, CorruptFileError, NotFoundError
from cordwood.common.types import NONE, ControlType, Isolation
from cordwood.fs.base import ReadableFile
from cordwood.kernels.layout import BatchRows, is_transactional_data
from cordwood.record.columns import BatchWindow, crc_error, is_valid
from cordwood.storage.formats import producer_state, transaction_index
from cordwood.storage.formats.filenames import FileKind
from cordwood.storage.formats.transaction_index import AbortedTransaction
from cordwood.storage.log.files import read_file, read_topic_id
from cordwood.storage.log.segment import MAX_OFFSET, Cut, Segment, cut_before, gap_error, header_at
from cordwood.storage.log.transactions import READ_COMMITTED, Transactions, steps
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Checks, Gap, GapKind, WindowReader, headers_in_order, read_headers

#: Number of attempts to read a log whose files vanish meanwhile.
_ATTEMPTS = 5
#: Number of earlier tails that are compared with a truncated log.
_TAILS_MAX = 64
#: Bytes that do not form a batch may belong to a batch that is being written, but not for longer than this.
PATIENCE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a log.

    Attributes:
        next_offset: offset after the last whole batch.
        last_batch: the cut before that batch, from which the next tail is searched.
        damage: damaged bytes after the last whole batch, other than the start of another batch; None without damage.
        checksum: stored checksum of the last batch; None if the last segment has no batch.
        leader_epoch: leader epoch of the last batch; -1 without one.
        mtime_ns: modification time of the last segment when it was listed.
    """

    next_offset: int
    end: Cut
    last_batch: Cut
    damage: CorruptBatchError | None = None
    checksum: int | None = None
    leader_epoch: int = NONE
    mtime_ns: int = field(default=0, compare=False)

    def is_replaced(self, log: LogView) -> bool:
        """Return whether the last batch is no longer in its place: truncated, cleaned or deleted.

        Raises:
            FileNotFoundError: a file vanished; list the log again.
        """
        segment = next((one for one in log.segments if one.base_offset == self.last_batch.segment), None)
        if segment is None:
            return True
        if self.checksum is None:
            return False
        with segment.open() as file:
            batch = header_at(file, self.last_batch.position)
        if batch is None or int(batch["last_offset"]) + 1 != self.next_offset:
            return True
        # No checksum covers the leader epoch: a new leader may append the same bytes.
        return (int(batch["crc"]), int(batch["leader_epoch"])) != (self.checksum, self.leader_epoch)


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
        mtime_ns = last.files.log.mtime_ns
        if known is not None and (known.end.segment, known.end.position, known.mtime_ns) == (
            last.base_offset,
            file.size(),
            mtime_ns,
        ):
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
        return Tail(last.base_offset, at_start, at_start, damage, mtime_ns=mtime_ns)
    batch = batches[-1]
    position, next_offset = int(batch["position"] + batch["size_bytes"]), int(batch["last_offset"]) + 1
    return Tail(
        next_offset,
        Cut(last.base_offset, position, next_offset),
        cut_before(last.base_offset, batch),
        damage,
        int(batch["crc"]),
        int(batch["leader_epoch"]),
        mtime_ns,
    )


@dataclass
class TailPatience:
    """Decides when bytes that do not form a batch are damage: no append takes this long.

    Attributes:
        damaged_since: when the present damage was first seen, by the clock; None without damage.
    """

    clock: Callable[[], float] = time.monotonic
    damaged_since: float | None = None
    _end: Cut | None = None

    def is_over(self, tail: Tail) -> bool:
        """Return whether the bytes after the last batch have been there for too long to be a part of an append."""
        if tail.damage is None:
            self.damaged_since = None
        elif self.damaged_since is None or tail.end != self._end:
            self.damaged_since, self._end = self.clock(), tail.end
        return self.damaged_since is not None and self.clock() - self.damaged_since >= PATIENCE_SECONDS


@dataclass
class FollowedLog:
    """A log that grows while it is read, with at least one segment.

    Attributes:
        next_offset: first offset that is not read yet; the reader advances it, up to `end_offset`.
        isolation: isolation level; None if everything up to the log's end is readable.
        end_offset: end of the readable records at the last poll: the log's end, or its last stable offset.
        transactions: transactions below the log's end at the last poll, without aborted ones that end below
            `next_offset`.
        damage: damage at the log's end, once it is too old to be a part of an append.
    """

    log: LogView
    next_offset: int
    isolation: Isolation | None
    end_offset: int = 0
    transactions: Transactions = field(default_factory=Transactions)
    patience: TailPatience = field(default_factory=TailPatience)
    damage: CorruptBatchError | None = None
    _tails: deque[Tail] = field(default_factory=lambda: deque(maxlen=_TAILS_MAX))
    _resume: Cut | None = None
    _topic_id: uuid.UUID | None = None

    def __post_init__(self) -> None:
        """Remember whether a broker appends, and the topic."""
        self._is_live = self.log.live
        self._topic_id = read_topic_id(self.log.fs, self.log.path)

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
        if not self.log.segments:
            raise FileNotFoundError(self.log.path)  # a broker renames the only segment before it creates the next
        known = self._tails[-1] if self._tails else None
        tail = self._tail(known)
        topic_id = self._topic_id if tail is known else read_topic_id(self.log.fs, self.log.path)
        if topic_id != self._topic_id:
            # Deleted and created again: nothing of the former log is left, whatever its batches look like.
            self._tails.clear()
            known, self._topic_id, self.next_offset, self._resume = None, topic_id, 0, None
        if known is None:
            self.transactions = Transactions(open=self.log.open_below_start())
        elif tail is not known and known.is_replaced(self.log):
            self.next_offset = min(self.next_offset, self._unchanged_end(known, tail))
            self.transactions, self._resume = Transactions(open=self.log.open_below_start()), None
        if tail is not known:
            self._tails.append(tail)
        if self.isolation is not None:
            self.next_offset = max(self.next_offset, self.log.log_start_offset)  # records were deleted meanwhile
        self.end_offset = tail.next_offset
        if self.isolation == READ_COMMITTED:
            self.transactions.forget_below(self.next_offset)
            self._resume = follow(self.transactions, self.log, tail.next_offset, self._resume) or self._resume
            stable = self.transactions.last_stable_offset
            self.end_offset = tail.next_offset if stable is None else stable

    def _tail(self, known: Tail | None) -> Tail:
        """Find the log's end; past damage that is too old, so that what follows it is read and the damage reported."""
        self.log.live, self.damage = self._is_live, None
        tail = find_tail(self.log, known, search=not self._is_live)
        if self._is_live and self.patience.is_over(tail):
            self.log.live = False
            tail = find_tail(self.log, known, search=True)
            self.damage = tail.damage
        return tail

    def _unchanged_end(self, known: Tail, tail: Tail) -> int:
        """Return the offset below which the log has the same records as before, after a batch was replaced.

        If the log was truncated, new records begin at the first leader epoch above the former last one, as for a
        consumer. Without such an epoch, either a cleaner replaced a closed segment, which keeps the offsets of records,
        or the log's end was truncated: then new records begin after the last earlier tail that is still in its place.

        Source: Kafka OffsetsForLeaderEpoch, SubscriptionState.maybeCompleteValidation.
        """
        epochs = [one.leader_epoch for one in self._tails if one.checksum is not None]
        is_closed = known.last_batch.segment < self.log.segments[-1].base_offset
        while self._tails and self._tails[-1].is_replaced(self.log):
            self._tails.pop()
        intact = self._tails[-1].next_offset if self._tails else None
        newest = max(epochs, default=NONE)
        if epochs and not (is_closed and newest == NONE) and (begin := begin_of_newer(self.log, newest)) is not None:
            return min(begin, tail.next_offset)
        if is_closed:
            return tail.next_offset
        return min(known.last_batch.offset if intact is None else intact, tail.next_offset)


def begin_of_newer(log: LogView, leader_epoch: int) -> int | None:
    """Return the first offset with a leader epoch above a given one, or None. Leader epochs never decrease."""
    start = 0
    for segment in reversed(log.segments):
        with segment.open() as file:
            first = header_at(file, 0)
        if first is not None and first["leader_epoch"] <= leader_epoch:
            start = segment.base_offset
            break
    for _, item in log.windows(start_offset=start, checks=Checks.HEADERS):
        if not isinstance(item, Gap):
            newer = item.batches[item.batches["leader_epoch"] > leader_epoch]
            if newer.size:
                return int(newer["base_offset"][0])
    return None


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


# ---- outcomes of transactions ----------------------------------------------------------------------------------------


def outcomes(log: LogView, end_offset: int, *, flushed_below: int) -> Transactions:
    """Return the transactions of a log by its indexes, a producer snapshot and the headers after them.

    Args:
        end_offset: transactions without a marker below it are open.
        flushed_below: the recovery point after a crash. Transaction indexes of segments that reach above it are
            ignored.
    """
    aborted, known_below = _from_indexes(log, min(end_offset, flushed_below))
    found = _from_snapshot(log, known_below)
    for one in aborted:
        if one.last_offset < found.next_offset:
            found.aborted.setdefault(one.producer_id, []).append((one.first_offset, one.last_offset))
    follow(found, log, end_offset)
    return found


def follow(found: Transactions, log: LogView, end_offset: int, start: Cut | None = None) -> Cut | None:
    """Apply the headers of a log from `found.next_offset` on, up to an offset.

    Args:
        found: updated in place.
        end_offset: batches from here on are left out.
        start: a known cut at or below `found.next_offset`.

    Returns:
        the cut before the last batch, as `start` of the next call; None if there was no batch.
    """
    first, last = found.next_offset, None
    for segment, item in log.windows(start_offset=first, end_offset=end_offset, checks=Checks.HEADERS, start=start):
        if isinstance(item, BatchWindow):
            # Batches that end below `first` are already applied.
            found.add(item.batches[item.batches["last_offset"] >= first])
            last = cut_before(segment.base_offset, item.batches[-1])
    return last


def contradicts(found: Transactions, batches: BatchRows, has_data: set[int]) -> AbortedTransaction | None:
    """Return a transaction whose marker contradicts `found`, or None if all agree so far.

    Args:
        batches: the next batches of the log (BATCH_ROW[batches]).
        has_data: producers with records in their open transaction; initially empty, updated in place.
    """
    with_records = batches[(batches["record_count"] > 0) | ~is_transactional_data(batches)]
    for base_offset, last_offset, producer_id, marker in steps(with_records):
        if marker is None:
            has_data.add(producer_id)
            continue
        ranges = found.aborted.get(producer_id, [])
        if marker is ControlType.ABORT:
            wrong = producer_id in has_data and all(last != last_offset for _, last in ranges)
        else:
            wrong = any(first < base_offset < last for first, last in ranges)
        if wrong:
            return AbortedTransaction(producer_id, NONE, last_offset, NONE)
        has_data.discard(producer_id)
    return None


def _from_indexes(log: LogView, below: int) -> tuple[list[AbortedTransaction], int]:
    """Return the aborted transactions of the closed segments with usable indexes, and the end of these segments."""
    aborted: list[AbortedTransaction] = []
    known_below = log.first_offset
    for segment, following in itertools.pairwise(log.segments):
        if following.base_offset > below or FileKind.OFFSET_INDEX not in segment.files.indexes:
            break
        try:
            index = segment.transaction_index()
        except (CorruptFileError, FileNotFoundError):
            break
        if index is not None:
            if any(transaction_index.faults(index, segment.base_offset)):
                break
            aborted += index.transactions()
        known_below = following.base_offset
    return aborted, known_below


def _from_snapshot(log: LogView, end: int) -> Transactions:
    """Return the open transactions at the newest readable snapshot up to `end`, or at the log's start."""
    for offset, info in sorted(log.recovery.snapshots.items(), reverse=True):
        if log.first_offset < offset <= end:
            try:
                rows = producer_state.decode_rows(read_file(log.fs, f"{log.path}/{info.name}"))
            except (CorruptFileError, FileNotFoundError):
                continue  # as a broker does: an older snapshot is enough
            rows = rows[rows["current_transaction_first_offset"] != NONE]
            starts = rows[["producer_id", "current_transaction_first_offset"]].tolist()
            return Transactions(open=dict(starts), next_offset=offset)
    return Transactions(open=log.open_below_start(), next_offset=log.first_offset)
