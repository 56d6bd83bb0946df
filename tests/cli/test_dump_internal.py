"""`cordwood dump` of Kafka's internal topics: by name, and as bytes on request or without a decoder."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cordwood.cli.large import SHOWN_BYTES
from cordwood.storage.formats.messages import schema
from tests.command import run
from tests.fixtures import STOPPED, fixture
from tests.logs import Pair, batch, write_log
from tests.storage.messages import internal_record, offset_commit


def records(*words: str | Path) -> list[str]:
    """The text of record lines after offset and time."""
    lines = [line for line in run("dump", *words, "--records").output.splitlines() if line.startswith("record")]
    return [line.split(maxsplit=3)[3] for line in lines]


def documents(*words: str | Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run("dump", *words, "--records", "--json").output.splitlines()]


@pytest.fixture
def offsets(tmp_path: Path) -> Path:
    pairs: list[Pair] = [
        offset_commit("gr\nün", "t", 0, 5),
        offset_commit("g", "t", 0, None),
        internal_record("ConsumerGroupMetadata", {"epoch": 3}, {"group_id": "g"}),
        (b"\0\x63key", b"value"),
        (b"\0\1\0\1g", b"\0\3"),
    ]
    return write_log(tmp_path / "__consumer_offsets-0", [batch(0, *pairs)])


def test_records_are_shown_by_name_to_people(offsets: Path) -> None:
    assert records(offsets) == [
        r'OffsetCommit v3 key={group="gr\nün" topic="t" partition=0} value={offset=5 leader_epoch=-1 metadata="m" '
        'commit_timestamp=2023-11-14T22:13:20.000Z expire_timestamp=none topic_id="AAAAAAAAAAAAAAAAAAAAAA"}',
        'OffsetCommit key={group="g" topic="t" partition=0} value=null',
        'ConsumerGroupMetadata v0 key={group_id="g"} value={epoch=3 metadata_hash=0}',
        r'key="\x00ckey"       value="value" problem="record type 99 is not known"',
        r'key="\x00\x01\x00\x01g" value="\x00\x03" '
        'problem="OffsetCommitKey of version 0: 2 bytes at byte 5, where 0 are left"',
    ]  # fmt: skip


def test_records_are_objects_in_json(offsets: Path) -> None:
    first, deleted, _, unknown, broken = documents(offsets)
    assert (first["type"], first["record"], first["version"], first["offset"]) == ("record", "OffsetCommit", 3, 0)
    assert first["key"] == {"group": "gr\nün", "topic": "t", "partition": 0}
    assert first["value"]["commit_timestamp"] == 1_700_000_000_000
    assert (deleted["record"], deleted["version"], deleted["value"]) == ("OffsetCommit", None, None)
    assert (unknown["key"], unknown["value"], unknown["problem"]) == (
        "\x00ckey", "value", "record type 99 is not known",
    )  # fmt: skip
    assert "record" not in unknown and broken["problem"].startswith("OffsetCommitKey of version 0")


@pytest.mark.parametrize("words", [["--no-decode"], ["--value-format", "hex"], ["--key-format", "base64"]])
def test_whoever_asks_for_bytes_gets_bytes(offsets: Path, words: list[str]) -> None:
    assert not any("OffsetCommit v" in line or "problem" in line for line in records(offsets, *words))
    assert all("record" not in line and "problem" not in line for line in documents(offsets, *words))
    assert documents(offsets, "--no-decode")[3]["key"] == "\x00ckey"


def test_patterns_give_the_bytes(offsets: Path) -> None:
    assert run("dump", offsets, "--format", "%s,", "--offset", "3:4").output == "value,"


def test_other_topics_are_shown_as_ever(tmp_path: Path) -> None:
    for name in ("__consumer-0", "consumer_offsets-0", "__unknown-0"):
        log = write_log(tmp_path / name, [batch(0, offset_commit("g", "t", 0, 5))])
        assert records(log)[0].startswith(r'key="\x00\x01\x00\x01g')


def test_a_later_version_is_shown_as_far_as_it_goes(tmp_path: Path) -> None:
    key, value = offset_commit("g", "t", 0, 5, version=4)
    assert value is not None
    log = write_log(tmp_path / "__consumer_offsets-0", [batch(0, (key, b"\0\7" + value[2:] + b"\1\2"))])
    (line,) = records(log)
    assert line.startswith('OffsetCommit v7 key={group="g" topic="t" partition=0} value={offset=5 ')
    problem = "OffsetCommitValue of version 7: the last one known is 4"
    assert line.endswith(f'rest=hex:0102 problem="{problem}"')
    (document,) = documents(log)
    assert (document["value"]["offset"], document["rest"], document["problem"]) == (5, {"hex": "0102"}, problem)


def test_of_a_long_value_people_are_shown_the_start_and_all_of_it_if_they_ask(tmp_path: Path) -> None:
    members = tuple({"member_id": f"member-{at}"} for at in range(500))
    log = write_log(
        tmp_path / "__consumer_offsets-0",
        [batch(0, internal_record("GroupMetadata", {"members": members}, {"group": "g"}))],
    )
    (line,) = records(log)
    size = len(internal_record("GroupMetadata", {"members": members}, {"group": "g"})[1] or b"")
    assert line.endswith(f"… ({size:,} bytes)") and len(line) < SHOWN_BYTES + 200
    (whole,) = records(log, "--full")
    assert "member-499" in whole and "…" not in whole
    assert len(documents(log)[0]["value"]["members"]) == 500


def test_what_is_too_large_to_be_decoded_is_shown_as_bytes(offsets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "DECODED_BYTES_MAX", 20)
    assert 'problem="OffsetCommitValue of version 3: 23 bytes; more than 20 are not decoded"' in records(offsets)[0]
    assert documents(offsets)[0]["problem"] == "OffsetCommitValue of version 3: 23 bytes; more than 20 are not decoded"


def test_bytes_numbers_with_names_and_what_json_has_not(tmp_path: Path) -> None:
    scram = {"name": "u", "mechanism": 1, "salt": b"\0\1"}
    log = write_log(
        tmp_path / "__cluster_metadata-0",
        [
            batch(
                0,
                internal_record("UserScramCredentialRecord", scram),
                internal_record("ClientQuotaRecord", {"value": float("inf")}),
            )
        ],
    )
    assert "salt=hex:0001" in records(log)[0] and "value=inf" in records(log)[1]
    first, second = documents(log)
    assert (first["value"]["salt"], second["value"]["value"]) == ({"hex": "0001"}, "inf")
    transaction = internal_record("TransactionLog", {"transaction_status": 5}, {"transactional_id": "x"})
    log = write_log(tmp_path / "__transaction_state-0", [batch(0, transaction)])
    assert "transaction_status=CompleteAbort" in records(log)[0]
    assert documents(log)[0]["value"]["transaction_status"] == 5


def test_control_records_of_the_metadata_log_say_what_they_say() -> None:
    log = fixture("kraft-after-2") / "__cluster_metadata-0"
    (line,) = records(log, "--limit", "1")
    assert line.startswith(
        "control=LEADER_CHANGE LeaderChangeMessage v0 value={version=0 leader_id=1 voters=[{voter_id=1 "
    )
    (document,) = documents(log, "--limit", "1")
    assert (document["control"], document["record"], document["value"]["leader_id"]) == (
        "LEADER_CHANGE", "LeaderChangeMessage", 1,
    )  # fmt: skip
    bootstrap = fixture("kraft-after-2") / "bootstrap.checkpoint"
    assert records(bootstrap)[1] == 'FeatureLevelRecord v0 value={name="metadata.version" feature_level=30}'
    markers = [line for line in records(fixture("kraft-classic-before") / "__consumer_offsets-2") if "control=" in line]
    words = "control=(ABORT|COMMIT) coordinator_epoch=[0-9]+"
    assert markers and all(re.fullmatch(words, line) for line in markers)


@pytest.mark.parametrize(
    "name", [name for name in STOPPED if name in ("kraft-after", "kraft-classic-after-3", "other-clients-before")]
)
def test_nothing_that_a_broker_wrote_is_left_as_bytes(name: str) -> None:
    for topic in ("__consumer_offsets", "__transaction_state", "__cluster_metadata"):
        if any(fixture(name).glob(f"{topic}-*")):
            for line in documents(fixture(name), "--topic", topic):
                assert "problem" not in line and "rest" not in line
                assert line.get("control") in ("ABORT", "COMMIT") or isinstance(line["value"], dict | None)
