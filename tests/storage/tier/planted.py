"""A copy of the fixture local-tiered, with records in its metadata topic that no broker wrote."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cordwood
from cordwood.storage.check import CheckResult
from cordwood.storage.tier.metadata_log import metadata_partition
from cordwood.storage.tier.segments import TopicIdPartition
from tests.fixtures import copy_of, fixture
from tests.logs import append
from tests.storage.tier.events import segment_id, segment_record, update_record

OTHER = segment_id("other")


class Planted:
    """A copy of the fixture local-tiered.

    Attributes:
        logs: its log directory.
    """

    def __init__(self, root: Path) -> None:
        self.logs = copy_of(fixture("local-tiered"), root) / "kafka-logs"
        self.tier = root / "kafka-tiered-storage"

    def folder(self, partition: str) -> Path:
        (found,) = self.tier.glob(f"{partition}-*")
        return found

    def object(self, partition: str, start: int, ending: str) -> Path:
        (found,) = self.folder(partition).glob(f"{start:020}-*{ending}")
        return found

    def events(self, partition: str, *records: Callable[..., bytes] | bytes) -> Path:
        """Append records of the metadata topic about a partition; return the metadata partition."""
        topic_id = self.folder(partition).name[-22:]
        topic, number = partition.rsplit("-", 1)
        among = metadata_partition(TopicIdPartition(topic_id, topic, int(number)), 3)
        log = self.logs / f"__remote_log_metadata-{among}"
        identity = {"topic_id_partition": {"name": topic, "id": topic_id, "partition": int(number)}}
        for record in records:
            append(log, (None, record if isinstance(record, bytes) else record(identity)))
        return log

    def check(self) -> CheckResult:
        return cordwood.check(self.logs, tier=self.tier)


def copied(partition_id: str, start: int, end: int, **fields: Any) -> Callable[[dict[str, Any]], bytes]:
    """The record at the start of a segment's copy."""
    return lambda identity: segment_record(
        "", start, end, f"{{0:{start}}}", remote_log_segment_id={**identity, "id": partition_id}, **fields
    )


def updated(partition_id: str, state: int, time_ms: int = 0) -> Callable[[dict[str, Any]], bytes]:
    identity = {"remote_log_segment_state": state, "event_timestamp_ms": time_ms}
    return lambda one: update_record("", state, **identity, remote_log_segment_id={**one, "id": partition_id})
