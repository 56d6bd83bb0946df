"""The result of `explain`, for people: immediate changes, a table of the replay, notes, a chart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from cordwood.common.config import DAY_MS
from cordwood.common.text import bytes_text, duration_text, number, printable, register, rounded, time_text
from cordwood.simulation.report import disk_chart, figure_lines, notebook, outcome_document
from cordwood.simulation.sizing.result import AtOnce, ExplainResult

#: Number of dates on the time axis.
_DATES = 5


def lines(result: ExplainResult) -> Iterator[str]:
    """Yield the result as lines for people."""
    yield from head(result)
    yield ""
    yield from configs(result)
    yield ""
    yield "at once"
    for label, found in result.at_once.items():
        yield f"  {at_once(label, found)}"
    yield ""
    yield replayed(result)
    yield from figure_lines(result.outcomes, 1, of="log")
    for one in result.outcomes:
        yield from ("", *(printable(f"{one.label}: {note}") for note in one.notes)) if one.notes else ()
    if result.verdict:
        yield ""
        yield from result.verdict
    if result.notes:
        yield ""
        yield from (printable(f"note: {note}") for note in result.notes)


def head(result: ExplainResult) -> Iterator[str]:
    """Yield the log's name and size, and the scale of the replay."""
    log, scale = result.log, result.scale
    largest = f", the largest of {log.topic_partitions} here ({bytes_text(log.topic_bytes)})"
    since = f"in {duration_text(log.end_ms - log.first_ms)} since {date(log.first_ms)}"
    gone = f", and {number(log.gone, 'record')} that cleans removed" if log.gone else ""
    yield printable(
        f"{log.name}: {bytes_text(log.log_bytes)}{largest if log.topic_partitions > 1 else ''}; "
        f"{number(log.records, 'record')}{gone}, {since}"
    )
    keys = "all keys" if scale.factor == 1 else f"one key in {rounded(scale.factor)}"
    yield f"replayed: the records of {keys}, in steps of {duration_text(scale.step_ms)}, seed {result.seed}"
    yield from (f"  {note}" for note in scale.notes)


def configs(result: ExplainResult) -> Iterator[str]:
    """Yield a line with the configs of each set."""
    now = result.outcomes[0].configs
    yield printable(f"{result.outcomes[0].label}: {_listed(now)}")
    for one in result.outcomes[1:]:
        changed = {name: text for name, text in one.configs.items() if now.get(name) != text}
        yield printable(f"{one.label}: " + (f"with {_listed(changed)}" if changed else "the same"))


def _listed(configs: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={text}" for name, text in configs.items()) or "all as Kafka has them by default"


def at_once(label: str, found: AtOnce) -> str:
    """Describe the actions of a broker that starts now with these configs."""
    parts = []
    if found.deleted_segments:
        reasons = "; ".join(found.deleted_by)
        count = number(found.deleted_segments, "segment")
        parts.append(f"deletes {count}, {bytes_text(found.deleted_bytes)} ({reasons})")
    if found.is_cleaned:
        parts.append(f"cleans it, and removes at most {bytes_text(found.removed_bytes_max)} ({found.reason})")
    elif found.cleanable_ratio is not None:
        parts.append(f"does not clean it: {found.reason}")
    return printable(f"{label}: a broker {'; '.join(parts) or 'deletes nothing'}")


def replayed(result: ExplainResult) -> str:
    """Describe the replayed time."""
    return f"over the {duration_text(result.outcomes[0].duration_ms)} up to {date(result.log.end_ms)}, replayed"


def date(ms: int) -> str:
    """Return a time to the minute."""
    return time_text(ms)[: len("2026-01-01 00:00")]


def document(result: ExplainResult) -> dict[str, Any]:
    """Return the result as one JSON value: bytes and milliseconds, of the one partition."""
    return {
        "now_ms": result.now_ms,
        "log": asdict(result.log),
        "seed": result.seed,
        "scale": asdict(result.scale),
        "at_once": {label: asdict(found) for label, found in result.at_once.items()},
        "outcomes": [outcome_document(one, 1) for one in result.outcomes],
        "verdict": list(result.verdict),
        "notes": list(result.notes),
    }


def chart(result: ExplainResult) -> str:
    """Draw the log's disk use over time, as SVG."""
    days = result.outcomes[0].duration_ms / DAY_MS
    begin_ms = result.log.end_ms - result.outcomes[0].duration_ms
    marks = []
    for at in range(_DATES):
        day = days * at / (_DATES - 1)
        marks.append((day, date(round(begin_ms + day * DAY_MS))[5 : 10 if days > _DATES else 16]))
    return disk_chart(f"Disk of {result.log.name}", result.outcomes, 1, x_marks=marks)


register(ExplainResult, lines=lines, document=document, html=notebook, svg=chart)
