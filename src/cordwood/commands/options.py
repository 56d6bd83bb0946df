"""The options of all commands: values that travel from the command line or `api` to the engine.

A new option is one field here, or in `rules.plan.Choices`: `cli.options` and `api` are generated from these fields.
This module imports little, so that Spark can start before the command itself is loaded.

A class is the options of one verb, or a group that several verbs share: `Selection`, `IndexPlace`, `TaskOptions`, …
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from cordwood.cleaning.rules.plan import Choices
from cordwood.common.arguments import (
    METADATA,
    NO_BROKER_ELSEWHERE,
    NOW,
    SERVER_PROPERTIES,
    TOPICS,
    AnyPath,
    Option,
    named_path,
    text_paths,
)
from cordwood.common.errors import RequestError
from cordwood.common.types import Clock, override, system_clock
from cordwood.fs.base import Store
from cordwood.storage.formats.filenames import index_folder
from cordwood.tasks.engines import EngineOptions, Where

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cordwood.cleaning.engine.progress import OnProgress
    from cordwood.fs.base import TargetStore
    from cordwood.tasks.tasks import Jobs

#: The decoders that keys and values may have.
DECODERS = (
    "utf8, json, bytes, hex, short, int, long, float, double, uuid; or avro:DIR, protobuf:DIR, jsonschema:DIR with "
    "schemas from a folder"
)

EXACT = Option("Read all batch headers of large logs, instead of a sample, so that no figure is an estimate.")
EXACT_WITH_KEYS = Option("Read all batch headers of large logs, and whole key indexes, instead of a sample.")

# ---- shared by several commands --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenPartitions:
    """The selected partitions of a broker; by default all."""

    topics: Annotated[Sequence[str], TOPICS] = ()
    partitions: Annotated[
        Sequence[str],
        Option(
            "Only partitions with this number (3) or name (orders-3), or matching this glob.",
            flag="--partition",
            metavar="WHICH",
        ),
    ] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TierPlace:
    """The tier that has the closed segments of tiered topics."""

    PANEL: ClassVar[str] = "Tiered topics"

    tier: Annotated[
        str | None,
        Option(
            "Where the closed segments of tiered topics are: the folder of LocalTieredStorage, or the bucket and key "
            "prefix of Aiven's plugin. Default: the tier in --server-properties, if it can be read from here.",
            metavar="DIR|URL",
        ),
    ] = None
    tier_keys: Annotated[
        Sequence[str],
        Option("A private key (PEM) for encrypted segments.", flag="--tier-key", metavar="FILE"),
    ] = ()

    @classmethod
    def of(cls, tier: AnyPath | None, tier_keys: Sequence[AnyPath]) -> TierPlace:
        """Return the place that a program passes."""
        return cls(tier=None if tier is None else os.fspath(tier), tier_keys=text_paths(tier_keys))

    def store(self, paths: Iterable[str | None], server_properties: str | None = None) -> TargetStore:
        """Return the store for some paths, which shows logs with their tier.

        Raises:
            RequestError: the tier cannot be read.
        """
        from cordwood.fs.by_url import file_system_for

        given = [path for path in paths if path is not None]
        found = None
        if self.tier is None and server_properties is not None:
            from cordwood.storage.tier.configured import configured_tier

            found = configured_tier(file_system_for([server_properties]), server_properties, os.environ)
        root = self.tier if found is None else found.root
        store = file_system_for([*given, server_properties, root, *self.tier_keys])
        if root is None:
            return store
        from cordwood.storage.tier.store import with_configured_tier, with_tier

        if found is not None:
            return with_configured_tier(store, found, self.tier_keys, given)
        return with_tier(store, root, self.tier_keys, given)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOptions:
    """The options of `fetch`."""

    tier_place: TierPlace = field(default_factory=TierPlace)
    topics: Annotated[Sequence[str], TOPICS] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection(ChosenPartitions):
    """The selected partitions of a broker, and the sources of their configs."""

    PANEL: ClassVar[str] = "Which partitions, with which configs"

    overrides: Annotated[
        Sequence[str],
        Option(
            "Set a topic config: KEY=VALUE, or TOPIC:KEY=VALUE for one topic. Overrides all other sources.",
            flag="--config",
            metavar="KEY=VALUE",
        ),
    ] = ()
    server_properties: Annotated[str | None, SERVER_PROPERTIES] = None
    metadata: Annotated[str | None, METADATA] = None
    tier_place: TierPlace = field(default_factory=TierPlace)

    def store(self, paths: Iterable[str | None]) -> TargetStore:
        """Return the store for some paths, which shows logs with their tier; see `TierPlace.store`."""
        return self.tier_place.store([*paths, self.metadata], self.server_properties)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedBrokers:
    """Log directories of brokers that the user names, because no meta.properties does."""

    PANEL: ClassVar[str] = "Several brokers"

    brokers: Annotated[
        Sequence[str],
        Option(
            "Also this log directory, of the broker with this name (its node.id, if it is known): for directories "
            "without meta.properties.",
            flag="--broker",
            metavar="NAME=DIR",
        ),
    ] = ()

    def __post_init__(self) -> None:
        """Raise RequestError for a text without a name or without a path."""
        _ = self.named

    @property
    def named(self) -> tuple[tuple[str, str], ...]:
        """The broker's name and path of each."""
        return tuple(named_path(text, "--broker") for text in self.brokers)

    def refuse(self, verb: str) -> None:
        """Raise RequestError if brokers are named, for a verb that takes no named ones."""
        if self.brokers:
            raise RequestError(f"--broker: {verb} takes log directories as DIR, not as NAME=DIR")

    def with_paths(self, paths: Iterable[str]) -> tuple[str, ...]:
        """Return the paths of all directories, these and those of the brokers.

        Raises:
            RequestError: there are none.
        """
        found = (*paths, *(path for _, path in self.named))
        if not found:
            raise RequestError(
                "Missing argument: give DIR, log directories of one or more brokers, or --broker NAME=DIR"
            )
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedReplica(NamedBrokers):
    """The replica to read of each partition, if directories of several brokers are given."""

    replica: Annotated[
        str | None,
        Option(
            "Read the replicas of the broker with this name. Default: the newest replica of each partition, with the "
            "newest leader epoch, then the highest end.",
            metavar="NAME",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaChoice(NamedReplica):
    """The replica to read of each partition, and whether the others replace its damaged batches."""

    heal: Annotated[
        bool,
        Option(
            "Read damaged batches from another replica that has the same bytes there, and count them. Without, damage "
            "is an error."
        ),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexPlace:
    """The location of the partitions' key indexes."""

    PANEL: ClassVar[str] = "Key indexes"

    index_dir: Annotated[
        str | None,
        Option(
            "Folder for the key indexes of DIR, with a folder for each partition. Default: in each partition.",
            metavar="DIR4",
        ),
    ] = None

    def root(self, fs: Store, partitions: Collection[str]) -> str | None:
        """Return the folder for `LogView`, after checking it for some partitions.

        Raises:
            RequestError: the folder cannot hold the indexes of all of them.
        """
        # Imported here: they load kernels, and options are read before Java starts.
        from cordwood.storage.index.files import check_root
        from cordwood.storage.node.directory import check_outside_logs

        root = None if self.index_dir is None else fs.absolute_path(self.index_dir)
        check_root(fs, root, partitions)
        first = next(iter(partitions), None)
        if root is not None and first is not None and not fs.reads_by_request(root):
            # A partition's folder within it must not be in any broker's log directory.
            check_outside_logs(fs, index_folder(first, root))
        return root


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


# ---- read ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOptions:
    """The options of `ls`."""

    selection: Selection = field(default_factory=Selection)
    index_place: IndexPlace = field(default_factory=IndexPlace)
    index_entries: Annotated[
        bool,
        Option(
            "Read all batch headers in object stores, too, and count the entries of indexes.",
            flag="--segments",
            flag_help="One line per segment. In an object store, only this reads every segment's batch headers.",
        ),
    ] = False
    exact: Annotated[bool, EXACT] = False
    sort: Annotated[
        str | None,
        Option(
            "In this order: disk, size (of logs), dirty, clean, records or segments, the largest first; newest or "
            "oldest (record) first; or name. Default: name.",
            metavar="ORDER",
        ),
    ] = None
    named: NamedBrokers = field(default_factory=NamedBrokers)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions:
    """The options of `groups`."""

    groups: Annotated[
        Sequence[str],
        Option("Only groups with this name, or matching this glob.", flag="--group", metavar="GROUP"),
    ] = ()
    metadata: Annotated[str | None, METADATA] = None
    named: NamedBrokers = field(default_factory=NamedBrokers)
    tier_place: TierPlace = field(default_factory=TierPlace)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionOptions:
    """The options of `transactions`."""

    selection: Selection = field(default_factory=Selection)
    now_ms: Annotated[
        int | None, Option("Compute ages as of this time (ms since 1970). Default: now.", flag="--now", metavar="MS")
    ] = None
    named: NamedBrokers = field(default_factory=NamedBrokers)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataPoint:
    """A metadata log, and the point in it to read up to."""

    at: Annotated[
        str | None,
        Option("As of this offset, or this time (2026-11-21T09:25:45Z). Default: the end.", metavar="OFFSET|TIME"),
    ] = None
    metadata: Annotated[str | None, METADATA] = None
    named: NamedBrokers = field(default_factory=NamedBrokers)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """The options of `topics` and `configs`."""

    topics: Annotated[Sequence[str], TOPICS] = ()
    point: MetadataPoint = field(default_factory=MetadataPoint)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokersOptions:
    """The options of `brokers`."""

    point: MetadataPoint = field(default_factory=MetadataPoint)


# ---- explain, plan, clean, verify ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of a tier.

    Attributes:
        storage: of 2^30 bytes for a month.
        put, delete: of 1,000 requests.
    """

    storage: float = 0.0
    put: float = 0.0
    delete: float = 0.0

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Prices:
        """Parse prices such as `storage=0.023`.

        Raises:
            RequestError: a text is not a price.
        """
        prices: dict[str, float] = {}
        for text in texts:
            what, _, number = text.partition("=")
            if what not in cls.__slots__ or not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,12})?", number, re.ASCII):
                form = "storage=, put= or delete= with a number, such as storage=0.023"
                raise RequestError(f"--price {text}: give {form}. Reads are in no metadata, so they have no price here")
            prices[what] = float(number)
        return cls(**prices)

    def of(self, *, storage_bytes: int, puts: int, deletes: int) -> float:
        """Return the price of a month."""
        return self.storage * storage_bytes / (1 << 30) + (self.put * puts + self.delete * deletes) / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyOptions:
    """The options of `why`."""

    selection: Selection = field(default_factory=Selection)
    now_ms: Annotated[int | None, NOW] = None
    exact: Annotated[bool, EXACT_WITH_KEYS] = False
    keys: Annotated[
        bool,
        Option(
            "Count the keys of compacted partitions, from key indexes or a sample.",
            flag="--no-keys",
            flag_help="Do not count keys: no record is read, and sizes of removable data are upper bounds.",
        ),
    ] = True
    sample_bytes: Annotated[
        int,
        Option(
            "Read at most this much of a log to count its keys, if no key index helps; and 64 times as much in all. "
            "Default: 8m.",
            flag="--sample",
            metavar="BYTES",
        ),
    ] = 8 << 20
    read_all: Annotated[bool, Option("Read all records of all compacted partitions, instead of samples.")] = False
    index_place: IndexPlace = field(default_factory=IndexPlace)
    price: Annotated[
        Sequence[str],
        Option(
            "A price of the tier: storage (of a GB for a month), put or delete (of 1,000 requests).",
            flag="--price",
            metavar="WHAT=PRICE",
        ),
    ] = ()
    named: NamedBrokers = field(default_factory=NamedBrokers)

    def __post_init__(self) -> None:
        """Raise RequestError for a text that is not a price."""
        Prices.parse(self.price)

    @property
    def prices(self) -> Prices | None:
        """The prices of the tier; None without any."""
        return Prices.parse(self.price) if self.price else None


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
    named: NamedBrokers = field(default_factory=NamedBrokers)

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
class IndexOptions:
    """The key indexes that a clean leaves."""

    PANEL: ClassVar[str] = "Key indexes"

    index: Annotated[
        bool,
        Option(
            "Make key indexes of cleaned segments, so that the next clean reads only records that may change. "
            "Default: only in partitions that have some."
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
    of: Annotated[
        Literal["broker", "cluster"],
        Option(
            "A copy of the directories of one `broker`, the default; or of a `cluster`: one replica of each partition, "
            "the newest, in one directory on which a single broker starts.",
            metavar="broker|cluster",
        ),
    ] = "broker"
    indexes: IndexOptions = field(default_factory=IndexOptions)

    def __post_init__(self) -> None:
        """Raise RequestError for an unknown choice."""
        if self.of not in ("broker", "cluster"):
            raise RequestError(f"--of {self.of}: give broker or cluster")


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
class InTierOptions:
    """The options of a clean in a tier."""

    PANEL: ClassVar[str] = "Only with --in-tier"

    keep_old_objects: Annotated[
        bool, Option("Leave the objects of replaced segments in the tier, and list them. No broker deletes them later.")
    ] = False
    dry_run: Annotated[bool, Option("Clean and prove, but change nothing; show what would be written and deleted.")] = (
        False
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOverOptions:
    """The options of `tier export` and `tier adopt`."""

    chosen: ChosenPartitions = field(default_factory=ChosenPartitions)
    tier_place: TierPlace = field(default_factory=TierPlace)
    metadata: Annotated[str | None, METADATA] = None
    single_copy: Annotated[
        bool,
        Option("I confirm that __remote_log_metadata has no other replica, even if no metadata log has their number."),
    ] = False
    no_broker_elsewhere: Annotated[bool, NO_BROKER_ELSEWHERE] = False
    dry_run: Annotated[bool, Option("Make all checks, but change nothing; show what would be handed over.")] = False


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
class CompareOptions:
    """The options of `compare`."""

    selection: Selection = field(default_factory=Selection)
    named: NamedBrokers = field(default_factory=NamedBrokers)
    sample: Annotated[
        float,
        Option(
            "Compare the values of this share of the keys, chosen anew in each run. All batches are compared. "
            "Default: 1, all keys.",
            metavar="SHARE",
        ),
    ] = 1.0
    tasks: TaskOptions = field(default_factory=TaskOptions)

    def __post_init__(self) -> None:
        """Raise RequestError unless the share is above 0 and at most 1."""
        if not 0 < self.sample <= 1:
            raise RequestError(f"--sample {self.sample:g}: give a share of the keys, above 0 and at most 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortOptions:
    """The options of `abort-transaction`."""

    partition: Annotated[
        int | None,
        Option(
            "Only in this partition. Default: in all partitions with an open transaction of the producer.", metavar="N"
        ),
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
        bool, Option("I confirm that there is no other replica, even if the metadata lists some, or without metadata.")
    ] = False
    no_broker_elsewhere: Annotated[bool, NO_BROKER_ELSEWHERE] = False
    yes: Annotated[bool, Option("Make the changes. Without this, they are only shown.")] = False


# ---- find keys -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class GetOptions:
    """The options of `get`."""

    selection: Selection = field(default_factory=Selection)
    index_place: IndexPlace = field(default_factory=IndexPlace)
    last: Annotated[bool, Option("Only the newest committed record of each key. Older segments may stay unread.")] = (
        False
    )
    key_as: Annotated[
        str,
        Option(
            f"The type of keys, given and shown: {DECODERS}. Text after hex: or base64: is always bytes. Default: "
            "utf8.",
            metavar="DECODER",
        ),
    ] = "utf8"
    value_as: Annotated[str, Option("The type of values; the same choice. Default: utf8.", metavar="DECODER")] = "utf8"
    now_ms: Annotated[int | None, NOW] = None
    replicas: ReplicaChoice = field(default_factory=ReplicaChoice)


@dataclass(frozen=True, slots=True, kw_only=True)
class EraseCheckOptions:
    """The options of `erase-check`."""

    selection: Selection = field(default_factory=Selection)
    values: Annotated[
        bool, Option("Also look for the bytes of the keys within values and headers, and within other keys.")
    ] = False
    key_as: Annotated[
        str,
        Option(
            f"The type of keys: {DECODERS}. Text after hex: or base64: is always bytes. Default: utf8.",
            metavar="DECODER",
        ),
    ] = "utf8"
    now_ms: Annotated[int | None, NOW] = None
    named: NamedBrokers = field(default_factory=NamedBrokers)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexingOptions:
    """The options of `index`."""

    drop: Annotated[bool, Option("Remove all key indexes.")] = False
    index_dir: Annotated[
        str | None,
        Option(
            "Folder for the indexes, with a folder for each partition; DIR is then only read, so a broker may be "
            "running, and DIR may be in an object store. Default: in DIR.",
            metavar="DIR4",
        ),
    ] = None
    index_max: Annotated[
        int | None,
        Option(
            "Disk space for the indexes of a partition; the newest segments get none if it is too small. Default: a "
            "tenth of its log.",
            metavar="BYTES",
        ),
    ] = None
    chosen: ChosenPartitions = field(default_factory=ChosenPartitions)
    no_broker_elsewhere: Annotated[bool, NO_BROKER_ELSEWHERE] = False


# ---- tables ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """The options that define a table."""

    topic: Annotated[str | None, Option("The topic. Default: the only topic in the directories.", metavar="TOPIC")] = (
        None
    )
    as_of: Annotated[
        int | str | Mapping[int, int] | None,
        Option(
            "The table as of this point: an offset, which is not included; one per partition, as 0:120,1:95; or a time "
            "like 2026-11-21T09:25:45Z, up to the first record at or after it. Default: the last stable offset.",
            metavar="OFFSET|TIME",
        ),
    ] = None
    since: Annotated[
        str | Mapping[int, int] | None,
        Option("Only the changes since an earlier table: the folder that it was written to.", metavar="DIR2"),
    ] = None
    deletes: Annotated[bool, Option("Also deleted keys, with a column `deleted`. Changes always have them.")] = False
    key: Annotated[str, Option(f"The type of keys: {DECODERS}. Default: utf8.", metavar="DECODER")] = "utf8"
    value: Annotated[str, Option("The type of values; the same choice. Default: utf8.", metavar="DECODER")] = "utf8"
    undecodable: Annotated[
        Literal["fail", "null"],
        Option(
            "For a key or value that cannot be decoded: fail, with its place; or null, with a column `undecodable`. "
            "Default: fail.",
            metavar="fail|null",
        ),
    ] = "fail"
    high_watermark: Annotated[
        int | Literal["end"] | None,
        Option(
            "All replicas have the log up to this offset (end: all of it); later records do not count. Default: its "
            "checkpoint, or the end without other replicas.",
            metavar="OFFSET|end",
        ),
    ] = None
    metadata: Annotated[str | None, METADATA] = None
    tier_place: TierPlace = field(default_factory=TierPlace)
    work: Annotated[
        str | None,
        Option(
            "Folder for files that tasks exchange; all executors must see it. It may be a URL. Default: the folder for "
            "temporary files.",
            metavar="DIR",
        ),
    ] = None

    index_place: IndexPlace = field(default_factory=IndexPlace)
    replicas: ReplicaChoice = field(default_factory=ReplicaChoice)

    def __post_init__(self) -> None:
        """Raise RequestError for an unknown choice."""
        if self.undecodable not in ("fail", "null"):
            raise RequestError(f"--undecodable {self.undecodable}: give fail or null")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFileOptions:
    """The options for the files of a table."""

    format: Annotated[
        str,
        Option(
            "The format of the files: parquet, csv, json, orc, or another format of Spark. Default: parquet.",
            metavar="NAME",
        ),
    ] = "parquet"
    writer: Annotated[
        Sequence[str],
        Option(
            "An option of Spark's writer of this format, such as header=true for csv.",
            flag="--writer-option",
            metavar="KEY=VALUE",
        ),
    ] = ()

    def writer_options(self) -> dict[str, str]:
        """Return the writer's options by name."""
        for one in self.writer:
            if "=" not in one:
                raise RequestError(f"--writer-option {one}: give KEY=VALUE, such as header=true")
        return dict(one.split("=", 1) for one in self.writer)


# ---- times and points in a log, as users write them ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Time:
    """A point in time, in milliseconds since the epoch."""

    ms: int


def parse_point(given: int | str | Mapping[int, int] | None) -> int | Mapping[int, int] | Time | None:
    """Parse the point of a table: an offset, offsets by partition, a time; or None for the last stable offset."""
    if not isinstance(given, str):
        return given
    if re.fullmatch(r"[0-9]{1,19}", given, re.ASCII):
        return int(given)
    if re.fullmatch(r"[0-9]{1,10}:[0-9]{1,19}(,[0-9]{1,10}:[0-9]{1,19})*", given, re.ASCII):
        pairs = (one.split(":") for one in given.split(","))
        return {int(partition): int(offset) for partition, offset in pairs}
    try:
        return Time(parse_time(given))
    except RequestError:
        what = "an offset like 120, offsets by partition like 0:120,1:95, nor a time like 2026-11-21T09:25:45Z"
        raise RequestError(f"--as-of {given}: this is neither {what}") from None


_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_time(text: str) -> int:
    """Parse milliseconds since the epoch, an ISO time (default zone UTC), or an age such as 5m, to milliseconds."""
    if re.fullmatch(r"-?[0-9]{1,19}", text, re.ASCII):
        return int(text)
    if age := re.fullmatch(r"([0-9]{1,9})(ms|s|m|h|d)", text, re.ASCII):
        return system_clock() - int(age[1]) * _UNITS_MS[age[2]]
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        what = "no time: give 2026-11-21T09:25:45Z, milliseconds since the epoch, or an age such as 5m (ms, s, m, h, d)"
        raise RequestError(f"{text!r} is {what}") from None
    time = time.replace(tzinfo=UTC) if time.tzinfo is None else time
    since = time - datetime(1970, 1, 1, tzinfo=UTC)
    return since.days * 86_400_000 + since.seconds * 1000 + since.microseconds // 1000
