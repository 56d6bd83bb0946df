"""`cordwood groups` and `cordwood transactions`: their output and exit codes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import cordwood
from cordwood.cli.demo import unpack
from cordwood.common.types import TopicPartition
from cordwood.storage.formats import checkpoints
from tests.command import run
from tests.fixtures import copy_of, fixture
from tests.logs import batch, write_log
from tests.storage.messages import internal_record, offset_commit

NOW = "1795600000000"


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """The directory of a real broker with groups of all kinds, and open transactions."""
    unpack(tmp_path)
    return tmp_path / "kafka-groups"


# ---- groups ----------------------------------------------------------------------------------------------------------


def test_a_line_per_group_and_if_asked_for_per_member_and_per_partition(cluster: Path) -> None:
    lines = run("groups", cluster).output.splitlines()
    assert lines[:2] == ["__consumer_offsets: all 2 partitions", "__share_group_state: its only partition"]
    rows = {line.split()[0]: line.split() for line in lines[4:9]}
    assert rows["alerts"][1:4] == ["share", "Stable", "-"]
    assert rows["billing"][1:7] == ["classic", "Stable", "range", "2", "2", "3"]
    assert {name: row[1] for name, row in rows.items()} == {
        "alerts": "share", "audit": "consumer", "billing": "classic", "export": "classic", "invoices": "streams",
    }  # fmt: skip
    whole = run("groups", cluster, "--members", "--offsets").output
    assert "active 0_0,0_1,0_2" in whole and "billing-static" in whole
    assert whole.count("orders-0 ") >= 5
    assert "lag counts to the log end of 5 partitions" in whole
    assert "export: the open transaction of producer 2 would commit orders-0 at offset 5" in whole


def test_only_groups_that_are_asked_for(cluster: Path) -> None:
    assert [line.split()[0] for line in run("groups", cluster, "--group", "a*").output.splitlines()[4:6]] == [
        "alerts",
        "audit",
    ]
    assert "No group in" in run("groups", cluster, "--group", "nobody", exits=2).output


def test_json_has_the_same_and_python_too(cluster: Path) -> None:
    document = run("groups", cluster, "--json").json
    listing = cordwood.groups(str(cluster))
    assert document == json.loads(json.dumps(listing.document()))
    assert [one["group"] for one in document["groups"]] == [one.group_id for one in listing.groups]
    assert document["topics"][0] == {"topic": "__consumer_offsets", "partitions": [0, 1], "partition_count": 2}
    (billing,) = (one for one in listing.groups if one.group_id == "billing")
    assert str(billing) == f"billing: classic, Stable, 2 members, lag {billing.lag}"
    assert listing.text().splitlines() == run("groups", cluster).output.splitlines()


def test_one_partition_of_the_topic_tells_its_own_groups_and_that_there_are_others(cluster: Path) -> None:
    lines = run("groups", cluster / "__consumer_offsets-0").output.splitlines()
    assert lines[0] == "__consumer_offsets: 1 of 2 partitions; the others are on other brokers"
    # The lag counts to the logs beside it, all the same.
    assert "lag counts to the log end" in "\n".join(lines)


def test_without_a_metadata_log_names_are_those_of_the_directories(cluster: Path) -> None:
    with_metadata = cordwood.groups(str(cluster)).groups
    shutil.rmtree(cluster / "__cluster_metadata-0")
    lines = run("groups", cluster).output.splitlines()
    assert lines[0] == "__consumer_offsets: 2 partitions; without a metadata log it is not known whether these are all"
    found = cordwood.groups(str(cluster)).groups
    assert [one.members for one in found] == [one.members for one in with_metadata]
    # Without it there may be other replicas, so the checkpoint counts.
    assert "lag counts to the high watermark of 5 partitions" in lines


def test_lag_counts_to_a_high_watermark_where_there_may_be_other_replicas(tmp_path: Path) -> None:
    write_log(tmp_path / "__consumer_offsets-0", [batch(0, *[offset_commit("g", "t", at, 1) for at in range(3)])])
    for partition in (0, 1):
        write_log(tmp_path / f"t-{partition}", [batch(0, "k=v " * 9)])
    (tmp_path / "replication-offset-checkpoint").write_bytes(checkpoints.encode({TopicPartition("t", 0): 4}))
    (group,) = cordwood.groups(str(tmp_path)).groups
    assert [(one.end and (one.end.offset, one.end.source), one.lag) for one in group.offsets] == [
        ((4, "high watermark"), 3), ((9, "log end"), 8), (None, None),
    ]  # fmt: skip
    lines = run("groups", tmp_path).output.splitlines()
    assert lines[-2:] == [
        "lag counts to the high watermark of 1 partition and the log end of 1 partition",
        "1 partition is not here, so the lag there is not known",
    ]
    assert "≥11" in lines[3]


def test_a_group_that_is_ahead_of_one_log_and_behind_another_has_both_lags(tmp_path: Path) -> None:
    commits = [offset_commit("g", "t", 0, 2), offset_commit("g", "t", 1, 16), offset_commit("lost", "t", 2, 16)]
    write_log(tmp_path / "__consumer_offsets-0", [batch(0, *commits)])
    for partition in (0, 1, 2):
        write_log(tmp_path / f"t-{partition}", [batch(0, "k=v " * 9)])
    # A load lowers a high watermark to the end of the log.
    (tmp_path / "replication-offset-checkpoint").write_bytes(checkpoints.encode({TopicPartition("t", 2): 40}))
    lines = run("groups", tmp_path).output.splitlines()
    assert "7, -7" in lines[3] and "-7 " in lines[4]
    assert [line.partition(":")[0] for line in lines[-2:]] == ["g is ahead of t-1 by 7", "lost is ahead of t-2 by 7"]


def test_records_that_cannot_be_read_are_told_and_the_exit_code_is_1(tmp_path: Path) -> None:
    key, value = offset_commit("g", "t", 0, 1)
    assert value is not None
    write_log(tmp_path / "__consumer_offsets-0", [batch(0, (key, value[:-1]), offset_commit("g", "t", 1, 1))])
    output = run("groups", tmp_path, exits=1).output
    assert "not read: OffsetCommitValue of version 3: 8 bytes at byte 17, where 7 are left in" in output
    assert "(offset 0)" in output
    assert [one.partition.partition for one in cordwood.groups(str(tmp_path)).groups[0].offsets] == [1]


def test_a_directory_without_groups_is_refused_in_words(tmp_path: Path) -> None:
    write_log(tmp_path / "t-0", [batch(0)])
    assert "No partition of __consumer_offsets in" in run("groups", tmp_path, exits=2).output


def test_names_from_disk_cannot_touch_the_terminal(tmp_path: Path) -> None:
    write_log(tmp_path / "__consumer_offsets-0", [batch(0, offset_commit("g\x1b[1m", "t\x1b", 0, 1))])
    assert "\x1b" not in run("groups", tmp_path, "--members", "--offsets").output
    assert "g\\x1b[1m" in run("groups", tmp_path).output


# ---- transactions ----------------------------------------------------------------------------------------------------


def test_a_line_per_transaction_and_per_log_that_it_is_open_in(cluster: Path) -> None:
    output = run("transactions", cluster, "--now", NOW).output
    lines = output.splitlines()
    assert lines[0] == "__transaction_state: all 2 partitions"
    assert [line.split()[3] for line in lines[3:7]] == ["hanging", "hanging", "long", "open"]
    assert {line.split()[0] for line in lines[3:7]} == {"-", "payments-1", "payments-2", "payments-3"}
    assert "4 open transactions in 10 logs, 3 transactional ids: 2 hanging, 1 long, 1 open" in lines
    assert any(line.startswith("open: its producer ends it, or its coordinator aborts it") for line in lines)
    assert "  kafka-transactions.sh --bootstrap-server … abort --topic orders --partition 1 --start-offset 30" in lines
    # Only the first transaction of a log holds it back, and the cleaner with it.
    held = [line.split() for line in lines if line.startswith("payments-0  ")]
    assert [(one[2], one[6], one[7]) for one in held] == [("long", "15", "from"), ("hanging", "0", "-")]
    assert "CompleteCommit" not in "\n".join(lines[8:14])
    assert "payments-1 " in run("transactions", cluster, "--now", NOW, "--all").output


def test_json_and_python_have_the_same_transactions(cluster: Path) -> None:
    document = run("transactions", cluster, "--now", NOW, "--json").json
    listing = cordwood.transactions(str(cluster), now_ms=int(NOW))
    assert document == json.loads(json.dumps(listing.document()))
    assert document["now_ms"] == int(NOW) and document["logs"] == 10
    (late,) = listing.with_outlook(cordwood.Outlook.LONG)
    assert late.known is not None and late.age_ms is not None
    assert (late.known.transactional_id, late.logs[0].first_uncleanable_offset) == ("payments-3", 4)
    assert late.age_ms > late.known.timeout_ms == 1000
    assert str(late) == "payments-3: long, 1 log"
    assert listing.text().splitlines() == run("transactions", cluster, "--now", NOW).output.splitlines()


def test_only_the_logs_that_are_asked_for(cluster: Path) -> None:
    listing = cordwood.transactions(str(cluster), topics=["orders"], now_ms=int(NOW))
    assert listing.logs == 3
    assert {str(log.partition) for one in listing.transactions for log in one.logs} == {"orders-1"}
    # According to its coordinator payments-3 is open in payments-0, which is not read.
    listing = cordwood.transactions(str(cluster), partitions=["payments-1"], now_ms=int(NOW))
    assert [str(one) for one in listing.transactions] == ["payments-2: open, 1 log"]


def test_a_transaction_that_is_in_no_log_here_is_listed_if_it_is_asked_for(cluster: Path) -> None:
    shutil.rmtree(cluster / "payments-0")
    for asked in ([], ["payments*"]):
        listing = cordwood.transactions(str(cluster), topics=asked, now_ms=int(NOW))
        assert str(listing.transactions[-2]) == "payments-3: long, 0 logs"
    assert "payments-3" not in str(cordwood.transactions(str(cluster), topics=["orders"], now_ms=int(NOW)))


def test_of_coordinators_that_cannot_all_be_read_nothing_hangs_for_certain(cluster: Path) -> None:
    (log,) = cluster.glob("__transaction_state-1/*.log")
    data = bytearray(log.read_bytes())
    data[-1] ^= 1
    log.write_bytes(data)
    output = run("transactions", cluster, "--now", NOW, exits=1).output
    assert "3 unknown, 1 open" in output and "hanging" not in output
    assert "not read: CRC-32C mismatch" in output
    assert "matches nothing" in run("transactions", cluster, "--topic", "nothing", exits=2).output


def test_of_a_part_of_the_coordinators_nothing_hangs_for_certain(cluster: Path) -> None:
    for coordinator in cluster.glob("__transaction_state-*"):
        shutil.rmtree(coordinator)
    output = run("transactions", cluster).output
    assert output.startswith("no partition of __transaction_state is here, so only the logs' own facts are shown\n")
    assert "4 open transactions in 8 logs, 0 transactional ids: 4 unknown" in output
    assert "unknown: a part of __transaction_state is not here, or could not be read" in output


def test_a_log_without_transactions_says_so(tmp_path: Path) -> None:
    write_log(tmp_path / "t-0", [batch(0)])
    assert (
        run("transactions", tmp_path).output.splitlines()[-1]
        == "0 open transactions in 1 log, 0 transactional ids: none is open"
    )


def test_what_cannot_be_read_is_told_and_the_rest_is_listed(tmp_path: Path) -> None:
    pair = internal_record("TransactionLog", {"producer_id": 9}, {"transactional_id": "x"}, version=0)
    write_log(
        tmp_path / "__transaction_state-0",
        [batch(0, (pair[0], b"\0"), (pair[0], b"\0\1"), (pair[0], (pair[1] or b"")[:9]))],
    )
    assert (
        "TransactionLogValue of version 0: 8 bytes at byte 2, where 7 are left"
        in run("transactions", tmp_path, exits=1).output
    )


def test_a_transaction_holds_back_the_cleaner_of_a_compacted_log(tmp_path: Path) -> None:
    directory = copy_of(fixture("kraft-after-2"), tmp_path / "logs")
    (one,) = cordwood.transactions(str(directory), now_ms=int(NOW)).transactions
    (log,) = one.logs
    assert (str(log.partition), log.first_offset, log.last_stable_offset, log.log_end_offset) == (
        "payments-0",
        400,
        400,
        551,
    )
    plan = cordwood.plan(str(directory), topics=["payments"], partitions=["0"], now_ms=int(NOW)).partitions[0]
    assert plan.compaction is not None
    assert log.first_uncleanable_offset == plan.compaction.range.first_uncleanable_offset == 377
