"""`ls`: list the partitions in the directories of one or more brokers, with sizes, offsets, policies and states.

The table is plain text, the same on a terminal and in a pipe: columns are as wide as their content, and a name that is
too long for its column gets a line of its own. It is rounded; the JSON document has exact bytes and milliseconds.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from enum import StrEnum
from typing import Any

from cordwood.commands.opening import forks_for_brokers, open_cluster
from cordwood.commands.options import ListOptions
from cordwood.common.config import SourceKind, show
from cordwood.common.errors import DataError, RequestError
from cordwood.common.text import (
    Cells,
    Column,
    bytes_text,
    cells_of,
    count_text,
    html_table,
    names_text,
    number,
    printable,
    register,
    table,
    time_text,
)
from cordwood.common.types import TopicPartition
from cordwood.fs.base import Store
from cordwood.storage.check import Finding
from cordwood.storage.check.placement import StartWarnings
from cordwood.storage.formats.filenames import DirectoryState
from cordwood.storage.log.header_sample import UNITS
from cordwood.storage.node.cluster import Cluster
from cordwood.storage.node.directory import nothing_selected
from cordwood.storage.node.listing import (
    BrokerListing,
    Listing,
    PartitionListing,
    Policy,
    ReplicasListing,
    SegmentListing,
    State,
    TopicListing,
    list_directories,
    list_partitions,
    list_replicas,
    partition_count,
    policy_of,
    sum_topics,
)
from cordwood.storage.node.node import LocatedPartition, Node, is_asked_for
from cordwood.storage.node.start import Effect
from cordwood.tasks.in_forks import in_forks

#: Sort orders of `ls`, each with a key that is lowest for the first row.
ORDERS: Mapping[str, Callable[[PartitionListing | TopicListing], float]] = {
    "name": lambda _: 0,
    "disk": lambda one: -one.disk_bytes,
    "size": lambda one: -one.size_bytes,
    "dirty": lambda one: -(one.dirty_bytes or 0),
    "clean": lambda one: -(one.clean_bytes or 0),
    "records": lambda one: -one.records,
    "segments": lambda one: -one.segment_count,
    "newest": lambda one: math.inf if one.newest_ms is None else -one.newest_ms,
    "oldest": lambda one: math.inf if one.oldest_ms is None else one.oldest_ms,
}


def ls(
    paths: Sequence[str],
    options: ListOptions,
    *,
    on_progress: Callable[[int, int], None] | None = None,
    fs: Store | None = None,
) -> Listing:
    """List the partitions in the directories of one or more brokers, each replica by itself.

    Args:
        on_progress: called with the number of partitions listed so far, and of all.

    Raises:
        NotFoundError: there is nothing at a path, or no partition was selected.
        RequestError: a path is a file; or the directories belong to different clusters.
        ConfigError: Kafka would not accept a config.
    """
    return ls_as_read(paths, options, None, on_progress=on_progress, fs=fs)


def ls_as_read(
    paths: Sequence[str],
    options: ListOptions,
    on_rows: OnRows | None,
    *,
    on_progress: Callable[[int, int], None] | None = None,
    fs: Store | None = None,
) -> Listing:
    """List partitions as `ls` does, and pass on rows while others are read; see `list_cluster`."""
    chosen, given = options.selection, options.named.with_paths(paths)
    fs = fs or chosen.store([*given, options.index_place.index_dir])
    cluster = open_cluster(fs, paths, chosen, options.named)
    return list_cluster(cluster, given, options, on_progress=on_progress, on_rows=on_rows)


#: Effects of a broker's next start on a partition, as states in the listing.
_STATES = {
    Effect.STRAY: State.STRAY,
    Effect.PARTITION_OFFLINE: State.OFFLINE,
    Effect.DIRECTORY_OFFLINE: State.OFFLINE,
    Effect.STARTS_EMPTY: State.STARTS_EMPTY,
}


#: A listing of more partitions is shown while it is read, unless the user asks for an order.
SHOWN_AT_ONCE = 200
#: Called with the listing of the directories, and the next partitions; returns False to end the listing early.
OnRows = Callable[[Listing, Sequence[PartitionListing]], bool]


def list_cluster(
    cluster: Cluster,
    paths: Sequence[str],
    options: ListOptions,
    *,
    on_progress: Callable[[int, int], None] | None = None,
    on_rows: OnRows | None = None,
) -> Listing:
    """List the partitions in the directories of a cluster's brokers, as they were when it was opened.

    Args:
        on_progress: called with the number of partitions listed so far, and of all.
        on_rows: called with partitions as soon as they are read, the worst first, if there are more than
            `SHOWN_AT_ONCE` and no order was chosen. The result is in the order of names all the same.
    """
    order = ORDERS.get(options.sort or "name")
    if order is None:
        raise RequestError(f"--sort {options.sort}: give one of {', '.join(ORDERS)}")
    topics, numbers = options.selection.topics, options.selection.partitions
    everything = [place for node in cluster.nodes for place in node.places]
    asked = [(node, [one for one in node.places if is_asked_for(one, topics, numbers)]) for node in cluster.nodes]
    total = sum(len(places) for _, places in asked)
    if not total and (topics or numbers):
        raise nothing_selected((place.topic for place in everything), paths, topics, numbers)
    head = list_directories(cluster)
    index_root = options.index_place.root(cluster.fs, [place.path for place in everything])
    if options.sort is not None or total <= SHOWN_AT_ONCE:
        on_rows = None
    found: list[PartitionListing] = []
    done = 0
    if on_rows is not None:
        for node, places in asked:
            places.sort(key=functools.partial(_worst_first, node))
    for node, portions in _listed(cluster, asked, head, options, index_root):
        looked: list[PartitionListing | None] = []
        for portion in portions:
            looked += portion
            if on_progress is not None:
                for number_done in range(done + 1, done + len(portion) + 1):
                    on_progress(number_done, total)
            done += len(portion)
            if on_rows is not None and not on_rows(head, [one for one in portion if one is not None]):
                return _summed(cluster, head, found + _in_order(node, looked), order)
        found += _in_order(node, looked)
    return _summed(cluster, head, found, order)


def _listed(
    cluster: Cluster,
    asked: Sequence[tuple[Node, Sequence[LocatedPartition]]],
    head: Listing,
    options: ListOptions,
    index_root: str | None,
) -> Iterator[tuple[Node, Iterable[list[PartitionListing | None]]]]:
    """List the partitions of each broker, in growing portions; if they are many, brokers in several processes."""

    def listed(number: int) -> Iterator[list[PartitionListing | None]]:
        node, places = asked[number]
        return _list_node(node, places, head, options, index_root)

    forks = forks_for_brokers(cluster, sum(len(places) for _, places in asked))
    if forks < 2:
        yield from ((node, listed(number)) for number, (node, _) in enumerate(asked))
        return
    whole = in_forks(forks, lambda number: list(itertools.chain.from_iterable(listed(number))), range(len(asked)))
    yield from ((node, [portion]) for (node, _), portion in zip(asked, whole, strict=True))


def _list_node(
    node: Node, places: Sequence[LocatedPartition], head: Listing, options: ListOptions, index_root: str | None
) -> Iterator[list[PartitionListing | None]]:
    """List partitions of one broker, in growing portions."""
    foretold = StartWarnings(node)
    return list_partitions(
        node,
        places,
        head.directories,
        index_entries=options.index_entries,
        exact=options.exact,
        index_root=index_root,
        foretell=lambda place, one: _foretold(one, foretold.of_partition(place)),
    )


def _in_order(node: Node, looked: Sequence[PartitionListing | None]) -> list[PartitionListing]:
    """Return listed partitions in the order of their node, without deleted ones."""
    by_path = {one.path: one for one in looked if one is not None}
    return [by_path[place.path] for place in node.places if place.path in by_path]


def _summed(
    cluster: Cluster,
    head: Listing,
    found: list[PartitionListing],
    order: Callable[[PartitionListing | TopicListing], float],
) -> Listing:
    """Return the listing of partitions with all sums."""
    if not cluster.is_one_broker:
        found.sort(key=_by_name)  # stable, so that replicas are in the order of the brokers
    partitions = tuple(sorted(found, key=order))
    return replace(
        head,
        partitions=partitions,
        topics=tuple(sorted(sum_topics(found), key=order)),
        brokers=tuple(BrokerListing.of(node, found) for node in cluster.nodes),
        by_partition=list_replicas(cluster, partitions),
    )


def _by_name(one: PartitionListing) -> TopicPartition:
    return TopicPartition(one.name, -1) if one.topic_partition is None else one.topic_partition


def _foretold(one: PartitionListing, found: Sequence[Finding]) -> PartitionListing:
    """Add the effects of a broker's next start to a partition."""
    if not found:
        return one
    states = dict.fromkeys((*one.states, *(_STATES[each.effect] for each in found if each.effect in _STATES)))
    notes = (f"{finding.what}: {finding.meaning}" for finding in found)
    return replace(one, states=tuple(states), notes=(*one.notes, *notes))


def _worst_first(node: Node, place: LocatedPartition) -> tuple[int, int]:
    """Return a sort key for partitions that were not read yet, by their names and the broker's checkpoints.

    First come directories that are no usual partitions, then partitions that are, or may be, compacted, by their number
    of dirty offsets, then others by their number of offsets.
    """
    directory, name = place.directory, place.name
    if name is None or name.state is not DirectoryState.CURRENT or node.duplicates(name.topic_partition):
        return 0, 0
    partition = name.topic_partition
    end = directory.high_watermarks.get(partition, directory.recovery_points.get(partition, 0))
    clean = directory.cleaner_offsets.get(partition)
    # Without metadata, the policy of a topic takes a read of each of its partitions.
    policy = None if node.metadata is None else policy_of(node, place.topic).value
    is_compacted = clean is not None or policy is None or "compact" in policy
    start = directory.log_start_offsets.get(partition, 0) if clean is None else clean
    return 1 if is_compacted else 2, start - end


# ---- the listing as text ---------------------------------------------------------------------------------------------


def _entries(segment: SegmentListing) -> str:
    entries = segment.index_entries or {}
    return " ".join(f"{name} {'?' if count is None else count}" for name, count in entries.items()) or "-"


def _index(partition: PartitionListing) -> str:
    """Return the size of key indexes, and its ratio to the log's size."""
    if not partition.index_bytes:
        return "-"
    share = f" ({partition.index_bytes / partition.size_bytes:.1%})" if partition.size_bytes else ""
    return bytes_text(partition.index_bytes) + share


def _share(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _some(state: State, partitions: int, disk_bytes: int) -> str:
    return f"{partitions:,} {state} ({bytes_text(disk_bytes)})"


#: Column of partitions with a state; shown if any partition has one.
_OF_THESE = "OF THESE"
#: Column of the share of the disk; shown if any partition takes at least this share.
_SHARE, _SHARE_MIN = "SHARE", 0.001
#: Columns of tiered partitions; shown if there is one.
_REMOTE, _TO_COPY = "REMOTE", "TO COPY"
#: Column of the segments of tiered partitions.
_PLACE = "PLACE"
#: Columns of replicas; shown if the directories belong to several brokers.
_BROKER, _ROLE, _REPLICAS = "BROKER", "ROLE", "REPLICAS"
#: Number of partitions that are named after a large listing.
_DIRTIEST = 5


def records_text(one: PartitionListing | SegmentListing | TopicListing) -> str:
    """Return the number of records; ≥ marks a lower bound, and ≈ an estimate."""
    return count_text(one.records, is_exact=one.records_exact, is_estimate="records" in one.estimates)


_PARTITION_COLUMNS: Sequence[tuple[Column, Callable[[PartitionListing], str]]] = (
    (Column("PARTITION"), lambda one: printable(one.name)),
    (Column(_BROKER), lambda one: printable(one.broker) or "-"),
    (Column(_ROLE), lambda one: one.role or "-"),
    (Column("STATE"), lambda one: ", ".join(one.states) or "-"),
    (Column("SEGMENTS", right=True), lambda one: f"{len(one.segments):,}"),
    (Column("BYTES", right=True), lambda one: bytes_text(one.size_bytes)),
    (Column("ON DISK", right=True), lambda one: bytes_text(one.disk_bytes)),
    (Column(_SHARE, right=True), lambda one: _share(one.disk_share)),
    (Column(_REMOTE, right=True), lambda one: "-" if one.remote is None else bytes_text(one.remote.size_bytes)),
    (Column(_TO_COPY, right=True), lambda one: "-" if one.remote is None else bytes_text(one.remote.lag_bytes)),
    (Column("START", right=True), lambda one: str(one.log_start_offset)),
    (Column("NEXT", right=True), lambda one: str(one.log_end_offset)),
    (Column("RECORDS", right=True), records_text),
    (Column("POLICY"), lambda one: policy_text(one.policy)),
    (Column("CLEAN", right=True), lambda one: bytes_text(one.clean_bytes)),
    (Column("DIRTY", right=True), lambda one: bytes_text(one.dirty_bytes)),
    (Column("KEY INDEX", right=True), _index),
    (Column("CODECS"), lambda one: ",".join(one.codecs) or "-"),
    (Column("OLDEST (UTC)"), lambda one: time_text(one.oldest_ms)),
    (Column("NEWEST (UTC)"), lambda one: time_text(one.newest_ms)),
)

#: Column of key indexes; shown if any partition has one.
_KEY_INDEX = "KEY INDEX"
#: Columns read from batch headers.
_OF_HEADERS = ("RECORDS", "CODECS", "OLDEST (UTC)", "NEWEST (UTC)")

_TOPIC_COLUMNS: Sequence[tuple[Column, Callable[[TopicListing], str]]] = (
    (Column("TOPIC"), lambda one: printable(one.name)),
    (Column("PARTITIONS", right=True), lambda one: f"{one.partitions:,}"),
    (Column(_REPLICAS, right=True), lambda one: f"{one.replicas:,}"),
    (Column(_OF_THESE), lambda one: ", ".join(itertools.starmap(_some, one.states)) or "-"),
    (Column("SEGMENTS", right=True), lambda one: f"{one.segment_count:,}"),
    (Column("BYTES", right=True), lambda one: bytes_text(one.size_bytes)),
    (Column("ON DISK", right=True), lambda one: bytes_text(one.disk_bytes)),
    (Column(_SHARE, right=True), lambda one: _share(one.disk_share)),
    (Column("RECORDS", right=True), records_text),
    (Column("POLICY"), lambda one: "; ".join(map(policy_text, one.policies))),
    (Column("CLEAN", right=True), lambda one: bytes_text(one.clean_bytes)),
    (Column("DIRTY", right=True), lambda one: bytes_text(one.dirty_bytes)),
    (Column("OLDEST (UTC)"), lambda one: time_text(one.oldest_ms)),
    (Column("NEWEST (UTC)"), lambda one: time_text(one.newest_ms)),
)


def _of_sums(cell: Callable[[TopicListing], str]) -> Callable[[BrokerListing], str]:
    return lambda one: cell(one.sums)


_BROKER_COLUMNS: Sequence[tuple[Column, Callable[[BrokerListing], str]]] = (
    (Column(_BROKER), lambda one: printable(one.name) or "-"),
    (Column("DIRECTORIES", right=True), lambda one: f"{one.directories:,}"),
    (Column("LEADS", right=True), lambda one: "-" if one.leads is None else f"{one.leads:,}"),
    *(
        (column, _of_sums(cell))
        for column, cell in _TOPIC_COLUMNS
        if column.title not in ("TOPIC", _REPLICAS, "POLICY")
    ),
)


def _spread(
    of: Callable[[PartitionListing], int], text: Callable[[int], str] = str
) -> Callable[[ReplicasListing], str]:
    """Return the text of the lowest and the highest value of all replicas, or of their only value."""

    def cell(one: ReplicasListing) -> str:
        lowest, highest = (text(value) for value in one.spread(of))
        return lowest if lowest == highest else f"{lowest} – {highest}"

    return cell


_REPLICAS_COLUMNS: Sequence[tuple[Column, Callable[[ReplicasListing], str]]] = (
    (Column("PARTITION"), lambda one: printable(str(one.topic_partition))),
    (Column("LEADER", right=True), lambda one: "-" if one.leader is None else str(one.leader)),
    (Column(_REPLICAS), lambda one: "-" if one.assigned is None else ",".join(map(str, one.assigned))),
    (Column("HERE"), lambda one: ",".join(printable(name) or "-" for name in one.brokers)),
    (Column("STATE"), lambda one: printable(", ".join(one.state)) or "-"),
    (Column("SEGMENTS", right=True), _spread(lambda one: one.segment_count)),
    (Column("BYTES", right=True), _spread(lambda one: one.size_bytes, bytes_text)),
    (Column("ON DISK", right=True), lambda one: bytes_text(one.disk_bytes)),
    (Column("START", right=True), _spread(lambda one: one.log_start_offset)),
    (Column("NEXT", right=True), _spread(lambda one: one.log_end_offset)),
    (Column("POLICY"), lambda one: "; ".join(dict.fromkeys(policy_text(each.policy) for each in one.replicas))),
)

_SEGMENT_COLUMNS: Sequence[tuple[Column, Callable[[SegmentListing], str]]] = (
    (Column("BASE OFFSET", right=True), lambda one: str(one.base_offset)),
    (Column("LAST", right=True), lambda one: "-" if one.last_offset is None else str(one.last_offset)),
    (Column("BYTES", right=True), lambda one: bytes_text(one.size_bytes)),
    (Column("BATCHES", right=True), lambda one: count_text(one.batches, is_estimate="batches" in one.estimates)),
    (Column("RECORDS", right=True), records_text),
    (Column("MAX TIMESTAMP (UTC)"), lambda one: time_text(one.max_timestamp_ms)),
    (Column("CODECS"), lambda one: ",".join(one.codecs) or "-"),
    (Column("INDEX ENTRIES"), _entries),
    (Column("FILES"), lambda one: " ".join(one.files)),
    (Column(_PLACE), lambda one: one.place or "-"),
)


def segment_columns(segments: Iterable[SegmentListing]) -> Sequence[tuple[Column, Callable[[SegmentListing], str]]]:
    """Return the columns of a table of segments; their places only if one is of a tiered partition."""
    is_tiered = any(one.place is not None for one in segments)
    return [(column, cell) for column, cell in _SEGMENT_COLUMNS if is_tiered or column.title != _PLACE]


class By(StrEnum):
    """The subject of a row of `ls`."""

    REPLICA = "replica"  #: a partition's directory
    PARTITION = "partition"  #: all replicas of a partition
    TOPIC = "topic"
    BROKER = "broker"


def lines(listing: Listing, *, segments: bool = False, by: By = By.REPLICA) -> Iterator[str]:
    """Yield the listing as lines for people: one per segment; else per replica, partition, topic or broker."""
    yield from _first_lines(listing, listing.partitions)
    if segments:
        named = [(one, segment) for one in listing.partitions for segment in one.segments]
        columns = segment_columns(segment for _, segment in named)
        of = [pair for pair in shown_columns(listing) if pair[0].title in ("PARTITION", _BROKER)]
        rows = [[*(cell(one) for _, cell in of), *(cell(each) for _, cell in columns)] for one, each in named]
        yield from table([*(column for column, _ in of), *(column for column, _ in columns)], rows)
    else:
        rows_by: Mapping[By, Sequence[object]] = {
            By.REPLICA: listing.partitions,
            By.PARTITION: listing.by_partition,
            By.TOPIC: listing.topics,
            By.BROKER: listing.brokers,
        }
        yield from table(*cells_of(shown_columns(listing, by=by), rows_by[by]))
    yield from _last_lines(listing)


def _first_lines(listing: Listing, partitions: Sequence[PartitionListing]) -> Iterator[str]:
    for directory in listing.directories:
        node = "" if directory.node_id is None else f"node {directory.node_id}, "
        if directory.broker not in ("", str(directory.node_id)):
            node = f"broker {printable(directory.broker)}, {node}"
        yield f"{printable(directory.path)}: {node}{directory.summary}"
        yield from (f"  {printable(str(error))}" for error in directory.problems)
    yield from _metadata_lines(listing, partitions)
    yield ""


def _last_lines(listing: Listing) -> Iterator[str]:
    yield ""
    yield _totals(listing)
    if not _headers_read(listing):
        yield "records, codecs, times and damage: give --segments, which reads every segment"
    yield from _footnotes(listing)


class RowsAsRead:
    """The lines of a large listing, portion by portion: a table whose columns grow where a later cell is wider.

    Columns that may turn out to be empty are shown.
    """

    def __init__(self) -> None:
        self._widths: list[int] = []

    def next_lines(self, head: Listing, partitions: Sequence[PartitionListing]) -> Iterator[str]:
        """Yield the lines of the next partitions; the first ones follow the lines of the directories.

        Args:
            head: the listing without partitions.
        """
        by_request = not all(one.headers_read for one in partitions)
        hidden = (*(_OF_HEADERS if by_request else ()), *(() if _has_several(head) else (_BROKER, _ROLE)))
        cells = [one for one in _PARTITION_COLUMNS if one[0].title not in hidden]
        rows = table(*cells_of(cells, partitions), widths=self._widths)
        if not self.is_begun:
            yield from _first_lines(head, partitions)
            yield from rows
        else:
            yield from itertools.islice(rows, 1, None)

    @property
    def is_begun(self) -> bool:
        """Whether there was a portion."""
        return bool(self._widths)

    @staticmethod
    def last_lines(listing: Listing) -> Iterator[str]:
        """Yield the lines after the table. The worst partitions are named again, as the first rows are far above."""
        yield from _last_lines(listing)
        dirtiest = [one for one in sorted(listing.partitions, key=ORDERS["dirty"]) if one.dirty_bytes]
        if dirtiest:
            named = (f"{printable(one.name)} ({bytes_text(one.dirty_bytes)})" for one in dirtiest[:_DIRTIEST])
            yield f"most dirty bytes: {', '.join(named)}; --sort dirty lists all in this order"


_COLUMNS: Mapping[By, Cells] = {
    By.REPLICA: _PARTITION_COLUMNS,
    By.PARTITION: _REPLICAS_COLUMNS,
    By.TOPIC: _TOPIC_COLUMNS,
    By.BROKER: _BROKER_COLUMNS,
}


def shown_columns(listing: Listing, *, by: By = By.REPLICA) -> Cells:
    """Return the columns of a table, without empty columns."""
    hidden = set() if by is By.PARTITION else {*_hidden(listing)} - ({_BROKER} if by is By.BROKER else set())
    return [one for one in _COLUMNS[by] if one[0].title not in hidden]


def _has_several(listing: Listing) -> bool:
    return len(listing.brokers) > 1


def _hidden(listing: Listing) -> Iterable[str]:
    """Yield the titles of columns without content."""
    if not _has_several(listing):
        yield from (_BROKER, _ROLE, _REPLICAS)
    if not _headers_read(listing):
        yield from _OF_HEADERS
    if not any(one.index_bytes for one in listing.partitions):
        yield _KEY_INDEX
    if not any(one.states for one in listing.partitions):
        yield _OF_THESE
    if not any((one.disk_share or 0) >= _SHARE_MIN for one in listing.partitions):
        yield _SHARE
    if not any(one.remote for one in listing.partitions):
        yield from (_REMOTE, _TO_COPY)


def _metadata_lines(listing: Listing, partitions: Sequence[PartitionListing]) -> Iterable[str]:
    if listing.metadata_path is None:
        if any(one.policy.value is None for one in partitions):
            yield (
                "no metadata log, so policies are unknown; give --metadata DIR, the directory of __cluster_metadata-0, "
                "or --config cleanup.policy=…"
            )
        return
    yield f"metadata: {printable(listing.metadata_path)}, up to offset {listing.metadata_next_offset}"
    if listing.metadata_problems:
        yield f"  damaged, so its configs are not used: {printable(str(listing.metadata_problems[0]))}"


def _totals(listing: Listing) -> str:
    partitions = listing.partitions
    several = _has_several(listing)
    parts = [
        *([number(len(listing.brokers), "broker")] if several else []),
        number(partition_count(partitions), "partition"),
        *([number(len(partitions), "replica")] if several else []),
        number(sum(len(one.segments) for one in partitions), "segment"),
        bytes_text(sum(one.size_bytes for one in partitions)),
        f"{bytes_text(sum(one.disk_bytes for one in partitions))} on disk",
    ]
    if _headers_read(listing):
        records = count_text(
            sum(one.records for one in partitions),
            is_exact=all(one.records_exact for one in partitions),
            is_estimate=any(one.estimates for one in partitions),
        )
        parts.append(f"{records} records")
    return ", ".join(parts)


def sample_note(listing: Listing) -> str:
    """Describe the figures that are estimates; empty if all are exact."""
    sampled = [one for one in listing.partitions if one.estimates]
    if not sampled:
        return ""
    records, error = (sum(one.records for one in sampled), math.hypot(*(one.records_error for one in sampled)))
    share = f"{100 * error / records:.2g} %" if records else "0"
    which = names_text([printable(one.name) for one in sampled])
    newest = ", newest times may be those of markers" if any("newest_ms" in one.estimates for one in sampled) else ""
    return (
        f"sampled: {UNITS} places a segment in {which}: records are ± {share}; codecs, oldest times and damage are "
        f"those seen there{newest}; --exact reads all batch headers"
    )


def _footnotes(listing: Listing) -> Iterable[str]:
    if note := sample_note(listing):
        yield note
    for one in listing.partitions:
        name = printable(one.name)
        yield from (f"{name}: {printable(note)}" for note in one.notes)
        if one.unreadable:
            more = f", and {len(one.unreadable) - 1:,} more" if len(one.unreadable) > 1 else ""
            yield f"{name}: {printable(one.unreadable[0])}{more}"
        if one.recovery and one.states:
            yield f"{name}: the recovery at the next start changes {number(len(one.recovery), 'file')}"
        if one.damage:
            more = f", and {number(len(one.damage) - 1, 'more place')}" if len(one.damage) > 1 else ""
            yield f"{name}: {printable(str(one.damage[0]))}{more}; run: cordwood check {printable(one.path)}"


#: Short names for the source of a policy.
_SHORT_SOURCE = {
    SourceKind.DEFAULT: "default",
    SourceKind.SERVER_PROPERTIES: "server.properties",
    SourceKind.CLUSTER: "cluster",
    SourceKind.BROKER: "broker",
    SourceKind.INTERNAL: "internal",
    SourceKind.REMEMBERED: "remembered",
    SourceKind.TOPIC: "topic",
    SourceKind.OVERRIDE: "--config",
    SourceKind.TOPIC_OVERRIDE: "--config",
}


def policy_text(policy: Policy) -> str:
    """Return a policy and the short name of its source."""
    if policy.value is None:
        return f"unknown ({policy.source.partition(':')[0]})"
    source = policy.source if policy.kind is None else _SHORT_SOURCE[policy.kind]
    return f"{show(policy.value) or 'none'} ({source})"


def _html(listing: Listing) -> str:
    return html_table(*cells_of(shown_columns(listing), listing.partitions), _totals(listing))


# ---- the listing as JSON ---------------------------------------------------------------------------------------------


def document(listing: Listing, *, segments: bool = False) -> dict[str, Any]:
    """Return the listing as one JSON value; null means not applicable or unknown."""
    return {
        "directories": [
            {
                "path": one.path,
                "state": one.state,
                "summary": one.summary,
                "broker": one.broker,
                "node_id": one.node_id,
                "cluster_id": one.cluster_id,
                "problems": [str(error) for error in one.problems],
                "own_bytes": one.own_bytes,
                "disk_size_bytes": one.disk_size_bytes,
            }
            for one in listing.directories
        ],
        "metadata": None
        if listing.metadata_path is None
        else {
            "path": listing.metadata_path,
            "next_offset": listing.metadata_next_offset,
            "problems": [str(error) for error in listing.metadata_problems],
        },
        "partitions": [partition_document(one, segments=segments) for one in listing.partitions],
        "topics": [_topic(one) for one in listing.topics],
        "brokers": [_broker(one) for one in listing.brokers],
        "by_partition": [_replicas(one) for one in listing.by_partition],
        "totals": {
            "partitions": partition_count(listing.partitions),
            "replicas": len(listing.partitions),
            "segments": sum(len(one.segments) for one in listing.partitions),
            "size_bytes": sum(one.size_bytes for one in listing.partitions),
            "disk_bytes": sum(one.disk_bytes for one in listing.partitions),
            "records": sum(one.records for one in listing.partitions) if _headers_read(listing) else None,
            "records_exact": all(one.records_exact for one in listing.partitions),
            "records_error": round(math.hypot(*(one.records_error for one in listing.partitions))),
            "estimates": ["records"] if any(one.estimates for one in listing.partitions) else [],
        },
    }


def partition_document(listing: PartitionListing, *, segments: bool = False) -> dict[str, Any]:
    """Return one partition of a listing as a JSON value."""
    name = listing.topic_partition
    values = {
        "path": listing.path,
        "topic": None if name is None else name.topic,
        "partition": None if name is None else name.partition,
        "broker": listing.broker,
        "role": listing.role,
        "state": list(listing.states),
        "segments": len(listing.segments),
        "size_bytes": listing.size_bytes,
        "log_start_offset": listing.log_start_offset,
        "log_end_offset": listing.log_end_offset,
        "records": listing.records if listing.headers_read else None,
        "records_exact": listing.records_exact,
        "records_error": listing.records_error,
        "estimates": list(listing.estimates),
        "policy": None if listing.policy.value is None else list(listing.policy.value),
        "policy_source": listing.policy.source,
        "replicas": listing.replicas,
        "first_dirty_offset": listing.first_dirty_offset,
        "clean_bytes": listing.clean_bytes,
        "dirty_bytes": listing.dirty_bytes,
        "index_bytes": listing.index_bytes,
        "disk_bytes": listing.disk_bytes,
        "disk_share": listing.disk_share,
        "usage": asdict(listing.usage),
        "remote": None if listing.remote is None else asdict(listing.remote),
        "codecs": list(listing.codecs) if listing.headers_read else None,
        "oldest_ms": listing.oldest_ms,
        "newest_ms": listing.newest_ms,
        "damage": [_damage(error) for error in listing.damage],
        "recovery": list(listing.recovery),
        "notes": list(listing.notes),
        "unreadable": list(listing.unreadable),
    }
    return values | {"by_segment": [_segment(segment) for segment in listing.segments]} if segments else values


def _topic(topic: TopicListing) -> dict[str, Any]:
    return {
        "topic": topic.name,
        **_sums(topic),
    }


def _broker(broker: BrokerListing) -> dict[str, Any]:
    return {
        "broker": broker.name,
        "node_id": broker.node_id,
        "directories": broker.directories,
        "leads": broker.leads,
        **_sums(broker.sums),
    }


def _replicas(partition: ReplicasListing) -> dict[str, Any]:
    def spread(of: Callable[[PartitionListing], int]) -> dict[str, int]:
        lowest, highest = partition.spread(of)
        return {"min": lowest, "max": highest}

    return {
        "topic": partition.topic_partition.topic,
        "partition": partition.topic_partition.partition,
        "leader": partition.leader,
        "assigned": None if partition.assigned is None else list(partition.assigned),
        "brokers": list(partition.brokers),
        "in_sync": None if partition.known is None else list(partition.known.isr),
        "eligible": None if partition.known is None else list(partition.known.eligible_leader_replicas),
        "missing": list(partition.missing),
        "segments": spread(lambda one: one.segment_count),
        "size_bytes": spread(lambda one: one.size_bytes),
        "disk_bytes": partition.disk_bytes,
        "log_start_offset": spread(lambda one: one.log_start_offset),
        "log_end_offset": spread(lambda one: one.log_end_offset),
    }


def _sums(topic: TopicListing) -> dict[str, Any]:
    return {
        "partition_count": topic.partitions,
        "replica_count": topic.replicas,
        "states": [
            {"state": state, "partition_count": count, "disk_bytes": size} for state, count, size in topic.states
        ],
        "segments": topic.segment_count,
        "size_bytes": topic.size_bytes,
        "disk_bytes": topic.disk_bytes,
        "disk_share": topic.disk_share,
        "records": topic.records if topic.headers_read else None,
        "records_exact": topic.records_exact,
        "records_error": topic.records_error,
        "estimates": list(topic.estimates),
        "policies": [None if one.value is None else list(one.value) for one in topic.policies],
        "clean_bytes": topic.clean_bytes,
        "dirty_bytes": topic.dirty_bytes,
        "oldest_ms": topic.oldest_ms,
        "newest_ms": topic.newest_ms,
    }


def _segment(segment: SegmentListing) -> dict[str, Any]:
    return {
        "base_offset": segment.base_offset,
        "size_bytes": segment.size_bytes,
        "batches": segment.batches,
        "records": segment.records,
        "records_exact": segment.records_exact,
        "records_error": segment.records_error,
        "estimates": list(segment.estimates),
        "last_offset": segment.last_offset,
        "max_timestamp_ms": segment.max_timestamp_ms,
        "oldest_ms": segment.oldest_ms,
        "newest_ms": segment.newest_ms,
        "codecs": list(segment.codecs),
        "index_entries": None if segment.index_entries is None else dict(segment.index_entries),
        "files": list(segment.files),
        "place": segment.place,
        "damage": [_damage(error) for error in segment.damage],
        "unreadable": segment.unreadable,
    }


def _headers_read(listing: Listing) -> bool:
    return all(one.headers_read for one in listing.partitions)


def _damage(error: DataError) -> dict[str, Any]:
    return {"what": error.what, "path": error.path, "position": error.position}


register(Listing, lines=lines, document=document, html=_html)
