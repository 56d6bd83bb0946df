"""The output of `cordwood ls`, and its exit codes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cordwood.common.text import bytes_text, time_text
from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from tests.command import run
from tests.fixtures import NAMES, copy_of, fixture
from tests.storage.damage_sites import shape_of


def document(*words: object, exits: int = 0) -> dict[str, Any]:
    return dict(run("ls", *words, "--json", exits=exits).json)


def du(path: Path) -> int:
    """Size of a directory on the disk."""
    return int(subprocess.run(["du", "-s", "-B1", path], capture_output=True, text=True, check=True).stdout.split()[0])


@pytest.mark.parametrize("name", ["kraft-after", "kraft-jbod-before", "kraft-crashed-swapping", "legacy-v1-before"])
def test_all_bytes_on_disk_are_what_du_sees(name: str) -> None:
    broker = fixture(name)
    listing = document(broker)
    for partition in listing["partitions"]:
        assert partition["disk_bytes"] == du(Path(partition["path"]))
    for directory in listing["directories"]:
        partitions = [one for one in listing["partitions"] if one["path"].startswith(f"{directory['path']}/")]
        total = directory["own_bytes"] + sum(one["disk_bytes"] for one in partitions)
        others = [path for path in Path(directory["path"]).iterdir() if path.is_dir()]
        unlisted = sum(du(path) for path in others if str(path) not in {one["path"] for one in partitions})
        assert total + unlisted == du(Path(directory["path"]))


def test_a_file_with_two_names_counts_once(tmp_path: Path) -> None:
    broker = copy_of(fixture("kraft-jbod-before") / "a", tmp_path / "broker")
    log = next((broker / "disk-1-0").glob("*.log"))
    os.link(log, broker / "disk-1-0" / "twin.bin")
    (partition,) = document(broker, "--partition", "disk-1-0")["partitions"]
    assert partition["disk_bytes"] == du(broker / "disk-1-0")


@pytest.mark.parametrize(
    ("order", "key"),
    [
        ("disk", lambda one: -one["disk_bytes"]),
        ("size", lambda one: -one["size_bytes"]),
        ("dirty", lambda one: -(one["dirty_bytes"] or 0)),
        ("clean", lambda one: -(one["clean_bytes"] or 0)),
        ("records", lambda one: -one["records"]),
        ("segments", lambda one: -one["segments"]),
        ("oldest", lambda one: (one["oldest_ms"] is None, one["oldest_ms"] or 0)),
        ("newest", lambda one: (one["newest_ms"] is None, -(one["newest_ms"] or 0))),
    ],
)
def test_partitions_and_topics_stand_in_the_order_that_is_asked_for(order: str, key: Any) -> None:
    listing = document(fixture("kraft-after"), "--sort", order)
    usual = document(fixture("kraft-after"))
    for rows in ("partitions", "topics"):
        assert listing[rows] == sorted(usual[rows], key=key)
        assert len({str(key(one)) for one in listing[rows]}) > 2
    assert (
        "--sort shape: give one of name, disk" in run("ls", fixture("kraft-after"), "--sort", "shape", exits=2).output
    )


def test_topics_have_the_sums_of_their_partitions() -> None:
    listing = document(fixture("kraft-after"))
    orders = next(one for one in listing["topics"] if one["topic"] == "orders")
    partitions = [one for one in listing["partitions"] if one["topic"] == "orders"]
    assert orders["partition_count"] == len(partitions) > 1
    for name in ("segments", "size_bytes", "disk_bytes", "records", "clean_bytes", "dirty_bytes"):
        assert orders[name] == sum(one[name] for one in partitions) > 0
    lines = run("ls", fixture("kraft-after"), "--by", "topic").output.splitlines()
    titles = "TOPIC PARTITIONS OF THESE SEGMENTS BYTES ON DISK RECORDS POLICY CLEAN DIRTY"
    assert " ".join(lines[3].split()).startswith(titles)
    assert len([line for line in lines if line.startswith("orders ")]) == 1
    assert "give one of them" in run("ls", fixture("kraft-after"), "--by", "topic", "--segments", exits=2).output


def test_a_topic_says_how_much_of_it_is_on_its_way_out(tmp_path: Path) -> None:
    broker = copy_of(fixture("kraft-after"), tmp_path / "broker")
    (broker / "orders-0").rename(broker / f"orders-0.{'0' * 32}-delete")
    (broker / "orders-1").rename(broker / f"orders-1.{'1' * 32}-delete")
    size = sum(one["disk_bytes"] for one in document(broker)["partitions"] if one["path"].endswith("-delete"))
    (orders,) = (one for one in document(broker)["topics"] if one["topic"] == "orders")
    assert orders["states"] == [{"state": "to be deleted", "partition_count": 2, "disk_bytes": size}]
    lines = {
        line.split()[0]: line
        for line in run("ls", broker, "--by", "topic").output.splitlines()
        if line and line[0] != " "
    }
    assert " PARTITIONS  OF THESE " in lines["TOPIC"]
    assert " 2 to be deleted (" in lines["orders"]
    assert " to be deleted" not in lines["sessions"]


@pytest.mark.parametrize("name", NAMES)
def test_json_of_every_fixture_has_the_bytes_and_segments_that_its_broker_left(name: str) -> None:
    damaged = name == "kraft-crashed-torn"
    found = document(fixture(name), exits=1 if damaged else 0)
    assert [one["path"] for one in found["partitions"] if one["damage"]] == (
        [f"{fixture(name)}/moving-0"] if damaged else []
    )
    shape = {os.path.relpath(one["path"], fixture(name)): one for one in found["partitions"]}
    swapped = {"crash-0"} if re.fullmatch("kraft-crashed-(swap|swapping)", name) else set()
    for path, expected in shape_of(name).items():
        if path not in swapped:  # shown as it will be once the swap is finished
            assert {"bytes": shape[path]["size_bytes"], "segments": shape[path]["segments"]} == expected
    totals = found["totals"]
    assert totals["partitions"] == len(shape) == len(shape_of(name))
    for key in ("segments", "size_bytes", "records"):
        assert totals[key] == sum(one[key] for one in found["partitions"])


def test_a_line_of_json_says_all_there_is_to_say() -> None:
    broker = fixture("kraft-jbod-after")
    found = document(broker, "--topic", "disk-1", "--segments")
    assert [(one["path"], one["state"], one["node_id"]) for one in found["directories"]] == [
        (f"{broker}/a", None, 1),
        (f"{broker}/b", None, 1),
    ]
    (partition,) = found["partitions"]
    first, *_, last = partition.pop("by_segment")
    usage, disk_bytes = partition["usage"], du(broker / "a" / "disk-1-0")
    assert partition == {
        "path": f"{broker}/a/disk-1-0",
        "topic": "disk-1",
        "partition": 0,
        "broker": "1",
        "role": "eligible",  # its stopped broker may lead next
        "state": [],
        "segments": 9,
        "size_bytes": 3765,
        "log_start_offset": 0,
        "log_end_offset": 406,
        "records": 64,
        "records_exact": True,
        "records_error": 0,
        "estimates": [],
        "policy": ["compact"],
        "policy_source": f"topic disk-1 in {broker}/a/__cluster_metadata-0",
        "replicas": 1,
        "first_dirty_offset": 362,
        "clean_bytes": 1467,
        "dirty_bytes": 2298,
        "index_bytes": 0,
        "disk_bytes": disk_bytes,
        "disk_share": pytest.approx(disk_bytes / os.statvfs(broker).f_blocks / os.statvfs(broker).f_frsize),
        "usage": usage,
        "remote": None,
        "codecs": ["none"],
        "oldest_ms": 1795242951624,
        "newest_ms": 1795242952090,
        "damage": [],
        "recovery": [],
        "notes": [],
        "unreadable": [],
    }
    assert (first["base_offset"], first["files"]) == (0, ["log", "index", "timeindex"])
    assert last == {
        "base_offset": 362,
        "size_bytes": 2298,
        "batches": 13,
        "records": 44,
        "records_exact": True,
        "records_error": 0,
        "estimates": [],
        "last_offset": 405,
        "max_timestamp_ms": 1795242952090,
        "oldest_ms": 1795242951915,
        "newest_ms": 1795242952090,
        "codecs": ["none"],
        "index_entries": {"index": 0, "timeindex": 1},
        "files": ["log", "index", "timeindex", "snapshot"],
        "place": None,
        "damage": [],
        "unreadable": None,
    }


def test_the_table_is_aligned_and_ends_with_totals_and_notes() -> None:
    broker = fixture("kraft-jbod-before")
    lines = run("ls", broker, "--topic", "disk-0").output.splitlines()
    assert lines[:4] == [
        f"{broker}/a: node 1, clean shutdown",
        f"{broker}/b: node 1, clean shutdown",
        f"metadata: {broker}/a/__cluster_metadata-0, up to offset 92",
        "",
    ]
    # Blocks differ between disks; `test_all_bytes_on_disk_are_what_du_sees` is about them.
    lines = [re.sub(r"(?<=kB)  +[\d.]+ kB(?=  +0  )|, [\d.]+ kB on disk", "", line) for line in lines]
    assert [" ".join(line.split()) for line in lines[4:8]] == [
        "PARTITION STATE SEGMENTS BYTES ON DISK START NEXT RECORDS POLICY CLEAN DIRTY CODECS OLDEST (UTC) NEWEST (UTC)",
        "disk-0-0 - 5 12.0 kB 0 185 185 compact (topic) 0 B 12.0 kB none 2026-11-21 06:35:50 2026-11-21 06:35:52",
        "disk-0-1 - 5 11.8 kB 0 174 174 compact (topic) 0 B 11.8 kB none 2026-11-21 06:35:50 2026-11-21 06:35:52",
        "disk-0-1 future 2 4.8 kB 0 68 68 compact (topic) - - none 2026-11-21 06:35:50 2026-11-21 06:35:51",
    ]
    assert len({line.index("2026") for line in lines[5:8]}) == 1
    assert lines[8:10] == ["", "3 partitions, 12 segments, 28.5 kB, 427 records"]
    assert re.fullmatch(rf"disk-0-1: is being copied to {broker}/b/disk-0-1\.[0-9a-f]+-future", lines[10])


def test_key_indexes_have_a_column_if_there_are_some(tmp_path: Path) -> None:
    broker = copy_of(fixture("kraft-jbod-before"), tmp_path / "broker")
    partitions = sorted(broker.glob("*/disk-1-0"))
    folder = partitions[0] / ".cordwood" / "index"
    folder.mkdir(parents=True)
    (folder / f"{0:020d}.keyhashes").write_bytes(b"x" * 300)
    (folder / "other").write_bytes(b"x")
    lines = [" ".join(line.split()) for line in run("ls", broker, "--topic", "disk-1").output.splitlines()[4:6]]
    assert " CLEAN DIRTY KEY INDEX CODECS " in lines[0]
    assert " 0 B 21.5 kB 300 B (1.4%) none " in lines[1]
    (value,) = run("ls", broker, "--topic", "disk-1", "--partition", "disk-1-0", "--json").json["partitions"]
    assert value["index_bytes"] == 300


@pytest.mark.parametrize("command", [["ls"], ["plan"], ["dump"], ["get", "--key", "a"]], ids=lambda one: one[0])
def test_a_misspelled_topic_is_answered_with_what_is_more_alike(command: list[str]) -> None:
    broker = fixture("kraft-after")
    done = run(*command, broker, "--topic", "order", exits=2)
    assert done.stderr == f"cordwood: No partition in {broker} matches order; did you mean orders?\n"
    other = run(*command, broker, "--topic", "orders", "--partition", "9", exits=2)
    assert other.stderr == f"cordwood: No partition in {broker} matches orders, 9\n"


def test_segments_have_a_line_each() -> None:
    lines = run("ls", fixture("kraft-jbod-after"), "--segments", "--partition", "disk-1-0").output.splitlines()
    header = next(line for line in lines if line.startswith("PARTITION"))
    assert " ".join(header.split()) == (
        "PARTITION BASE OFFSET LAST BYTES BATCHES RECORDS MAX TIMESTAMP (UTC) CODECS INDEX ENTRIES FILES"
    )
    rows = [line for line in lines if line.startswith("disk-1-0 ")]
    assert len(rows) == 9
    assert rows[-1].split("  ")[-2:] == ["index 0 timeindex 1", "log index timeindex snapshot"]


def test_who_said_the_policy_is_told_in_a_word(tmp_path: Path) -> None:
    settings = tmp_path / "server.properties"
    settings.write_text("log.cleanup.policy=compact\n")
    old = fixture("legacy-v1-before")

    def policy(*words: object) -> str:
        line = next(line for line in run("ls", *words).output.splitlines() if re.match("v1-none-0|empty-0|t-0", line))
        return str(re.findall(r"[\w,]+ \([^)]*\)", line)[0])

    assert policy(old) == "unknown (no metadata log)"
    assert policy(old, "--server-properties", settings) == "compact (server.properties)"
    assert policy(old, "--config", "v1-none:cleanup.policy=compact,delete") == "compact,delete (--config)"
    assert policy(fixture("kraft-before")) == "compact (topic)"
    assert "no metadata log, so policies are unknown" in run("ls", old).output


def test_a_crashed_brokers_directory_says_so_and_damage_says_what_to_run() -> None:
    broker = fixture("kraft-crashed-torn")
    text = run("ls", broker, exits=1).output
    assert text.startswith(f"{broker}: node 1, no clean shutdown\n")
    assert re.search("^moving-0 +crashed, damaged, will be cut ", text, re.MULTILINE)
    assert re.search(
        r"^moving-0: a batch of 581 bytes starts here, but the file ends after 576 \(576 bytes\) in \S+\.log "
        rf"at position 2918; run: cordwood check {broker}/moving-0$",
        text,
        re.MULTILINE,
    )
    assert "short-0: the recovery at the next start changes 1 file\n" in text


def test_names_from_disk_cannot_command_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "evil\x1b[2J-0"
    path.mkdir()
    (path / f"{0:020d}.log").write_bytes(encode_batch([Record(0, 1, b"k", b"v")]))
    text = run("ls", tmp_path).output
    assert "\x1b" not in text and r"evil\x1b[2J-0" in text
    assert document(tmp_path)["partitions"][0]["topic"] == "evil\x1b[2J"


def test_a_dot_is_the_partition_one_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(fixture("kraft-before") / "orders-1")
    assert [(one["topic"], one["partition"]) for one in document(".")["partitions"]] == [("orders", 1)]
    above = document("..", "--partition", "orders-*")["partitions"]
    assert [one["path"] for one in above] == [f"{fixture('kraft-before')}/orders-{number}" for number in range(3)]
    monkeypatch.chdir(fixture("kraft-before"))
    assert [one["path"] for one in document("orders-1")["partitions"]] == ["orders-1"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["/nothing-here"], "cordwood: /nothing-here does not exist"),
        (["{}", "--topic", "nothing"], "matches nothing"),
        (
            ["{}", "--config", "cleanup.policy=shred"],
            "cleanup.policy=shred (--config) is not a value that Kafka accepts",
        ),
        (["{}/meta.properties"], "is a file, not a directory. To see what is in it:  cordwood dump"),
        ([], "Missing argument"),
    ],
)
def test_what_cannot_be_done_ends_with_status_2_and_a_sentence(words: list[str], says: str) -> None:
    filled = [word.format(fixture("kraft-before")) for word in words]
    assert says in run("ls", *filled, exits=2).output


def test_a_name_too_long_for_its_column_has_a_line_of_its_own() -> None:
    lines = run("ls", fixture("kraft-before"), "--partition", "go*").output.splitlines()
    long = next(i for i, line in enumerate(lines) if len(line) > 200)
    assert re.fullmatch("go{200}ne-0", lines[long])
    assert lines[long + 1].startswith(" " * 11 + "to be deleted ")


def test_a_log_directory_without_partitions_is_an_empty_table(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("node.id=7\nversion=1\ncluster.id=c\n")
    lines = run("ls", tmp_path).output.splitlines()
    assert lines[0] == f"{tmp_path}: node 7, not in use"
    assert lines[2].startswith("PARTITION  STATE  SEGMENTS  BYTES  ON DISK")
    assert lines[3:] == ["", "0 partitions, 0 segments, 0 B, 0 B on disk, 0 records"]


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (None, "-"),
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (1_234_567_890, "1.2 GB"),
        (2**63, "9.2 EB"),
        (10**22, "10000.0 EB"),
    ],
)
def test_bytes_for_people(size: int | None, text: str) -> None:
    assert bytes_text(size) == text


@pytest.mark.parametrize(
    ("time", "text"),
    [(None, "-"), (0, "1970-01-01 00:00:00"), (253402300799999, "9999-12-31 23:59:59"), (2**62, f"{2**62} ms")],
)
def test_times_for_people(time: int | None, text: str) -> None:
    assert time_text(time) == text


@pytest.mark.more
def test_a_listing_imports_neither_arrow_nor_spark_nor_rich_and_takes_a_second() -> None:
    # Seconds of the processor, not of the clock: other work on the machine must not fail it. The first run may compile.
    program = (
        "import sys, resource; from cordwood.cli.main import app\n"
        "try: app(['ls', sys.argv[1]])\n"
        "except SystemExit: pass\n"
        "used = resource.getrusage(resource.RUSAGE_SELF)\n"
        "heavy = {'pyarrow', 'pyspark', 'pandas', 'rich', 'hypothesis'} & {*sys.modules}\n"
        "print(used.ru_utime + used.ru_stime, *sorted(heavy))"
    )
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    spent = []
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", program, fixture("kraft-before")],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
        )
        seconds, *heavy = done.stdout.splitlines()[-1].split()
        assert heavy == []
        spent.append(float(seconds))
    assert min(spent) < 2, spent  # a second on an idle machine
