"""A workload derived from a log, compared with the real one."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from cordwood.common.config import DAY_MS, HOUR_MS, overrides, resolve
from cordwood.common.errors import DataError
from cordwood.record.batch import Marker, encode_batch, encode_marker
from cordwood.record.record import Record
from cordwood.simulation.explain import Replay, ReplayedSpan, choose_span, rows_of
from cordwood.simulation.trace import TRACE_ROW, LogTrace, draw_gone, read_trace
from cordwood.storage.log.view import open_log
from cordwood.testing.memory import MemoryFileSystem

NOW = 1_750_000_000_000


def log_of(*batches: bytes, base: int = 0):
    fs = MemoryFileSystem(lambda: 0)
    for folder in ("/logs", "/logs/t-0"):
        fs.make_directory(folder)
    with fs.create(f"/logs/t-0/{base:020d}.log") as file:
        file.write(0, b"".join(batches))
    return open_log("/logs/t-0", fs=fs)


def batch(*records: tuple[int, int, str, str | None], **more: int) -> bytes:
    made = [
        Record(offset, ms, key.encode(), None if value is None else value.encode())
        for offset, ms, key, value in records
    ]
    return encode_batch(made, **more)  # type: ignore[arg-type]


def read(log, factor: float = 1, now_ms: int = NOW) -> LogTrace:
    return read_trace(log, factor, now_ms, 7)


def test_records_have_their_offsets_times_and_fates() -> None:
    trace = read(
        log_of(
            batch((0, NOW - 50, "a", "x"), (1, NOW - 40, "b", None)),
            batch((2, NOW - 30, "a", "y"), transactional=True, producer_id=5, producer_epoch=0, base_sequence=0),
            encode_marker(Marker(3, NOW - 20, 5, 0, committed=False), leader_epoch=0),
            batch((4, NOW - 10, "a", "z")),
        )
    )
    assert trace.rows["offset"].tolist() == [0, 1, 2, 4]
    assert trace.rows["ms"].tolist() == [NOW - 40, NOW - 40, NOW - 30, NOW - 10], "of the batch, when it was appended"
    assert trace.rows["is_tombstone"].tolist() == [False, True, False, False]
    assert trace.rows["is_aborted"].tolist() == [False, False, True, False]
    keys = trace.rows["key"].tolist()
    assert keys[0] == keys[2] == keys[3] != keys[1]
    assert (trace.records, trace.gone, trace.end_offset) == (4, 0, 5)


def test_times_never_go_back_and_those_of_the_future_do_not_count() -> None:
    trace = read(
        log_of(
            batch((0, NOW - 50, "a", "x")),
            batch((1, NOW - 90, "b", "x")),
            batch((2, NOW + DAY_MS, "c", "x")),
            batch((3, NOW - 10, "d", "x")),
        )
    )
    assert trace.rows["ms"].tolist() == [NOW - 50, NOW - 50, NOW - 50, NOW - 10]


def test_the_bytes_of_a_batch_are_divided_among_its_records() -> None:
    whole = batch((0, NOW, "a", "x" * 1000), (1, NOW, "b", "y" * 100), (2, NOW, "c", None))
    sizes = read(log_of(whole)).rows["size_bytes"]
    assert sizes[0] > 5 * sizes[1] > 5 * sizes[2] > 0
    assert len(whole) - 61 - 3 <= sizes.sum() <= len(whole) - 61


def test_gaps_are_records_that_went_with_keys_of_records_behind_them() -> None:
    trace = read(log_of(batch((10, NOW - 90, "a", "x")), batch((40, NOW - 60, "b", "y")), batch((50, NOW, "c", "z"))))
    assert (trace.records, trace.gone) == (3, 48)
    gone = trace.rows[trace.rows["is_gone"]]
    assert gone.size == 48 and set(gone["offset"].tolist()) <= set(range(51))
    there = {int(row["offset"]): row["key"] for row in trace.rows[~trace.rows["is_gone"]]}
    for row in gone:
        assert row["key"] in {key for offset, key in there.items() if offset > row["offset"]}
    assert (np.diff(trace.rows["ms"]) >= 0).all()


def test_a_part_of_the_keys_stands_for_all() -> None:
    records = [(at, NOW - 10_000 + at, f"k{at % 1000}", "v" * 20) for at in range(10_000)]
    log = log_of(*(batch(*records[at : at + 100]) for at in range(0, 10_000, 100)))
    whole, tenth = read(log), read(log, 10)
    assert whole.rows.size == 10_000 and 500 < tenth.rows.size < 1500
    counts = np.unique(tenth.rows["key"], return_counts=True)[1]
    assert (counts == 10).all(), "each key that is taken, with all of its records"
    assert set(tenth.rows["key"]) == set(whole.thinned(10).rows["key"])
    assert tenth.thinned(5) is tenth


def test_damage_is_noted_and_what_follows_is_read() -> None:
    bad = bytearray(batch((1, NOW, "b", "x")))
    bad[-1] ^= 1
    trace = read(log_of(batch((0, NOW, "a", "x")), bytes(bad), batch((2, NOW, "c", "x"))))
    assert isinstance(trace.damage, DataError)
    assert trace.rows["offset"][~trace.rows["is_gone"]].tolist() == [0, 2] and trace.gone == 1


def rows(*found: tuple[int, int, int]) -> np.ndarray:
    """Offset, time and key of each."""
    made = np.zeros(len(found), TRACE_ROW)
    for at, (offset, ms, key) in enumerate(found):
        made[at]["offset"], made[at]["ms"], made[at]["key"], made[at]["size_bytes"] = offset, ms, key, 100
    return made


def test_a_key_that_is_updated_often_gets_more_of_what_went() -> None:
    random = np.random.default_rng(1)
    # Keys 1 to 100 have one record each in the clean part; behind it key 0 gets nine of ten updates.
    clean = [(10 * at, 0, at) for at in range(1, 101)]
    dirty = [(1001 + at, 0, 0 if at % 10 else 1 + at % 100) for at in range(1000)]
    gone = np.arange(1, 1000, 2)
    drawn = draw_gone(rows(*clean, *dirty), gone, gone, 2001, random)
    assert 0.5 < (drawn["key"] == 0).mean() < 0.95


# ---- Times, and records before the range -----------------------------------------------------------------------------


def trace_of(found: Iterable[tuple[int, int, int]], start_offset: int = 0) -> LogTrace:
    made = rows(*found)
    return LogTrace(made, 1.0, start_offset, int(made["offset"][-1]) + 1, made.size, 0, 1000, 1)


def configs(**texts: str):
    named = {name.replace("_", "."): text for name, text in texts.items()}
    return resolve("t", overrides([f"{name}={text}" for name, text in named.items()]))


def test_a_log_that_has_all_since_its_first_record_is_replayed_from_there() -> None:
    trace = trace_of([(at, NOW + at * HOUR_MS, at) for at in range(100)])
    span = choose_span(trace, [configs(cleanup_policy="compact")], 28)
    assert (span.begin_ms, span.measured_ms, span.end_ms) == (NOW, NOW, NOW + 99 * HOUR_MS + 1)
    assert span.repeated_ms == 0
    short = choose_span(trace, [configs(cleanup_policy="compact")], 1)
    assert short.end_ms - short.measured_ms == DAY_MS and short.measured_ms - short.begin_ms == DAY_MS // 4


def test_what_retention_has_deleted_is_what_the_log_has_over_again_in_whole_days() -> None:
    trace = trace_of([(1000 + at, NOW + at * HOUR_MS, at) for at in range(60)], start_offset=1000)
    span = choose_span(trace, [configs(cleanup_policy="delete", retention_ms=str(3 * DAY_MS))], 5)
    assert span.end_ms - span.measured_ms == 5 * DAY_MS and span.measured_ms - span.begin_ms == 3 * DAY_MS
    assert span.repeated_ms == 2 * DAY_MS
    made = rows_of(trace, span)
    apart = np.diff(made["ms"])
    assert apart.min() > 0 and apart.max() <= HOUR_MS + 1, "no hole, and no overlap"
    assert (apart < HOUR_MS - 1).sum() <= 4, "but for the seams one an hour"
    assert made["ms"][0] - span.begin_ms < HOUR_MS
    # An hour of the day has the same traffic two days later.
    by_time = {int(row["ms"]): int(row["key"]) for row in made}
    earlier = [ms for ms in by_time if ms + 2 * DAY_MS < NOW]
    assert len(earlier) > 24 and all(by_time[ms + 2 * DAY_MS] == by_time[ms] for ms in earlier)


def test_a_compacted_log_begins_with_the_last_value_of_each_key() -> None:
    found = rows((0, 10, 5), (1, 20, 6), (2, 30, 5), (3, 40, 7), (4, 60, 6))
    found["is_tombstone"][3] = True
    span = ReplayedSpan(begin_ms=50, measured_ms=50, end_ms=70)
    for policy, wanted in (("compact", [6, 5]), ("delete", [])):
        replay = Replay(found, span, configs(cleanup_policy=policy), batch_records=2, less_bytes=0, start_ms=1000)
        parts = list(replay.until(1005, 1000, 0, lambda: 1 << 20))
        names = {0: 5, 1: 6, 2: 7}
        assert [names[key] for part in parts for key in part.records.keys.tolist()] == wanted
        later = list(replay.until(1020, 1000, 2, lambda: 1 << 20))
        assert [names[key] for part in later for key in part.records.keys.tolist()] == [6]
        assert not list(replay.until(1030, 1000, 3, lambda: 1 << 20))


@pytest.mark.parametrize("aborted", [[False, True, True, False], [True, False, False, True]])
def test_aborted_records_are_written_as_aborted_transactions(aborted: list[bool]) -> None:
    found = rows((0, 10, 5), (1, 20, 6), (2, 30, 5), (3, 40, 7))
    found["is_aborted"] = aborted
    span = ReplayedSpan(begin_ms=0, measured_ms=0, end_ms=50)
    replay = Replay(found, span, configs(), batch_records=10, less_bytes=0, start_ms=0)
    parts = list(replay.until(50, 0, 0, lambda: 1 << 20))
    assert [fate for part in parts for fate in [part.aborted] * part.records.count] == aborted
    assert [part.first_offset for part in parts] == [0, *(part.next_offset for part in parts[:-1])]
    assert all(part.has_marker is part.aborted for part in parts)
