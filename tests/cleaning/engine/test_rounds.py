"""Cleans in rounds, by Kafka's offset map: how rounds follow each other, and Kafka's own cleaner thread beside them."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from cordwood.cleaning.engine.facts import CleanSettings, load_producers
from cordwood.cleaning.engine.partition import Cleaned, CleanRequest, clean_in_rounds
from cordwood.cleaning.rules.plan import Threshold
from cordwood.common.errors import RequestError
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.log.segment_writer import IndexLimits
from cordwood.storage.log.view import LogView
from cordwood.storage.recovery.replay import Producers
from tests.cleaning.against_kafka import differences, segment_files
from tests.cleaning.engine.logs import data, make_log
from tests.kafka_tools import Line, Oracle

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
    halves = [[data(at, b"abcd"[at % 4 : at % 4 + 1]) for at in range(start, start + 4)] for start in (0, 4)]
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
    log = make_log(folder, (0, [data(at, b"%d" % at, timestamp=10) for at in range(4)]), (4, []))
    late = Threshold(cleanable_ratio=1, max_compaction_lag_ms=5)
    assert in_rounds(log, tmp_path / "due", 4, 2, threshold=late, now_ms=15).rounds == 1
    assert in_rounds(log, tmp_path / "late", 4, 2, threshold=late, now_ms=16).rounds == 2


def test_a_segment_that_took_in_a_younger_one_may_be_too_young_for_the_next_round(tmp_path: Path) -> None:
    # The clean part may be of any age. Once merged with dirty data it keeps the whole segment from being cleaned again.
    log = make_log(
        tmp_path / "t-0", (0, [data(0, b"x", timestamp=100)]), (1, [data(at, b"%d" % at) for at in (1, 2)]), (3, [])
    )
    young = Threshold(cleanable_ratio=-1, min_compaction_lag_ms=10)
    cleaned = in_rounds(log, tmp_path / "out", 3, 1, first_dirty=1, now_ms=50, threshold=young)
    assert (cleaned.rounds, cleaned.end_offset) == (1, 2)


def test_a_map_without_room_for_a_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"an offset map of 24 bytes, of which 90 % .* no room for a single key"):
        in_rounds(four_keys(tmp_path / "t-0"), tmp_path / "out", 8, 1, offset_map_load_factor=0.9)


def test_group_written_as_two_segments_replaces_its_sources_after_a_round(tmp_path: Path) -> None:
    # The time index has room for few entries, so that a merged output ends early and another begins; the next round
    # reads both, and has a group for each.
    folder = tmp_path / "t-0"
    batches = [[data(at, b"%d" % at, timestamp=at) for at in (low, low + 1)] for low in (0, 2, 4)]
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
