"""Start, end, leader epochs and producers of two states of a log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cordwood.errors import CordwoodError, CorruptFileError
from cordwood.fs.base import Store
from cordwood.storage.formats import leader_epochs
from cordwood.storage.formats.filenames import FileKind
from cordwood.storage.formats.properties import decode_partition_metadata, encode_id
from cordwood.storage.log.files import read_file
from cordwood.storage.log.producers import Producers, headers_from, newest_snapshot
from cordwood.storage.log.view import LogView
from cordwood.types import NONE
from cordwood.verification.pairs import Pair, ViolationKind
from cordwood.verification.ranges import Range, ranges_of

#: Of a producer: epoch, last sequence, last offset, start of its open transaction; NONE for what there is none of.
ProducerState = tuple[int, int, int, int]
RANGE_BYTES = 128 << 20


# ---- look ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LookedAt:
    """What files other than logs say of a pair, and what is to be read of it."""

    ranges: tuple[Range, ...] = ()
    faults: tuple[tuple[ViolationKind, str, str], ...] = ()
    #: Id, epoch and last data offset of those that a broker knew which loaded the state before.
    producers: tuple[tuple[int, int, int], ...] = ()
    #: How many keys the state before has at most.
    keys_max: int = 0


def look_at(number: int, pair: Pair, fs: Store) -> LookedAt:
    """Compare what surrounds the records of a pair, and cut it into ranges; what cannot be read is a violation."""
    try:
        ranges = ranges_of(number, pair, fs, range_bytes=RANGE_BYTES)
        before, after = pair.before.open(fs), pair.after.open(fs)
        noted, was, done = _producers(before, pair)
        _, now, _ = _producers(after, pair)
        start = after.log_start_offset
        # At the start of a log, too, a broker that loads it passes over a snapshot.
        gone_below = start if pair.retention and done <= start else NONE
        faults = (
            *_state_faults(pair, before, after),
            *_topic_id_faults(before, after),
            *_producer_faults(pair, noted, was, now, gone_below),
        )
        known = tuple((id, epoch, last_offset) for id, (epoch, _, last_offset, _) in was.items())
        return LookedAt(tuple(ranges), faults, known, max(before.next_offset - pair.lowest, 0))
    except (CordwoodError, OSError) as error:
        return LookedAt(faults=((ViolationKind.DAMAGE_AFTER, f"cannot be read: {error}", pair.after.path),))


def _state_faults(pair: Pair, before: LogView, after: LogView) -> Iterator[tuple[ViolationKind, str, str]]:
    """Start, end and leader epochs of both."""
    path = pair.after.path
    ends = before.next_offset, after.next_offset
    if ends[0] != ends[1]:
        yield ViolationKind.END_OFFSET, f"the log ended at {ends[0]}, and ends at {ends[1]}", path
    starts = before.log_start_offset, after.log_start_offset
    if starts[1] < starts[0] or (starts[1] > starts[0] and not pair.retention):
        excuse = "" if starts[1] < starts[0] else "; only retention, if it ran, excuses that"
        yield ViolationKind.LOG_START, f"the log started at {starts[0]}, and starts at {starts[1]}{excuse}", path
    epochs = [_epochs(log, pair.lowest) for log in (before, after)]
    # A broker that starts on it begins an epoch at the end, in the place of one that wrote nothing.
    written = [[one for one in some if one[1] < ends[0]] for some in epochs]
    if written[0] != written[1] or epochs[1][-1:] < epochs[0][-1:]:
        what = f"leader epochs were {epochs[0]}, and are {epochs[1]}"
        yield ViolationKind.LEADER_EPOCHS, what, f"{path}/{FileKind.LEADER_EPOCHS}"


def _topic_id_faults(before: LogView, after: LogView) -> Iterator[tuple[ViolationKind, str, str]]:
    """Whether `partition.metadata` still names the same topic. One that is unreadable before proves nothing."""
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
) -> Iterator[tuple[ViolationKind, str, str]]:
    """Whether a broker that loads the log knows of producers what it would have known before.

    What it can no longer read, because retention took it, are batches below `gone_below`.
    """
    for id, one in was.items():
        rebuilt, new = noted.get(id) != one, now.get(id)
        if new == one or (rebuilt and _only_its_epoch_is_forgotten(one, new)) or _is_left(one, new, gone_below):
            continue
        what = f"producer {id}: epoch, last sequence, last offset, open transaction were {one}, and are {new}"
        yield ViolationKind.PRODUCER_STATE, what, pair.after.path


def _only_its_epoch_is_forgotten(was: ProducerState, now: ProducerState | None) -> bool:
    """Whether it was known by a marker alone, and no longer is.

    A broker that rebuilds it from the log passes over a marker that a clean has emptied, Kafka's as ours. That
    something is left of it is proved elsewhere, see `_of_producers`.
    """
    return was[1:] == (NONE, NONE, NONE) and (now is None or (now[0] < was[0] and now[-1] == NONE))


def _is_left(was: ProducerState, now: ProducerState | None, gone_below: int) -> bool:
    """Whether that is what is known of a producer without the batches below an offset."""
    _, _, last_offset, transaction_start = was
    if last_offset < gone_below:
        return now is None or now[:-1] == (was[0], NONE, NONE)
    return now is not None and now[:-1] == was[:-1] and NONE < transaction_start < gone_below


def _epochs(log: LogView, lowest: int) -> list[tuple[int, int]]:
    """The history from an offset on; none without a file, nor from one that cannot be read, of which `check` tells."""
    path = f"{log.path}/{FileKind.LEADER_EPOCHS}"
    try:
        known = leader_epochs.history(leader_epochs.decode(read_file(log.fs, path), path))
    except (FileNotFoundError, CorruptFileError):
        return []
    first = known.epoch_for_offset(lowest)
    later = [(one.epoch, one.start_offset) for one in known.entries if one.start_offset > lowest]
    return later if first is None else [(first, lowest), *later]


def _producers(log: LogView, pair: Pair) -> tuple[dict[int, ProducerState], dict[int, ProducerState], int]:
    """What the newest snapshot says of producers, what a broker that loads the log then knows of them.

    Only those that it still knows at the pair's time. Last, the offset that the snapshot is of.
    """
    end = log.next_offset
    settings = {"now_ms": pair.now_ms, "expiration_ms": pair.producer_expiration_ms}
    known: Producers
    known, done = newest_snapshot(log, end, **settings)
    noted = _states(known)
    for rows in headers_from(log, done) if done < end else ():
        known.replay(rows[rows["base_offset"] >= done])
    known.expire(**settings)
    return noted, _states(known), done


def _states(producers: Producers) -> dict[int, ProducerState]:
    return {
        id: (one.epoch, one.last_sequence, one.last_offset, one.transaction_start)
        for id, one in producers.by_id.items()
    }
