"""Defaults delete no data, and explicit configs are saved beside each log."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cordwood import LogManager, PosixFileSystem, TopicPartition, check, ls
from cordwood.common.config import explicit_texts, overrides
from cordwood.live.log import Log
from cordwood.live.scheduler import SteppedScheduler
from cordwood.storage.formats import log_configs
from cordwood.storage.formats.filenames import LOG_START_OFFSETS, RECOVERY_POINTS, FileKind, offset_name
from cordwood.storage.formats.log_configs import LogConfigs
from tests.command import run
from tests.kafka_tools import Broker, Line, Oracle

NOW_MS, DAY_MS = 1_800_000_000_000, 86_400_000
ONE, TWO = TopicPartition("t", 0), TopicPartition("t", 1)
DELETES = ("t:cleanup.policy=delete", "t:retention.ms=1000")


@contextmanager
def opened(path: Path, *configs: str, dirs: int = 1) -> Iterator[LogManager]:
    """A manager whose tasks run when the test calls for them."""
    clock = itertools.count(NOW_MS).__next__
    homes = [path / f"d{number}" for number in range(dirs)]
    scheduler = SteppedScheduler(lambda: NOW_MS)
    with LogManager(PosixFileSystem(), homes, overrides(configs), clock=clock, scheduler=scheduler) as manager:
        yield manager


def filled(manager: LogManager, partition: TopicPartition = ONE) -> Log:
    """A log of ten old segments."""
    log = manager.get_or_create_log(partition, is_new=True)
    for number in range(10):
        log.append({"k": str(number)}, timestamp_ms=NOW_MS - 10 * DAY_MS)
        log.roll()
    return log


def remembered(log: Log) -> dict[str, str]:
    return dict(log_configs.decode(Path(log.directory, FileKind.LOG_CONFIGS).read_bytes()).texts)


@pytest.mark.parametrize(
    ("configs", "kept"),
    [
        ((), 10),
        (("t:retention.ms=1000", "t:retention.bytes=1"), 10),
        (("log.retention.hours=1",), 10),
        (("t:cleanup.policy=delete",), 10),
        (("other:cleanup.policy=delete", "other:retention.ms=1000"), 10),
        (DELETES, 0),
        (("log.cleanup.policy=delete", "log.retention.hours=1"), 0),
        (("cleanup.policy=delete", "retention.bytes=0"), 0),
    ],
)
def test_old_records_are_deleted_only_by_an_explicit_policy_and_limit(
    tmp_path: Path, configs: tuple[str, ...], kept: int
) -> None:
    with opened(tmp_path, *configs) as manager:
        log = filled(manager)
        manager.cleanup_logs()
        assert len(list(log.records())) == kept


def test_a_log_that_is_opened_again_without_configs_keeps_those_that_it_had(tmp_path: Path) -> None:
    with opened(tmp_path, "t:cleanup.policy=compact", "log.segment.bytes=1048576") as manager:
        filled(manager)
    for _ in range(2):
        with opened(tmp_path) as manager:
            log, other = manager.get_or_create_log(ONE), manager.get_or_create_log(TWO)
            assert [one.config.compact for one in (log, other)] == [True, True]
            assert log.config.segment_bytes == 1 << 20
            manager.cleanup_logs()
            assert len(list(log.records())) == 10
            assert remembered(log) == remembered(other) == {"cleanup.policy": "compact", "segment.bytes": "1048576"}


def test_given_configs_replace_remembered_ones_by_name_whatever_level_they_are_of(tmp_path: Path) -> None:
    with opened(tmp_path, *DELETES, "t:segment.ms=5") as manager:
        manager.get_or_create_log(ONE)
    with opened(tmp_path, "log.retention.hours=2") as manager:
        assert manager.logs[ONE].config.retention_ms == 2 * 3_600_000
    with opened(tmp_path) as manager:
        expected = {"cleanup.policy": "delete", "retention.ms": str(2 * 3_600_000), "segment.ms": "5"}
        assert remembered(manager.logs[ONE]) == explicit_texts(manager.topic_config("t")) == expected


def test_update_topic_config_forgets_what_it_does_not_name(tmp_path: Path) -> None:
    with opened(tmp_path, *DELETES) as manager:
        filled(manager)
        filled(manager, TWO)
    with opened(tmp_path) as manager:
        manager.update_topic_config("t", {"segment.ms": 7})
        for log in manager.all_logs:
            assert remembered(log) == {"segment.ms": "7"}
        manager.cleanup_logs()
        assert [len(list(log.records())) for log in manager.all_logs] == [10, 10]
        manager.update_topic_config("t", {})
        assert remembered(log) == {}


def test_a_topic_that_is_made_again_does_not_have_the_configs_of_the_deleted_one(tmp_path: Path) -> None:
    with opened(tmp_path, *DELETES) as manager:
        filled(manager), filled(manager, TWO)
    with opened(tmp_path) as manager:
        manager.async_delete(ONE)
        assert filled(manager).config.delete  # the topic still has a partition
        manager.async_delete_all([ONE, TWO], on_error=print)
        log = filled(manager)
        manager.cleanup_logs()
        assert len(list(log.records())) == 10 and not Path(log.directory, FileKind.LOG_CONFIGS).exists()


def test_configs_that_reconfigure_replaces_do_not_come_back_from_the_file(tmp_path: Path) -> None:
    with opened(tmp_path, *DELETES) as manager:
        filled(manager)
    with opened(tmp_path, *DELETES, "t:segment.ms=5") as manager:
        manager.reconfigure([])
        manager.cleanup_logs()
        assert (len(list(manager.logs[ONE].records())), remembered(manager.logs[ONE])) == (10, {})


def test_after_a_crash_between_two_files_the_newer_one_counts_for_all(tmp_path: Path) -> None:
    with opened(tmp_path, "t:cleanup.policy=compact") as manager:
        logs = [manager.get_or_create_log(one) for one in (ONE, TWO)]
        files = [Path(log.directory, FileKind.LOG_CONFIGS) for log in logs]
    for at in (0, 1):
        texts = {"cleanup.policy": "delete", "retention.ms": str(at)}
        written_ms = log_configs.decode(files[at].read_bytes()).written_ms + 10
        files[at].write_bytes(log_configs.encode(LogConfigs(texts, written_ms)))
        with opened(tmp_path) as manager:
            assert [remembered(log) for log in manager.all_logs] == [texts, texts]


@pytest.mark.parametrize("data", [b"", b"\x00" * 60, b"written.ms=1\nretention.ms=soon\n", b"written.ms=\\u00\n"])
def test_a_damaged_file_deletes_nothing(tmp_path: Path, data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with opened(tmp_path, *DELETES) as manager:
        path = Path(filled(manager).directory, FileKind.LOG_CONFIGS)
    path.write_bytes(data)
    with opened(tmp_path) as manager:
        manager.cleanup_logs()
        assert len(list(manager.logs[ONE].records())) == 10
        assert path.read_bytes() == data
    assert f"the remembered configs {path} do not count" in caplog.text
    with opened(tmp_path, *DELETES) as manager:
        assert remembered(manager.logs[ONE]) == {"cleanup.policy": "delete", "retention.ms": "1000"}


def test_a_directory_in_the_place_of_the_file_leaves_the_log_directory_online(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path) as manager:
        path = Path(filled(manager).directory, FileKind.LOG_CONFIGS)
    path.mkdir()
    with opened(tmp_path, *DELETES) as manager:
        manager.update_topic_config("t", {"retention.ms": "2000"})
        manager.logs[ONE].append({"k": "v"})
        assert len(manager.live_log_dirs) == 1
    assert "the configs of t-0 are not remembered" in caplog.text


def test_a_file_is_read_as_it_was_written() -> None:
    texts = {
        "cleanup.policy": "compact,delete",
        "leader.replication.throttled.replicas": "0:1,1:2",
        "retention.ms": "-1",
    }
    configs = LogConfigs(texts, NOW_MS)
    assert log_configs.decode(log_configs.encode(configs)) == configs


def test_a_log_that_moves_takes_its_configs_along(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "cordwood")
    with opened(tmp_path, "t:cleanup.policy=compact", dirs=2) as manager:
        log = filled(manager)
        (other,) = (one for one in manager.live_log_dirs if one != log.parent_directory)
        manager.move_partition(ONE, other)
        assert remembered(manager.logs[ONE]) == {"cleanup.policy": "compact"}
    assert f"t-0 has moved to {other}/t-0" in caplog.text and "deleted" not in caplog.text
    with opened(tmp_path, dirs=2) as manager:
        assert manager.logs[ONE].parent_directory == other
        assert manager.logs[ONE].config.compact


def removed(manager: LogManager) -> dict[str, int]:
    """Removed segments by limit."""
    return {
        name.tags[0][1]: int(str(value)) for name, value in manager.metrics().items() if name.name == "removed-segments"
    }


def test_records_that_a_load_or_a_program_removes_leave_a_trail(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path) as manager:
        filled(manager)
    (tmp_path / "d0" / LOG_START_OFFSETS).write_text("0\n1\nt 0 50\n")
    with opened(tmp_path) as manager:
        assert removed(manager)["recovery"] == 11
    assert "deleted from t-0: offsets 0 to 9 (11 segments, 700 B)" in caplog.text
    with opened(tmp_path) as manager:
        filled(manager)
        shutil.copytree(tmp_path / "d0", tmp_path / "crashed" / "d0")
        manager.async_delete(ONE)
        assert removed(manager)["partition deletion"] == 11
    at = tmp_path / "crashed" / "d0" / "t-0" / offset_name(53, FileKind.LOG)
    at.write_bytes(at.read_bytes()[:-1])
    (tmp_path / "crashed" / "d0" / RECOVERY_POINTS).unlink()
    with opened(tmp_path / "crashed") as manager:
        assert (removed(manager)["recovery"], manager.logs[ONE].log_end_offset) == (7, 53)
    assert "deleted from t-0: offsets 54 and above (7 segments, 420 B)" in caplog.text


def test_other_commands_know_the_file(tmp_path: Path) -> None:
    with opened(tmp_path, *DELETES) as manager:
        path = Path(filled(manager).directory, FileKind.LOG_CONFIGS)
    assert list(check(tmp_path / "d0")) == []
    done = run("dump", path, "--json")
    properties = [json.loads(line) for line in done.stdout.splitlines()]
    assert {one["key"]: one["value"] for one in properties if one["type"] == "property"}.items() >= {
        "cleanup.policy": "delete",
        "retention.ms": "1000",
    }.items()
    (partition,) = ls(tmp_path / "d0").partitions
    assert partition.segments


def test_a_broker_ignores_the_file(tmp_path: Path, kafka_broker: Broker) -> None:
    data = tmp_path / "d0"
    kafka_broker.start(data)
    send = {"do": "send", "id": "p", "topic": "t", "partition": 0, "key": "k", "value": "v"}
    create = {"do": "create_topic", "topic": "t", "partitions": 1, "config": {}}
    kafka_broker.client(data, [create, {"do": "producer", "id": "p", "config": {}}, send, {"do": "flush", "id": "p"}])
    kafka_broker("stop", data)
    with opened(tmp_path, "t:cleanup.policy=compact") as manager:
        path = Path(manager.logs[ONE].directory, FileKind.LOG_CONFIGS)
        before = path.read_bytes()
    kafka_broker.start(data)
    kafka_broker.client(data, [{"do": "producer", "id": "p", "config": {}}, send, {"do": "flush", "id": "p"}])
    read = kafka_broker.client(data, [{"do": "consume", "isolation": "read_committed", "topics": ["t"]}])
    kafka_broker("stop", data)
    assert [line["offset"] for line in read if "value" in line] == [0, 1]
    assert path.read_bytes() == before


#: Explicit configs of a topic, each with a policy and all limits that it has by default.
EXPLICIT = (
    {"cleanup.policy": "delete", "retention.ms": "1000", "retention.bytes": "-1"},
    {"cleanup.policy": "delete", "retention.ms": str(11 * DAY_MS), "retention.bytes": "-1"},
    {"cleanup.policy": "delete", "retention.ms": str(20 * DAY_MS), "retention.bytes": "300"},
    {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "0"},
    {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"},
    {"cleanup.policy": "compact", "retention.ms": "1000", "retention.bytes": "0"},
)
#: What Kafka's default of a week deletes: all old segments.
BY_DEFAULT: tuple[dict[str, str], ...] = ({}, {"cleanup.policy": "delete"}, {"retention.bytes": "-1"})


def test_with_the_same_explicit_configs_kafka_deletes_the_same_segments(kafka_oracle: Oracle, tmp_path: Path) -> None:
    cases = {f"t{number}": texts for number, texts in enumerate((*EXPLICIT, *BY_DEFAULT))}
    given = [f"{topic}:{name}={value}" for topic, texts in cases.items() for name, value in texts.items()]
    steps: list[Line] = []
    for topic in cases:
        log = {"log": f"{topic}-0"}
        for number in range(10):
            steps.append({"op": "append", **log, "records": [["k", str(number), NOW_MS - 10 * DAY_MS]]})
            steps.append({"op": "roll", **log})
        steps += [{"op": "retention", **log}, {"op": "files", **log}]
    logs = {f"{topic}-0": {"segment.ms": str(2**62), **texts} for topic, texts in cases.items()}
    (tmp_path / "script.json").write_text(json.dumps({"now": NOW_MS, "logs": logs, "steps": steps}))
    lines = kafka_oracle("run", tmp_path / "script.json", tmp_path / "out")
    listed = [line["files"] for line in lines if line.get("op") == "files"]
    kafkas = [sorted(name for name in names if name.endswith(FileKind.LOG)) for names in listed]
    with opened(tmp_path, *given) as manager:
        for topic in cases:
            filled(manager, TopicPartition(topic, 0))
    with opened(tmp_path) as manager:  # the configs are remembered
        manager.cleanup_logs()
    ours = [sorted(path.name for path in (tmp_path / "d0" / f"{topic}-0").glob("*.log")) for topic in cases]
    assert ours[: len(EXPLICIT)] == kafkas[: len(EXPLICIT)]
    assert {len(names) for names in ours[: len(EXPLICIT)]} == {1, 6, 11}
    for own, others in zip(ours[len(EXPLICIT) :], kafkas[len(EXPLICIT) :], strict=True):
        assert (len(own), len(others)) == (11, 1)
