"""`why`: the reasons for the size of each partition of a broker, and advice.

    partition ─► plan ─────────┐   commands.plan: names, sizes, checkpoints, indexes, configs, batch headers
       ├───────► disk usage ───┤   storage.node.disk_usage
       ├───────► keys ─────────┼─► causes    commands.why.reasons: pure
       ├───────► cleaner ──────┤   when its checkpoint was written, and when a broker was last alive
       └───────► transaction ──┘   commands.transactions, only if one holds back the cleaner

Partitions are processed one by one, the largest first, so that the largest are sampled before the limit for reading is
reached. Only the causes of each are kept in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import cordwood.commands.report.why  # noqa: F401 - so that results can show themselves
from cordwood.cleaning.rules.plan import Bound, Choices, Decision
from cordwood.commands.coordinators import OnLogs
from cordwood.commands.opening import open_node, select_partitions
from cordwood.commands.partition_facts import PlannedPartition, Planner, cleaner_enabled, collect_facts
from cordwood.commands.plan import plan_with_facts
from cordwood.commands.selection import WhyOptions
from cordwood.commands.transactions import Outlooks
from cordwood.commands.why.causes import WhyPartition, WhyResult
from cordwood.commands.why.reasons import why_partition
from cordwood.common.clock import Clock, system_clock
from cordwood.common.config import ConfigValue
from cordwood.common.errors import DataError, NotFoundError
from cordwood.fs.base import Store
from cordwood.fs.by_url import file_system_for
from cordwood.storage.formats.filenames import FileKind, parse_file
from cordwood.storage.index.key_sample import CountSource, KeyCounts, count_keys
from cordwood.storage.log.view import LogView
from cordwood.storage.node.node import LocatedPartition, Node

#: All samples together may be as large as this many samples of one log.
_SAMPLES_MAX = 64


def why(
    paths: Sequence[str],
    options: WhyOptions,
    *,
    on_progress: Callable[[int, int], None] | None = None,
    fs: Store | None = None,
    clock: Clock = system_clock,
) -> WhyResult:
    """Explain the size of the partitions in one broker's directories, and what to do about it.

    Partitions that could lose most come first. Nothing is changed; a broker may be running.

    Args:
        on_progress: called with how many partitions were looked at, and how many there are.

    Raises:
        NotFoundError: there is nothing at a path, or no partition was selected.
        RequestError: a path is a file; or the directories belong to different brokers.
        ConfigError: Kafka would not accept a config.
    """
    chosen = options.selection
    fs = fs or file_system_for([*paths, chosen.metadata, chosen.server_properties, options.index_place.index_dir])
    return why_node(open_node(fs, paths, chosen), paths, options, on_progress=on_progress, clock=clock)


def why_node(
    node: Node,
    paths: Sequence[str],
    options: WhyOptions,
    *,
    on_progress: OnLogs | None = None,
    clock: Clock = system_clock,
) -> WhyResult:
    """Explain the size of the partitions in a node's directories, as they were when it was opened."""
    now_ms = clock() if options.now_ms is None else options.now_ms
    fs, chosen = node.fs, options.selection
    places = list(select_partitions(node.places, paths, chosen))
    if len(places) > 1:  # sizes take a listing, and a single partition may have 10,000s of files
        places.sort(key=lambda place: -_log_bytes(fs, place))
    return why_of(
        node,
        places,
        lambda place: plan_with_facts(node, place, Choices(), now_ms),
        options,
        now_ms,
        on_progress=on_progress,
    )


def why_of(
    node: Node,
    places: Sequence[LocatedPartition],
    planner: Planner,
    options: WhyOptions,
    now_ms: int,
    *,
    on_progress: OnLogs | None = None,
) -> WhyResult:
    """Explain the size of partitions, with plans from `planner`; see `why_node`."""
    root = options.index_place.root(node.fs, [place.path for place in places])
    look = _Look(node, options, now_ms, cleaner_enabled(node), Outlooks(node, now_ms), root)
    found = []
    for done, place in enumerate(places, 1):
        planned = planner(place)
        partition = None if planned is None else look.at(place, planned)
        found += [] if partition is None else [partition]
        if on_progress is not None:
            on_progress(done, len(places))
    ranked = sorted(found, key=_could_lose_most)
    return WhyResult(now_ms, tuple(ranked), tuple(look.not_counted))


def _could_lose_most(partition: WhyPartition) -> tuple[int, int, int]:
    """Sort key: the partition with the most removable data first."""
    return -partition.could_lose_disk_bytes, -partition.could_lose_bytes, -partition.usage.total_bytes


def _log_bytes(fs: Store, place: LocatedPartition) -> int:
    """Return the size of a partition's logs; 0 if they are gone or unreadable."""
    try:
        files = ((parse_file(info.name), info) for info in fs.list(place.path))
        return sum(info.size_bytes for file, info in files if file is not None and file.kind is FileKind.LOG)
    except OSError:
        return 0


@dataclass
class _Look:
    """Explains partitions one by one.

    Attributes:
        not_counted: names of partitions whose keys were not counted, as the limit for reading was reached.
    """

    node: Node
    options: WhyOptions
    now_ms: int
    enabled: ConfigValue
    outlooks: Outlooks
    index_root: str | None
    not_counted: list[str] = field(default_factory=list)
    _read_bytes: int = 0

    def at(self, place: LocatedPartition, planned: PlannedPartition) -> WhyPartition | None:
        """Explain the size of a partition; None if it was deleted."""
        log, compaction = planned.log, planned.plan.compaction
        held = compaction is not None and compaction.range.bound is Bound.LAST_STABLE_OFFSET
        try:
            facts = replace(
                collect_facts(self.node, place, planned, self.enabled, self.now_ms),
                transaction=self.outlooks.holding_back(place) if held else None,
                keys=None if log is None or compaction is None else self._keys(planned, log),
            )
        except (FileNotFoundError, NotFoundError):
            return None  # a running broker deleted it
        return why_partition(facts)

    def _keys(self, planned: PlannedPartition, log: LogView) -> KeyCounts | None:
        if not self.options.keys or planned.plan.decision is Decision.REFUSE:
            return None
        budget = min(self.options.sample_bytes, _SAMPLES_MAX * self.options.sample_bytes - self._read_bytes)
        try:
            counts = count_keys(log.with_indexes_in(self.index_root), budget, read_all=self.options.read_all)
        except (OSError, DataError):
            return None
        if counts is None and log.size_bytes:
            self.not_counted.append(planned.plan.name)
        if counts is not None and counts.source is not CountSource.INDEX:
            self._read_bytes += counts.read_bytes
        return counts
