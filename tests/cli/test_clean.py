"""The command `cordwood clean`: its text, its JSON, its exit codes."""

from __future__ import annotations

import json
import os
import pty
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cordwood.storage.formats import filenames
from tests.command import run, run_alone, start
from tests.fixtures import copy_of, fixture
from tests.fs.disks import HOLD
from tests.logs import batch, make_log

pytestmark = pytest.mark.more

REASONS = (
    "records_superseded",
    "records_without_key",
    "records_aborted",
    "tombstones_expired",
    "markers_expired",
)


def test_without_an_output_it_shows_how_to_see_what_would_happen() -> None:
    result = run("clean", "/var/kafka/my logs", exits=2)
    assert "--output DIR2" in result.stderr
    assert "cordwood plan '/var/kafka/my logs'" in result.stderr


def test_a_clean_is_done_in_one_place(tmp_path: Path) -> None:
    result = run("clean", "--in-place", "--output", tmp_path / "copy", tmp_path, exits=None)
    assert (result.exit_code, "Give only one of --output DIR2" in result.stderr) == (2, True)


@pytest.mark.parametrize("option", [("--keep-old", "old"), ("--no-verify",), ("--work-space", "1m")])
def test_options_of_a_clean_in_place_go_with_it(option: tuple[str, ...], tmp_path: Path) -> None:
    result = run("clean", "--output", tmp_path / "copy", *option, tmp_path, exits=None)
    assert (result.exit_code, f"{option[0]} requires --in-place" in result.stderr) == (2, True)


def test_links_go_with_a_copy(tmp_path: Path) -> None:
    result = run("clean", "--in-place", "--link", tmp_path, exits=None)
    assert (result.exit_code, "--link requires --output" in result.stderr) == (2, True)


def test_it_says_what_was_read_and_kept_and_why_the_rest_was_dropped(spark: SparkSession, tmp_path: Path) -> None:
    result = run("clean", fixture("kraft-before"), "--output", tmp_path / "new", "--topic", "orders", "--single-copy")
    assert result.stderr == ""
    table = result.stdout.splitlines()
    assert table[0].split()[:4] == ["PARTITION", "READ", "KEPT", "SUPERSEDED"]
    assert [line.split()[0] for line in table[1:4]] == ["orders-0", "orders-1", "orders-2"]
    assert "copied unchanged: " in result.stdout
    assert "not asked for" in result.stdout
    summary = " ".join(table[-4:])
    assert "partitions: 3 cleaned, " in summary
    assert " records read, " in summary and " superseded" in summary
    assert f"{tmp_path / 'new'}: " in summary


def test_json_adds_up_and_damage_gives_exit_code_one(spark: SparkSession, tmp_path: Path) -> None:
    source = copy_of(fixture("kraft-before"), tmp_path / "logs")
    log = source / "orders-1" / "00000000000000000000.log"
    data = bytearray(log.read_bytes())
    data[200] ^= 1
    log.write_bytes(data)
    result = run(
        "clean", source, "--output", tmp_path / "new", "--topic", "orders", "--topic", "payments", "--json", exits=1
    )
    document = json.loads(result.stdout)
    assert document["failed"] == 1 and document["cleaned"] == 4
    for one in [document, *document["partitions"]]:
        assert one["records_read"] == one["records_kept"] + sum(one[reason] for reason in REASONS)
    (failed,) = (one for one in document["partitions"] if one["result"] == "failed")
    assert failed["topic"] == "orders" and failed["partition"] == 1
    assert f"in {log} at position" in failed["why"]
    assert document["bytes_read"] > 0 and document["clean_seconds"] > 0


def test_too_little_memory_gives_exit_code_five_and_the_memory_that_is_enough(
    spark: SparkSession, tmp_path: Path
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    batches = [batch(at, (b"%d" % at, b"v")) for at in range(5000)]
    make_log(logs / "t-0", (0, batches[:2500]), (2500, batches[2500:]))
    make_log(logs / "t-1", [batch(0, "a=v"), batch(1, "a=v")], [batch(2)])
    without_map = (logs, "--config", "cleanup.policy=compact", "--json")
    words = (*without_map, "--offset-map", "2400000")
    result = run("clean", *words, "--memory", "50000", "--output", tmp_path / "little", exits=5)
    failed, cleaned = json.loads(result.stdout)["partitions"]
    assert (failed["failure"], cleaned["result"], cleaned["memory"]) == ("memory", "cleaned", None)
    need = failed["memory"]
    assert need["bytes_allowed"] == 50_000 // need["tasks"] < need["bytes_needed"]
    assert need["memory_min"] == need["tasks"] * need["bytes_needed"] <= need["memory_enough"]
    assert f"--memory {need['memory_enough']} is enough" in failed["why"]
    run("clean", *words, "--memory", need["memory_enough"], "--output", tmp_path / "enough")
    # Only Kafka's map has to be in memory as a whole.
    run("clean", *without_map, "--memory", "50000", "--output", tmp_path / "staged")
    run("clean", *without_map, "--output", tmp_path / "one-task")
    for path in (tmp_path / "one-task").rglob("*.log"):
        assert path.read_bytes() == (tmp_path / "staged" / path.relative_to(tmp_path / "one-task")).read_bytes()


def test_wrong_use_gives_exit_code_two(tmp_path: Path) -> None:
    run("clean", "/nowhere/at/all", "--output", tmp_path / "new", exits=2)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    result = run("clean", fixture("kraft-before"), "--output", tmp_path / "full", exits=2)
    assert "not empty" in result.stderr


def test_a_directory_that_a_broker_holds_gives_exit_code_three(tmp_path: Path) -> None:
    source = copy_of(fixture("kraft-jbod-before") / "a", tmp_path / "a")
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(source / filenames.LOCK)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline()
        result = run("clean", source, "--output", tmp_path / "new", exits=None)
        holder.communicate(b"\n")
    assert result.exit_code == 3
    assert os.listdir(tmp_path) == ["a"]


# ---- real processes --------------------------------------------------------------------------------------------------


def tree(root: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in [root, *root.rglob("*")]}


@pytest.mark.slow
def test_a_disk_without_room_gives_exit_code_four_and_leaves_nothing(tmp_path: Path) -> None:
    source = fixture("kraft-before")
    before = tree(source)

    def no_large_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    words = ("clean", source, "--output", tmp_path / "new", "--topic", "large")
    run_alone(*words, exits=4, preexec_fn=no_large_files)
    assert os.listdir(tmp_path) == []
    assert tree(source) == before


@pytest.mark.slow
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_leaves_nothing(tmp_path: Path, sent: signal.Signals, code: int) -> None:
    # cases 64, 145
    source = fixture("kraft-before")
    before = tree(source)
    with start("clean", source, "--output", tmp_path / "new", start_new_session=True) as running:
        deadline = time.monotonic() + 200
        # As soon as a task writes something.
        while not list(tmp_path.glob(".new.cordwood-*/outputs/*/*.log")):
            assert running.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        # A terminal sends it to all of the group.
        os.killpg(running.pid, sent) if sent is signal.SIGINT else running.send_signal(sent)
        _, said = running.communicate(timeout=120)
    assert running.returncode == code, said
    assert os.listdir(tmp_path) == []
    assert tree(source) == before
    assert "Traceback" not in said


@pytest.mark.slow
def test_on_a_terminal_it_says_how_far_it_is_and_leaves_no_trace_of_that(tmp_path: Path) -> None:
    terminal, theirs = pty.openpty()
    words = ("clean", fixture("kraft-before"), "--output", tmp_path / "new", "--topic", "segment-mb")
    with start(*words, stderr=theirs) as running:
        os.close(theirs)
        said = b""
        while True:
            try:
                some = os.read(terminal, 4096)
            except OSError:  # the other end is closed
                break
            said += some
            if not some:
                break
        assert running.wait(timeout=200) == 0
    os.close(terminal)
    assert b"1 to clean" in said and b"starting" in said
    assert said.endswith(b"\r")
    assert not said.rstrip(b"\r").rpartition(b"\r")[2].strip()
    assert b"WARN" not in said
