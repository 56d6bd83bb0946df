"""Tables of latest values beside a plain replay in Python, record by record; and random logs to make them of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random

from cordwood.common.types import NONE, Codec, TimestampType, TopicPartition
from cordwood.record.batch import Marker, encode_batch, encode_marker, encode_message_set
from cordwood.record.record import Record
from cordwood.storage.formats import checkpoints, filenames
from cordwood.storage.formats.filenames import FileKind, offset_name

TIME = 1_700_000_000_000
#: Key, value, partition and offset of a row; value None if the key was deleted.
Row = tuple[bytes, bytes | None, int, int]


@dataclass
class LoggedRecord:
    """A record of a log, and its fate.

    Attributes:
        offset, timestamp, key, value: fields of the record.
        producer: producer of its transaction; NONE outside of a transaction.
        is_marker: whether it is a marker.
        aborted: whether its transaction was aborted.
    """

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    producer: int = NONE
    is_marker: bool = False
    aborted: bool = False


@dataclass
class RandomLog:
    """A partition's directory, and its contents.

    Attributes:
        path: path of the directory.
        records: all records, in log order.
        log_start_offset: lowest offset that counts.
        last_stable_offset: end of the offsets that count.
    """

    path: Path
    records: list[LoggedRecord]
    log_start_offset: int
    last_stable_offset: int

    def offset_at(self, since_ms: int) -> int:
        """The offset of the first record that is as late, at most the last stable offset."""
        late = (one.offset for one in self.records if one.timestamp >= since_ms and one.offset >= self.log_start_offset)
        return min(next(late, self.last_stable_offset), self.last_stable_offset)

    def replay(self, end_offset: int, start_offset: int = 0) -> dict[bytes, Row]:
        """The last record of each key, as a consumer meets them."""
        partition = int(self.path.name.rpartition("-")[2])
        found: dict[bytes, Row] = {}
        for one in self.records:
            wanted = max(self.log_start_offset, start_offset) <= one.offset < end_offset
            if wanted and one.key is not None and not one.is_marker and not one.aborted:
                found[one.key] = one.key, one.value, partition, one.offset
        return found


def random_log(random: Random, path: Path, *, keyless: float = 0.1) -> RandomLog:
    """A partition's directory with segments, formats, codecs, transactions, gaps and keys of all kinds.

    Args:
        keyless: fraction of records without a key.
    """
    path.mkdir(parents=True)
    magic = random.choice((2, 2, 2, 2, 1, 0))
    first = random.choice((0, 0, 7, 5_000_000_000))
    offset, time = first, TIME
    records: list[LoggedRecord] = []
    open_: dict[int, list[LoggedRecord]] = {}
    segment, base = bytearray(), first
    keys = random.choice((2, 6, 40))
    for _ in range(random.randint(1, 45)):
        if segment and random.random() < 0.15:
            (path / offset_name(base, FileKind.LOG)).write_bytes(segment)
            segment, base = bytearray(), offset
        if magic < 2 and random.random() < 0.15 and not open_:
            magic = 2
        if open_ and random.random() < 0.25:
            producer = random.choice(sorted(open_))
            committed = random.random() < 0.6
            for one in open_.pop(producer):
                one.aborted = not committed
            segment += encode_marker(Marker(offset, time, producer, 0, committed=committed))
            records.append(LoggedRecord(offset, time, None, None, producer, is_marker=True))
            offset += 1
            continue
        producer = random.choice((NONE, NONE, 1, 2, 3)) if magic == 2 else NONE
        made = []
        for _ in range(random.choice((1, 2, 5, 30))):
            key = (
                None
                if random.random() < keyless
                else random.choice((b"", b"key-%d")).replace(b"%d", b"%d" % random.randrange(keys))
            )
            value = None if random.random() < 0.2 else random.randbytes(random.choice((0, 1, 9, 300)))
            time += random.randint(-40, 100)
            made.append(Record(offset, -1 if magic == 0 else time, key, value))
            offset += random.choice((1, 1, 1, 2, 9)) if magic == 2 else 1
        codec = random.choice([one for one in Codec if magic == 2 or one is not Codec.ZSTD])
        late = magic > 0 and random.random() < 0.15
        kind = TimestampType.LOG_APPEND_TIME if late else TimestampType.CREATE_TIME
        if magic == 2:
            segment += encode_batch(
                made,
                codec=codec,
                timestamp_type=kind,
                max_timestamp=time if late else None,
                producer_id=producer,
                producer_epoch=NONE if producer == NONE else 0,
                base_sequence=NONE if producer == NONE else 0,
                transactional=producer != NONE,
                last_offset=offset - 1,
            )
        else:
            segment += encode_message_set(magic, made, codec=codec, timestamp_type=kind, append_time=time)
        logged = [
            LoggedRecord(one.offset, time if late else one.timestamp, one.key, one.value, producer) for one in made
        ]
        records += logged
        if producer != NONE:
            open_.setdefault(producer, []).extend(logged)
        offset += random.choice((0, 0, 0, 3)) if magic == 2 else 0
    if random.random() < 0.2:
        segment += b"\0" * 100  # preallocated
    (path / offset_name(base, FileKind.LOG)).write_bytes(segment)
    start = first
    if random.random() < 0.3:
        start = random.choice(records).offset
        name = TopicPartition(path.name.rpartition("-")[0], int(path.name.rpartition("-")[2]))
        (path.parent / filenames.LOG_START_OFFSETS).write_bytes(checkpoints.encode({name: start}))
    stable = min((some[0].offset for some in open_.values()), default=NONE)
    # A gap behind the last record belongs to the last batch, or to none.
    end = records[-1].offset + 1 if records else first
    return RandomLog(path, records, start, max(start, end if stable == NONE else stable))
