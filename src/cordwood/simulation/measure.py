"""Simulates one partition under one set of configs and measures it; figures are in full size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from cordwood.cleaning.rules.offset_map import keys_max, slots_of
from cordwood.common.config import (
    BROKER_CONFIGS,
    DAY_MS,
    INT_MAX,
    SYNONYMS,
    TOPIC_CONFIGS,
    BrokerConfig,
    Layer,
    Source,
    SourceKind,
    TopicConfig,
    show,
)
from cordwood.common.types import TopicPartition
from cordwood.live.log_cleaner import CleanerStats
from cordwood.live.log_to_clean import LogToClean
from cordwood.simulation.batches import BatchEncoder, Records, Room, Written
from cordwood.simulation.recorder import RecordState
from cordwood.simulation.sizing.result import Cleans, Contents, Deletions, Outcome, Point
from cordwood.simulation.sizing.workload import Keys, Scale, Workload, scaled_configs
from cordwood.simulation.world import START_MS, Member, SimulatedWriter, World

TOPIC = "topic"
#: Maximum number of points in a history.
_POINTS = 240
#: Means are taken over this last part of the time.
_LAST_PART = 1 / 3

#: One partition at one step, in the simulation's scale: cleans since the previous step, and the bytes of the records in
#: each state.
_SAMPLE = np.dtype(
    [
        ("ms", np.int64),
        ("disk_bytes", np.int64),
        ("peak_bytes", np.int64),
        ("active_bytes", np.int64),
        ("segments", np.int64),
        ("cleans", np.int64),
        *((state.name, np.int64) for state in RecordState),
    ]
)
Samples = npt.NDArray[np.void]


@dataclass(frozen=True, slots=True)
class ConfigSet:
    """One set of configs.

    Attributes:
        label: `now`, A or B.
    """

    label: str
    layers: tuple[Layer, ...]
    topic: TopicConfig
    broker: BrokerConfig

    def explicit(self) -> dict[str, str]:
        """Return the explicitly set configs by name; topic configs have their topic-level names."""
        chosen = {
            name: show(value.value) for name, value in self.topic.items() if value.explicit and name in TOPIC_CONFIGS
        }
        chosen |= {
            name: show(value.value) for name, value in self.broker.items() if value.explicit and name not in SYNONYMS
        }
        return chosen

    @property
    def map_keys(self) -> int:
        """The capacity, in keys, of the map of one of Kafka's cleaner threads."""
        threads = max(1, self.broker.integer("log.cleaner.threads"))
        slots = slots_of(self.broker.integer("log.cleaner.dedupe.buffer.size") // threads)
        return keys_max(slots, self.broker.real("log.cleaner.io.buffer.load.factor"))


def run_workload(
    configs: ConfigSet, workload: Workload, scale: Scale, seed: int, on_progress: Callable[[float], None]
) -> Outcome:
    """Simulate a workload under one set of configs."""
    source = np.random.default_rng(seed)
    traffic = Traffic(
        workload,
        Keys(workload, scale.factor, source),
        source,
        records_per_ms=workload.records_per_second / workload.partitions / scale.factor / 1000,
        record_bytes=scale.record_bytes,
        batch_records=scale.batch_records,
        start_ms=START_MS,
    )
    return run_writer(configs, traffic, scale, seed, on_progress)


def run_writer(
    configs: ConfigSet,
    traffic: SimulatedWriter,
    scale: Scale,
    seed: int,
    on_progress: Callable[[float], None],
    *,
    before_ms: int = 0,
) -> Outcome:
    """Simulate one set of configs, with records that `traffic` writes in the simulation's scale.

    Args:
        before_ms: time to run before the measured time, which is the scale's `duration_ms`.
    """
    layers = [*configs.layers, *_own_layers(configs.topic, scale)]
    with World(layers, step_ms=scale.step_ms, seed=seed) as world:
        member = world.add(TopicPartition(TOPIC, 0), traffic)

        def report() -> None:
            on_progress((world.now_ms - START_MS) / (before_ms + scale.duration_ms))

        if before_ms:
            world.run(before_ms, report)
            member.count_anew()
        meter = _Meter(world, member)

        def on_step() -> None:
            meter.sample()
            report()

        world.run(scale.duration_ms, on_step)
        return _outcome(configs, scale, meter)


def _own_layers(topic: TopicConfig, scale: Scale) -> tuple[Layer, Layer]:
    """Return the last layers: the configs of the simulation that differ from the real topic."""
    broker = {
        # Cleans take no time here; a note reports a cleaner that could not keep up.
        "log.cleaner.io.max.bytes.per.second": show(BROKER_CONFIGS["log.cleaner.io.max.bytes.per.second"].default),
        # Checkpoints take time, and do not change sizes.
        "log.flush.offset.checkpoint.interval.ms": str(INT_MAX),
        "log.flush.start.offset.checkpoint.interval.ms": str(INT_MAX),
    }
    return (
        Layer(Source(SourceKind.OVERRIDE), broker),
        Layer(Source(SourceKind.TOPIC_OVERRIDE, subject=TOPIC), scaled_configs(topic, scale)),
    )


class _Meter:
    """Samples a partition at each step and counts cleans, in the simulation's scale."""

    def __init__(self, world: World, member: Member) -> None:
        self._world, self.member, self.start_ms = world, member, world.now_ms
        self._samples: list[tuple[int, ...]] = []
        self.cleans = Cleans()
        #: Largest disk use since the last sample, as if each clean had rewritten all segments.
        self._peak_bytes = 0
        #: Number of cleans before the last sample.
        self._cleans_seen = 0
        world.disk.take_peak()
        world.on_clean = self._cleaned

    @property
    def now_ms(self) -> int:
        """The end of the measured time so far."""
        return self._world.now_ms

    @property
    def samples(self) -> Samples:
        return np.array(self._samples, _SAMPLE)

    def sample(self) -> None:
        """Add a sample of the current state."""
        world, recorder, log = self._world, self.member.recorder, self.member.log
        peak_bytes, self._peak_bytes = max(world.disk.take_peak(), self._peak_bytes), 0
        cleans, self._cleans_seen = self.cleans.count - self._cleans_seen, self.cleans.count
        self._samples.append(
            (
                world.now_ms - self.start_ms,
                world.disk.used_bytes,
                peak_bytes,
                log.active_segment.size_bytes,
                len(log.log_segments),
                cleans,
                *(recorder.bytes_of(state) for state in RecordState),
            )
        )

    def _cleaned(self, member: Member, found: LogToClean, stats: CleanerStats) -> None:
        by_ratio = found.cleanable_ratio > member.log.config.min_cleanable_dirty_ratio
        keys = member.recorder.distinct_keys(found.first_dirty_offset, stats.end_offset)
        kept_bytes = max(0, stats.bytes_written - member.recorder.look(self._world.now_ms))
        # Kafka's cleaner rewrites a segment even if the clean removes no record from it; Cordwood's cleaner keeps it.
        self._peak_bytes = max(self._peak_bytes, self._world.disk.used_bytes + kept_bytes)
        before = self.cleans
        self.cleans = Cleans(
            by_ratio=before.by_ratio + by_ratio,
            by_lag=before.by_lag + (not by_ratio),
            # Kafka's cleaner reads the dirty part for its keys, then all segments up to its end.
            read_bytes=before.read_bytes + found.cleanable_bytes + stats.bytes_read,
            written_bytes=before.written_bytes + stats.bytes_written,
            first_ms=stats.start_ms - self.start_ms if before.first_ms is None else before.first_ms,
            keys_max=max(before.keys_max, keys),
        )


def _outcome(configs: ConfigSet, scale: Scale, meter: _Meter) -> Outcome:
    """Compute the figures of a simulation, in full size."""
    member, factor, samples = meter.member, scale.factor, meter.samples
    recorder, now_ms = member.recorder, meter.now_ms

    def full(size: float) -> int:
        return round(float(size) * factor)

    last = _part(samples, 1 - _LAST_PART, 1)
    is_compact, deleted_ms = configs.topic.compact, recorder.first_deleted_ms
    return Outcome(
        label=configs.label,
        configs=configs.explicit(),
        compact=is_compact,
        delete=configs.topic.delete,
        duration_ms=scale.duration_ms,
        appended_bytes=full(recorder.appended_bytes),
        appended_records=full(recorder.appended_records),
        mean_bytes=full(last["disk_bytes"].mean()),
        peak_bytes=full(samples["peak_bytes"].max()),
        end_bytes=full(samples["disk_bytes"][-1]),
        growth_bytes=full(_growth(samples)),
        contents=_contents(last, scale),
        active_bytes=full(last["active_bytes"].mean()),
        segments_mean=float(last["segments"].mean()),
        segments_max=int(samples["segments"].max()),
        rolls=replace(member.rolls, closed_bytes=full(member.rolls.closed_bytes)),
        deletions=Deletions(
            recorder.deleted_by_time,
            recorder.deleted_by_size,
            full(recorder.deleted_bytes),
            None if deleted_ms is None else deleted_ms - meter.start_ms,
        ),
        cleans=replace(
            meter.cleans,
            read_bytes=full(meter.cleans.read_bytes),
            written_bytes=full(meter.cleans.written_bytes),
            keys_max=full(meter.cleans.keys_max),
            map_keys=configs.map_keys,
        ),
        superseded=recorder.superseded(now_ms, factor) if is_compact else None,
        tombstones=recorder.tombstones(now_ms, factor) if is_compact else None,
        aborted=recorder.aborted(now_ms, factor) if is_compact else None,
        deleted=recorder.deleted(now_ms, factor),
        history=_history(samples, scale),
    )


def _part(samples: Samples, start: float, end: float) -> Samples:
    """Return the samples of a part of the time, such as from 0 to 1/3."""
    shares = samples["ms"] / samples["ms"][-1]
    return np.asarray(samples[(start < shares) & (shares <= end)])


def _growth(samples: Samples) -> float:
    """Return a partition's growth at the end in bytes per day, or 0.

    A log whose size swings between cleans may grow within the last part alone. A log that has just reached its
    retention limit is larger than in the part before. So a log counts as growing only if both comparisons agree.
    """
    before, last = _part(samples, 1 - 2 * _LAST_PART, 1 - _LAST_PART), _part(samples, 1 - _LAST_PART, 1)
    if before.size < 2 or last.size < 2:
        return 0.0
    within = float(np.polyfit(last["ms"] / DAY_MS, last["disk_bytes"], 1)[0])
    days = float(last["ms"].mean() - before["ms"].mean()) / DAY_MS
    since = float(last["disk_bytes"].mean() - before["disk_bytes"].mean()) / days
    return max(0.0, min(within, since))


def _contents(samples: Samples, scale: Scale) -> Contents:
    """Divide the mean size of some samples by record state."""
    states = (RecordState.VALUE, RecordState.TOMBSTONE, RecordState.SUPERSEDED, RecordState.ABORTED)
    parts = [round(scale.factor * float(samples[state.name].mean())) for state in states]
    rest = round(scale.factor * float(samples["disk_bytes"].mean())) - sum(parts)
    return Contents(parts[0], parts[1], parts[2], parts[3], max(0, rest))


def _history(samples: Samples, scale: Scale) -> tuple[Point, ...]:
    """Turn samples into about equally spaced points; each keeps the minimum, peak and cleans of its samples."""

    def full(size: float) -> int:
        return round(float(size) * scale.factor)

    return tuple(
        Point(
            int(part["ms"][-1]),
            full(part["disk_bytes"][-1]),
            full(part["peak_bytes"].max()),
            full(part["disk_bytes"].min()),
            full(part[RecordState.VALUE.name][-1]),
            int(part["segments"][-1]),
            int(part["cleans"].sum()),
        )
        for part in np.array_split(samples, min(_POINTS, samples.size))
    )


# ---- the writers -----------------------------------------------------------------------------------------------------

# Generates a workload's records over time, at random.

#: Records to encode at once when all keys are preloaded.
_PRELOAD_RECORDS = 4096


class Traffic:
    """The records of one partition over time."""

    def __init__(
        self,
        workload: Workload,
        keys: Keys,
        source: np.random.Generator,
        *,
        records_per_ms: float,
        record_bytes: int,
        batch_records: int,
        start_ms: int,
    ) -> None:
        """Prepare the workload; `until` writes.

        Args:
            record_bytes: size of a record with a value, without a share of the batch header.
            start_ms: start time of the producers.
        """
        self._keys, self._source = keys, source
        self._record_bytes = record_bytes
        self._preload = keys.count if workload.preload else None
        self._transaction = workload.transactions
        self._aborted = workload.aborted
        self._records_per_ms, self._batch_records, self._start_ms = records_per_ms, batch_records, start_ms
        self._appender = BatchEncoder(batch_records)
        self._records = 0

    def until(self, until_ms: int, now_ms: int, next_offset: int, room: Room) -> Iterator[Written]:
        """Yield the records up to a time, in parts; the caller appends each part before it takes the next."""
        if self._preload is not None:
            count, self._preload = self._preload, None
            at_once = self._batch_records * max(1, _PRELOAD_RECORDS // self._batch_records)
            for start in range(0, count, at_once):
                keys = np.arange(start, min(start + at_once, count))
                loaded = Records.alike(keys, np.zeros(keys.size, np.bool_), self._record_bytes)
                yield from self._appender.plain(next_offset + start, loaded, now_ms, room)
            next_offset += count
        # Write whole batches or whole transactions, each as soon as it is full.
        unit = self._transaction or self._batch_records
        due = int((until_ms - self._start_ms) * self._records_per_ms / unit) * unit
        count, self._records = due - self._records, due
        if not count:
            return
        records = Records.alike(*self._keys.draw(count), self._record_bytes)
        if self._transaction is None:
            yield from self._appender.plain(next_offset, records, now_ms, room)
            return
        for start in range(0, count, self._transaction):
            own = records.part(slice(start, start + self._transaction))
            aborted = bool(self._source.random() < self._aborted)
            yield from self._appender.transaction(next_offset, own, now_ms, room, aborted=aborted)
            next_offset += self._transaction + 1
