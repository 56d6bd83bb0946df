"""Compares the log start and end offsets, leader epochs, topic id and producers of two states of a log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cordwood.cleaning.proof import room
from cordwood.cleaning.proof.pairs import Pair, ViolationKind
from cordwood.cleaning.proof.ranges import PairRange, ranges_of
from cordwood.common.errors import CorruptFileError, DataError, RequestError
from cordwood.common.types import NONE
from cordwood.fs.base import Store
from cordwood.storage.formats import leader_epochs
from cordwood.storage.formats.filenames import FileKind
from cordwood.storage.formats.properties import decode_partition_metadata, encode_id
from cordwood.storage.log.files import read_file
from cordwood.storage.log.view import LogView
from cordwood.storage.recovery.replay import Producers, headers_from, newest_snapshot

#: A producer's epoch, last sequence, last offset and the start of its open transaction; NONE for a missing value.
ProducerState = tuple[int, int, int, int]
#: A violation that is not about a record: its kind, its text and the path of the file.
Fault = tuple[ViolationKind, str, str]
RANGE_BYTES = room.RANGE_BYTES


# ---- look ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LookedAt:
    """Result of the first look at a pair: differences outside of the records, and the ranges to read.

    Attributes:
        keys_max: an upper bound of the number of keys in the state before.
    """

    ranges: tuple[PairRange, ...] = ()
    faults: tuple[Fault, ...] = ()
    keys_max: int = 0


def look_at(number: int, pair: Pair, fs: Store, *, times: int = 1) -> LookedAt:
    """Compare everything but the records of a pair, and cut it into ranges. An unreadable state is a violation.

    Args:
        times: size of a range as a multiple of `RANGE_BYTES`.
    """
    try:
        ranges = ranges_of(number, pair, fs, range_bytes=times * RANGE_BYTES)
        before, after = pair.before.open(fs), pair.after.open(fs)
        faults = (*_state_faults(pair, before, after), *_topic_id_faults(before, after))
        return LookedAt(tuple(ranges), faults, max(before.next_offset - pair.lowest, 0))
    except (RequestError, DataError, OSError) as error:
        return LookedAt(faults=(_unreadable(pair, error),))


def _unreadable(pair: Pair, error: Exception) -> Fault:
    return ViolationKind.DAMAGE_AFTER, f"cannot be read: {error}", pair.after.path


@dataclass(frozen=True, slots=True)
class KnownProducers:
    """The producers in a broker's state.

    Attributes:
        before: id, epoch and last data offset of each producer after a broker has loaded the state before.
    """

    before: tuple[tuple[int, int, int], ...] = ()
    faults: tuple[Fault, ...] = ()


def look_at_producers(pair: Pair, fs: Store, *, in_log: bool) -> KnownProducers:
    """Compare the producers that a broker has after it loads the two states.

    Args:
        in_log: whether a compared batch of either log has a producer id. If not, only snapshots are read.
    """
    try:
        before, after = pair.before.open(fs), pair.after.open(fs)
        # The ranges begin at the lowest offset, so batches of producers below it have not been searched for.
        in_log = in_log or pair.lowest > before.first_offset
        noted, was, done = _producers(before, pair, in_log=in_log)
        _, now, _ = _producers(after, pair, in_log=in_log)
        start = after.log_start_offset
        # A broker that loads a log ignores a snapshot at or below the log start offset.
        gone_below = start if pair.retention and done <= start else NONE
        known = tuple((id, epoch, last_offset) for id, (epoch, _, last_offset, _) in was.items())
        return KnownProducers(known, tuple(_producer_faults(pair, noted, was, now, gone_below)))
    except (RequestError, DataError, OSError) as error:
        return KnownProducers(faults=(_unreadable(pair, error),))


def _state_faults(pair: Pair, before: LogView, after: LogView) -> Iterator[Fault]:
    """Yield differences of log start offset, end offset and leader epochs."""
    path = pair.after.path
    ends = before.next_offset, after.next_offset
    if ends[0] != ends[1]:
        yield ViolationKind.END_OFFSET, f"the log ended at {ends[0]}, and ends at {ends[1]}", path
    starts = before.log_start_offset, after.log_start_offset
    if starts[1] < starts[0] or (starts[1] > starts[0] and not pair.retention):
        excuse = "" if starts[1] < starts[0] else "; only retention, if it ran, excuses that"
        yield ViolationKind.LOG_START, f"the log started at {starts[0]}, and starts at {starts[1]}{excuse}", path
    epochs = [_epochs(log, pair.lowest) for log in (before, after)]
    # A broker that loads a log drops an epoch without records, and then begins a new one there. So compare only epochs
    # that have records; a different epoch at the end must be newer.
    written = [[one for one in some if one[1] < ends[0]] for some in epochs]
    empty = [[one for one in some if one[1] >= ends[0]][-1:] for some in epochs]
    if written[0] != written[1] or (empty[1] and empty[1] < empty[0]):
        what = f"leader epochs were {epochs[0]}, and are {epochs[1]}"
        yield ViolationKind.LEADER_EPOCHS, what, f"{path}/{FileKind.LEADER_EPOCHS}"


def _topic_id_faults(before: LogView, after: LogView) -> Iterator[Fault]:
    """Yield a violation if `partition.metadata` has lost its topic id; nothing if there was no readable id before."""
    path = f"{after.path}/{FileKind.PARTITION_METADATA}"
    was, now = _topic_id(before), _topic_id(after)
    if was is not None and was != now:
        yield ViolationKind.TOPIC_ID, f"the topic id was {was}, and is {now or 'unknown'}", path


def _topic_id(log: LogView) -> str | None:
    path = f"{log.path}/{FileKind.PARTITION_METADATA}"
    try:
        return encode_id(decode_partition_metadata(read_file(log.fs, path), path).topic_id)
    except (FileNotFoundError, CorruptFileError):
        return None


def _producer_faults(
    pair: Pair,
    noted: Mapping[int, ProducerState],
    was: Mapping[int, ProducerState],
    now: Mapping[int, ProducerState],
    gone_below: int,
) -> Iterator[Fault]:
    """Yield a violation for each producer whose state, as a broker rebuilds it on load, differs between both logs.

    Retention may have deleted batches below `gone_below`; a broker then rebuilds the state without them.
    """
    for id, one in was.items():
        rebuilt, new = noted.get(id) != one, now.get(id)
        if new == one or (rebuilt and _only_its_epoch_is_forgotten(one, new)) or _is_left(one, new, gone_below):
            continue
        what = f"producer {id}: epoch, last sequence, last offset, open transaction were {one}, and are {new}"
        yield ViolationKind.PRODUCER_STATE, what, pair.after.path


def _only_its_epoch_is_forgotten(was: ProducerState, now: ProducerState | None) -> bool:
    """Return whether the producer was known from a marker alone, and its epoch is now forgotten.

    A broker that rebuilds producer state from the log skips a marker batch that a clean (Kafka's or ours) has emptied.
    `producers.judge_producers` proves that the emptied batch, or another of that epoch, is still there.
    """
    return was[1:] == (NONE, NONE, NONE) and (now is None or (now[0] < was[0] and now[-1] == NONE))


def _is_left(was: ProducerState, now: ProducerState | None, gone_below: int) -> bool:
    """Return whether `now` equals `was` after a rebuild without the batches below an offset."""
    _, _, last_offset, transaction_start = was
    if last_offset < gone_below:
        return now is None or now[:-1] == (was[0], NONE, NONE)
    return now is not None and now[:-1] == was[:-1] and NONE < transaction_start < gone_below


def _epochs(log: LogView, lowest: int) -> list[tuple[int, int]]:
    """Return (epoch, start offset) from an offset on; empty if the file is missing or corrupt, as `check` reports."""
    path = f"{log.path}/{FileKind.LEADER_EPOCHS}"
    try:
        known = leader_epochs.history(leader_epochs.decode(read_file(log.fs, path), path))
    except (FileNotFoundError, CorruptFileError):
        return []
    first = known.epoch_for_offset(lowest)
    later = [(one.epoch, one.start_offset) for one in known.entries if one.start_offset > lowest]
    return later if first is None else [(first, lowest), *later]


def _producers(
    log: LogView, pair: Pair, *, in_log: bool
) -> tuple[dict[int, ProducerState], dict[int, ProducerState], int]:
    """Rebuild producer state as a broker does when it loads a log, without producers expired at the pair's time.

    Returns:
        the state in the newest snapshot; the state after the later batches were replayed; the snapshot's offset.
    """
    end = log.next_offset
    settings = {"now_ms": pair.now_ms, "expiration_ms": pair.producer_expiration_ms}
    known: Producers
    known, done = newest_snapshot(log, end, **settings)
    noted = _states(known)
    for rows in headers_from(log, done) if in_log and done < end else ():
        known.replay(rows[rows["base_offset"] >= done])
    known.expire(**settings)
    return noted, _states(known), done


def _states(producers: Producers) -> dict[int, ProducerState]:
    rows = producers.rows()
    names = ("producer_epoch", "last_sequence", "last_offset", "current_transaction_first_offset")
    states = zip(*(rows[name].tolist() for name in names), strict=True)
    return dict(zip(rows["producer_id"].tolist(), states, strict=True))
