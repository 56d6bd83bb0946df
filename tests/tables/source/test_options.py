"""Options have the names, forms and refusals of Kafka's source, and Cordwood's own error messages."""

from __future__ import annotations

import re

import pytest

from cordwood.common.errors import RequestError
from cordwood.common.types import Isolation, TopicPartition
from cordwood.tables.source.offsets import (
    EARLIEST,
    LATEST,
    ByPartition,
    Everywhere,
    SinceTime,
    SinceTimes,
    from_document,
    to_document,
)
from cordwood.tables.source.options import known_options, parse
from cordwood.tables.source.schema import COLUMNS, check_schema, column_names, schema_text

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def asked(**options: str):
    return parse({"path": "/logs", **{name.replace("kafka_", "kafka."): text for name, text in options.items()}})


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("assign", '{"a":[0,1],"b":[0]}', frozenset([A0, A1, B0])),
        ("subscribe", " a, b ,", ("a", "b")),
        ("startingOffsets", "EARLIEST", Everywhere(EARLIEST)),
        ("startingOffsets", ' {"a":{"0":5,"1":-2},"b":{"0":-1}}', ByPartition({A0: 5, A1: -2, B0: -1})),
        ("endingOffsets", "latest", Everywhere(LATEST)),
        ("startingTimestamp", " 17 ", SinceTime(17)),
        ("endingOffsetsByTimestamp", '{"a":{"0":5}}', SinceTimes({A0: 5})),
        ("startingOffsetsByTimestampStrategy", "LATEST", "latest"),
        ("kafka.isolation.level", "read_committed", Isolation.READ_COMMITTED),
        ("includeHeaders", "True", True),
        ("failOnDataLoss", "false", False),
        ("minPartitions", "7", 7),
        ("maxTriggerDelay", "15m", 900_000),
        ("maxTriggerDelay", "2500", 2500),
        ("maxTriggerDelay", "1h", 3_600_000),
        ("columns", "*, file", ("*", "file")),
        ("highWatermark", "end", "end"),
        ("path", '["/a","/b"]', ("/a", "/b")),
        ("path", "[odd", ("[odd",)),
    ],
)
def test_each_form_of_an_option_is_read(name: str, text: str, value: object) -> None:
    field = known_options()[name.lower()].name
    for spelled in (name, name.lower(), name.upper()):
        assert getattr(parse({"path": "/logs", spelled: text}), field) == value


def test_a_pattern_is_found_anywhere_in_a_name() -> None:
    pattern = asked(subscribePattern="rd.r").subscribe_pattern
    assert pattern is not None and pattern.search("orders")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startingOfset": "latest"}, "There is no option startingofset. Is startingOffsets meant?"),
        ({"zzz": "1"}, "There is no option zzz. There are assign,"),
        ({"startingOffsets": "first"}, "startingOffsets: 'first': give earliest, latest, or offsets such as"),
        ({"startingOffsets": '{"a":[1]}'}, "startingOffsets: '{\"a\":[1]}': give"),
        ({"startingOffsets": '{"a":{"0":-3}}'}, "startingOffsets: -3 is no offset of a-0. -2 is the earliest"),
        ({"startingOffsetsByTimestamp": "1"}, "startingOffsetsByTimestamp: '1': give milliseconds such as"),
        ({"assign": "{}"}, "assign: '{}': give partitions such as"),
        ({"assign": '{"a":[true]}'}, "assign: '{\"a\":[true]}': give partitions such as"),
        ({"subscribe": " , "}, "subscribe: no name is given"),
        ({"subscribePattern": "["}, "subscribePattern: '[' is no regular expression"),
        ({"subscribe": "a", "assign": '{"a":[0]}'}, "Give one of assign, subscribe and subscribePattern"),
        ({"minPartitions": "0"}, "minPartitions: '0': give a number, 1 or more"),
        ({"maxRecordsPerPartition": "x"}, "maxRecordsPerPartition: 'x': give a number, 1 or more"),
        ({"includeHeaders": "yes"}, "includeHeaders: 'yes': give true or false"),
        ({"kafka.isolation.level": "none"}, "kafka.isolation.level: 'none': give read_uncommitted or read_committed"),
        ({"startingTimestamp": "today"}, "startingTimestamp: 'today': give milliseconds since 1970"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay: 'soon': give a time such as 500ms, 30s or 15m"),
        ({"startingOffsetsByTimestampStrategy": "x"}, "give error or latest"),
        ({"highWatermark": "start"}, "highWatermark: 'start': give end"),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "minOffsetsPerTrigger 5 is larger than"),
        (
            {"kafka.auto.offset.reset": "latest"},
            "kafka.auto.offset.reset cannot be set: the option startingOffsets sets",
        ),
        ({"kafka.key.deserializer": "x"}, "kafka.key.deserializer cannot be set: the option keyFormat decodes keys"),
        ({"kafka.enable.auto.commit": "true"}, "kafka.enable.auto.commit cannot be set"),
        ({"kafka.isolation.levl": "read_committed"}, "no setting isolation.levl. Is kafka.isolation.level meant?"),
        ({"kafka.enable.autocommit": "true"}, "Is kafka.enable.auto.commit meant?"),
        ({"columns": "key,nothing"}, "There is no column nothing. There are key, value,"),
        ({"undecodable": "skip"}, "undecodable: 'skip': give fail or null"),
        ({"columns": "key,*"}, "a column is there twice"),
    ],
)
def test_what_is_wrong_is_said(options: dict[str, str], words: str) -> None:
    with pytest.raises(RequestError, match=re.escape(words)):
        column_names(parse({"path": "/logs", **options}))


def test_settings_of_a_consumer_and_its_job_are_passed_over() -> None:
    job = {
        "kafka.bootstrap.servers": "localhost:9092",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.max.poll.records": "7",
        "kafka.group.id": "g",
        "kafka.sasl.oauthbearer.scope": "s",
        "kafka.setting.of.some.plugin": "s",
        "groupIdPrefix": "p",
        "kafkaConsumer.pollTimeoutMs": "1",
        "fetchOffset.numRetries": "1",
        "fetchOffset.retryIntervalMs": "1",
    }
    assert parse({"path": "/logs", **job}) == parse({"path": "/logs"})


def test_a_reader_without_a_path_is_told_how_to_give_one() -> None:
    with pytest.raises(RequestError, match=r"load\("):
        parse({})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startingOffsets": "latest"}, "A batch cannot start at the latest offset"),
        ({"startingOffsets": '{"a":{"0":-1}}'}, "A batch cannot start at the latest offset"),
        ({"endingOffsets": "earliest"}, "A batch cannot end at the earliest offset"),
        ({"startingOffsets": '{"a":{"0":1}}', "endingOffsets": '{"a":{"1":1}}'}, "for different partitions: a-0, a-1"),
    ],
)
def test_what_no_batch_can_have_is_refused(options: dict[str, str], words: str) -> None:
    with pytest.raises(RequestError, match=re.escape(words)):
        asked(**options).batch_limits()


def test_times_come_before_offsets() -> None:
    options = asked(
        startingOffsets="earliest",
        startingOffsetsByTimestamp='{"a":{"0":1}}',
        startingTimestamp="2",
        endingTimestamp="3",
    )
    assert options.batch_limits() == (SinceTime(2), SinceTime(3))
    assert asked(startingOffsets="earliest", startingOffsetsByTimestamp='{"a":{"0":1}}').starting == SinceTimes({A0: 1})


def test_a_stream_begins_at_the_latest_offset_and_has_no_end() -> None:
    assert asked().stream_start() == Everywhere(LATEST)
    assert asked().batch_limits() == (Everywhere(EARLIEST), Everywhere(LATEST))
    for option in ("endingOffsets", "endingTimestamp"):
        with pytest.raises(RequestError, match="A stream has no end"):
            asked(**{option: "5" if "Time" in option else "latest"}).stream_start()


def test_offsets_go_into_a_checkpoint_as_kafkas_source_writes_them() -> None:
    offsets = {B0: 7, A1: 5, A0: 3}
    assert to_document(offsets) == {"a": {"0": 3, "1": 5}, "b": {"0": 7}}
    assert from_document(to_document(offsets)) == offsets


# ---- columns ---------------------------------------------------------------------------------------------------------


def test_columns_are_those_of_kafkas_source_unless_others_are_asked_for() -> None:
    usual = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
    assert column_names(asked()) == usual
    assert column_names(asked(includeHeaders="true")) == (*usual, "headers")
    assert column_names(asked(columns="OFFSET,headers,*".removesuffix(",*"))) == ("offset", "headers")
    assert column_names(asked(columns="*,file,producerid")) == (*usual, "file", "producerId")
    assert column_names(asked(undecodable="null")) == (*usual, "undecodable")
    assert schema_text(("key", "offset")) == "`key` binary, `offset` bigint"


def test_a_schema_chooses_columns_if_it_has_their_types() -> None:
    assert check_schema([("value", "binary"), ("offset", "bigint")]) == ("value", "offset")
    for name, kind in (("value", "string"), ("Value", "binary")):
        with pytest.raises(RequestError, match=f"The schema has {name} {kind}; that column is value binary"):
            check_schema([(name, kind)])
    with pytest.raises(RequestError, match="There is no column v"):
        check_schema([("v", "binary")])


def test_every_column_says_its_type() -> None:
    assert set(COLUMNS) == {name for name, one in COLUMNS.items() if one.type}
