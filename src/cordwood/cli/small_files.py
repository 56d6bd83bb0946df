"""Decoded entries of the files beside logs, for `dump`: indexes, snapshots, checkpoints, and Cordwood's own files."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from cordwood.common.types import NONE
from cordwood.storage.formats import (
    checkpoints,
    filenames,
    key_index,
    leader_epochs,
    log_configs,
    offset_index,
    producer_state,
    properties,
    quorum_state,
    time_index,
    transaction_index,
)
from cordwood.storage.formats.filenames import KEY_INDEX, TIER_MANIFEST, FileKind
from cordwood.storage.formats.key_index import NO_HORIZON, TAG_BITS, Flag
from cordwood.storage.tier import manifest
from cordwood.storage.tier.segments import TopicIdPartition

#: Kind and fields of each entry. A "rest" has a position, a size and a description.
Entries = Iterator[tuple[str, dict[str, object]]]


def _rest(position: int, size_bytes: int, what: str) -> Entries:
    if size_bytes:
        yield "rest", {"position": position, "size": size_bytes, "what": what}


def _index_rest(data: bytes, entries: int, max_entries: int, entry_bytes: int) -> Entries:
    room = max_entries - entries
    yield from _rest(entries * entry_bytes, room * entry_bytes, f"zeros: room for {room} more entries")
    left = len(data) - max_entries * entry_bytes
    yield from _rest(len(data) - left, left, f"too few bytes for an entry of {entry_bytes}")


def _offset_index(data: bytes, base_offset: int, path: str) -> Entries:
    index = offset_index.decode(data, base_offset)
    for i in range(index.entries):
        yield "offset_index", {"entry": i, "offset": int(index.offsets[i]), "position": int(index.positions[i])}
    yield from _index_rest(data, index.entries, index.max_entries, offset_index.ENTRY.itemsize)


def _time_index(data: bytes, base_offset: int, path: str) -> Entries:
    index = time_index.decode(data, base_offset)
    for i in range(index.entries):
        yield "time_index", {"entry": i, "timestamp": int(index.timestamps[i]), "offset": int(index.offsets[i])}
    yield from _index_rest(data, index.entries, index.max_entries, time_index.ENTRY.itemsize)


def _transaction_index(data: bytes, base_offset: int, path: str) -> Entries:
    index = transaction_index.decode(data, path)
    for i, one in enumerate(index.transactions()):
        yield "aborted_transaction", {"entry": i, "version": int(index.versions[i]), **dataclasses.asdict(one)}
    yield from _index_rest(data, index.entries, index.entries, transaction_index.ENTRY.itemsize)


def _producers(data: bytes, base_offset: int, path: str) -> Entries:
    names = [field.name for field in dataclasses.fields(producer_state.ProducerEntry)]
    for row in producer_state.decode_rows(data, path).tolist():
        yield "producer", dict(zip(names, row, strict=True))


def _leader_epochs(data: bytes, base_offset: int, path: str) -> Entries:
    for one in leader_epochs.decode(data, path):
        yield "leader_epoch", dataclasses.asdict(one)


def _offset_checkpoint(data: bytes, base_offset: int, path: str) -> Entries:
    for name, offset in checkpoints.decode(data, path).items():
        yield "checkpoint", {"topic": name.topic, "partition": name.partition, "offset": offset}


def _partition_metadata(data: bytes, base_offset: int, path: str) -> Entries:
    one = properties.decode_partition_metadata(data, path)
    yield "partition_metadata", {"version": one.version, "topic_id": properties.encode_id(one.topic_id)}


def _meta_properties(data: bytes, base_offset: int, path: str) -> Entries:
    found = properties.decode_properties(data, path)
    for one in found.entries:
        if one.key is not None:
            yield "property", {"key": one.key, "value": one.value}
    properties.meta_properties(found, path)  # raises where a broker would refuse to start


def _log_configs(data: bytes, base_offset: int, path: str) -> Entries:
    found = log_configs.decode(data, path)
    for key, value in {log_configs.WRITTEN: str(found.written_ms), **found.texts}.items():
        yield "property", {"key": key, "value": value}


def _clean_shutdown(data: bytes, base_offset: int, path: str) -> Entries:
    yield "clean_shutdown", {"broker_epoch": properties.decode_clean_shutdown(data)}


def _quorum_state(data: bytes, base_offset: int, path: str) -> Entries:
    one = quorum_state.decode(data, path)
    fields = dataclasses.asdict(one)
    fields["voted_directory_id"] = properties.encode_id(one.voted_directory_id)
    unused = ("cluster_id", "applied_offset", "current_voters") if one.data_version else ("voted_directory_id",)
    yield "quorum_state", {name: value for name, value in fields.items() if name not in unused}


def _key_index(data: bytes, base_offset: int, path: str) -> Entries:
    index = key_index.decode(data, path)
    header = index.header
    yield (
        "key_index",
        {
            "base_offset": header.base_offset,
            "next_offset": header.next_offset,
            "covered_bytes": header.covered_bytes,
            "batches": header.batches,
            "records": header.records,
            "keys": header.entries,
            "delete_horizon_ms": NONE if header.delete_horizon_ms == NO_HORIZON else header.delete_horizon_ms,
            "holds": [str(flag.name).lower() for flag in Flag if header.flags & flag],
        },
    )
    position = 0
    for i, (size, count, crc) in enumerate(zip(index.lengths, index.counts, index.crcs, strict=True)):
        fields = {"entry": i, "position": position, "size": int(size), "count": int(count), "crc": f"{crc:08x}"}
        yield "indexed_batch", fields
        position += int(size)
    digits = -(-(header.bits + TAG_BITS) // 4)
    for bucket in range(1 << header.bits):
        for i in range(int(index.starts[bucket]), int(index.starts[bucket + 1])):
            known = (bucket << TAG_BITS | int(index.tags[i])) << (4 * digits - header.bits - TAG_BITS)
            yield "indexed_key", {"entry": i, "hash": f"{known:0{digits}x}…", "record": int(index.ordinals[i])}


def _tier_manifest(data: bytes, base_offset: int, path: str) -> Entries:
    one = manifest.decode_changes(data, path, TopicIdPartition("", "", NONE))
    writer = {"writer_epoch": one.writer.epoch, "run": one.writer.run, "host": one.writer.host}
    offsets = ("log_start_offset", "local_floor", "cleaner_checkpoint")
    whose = {"handed_over": True} if one.handed_over else {}
    yield "tier_manifest", {"base": one.base, **writer, **{name: getattr(one, name) for name in offsets}, **whose}
    for added in one.added:
        segment = added.segment
        yield (
            "tier_segment",
            {
                "id": segment.id,
                "start_offset": segment.start_offset,
                "end_offset": segment.end_offset,
                "size": segment.size_bytes,
                "crc": None if added.crc32c is None else f"{added.crc32c:08x}",
                "max_timestamp": segment.max_timestamp_ms,
                "event_timestamp": segment.event_time_ms,
                "broker": segment.broker,
                "leader_epochs": [[entry.epoch, entry.start_offset] for entry in segment.epochs],
                "aborted": not segment.transaction_index_empty,
            },
        )
    for segment_id in one.removed:
        yield "removed_tier_segment", {"id": segment_id}
    for gone in one.gone:
        yield "gone_tier_segment", {"id": gone.id, "since_timestamp": gone.since_ms}


IN_LOG_DIRECTORY: dict[str, Callable[[bytes, int, str], Entries]] = {
    **dict.fromkeys(filenames.OFFSET_CHECKPOINTS, _offset_checkpoint),
    filenames.META_PROPERTIES: _meta_properties,
    filenames.CLEAN_SHUTDOWN: _clean_shutdown,
}
#: Readers by a file's whole name, or by the kind that its name implies.
READERS: dict[str, Callable[[bytes, int, str], Entries]] = {
    **IN_LOG_DIRECTORY,
    FileKind.OFFSET_INDEX: _offset_index,
    FileKind.TIME_INDEX: _time_index,
    FileKind.TRANSACTION_INDEX: _transaction_index,
    FileKind.PRODUCER_SNAPSHOT: _producers,
    FileKind.LEADER_EPOCHS: _leader_epochs,
    FileKind.LOG_CONFIGS: _log_configs,
    FileKind.PARTITION_METADATA: _partition_metadata,
    FileKind.QUORUM_STATE: _quorum_state,
    KEY_INDEX: _key_index,
    TIER_MANIFEST: _tier_manifest,
}
