"""`cordwood demo`: its text matches the log, fits a screen, and is quoted in the README."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import cordwood
from cordwood.api import plan as make_plan
from cordwood.cleaning.rules.plan import Decision
from cordwood.cli.demo import AFTER, BEFORE, GROUPS, LOG, NOW_MS, SETTINGS, USERS, unpack, write_log
from tests.cleaning.against_kafka import differences
from tests.command import run
from tests.kafka_tools import Oracle

pytestmark = pytest.mark.more

README = Path(__file__).parents[2] / "README.md"
LINES, COLUMNS = 45, 100
#: The table's lines: offset, key, value before, value or ✗ after.
ROW = re.compile(r"^ +(\d+)  (\w*) +(\S+) +(\S+)  +\S.*$")


def contents(directory: Path) -> dict[int, bytes | None]:
    """All values of the log, by offset."""
    log = cordwood.open_log(str(directory / str(USERS)))
    return {one.offset: one.value for one in log.records(isolation=None)}


# ---- without Spark ---------------------------------------------------------------------------------------------------


def test_the_log_is_whole_and_there_is_something_to_clean(tmp_path: Path) -> None:
    write_log(tmp_path)
    assert list(cordwood.check(str(tmp_path / BEFORE))) == []
    plan = make_plan(str(tmp_path / BEFORE), server_properties=str(tmp_path / SETTINGS), now_ms=NOW_MS)
    (one,) = plan.with_decision(Decision.CLEAN)
    assert one.setting("delete.retention.ms") == 86_400_000
    assert one.compaction is not None and one.compaction.groups == ((0, 6),)


def test_the_same_log_is_written_each_time(tmp_path: Path) -> None:
    for name in "ab":
        write_log(tmp_path / name)
    one, other = (
        {path.relative_to(tmp_path / name): path.read_bytes() for path in (tmp_path / name).rglob("*.*")}
        for name in "ab"
    )
    assert one == other and len(one) > 10


@pytest.mark.parametrize("name", [BEFORE, AFTER, SETTINGS, LOG])
def test_what_is_there_is_not_overwritten(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    done = run("demo", "--dir", tmp_path, exits=2)
    assert f"{tmp_path}/{name} exists already" in done.stderr
    assert os.listdir(tmp_path) == [name]


# ---- on Spark --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def left(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder that a demo leaves, and its output."""
    folder = tmp_path_factory.mktemp("demo") / "my play"
    return folder, run("demo", "--dir", folder).stdout


@pytest.mark.slow
def test_every_record_fares_as_the_story_says(left: tuple[Path, str]) -> None:
    folder, printed = left
    rows = [match.groups() for line in printed.splitlines() if (match := ROW.match(line))]
    before, after = contents(folder / BEFORE), contents(folder / AFTER)
    assert [int(offset) for offset, *_ in rows] == list(before)
    assert [int(offset) for offset, *_, shown in rows if shown != "✗"] == list(after)
    for offset, key, value, shown in rows:
        assert shown in ("✗", value)
        if key:
            assert before[int(offset)] == (None if value == "∅" else value.encode())
    keys = {offset: key for offset, key, *_ in rows}
    newer = re.findall(r"^ +(\d+) .* ✗ +superseded by offset (\d+)$", printed, re.MULTILINE)
    assert len(newer) == 3
    assert all(keys[one] == keys[other] and int(one) < int(other) and int(other) in after for one, other in newer)
    assert f"{len(before) - len(after)} dropped: 3 superseded, 1 aborted, 1 expired tombstone" in printed


@pytest.mark.slow
def test_the_story_fits_a_screen(left: tuple[Path, str]) -> None:
    lines = left[1].replace(str(left[0]), "play").splitlines()
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= COLUMNS


@pytest.mark.slow
def test_the_readme_shows_what_the_demo_prints(left: tuple[Path, str]) -> None:
    story = left[1][: left[1].index("\nEverything is in ")]
    assert f"```text\n$ make demo\n{story}```\n" in README.read_text()


@pytest.mark.slow
def test_a_folder_keeps_both_states_and_its_commands_run(
    left: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, printed = left
    assert sorted(os.listdir(folder)) == sorted([BEFORE, AFTER, SETTINGS, LOG, GROUPS])
    first, *commands = printed[printed.index("To try:\n") :].splitlines()[1:]
    assert shlex.split(first) == ["cd", str(folder)]
    shutil.copytree(folder, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    assert len(commands) >= 4
    for command in commands:
        assert run(*shlex.split(command)[1:]).stdout, command
    # Years later producers have expired, but the records are the same.
    assert contents(Path("again")) == contents(Path(AFTER))


@pytest.mark.slow
def test_both_states_pass_verify_and_a_restored_one_is_not_accused(left: tuple[Path, str], tmp_path: Path) -> None:
    folder = left[0]
    assert run("verify", folder / BEFORE, folder / AFTER).stdout.endswith("All guarantees hold\n")
    # Restored from a backup without modification times: its files look as if written years after the clean.
    restored = shutil.copytree(folder / BEFORE, tmp_path / BEFORE, copy_function=shutil.copyfile)
    said = run("verify", restored, folder / AFTER).stdout
    assert "           1  not judged: delete horizons or old tombstones" in said
    assert said.endswith("All guarantees hold that can be judged\n")


@pytest.mark.slow
def test_nothing_is_left_behind_and_json_has_the_same_facts(
    left: tuple[Path, str], spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    found: dict[str, Any] = run("demo", "--json").json
    assert os.listdir(tmp_path) == []
    before, after = contents(left[0] / BEFORE), contents(left[0] / AFTER)
    assert [one["offset"] for one in found["records"]] == list(before)
    assert [one["offset"] for one in found["records"] if one["kept"]] == list(after)
    for one in found["records"]:
        assert one["reason"] in left[1]
    assert found["clean"]["records_read"] == 9 and found["clean"]["failed"] == 0
    assert [found[name]["partitions"][0]["decision"] for name in ("plan", "plan_after")] == ["clean", "leave alone"]
    assert found["check"]["damage"] == 0


@pytest.mark.slow
def test_kafkas_own_cleaner_leaves_the_same_log(left: tuple[Path, str], kafka_oracle: Oracle, tmp_path: Path) -> None:
    theirs = shutil.copytree(left[0] / BEFORE, tmp_path / "kafka")
    words = ("--all", "--first-dirty", "6", "--now", str(NOW_MS), "--config", "delete.retention.ms=86400000")
    kafka_oracle("clean", theirs, *words)
    assert list(differences(theirs / str(USERS), left[0] / AFTER / str(USERS))) == []


def test_the_brokers_log_is_unpacked_for_the_documentation(tmp_path: Path) -> None:
    unpack(tmp_path)
    assert (tmp_path / LOG / "orders-0").is_dir()
