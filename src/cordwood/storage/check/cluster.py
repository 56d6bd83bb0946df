"""Several brokers of a cluster: the paths of each broker, and whether their metadata logs agree.

Each controller and broker has the metadata log. Below their ends, all copies hold the same batches: a follower appends
the bytes that its leader sends. A log may have different batches in its last leader epochs if its broker led then and
lost its quorum; the broker truncates them. Different batches of the same leader epoch are damage.

Source: Kafka KafkaRaftClient, KafkaMetadataLog.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from cordwood.common.errors import CordwoodError
from cordwood.fs.base import Store
from cordwood.storage.check.findings import Finding, Findings, Kind, Severity
from cordwood.storage.formats import cluster_metadata
from cordwood.storage.log.position import log_position
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Checks, Gap
from cordwood.storage.node.directory import LogDirectory, PathKind, look

#: Offset, last offset, leader epoch and checksum of a batch.
_BATCH = ["base_offset", "last_offset", "leader_epoch", "crc"]


def paths_by_broker(fs: Store, paths: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """Divide paths by the `node.id` of their log directories.

    Paths whose broker is unknown, such as a missing directory, join the paths of the first broker. Without two brokers,
    the paths are returned unchanged.
    """
    found: dict[int, list[str]] = {}
    unknown: list[str] = []
    for path in paths:
        for directory, node_id in _node_ids(fs, path):
            (unknown if node_id is None else found.setdefault(node_id, [])).append(directory)
    if len(found) < 2:
        return {"": paths}
    first, *others = sorted(found)
    return {str(first): [*found[first], *unknown], **{str(node_id): found[node_id] for node_id in others}}


def _node_ids(fs: Store, path: str) -> Iterator[tuple[str, int | None]]:
    try:
        found = look(fs, path)
        for directory in found.directories:
            yield directory, _node_id(fs, directory)
        if not found.directories:
            folder = posixpath.dirname(found.path) or "."
            yield path, _node_id(fs, folder) if found.kind is PathKind.PARTITION else None
    except (CordwoodError, OSError):
        yield path, None


def _node_id(fs: Store, directory: str) -> int | None:
    meta = LogDirectory.open(fs, directory).meta
    return None if meta is None else meta.node_id


def check_metadata_logs(fs: Store, paths: Mapping[str, Sequence[str]]) -> list[Finding]:
    """Compare the metadata log of each broker with the newest one, batch by batch.

    Args:
        paths: paths by broker.
    """
    logs = {broker: log for broker, some in paths.items() if (log := _metadata_log(fs, some)) is not None}
    findings = Findings()
    try:
        newest = max(logs, key=lambda broker: log_position(logs[broker]), default=None)
        if newest is None:
            return []
        batches = _batches(logs[newest])
        for broker, log in logs.items():
            if broker != newest:
                _compare(log, broker, logs[newest], newest, batches, findings)
    except (CordwoodError, OSError):
        pass  # the check of each log reports its damage
    return findings.take()


def _metadata_log(fs: Store, paths: Sequence[str]) -> LogView | None:
    for path in paths:
        folder = f"{path.rstrip('/')}/{cluster_metadata.NAME}"
        if fs.exists(folder):
            directory = LogDirectory.open(fs, path)
            return None if directory.live else LogView(folder, fs=fs)
    return None


def _batches(log: LogView) -> npt.NDArray[np.int64]:
    """Return the batches of a log, int64[batches, 4]: base offset, last offset, leader epoch, checksum."""
    rows = [
        np.stack([item.batches[name].astype(np.int64) for name in _BATCH], axis=1)
        for _, item in log.windows(checks=Checks.HEADERS)
        if not isinstance(item, Gap)
    ]
    return np.concatenate(rows) if rows else np.empty((0, len(_BATCH)), np.int64)


def _compare(
    log: LogView,
    broker: str,
    newest: LogView,
    newest_broker: str,
    batches: npt.NDArray[np.int64],
    findings: Findings,
) -> None:
    own = _batches(log)
    start = max(log.first_offset, newest.first_offset)
    own, other = own[own[:, 0] >= start], batches[batches[:, 0] >= start]
    count = min(len(own), len(other))
    different = np.flatnonzero((own[:count] != other[:count]).any(axis=1))
    at = int(different[0]) if different.size else count
    if at == len(own):
        return
    offset, epoch = int(own[at, 0]), int(own[at, 2])
    those = f"the newest metadata log, of broker {newest_broker}"
    if at < len(other) and epoch == int(other[at, 2]) and offset == int(other[at, 0]):
        what = f"its batch of leader epoch {epoch} differs from that of {those}"
        findings.add(Kind.METADATA_DIFFERS, log.path, what, offset=offset)
        return
    what = f"{len(own) - at} batches from leader epoch {epoch} on are not in {those}"
    meaning = f"broker {broker} truncates them when it starts: they were never committed"
    findings.add(Kind.METADATA_DIFFERS, log.path, what, offset=offset, severity=Severity.RECOVERY, meaning=meaning)
