"""Cleaned copies of real brokers' directories, on a stock Spark session."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cordwood.api import clean
from cordwood.api import plan as make_plan
from cordwood.cleaning.engine.facts import clean_settings, load_producers
from cordwood.cleaning.engine.partition import CleanRequest, clean_partition
from cordwood.cleaning.engine.results import CleanResult, Fate, PartitionResult
from cordwood.cleaning.rules.plan import Decision
from cordwood.cleaning.rules.rewrite import Counts
from cordwood.cli.clean import exit_code_of
from cordwood.cli.main import EXIT_DAMAGE, EXIT_OK, EXIT_OUR_FAULT
from cordwood.common.errors import LockedError, NoSpaceError, NotFoundError, RequestError
from cordwood.common.types import TopicPartition
from cordwood.fs.base import File, is_full
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.formats import checkpoints, filenames
from cordwood.storage.formats.filenames import FileKind, parse_file
from cordwood.storage.log import loaded
from cordwood.storage.log.view import LogView
from tests.fixtures import TOPICS, copy_of, facts, fixture, tree
from tests.fs.disks import Acting, Room, contents, spoil
from tests.kafka_tools import FOLDER, Broker, Oracle


class FullDisk(PosixFileSystem):
    """A disk that is full after a given number of new files and directories."""

    def __init__(self, room: int) -> None:
        self.room = room

    def _take(self, path: str) -> None:
        self.room -= 1
        if self.room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def create(self, path: str, *, exclusive: bool = True, mode: int = 0o666) -> File:  # type: ignore[override]
        self._take(path)
        return super().create(path, exclusive=exclusive, mode=mode)

    def make_directory(self, path: str, *, mode: int = 0o777) -> None:
        self._take(path)
        super().make_directory(path, mode=mode)


def until_it_succeeds(attempt: Callable[[FullDisk], object]) -> int:
    """Try on a disk with room for 0, 1, 2, … files; return the number of failures."""
    for room in range(1000):
        try:
            attempt(FullDisk(room))
        except OSError as error:
            if not is_full(error):
                raise
        else:
            return room
    raise AssertionError("it never succeeds")


def fates(result: CleanResult) -> dict[str, Fate]:
    return {one.name: one.fate for one in result.partitions}


@pytest.fixture(scope="module")
def now_ms() -> int:
    """When the fixture's own broker had cleaned."""
    return int(facts("kraft")["cleaning_1_ended_ms"])


@pytest.fixture(scope="module")
def cleaned(spark: SparkSession, now_ms: int, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CleanResult]:
    target = tmp_path_factory.mktemp("copies") / "cleaned"
    result = clean(
        str(fixture("kraft-before")), output=str(target), spark=spark, topics=TOPICS, now_ms=now_ms, single_copy=True
    )
    return target, result


def test_a_copy_has_what_cleaning_gives_and_all_else_as_it_was(
    cleaned: tuple[Path, CleanResult], now_ms: int, tmp_path: Path
) -> None:
    target, result = cleaned
    source = fixture("kraft-before")
    plan = make_plan(str(source), topics=TOPICS, now_ms=now_ms, single_copy=True)
    to_clean = {one.path: one for one in plan.with_decision(Decision.CLEAN)}
    assert {one.path for one in result.with_fate(Fate.CLEANED)} == set(to_clean)
    assert len(to_clean) >= 8
    assert set(os.listdir(target)) == {*os.listdir(source), filenames.CLEANER_OFFSETS}
    for partition in (path for path in source.iterdir() if path.is_dir()):
        expected = contents(partition)
        if partition.name != "__cluster_metadata-0":
            # A loader removes snapshots between segments.
            for name in loaded.stray_snapshots(LogView(str(partition), fs=PosixFileSystem())):
                del expected[name]
        if (planned := to_clean.get(str(partition))) is not None and planned.compaction is not None:
            outputs = tmp_path / partition.name
            outputs.mkdir()
            log = LogView(str(partition), fs=PosixFileSystem())
            settings = clean_settings(planned)
            found = clean_partition(
                PosixFileSystem(),
                log,
                str(outputs),
                CleanRequest(
                    first_dirty=planned.compaction.range.first_dirty_offset,
                    first_uncleanable=planned.compaction.range.first_uncleanable_offset,
                    now_ms=now_ms,
                    settings=settings,
                    producers=load_producers(log, now_ms=now_ms),
                ),
            )
            gone = {base for group, _ in found.written for base in group}
            stay = {base for group in found.outputs for base in group}
            for name in list(expected):
                file = parse_file(name)
                if file is not None and file.offset in gone:
                    snapshot = file.kind is FileKind.PRODUCER_SNAPSHOT
                    if not snapshot or file.offset not in stay:
                        del expected[name]
            expected |= contents(outputs)
        assert contents(target / partition.name) == expected, partition.name


def test_a_copy_holds_the_records_that_kafkas_own_cleaner_left(cleaned: tuple[Path, CleanResult]) -> None:
    target, result = cleaned
    for one in result.with_fate(Fate.CLEANED):
        ours, theirs = (
            [
                (record.offset, record.key, record.value)
                for record in LogView(str(path / one.name), fs=PosixFileSystem()).records(isolation=None)
            ]
            for path in (target, fixture("kraft-after"))
        )
        assert ours == theirs, one.name


def test_checkpoints_say_how_far_it_is_clean(cleaned: tuple[Path, CleanResult]) -> None:
    target, result = cleaned
    found = checkpoints.decode((target / filenames.CLEANER_OFFSETS).read_bytes())
    assert found == {one.topic_partition: one.end_offset for one in result.with_fate(Fate.CLEANED)}
    theirs = checkpoints.decode((fixture("kraft-after") / filenames.CLEANER_OFFSETS).read_bytes())
    assert found.items() <= theirs.items()
    for name in (filenames.CLEAN_SHUTDOWN, filenames.META_PROPERTIES, filenames.HIGH_WATERMARKS):
        assert (target / name).read_bytes() == (fixture("kraft-before") / name).read_bytes()


def test_the_figures_add_up(cleaned: tuple[Path, CleanResult]) -> None:
    target, result = cleaned
    counts = result.counts
    assert counts.records_read > counts.records_kept > 0
    for one in result.partitions:
        directory = target / Path(one.path).name
        assert one.bytes_after == sum(path.stat().st_size for path in directory.glob("*.log"))
    document = result.document()
    assert document["records_read"] == sum(one["records_read"] for one in document["partitions"])
    assert document["cleaned"] + document["copied"] + document["failed"] == len(document["partitions"])


@pytest.mark.more
def test_a_second_clean_of_the_result_finds_nothing_to_do(cleaned: tuple[Path, CleanResult], now_ms: int) -> None:
    plan = make_plan(str(cleaned[0]), topics=TOPICS, now_ms=now_ms, single_copy=True)
    assert not plan.with_decision(Decision.CLEAN)


@pytest.mark.more
def test_the_source_is_only_read(spark: SparkSession, tmp_path: Path) -> None:
    source = copy_of(fixture("kraft-crashed-swap"), tmp_path / "logs")
    before = tree(source)
    clean(str(source), output=str(tmp_path / "new"), spark=spark, topics=["plain", "crash"])
    assert tree(source) == before
    assert sorted(os.listdir(tmp_path)) == ["logs", "new"]


@pytest.mark.more
def test_a_damaged_partition_is_copied_as_it_was_and_the_others_are_cleaned(
    spark: SparkSession, tmp_path: Path
) -> None:
    # case 65
    source = copy_of(fixture("kraft-before"), tmp_path / "logs")
    log = source / "orders-1" / "00000000000000000000.log"
    data = bytearray(log.read_bytes())
    data[200] ^= 1
    log.write_bytes(data)
    target = tmp_path / "new"
    result = clean(str(source), output=str(target), spark=spark, topics=["orders"])
    found = fates(result)
    assert [found[f"orders-{number}"] for number in range(3)] == [Fate.CLEANED, Fate.FAILED, Fate.CLEANED]
    (failed,) = result.with_fate(Fate.FAILED)
    assert f"in {log} at position" in failed.why
    assert contents(target / "orders-1") == contents(source / "orders-1")
    offsets = checkpoints.decode((target / filenames.CLEANER_OFFSETS).read_bytes())
    assert set(offsets) == {TopicPartition("orders", 0), TopicPartition("orders", 2)}


def test_an_output_that_fails_its_check_is_not_used(tmp_path: Path) -> None:
    posix, source, target = PosixFileSystem(), fixture("kraft-before"), tmp_path / "new"
    read, origins = [""], dict[str, str]()

    def spoil_an_output(verb: str, path: str) -> None:
        if verb == "open" and path.startswith(str(source)):
            read[0] = Path(path).parent.name
        if verb == "create" and "/outputs/" in path and path.endswith(".log"):
            origins[path] = read[0]
        if verb == "sync" and origins.get(path) == "orders-1":
            spoil(posix, path)

    result = clean(str(source), output=str(target), fs=Acting(posix, spoil_an_output), topics=["orders"])
    assert [fates(result)[f"orders-{number}"] for number in range(3)] == [Fate.CLEANED, Fate.FAILED, Fate.CLEANED]
    assert contents(target / "orders-1") == contents(source / "orders-1")
    assert exit_code_of(result) == EXIT_OUR_FAULT
    assert "NOT CLEANED, copied unchanged: orders-1\n" in result.text()
    assert "the new segments are not as their task reported" in result.text()


@pytest.mark.more
def test_what_stays_for_the_sake_of_replicas_is_counted(spark: SparkSession, tmp_path: Path) -> None:
    source = copy_of(fixture("kraft-before") / "short-tombstones-0", tmp_path / "short-tombstones-0")
    said: dict[str, Any] = {"overrides": ["cleanup.policy=compact", "delete.retention.ms=0"], "ignore_ratio": True}

    def after(step: int, **choices: Any) -> CleanResult:
        paths = str(source if step == 0 else tmp_path / f"copy-{step}" / source.name)
        output = str(tmp_path / f"copy-{step + 1}")
        return clean(paths, output=output, spark=spark, first_dirty=0, now_ms=2 * 10**12 + step, **said, **choices)

    after(0)  # sets the horizons
    kept = after(1)
    assert kept.counts.tombstones_kept_for_replicas > 0 and not kept.counts.tombstones_expired
    assert kept.counts.tombstones_kept_for_replicas <= kept.counts.records_kept
    count = kept.counts.tombstones_kept_for_replicas
    assert f"{count} expired tombstones kept, as other replicas may not have seen them" in kept.text()
    assert "--single-copy" in kept.text()
    gone = after(2, single_copy=True)
    assert gone.counts.tombstones_expired == count
    assert "other replicas" not in gone.text()


def test_a_rate_is_told_when_there_was_enough_to_read() -> None:
    def text(bytes_read: int) -> str:
        part = PartitionResult("a-0", TopicPartition("a", 0), Fate.CLEANED, "", Counts(bytes_read=bytes_read))
        return CleanResult("new", 0, (part,), seconds=5.0, clean_seconds=2.0).text()

    assert "100.0 MB read, 0 B written; cleaned in 2.0 s, 50.0 MB/s (5.0 s in total)" in text(100_000_000)
    assert "1.0 MB read, 0 B written; cleaned in 2.0 s (5.0 s in total)" in text(1_000_000)


@pytest.mark.more
def test_what_a_crash_left_is_recovered_first_and_then_cleaned(spark: SparkSession, tmp_path: Path) -> None:
    source, target = fixture("kraft-crashed-torn"), tmp_path / "new"
    topics = ["plain", "trans"]
    for one in make_plan(str(source), topics=topics).partitions:
        assert one.notes[0].startswith("no clean shutdown: planned as of after the recovery at the next start")
    result = clean(str(source), output=str(target), spark=spark, topics=topics, ignore_ratio=True, high_watermark="end")
    by_name = {one.name: one for one in result.partitions}
    assert {by_name[name].fate for name in ("plain-0", "plain-1", "trans-0")} == {Fate.CLEANED}
    assert "2 segments behind the cut" in by_name["moving-0"].notes[1]
    assert result.notes[0].startswith(f"{source} had no clean shutdown; the copy was recovered")
    # After the cut of the other partitions there is less than a batch, or no whole batch.
    assert {name: one.left_out_bytes for name, one in by_name.items() if one.left_out_bytes} == {
        "moving-0": 5364,
        "plain-1": 1350,
    }
    assert "plain-1: whole batches of 1,350 B are not in the copy: only the original has them" in result.text()
    assert exit_code_of(result) == EXIT_DAMAGE
    assert exit_code_of(replace(result, partitions=(by_name["plain-0"],))) == EXIT_OK
    assert (target / filenames.CLEAN_SHUTDOWN).exists()
    assert not (target / filenames.LOCK).exists()
    points = checkpoints.decode((target / filenames.RECOVERY_POINTS).read_bytes())
    for name in ("plain-0", "plain-1", "moving-0", "trans-0", "crash-0"):
        end = LogView(str(fixture("kraft-crashed-torn-recovered") / name), fs=PosixFileSystem()).next_offset
        assert LogView(str(target / name), fs=PosixFileSystem()).next_offset == end
        topic, _, number = name.rpartition("-")
        assert points[TopicPartition(topic, int(number))] == end


@pytest.mark.more
def test_what_cannot_be_recovered_is_left_to_the_next_load(spark: SparkSession, tmp_path: Path) -> None:
    source = copy_of(fixture("kraft-crashed-writes"), tmp_path / "logs")
    last = LogView(str(source / "plain-0"), fs=PosixFileSystem()).segments[-1].base_offset
    for path in (source / "plain-0").glob(f"{last:020d}.*"):
        path.rename(path.with_name(f"{last + 10**6:020d}{path.suffix}"))
    target = tmp_path / "new"
    result = clean(
        str(source), output=str(target), spark=spark, topics=["plain"], ignore_ratio=True, high_watermark="end"
    )
    found = fates(result)
    assert (found["plain-0"], found["plain-1"]) == (Fate.FAILED, Fate.CLEANED)
    (failed,) = result.with_fate(Fate.FAILED)
    assert "does not belong" in failed.why and f"in {source}/plain-0/" in failed.why
    assert contents(target / "plain-0") == contents(source / "plain-0")
    assert not (target / filenames.CLEAN_SHUTDOWN).exists()


@pytest.mark.more
def test_the_disks_of_one_broker_become_folders(spark: SparkSession, tmp_path: Path) -> None:
    source = fixture("kraft-jbod-before")
    result = clean(str(source), output=str(tmp_path / "new"), spark=spark, ignore_ratio=True)
    assert sorted(os.listdir(tmp_path / "new")) == ["a", "b"]
    assert fates(result)["disk-0-1"] is Fate.COPIED  # it is being moved
    assert result.with_fate(Fate.CLEANED)
    future = next((source / "b").glob("*-future"))
    assert contents(tmp_path / "new" / "b" / future.name) == contents(future)


@pytest.mark.more
def test_a_bare_partition_is_cleaned_only_when_somebody_says_so(spark: SparkSession, tmp_path: Path) -> None:
    source = copy_of(fixture("kraft-before") / "orders-0", tmp_path / "orders-0")
    result = clean(str(source), output=str(tmp_path / "left"), spark=spark)
    (left,) = result.partitions
    assert left.fate is Fate.COPIED
    assert "cleanup.policy is unknown" in left.why
    assert contents(tmp_path / "left" / "orders-0") == contents(source)
    said = ["cleanup.policy=compact"]
    result = clean(str(source), output=str(tmp_path / "new"), spark=spark, overrides=said)
    assert fates(result) == {"orders-0": Fate.CLEANED}
    assert sorted(os.listdir(tmp_path / "new")) == [filenames.CLEANER_OFFSETS, "orders-0"]


@pytest.mark.more
def test_retention_follows_the_clean_when_it_is_asked_for(spark: SparkSession, now_ms: int, tmp_path: Path) -> None:
    target = tmp_path / "new"
    topics = ["sessions", "retained-bytes", "retained-ms", "trimmed"]
    result = clean(
        str(fixture("kraft-before")), output=str(target), spark=spark, topics=topics, now_ms=now_ms, retention=True
    )
    for name in ("retained-bytes-0", "retained-ms-0", "sessions-0", "sessions-1", "trimmed-0"):
        assert (
            LogView(str(target / name), fs=PosixFileSystem()).first_offset
            == LogView(str(fixture("kraft-after") / name), fs=PosixFileSystem()).first_offset
        ), name
    assert sum(one.segments_retained_away for one in result.partitions) > 0


# ---- Empty inputs ----------------------------------------------------------------------------------------------------


@pytest.mark.more
def test_a_disk_that_fills_at_any_write_leaves_nothing(tmp_path: Path) -> None:
    source = copy_of(fixture("kraft-before") / "trimmed-0", tmp_path / "logs" / "trimmed-0").parent
    before = tree(source)

    def attempt(fs: FullDisk) -> CleanResult:
        try:
            return clean(str(source), output=str(tmp_path / "new"), fs=fs)
        except NoSpaceError as error:
            assert os.listdir(tmp_path) == ["logs"]
            raise OSError(errno.ENOSPC, "full") from error

    assert until_it_succeeds(attempt) > 10
    assert tree(source) == before
    assert sorted(os.listdir(tmp_path)) == ["logs", "new"]


@pytest.mark.parametrize("source", ["kraft-before", "kraft-crashed-writes"])
def test_a_disk_too_small_for_the_logs_is_refused_before_anything_is_written(source: str, tmp_path: Path) -> None:
    size = sum(path.stat().st_size for path in fixture(source).glob("*/*.log"))
    verbs: set[str] = set()
    fs = Acting(Room(size // 2), lambda verb, _: verbs.add(verb))
    with pytest.raises(NoSpaceError, match=f"{size // 2:,} bytes free, and the copy needs up to"):
        clean(str(fixture(source)), output=str(tmp_path / "new"), fs=fs)
    assert verbs == {"open"} and os.listdir(tmp_path) == []


def test_what_a_killed_run_left_is_named_at_the_end_and_when_there_is_no_room(tmp_path: Path) -> None:
    source = fixture("kraft-before") / "orders-0"
    left = tmp_path / ".new.cordwood-12345678"
    left.mkdir()
    with pytest.raises(NoSpaceError, match=f"{left} was left by a run that was killed"):
        clean(str(source), output=str(tmp_path / "new"), fs=Room(0))
    assert f"{left} was left by a run that was killed" in clean(str(source), output=str(tmp_path / "new")).text()


@pytest.mark.parametrize("name", [filenames.CLEAN_SHUTDOWN, filenames.RECOVERY_POINTS])
def test_a_copy_during_which_a_broker_ran_is_not_published(tmp_path: Path, name: str) -> None:
    source = copy_of(fixture("kraft-before"), tmp_path / "logs")

    def run_meanwhile(verb: str, path: str) -> None:
        if verb == "copy" and path == str(source / filenames.META_PROPERTIES):
            data = (source / name).read_bytes()
            (source / name).unlink()
            (source / name).write_bytes(data)

    fs = Acting(PosixFileSystem(), run_meanwhile)
    with pytest.raises(LockedError, match=f"{name} changed while"):
        clean(str(source), output=str(tmp_path / "new"), fs=fs, topics=["null-keys"])
    assert os.listdir(tmp_path) == ["logs"]


@pytest.mark.more
def test_links_need_no_room(tmp_path: Path) -> None:
    source = copy_of(fixture("kraft-before") / "large-0", tmp_path / "logs" / "large-0")
    size = sum(path.stat().st_size for path in source.glob("*.log"))
    fs = Room(size - 1)
    with pytest.raises(NoSpaceError):
        clean(str(source), output=str(tmp_path / "new"), fs=fs)
    clean(str(source), output=str(tmp_path / "new"), link=True, fs=fs)
    first = "00000000000000000000.log"
    assert (tmp_path / "new" / "large-0" / first).stat().st_ino == (source / first).stat().st_ino


def test_what_cannot_be_done_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="only read"):
        clean(str(fixture("kraft-before")), output=str(fixture("kraft-before") / "new"))
    with pytest.raises(NotFoundError, match="matches nothing-like-it"):
        clean(str(fixture("kraft-before")), output=str(tmp_path / "new"), topics=["nothing-like-it"])
    assert os.listdir(tmp_path) == []


# ---- Kafka -----------------------------------------------------------------------------------------------------------


def test_kafka_accepts_every_partition_of_a_copy(cleaned: tuple[Path, CleanResult], kafka_oracle: Oracle) -> None:
    target, result = cleaned
    names = [one.name for one in result.with_fate(Fate.CLEANED)]
    for (line,) in kafka_oracle.batch([["check", str(target / name)] for name in names]):
        assert line["ok"], line


def test_a_broker_starts_on_a_copy_without_complaint(
    cleaned: tuple[Path, CleanResult], kafka_broker: Broker, tmp_path: Path
) -> None:
    done = subprocess.run(
        [FOLDER / "broker-check", cleaned[0], "--to", tmp_path / "read"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert kafka_broker is not None


@pytest.mark.more
def test_a_copy_is_as_private_as_its_source(spark: SparkSession, tmp_path: Path) -> None:
    source = copy_of(fixture("kraft-jbod-before") / "a", tmp_path / "logs")
    place = next(path for path in sorted(source.iterdir()) if path.is_dir() and path.name[0] != "_")
    for path in place.iterdir():
        path.chmod(0o440)
    place.chmod(0o750)
    source.chmod(0o700)
    overrides = ["cleanup.policy=compact"]
    clean(str(source), output=str(tmp_path / "new"), spark=spark, overrides=overrides, ignore_ratio=True)
    copied = tmp_path / "new" / place.name
    assert (stat.S_IMODE((tmp_path / "new").stat().st_mode), stat.S_IMODE(copied.stat().st_mode)) == (0o700, 0o750)
    assert {stat.S_IMODE(path.stat().st_mode) for path in copied.glob("*.log")} == {0o640}
