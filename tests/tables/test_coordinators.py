"""The state in a coordinator's log, compared with a plain replay as in Kafka, on random logs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cordwood.common.errors import DataError
from cordwood.common.types import NONE, Codec
from cordwood.fs.posix import PosixFileSystem
from cordwood.record.batch import Marker, encode_marker
from cordwood.record.columns import raise_damage
from cordwood.storage.log.view import LogView
from cordwood.tables.coordinators import StateRecord, state_records
from tests.logs import Pair, batch, write_log
from tests.storage.messages import internal_record, offset_commit

pytestmark = pytest.mark.more

Step = tuple[str, int, list[Pair]]


def log_of(folder: Path, steps: list[Step]) -> tuple[LogView, int]:
    """A log: batches of data, in a producer's transaction or outside of any (NONE), and markers that end
    transactions.
    """
    batches, offset = [], 0
    for kind, producer, pairs in steps:
        if kind == "data":
            codec = Codec.LZ4 if offset % 3 == 0 else Codec.NONE
            batches.append(batch(offset, *pairs, producer=None if producer == NONE else producer, codec=codec))
            offset += len(pairs)
        else:
            batches.append(encode_marker(Marker(offset, 0, producer, 0, committed=kind == "commit")))
            offset += 1
    return LogView(str(write_log(folder, [*batches])), fs=PosixFileSystem()), offset


def replay(steps: list[Step]) -> tuple[dict[bytes, tuple[int, bytes]], dict[tuple[bytes, int], tuple[int, bytes]]]:
    """Replay record by record, as Kafka's OffsetMetadataManager does: return the committed and the pending offsets."""
    committed: dict[bytes, tuple[int, bytes]] = {}
    pending: dict[int, dict[bytes, tuple[int, bytes]]] = {}
    offset = 0
    for kind, producer, pairs in steps:
        if kind != "data":
            for name, one in pending.pop(producer, {}).items():
                if kind == "commit" and (name not in committed or one[0] > committed[name][0]):
                    committed[name] = one
            offset += 1
            continue
        for at, (key, value) in enumerate(pairs, offset):
            assert key is not None
            if producer != NONE:
                assert value is not None
                pending.setdefault(producer, {})[key] = (at, value)
            elif value is None:
                committed.pop(key, None)
                for some in pending.values():
                    some.pop(key, None)
            else:
                committed[key] = (at, value)
        offset += len(pairs)
    return committed, {(key, id): one for id, some in pending.items() for key, one in some.items()}


def state(log: LogView) -> tuple[dict[bytes, tuple[int, bytes]], dict[tuple[bytes, int], tuple[int, bytes]]]:
    """The same of `state_records`."""
    committed: dict[bytes, tuple[int, bytes]] = {}
    pending: dict[tuple[bytes, int], tuple[int, bytes]] = {}
    for one in state_records(log, raise_damage):
        if one.value is None:
            assert one.key not in committed, "the last record of a key is given last"
            pending = {key: some for key, some in pending.items() if key[0] != one.key}
        elif one.producer_id == NONE:
            assert one.key not in committed, "the last record of a key is given once"
            committed[one.key] = (one.offset, one.value)
        else:
            pending[one.key, one.producer_id] = (one.offset, one.value)
    return committed, pending


def random_steps(random: Random) -> Iterator[Step]:
    open_: set[int] = set()
    for _ in range(random.randint(1, 30)):
        if open_ and random.random() < 0.3:
            producer = random.choice(sorted(open_))
            open_.discard(producer)
            yield random.choice(("commit", "abort")), producer, []
            continue
        producer = random.choice((NONE, NONE, 1, 2))
        deletes = 0.25 if producer == NONE else 0
        pairs = [
            offset_commit("g", "t", random.randint(0, 4), None if random.random() < deletes else random.randint(0, 99))
            for _ in range(random.randint(1, 4))
        ]
        if producer != NONE:
            open_.add(producer)
        yield "data", producer, pairs


@settings(max_examples=60)
@given(st.randoms(use_true_random=False))
def test_the_state_of_a_random_log_is_that_of_a_plain_replay(random: Random) -> None:
    with tempfile.TemporaryDirectory() as folder:
        steps = list(random_steps(random))
        log, end = log_of(Path(folder) / "__consumer_offsets-0", steps)
        assert log.next_offset == end
        assert state(log) == replay(steps)


def test_a_committed_transaction_counts_by_its_records_and_not_by_its_marker(tmp_path: Path) -> None:
    # The plain commit is later in the log than the transaction's commit, whose marker is last.
    steps: list[Step] = [
        ("data", 1, [offset_commit("g", "t", 0, 5)]),
        ("data", NONE, [offset_commit("g", "t", 0, 7)]),
        ("commit", 1, []),
    ]
    log, _ = log_of(tmp_path / "__consumer_offsets-0", steps)
    assert [(one.offset, one.producer_id) for one in state_records(log, raise_damage)] == [(1, NONE)]
    assert state(log) == replay(steps)


def test_what_a_transaction_wrote_counts_once_it_is_committed(tmp_path: Path) -> None:
    data: Step = ("data", 7, [offset_commit("g", "t", 0, 5)])
    for at, (end, wanted) in enumerate({"commit": [(0, NONE)], "abort": [], "": [(0, 7)]}.items()):
        steps: list[Step] = [data, (end, 7, [])] if end else [data]
        log, _ = log_of(tmp_path / str(at) / "__consumer_offsets-0", steps)
        assert [(one.offset, one.producer_id) for one in state_records(log, raise_damage)] == wanted


def test_a_tombstone_ends_what_is_pending_whatever_follows(tmp_path: Path) -> None:
    steps: list[Step] = [
        ("data", 1, [offset_commit("g", "t", 0, 5)]),
        ("data", NONE, [offset_commit("g", "t", 0, None)]),
        ("data", NONE, [offset_commit("g", "t", 0, 7)]),
    ]
    log, _ = log_of(tmp_path / "__consumer_offsets-0", steps)
    assert [one.offset for one in state_records(log, raise_damage)] == [0, 1, 2]
    assert state(log) == replay(steps)


def share(kind: str, partition: int, value: dict[str, int] | None) -> Pair:
    return internal_record(kind, value, {"group_id": "g", "partition": partition})


def test_updates_are_given_from_the_last_record_on_that_they_change(tmp_path: Path) -> None:
    pairs = [
        share("ShareUpdate", 0, {"start_offset": 1}),
        share("ShareSnapshot", 0, {"start_offset": 2}),
        share("ShareUpdate", 0, {"start_offset": 3}),
        share("ShareSnapshot", 1, {"start_offset": 4}),
        share("ShareSnapshot", 0, {"start_offset": 5}),
        share("ShareUpdate", 1, {"start_offset": 6}),
        share("ShareUpdate", 0, {"start_offset": 7}),
        share("ShareUpdate", 2, {"start_offset": 8}),
    ]
    log, _ = log_of(tmp_path / "__share_group_state-0", [("data", NONE, pairs)])
    assert [one.offset for one in state_records(log, raise_damage, updates=1)] == [3, 4, 5, 6, 7]
    assert [one.offset for one in state_records(log, raise_damage)] == [3, 4, 5, 6, 7]
    # A snapshot that deletes the state is the last record, too.
    log, _ = log_of(tmp_path / "__share_group_state-1", [("data", NONE, [*pairs, share("ShareSnapshot", 0, None)])])
    assert [(one.offset, one.value is None) for one in state_records(log, raise_damage, updates=1)][-1] == (8, True)
    assert [one.offset for one in state_records(log, raise_damage, updates=1)] == [3, 5, 7, 8]


def test_damage_is_told_once_and_what_is_behind_it_counts(tmp_path: Path) -> None:
    log, _ = log_of(
        tmp_path / "__consumer_offsets-0", [("data", NONE, [offset_commit("g", "t", at, at)]) for at in range(3)]
    )
    path = Path(log.segments[0].path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    damage: list[DataError] = []
    found = [one.offset for one in state_records(LogView(log.path, fs=PosixFileSystem()), damage.append)]
    assert (found, len(damage)) == ([0, 2], 1)
    with pytest.raises(DataError):
        list(state_records(LogView(log.path, fs=PosixFileSystem()), raise_damage))


def test_keys_that_are_no_coordinators_do_not_count(tmp_path: Path) -> None:
    pairs: list[Pair] = [(b"x", b"short"), (None, b"none"), offset_commit("g", "t", 0, 1)]
    log, _ = log_of(tmp_path / "__consumer_offsets-0", [("data", NONE, pairs)])
    assert list(state_records(log, raise_damage)) == [StateRecord(2, *pairs[2])]  # type: ignore[arg-type]
