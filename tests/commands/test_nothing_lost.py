"""What a clean must never do: drop damaged data, drop data without permission, or drop data that may reappear."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, cast

import pytest
from pyspark.sql import SparkSession

from cordwood.api import clean
from cordwood.cleaning.engine.results import CleanResult, Fate
from cordwood.cli.clean import exit_code_of
from cordwood.cli.main import EXIT_DAMAGE
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.formats import checkpoints, filenames
from cordwood.storage.log.view import LogView
from tests.command import run
from tests.commands.in_process import InThisProcess
from tests.fixtures import copy_of, fixture, tree
from tests.fs.disks import OnlyRead, contents, read_only
from tests.kafka_tools import Oracle

pytestmark = pytest.mark.more

IN_PROCESS = cast(SparkSession, InThisProcess())


# ---- damage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(3))
def test_one_damaged_batch_keeps_one_of_three_partitions_as_it_was(number: int, tmp_path: Path) -> None:
    for name in ("orders-0", "orders-1", "orders-2"):
        copy_of(fixture("kraft-before") / name, tmp_path / "logs" / name)
    hurt = tmp_path / "logs" / f"orders-{number}"
    *closed, _ = LogView(str(hurt), fs=PosixFileSystem()).segments
    path = Path(closed[len(closed) // 2].path)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    result = clean(
        str(tmp_path / "logs"),
        output=str(tmp_path / "new"),
        spark=IN_PROCESS,
        overrides=["cleanup.policy=compact"],
    )
    assert exit_code_of(result) == EXIT_DAMAGE
    assert "3 partitions: 2 cleaned, 1 failed" in result.text()
    assert f"NOT CLEANED, copied unchanged: orders-{number}" in result.text()
    assert f"in {path} at position" in result.text()
    assert contents(tmp_path / "new" / hurt.name) == contents(hurt)
    for name in {"orders-0", "orders-1", "orders-2"} - {hurt.name}:
        after, before = (
            sum(map(len, contents(root / name).values())) for root in (tmp_path / "new", tmp_path / "logs")
        )
        assert after < before
    offsets = checkpoints.decode((tmp_path / "new" / filenames.CLEANER_OFFSETS).read_bytes())
    assert {str(name) for name in offsets} == {"orders-0", "orders-1", "orders-2"} - {hurt.name}


# ---- Data that no rule allows to drop --------------------------------------------------------------------------------


def test_of_a_bare_archive_nothing_is_deleted_and_the_reason_is_said(tmp_path: Path) -> None:
    for name in ("v1-none-0", "v1-keyless-0", "v1-both-0"):
        copy_of(fixture("legacy-v1-before") / name, tmp_path / "logs" / name)
    words = ["clean", str(tmp_path / "logs"), "--output", str(tmp_path / "new"), "--retention", "--ignore-ratio"]
    done = run(*words, "--single-copy", "--now", "4000000000000")
    assert "copied unchanged: v1-both-0, v1-keyless-0, v1-none-0" in done.stdout
    assert "cleanup.policy is unknown: no metadata log" in done.stdout
    assert "--config cleanup.policy=" in done.stdout
    for source in (tmp_path / "logs").iterdir():
        assert contents(tmp_path / "new" / source.name) == contents(source)


# ---- Data that may be truncated --------------------------------------------------------------------------------------


def tail_script(seed: int) -> dict[str, Any]:
    """A log whose end is not replicated; records of few keys, so that the tail has newer values of most."""
    choose = random.Random(seed)
    steps: list[dict[str, Any]] = []
    for number in range(60):
        key, value = choose.choice("abcdefgh"), choose.choice([str(number), str(number), None])
        steps.append({"op": "append", "records": [[key, value]]})
        if choose.random() < 0.3:
            steps.append({"op": "roll"})
    steps += [{"op": "roll"}, {"op": "append", "records": [["a", "end"]]}]
    steps += [{"op": "high_watermark", "offset": choose.randrange(10, 55)}, {"op": "snapshot", "name": "before"}]
    config = {"cleanup.policy": "compact", "delete.retention.ms": "0", "auto_high_watermark": "false"}
    return {"now": 1_700_000_000_000, "logs": {"t-0": config}, "steps": steps}


def truncated_by_kafka(oracle: Oracle, partition: Path, offset: int, work: Path) -> LogView:
    """A partition after Kafka truncated it."""
    copies = [
        {"op": "file", "do": "copy", "path": str(path), "to": f"live/t-0/{path.name}"} for path in partition.iterdir()
    ]
    steps = [{"op": "close"}, *copies, {"op": "open"}, {"op": "truncate_to", "offset": offset}, {"op": "close"}]
    script = work.with_suffix(".json")
    script.write_text(json.dumps({"now": 1_700_000_000_000, "logs": {"t-0": {}}, "steps": steps}))
    oracle("run", script, work)
    return LogView(str(work / "live" / "t-0"), fs=PosixFileSystem())


def last_values(log: LogView, end: int) -> dict[bytes | None, bytes]:
    """Last value of each key; deleted keys are left out."""
    found: dict[bytes | None, bytes | None] = {}
    for record in log.records(isolation=None):
        if record.offset < end:
            found[record.key] = record.value
    return {key: value for key, value in found.items() if value is not None}


@pytest.mark.parametrize("seed", range(4))
def test_a_tail_that_was_not_replicated_takes_no_committed_value_with_it(
    seed: int, kafka_oracle: Oracle, tmp_path: Path
) -> None:
    (tmp_path / "script.json").write_text(json.dumps(tail_script(seed)))
    kafka_oracle("run", tmp_path / "script.json", tmp_path / "made")
    before = tmp_path / "made" / "before"
    ((_, mark),) = checkpoints.decode((before / filenames.HIGH_WATERMARKS).read_bytes()).items()
    committed = last_values(LogView(str(before / "t-0"), fs=PosixFileSystem()), mark)

    def truncated(name: str, high_watermark: Literal["end"] | None) -> LogView:
        result = clean(
            str(before),
            output=str(tmp_path / name),
            spark=IN_PROCESS,
            overrides=["cleanup.policy=compact", "delete.retention.ms=0"],
            now_ms=1_700_000_000_000,
            ignore_ratio=True,
            single_copy=True,
            high_watermark=high_watermark,
        )
        assert result.with_fate(Fate.CLEANED) and result.counts.records_superseded
        return truncated_by_kafka(kafka_oracle, tmp_path / name / "t-0", mark, tmp_path / f"{name}-truncated")

    log = truncated("new", None)
    assert log.next_offset == mark
    assert last_values(log, mark) == committed
    # As it would be without regard to the high watermark.
    assert last_values(truncated("careless", "end"), mark) != committed


# ---- a directory that is only read -----------------------------------------------------------------------------------


SOURCES = ("kraft-crashed-swapping", "kraft-crashed-torn", "kraft-jbod-before", "legacy-v0-before")


def clean_all(source: Path, target: Path, **more: Any) -> CleanResult:
    result = clean(
        str(source),
        output=str(target),
        overrides=["cleanup.policy=compact"],
        ignore_ratio=True,
        high_watermark="end",
        now_ms=1_800_000_000_000,
        **more,
    )
    assert result.with_fate(Fate.CLEANED) and not result.with_fate(Fate.FAILED)
    return result


@pytest.fixture(params=SOURCES)
def source(request: pytest.FixtureRequest) -> Iterator[Path]:
    path = fixture(request.param)
    before = tree(path)
    yield path
    assert tree(path) == before


@pytest.mark.slow
def test_no_call_would_change_the_source(source: Path, tmp_path: Path) -> None:
    clean_all(source, tmp_path / "new", fs=OnlyRead(PosixFileSystem(), str(source)))


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES[:-1], indirect=True)  # the last one has no unchanged closed log
def test_linking_gives_closed_logs_of_the_source_a_name_and_changes_nothing_else(source: Path, tmp_path: Path) -> None:
    before = tree(source)
    fs = OnlyRead(PosixFileSystem(), str(source), allowed=("try_link", "link"))
    clean_all(source, tmp_path / "new", fs=fs, link=True)
    assert fs.seen and tree(source) == before
    for _, (original, name) in fs.seen:
        assert original.startswith(f"{source}/") and not name.startswith(f"{source}/")
        # No broker appends to it: its partition has a later segment.
        assert original.endswith((".log", ".log.swap")) and int(Path(original).name[:20]) < max(
            int(path.name[:20]) for path in Path(original).parent.glob("*.log*")
        )


@pytest.mark.slow
def test_a_directory_on_a_disk_that_is_mounted_read_only_is_cleaned(
    source: Path, spark: SparkSession, tmp_path: Path
) -> None:
    with read_only(source, tmp_path / "mounted") as mounted:
        with pytest.raises(OSError, match="Read-only"):
            os.utime(mounted)
        clean_all(mounted, tmp_path / "new", spark=spark)
