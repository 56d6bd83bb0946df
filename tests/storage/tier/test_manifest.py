"""The manifest of a live log's tier as bytes: round trips, and refusals of contradictory manifests."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cordwood.common.errors import CorruptFileError
from cordwood.storage.formats.filenames import parse_tier_manifest, tier_manifest_name
from cordwood.storage.tier.manifest import (
    GoneSegment,
    TierState,
    decode,
    encode,
    is_whole,
)
from tests.storage.tier.events import segment_id
from tests.storage.tier.states import PARTITION, scripts, segment, state

FIVE = tuple(segment(name, 100 * at, 100 * at + 99) for at, name in enumerate("abcde"))


def read(files: Mapping[int, bytes], generation: int) -> TierState:
    return decode(files[generation], tier_manifest_name(generation), PARTITION, lambda base: read(files, base))


# ---- round trips -----------------------------------------------------------------------------------------------------


def one_by_one(files: Mapping[int, bytes], last: int) -> dict[str, Any]:
    """The slow twin: the segments of a log by id, after the changes of the last whole manifest and of one more."""
    content = json.loads(files[last])
    segments = {} if content["base"] is None else one_by_one(files, content["base"])
    for one in content["removed"]:
        del segments[one]
    for one in content["added"]:
        assert one["id"] not in segments
        segments[one["id"]] = one
    return segments


@given(scripts())
@settings(max_examples=80, deadline=None)
def test_each_state_of_a_log_is_read_from_at_most_two_files(states: list[TierState]) -> None:
    files: dict[int, bytes] = {}
    base = None
    for generation, one in enumerate(states, 1):
        written = replace(one, generation=generation)
        files[generation] = encode(written, base)
        whole = is_whole(written, base)
        base = written if whole else base
        content = json.loads(files[generation])
        assert content["base"] == (None if whole else base and base.generation)
        assert read(files, generation) == written
        twin = one_by_one(files, generation)
        assert sorted((segment["start"], id) for id, segment in twin.items()) == [
            (one.segment.start_offset, one.segment.id) for one in written.segments
        ]
        if not whole:
            assert len(content["added"]) + len(content["removed"]) <= len(written.segments) / 4


def test_a_manifest_in_full() -> None:
    files = {1: encode(replace(state(*FIVE), generation=1), None)}
    base = read(files, 1)
    gone = GoneSegment(FIVE[0].segment, 5000)
    files[2] = encode(
        replace(base, generation=2, log_start_offset=100, cleaner_checkpoint=300, segments=FIVE[1:], gone=(gone,)), base
    )
    assert json.loads(files[1])["added"][0] == {
        "id": segment_id("a"), "start": 0, "end": 99, "size": 1000, "max_timestamp": 1099, "event_time": 2000,
        "broker": -1, "epochs": {"0": 0}, "aborted": False, "crc32c": 0x1234,
        "indexes": {"index": 16, "timeindex": 24, "snapshot": 10},
    }  # fmt: skip
    assert json.loads(files[2]) == {
        "version": 1, "writer": {"epoch": 1, "run": "run", "host": "host"}, "base": 1, "log_start_offset": 100,
        "local_floor": 0, "cleaner_checkpoint": 300, "added": [], "removed": [segment_id("a")],
        "gone": [{"id": segment_id("a"), "since_ms": 5000}],
    }  # fmt: skip
    found = read(files, 2)
    assert found.gone == (gone,)
    assert (found.copied_end, state().copied_end) == (500, 0)


def test_a_manifest_is_whole_when_a_quarter_of_its_segments_changed() -> None:
    base = replace(state(*FIVE[:4]), generation=1)
    assert not is_whole(replace(base, segments=FIVE), base)
    assert is_whole(replace(base, segments=FIVE[1:]), base)  # one is added, one removed


@pytest.mark.parametrize(
    ("name", "generation"),
    [
        ("00000000000000000001.json", 1),
        ("00000000000000000000.json", None),
        ("09223372036854775808.json", None),
        ("1.json", None),
        ("00000000000000000001.json.ab.tmp", None),
        ("٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠١.json", None),
    ],
)
def test_a_generation_is_twenty_digits(name: str, generation: int | None) -> None:
    assert parse_tier_manifest(name) == generation


# ---- hostile manifests -----------------------------------------------------------------------------------------------


def content(**changes: Any) -> bytes:
    """A valid manifest that changes generation 1, with other values for some fields; None leaves one out."""
    base = replace(state(*FIVE), generation=1)
    new = replace(base, generation=2, segments=(*FIVE, segment("f", 500, 599)))
    return json.dumps(json.loads(encode(new, base)) | changes).encode()


def added(**changes: Any) -> bytes:
    return content(added=[json.loads(content())["added"][0] | changes])


def refused(data: bytes) -> str:
    with pytest.raises(CorruptFileError) as caught:
        read({1: encode(replace(state(*FIVE), generation=1), None), 2: data}, 2)
    assert caught.value.path == tier_manifest_name(2)
    return caught.value.what


def test_the_manifest_that_the_hostile_ones_are_made_from_is_valid() -> None:
    assert len(read({1: encode(replace(state(*FIVE), generation=1), None), 2: content()}, 2).segments) == 6


NUMBERS = [-1, 2**63, 10**400, 1.5, float("nan"), float("inf"), "1", True, [], {}]


@pytest.mark.parametrize("number", NUMBERS, ids=str)
@pytest.mark.parametrize("field", ["log_start_offset", "local_floor", "cleaner_checkpoint", "base"])
def test_a_number_that_cannot_be_is_refused(field: str, number: object) -> None:
    assert "manifest is not" in refused(content(**{field: number}))


@pytest.mark.parametrize("number", NUMBERS, ids=str)
@pytest.mark.parametrize("field", ["start", "end", "size", "crc32c", "max_timestamp", "event_time", "broker", "epochs"])
def test_a_number_of_a_segment_that_cannot_be_is_refused(field: str, number: object) -> None:
    if (field, number) not in [("max_timestamp", -1), ("event_time", -1), ("broker", -1)]:
        refused(added(**{field: number}))


@pytest.mark.parametrize("wrong", ["", "..", "../../../../etc/passwd", "a/b", "A" * 21 + "/", "a" * 23, 7, None])
def test_an_id_that_leads_elsewhere_is_refused(wrong: object) -> None:
    refused(added(id=wrong))
    refused(content(removed=[wrong]))
    refused(content(gone=[{"id": wrong, "since_ms": 0}]))


BAD: Mapping[str, Callable[[], bytes]] = {
    "no JSON": lambda: b"{",
    "not UTF-8": lambda: b'{"version": "\xff"}',
    "a list": lambda: b"[]",
    "nested without end": lambda: b'{"version":' + b"[" * 1_000_000,
    "another version": lambda: content(version=2),
    "a version that is true": lambda: content(version=True),
    "a base that is itself": lambda: content(base=2),
    "a base that is newer": lambda: content(base=3),
    "a removed segment that is not there": lambda: content(removed=[segment_id("z")]),
    "a segment removed twice": lambda: content(removed=[segment_id("a")] * 2),
    "a segment that is there twice": lambda: added(id=segment_id("a"), start=700, end=800),
    "overlapping segments": lambda: added(start=499),
    "an end below the start": lambda: added(end=0),
    "no leader epochs": lambda: added(epochs={}),
    "a negative leader epoch": lambda: added(epochs={"-1": 500}),
    "a leader epoch twice": lambda: added(epochs={"1": 500, "01": 500}),
    "custom metadata that is not base64": lambda: added(custom_metadata="?"),
    "a live segment that is to be deleted": lambda: content(gone=[{"id": segment_id("a"), "since_ms": 0}]),
    "an unknown segment that is to be deleted": lambda: content(gone=[{"id": segment_id("z"), "since_ms": 0}]),
    "a list of numbers": lambda: content(added=[1]),
    "a host of a megabyte": lambda: content(writer={"epoch": 1, "run": "", "host": "h" * 1_000_000}),
    "an epoch that is a text": lambda: content(writer={"epoch": "1", "run": "", "host": ""}),
    "no writer": lambda: content(writer=None),
    "more than 32 MiB": lambda: content() + b" " * (32 << 20),
}


@pytest.mark.parametrize("case", BAD)
def test_a_manifest_that_contradicts_itself_is_refused(case: str) -> None:
    what = refused(BAD[case]())
    assert len(what) < 300, what


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_a_damaged_manifest_is_an_error_in_words_or_another_state(data: st.DataObject) -> None:
    files = {1: encode(replace(state(*FIVE), generation=1), None), 2: content()}
    damaged = bytearray(files[2])
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CorruptFileError):
        assert read(files | {2: bytes(damaged)}, 2).generation == 2
