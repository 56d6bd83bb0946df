"""Turns figures into sentences: which limits take effect, and how two sets of configs compare."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from cordwood.common.config import DAY_MS, BrokerConfig, SourceKind, TopicConfig, show
from cordwood.common.text import bytes_text, duration_text, number, rounded
from cordwood.simulation.sizing.result import Outcome, Stay

_OF_RETENTION = ("retention.ms", "retention.bytes")
_OF_CLEANS = ("min.cleanable.dirty.ratio", "min.compaction.lag.ms", "max.compaction.lag.ms", "delete.retention.ms")
#: Sources of configs that were chosen for one topic; a broker's configs apply to all topics.
_CHOSEN = (SourceKind.TOPIC, SourceKind.OVERRIDE, SourceKind.TOPIC_OVERRIDE)
#: Report differences and growth above this share.
_WORTH = 0.05


def notes_on(outcome: Outcome, topic: TopicConfig, broker: BrokerConfig, partitions: int) -> tuple[str, ...]:
    """Return notes on the outcome of one set of configs."""
    notes = [*_on_segments(outcome, topic)]
    if outcome.compact:
        notes += _on_cleans(outcome, topic, broker, partitions)
    if outcome.delete:
        notes += _on_retention(outcome, topic)
    notes += _without_effect(outcome, topic)
    days = outcome.duration_ms / DAY_MS
    if outcome.growth_bytes * days / 3 > _WORTH * outcome.mean_bytes:
        notes.append(
            f"at the end a partition still grows, by {bytes_text(outcome.growth_bytes)} a day: more days give more"
        )
    return tuple(notes)


def _without_effect(outcome: Outcome, topic: TopicConfig) -> Iterator[str]:
    """Report configs that were set for this topic but that its cleanup policy ignores."""
    names = [*(() if outcome.delete else _OF_RETENTION), *(() if outcome.compact else _OF_CLEANS)]
    chosen = [name for name in names if topic[name].source.kind in _CHOSEN]
    if chosen:
        yield f"no effect with cleanup.policy={show(topic['cleanup.policy'].value)}: {', '.join(chosen)}"


def _on_segments(outcome: Outcome, topic: TopicConfig) -> Iterator[str]:
    rolls, segment_bytes = outcome.rolls, topic.segment_bytes
    lag = topic["max.compaction.lag.ms"]
    by_lag = outcome.compact and topic.integer("max.compaction.lag.ms") < topic.integer("segment.ms")
    name, ms = ("max.compaction.lag.ms", lag.value) if by_lag else ("segment.ms", topic["segment.ms"].value)
    assert isinstance(ms, int)
    if not rolls.count and outcome.deletions.first_ms is None:
        yield (
            f"no segment was closed: the active one has not reached segment.bytes ({bytes_text(segment_bytes)}) or "
            f"{name} ({duration_text(ms)}), and is neither cleaned nor deleted before"
        )
    elif rolls.by_time > rolls.by_size:
        size = bytes_text(rolls.closed_bytes // rolls.count)
        yield (
            f"segments are closed by {name} ({duration_text(ms)}), with {size} of the {bytes_text(segment_bytes)} that "
            "segment.bytes allows"
        )
    if rolls.by_index:
        yield f"{number(rolls.by_index, 'segment')} closed because an index was full (segment.index.bytes)"
    if outcome.compact and rolls.count and outcome.active_bytes > outcome.mean_bytes / 3:
        share = 100 * outcome.active_bytes / outcome.mean_bytes
        less = f"a shorter {name}" if rolls.by_time > rolls.by_size else "a smaller segment.bytes"
        yield f"{share:.0f} % of the disk is the active segment, which is never cleaned: {less} would help"


def _on_cleans(outcome: Outcome, topic: TopicConfig, broker: BrokerConfig, partitions: int) -> Iterator[str]:
    cleans = outcome.cleans
    ratio = f"min.cleanable.dirty.ratio ({topic.real('min.cleanable.dirty.ratio'):g})"
    lag_ms = topic.integer("max.compaction.lag.ms")
    if cleans.first_ms is None:
        if not broker.flag("log.cleaner.enable"):
            yield "nothing is cleaned: the broker has no cleaner (log.cleaner.enable)"
        elif outcome.rolls.count:
            yield f"nothing was cleaned: the cleanable part did not reach {ratio}"
        return
    why = f"because of {ratio}"
    if cleans.by_lag:
        both = f"{cleans.by_lag} of {number(cleans.count, 'clean')}" if cleans.by_ratio else "all cleans"
        why = f"{both} because of max.compaction.lag.ms ({duration_text(lag_ms)})"
        why += f", all other cleans because of {ratio}" if cleans.by_ratio else ""
    yield f"the first clean is after {duration_text(cleans.first_ms)}; {why}"
    if cleans.keys_max > cleans.map_keys:
        yield (
            f"a clean meets up to {cleans.keys_max:,} new keys, and the map of a broker's cleaner thread holds "
            f"{cleans.map_keys:,} (log.cleaner.dedupe.buffer.size): a broker needs several cleans for them"
        )
    limit = broker.real("log.cleaner.io.max.bytes.per.second")
    needed = outcome.cleaner_rate * partitions
    if 0 < limit < needed:
        yield (
            f"the cleaner would not keep up: it needs {bytes_text(round(needed))}/s on average for this topic alone, "
            f"and log.cleaner.io.max.bytes.per.second allows {bytes_text(round(limit))}/s"
        )
    retention_ms, stay = topic.integer("delete.retention.ms"), outcome.tombstones
    if stay is not None and (stay.max_ms if stay.median_ms is None else stay.median_ms) > 1.5 * retention_ms:
        yield (
            f"tombstones stay longer than delete.retention.ms ({duration_text(retention_ms)}): that time begins with "
            "the first clean of a tombstone, and the first clean after that time removes it"
        )


def _on_retention(outcome: Outcome, topic: TopicConfig) -> Iterator[str]:
    deletions, stay = outcome.deletions, outcome.deleted
    limit_ms, limit_bytes = topic.integer("retention.ms"), topic.integer("retention.bytes")
    by_time = f"retention.ms ({duration_text(limit_ms)})"
    by_size = f"retention.bytes ({bytes_text(limit_bytes)} of a partition)"
    if deletions.first_ms is None or stay is None:
        limits = [text for text, limit in ((by_time, limit_ms), (by_size, limit_bytes)) if limit >= 0]
        yield "nothing was deleted: " + (
            f"{' and '.join(limits)} {'were' if len(limits) > 1 else 'was'} not reached"
            if limits
            else "there is no limit"
        )
        return
    first = f"the first segment is deleted after {duration_text(deletions.first_ms)}"
    if not deletions.by_size:
        other = f"; {by_size} is never reached" if limit_bytes >= 0 else ""
        yield f"{first}, by {by_time}{other}"
    elif not deletions.by_time:
        other = f"; {by_time} is never reached" if limit_ms >= 0 else ""
        yield f"{first}, by {by_size}{other}"
    else:
        yield f"{first}; {deletions.by_size} by {by_size}, {deletions.by_time} by {by_time}"
    if not deletions.by_size and stay.max_ms > 1.2 * limit_ms:
        yield (
            f"records are up to {duration_text(stay.max_ms)} old when they are deleted: a segment goes once its newest "
            "record is too old, so smaller segments, or a shorter segment.ms, keep less"
        )


# ---- two sets --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Measure:
    """A figure whose smaller values are better.

    Attributes:
        value: the figure of an outcome, or None if it does not apply.
        text: sentence about the set with the smaller value, with both values and labels, and their ratio.
        gain: the advantage in a few words.
    """

    value: Callable[[Outcome], float | None]
    text: str
    gain: str
    show: Callable[[float], str]


def _size(value: float) -> str:
    return bytes_text(round(value))


def _rate(value: float) -> str:
    return f"{_size(value)}/s"


def _most(stay: Stay | None) -> float | None:
    return None if stay is None else stay.most_ms


#: Figures of one partition; `{less}` and `{more}` are the labels of the sets.
_MEASURES: Sequence[_Measure] = (
    _Measure(
        lambda one: one.peak_bytes,
        "{less} takes less disk at its peak: {small} per partition, {more} {large}{times}",
        "a lower peak",
        _size,
    ),
    _Measure(
        lambda one: one.mean_bytes,
        "{less} takes less disk on average: {small} per partition, {more} {large}{times}",
        "less disk on average",
        _size,
    ),
    _Measure(
        lambda one: one.cleaner_rate if one.compact else None,
        "The cleaner of {less} reads and writes less: {small} per partition, {more} {large}{times}",
        "less work for the cleaner",
        _rate,
    ),
    _Measure(
        lambda one: _most(one.superseded),
        "Superseded records go sooner with {less}: 95 % within {small}, {more} {large}",
        "superseded records that go sooner",
        duration_text,
    ),
    _Measure(
        lambda one: _most(one.tombstones),
        "Tombstones go sooner with {less}: 95 % within {small}, {more} {large}",
        "tombstones that go sooner",
        duration_text,
    ),
)


def compare(first: Outcome, second: Outcome) -> tuple[str, ...]:
    """Compare two sets: differences above 5 %, their reasons, and the advantages of each set."""
    lines: list[str] = []
    gains: dict[str, list[str]] = {first.label: [], second.label: []}
    for measure in _MEASURES:
        values = measure.value(first), measure.value(second)
        if values[0] is None or values[1] is None:
            continue
        (small, less), (large, more) = sorted(zip(values, (first.label, second.label), strict=True))
        assert small is not None and large is not None
        if large - small <= _WORTH * large:
            continue
        gains[less].append(measure.gain)
        times = f" ({rounded(large / small)} times)" if small else ""
        shown = {"small": measure.show(small), "large": measure.show(large)}
        lines.append(measure.text.format(less=less, more=more, times=times, **shown))
    lines += _why(first, second)
    lines.append(_advice(gains))
    return tuple(lines)


def _why(first: Outcome, second: Outcome) -> Iterator[str]:
    """Explain different disk use by the share of superseded records."""
    if not (first.compact and second.compact):
        return
    shares = [one.contents.superseded / max(one.mean_bytes, 1) for one in (first, second)]
    if abs(shares[0] - shares[1]) > _WORTH:
        days = first.duration_ms / DAY_MS
        parts = []
        for one, share in zip((first, second), shares, strict=True):
            times = rounded(one.cleans.count / days)
            parts.append(
                f"{one.label} cleans a partition {times} times a day, and {100 * share:.0f} % of its disk is superseded"
            )
        yield "; ".join(parts)


def _advice(gains: Mapping[str, Sequence[str]]) -> str:
    better = {label: found for label, found in gains.items() if found}
    if not better:
        return "Neither is better: nothing differs by more than 5 %"
    if len(better) == 1:
        return f"{next(iter(better))} is better in all that differs by more than 5 %"
    return "Choose " + "; ".join(f"{label} for {', '.join(found)}" for label, found in better.items())
