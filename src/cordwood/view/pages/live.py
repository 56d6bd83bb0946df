"""The pages of live logs: health, current cleaner activity, history, each partition."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from cordwood.cleaning.rules.plan import utc
from cordwood.common.text import (
    Cells,
    Column,
    bytes_text,
    cells_of,
    duration_text,
    number,
    printable,
    rounded,
    time_text,
)
from cordwood.live import report as report
from cordwood.live.report import (
    PARTITION_COLUMNS,
    SPANS,
    Health,
    LiveLook,
    PartitionStatus,
    Sample,
    Span,
    ThreadStatus,
    worst_first,
)
from cordwood.view.pages.charts import Curve, LineChart, utc_time
from cordwood.view.pages.drawing import share_bar
from cordwood.view.pages.frame import (
    Links,
    Wanted,
    cut,
    figures,
    page,
    page_links,
    paragraph,
    search_form,
    section,
    table,
)
from cordwood.view.pages.markup import Content, Markup, tag

_LINKS = Links((("Live", "/"), ("Partitions", "/partitions")))
#: Maximum number of table rows on the start page.
_ROWS_MAX = 20
#: Seconds until the page reloads, by the name in the URL; the first is the default.
_REFRESH: Mapping[str, int | None] = {"5s": 5, "30s": 30, "never": None}
#: Sort orders of the list of partitions; the first is the default.
_ORDERS: Mapping[str, Callable[[Sequence[PartitionStatus]], list[PartitionStatus]]] = {
    "worst first": worst_first,
    "name": lambda found: sorted(found, key=lambda status: status.partition),
    "size": lambda found: sorted(found, key=lambda status: -status.size_bytes),
    "dirty": lambda found: sorted(found, key=lambda status: -(status.cleanable_ratio or 0)),
    "appended": lambda found: sorted(found, key=lambda status: -status.appended_bytes),
}


#: Maximum number of logs in the table of the tier; those with problems come first.
_TIERED_MAX = 50


def document(look: LiveLook, samples: Sequence[Sample], span: Span) -> dict[str, Any]:
    """Return the start page as one JSON value."""
    return {**report.document(look, samples), "span": span}


def partitions_document(look: LiveLook, wanted: Wanted) -> dict[str, Any]:
    """Return a page of the list of partitions as one JSON value."""
    found = _found(look, wanted)
    return {
        "partitions_found": len(found),
        "page": wanted.page,
        "partitions": [report.partition_document(one) for one in wanted.cut(found)],
    }


def loading_page(health: Health, waiting: str) -> str:
    """Make the page that is shown until the logs are loaded."""
    status = tag(
        "div",
        paragraph("The logs are being loaded. This page loads again by itself."),
        paragraph(f"Waits for {printable(waiting)}", class_="quiet"),
        class_="under-way",
        role="status",
    )
    return page("Live logs", _LINKS, tag("h1", "Live logs"), status, _health(health), refresh_seconds=1)


def live_page(look: LiveLook, samples: Sequence[Sample], span: Span, refresh: str) -> str:
    """Make the page with current cleaner activity and its history.

    Args:
        refresh: name of the reload interval in the URL.
    """
    refresh = refresh if refresh in _REFRESH else next(iter(_REFRESH))
    return page(
        "Live logs",
        _LINKS,
        _body(look, samples, span, refresh),
        document_link=_LINKS.document("live", {"span": span}),
        refresh_seconds=_REFRESH[refresh],
    )


def _body(look: LiveLook, samples: Sequence[Sample], span: Span, refresh: str) -> Content:
    failed = [one for one in look.partitions if one.failures]
    return [
        tag("h1", "Live logs"),
        paragraph(", ".join(map(printable, look.directories)), f", as of {utc(look.now.time_ms)}", class_="quiet"),
        _choices(
            "This page loads again",
            [(name, _LINKS.to("", span=span, refresh=name), name == refresh) for name in _REFRESH],
        ),
        _figures(look),
        section("Health", _health(look.health)),
        section("Cleaner threads", _threads(look.threads)),
        section("Logs that cannot be cleaned", _failed(failed)),
        *_tier(look),
        section(
            "Over time",
            _choices(
                "The last", [(SPANS[one][0], _LINKS.to("", span=one, refresh=refresh), one is span) for one in Span]
            ),
            _over_time(samples, span),
        ),
        section(
            "Partitions",
            _first_partitions(look),
            paragraph(tag("a", "All partitions, searched and sorted", href=_LINKS.to("partitions"))),
        ),
    ]


def _choices(label: str, choices: Sequence[tuple[str, str | None, bool]]) -> Markup:
    """Make a row of links from words, address, and whether the link is the current choice."""
    links = [tag("a", words, href=href, aria_current="true" if chosen else None) for words, href, chosen in choices]
    return tag("nav", tag("span", f"{label}:", class_="quiet"), links, class_="pages", aria_label=label)


def _figures(look: LiveLook) -> Markup:
    now, problems = look.now, look.health.problems
    per_byte = now.written_per_new_byte
    return figures(
        ("Health", number(len(problems), "problem") if problems else "well"),
        ("Partitions", f"{len(look.partitions):,}"),
        ("Size", bytes_text(now.size_bytes)),
        ("Due for a clean", f"{now.due:,}"),
        ("Appended", bytes_text(now.appended_bytes)),
        ("Cleaned away", bytes_text(now.removed_bytes)),
        ("Deleted", bytes_text(now.deleted_bytes)),
        ("Written per new byte", "-" if per_byte is None else rounded(per_byte)),
        ("Runs for", duration_text(now.uptime_ms)),
    )


def _health(health: Health) -> Content:
    if health.is_well:
        return paragraph("No problem was seen.")
    return tag("ul", [tag("li", printable(problem), class_="wrong") for problem in health.problems])


# ---- the cleaner -----------------------------------------------------------------------------------------------------


def _threads(threads: Sequence[ThreadStatus]) -> Content:
    if not threads:
        return paragraph("There is none: log.cleaner.enable is false, and no log is compacted.")
    columns = [
        Column("THREAD"),
        Column("DOES"),
        Column("PARTITION"),
        Column("FOR", right=True),
        Column("PROGRESS"),
        Column("READ", right=True),
        Column("LAST CLEAN"),
    ]
    rows = [[one.name, one.state, *_running(one), printable(one.last) or "-"] for one in threads]
    return [
        table(number(len(threads), "cleaner thread"), columns, rows),
        paragraph(
            "A clean reads keys first, then what stays, unless that is still in memory or in a key index; so it may "
            "end before the bar does. A thread that waits for a log that is due deletes old segments meanwhile.",
            class_="quiet",
        ),
    ]


def _tier(look: LiveLook) -> Iterator[Content]:
    """Yield the section about logs in a tier, if there are some."""
    tiered = [one for one in look.partitions if one.remote_bytes is not None]
    if not tiered:
        return
    tiered.sort(key=lambda one: (not one.tier_error, -one.copy_lag_bytes))
    columns = [
        Column("PARTITION"),
        Column("IN THE TIER", right=True),
        Column("ON DISK", right=True),
        Column("TO COPY", right=True),
        Column("PROBLEM"),
    ]
    rows = [
        [
            printable(str(one.partition)),
            bytes_text(one.remote_bytes or 0),
            bytes_text(one.size_bytes),
            bytes_text(one.copy_lag_bytes),
            printable(one.tier_error) or "-",
        ]
        for one in tiered[:_TIERED_MAX]
    ]
    yield section("Tier", table(number(len(tiered), "log") + " in the tier", columns, rows))


def _running(thread: ThreadStatus) -> Sequence[Content]:
    if thread.partition is None:
        return ["-", "-", "-", "-"]
    most = max(thread.bytes_max, 1)
    share = min(thread.bytes_read / most, 1.0)
    return [
        printable(str(thread.partition)),
        duration_text(round(1_000 * thread.seconds)),
        share_bar(share, f"{share:.0%} read"),
        f"{bytes_text(thread.bytes_read)} of up to {bytes_text(thread.bytes_max)}",
    ]


def _failed(failed: Sequence[PartitionStatus]) -> Content:
    if not failed:
        return paragraph("There is none.")
    columns = [Column("PARTITION"), Column("SIZE", right=True), Column("FAILED CLEANS", right=True), Column("WHY")]
    rows = [
        [printable(str(one.partition)), bytes_text(one.size_bytes), f"{one.failures:,}", printable(str(one.reason))]
        for one in failed[:_ROWS_MAX]
    ]
    return table(cut(len(rows), len(failed), "partition"), columns, rows)


# ---- over time -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Interval:
    """Two consecutive samples, for the changes between them and the state at the second."""

    before: Sample
    sample: Sample

    def per_second(self, value: Callable[[Sample], int]) -> float:
        """Return the growth rate of a counter."""
        ms = max(self.sample.uptime_ms - self.before.uptime_ms, 1)
        return max(0, value(self.sample) - value(self.before)) * 1_000 / ms


def _speed(value: float) -> str:
    return f"{bytes_text(round(value))}/s"


def _fast(value: Callable[[Sample], int]) -> Callable[[_Interval], str]:
    return lambda interval: _speed(interval.per_second(value))


def _quotient(value: float | None) -> str:
    return "-" if value is None else rounded(value)


_INTERVAL_COLUMNS: Cells = (
    (Column("TIME (UTC)"), lambda one: time_text(one.sample.time_ms)),
    (Column("APPENDED", right=True), _fast(lambda sample: sample.appended_bytes)),
    (Column("CLEANED AWAY", right=True), _fast(lambda sample: sample.removed_bytes)),
    (Column("DELETED", right=True), _fast(lambda sample: sample.deleted_bytes)),
    (Column("READ", right=True), _fast(lambda sample: sample.read_bytes)),
    (Column("WRITTEN", right=True), _fast(lambda sample: sample.written_bytes)),
    (Column("WRITTEN PER NEW BYTE", right=True), lambda one: _quotient(one.sample.written_per_new_byte)),
    (Column("SIZE", right=True), lambda one: bytes_text(one.sample.size_bytes)),
    (Column("DIRTIEST LOG", right=True), lambda one: f"{one.sample.dirtiest_ratio:.0%}"),
    (Column("DUE", right=True), lambda one: f"{one.sample.due:,}"),
    (Column("CANNOT BE CLEANED", right=True), lambda one: f"{one.sample.failed:,}"),
)


def _over_time(samples: Sequence[Sample], span: Span) -> Content:
    intervals = [_Interval(before, after) for before, after in pairwise(samples)]
    words, _, period_ms = SPANS[span]
    if len(intervals) < 2:
        return paragraph(f"Too early to say: there is a sample every {duration_text(period_ms)}.")
    columns, rows = cells_of(_INTERVAL_COLUMNS, reversed(intervals))
    when = utc_time(intervals[0].sample.time_ms, intervals[-1].sample.time_ms)
    return [
        [chart.figure(when) for chart in _charts(intervals)],
        tag(
            "details",
            tag("summary", "The figures of the charts"),
            table(f"The last {words}, the newest first", columns, rows),
        ),
    ]


def _charts(intervals: Sequence[_Interval]) -> list[LineChart]:
    def speeds(label: str, value: Callable[[Sample], int]) -> Curve:
        return Curve(label, [(one.sample.time_ms, one.per_second(value)) for one in intervals])

    def now(label: str, value: Callable[[Sample], float | None]) -> Curve:
        return Curve(label, [(one.sample.time_ms, value(one.sample)) for one in intervals])

    came = [
        speeds("appended", lambda sample: sample.appended_bytes),
        speeds("cleaned away", lambda sample: sample.removed_bytes),
        speeds("deleted", lambda sample: sample.deleted_bytes),
    ]
    cleaned = [
        speeds("read", lambda sample: sample.read_bytes),
        speeds("written", lambda sample: sample.written_bytes),
    ]
    per_byte = now("written per new byte", lambda sample: sample.written_per_new_byte)
    size = now("size", lambda sample: sample.size_bytes)
    dirty = now("dirty", lambda sample: sample.dirtiest_ratio)
    return [
        LineChart("What came, and what went", came, _speed),
        LineChart("What the cleaner read and wrote", cleaned, _speed),
        LineChart("Written by the cleaner for each byte that was new, since the start", [per_byte], rounded),
        LineChart("Size of all logs", [size], lambda value: bytes_text(round(value))),
        LineChart("Dirty ratio of the dirtiest log", [dirty], lambda value: f"{value:.0%}"),
    ]


# ---- partitions ------------------------------------------------------------------------------------------------------


def partitions_page(look: LiveLook, wanted: Wanted) -> str:
    """Make the page of all logs: searched, sorted and cut."""
    found = _found(look, wanted)
    shown, total = wanted.cut(found), number(len(look.partitions), "partition")
    which = f"{len(found):,} of {total}" if wanted.search else total
    return page(
        "Partitions",
        _LINKS,
        tag("h1", "Partitions"),
        paragraph(f"As of {utc(look.now.time_ms)}", class_="quiet"),
        search_form(wanted, list(_ORDERS), "/partitions"),
        _partitions_table(shown, which) if shown else paragraph("No partition matches.", role="status"),
        page_links(len(found), wanted, lambda at: _LINKS.to_rows("partitions", wanted, at)),
        document_link=_LINKS.document("partitions", wanted.query),
    )


def _found(look: LiveLook, wanted: Wanted) -> list[PartitionStatus]:
    found = wanted.matching(look.partitions, lambda status: str(status.partition))
    order = _ORDERS.get(wanted.sort)
    return worst_first(found) if order is None else order(found)


def _first_partitions(look: LiveLook) -> Content:
    shown = worst_first(look.partitions)[:_ROWS_MAX]
    if not shown:
        return paragraph("There is none.")
    return _partitions_table(shown, f"{cut(len(shown), len(look.partitions), 'partition')}, the worst first")


def _partitions_table(shown: Sequence[PartitionStatus], caption: str) -> Markup:
    columns, rows = cells_of(PARTITION_COLUMNS, shown)
    at = [column.title for column in columns].index("DIRTY") + 1
    more = [
        Column("OF THE LOG"),
        Column("APPENDED", right=True),
        Column("DELETED", right=True),
        Column("OFFSETS", right=True),
    ]
    cells = [
        [
            *row[:at],
            None if one.cleanable_ratio is None else share_bar(one.cleanable_ratio, f"{one.cleanable_ratio:.0%} dirty"),
            bytes_text(one.appended_bytes),
            bytes_text(one.deleted_bytes),
            f"{one.log_start_offset} to {one.log_end_offset}",
            *row[at:],
        ]
        for one, row in zip(shown, rows, strict=True)
    ]
    return table(caption, [*columns[:at], *more, *columns[at:]], cells)
