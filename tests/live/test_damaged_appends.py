"""Appends of bytes that no producer sends: refused or accepted as in Kafka's log."""

from __future__ import annotations

import json
import random
import shutil
import struct
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cordwood.common.errors import CorruptRecordError, IllegalArgumentError, InvalidRecordError, KafkaError, LogError
from cordwood.common.types import NONE, Codec, TimestampType
from cordwood.kernels.layout import (
    CODEC_MASK,
    CRC_START,
    HEADER,
    LEADER_EPOCH_AT,
    LEGACY_CRC_AT,
    MAGIC_AT,
    PREFIX,
    PRODUCER_EPOCH_AT,
    PRODUCER_ID_AT,
    SIZE_AT,
)
from cordwood.live.log import FetchIsolation, Log
from cordwood.live.producer_state import AppendOrigin
from cordwood.record.batch import KEY, MARKER_VALUE, encode_batch, encode_message, encode_message_set, seal
from cordwood.record.compression import compress
from cordwood.record.record import Record, encode_record, write_varint
from tests import knobs
from tests.kafka_tools import Oracle
from tests.live.comparing import differences
from tests.live.live_logs import NOW_MS, World, batch

# ---- random scripts of appends ---------------------------------------------------------------------------------------

# Random scripts of appends as bytes: valid batches of every format, damaged batches, and batches with false fields.
#
# The same seed gives the same script. Half of the damage is covered by a recomputed checksum.

Step = dict[str, Any]

NAME = "t-0"
_LONG, _INT, _SHORT, _BYTE = (1 << bits - 1 for bits in (64, 32, 16, 8))
#: By the letter of a field's format.
_EDGES = {
    "q": (-_LONG, -_LONG + 1, -128, -5, -2, -1, 0, 1, 5, NOW_MS, _LONG - 1),
    "i": (-_INT, -128, -2, -1, 0, 1, 2, 3, 5, _INT - 1),
    "I": (0, 1, 2**32 - 1),
    "h": (-_SHORT, -128, -1, 0, 1, 2, 8, 16, 32, 64, 128, 256, 48, 56, _SHORT - 1),
    "b": (-1, 0, 1, 2, 3),
}
_FIELDS = HEADER.format.removeprefix(">")
_BASE_OFFSET, _SIZE, _LEADER_EPOCH, _MAGIC, _CRC, _ATTRIBUTES, _DELTA, *_, _COUNT = range(len(_FIELDS))
_ORIGINS = ("client",) * 6 + ("coordinator",) * 3 + ("raft_leader", "replication")


class AppendScript:
    """Makes one script.

    Attributes:
        compressed: whether Kafka may compress what it appends, so that tests do not compare bytes.
        steps: steps made until now.
    """

    def __init__(self, seed: int, appends: int, *, compressed: bool) -> None:
        self._random = random.Random(seed)
        self.compressed = compressed
        self._end = self._sequence = 0
        pick = self._random.choice
        self._config = {
            "cleanup.policy": pick(["compact", "delete", "delete"]),
            "message.timestamp.type": pick(["CreateTime", "CreateTime", "LogAppendTime"]),
            "message.timestamp.before.max.ms": pick(["0", "1000", str(_LONG - 1), str(_LONG - 1)]),
            "message.timestamp.after.max.ms": pick(["0", "3600000", "3600000", str(_LONG - 1)]),
            "compression.type": pick(["producer", *(codec.label for codec in Codec if codec)])
            if compressed
            else pick(["producer", "producer", "uncompressed"]),
            "max.message.bytes": pick(["1048588", "1048588", "300"]),
            "segment.bytes": pick(["1048576", "1048576", "600"]),
            "index.interval.bytes": "0",
            "segment.index.bytes": "2400",
        }
        if compressed:
            self._config["segment.bytes"] = self._config["max.message.bytes"] = "1048576"
        #: Whether batches may be rebuilt: compressed bytes are not compared, or no batch is compressed.
        self._may_rebuild = compressed or self._config["compression.type"] == "uncompressed"
        self.steps: list[Step] = []
        for _ in range(appends):
            looks = ["producers", "dump" if compressed else "files"]
            self.steps += [self._append(), *({"op": op} for op in looks)]
        for step in self.steps:
            step["expect_error"] = "maybe"

    def script(self) -> Step:
        """The script."""
        return {"damaged": True, "now": NOW_MS, "logs": {NAME: self._config}, "steps": self.steps}

    def _chance(self, share: float) -> bool:
        return self._random.random() < share

    def _append(self) -> Step:
        pick = self._random.choice
        step: Step = {"op": "append_bytes", "leader_epoch": pick([0, 0, 0, 1, 2])}
        follows = self._chance(0.25)
        origin = pick(_ORIGINS)
        magic = 2 if self._chance(0.8) else pick([0, 1])
        if not follows:
            step["origin"] = origin
            step["transaction_version"] = pick([0, 1, 1, 2, -1])
            if self._may_rebuild and self._chance(0.15):
                step["magic"] = pick([0, 1])
        count = pick([1, 1, 1, 1, 2, 3])
        data, offset = b"", self._end if follows or origin == "raft_leader" else 0
        for _ in range(count):
            batch, used = self._batch(
                magic, offset, int(step["leader_epoch"]), control=origin == "coordinator", follows=follows
            )
            if not follows and (batch[MAGIC_AT] != 2 or "magic" in step):
                step["old"] = True
            data += batch
            if offset or follows:
                offset += used
        if self._chance(0.15):
            data = data[: self._random.randrange(len(data))]
        if self._chance(0.15):
            data += self._stray()
        self._end = max(self._end, offset) + pick([0, 0, 1])
        return step | {"hex": data.hex()}

    def _stray(self) -> bytes:
        size, pick = self._random.choice([1, 11, 12, 13, 16, 17, 18, 30, 61, 80]), self._random.choice
        filler = pick([b"\0" * size, b"\xff" * size, self._random.randbytes(size), b"\0" * 11 + b"\x64" + b"\1" * size])
        return filler[:size]

    # ---- batches -----------------------------------------------------------------------------------------------------

    def _batch(self, magic: int, offset: int, leader_epoch: int, *, control: bool, follows: bool) -> tuple[bytes, int]:
        """A batch at an offset, and the number of offsets in it."""
        records = self._records(offset)
        if magic < 2:
            batch = self._old(magic, records, mixed=follows)
        elif control and self._chance(0.7):
            batch, records = self._control(offset, leader_epoch, follows=follows), records[:1]
            if follows:
                return batch, 1
        else:
            batch = self._new(records, offset, leader_epoch)
        if self._chance(0.5):
            batch = self._damaged(batch)
        return batch, len(records)

    def _records(self, offset: int) -> list[Record]:
        pick, late = self._random.choice, 3_600_000
        times = [NOW_MS, NOW_MS, NOW_MS - 1000, NOW_MS - 1001, NOW_MS + late, NOW_MS + late + 1, NOW_MS + 5]
        if self._chance(0.2):
            times += [-1, 0, -2, -5, -_LONG, -_LONG + 1, _LONG - 1]
        return [
            Record(
                offset + at,
                pick(times),
                pick([b"", b"k", b"key" * 9, b"k", b"k", None if self._chance(0.3) else b"q"]),
                pick([None, b"", b"value", b"v" * 150]),
                pick([(), (), (), (("h", b"x"), ("", None))]),
            )
            for at in range(pick([1, 1, 2, 3, 5]))
        ]

    def _old(self, magic: int, records: list[Record], *, mixed: bool) -> bytes:
        pick = self._random.choice
        codec = pick([Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4]) if self._may_rebuild else Codec.NONE
        old = [Record(r.offset, r.timestamp if magic else NONE, r.key, r.value) for r in records]
        kind = pick([TimestampType.CREATE_TIME] * 9 + [TimestampType.LOG_APPEND_TIME])
        if codec is Codec.NONE or self._chance(0.5):
            return encode_message_set(magic, old, codec=codec, timestamp_type=kind, append_time=NOW_MS)
        inner = bytearray(
            b"".join(
                encode_message(
                    pick([magic, magic, magic, 1 - magic]) if mixed else magic,
                    offset=at + pick([0, 0, 1]),
                    timestamp=record.timestamp,
                    key=record.key,
                    value=record.value,
                    attributes=pick([0] * 9 + [1, 8]),
                )
                for at, record in enumerate(old)
            )
        )
        if self._chance(0.4):
            self._flip(inner, 0)
        packed = self._packed(codec, bytes(inner), magic)
        last, timestamp = old[-1].offset, old[0].timestamp
        return encode_message(magic, offset=last, timestamp=timestamp, value=packed, attributes=int(codec))

    def _new(self, records: list[Record], offset: int, leader_epoch: int) -> bytes:
        pick = self._random.choice
        codec = pick([Codec.NONE, Codec.NONE, *Codec])
        has_id = self._chance(0.4)
        producer_id = pick([100, 100, 101, 0, 2**40 + 15]) if has_id else pick([NONE] * 9 + [-2, -128, -_LONG])
        epoch = pick([0, 0, 0, 1, _SHORT - 1]) if has_id else pick([NONE] * 9 + [0, -128, -_SHORT])
        sequence = pick([0, self._sequence, self._sequence, _INT - 1, _INT - 2, 3]) if has_id else NONE
        if producer_id == 100:
            self._sequence = (sequence + len(records)) % _INT
        batch = encode_batch(
            records,
            base_offset=offset,
            leader_epoch=leader_epoch if self._chance(0.8) else pick(_EDGES["i"]),
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=self._chance(0.3 if has_id else 0.03),
            timestamp_type=TimestampType.LOG_APPEND_TIME if self._chance(0.06) else TimestampType.CREATE_TIME,
            max_timestamp=pick(_EDGES["q"]) if self._chance(0.1) else None,
        )
        body = bytearray(batch[HEADER.size :])
        if self._chance(0.25):
            body = self._damaged_body(body, records, offset)
        if codec is Codec.NONE:
            return self._with_body(batch, bytes(body), Codec.NONE)
        return self._with_body(batch, self._packed(codec, bytes(body), 2), codec)

    def _control(self, offset: int, leader_epoch: int, *, follows: bool) -> bytes:
        pick = self._random.choice
        kinds = [0, 1, 1, 0, 1, 2, 3, 4, 7, -1, _SHORT - 1]
        key = pick([KEY.pack(0, pick(kinds)), KEY.pack(pick([-1, 1, 0, 0]), 1)])
        value = MARKER_VALUE.pack(pick([0, 0, 0, 0, 1, -1]), pick([0, 0, 0, 1, 2, -1, -_INT, _INT - 1]))
        odd_keys: list[bytes | None] = [None, b"", key[:3], key + b"more"]
        odd_values: list[bytes | None] = [None, b"", value[:5], value[:2], value + b"more"]
        record = Record(
            offset,
            NOW_MS,
            pick(odd_keys) if self._chance(0.15) else key,
            pick(odd_values) if self._chance(0.15) else value,
        )
        records = [record] * pick([1, 1, 1, 1, 0, 1 if follows else 2])
        return encode_batch(
            records,
            base_offset=offset,
            last_offset=offset + max(0, len(records) - 1),
            leader_epoch=leader_epoch,
            codec=pick([Codec.NONE] * 6 + [Codec.GZIP]),
            producer_id=pick([100, 100, 100, 101, 0, NONE]),
            producer_epoch=pick([0, 0, 0, 1, 2, _SHORT - 1, -1, -128]),
            base_sequence=pick([NONE, NONE, 0]),
            transactional=self._chance(0.9),
            control=self._chance(0.95),
        )

    # ---- damage ------------------------------------------------------------------------------------------------------

    def _packed(self, codec: Codec, body: bytes, magic: int) -> bytes:
        """The compressed body, or bytes that only look compressed."""
        packed = compress(codec, body, magic=magic)
        if self._chance(0.75):
            return packed
        damaged = bytearray(packed)
        match self._random.randrange(5):
            case 0:
                self._flip(damaged, 0)
            case 1:
                del damaged[self._random.randrange(len(damaged)) :]
            case 2:
                damaged += self._random.choice([b"\0", b"\x1f\x8b", packed, b"\xff" * 40])
            case 3:
                return compress(codec, packed, magic=magic)
            case _:
                return self._random.choice([b"", b"garbage", body])
        return bytes(damaged)

    def _damaged_body(self, body: bytearray, records: list[Record], offset: int) -> bytearray:
        """The records of a batch, with a count or lengths that differ from the header's."""
        pick = self._random.choice
        match self._random.randrange(6):
            case 0:
                self._flip(body, 0)
            case 1:
                del body[self._random.randrange(len(body)) :]
            case 2:
                body += pick([b"\0", b"\xff" * 6, bytes(body), self._random.randbytes(9)])
            case 3:  # offsets with gaps
                moved = [Record(r.offset + pick([0, 1, 7]), r.timestamp, r.key, r.value) for r in records]
                base = records[0].timestamp
                return bytearray(b"".join(encode_record(r, base_offset=offset, base_timestamp=base) for r in moved))
            case 4:  # a record of another length than its fields take
                body[0:1] = pick(
                    [write_varint(pick([-1, 0, 1, 40, 2**28, _INT - 1, -_INT])), b"\x80" * 5 + b"\1", b"\xff"]
                )
            case _:
                at = self._random.randrange(len(body))
                body[at : at + 1] = pick([b"", b"\x80", b"\x80\x80\x80\x80\x80\x01", b"\x01", b"\x03"])
        return body

    def _flip(self, data: bytearray, start: int) -> None:
        for _ in range(self._random.choice([1, 1, 2])):
            if len(data) > start:
                data[self._random.randrange(start, len(data))] ^= self._random.randrange(1, 256)

    def _damaged(self, batch: bytes) -> bytes:
        """A batch with changed header fields, or any changed bytes; perhaps with the right CRC."""
        data = bytearray(batch)
        if batch[MAGIC_AT] == 2 and self._chance(0.75):
            fields = list(HEADER.unpack_from(data))
            for _ in range(self._random.choice([1, 1, 2])):
                at = self._random.choice([at for at in range(len(fields)) if at != _CRC])
                fields[at] = self._edge(at, fields[at])
            data[: HEADER.size] = HEADER.pack(*fields)
        else:
            self._flip(data, 0)
        return self._sealed(bytes(data)) if self._chance(0.85) else bytes(data)

    def _edge(self, at: int, value: int) -> int:
        if at in (_BASE_OFFSET, _DELTA, _COUNT) and self._chance(0.7) and abs(value) < _INT - 2:
            return value + self._random.choice([-1, 1, 2])
        if at == _SIZE:
            return self._random.choice([48, 49, 0, 13, 14, -1, _INT - 1, *[max(value, 1) - 1, min(value, 999) + 5] * 3])
        if at == _BASE_OFFSET:  # an end that Java's longs cannot count is no log
            return self._random.choice([0, 1, self._end, self._end + 7, -1, -5, 2**31 + 9])
        return self._random.choice(_EDGES[_FIELDS[at]])

    @staticmethod
    def _sealed(batch: bytes) -> bytes:
        """Give a batch the checksum of its bytes, whatever they are."""
        size = struct.unpack_from(">i", batch, SIZE_AT)[0] + PREFIX.size
        if not CRC_START < size <= len(batch):
            return batch
        whole, more = batch[:size], batch[size:]
        if batch[MAGIC_AT] == 2:
            return seal(whole) + more
        covered = zlib.crc32(whole[MAGIC_AT:]).to_bytes(4, "big")
        return whole[:LEGACY_CRC_AT] + covered + whole[MAGIC_AT:] + more

    @staticmethod
    def _with_body(batch: bytes, body: bytes, codec: Codec) -> bytes:
        fields = list(HEADER.unpack_from(batch))
        fields[_SIZE] = HEADER.size - PREFIX.size + len(body)
        fields[_ATTRIBUTES] = fields[_ATTRIBUTES] & ~CODEC_MASK | int(codec)
        return seal(HEADER.pack(*fields) + body)


SCRIPTS = knobs.scaled(60, 2000)
APPENDS = 12
#: Every fourth script compresses, and is compared by records.
COMPRESSED_EVERY = 4
#: Scripts per process of the oracle.
SLICE = 100


@pytest.mark.kafka
def test_random_appends_of_damaged_bytes_end_as_with_kafkas_log(kafka_oracle: Oracle, tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    found = []
    for first in range(knobs.SEED, knobs.SEED + SCRIPTS, SLICE):
        seeds = range(first, min(first + SLICE, knobs.SEED + SCRIPTS))
        scripts = {
            seed: AppendScript(seed, APPENDS, compressed=seed % COMPRESSED_EVERY == 0).script() for seed in seeds
        }
        for seed, script in scripts.items():
            (tmp_path / f"{seed}.json").write_text(json.dumps(script))
        answers = kafka_oracle.batch([("run", tmp_path / f"{seed}.json", tmp_path / str(seed)) for seed in scripts])
        for (seed, script), lines in zip(scripts.items(), answers, strict=True):
            shutil.rmtree(tmp_path / str(seed))
            for what in differences(script, lines, compressed=seed % COMPRESSED_EVERY == 0, seen=seen):
                found.append(f"seed {seed}, {what}")
    print(dict(sorted(seen.items())))
    assert not found, "\n".join(found[:20])
    assert seen["append_bytes: done"] > 2 * SCRIPTS
    assert seen["append_bytes: InvalidRecordException"] > SCRIPTS


@pytest.fixture
def log() -> Log:
    return World().load()


def with_body(data: bytes, body: bytes, codec: Codec = Codec.NONE) -> bytes:
    """A batch with other records behind its header."""
    offset, _, epoch, magic, crc, attributes, *rest = HEADER.unpack_from(data)
    size = HEADER.size - PREFIX.size + len(body)
    return seal(HEADER.pack(offset, size, epoch, magic, crc, attributes & ~CODEC_MASK | codec, *rest) + body)


def test_a_batch_that_cannot_be_decompressed_is_refused_with_kafkas_error(log: Log) -> None:
    for codec in Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD:
        with pytest.raises(KafkaError, match="decompress") as caught:
            log.append_as_leader(with_body(batch("a1"), b"garbage" * 9, codec), 0)
        assert caught.value.protocol_error == "UNKNOWN_SERVER_ERROR"
    assert log.log_end_offset == 0


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, MARKER_VALUE.pack(0, 0)),
        (b"\0", MARKER_VALUE.pack(0, 0)),
        (KEY.pack(-1, 1), MARKER_VALUE.pack(0, 0)),
        (KEY.pack(0, 1), None),
        (KEY.pack(0, 1), b"\0\0\0"),
        (KEY.pack(0, 1), MARKER_VALUE.pack(-1, 0)),
    ],
)
def test_a_malformed_marker_of_a_coordinator_is_refused(log: Log, key: bytes | None, value: bytes | None) -> None:
    marker = encode_batch(
        [Record(0, NOW_MS, key, value)], producer_id=7, producer_epoch=0, transactional=True, control=True
    )
    with pytest.raises(InvalidRecordError):
        log.append_as_leader(marker, 0, AppendOrigin.COORDINATOR, transaction_version=1)
    assert log.log_end_offset == 0


@pytest.mark.parametrize("size", range(12, 17))
def test_stray_bytes_that_have_a_size_field_are_refused_if_no_batch_has_that_size(log: Log, size: int) -> None:
    for data in bytes(size), batch("a1") + bytes(size):
        with pytest.raises(CorruptRecordError):
            log.append_as_leader(data, 0)
    assert log.log_end_offset == 0


def test_fewer_stray_bytes_than_a_size_field_takes_are_cut_off(log: Log) -> None:
    assert log.append_as_leader(batch("a1") + bytes(11), 0).valid_bytes == len(batch("a1"))


def test_a_size_field_that_overflows_is_refused(log: Log) -> None:
    with pytest.raises(IllegalArgumentError):
        log.append_as_leader(PREFIX.pack(0, 2**31 - 1) + b"\0\0\0\0\2" + bytes(90), 0)


def test_lengths_of_records_in_a_compressed_batch_kept_as_it_is_do_not_count(log: Log) -> None:
    data = batch("a1", "b1")
    body = bytearray(data[HEADER.size :])
    body[0] += 2  # the length of the first record
    with pytest.raises(InvalidRecordError):
        log.append_as_leader(with_body(data, bytes(body)), 0)
    for codec in Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD:
        log.append_as_leader(with_body(data, compress(codec, bytes(body)), codec), 0)
    assert log.log_end_offset == 8


def test_a_compressed_batch_with_gaps_is_refused_unless_its_codec_changes() -> None:
    records = [Record(0, NOW_MS, b"a", b"1"), Record(2, NOW_MS, b"b", b"2")]
    body = b"".join(encode_record(record, base_offset=0, base_timestamp=NOW_MS) for record in records)
    data = with_body(batch("a1", "b1"), compress(Codec.GZIP, body), Codec.GZIP)
    with pytest.raises(KafkaError, match="gaps"):
        World().load().append_as_leader(data, 0)
    assert World().load({"compression.type": "lz4"}).append_as_leader(data, 0).last_offset == 1


def test_a_batch_without_records_is_not_built_anew_with_the_time_of_its_append() -> None:
    empty = encode_batch(
        [], base_offset=0, last_offset=0, codec=Codec.GZIP, producer_id=7, producer_epoch=0, base_sequence=0
    )
    config = {"compression.type": "lz4"}
    assert World().load(config).append_as_leader(empty, 0, AppendOrigin.COORDINATOR).last_offset == NONE
    with pytest.raises(KafkaError, match="without records"):
        World().load(config | {"message.timestamp.type": "LogAppendTime"}).append_as_leader(
            empty, 0, AppendOrigin.COORDINATOR
        )


@pytest.mark.parametrize(("producer_id", "epoch"), [(NONE, -128), (-128, -128), (-(2**63), 0), (-128, NONE)])
def test_an_epoch_without_a_producer_id_counts_only_if_the_batch_is_built_anew(producer_id: int, epoch: int) -> None:
    data = bytearray(batch("a1"))
    data[PRODUCER_ID_AT:PRODUCER_EPOCH_AT] = producer_id.to_bytes(8, "big", signed=True)
    data[PRODUCER_EPOCH_AT : PRODUCER_EPOCH_AT + 2] = epoch.to_bytes(2, "big", signed=True)
    log = World().load()
    assert log.append_as_leader(seal(bytes(data)), 0).last_offset == 0
    assert not log.producer_rows().size
    anew = World().load({"compression.type": "gzip"})
    if producer_id == NONE:
        assert anew.append_as_leader(seal(bytes(data)), 0).last_offset == 0
    else:
        with pytest.raises(IllegalArgumentError):
            anew.append_as_leader(seal(bytes(data)), 0)


@pytest.mark.parametrize("config", [{}, {"message.timestamp.type": "LogAppendTime"}, {"compression.type": "gzip"}])
def test_an_append_tells_the_leader_epoch_that_its_last_batch_was_sent_with(config: dict[str, str]) -> None:
    log = World().load(config)
    data = bytearray(batch("a1"))
    for sent in (NONE, 3, -128):
        data[LEADER_EPOCH_AT : LEADER_EPOCH_AT + 4] = sent.to_bytes(4, "big", signed=True)
        info = log.append_as_leader(bytes(data), 5)
        assert info.last_leader_epoch == sent
    assert log.leader_epochs.latest_epoch == 5


def test_a_read_of_no_bytes_is_not_an_incomplete_entry(log: Log) -> None:
    log.append_as_leader(batch("a1"), 0)
    read = [log.read(0, size, FetchIsolation.LOG_END, min_one_message=False) for size in (0, 1)]
    assert [data.first_entry_incomplete for data in read] == [False, True]


def test_a_time_that_asks_for_tiered_storage_has_no_offset_and_no_epoch(log: Log) -> None:
    log.append_as_leader(batch("a1"), 4)
    for special in (-5, -6):
        found = log.fetch_offset_by_timestamp(special)
        assert found is not None and (found.offset, found.leader_epoch) == (NONE, NONE)
    later = log.fetch_offset_by_timestamp(-7)
    assert later is not None and (later.offset, later.leader_epoch) == (0, 4)


def test_what_follows_the_batch_of_a_later_leader_is_left_out_but_must_be_batches(log: Log) -> None:
    data = bytearray(batch("a1"))
    data[LEADER_EPOCH_AT : LEADER_EPOCH_AT + 4] = (9).to_bytes(4, "big")
    assert log.append_as_follower(bytes(data) + batch("b1", base_offset=1), 0).valid_bytes == 0
    with pytest.raises(LogError):
        log.append_as_follower(bytes(data) + bytes(40), 0)
    assert log.log_end_offset == 0
