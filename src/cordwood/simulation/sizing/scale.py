"""Choose the scale of a simulation, because writing a month of a topic in full would take too long.

One partition is simulated. Its rate, its keys, its segments and its limits in bytes are divided by one factor; records,
batches and times keep their size. So a segment fills, a log gets dirty and a limit is reached at the same time as in
full size, and all results in bytes are multiplied by the factor at the end.

Three things differ: chance has more influence among fewer keys; an append, which is never split between segments, is a
larger part of a segment; and nothing happens between the steps of the clock. All three effects are small while a
segment, a key or a limit covers many records, batches and steps; `tests/simulation` compares scales.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cordwood.common.config import DAY_MS, LONG_MAX, TopicConfig
from cordwood.common.errors import RequestError
from cordwood.common.text import bytes_text
from cordwood.kernels.layout import HEADER
from cordwood.simulation.sizing.workload import RECORD_EXTRA_BYTES_MAX, Workload

#: Default cap on simulated records, batches and bytes per config set.
RECORDS_MAX, BATCHES_MAX, BYTES_MAX = 1_500_000, 40_000, 400_000_000
#: Cap on simulated keys; each key takes memory even if no record has it.
_KEYS_MAX = 20_000_000
#: Raise if the smallest possible segments need more than this multiple of the caps, which would take minutes.
_TIMES_MAX = 5
#: Minimum batches per segment (otherwise batches shrink), and minimum records per segment.
SEGMENT_BATCHES_MIN, SEGMENT_RECORDS_MIN = 24, 8
#: Steps in the whole time, minimum and maximum; minimum steps per segment; minimum steps per time limit.
STEPS_MIN, STEPS_MAX, SEGMENT_STEPS, LIMIT_STEPS = 480, 6_000, 4, 20
#: Bytes per entry of the larger index; spare share and spare entries beyond one entry per `index.interval.bytes`.
_ENTRY_BYTES, _SPARE_SHARE, _SPARE_ENTRIES = 12, 1.25, 16

#: Time limits that each cleanup policy uses.
_TIMES = {
    "compact": ("segment.ms", "min.compaction.lag.ms", "max.compaction.lag.ms", "delete.retention.ms"),
    "delete": ("segment.ms", "retention.ms"),
}


@dataclass(frozen=True, slots=True)
class Scale:
    """The scale of a simulation.

    Attributes:
        factor: number of real records, bytes or keys that one simulated record, byte or key represents.
        record_bytes: size of a record without a share of the batch header; smaller than in full size if batches are
            smaller, so that the total size stays the same.
        step_ms: length of a time step.
        notes: values that are coarser than they should be, in words.
    """

    factor: float
    batch_records: int
    record_bytes: int
    duration_ms: int
    step_ms: int
    notes: tuple[str, ...] = ()


def choose_scale(
    workload: Workload, configs: Sequence[TopicConfig], duration_ms: int, asked: float | None = None
) -> Scale:
    """Choose the scale for a workload under one or more sets of configs.

    Raises:
        RequestError: a record is larger than a broker allows; or there would be too many segments or keys, or too few
            records in a segment.
    """
    _check_record(workload, configs)
    per_second = workload.records_per_second / workload.partitions
    records = per_second * duration_ms / 1000
    if workload.preload and workload.keys is not None:
        records += workload.keys / workload.partitions
    batch_records = workload.records_per_batch
    record_bytes, mean_bytes = workload.record_size, workload.mean_record_size
    segment_bytes = min(config.segment_bytes for config in configs)
    factor = asked
    if factor is None:
        batches = records / batch_records + records / (workload.transactions or records)
        wanted = (records / RECORDS_MAX, batches / BATCHES_MAX, records * mean_bytes / BYTES_MAX)
        factor = max(1.0, *wanted)
        # Prefer writing more data to segments with too few records.
        least = max(1.0, min(factor, segment_bytes / (SEGMENT_BATCHES_MIN * (record_bytes + HEADER.size))))
        if factor > _TIMES_MAX * least:
            segments = records * mean_bytes / segment_bytes
            # 5 % less, because the message shows only two digits.
            days = 0.95 * duration_ms / DAY_MS * _TIMES_MAX * least / factor
            raise RequestError(
                f"{segments:,.0f} segments of {bytes_text(segment_bytes)} in one partition are too many to simulate. "
                f"Give at most --days {days:.2g}, or a larger segment.bytes"
            )
        factor = least
    if workload.keys is not None and workload.keys / workload.partitions / factor > _KEYS_MAX:
        raise RequestError(
            f"--keys {workload.keys}: most of so many keys are not written in {duration_ms / DAY_MS:g} days. Leave "
            "--keys out, and each record has a new key; or add --preload"
        )
    notes = []
    room = segment_bytes / factor
    fitting = max(1, int((room / SEGMENT_BATCHES_MIN - HEADER.size) / record_bytes))
    if fitting < batch_records:
        if room < SEGMENT_RECORDS_MIN * (record_bytes + HEADER.size):
            raise RequestError(
                f"--scale {factor:g}: a segment of {bytes_text(segment_bytes)} would hold fewer than "
                f"{SEGMENT_RECORDS_MIN} records of {record_bytes} bytes. Give a smaller scale"
            )
        notes.append(f"batches have {fitting} records rather than {batch_records}, as a segment is so small")
        more_headers = HEADER.size * (1 / fitting - 1 / batch_records)
        batch_records, record_bytes = fitting, max(RECORD_EXTRA_BYTES_MAX, record_bytes - round(more_headers))
    step_ms = _step_ms(workload, configs, duration_ms, segment_bytes)
    notes += _short_times(configs, step_ms)
    return Scale(factor, batch_records, record_bytes, duration_ms, step_ms, tuple(notes))


def _check_record(workload: Workload, configs: Sequence[TopicConfig]) -> None:
    limit = min(config.integer("max.message.bytes") for config in configs)
    if workload.record_size + HEADER.size > limit:
        raise RequestError(
            f"--record-size {workload.record_size}: a broker refuses such a record, as max.message.bytes is {limit}"
        )


def _step_ms(workload: Workload, configs: Sequence[TopicConfig], duration_ms: int, segment_bytes: int) -> int:
    fill_ms = segment_bytes / (workload.bytes_per_second / workload.partitions) * 1000
    wanted = [duration_ms / STEPS_MIN, fill_ms / SEGMENT_STEPS]
    wanted += [value / LIMIT_STEPS for config in configs for value in _times(config).values()]
    return max(1, round(max(min(wanted), duration_ms / STEPS_MAX)))


def _times(config: TopicConfig) -> dict[str, int]:
    """Return the time limits that the policy uses, without unlimited ones."""
    names = dict.fromkeys(name for policy in sorted(config.policy) for name in _TIMES[policy])
    return {name: value for name in names if 0 < (value := config.integer(name)) < LONG_MAX}


def _short_times(configs: Sequence[TopicConfig], step_ms: int) -> list[str]:
    short = {name: value for config in configs for name, value in _times(config).items() if value < 2 * step_ms}
    if any("delete" in config.policy and not config.integer("retention.ms") for config in configs):
        short["retention.ms"] = 0
    return [f"{name}={value} is short beside a step, so what it limits comes late" for name, value in short.items()]


def scaled_configs(config: TopicConfig, scale: Scale) -> dict[str, str]:
    """Return the configs of the simulated topic that differ from the real topic's, as texts.

    Besides limits in bytes, these are configs that take time without changing sizes (flushing), or that would change
    the size of a record (compression): `record_size` is the size after compression.
    """
    factor = scale.factor
    # Add half a batch: on average this much stays free, as a batch never spans two segments. In full size it is tiny.
    batch_bytes = HEADER.size + scale.batch_records * scale.record_bytes
    segment_bytes = round(config.segment_bytes / factor + batch_bytes / 2)
    interval = max(config.integer("index.interval.bytes"), HEADER.size)
    # An index file has its full size from the start. On a disk the unused part is a hole; here it takes memory.
    needed = _ENTRY_BYTES * (round(_SPARE_SHARE * segment_bytes / interval) + _SPARE_ENTRIES)
    index_bytes = max(4 * _ENTRY_BYTES, min(round(config.integer("segment.index.bytes") / factor), needed))
    texts = {
        "internal.segment.bytes": segment_bytes,
        "segment.index.bytes": index_bytes,
        "compression.type": "producer",
        "flush.messages": LONG_MAX,
        "flush.ms": LONG_MAX,
    }
    if (retention_bytes := config.integer("retention.bytes")) >= 0:
        texts["retention.bytes"] = round(retention_bytes / factor)
    return {name: str(value) for name, value in texts.items()}
