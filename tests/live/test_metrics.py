"""Metrics: their names, their values, and their removal."""

from __future__ import annotations

from typing import Any

import pytest

from cordwood.common.errors import LogError
from cordwood.live.log import Log
from cordwood.live.metrics import Meter, MetricName, Timer
from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from tests.live.live_logs import NOW_MS, batch
from tests.live.nodes import ONE, Node


def shown(node: Node) -> dict[str, Any]:
    return {str(name): value for name, value in node.manager.metrics().items()}


def test_a_metric_has_the_name_of_kafkas_mbean() -> None:
    name = MetricName("kafka.log", "Log", "Size", (("topic", "a.b_c-d"), ("partition", "0")))
    assert str(name) == "kafka.log:type=Log,name=Size,topic=a.b_c-d,partition=0"
    assert name.flat == "kafka_log_log_size"
    quoted = MetricName("kafka.log", "LogManager", "LogDirectoryOffline", (("logDirectory", '/a"*?\\\nb'),))
    assert str(quoted) == 'kafka.log:type=LogManager,name=LogDirectoryOffline,logDirectory="/a\\"\\*\\?\\\\\\nb"'


def test_the_gauges_of_a_log_are_there_as_long_as_the_manager_has_it() -> None:
    node = Node("t:retention.bytes=1000")
    node.manager.startup()
    log = node.append(ONE, "a1", "b1")
    size = log.size_bytes
    found = shown(node)
    of = "topic=t,partition=0"
    assert found[f"kafka.log:type=Log,name=Size,{of}"] == size
    assert found[f"kafka.log:type=Log,name=LogEndOffset,{of}"] == 2
    assert found[f"kafka.log:type=Log,name=LogStartOffset,{of}"] == 0
    assert found[f"kafka.log:type=Log,name=NumLogSegments,{of}"] == 1
    assert found[f"kafka.log:type=Log,name=RetentionSizeInPercent,{of}"] == 0, "before the first run"
    log.delete_old_segments()
    assert shown(node)[f"kafka.log:type=Log,name=RetentionSizeInPercent,{of}"] == size * 100 // 1000
    (target,) = set(node.manager.live_log_dirs) - {log.parent_directory}
    node.manager.maybe_update_preferred_log_dir(ONE, target)
    node.manager.get_or_create_log(ONE, is_new=True, is_future=True)
    assert shown(node)[f"kafka.log:type=Log,name=Size,{of},is-future=true"] == 0
    node.manager.async_delete(ONE)
    assert f"kafka.log:type=Log,name=Size,{of}" not in shown(node)


def test_directories_that_are_offline_or_cordoned_are_counted() -> None:
    node = Node("cordoned.log.dirs=d2")
    node.manager.startup()
    node.manager.failures.maybe_add_offline_log_dir("/d1", "it fails", OSError())
    found = shown(node)
    assert found["kafka.log:type=LogManager,name=OfflineLogDirectoryCount"] == 1
    assert found["kafka.log:type=LogManager,name=CordonedLogDirectoryCount"] == 1
    assert found['kafka.log:type=LogManager,name=LogDirectoryOffline,logDirectory="/d1"'] == 1
    assert found['kafka.log:type=LogManager,name=LogDirectoryOffline,logDirectory="/d2"'] == 0
    assert found['kafka.log:type=LogManager,name=LogDirectoryCordoned,logDirectory="/d2"'] == 1


def test_what_is_still_to_be_loaded_is_shown_only_while_it_loads() -> None:
    node = Node()
    node.manager.startup()
    node.append(ONE, "a1").roll()
    node.manager.shutdown()
    node.fs.unlink("d1/.kafka_cleanshutdown")
    node.start()
    seen: list[dict[str, Any]] = []
    node.manager.startup(lambda *_: seen.append(shown(node)))
    (during,) = seen
    assert during['kafka.log:type=LogManager,name=remainingLogsToRecover,dir="/d1"'] == 0
    assert during['kafka.log:type=LogManager,name=remainingSegmentsToRecover,dir="/d1",threadNum=0'] == 0
    assert not [name for name in shown(node) if "remaining" in name]


def refuse(log: Log, data: bytes) -> None:
    with pytest.raises(LogError):
        log.append_as_leader(data, 0)


def test_refused_appends_are_counted_by_their_reasons() -> None:
    node = Node("t:cleanup.policy=compact", "t:max.message.bytes=200")
    node.manager.startup()
    log = node.append(ONE)
    large = batch("x" * 300)
    refuse(log, large)
    damaged = bytearray(batch("a1"))
    damaged[-1] ^= 1
    refuse(log, bytes(damaged))
    refuse(log, encode_batch([Record(0, NOW_MS, None, b"v"), Record(1, NOW_MS, None, b"w")], base_offset=0))
    refuse(log, batch("a1", producer_id=7, sequence=-1))
    found = shown(node)
    group = "kafka.server:type=BrokerTopicMetrics,name="
    assert found[f"{group}BytesRejectedPerSec"].count == len(large)
    assert found[f"{group}BytesRejectedPerSec,topic=t"].count == len(large)
    assert found[f"{group}InvalidMessageCrcRecordsPerSec"].count == 1
    assert found[f"{group}NoKeyCompactedTopicRecordsPerSec"].count == 2
    assert found[f"{group}InvalidOffsetOrSequenceRecordsPerSec"].count == 1
    assert found[f"{group}InvalidMagicNumberRecordsPerSec"].count == 0


def test_each_flushed_segment_is_an_event_of_the_flush_timer() -> None:
    node = Node()
    node.manager.startup()
    log = node.append(ONE, "a1")
    log.flush()
    timer = shown(node)["kafka.log:type=LogFlushStats,name=LogFlushRateAndTimeMs"]
    assert timer.count == 1 and timer.max_ms >= timer.percentiles[0.5] > 0


def test_a_rate_follows_the_last_minute() -> None:
    now = [0]
    meter = Meter(lambda: now[0])
    for _ in range(60):  # ten a second, for five minutes
        meter.mark(50)
        now[0] += 5_000
    assert meter.read().rate == pytest.approx(10, rel=0.01)
    now[0] += 60_000
    assert meter.read().rate == pytest.approx(10 / 2.718, rel=0.1)
    now[0] += 3_600_000
    assert meter.read().rate < 1e-9 and meter.read().count == 3_000


def test_percentiles_are_of_the_last_events() -> None:
    timer = Timer(lambda: 0)
    for millisecond in range(1, 101):
        timer.note(millisecond / 1_000)
    reading = timer.read()
    assert [reading.count, reading.max_ms, reading.total_ms] == pytest.approx([100, 100, 5_050])
    assert [reading.percentiles[0.5], reading.percentiles[0.99]] == pytest.approx([51, 100])
