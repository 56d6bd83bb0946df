"""Decoding of Kafka's messages: bytes that Kafka wrote, our own, and damaged bytes.

`tests/data/messages.jsonl` has two examples of each version of each message, written by Kafka's generated classes;
`test_messages_against_kafka` compares it with them.
"""

from __future__ import annotations

import contextlib
import json
import tracemalloc
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.common.errors import CorruptMessageError, DataError
from cordwood.storage.formats.messages import schema
from cordwood.storage.formats.messages.schema import DECODED_BYTES_MAX, UNKNOWN_TAGS, DecodedMessage, decode, read_table
from cordwood.storage.formats.messages.topics import read_frame
from tests.storage.messages import CASES, Case, encode, from_json, mutated, random_fields, uvarint

BY_KAFKA = [
    json.loads(line) for line in (Path(__file__).parents[1] / "data" / "messages.jsonl").read_text().splitlines()
]
CASE_OF = {(case.message.name, case.version): case for case in CASES}

per_case = pytest.mark.parametrize("case", CASES, ids=str)
randoms = st.randoms(use_true_random=False)


# ---- one by one ------------------------------------------------------------------------------------------------------


def test_every_version_of_every_message_was_written_by_kafka() -> None:
    assert {(line["name"], line["version"]) for line in BY_KAFKA} == set(CASE_OF)


@pytest.mark.parametrize("line", BY_KAFKA, ids=lambda line: f"{line['name']} v{line['version']}")
def test_a_message_is_read_as_kafka_wrote_it(line: dict[str, Any]) -> None:
    case, data = CASE_OF[line["name"], line["version"]], bytes.fromhex(line["hex"])
    fields = from_json(case.message.fields, line["json"])
    assert decode(case.message, case.version, data) == DecodedMessage(case.message, case.version, fields, len(data))
    assert encode(case, fields) == data


@pytest.mark.parametrize("line", BY_KAFKA, ids=lambda line: f"{line['name']} v{line['version']}")
def test_a_message_cut_short_is_no_message_and_bytes_behind_it_are_left(line: dict[str, Any]) -> None:
    case, data = CASE_OF[line["name"], line["version"]], bytes.fromhex(line["hex"])
    for end in range(len(data)):
        with pytest.raises(CorruptMessageError, match=f"{case.message.name} of version {case.version}: "):
            decode(case.message, case.version, data[:end])
    assert decode(case.message, case.version, b"ab" + data + b"c", 2).end == 2 + len(data)


@given(st.sampled_from(CASES), randoms)
def test_what_the_twin_encodes_is_decoded(case: Case, random: Random) -> None:
    fields = random_fields(case, random)
    data = encode(case, fields)
    assert decode(case.message, case.version, data) == DecodedMessage(case.message, case.version, fields, len(data))


@given(st.sampled_from(CASES), randoms)
def test_damaged_bytes_are_a_message_or_an_error_and_nothing_else(case: Case, random: Random) -> None:
    data = mutated(encode(case, random_fields(case, random)), random)
    for version in (case.version, case.message.last_version + 1, -1):
        try:
            found = decode(case.message, version, data)
        except DataError:
            assert version <= case.message.last_version
        else:
            assert 0 <= found.end <= len(data)
            assert set(found.fields) - {UNKNOWN_TAGS} == {one.name for one in case.message.fields}


@given(st.sampled_from(CASES), st.binary(max_size=60))
def test_random_bytes_are_a_message_or_an_error_and_nothing_else(case: Case, data: bytes) -> None:
    with contextlib.suppress(DataError):
        assert decode(case.message, case.version, data).end <= len(data)


(THING,) = (
    one.value
    for one in read_table(
        """
Thing 0
  value 0-1 flexible 1+
    names     []string
    texts     string?
    pairs     []
      left    int16
      tagged  int32?  1+  tag 1 = 7
    extra     bytes   1+  tag 0
"""
    ).values()
)


#: Version, bytes, and the expected problem.
PROBLEMS = [
    (0, b"", "4 bytes at byte 0, where 0 are left"),
    (0, b"\0\0\0\3\0\1", "3 items at byte 4, where 2 bytes are left"),
    (0, b"\xff\xff\xff\xff", "null before byte 4, where it is not allowed"),
    (0, b"\0\0\0\1\xff\xff", "null before byte 6, where it is not allowed"),
    (0, b"\0\0\0\1\0\2x", "2 bytes at byte 6, where 1 are left"),
    (1, b"\0", "null before byte 1, where it is not allowed"),
    (1, b"\xff\xff\xff\xff\xff\1", "a varint of more than 31 bits before byte 5"),
    (1, b"\xff\xff\xff\xff\x0f", "a varint of more than 31 bits before byte 5"),
    (1, b"\1\x81\x80\2", "a string of 32768 bytes before byte 4"),
    (1, b"\1\x81\x80\2" + b"x" * 32768 + b"\1\0", "a string of 32768 bytes before byte 4"),
    (1, b"\1\0\1\1\0\3\1ab", "2 bytes too many"),
    (1, b"\1\0\1\2\0\1\1\0\1\1", "tag 0 for the second time before byte 9"),
    (1, b"\1\0\1\1\0\5\1", "5 bytes at byte 6, where 1 are left"),
    (-1, b"\1\0\1\0", "the first version is 0"),
]


@pytest.mark.parametrize(("version", "data", "problem"), PROBLEMS)
def test_a_problem_says_what_is_wrong_and_where(version: int, data: bytes, problem: str) -> None:
    with pytest.raises(CorruptMessageError) as caught:
        decode(THING, version, data)
    assert str(caught.value).startswith(f"ThingValue of version {version}: {problem}")


def test_a_later_version_is_read_as_far_as_it_goes() -> None:
    whole = b"\2\2a\2b\2\0\1\0\0"
    fields = {"names": ("a",), "texts": "b", "pairs": ({"left": 1, "tagged": 7},), "extra": b""}
    assert decode(THING, 1, whole) == DecodedMessage(THING, 1, fields, len(whole))
    later = decode(THING, 2, whole + b"more")
    assert later == DecodedMessage(THING, 2, fields, len(whole)) and later.is_later
    # An unknown field's bytes are in the place of a string.
    strange = decode(THING, 9, b"\3\2a\xff\xff\xff\xff\xff")
    assert strange.fields == {"names": ("a",), "texts": "", "pairs": (), "extra": b""}
    assert (strange.end, strange.problem) == (8, "ThingValue of version 9: a varint of more than 31 bits before byte 8")


def test_tagged_fields_that_are_not_known_are_kept() -> None:
    found = decode(THING, 1, b"\1\0\2\0\5\1\x09\2hi\1\x63\3abc")
    assert found.fields["pairs"] == ({"left": 5, "tagged": 7, UNKNOWN_TAGS: {9: b"hi"}},)
    assert found.fields[UNKNOWN_TAGS] == {0x63: b"abc"}


def test_text_that_is_no_utf_8_is_replaced_as_kafka_does_unless_it_must_not_be() -> None:
    data = b"\0\0\0\0\0\3a\xff\xfe\0\0\0\0"
    assert decode(THING, 0, data).fields["texts"] == "a\ufffd\ufffd"
    with pytest.raises(CorruptMessageError, match="'utf-8' codec can't decode byte 0xff"):
        decode(THING, 0, data, text_errors="strict")


def test_what_is_decoded_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert DECODED_BYTES_MAX == 16 << 20
    monkeypatch.setattr(schema, "DECODED_BYTES_MAX", 10)
    with pytest.raises(CorruptMessageError, match="11 bytes; more than 10 are not decoded"):
        decode(THING, 0, b"\0" * 11)


def test_what_is_made_is_a_small_multiple_of_what_is_read() -> None:
    # Structs of three bytes each are the smallest there are.
    case = CASE_OF["StreamsGroupMemberMetadataValue", 0]
    fields = random_fields(case, Random(1)) | {"client_tags": ({"key": "", "value": ""},) * 20_000}
    data = encode(case, fields)
    tracemalloc.start()
    try:
        decode(case.message, 0, data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100 * len(data)
    # An impossible count or size allocates no memory.
    for claim in (b"\x7f\xff\xff\xff", b"\x00\xff\xff\xff"):
        with pytest.raises(CorruptMessageError):
            decode(THING, 0, claim)
        with pytest.raises(CorruptMessageError):
            decode(CASE_OF["GroupMetadataValue", 0].message, 0, b"\0\0\0\0\0\1\xff\xff\xff\xff" + claim)


def test_numbers_in_front_of_a_cut_are_kept_from_a_message_of_a_later_version() -> None:
    case = CASE_OF["OffsetCommitValue", 3]
    message, whole = case.message, {"offset": 7, "leader_epoch": 5, "metadata": "m", "commit_timestamp": 9}
    data = encode(case, whole)
    found = [decode(message, message.last_version + 1, data[:size]).fields for size in (7, 8, 11, 12)]
    offsets_and_epochs = [(fields["offset"], fields["leader_epoch"]) for fields in found]
    assert offsets_and_epochs == [(0, -1), (7, -1), (7, -1), (7, 5)]


@pytest.mark.parametrize(("fields", "what"), [((2**15, 0), "record type 32768"), ((2, 2**15), "version 32768")])
def test_a_frame_whose_numbers_exceed_a_short_is_damage(fields: tuple[int, int], what: str) -> None:
    frame = b"".join(uvarint(number) for number in (1, *fields))
    with pytest.raises(CorruptMessageError, match=what):
        read_frame(frame)
