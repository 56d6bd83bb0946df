"""Keys of a log in parts: for all parts, chunks and hash ranges, the verdict is that for the whole log."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence, Set
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.cleaning.proof.keys import KeyEntries, KeyRules, Uncommitted, judge_hash_ranges
from cordwood.cleaning.proof.pairs import Count, Facts, Piece, ViolationKind
from cordwood.cleaning.proof.precedence import NEWEST_OFFSET
from cordwood.cleaning.proof.scratch import Kept, Scratch
from cordwood.common.errors import DataError
from cordwood.fs.posix import PosixFileSystem
from cordwood.kernels.last_records import COUNTS, TOMBSTONES_MAY_GO
from cordwood.kernels.layout import BATCH_ROW, RECORD_ROW, TRANSACTIONAL
from tests.cleaning.ranked import LARGEST_SURVIVES

#: Key, whether it has a value, whether it exists after the clean, whether it may be dropped if it is a tombstone.
Made = tuple[bytes, bool, bool, bool]
RECORDS = st.lists(
    st.tuples(st.sampled_from([b"", b"a", b"b", b"a key of more bytes"]), st.booleans(), st.booleans(), st.booleans()),
    max_size=30,
)
ALL_OFFSETS = np.array([0, 1 << 62], np.int64)


def piece_of(
    records: list[Made], first_offset: int, hidden: Set[int] = frozenset(), ranks: Sequence[int] = ()
) -> tuple[Piece, npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
    """Records, each in a batch of its own; those at some offsets are of transactions."""
    data = np.frombuffer(b"".join(key for key, *_ in records) or b"none", np.uint8)
    rows = np.zeros(len(records), RECORD_ROW)
    rows["offset"] = np.arange(first_offset, first_offset + len(records))
    rows["timestamp"] = ranks or 0
    rows["batch"] = np.arange(len(records))
    rows["key_size"] = [len(key) for key, *_ in records]
    rows["key_start"] = np.cumsum(rows["key_size"]) - rows["key_size"]
    rows["value_size"] = [0 if value else -1 for _, value, *_ in records]
    rules = np.array([COUNTS | (TOMBSTONES_MAY_GO if may_go else 0) for *_, may_go in records], np.uint8)
    there = np.array([there for _, _, there, _ in records], np.bool_)
    batches = np.zeros(len(records), BATCH_ROW)
    batches["attributes"][[offset in hidden for offset in rows["offset"].tolist()]] = TRANSACTIONAL
    return Piece(data, rows, batches, 0), rules, there


def chunks_of(
    parts: list[tuple[list[Made], int]],
    rules: KeyRules,
    scratch: Scratch,
    chunk_entries: int,
    here_bytes: int,
    hidden: Set[int] = frozenset(),
    ranks: Sequence[int] = (),
) -> list[Kept]:
    found = []
    for records, first_offset in parts:
        with scratch.writer(here_bytes=here_bytes) as writer:
            entries = KeyEntries(rules, writer, ALL_OFFSETS, chunk_entries)
            for at in range(0, len(records), 3):
                some, first = records[at : at + 3], first_offset + at
                entries.add(*piece_of(some, first, hidden, ranks[first : first + len(some)]))
            found += entries.finish()
    return found


def expected(records: list[Made], hidden: set[int], ranks: Sequence[int] = ()) -> Counter[str]:
    """The expected counts, key by key."""
    found: Counter[str] = Counter()
    by_key: dict[bytes, list[tuple[bool, bool, bool]]] = {key: [] for key, *_ in records}
    for at in sorted(range(len(records)), key=lambda at: ranks[at] if ranks else 0):
        key, *rest = records[at]
        if at not in hidden:
            by_key[key].append((rest[0], rest[1], rest[2]))
    for mine in by_key.values():
        if all(there for _, there, _ in mine):
            continue
        value, there, may_go = mine[-1]
        value_is_there = any(value and there for value, there, _ in mine)
        if there:
            found[Count.KEYS_KEPT] += 1
        elif not value and may_go:
            found[ViolationKind.CAME_BACK if value_is_there else Count.KEYS_DELETED] += 1
        else:
            found[ViolationKind.VALUE_LOST if value else ViolationKind.TOMBSTONE_LOST] += 1
    return found


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Scratch:
    return Scratch(PosixFileSystem().location(), str(tmp_path_factory.mktemp("scratch")))


@given(
    RECORDS,
    st.integers(0, 30),
    st.integers(1, 5),
    st.sampled_from([1, 4, 100]),
    st.sampled_from([0, 100, 1 << 12]),
    st.sampled_from([1, 3, 100]),
    st.sets(st.integers(0, 30)),
    st.one_of(st.none(), st.lists(st.integers(-1, 3), min_size=30, max_size=30)),
)
def test_keys_are_judged_the_same_however_they_are_divided(
    scratch, records, cut, hash_ranges, chunk_entries, here_bytes, read_entries, hidden, ranks
) -> None:
    rules = KeyRules(KeyRules.of(1).points, hash_ranges, NEWEST_OFFSET if ranks is None else LARGEST_SURVIVES)
    ranks = [0] * 30 if ranks is None else ranks
    parts = [(records[:cut], 0), (records[cut:], cut)]
    chunks = chunks_of(parts, rules, scratch, chunk_entries, here_bytes, hidden, ranks)
    places = np.array(sorted(hidden), np.int64)
    facts = Facts()
    for first, end in itertools.pairwise([0, hash_ranges // 2, hash_ranges]):
        mine = [chunk.sections(2 * first, 2 * end) for chunk in chunks]
        hides = Uncommitted(places, places)
        facts.add(judge_hash_ranges(mine, end - first, scratch, hides, read_entries, rules.entry))
    assert facts.counts == expected(records, hidden, ranks)


def test_violations_of_keys_say_where_the_record_is(scratch: Scratch) -> None:
    records = [
        (b"lost", True, False, False),
        (b"back", True, True, False),
        (b"back", False, False, True),
        (b"tombstone", False, False, False),
        (b"kept", True, True, False),
    ]
    chunks = chunks_of([(records, 0)], KeyRules.of(5), scratch, 8, 1 << 10)
    facts = judge_hash_ranges(chunks, 1, scratch, Uncommitted.none())
    assert facts.named == {
        ViolationKind.VALUE_LOST: [(0, None)],
        ViolationKind.TOMBSTONE_LOST: [(3, None)],
        ViolationKind.CAME_BACK: [(1, None)],
    }


@pytest.mark.more
def test_many_keys_of_either_side_make_the_table_grow(scratch: Scratch) -> None:
    records: list[Made] = [(b"%d" % (at % 20_000), True, at >= 20_000, False) for at in range(40_000)]
    rules = KeyRules.of(1)
    for made in (records, records[:30_000], [*records[:20_000], *records[25_000:]]):
        chunks = chunks_of([(made, 0)], rules, scratch, 7_000, 0)
        facts = judge_hash_ranges(chunks, 1, scratch, Uncommitted.none())
        assert facts.counts == expected(made, set())


def test_hash_ranges_share_out_all_entries_about_evenly(scratch: Scratch) -> None:
    made: list[Made] = [(b"%d" % number, True, True, True) for number in range(30_000)]
    (chunk,) = chunks_of([(made, 0)], KeyRules((3, 5), 3), scratch, 30_000, 0)
    assert all(9_000 < chunk.size(2 * number + 1) < 11_000 for number in range(3))
    assert chunk.starts[-1] == 30_000


def test_a_log_of_any_size_has_hash_ranges_that_fit_in_memory() -> None:
    for records in (0, 1, 10**6, 10**8, 10**10):
        rules = KeyRules.of(records)
        assert rules.hash_ranges >= 1 and records / rules.hash_ranges <= 1 << 20


def test_damaged_entries_are_refused(tmp_path: Path) -> None:
    scratch = Scratch(PosixFileSystem().location(), str(tmp_path))
    chunks = chunks_of([([(b"a", True, False, False)], 0)], KeyRules.of(1), scratch, 8, 0)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(DataError, match="damaged"):
        judge_hash_ranges(chunks, 1, scratch, Uncommitted.none())
