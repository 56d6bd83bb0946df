"""Kafka's own bytes (`tests/data/metadata-records.jsonl`), small stories, and the metadata logs of real brokers."""

from __future__ import annotations

import json
import pickle
import re
import struct
from base64 import urlsafe_b64decode
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.common import java_properties
from cordwood.common.config import resolve, show
from cordwood.storage.formats.cluster_metadata import (
    EMPTY,
    RECORDS,
    ClusterMetadata,
    PartitionReplicas,
    apply,
    decode,
    load_snapshot,
)
from cordwood.storage.formats.messages.schema import Message
from tests.fixtures import fixture
from tests.storage.metadata_facts import DELETED, INTERNAL, WITH_METADATA, facts_of_topics

# ---- batches in plain Python -----------------------------------------------------------------------------------------

# A record batch read in plain Python: the twin of the fast readers. Magic 2, not compressed.
#
# base_offset i64 | length i32 | leader_epoch i32 | magic i8 | crc u32 | attributes i16 | last_offset_delta i32
# base_timestamp i64 | max_timestamp i64 | producer_id i64 | producer_epoch i16 | base_sequence i32 | count i32

HEADER = struct.Struct(">qiibIhiqqqhii")
assert HEADER.size == 61


class PlainRecord(NamedTuple):
    """One record; headers are pairs of a name and bytes or None."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[bytes, bytes | None]]
    is_control: bool


def plain_records(data: bytes) -> list[PlainRecord]:
    """All records of a .log file, to the end or to a torn batch."""
    records: list[PlainRecord] = []
    position = 0

    def take(size_bytes: int) -> bytes | None:
        nonlocal position
        position += max(size_bytes, 0)
        return None if size_bytes < 0 else data[position - size_bytes : position]

    def varint() -> int:
        zigzag = shift = 0
        while (byte := (take(1) or b"")[0]) > 0x7F:
            zigzag, shift = zigzag | (byte & 0x7F) << shift, shift + 7
        zigzag |= byte << shift
        return zigzag >> 1 ^ -(zigzag & 1)

    start = 0
    while start + HEADER.size <= len(data):
        base_offset, length, _, magic, _, attributes, _, first, latest, *_, count = HEADER.unpack_from(data, start)
        start, position = start + 12 + length, start + HEADER.size
        if start > len(data):
            break
        assert magic == 2 and attributes & 7 == 0, "only magic 2, not compressed"
        for _ in range(count):
            varint(), take(1)
            timestamp = varint()
            records.append(
                PlainRecord(
                    timestamp=latest if attributes & 8 else first + timestamp,
                    offset=base_offset + varint(),
                    key=take(varint()),
                    value=take(varint()),
                    headers=[(take(varint()) or b"", take(varint())) for _ in range(varint())],
                    is_control=bool(attributes & 0x20),
                )
            )
    return records


BY_KAFKA = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data" / "metadata-records.jsonl").read_text().splitlines()
]
MESSAGES = {message.name: (number, message) for number, message in RECORDS.items()}
#: The topic id in Kafka's records, and another.
ID, OTHER_ID = "ESIzRFVmd4iZqrvM3e7_AA", "AAAAAAAAAAAAAAAAAAAAAQ"


# ---- the slow twin of decode: plain fields to bytes ------------------------------------------------------------------


def uvarint(value: int) -> bytes:
    return bytes([value]) if value < 0x80 else bytes([value & 0x7F | 0x80]) + uvarint(value >> 7)


def encoded(kind: str, value: Any) -> bytes:
    if value is None:
        return b"\0"
    if kind.startswith("[]"):
        return uvarint(len(value) + 1) + b"".join(encoded(kind[2:], item) for item in value)
    if kind == "string":
        text = str(value).encode()
        return uvarint(len(text) + 1) + text
    if kind == "uuid":
        return urlsafe_b64decode(f"{value}==")
    return int(value).to_bytes({"bool": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8}[kind], "big", signed=True)


def record(name: str, /, version: int = 0, **values: Any) -> bytes:
    """A framed record with these fields; tagged fields that are not given are left out."""
    number, message = MESSAGES[name]
    fields = [field for field in message.fields if field.since <= version]
    body = b"".join(encoded(field.type, values[field.name]) for field in fields if field.tag is None)
    tagged = [(field.tag, encoded(field.type, values[field.name])) for field in fields if field.tag is not None
              and field.name in values]  # fmt: skip
    tags = b"".join(uvarint(tag) + uvarint(len(content)) + content for tag, content in sorted(tagged))
    return uvarint(1) + uvarint(number) + uvarint(version) + body + uvarint(len(tagged)) + tags


def topic(name: str = "orders", topic_id: str = ID) -> bytes:
    return record("TopicRecord", name=name, topic_id=topic_id)


def partition(replicas: list[int], number: int = 0, topic_id: str = ID, directories: list[str] | None = None) -> bytes:
    return record(
        "PartitionRecord",
        version=0 if directories is None else 1,
        partition_id=number,
        topic_id=topic_id,
        replicas=replicas,
        isr=replicas,
        removing_replicas=[],
        adding_replicas=[],
        leader=replicas[0],
        leader_epoch=0,
        partition_epoch=0,
        directories=directories,
    )


def change(version: int = 0, **values: Any) -> bytes:
    return record("PartitionChangeRecord", version=version, **{"partition_id": 0, "topic_id": ID, **values})


def config(name: str, value: str | None, resource: str = "orders", kind: int = 2) -> bytes:
    return record("ConfigRecord", resource_type=kind, resource_name=resource, name=name, value=value)


REMOVE = record("RemoveTopicRecord", topic_id=ID)
BEGIN, END, ABORT = (record(f"{word}TransactionRecord") for word in ("Begin", "End", "Abort"))


def told(*records: bytes, onto: ClusterMetadata = EMPTY, first: int = 0) -> ClusterMetadata:
    return apply(enumerate(records, first), onto)


def what(metadata: ClusterMetadata) -> list[str]:
    return [str(problem) for problem in metadata.problems]


# ---- records as Kafka writes them ------------------------------------------------------------------------------------


def in_our_words(fields: Any) -> Any:
    """Names in snake_case and arrays as tuples."""
    if isinstance(fields, dict):
        return {re.sub("[A-Z]", lambda big: f"_{big[0].lower()}", name): in_our_words(v) for name, v in fields.items()}
    return tuple(map(in_our_words, fields)) if isinstance(fields, list) else fields


@pytest.mark.parametrize("line", BY_KAFKA, ids=lambda line: f"{line['name']} v{line['version']}")
def test_every_version_of_a_record_is_read_as_kafka_wrote_it(line: dict[str, Any]) -> None:
    decoded = decode(bytes.fromhex(line["hex"]))
    if line["name"] not in MESSAGES:
        assert decoded is None
        return
    assert decoded is not None
    message, fields = decoded
    assert message.name == line["name"]
    # Kafka's JSON leaves out tagged fields that have their default.
    defaults = {field.name: field.default for field in message.fields}
    assert fields == defaults | in_our_words(line["fields"])


def test_kafkas_records_cover_every_version_of_every_type() -> None:
    written = {(line["name"], line["version"]) for line in BY_KAFKA}
    known = {(message.name, v) for message in RECORDS.values() for v in range(message.last_version + 1)}
    assert known <= written


@pytest.mark.parametrize("line", BY_KAFKA, ids=lambda line: f"{line['name']} v{line['version']}")
def test_a_record_cut_short_or_with_a_byte_too_many_cannot_be_read(line: dict[str, Any]) -> None:
    whole = bytes.fromhex(line["hex"])
    if line["name"] not in MESSAGES:
        return
    for end in range(len(whole)):
        with pytest.raises(ValueError):
            decode(whole[:end])
    with pytest.raises(ValueError, match="1 bytes too many"):
        decode(whole + b"\0")


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (b"", "1 bytes at byte 0, where 0 are left"),
        (b"\0\2\0", "frame version 0, not 1"),
        (b"\1\2\1", "TopicRecord of version 1; the last one known is 0"),
        (b"\1\2\0\0", "TopicRecord of version 0: null before byte 4, where it is not allowed"),
        (b"\1\2\0\x03\xff\xfe", "TopicRecord of version 0: 'utf-8' codec can't decode byte 0xff"),
        (b"\1\2\0\xff\xff\xff\xff\x7f", "TopicRecord of version 0: a varint of more than 31 bits before byte 8"),
        (b"\1\2\0\xff\xff\xff\xff\xff\x01", "TopicRecord of version 0: a varint of more than 31 bits before byte 8"),
        (b"\1\x09\0" + b"i" * 16 + b"\xff\xff\xff\xff\x07", "RemoveTopicRecord of version 0: 1 bytes at byte 24"),
        (b"\1\5\0" + b"i" * 20 + b"\1\1\5" + b"l" * 5, "PartitionChangeRecord of version 0: 1 bytes too many"),
        (b"\1\3\0" + b"i" * 20 + b"\xff\xff\xff\xff\x07", "PartitionRecord of version 0: 2147483646 items at byte 28"),
    ],
)
def test_an_unreadable_record_is_a_located_problem_and_the_others_count(value: bytes, problem: str) -> None:
    metadata = told(topic(), value, partition([1, 2]), first=70)
    (found,) = metadata.problems
    assert (found.offset, found.path, found.position) == (71, None, None)
    assert str(found).startswith(f"Unreadable cluster metadata record: {problem}")
    assert metadata.replica_count("orders", 0) == 2


def test_a_record_without_a_value_is_a_problem() -> None:
    assert len(apply([(0, None)]).problems) == 1


def test_unknown_types_and_unknown_tags_are_passed_over() -> None:
    unknown_tag = topic()[:-1] + b"\1\x63\2hi"
    metadata = told(b"\1\x7f\x09whatever", unknown_tag)
    assert list(metadata.topics) == ["orders"]
    assert metadata.problems == ()


# ---- stories ---------------------------------------------------------------------------------------------------------


def test_configs_are_set_changed_and_unset_in_order() -> None:
    story = [topic(), config("a", "1"), config("b", "1"), config("a", "2"), config("b", None), config("c", None)]
    assert told(*story).topic_config("orders") == {"a": "2"}
    assert told(*story[:4]).topic_config("orders") == {"a": "2", "b": "1"}
    assert told(*story).topic_config("sales") == {}


def test_a_deleted_topic_is_gone_with_its_configs_and_partitions() -> None:
    metadata = told(topic(), config("a", "1"), partition([1]), REMOVE)
    assert (metadata.topics, metadata.topic_configs, metadata.problems) == ({}, {}, ())
    assert metadata.replica_count("orders", 0) is None


def test_a_topic_made_again_has_nothing_of_the_one_before() -> None:
    metadata = told(
        topic(), config("a", "1"), partition([1, 2]), partition([1], 1), REMOVE, topic(topic_id=OTHER_ID),
        config("b", "1"), partition([3], 0, OTHER_ID),
    )  # fmt: skip
    assert metadata.topics["orders"].topic_id == OTHER_ID
    assert metadata.topic_config("orders") == {"b": "1"}
    assert [metadata.replica_count("orders", number) for number in (0, 1)] == [1, None]


def test_topic_created_twice_is_a_problem_and_the_newer_one_counts() -> None:
    metadata = told(topic(), config("a", "1"), topic(topic_id=OTHER_ID))
    assert metadata.topics["orders"].topic_id == OTHER_ID
    assert what(metadata) == ["Unreadable cluster metadata record: TopicRecord: orders already exists (offset 2)"]


def test_a_partition_change_changes_what_it_names() -> None:
    before = told(topic(), partition([1, 2, 3], directories=[ID, ID, OTHER_ID]))
    kept = PartitionReplicas((1, 2, 3), (1, 2, 3), (), (), 1, 0, (ID, ID, OTHER_ID))
    assert before.topics["orders"].partitions == {0: kept}

    def after(version: int = 0, **values: Any) -> PartitionReplicas:
        return told(change(version, **values), onto=before, first=2).topics["orders"].partitions[0]

    assert after() == kept
    assert after(isr=[2], leader=2) == PartitionReplicas((1, 2, 3), (2,), (), (), 2, 1, kept.directories)
    assert after(leader=-1) == PartitionReplicas((1, 2, 3), (1, 2, 3), (), (), -1, 1, kept.directories)
    moved = after(1, replicas=[4, 1], adding_replicas=[4], removing_replicas=[2], directories=[ID, OTHER_ID])
    assert moved == PartitionReplicas((4, 1), (1, 2, 3), (2,), (4,), 1, 0, (ID, OTHER_ID))
    assert after(replicas=[4]).directories == ()
    assert before.topics["orders"].partitions == {0: kept}


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (partition([1]), f"PartitionRecord: no topic has the id {ID}"),
        (change(), f"PartitionChangeRecord: no partition 0 of a topic with the id {ID}"),
        (REMOVE, f"RemoveTopicRecord: no topic has the id {ID}"),
        (END, "EndTransactionRecord without a transaction"),
        (ABORT, "AbortTransactionRecord without a transaction"),
        (record("UnregisterBrokerRecord", broker_id=9, broker_epoch=0), "UnregisterBrokerRecord: no broker has the id"
         " 9"),
    ],
)  # fmt: skip
def test_a_record_that_does_not_fit_what_was_before_is_a_problem(value: bytes, problem: str) -> None:
    assert what(told(value)) == [f"Unreadable cluster metadata record: {problem} (offset 0)"]


def test_a_transaction_counts_when_it_ends_and_never_when_it_is_aborted_or_open() -> None:
    inside = [BEGIN, topic(), config("a", "1")]
    assert told(*inside).topics == told(*inside, ABORT).topics == {}
    assert told(*inside).topic_configs == told(*inside, ABORT).topic_configs == {}
    assert told(*inside, END).topic_config("orders") == {"a": "1"}
    aborted_then_plain = told(*inside, ABORT, topic("sales"))
    assert (list(aborted_then_plain.topics), aborted_then_plain.problems) == (["sales"], ())
    assert len(told(*inside, BEGIN).problems) == 1


def test_a_snapshot_and_the_log_after_it_combine() -> None:
    log = [topic(), config("a", "1"), config("b", "1"), partition([1, 2]), config("a", None), change(replicas=[1])]
    whole = told(*log)
    for end_offset in range(len(log) + 1):
        before = told(*log[:end_offset])
        # A snapshot holds the same state in its own records, numbered from 0.
        retold = [topic()] if before.topics else []
        retold += [config(*pair) for pair in before.topic_config("orders").items()]
        retold += [partition(list(p.replicas)) for t in before.topics.values() for p in t.partitions.values()]
        snapshot = load_snapshot(enumerate(retold), end_offset)
        assert snapshot.next_offset == end_offset
        combined = apply(enumerate(log), snapshot)
        assert (combined.topic_config("orders"), combined.next_offset) == (whole.topic_config("orders"), 6)
        assert combined.replica_count("orders", 0) == whole.replica_count("orders", 0) == 1
        assert combined.problems == ()


def test_applying_changes_no_value_that_was_given_out() -> None:
    before = told(topic(), config("a", "1"), partition([1]), config("x", "1", "1", 4))
    copy = pickle.loads(pickle.dumps(before))
    told(config("a", "2"), change(isr=[]), partition([2], 1), config("x", None, "1", 4), REMOVE, onto=before, first=4)
    assert before == copy


def directories_of(metadata: ClusterMetadata) -> dict[int, tuple[str, ...]]:
    return {number: broker.directories for number, broker in metadata.brokers.items()}


def test_broker_configs_and_directories_and_features() -> None:
    registered = next(line for line in BY_KAFKA if line["name"] == "RegisterBrokerRecord" and line["version"] == 3)
    metadata = told(
        bytes.fromhex(registered["hex"]),
        config("log.retention.ms", "5", "", 4),
        config("log.retention.ms", "6", "7", 4),
        config("interval.ms", "1", "some-client", 16),
        record("FeatureLevelRecord", name="metadata.version", feature_level=30),
        record("FeatureLevelRecord", name="group.version", feature_level=1),
        record("FeatureLevelRecord", name="group.version", feature_level=0),
        record("BrokerRegistrationChangeRecord", broker_id=7, broker_epoch=0, fenced=1),
    )
    assert metadata.broker_configs == {"": {"log.retention.ms": "5"}, "7": {"log.retention.ms": "6"}}
    assert directories_of(metadata) == {7: tuple(registered["fields"]["logDirs"])}
    assert metadata.features == {"metadata.version": 30}
    assert (metadata.topic_configs, metadata.problems) == ({}, ())
    moved = record("BrokerRegistrationChangeRecord", version=2, broker_id=7, broker_epoch=0, log_dirs=[ID])
    assert directories_of(told(moved, onto=metadata, first=8)) == {7: (ID,)}
    gone = record("UnregisterBrokerRecord", broker_id=7, broker_epoch=0)
    assert directories_of(told(gone, onto=metadata, first=8)) == {}


def test_layers_carry_cluster_broker_and_topic_configs_to_resolve() -> None:
    name = "log.retention.ms"
    metadata = told(topic(), config(name, "5", "", 4), config(name, "6", "7", 4), config("cleanup.policy", "compact"))
    assert str(resolve("orders", metadata.layers("orders", 7))["retention.ms"]) == (
        "6 (broker 7 (dynamic) in __cluster_metadata-0)"
    )
    for other in (8, None):
        assert str(resolve("orders", metadata.layers("orders", other))["retention.ms"]) == (
            "5 (cluster default (dynamic) in __cluster_metadata-0)"
        )
    assert str(resolve("orders", metadata.layers("orders", 7, "x/m-0"))["cleanup.policy"]) == (
        "compact (topic orders in x/m-0)"
    )
    assert not resolve("sales", metadata.layers("sales", 7)).policy_known
    assert EMPTY.layers("orders", 7) == ()


@pytest.mark.parametrize(
    ("text", "tiered"),
    [(None, False), ("false", False), (" False", False), ("true", True), ("TRUE", True), ("?", True)],
)
def test_a_topic_is_tiered_unless_its_config_says_no(text: str | None, tiered: bool) -> None:
    assert told(topic(), config("remote.storage.enable", text)).is_tiered("orders") == tiered
    assert not EMPTY.is_tiered("orders")


# ---- hostile bytes ---------------------------------------------------------------------------------------------------

FROM_KAFKA = st.sampled_from([bytes.fromhex(line["hex"]) for line in BY_KAFKA])


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A record of Kafka's with some bytes replaced, cut out or put in."""
    data = bytearray(draw(FROM_KAFKA))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    return bytes(data)


@given(st.lists(st.one_of(st.binary(max_size=40), mutated(), mutated(), FROM_KAFKA), max_size=20))
def test_whatever_the_bytes_they_become_problems_and_never_an_exception(records: list[bytes]) -> None:
    metadata = told(*records)
    offsets = [problem.offset for problem in metadata.problems]
    # A record is at fault once: when read, or when its transaction ends.
    assert len(set(offsets)) == len(offsets)
    assert all(offset is not None and offset < len(records) for offset in offsets)
    assert metadata.next_offset == len(records)
    assert pickle.loads(pickle.dumps(metadata)).topics == metadata.topics


def values_of(message: Message) -> st.SearchStrategy[dict[str, Any]]:
    kinds: Mapping[str, st.SearchStrategy[Any]] = {
        "bool": st.booleans(),
        "string": st.text(max_size=200),
        "uuid": st.sampled_from([ID, OTHER_ID]),
        **{f"int{bits}": st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (8, 16, 32, 64)},
    }

    def of(kind: str) -> st.SearchStrategy[Any]:
        return st.lists(of(kind[2:]), max_size=5).map(tuple) if kind.startswith("[]") else kinds[kind]

    return st.fixed_dictionaries(
        {field.name: of(field.type) for field in message.fields if field.tag is None},
        optional={field.name: of(field.type) for field in message.fields if field.tag is not None},
    )


@given(st.data())
def test_what_the_twin_encodes_is_decoded(data: st.DataObject) -> None:
    plain = [message for message in RECORDS.values() if message.name != "RegisterBrokerRecord"]
    message = data.draw(st.sampled_from(plain))
    values = data.draw(values_of(message))
    decoded = decode(record(message.name, version=message.last_version, **values))
    assert decoded == (message, {field.name: field.default for field in message.fields} | values)


# ---- logs of real brokers --------------------------------------------------------------------------------------------


def brokers_records(name: str, file: str = "__cluster_metadata-0/*.log") -> list[tuple[int, bytes | None]]:
    path = next(iter(sorted(fixture(name).rglob(file))))
    return [(record.offset, record.value) for record in plain_records(path.read_bytes()) if not record.is_control]


@pytest.mark.parametrize("name", WITH_METADATA)
def test_topics_configs_replicas_and_sources_of_a_brokers_log_equal_its_facts(name: str) -> None:
    metadata = apply(brokers_records(name))
    assert metadata.problems == ()
    expected = {topic: (count, texts) for topic, count, texts in facts_of_topics(name) if not DELETED.fullmatch(topic)}
    assert set(metadata.topics) - INTERNAL == set(expected)
    for topic_name, (count, texts) in expected.items():
        assert [metadata.replica_count(topic_name, number) for number in range(count + 1)] == [1] * count + [None]
        assert not metadata.is_tiered(topic_name)
        resolved = resolve(topic_name, metadata.layers(topic_name, 1))
        said = {key: (show(value.value), str(value.source)) for key, value in resolved.items() if value.explicit}
        assert said.pop("min.insync.replicas") == ("1", "cluster default (dynamic) in __cluster_metadata-0")
        assert metadata.topic_config(topic_name) == texts
        assert said == {key: (text, f"topic {topic_name} in __cluster_metadata-0") for key, text in texts.items()}


@pytest.mark.parametrize("name", WITH_METADATA)
def test_no_deleted_topic_is_left_in_a_brokers_log(name: str) -> None:
    story = apply(brokers_records(name))
    removed = [value for _, value in brokers_records(name) if value and value[:2] == b"\1\x09"]
    deleted = [topic_name for topic_name, _, _ in facts_of_topics(name) if DELETED.fullmatch(topic_name)]
    assert len(removed) == len(deleted) == (3 if re.match("kraft-(classic|before|after)", name) else 0)
    assert not {*story.topics, *story.topic_configs} & {*deleted}


@pytest.mark.parametrize("name", ["kraft-before", "kraft-after-2", "kraft-classic-before"])
def test_configs_that_a_broker_set_changed_and_unset_are_followed(name: str) -> None:
    metadata, seen, changes = EMPTY, dict[str, str](), []
    for each in brokers_records(name):
        metadata = apply([each], metadata)
        now = dict(metadata.topic_config("configured"))
        changes += [f"{key}={now.get(key, '∅')}" for key in now | seen if now.get(key) != seen.get(key)]
        seen = now
    assert changes == [
        "cleanup.policy=delete",
        "internal.segment.bytes=2500",
        "cleanup.policy=compact",
        "min.cleanable.dirty.ratio=0.1",
        "max.message.bytes=2000000",
        "min.cleanable.dirty.ratio=0.3",
        "delete.retention.ms=5000",
        "max.message.bytes=∅",
    ]
    resolved = resolve("configured", metadata.layers("configured", 1))
    assert resolved.policy_known and resolved.policy == {"compact"}
    assert str(resolved["max.message.bytes"]) == "1048588 (default)"


@pytest.mark.parametrize("name", ["kraft-jbod-before", "kraft-jbod-after"])
def test_each_partition_lies_in_the_log_directory_that_the_metadata_names(name: str) -> None:
    metadata = apply(brokers_records(name))
    identities = {}
    for folder in ("a", "b"):
        values = java_properties.decode((fixture(name) / folder / "meta.properties").read_bytes()).values()
        identities[values["directory.id"]] = folder
    assert set(metadata.brokers[1].directories) == set(identities)
    for topic_name, each in metadata.topics.items():
        for number, placed in each.partitions.items():
            (directory,) = placed.directories
            assert (fixture(name) / identities[directory] / f"{topic_name}-{number}").is_dir()
    identity = (fixture(name) / "a" / "disk-1-0" / "partition.metadata").read_text()
    assert metadata.topics["disk-1"].topic_id in identity


def test_the_bootstrap_file_is_a_snapshot_before_the_log() -> None:
    bootstrap = load_snapshot(brokers_records("kraft-after", "bootstrap.checkpoint"), 0)
    assert (bootstrap.features["metadata.version"], bootstrap.next_offset) == (30, 0)
    log = brokers_records("kraft-after")
    assert apply(log, bootstrap) == apply(log)


def test_a_metadata_log_may_be_applied_in_pieces_at_any_cut_outside_its_transaction() -> None:
    log = brokers_records("kraft-jbod-after")
    whole = apply(log)
    for cut in range(12, len(log)):
        assert apply(log, apply(log[:cut])) == whole


def test_a_torn_tail_ends_the_log_and_what_came_before_counts() -> None:
    data = next(fixture("kraft-jbod-after").rglob("__cluster_metadata-0/*.log")).read_bytes()
    records = [(record.offset, record.value) for record in plain_records(data[:-7]) if not record.is_control]
    assert (len(records) < len(brokers_records("kraft-jbod-after")), apply(records).problems) == (True, ())
