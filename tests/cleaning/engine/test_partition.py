"""Cleans of one partition: rounds by Kafka's offset map, segments that are kept, groups that are joined."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cordwood.cleaning.engine.facts import CleanSettings, load_producers
from cordwood.cleaning.engine.keys import DirtySection
from cordwood.cleaning.engine.partition import Cleaned, CleanRequest, clean_in_rounds, clean_partition, join
from cordwood.cleaning.engine.task import faults
from cordwood.cleaning.rules.plan import Threshold
from cordwood.cleaning.rules.transactions import AbortTracker
from cordwood.common.errors import CorruptBatchError, RequestError
from cordwood.fs.posix import PosixFileSystem
from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from cordwood.storage.formats.filenames import FileKind, offset_name
from cordwood.storage.log.segment import JoinedSegment, Segment
from cordwood.storage.log.segment_writer import IndexLimits
from cordwood.storage.log.view import LogView
from cordwood.storage.recovery.replay import Producers
from tests.cleaning.against_kafka import differences, segment_files
from tests.kafka_tools import Line, Oracle
from tests.logs import batch, make_log

pytestmark = pytest.mark.more

ALWAYS = Threshold(cleanable_ratio=-1)


def in_rounds(
    log: LogView, target: Path, end: int, slots: int | None, *, first_dirty: int = 0, now_ms: int = 0, **settings: Any
) -> Cleaned:
    target.mkdir(parents=True)
    return clean_in_rounds(
        PosixFileSystem(),
        log,
        str(target),
        CleanRequest(
            first_dirty=first_dirty,
            first_uncleanable=end,
            now_ms=now_ms,
            settings=CleanSettings(
                **{"offset_map_slots": slots, "offset_map_load_factor": 1, "threshold": ALWAYS} | settings
            ),
            producers=Producers(),
        ),
    )


def four_keys(folder: Path) -> LogView:
    """The keys a b c d twice, a segment each, and an empty active segment."""
    halves = [
        [batch(at, (b"abcd"[at % 4 : at % 4 + 1], b"v"), time=0) for at in range(start, start + 4)] for start in (0, 4)
    ]
    return make_log(folder, (0, halves[0]), (4, halves[1]), (8, []))


def kept(target: Path) -> list[int]:
    return [record.offset for record in LogView(str(target), log_start_offset=0, fs=PosixFileSystem()).records()]


def test_rounds_repeat_until_the_log_is_clean_and_keep_the_last_outputs(tmp_path: Path) -> None:
    log = four_keys(tmp_path / "t-0")
    before = {path.name: path.read_bytes() for path in (tmp_path / "t-0").iterdir()}
    cleaned = in_rounds(log, tmp_path / "out", 8, 3)
    assert (cleaned.rounds, cleaned.end_offset) == (3, 8)  # up to 3, 6, 8
    assert (cleaned.replaced, cleaned.outputs) == (((0, 4),), ((0,),))
    assert kept(tmp_path / "out") == [4, 5, 6, 7]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        f"{0:020}.{kind}" for kind in ("index", "log", "timeindex")
    ]
    assert {path.name: path.read_bytes() for path in (tmp_path / "t-0").iterdir()} == before


def test_a_record_counts_once_however_many_rounds_read_it(tmp_path: Path) -> None:
    limited = in_rounds(four_keys(tmp_path / "t-0"), tmp_path / "limited", 8, 3).counts
    unlimited = in_rounds(four_keys(tmp_path / "u-0"), tmp_path / "unlimited", 8, None).counts
    assert limited == unlimited
    assert (limited.records_read, limited.records_kept, limited.bytes_read) == (8, 4, 560)


def test_a_map_that_is_not_full_makes_one_round(tmp_path: Path) -> None:
    assert in_rounds(four_keys(tmp_path / "t-0"), tmp_path / "out", 8, 9).rounds == 1


def test_rounds_end_when_the_rest_is_not_dirty_enough(tmp_path: Path) -> None:
    # After the second round there is one segment, in which that round ended: it counts as clean and as dirty.
    log = four_keys(tmp_path / "t-0")
    half = in_rounds(log, tmp_path / "half", 8, 3, threshold=Threshold(cleanable_ratio=0.5))
    less = in_rounds(log, tmp_path / "less", 8, 3, threshold=Threshold(cleanable_ratio=0.49))
    assert [(one.rounds, one.end_offset) for one in (half, less)] == [(2, 6), (3, 8)]
    assert kept(tmp_path / "half") == [2, 3, 4, 5, 6, 7]


def test_what_has_waited_too_long_is_cleaned_however_little_is_dirty(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    log = make_log(folder, (0, [batch(at, (b"%d" % at, b"v"), time=10) for at in range(4)]), (4, []))
    late = Threshold(cleanable_ratio=1, max_compaction_lag_ms=5)
    assert in_rounds(log, tmp_path / "due", 4, 2, threshold=late, now_ms=15).rounds == 1
    assert in_rounds(log, tmp_path / "late", 4, 2, threshold=late, now_ms=16).rounds == 2


def test_a_segment_that_took_in_a_younger_one_may_be_too_young_for_the_next_round(tmp_path: Path) -> None:
    # The clean part may be of any age. Once merged with dirty data it keeps the whole segment from being cleaned again.
    log = make_log(
        tmp_path / "t-0",
        [batch(0, "x=v", time=100)],
        (1, [batch(at, (b"%d" % at, b"v"), time=0) for at in (1, 2)]),
        (3, []),
    )
    young = Threshold(cleanable_ratio=-1, min_compaction_lag_ms=10)
    cleaned = in_rounds(log, tmp_path / "out", 3, 1, first_dirty=1, now_ms=50, threshold=young)
    assert (cleaned.rounds, cleaned.end_offset) == (1, 2)


def test_a_map_without_room_for_a_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        RequestError, match=r"an offset map of 24 bytes, filled to at most 90 %.* no room for a single key"
    ):
        in_rounds(four_keys(tmp_path / "t-0"), tmp_path / "out", 8, 1, offset_map_load_factor=0.9)


def test_group_written_as_two_segments_replaces_its_sources_after_a_round(tmp_path: Path) -> None:
    # The time index has room for few entries, so that a merged output ends early and another begins; the next round
    # reads both, and has a group for each.
    folder = tmp_path / "t-0"
    batches = [[batch(at, (b"%d" % at, b"v"), time=at) for at in (low, low + 1)] for low in (0, 2, 4)]
    log = make_log(folder, *zip((0, 2, 4), batches, strict=True), (6, []))
    index = IndexLimits(interval_bytes=1, size_bytes=36)
    cleaned = in_rounds(log, tmp_path / "out", 6, 4, index=index)
    assert cleaned.rounds == 2
    assert [base for group in cleaned.replaced for base in group] == [0, 2, 4]
    assert all(cleaned.replaced)
    written = sorted(base for base, path in segment_files(tmp_path / "out").values() if path.suffix == ".log")
    assert [base for group in cleaned.outputs for base in group] == written
    assert kept(tmp_path / "out") == list(range(6))


# ---- beside Kafka ----------------------------------------------------------------------------------------------------


def script(seed: int) -> dict[str, Any]:
    """A log of random batches, then rounds of a cleaner thread until no log is cleanable."""
    choose = random.Random(seed)
    keys = choose.choice([4, 12, 40])
    config = {
        "cleanup.policy": "compact",
        "segment.bytes": str(choose.choice([300, 700, 3000])),
        "min.cleanable.dirty.ratio": str(choose.choice([0, 0.2, 0.5, 0.8])),
        "min.compaction.lag.ms": str(choose.choice([0, 0, 5000])),
        "max.compaction.lag.ms": str(choose.choice([9000, 2**63 - 1])),
        "delete.retention.ms": str(choose.choice([0, 1000])),
        "index.interval.bytes": "100",
    }
    steps: list[Line] = []
    now, sequences, open_ = 1_700_000_000_000, [0] * 3, [False] * 3
    start = now
    for _ in range(choose.randint(10, 60)):
        id = choose.randrange(-3, 3)
        records = [
            [str(choose.randrange(keys)), choose.choice(["x", "yy", None]), now - choose.randrange(8000)]
            for _ in range(choose.randint(1, 4))
        ]
        step: Line = {"op": "append", "records": records}
        if id >= 0:
            step |= {"producer": {"id": id, "epoch": 0, "seq": sequences[id]}, "transactional": True}
            sequences[id] += len(records)
            open_[id] = True
        steps.append(step)
        if id >= 0 and open_[id] and choose.random() < 0.6:
            steps.append(marker(id, choose))
            open_[id] = False
    steps += [marker(id, choose) for id in range(3) if open_[id]]
    slots, load = choose.choice([2, 3, 5, 9, 17]), choose.choice([0.6, 0.9, 1.0])
    steps += [{"op": "roll"}, {"op": "reopen", "clean": True}, {"op": "high_watermark"}]
    steps.append({"op": "snapshot", "name": "before"})
    steps += [{"op": "clean", "auto": True, "slots": slots, "load_factor": load}] * 50
    steps.append({"op": "snapshot", "name": "after"})
    return {"why": "rounds", "now": start, "logs": {"t-0": config}, "steps": steps}


def marker(id: int, choose: random.Random) -> Line:
    kind = choose.choice(["commit", "abort"])
    return {"op": "marker", "type": kind, "producer": {"id": id, "epoch": 0}}


@pytest.mark.kafka
@pytest.mark.slow
def test_rounds_are_those_of_a_cleaner_thread(kafka_oracle: Oracle, tmp_path: Path) -> None:
    several = 0
    seeds = range(30)
    paths = {}
    for seed in seeds:
        paths[seed] = tmp_path / f"{seed}.json"
        paths[seed].write_text(json.dumps(script(seed)))
    answers = kafka_oracle.batch([["run", paths[seed], tmp_path / str(seed)] for seed in seeds])
    for seed, lines in zip(seeds, answers, strict=True):
        said = script(seed)
        config, folder = said["logs"]["t-0"], tmp_path / str(seed)
        theirs = [line for line in lines if line.get("op") == "clean" and line.get("grabbed")]
        assert not any("uncleanable" in line for line in theirs), seed
        if not theirs or lines[-2]["grabbed"]:  # no cleanable log, or no end of cleaning
            continue
        step = next(step for step in said["steps"] if step["op"] == "clean")
        log, now = LogView(str(folder / "before" / "t-0"), fs=PosixFileSystem()), said["now"]
        target = tmp_path / f"ours-{seed}" / "t-0"
        target.mkdir(parents=True)
        cleaned = clean_in_rounds(
            PosixFileSystem(),
            log,
            str(target),
            CleanRequest(
                first_dirty=theirs[0]["first_dirty"],
                first_uncleanable=theirs[0]["first_uncleanable"],
                now_ms=now,
                settings=CleanSettings(
                    delete_retention_ms=int(config["delete.retention.ms"]),
                    segment_bytes=int(config["segment.bytes"]),
                    index=IndexLimits(interval_bytes=100),
                    offset_map_slots=step["slots"],
                    offset_map_load_factor=step["load_factor"],
                    threshold=Threshold(
                        float(config["min.cleanable.dirty.ratio"]),
                        int(config["min.compaction.lag.ms"]),
                        int(config["max.compaction.lag.ms"]),
                    ),
                ),
                producers=load_producers(log, now_ms=now),
            ),
        )
        replaced = {base for group in cleaned.replaced for base in group}
        for name, (base, path) in segment_files(Path(log.path)).items():
            if base not in replaced:
                shutil.copy2(path, target / name)
        assert (seed, cleaned.rounds, cleaned.end_offset) == (seed, len(theirs), theirs[-1]["end_offset"])
        assert list(differences(folder / "after" / "t-0", target)) == [], seed
        several += cleaned.rounds > 1
    assert several > 10


# ---- kept ------------------------------------------------------------------------------------------------------------


FS = PosixFileSystem()
#: One segment each.
GROUPS = {"segment_bytes": 1}


def clean(log: LogView, target: Path, **settings: object) -> Cleaned:
    target.mkdir()
    return clean_partition(
        FS,
        log,
        str(target),
        CleanRequest(
            first_dirty=0,
            first_uncleanable=log.segments[-1].base_offset,
            now_ms=10,
            settings=CleanSettings(**(GROUPS | settings)),  # type: ignore[arg-type]
            producers=Producers(),
        ),
    )


def with_first(folder: Path, *batches: bytes) -> LogView:
    """A log whose first segment has these batches, and whose second supersedes its own first record."""
    return make_log(
        folder, (0, list(batches)), [batch(10, "x=v", time=0), batch(11, "x=v", time=0)], [batch(20, time=0)]
    )


def test_a_segment_in_which_nothing_changes_keeps_its_files(tmp_path: Path) -> None:
    log = with_first(tmp_path / "t-0", batch(0, "a=v", time=0), batch(1, "b=v", time=0))
    cleaned = clean(log, tmp_path / "out")
    assert (cleaned.replaced, cleaned.outputs, set(cleaned.kept)) == (((0,), (10,)), ((0,), (10,)), {0})
    assert list(cleaned.written) == [((10,), (10,))]
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == sorted(offset_name(10, kind) for kind in (FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX))
    assert (cleaned.counts.records_read, cleaned.counts.records_kept, cleaned.counts.records_superseded) == (4, 3, 1)
    assert cleaned.counts.batches_verbatim == 3
    assert cleaned.counts.bytes_read == sum(segment.size_bytes for segment in log.segments[:2])
    files = [(path.name, path.stat().st_size) for path in (tmp_path / "out").iterdir()]
    assert list(faults(FS, str(tmp_path / "out"), files, cleaned, 20)) == []


def tombstone(offset: int) -> bytes:
    return encode_batch([Record(offset, 0, b"t", None)])


FIRST = batch(0, "a=v", time=0)


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param(batch(1, "x=v", time=0), id="superseded in another segment"),
        pytest.param(batch(1, "a=v", time=0), id="superseded in the same segment"),
        pytest.param(tombstone(1), id="tombstone"),
        pytest.param(encode_batch([Record(1, 0, None, b"v")]), id="no key"),
        pytest.param(encode_batch([Record(1, 0, b"b", b"v")], transactional=True, producer_id=5), id="transaction"),
        pytest.param(encode_batch([], base_offset=1, last_offset=1), id="empty"),
        pytest.param(encode_batch([Record(1, 0, b"b", b"v")], delete_horizon_ms=5), id="horizon that has passed"),
        pytest.param(encode_batch([Record(1, 0, b"t", None)], delete_horizon_ms=10), id="horizon that passes now"),
        pytest.param(encode_batch([Record(1, 0, None, b"v")], delete_horizon_ms=11), id="no key, and a horizon"),
    ],
)
def test_a_segment_of_which_something_may_change_is_written(tmp_path: Path, batch: bytes) -> None:
    cleaned = clean(with_first(tmp_path / "t-0", FIRST, batch), tmp_path / "out")
    assert cleaned.kept == set()
    assert (tmp_path / "out" / offset_name(0, FileKind.LOG)).exists()


def test_tombstones_whose_time_has_not_come_change_nothing(tmp_path: Path) -> None:
    ahead = encode_batch([Record(1, 0, b"t", None), Record(2, 0, b"u", b"v")], delete_horizon_ms=11)
    assert clean(with_first(tmp_path / "t-0", FIRST, ahead), tmp_path / "out").kept == {0}


def other_index(folder: Path) -> None:
    (folder / offset_name(0, FileKind.OFFSET_INDEX)).write_bytes(bytes([0, 0, 0, 1, 0, 0, 0, 69]))


def no_time_index(folder: Path) -> None:
    (folder / offset_name(0, FileKind.TIME_INDEX)).unlink()


def transaction_index(folder: Path) -> None:
    (folder / offset_name(0, FileKind.TRANSACTION_INDEX)).touch()


@pytest.mark.parametrize("change", [other_index, no_time_index, transaction_index])
def test_a_segment_whose_indexes_would_be_others_is_written(tmp_path: Path, change: Callable[[Path], None]) -> None:
    with_first(tmp_path / "t-0", FIRST, batch(1, "b=v", time=0))
    change(tmp_path / "t-0")
    log = LogView(str(tmp_path / "t-0"), log_start_offset=0, fs=FS)
    assert clean(log, tmp_path / "out").kept == set()


def test_segments_that_become_one_are_written(tmp_path: Path) -> None:
    log = make_log(tmp_path / "t-0", [batch(0, "a=v", time=0)], [batch(1, "b=v", time=0)], [batch(2, time=0)])
    cleaned = clean(log, tmp_path / "out", segment_bytes=1 << 20)
    assert (cleaned.replaced, set(cleaned.kept)) == (((0, 1),), set())
    assert clean(log, tmp_path / "alone").kept == {0, 1}


def test_an_index_that_is_too_large_for_its_limit_is_written_anew(tmp_path: Path) -> None:
    log = with_first(tmp_path / "t-0", *(batch(at, (b"%d" % at, b"v" * 4096), time=0) for at in range(4)))
    assert clean(log, tmp_path / "out").kept == {0}
    assert clean(log, tmp_path / "small", index=IndexLimits(size_bytes=16)).kept == set()


# ---- joined ----------------------------------------------------------------------------------------------------------


def small(path: Path) -> LogView:
    """Five segments of two records; `a` is in each of them."""
    return make_log(
        path,
        *((2 * at, [batch(2 * at, "a=v", time=0), batch(2 * at + 1, (b"k%d" % at, b"v"), time=0)]) for at in range(5)),
    )


def cleaned(log: LogView, target: Path) -> Cleaned:
    target.mkdir()
    request = CleanRequest(
        first_dirty=0, first_uncleanable=8, now_ms=0, settings=CleanSettings(), producers=Producers()
    )
    return clean_partition(PosixFileSystem(), log, str(target), request)


def path_of(log: LogView, base: int) -> Path:
    return Path(log.path, offset_name(base, FileKind.LOG))


def test_each_of_the_joined_segments_has_its_own_counts(tmp_path: Path) -> None:
    found = cleaned(small(tmp_path / "log"), tmp_path / "out")
    assert found.replaced == ((0, 2, 4, 6),)
    counts = [(one.records_read, one.records_kept, one.records_superseded) for one in found.segments[0]]
    assert counts == [(2, 1, 1), (2, 1, 1), (2, 1, 1), (2, 2, 0)]


def test_damage_is_reported_in_the_file_and_at_the_position_that_have_it(tmp_path: Path) -> None:
    log = small(tmp_path / "log")
    damaged = bytearray(path_of(log, 4).read_bytes())
    damaged[-1] ^= 1
    path_of(log, 4).write_bytes(damaged)
    with pytest.raises(CorruptBatchError) as error:
        cleaned(log, tmp_path / "out")
    assert (error.value.path, error.value.position) == (str(path_of(log, 4)), len(damaged) // 2)


def test_a_batch_that_is_cut_and_goes_on_in_the_next_file_is_damage(tmp_path: Path) -> None:
    log = small(tmp_path / "log")
    first, second = path_of(log, 2), path_of(log, 4)
    whole = first.read_bytes() + second.read_bytes()
    middle = first.stat().st_size - 10
    first.write_bytes(whole[:middle])
    second.write_bytes(whole[middle:])
    with pytest.raises(CorruptBatchError) as error:
        cleaned(LogView(log.path, fs=log.fs, log_start_offset=0), tmp_path / "out")
    assert error.value.path == str(first)


def test_no_join_extends_over_a_group_or_over_the_start_of_the_dirty_section(tmp_path: Path) -> None:
    log = small(tmp_path / "log")
    segments = log.segments

    def bases(joined: tuple[Segment, ...] | list[Segment]) -> list[list[int]]:
        return [
            [part.base_offset for part in one.parts] if isinstance(one, JoinedSegment) else [one.base_offset]
            for one in joined
        ]

    dirty = DirtySection(segments[1:], 3, 10, AbortTracker())
    groups, own = join([segments[:4], segments[4:]], dirty)
    assert [bases(group) for group in groups] == [[[0], [2], [4, 6]], [[8]]]
    assert bases(own.segments) == [[2], [4, 6], [8]]
