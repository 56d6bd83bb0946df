"""The results of `simulate` and `explain`, for people: a table, notes on limits, a chart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from html import escape
from typing import Any

from cordwood.common.config import DAY_MS
from cordwood.common.text import (
    Charted,
    Column,
    bytes_text,
    duration_text,
    number,
    printable,
    register,
    rounded,
    table,
    time_text,
)
from cordwood.simulation.sizing.result import AtOnce, ExplainResult, Outcome, Point, SimulationResult, Stay
from cordwood.simulation.sizing.workload import Workload
from cordwood.view.pages.charts import COLORS, Curve, LineChart

Cell = Callable[[Outcome, int], str]


def _share(part: Callable[[Outcome], int]) -> Cell:
    return lambda one, _: f"{100 * part(one) / max(one.mean_bytes, 1):.0f} %"


def _stay(find: Callable[[Outcome], Stay | None]) -> Cell:
    def show(outcome: Outcome, _: int) -> str:
        stay = find(outcome)
        if stay is None:
            return "-"
        if stay.min_ms is None:
            return "none has gone"
        most = [
            duration_text(ms) if ms is not None else f"> {duration_text(stay.max_ms)}"
            for ms in (stay.median_ms, stay.most_ms)
        ]
        return " · ".join([*most, duration_text(stay.max_ms)])

    return show


def _per_day(count: float, outcome: Outcome) -> str:
    return rounded(count * DAY_MS / outcome.duration_ms)


def policy(outcome: Outcome) -> str:
    """Return the cleanup policy in words."""
    return ",".join(word for word, has in (("compact", outcome.compact), ("delete", outcome.delete)) if has) or "(none)"


#: Title and cell of each row; the cell's second argument is the number of partitions. A row of dashes is left out.
_SIZES: Sequence[tuple[str, Cell]] = (
    ("disk of the topic, peak", lambda one, partitions: bytes_text(one.peak_bytes * partitions)),
    ("  of a partition", lambda one, partitions: bytes_text(one.peak_bytes) if partitions > 1 else "-"),
    ("disk of the topic, average", lambda one, partitions: bytes_text(one.mean_bytes * partitions)),
    ("  of a partition", lambda one, partitions: bytes_text(one.mean_bytes) if partitions > 1 else "-"),
    ("  last values of keys", lambda one, _: _share(lambda o: o.contents.values)(one, 0) if one.compact else "-"),
    ("  superseded records", lambda one, _: _share(lambda o: o.contents.superseded)(one, 0) if one.compact else "-"),
    ("  tombstones", lambda one, _: _share(lambda o: o.contents.tombstones)(one, 0) if one.tombstones else "-"),
    ("  aborted records", lambda one, _: _share(lambda o: o.contents.aborted)(one, 0) if one.aborted else "-"),
    ("  batch headers, indexes", lambda one, _: _share(lambda o: o.contents.rest)(one, 0) if one.compact else "-"),
)
_WORK: Sequence[tuple[str, Cell]] = (
    ("segments, average · most", lambda one, _: f"{one.segments_mean:.1f} · {one.segments_max}"),
    ("segments deleted a day", lambda one, _: _deleted(one)),
    ("cleans a day", lambda one, _: _per_day(one.cleans.count, one) if one.compact else "-"),
    ("cleaner reads, topic", lambda one, partitions: _rate(one, one.cleans.read_bytes * partitions)),
    ("cleaner writes, topic", lambda one, partitions: _rate(one, one.cleans.written_bytes * partitions)),
    ("  read per byte appended", lambda one, _: f"{one.read_per_byte:.2f}" if one.compact else "-"),
    ("  written per byte appended", lambda one, _: f"{one.cleaned_per_byte:.2f}" if one.compact else "-"),
    ("superseded record stays", _stay(lambda one: one.superseded)),
    ("tombstone stays", _stay(lambda one: one.tombstones)),
    ("aborted record stays", _stay(lambda one: one.aborted)),
    ("age of a deleted record", _stay(lambda one: one.deleted)),
)
#: Number of rows that show the size over time.
_PARTS = 5
#: Legend for the columns of stays and ages.
STAYS = "stays and ages: median · 95 % · longest"


def _deleted(outcome: Outcome) -> str:
    return _per_day(outcome.deletions.by_time + outcome.deletions.by_size, outcome) if outcome.delete else "-"


def _rate(outcome: Outcome, size_bytes: float) -> str:
    return f"{bytes_text(round(size_bytes / (outcome.duration_ms / 1000)))}/s" if outcome.compact else "-"


def lines(result: SimulationResult) -> Iterator[str]:
    """Yield the result as lines for people."""
    yield from head(result)
    yield ""
    yield from configs(result)
    yield ""
    yield from _figure_lines(result.outcomes, result.workload.partitions)
    yield ""
    yield from notes(result.outcomes)
    if result.verdict:
        yield ""
        yield from result.verdict


def head(result: SimulationResult) -> Iterator[str]:
    """Yield the workload and the scale of the simulation."""
    workload, scale = result.workload, result.scale
    yield _title(result)
    yield f"= {bytes_text(round(workload.bytes_per_second * 86_400))} a day, {_bytes_in_all(result)} in all"
    yield (
        f"simulated: one partition, at a scale of 1 : {rounded(scale.factor)}, "
        f"in steps of {duration_text(scale.step_ms)}, seed {result.seed}"
    )
    yield from (f"  {note}" for note in scale.notes)


def configs(result: SimulationResult) -> Iterator[str]:
    """Yield a line with the configs of each set."""
    several = len(result.outcomes) > 1
    for one in result.outcomes:
        chosen = ", ".join(f"{name}={printable(text)}" for name, text in one.configs.items())
        yield f"{one.label if several else 'configs'}: {chosen or 'all as Kafka has them by default'}"


def _figure_lines(outcomes: Sequence[Outcome], partitions: int, *, of: str = "topic") -> Iterator[str]:
    """Yield the outcomes as lines for people; see `figures`."""
    shown = list(table(*figures(outcomes, partitions, of=of)))
    yield from shown if len(outcomes) > 1 else shown[1:]
    if has_stays(outcomes):
        yield f"({STAYS})"


def figures(outcomes: Sequence[Outcome], partitions: int, *, of: str = "topic") -> tuple[list[Column], list[list[str]]]:
    """Build the table of outcomes: a column for each set of configs.

    Args:
        partitions: number of partitions to multiply the sizes by.
        of: name of the measured thing, a topic or a log.
    """
    several = len(outcomes) > 1
    columns = [Column(""), *(Column(one.label if several else "", right=True) for one in outcomes)]
    sizes, work = (
        [[title.replace("topic", of), *(cell(one, partitions) for one in outcomes)] for title, cell in rows]
        for rows in (_SIZES, _WORK)
    )
    rows = [*sizes, *_over_time(outcomes, partitions, of), *work]
    return columns, [row for row in rows if set(row[1:]) != {"-"}]


def has_stays(outcomes: Sequence[Outcome]) -> bool:
    """Whether the figures include stays and ages."""
    return any(one.superseded or one.tombstones or one.aborted or one.deleted for one in outcomes)


def notes(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield the notes of each outcome: limits that take effect, and advice."""
    several = len(outcomes) > 1
    for one in outcomes:
        yield from (f"{one.label}: {note}" if several else note[:1].upper() + note[1:] for note in one.notes)


def _over_time(outcomes: Sequence[Outcome], partitions: int, of: str) -> Iterator[list[str]]:
    """Yield the mean and peak disk use in each part of the time."""
    histories = [one.history for one in outcomes]
    parts = min(_PARTS, *map(len, histories))
    if not parts:
        return  # the simulation has no history
    yield [f"disk of the {of} over time", *("average · peak" for _ in histories)]
    begin = 0
    for part in range(1, parts + 1):
        end = len(histories[0]) * part // parts
        cells = []
        for history in histories:
            points = history[begin:end]
            mean = sum(point.disk_bytes for point in points) / len(points)
            peak = max(point.peak_bytes for point in points)
            cells.append(f"{bytes_text(round(mean * partitions))} · {bytes_text(peak * partitions)}")
        days = (round(0 if not at else histories[0][at - 1].ms / DAY_MS, 2) for at in (begin, end))
        yield ["  day {:g} to {:g}".format(*days), *cells]
        begin = end


def _title(result: SimulationResult) -> str:
    workload = result.workload
    parts = [
        f"{rounded(result.days)} day{'s' * (result.days != 1)} of {_rate_text(workload)} of "
        f"{bytes_text(workload.record_size)}",
        _keys_text(workload),
    ]
    if workload.tombstones:
        parts.append(f"{100 * workload.tombstones:g} % tombstones")
    if workload.transactions is not None:
        aborted = f", {100 * workload.aborted:g} % aborted" if workload.aborted else ""
        parts.append(f"transactions of {workload.transactions:,}{aborted}")
    parts.append(f"{workload.partitions} partition{'s' * (workload.partitions != 1)}")
    return "; ".join(parts)


def _rate_text(workload: Workload) -> str:
    """Return the record rate in the smallest time unit that holds at least one record."""
    per_second = workload.records_per_second
    units = (("s", 1), ("min", 60), ("h", 3600), ("day", 86_400))
    unit, seconds = next((one for one in units if per_second * one[1] >= 1), units[-1])
    return f"{rounded(per_second * seconds)} records/{unit}"


def _keys_text(workload: Workload) -> str:
    if workload.keys is None:
        return "each with a new key"
    spread = f"Zipf {workload.skew:g}" if workload.skew else "all equally often"
    return f"{workload.keys:,} keys, {spread}{', all of them loaded at first' * workload.preload}"


def _bytes_in_all(result: SimulationResult) -> str:
    return bytes_text(round(result.outcomes[0].appended_bytes * result.workload.partitions))


def document(result: SimulationResult) -> dict[str, Any]:
    """Return the result as one JSON value: bytes and milliseconds, of one partition, except for `topic_…` fields."""
    workload = result.workload
    return {
        "workload": {
            **asdict(workload),
            "records_per_second": workload.records_per_second,
            "bytes_per_second": workload.bytes_per_second,
        },
        "days": result.days,
        "seed": result.seed,
        "scale": asdict(result.scale),
        "outcomes": [_outcome_document(one, workload.partitions) for one in result.outcomes],
        "verdict": list(result.verdict),
    }


def _outcome_document(outcome: Outcome, partitions: int) -> dict[str, Any]:
    """Return the outcome of one set of configs as JSON."""
    return {
        **asdict(outcome),
        "topic_mean_bytes": outcome.mean_bytes * partitions,
        "topic_peak_bytes": outcome.peak_bytes * partitions,
        "read_per_byte": outcome.read_per_byte,
        "cleaned_per_byte": outcome.cleaned_per_byte,
        "cleaner_rate": outcome.cleaner_rate,
    }


def chart(result: SimulationResult) -> str:
    """Draw the topic's disk use over time, as SVG."""
    return _disk_chart("Disk of the topic", result.outcomes, result.workload.partitions)


def _disk_chart(
    title: str, outcomes: Sequence[Outcome], partitions: int, *, x_marks: Sequence[tuple[float, str]] = ()
) -> str:
    """Draw the disk use over time under one or more sets of configs, as SVG.

    If a partition has at most as many cleans as the chart has points, each clean gets a mark on the line. If it has
    more, a band shows the minimum and maximum in the time of each point.

    Args:
        partitions: number of partitions to multiply the sizes by.
        x_marks: marks on the time axis, with their position in days; default: round numbers.
    """
    curves = []
    for index, one in enumerate(outcomes):
        color, history = COLORS[index % len(COLORS)], one.history

        def points(value: Callable[[Point], int], history: Sequence[Point] = history) -> list[tuple[float, float]]:
            return [(point.ms / DAY_MS, value(point) * partitions) for point in history]

        name = policy(one) if len(outcomes) == 1 else one.label
        is_band = one.cleans.count > len(history)
        area = "from the least to the most" if is_band else "peaks, with files that wait for removal"
        cleaned = [at for at, point in zip(points(lambda p: p.disk_bytes), history, strict=True) if point.cleans]
        curves += [
            Curve(
                f"{name}: {area}",
                points(lambda p: p.peak_bytes),
                color,
                filled=True,
                floor=points(lambda p: p.least_bytes) if is_band else (),
            ),
            Curve(
                f"{name}: disk" + (", with a mark for each clean" if cleaned and not is_band else ""),
                points(lambda p: p.disk_bytes),
                color,
                marks=() if is_band else cleaned,
            ),
        ]
        if one.compact:
            curves.append(Curve(f"{name}: last values of keys", points(lambda p: p.values_bytes), color, dashed=True))
    apart = outcomes[0].duration_ms / max(len(outcomes[0].history), 1)
    chart = LineChart(title, curves, lambda value: "0" if not value else bytes_text(round(value)))
    return chart.file(f"days; a point stands for {duration_text(round(apart))}", x_marks)


def notebook(result: Charted) -> str:
    """Return a result for a notebook: text and chart."""
    return f"<pre>{escape(result.text())}</pre>\n{result.svg()}"


register(SimulationResult, lines=lines, document=document, html=notebook, svg=chart)


# ---- explain ---------------------------------------------------------------------------------------------------------

#: Number of dates on the time axis.
_DATES = 5


def _explain_lines(result: ExplainResult) -> Iterator[str]:
    """Yield the result as lines for people."""
    yield from explain_head(result)
    yield ""
    yield from explain_configs(result)
    yield ""
    yield "at once"
    for label, found in result.at_once.items():
        yield f"  {at_once(label, found)}"
    yield ""
    yield replayed(result)
    yield from _figure_lines(result.outcomes, 1, of="log")
    for one in result.outcomes:
        yield from ("", *(printable(f"{one.label}: {note}") for note in one.notes)) if one.notes else ()
    if result.verdict:
        yield ""
        yield from result.verdict
    if result.notes:
        yield ""
        yield from (printable(f"note: {note}") for note in result.notes)


def explain_head(result: ExplainResult) -> Iterator[str]:
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


def explain_configs(result: ExplainResult) -> Iterator[str]:
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


def _explain_document(result: ExplainResult) -> dict[str, Any]:
    """Return the result as one JSON value: bytes and milliseconds, of the one partition."""
    return {
        "now_ms": result.now_ms,
        "log": asdict(result.log),
        "seed": result.seed,
        "scale": asdict(result.scale),
        "at_once": {label: asdict(found) for label, found in result.at_once.items()},
        "outcomes": [_outcome_document(one, 1) for one in result.outcomes],
        "verdict": list(result.verdict),
        "notes": list(result.notes),
    }


def _explain_chart(result: ExplainResult) -> str:
    """Draw the log's disk use over time, as SVG."""
    days = result.outcomes[0].duration_ms / DAY_MS
    begin_ms = result.log.end_ms - result.outcomes[0].duration_ms
    marks = []
    for at in range(_DATES):
        day = days * at / (_DATES - 1)
        marks.append((day, date(round(begin_ms + day * DAY_MS))[5 : 10 if days > _DATES else 16]))
    return _disk_chart(f"Disk of {result.log.name}", result.outcomes, 1, x_marks=marks)


register(ExplainResult, lines=_explain_lines, document=_explain_document, html=notebook, svg=_explain_chart)
