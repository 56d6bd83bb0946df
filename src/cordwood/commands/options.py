"""The options of the commands, as one value from the command line to the engine.

A new option is one field here, or in `rules.plan.Choices`: `cli.options` and `api` are generated from these fields.
This module imports little, so that Spark can start before the command itself is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from cordwood.cleaning.rules.plan import Choices
from cordwood.commands.selection import IndexPlace, Selection
from cordwood.common.clock import Clock
from cordwood.common.errors import RequestError
from cordwood.common.option import METADATA, NO_BROKER_ELSEWHERE, NOW, SERVER_PROPERTIES, Option
from cordwood.common.types import override
from cordwood.tasks.engines import EngineOptions, Where

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cordwood.cleaning.engine.progress import OnProgress
    from cordwood.fs.base import TargetStore
    from cordwood.tasks.tasks import Jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """The options of `plan` and `clean`.

    Attributes:
        now_ms: the time of all decisions, or None before `at` reads the clock.
    """

    selection: Selection = field(default_factory=Selection)
    now_ms: Annotated[int | None, NOW] = None
    choices: Choices = field(default_factory=Choices)
    index_place: IndexPlace = field(default_factory=IndexPlace)

    def at(self, clock: Clock) -> tuple[PlanOptions, int]:
        """Return the options with their time, by default the clock's; and this time."""
        now_ms = clock() if self.now_ms is None else self.now_ms
        return replace(self, now_ms=now_ms), now_ms

    @property
    def paths(self) -> tuple[str | None, ...]:
        """Paths besides those of logs."""
        return self.selection.metadata, self.selection.server_properties, self.index_place.index_dir

    def without_retention(self) -> PlanOptions:
        """Return the same options, for a plan whose retention is computed after the clean."""
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
        """Raise RequestError for an unknown engine or a timeout below one second."""
        EngineOptions.__post_init__(self)
        if self.task_timeout < 1:
            raise RequestError(f"--task-timeout {self.task_timeout}: give seconds, 1 or more")

    @override
    def where(self, spark: SparkSession | None = None) -> Where:
        return replace(EngineOptions.where(self, spark), archive=self.archive)

    def jobs(
        self, fs: TargetStore, progress_folder: str, spark: SparkSession | None, on_progress: OnProgress | None
    ) -> Jobs:
        """Return the runner of a command's tasks, which write their progress to a folder of `fs`."""
        # Imported here, as planning does not need it.
        from cordwood.tasks.tasks import Jobs

        return Jobs(fs, progress_folder, self.where(spark).start, on_progress, task_timeout=self.task_timeout)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexOptions:
    """The key indexes that a clean leaves."""

    PANEL: ClassVar[str] = "Key indexes"

    index: Annotated[
        bool,
        Option(
            "Make key indexes of what is cleaned, so that the next clean reads only what may change. "
            "Default: only of partitions that have some."
        ),
    ] = False
    index_max: Annotated[
        int | None,
        Option(
            "Disk space for the key indexes of a partition. Default: a tenth of its log.",
            metavar="BYTES",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOptions:
    """The options of a clean into a copy."""

    PANEL: ClassVar[str] = "Only with --output"

    link: Annotated[bool, Option("Hard-link closed segments that do not change, instead of copying them.")] = False
    indexes: IndexOptions = field(default_factory=IndexOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class InPlaceOptions:
    """The options of a clean in place."""

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
    no_broker_elsewhere: Annotated[bool, NO_BROKER_ELSEWHERE] = False
    indexes: IndexOptions = field(default_factory=IndexOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """The options of `verify`."""

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
class TransactionOptions:
    """The options of `transactions`."""

    selection: Selection = field(default_factory=Selection)
    now_ms: Annotated[
        int | None, Option("Compute ages as of this time (ms since 1970). Default: now.", flag="--now", metavar="MS")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortOptions:
    """The options of `abort-transaction`."""

    partition: Annotated[
        int | None,
        Option("Only in this partition. Default: in all in which the producer's transaction is open.", metavar="N"),
    ] = None
    metadata: Annotated[str | None, METADATA] = None
    overrides: Annotated[
        Sequence[str],
        Option(
            "Set a config, such as transaction.state.log.num.partitions=50 where no metadata log has the count.",
            flag="--config",
            metavar="KEY=VALUE",
        ),
    ] = ()
    server_properties: Annotated[str | None, SERVER_PROPERTIES] = None
    single_copy: Annotated[
        bool, Option("I confirm that there is no other replica, whatever the metadata says, or where there is none.")
    ] = False
    no_broker_elsewhere: Annotated[bool, NO_BROKER_ELSEWHERE] = False
    yes: Annotated[bool, Option("Do it. Without this, what would be done is shown, and nothing is changed.")] = False
