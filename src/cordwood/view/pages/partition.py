"""The page of a partition: its log drawn to scale, reasons for its size, the plan, damage, and search forms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from cordwood.cleaning.rules.plan import utc
from cordwood.commands import check as check_report
from cordwood.commands import ls as listing_report
from cordwood.commands import plan as plan_report
from cordwood.commands.ls import policy_text, records_text, segment_columns
from cordwood.commands.why.facts import Cause
from cordwood.commands.why_node import keys_text, tier_texts
from cordwood.common.text import (
    Column,
    bytes_text,
    cells_of,
    count_text,
    duration_text,
    estimate_text,
    number,
    printable,
    time_text,
)
from cordwood.storage.check import Severity
from cordwood.storage.index.contents import Content as Kind
from cordwood.storage.index.contents import ContentSource
from cordwood.storage.log.header_sample import UNITS
from cordwood.storage.log.producer_spans import ProducerSpan, ProducerSpans
from cordwood.storage.node.listing import PartitionListing, SegmentListing, State
from cordwood.storage.node.transactions import OpenTransaction
from cordwood.view.pages.drawing import both
from cordwood.view.pages.frame import (
    Links,
    cut,
    facts,
    figures,
    link_or_text,
    linked_names,
    page,
    paragraph,
    section,
    table,
)
from cordwood.view.pages.log_drawing import DrawnLog, DrawnSegment, Mark, draw_log, draw_whole, legend
from cordwood.view.pages.markup import Content, tag
from cordwood.view.partition_look import PartitionLook

#: Maximum number of rows of a table.
_ROWS_MAX = 100
#: States that are not problems.
_EXPECTED = {State.LIVE, State.LOCKED, State.FUTURE, State.TO_BE_DELETED}
_SOURCES: Mapping[ContentSource, str] = {
    ContentSource.HEADERS: "From all batch headers: the log is not compacted, so every record counts as live.",
    ContentSource.PLACES: f"Sampled: {UNITS} places a segment. The log is not compacted, so every record counts as "
    "live; aborted data is known from transaction indexes; --exact reads all batch headers.",
    ContentSource.RECORDS: "From all records. Each record has its share of its batch, by the sizes of key and value.",
    ContentSource.INDEXES: "From key indexes, of large ones a sample of the keys: they show what is superseded. Live "
    "holds tombstones and aborted data, too; bytes are shares of each segment.",
    ContentSource.SAMPLE: "The log is too large to be read by the way, and has no key index: an estimate for all of "
    "it, from a sample of the records. What each segment holds is not known; cordwood index makes key indexes, "
    "--read-all reads all.",
}


def document(look: PartitionLook) -> dict[str, Any]:
    """Return the page as one JSON value, with the `--json` output of commands."""
    contents = look.contents
    return {
        "path": printable(look.path),
        "began_ms": look.began_ms,
        "ls": listing_report.document(look.ls, segments=True),
        "plan": look.plan.document(),
        "why": look.why.document(),
        "check": None
        if look.checked is None or look.start is None
        else [
            *map(check_report.finding_document, look.findings),
            check_report.summary_document(look.checked, look.start),
        ],
        "contents": None
        if contents is None
        else {
            "source": contents.source,
            "bytes": dict(contents.estimate),
            "bytes_errors": dict(contents.errors),
            "segments": [{"base_offset": one.base_offset, "bytes": dict(one.bytes_of)} for one in contents.segments],
        },
        "producers": None
        if look.producers is None
        else {
            "count": look.producers.count,
            "is_sampled": look.producers.is_sampled,
            "largest": [asdict(one) for one in look.producers.largest],
        },
        "indexed_bytes": {str(base): size for base, size in sorted(look.indexed.items())},
        "marks": [{"offset": mark.offset, "what": mark.label} for mark, _ in _marks(look)],
    }


def partition_page(
    look: PartitionLook,
    transactions: Sequence[OpenTransaction],
    links: Links,
    replicas: Sequence[PartitionListing] = (),
) -> str:
    """Make the page.

    Args:
        transactions: known open transactions of this partition.
        replicas: all replicas of this partition in the directories of several brokers.
    """
    return page(
        look.listing.name,
        links,
        body(look, transactions, links, "log", replicas),
        document_link=links.document("partition", {"path": look.path}),
    )


def _states(states: Sequence[State]) -> Content:
    """Show a partition's states, marked as wrong if any is a problem."""
    if not states:
        return None
    is_wrong = not _EXPECTED.issuperset(states)
    return paragraph(f"State: {', '.join(states)}", class_="wrong" if is_wrong else "quiet")


def _replicas(path: str, replicas: Sequence[PartitionListing], links: Links) -> Content:
    """Name the broker of this replica, with links to the others; None for a partition of a single broker."""
    if not any(one.path == path and one.broker for one in replicas) or len({one.broker for one in replicas}) < 2:
        return None

    def words(one: PartitionListing) -> str:
        return printable(f"broker {one.broker}" + (f" ({one.role})" if one.role else ""))

    (own,) = [one for one in replicas if one.path == path]
    others = [(words(one), links.to("partition", path=one.path)) for one in replicas if one is not own]
    return paragraph(f"The replica of {words(own)}; others: ", linked_names(others, len(others)))


def under_way_page(path: str, links: Links) -> str:
    """Make the page that is shown until the scan of a partition ends."""
    name = printable(path.rpartition("/")[2])
    status = tag("div", paragraph("The partition is being looked at. This page loads again by itself."), role="status")
    return page(name, links, tag("h1", name), status, refresh_seconds=1)


def gone_page(path: str, why: str, links: Links) -> str:
    """Make the page for a partition that cannot be scanned."""
    return page("Not here", links, tag("h1", printable(path.rpartition("/")[2])), paragraph(printable(why)))


def body(
    look: PartitionLook,
    transactions: Sequence[OpenTransaction],
    links: Links,
    name: str,
    replicas: Sequence[PartitionListing] = (),
) -> Content:
    """Return the page's content; `name` distinguishes its drawings from others."""
    listing = look.listing
    return [
        tag("h1", printable(listing.name), id=name),
        paragraph(printable(look.path), f", as of {utc(look.began_ms)}", class_="quiet"),
        _replicas(look.path, replicas, links),
        _states(listing.states),
        _figures(look),
        section("The log", _log(look, links, name)),
        None if links.anchors is not None else section("Find", find_form(look.path)),
        section("Why it is so large", _why(look)),
        section("What a clean would do", _plan(look)),
        section("Damage", _damage(look)),
        section("Open transactions", _open(look, transactions)),
        section("Producers", _producers(look.producers)),
        section("Segments", _segments(look, links)),
    ]


def _figures(look: PartitionLook) -> Content:
    listing, causes = look.listing, look.causes
    records = records_text(listing)
    replicas = "unknown" if listing.replicas is None else str(listing.replicas)
    return [
        figures(
            ("Log", bytes_text(listing.size_bytes)),
            ("On disk", bytes_text(listing.disk_bytes)),
            ("Could go, at most", bytes_text(None if causes is None else causes.could_lose_disk_bytes)),
            ("Records", records),
            ("Segments", f"{listing.segment_count:,}"),
            ("Replicas", replicas),
        ),
        facts(
            [
                ("Policy", policy_text(listing.policy)),
                ("Offsets", f"{listing.log_start_offset} to {listing.log_end_offset}"),
                ("Times", f"{time_text(listing.oldest_ms)} to {time_text(listing.newest_ms)} UTC"),
                ("Codecs", ", ".join(listing.codecs) or "none"),
                *(
                    (label.capitalize(), printable(text))
                    for label, text in (() if causes is None or causes.tier is None else tier_texts(causes.tier))
                ),
                *(("Note", printable(note)) for note in (*listing.notes, *listing.recovery[:_ROWS_MAX])),
                *(("Not read", printable(what)) for what in listing.unreadable),
                *(("Estimates", note) for note in (listing_report.sample_note(look.ls), _plan_note(look)) if note),
            ]
        ),
    ]


def _plan_note(look: PartitionLook) -> str:
    return "" if look.planned is None else plan_report.sample_note([look.planned])


# ---- the log ---------------------------------------------------------------------------------------------------------


def _log(look: PartitionLook, links: Links, name: str) -> Content:
    if not look.listing.size_bytes:
        return paragraph("The log is empty.")
    drawn, contents = _drawn(look, name), look.contents
    return [
        tag(
            "figure",
            both(lambda width: draw_log(drawn, links, width)),
            tag(
                "figcaption",
                "Segments from the oldest to the newest, as wide as their bytes. Times are the newest in each.",
            ),
        ),
        paragraph("What the bytes are is not known: the log could not be read, or its keys were not counted.")
        if contents is None
        else [
            tag("figure", both(lambda width: draw_whole(contents, name, width)), legend(contents, name)),
            paragraph(_SOURCES[contents.source], class_="quiet"),
        ],
        table("Lines", [Column("OFFSET", right=True), Column("LINE"), Column("WHAT IT IS")], _mark_rows(look)),
    ]


def _drawn(look: PartitionLook, name: str) -> DrawnLog:
    listing = look.listing
    contents = {} if look.contents is None else {one.base_offset: one.bytes_of for one in look.contents.segments}
    ends = [*(one.base_offset for one in listing.segments[1:]), listing.log_end_offset]
    segments = tuple(
        DrawnSegment(
            one.base_offset,
            end,
            one.size_bytes,
            one.newest_ms,
            contents.get(one.base_offset, {}),
            look.indexed.get(one.base_offset, 0),
            is_estimate=_is_estimate(look),
        )
        for one, end in zip(listing.segments, ends, strict=True)
    )
    opened = () if look.facts is None else tuple(one.first_offset for one in look.facts.open_transactions)
    spans = () if look.producers is None else look.producers.largest
    return DrawnLog(
        path=look.path,
        name=name,
        segments=segments,
        first_dirty=listing.first_dirty_offset,
        marks=tuple(mark for mark, _ in _marks(look)),
        producers=tuple((one.id, one.first_offset, one.last_offset) for one in spans),
        open_offsets=opened,
    )


def _marks(look: PartitionLook) -> Iterator[tuple[Mark, str]]:
    """Yield the lines of the drawing, each with its explanation."""
    listing, planned, log = look.listing, look.planned, look.facts
    yield Mark("log start", listing.log_start_offset), "consumers get nothing below"
    if planned is not None and planned.compaction is not None:
        of_clean = planned.compaction
        yield Mark("first dirty", of_clean.range.first_dirty_offset), of_clean.first_dirty_reason
        yield Mark("uncleanable from", of_clean.range.first_uncleanable_offset), str(of_clean.bound_reason)
    elif listing.first_dirty_offset is not None:
        yield Mark("first dirty", listing.first_dirty_offset), "where the cleaner would go on"
    if log is not None:
        if log.first_unstable_offset is not None:
            yield Mark("last stable", log.last_stable_offset), "a transaction is open from here on"
        yield (
            Mark("high watermark", log.high_watermark.offset),
            f"all replicas have what is below: {log.high_watermark.source}",
        )
    yield Mark("end", listing.log_end_offset), "the offset of the next record"


def _mark_rows(look: PartitionLook) -> list[Sequence[Content]]:
    return [
        [str(mark.offset), mark.label, printable(what)]
        for mark, what in sorted(_marks(look), key=lambda one: one[0].offset)
    ]


def _segments(look: PartitionLook, links: Links) -> Content:
    segments = look.listing.segments
    contents = {} if look.contents is None else {one.base_offset: one.bytes_of for one in look.contents.segments}
    shown = segments if len(segments) <= _ROWS_MAX else [*segments[: _ROWS_MAX // 2], *segments[-_ROWS_MAX // 2 :]]
    kinds = [kind for kind in Kind if any(one.get(kind) for one in contents.values())]
    columns, rows = cells_of(segment_columns(segments), shown)
    more = [Column(kind.upper(), right=True) for kind in kinds]
    cells = [
        [
            link_or_text(row[0], links.to("batches", path=look.path, offset=one.base_offset)),
            *row[1:3],
            *_of_kinds(contents.get(one.base_offset, {}), kinds, is_estimate=_is_estimate(look)),
            *row[3:],
        ]
        for one, row in zip(shown, rows, strict=True)
    ]
    return table(_caption(segments), [*columns[:3], *more, *columns[3:]], cells)


def _of_kinds(bytes_of: Mapping[Kind, int], kinds: Sequence[Kind], *, is_estimate: bool) -> list[str]:
    return [estimate_text(bytes_of.get(kind, 0), is_estimate=is_estimate) if bytes_of else "-" for kind in kinds]


def _is_estimate(look: PartitionLook) -> bool:
    """Return whether the bytes of each kind in the segments are estimates."""
    return look.contents is not None and look.contents.source in (ContentSource.PLACES, ContentSource.INDEXES)


def _caption(segments: Sequence[SegmentListing]) -> str:
    total = number(len(segments), "segment")
    return total if len(segments) <= _ROWS_MAX else f"the first and last {_ROWS_MAX // 2} of {total}"


# ---- beside it -------------------------------------------------------------------------------------------------------


def find_form(path: str) -> Content:
    """Make forms that find records by offset, time or key."""

    def form(label: str, name: str, hint: str) -> Content:
        field = tag("input", name=name, placeholder=hint, required=True, autocomplete="off", spellcheck="false")
        hidden = tag("input", type="hidden", name="path", value=path)
        return tag("form", hidden, tag("label", label, field), tag("button", "Find"), action="/find")

    forms = [
        form("By offset", "offset", "0"),
        form("By time (UTC), or ms since 1970", "time", "2026-11-21T09:25"),
        form("By key; bytes as hex:00ff", "key", "text"),
    ]
    return tag("div", forms, class_="forms")


def _why(look: PartitionLook) -> Content:
    causes = look.causes
    if causes is None:
        return paragraph("Not known.")
    pairs: list[tuple[str, Content]] = [("Broker", printable(causes.broker)), ("Offline", printable(causes.offline))]
    if causes.keys is not None:
        pairs.insert(0, ("Keys", keys_text(causes.keys)))
    columns = [Column("CAUSE"), Column("UP TO", right=True), Column("WHAT"), Column("EVIDENCE"), Column("WHAT TO DO")]
    return [
        paragraph(printable(causes.cause.what)),
        facts(pairs),
        table("Causes, the main one first", columns, [_cause(cause) for cause in causes.causes]),
    ]


def _cause(cause: Cause) -> Sequence[Content]:
    evidence = [tag("div", printable(str(one))) for one in cause.evidence]
    size, step = bytes_text(cause.disk_bytes_max), printable(cause.next_step) or "-"
    return [cause.kind, size, printable(cause.what), evidence, step]


def _plan(look: PartitionLook) -> Content:
    planned = look.planned
    if planned is None:
        return paragraph("Not known.")
    pairs: list[tuple[str, Content]] = [("Decision", planned.decision), ("Reason", printable(str(planned.reason)))]
    if planned.compaction is not None:
        found = planned.compaction
        ratio = "-" if found.cleanable_ratio is None else f"{found.cleanable_ratio:.0%}"
        pairs += [
            ("Dirty", f"{bytes_text(found.cleanable_bytes)} of {bytes_text(found.total_bytes)}, {ratio}"),
            ("Goes at most", bytes_text(found.bounds.bytes_max)),
            ("Segments", f"{sum(map(len, found.groups))} become {len(found.groups)}"),
        ]
    pairs += [(f"Retention: {one.rule}", printable(str(one.reason))) for one in planned.retention]
    pairs += [(f"With --retention: {one.rule}", printable(str(one.reason))) for one in planned.only_with_retention]
    pairs += [("Note", printable(note)) for note in planned.notes]
    pairs += [("Hint", printable(planned.hint))] if planned.hint else []
    settings = [[one.name, str(one.value), printable(one.source)] for one in planned.settings]
    columns = [Column("CONFIG"), Column("VALUE", right=True), Column("SOURCE")]
    return [facts(pairs), table("Configs that a clean goes by", columns, settings) if settings else None]


def _damage(look: PartitionLook) -> Content:
    listing = look.listing
    if look.checked is None:
        found = [printable(str(error)) for error in listing.damage]
        limit = bytes_text(look.whole_bytes_max)
        read = "a sample of the batch headers was read" if look.is_sampled else "batch headers were read"
        return [
            tag("ul", [tag("li", one) for one in found[:_ROWS_MAX]]) if found else None,
            paragraph(f"Only {read}, as the log has more than {limit}. All is checked by:"),
            tag("code", f"cordwood check {printable(look.path)}"),
        ]
    if not look.findings:
        return paragraph(check_report.summary_line(look.checked))
    order = list(Severity)
    findings = sorted(look.findings, key=lambda one: order.index(one.severity))
    columns = [Column("FINDING"), Column("FILE"), Column("POSITION", right=True), Column("WHAT"), Column("MEANS")]
    rows = [
        [
            f"{one.severity.value}: {one.kind.value}",
            printable(one.path.rpartition("/")[2]),
            "-" if one.position is None else f"{one.position:,}",
            printable(one.what),
            one.meaning,
        ]
        for one in findings[:_ROWS_MAX]
    ]
    return [
        table(f"Findings: {cut(len(rows), len(findings), 'finding')}", columns, rows),
        paragraph(check_report.summary_line(look.checked), class_="quiet"),
    ]


def _open(look: PartitionLook, transactions: Sequence[OpenTransaction]) -> Content:
    opened = () if look.facts is None else look.facts.open_transactions
    if not opened:
        return paragraph("None is open below the high watermark.")
    known = {one.producer_id: one for one in transactions}
    columns = [
        Column("PRODUCER", right=True),
        Column("FIRST OFFSET", right=True),
        Column("OUTLOOK"),
        Column("TRANSACTIONAL ID"),
        Column("AGE", right=True),
    ]
    rows = []
    for one in opened[:_ROWS_MAX]:
        found = known.get(one.producer_id)
        id = "-" if found is None or found.known is None else printable(found.known.transactional_id)
        outlook, age = ("-", "-") if found is None else (str(found.outlook), duration_text(found.age_ms))
        rows.append([str(one.producer_id), str(one.first_offset), outlook, id, age])
    return table(f"Open transactions: {cut(len(rows), len(opened), 'transaction')}", columns, rows)


#: Each column with its cell for a producer; of a sampled log, sums are estimates.
_PRODUCER_COLUMNS: Sequence[tuple[Column, Callable[[ProducerSpan, bool], str]]] = (
    (Column("PRODUCER", right=True), lambda one, _: str(one.id)),
    (Column("EPOCH", right=True), lambda one, _: str(one.epoch)),
    (Column("FIRST OFFSET", right=True), lambda one, _: str(one.first_offset)),
    (Column("LAST OFFSET", right=True), lambda one, _: str(one.last_offset)),
    (Column("BATCHES", right=True), lambda one, sampled: count_text(one.batches, is_estimate=sampled)),
    (Column("OF TRANSACTIONS", right=True), lambda one, sampled: count_text(one.transactional, is_estimate=sampled)),
    (Column("RECORDS", right=True), lambda one, sampled: count_text(one.records, is_estimate=sampled)),
    (
        Column("BYTES", right=True),
        lambda one, sampled: estimate_text(one.size_bytes, one.size_error, is_estimate=sampled),
    ),
)


def _producers(found: ProducerSpans | None) -> Content:
    if found is None:
        return paragraph("What producers wrote could not be found out.")
    sampled = found.is_sampled
    if not found.count:
        where = " in the sample" if sampled else ""
        return paragraph(
            f"No producer numbered its batches{where}: idempotence and transactions were off, or all is gone."
        )
    rows = [[cell(one, sampled) for _, cell in _PRODUCER_COLUMNS] for one in found.largest]
    shown = cut(len(rows), found.count, "producer")
    about = (
        f"Sampled: {UNITS} places a segment. Offsets are those seen there, and producers with few batches may be "
        "missing; --exact reads all batch headers. Markers are left out, and data that is gone. "
        if sampled
        else "As batch headers tell, without markers, and without what is gone. "
    )
    drawn = "The drawing shows the first few from their first batch to their last; others wrote in between."
    return [
        table(f"Producers that wrote most: {shown}", [column for column, _ in _PRODUCER_COLUMNS], rows),
        paragraph(about + drawn, class_="quiet"),
    ]
