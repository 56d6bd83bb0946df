"""Live logs under the smallest and largest configs that Kafka accepts: no overflow and no busy loop."""

from __future__ import annotations

import json
import logging
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

from cordwood.common.config import overrides
from cordwood.common.errors import LogError
from cordwood.live.log_manager import LogManager
from cordwood.testing.memory import MemoryFileSystem
from tests.live.live_logs import NOW_MS
from tests.live.nodes import ONE

LINES = [
    json.loads(line) for line in (Path(__file__).parents[1] / "data" / "kafka-edges.jsonl").read_text().splitlines()
]
#: Refused here; or, as by Kafka, when the first index is made; or they take gigabytes in memory.
LEFT_OUT = {
    ("log.cleaner.io.max.bytes.per.second", "0"),
    ("internal.segment.bytes", "-2147483648"),
    ("segment.index.bytes", "4"),
    ("log.index.size.max.bytes", "4"),
    ("segment.index.bytes", "2147483647"),
    ("log.index.size.max.bytes", "2147483647"),
    ("log.cleaner.dedupe.buffer.size", "9223372036854775807"),
}
#: They may leave no room for a record, or no time.
MAY_REFUSE = {
    "max.message.bytes",
    "message.max.bytes",
    "message.timestamp.before.max.ms",
    "log.message.timestamp.before.max.ms",
}


def outermost(texts: list[str]) -> set[str]:
    ordered = sorted(texts, key=float)
    return {ordered[0], ordered[-1]}


EDGES = sorted({(line["name"], text) for line in LINES for text in outermost(line["taken"])} - LEFT_OUT)


@pytest.mark.parametrize(("name", "text"), EDGES, ids=str)
def test_logs_live_with_each_number_at_its_edge(name: str, text: str, caplog: pytest.LogCaptureFixture) -> None:
    fs = MemoryFileSystem(lambda: NOW_MS * 1_000_000)
    settled = {"cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "0", "segment.bytes": "1048576"}
    configs = [f"{one}={value}" for one, value in (settled | {name: text}).items()]
    with LogManager(fs, ["d"], overrides(configs)) as manager:
        log = manager.get_or_create_log(ONE, is_new=True)
        with suppress(LogError) if name in MAY_REFUSE else nullcontext():
            for value in ("1", "2", None):
                log.append({"a": value})
        log.roll()
        log.update_high_watermark(log.log_end_offset)
        assert manager.cleaner is not None
        manager.cleaner.clean_filthiest_log()
        manager.cleanup_logs()
        assert manager.cleaner.restarts == 0
        assert manager.cleaner.manager.uncleanable(ONE) is None
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR] == []
