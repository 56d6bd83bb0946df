"""A proof with witnesses reads changed files, and of unchanged ones only those that can turn the verdict.

`proving.verify_pairs` compares its verdicts with those of a full proof for all planted violations, wrong results,
mutants and random logs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cordwood.api import clean_in_place
from cordwood.cleaning.engine.results import Fate
from cordwood.cleaning.proof import witnesses
from cordwood.cleaning.proof.pairs import Pair, Side, ViolationKind
from cordwood.cleaning.proof.violations import Verdict
from cordwood.commands import verify
from cordwood.commands.in_place import proving
from cordwood.common.types import ControlType
from cordwood.fs.base import Store, TargetStore
from cordwood.fs.posix import PosixFileSystem
from cordwood.fs.wrapped import CountedStore
from cordwood.storage.formats.filenames import offset_name
from cordwood.storage.formats.producer_state import ProducerEntry
from cordwood.storage.formats.transaction_index import AbortedTransaction
from cordwood.tasks.runner import InThisProcess, Runner
from tests.cleaning.proof.planting import NOW, State, Stored, data, marker
from tests.cleaning.proof.proving import sharing_files
from tests.commands.growing_logs import OPTIONS, start
from tests.logs import batch, make_log

#: The active segment. All data below it may be cleaned.
ACTIVE = 100
DUE = {"delete_horizon_ms": NOW - 1000}
OF_TRANSACTION: dict[str, Any] = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
SEQUENCED: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 3}
COMMIT, ABORT = ControlType.COMMIT, ControlType.ABORT
Kind = ViolationKind


class ReadLogs(CountedStore):
    """A store that notes which `.log` files were read, and how many bytes of them."""

    def __init__(self) -> None:
        super().__init__(PosixFileSystem(), suffix=".log")
        self.opened: set[int] = set()

    def open(self, path: str) -> Any:
        if path.endswith(".log"):
            self.opened.add(int(Path(path).stem))
        return super().open(path)


def log(segments: Mapping[int, Sequence[Stored]], **files: Any) -> State:
    """A log with these segments and an active one."""
    active = {ACTIVE: [data(ACTIVE, "active=1")]}
    return State({base: list(entries) for base, entries in {**segments, **active}.items()}, end=ACTIVE + 1, **files)


def filler(base: int) -> list[Stored]:
    """A segment whose key occurs nowhere else, larger than a changed one."""
    return [data(base, f"k{base}={'1' * 500}")]


def proved(
    tmp_path: Path, before: State, change: Callable[[State], object], first_dirty: int = 0
) -> tuple[Verdict, set[int]]:
    """The verdict on a change, and the base offsets of the segments whose files were opened.

    The active segment is opened to find the log's end.
    """
    after = before.copy()
    change(after)
    was, now = before.write(tmp_path / "was" / "t-0"), after.write(tmp_path / "now" / "t-0")
    pair = Pair(None, Side(str(was), 0), Side(str(now), 0), first_uncleanable=ACTIVE, now_ms=NOW)
    store = ReadLogs()
    (verdict,) = verify.verify_pairs(InThisProcess(), store, [sharing_files(pair, first_dirty)], PosixFileSystem())
    (full,) = verify.verify_pairs(InThisProcess(), PosixFileSystem(), [pair], PosixFileSystem())
    assert verdict.totals == full.totals
    return verdict, store.opened - {ACTIVE}


def without(offset: int) -> Callable[[State], None]:
    return lambda state: state.batch(offset, lambda _: None)


def drop(offset: int) -> Callable[[State], None]:
    return lambda state: state.drop(offset)


@pytest.fixture(autouse=True)
def _small_logs_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witnesses, "UNCHANGED_BYTES_MIN", 0)


# ---- which files are read --------------------------------------------------------------------------------------------


def test_only_changed_files_are_read_if_they_have_all_witnesses(tmp_path: Path) -> None:
    before = log({0: filler(0), 10: [data(10, "a=1 b=1"), data(12, "a=2")], 20: filler(20), 30: filler(30)})
    verdict, opened = proved(tmp_path, before, drop(10))
    assert verdict.holds
    assert opened == {10, 30}, "the newest unchanged file below the limit is read at once"


def test_witnesses_are_searched_newest_first_until_all_are_found(tmp_path: Path) -> None:
    segments = {base: filler(base) for base in range(0, 100, 10)}
    segments[20] = [data(20, "a=1 b=1")]
    segments[70] = [data(70, "a=2")]
    verdict, opened = proved(tmp_path, log(segments), drop(20))
    assert verdict.holds
    assert {20, 70, 80, 90} <= opened
    assert not opened & {0, 10, 30, 40}


#: Removed, and superseded by a record in a range of the clean part that changed, too.
SPREAD = log(
    {0: filler(0), 10: [data(10, "a=1 b=1")], 20: [data(20, "a=2 c=1")], 30: [data(30, "c=2")], 40: filler(40)}
)


def test_remaining_records_below_the_dirty_section_are_read_only_if_a_key_needs_them(tmp_path: Path) -> None:
    def change(state: State) -> None:
        state.drop(10)  # its witness is in the next segment
        state.drop(21)

    bytes_read = []
    for first_dirty in (0, 30, 1 << 62):
        before, after = SPREAD.copy(), SPREAD.copy()
        change(after)
        folder = tmp_path / str(first_dirty)
        was, now = before.write(folder / "was" / "t-0"), after.write(folder / "now" / "t-0")
        pair = Pair(None, Side(str(was), 0), Side(str(now), 0), first_uncleanable=ACTIVE, now_ms=NOW)
        store = ReadLogs()
        (verdict,) = verify.verify_pairs(InThisProcess(), store, [sharing_files(pair, first_dirty)], PosixFileSystem())
        assert verdict.holds, verdict.totals
        bytes_read.append(store.bytes_read)
    assert bytes_read[0] < min(bytes_read[1:])


def test_nothing_is_read_if_nothing_changed(tmp_path: Path) -> None:
    verdict, opened = proved(tmp_path, log({0: filler(0), 10: filler(10)}), lambda _: None)
    assert verdict.holds and not opened
    assert verdict.counts["unchanged_bytes"] > 0


def test_all_files_are_read_if_they_are_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    before = log({0: filler(0), 10: [data(10, "a=1 b=1"), data(12, "a=2")], 20: filler(20), 30: filler(30)})
    verdict, opened = proved(tmp_path, before, drop(10))
    assert verdict.holds and opened == {0, 10, 20, 30}


def test_all_files_are_read_if_most_of_the_log_changed(tmp_path: Path) -> None:
    before = log({0: [data(0, f"a={'1' * 1000} b=1")], 10: [data(10, "a=2")], 20: filler(20), 30: filler(30)})
    verdict, opened = proved(tmp_path, before, drop(0))
    assert verdict.holds and opened == {0, 10, 20, 30}


def test_headers_alone_are_read_of_files_that_may_only_have_a_marker(tmp_path: Path) -> None:
    value = "k=" + "x" * 100_000
    segments = {base: [data(base, value.replace("k", f"k{base}"))] for base in range(0, 90, 10)}
    segments[20] = [data(20, "a=1 b=1", **OF_TRANSACTION), data(22, "a=2")]
    segments[30] = [marker(30, 1, COMMIT)]
    store = ReadLogs()
    before, after = log(segments), log(segments)
    after.drop(20)
    was, now = before.write(tmp_path / "was" / "t-0"), after.write(tmp_path / "now" / "t-0")
    pair = Pair(None, Side(str(was), 0), Side(str(now), 0), first_uncleanable=ACTIVE, now_ms=NOW)
    (verdict,) = verify.verify_pairs(InThisProcess(), store, [sharing_files(pair)], PosixFileSystem())
    assert verdict.holds, verdict.totals
    assert store.bytes_read < 2_000_000, "the records of one unchanged file, and headers"


# ---- where a witness decides nothing ---------------------------------------------------------------------------------

#: A log, the change, and its violations.
PLANTS: dict[str, tuple[State, Callable[[State], object], set[Kind]]] = {
    "the only newer record is above the limit": (
        log({0: filler(0), 10: [data(10, "active=0 b=1")], 20: filler(20), 30: filler(30)}),
        drop(10),
        {Kind.VALUE_LOST},
    ),
    "an older record is no witness": (
        log({0: [data(0, "a=1")], 10: [data(10, "a=2 b=1")], 20: filler(20), 30: filler(30)}),
        drop(10),
        {Kind.VALUE_LOST},
    ),
    "a tombstone before its time has only an older record": (
        log({0: [data(0, "a=1")], 10: [data(10, "a b=1")], 20: filler(20), 30: filler(30)}),
        drop(10),
        {Kind.TOMBSTONE_LOST},
    ),
    "an old value, in an unchanged file, of a due tombstone that went": (
        log({0: [data(0, "a=1")], 10: [data(10, "a b=1", **DUE)], 20: filler(20), 30: filler(30)}),
        drop(10),
        {Kind.CAME_BACK},
    ),
    "the same with a newer record": (
        log({0: [data(0, "a=1")], 10: [data(10, "a b=1", **DUE)], 20: [data(20, "a=2")], 30: filler(30)}),
        drop(10),
        set(),
    ),
    "a due tombstone without older values": (
        log({0: filler(0), 10: [data(10, "a b=1", **DUE)], 20: filler(20), 30: filler(30)}),
        drop(10),
        set(),
    ),
    "an old value three unchanged files below a due tombstone that went": (
        log(
            {
                0: [data(0, "a=1")],
                **{base: filler(base) for base in (10, 20, 30)},
                40: [data(40, "a b=1", **DUE)],
                50: filler(50),
            }
        ),
        drop(40),
        {Kind.CAME_BACK},
    ),
    "an old value below a due tombstone that went, which its transaction's marker aborts": (
        log(
            {
                0: [data(0, "a=1", **OF_TRANSACTION)],
                10: [marker(10, 1, ABORT)],
                20: [data(20, "a b=1", **DUE)],
                30: filler(30),
            },
            aborted={10: [AbortedTransaction(1, 0, 10, 11)]},
        ),
        drop(20),
        set(),
    ),
    "an old value below a due tombstone that went, which its transaction's marker commits": (
        log(
            {
                0: [data(0, "a=1", **OF_TRANSACTION)],
                10: [marker(10, 1, COMMIT)],
                20: [data(20, "a b=1", **DUE)],
                30: filler(30),
            }
        ),
        drop(20),
        {Kind.CAME_BACK},
    ),
    "a newer tombstone is a witness": (
        log({0: filler(0), 10: [data(10, "a=1 b=1")], 20: [data(20, "a")], 30: filler(30)}),
        drop(10),
        set(),
    ),
    "a record of an open transaction is no witness": (
        log(
            {
                0: filler(0),
                10: [data(10, "a=1 b=1")],
                20: [data(20, "a=2", **OF_TRANSACTION)],
                30: filler(30),
            }
        ),
        drop(10),
        {Kind.VALUE_LOST},
    ),
    "the marker of the witness's transaction, in an unchanged file, aborts it": (
        log(
            {
                0: filler(0),
                10: [data(10, "a=1 b=1")],
                20: [data(20, "a=2", **OF_TRANSACTION)],
                30: [marker(30, 1, ABORT)],
                40: filler(40),
            },
            aborted={30: [AbortedTransaction(1, 20, 30, 31)]},
        ),
        drop(10),
        {Kind.VALUE_LOST},
    ),
    "the marker of the witness's transaction, in an unchanged file, commits it": (
        log(
            {
                0: filler(0),
                10: [data(10, "a=1 b=1")],
                20: [data(20, "a=2", **OF_TRANSACTION)],
                30: [marker(30, 1, COMMIT)],
                40: filler(40),
            }
        ),
        drop(10),
        set(),
    ),
    "a committed record of a transaction went": (
        log(
            {
                0: filler(0),
                10: [data(10, "a=1 b=1", **OF_TRANSACTION)],
                20: filler(20),
                30: [marker(30, 1, COMMIT)],
                40: filler(40),
            }
        ),
        drop(10),
        {Kind.VALUE_LOST},
    ),
    "an aborted record of a transaction went": (
        log(
            {
                0: filler(0),
                10: [data(10, "a=1 b=1", **OF_TRANSACTION)],
                20: filler(20),
                30: [marker(30, 1, ABORT)],
                40: filler(40),
            },
            aborted={30: [AbortedTransaction(1, 10, 30, 31)]},
        ),
        drop(10),
        set(),
    ),
    "a due marker went, and data of its transaction stays in an unchanged file": (
        log({0: filler(0), 10: [data(10, "a=1", **OF_TRANSACTION)], 20: [marker(20, 1, COMMIT, **DUE)]}),
        without(20),
        {Kind.COMMITTED_HIDDEN},
    ),
    "a due marker went, and a marker before it ended the data that stays": (
        log(
            {
                0: filler(0),
                10: [data(10, "a=1", **OF_TRANSACTION), marker(11, 1, COMMIT)],
                20: [marker(20, 1, COMMIT, **DUE)],
                30: filler(30),
            }
        ),
        without(20),
        set(),
    ),
    "a marker that is not due went, and data of its transaction is in an unchanged file": (
        log({0: filler(0), 10: [data(10, "a=1", **OF_TRANSACTION)], 20: [marker(20, 1, COMMIT)], 30: filler(30)}),
        without(20),
        {Kind.MARKER, Kind.COMMITTED_HIDDEN},
    ),
    "an ABORT marker that is due went, and aborted data stays in an unchanged file": (
        log(
            {0: filler(0), 10: [data(10, "a=1", **OF_TRANSACTION)], 20: [marker(20, 1, ABORT, **DUE)]},
            aborted={20: [AbortedTransaction(1, 10, 20, 21)]},
        ),
        without(20),
        {Kind.ABORTED_VISIBLE},
    ),
    "an entry of a transaction index went, and aborted data stays in an unchanged file": (
        log(
            {0: filler(0), 10: [data(10, "a=1", **OF_TRANSACTION)], 20: [marker(20, 1, ABORT)], 30: filler(30)},
            aborted={20: [AbortedTransaction(1, 10, 20, 21)]},
        ),
        lambda state: state.aborted.clear(),
        {Kind.ABORTED_VISIBLE},
    ),
    "an entry of a transaction index is new, and hides data in an unchanged file": (
        log({0: filler(0), 10: [data(10, "a=1", **OF_TRANSACTION)], 20: [marker(20, 1, COMMIT)], 30: filler(30)}),
        lambda state: state.aborted.update({10: [AbortedTransaction(1, 10, 20, 21)]}),
        {Kind.COMMITTED_HIDDEN},
    ),
    "the last batch of a producer went": (
        log(
            {0: filler(0), 10: [data(10, "a=1", **SEQUENCED)], 20: [data(20, "a=2")], 30: filler(30)},
            producers=[ProducerEntry(7, 0, 3, 10, 0, NOW - 5000, 0, -1)],
        ),
        without(10),
        {Kind.PRODUCER_LOST},
    ),
    "a batch of a producer went, and its last one is in an unchanged file": (
        log(
            {
                0: filler(0),
                10: [data(10, "a=1", **SEQUENCED)],
                20: [data(20, "a=2", **SEQUENCED | {"base_sequence": 4})],
                30: filler(30),
            },
            producers=[ProducerEntry(7, 0, 4, 20, 0, NOW - 5000, 0, -1)],
        ),
        without(10),
        set(),
    ),
    "a file above the limit is another": (
        log({0: filler(0), 10: filler(10), 20: filler(20), 30: filler(30)}),
        lambda state: state.batch(ACTIVE, lambda one: one.rebuilt(delete_horizon_ms=NOW + 1)),
        {Kind.UNTOUCHED},
    ),
    "an empty segment between unchanged ones becomes a file with a batch": (
        log({0: filler(0), 10: filler(10), 20: [], 30: filler(30), 40: filler(40)}),
        lambda state: state.segments[20].append(data(20, "new=1")),
        {Kind.INVENTED, Kind.BATCH_INVENTED},
    ),
}  # fmt: skip


@pytest.mark.parametrize("first_dirty", [0, 20, 1 << 62])
@pytest.mark.parametrize("name", PLANTS)
def test_what_a_witness_does_not_decide_is_read(name: str, first_dirty: int, tmp_path: Path) -> None:
    before, change, violations = PLANTS[name]
    verdict, _ = proved(tmp_path, before, change, first_dirty)
    assert violations <= verdict.totals.keys()
    assert verdict.holds == (not violations), verdict.totals


@pytest.mark.parametrize("is_same", [False, True])
def test_a_closed_file_above_the_limit_that_is_another_is_compared(tmp_path: Path, is_same: bool) -> None:
    before = log({0: [data(0, "a=1 b=1")], 10: [data(10, "a=2")], **{base: filler(base) for base in (20, 30, 40)}})
    after = before.copy()
    after.drop(0)
    if not is_same:
        after.batch(30, lambda one: one.rebuilt(leader_epoch=0, max_timestamp=NOW))
    was, now = before.write(tmp_path / "was" / "t-0"), after.write(tmp_path / "now" / "t-0")
    pair = Pair(None, Side(str(was), 0), Side(str(now), 0), first_uncleanable=20, now_ms=NOW)
    files = {path.name: str(was / path.name if path.stem.endswith("40") else path) for path in now.iterdir()}
    pair = replace(pair, after=replace(pair.after, files=files), witnesses=True)
    (verdict,) = verify.verify_pairs(InThisProcess(), PosixFileSystem(), [pair], PosixFileSystem())
    assert verdict.holds == is_same
    assert is_same or Kind.UNTOUCHED in verdict.totals


def test_a_segment_that_only_the_state_after_has_is_read(tmp_path: Path) -> None:
    before = log({20: filler(20), 30: filler(30)})
    verdict, opened = proved(tmp_path, before, lambda state: state.segments.update({0: [data(0, "new=1")]}))
    assert not verdict.holds and 0 in opened
    assert (tmp_path / "now" / "t-0" / offset_name(0, ".log")).exists()


# ---- a clean in place ------------------------------------------------------------------------------------------------

#: Two of ten segments are rewritten, and read in both states: the oldest, which loses a record, and the newest.
SHARE_READ_MAX = 0.4


def test_the_proof_of_a_clean_of_little_that_is_new_reads_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs, read = tmp_path / "logs", []
    end = start(logs)

    def counted(_: Runner, fs: Store, pairs: Sequence[Pair], scratch: TargetStore, **__: Any) -> list[Verdict]:
        for searches in (False, True):
            store = CountedStore(fs, suffix=".log")
            verdicts = verify.verify_pairs(
                InThisProcess(), store, [replace(one, witnesses=searches) for one in pairs], scratch
            )
            assert all(one.holds for one in verdicts)
            read.append(store.bytes_read)
        return verdicts

    make_log(logs / "t-0", (end, [batch(end, (b"0", b"v" * 2_000))]), (end + 1, [batch(end + 1, (b"new", b"v"))]))
    monkeypatch.setattr(proving, "verify_pairs", counted)
    result = clean_in_place(str(logs), **OPTIONS)
    assert [one.fate for one in result.partitions] == [Fate.CLEANED], result.text()
    full, searched = read
    assert 0 < searched < SHARE_READ_MAX * full
