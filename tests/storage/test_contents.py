"""Contents of a log's bytes, beside a twin that reads record by record."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.fs.posix import PosixFileSystem
from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from cordwood.storage.formats import transaction_index
from cordwood.storage.formats.filenames import FileKind, offset_name
from cordwood.storage.formats.transaction_index import AbortedTransaction
from cordwood.storage.index import contents as module
from cordwood.storage.index import search
from cordwood.storage.index.contents import Content, ContentSource, LogContents, contents_of
from cordwood.storage.index.key_sample import count_keys
from cordwood.storage.log import header_sample
from cordwood.storage.log.view import LogView
from tests.fixtures import copy_of, fixture
from tests.logs import append, batch, make_log, marker
from tests.storage.index_twins import index_all

BUDGET = 1 << 30
BROKER = "kraft-classic-before"
COMPACTED = ("ledger-0", "orders-0", "payments-1", "producers-0", "__consumer_offsets-2", "trimmed-both-0", "large-0")


def log_of(path: Path, log_start: int | None = None) -> LogView:
    return LogView(str(path), fs=PosixFileSystem(), log_start_offset=log_start)


def twin(log: LogView) -> dict[int, dict[Content, float]]:
    """The same, record by record."""
    transactions, start = log.transactions(), log.log_start_offset
    batches = list(log.batches())
    of_batch = {offset: one for one in batches for offset in range(one.base_offset, one.last_offset + 1)}
    records: dict[int, list[Record]] = {}
    for record in log.records(isolation=None):
        records.setdefault(of_batch[record.offset].base_offset, []).append(record)
    control = {one.base_offset for one in batches if one.is_control}
    of_transactions = [one for one in batches if one.is_transactional and not one.is_control]
    opened = {
        one.base_offset for one in of_transactions if transactions.open.get(one.producer_id, 2**63) <= one.base_offset
    }
    aborted = {one.base_offset for one in of_transactions if transactions.is_aborted(one.producer_id, one.base_offset)}
    newest = {
        record.key: record.offset
        for base, some in records.items()
        for record in some
        if record.key is not None and record.offset >= start and base not in opened | aborted | control
    }

    def kind_of(base: int, last: int, record: Record) -> Content:
        if last < start:
            return Content.DEAD
        if base in control or base in aborted:
            return Content.MARKERS if base in control else Content.ABORTED
        if record.offset < start or record.key is None:
            return Content.DEAD
        if base not in opened and newest[record.key] > record.offset:
            return Content.SUPERSEDED
        return Content.LIVE if record.value is not None else Content.TOMBSTONES

    found: dict[int, dict[Content, float]] = {}
    for header in batches:
        sizes = found.setdefault(log.segments_from(header.base_offset)[0].base_offset, dict.fromkeys(Content, 0.0))
        some = records.get(header.base_offset, [])
        weights = [len(one.key or b"") + len(one.value or b"") + 8 for one in some]
        for record, weight in zip(some, weights, strict=True):
            kind = kind_of(header.base_offset, header.last_offset, record)
            sizes[kind] += header.size_bytes * weight / sum(weights)
        if not some:
            sizes[Content.DEAD if header.last_offset < start else Content.MARKERS] += header.size_bytes
    return found


def check(log: LogView, found: LogContents | None) -> None:
    assert found is not None
    wanted = twin(log)
    for segment, one in zip(log.segments, found.segments, strict=True):
        assert sum(one.bytes_of.values()) == segment.size_bytes
        for kind, size in wanted.get(one.base_offset, {}).items():
            assert one.bytes_of.get(kind, 0) == pytest.approx(size, abs=len(Content)), (one.base_offset, kind)


@pytest.mark.parametrize("name", COMPACTED)
def test_bytes_of_a_broker_s_log_are_what_a_plain_twin_says(name: str) -> None:
    log = log_of(fixture(BROKER) / name)
    found = contents_of(log, BUDGET, is_compacted=True)
    check(log, found)
    assert found is not None and found.source is ContentSource.RECORDS and found.is_exact


def test_what_is_below_the_log_start_is_dead() -> None:
    log = log_of(fixture(BROKER) / "orders-0", 100)
    check(log, contents_of(log, BUDGET, is_compacted=True))


def test_a_log_of_magic_0_and_1_is_read_like_others() -> None:
    for name in ("legacy-mixed-before", "legacy-v0-before"):
        for path in sorted(fixture(name).glob("*-0"))[:4]:
            log = log_of(path)
            found = contents_of(log, BUDGET, is_compacted=True)
            assert found is not None and sum(found.estimate.values()) == log.size_bytes
            assert found.estimate.get(Content.DEAD, 0) < max(1, log.size_bytes)


def test_records_of_an_open_transaction_live_and_supersede_nothing(tmp_path: Path) -> None:
    first = encode_batch([Record(0, 0, b"k", b"committed")])
    own = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    second = encode_batch([Record(1, 0, b"k", b"open")], transactional=True, **own)  # type: ignore[arg-type]
    found = contents_of(make_log(tmp_path / "t-0", (0, [first, second])), BUDGET, is_compacted=True)
    assert found is not None and set(found.estimate) == {Content.LIVE}


def test_a_log_that_is_not_compacted_needs_only_headers() -> None:
    log = log_of(fixture(BROKER) / "ledger-0")
    exact, headers = contents_of(log, BUDGET, is_compacted=True), contents_of(log, BUDGET, is_compacted=False)
    assert exact is not None and headers is not None and headers.source is ContentSource.HEADERS
    assert set(headers.estimate) == {Content.LIVE, Content.ABORTED, Content.MARKERS}
    for kind in (Content.ABORTED, Content.MARKERS):
        assert headers.estimate[kind] == pytest.approx(exact.estimate[kind], abs=len(log.segments))


def test_damage_is_dead_and_the_rest_is_known(tmp_path: Path) -> None:
    log = make_log(tmp_path / "t-0", (0, [encode_batch([Record(at, 0, b"%d" % at, b"v" * 100)]) for at in range(9)]))
    path = tmp_path / "t-0" / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    data[300] ^= 1
    path.write_bytes(data)
    found = contents_of(log, BUDGET, is_compacted=True)
    assert found is not None
    assert found.estimate == {Content.LIVE: len(data) * 8 // 9, Content.DEAD: len(data) // 9}


@pytest.mark.more
def test_key_indexes_tell_what_is_superseded_in_a_log_that_is_too_large(tmp_path: Path) -> None:
    path = copy_of(fixture(BROKER) / "orders-0", tmp_path / "orders-0")
    log = log_of(path)
    index_all(PosixFileSystem(), log)
    exact, found = contents_of(log, BUDGET, is_compacted=True), contents_of(log, 1000, is_compacted=True)
    assert exact is not None and found is not None and found.source is ContentSource.INDEXES
    assert sum(found.estimate.values()) == log.size_bytes
    known = log.size_bytes - found.estimate.get(Content.UNKNOWN, 0)
    share = exact.estimate[Content.SUPERSEDED] / log.size_bytes
    assert found.estimate[Content.SUPERSEDED] / known == pytest.approx(share, abs=0.1)


def test_of_a_log_that_is_too_large_a_sample_gives_an_estimate(tmp_path: Path) -> None:
    path = tmp_path / "t-0"
    for number in range(40):
        append(path, *((b"%d" % (number * 50 + at) if at % 2 else b"same", b"v" * 2000) for at in range(50)))
    log = log_of(path)
    found = contents_of(log, 2 << 20, is_compacted=True, keys=count_keys(log, 1 << 18))
    assert found is not None and found.source is ContentSource.SAMPLE and not found.is_exact
    assert all(set(one.bytes_of) == {Content.UNKNOWN} for one in found.segments)
    assert sum(found.estimate.values()) == log.size_bytes
    assert found.estimate[Content.SUPERSEDED] / log.size_bytes > 0.3, "every other record has the same key"


def test_a_log_with_too_many_records_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RECORDS_MAX", 100)
    log = log_of(fixture(BROKER) / "orders-0")
    assert contents_of(log, BUDGET, is_compacted=True) is None
    found = contents_of(log, BUDGET, is_compacted=True, keys=count_keys(log, BUDGET))
    assert found is not None and not found.is_exact


# ---- samples ---------------------------------------------------------------------------------------------------------


def test_bytes_of_a_large_log_that_is_not_compacted_are_within_their_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, batches, ends, offset = np.random.default_rng(5), list[bytes](), list[AbortedTransaction](), 0
    for _ in range(400):
        first, value = offset, rng.bytes(int(rng.integers(100, 9000)))
        batches.append(batch(offset, (b"k", value), producer=7))
        offset += 1
        aborted = bool(rng.integers(2))
        batches.append(marker(offset, 7, committed=not aborted))
        ends += [AbortedTransaction(7, first, offset, offset + 1)] * aborted
        offset += 1
    index = transaction_index.encode(transaction_index.index_of(ends))
    make_log(tmp_path / "t-0", (0, batches), (offset, [batch(offset)]))
    (tmp_path / "t-0" / offset_name(0, FileKind.TRANSACTION_INDEX)).write_bytes(index)
    log = LogView(str(tmp_path / "t-0"), fs=PosixFileSystem(), log_start_offset=offset // 4)
    exact = contents_of(log, BUDGET, is_compacted=False)
    monkeypatch.setattr(header_sample, "EXACT_LOG_BYTES", 0)
    found = contents_of(log, BUDGET, is_compacted=False)
    assert exact is not None and found is not None
    assert (exact.source, found.source) == (ContentSource.HEADERS, ContentSource.PLACES)
    assert sum(found.estimate.values()) == log.size_bytes
    assert not exact.errors and found.errors.keys() == found.estimate.keys() == exact.estimate.keys()
    for kind, size in exact.estimate.items():
        assert 0 < found.errors[kind] < log.size_bytes / 3
        assert abs(found.estimate[kind] - size) < 1.5 * found.errors[kind], kind
    assert contents_of(log, BUDGET, is_compacted=False, exact=True) == exact


def test_superseded_bytes_by_a_part_of_the_keys_are_within_their_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(3)
    keys = iter(rng.integers(8000, size=20_000).tolist())
    segments = [
        [batch(at, *((b"%d" % next(keys), b"v") for _ in range(100))) for at in range(first, first + 5000, 100)]
        for first in range(0, 20_000, 5000)
    ]
    log = make_log(tmp_path / "t-0", *segments)
    index_all(PosixFileSystem(), log)
    exact = contents_of(log, 0, is_compacted=True)
    monkeypatch.setattr(search, "_ENTRIES_MIN", 2000)
    found = contents_of(log, 0, is_compacted=True)
    assert exact is not None and found is not None and not exact.errors
    for one, known in zip(found.segments, exact.segments, strict=True):
        assert sum(one.bytes_of.values()) == sum(known.bytes_of.values())
    for kind in (Content.LIVE, Content.SUPERSEDED):
        assert 0 < found.errors[kind] < log.size_bytes / 10
        assert abs(found.estimate[kind] - exact.estimate[kind]) < 1.5 * found.errors[kind]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=20))
def test_under_another_keep_rule_the_record_of_the_largest_rank_is_live(records) -> None:
    hashes, ranks = (np.array(column, np.int64) for column in zip(*records, strict=True)) if records else ([], [])
    winners: dict[int, tuple[int, int]] = {}
    for at, (hash, rank) in enumerate(records):
        winners[hash] = max(winners.get(hash, (rank, at)), (rank, at))
    goes = module.superseded(np.asarray(hashes, np.uint64), np.asarray(ranks, np.int64))
    assert goes.tolist() == [winners[hash] != (rank, at) for at, (hash, rank) in enumerate(records)]
