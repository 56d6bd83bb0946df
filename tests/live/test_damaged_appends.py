"""Appends of bytes that no producer sends: refused or accepted as in Kafka's log."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from cordwood.common.errors import CorruptRecordError, IllegalArgumentError, InvalidRecordError, KafkaError, LogError
from cordwood.common.types import NONE, Codec
from cordwood.kernels.layout import CODEC_MASK, HEADER, LEADER_EPOCH_AT, PREFIX, PRODUCER_EPOCH_AT, PRODUCER_ID_AT
from cordwood.live.log import FetchIsolation, Log
from cordwood.live.producer_state import AppendOrigin
from cordwood.record.batch import KEY, MARKER_VALUE, encode_batch, seal
from cordwood.record.compression import compress
from cordwood.record.record import Record, encode_record
from tests import knobs
from tests.kafka_tools import Oracle
from tests.live.append_scripts import AppendScript
from tests.live.comparing import differences
from tests.live.live_logs import NOW_MS, World, batch

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
