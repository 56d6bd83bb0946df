"""Records of internal topics: framed as each topic frames them, as values and as Arrow, of damaged and later bytes."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cordwood
from cordwood.common.errors import CorruptMessageError, DataError, RequestError
from cordwood.common.types import Codec, ControlType
from cordwood.fs.posix import PosixFileSystem
from cordwood.record.columns import BatchWindow, RecordColumns, decode
from cordwood.storage.formats.messages.topics import (
    INTERNAL_TOPICS,
    Framing,
    InternalTopic,
    decode_control_record,
    decode_record,
)
from cordwood.storage.log.arrow import internal_schema, to_internal_arrow
from cordwood.storage.log.internal import to_internal_records
from cordwood.storage.log.view import LogView
from tests.fixtures import fixture, partitions
from tests.logs import Pair, batch, window, write_log
from tests.storage.messages import Case, encode, internal_record, known, mutated, offset_commit, random_fields

OFFSETS = INTERNAL_TOPICS["__consumer_offsets"]
METADATA = INTERNAL_TOPICS["__cluster_metadata"]
TIERED = INTERNAL_TOPICS["__remote_log_metadata"]
TYPES = [(topic, record) for topic in INTERNAL_TOPICS.values() for record in topic.records.values()]


# ---- one record ------------------------------------------------------------------------------------------------------


def test_a_coordinators_record_has_its_type_in_the_key_and_its_version_in_the_value() -> None:
    key, value = offset_commit("g", "t", 7, 42)
    found = decode_record(OFFSETS, key, value)
    assert (found.type, found.number, found.version, found.rest, found.problem) == ("OffsetCommit", 1, 3, b"", "")
    assert found.key == {"group": "g", "topic": "t", "partition": 7}
    assert found.value is not None and (found.value["offset"], found.value["expire_timestamp"]) == (42, -1)
    deleted = decode_record(OFFSETS, *offset_commit("g", "t", 7, None))
    assert (deleted.type, deleted.version, deleted.key, deleted.value) == ("OffsetCommit", None, found.key, None)


def test_metadata_records_and_those_of_tiered_logs_have_their_type_in_a_frame() -> None:
    topic = decode_record(METADATA, *internal_record("TopicRecord", {"name": "t"}))
    assert (topic.type, topic.version, topic.key) == ("TopicRecord", 0, None)
    gone = decode_record(
        TIERED,
        *internal_record("RemotePartitionDeleteMetadataRecord", {"broker_id": 3, "topic_id_partition": {"name": "t"}}),
    )
    assert gone.value is not None
    assert (gone.type, gone.value["broker_id"], gone.value["topic_id_partition"]["name"]) == (
        "RemotePartitionDeleteMetadataRecord", 3, "t",
    )  # fmt: skip


def test_control_records_of_kraft_are_messages_that_begin_with_their_version() -> None:
    found = decode_control_record(ControlType.KRAFT_VERSION, b"\0\0\0\1\0")
    assert (found.type, found.version, found.value) == ("KRaftVersionRecord", 0, {"version": 0, "kraft_version": 1})
    leader = b"\0\1\0\0\0\5" + b"\2\0\0\0\5" + b"i" * 16 + b"\0" + b"\1\0"
    change = decode_control_record(ControlType.LEADER_CHANGE, leader)
    assert change.value is not None and change.version == 1
    assert [one["voter_id"] for one in change.value["voters"]] == [5] and change.rest == b""
    assert decode_control_record(ControlType.UNKNOWN, b"").problem == "control record type -1 is not known"


@pytest.mark.parametrize(
    ("topic", "key", "value", "problem"),
    [
        (OFFSETS, None, b"\0\0", "a record whose key is null"),
        (OFFSETS, b"\0", b"\0\0", "2 bytes at byte 0, where 1 are left"),
        (OFFSETS, b"\0\2\0\1g", b"\0", "2 bytes at byte 0, where 1 are left"),
        (OFFSETS, b"\0\2\0\1g", b"\xff\xff", "GroupMetadataValue of version -1: the first version is 0"),
        (OFFSETS, b"\0\2\0\2g", None, "GroupMetadataKey of version 0: 2 bytes at byte 4, where 1 are left"),
        (METADATA, None, None, "a record whose value is null"),
        (METADATA, None, b"\0\2\0", "frame version 0, not 1"),
        (METADATA, None, b"\1\2\0\5abc", "TopicRecord of version 0: 4 bytes at byte 4, where 3 are left"),
        (TIERED, None, b"\1\2", "1 bytes at byte 2, where 0 are left"),
    ],
)  # fmt: skip
def test_what_is_no_record_of_the_topic_says_why(
    topic: InternalTopic, key: bytes | None, value: bytes | None, problem: str
) -> None:
    with pytest.raises(CorruptMessageError) as caught:
        decode_record(topic, key, value)
    assert str(caught.value) == problem


def test_types_and_versions_that_are_not_known_are_shown_as_far_as_they_go() -> None:
    key, value = offset_commit("g", "t", 7, 42, version=4)
    assert key is not None and value is not None
    unknown = decode_record(OFFSETS, b"\0\x63" + key[2:], value)
    assert (unknown.type, unknown.number, unknown.problem) == (None, 99, "record type 99 is not known")
    later = decode_record(OFFSETS, key, b"\0\7" + value[2:] + b"new")
    assert (later.version, later.rest) == (7, b"new")
    assert later.value == decode_record(OFFSETS, key, value).value
    assert later.problem == "OffsetCommitValue of version 7: the last one known is 4"
    cut = decode_record(OFFSETS, key, b"\0\7" + value[2:12])
    assert cut.value is not None and (cut.value["offset"], cut.value["leader_epoch"]) == (42, -1)
    assert cut.problem.startswith("OffsetCommitValue of version 7: 4 bytes at byte 10")
    assert decode_record(METADATA, None, b"\1\x7f\3whatever").problem == "record type 127 is not known"


def test_subscriptions_and_assignments_of_consumers_are_read_and_others_stay_bytes() -> None:
    subscription = b"\0\1" + b"\0\0\0\1\0\1t" + b"\xff\xff\xff\xff" + b"\0\0\0\0"
    assignment = b"\0\0" + b"\0\0\0\1\0\1t\0\0\0\2\0\0\0\1\0\0\0\2" + b"\0\0\0\1x"
    member = {"member_id": "m", "subscription": subscription, "assignment": assignment}
    group = {"protocol_type": "consumer", "members": (member,)}
    found = decode_record(OFFSETS, *internal_record("GroupMetadata", group, {"group": "g"}))
    assert found.value is not None
    (read,) = found.value["members"]
    assert read["subscription"] == {
        "version": 1, "topics": ("t",), "user_data": None, "owned_partitions": (), "generation_id": -1, "rack_id": None,
    }  # fmt: skip
    assert read["assignment"] == {
        "version": 0, "assigned_partitions": ({"topic": "t", "partitions": (1, 2)},), "user_data": b"x",
    }  # fmt: skip
    for protocol, data in (("connect", subscription), ("consumer", b"\0\0\0"), ("consumer", b"")):
        group = {"protocol_type": protocol, "members": ({**member, "subscription": data},)}
        found = decode_record(OFFSETS, *internal_record("GroupMetadata", group, {"group": "g"}))
        assert found.value is not None and found.value["members"][0]["subscription"] == data


# ---- logs ------------------------------------------------------------------------------------------------------------


def opened(folder: Path) -> LogView:
    return LogView(str(folder), fs=PosixFileSystem())


def test_a_log_gives_its_records_by_name_and_as_arrow(tmp_path: Path) -> None:
    pairs = [offset_commit("g", "t", at, at * 10, version=at % 5) for at in range(10)]
    pairs[3:3] = [
        offset_commit("g", "t", 1, None),
        internal_record("ConsumerGroupMetadata", {"epoch": 3}, {"group_id": "h"}),
    ]
    log = opened(
        write_log(tmp_path / "__consumer_offsets-4", [batch(0, *pairs[:5]), batch(5, *pairs[5:], codec=Codec.ZSTD)])
    )
    records = list(log.internal_records())
    assert [(one.partition, one.offset, one.type) for one in records][3:6] == [
        (4, 3, "OffsetCommit"), (4, 4, "ConsumerGroupMetadata"), (4, 5, "OffsetCommit"),
    ]  # fmt: skip
    table = log.internal_arrow("OffsetCommit")
    assert table.schema == internal_schema(OFFSETS.records[1]) and table.num_rows == 11
    for row, one in zip(table.to_pylist(), (one for one in records if one.type == "OffsetCommit"), strict=True):
        assert (row["partition"], row["offset"], row["version"]) == (4, one.offset, one.version)
        assert (row["key"], row["value"], row["rest"]) == (one.key, one.value, None)
    assert log.internal_arrow("OffsetCommit", start_offset=3, end_offset=5)["value"].to_pylist() == [None]
    assert log.internal_arrow("ShareGroupMetadata").num_rows == 0


def test_other_logs_and_other_types_are_refused_in_words(tmp_path: Path) -> None:
    other = opened(write_log(tmp_path / "orders-0", [batch(0)]))
    for ask in (lambda: list(other.internal_records()), lambda: other.internal_arrow("OffsetCommit")):
        with pytest.raises(RequestError, match="orders-0 is not a partition of one of Kafka's internal topics; these"):
            ask()
    offsets = opened(write_log(tmp_path / "__consumer_offsets-0", [batch(0, offset_commit("g", "t", 0, 1))]))
    with pytest.raises(RequestError, match="__consumer_offsets has no records of type TopicRecord; there are Legacy"):
        offsets.internal_arrow("TopicRecord")


def test_a_record_that_cannot_be_read_is_located_damage_and_the_others_are_read(tmp_path: Path) -> None:
    good = [offset_commit("g", "t", at, at) for at in range(4)]
    key, value = good[1]
    assert value is not None
    pairs: list[Pair] = [good[0], (key, value[:-3]), good[2], (None, b"\0\0"), (key, b"\0"), good[3]]
    first = batch(0, good[0])
    folder = write_log(tmp_path / "__consumer_offsets-0", [first, batch(10, *pairs)])
    log = opened(folder)
    for read in (
        lambda **on: list(log.internal_records(**on)),
        lambda **on: log.internal_arrow("OffsetCommit", **on).to_pylist(),
    ):
        damage: list[DataError] = []
        assert len(read(on_damage=damage.append)) == 4
        assert [one.offset for one in damage] == [11, 13, 14]
        assert all(isinstance(one, CorruptMessageError) and one.path == f"{folder}/{0:020d}.log" for one in damage)
        assert {one.position for one in damage} == {len(first)}
        assert damage[0].what == "OffsetCommitValue of version 3: 8 bytes at byte 17, where 5 are left"
        with pytest.raises(CorruptMessageError, match=r"in .*offsets-0/0{20}.log at position \d+ \(offset 11\)"):
            read()


@pytest.mark.parametrize("name", ["kraft-after-2", "kraft-classic-before", "other-clients-after", "kraft-jbod-before"])
def test_every_type_in_a_brokers_logs_is_the_same_as_values_and_as_arrow(name: str) -> None:
    seen = set()
    for folder in partitions(fixture(name)):
        topic = INTERNAL_TOPICS.get(folder.name.rpartition("-")[0])
        if topic is not None:
            log = opened(folder)
            records = list(log.internal_records(isolation=None))
            assert not any(one.problem or one.rest for one in records)
            seen |= {one.type for one in records}
            for record in topic.records.values():
                _same(
                    log.internal_arrow(record.name, isolation=None), [one for one in records if one.type == record.name]
                )
    assert len(seen) > 10


def _same(table: pa.Table, records: list[cordwood.InternalRecord]) -> None:
    table.validate(full=True)
    rows = table.to_pylist()
    assert [(row["offset"], row.get("key"), row["version"]) for row in rows] == [
        (one.offset, one.key, one.version) for one in records
    ]
    assert [bare(row["value"]) for row in rows] == [bare(one.value) for one in records]


def bare(value: Any) -> Any:
    """Arrays as tuples; without subscriptions and assignments, which are bytes in Arrow."""
    if isinstance(value, dict):
        return {name: bare(one) for name, one in value.items() if name not in ("subscription", "assignment")}
    return tuple(map(bare, value)) if isinstance(value, list | tuple) else value


# ---- damaged records, many at once -----------------------------------------------------------------------------------


def framed(topic: InternalTopic, case: Case, number: int, random: Random) -> Pair:
    """A record of a type with random fields, as its topic frames it."""
    record = topic.records[number]
    value = random_fields(case, random)
    key = random_fields(Case(record.key, 0), random) if record.key is not None else None
    if topic.framing is Framing.COORDINATOR and random.random() < 0.1:
        return internal_record(record.name, None, key)
    return internal_record(record.name, value, key, case.version)


def columns_of(pairs: list[Pair]) -> RecordColumns:
    (found,) = decode(_window(batch(0, *pairs)))
    return found


def _window(data: bytes) -> BatchWindow:
    return window(data)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(TYPES), st.randoms(use_true_random=False))
def test_arrow_and_values_agree_on_random_damaged_and_later_records(chosen: Any, random: Random) -> None:
    topic, record = chosen
    pairs = []
    for _ in range(random.randint(1, 12)):
        version = random.randint(record.value.first_version, record.value.last_version)
        key, value = framed(topic, Case(record.value, version), record.number, random)
        if value is not None and random.random() < 0.4:
            value = mutated(value, random)
        if key is not None and random.random() < 0.1:
            key = mutated(key, random)
        pairs.append((key, value))
    columns = columns_of(pairs)
    of_values: list[DataError] = []
    records = [one for one in to_internal_records(columns, topic, 0, of_values.append) if one.type == record.name]
    of_arrow: list[DataError] = []
    found = to_internal_arrow(columns, topic, record, 0, of_arrow.append)
    found.validate(full=True)
    rows = found.to_pylist()
    assert [row["offset"] for row in rows] == [one.offset for one in records]
    for row, one in zip(rows, records, strict=True):
        assert known(row.get("key")) == known(one.key)
        assert known(bare(row["value"])) == known(bare(one.value))
        assert (row["rest"] or b"") == one.rest
    # Damage in records of other types is reported only to readers of these types.
    assert {one.offset for one in of_arrow} <= {one.offset for one in of_values}
    lost = {one.offset for one in of_values} - {one.offset for one in of_arrow}
    assert all(_type_of(topic, pairs[offset or 0]) != record.number for offset in lost)


def _type_of(topic: InternalTopic, pair: Pair) -> int | None:
    try:
        return decode_record(topic, *pair).number
    except CorruptMessageError:
        return None


def test_a_table_of_20_000_records_is_that_of_its_decoded_records() -> None:
    # 20,000 at once: of several versions, and a few of other types between them.
    random = Random(5)
    record = OFFSETS.records[1]
    cases = [Case(record.value, version) for version in range(5)]
    pairs = [framed(OFFSETS, random.choice(cases), 1, random) for _ in range(20_000)]
    pairs[100] = internal_record("ShareGroupMetadata", {"epoch": 1}, {"group_id": "g"})
    columns = columns_of(pairs)
    found = to_internal_arrow(columns, OFFSETS, record, 0, lambda error: pytest.fail(str(error)))
    assert found.num_rows == 19_999
    for at in np.random.default_rng(1).integers(0, 19_999, 200).tolist():
        row = found.slice(at, 1).to_pylist()[0]
        one = decode_record(OFFSETS, *pairs[row["offset"]])
        assert (row["key"], row["value"], row["version"]) == (one.key, one.value, one.version)


def test_encoding_again_gives_the_bytes_that_were_read() -> None:
    for topic, record in TYPES:
        case = Case(record.value, record.value.last_version)
        _, value = framed(topic, case, record.number, Random(record.name))
        if value is not None:
            found = decode_record(
                topic, None if record.key is None else framed(topic, case, record.number, Random(1))[0], value
            )
            if record.name != "GroupMetadata":
                assert value.endswith(encode(case, dict(found.value or {})))
