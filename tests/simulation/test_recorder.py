"""The fate of each record, compared with a plain model of all appends, and with the segments' contents."""

from __future__ import annotations

from collections import Counter

import pytest

from cordwood.common.config import HOUR_MS
from cordwood.simulation.recorder import RecordState
from cordwood.simulation.sizing.workload import TOMBSTONE_BYTES, Workload
from cordwood.simulation.world import Member
from tests.simulation.worlds import Topic, add, records_there, world_of

pytestmark = pytest.mark.more

RECORD_BYTES = 100
SMALL = {"internal.segment.bytes": "3000", "min.cleanable.dirty.ratio": "0.3", "delete.retention.ms": "3600000"}
COMPACT = SMALL | {"cleanup.policy": "compact"}
TOPICS = {
    "updates": Topic(Workload(rate="20/h", record_size=RECORD_BYTES, keys=30, tombstones=0.3), COMPACT),
    "skewed": Topic(Workload(rate="20/h", record_size=RECORD_BYTES, keys=60, skew=1.0, preload=True), COMPACT),
    "new": Topic(Workload(rate="20/h", record_size=RECORD_BYTES, tombstones=0.4), COMPACT),
    "transactions": Topic(
        Workload(rate="20/h", record_size=RECORD_BYTES, keys=20, tombstones=0.2, transactions=7, aborted=0.4), COMPACT
    ),
    "both": Topic(
        Workload(rate="20/h", record_size=RECORD_BYTES, keys=100, tombstones=0.1),
        SMALL | {"cleanup.policy": "compact,delete", "retention.ms": str(4 * HOUR_MS)},
    ),
    "by size": Topic(
        Workload(rate="20/h", record_size=RECORD_BYTES),
        SMALL | {"cleanup.policy": "delete", "retention.bytes": "8000", "retention.ms": "-1"},
    ),
}


class Model:
    """All appended records, one after the other, from the arguments of the recorder."""

    def __init__(self, member: Member) -> None:
        self.records: dict[int, tuple[int, bool, bool]] = {}
        take = member.recorder.written

        def written(part) -> None:
            keys, tombstones = part.records.keys.tolist(), part.records.tombstones.tolist()
            for at, (key, is_tombstone) in enumerate(zip(keys, tombstones, strict=True)):
                self.records[part.first_offset + at] = key, is_tombstone, part.aborted
            take(part)

        member.recorder.written = written  # type: ignore[method-assign]

    def sizes(self, there: dict[int, tuple[int, bool]]) -> Counter[RecordState]:
        """The bytes of existing records by their state."""
        last = {key: offset for offset, (key, _, aborted) in sorted(self.records.items()) if not aborted}
        found: Counter[RecordState] = Counter()
        for offset, (key, is_tombstone) in there.items():
            assert self.records[offset][:2] == (key, is_tombstone)
            size = TOMBSTONE_BYTES if is_tombstone else RECORD_BYTES
            if self.records[offset][2]:
                found[RecordState.ABORTED] += size
            elif last[key] != offset:
                found[RecordState.SUPERSEDED] += size
            else:
                found[RecordState.TOMBSTONE if is_tombstone else RecordState.VALUE] += size
        return found


@pytest.mark.parametrize("name", TOPICS)
def test_sizes_are_those_of_a_plain_model_after_each_step(name: str) -> None:
    with world_of({"t": TOPICS[name]}, step_ms=HOUR_MS) as world:
        member = add(world, {"t": TOPICS[name]}, "t")
        model, compared = Model(member), 0

        def on_step() -> None:
            nonlocal compared
            there = records_there(member.log)
            recorder = member.recorder
            wanted = model.sizes(there)
            for state in (RecordState.VALUE, RecordState.TOMBSTONE, RecordState.SUPERSEDED, RecordState.ABORTED):
                assert recorder.bytes_of(state) == wanted[state], state
            start, end = member.log.log_start_offset, member.log.log_end_offset
            keys = {key for offset, (key, _) in there.items() if offset >= start}
            assert recorder.distinct_keys(start, end) - len(keys) in (0, 1)  # markers have the key 0
            assert recorder.appended_records == len(model.records)
            compared += len(there) < len(model.records)

        world.run(50 * HOUR_MS, on_step)
        assert compared > 20, "something went"
        now, recorder = world.now_ms, member.recorder
        gone = len(model.records) - len(records_there(member.log))
        stays = [recorder.superseded(now), recorder.tombstones(now), recorder.aborted(now)]
        left = sum(one.count - one.still_there for one in stays if one is not None)
        deleted = recorder.deleted(now)
        assert deleted is None or deleted.still_there == 0
        # Dropped records were superseded, aborted or tombstones; or retention deleted them, and they may have been
        # values.
        assert gone <= left + (0 if deleted is None else deleted.count)
        if name not in ("both", "by size"):
            assert deleted is None and recorder.deleted_bytes == 0
        else:
            assert recorder.deleted_bytes > 0 and recorder.first_deleted_ms is not None
            assert bool(recorder.deleted_by_size) is (name == "by size")
            assert bool(recorder.deleted_by_time) is (name == "both")


def test_stays_are_times_between_steps_and_tasks() -> None:
    topics = {"t": TOPICS["by size"]}
    with world_of(topics, step_ms=HOUR_MS) as world:
        member = add(world, topics, "t")
        world.run(40 * HOUR_MS)
        deleted = member.recorder.deleted(world.now_ms)
        assert deleted is not None
        # 8 kB to 11 kB of records of 100 bytes, 20 of them per hour; batches of 5 have a header each.
        assert 3 * HOUR_MS < deleted.median_ms <= deleted.max_ms < 6 * HOUR_MS  # type: ignore[operator]
