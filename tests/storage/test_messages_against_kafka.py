"""Kafka's generated classes and our codec on the same messages, in both directions; and on damaged ones.

CORDWOOD_REWRITE=1 writes `tests/data/messages.jsonl`.
"""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from random import Random
from typing import Any

from cordwood.common.errors import CorruptMessageError
from cordwood.storage.formats.messages.schema import Field, decode
from cordwood.storage.formats.messages.topics import INTERNAL_TOPICS, decode_record
from tests.kafka_tools import Line, Oracle
from tests.knobs import REWRITE, SEED, scaled
from tests.storage.messages import CASES, Case, encode, from_json, known, mutated, random_fields


def kafkas_word(name: str) -> str:
    """A field's name in Kafka's JSON."""
    name = re.sub("_([a-z])", lambda letter: letter[1].upper(), name)
    return re.sub("^kraft", "kRaft", name)


def to_json(layout: tuple[Field, ...], case: Case, fields: dict[str, Any]) -> dict[str, Any]:
    """Convert fields for Kafka's JSON converters: the version's fields, tagged ones unless they have their default."""
    return {
        kafkas_word(one.name): _json(one, case, fields[one.name])
        for one in layout
        if one.is_in(case.version) and not (one.tag is not None and fields[one.name] == one.default)
    }


def _json(one: Field, case: Case, value: Any) -> Any:
    if value is None:
        return None
    if one.is_array:
        return [_json_item(one, case, item) for item in value]
    return _json_item(one, case, value)


def _json_item(one: Field, case: Case, value: Any) -> Any:
    if one.item == "struct":
        return to_json(one.fields, case, value)
    return base64.b64encode(value).decode() if one.item == "bytes" else value


RECORDED = Path(__file__).parents[1] / "data" / "messages.jsonl"
EACH = scaled(10, 200)


def written_by_kafka(oracle: Oracle, drawn: list[tuple[Case, dict[str, object]]]) -> list[Line]:
    """Fields in Kafka's JSON, with Kafka's encoding of them."""
    lines = [
        {"name": case.message.name, "version": case.version, "json": to_json(case.message.fields, case, fields)}
        for case, fields in drawn
    ]
    return [line | answer for line, answer in zip(lines, oracle.messages(lines), strict=True)]


def has_tags(layout: tuple[Field, ...], case: Case) -> bool:
    """Whether a version has tagged fields, at any depth."""
    return any(one.is_in(case.version) and (one.tag is not None or has_tags(one.fields, case)) for one in layout)


def test_the_recorded_messages_are_those_that_kafka_writes(kafka_oracle: Oracle) -> None:
    drawn = []
    for case in CASES:
        random = Random(str(case))
        # One with as much in it as a few tries give, one without.
        tried = sorted((random_fields(case, random) for _ in range(6)), key=lambda fields: len(encode(case, fields)))
        drawn += [(case, tried[0]), (case, tried[-1])]
    text = "".join(
        f"{json.dumps(line, ensure_ascii=False, separators=(',', ':'))}\n"
        for line in written_by_kafka(kafka_oracle, drawn)
    )
    if REWRITE:
        RECORDED.write_text(text)
    assert RECORDED.read_text() == text


def test_kafka_writes_the_bytes_that_we_write_and_reads_what_we_read(kafka_oracle: Oracle) -> None:
    random = Random(SEED)
    drawn = [(case, random_fields(case, random)) for case in CASES for _ in range(EACH)]
    written = written_by_kafka(kafka_oracle, drawn)
    read = kafka_oracle.messages(
        {"name": case.message.name, "version": case.version, "hex": encode(case, fields).hex()}
        for case, fields in drawn
    )
    for (case, fields), write_answer, read_answer in zip(drawn, written, read, strict=True):
        assert write_answer.get("hex") == encode(case, fields).hex(), (case, fields, write_answer)
        found = decode(case.message, case.version, bytes.fromhex(write_answer["hex"]))
        assert found.fields == fields
        assert read_answer.get("left") == 0, (case, read_answer)
        assert from_json(case.message.fields, read_answer["json"]) == fields


def test_records_are_framed_as_kafka_frames_those_of_each_topic(kafka_oracle: Oracle) -> None:
    random = Random(SEED + 2)
    drawn = []
    for topic in INTERNAL_TOPICS.values():
        for record in topic.records.values():
            for version in range(record.value.first_version, record.value.last_version + 1):
                key = None if record.key is None else random_fields(Case(record.key, 0), random)
                drawn.append((topic, record, version, key, random_fields(Case(record.value, version), random)))
    asked: list[Line] = []
    for _, record, version, key, value in drawn:
        case = Case(record.value, version)
        of_value = to_json(record.value.fields, case, value)
        asked.append({"name": record.value.name, "version": version, "json": of_value, "framed": True})
        if record.key is not None and key is not None:
            of_key = to_json(record.key.fields, Case(record.key, 0), key)
            asked.append({"name": record.key.name, "version": 0, "json": of_key, "framed": True})
    answers = iter(bytes.fromhex(line["hex"]) for line in kafka_oracle.messages(asked))
    for topic, record, version, key, value in drawn:
        framed = next(answers)
        found = decode_record(topic, next(answers) if key is not None else None, framed)
        assert (found.type, found.number, found.version, found.rest) == (record.name, record.number, version, b"")
        assert found.key == key
        assert record.name == "GroupMetadata" or found.value == value


def test_of_damaged_bytes_we_read_what_kafka_reads_and_refuse_what_it_refuses(kafka_oracle: Oracle) -> None:
    random = Random(SEED + 1)
    damaged = [
        (case, mutated(encode(case, random_fields(case, random)), random)) for case in CASES for _ in range(EACH)
    ]
    answers = kafka_oracle.messages(
        {"name": case.message.name, "version": case.version, "hex": data.hex()} for case, data in damaged
    )
    refused = 0
    for (case, data), answer in zip(damaged, answers, strict=True):
        try:
            found = decode(case.message, case.version, data)
        except CorruptMessageError as raised:
            refused += 1
            # Kafka does not check the size of a known tagged field, and decodes strange varints as null.
            may_differ = has_tags(case.message.fields, case) or "varint" in str(raised)
            assert may_differ or "error" in answer, (case, data.hex(), answer)
        else:
            if "is not valid for version" in answer.get("error", ""):
                continue  # a tag of a later version, which we keep as an unknown tag
            assert answer.get("left") == len(data) - found.end, (case, data.hex(), answer, found)
            read = from_json(case.message.fields, answer["json"])
            assert known(found.fields) == known(read)
    assert 0 < refused < len(damaged)
