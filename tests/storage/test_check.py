"""Findings of a check in directories of real brokers, in live ones, and in arbitrary bytes."""

from __future__ import annotations

import os
import shutil
import threading
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cordwood
from cordwood.common.errors import NotFoundError
from cordwood.common.types import Codec
from cordwood.fs.posix import PosixFileSystem
from cordwood.record.batch import encode_batch, seal
from cordwood.record.record import Record
from cordwood.storage.check import KINDS, Check, Finding, Kind, Severity
from cordwood.storage.check.findings import FINDINGS_MAX, Findings
from cordwood.storage.check.partition import PartitionCheck
from cordwood.storage.formats.filenames import DirectoryState
from cordwood.storage.log.loaded import Stop
from cordwood.storage.log.view import LogView
from cordwood.storage.node.directory import LogDirectory
from tests.fixtures import STOPPED, copy_of, facts, fixture
from tests.kafka_tools import Broker
from tests.knobs import in_turns
from tests.storage.damage_sites import FIRST, batch, built, check, damages, flip, site
from tests.storage.in_place import make_directory

pytestmark = pytest.mark.more

#: Old and new brokers, cleaned and not, one and two log directories, recovered from a crash. Other fixtures are slow.
SOME = (
    "kraft-classic-after-2",
    "kraft-crashed-torn-recovered",
    "kraft-jbod-before",
    "kraft-jbod-after",
    "legacy-mixed-after",
    "legacy-mixed-after-4.3.1",
    "legacy-v0-after",
    "legacy-v1-before",
    "other-clients-after",
)


@pytest.mark.parametrize("name", in_turns(STOPPED, *SOME))
def test_nothing_is_found_in_what_a_broker_left_in_good_order(name: str) -> None:
    assert check(fixture(name)) == []


def test_what_cannot_be_read_is_found_once_and_nothing_is_concluded_from_it(tmp_path: Path) -> None:
    partition = copy_of(fixture("kraft-classic-before"), tmp_path / "logs") / "payments-0"
    names = [f"{FIRST}.timeindex", f"{FIRST}.txnindex", "leader-epoch-checkpoint", "partition.metadata"]
    for name in names:
        (partition / name).unlink()
        os.mkfifo(partition / name)
    (partition.parent / "recovery-point-offset-checkpoint").unlink()
    (partition.parent / "recovery-point-offset-checkpoint").mkdir()
    assert sorted((Path(one.path).name, one.kind, one.what) for one in check(partition)) == [
        *((name, Kind.UNREADABLE, "cannot be read: Not a regular file but a FIFO, socket or device") for name in names),
        ("recovery-point-offset-checkpoint", Kind.UNREADABLE, "cannot be read: Is a directory"),
    ]


def test_a_path_that_is_named_twice_is_checked_once(tmp_path: Path) -> None:
    directory = str(fixture("kraft-jbod-before"))
    found = Check(PosixFileSystem())
    assert list(found.run([directory, f"{directory}/"])) == []
    assert found.summary.partitions.total() == 10


def test_a_leader_epoch_below_none_is_found(tmp_path: Path) -> None:
    partition = built(tmp_path, batch(0), batch(1)[:12] + b"\xff\xff\xff\xfe" + batch(1)[16:])
    assert [(one.kind, one.offset, one.what) for one in check(partition)] == [
        (Kind.BATCH_LEADER_EPOCH, 1, "leader epoch -2")
    ]


def test_the_python_function_gives_findings_that_print_well(tmp_path: Path) -> None:
    partition = site("orders", tmp_path)
    flip(f"{FIRST}.log", 943)(partition)
    (finding,) = cordwood.check(str(partition.parent))
    assert str(finding).startswith(
        f"damage batch-crc in {partition}/{FIRST}.log at position 882 (offset 13): CRC-32C mis"
    )
    assert finding.severity is cordwood.Severity.DAMAGE


def test_the_result_shows_itself_in_a_notebook_as_the_command_prints_it(tmp_path: Path) -> None:
    partition = site("orders", tmp_path)
    flip(f"{FIRST}.log", 943)(partition)
    result = cordwood.check(str(partition.parent))
    assert result._repr_html_().startswith(f"<pre>{result.start.line}\n\nERRORS: a broker would")
    assert result.document()["summary"]["damage"] == len(result) == 1


def test_a_partition_that_is_named_beside_its_directory_is_checked_once(tmp_path: Path) -> None:
    partition = site("orders", tmp_path)
    for paths in ([partition, partition.parent], [partition.parent, partition]):
        assert cordwood.check(*map(str, paths)).summary.partitions.total() == 1


@pytest.mark.parametrize("data", [b"", b"written.ms=x\n", b"written.ms=5\nretention.ms=abc\n", b"\\uzzzz"])
def test_remembered_configs_that_cannot_be_read_are_a_note(data: bytes, tmp_path: Path) -> None:
    partition = site("orders", tmp_path)
    (partition / "cordwood.properties").write_bytes(data)
    (finding,) = cordwood.check(str(partition))
    assert (finding.kind, finding.severity) == (Kind.LOG_CONFIGS_UNREADABLE, cordwood.Severity.NOTE)
    (partition / "cordwood.properties").write_text("written.ms=5\nretention.ms=7\n")
    assert cordwood.check(str(partition)) == []


def test_a_directory_in_the_place_of_remembered_configs_is_no_damage(tmp_path: Path) -> None:
    partition = site("orders", tmp_path)
    (partition / "cordwood.properties").mkdir()
    findings = cordwood.check(str(partition))
    assert {finding.kind for finding in findings} == {Kind.FOREIGN_FILE, Kind.LOG_CONFIGS_UNREADABLE}
    assert not findings.summary.damaged


def test_an_empty_checkpoint_of_log_start_offsets_is_as_kafka_creates_it(tmp_path: Path) -> None:
    directory = site("orders", tmp_path).parent
    (directory / "log-start-offset-checkpoint").write_bytes(b"")
    assert cordwood.check(str(directory)) == []


# ---- crashes ---------------------------------------------------------------------------------------------------------


def crashed(state: str) -> list[Finding]:
    return check(fixture(f"kraft-crashed-{state}"))


def by_kind(findings: list[Finding], kind: Kind) -> list[str]:
    return ["/".join(finding.path.split("/")[-2:]) for finding in findings if finding.kind is kind]


def test_a_kill_in_the_middle_of_writes_leaves_full_size_indexes_and_nothing_worse() -> None:
    found = crashed("writes")
    assert {(f.kind, f.severity) for f in found} == {(Kind.INDEX_PADDED, Severity.RECOVERY)}
    # The active segment of each of the ten partitions, both indexes.
    assert len(found) == 20


def test_each_damage_done_to_the_torn_directory_is_explained_where_it_was_done() -> None:
    assert set(facts("kraft-crashed")["torn"]) == {
        "crash-0", "full-index-0", "moving-0", "plain-0", "plain-1", "short-0", "trans-0",
    }  # fmt: skip
    found = [
        (f.severity.value, f.kind.value, "/".join(f.path.split("/")[-2:]), f.position)
        for f in crashed("torn")
        if f.kind is not Kind.INDEX_PADDED
    ]
    listed = sorted(found, key=lambda one: (one[2], one[3] or 0, one[1]))
    index = f"full-index-0/{FIRST}.index"
    assert listed == [
        # last 7 bytes of the active segment cut off
        ("recovery", "torn-tail", f"crash-0/{4421:020d}.log", 585),
        # offset index overwritten with ff bytes; the first entries and a count of the rest; time index removed
        *[("recovery", "offset-index-order", index, position) for position in (0, None, 8, 16)],
        ("recovery", "index-missing", f"full-index-0/{FIRST}.timeindex", None),
        # third segment from the end: last 5 bytes cut off; data behind them will be lost
        ("damage", "torn-segment", f"moving-0/{2374:020d}.log", 2918),
        # 64 zero bytes appended
        ("recovery", "zero-tail", f"plain-0/{2241:020d}.log", 2311),
        # one bit flipped in the middle of the active segment
        ("damage", "batch-crc", f"plain-1/{217:020d}.log", 1459),
        # offset index of the first segment removed, newest producer snapshot with a flipped bit
        ("recovery", "index-missing", f"short-0/{FIRST}.index", None),
        ("recovery", "snapshot-unreadable", f"short-0/{553:020d}.snapshot", 2),
        # newest transaction index cut in the middle of its last entry
        ("recovery", "index-size", f"trans-0/{203:020d}.txnindex", 0),
        ("recovery", "transaction-index-missing", f"trans-0/{203:020d}.txnindex", None),
    ]


def test_half_written_cleaned_files_will_be_deleted() -> None:
    found = crashed("cleaned")
    assert by_kind(found, Kind.LEFTOVER) == [
        f"crash-0/{FIRST}{suffix}.cleaned" for suffix in (".index", ".log", ".timeindex")
    ]
    assert {f.severity for f in found} == {Severity.RECOVERY}


@pytest.mark.parametrize("state", ["swap", "swapping"])
def test_an_interrupted_swap_will_be_finished(state: str) -> None:
    found = crashed(state)
    assert by_kind(found, Kind.SWAP_UNFINISHED) == [
        f"crash-0/{FIRST}{suffix}.swap" for suffix in (".index", ".log", ".timeindex")
    ]
    in_place = [name for name in by_kind(found, Kind.LEFTOVER) if not name.endswith(".deleted")]
    deleted = [name for name in by_kind(found, Kind.LEFTOVER) if name.endswith(".deleted")]
    assert in_place, "old segments that the swapped one replaces"
    assert len(in_place) > len(deleted) if state == "swap" else deleted
    assert {f.severity for f in found} == {Severity.RECOVERY}


def test_after_the_swap_only_old_segments_wait_to_be_deleted() -> None:
    found = crashed("swapped")
    assert not by_kind(found, Kind.SWAP_UNFINISHED)
    leftovers = by_kind(found, Kind.LEFTOVER)
    assert leftovers
    assert all(name.startswith("crash-0/") and name.endswith(".deleted") for name in leftovers)
    assert {f.severity for f in found} == {Severity.RECOVERY}


def test_torn_last_batch_is_damage_only_below_the_recovery_point(tmp_path: Path) -> None:
    partition = site("orders", tmp_path)
    (partition.parent / ".kafka_cleanshutdown").unlink()
    log = partition / f"{484:020d}.log"
    data = log.read_bytes()
    log.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    # Its recovery point is the log's end, so the batch was on disk once.
    assert damages(check(partition.parent), partition) == [("batch-crc", log.name, 1813, 510)]
    (partition.parent / "recovery-point-offset-checkpoint").write_text("0\n1\norders 0 490\n")
    found = check(partition.parent)
    assert damages(found, partition) == []
    assert ("batch-crc", 1813) in [(f.kind, f.position) for f in found]


# ---- Odd but harmless directories ------------------------------------------------------------------------------------


def test_odd_and_harmless_things_are_notes(tmp_path: Path) -> None:
    partition = site("orders", tmp_path)
    directory = partition.parent
    (partition / "notes.txt").write_text("mine")
    (directory / "README").write_text("mine")
    (directory / ".kafka_cleanshutdown").write_text("{")
    (directory / "cleaner-offset-checkpoint").write_text("0\n1\ngone 0 5\n")
    shutil.copytree(partition, directory / f"orders-0.{'a' * 32}-future")
    log = partition / f"{484:020d}.log"
    data = log.read_bytes()
    # The last batch; attributes are at its byte 21.
    log.write_bytes(data[:1813] + seal(data[1813:1834] + b"\x40\x00" + data[1836:]))
    assert Counter(f.kind for f in check(directory)) == {
        Kind.ATTRIBUTES: 1,
        Kind.CHECKPOINT_PARTITION: 1,
        Kind.CLEAN_SHUTDOWN: 1,
        Kind.FOREIGN_FILE: 3,
        Kind.FUTURE_TWIN: 1,
    }


@pytest.mark.parametrize(
    "name",
    [
        "leader-epoch-checkpoint",
        "partition.metadata",
        f"{484:020d}.log",
        f"{484:020d}.index",
        f"{175:020d}.snapshot",
        f"{600:020d}.log.swap",
        "../recovery-point-offset-checkpoint",
        "../log-start-offset-checkpoint",
        "../meta.properties",
    ],
)
def test_irregular_file_is_reported_and_everything_else_is_checked(name: str, tmp_path: Path) -> None:
    partition = site("orders", tmp_path)
    other = partition.parent / "other-0"
    other.mkdir()
    (other / f"{FIRST}.log").write_bytes(b"\xff" * 100)
    (partition / name).unlink(missing_ok=True)
    os.mkfifo(partition / name)
    (partition.parent / ".kafka_cleanshutdown").unlink()
    found = check(partition.parent)
    assert Kind.UNREADABLE in [f.kind for f in found]
    assert str(other / f"{FIRST}.log") in [f.path for f in found]


def test_a_vote_that_cannot_be_read_is_damage(tmp_path: Path) -> None:
    partition = site("orders", tmp_path)
    (partition / "quorum-state").write_text("{}")
    assert damages(check(partition.parent), partition) == [("quorum-state", "quorum-state", None, None)]


def test_what_is_wrong_in_a_deleted_directory_is_a_note(tmp_path: Path) -> None:
    partition = site("orders", tmp_path)
    log = partition / f"{FIRST}.log"
    log.write_bytes(log.read_bytes()[:-5])
    partition.rename(partition.parent / f"orders-0.{'a' * 32}-delete")
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        (partition.parent / name).unlink()
    assert {f.severity for f in check(partition.parent)} == {Severity.NOTE}


# ---- paths -----------------------------------------------------------------------------------------------------------


def test_a_single_file_is_checked_against_its_neighbours_and_they_are_not_reported(tmp_path: Path) -> None:
    partition = site("orders", tmp_path)
    index, log = partition / f"{FIRST}.index", partition / f"{484:020d}.log"
    data = bytearray(index.read_bytes())
    data[8:12] = (37).to_bytes(4, "big")
    index.write_bytes(data)
    log.write_bytes(log.read_bytes()[:-1])
    assert [f.kind for f in check(index)] == [Kind.OFFSET_INDEX_OFFSET]
    assert [f.kind for f in check(log)] == [Kind.TORN_TAIL]
    assert check(partition / f"{FIRST}.log") == []
    assert len(check(index, log)) == 2


@pytest.mark.parametrize("name", ["leader-epoch-checkpoint", "partition.metadata", f"{175:020d}.snapshot"])
def test_each_small_file_can_be_named_alone(name: str, tmp_path: Path) -> None:
    partition = site("orders", tmp_path)
    assert check(partition / name) == []
    (partition / name).write_bytes(b"\xff")
    assert {f.path for f in check(partition / name)} == {str(partition / name)}


def test_a_checkpoint_named_alone_is_compared_with_the_logs(tmp_path: Path) -> None:
    partition = site("orders", tmp_path)
    path = partition.parent / "replication-offset-checkpoint"
    assert check(path) == []
    path.write_text("0\n1\norders 0 527\n")
    assert [f.kind for f in check(path)] == [Kind.CHECKPOINT_BEYOND_END]


def test_a_partition_is_judged_by_the_log_directory_that_it_lies_in(tmp_path: Path) -> None:
    partition = site("orders", tmp_path)
    assert check(partition) == []
    with open(partition / f"{484:020d}.index", "ab") as index:
        index.write(bytes(80))
    assert [f.severity for f in check(partition)] == [Severity.DAMAGE]
    (partition.parent / ".kafka_cleanshutdown").unlink()
    assert [f.severity for f in check(partition)] == [Severity.RECOVERY]


def test_what_does_not_exist_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        check(tmp_path / "nothing")


def test_a_partition_in_two_log_directories_of_one_node_is_damage(tmp_path: Path) -> None:
    node = copy_of(fixture("kraft-jbod-before"), tmp_path / "node")
    shutil.copytree(node / "a" / "disk-1-0", node / "b" / "disk-1-0")
    found = [f for f in check(node) if f.severity is Severity.DAMAGE]
    assert [(f.kind, f.path) for f in found] == [(Kind.DUPLICATE_PARTITION, str(node / "b" / "disk-1-0"))]


def test_copies_of_a_log_directory_are_not_taken_for_two(tmp_path: Path) -> None:
    copy_of(fixture("kraft-jbod-before") / "a", tmp_path / "copy")
    assert check(fixture("kraft-jbod-before") / "a", tmp_path / "copy") == []


def test_the_summary_counts_what_was_looked_at() -> None:
    checking = Check(PosixFileSystem())
    assert list(checking.run([str(fixture("kraft-jbod-before"))])) == []
    assert checking.summary.partitions == {DirectoryState.CURRENT: 9, DirectoryState.FUTURE: 1}
    assert checking.summary.files == 213
    assert checking.bytes_total == checking.summary.size_bytes
    assert not checking.summary.damaged


def test_a_topic_id_that_the_cluster_does_not_know_is_damage(tmp_path: Path) -> None:
    directory = copy_of(fixture("kraft-jbod-before"), tmp_path / "logs") / "a"
    other = (directory / "disk-2-0" / "partition.metadata").read_bytes()
    (directory / "disk-1-0" / "partition.metadata").write_bytes(other)
    assert damages(check(directory), directory) == [("topic-id", "disk-1-0/partition.metadata", None, None)]


def test_damage_in_one_partition_does_not_keep_others_from_being_checked(tmp_path: Path) -> None:
    directory = copy_of(fixture("kraft-jbod-before") / "a", tmp_path / "a")
    for name in ("disk-0-1", "disk-1-0", "disk-2-0"):
        for log in (directory / name).glob("*.log"):
            log.write_bytes(b"\xff" * 100)
    assert {Path(f.path).parent.name for f in check(directory) if f.severity is Severity.DAMAGE} >= {
        "disk-0-1", "disk-1-0", "disk-2-0",
    }  # fmt: skip


# ---- a broker that runs ----------------------------------------------------------------------------------------------


def live(partition: Path) -> list[Finding]:
    return watched(LogView(str(partition), live=True, fs=PosixFileSystem()))


def watched(log: LogView) -> list[Finding]:
    findings = Findings()
    PartitionCheck(log, Stop(live=True), findings, lambda _: None).run()
    return findings.take()


def test_a_log_that_grows_is_read_up_to_its_first_incomplete_batch(tmp_path: Path) -> None:
    partition = site("orders", tmp_path)
    log, index = partition / f"{484:020d}.log", partition / f"{484:020d}.index"
    data = log.read_bytes()
    for name in (f"{526:020d}.snapshot", f"{484:020d}.timeindex"):
        (partition / name).unlink()
    index.write_bytes(bytes(800))
    for size in range(0, len(data), 97):
        log.write_bytes(data[:size])
        assert live(partition) == []


def test_files_that_vanish_while_a_broker_runs_are_no_finding(tmp_path: Path) -> None:
    partition = site("orders", tmp_path)
    log = LogView(str(partition), live=True, fs=PosixFileSystem())
    for name in partition.glob(f"{FIRST}*"):
        name.unlink()
    assert watched(log) == []


def test_nothing_is_found_while_a_broker_writes_rolls_cleans_and_deletes(kafka_broker: Broker, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    kafka_broker.start(
        directory, log_cleaner_backoff_ms=100, log_cleaner_min_cleanable_ratio=0, log_segment_delete_delay_ms=100
    )
    config = {"cleanup.policy": "compact", "internal.segment.bytes": "20000", "file.delete.delay.ms": "100"}
    fill = {"do": "fill", "topic": "busy", "partition": 0, "records": 20_000, "keys": 500, "size": 100, "seed": 1}
    commands: list[dict[str, object]] = [{"do": "create_topic", "topic": "busy", "partitions": 1, "config": config}]
    for name, set_to in {"plain": {}, "gzip": {"compression.type": "gzip"}}.items():
        commands += [
            {"do": "producer", "id": name, "config": set_to},
            {**fill, "id": name},
            {"do": "flush", "id": name},
        ]
    commands.append({"do": "producer", "id": "x", "config": {"transactional.id": "x"}})
    for key in range(60):
        send = {"do": "send", "id": "x", "topic": "busy", "partition": 0, "key": f"t{key}", "value": "v"}
        end = "commit" if key % 2 else "abort"
        commands += [{"do": "begin", "id": "x"}, send, {"do": end, "id": "x"}]
    writer = threading.Thread(target=kafka_broker.client, args=(directory, commands))
    writer.start()
    looks = 0
    assert LogDirectory.open(PosixFileSystem(), str(directory)).live
    while writer.is_alive():
        assert check(directory) == []
        looks += 1
    writer.join()
    assert looks > 3, looks
    assert check(directory) == []
    kafka_broker("stop", directory)
    assert check(directory) == []


# ---- any bytes -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log directory with two segments of transactions."""
    partition = site("payments", tmp_path_factory.mktemp("small"))
    for path in partition.iterdir():
        if (path.name[:20].isdigit() and int(path.name[:20]) > 74) or path.name in (
            f"{74:020d}.log",
            f"{74:020d}.index",
        ):
            path.unlink()
    return partition.parent


@settings(max_examples=120)
@given(data=st.data())
def test_no_bytes_in_any_file_make_a_check_fail(small: Path, data: st.DataObject) -> None:
    files = sorted(path for path in small.rglob("*") if path.is_file() and path.name != ".lock")
    path = data.draw(st.sampled_from(files))
    original = path.read_bytes()
    changed = bytearray(original)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(changed)))
        edge = data.draw(st.sampled_from([b"", b"\xff" * 8, b"\x7f" + b"\xff" * 7, b"\x80" + bytes(7), bytes(4)]))
        piece = edge or data.draw(st.binary(max_size=12))
        if data.draw(st.booleans()):
            changed[at : at + len(piece)] = piece
        else:
            del changed[at : at + data.draw(st.integers(0, 200))]
    path.write_bytes(changed)
    try:
        for finding in check(small):
            assert finding.meaning
    finally:
        path.write_bytes(original)


@settings(max_examples=60)
@given(content=st.binary(max_size=200), base_offset=st.sampled_from([0, 1, 2**31, 2**62, 2**63 - 1]))
def test_a_partition_of_arbitrary_bytes_is_reported_not_raised(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, base_offset: int
) -> None:
    partition = built(tmp_path_factory.mktemp("any"), content, base_offset=base_offset)
    for suffix in (".index", ".timeindex", ".txnindex", ".snapshot"):
        (partition / f"{base_offset:020d}{suffix}").write_bytes(content)
    (partition / "leader-epoch-checkpoint").write_bytes(content)
    (partition / "quorum-state").write_bytes(content)
    assert check(partition) or not content


def test_a_file_full_of_damage_gives_a_bounded_report(tmp_path: Path) -> None:
    bad = bytearray(batch(0))
    bad[-1] ^= 1
    partition = built(tmp_path, *[bytes(bad)] * 500, batch(2000))
    found = check(partition)
    assert len(found) == FINDINGS_MAX + 1
    assert found[-1].what == f"{500 - FINDINGS_MAX} more of this kind in this file"


def test_a_batch_that_is_decoded_in_pieces_is_compared_as_a_whole(tmp_path: Path) -> None:
    # Larger than one decoding step, so that its records arrive in several parts.
    records = [Record(i, 1000 + i, b"k", bytes(100_000)) for i in range(60)]
    good = encode_batch(records, codec=Codec.ZSTD)
    assert check(built(tmp_path / "good", good)) == []
    late = encode_batch(records, codec=Codec.ZSTD, max_timestamp=1061)
    assert [f.kind for f in check(built(tmp_path / "late", late))] == [Kind.MAX_TIMESTAMP]


def test_every_kind_says_what_it_means() -> None:
    assert all(meaning and meaning[0].islower() and not meaning.endswith(".") for _, meaning in KINDS.values())


def test_indexes_whose_log_is_going_are_what_a_killed_clean_leaves(tmp_path: Path) -> None:
    # Segments behind the output's range are renamed one by one, each log before its indexes.
    partition = Path(make_directory(PosixFileSystem(), str(tmp_path / "logs")))
    log = sorted(partition.glob("*.log"))[3]

    def severities() -> set[Severity]:
        return {
            found.severity for found in cordwood.check(str(partition.parent)) if found.kind is Kind.INDEX_WITHOUT_LOG
        }

    log.rename(f"{log}.deleted")
    assert severities() == {Severity.RECOVERY}
    Path(f"{log}.deleted").unlink()
    assert severities() == {Severity.DAMAGE}
