"""Kafka's generated classes and our codec on the same messages, in both directions; and on damaged ones.

CORDWOOD_MESSAGES=200 tries so many of each version. CORDWOOD_REWRITE_DATA=1 writes `tests/data/messages.jsonl`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from random import Random

from cordwood.errors import CorruptMessageError
from cordwood.storage.formats.messages.codec import decode
from cordwood.storage.formats.messages.schema import Field
from tests.drawn import SEED
from tests.kafka_tools import Line, Oracle
from tests.storage.message_twin import CASES, Case, encode, from_json, known, mutated, random_fields, to_json

RECORDED = Path(__file__).parents[1] / "data" / "messages.jsonl"
EACH = int(os.environ.get("CORDWOOD_MESSAGES", "10"))


def written_by_kafka(oracle: Oracle, drawn: list[tuple[Case, dict[str, object]]]) -> list[Line]:
    """Fields in Kafka's JSON, with the bytes that Kafka makes of them."""
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
    if "CORDWOOD_REWRITE_DATA" in os.environ:
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
            # Kafka does not look at the size of a tagged field that it knows, and takes strange varints for null.
            may_differ = has_tags(case.message.fields, case) or "varint" in str(raised)
            assert may_differ or "error" in answer, (case, data.hex(), answer)
        else:
            if "is not valid for version" in answer.get("error", ""):
                continue  # a tag of a later version, which we keep as one that is not known
            assert answer.get("left") == len(data) - found.end, (case, data.hex(), answer, found)
            read = from_json(case.message.fields, answer["json"])
            assert known(found.fields) == known(read)
    assert 0 < refused < len(damaged)
