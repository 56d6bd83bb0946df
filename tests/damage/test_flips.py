"""Every byte of a small file of each format is flipped, in several ways; reading either reports it, or reads the same,
or the byte is in a field that no checksum covers. `UNCOVERED` lists those fields; a flip elsewhere must be noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from cordwood.common.types import Codec
from cordwood.record.record import Record
from tests.damage.samples import UNCOVERED, Reading, Sample, entries, flipped, logs, small_files
from tests.damage.summary import PROPERTY, Tally
from tests.knobs import in_turns

pytestmark = pytest.mark.more

#: Each single bit, and all of them. Fewer for bytes that one checksum covers as a block.
PATTERNS = (1, 2, 4, 8, 16, 32, 64, 128, 255)
FEWER_PATTERNS = (1, 128, 255)
BLOCKS = ("records", "message under the CRC")
SIZES = ("batch length", "message size")
#: Fields that hold a batch's place among the other batches.
ORDERED = ("base offset", "offset")


def flips(sample: Sample) -> Iterator[tuple[int, int]]:
    """All (position, pattern) that are tried."""
    for one in sample.fields:
        for position in range(one.start, one.end):
            for pattern in FEWER_PATTERNS if one.name in BLOCKS else PATTERNS:
                yield position, pattern


def records_of(reading: Reading) -> tuple[Record, ...]:
    return reading.facts[1]  # type: ignore[return-value]


#: Arguments: the result, the expected result, the damaged bytes, the position of the flip and the name of its field.
Judge = Callable[[Reading, Reading, bytes, int, str], None]


def is_in_each_run(sample: Sample) -> bool:
    """Whether a log is in each run: of logs that differ only by their codec, the one with LZ4."""
    return not any(codec.label in str(sample) for codec in (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.ZSTD))


def try_all(sample: Sample, judge: Judge) -> Tally:
    """Read a file with each of its flips, and judge each."""
    tally = Tally("flips", sample.group)
    read = sample.open()
    good = read(sample.data)
    assert not good.damage
    allowed = UNCOVERED.get(sample.group, {})
    for position, pattern in flips(sample):
        data = flipped(sample.data, position, pattern)
        found = read(data)
        name = sample.field_at(position).name
        judge(found, good, data, position, name)
        if found.damage:
            tally.reported += 1
        elif found.facts == good.facts:
            tally.same += 1
        else:
            assert name in allowed, f"flip {pattern:#x} of byte {position} ({name}) passes"
            tally.uncovered[name] += 1
    # A flip leaves no state behind: the undamaged file still has its original contents.
    assert read(sample.data) == good
    return tally


@pytest.mark.parametrize("sample", in_turns(logs(), *filter(is_in_each_run, logs())))
def test_a_flip_in_a_log_is_reported_where_it_is_and_harms_no_other_batch(
    sample: Sample, record_property: Callable[[str, object], None]
) -> None:
    places = list(entries(sample.data))
    alone = sample.open()
    # No two batches of the samples share a record, so a record identifies its batch.
    own = {start: set(records_of(alone(sample.data[start:end]))) for start, end, _ in places}
    expected = set().union(*own.values())

    def judge(found: Reading, good: Reading, data: bytes, position: int, name: str) -> None:
        start = next(start for start, end, _ in places if start <= position < end)
        lost = own[start]
        read = set(records_of(found))
        if name in SIZES:
            # No checksum covers the size either: a batch that seems longer swallows the bytes behind it, and a batch
            # that seems shorter may be followed by bytes that look like another batch.
            end = start + 12 + int.from_bytes(data[start + 8 : start + 12], "big")
            reach = max([end if end <= len(data) else 0, *(error.position or 0 for error in found.damage)])
            lost = lost.union(*(own[other] for other, _, _ in places if start <= other < reach))
        if found.damage:
            first = found.damage[0]
            assert first.path is not None and first.path.endswith(sample.file)
            if name in ORDERED and first.position != start:
                # If the log has gaps, either of two batches that do not ascend may be the wrong one.
                starts = [begin for begin, _, _ in places]
                assert abs(starts.index(first.position or 0) - starts.index(start)) == 1
                lost = lost | own[first.position or 0]
                read &= expected
            else:
                assert first.position == start
            assert read <= expected, "what is damaged gives out no other records"
        elif name in SIZES:
            whole = [batch for batch in good.facts[0] if batch.position < start]  # type: ignore[attr-defined]
            assert list(found.facts[0]) == whole  # type: ignore[call-overload]
            assert read <= expected
        assert expected - lost <= read, "the other batches are read as ever"

    tally = try_all(sample, judge)
    record_property(PROPERTY, tally.to_json())
    covered = tally.reported - tally.uncovered.total()
    assert covered > 0 and tally.same == 0, "every byte of a log means something"


@pytest.mark.parametrize("sample", small_files(), ids=str)
def test_a_flip_in_a_small_file_is_reported_or_lies_in_a_field_without_a_checksum(
    sample: Sample, record_property: Callable[[str, object], None]
) -> None:
    def judge(found: Reading, good: Reading, data: bytes, position: int, name: str) -> None:
        for error in found.damage:
            assert error.position is None or error.position < len(sample.data)
            assert str(error)

    record_property(PROPERTY, try_all(sample, judge).to_json())


def test_a_flip_in_an_index_is_reported_at_its_entry_or_the_next() -> None:
    for sample, entry_bytes in zip(small_files()[:3], (8, 12, 34), strict=True):
        read = sample.open()
        for position, pattern in flips(sample):
            places = [error.position for error in read(flipped(sample.data, position, pattern)).damage]
            start = position - position % entry_bytes
            assert set(places) <= {start, start + entry_bytes}


def test_every_uncovered_field_that_is_listed_exists() -> None:
    names = {(sample.group, one.name) for sample in (*logs(), *small_files()) for one in sample.fields}
    assert {(group, name) for group, fields in UNCOVERED.items() for name in fields} <= names


def test_more_than_fifty_thousand_flips_are_tried() -> None:
    assert sum(len(list(flips(sample))) for sample in (*logs(), *small_files())) > 50_000
