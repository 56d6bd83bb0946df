"""What a user can ask of the commands, as one value from the command line to the engine.

A new option is one field here, or in `cleaning.plan.Choices`: `cli.options` and `api` are made from these fields.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from cordwood.cleaning.offset_map import keys_max, slots_of
from cordwood.cleaning.plan import (
    Choices,
    Decision,
    OffsetMapSize,
    PartitionPlan,
    Plan,
)
from cordwood.clock import Clock
from cordwood.commands.engines import EngineOptions, Where
from cordwood.commands.selection import Selection
from cordwood.config import BrokerConfig, Layer, resolve_broker
from cordwood.engine.progress import OnProgress
from cordwood.errors import ConfigError, NotFoundError, RequestError
from cordwood.fs.base import Store
from cordwood.option import Option
from cordwood.sizing.workload import Workload
from cordwood.storage.node.listing import is_asked_for
from cordwood.storage.node.node import LocatedPartition, Node
from cordwood.storage.recovery.into_copy import RecoverySettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cordwood.fs.base import TargetStore
    from cordwood.jobs.jobs import Jobs

#: The broker's configs that determine the size of Kafka's offset map.
_MAP_CONFIGS = ("log.cleaner.dedupe.buffer.size", "log.cleaner.io.buffer.load.factor", "log.cleaner.threads")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """What `plan` and `clean` are asked for.

    Attributes:
        now_ms: the time as of which everything is decided; None: not yet read from the clock, see `at`.
        choices: how they are to be cleaned.
    """

    selection: Selection = field(default_factory=Selection)
    now_ms: Annotated[
        int | None, Option("Decide as of this time (ms since 1970). Default: now.", flag="--now", metavar="MS")
    ] = None
    choices: Choices = field(default_factory=Choices)

    def at(self, clock: Clock) -> tuple[PlanOptions, int]:
        """The options with their time, which is the clock's unless given; and this time."""
        now_ms = clock() if self.now_ms is None else self.now_ms
        return replace(self, now_ms=now_ms), now_ms

    def without_retention(self) -> PlanOptions:
        """The same options, for a plan whose retention is computed after the clean."""
        return replace(self, choices=replace(self.choices, retention=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions(EngineOptions):
    """How the tasks of a command run."""

    rate: Annotated[
        int | None,
        Option(
            "Limit reads and writes of all tasks together to this many bytes per second. Default: no limit.",
            metavar="BYTES",
        ),
    ] = None
    archive: Annotated[
        str | None,
        Option(
            "Python environment for the executors of a cluster, made by `cordwood pack`. Default: the executors have "
            "their own.",
            metavar="FILE",
        ),
    ] = None

    task_timeout: Annotated[
        int,
        Option(
            "Give up if no task has made progress for this many seconds, as when a disk hangs. Default: 1800.",
            metavar="SECONDS",
        ),
    ] = 1800

    def __post_init__(self) -> None:
        """Refuse an engine that there is not, and a timeout that no task could meet.

        Raises:
            RequestError: it is one.
        """
        EngineOptions.__post_init__(self)
        if self.task_timeout < 1:
            raise RequestError(f"--task-timeout {self.task_timeout}: give seconds, 1 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOptions:
    """What only a clean into a copy is asked for."""

    PANEL: ClassVar[str] = "Only with --output"

    link: Annotated[bool, Option("Hard-link closed segments that do not change, instead of copying them.")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InPlaceOptions:
    """What only a clean in place is asked for."""

    PANEL: ClassVar[str] = "Only with --in-place"

    keep_old: Annotated[
        str | None,
        Option("Keep replaced and deleted files in this new folder; `undo` puts them back.", metavar="DIR3"),
    ] = None
    verify: Annotated[
        bool,
        Option(
            "Prove that new segments are right before they replace old ones.",
            flag="--no-verify",
            flag_help="Replace old segments without proving first that the new ones are right.",
        ),
    ] = True
    work_space: Annotated[
        int | None,
        Option(
            "Disk space for new segments before old ones are removed. Default: all free space.",
            metavar="BYTES",
        ),
    ] = None
    no_broker_elsewhere: Annotated[
        bool,
        Option("I confirm that no broker on another machine uses this network disk."),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """What `verify` is asked for."""

    selection: Selection = field(default_factory=Selection)
    now_ms: Annotated[
        int | None,
        Option("Judge delete horizons as of this time (ms since 1970). Default: now.", flag="--now", metavar="MS"),
    ] = None
    high_watermark: Annotated[
        int | Literal["end"] | None,
        Option(
            "The high watermark before the clean. Default: its checkpoint, else the end of the log.",
            metavar="OFFSET|end",
        ),
    ] = None
    retention: Annotated[
        bool,
        Option("Allow log start offsets to increase, as by retention or deleted records."),
    ] = False
    tasks: TaskOptions = field(default_factory=TaskOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateOptions:
    """What `simulate` is asked for."""

    workload: Workload = field(default_factory=Workload)
    overrides: Annotated[
        Sequence[str],
        Option("Set a config of the topic or of the broker: KEY=VALUE.", flag="--config", metavar="KEY=VALUE"),
    ] = ()
    against: Annotated[
        Sequence[str],
        Option("Compare with a second set of configs, which has this config in addition.", metavar="KEY=VALUE"),
    ] = ()
    server_properties: Annotated[
        str | None,
        Option("The broker's server.properties file, for configs that --config does not set.", metavar="FILE"),
    ] = None
    days: Annotated[float, Option("How long to simulate. Default: 30.", metavar="DAYS")] = 30.0
    scale: Annotated[
        float | None,
        Option(
            "Divide rate, keys and segments by this, and multiply the results by it. Default: chosen so that the "
            "simulation takes some seconds.",
            metavar="FACTOR",
        ),
    ] = None
    seed: Annotated[int, Option("Seed for random choices. Default: 7.", metavar="NUMBER")] = 7

    def __post_init__(self) -> None:
        """Refuse what cannot be.

        Raises:
            RequestError: one of the values.
        """
        if not 0.001 <= self.days <= 3660:
            raise RequestError(f"--days {self.days:g}: give at least 0.001, and at most 3660")
        if self.scale is not None and not 1 <= self.scale < float("inf"):
            raise RequestError(f"--scale {self.scale:g}: give 1 (nothing is left out) or more")
        if self.seed < 0:
            raise RequestError(f"--seed {self.seed}: give 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionOptions:
    """What `transactions` is asked for."""

    selection: Selection = field(default_factory=Selection)
    now_ms: Annotated[
        int | None, Option("Compute ages as of this time (ms since 1970). Default: now.", flag="--now", metavar="MS")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Where the tasks of a command run, and what it calls meanwhile.

    Attributes:
        spark: a session to use, which is left running; None: a new one.
        on_plan: called with the plan and the number of bytes that will be read.
        on_progress: called with the number of bytes read so far.
    """

    spark: SparkSession | None = None
    tasks: TaskOptions = field(default_factory=TaskOptions)
    on_plan: Callable[[Plan, int], None] | None = None
    on_progress: OnProgress | None = None

    @property
    def where(self) -> Where:
        """Where its tasks run."""
        return Where.of(self.tasks, self.spark, self.tasks.archive)

    def jobs(self, fs: TargetStore, progress_folder: str) -> Jobs:
        """What runs the tasks of a command, which report in a folder of `fs`."""
        # Planning does without it.
        from cordwood.jobs.jobs import Jobs

        return Jobs(fs, progress_folder, self.where.start, self.on_progress, task_timeout=self.tasks.task_timeout)


def open_node(fs: Store, paths: Sequence[str], selection: Selection) -> Node:
    """Open the directories with the configs of a selection; see `Node.open`."""
    return Node.open(fs, paths, selection.metadata, selection.server_properties, selection.overrides)


def select_partitions(
    places: Iterable[LocatedPartition], paths: Sequence[str], selection: Selection
) -> list[LocatedPartition]:
    """The selected partitions, of those in the paths.

    Raises:
        NotFoundError: there is none.
    """
    topics, partitions = selection.topics, selection.partitions
    selected = [place for place in places if is_asked_for(place, topics, partitions)]
    if not selected:
        what = ", ".join([*topics, *partitions])
        raise NotFoundError(f"No partition in {', '.join(paths)}" + (f" matches {what}" if what else ""))
    return selected


def recovery_settings(node: Node, topic: str) -> RecoverySettings:
    """What loading a topic's partitions goes by."""
    try:
        return RecoverySettings(index_interval_bytes=node.config_of(topic).integer("index.interval.bytes"))
    except ConfigError:
        return RecoverySettings()  # the plan says what is wrong with its configs


def offset_map_size(node: Node, choices: Choices) -> OffsetMapSize | None:
    """The map of Kafka that a clean goes by; None: it goes by none.

    Raises:
        RequestError: it has no room for a single key.
        ConfigError: the broker would not take one of its configs.
    """
    config = broker_config(node, _MAP_CONFIGS)
    buffer, factor = config["log.cleaner.dedupe.buffer.size"], config.real("log.cleaner.io.buffer.load.factor")
    if choices.offset_map is not None:
        memory, source = choices.offset_map, f"--offset-map {choices.offset_map}"
    elif buffer.explicit or choices.strict_kafka:
        threads = max(1, config.integer("log.cleaner.threads"))
        memory = config.integer(buffer.name) // threads
        shared = f" for {threads} threads" if threads > 1 else ""
        source = f"{buffer.name}={buffer.value}{shared}, {buffer.source if buffer.explicit else '--strict-kafka'}"
    else:
        return None
    slots = slots_of(memory)
    keys = keys_max(slots, factor)
    if keys < 1:
        what = f"An offset map of {memory} bytes, of which {100 * factor:g} % may be filled, has no room for a key"
        raise RequestError(f"{what} ({source}): no clean would come any further")
    return OffsetMapSize(slots, factor, keys, source)


def broker_config(node: Node, names: Collection[str]) -> BrokerConfig:
    """The broker's configs of these names, whatever is wrong with others.

    Raises:
        ConfigError: the broker would not take one of them.
    """
    layers = node.broker_layers()
    return resolve_broker(
        Layer(one.source, {name: text for name, text in one.texts.items() if name in names}) for one in layers
    )


def limited_by_map(partition: PartitionPlan, size: OffsetMapSize | None) -> PartitionPlan:
    """The plan of a partition that is cleaned in rounds, by Kafka's offset map; unchanged without one."""
    if size is None or partition.decision is not Decision.CLEAN:
        return partition
    note = f"cleaned in rounds of at most {size.keys} keys, by Kafka's offset map ({size.source})"
    return replace(partition, offset_map=size, notes=(*partition.notes, note))
