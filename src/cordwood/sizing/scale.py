"""A month of a topic is too much to be written: at which scale it is simulated.

One partition is simulated. Its rate, its keys, its segments and its limits in bytes are divided by one factor; records,
batches and times stay as they are. So a segment fills, a log gets dirty and a limit is reached at the same time as in
full size, and what is measured in bytes is multiplied by the factor in the end.

What does not stay the same: chance weighs more among fewer keys; an append, which is never divided between segments, is
a larger part of one; and time goes in steps, between which nothing happens. All three are small while many records,
batches and steps make up a segment, a key or a limit, and `tests/simulation` compares scales.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cordwood.config import DAY_MS, LONG_MAX, TopicConfig
from cordwood.errors import RequestError
from cordwood.kernels.layout import HEADER
from cordwood.sizing.workload import RECORD_EXTRA_BYTES_MAX, Workload
from cordwood.text import bytes_text

#: What is written at most, of each set of configs, unless another scale is given.
RECORDS_MAX, BATCHES_MAX, BYTES_MAX = 1_500_000, 40_000, 400_000_000
#: Keys take memory, whether they are written or not.
_KEYS_MAX = 20_000_000
#: More than this, in segments that cannot be made any smaller, would take minutes.
_TIMES_MAX = 5
#: A segment holds at least so many batches, or else batches are made smaller; and at least so many records.
SEGMENT_BATCHES_MIN, SEGMENT_RECORDS_MIN = 24, 8
#: Into how many steps a month is cut; and a segment, or a limit of time.
STEPS_MIN, STEPS_MAX, SEGMENT_STEPS, LIMIT_STEPS = 480, 6_000, 4, 20
#: An entry of the larger index; and room for those beyond one in each `index.interval.bytes`.
_ENTRY_BYTES, _SPARE_SHARE, _SPARE_ENTRIES = 12, 1.25, 16

#: Limits of time by the policy that they are of.
_TIMES = {
    "compact": ("segment.ms", "min.compaction.lag.ms", "max.compaction.lag.ms", "delete.retention.ms"),
    "delete": ("segment.ms", "retention.ms"),
}


@dataclass(frozen=True, slots=True)
class Scale:
    """How a topic is simulated.

    Attributes:
        factor: how many records, bytes and keys one of the simulation stands for.
        record_bytes: what a record takes, without its part of the batch's header; less than in full size if batches
            are smaller, so that the same bytes are appended.
        step_ms: time goes in steps of so many milliseconds.
        notes: what is coarser than it should be, in words.
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
    """The scale for a workload under one or more sets of configs.

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
        # Rather more is written than that a segment has too few records.
        least = max(1.0, min(factor, segment_bytes / (SEGMENT_BATCHES_MIN * (record_bytes + HEADER.size))))
        if factor > _TIMES_MAX * least:
            segments = records * mean_bytes / segment_bytes
            # A little less, as it is shown with two digits.
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
    """The limits of time that count under a policy, without those that are none."""
    names = dict.fromkeys(name for policy in sorted(config.policy) for name in _TIMES[policy])
    return {name: value for name in names if 0 < (value := config.integer(name)) < LONG_MAX}


def _short_times(configs: Sequence[TopicConfig], step_ms: int) -> list[str]:
    short = {name: value for config in configs for name, value in _times(config).items() if value < 2 * step_ms}
    if any("delete" in config.policy and not config.integer("retention.ms") for config in configs):
        short["retention.ms"] = 0
    return [f"{name}={value} is short beside a step, so what it limits comes late" for name, value in short.items()]


def scaled_configs(config: TopicConfig, scale: Scale) -> dict[str, str]:
    """The configs of the simulated topic that differ from those of the real one, as texts.

    Besides the limits in bytes these are configs that say nothing of sizes but take time (flushing), or would change
    what a record takes (compression): `record_size` is what it takes compressed.
    """
    factor = scale.factor
    # Half a batch more: that much is left free on average, as a batch is in one segment. Of a real one it is nothing.
    batch_bytes = HEADER.size + scale.batch_records * scale.record_bytes
    segment_bytes = round(config.segment_bytes / factor + batch_bytes / 2)
    interval = max(config.integer("index.interval.bytes"), HEADER.size)
    # The file of an index has its full size from the start. On a disk that is a hole; here it takes memory.
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
