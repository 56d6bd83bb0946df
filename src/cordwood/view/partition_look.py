"""`view`: collects the data for the page of one partition, and for its pages of batches and records.

It runs commands on the partition's directory alone. For the page only, it also finds the bytes of each segment by kind,
the range of key indexes, and the cleaned range of the log.

A log above `EXACT_LOG_BYTES` is not read: its figures are from small pieces, or estimates from the same samples as the
commands' estimates (`storage.log.header_sample`, `storage.index.key_sample`). With `--exact`, all headers are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from cordwood.cleaning.rules.plan import Choices, LogFacts, PartitionPlan, Plan
from cordwood.cleaning.rules.precedence import KEEP_RULE
from cordwood.commands.ls import list_cluster
from cordwood.commands.opening import open_node
from cordwood.commands.options import ListOptions, Selection, WhyOptions
from cordwood.commands.plan import plan_of, plan_with_facts
from cordwood.commands.why.facts import WhyPartition, WhyResult
from cordwood.commands.why_node import why_of
from cordwood.common.config import topic_of_override
from cordwood.common.errors import CorruptFileError, DataError, NotFoundError
from cordwood.common.types import Clock, system_clock
from cordwood.fs.base import Store
from cordwood.fs.by_url import file_system_for
from cordwood.record.batch import Batch, to_batches
from cordwood.record.columns import RecordColumns
from cordwood.storage.check import Check, Finding, Summary
from cordwood.storage.formats.filenames import parsed_directory
from cordwood.storage.formats.key_index import HEADER, decode_header
from cordwood.storage.index.contents import LogContents, contents_of
from cordwood.storage.index.files import indexes_in
from cordwood.storage.index.key_sample import KeyCounts
from cordwood.storage.log.header_sample import EXACT_LOG_BYTES, is_small
from cordwood.storage.log.producer_spans import ProducerSpans, producer_spans
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Checks, Gap
from cordwood.storage.node.cluster import Cluster
from cordwood.storage.node.listing import Listing, PartitionListing
from cordwood.storage.node.node import Node
from cordwood.storage.node.start import Start

#: With `--exact`, a log is checked, and read as a whole to classify its bytes, up to this size.
_EXACT_BYTES_MAX = 64 << 20
#: Maximum number of producers on a page.
PRODUCERS_MAX = 20
#: Maximum number of bytes kept of a displayed key or value.
SHOWN_BYTES = 512
_BATCH_BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True)
class PartitionLook:
    """The results of a scan of one partition.

    Attributes:
        began_ms: the time of all decisions.
        ls, plan, why: results of the commands for its directory.
        facts: the facts behind the plan, or None if it needed none.
        contents: its bytes by kind, or None after an error.
        producers: its producers, or None after an error.
        indexed: the bytes that each key index claims to cover, by the base offset of its segment.
        is_sampled: whether only some of the batch headers were read.
        whole_bytes_max: maximum size of a log that is checked for a page.
        findings, checked, start: results of `check`, or None if the log is larger.
    """

    path: str
    began_ms: int
    ls: Listing
    plan: Plan
    why: WhyResult
    facts: LogFacts | None
    contents: LogContents | None
    producers: ProducerSpans | None
    indexed: Mapping[int, int]
    is_sampled: bool
    whole_bytes_max: int
    findings: tuple[Finding, ...] = ()
    checked: Summary | None = None
    start: Start | None = None

    @property
    def listing(self) -> PartitionListing:
        """The partition's line of the listing."""
        return self.ls.partitions[0]

    @property
    def planned(self) -> PartitionPlan | None:
        """The partition's plan; None if the partition was deleted meanwhile."""
        return next(iter(self.plan.partitions), None)

    @property
    def causes(self) -> WhyPartition | None:
        """The causes of the partition's size; None if the partition was deleted meanwhile."""
        return next(iter(self.why.partitions), None)


def options_for(path: str, options: WhyOptions, metadata_path: str | None) -> WhyOptions:
    """Return the options for one partition of a node.

    The path selects the partition. Its metadata may be elsewhere, and overrides for other topics do not apply.
    """
    chosen = options.selection
    name = parsed_directory(path)
    topics = ("",) if name is None else ("", name.topic_partition.topic)
    overrides = [one for one in chosen.overrides if topic_of_override(one) in topics]
    selection = Selection(
        overrides=overrides,
        server_properties=chosen.server_properties,
        metadata=chosen.metadata or metadata_path,
    )
    return replace(options, selection=selection)


def look_at_partition(
    path: str,
    options: WhyOptions,
    *,
    node: Node | None = None,
    why: WhyPartition | None = None,
    fs: Store | None = None,
    clock: Clock = system_clock,
) -> PartitionLook:
    """Scan one partition.

    Args:
        options: from `options_for`.
        node: the broker's directories, with the metadata and configs to use; default: open the partition alone.
        why: the causes of its size, if a scan of the node has just found them.

    Raises:
        NotFoundError: it was deleted.
        RequestError, ConfigError: as `cordwood.ls`.
        OSError: it cannot be read.
    """
    chosen, paths = options.selection, [path]
    now_ms = clock() if options.now_ms is None else options.now_ms
    options = replace(options, now_ms=now_ms)
    if node is None:
        fs = fs or chosen.store([path, options.index_place.index_dir])
        node = open_node(fs, paths, chosen)
    else:
        node, fs = node.listed_again(paths), node.fs
    # In an object store a sample takes more requests than all headers.
    exact = options.exact or fs.reads_by_request(path)
    asked = ListOptions(selection=chosen, index_place=options.index_place, index_entries=True, exact=exact)
    listing = list_cluster(Cluster.of(node), paths, asked)
    if not listing.partitions:
        raise NotFoundError(f"{path} is gone")
    place = node.places[0]
    planned = plan_with_facts(node, place, Choices(), now_ms, exact=exact)
    causes = why_of(node, [place], lambda _: planned, options, now_ms) if why is None else WhyResult(now_ms, (why,))
    log = place.log().with_indexes_in(options.index_place.root(fs, paths))
    whole_bytes_max = _EXACT_BYTES_MAX if exact else EXACT_LOG_BYTES
    keys = causes.partitions[0].keys if causes.partitions else None
    found = PartitionLook(
        path=path,
        began_ms=now_ms,
        ls=listing,
        plan=plan_of(node, [place], lambda _: planned, Choices(), now_ms, with_causes=True),
        why=causes,
        facts=None if planned is None else planned.facts,
        contents=_contents(log, listing.partitions[0], options, whole_bytes_max, keys, exact=exact),
        producers=_producers(log, exact=exact),
        indexed=_indexed(log, log.index_root),
        is_sampled=not exact and not is_small(log),
        whole_bytes_max=whole_bytes_max,
    )
    if found.listing.size_bytes > whole_bytes_max or fs.reads_by_request(path):
        return found
    check = Check(fs)
    findings = tuple(check.run(paths))
    return replace(found, findings=findings, checked=check.summary, start=check.start)


def _contents(
    log: LogView,
    listing: PartitionListing,
    options: WhyOptions,
    whole_bytes: int,
    keys: KeyCounts | None,
    *,
    exact: bool,
) -> LogContents | None:
    try:
        return contents_of(
            log,
            whole_bytes,
            is_compacted=listing.first_dirty_offset is not None,
            read_all=options.read_all,
            exact=exact,
            ranks=KEEP_RULE.ranks,
            keys=keys,
        )
    except (OSError, DataError):
        return None


def _producers(log: LogView, *, exact: bool) -> ProducerSpans | None:
    try:
        return producer_spans(log, PRODUCERS_MAX, exact=exact)
    except (OSError, DataError, NotFoundError):
        return None


def _indexed(log: LogView, root: str | None) -> Mapping[int, int]:
    found = {}
    try:
        for base_offset, info in indexes_in(log.fs, log.path, root):
            with log.fs.open(info.name) as file:
                file.expect_random_reads()
                found[base_offset] = decode_header(file.read(0, HEADER.itemsize), info.name).covered_bytes
    except (OSError, CorruptFileError):
        return found
    return found


# ---- batches and records ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ShownBatches:
    """Batches from an offset on.

    Attributes:
        segments: base offset of each batch's segment.
        problems: damage between them, in words.
        next_offset: start of the next page, or None on the last.
    """

    batches: tuple[Batch, ...]
    segments: tuple[int, ...]
    problems: tuple[str, ...]
    next_offset: int | None


def batches_from(log: LogView, offset: int, limit: int) -> ShownBatches:
    """Return the batches of a log, beginning with the batch that holds an offset."""
    batches: list[Batch] = []
    segments: list[int] = []
    problems: list[str] = []
    for segment, item in log.windows(start_offset=offset, checks=Checks.HEADERS):
        if isinstance(item, Gap):
            problems.append(f"{segment.path} at position {item.position}: {item.size_bytes} bytes: {item.what}")
            continue
        some = to_batches(item.batches[: limit + 1 - len(batches)])
        batches += some
        segments += [segment.base_offset] * len(some)
        if len(batches) > limit:
            return ShownBatches(
                tuple(batches[:limit]), tuple(segments[:limit]), tuple(problems), batches[limit - 1].last_offset + 1
            )
    return ShownBatches(tuple(batches), tuple(segments), tuple(problems), None)


@dataclass(frozen=True, slots=True)
class ShownRecord:
    """A record, with the beginnings of its key and value.

    Attributes:
        key, value: None if null.
        key_size, value_size: in bytes; -1 if null.
    """

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    key_size: int
    value_size: int
    headers: int
    batch: int
    is_control: bool


@dataclass(frozen=True, slots=True)
class ShownRecords:
    """Records from an offset on; for `problems` and `next_offset` see `ShownBatches`."""

    records: tuple[ShownRecord, ...]
    problems: tuple[str, ...]
    next_offset: int | None


def records_from(log: LogView, offset: int, limit: int) -> ShownRecords:
    """Return the records of a log from an offset on, control records included."""
    found: list[ShownRecord] = []
    problems: list[DataError] = []
    columns = log.columns(
        start_offset=offset, isolation=None, on_damage=problems.append, max_batch_bytes=_BATCH_BYTES_MAX
    )
    for some in columns:
        found += _shown(some, limit + 1 - len(found))
        if len(found) > limit or len(problems) > limit:
            break
    words = tuple(map(str, problems[:limit]))
    rest = found[limit:]
    return ShownRecords(tuple(found[:limit]), words, rest[0].offset if rest else None)


def _shown(columns: RecordColumns, limit: int) -> list[ShownRecord]:
    batches = to_batches(columns.batches)
    data = memoryview(columns.data)

    def part(start: int, size: int) -> bytes | None:
        return None if size < 0 else bytes(data[start : start + min(size, SHOWN_BYTES)])

    return [
        ShownRecord(
            offset,
            timestamp,
            part(key_start, key_size),
            part(value_start, value_size),
            key_size,
            value_size,
            headers,
            batches[batch].base_offset,
            batches[batch].is_control,
        )
        for offset, timestamp, batch, key_start, key_size, value_start, value_size, _, headers in columns.rows[
            :limit
        ].tolist()
    ]


def first_offset_since(log: LogView, since_ms: int) -> int | None:
    """Return the lowest offset of a record at or after a time, or None."""
    for some in log.columns(since_ms=since_ms, on_damage=lambda _: None, max_batch_bytes=_BATCH_BYTES_MAX):
        return int(some.rows["offset"][0])
    return None


def open_partition(path: str, options: WhyOptions, *, fs: Store | None = None) -> LogView:
    """Open the log of one partition, for `batches_from` and `records_from`."""
    node = open_node(fs or file_system_for([path]), [path], options.selection)
    return node.places[0].log()
