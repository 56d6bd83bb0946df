"""`topics`, `configs`, `brokers`: the contents of a cluster's metadata log as of its end, an offset, or a time."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

import cordwood.commands.report.cluster  # noqa: F401 - so that listings can show themselves
from cordwood.commands.selection import BrokersOptions, ClusterOptions
from cordwood.commands.times import parse_time
from cordwood.common.errors import NotFoundError, RequestError
from cordwood.common.text import time_text
from cordwood.fs.base import Store
from cordwood.fs.by_url import file_system_for
from cordwood.storage.formats.cluster_metadata import ClusterMetadata
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Checks, Gap
from cordwood.storage.node.cluster_view import (
    AsOf,
    BrokersListing,
    ConfigEntry,
    ConfigsListing,
    TopicsListing,
    shown_value,
)
from cordwood.storage.node.node import metadata_log, read_metadata

_OFFSET = re.compile(r"[0-9]{1,19}", re.ASCII)


def topics(paths: Sequence[str], options: ClusterOptions, *, fs: Store | None = None) -> TopicsListing:
    """List the topics of a cluster: partitions, replicas and configs.

    Read from its metadata log and snapshots, as of the end, an offset or a time.

    Args:
        paths: log directories of one broker, or folders of several; one of them holds `__cluster_metadata-0`.

    Raises:
        NotFoundError: there is nothing at a path, no metadata log, or no topic was selected.
        RequestError: the log does not reach back to this offset or time.
    """
    metadata, as_of = _read(paths, options.point.at, options.point.metadata, fs)
    known = [topic for name, topic in metadata.topics.items() if _is_asked_for(name, options.topics)]
    if options.topics and not known:
        raise NotFoundError(f"No topic in {as_of.path} matches {', '.join(options.topics)}")
    configs = {topic.name: _shown(metadata.topic_config(topic.name)) for topic in known}
    return TopicsListing(as_of, tuple(known), configs)


def configs(paths: Sequence[str], options: ClusterOptions, *, fs: Store | None = None) -> ConfigsListing:
    """List the configs that are set in a cluster: of topics, of brokers, and of all brokers.

    Read from its metadata log and snapshots, as of the end, an offset or a time.

    Args:
        paths: log directories of one broker, or folders of several; one of them holds `__cluster_metadata-0`.

    Raises:
        NotFoundError: there is nothing at a path, no metadata log, or no topic was selected.
        RequestError: the log does not reach back to this offset or time.
    """
    metadata, as_of = _read(paths, options.point.at, options.point.metadata, fs)
    return ConfigsListing(as_of, tuple(_entries(metadata, options.topics)))


def brokers(paths: Sequence[str], options: BrokersOptions, *, fs: Store | None = None) -> BrokersListing:
    """List the brokers of a cluster, and its features.

    Read from its metadata log and snapshots, as of the end, an offset or a time.

    Args:
        paths: log directories of one broker, or folders of several; one of them holds `__cluster_metadata-0`.

    Raises:
        NotFoundError: there is nothing at a path, no metadata log, or no topic was selected.
        RequestError: the log does not reach back to this offset or time.
    """
    metadata, as_of = _read(paths, options.point.at, options.point.metadata, fs)
    partitions = [partition for topic in metadata.topics.values() for partition in topic.partitions.values()]
    return BrokersListing(
        as_of,
        tuple(broker for _, broker in sorted(metadata.brokers.items())),
        dict(sorted(metadata.features.items())),
        Counter(partition.leader for partition in partitions),
        Counter(replica for partition in partitions for replica in partition.replicas),
    )


def _is_asked_for(name: str, globs: Sequence[str]) -> bool:
    return not globs or any(fnmatchcase(name, glob) for glob in globs)


def _shown(texts: Mapping[str, str]) -> dict[str, str]:
    return {name: shown_value(name, text) for name, text in sorted(texts.items())}


def _entries(metadata: ClusterMetadata, globs: Sequence[str]) -> Iterator[ConfigEntry]:
    """Yield the configs of the selected topics; without a selection those of brokers too."""
    if not globs:
        for broker, texts in sorted(metadata.broker_configs.items()):
            scope = "broker" if broker else "cluster"
            yield from (ConfigEntry(scope, broker, *pair) for pair in _shown(texts).items())
    for topic, texts in sorted(metadata.topic_configs.items()):
        if _is_asked_for(topic, globs):
            yield from (ConfigEntry("topic", topic, *pair) for pair in _shown(texts).items())


def _read(
    paths: Sequence[str], at: str | None, metadata_path: str | None, fs: Store | None
) -> tuple[ClusterMetadata, AsOf]:
    fs = fs or file_system_for([*paths, metadata_path])
    path, live = metadata_log(fs, paths, metadata_path)
    log = LogView(path, fs=fs, live=live)
    end, last_ms = _point(log, at)
    metadata = read_metadata(fs, path, live=live, end_offset=end)
    if end is not None and metadata.next_offset < end <= log.first_offset:
        raise RequestError(f"{path} begins at offset {log.first_offset}, and has no snapshot of what was at {end}")
    return metadata, AsOf(path, metadata.next_offset, last_ms, metadata.problems)


def _point(log: LogView, at: str | None) -> tuple[int | None, int | None]:
    """Return the end offset of the metadata to read, None for all; and the time of the last record before it, or None.

    Raises:
        RequestError: the log does not reach back to that time.
    """
    end = int(at) if at is not None and _OFFSET.fullmatch(at) else None
    until_ms = None if at is None or end is not None else parse_time(at)
    last_ms: int | None = None
    for _, item in log.windows(checks=Checks.HEADERS):
        if isinstance(item, Gap):
            continue
        for base_offset, time_ms in zip(item.batches["base_offset"], item.batches["max_timestamp"], strict=True):
            if end is not None and base_offset >= end:
                return end, last_ms
            if until_ms is not None and time_ms > until_ms:
                if last_ms is None and log.first_offset > 0:
                    begin = f"begins at offset {log.first_offset}, of {time_text(int(time_ms))} UTC"
                    raise RequestError(f"{log.path} {begin}: it does not reach back to {at}")
                return int(base_offset), last_ms
            last_ms = int(time_ms)
    return end, last_ms
