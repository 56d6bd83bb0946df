"""`why`: the reasons for the size of each partition of one or more brokers, and advice.

    partition ─► plan ─────────┐   commands.plan: names, sizes, checkpoints, indexes, configs, some batch headers
       ├───────► disk usage ───┤   storage.node.disk_usage
       ├───────► keys ─────────┼─► causes    commands.why.reasons: pure
       ├───────► cleaner ──────┤   when its checkpoint was written, and when a broker was last alive
       └───────► transaction ──┘   commands.transactions, only if one holds back the cleaner

Partitions are read in portions, by threads while they wait for a disk, the largest first, so that the largest are
sampled before the limit for reading is reached. Only the causes of each are kept in memory. The text shows the main
cause first, then evidence and next steps:

    orders-0: 20.9 kB on disk, up to 9.5 kB could go: its active segment … is never cleaned
      because   segment.bytes=… (topic orders in …)
      do        a smaller segment.bytes or segment.ms rolls it earlier
      broker    nothing yet: it rolls after …
      offline   nothing is cleanable
      also      2.1 kB: tombstones or markers in … wait for their time
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from cordwood.cleaning.rules.plan import Bound, Choices, Decision
from cordwood.commands.coordinators import OnLogs
from cordwood.commands.opening import forks_for_brokers, open_cluster, select_partitions
from cordwood.commands.options import Prices, WhyOptions
from cordwood.commands.plan import plan_with_facts
from cordwood.commands.transactions import Outlooks
from cordwood.commands.why.facts import (
    Cause,
    CauseKind,
    Month,
    PartitionFacts,
    PlannedPartition,
    Planner,
    RetentionOutlook,
    TierOutlook,
    Way,
    WhyPartition,
    WhyResult,
    cleaner_enabled,
    collect_facts,
    could_lose,
    sums,
)
from cordwood.commands.why.reasons import why_partition
from cordwood.commands.why.tiered import waits_for_copies
from cordwood.common.config import ConfigValue
from cordwood.common.errors import DataError, NotFoundError
from cordwood.common.text import (
    Column,
    bytes_text,
    html_table,
    names_text,
    number,
    printable,
    register,
    table,
    time_text,
)
from cordwood.common.threads import in_portions
from cordwood.common.types import Clock, system_clock
from cordwood.fs.base import FileInfo, Store
from cordwood.storage.formats.filenames import FileKind, parse_file
from cordwood.storage.index.key_sample import CountSource, KeyCounts, count_keys
from cordwood.storage.log.view import LogView
from cordwood.storage.node.cluster import Cluster, brokers_text
from cordwood.storage.node.node import LocatedPartition, Node
from cordwood.tasks.in_forks import in_forks

_R = TypeVar("_R")

#: All samples together may be as large as this many samples of one log.
_SAMPLES_MAX = 64
#: Number of groups of brokers that each of several processes explains, one after the other.
_GROUPS_PER_FORK = 3


def why(
    paths: Sequence[str],
    options: WhyOptions,
    *,
    on_progress: Callable[[int, int], None] | None = None,
    fs: Store | None = None,
    clock: Clock = system_clock,
) -> WhyResult:
    """Explain the size of the partitions in the directories of one or more brokers, and what to do about it.

    Partitions that could lose most come first. Nothing is changed; a broker may be running.

    Args:
        on_progress: called with the number of explained replicas, and of all.

    Raises:
        NotFoundError: there is nothing at a path, or no partition was selected.
        RequestError: a path is a file; or the directories belong to different clusters.
        ConfigError: Kafka would not accept a config.
    """
    chosen, given = options.selection, options.named.with_paths(paths)
    fs = fs or chosen.store([*given, options.index_place.index_dir])
    cluster = open_cluster(fs, paths, chosen, options.named)
    return why_cluster(cluster, given, options, on_progress=on_progress, clock=clock)


def why_cluster(
    cluster: Cluster,
    paths: Sequence[str],
    options: WhyOptions,
    *,
    on_progress: OnLogs | None = None,
    clock: Clock = system_clock,
) -> WhyResult:
    """Explain the size of the partitions in the directories of a cluster's brokers, as they were when it was opened."""
    now_ms = clock() if options.now_ms is None else options.now_ms
    everything = [place for node in cluster.nodes for place in node.places]
    selected = {place.path for place in select_partitions(everything, paths, options.selection)}
    root = options.index_place.root(cluster.fs, [place.path for place in everything])
    forks = forks_for_brokers(cluster, len(selected))
    shared = _Shared(options, now_ms, Outlooks(cluster, now_ms), root, processes=forks)

    def explained(nodes: Sequence[Node]) -> Iterator[tuple[WhyPartition | None, Sequence[str]]]:
        """Yield the explanation of each partition, and the names that were added to `not_counted`."""
        for node in nodes:
            places = [place for place in node.places if place.path in selected]
            for partition in _explained(node, places, _planner(node, places, options, now_ms), shared):
                names, shared.not_counted = shared.not_counted, []
                yield partition, names

    # Each process counts the keys of equal replicas once, so brokers beside each other are explained together.
    size = -(-len(cluster.nodes) // (_GROUPS_PER_FORK * forks)) if forks > 1 else len(cluster.nodes)
    groups = [cluster.nodes[at : at + size] for at in range(0, len(cluster.nodes), size)]
    results = map(explained, groups) if forks < 2 else in_forks(forks, lambda group: [*explained(group)], groups)
    found: list[WhyPartition] = []
    not_counted: list[str] = []
    for done, (partition, names) in enumerate(itertools.chain.from_iterable(results), 1):
        found += [] if partition is None else [partition]
        not_counted += names
        if on_progress is not None:
            on_progress(done, len(selected))
    if not cluster.is_one_broker:
        found = _with_replicas(cluster, found)
    ranked = sorted(found, key=could_lose_most)
    return WhyResult(now_ms, tuple(ranked), tuple(not_counted), cluster.brokers)


def _planner(node: Node, places: list[LocatedPartition], options: WhyOptions, now_ms: int) -> Planner:
    """Return a planner for partitions; if they are several, list their files, and sort them by size, largest first."""
    entries: dict[str, Sequence[FileInfo]] = {}
    if len(places) > 1:
        listed = _portions(node, lambda place: _listed(node.fs, place), places)
        entries = {
            place.path: found
            for place, found in zip(places, itertools.chain.from_iterable(listed), strict=True)
            if found is not None
        }
        places.sort(key=lambda place: -_log_bytes(entries.get(place.path, ())))

    def plan(place: LocatedPartition) -> PlannedPartition | None:
        found = entries.pop(place.path, None)
        # A running broker may have replaced files meanwhile.
        found = None if place.directory.live else found
        return plan_with_facts(node, place, Choices(), now_ms, exact=options.exact, entries=found)

    return plan


def why_of(
    node: Node, places: Sequence[LocatedPartition], planner: Planner, options: WhyOptions, now_ms: int
) -> WhyResult:
    """Explain the size of partitions of a broker, with plans from `planner`; see `why_cluster`."""
    root = options.index_place.root(node.fs, [place.path for place in places])
    cluster = Cluster.of(node)
    shared = _Shared(options, now_ms, Outlooks(cluster, now_ms), root)
    found = [one for one in _explained(node, places, planner, shared) if one is not None]
    return WhyResult(now_ms, tuple(sorted(found, key=could_lose_most)), tuple(shared.not_counted), cluster.brokers)


def _explained(
    node: Node, places: Sequence[LocatedPartition], planner: Planner, shared: _Shared
) -> Iterator[WhyPartition | None]:
    """Yield the explanation of each partition of a broker; None for one that was deleted."""
    look = _Look(node, shared, cleaner_enabled(node))
    for portion in _portions(node, lambda place: look.read(place, planner), places):
        for read in portion:
            yield None if read is None else look.explain(read)


def _with_replicas(cluster: Cluster, found: Sequence[WhyPartition]) -> list[WhyPartition]:
    """Return partitions with their other replicas: the leader's with all others, else the first."""
    by_name: dict[str, list[WhyPartition]] = {}
    for one in found:
        by_name.setdefault(one.name, []).append(one)
    partitions = []
    for replicas in by_name.values():
        name = replicas[0].topic_partition
        leader = None if name is None else cluster.leader(name)
        first = next((one for one in replicas if leader is not None and one.path == leader.path), replicas[0])
        partitions.append(replace(first, replicas=tuple(one for one in replicas if one is not first)))
    return partitions


def _portions(
    node: Node, work: Callable[[LocatedPartition], _R], places: Sequence[LocatedPartition]
) -> Iterator[list[_R]]:
    """Call a function with each partition, in threads where it waits for a device, in the order of the disk."""
    return in_portions(
        node.fs.concurrency,
        work,
        places,
        disk_order=LocatedPartition.inode,
        is_remote=any(node.fs.reads_by_request(one.path) for one in node.directories),
    )


def could_lose_most(partition: WhyPartition) -> tuple[int, int, int]:
    """Sort key: the partition with the most removable data first, on its disk and in its tier."""
    remote = 0 if partition.tier is None else partition.tier.could_lose_bytes
    replicas = partition.all_replicas
    on_disk, size = (sum(one.could_lose_disk_bytes for one in replicas), sum(one.could_lose_bytes for one in replicas))
    return -(on_disk + remote), -(size + remote), -sum(one.usage.total_bytes for one in replicas)


def _listed(fs: Store, place: LocatedPartition) -> Sequence[FileInfo] | None:
    """List the files of a partition; None if it is gone or unreadable."""
    try:
        return fs.list(place.path)
    except OSError:
        return None


def _log_bytes(entries: Sequence[FileInfo]) -> int:
    """Return the size of the logs among the files of a partition."""
    files = ((parse_file(info.name), info) for info in entries)
    return sum(info.size_bytes for file, info in files if file is not None and file.kind is FileKind.LOG)


@dataclass(frozen=True, slots=True)
class _Read:
    """A planned partition, and its facts except for keys and transactions."""

    place: LocatedPartition
    planned: PlannedPartition
    facts: PartitionFacts


@dataclass
class _Shared:
    """What the looks at all brokers of a cluster share.

    Attributes:
        processes: number of processes that share the limit for reading.
        not_counted: names of partitions whose keys were not counted, as the limit for reading was reached.
    """

    options: WhyOptions
    now_ms: int
    outlooks: Outlooks
    index_root: str | None
    processes: int = 1
    not_counted: list[str] = field(default_factory=list)
    _read_bytes: int = 0
    _counted: dict[tuple[str, int, int, int], KeyCounts | None] = field(default_factory=dict)

    def keys(self, planned: PlannedPartition, log: LogView) -> KeyCounts | None:
        """Count the keys of a log. Replicas of the same size from and to the same offsets have the same keys."""
        if not self.options.keys or planned.plan.decision is Decision.REFUSE:
            return None
        facts = planned.facts
        if facts is None:
            return self._count(planned, log)
        same = planned.plan.name, log.size_bytes, facts.log_start_offset, facts.log_end_offset
        if same not in self._counted:
            self._counted[same] = self._count(planned, log)
        return self._counted[same]

    def _count(self, planned: PlannedPartition, log: LogView) -> KeyCounts | None:
        options = self.options
        budget = min(options.sample_bytes, _SAMPLES_MAX * options.sample_bytes // self.processes - self._read_bytes)
        try:
            counts = count_keys(
                log.with_indexes_in(self.index_root), budget, read_all=options.read_all, exact=options.exact
            )
        except (OSError, DataError):
            return None
        if counts is None and log.size_bytes:
            self.not_counted.append(planned.plan.name)
        if counts is not None and counts.source is not CountSource.INDEX:
            self._read_bytes += counts.read_bytes
        return counts


@dataclass
class _Look:
    """Explains partitions of one broker, one by one."""

    node: Node
    shared: _Shared
    enabled: ConfigValue

    def read(self, place: LocatedPartition, planner: Planner) -> _Read | None:
        """Plan a partition and collect its facts; several threads may call this. None if it was deleted."""
        planned = planner(place)
        if planned is None:
            return None
        try:
            facts = collect_facts(self.node, place, planned, self.enabled, self.shared.now_ms)
        except (FileNotFoundError, NotFoundError):
            return None  # a running broker deleted it
        return _Read(place, planned, facts)

    def explain(self, read: _Read) -> WhyPartition | None:
        """Explain the size of a partition; None if it was deleted."""
        planned = read.planned
        log, compaction = planned.log, planned.plan.compaction
        held = compaction is not None and compaction.range.bound is Bound.LAST_STABLE_OFFSET
        held = held or waits_for_copies(read.facts)
        try:
            facts = replace(
                read.facts,
                transaction=self.shared.outlooks.holding_back(read.place) if held else None,
                keys=None if log is None or compaction is None else self.shared.keys(planned, log),
            )
        except (FileNotFoundError, NotFoundError):
            return None  # a running broker deleted it
        return replace(_priced(why_partition(facts), self.shared.options.prices), on_broker=self.node.name)


def _priced(partition: WhyPartition, prices: Prices | None) -> WhyPartition:
    """Return a partition with the price of its tier; unchanged without a tier or prices."""
    if partition.tier is None or prices is None:
        return partition
    month = partition.tier.month
    price = prices.of(storage_bytes=month.storage_bytes, puts=month.puts, deletes=month.deletes)
    return replace(partition, tier=replace(partition.tier, month=replace(month, price=price)))


# ---- the result as text, HTML and JSON -------------------------------------------------------------------------------

_LABEL_WIDTH = 10


def lines(result: WhyResult, limit: int | None = None) -> Iterator[str]:
    """Yield the result for people.

    Args:
        limit: maximum number of partitions with details; the summary covers all. None: no limit.
    """
    shown = result.partitions[:limit]
    for partition in shown:
        yield from _partition_lines(partition)
        yield ""
    yield from table(*_summary(result))
    yield ""
    of = f" of {brokers_text(result.brokers)}" if len(result.brokers) > 1 else ""
    yield f"{number(len(result.partitions), 'partition')}{of}: {_total(result)}"
    if 0 < len(shown) < len(result.partitions):
        yield f"the {len(shown):,} that could lose most are above; --limit shows more"
    if result.keys_not_counted:
        names = printable(names_text(result.keys_not_counted))
        yield f"keys were not counted in {names}: name them with --topic, or read more with --sample"


def _partition_lines(partition: WhyPartition) -> Iterator[str]:
    cause = partition.cause
    total, lost = sums([partition])
    size = bytes_text(total)
    could = _could_go(lost, any(one.is_estimate for one in partition.all_replicas)) if lost else "nothing could go"
    if (tier := partition.tier) is not None:
        there = f"up to {bytes_text(tier.could_lose_bytes)}" if tier.could_lose_bytes else "nothing"
        could += f"; {bytes_text(tier.size_bytes)} in its tier, {there} could go there"
    where = f" of {brokers_text([one.on_broker for one in partition.all_replicas])}" if partition.replicas else ""
    yield printable(f"{partition.name}: {size} on disk{where}, {could}: {cause.what}")
    for evidence in cause.evidence:
        yield _line("because", str(evidence))
    if partition.keys is not None:
        yield _line("keys", keys_text(partition.keys))
    if cause.next_step:
        yield _line("do", cause.next_step)
    if partition.tier is not None:
        yield from (_line(label, text) for label, text in tier_texts(partition.tier))
    yield _line("broker", partition.broker)
    yield _line("offline", partition.offline)
    for other in partition.causes[1:]:
        size_bytes = other.bytes_max if other.way is Way.TIER else other.disk_bytes_max
        held = f"{_most(size_bytes, other.is_estimate)}: " if other.bytes_max else ""
        yield _line("also", held + other.what + (f"; {other.next_step}" if other.next_step else ""))
    for replica in partition.replicas:
        if replica.differs_from(partition):
            yield _line("differs", _replica_text(replica))


def _replica_text(replica: WhyPartition) -> str:
    lost = replica.could_lose_disk_bytes
    could = _could_go(lost, replica.is_estimate) if lost else "nothing could go"
    size = bytes_text(replica.usage.total_bytes)
    return f"{brokers_text([replica.on_broker])}: {size} on disk, {could}: {replica.cause.what}"


def tier_texts(tier: TierOutlook) -> Sequence[tuple[str, str]]:
    """Describe a partition's part in a tier, as labels and sentences."""
    return [
        ("tier", _outlook(tier.remote_retention)),
        ("disk", _outlook(tier.local_retention)),
        ("copies", tier.copies),
        ("a month", _month(tier.month)),
    ]


def _outlook(outlook: RetentionOutlook) -> str:
    if not outlook.segments:
        return f"deletes nothing: {outlook.stays}"
    deleted = f"{number(outlook.segments, 'segment')}, {bytes_text(outlook.size_bytes)} ({', '.join(outlook.rules)})"
    return f"deletes {deleted}; then {outlook.stays}"


def _month(month: Month) -> str:
    price = "" if month.price is None else f"about {month.price:.4g}, without reads: "
    requests = ""
    if month.puts or month.deletes:
        requests = f", about {number(month.puts, 'put')} and {number(month.deletes, 'delete')}"
    since = "in the last 30 days" if month.since_ms is None else f"since {time_text(month.since_ms)[:10]}"
    copied = f"{number(month.copies, 'attempt')} to copy, {bytes_text(month.copied_bytes)}"
    return f"{price}{bytes_text(month.storage_bytes)} stored; {since}: {copied}{requests}"


def _most(size_bytes: int, is_estimate: bool) -> str:
    return f"{'≈ ' if is_estimate else ''}{bytes_text(size_bytes)}"


def _could_go(size_bytes: int, is_estimate: bool) -> str:
    return f"{'about' if is_estimate else 'up to'} {bytes_text(size_bytes)} could go"


def _total(result: WhyResult) -> str:
    total, lost = sums(result.partitions)
    text = f"{bytes_text(total)} on disk, {_could_go(lost, any(one.is_estimate for one in result.partitions))}"
    tiers = [one.tier for one in result.partitions if one.tier is not None]
    if tiers:
        size, could = sum(one.size_bytes for one in tiers), _could_lose_there(tiers)
        text += f"; {bytes_text(size)} in the tier, {_could_go(could, False)} there"
    prices = [one.month.price for one in tiers if one.month.price is not None]
    return f"{text}; a month of the tier is about {sum(prices):.4g}, without reads" if prices else text


def _line(label: str, text: str) -> str:
    return f"  {label.ljust(_LABEL_WIDTH)}{printable(text)}"


def keys_text(keys: KeyCounts) -> str:
    """Describe the known key counts of a log and their source."""
    parts = [f"about {number(keys.keys_in_log, 'key')} in {number(keys.keyed_in_log, 'record')}"]
    if keys.keyed:
        parts.append(f"{keys.superseded_share:.0%} of the records superseded")
    if keys.tombstones:
        parts.append(f"{keys.tombstones / keys.records:.0%} tombstones")
    if keys.keyless:
        parts.append(f"{keys.keyless / keys.records:.0%} without a key")
    read = (
        f", {bytes_text(keys.read_bytes)} of {bytes_text(keys.log_bytes)}" if keys.read_bytes < keys.log_bytes else ""
    )
    error = f", sampled: keys are ± {100 * keys.keys_error / keys.keys:.2g} %" if keys.keys_error else ""
    return f"{', '.join(parts)} (by {keys.source}{read if keys.key_bytes is not None else ''}{error})"


def _summary(result: WhyResult) -> tuple[list[Column], list[list[str]]]:
    """Build a row for each kind of main cause, sorted by the data that it holds back."""
    has_tier = any(one.tier is not None for one in result.partitions)
    titles = ("PARTITIONS", "ON DISK", "COULD GO", *(("IN TIER", "COULD GO THERE") if has_tier else ()))
    by_kind: dict[CauseKind, list[WhyPartition]] = {}
    for partition in result.partitions:
        by_kind.setdefault(partition.cause.kind, []).append(partition)
    ranked = sorted(((kind, some, sums(some)) for kind, some in by_kind.items()), key=lambda row: -row[2][1])
    rows = []
    for kind, some, (total, lost) in ranked:
        figures = [bytes_text(total), _most(lost, any(one.is_estimate for one in some))]
        if has_tier:
            tiers = [one.tier for one in some if one.tier is not None]
            figures += [bytes_text(sum(one.size_bytes for one in tiers)), bytes_text(_could_lose_there(tiers))]
        rows.append([kind, f"{len(some):,}", *figures])
    return [Column("MAIN CAUSE"), *(Column(title, right=True) for title in titles)], rows


def _could_lose_there(tiers: Sequence[TierOutlook]) -> int:
    return sum(one.could_lose_bytes for one in tiers)


def _document(result: WhyResult) -> dict[str, Any]:
    # null means unknown
    total, lost = sums(result.partitions)
    tiers = [one.tier for one in result.partitions if one.tier is not None]
    prices = [one.month.price for one in tiers if one.month.price is not None]
    return {
        "now_ms": result.now_ms,
        "brokers": list(result.brokers),
        "partitions": [_partition(one) for one in result.partitions],
        "keys_not_counted": list(result.keys_not_counted),
        "totals": {
            "partitions": len(result.partitions),
            "disk_bytes": total,
            "could_lose_bytes": could_lose(result.partitions, on_disk=False),
            "could_lose_disk_bytes": lost,
            "estimates": _estimates(_LOST, any(one.is_estimate for one in result.partitions)),
            "tier_bytes": sum(one.size_bytes for one in tiers),
            "could_lose_tier_bytes": _could_lose_there(tiers),
            "tier_month_price": sum(prices) if prices else None,
        },
    }


#: Figures that are estimates if a cause is one.
_LOST = ("could_lose_bytes", "could_lose_disk_bytes")


def _estimates(names: tuple[str, ...], is_estimate: bool) -> list[str]:
    return list(names) if is_estimate else []


def _partition(partition: WhyPartition) -> dict[str, Any]:
    name, keys = partition.topic_partition, partition.keys
    return {
        "path": partition.path,
        "on_broker": partition.on_broker,
        "topic": None if name is None else name.topic,
        "partition": None if name is None else name.partition,
        "disk_bytes": partition.usage.total_bytes,
        "usage": asdict(partition.usage),
        "could_lose_bytes": partition.could_lose_bytes,
        "could_lose_disk_bytes": partition.could_lose_disk_bytes,
        "estimates": _estimates(_LOST, partition.is_estimate),
        "causes": [_cause(one) for one in partition.causes],
        "broker": partition.broker,
        "offline": partition.offline,
        "keys": None if keys is None else _keys(keys),
        "tier": None if partition.tier is None else asdict(partition.tier),
        "notes": list(partition.notes),
        "replicas": [_partition(one) for one in partition.replicas],
        "differing": [one.on_broker for one in partition.replicas if one.differs_from(partition)],
    }


def _cause(cause: Cause) -> dict[str, Any]:
    return {
        "kind": cause.kind,
        "what": cause.what,
        "bytes_max": cause.bytes_max,
        "disk_bytes_max": cause.disk_bytes_max,
        "estimates": _estimates(("bytes_max", "disk_bytes_max", "what", "by_itself"), cause.is_estimate),
        "way": cause.way,
        "next_step": cause.next_step,
        "by_itself": cause.by_itself,
        "evidence": [asdict(one) for one in cause.evidence],
    }


def _keys(keys: KeyCounts) -> dict[str, Any]:
    return {
        "source": keys.source,
        "read_bytes": keys.read_bytes,
        "log_bytes": keys.log_bytes,
        "records": keys.records,
        "keyless": keys.keyless,
        "tombstones": keys.tombstones,
        "keys": keys.keys_in_log,
        "keys_error": keys.keys_error,
        "superseded_share": keys.superseded_share,
        "removable_share": keys.removable_share,
        "damage": None if keys.damage is None else str(keys.damage),
    }


def _html(result: WhyResult) -> str:
    columns = [Column("PARTITION"), Column("ON DISK", right=True), Column("COULD GO", right=True), Column("CAUSE")]
    rows = [
        [
            one.name,
            bytes_text(total),
            _most(lost, one.is_estimate),
            one.cause.what,
        ]
        for one in result.partitions
        for total, lost in [sums([one])]
    ]
    return html_table(columns, rows, _total(result))


register(WhyResult, lines=lines, document=_document, html=_html)
