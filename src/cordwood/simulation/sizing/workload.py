"""The workload of a topic: rate, batches and keys of its records; and the scale at which it is simulated."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import numpy.typing as npt

from cordwood.common.arguments import Option
from cordwood.common.config import DAY_MS, LONG_MAX, TopicConfig
from cordwood.common.errors import RequestError
from cordwood.common.text import bytes_text
from cordwood.kernels.layout import HEADER

Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

#: Size of a key.
KEY_BYTES = 8
#: Largest size of a record besides its value: length 5, attributes 1, time 1, offset 5, key and its length 9, length
#: of the value 5, headers 1.
RECORD_EXTRA_BYTES_MAX = 27
#: Size of a tombstone: length 1, attributes 1, time 1, offset 1, key and its length 9, no value 1, headers 1.
TOMBSTONE_BYTES = 15
#: Kafka's defaults for a producer's `batch.size` and `linger.ms`.
_BATCH_BYTES, _LINGER_SECONDS = 16_384, 0.005
#: Shares of the first ranks are summed exactly; for later ranks an integral is precise enough.
_EXACT_RANKS = 100_000

_RATE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?) ?(?:([kmgt])(?:i?b)?|(b))?(?: ?/ ?(s|min|h|day))?", re.IGNORECASE)
_SECONDS = {"s": 1, "min": 60, "h": 3600, "day": 86_400}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The records that producers write to a topic."""

    PANEL: ClassVar[str] = "What is written to the topic"

    rate: Annotated[
        str,
        Option(
            "Write rate: records per second (500, 90/min, 2000/day), or bytes if it has a unit (512k, 2m/s, 40g/day).",
            metavar="RATE",
        ),
    ] = ""
    record_size: Annotated[
        int,
        Option(
            "Size of a record in the log, with its key, after compression if any. Default: 1024.",
            metavar="BYTES",
        ),
    ] = 1024
    keys: Annotated[
        int | None,
        Option(
            "Number of distinct keys. Default: each record has a new key, and a tombstone deletes the oldest.",
            metavar="COUNT",
        ),
    ] = None
    skew: Annotated[
        float,
        Option(
            "Exponent of the Zipf distribution of updates over keys. 1: few keys get most updates. Default: 0, all "
            "keys get as many.",
            metavar="EXPONENT",
        ),
    ] = 0.0
    preload: Annotated[bool, Option("Start with one record per key.")] = False
    tombstones: Annotated[
        float, Option("Share of the records that are tombstones, such as 5% or 0.05. Default: none.", metavar="SHARE")
    ] = 0.0
    transactions: Annotated[
        int | None,
        Option("Records per transaction and partition. Default: no transactions.", metavar="COUNT"),
    ] = None
    aborted: Annotated[float, Option("Share of the transactions that are aborted. Default: none.", metavar="SHARE")] = (
        0.0
    )
    batch_records: Annotated[
        int | None,
        Option(
            "Records per batch. Default: the records of 5 ms (linger.ms), at most 16 KiB (batch.size).",
            metavar="COUNT",
        ),
    ] = None
    partitions: Annotated[
        int, Option("Number of partitions, which share rate and keys evenly. Default: 1.", metavar="COUNT")
    ] = 1

    def __post_init__(self) -> None:
        """Validate counts and shares."""
        for flag, count in (
            ("--keys", self.keys),
            ("--transactions", self.transactions),
            ("--batch-records", self.batch_records),
            ("--partitions", self.partitions),
        ):
            if count is not None and count < 1:
                raise RequestError(f"{flag} {count}: give 1 or more")
        for flag, share in (("--tombstones", self.tombstones), ("--aborted", self.aborted)):
            if not 0 <= share < 1:
                raise RequestError(f"{flag} {share:g}: give a share of at least 0 and below 1, such as 5%")
        if not 0 <= self.skew <= 10:
            raise RequestError(f"--skew {self.skew:g}: give an exponent from 0 (all keys the same) to 10")
        if self.record_size < RECORD_EXTRA_BYTES_MAX:
            raise RequestError(
                f"--record-size {self.record_size}: a record takes at least {RECORD_EXTRA_BYTES_MAX} bytes here"
            )
        if self.keys is None and (self.skew or self.preload):
            raise RequestError("--skew and --preload go with --keys: without it each record has a new key")
        if self.aborted and self.transactions is None:
            raise RequestError("--aborted needs --transactions")

    @property
    def records_per_second(self) -> float:
        """Write rate of the whole topic."""
        number, is_bytes = _parse_rate(self.rate)
        # The records of a batch share its header, and their number may follow from the rate.
        return number / (self.mean_record_size + HEADER.size / self._batch_records(number)) if is_bytes else number

    @property
    def records_per_batch(self) -> int:
        """Records per batch as given, or as a producer with Kafka's defaults would fill batches."""
        number, is_bytes = _parse_rate(self.rate)
        return self._batch_records(number if is_bytes else number * self.mean_record_size)

    def _batch_records(self, bytes_per_second: float) -> int:
        if self.batch_records is not None:
            return self.batch_records
        waited = bytes_per_second * _LINGER_SECONDS / self.partitions
        return max(1, int(min(waited, _BATCH_BYTES) / self.mean_record_size))

    @property
    def mean_record_size(self) -> float:
        """Mean size of records and tombstones, without the batch header."""
        return (1 - self.tombstones) * self.record_size + self.tombstones * TOMBSTONE_BYTES

    @property
    def bytes_per_second(self) -> float:
        """Write rate of the whole topic, batch headers included."""
        return self.records_per_second * (self.mean_record_size + HEADER.size / self.records_per_batch)


def _parse_rate(text: str) -> tuple[float, bool]:
    """Return the rate per second, and whether its unit is bytes."""
    found = _RATE.fullmatch(text.strip())
    if not text:
        raise RequestError("Give the written amount with --rate: records per second, or with a unit bytes (2m/s)")
    if found is None or not float(found[1]):
        raise RequestError(
            f"--rate {text}: give records per second (500, 90/min, 2000/day), or with a unit bytes (512k, 2m/s, "
            "40g/day)"
        )
    unit = (found[2] or "").lower()
    number = float(found[1]) * 1024 ** (" kmgt".index(unit) if unit else 0)
    return number / _SECONDS[(found[4] or "s").lower()], bool(unit or found[3])


# ---- keys ------------------------------------------------------------------------------------------------------------


def key_shares(keys: int, count: int, skew: float) -> Float64Array:
    """Return the share of all updates that each of `count` keys gets if together they represent `keys` keys.

    Order all keys by rank and divide them into `count` equal parts: key number i represents part i and gets the mean
    share of that part. So the update rate of a key is the same at each scale, except for the few keys in the first
    part; these are updated so often that all values but the last are superseded at once, at each scale.

    Args:
        count: number of simulated keys, at most `keys`.
        skew: the share of the key of rank r is proportional to r^-skew.

    Returns:
        float64[count]; their sum is 1.
    """
    edges = np.arange(count + 1) * (keys / count)
    exact = min(keys, _EXACT_RANKS)
    sums = np.concatenate([[0.0], np.cumsum(np.arange(1, exact + 1, dtype=np.float64) ** -skew)])
    below = np.interp(np.minimum(edges, exact), np.arange(exact + 1), sums)
    middle, ends = exact + 0.5, np.maximum(edges, exact) + 0.5
    power = 1 - skew
    behind = np.log(ends / middle) if abs(power) < 1e-9 else (ends**power - middle**power) / power
    shares = np.diff(below + behind)
    return np.asarray(shares / shares.sum())


class Keys:
    """Draws keys of records, as numbers from 0."""

    def __init__(self, workload: Workload, factor: float, source: np.random.Generator) -> None:
        """Prepare the distribution; `draw` draws.

        Args:
            factor: number of keys of a partition that each simulated key represents.
        """
        self._source = source
        self._tombstones = workload.tombstones
        self._cumulated: Float64Array | None = None
        #: Number of keys, or None if each record has a new key.
        self.count: int | None = None
        self._next_new = self._next_deleted = 0
        if workload.keys is not None:
            keys = max(1, round(workload.keys / workload.partitions))
            self.count = max(1, round(keys / factor))
            if workload.skew:
                self._cumulated = np.cumsum(key_shares(keys, self.count, workload.skew))

    def draw(self, records: int) -> tuple[Int64Array, BoolArray]:
        """Return the next records: int64[records], keys; bool[records], whether each is a tombstone."""
        tombstones = self._source.random(records) < self._tombstones
        if self.count is None:
            return self._new(tombstones), tombstones
        if self._cumulated is None:
            return self._source.integers(self.count, size=records), tombstones
        at = np.searchsorted(self._cumulated, self._source.random(records), side="right")
        return np.minimum(at, self.count - 1), tombstones

    def _new(self, tombstones: BoolArray) -> Int64Array:
        """Draw new keys; tombstones delete the oldest keys, and become values if no key is left to delete."""
        while True:
            new = self._next_new + np.cumsum(~tombstones)
            deleted = self._next_deleted + np.cumsum(tombstones)
            too_early = tombstones & (deleted > new)
            if not too_early.any():
                break
            tombstones &= ~too_early
        if tombstones.size:
            self._next_new, self._next_deleted = int(new[-1]), int(deleted[-1])
        return np.where(tombstones, deleted, new) - 1


# ---- scale -----------------------------------------------------------------------------------------------------------

# Writing a month of a topic in full would take too long. One partition is simulated. Its rate, its keys, its segments
# and its limits in bytes are divided by one factor; records, batches and times keep their size. So a segment fills, a
# log gets dirty and a limit is reached at the same time as in full size, and all results in bytes are multiplied by the
# factor at the end.
#
# Three things differ: chance has more influence among fewer keys; an append, which is never split between segments, is
# a larger part of a segment; and nothing happens between the steps of the clock. All three effects are small while a
# segment, a key or a limit covers many records, batches and steps; `tests/simulation` compares scales.

#: Default cap on simulated records, batches and bytes per config set.
RECORDS_MAX, _BATCHES_MAX, _BYTES_MAX = 1_500_000, 40_000, 400_000_000
#: Cap on simulated keys; each key takes memory even if no record has it.
_KEYS_MAX = 20_000_000
#: Raise if the smallest possible segments need more than this multiple of the caps, which would take minutes.
_TIMES_MAX = 5
#: Minimum batches per segment (otherwise batches shrink), and minimum records per segment.
_SEGMENT_BATCHES_MIN, _SEGMENT_RECORDS_MIN = 24, 8
#: Steps in the whole time, minimum and maximum; minimum steps per segment; minimum steps per time limit.
STEPS_MIN, STEPS_MAX, _SEGMENT_STEPS, _LIMIT_STEPS = 480, 6_000, 4, 20
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
        wanted = (records / RECORDS_MAX, batches / _BATCHES_MAX, records * mean_bytes / _BYTES_MAX)
        factor = max(1.0, *wanted)
        # Prefer writing more data to segments with too few records.
        least = max(1.0, min(factor, segment_bytes / (_SEGMENT_BATCHES_MIN * (record_bytes + HEADER.size))))
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
            f"--keys {workload.keys}: most of these keys are not written in {duration_ms / DAY_MS:g} days. Leave "
            "--keys out, and each record has a new key; or add --preload"
        )
    notes = []
    room = segment_bytes / factor
    fitting = max(1, int((room / _SEGMENT_BATCHES_MIN - HEADER.size) / record_bytes))
    if fitting < batch_records:
        if room < _SEGMENT_RECORDS_MIN * (record_bytes + HEADER.size):
            raise RequestError(
                f"--scale {factor:g}: a segment of {bytes_text(segment_bytes)} would hold fewer than "
                f"{_SEGMENT_RECORDS_MIN} records of {record_bytes} bytes. Give a smaller scale"
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
    wanted = [duration_ms / STEPS_MIN, fill_ms / _SEGMENT_STEPS]
    wanted += [value / _LIMIT_STEPS for config in configs for value in _times(config).values()]
    return max(1, round(max(min(wanted), duration_ms / STEPS_MAX)))


def _times(config: TopicConfig) -> dict[str, int]:
    """Return the time limits that the policy uses, without unlimited ones."""
    names = dict.fromkeys(name for policy in sorted(config.policy) for name in _TIMES[policy])
    return {name: value for name in names if 0 < (value := config.integer(name)) < LONG_MAX}


def _short_times(configs: Sequence[TopicConfig], step_ms: int) -> list[str]:
    short = {name: value for config in configs for name, value in _times(config).items() if value < 2 * step_ms}
    if any("delete" in config.policy and not config.integer("retention.ms") for config in configs):
        short["retention.ms"] = 0
    return [f"{name}={value} is short compared with a step, so its effects come late" for name, value in short.items()]


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
