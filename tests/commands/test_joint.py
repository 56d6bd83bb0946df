"""Joint cleans: tombstones and markers go from all replicas of a partition, or stay in all."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cordwood
from cordwood.cleaning.engine.results import CleanResult, Fate
from cordwood.cleaning.engine.task import FailureKind
from cordwood.common.errors import RequestError
from cordwood.fs.base import LocalFileSystem
from cordwood.storage.formats import checkpoints, filenames
from cordwood.storage.log.files import write_file
from cordwood.testing.memory import MemoryFileSystem
from tests import knobs
from tests.command import run
from tests.commands.joint_scene import (
    RETENTION_MS,
    MadeCluster,
    T,
    checkpoints_of,
    clean,
    cleaned_everywhere,
    compared,
    log_of,
    made,
    roots,
    shown,
    tables,
)
from tests.crashes import PROPERTY, CutsDuring, durable
from tests.fs.trees import tree

pytestmark = pytest.mark.more

#: A key that is deleted and stays so; all replicas were cleaned, and its tombstone has expired.
DELETED = "a=1 b=1 | a=∅ c=1 | c=2 d=1 | clean wait200 e=1 | f=1"
#: Replicas with other segments; the third was cleaned later. A transaction was aborted.
CRASHED = "a=1 b=1 |1 a=∅ c=1 |2 c=2 7:d=1 7:abort | clean1 clean2 wait60 clean3 wait110 b=2 e=1 |1 f=1 | g=1"


def expect_alike(fs: LocalFileSystem, brokers: list[str], lines: list[str]) -> None:
    """All replicas hold the same, and a comparison finds no difference."""
    assert [shown(fs, root) for root in brokers] == lines * len(brokers)
    assert compared(fs).agrees


# ---- what goes -------------------------------------------------------------------------------------------------------


def test_an_expired_tombstone_goes_from_all_replicas() -> None:
    cluster = made(DELETED)
    fs = cluster.disk()
    before = tables(fs)
    result = clean(fs, cluster.now_ms)
    assert cleaned_everywhere(result) and result.counts.tombstones_expired == 3
    expect_alike(fs, roots(fs), ["1:b=1 4:c=2 5:d=1 6:e=1 7:f=1"])
    assert tables(fs) == before and checkpoints_of(fs, roots(fs)) == [7, 7, 7]
    assert "tombstones and markers that have expired on brokers 1, 2, 3 are removed below offset 7" in result.text()


def test_the_latest_horizon_of_all_replicas_counts() -> None:
    cluster = made("a=1 | a=∅ | b=∅ | clean1 wait60 clean2 wait60 clean3 c=1 |")
    fs = cluster.disk()
    all_there = "1:a=∅ 2:b=∅ 3:c=1"
    assert clean(durable(fs), cluster.now_ms).counts.tombstones_expired == 0
    kept = durable(fs)
    result = clean(kept, cluster.now_ms)
    expect_alike(kept, roots(fs), [all_there])
    assert "kept, as they have not expired on all replicas" in result.text()
    clean(fs, cluster.now_ms + RETENTION_MS)
    expect_alike(fs, roots(fs), ["3:c=1"])


def test_a_tombstone_that_one_broker_has_removed_goes_from_the_others() -> None:
    cluster = made("a=1 b=1 | a=∅ | clean wait200 c=1 | only2 d=1 |")
    assert cluster.logs[1].log().next_offset == 5 and cluster.logs[1].checkpoint == 4
    fs = cluster.disk()
    assert [shown(fs, root).count("∅") for root in roots(fs)] == [1, 0, 1]
    clean(fs, cluster.now_ms)
    expect_alike(fs, roots(fs), ["1:b=1 3:c=1 4:d=1"])


def test_markers_go_from_all_replicas_with_their_horizon_or_stay() -> None:
    cluster = made("7:a=1 7:commit 8:b=1 8:abort a=2 | c=1 | clean wait60 clean1 wait60 clean2 clean3 d=1 |")
    fs = cluster.disk()
    clean(durable(fs), cluster.now_ms)
    first = durable(fs)
    clean(first, cluster.now_ms + 40)
    assert {shown(first, root) for root in roots(fs)} == {shown(first, "/b1")} and compared(first).agrees
    later = durable(fs)
    result = clean(later, cluster.now_ms + 2 * RETENTION_MS)
    assert {shown(later, root) for root in roots(fs)} == {shown(later, "/b1")} and compared(later).agrees
    assert result.counts.markers_expired % 3 == 0


def test_replicas_with_other_segments_are_cleaned_over_the_same_offsets() -> None:
    cluster = made("a=1 b=1 a=2 |1 b=2 7:c=1 7:abort |2 c=3 a=3 |1 |3 b=3 c=4 |2 a=4 d=1")
    fs = cluster.disk()
    result = clean(fs, cluster.now_ms)
    ends = {one.end_offset for one in result.partitions}
    assert len(ends) == 1 and checkpoints_of(fs, roots(fs)) == [*ends] * 3
    (end,) = ends
    assert end is not None
    below = [[one.offset for one in log_of(fs, root).records() if one.offset < end] for root in roots(fs)]
    assert below[0] == below[1] == below[2] and compared(fs).agrees
    for root in roots(fs):
        assert end in [segment.base_offset for segment in log_of(fs, root).segments]


def test_a_replica_that_was_behind_limits_the_range() -> None:
    cluster = made("a=1 | b=1 | leave3 a=2 | b=2 | a=3 |")
    fs = cluster.disk()
    write_file(fs, f"/b3/{filenames.HIGH_WATERMARKS}", checkpoints.encode({T: 1}))
    plan = cordwood.plan(*roots(fs), fs=fs, now_ms=cluster.now_ms, ignore_ratio=True)
    assert {one.compaction.range.first_uncleanable_offset for one in plan.partitions if one.compaction} == {1}
    assert "the replica of broker 3 can be cleaned no further: records from the high watermark 1 on" in plan.text()


def test_a_replica_that_was_clean_further_keeps_its_checkpoint() -> None:
    cluster = made("a=1 |1 a=2 |1 b=1 |1 a=3 |1 clean1 | c=1")
    fs = cluster.disk()
    clean(fs, cluster.now_ms)
    assert checkpoints_of(fs, ["/b1"])[0] == 4 and compared(fs).agrees


# ---- replicas that take no part --------------------------------------------------------------------------------------


def expect_kept(fs: LocalFileSystem, result: CleanResult, why: str) -> None:
    """Tombstones stay in all replicas, for this reason."""
    assert why in result.text(), result.text()
    assert result.counts.tombstones_expired == 0
    assert [shown(fs, root).count("∅") for root in roots(fs)] == [1, 1, 1]


def test_tombstones_stay_if_a_replica_is_missing() -> None:
    cluster = made(DELETED)
    fs = cluster.disk()
    result = clean(fs, cluster.now_ms, "/b1", "/b3")
    expect_kept(fs, result, "stay: no directory of broker 2 is given, which has a replica by the metadata")
    assert [one.broker for one in result.partitions] == ["1", "3"]


def test_a_broker_that_runs_is_left_alone_and_tombstones_stay() -> None:
    cluster = made(DELETED)
    fs = cluster.disk()
    before = fs_files(fs, "/b2")
    with fs.lock_directory("/b2"):
        result = clean(fs, cluster.now_ms)
    expect_kept(fs, result, "stay: broker 2 takes no part")
    assert fs_files(fs, "/b2") == before
    (failed,) = result.with_fate(Fate.FAILED)
    assert (failed.broker, failed.failure and failed.failure.kind) == ("2", FailureKind.LOCKED)


def fs_files(fs: MemoryFileSystem, root: str) -> Mapping[str, int]:
    """Names and sizes of the files of a replica."""
    return {info.name: info.size_bytes for info in fs.list(f"{root}/{T}")}


def test_tombstones_stay_if_a_replica_is_damaged() -> None:
    cluster = made(DELETED)
    fs = cluster.disk()
    path = log_of(fs, "/b2").segments[0].path
    with fs.open_for_update(path) as file:
        file.write(70, b"\xff")
    result = clean(fs, cluster.now_ms)
    assert [one.fate for one in result.partitions] == [Fate.CLEANED, Fate.FAILED, Fate.CLEANED]
    expect_kept_alone(fs, "/b1", "/b3")


def expect_kept_alone(fs: LocalFileSystem, *brokers: str) -> None:
    """These replicas still have their tombstone."""
    assert [shown(fs, root).count("∅") for root in brokers] == [1] * len(brokers)


def test_tombstones_stay_if_a_replica_has_other_data() -> None:
    cluster = made("a=1 b=1 | a=∅ | clean wait200 c=1 |")
    resurrected = made("a=1 b=1 | x=1 | clean wait200 c=1 |")
    cluster.logs[2] = resurrected.logs[2]
    fs = cluster.disk()
    result = clean(fs, cluster.now_ms)
    expect_kept_alone(fs, "/b1", "/b2")
    assert "stay: the replica of broker 3 has other data than that of broker 1: 1 changed" in result.text()


def test_the_only_replica_is_cleaned_as_before() -> None:
    cluster = made(DELETED, replicas=1)
    fs = cluster.disk()
    result = clean(fs, cluster.now_ms)
    assert result.counts.tombstones_expired == 1 and not result.partitions[0].broker


def test_a_single_copy_of_several_brokers_is_refused() -> None:
    cluster = made(DELETED)
    with pytest.raises(RequestError, match="t-0 is in the directories of brokers 1, 2, 3, so it has no single copy"):
        clean(cluster.disk(), cluster.now_ms, single_copy=True)


def test_the_old_files_of_all_replicas_can_be_put_back() -> None:
    cluster = made(CRASHED)
    fs = cluster.disk()
    before = [shown(fs, root) for root in roots(fs)]
    clean(fs, cluster.now_ms, keep_old="/kept")
    assert [shown(fs, root) for root in roots(fs)] != before
    assert cordwood.undo("/kept", fs=fs).done
    assert [shown(fs, root) for root in roots(fs)] == before


_HOLDER = """
import fcntl, sys, time
with open(sys.argv[1], "w") as file:
    fcntl.lockf(file, fcntl.LOCK_EX)
    print(flush=True)
    time.sleep(99)
"""


def on_disk(cluster: MadeCluster, folder: Path) -> list[Path]:
    """Write the directories of a cluster to a folder."""
    fs = cluster.disk()
    found = []
    for root in roots(fs):
        for name, data in tree(fs, root).items():
            path = folder / root[1:] / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if data is None:
                path.mkdir(exist_ok=True)
            else:
                path.write_bytes(data)
                os.utime(path, ns=(cluster.now_ms * 10**6, cluster.now_ms * 10**6))
        found.append(folder / root[1:])
    return found


def test_the_command_line_takes_all_brokers_and_exits_with_3_for_one_that_runs(tmp_path: Path) -> None:
    cluster = made(DELETED)
    folders = on_disk(cluster, tmp_path)
    words = ("--now", f"{cluster.now_ms}", "--ignore-ratio", "--engine", "here")
    held = folders[1] / ".lock"
    with subprocess.Popen([sys.executable, "-c", _HOLDER, held], stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None and holder.stdout.readline()
            done = run("clean", "--in-place", *folders, *words, exits=3)
        finally:
            holder.kill()
    assert "expired tombstones and markers stay: broker 2 takes no part" in done.output
    named = [word for number, folder in enumerate(folders, 1) for word in ("--broker", f"{number}={folder}")]
    done = run("clean", "--in-place", *named, *words, "--first-dirty", "0", "--json")
    assert (done.json["cleaned"], done.json["tombstones_expired"]) == (3, 3)
    assert [(one["broker"], one["jointly"]) for one in done.json["partitions"]] == [(b, True) for b in "123"]


# ---- crashes ---------------------------------------------------------------------------------------------------------


def during_clean(
    fs: MemoryFileSystem, at_ms: int, look: Callable[[MemoryFileSystem], None], *, every: int = 1, **options: Any
) -> CutsDuring:
    """Look at what power cuts during a joint clean leave."""
    cuts = CutsDuring(look, sampled=1, subsets_max=2, every=every)
    cuts.during(lambda one: clean(one, at_ms, verify=False, **options), fs)
    return cuts


@pytest.mark.parametrize("script", [DELETED, CRASHED], ids=["alike", "other segments"])
def test_a_crash_brings_no_key_back_and_the_next_clean_ends_alike(
    script: str, record_property: Callable[[str, object], None]
) -> None:
    cluster = made(script)
    whole = cluster.disk()
    before = tables(whole)
    clean(whole, cluster.now_ms, verify=False)
    expected = [shown(whole, root) for root in roots(whole)]
    assert not any("a=∅" in line for line in expected)

    def look(left: MemoryFileSystem) -> None:
        assert tables(left) == before, "readers see the same, whichever replica leads"
        clean(left, cluster.now_ms, verify=False)
        assert [shown(left, root) for root in roots(left)] == expected
        assert compared(left).agrees and len(set(checkpoints_of(left, roots(left)))) == 1

    cuts = during_clean(cluster.disk(), cluster.now_ms, look, every=knobs.step(25))
    assert cuts.different > 10
    record_property(PROPERTY, ["joint clean", cuts.states, cuts.different])


def test_no_tombstone_goes_before_the_records_that_it_deletes() -> None:
    cluster = made("a=1 b=1 |1 a=2 |2 a=∅ c=1 |3 c=2 | clean1 clean2 wait200 d=1 |")
    fs, lost = cluster.disk(), 0

    def look(left: MemoryFileSystem) -> None:
        nonlocal lost
        lines = [shown(left, root) for root in roots(left)]
        if any("a=∅" not in line for line in lines):
            lost += 1
            assert not any("a=1" in line or "a=2" in line for line in lines)

    # Replica 3 was never cleaned, so its tombstone has no horizon before the first of both cleans.
    for at_ms in (cluster.now_ms, cluster.now_ms + RETENTION_MS):
        assert not lost
        during_clean(fs, at_ms, look, first_dirty=0)
        clean(fs, at_ms, first_dirty=0)
    assert lost


# ---- random clusters -------------------------------------------------------------------------------------------------

_KEYS = "abcd"
_WORDS = st.one_of(
    st.builds(lambda key, value: f"{key}={value}", st.sampled_from(_KEYS), st.integers(1, 99)),
    st.builds(lambda key: f"{key}=∅", st.sampled_from(_KEYS)),
    st.builds(lambda key, end: f"7:{key}=t 7:{end}", st.sampled_from(_KEYS), st.sampled_from(["commit", "abort"])),
    st.sampled_from(["|", "|1", "|2", "|3"]),
    st.sampled_from(["clean", "clean1", "clean2", "clean3", "clean1 only1", "clean2 only2"]),
    st.sampled_from(["wait40", "wait120"]),
)
_SCRIPTS = st.lists(_WORDS, min_size=12, max_size=40).map(lambda words: f"{' '.join(words)} | z=1")


def check_joint(script: str, now: int, crash: random.Random | None) -> CleanResult:
    cluster: MadeCluster = made(script)
    fs = cluster.disk()
    if not compared(fs).agrees:  # a broker's own clean can bring a key back: then tombstones stay
        return clean(fs, cluster.now_ms + now, verify=False)
    before = tables(fs)
    if crash is not None:
        states: list[MemoryFileSystem] = []
        cuts = CutsDuring(states.append, sampled=1, subsets_max=0, every=9)
        cuts.during(lambda one: clean(one, cluster.now_ms + now, verify=False), fs)
        fs = crash.choice(states)
        assert tables(fs) == before
    result = clean(fs, cluster.now_ms + now, verify=crash is None)
    assert not result.with_fate(Fate.FAILED), result.text()
    assert tables(fs) == before
    found = compared(fs)
    assert found.agrees, found
    if all(one.jointly for one in result.partitions) and result.with_fate(Fate.CLEANED):
        ends = [one.end_offset for one in result.partitions if one.end_offset is not None]
        below = {
            tuple((one.offset, one.value) for one in log_of(fs, root).records(isolation=None) if one.offset < min(ends))
            for root in roots(fs)
        }
        assert len(below) == 1
    return result


@given(script=_SCRIPTS, now=st.sampled_from([0, 50, 150]))
@settings(max_examples=knobs.scaled(25, 1000), deadline=None)
def test_random_replicas_agree_after_a_joint_clean(script: str, now: int) -> None:
    check_joint(script, now, None)


@pytest.mark.slow
@given(script=_SCRIPTS, now=st.sampled_from([0, 50, 150]), crash=st.randoms(use_true_random=False))
@settings(max_examples=knobs.scaled(5, 200), deadline=None)
def test_random_replicas_agree_after_a_crash_and_another_clean(script: str, now: int, crash: random.Random) -> None:
    check_joint(script, now, crash)
