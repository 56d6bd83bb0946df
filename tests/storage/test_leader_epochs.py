"""Leader epochs. Kafka: LeaderEpochCheckpointFileTest, LeaderEpochFileCacheTest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.common.errors import CorruptFileError
from cordwood.storage.formats import leader_epochs
from cordwood.storage.formats.leader_epochs import EpochEntry, LeaderEpochs, history

END = 2000


def epochs(*pairs: tuple[int, int]) -> LeaderEpochs:
    return history(EpochEntry(*pair) for pair in pairs)


def test_a_log_that_only_saw_epoch_0_has_the_golden_bytes() -> None:
    data = bytes.fromhex("300a310a3020300a")
    assert leader_epochs.decode(data) == (EpochEntry(0, 0),)
    assert leader_epochs.encode([EpochEntry(0, 0)]) == data


def test_entries_out_of_order_keep_their_place_in_the_file() -> None:
    data = b"0\n3\n5 10\n3 20\n3 20\n"
    assert leader_epochs.encode(leader_epochs.decode(data)) == data


# Entries in file order, and Kafka's cache after them.
ASSIGNED = [
    ([(0, 0), (5, 1187)], [(0, 0), (5, 1187)]),
    ([(0, 0), (0, 10)], [(0, 0)]),  # the epoch has begun already
    ([(0, 10), (0, 5)], [(0, 5)]),  # … unless this entry holds an earlier start
    ([(2, 10), (1, 20)], [(1, 20)]),  # an older epoch further on
    ([(1, 10), (2, 10)], [(2, 10)]),  # the first leader wrote no batch
    ([(1, 10), (3, 20), (5, 30), (4, 15)], [(1, 10), (4, 15)]),
    ([(1, 10), (3, 20), (0, 5)], [(0, 5)]),
]


@pytest.mark.parametrize(("pairs", "kept"), ASSIGNED)
def test_later_entries_that_contradict_an_assignment_are_dropped(
    pairs: list[tuple[int, int]], kept: list[tuple[int, int]]
) -> None:
    assert [(entry.epoch, entry.start_offset) for entry in epochs(*pairs).entries] == kept
    one_by_one = LeaderEpochs()
    for pair in pairs:
        one_by_one = one_by_one.assigned(*pair)
    assert one_by_one == epochs(*pairs)
    assert one_by_one.latest == EpochEntry(*kept[-1])


@pytest.mark.parametrize("pair", [(-1, 0), (0, -1)])
def test_negative_epochs_and_offsets_are_corrupt(pair: tuple[int, int]) -> None:
    with pytest.raises(CorruptFileError, match="neither can be negative"):
        epochs(pair)


def test_a_log_without_epochs_has_no_latest_one() -> None:
    assert LeaderEpochs().latest is None


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 30)), max_size=8), st.integers(-1, 32))
def test_the_epoch_of_an_offset_meets_its_slow_twin(pairs: list[tuple[int, int]], offset: int) -> None:
    known = epochs(*pairs)
    assert list(known.entries) == sorted(known.entries, key=lambda entry: (entry.epoch, entry.start_offset))
    expected = None
    for entry in known.entries:
        if entry.start_offset <= offset:
            expected = entry.epoch
    assert known.epoch_for_offset(offset) == expected


@pytest.mark.parametrize("line", ["x 1", "1 x", "1", "1 2 3", "2147483648 0", ""])
def test_a_malformed_line_is_corrupt_and_named(line: str) -> None:
    with pytest.raises(CorruptFileError, match="line 3"):
        leader_epochs.decode(f"0\n1\n{line}\n".encode())
