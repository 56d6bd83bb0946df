"""The command `cordwood clean --in-place`: its output, and the processes that it yields to."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cordwood.api import clean_in_place
from cordwood.cleaning.engine.results import CleanResult, Fate
from cordwood.common.errors import LockedError
from cordwood.fs.base import LocalFileSystem
from cordwood.fs.posix import PosixFileSystem
from cordwood.fs.wrapped import WrappedFileSystem
from cordwood.storage.formats.filenames import LOCK, WORK_FOLDER
from tests.command import Ended, run
from tests.fixtures import copy_of, facts, fixture
from tests.fs.disks import Acting
from tests.fs.lock_holders import CHURN, HOLD, HOLD_AS_WE_DO, is_held, on_linux, other
from tests.kafka_tools import Broker

pytestmark = pytest.mark.more

#: Recreates `.lock`, as fast as it can, and always holds the current file.
HOLD_ANEW = """
import fcntl, os, sys
held = None
while True:
    newer = open(sys.argv[1] + ".new", "w")
    fcntl.lockf(newer, fcntl.LOCK_EX)
    os.replace(newer.name, sys.argv[1])
    if held is None:
        print("held", flush=True)
    held = newer
"""
#: Replaces `.lock` once, and holds the new file.
TAKE_OVER = HOLD_ANEW.replace("while True", "for _ in [1]") + "sys.stdin.read()\n"
TOPICS = ("orders", "payments")
READING = [("ls", "--json"), ("dump", "--json"), ("check", "--json"), ("plan", "--json")]
#: Exit codes of `check`: the directory lacks partitions that its checkpoints list.
READ = {"check": (0, 1)}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Some partitions of a broker's directory."""
    path, whole = tmp_path / "logs", fixture("kraft-before")
    path.mkdir()
    for file in whole.iterdir():
        if file.is_file():
            shutil.copy2(file, path / file.name)
        elif file.name.startswith(("orders-", "payments-", "__cluster_metadata-")):
            copy_of(file, path / file.name)
    (path / LOCK).touch()
    return path


def once_a_task_writes(happens: Callable[[], object]) -> Acting:
    """This machine's files; an action happens before a task's output is durable, and so before it is swapped in."""
    happened: list[str] = []

    def before(verb: str, path: str) -> None:
        if verb == "sync" and f"/{WORK_FOLDER}/" in path and not happened:
            happened.append(path)
            happens()

    return Acting(PosixFileSystem(), before)


def clean(directory: Path, *options: str, exits: int = 0) -> Ended:
    # Without the proof: other tests cover it, and it needs seconds.
    topics = (word for topic in TOPICS for word in ("--topic", topic))
    now = ("--now", str(ended_ms()))
    words = ("--in-place", "--no-verify", "--single-copy", *now, *topics, *options)
    return run("clean", directory, *words, exits=exits)


def clean_on(fs: LocalFileSystem, directory: Path) -> CleanResult:
    """The same without the command line."""
    return clean_in_place(str(directory), fs=fs, verify=False, single_copy=True, now_ms=ended_ms(), topics=TOPICS)


def ended_ms() -> int:
    return int(facts("kraft")["cleaning_1_ended_ms"])


def tree(directory: Path) -> dict[str, tuple[bytes, int, int]]:
    """All files but the lock: bytes, permissions, time of modification."""
    files = [path for path in directory.rglob("*") if path.is_file() and not path.name.startswith(LOCK)]
    return {str(path): (path.read_bytes(), path.stat().st_mode, path.stat().st_mtime_ns) for path in files}


def segments(directory: Path) -> dict[str, tuple[bytes, int, int]]:
    """Files without producer snapshots: loading deletes superfluous snapshots, as when a broker starts."""
    return {name: one for name, one in tree(directory).items() if not name.endswith(".snapshot")}


def logs(partition: Path) -> dict[str, tuple[int, bytes, int, int]]:
    """Log files, which the broker itself does not touch without appends; it may still be opening epochs and indexes."""
    return {name: (Path(name).stat().st_ino, *one) for name, one in tree(partition).items() if name.endswith(".log")}


# ---- Output ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("spark")
def test_it_says_what_it_did_and_a_second_run_finds_nothing_to_do(directory: Path) -> None:
    first, second = clean(directory), clean(directory)
    assert first.stderr == ""
    lines = first.stdout.splitlines()
    assert lines[0].split()[:4] == ["PARTITION", "READ", "KEPT", "SUPERSEDED"]
    assert [line.split()[0] for line in lines[1:4]] == ["orders-0", "orders-1", "orders-2"]
    assert "partitions: 5 cleaned" in first.stdout
    assert "NOT VERIFIED (--no-verify)" in first.stdout
    assert lines[-1].startswith(f"{directory}: ") and lines[-1].endswith(" before")
    assert second.stderr == ""
    assert "5 partitions: 5 left alone" in second.stdout
    assert "is in the active segment; cleanable after it rolls" in second.stdout


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    "words", [["--config", "nonsense"], ["--config", "cleanup.policy=nonsense"], ["--server-properties", "/nowhere"]]
)
def test_configs_are_refused_before_there_is_a_lock_file(directory: Path, words: list[str]) -> None:
    (directory / LOCK).unlink()
    run("clean", directory, "--in-place", *words, exits=2)
    assert not (directory / LOCK).exists()


def test_json_says_it_too(directory: Path) -> None:
    document = json.loads(clean(directory, "--json").stdout)
    assert (document["cleaned"], document["failed"], document["target"]) == (5, 0, "")
    assert document["in_place"]["directories"] == [str(directory)]
    assert document["in_place"]["waves"] == 1
    assert document["in_place"]["verified"] is None
    assert document["bytes_after"] < document["bytes_before"]
    logs = [path for topic in ("orders", "payments") for path in directory.glob(f"{topic}-*/*.log")]
    assert document["bytes_after"] == sum(path.stat().st_size for path in logs)
    one = document["partitions"][0]
    assert one["records_read"] > one["records_kept"]


# ---- Processes that it yields to -------------------------------------------------------------------------------------


@on_linux
@pytest.mark.parametrize("program", [HOLD, HOLD_AS_WE_DO, HOLD_ANEW], ids=["a broker", "another", "ever anew"])
def test_a_directory_that_is_held_is_not_touched(directory: Path, program: str) -> None:
    before = tree(directory)
    path = directory if program is HOLD_AS_WE_DO else directory / LOCK
    with other(program, path) as holder:
        for _ in range(3):
            result = clean(directory, exits=3)
            assert result.stdout == ""
            if program is not HOLD_ANEW:  # there, who holds it changes with the file
                assert f"(pid {holder.pid})" in result.stderr
            assert f"{directory} is held by " in result.stderr
            assert "Stop that first, or clean a snapshot" in result.stderr
            assert "Traceback" not in result.stderr
    assert tree(directory) == before
    assert not list(directory.rglob(WORK_FOLDER))


@on_linux
def test_reading_goes_on_while_another_process_holds_the_directory(directory: Path) -> None:
    with other(HOLD, directory / LOCK):
        for verb, *options in READING:
            result = run(verb, directory, *options, exits=None)
            assert result.exit_code in READ.get(verb, (0,)), f"{verb}: {result.stderr}"
            assert is_held(directory)


@on_linux
def test_lock_taken_over_during_a_clean_stops_it_before_the_swap(directory: Path) -> None:
    before = segments(directory)
    with contextlib.ExitStack() as held:
        taken: list[subprocess.Popen[str]] = []

        def take_over() -> None:
            taken.append(held.enter_context(other(TAKE_OVER, directory / LOCK)))

        with pytest.raises(LockedError) as raised:
            clean_on(once_a_task_writes(take_over), directory)
        assert f"(pid {taken[0].pid})" in str(raised.value)
        assert "0 of 5 partitions are cleaned" in raised.value.__notes__
    assert segments(directory) == before
    assert not list(directory.rglob(WORK_FOLDER))


@on_linux
def test_a_lock_file_that_comes_and_goes_is_held_or_nothing_is_changed(directory: Path) -> None:
    before = segments(directory)
    with other(CHURN, directory / LOCK):
        try:
            result = clean_on(WrappedFileSystem(PosixFileSystem()), directory)
        except LockedError:
            assert segments(directory) == before
        else:
            assert "partitions: 5 cleaned" in result.text()


def test_reading_does_not_drop_the_lock_of_a_clean_in_the_same_process(directory: Path) -> None:
    read: list[str] = []

    def reads() -> None:
        for verb, *options in READING:
            for path in (directory, directory / "orders-0"):
                assert run(verb, path, *options, exits=None).exit_code in READ.get(verb, (0,))
                assert is_held(directory), f"{verb} {path} dropped the lock"
                read.append(verb)
        clean(directory, exits=3)
        assert is_held(directory)

    result = clean_on(once_a_task_writes(reads), directory)
    assert not result.with_fate(Fate.FAILED), result.text()
    assert len(read) >= 2 * len(READING)
    assert not is_held(directory)


def test_a_running_broker_is_left_alone_and_reading_goes_on(
    spark: SparkSession, kafka_broker: Broker, tmp_path: Path
) -> None:
    directory = copy_of(fixture("kraft-before"), tmp_path / "logs")
    earlier = copy_of(directory / "orders-0", tmp_path / "orders-0")
    kafka_broker.start(directory, log_cleaner_enable="false")
    pid = kafka_broker("status", directory).split()[1]
    before = logs(directory / "orders-0")
    result = clean(directory, exits=3)
    assert f"{directory} is held by java (pid {pid})" in result.stderr
    assert logs(directory / "orders-0") == before
    assert not list(directory.rglob(WORK_FOLDER))
    for verb, *options in (*READING, ("verify", str(earlier))):
        done = (
            run(verb, *options, directory / "orders-0", exits=None)
            if verb == "verify"
            else run(verb, directory, *options, exits=None)
        )
        assert done.exit_code == 0, f"{verb}: {done.stdout[-500:]}{done.stderr}"
    assert is_held(directory)
    assert kafka_broker("status", directory).startswith("running")
    kafka_broker("stop", directory)
