"""Live logs on directories of a stopped broker: only explicitly set configs change them."""

from __future__ import annotations

import errno
import json
import logging
import re
import shutil
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cordwood
from cordwood.common.config import overrides
from cordwood.common.errors import ConfigError, NotFoundError, RequestError
from cordwood.common.types import TopicPartition, override
from cordwood.fs.base import File
from cordwood.fs.posix import PosixFileSystem
from cordwood.fs.wrapped import WrappedFileSystem
from cordwood.live.log_cleaner import LogCleaner
from cordwood.live.log_manager import LogManager
from cordwood.live.report import PartitionStatus, worst_first
from cordwood.live.segment import LogSegment
from cordwood.live.status import HealthWatch, statuses
from cordwood.storage.formats import filenames
from cordwood.storage.node.directory import LogDirectory, Partition
from cordwood.view.running import LiveNode, LiveOptions
from tests.fixtures import copy_of, fixture
from tests.live.live_logs import NOW_MS, batch
from tests.live.nodes import ONE, Node, made, made_damaged, running, until, wait

pytestmark = pytest.mark.more


def logs_of(path: Path) -> dict[str, bytes]:
    return {str(log.relative_to(path)): log.read_bytes() for log in sorted(path.rglob("*.log"))}


def status(node: LiveNode, topic: str) -> PartitionStatus:
    (found,) = [one for one in node.look()[0] if one.partition.topic == topic]
    return found


def test_without_a_policy_that_somebody_has_set_nothing_is_changed(tmp_path: Path) -> None:
    path = made(tmp_path, t=20, u=20)
    before = logs_of(path)
    with running(path, "u:cleanup.policy=compact") as node:
        wait(node, "u")
        node.manager.cleanup_logs()
        assert (status(node, "t").policy, status(node, "u").policy) == ("", "compact")
        assert "no metadata log" in str(status(node, "t").reason)
    after = logs_of(path)
    assert {name: data for name, data in after.items() if name.startswith("t-")} == {
        name: data for name, data in before.items() if name.startswith("t-")
    }
    assert sum(map(len, after.values())) < sum(map(len, before.values()))


@pytest.mark.parametrize(
    ("configs", "options", "why"),
    [
        ((), {}, "cleanup.policy is unknown: no metadata log"),
        (("retention.ms=1",), {"retention": True}, "cleanup.policy is unknown: no metadata log"),
        (("cleanup.policy=delete", "retention.ms=1"), {}, "nothing is deleted by time or size; with --retention"),
        (("cleanup.policy=delete",), {"retention": True}, "retention.ms is not set"),
        (("t:cleanup.policy=compact",), {}, None),
        (("cleanup.policy=delete", "retention.bytes=1"), {"retention": True}, None),
    ],
)
def test_a_warning_says_why_nothing_will_ever_be_cleaned(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    configs: tuple[str, ...],
    options: dict[str, Any],
    why: str | None,
) -> None:
    path = made(tmp_path, t=1, u=1)
    with running(path, *configs, **options) as node:
        warnings = [one.getMessage() for one in caplog.records if "will ever be cleaned" in one.getMessage()]
        assert len(warnings) == (why is not None)
        assert why is None or f"nothing of 2 logs will ever be cleaned or deleted: {why}" in warnings[0]
        node.reload()
        assert len([one for one in caplog.records if "will ever be cleaned" in one.getMessage()]) == 2 * len(warnings)


def test_configs_that_a_program_left_beside_its_logs_count(tmp_path: Path) -> None:
    path = made(tmp_path, t=20, u=20)
    with LogManager(PosixFileSystem(), [path], overrides(["log.cleaner.enable=false", "t:cleanup.policy=compact"])):
        pass
    with running(path) as node:
        wait(node, "t")
        assert (status(node, "t").policy, status(node, "u").policy) == ("compact", "")
    with running(path, "cleanup.policy=delete") as node:
        assert status(node, "t").policy == "delete"


def test_each_deletion_leaves_a_line_and_counts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "cordwood")
    path = made(tmp_path, t=20)
    with running(path, "cleanup.policy=delete", "retention.ms=1", retention=True) as node:
        log = node.manager.logs[TopicPartition("t", 0)]
        until(lambda: log.log_start_offset == 40)
        (line,) = [one for one in caplog.records if getattr(one, "event", "") == "delete"]
        fields: dict[str, object] = vars(line)["fields"]
        expected = {"topic": "t", "partition": 0, "limit": "retention.ms", "start_offset": 0, "end_offset": 40}
        assert fields.items() >= expected.items()
        said = line.getMessage()
        assert said.startswith("deleted from t-0: offsets 0 to 39 (") and "by retention.ms=1," in said
        node.look()
        _, text = get(node, "/metrics")
        of_log = 'cordwood_log_log_removed_bytes_total{limit="retention.ms",partition="0",topic="t"}'
        for name in (of_log, 'cordwood_log_logmanager_removed_bytes_total{limit="retention.ms"}'):
            assert f"{name} {float(str(fields['size_bytes']))}" in text
        assert 'cordwood_log_logmanager_removed_segments_total{limit="compaction"} 0.0' in text
        assert f'cordwood_log_logdirectory_free_bytes{{logDirectory="{path}"}} ' in text
        assert "# TYPE cordwood_log_logcleaner_bytes_read_total counter" in text


@pytest.mark.parametrize(
    ("configs", "retention", "deleted"),
    [
        (("cleanup.policy=delete",), True, False),  # no limit
        (("cleanup.policy=delete", "retention.ms=1"), False, False),
        (("retention.ms=1",), True, False),  # no policy
        (("cleanup.policy=delete", "retention.ms=1"), True, True),
    ],
)
def test_old_segments_go_only_by_limits_that_somebody_has_set_and_with_retention(
    configs: tuple[str, ...], retention: bool, deleted: bool, tmp_path: Path
) -> None:
    path = made(tmp_path, t=20)
    with running(path, *(f"t:{config}" for config in configs), retention=retention) as node:
        node.manager.cleanup_logs()
        log = node.manager.logs[ONE]
        if deleted:  # by this call, or by the task that is just doing the same
            until(lambda: log.log_start_offset > 0)
        assert (log.log_start_offset > 0) is deleted
        reason = str(status(node, "t").reason)
    assert deleted or "retention" in reason or "cleanup.policy" in reason


def test_a_brokers_directories_are_cleaned_by_its_own_metadata(tmp_path: Path) -> None:
    path = copy_of(fixture("kraft-jbod-before"), tmp_path / "logs") / "a"
    before = {partition.name.topic_partition for partition in _partitions(path)}
    with running(path, metadata=str(path)) as node:
        assert {one.partition for one in node.look()[0]} == before
        for one in node.look()[0]:
            assert one.policy, "the metadata has it"
            assert one.high_watermark == one.log_end_offset, "the only replica"
    assert [one for one in cordwood.check(str(path)) if one.severity.value == "damage"] == []
    assert (path / filenames.CLEAN_SHUTDOWN).exists()


def _partitions(path: Path) -> list[Partition]:
    found = LogDirectory.open(PosixFileSystem(), str(path)).partitions
    return [one for one in found if not one.name.topic_partition.topic.startswith("__cluster_metadata")]


def test_expired_tombstones_stay_where_another_replica_may_be(tmp_path: Path) -> None:
    path = made(tmp_path, t=3)
    for single_copy in (False, True):
        with running(path, "t:cleanup.policy=compact", single_copy=single_copy) as node:
            assert node.manager.logs[ONE].deletes_for_good is single_copy


def test_a_log_that_is_being_moved_is_left_alone(tmp_path: Path) -> None:
    path = made(tmp_path, t=20)
    shutil.copytree(path / "t-0", path / f"t-0.{'0' * 32}-future")
    with running(path, "t:cleanup.policy=compact") as node:
        assert status(node, "t").state == "paused(1)"


def test_configs_are_read_anew_and_wrong_ones_leave_the_old(tmp_path: Path) -> None:
    path = made(tmp_path, t=20)
    properties = tmp_path / "server.properties"
    properties.write_text("log.cleanup.policy=delete\n")
    with running(path, server_properties=str(properties)) as node:
        assert status(node, "t").policy == "delete"
        properties.write_text("log.cleanup.policy=compact\nlog.cleaner.backoff.ms=1\n")
        node.reload()
        wait(node, "t")
        properties.write_text("log.cleanup.policy=COMPACT\n")
        with pytest.raises(ConfigError, match="COMPACT"):
            node.reload()
        assert status(node, "t").policy == "compact"


def test_what_is_no_log_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        LiveNode(PosixFileSystem(), [str(tmp_path)], LiveOptions())


# ---- over HTTP -------------------------------------------------------------------------------------------------------


def get(node: LiveNode, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{node.port}{path}", timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_metrics_and_health_are_served_until_the_end(tmp_path: Path) -> None:
    path = made(tmp_path, t=20)
    with running(path, "t:cleanup.policy=compact") as node:
        wait(node, "t")
        node.look()
        code, text = get(node, "/metrics")
        assert code == 200
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        assert 'kafka_log_log_logendoffset{partition="0",topic="t"} 40.0' in lines
        assert f'kafka_log_logmanager_logdirectoryoffline{{logDirectory="{path}"}} 0.0' in lines
        assert "kafka_log_logcleaner_deadthreadcount 0.0" in lines
        assert 'cordwood_log_partition_dirty_bytes{partition="0",topic="t"} 0.0' in lines
        assert "cordwood_log_partitions_count 1.0" in lines
        assert any(line.startswith("kafka_log_logflushstats_logflushrateandtimems_count") for line in lines)
        assert "cordwood_healthy 1.0" in lines
        node.look()
        assert get(node, "/health") == (200, '{\n "healthy": true,\n "problems": []\n}\n')
        assert get(node, "/else")[0] == 404
        port = node.port
        other, loaded = LiveNode(PosixFileSystem(), [str(made(tmp_path / "other", t=1))], LiveOptions(port=port)), []
        with pytest.raises(RequestError, match=f"Port {port} of 127.0.0.1 cannot be used"):
            other.startup(lambda *progress: loaded.append(progress))
        assert loaded == [], "that takes minutes, and is for nothing"
    with pytest.raises(OSError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)


def test_health_is_red_with_the_reason_when_a_log_cannot_be_cleaned(tmp_path: Path) -> None:
    path = made_damaged(tmp_path)
    with running(path, "t:cleanup.policy=compact") as node:
        assert node.manager.cleaner is not None
        while node.manager.cleaner.manager.uncleanable(ONE) is None:
            pass
        node.look()
        code, text = get(node, "/health")
        assert code == 503
        (problem,) = json.loads(text)["problems"]
        assert problem.startswith("t-0 cannot be cleaned, tried 1 times: the last clean failed:")
        metrics = get(node, "/metrics")[1]
        assert "cordwood_healthy 0.0" in metrics
        assert 'cordwood_log_partition_uncleanable{kind="damage",partition="0",topic="t"} 1.0' in metrics


def test_kafkas_gauges_of_each_log_are_gone_where_there_are_very_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(made(tmp_path, t=1, u=1)) as node:
        monkeypatch.setattr("cordwood.view.running.PARTITIONS_MAX", 1)
        code, text = get(node, "/metrics")
        assert code == 200 and "kafka_log_log_size" not in text
        assert "kafka_log_logmanager_logdirectoryoffline" in text and "cordwood_log_partitions_count 2.0" in text


class Hanging(WrappedFileSystem):
    """A disk on which creating a log file blocks until the test permits it."""

    def __init__(self) -> None:
        super().__init__(PosixFileSystem())
        self.answers, self.is_asked = threading.Event(), threading.Event()
        self.answers.set()

    @override
    def create(self, path: str, *, exclusive: bool = True, mode: int = 0o666) -> File:
        if path.endswith(".log"):
            self.is_asked.set()
            assert self.answers.wait(60)
        return super().create(path, exclusive=exclusive, mode=mode)


def test_while_the_disk_hangs_health_is_red_and_says_what_is_waited_for(tmp_path: Path) -> None:
    fs = Hanging()
    node = LiveNode(fs, [str(made(tmp_path, t=20))], LiveOptions(port=0, view=True))
    node.startup()
    stop = threading.Event()
    looks = threading.Thread(target=node.run, args=(stop, threading.Event()))
    looks.start()
    assert get(node, "/health")[0] == 200
    fs.is_asked.clear()
    fs.answers.clear()
    rolling = threading.Thread(target=node.manager.logs[ONE].roll)
    rolling.start()
    try:
        assert fs.is_asked.wait(20)
        until(lambda: get(node, "/health")[0] == 503)
        (problem,) = json.loads(get(node, "/health")[1])["problems"]
        assert re.fullmatch(
            r"the logs were last looked at \d+ s ago: the look waits for the log t-0, for \d+ s "
            r"\(since \d\d:\d\d:\d\d UTC\)",
            problem,
        )
        code, page = get(node, "/")
        assert code == 200 and "the logs were last looked at" in page and "t-0" in page
    finally:
        fs.answers.set()
    until(lambda: get(node, "/health")[0] == 200)
    stop.set()
    looks.join()
    rolling.join()
    node.shutdown()


def test_the_worst_logs_are_listed_first() -> None:
    node = Node("cleanup.policy=compact", "internal.segment.bytes=300", "log.cleaner.backoff.ms=1000000000")
    node.manager.startup()
    node.pass_time(1)
    for topic, count in {"a": 1, "b": 30, "c": 30, "d": 30}.items():
        node.append(TopicPartition(topic, 0), *(f"a{number}" for number in range(count)))
    assert node.manager.cleaner is not None
    node.manager.cleaner.manager.note_failure("d1", TopicPartition("c", 0), "why")
    node.manager.cleaner.manager.note_failure("d2", TopicPartition("c", 0), "why")
    found = worst_first(statuses(node.manager, node.now_ms, {}, {}))
    assert [one.partition.topic for one in found] == ["c", "b", "d", "a"]


# ---- Delays that count as not keeping up -----------------------------------------------------------------------------


def watched(change: Callable[[Node], None] = lambda _: None) -> list[tuple[str, ...]]:
    """A log that is due while no cleaner runs, looked at every 30 s."""
    node = Node("t:cleanup.policy=compact", "t:internal.segment.bytes=300", "log.cleaner.backoff.ms=1000000000")
    node.manager.startup()
    node.pass_time(1)
    node.append(ONE, *(f"a{number}" for number in range(30)))
    watch, found = HealthWatch(clock=lambda: node.now_ms), []
    change(node)
    for _ in range(4):
        found.append(watch.look(node.manager, statuses(node.manager, node.now_ms, {}, {}), node.now_ms).problems)
        node.now_ms += 30_000
    return found


def test_a_log_that_is_due_for_long_is_a_problem_once_it_exceeds_all_patience() -> None:
    def be_quick(node: Node) -> None:
        node.manager.reconfigure(overrides([*node.configs, "log.cleaner.backoff.ms=1000"]))

    assert watched() == [()] * 4, "the cleaner's turn comes later"
    *early, late = watched(be_quick)
    assert early == [()] * 3
    (problem,) = late
    assert problem.startswith("the cleaner does not keep up: t-0 has been due for 90 s; log.cleaner.threads=1")


def test_a_directory_that_failed_and_a_transaction_that_hangs_are_problems() -> None:
    def fail(node: Node) -> None:
        log = node.manager.logs[ONE]
        data = batch("t1", producer_id=7, transactional=True)
        guard = log.maybe_start_transaction_verification(7, 0, 0, supports_epoch_bump=False)
        log.append_as_leader(data, 0, guard=guard)
        node.now_ms += 2_000_000
        node.manager.failures.maybe_add_offline_log_dir("/d2", "Error while writing x", OSError(5, "it fails"))

    first, *_ = watched(fail)
    assert any("log directory /d2 is offline: Error while writing x" in problem for problem in first)
    assert any("a transaction in t-0, of producer 7 from offset 30 on" in problem for problem in first)


def test_no_clean_begins_before_it_is_known_what_may_go_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    start = LogCleaner.startup

    def startup(cleaner: LogCleaner) -> None:
        seen.extend(log.deletes_for_good for log in node.manager.logs.values())
        start(cleaner)

    monkeypatch.setattr(LogCleaner, "startup", startup)
    options = LiveOptions(overrides=("t:cleanup.policy=compact",), port=0)
    node = LiveNode(PosixFileSystem(), [str(made(tmp_path, t=2))], options)
    node.startup()
    node.shutdown()
    assert seen == [False]


def test_a_segment_that_cannot_be_read_is_told_of_its_log_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(segment: LogSegment) -> int:
        if "/t-0" in segment.directory:
            raise OSError(errno.EIO, "Input/output error")
        return NOW_MS

    with running(made(tmp_path, t=20, u=20), "t:cleanup.policy=compact", "u:cleanup.policy=compact") as node:
        monkeypatch.setattr(LogSegment, "first_timestamp", property(unreadable))
        assert "Input/output error" in str(status(node, "t").reason)
        assert "Input/output error" not in str(status(node, "u").reason)
