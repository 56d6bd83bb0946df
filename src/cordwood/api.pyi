"""Written by scripts/api-stub from the commands; change these, and run it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from pyspark.sql import DataFrame, SparkSession

from cordwood.cleaning.engine.progress import OnProgress
from cordwood.cleaning.engine.results import CleanResult, ExactPlan
from cordwood.cleaning.proof.violations import VerifyResult
from cordwood.cleaning.rules.plan import Plan
from cordwood.commands.cluster import BrokersListing, ConfigsListing, TopicsListing
from cordwood.commands.compare import CompareResult
from cordwood.commands.hand_over import HandOverResult
from cordwood.commands.why.facts import WhyResult
from cordwood.commands.why.found_keys import ErasureResult, GetResult
from cordwood.common.arguments import AnyPath
from cordwood.fs.base import LocalFileSystem, Store, TargetStore
from cordwood.simulation.sizing.result import ExplainResult, SimulationResult
from cordwood.storage.index.build import IndexResult
from cordwood.storage.node.groups import GroupListing
from cordwood.storage.node.listing import Listing
from cordwood.storage.node.transactions import AbortResult, TransactionListing
from cordwood.tables.result import TableResult

def ls(
    *paths: AnyPath,
    on_progress: Callable[[int, int], None] | None = None,
    fs: Store | None = None,
    topics: Sequence[str] = (),
    partitions: Sequence[str] = (),
    overrides: Sequence[str] = (),
    server_properties: AnyPath | None = None,
    metadata: AnyPath | None = None,
    tier: AnyPath | None = None,
    tier_keys: Sequence[AnyPath] = (),
    index_dir: AnyPath | None = None,
    index_entries: bool = False,
    exact: bool = False,
    sort: str | None = None,
    brokers: Sequence[str] = (),
) -> Listing:
    """List the partitions in the directories of one or more brokers, each replica by itself.

    Args:
        paths: log directories, folders of several, or partition directories.
        on_progress: called with the number of partitions listed so far, and of all.
        fs: the file system; default: this machine's.

    Options:
        topics: Only topics with this name, or matching this glob.
        partitions: Only partitions with this number (3) or name (orders-3), or matching this glob.
        overrides: Set a topic config: KEY=VALUE, or TOPIC:KEY=VALUE for one topic. Overrides all other sources.
        server_properties: The broker's server.properties file, for configs that topics do not set.
        metadata: The directory that contains __cluster_metadata-0. Default: one of the given paths.
        tier: Where the closed segments of tiered topics are: the folder of LocalTieredStorage, or the bucket and
            key prefix of Aiven's plugin. Default: the tier in --server-properties, if it can be read from here.
        tier_keys: A private key (PEM) for encrypted segments.
        index_dir: Folder for the key indexes of DIR, with a folder for each partition. Default: in each partition.
        index_entries: Read all batch headers in object stores, too, and count the entries of indexes.
        exact: Read all batch headers of large logs, instead of a sample, so that no figure is an estimate.
        sort: In this order: disk, size (of logs), dirty, clean, records or segments, the largest first; newest or
            oldest (record) first; or name. Default: name.
        brokers: Also this log directory, of the broker with this name (its node.id, if it is known): for
            directories without meta.properties.

    Raises:
        NotFoundError: there is nothing at a path, or no partition was selected.
        RequestError: a path is a file; or the directories belong to different clusters.
        ConfigError: Kafka would not accept a config.
    """

def view_html(
    *paths: AnyPath,
    on_progress: Callable[[int, int], None] | None = None,
    fs: Store | None = None,
    topics: Sequence[str] = (),
    partitions: Sequence[str] = (),
    overrides: Sequence[str] = (),
    server_properties: AnyPath | None = None,
    metadata: AnyPath | None = None,
    tier: AnyPath | None = None,
    tier_keys: Sequence[AnyPath] = (),
    now_ms: int | None = None,
    exact: bool = False,
    keys: bool = True,
    sample_bytes: int = 8388608,
    read_all: bool = False,
    index_dir: AnyPath | None = None,
    price: Sequence[str] = (),
    brokers: Sequence[str] = (),
) -> str:
    """Return the pages of the directories of one or more brokers as the text of one HTML file, which needs no network.

    The directories are only read; a broker may be running.

    Args:
        paths: log directories, folders of several, or partition directories.
        on_progress: called with how many partitions a step has looked at, and how many there are.
        fs: the file system; default: this machine's.

    Options:
        topics: Only topics with this name, or matching this glob.
        partitions: Only partitions with this number (3) or name (orders-3), or matching this glob.
        overrides: Set a topic config: KEY=VALUE, or TOPIC:KEY=VALUE for one topic. Overrides all other sources.
        server_properties: The broker's server.properties file, for configs that topics do not set.
        metadata: The directory that contains __cluster_metadata-0. Default: one of the given paths.
        tier: Where the closed segments of tiered topics are: the folder of LocalTieredStorage, or the bucket and
            key prefix of Aiven's plugin. Default: the tier in --server-properties, if it can be read from here.
        tier_keys: A private key (PEM) for encrypted segments.
        now_ms: Decide as of this time (ms since 1970). Default: now.
        exact: Read all batch headers of large logs, and whole key indexes, instead of a sample.
        keys: Count the keys of compacted partitions, from key indexes or a sample.
        sample_bytes: Read at most this much of a log to count its keys, if no key index helps; and 64 times as much
            in all. Default: 8m.
        read_all: Read all records of all compacted partitions, instead of samples.
        index_dir: Folder for the key indexes of DIR, with a folder for each partition. Default: in each partition.
        price: A price of the tier: storage (of a GB for a month), put or delete (of 1,000 requests).
        brokers: Also this log directory, of the broker with this name (its node.id, if it is known): for
            directories without meta.properties.

    Raises:
        NotFoundError: there is nothing at a path, or no partition was selected.
        RequestError: a path is a file; or the directories belong to different clusters.
        ConfigError: Kafka would not accept a config.
    """

def get(
    *paths: AnyPath,
    keys: Sequence[bytes | str],
    on_progress: Callable[[int, int], None] | None = None,
    fs: Store | None = None,
    topics: Sequence[str] = (),
    partitions: Sequence[str] = (),
    overrides: Sequence[str] = (),
    server_properties: AnyPath | None = None,
    metadata: AnyPath | None = None,
    tier: AnyPath | None = None,
    tier_keys: Sequence[AnyPath] = (),
    index_dir: AnyPath | None = None,
    last: bool = False,
    key_as: str = "utf8",
    value_as: str = "utf8",
    now_ms: int | None = None,
    brokers: Sequence[str] = (),
    replica: str | None = None,
    heal: bool = False,
) -> GetResult:
    """Find all records of some keys, and predict the next change of each.

    The directories are only read; a broker may be running. Segments with a key index are searched through it, all
    other segments are read. If the number of partitions is known, the search for a key begins in the partition that
    Kafka's partitioner chooses, and continues in other partitions only if the key is not there.

    Args:
        paths: log directories of one or more brokers, folders of several, or partition directories.
        keys: bytes, or text in the form that `key_as` names.
        on_progress: called with the bytes of segments that were searched, and of all.
        fs: the file system; default: this machine's.

    Options:
        topics: Only topics with this name, or matching this glob.
        partitions: Only partitions with this number (3) or name (orders-3), or matching this glob.
        overrides: Set a topic config: KEY=VALUE, or TOPIC:KEY=VALUE for one topic. Overrides all other sources.
        server_properties: The broker's server.properties file, for configs that topics do not set.
        metadata: The directory that contains __cluster_metadata-0. Default: one of the given paths.
        tier: Where the closed segments of tiered topics are: the folder of LocalTieredStorage, or the bucket and
            key prefix of Aiven's plugin. Default: the tier in --server-properties, if it can be read from here.
        tier_keys: A private key (PEM) for encrypted segments.
        index_dir: Folder for the key indexes of DIR, with a folder for each partition. Default: in each partition.
        last: Only the newest committed record of each key. Older segments may stay unread.
        key_as: The type of keys, given and shown: utf8, json, bytes, hex, short, int, long, float, double, uuid; or
            avro:DIR, protobuf:DIR, jsonschema:DIR with schemas from a folder. Text after hex: or base64: is always
            bytes. Default: utf8.
        value_as: The type of values; the same choice. Default: utf8.
        now_ms: Decide as of this time (ms since 1970). Default: now.
        brokers: Also this log directory, of the broker with this name (its node.id, if it is known): for
            directories without meta.properties.
        replica: Read the replicas of the broker with this name. Default: the newest replica of each partition, with
            the newest leader epoch, then the highest end.
        heal: Read damaged batches from another replica that has the same bytes there, and count them. Without,
            damage is an error.

    Raises:
        NotFoundError: there is nothing at a path, or no partition was selected.
        RequestError: a path is a file; the directories belong to different clusters; no directory belongs to the broker
            that `replica` names; or a key is not what `key_as` says.
        ConfigError: Kafka would not accept a config.
    """

def erase_check(
    *paths: AnyPath,
    keys: Sequence[bytes | str],
    on_progress: Callable[[int, int], None] | None = None,
    fs: Store | None = None,
    topics: Sequence[str] = (),
    partitions: Sequence[str] = (),
    overrides: Sequence[str] = (),
    server_properties: AnyPath | None = None,
    metadata: AnyPath | None = None,
    tier: AnyPath | None = None,
    tier_keys: Sequence[AnyPath] = (),
    values: bool = False,
    key_as: str = "utf8",
    now_ms: int | None = None,
    brokers: Sequence[str] = (),
) -> ErasureResult:
    """Look for traces of keys in all files of some directories, and list the steps that remain.

    Every byte of every file is read, and nothing is changed; brokers may be running. `page()` of the result is the
    certificate as an HTML file.

    Args:
        paths: all places that may have traces: directories of all brokers, copies, folders of kept files.
        keys: bytes, or text in the form that `key_as` names.
        on_progress: called with the bytes of searched files, and of all files.
        fs: the file system; default: this machine's.

    Options:
        topics: Only topics with this name, or matching this glob.
        partitions: Only partitions with this number (3) or name (orders-3), or matching this glob.
        overrides: Set a topic config: KEY=VALUE, or TOPIC:KEY=VALUE for one topic. Overrides all other sources.
        server_properties: The broker's server.properties file, for configs that topics do not set.
        metadata: The directory that contains __cluster_metadata-0. Default: one of the given paths.
        tier: Where the closed segments of tiered topics are: the folder of LocalTieredStorage, or the bucket and
            key prefix of Aiven's plugin. Default: the tier in --server-properties, if it can be read from here.
        tier_keys: A private key (PEM) for encrypted segments.
        values: Also look for the bytes of the keys within values and headers, and within other keys.
        key_as: The type of keys: utf8, json, bytes, hex, short, int, long, float, double, uuid; or avro:DIR,
            protobuf:DIR, jsonschema:DIR with schemas from a folder. Text after hex: or base64: is always bytes.
            Default: utf8.
        now_ms: Decide as of this time (ms since 1970). Default: now.
        brokers: Also this log directory, of the broker with this name (its node.id, if it is known): for
            directories without meta.properties.

    Raises:
        NotFoundError: there is nothing at a path, or no file was selected.
        RequestError: a path is a file; or a key does not have the form that `key_as` names.
        ConfigError: Kafka would not accept a config.
    """

def index(
    *paths: AnyPath,
    fs: LocalFileSystem | None = None,
    drop: bool = False,
    index_dir: AnyPath | None = None,
    index_max: int | None = None,
    topics: Sequence[str] = (),
    partitions: Sequence[str] = (),
    no_broker_elsewhere: bool = False,
) -> IndexResult:
    """Make the key indexes of partitions, or remove them.

    Indexes that are up to date stay. No file of the log changes.

    Args:
        paths: log directories, folders of several, or partition directories.
        fs: the file system; default: this machine's.

    Options:
        drop: Remove all key indexes.
        index_dir: Folder for the indexes, with a folder for each partition; DIR is then only read, so a broker may
            be running, and DIR may be in an object store. Default: in DIR.
        index_max: Disk space for the indexes of a partition; the newest segments get none if it is too small.
            Default: a tenth of its log.
        topics: Only topics with this name, or matching this glob.
        partitions: Only partitions with this number (3) or name (orders-3), or matching this glob.
        no_broker_elsewhere: I confirm that no broker on another machine uses this network disk.

    Raises:
        NotFoundError: there is nothing at a path, or no partition was selected.
        RequestError: a path is a file, or belongs to another user.
        LockedError: a broker or another program holds one of the log directories.
    """

def groups(
    *paths: AnyPath,
    on_progress: Callable[[int, int], None] | None = None,
    fs: Store | None = None,
    groups: Sequence[str] = (),
    metadata: AnyPath | None = None,
    brokers: Sequence[str] = (),
    tier: AnyPath | None = None,
    tier_keys: Sequence[AnyPath] = (),
) -> GroupListing:
    """List the consumer groups in the directories of one or more brokers: members, committed offsets, and lag.

    Args:
        paths: log directories, folders of several, or partition directories.
        on_progress: called with the number of logs read so far, and of all.
        fs: the file system; default: this machine's.

    Options:
        groups: Only groups with this name, or matching this glob.
        metadata: The directory that contains __cluster_metadata-0. Default: one of the given paths.
        brokers: Also this log directory, of the broker with this name (its node.id, if it is known): for
            directories without meta.properties.
        tier: Where the closed segments of tiered topics are: the folder of LocalTieredStorage, or the bucket and
            key prefix of Aiven's plugin. Default: the tier in --server-properties, if it can be read from here.
        tier_keys: A private key (PEM) for encrypted segments.

    Raises:
        NotFoundError: there is nothing at a path, no partition of `__consumer_offsets`, or no group was selected.
        RequestError: a path is a file; or the directories belong to different clusters.
    """

def transactions(
    *paths: AnyPath,
    on_progress: Callable[[int, int], None] | None = None,
    fs: Store | None = None,
    topics: Sequence[str] = (),
    partitions: Sequence[str] = (),
    overrides: Sequence[str] = (),
    server_properties: AnyPath | None = None,
    metadata: AnyPath | None = None,
    tier: AnyPath | None = None,
    tier_keys: Sequence[AnyPath] = (),
    now_ms: int | None = None,
    brokers: Sequence[str] = (),
) -> TransactionListing:
    """List the open transactions in the directories of one or more brokers, and the data that they hold back.

    Args:
        paths: log directories, folders of several, or partition directories.
        on_progress: called with the number of partitions read so far, and of all.
        fs: the file system; default: this machine's.

    Options:
        topics: Only topics with this name, or matching this glob.
        partitions: Only partitions with this number (3) or name (orders-3), or matching this glob.
        overrides: Set a topic config: KEY=VALUE, or TOPIC:KEY=VALUE for one topic. Overrides all other sources.
        server_properties: The broker's server.properties file, for configs that topics do not set.
        metadata: The directory that contains __cluster_metadata-0. Default: one of the given paths.
        tier: Where the closed segments of tiered topics are: the folder of LocalTieredStorage, or the bucket and
            key prefix of Aiven's plugin. Default: the tier in --server-properties, if it can be read from here.
        tier_keys: A private key (PEM) for encrypted segments.
        now_ms: Compute ages as of this time (ms since 1970). Default: now.
        brokers: Also this log directory, of the broker with this name (its node.id, if it is known): for
            directories without meta.properties.

    Raises:
        NotFoundError: there is nothing at a path, or no partition was selected.
        RequestError: a path is a file; or the directories belong to different clusters.
        ConfigError: Kafka would not accept a config.
    """

def topics(
    *paths: AnyPath,
    fs: Store | None = None,
    topics: Sequence[str] = (),
    at: str | None = None,
    metadata: AnyPath | None = None,
    brokers: Sequence[str] = (),
) -> TopicsListing:
    """List the topics of a cluster: partitions, replicas and configs.

    Read from its metadata log and snapshots, as of the end, an offset or a time.

    Args:
        paths: log directories of one or more brokers; at least one holds `__cluster_metadata-0`. The newest is
            read.
        fs: the file system; default: this machine's.

    Options:
        topics: Only topics with this name, or matching this glob.
        at: As of this offset, or this time (2026-11-21T09:25:45Z). Default: the end.
        metadata: The directory that contains __cluster_metadata-0. Default: one of the given paths.
        brokers: Also this log directory, of the broker with this name (its node.id, if it is known): for
            directories without meta.properties.

    Raises:
        NotFoundError: there is nothing at a path, no metadata log, or no topic was selected.
        RequestError: the log does not reach back to this offset or time.
    """

def configs(
    *paths: AnyPath,
    fs: Store | None = None,
    topics: Sequence[str] = (),
    at: str | None = None,
    metadata: AnyPath | None = None,
    brokers: Sequence[str] = (),
) -> ConfigsListing:
    """List the configs that are set in a cluster: of topics, of brokers, and of all brokers.

    Read from its metadata log and snapshots, as of the end, an offset or a time.

    Args:
        paths: log directories of one or more brokers; at least one holds `__cluster_metadata-0`. The newest is
            read.
        fs: the file system; default: this machine's.

    Options:
        topics: Only topics with this name, or matching this glob.
        at: As of this offset, or this time (2026-11-21T09:25:45Z). Default: the end.
        metadata: The directory that contains __cluster_metadata-0. Default: one of the given paths.
        brokers: Also this log directory, of the broker with this name (its node.id, if it is known): for
            directories without meta.properties.

    Raises:
        NotFoundError: there is nothing at a path, no metadata log, or no topic was selected.
        RequestError: the log does not reach back to this offset or time.
    """

def brokers(
    *paths: AnyPath,
    fs: Store | None = None,
    at: str | None = None,
    metadata: AnyPath | None = None,
    brokers: Sequence[str] = (),
) -> BrokersListing:
    """List the brokers of a cluster, and its features.

    Read from its metadata log and snapshots, as of the end, an offset or a time.

    Args:
        paths: log directories of one or more brokers; at least one holds `__cluster_metadata-0`. The newest is
            read.
        fs: the file system; default: this machine's.

    Options:
        at: As of this offset, or this time (2026-11-21T09:25:45Z). Default: the end.
        metadata: The directory that contains __cluster_metadata-0. Default: one of the given paths.
        brokers: Also this log directory, of the broker with this name (its node.id, if it is known): for
            directories without meta.properties.

    Raises:
        NotFoundError: there is nothing at a path, no metadata log, or no topic was selected.
        RequestError: the log does not reach back to this offset or time.
    """

def why(
    *paths: AnyPath,
    on_progress: Callable[[int, int], None] | None = None,
    fs: Store | None = None,
    topics: Sequence[str] = (),
    partitions: Sequence[str] = (),
    overrides: Sequence[str] = (),
    server_properties: AnyPath | None = None,
    metadata: AnyPath | None = None,
    tier: AnyPath | None = None,
    tier_keys: Sequence[AnyPath] = (),
    now_ms: int | None = None,
    exact: bool = False,
    keys: bool = True,
    sample_bytes: int = 8388608,
    read_all: bool = False,
    index_dir: AnyPath | None = None,
    price: Sequence[str] = (),
    brokers: Sequence[str] = (),
) -> WhyResult:
    """Explain the size of the partitions in the directories of one or more brokers, and what to do about it.

    Partitions that could lose most come first. Nothing is changed; a broker may be running.

    Args:
        paths: log directories, folders of several, or partition directories.
        on_progress: called with the number of explained replicas, and of all.
        fs: the file system; default: this machine's.

    Options:
        topics: Only topics with this name, or matching this glob.
        partitions: Only partitions with this number (3) or name (orders-3), or matching this glob.
        overrides: Set a topic config: KEY=VALUE, or TOPIC:KEY=VALUE for one topic. Overrides all other sources.
        server_properties: The broker's server.properties file, for configs that topics do not set.
        metadata: The directory that contains __cluster_metadata-0. Default: one of the given paths.
        tier: Where the closed segments of tiered topics are: the folder of LocalTieredStorage, or the bucket and
            key prefix of Aiven's plugin. Default: the tier in --server-properties, if it can be read from here.
        tier_keys: A private key (PEM) for encrypted segments.
        now_ms: Decide as of this time (ms since 1970). Default: now.
        exact: Read all batch headers of large logs, and whole key indexes, instead of a sample.
        keys: Count the keys of compacted partitions, from key indexes or a sample.
        sample_bytes: Read at most this much of a log to count its keys, if no key index helps; and 64 times as much
            in all. Default: 8m.
        read_all: Read all records of all compacted partitions, instead of samples.
        index_dir: Folder for the key indexes of DIR, with a folder for each partition. Default: in each partition.
        price: A price of the tier: storage (of a GB for a month), put or delete (of 1,000 requests).
        brokers: Also this log directory, of the broker with this name (its node.id, if it is known): for
            directories without meta.properties.

    Raises:
        NotFoundError: there is nothing at a path, or no partition was selected.
        RequestError: a path is a file; or the directories belong to different clusters.
        ConfigError: Kafka would not accept a config.
    """

def plan(
    *paths: AnyPath,
    fs: Store | None = None,
    topics: Sequence[str] = (),
    partitions: Sequence[str] = (),
    overrides: Sequence[str] = (),
    server_properties: AnyPath | None = None,
    metadata: AnyPath | None = None,
    tier: AnyPath | None = None,
    tier_keys: Sequence[AnyPath] = (),
    now_ms: int | None = None,
    ignore_ratio: bool = False,
    first_dirty: int | None = None,
    high_watermark: int | Literal["end"] | None = None,
    retention: bool = False,
    single_copy: bool = False,
    offset_map: int | None = None,
    strict_kafka: bool = False,
    memory: int | None = None,
    read_all: bool = False,
    index_dir: AnyPath | None = None,
    brokers: Sequence[str] = (),
) -> Plan:
    """Plan a clean of the directories of one or more brokers, without reading records or changing anything.

    If the directories hold all replicas of a partition, they are cleaned alike; see `commands.joint`.

    Args:
        paths: log directories, folders of several, or partition directories.
        fs: the file system; default: this machine's.

    Options:
        topics: Only topics with this name, or matching this glob.
        partitions: Only partitions with this number (3) or name (orders-3), or matching this glob.
        overrides: Set a topic config: KEY=VALUE, or TOPIC:KEY=VALUE for one topic. Overrides all other sources.
        server_properties: The broker's server.properties file, for configs that topics do not set.
        metadata: The directory that contains __cluster_metadata-0. Default: one of the given paths.
        tier: Where the closed segments of tiered topics are: the folder of LocalTieredStorage, or the bucket and
            key prefix of Aiven's plugin. Default: the tier in --server-properties, if it can be read from here.
        tier_keys: A private key (PEM) for encrypted segments.
        now_ms: Decide as of this time (ms since 1970). Default: now.
        ignore_ratio: Clean even if min.cleanable.dirty.ratio is not reached.
        first_dirty: Clean from this offset on, instead of from the cleaner's checkpoint.
        high_watermark: The offset below which all replicas have the log (end: all of it). Nothing from there on is
            cleaned. Default: its checkpoint.
        retention: Also apply retention.ms and retention.bytes, where set explicitly, and the log start offset.
        single_copy: I confirm that there is no other replica: also remove expired tombstones and markers.
        offset_map: Clean in rounds, as Kafka does with an offset map of this size. Default:
            log.cleaner.dedupe.buffer.size where it is set, else one round.
        strict_kafka: Do exactly what Kafka's cleaner does: use its offset map, and fail where it fails.
        memory: Memory for keys per machine, such as 512m or 4g. Default: a quarter of RAM.
        read_all: Read the whole log, even the parts without anything to clean by their key indexes.
        index_dir: Folder for the key indexes of DIR, with a folder for each partition. Default: in each partition.
        brokers: Also this log directory, of the broker with this name (its node.id, if it is known): for
            directories without meta.properties.

    Raises:
        NotFoundError: there is nothing at a path, or no partition was selected.
        RequestError: a path is a file; the directories belong to different clusters; an offset is negative; or the
            offset map has no room for a single key.
        ConfigError: Kafka would not accept a config.
    """

def plan_exact(
    *paths: AnyPath,
    spark: SparkSession | None = None,
    on_plan: Callable[[Plan, int], None] | None = None,
    on_progress: OnProgress | None = None,
    fs: TargetStore | None = None,
    topics: Sequence[str] = (),
    partitions: Sequence[str] = (),
    overrides: Sequence[str] = (),
    server_properties: AnyPath | None = None,
    metadata: AnyPath | None = None,
    tier: AnyPath | None = None,
    tier_keys: Sequence[AnyPath] = (),
    now_ms: int | None = None,
    ignore_ratio: bool = False,
    first_dirty: int | None = None,
    high_watermark: int | Literal["end"] | None = None,
    retention: bool = False,
    single_copy: bool = False,
    offset_map: int | None = None,
    strict_kafka: bool = False,
    memory: int | None = None,
    read_all: bool = False,
    index_dir: AnyPath | None = None,
    brokers: Sequence[str] = (),
    engine: str | None = None,
    master: str = "local[*,4]",
) -> ExactPlan:
    """Plan a clean, and run it without writing, for the figures that `clean` would report instead of bounds.

    The directories are only read; a broker may be running on them. A directory whose broker crashed is first recovered
    into the temporary folder, as `clean` does into its copy: that takes room for its unflushed segments. Retention is
    computed from the sizes and times after the clean.

    Args:
        paths: log directories, folders of several, or partition directories.
        spark: a session to use, which is left running; default: a new one.
        on_plan: called with the plan and the number of bytes that will be read.
        on_progress: called with the number of bytes read so far.
        fs: the file system; default: this machine's.

    Options:
        topics: Only topics with this name, or matching this glob.
        partitions: Only partitions with this number (3) or name (orders-3), or matching this glob.
        overrides: Set a topic config: KEY=VALUE, or TOPIC:KEY=VALUE for one topic. Overrides all other sources.
        server_properties: The broker's server.properties file, for configs that topics do not set.
        metadata: The directory that contains __cluster_metadata-0. Default: one of the given paths.
        tier: Where the closed segments of tiered topics are: the folder of LocalTieredStorage, or the bucket and
            key prefix of Aiven's plugin. Default: the tier in --server-properties, if it can be read from here.
        tier_keys: A private key (PEM) for encrypted segments.
        now_ms: Decide as of this time (ms since 1970). Default: now.
        ignore_ratio: Clean even if min.cleanable.dirty.ratio is not reached.
        first_dirty: Clean from this offset on, instead of from the cleaner's checkpoint.
        high_watermark: The offset below which all replicas have the log (end: all of it). Nothing from there on is
            cleaned. Default: its checkpoint.
        retention: Also apply retention.ms and retention.bytes, where set explicitly, and the log start offset.
        single_copy: I confirm that there is no other replica: also remove expired tombstones and markers.
        offset_map: Clean in rounds, as Kafka does with an offset map of this size. Default:
            log.cleaner.dedupe.buffer.size where it is set, else one round.
        strict_kafka: Do exactly what Kafka's cleaner does: use its offset map, and fail where it fails.
        memory: Memory for keys per machine, such as 512m or 4g. Default: a quarter of RAM.
        read_all: Read the whole log, even the parts without anything to clean by their key indexes.
        index_dir: Folder for the key indexes of DIR, with a folder for each partition. Default: in each partition.
        brokers: Also this log directory, of the broker with this name (its node.id, if it is known): for
            directories without meta.properties.
        engine: What runs the tasks: spark, or here, which is a pool of processes of this machine, without Java.
            Default: spark if it is installed, else here.
        master: Spark master URL of a new session. Default: this machine.

    Raises:
        NotFoundError: there is nothing at a path, or no partition was selected.
        RequestError: see `plan`; or Spark does not start.
        NoSpaceError: the temporary folder has no room for a directory to recover.
    """

def clean(
    *paths: AnyPath,
    output: AnyPath,
    spark: SparkSession | None = None,
    on_plan: Callable[[Plan, int], None] | None = None,
    on_progress: OnProgress | None = None,
    fs: TargetStore | None = None,
    topics: Sequence[str] = (),
    partitions: Sequence[str] = (),
    overrides: Sequence[str] = (),
    server_properties: AnyPath | None = None,
    metadata: AnyPath | None = None,
    tier: AnyPath | None = None,
    tier_keys: Sequence[AnyPath] = (),
    now_ms: int | None = None,
    ignore_ratio: bool = False,
    first_dirty: int | None = None,
    high_watermark: int | Literal["end"] | None = None,
    retention: bool = False,
    single_copy: bool = False,
    offset_map: int | None = None,
    strict_kafka: bool = False,
    memory: int | None = None,
    read_all: bool = False,
    index_dir: AnyPath | None = None,
    brokers: Sequence[str] = (),
    link: bool = False,
    of: Literal["broker", "cluster"] = "broker",
    index: bool = False,
    index_max: int | None = None,
    engine: str | None = None,
    master: str = "local[*,4]",
    rate: int | None = None,
    archive: AnyPath | None = None,
    task_timeout: int = 1800,
) -> CleanResult:
    """Write a cleaned copy of one broker's directories, or of a cluster's, on which a broker can start.

    Partitions that are not selected are copied. Of a cluster, one replica of each partition is copied. Retention is
    computed from the sizes and times after the clean.

    Args:
        paths: log directories, folders of several, or partition directories; they are only read.
        output: the new directory, which must not exist or be empty; for several log directories, the folder of
            their copies.
        spark: a session to use, which is left running; default: a new one.
        on_plan: called with the plan and the number of bytes that will be read.
        on_progress: called with the number of bytes read so far.
        fs: the file system; default: this machine's.

    Options:
        topics: Only topics with this name, or matching this glob.
        partitions: Only partitions with this number (3) or name (orders-3), or matching this glob.
        overrides: Set a topic config: KEY=VALUE, or TOPIC:KEY=VALUE for one topic. Overrides all other sources.
        server_properties: The broker's server.properties file, for configs that topics do not set.
        metadata: The directory that contains __cluster_metadata-0. Default: one of the given paths.
        tier: Where the closed segments of tiered topics are: the folder of LocalTieredStorage, or the bucket and
            key prefix of Aiven's plugin. Default: the tier in --server-properties, if it can be read from here.
        tier_keys: A private key (PEM) for encrypted segments.
        now_ms: Decide as of this time (ms since 1970). Default: now.
        ignore_ratio: Clean even if min.cleanable.dirty.ratio is not reached.
        first_dirty: Clean from this offset on, instead of from the cleaner's checkpoint.
        high_watermark: The offset below which all replicas have the log (end: all of it). Nothing from there on is
            cleaned. Default: its checkpoint.
        retention: Also apply retention.ms and retention.bytes, where set explicitly, and the log start offset.
        single_copy: I confirm that there is no other replica: also remove expired tombstones and markers.
        offset_map: Clean in rounds, as Kafka does with an offset map of this size. Default:
            log.cleaner.dedupe.buffer.size where it is set, else one round.
        strict_kafka: Do exactly what Kafka's cleaner does: use its offset map, and fail where it fails.
        memory: Memory for keys per machine, such as 512m or 4g. Default: a quarter of RAM.
        read_all: Read the whole log, even the parts without anything to clean by their key indexes.
        index_dir: Folder for the key indexes of DIR, with a folder for each partition. Default: in each partition.
        brokers: Also this log directory, of the broker with this name (its node.id, if it is known): for
            directories without meta.properties.
        link: Hard-link closed segments that do not change, instead of copying them.
        of: A copy of the directories of one `broker`, the default; or of a `cluster`: one replica of each
            partition, the newest, in one directory on which a single broker starts.
        index: Make key indexes of cleaned segments, so that the next clean reads only records that may change.
            Default: only in partitions that have some.
        index_max: Disk space for the key indexes of a partition. Default: a tenth of its log.
        engine: What runs the tasks: spark, or here, which is a pool of processes of this machine, without Java.
            Default: spark if it is installed, else here.
        master: Spark master URL of a new session. Default: this machine.
        rate: Limit reads and writes of all tasks together to this many bytes per second. Default: no limit.
        archive: Python environment for the executors of a cluster, made by `cordwood pack`. Default: the executors
            have their own.
        task_timeout: Give up if no task has made progress for this many seconds, as when a disk hangs. Default:
            1800.

    Raises:
        NotFoundError: there is nothing at a path, or no partition was selected.
        LockedError: a broker or another program holds one of the directories.
        RequestError: the output exists and is not empty; see also `plan`.
        NoSpaceError: the disk is too small, or full.
        OSError: the disk fails. After any error, nothing is left of the output.
    """

def clean_in_place(
    *paths: AnyPath,
    spark: SparkSession | None = None,
    on_plan: Callable[[Plan, int], None] | None = None,
    on_progress: OnProgress | None = None,
    fs: LocalFileSystem | None = None,
    topics: Sequence[str] = (),
    partitions: Sequence[str] = (),
    overrides: Sequence[str] = (),
    server_properties: AnyPath | None = None,
    metadata: AnyPath | None = None,
    tier: AnyPath | None = None,
    tier_keys: Sequence[AnyPath] = (),
    now_ms: int | None = None,
    ignore_ratio: bool = False,
    first_dirty: int | None = None,
    high_watermark: int | Literal["end"] | None = None,
    retention: bool = False,
    single_copy: bool = False,
    offset_map: int | None = None,
    strict_kafka: bool = False,
    memory: int | None = None,
    read_all: bool = False,
    index_dir: AnyPath | None = None,
    brokers: Sequence[str] = (),
    keep_old: AnyPath | None = None,
    verify: bool = True,
    work_space: int | None = None,
    no_broker_elsewhere: bool = False,
    index: bool = False,
    index_max: int | None = None,
    engine: str | None = None,
    master: str = "local[*,4]",
    rate: int | None = None,
    archive: AnyPath | None = None,
    task_timeout: int = 1800,
) -> CleanResult:
    """Clean the directories of one or more brokers in place.

    Only selected partitions are recovered and cleaned. Retention runs after the clean. Replicas of a partition are
    cleaned alike if all of them are here. Of several brokers, one that runs is left alone, with its directories.

    Args:
        paths: log directories, folders of several, or partition directories. Nothing else may use them meanwhile.
        spark: a session to use, which is left running; default: a new one.
        on_plan: called with the plan and the number of bytes that will be read.
        on_progress: called with the number of bytes read so far.
        fs: the file system; default: this machine's.

    Options:
        topics: Only topics with this name, or matching this glob.
        partitions: Only partitions with this number (3) or name (orders-3), or matching this glob.
        overrides: Set a topic config: KEY=VALUE, or TOPIC:KEY=VALUE for one topic. Overrides all other sources.
        server_properties: The broker's server.properties file, for configs that topics do not set.
        metadata: The directory that contains __cluster_metadata-0. Default: one of the given paths.
        tier: Where the closed segments of tiered topics are: the folder of LocalTieredStorage, or the bucket and
            key prefix of Aiven's plugin. Default: the tier in --server-properties, if it can be read from here.
        tier_keys: A private key (PEM) for encrypted segments.
        now_ms: Decide as of this time (ms since 1970). Default: now.
        ignore_ratio: Clean even if min.cleanable.dirty.ratio is not reached.
        first_dirty: Clean from this offset on, instead of from the cleaner's checkpoint.
        high_watermark: The offset below which all replicas have the log (end: all of it). Nothing from there on is
            cleaned. Default: its checkpoint.
        retention: Also apply retention.ms and retention.bytes, where set explicitly, and the log start offset.
        single_copy: I confirm that there is no other replica: also remove expired tombstones and markers.
        offset_map: Clean in rounds, as Kafka does with an offset map of this size. Default:
            log.cleaner.dedupe.buffer.size where it is set, else one round.
        strict_kafka: Do exactly what Kafka's cleaner does: use its offset map, and fail where it fails.
        memory: Memory for keys per machine, such as 512m or 4g. Default: a quarter of RAM.
        read_all: Read the whole log, even the parts without anything to clean by their key indexes.
        index_dir: Folder for the key indexes of DIR, with a folder for each partition. Default: in each partition.
        brokers: Also this log directory, of the broker with this name (its node.id, if it is known): for
            directories without meta.properties.
        keep_old: Keep replaced and deleted files in this new folder; `undo` puts them back.
        verify: Prove that new segments are right before they replace old ones.
        work_space: Disk space for new segments before old ones are removed. Default: all free space.
        no_broker_elsewhere: I confirm that no broker on another machine uses this network disk.
        index: Make key indexes of cleaned segments, so that the next clean reads only records that may change.
            Default: only in partitions that have some.
        index_max: Disk space for the key indexes of a partition. Default: a tenth of its log.
        engine: What runs the tasks: spark, or here, which is a pool of processes of this machine, without Java.
            Default: spark if it is installed, else here.
        master: Spark master URL of a new session. Default: this machine.
        rate: Limit reads and writes of all tasks together to this many bytes per second. Default: no limit.
        archive: Python environment for the executors of a cluster, made by `cordwood pack`. Default: the executors
            have their own.
        task_timeout: Give up if no task has made progress for this many seconds, as when a disk hangs. Default:
            1800.

    Raises:
        NotFoundError: there is nothing at a path, or no partition was selected.
        LockedError: a broker or another program holds one of the directories; of several brokers, all are held.
        RequestError: this user may not give a new file the owner of the file that it replaces; the folder for old
            files cannot be used; see also `plan`.
        OSError: the disk fails. After any error, its notes (`__notes__`) list the finished work.
    """

def clean_in_tier(
    *paths: AnyPath,
    spark: SparkSession | None = None,
    on_plan: Callable[[Plan, int], None] | None = None,
    on_progress: OnProgress | None = None,
    topics: Sequence[str] = (),
    partitions: Sequence[str] = (),
    overrides: Sequence[str] = (),
    server_properties: AnyPath | None = None,
    metadata: AnyPath | None = None,
    tier: AnyPath | None = None,
    tier_keys: Sequence[AnyPath] = (),
    now_ms: int | None = None,
    ignore_ratio: bool = False,
    first_dirty: int | None = None,
    high_watermark: int | Literal["end"] | None = None,
    retention: bool = False,
    single_copy: bool = False,
    offset_map: int | None = None,
    strict_kafka: bool = False,
    memory: int | None = None,
    read_all: bool = False,
    index_dir: AnyPath | None = None,
    brokers: Sequence[str] = (),
    keep_old_objects: bool = False,
    dry_run: bool = False,
    engine: str | None = None,
    master: str = "local[*,4]",
    rate: int | None = None,
    archive: AnyPath | None = None,
    task_timeout: int = 1800,
) -> CleanResult:
    """Clean tiered topics inside their tier, while their brokers are stopped.

    New remote segments replace the segments that lose records. From then on the brokers' metadata lists the new ones.

    Args:
        paths: log directories of all brokers with replicas of the partitions or of `__remote_log_metadata`, or
            partition directories in these. Nothing else may use them meanwhile.
        spark: a session to use, which is left running; default: a new one.
        on_plan: called with the plan and the number of bytes that will be read.
        on_progress: called with the number of bytes read so far.

    Options:
        topics: Only topics with this name, or matching this glob.
        partitions: Only partitions with this number (3) or name (orders-3), or matching this glob.
        overrides: Set a topic config: KEY=VALUE, or TOPIC:KEY=VALUE for one topic. Overrides all other sources.
        server_properties: The broker's server.properties file, for configs that topics do not set.
        metadata: The directory that contains __cluster_metadata-0. Default: one of the given paths.
        tier: Where the closed segments of tiered topics are: the folder of LocalTieredStorage, or the bucket and
            key prefix of Aiven's plugin. Default: the tier in --server-properties, if it can be read from here.
        tier_keys: A private key (PEM) for encrypted segments.
        now_ms: Decide as of this time (ms since 1970). Default: now.
        ignore_ratio: Clean even if min.cleanable.dirty.ratio is not reached.
        first_dirty: Clean from this offset on, instead of from the cleaner's checkpoint.
        high_watermark: The offset below which all replicas have the log (end: all of it). Nothing from there on is
            cleaned. Default: its checkpoint.
        retention: Also apply retention.ms and retention.bytes, where set explicitly, and the log start offset.
        single_copy: I confirm that there is no other replica: also remove expired tombstones and markers.
        offset_map: Clean in rounds, as Kafka does with an offset map of this size. Default:
            log.cleaner.dedupe.buffer.size where it is set, else one round.
        strict_kafka: Do exactly what Kafka's cleaner does: use its offset map, and fail where it fails.
        memory: Memory for keys per machine, such as 512m or 4g. Default: a quarter of RAM.
        read_all: Read the whole log, even the parts without anything to clean by their key indexes.
        index_dir: Folder for the key indexes of DIR, with a folder for each partition. Default: in each partition.
        brokers: Also this log directory, of the broker with this name (its node.id, if it is known): for
            directories without meta.properties.
        keep_old_objects: Leave the objects of replaced segments in the tier, and list them. No broker deletes them
            later.
        dry_run: Clean and prove, but change nothing; show what would be written and deleted.
        engine: What runs the tasks: spark, or here, which is a pool of processes of this machine, without Java.
            Default: spark if it is installed, else here.
        master: Spark master URL of a new session. Default: this machine.
        rate: Limit reads and writes of all tasks together to this many bytes per second. Default: no limit.
        archive: Python environment for the executors of a cluster, made by `cordwood pack`. Default: the executors
            have their own.
        task_timeout: Give up if no task has made progress for this many seconds, as when a disk hangs. Default:
            1800.

    Raises:
        NotFoundError: there is nothing at a path, or no partition was selected.
        LockedError: a broker or another program holds one of the directories.
        RequestError: no tier or no policy is given; a replica of the metadata is missing, or replicas differ; a
            directory was not shut down cleanly; see also `plan`.
        StoreError: the tier failed. The partition that was being changed keeps its old segments or has its new ones.
    """

def export_tier(
    *paths: AnyPath,
    topics: Sequence[str] = (),
    partitions: Sequence[str] = (),
    tier: AnyPath | None = None,
    tier_keys: Sequence[AnyPath] = (),
    metadata: AnyPath | None = None,
    single_copy: bool = False,
    no_broker_elsewhere: bool = False,
    dry_run: bool = False,
) -> HandOverResult:
    """Hand the tier of live logs over to the broker on their log directories, which finds the segments from then on.

    Args:
        paths: the log directories of the broker, and of all brokers with replicas of `__remote_log_metadata`.
            Nothing else may use them meanwhile.

    Options:
        topics: Only topics with this name, or matching this glob.
        partitions: Only partitions with this number (3) or name (orders-3), or matching this glob.
        tier: Where the closed segments of tiered topics are: the folder of LocalTieredStorage, or the bucket and
            key prefix of Aiven's plugin. Default: the tier in --server-properties, if it can be read from here.
        tier_keys: A private key (PEM) for encrypted segments.
        metadata: The directory that contains __cluster_metadata-0. Default: one of the given paths.
        single_copy: I confirm that __remote_log_metadata has no other replica, even if no metadata log has their
            number.
        no_broker_elsewhere: I confirm that no broker on another machine uses this network disk.
        dry_run: Make all checks, but change nothing; show what would be handed over.

    Raises:
        NotFoundError: there is nothing at a path, or no such partition has a manifest in the tier.
        LockedError: a broker or another program holds one of the directories.
        RequestError: a broker would not read the same log; a replica of the metadata is missing, or replicas differ; a
            directory was not shut down cleanly.
        StoreError: the tier failed; call it again.
    """

def adopt_tier(
    *paths: AnyPath,
    topics: Sequence[str] = (),
    partitions: Sequence[str] = (),
    tier: AnyPath | None = None,
    tier_keys: Sequence[AnyPath] = (),
    metadata: AnyPath | None = None,
    single_copy: bool = False,
    no_broker_elsewhere: bool = False,
    dry_run: bool = False,
) -> HandOverResult:
    """Take the tier of a stopped broker's topics over for live logs on its log directories.

    Args:
        paths: the log directories of the broker, and of all brokers with replicas of `__remote_log_metadata`.
            Nothing else may use them meanwhile.

    Options:
        topics: Only topics with this name, or matching this glob.
        partitions: Only partitions with this number (3) or name (orders-3), or matching this glob.
        tier: Where the closed segments of tiered topics are: the folder of LocalTieredStorage, or the bucket and
            key prefix of Aiven's plugin. Default: the tier in --server-properties, if it can be read from here.
        tier_keys: A private key (PEM) for encrypted segments.
        metadata: The directory that contains __cluster_metadata-0. Default: one of the given paths.
        single_copy: I confirm that __remote_log_metadata has no other replica, even if no metadata log has their
            number.
        no_broker_elsewhere: I confirm that no broker on another machine uses this network disk.
        dry_run: Make all checks, but change nothing; show what would be handed over.

    Raises:
        NotFoundError: there is nothing at a path, or no such partition has a segment in the tier.
        LockedError: a broker or another program holds one of the directories.
        RequestError: a live log cannot have the tier; a replica of the metadata is missing, or replicas differ; a
            directory was not shut down cleanly.
        StoreError: the tier failed; call it again.
    """

def abort_transaction(
    *paths: AnyPath,
    topic: str,
    producer_id: int,
    fs: LocalFileSystem | None = None,
    partition: int | None = None,
    metadata: AnyPath | None = None,
    overrides: Sequence[str] = (),
    server_properties: AnyPath | None = None,
    single_copy: bool = False,
    no_broker_elsewhere: bool = False,
    yes: bool = False,
) -> AbortResult:
    """Abort a hanging transaction in the logs of stopped brokers; without `yes`, only show the changes.

    Args:
        paths: log directories of all brokers with replicas of the partition, or with `__transaction_state`.
        topic: the topic of the partitions.
        producer_id: the producer of the transaction.
        fs: the file system; default: this machine's.

    Options:
        partition: Only in this partition. Default: in all partitions with an open transaction of the producer.
        metadata: The directory that contains __cluster_metadata-0. Default: one of the given paths.
        overrides: Set a config, such as transaction.state.log.num.partitions=50 where no metadata log has the
            count.
        server_properties: The broker's server.properties file, for configs that topics do not set.
        single_copy: I confirm that there is no other replica, even if the metadata lists some, or without metadata.
        no_broker_elsewhere: I confirm that no broker on another machine uses this network disk.
        yes: Make the changes. Without this, they are only shown.

    Raises:
        NotFoundError: there is nothing at a path, or no such partition.
        LockedError: a broker or another program holds one of the directories.
        RequestError: the transaction does not hang, or that is not certain; a replica is missing, or replicas differ;
            a directory was not shut down cleanly.
        DataError: a log is damaged, or torn at its end.
    """

def verify(
    before: AnyPath,
    after: AnyPath,
    *,
    spark: SparkSession | None = None,
    on_start: Callable[[str, int], None] | None = None,
    on_progress: OnProgress | None = None,
    fs: Store | None = None,
    topics: Sequence[str] = (),
    partitions: Sequence[str] = (),
    overrides: Sequence[str] = (),
    server_properties: AnyPath | None = None,
    metadata: AnyPath | None = None,
    tier: AnyPath | None = None,
    tier_keys: Sequence[AnyPath] = (),
    now_ms: int | None = None,
    high_watermark: int | Literal["end"] | None = None,
    retention: bool = False,
    engine: str | None = None,
    master: str = "local[*,4]",
    rate: int | None = None,
    archive: AnyPath | None = None,
    task_timeout: int = 1800,
) -> VerifyResult:
    """Prove that a clean may turn one state of log directories into another.

    The configs are those of the state before. They decide which partitions may have been cleaned; where a topic's
    policy is unknown, they all may.

    Args:
        before: a log directory, a folder of several, or a partition directory, as it was; it is only read.
        after: the same after the clean; it is only read.
        spark: a session to use, which is left running; default: a new one.
        on_start: called with a description of what will be compared, and the number of bytes that will be read.
        on_progress: called with the number of bytes read so far.
        fs: the file system; default: this machine's.

    Options:
        topics: Only topics with this name, or matching this glob.
        partitions: Only partitions with this number (3) or name (orders-3), or matching this glob.
        overrides: Set a topic config: KEY=VALUE, or TOPIC:KEY=VALUE for one topic. Overrides all other sources.
        server_properties: The broker's server.properties file, for configs that topics do not set.
        metadata: The directory that contains __cluster_metadata-0. Default: one of the given paths.
        tier: Where the closed segments of tiered topics are: the folder of LocalTieredStorage, or the bucket and
            key prefix of Aiven's plugin. Default: the tier in --server-properties, if it can be read from here.
        tier_keys: A private key (PEM) for encrypted segments.
        now_ms: Judge delete horizons as of this time (ms since 1970). Default: now.
        high_watermark: The high watermark before the clean. Default: its checkpoint, else the end of the log.
        retention: Allow log start offsets to increase, as by retention or deleted records.
        engine: What runs the tasks: spark, or here, which is a pool of processes of this machine, without Java.
            Default: spark if it is installed, else here.
        master: Spark master URL of a new session. Default: this machine.
        rate: Limit reads and writes of all tasks together to this many bytes per second. Default: no limit.
        archive: Python environment for the executors of a cluster, made by `cordwood pack`. Default: the executors
            have their own.
        task_timeout: Give up if no task has made progress for this many seconds, as when a disk hangs. Default:
            1800.

    Raises:
        NotFoundError: there is nothing at a path, or no partition was selected.
        RequestError: a path is a file; the directories belong to different brokers; or Spark does not start.
    """

def compare(
    *paths: AnyPath,
    spark: SparkSession | None = None,
    on_start: Callable[[str, int], None] | None = None,
    on_progress: OnProgress | None = None,
    fs: Store | None = None,
    topics: Sequence[str] = (),
    partitions: Sequence[str] = (),
    overrides: Sequence[str] = (),
    server_properties: AnyPath | None = None,
    metadata: AnyPath | None = None,
    tier: AnyPath | None = None,
    tier_keys: Sequence[AnyPath] = (),
    brokers: Sequence[str] = (),
    sample: float = 1.0,
    engine: str | None = None,
    master: str = "local[*,4]",
    rate: int | None = None,
    archive: AnyPath | None = None,
    task_timeout: int = 1800,
) -> CompareResult:
    """Compare the replicas of each partition in the directories of several brokers.

    Each replica is compared with the newest: the replica with the newest last leader epoch, then the highest end. The
    directories are only read.

    Args:
        paths: log directories of two or more brokers, folders of several, or partition directories.
        spark: a session to use, which is left running; default: a new one.
        on_start: called with a description of the comparison, and the number of bytes that it will read.
        on_progress: called with the number of bytes read so far.
        fs: the file system; default: this machine's.

    Options:
        topics: Only topics with this name, or matching this glob.
        partitions: Only partitions with this number (3) or name (orders-3), or matching this glob.
        overrides: Set a topic config: KEY=VALUE, or TOPIC:KEY=VALUE for one topic. Overrides all other sources.
        server_properties: The broker's server.properties file, for configs that topics do not set.
        metadata: The directory that contains __cluster_metadata-0. Default: one of the given paths.
        tier: Where the closed segments of tiered topics are: the folder of LocalTieredStorage, or the bucket and
            key prefix of Aiven's plugin. Default: the tier in --server-properties, if it can be read from here.
        tier_keys: A private key (PEM) for encrypted segments.
        brokers: Also this log directory, of the broker with this name (its node.id, if it is known): for
            directories without meta.properties.
        sample: Compare the values of this share of the keys, chosen anew in each run. All batches are compared.
            Default: 1, all keys.
        engine: What runs the tasks: spark, or here, which is a pool of processes of this machine, without Java.
            Default: spark if it is installed, else here.
        master: Spark master URL of a new session. Default: this machine.
        rate: Limit reads and writes of all tasks together to this many bytes per second. Default: no limit.
        archive: Python environment for the executors of a cluster, made by `cordwood pack`. Default: the executors
            have their own.
        task_timeout: Give up if no task has made progress for this many seconds, as when a disk hangs. Default:
            1800.

    Raises:
        NotFoundError: there is nothing at a path, no partition was selected, or none has two replicas.
        RequestError: a path is a file; the directories belong to different clusters; or Spark does not start.
    """

def simulate(
    *,
    on_progress: Callable[[float], None] | None = None,
    rate: str = "",
    record_size: int = 1024,
    keys: int | None = None,
    skew: float = 0.0,
    preload: bool = False,
    tombstones: float = 0.0,
    transactions: int | None = None,
    aborted: float = 0.0,
    batch_records: int | None = None,
    partitions: int = 1,
    overrides: Sequence[str] = (),
    against: Sequence[str] = (),
    server_properties: AnyPath | None = None,
    days: float = 30.0,
    scale: float | None = None,
    seed: int = 7,
) -> SimulationResult:
    """Predict the disk that a topic will take, under one set of configs, or compare two.

    Runs the live log with its retention and its cleaner in memory, on a clock of its own, on a part of the workload.

    Args:
        on_progress: called with the part that is done, up to 1.

    Options:
        rate: Write rate: records per second (500, 90/min, 2000/day), or bytes if it has a unit (512k, 2m/s,
            40g/day).
        record_size: Size of a record in the log, with its key, after compression if any. Default: 1024.
        keys: Number of distinct keys. Default: each record has a new key, and a tombstone deletes the oldest.
        skew: Exponent of the Zipf distribution of updates over keys. 1: few keys get most updates. Default: 0, all
            keys get as many.
        preload: Start with one record per key.
        tombstones: Share of the records that are tombstones, such as 5% or 0.05. Default: none.
        transactions: Records per transaction and partition. Default: no transactions.
        aborted: Share of the transactions that are aborted. Default: none.
        batch_records: Records per batch. Default: the records of 5 ms (linger.ms), at most 16 KiB (batch.size).
        partitions: Number of partitions, which share rate and keys evenly. Default: 1.
        overrides: Set a config of the topic or of the broker: KEY=VALUE.
        against: Compare with a second set of configs, which has this config in addition.
        server_properties: The broker's server.properties file, for configs that --config does not set.
        days: How long to simulate. Default: 30.
        scale: Divide rate, keys and segments by this, and multiply the results by it. Default: chosen so that the
            simulation takes some seconds.
        seed: Seed for random choices. Default: 7.

    Raises:
        RequestError: no rate; a value that cannot be; or more segments than can be simulated.
        ConfigError: Kafka would not accept a config.
        NotFoundError: there is no such server.properties.
    """

def explain(
    *paths: AnyPath,
    on_progress: Callable[[str, float], None] | None = None,
    fs: Store | None = None,
    topics: Sequence[str] = (),
    partitions: Sequence[str] = (),
    overrides: Sequence[str] = (),
    server_properties: AnyPath | None = None,
    metadata: AnyPath | None = None,
    tier: AnyPath | None = None,
    tier_keys: Sequence[AnyPath] = (),
    against: Sequence[str] = (),
    days: float = 28.0,
    now_ms: int | None = None,
    scale: float | None = None,
    seed: int = 7,
    brokers: Sequence[str] = (),
    replica: str | None = None,
) -> ExplainResult:
    """Predict the effect of other configs on a topic's log: at once, and if its last weeks happened under them.

    The log's records are replayed into a live log in memory, with retention and a cleaner: under the log's own configs,
    and under each other set. Of several partitions the largest is replayed. Nothing is changed.

    Args:
        paths: log directories of one or more brokers, or partition directories. Of several replicas of a partition,
            the newest is replayed.
        on_progress: called with a description of the step, and the finished part of it, up to 1.
        fs: the file system; default: that of this machine, or the object store of the paths.

    Options:
        topics: Only topics with this name, or matching this glob.
        partitions: Only partitions with this number (3) or name (orders-3), or matching this glob.
        overrides: Set a topic config: KEY=VALUE, or TOPIC:KEY=VALUE for one topic. Overrides all other sources.
        server_properties: The broker's server.properties file, for configs that topics do not set.
        metadata: The directory that contains __cluster_metadata-0. Default: one of the given paths.
        tier: Where the closed segments of tiered topics are: the folder of LocalTieredStorage, or the bucket and
            key prefix of Aiven's plugin. Default: the tier in --server-properties, if it can be read from here.
        tier_keys: A private key (PEM) for encrypted segments.
        against: Compare with a further set of configs, which has this config in addition.
        days: Replay this many days, up to the log's last record. Default: 28.
        now_ms: Time (ms since 1970) of the immediate effects. Default: now.
        scale: Replay the records of one key in FACTOR, and multiply the results by FACTOR; 1: of all keys. Default:
            chosen so that the replay takes some seconds.
        seed: Seed for random choices. Default: 7.
        brokers: Also this log directory, of the broker with this name (its node.id, if it is known): for
            directories without meta.properties.
        replica: Read the replicas of the broker with this name. Default: the newest replica of each partition, with
            the newest leader epoch, then the highest end.

    Raises:
        NotFoundError: there is nothing at a path, or no such partition.
        RequestError: several topics; no records; a value that cannot be; or more segments than can be replayed.
        ConfigError: Kafka would not accept a config.
    """

def latest_table(
    spark: SparkSession,
    *paths: AnyPath,
    fs: Store | None = None,
    topic: str | None = None,
    as_of: int | str | Mapping[int, int] | None = None,
    since: AnyPath | Mapping[int, int] | None = None,
    deletes: bool = False,
    key: str = "utf8",
    value: str = "utf8",
    undecodable: Literal["fail", "null"] = "fail",
    high_watermark: int | Literal["end"] | None = None,
    metadata: AnyPath | None = None,
    tier: AnyPath | None = None,
    tier_keys: Sequence[AnyPath] = (),
    work: AnyPath | None = None,
    index_dir: AnyPath | None = None,
    brokers: Sequence[str] = (),
    replica: str | None = None,
    heal: bool = False,
) -> DataFrame:
    """Return the last committed value of each key of a topic, as a Spark DataFrame.

    Many tasks read the logs twice: now for the keys, and for the values when the DataFrame is used. Their memory does
    not grow with the logs or the number of keys. The result of the first reading is kept in files until the session
    ends. A key that is in several partitions has a row for each.

    Columns: key and value, as their decoders give them; partition, offset and timestamp of the record that counts;
    `deleted`, with deletes or changes only; `undecodable`, where what cannot be decoded is null.

    Args:
        spark: the session.
        paths: log directories of one or more brokers, folders of several, or partition directories.
        fs: the file system; default: that of the machine that a task runs on.

    Options:
        topic: The topic. Default: the only topic in the directories.
        as_of: The table as of this point: an offset, which is not included; one per partition, as 0:120,1:95; or a
            time like 2026-11-21T09:25:45Z, up to the first record at or after it. Default: the last stable offset.
        since: Only the changes since an earlier table: the folder that it was written to.
        deletes: Also deleted keys, with a column `deleted`. Changes always have them.
        key: The type of keys: utf8, json, bytes, hex, short, int, long, float, double, uuid; or avro:DIR,
            protobuf:DIR, jsonschema:DIR with schemas from a folder. Default: utf8.
        value: The type of values; the same choice. Default: utf8.
        undecodable: For a key or value that cannot be decoded: fail, with its place; or null, with a column
            `undecodable`. Default: fail.
        high_watermark: All replicas have the log up to this offset (end: all of it); later records do not count.
            Default: its checkpoint, or the end without other replicas.
        metadata: The directory that contains __cluster_metadata-0. Default: one of the given paths.
        tier: Where the closed segments of tiered topics are: the folder of LocalTieredStorage, or the bucket and
            key prefix of Aiven's plugin. Default: the tier in --server-properties, if it can be read from here.
        tier_keys: A private key (PEM) for encrypted segments.
        work: Folder for files that tasks exchange; all executors must see it. It may be a URL. Default: the folder
            for temporary files.
        index_dir: Folder for the key indexes of DIR, with a folder for each partition. Default: in each partition.
        brokers: Also this log directory, of the broker with this name (its node.id, if it is known): for
            directories without meta.properties.
        replica: Read the replicas of the broker with this name. Default: the newest replica of each partition, with
            the newest leader epoch, then the highest end.
        heal: Read damaged batches from another replica that has the same bytes there, and count them. Without,
            damage is an error.

    Raises:
        NotFoundError: there is nothing at a path, or no such topic.
        RequestError: the logs do not reach to this point, or no longer back to the earlier table; there is no such
            decoder, or its library is missing.
        DataError: headers are damaged. What is found damaged later, and what cannot be decoded, fails the job that uses
            the DataFrame.
    """

def table_offsets(
    *paths: AnyPath,
    fs: Store | None = None,
    topic: str | None = None,
    as_of: int | str | Mapping[int, int] | None = None,
    since: AnyPath | Mapping[int, int] | None = None,
    deletes: bool = False,
    key: str = "utf8",
    value: str = "utf8",
    undecodable: Literal["fail", "null"] = "fail",
    high_watermark: int | Literal["end"] | None = None,
    metadata: AnyPath | None = None,
    tier: AnyPath | None = None,
    tier_keys: Sequence[AnyPath] = (),
    work: AnyPath | None = None,
    index_dir: AnyPath | None = None,
    brokers: Sequence[str] = (),
    replica: str | None = None,
    heal: bool = False,
) -> dict[int, int]:
    """Return the end offset of a table by partition; the offset itself is not included.

    Pass the offsets to `latest_table` as `as_of`; later, as `since` they select the changes after them.

    Args:
        paths: log directories of one or more brokers, folders of several, or partition directories.
        fs: the file system; default: this machine's.

    Options:
        topic: The topic. Default: the only topic in the directories.
        as_of: The table as of this point: an offset, which is not included; one per partition, as 0:120,1:95; or a
            time like 2026-11-21T09:25:45Z, up to the first record at or after it. Default: the last stable offset.
        since: Only the changes since an earlier table: the folder that it was written to.
        deletes: Also deleted keys, with a column `deleted`. Changes always have them.
        key: The type of keys: utf8, json, bytes, hex, short, int, long, float, double, uuid; or avro:DIR,
            protobuf:DIR, jsonschema:DIR with schemas from a folder. Default: utf8.
        value: The type of values; the same choice. Default: utf8.
        undecodable: For a key or value that cannot be decoded: fail, with its place; or null, with a column
            `undecodable`. Default: fail.
        high_watermark: All replicas have the log up to this offset (end: all of it); later records do not count.
            Default: its checkpoint, or the end without other replicas.
        metadata: The directory that contains __cluster_metadata-0. Default: one of the given paths.
        tier: Where the closed segments of tiered topics are: the folder of LocalTieredStorage, or the bucket and
            key prefix of Aiven's plugin. Default: the tier in --server-properties, if it can be read from here.
        tier_keys: A private key (PEM) for encrypted segments.
        work: Folder for files that tasks exchange; all executors must see it. It may be a URL. Default: the folder
            for temporary files.
        index_dir: Folder for the key indexes of DIR, with a folder for each partition. Default: in each partition.
        brokers: Also this log directory, of the broker with this name (its node.id, if it is known): for
            directories without meta.properties.
        replica: Read the replicas of the broker with this name. Default: the newest replica of each partition, with
            the newest leader epoch, then the highest end.
        heal: Read damaged batches from another replica that has the same bytes there, and count them. Without,
            damage is an error.

    Raises:
        NotFoundError, RequestError, DataError: see `latest_table`.
    """

def write_table(
    *paths: AnyPath,
    output: AnyPath,
    spark: SparkSession | None = None,
    on_start: Callable[[str, int], None] | None = None,
    on_progress: OnProgress | None = None,
    fs: TargetStore | None = None,
    topic: str | None = None,
    as_of: int | str | Mapping[int, int] | None = None,
    since: AnyPath | Mapping[int, int] | None = None,
    deletes: bool = False,
    key: str = "utf8",
    value: str = "utf8",
    undecodable: Literal["fail", "null"] = "fail",
    high_watermark: int | Literal["end"] | None = None,
    metadata: AnyPath | None = None,
    tier: AnyPath | None = None,
    tier_keys: Sequence[AnyPath] = (),
    work: AnyPath | None = None,
    index_dir: AnyPath | None = None,
    brokers: Sequence[str] = (),
    replica: str | None = None,
    heal: bool = False,
    format: str = "parquet",
    writer: Sequence[str] = (),
    engine: str | None = None,
    master: str = "local[*,4]",
) -> TableResult:
    """Write the last committed value of each key of a topic to files, or what changed since an earlier table.

    Where the table ends is kept beside the files, in `_cordwood.json`, which is written last: without it the table is
    not whole. After an error nothing is left.

    Args:
        paths: log directories of one or more brokers, folders of several, or partition directories.
        output: the new folder.
        spark: a session to use, which is left running; default: a new one.
        on_start: called with what is done, and the number of bytes that will be read.
        on_progress: called with the number of bytes read so far.
        fs: the file system; default: this machine's.

    Options:
        topic: The topic. Default: the only topic in the directories.
        as_of: The table as of this point: an offset, which is not included; one per partition, as 0:120,1:95; or a
            time like 2026-11-21T09:25:45Z, up to the first record at or after it. Default: the last stable offset.
        since: Only the changes since an earlier table: the folder that it was written to.
        deletes: Also deleted keys, with a column `deleted`. Changes always have them.
        key: The type of keys: utf8, json, bytes, hex, short, int, long, float, double, uuid; or avro:DIR,
            protobuf:DIR, jsonschema:DIR with schemas from a folder. Default: utf8.
        value: The type of values; the same choice. Default: utf8.
        undecodable: For a key or value that cannot be decoded: fail, with its place; or null, with a column
            `undecodable`. Default: fail.
        high_watermark: All replicas have the log up to this offset (end: all of it); later records do not count.
            Default: its checkpoint, or the end without other replicas.
        metadata: The directory that contains __cluster_metadata-0. Default: one of the given paths.
        tier: Where the closed segments of tiered topics are: the folder of LocalTieredStorage, or the bucket and
            key prefix of Aiven's plugin. Default: the tier in --server-properties, if it can be read from here.
        tier_keys: A private key (PEM) for encrypted segments.
        work: Folder for files that tasks exchange; all executors must see it. It may be a URL. Default: the folder
            for temporary files.
        index_dir: Folder for the key indexes of DIR, with a folder for each partition. Default: in each partition.
        brokers: Also this log directory, of the broker with this name (its node.id, if it is known): for
            directories without meta.properties.
        replica: Read the replicas of the broker with this name. Default: the newest replica of each partition, with
            the newest leader epoch, then the highest end.
        heal: Read damaged batches from another replica that has the same bytes there, and count them. Without,
            damage is an error.
        format: The format of the files: parquet, csv, json, orc, or another format of Spark. Default: parquet.
        writer: An option of Spark's writer of this format, such as header=true for csv.
        engine: What runs the tasks: spark, or here, which is a pool of processes of this machine, without Java.
            Default: spark if it is installed, else here.
        master: Spark master URL of a new session. Default: this machine.

    Raises:
        NotFoundError: there is nothing at a path, or no such topic.
        RequestError: the output is there already; see also `latest_table`.
        DataError: a log is damaged, or something cannot be decoded.
    """
