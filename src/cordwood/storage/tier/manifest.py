"""The manifest of a live log's tier: which segments the log has there, and which writer owns it.

Each change of the tier is a new file with the next number, its generation, in the partition's folder of
`storage.tier.aiven`'s layout. The file with the largest number counts:

    orders-tqTXryP4TGyVbT77P-TwlA/0/.cordwood-tier/00000000000000000041.json
    topic, topic id             / partition       / generation, from 1 on

A manifest is whole, or it has the changes since the last whole one, which is its base. So opening a log reads at most
two files. Version 1, in JSON:

    version             1
    writer              the writer that owns the log
      epoch             number of the claim: each writer that opens the log has a larger one
      run               random text, another one for each run of a program
      host              name of its machine, for messages
    base                generation that `added` and `removed` change, which is whole; null in a whole manifest
    log_start_offset    first offset of the log
    local_floor         local segments below this offset are leftovers; the tier has the log up to here
    cleaner_checkpoint  end of the cleaned part of the log; null before the first clean
    handed_over         true once a broker owns the tier; then no segment is named; absent otherwise
    added               segments, by start offset; in a whole manifest all of them
      id                of the segment, as Kafka prints ids
      start, end        its first and its last offset
      size              of its `.log`, in bytes
      crc32c            of its `.log`; null for a segment that a broker copied
      indexes           size of its index, timeindex, txnindex and snapshot, in bytes; without those that it lacks
      max_timestamp     largest timestamp of its records, in ms
      event_time        when it was copied, in ms
      broker            node id of the program that copied it; -1 without one
      epochs            leader epochs within it: offset by epoch
      aborted           whether it has a transaction index
      custom_metadata   bytes that a broker's storage plugin noted for the segment, in base64; absent without them
    removed             ids of segments of the base that the log no longer has
    gone                segments with objects that are still to be deleted: the fields of `added` without `crc32c` and
                        `indexes`, or `id` alone for a segment of the base; and
      since_ms          when they left the log, in ms

A manifest is not trusted: every number and name in it is checked before it is used.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cordwood.common.errors import CorruptFileError
from cordwood.common.types import NONE
from cordwood.storage.formats.filenames import FileKind, parse_tier_manifest
from cordwood.storage.formats.leader_epochs import EpochEntry
from cordwood.storage.log.files import TIER_MANIFEST_BYTES_MAX
from cordwood.storage.log.segment import MAX_OFFSET
from cordwood.storage.tier.json_fields import Fields
from cordwood.storage.tier.packed import EPOCHS_MAX, SIZED, PackedSegments, TierSegment
from cordwood.storage.tier.remote_log import Answer
from cordwood.storage.tier.segments import CopyState, RemoteSegment, TopicIdPartition

_VERSION = 1
_INT32_MAX, _UINT32_MAX = (1 << 31) - 1, (1 << 32) - 1
#: Maximum length of a writer's run and host, in characters.
_TEXT_MAX = 255
#: A manifest is whole if more than this share of its segments changed since the last whole one.
_CHANGED_MAX = 1 / 4


@dataclass(frozen=True, slots=True)
class Writer:
    """A program that owns the tier of a log.

    Attributes:
        epoch: number of the claim, from 1 on; 0 in a state without a writer.
        run: random text of one run.
        host: the machine, for messages.
    """

    epoch: int
    run: str
    host: str


@dataclass(frozen=True, slots=True)
class GoneSegment:
    """A segment that left the log; its objects are still to be deleted.

    Attributes:
        segment: in state `COPY_FINISHED`.
        since_ms: time of the commit that removed it, by the writer's clock.
    """

    segment: RemoteSegment
    since_ms: int


@dataclass(frozen=True, slots=True)
class TierState:
    """The state of a log's tier in one generation of its manifest.

    Attributes:
        generation: number of the manifest; 0 before the first.
        local_floor: first offset that must be read from the disk; local segments below it are leftovers.
        cleaner_checkpoint: end of the cleaned part of the log; None before the first clean.
        segments: by start offset; they do not overlap. Packed, whatever sequence is given.
        gone: segments whose objects are still to be deleted.
        handed_over: a broker owns the tier now; see `storage.tier.handover`.
    """

    partition: TopicIdPartition
    generation: int
    writer: Writer
    log_start_offset: int
    local_floor: int
    cleaner_checkpoint: int | None
    segments: Sequence[TierSegment]
    gone: tuple[GoneSegment, ...]
    handed_over: bool = False

    def __post_init__(self) -> None:
        """Pack the segments."""
        if not isinstance(self.segments, PackedSegments):
            object.__setattr__(self, "segments", PackedSegments.of(self.partition, self.segments))

    @property
    def packed(self) -> PackedSegments:
        """The segments, with sums over all of them."""
        assert isinstance(self.segments, PackedSegments), "they were packed"
        return self.segments

    @property
    def copied_end(self) -> int:
        """The tier has the log up to this offset: the one after the last segment, unless a clean left nothing there."""
        end = self.segments[-1].segment.end_offset + 1 if self.segments else self.log_start_offset
        return max(end, self.local_floor)


def answers_of(state: TierState, start: int, end: int) -> list[Answer]:
    """Return the segments that make up the log from one offset up to another, which is not included."""
    found = []
    for segment in (one.segment for one in state.segments):
        first, last = max(segment.start_offset, start), min(segment.end_offset, end - 1)
        if first <= last:
            found.append(Answer(segment, first, last))
    return found


def lineage_of(state: TierState) -> list[EpochEntry]:
    """Return the leader epochs of the log up to the end of its last segment, as far as segments have them."""
    found: list[EpochEntry] = []
    for segment in (one.segment for one in state.segments):
        found += [entry for entry in segment.epochs if not found or entry.epoch > found[-1].epoch]
    return found


def empty_state(partition: TopicIdPartition) -> TierState:
    """Return the state of a log before its first manifest."""
    return TierState(partition, 0, Writer(0, "", ""), 0, 0, None, (), ())


# ---- encoding --------------------------------------------------------------------------------------------------------


def is_whole(state: TierState, base: TierState | None) -> bool:
    """Return whether a manifest is encoded whole, and so may be the base of later ones."""
    if base is None:
        return True
    added, removed = state.packed.changes_since(base.packed)
    return len(added) + len(removed) > _CHANGED_MAX * len(state.segments)


def encode(state: TierState, base: TierState | None) -> bytes:
    """Encode a state, whole or as its changes since the last whole manifest.

    Args:
        base: the state of the last whole manifest; None without one.
    """
    _assert_consistent(state)
    if is_whole(state, base):
        base = None
    added, removed = state.packed.changes_since((base or empty_state(state.partition)).packed)
    known = _known(base) if state.gone else {}
    content = {
        "version": _VERSION,
        "writer": {"epoch": state.writer.epoch, "run": state.writer.run, "host": state.writer.host},
        "base": None if base is None else base.generation,
        "log_start_offset": state.log_start_offset,
        "local_floor": state.local_floor,
        "cleaner_checkpoint": state.cleaner_checkpoint,
        "added": [_added_fields(one) for one in added],
        "removed": removed,
        "gone": [{**_gone_fields(gone.segment, known), "since_ms": gone.since_ms} for gone in state.gone],
    } | ({"handed_over": True} if state.handed_over else {})
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()


def _added_fields(one: TierSegment) -> dict[str, Any]:
    sizes = {kind.lstrip("."): size for kind, size in one.sizes.items() if kind is not FileKind.LOG}
    return {**_segment_fields(one.segment), "crc32c": one.crc32c, "indexes": sizes}


def _known(base: TierState | None) -> dict[str, RemoteSegment]:
    """Return the segments that a manifest may name by their id alone."""
    if base is None:
        return {}
    segments = [*(one.segment for one in base.segments), *(one.segment for one in base.gone)]
    return {segment.id: segment for segment in segments}


def _segment_fields(segment: RemoteSegment) -> dict[str, Any]:
    custom = segment.custom_metadata
    return {
        "id": segment.id,
        "start": segment.start_offset,
        "end": segment.end_offset,
        "size": segment.size_bytes,
        "max_timestamp": segment.max_timestamp_ms,
        "event_time": segment.event_time_ms,
        "broker": segment.broker,
        "epochs": {str(entry.epoch): entry.start_offset for entry in segment.epochs},
        "aborted": not segment.transaction_index_empty,
    } | ({} if custom is None else {"custom_metadata": base64.b64encode(custom).decode()})


def _gone_fields(segment: RemoteSegment, known: Mapping[str, RemoteSegment]) -> dict[str, Any]:
    return {"id": segment.id} if known.get(segment.id) == segment else _segment_fields(segment)


def _assert_consistent(state: TierState) -> None:
    for segment in (one.segment for one in state.gone):
        assert segment.topic_id_partition == state.partition, "a segment of another partition"
        assert segment.state is CopyState.COPY_FINISHED, "a segment whose copy did not finish"
    assert state.packed.overlapping is None, "segments overlap, or are not in order"


# ---- decoding --------------------------------------------------------------------------------------------------------


def decode(data: bytes, path: str, partition: TopicIdPartition, read_base: Callable[[int], TierState]) -> TierState:
    """Decode a manifest.

    Args:
        path: of the file; its name is the generation.
        read_base: returns the state of a smaller generation, which must be whole.

    Raises:
        CorruptFileError: it is not a manifest of version 1, or its values contradict each other.
    """
    changes = decode_changes(data, path, partition)
    generation, number = parse_tier_manifest(path.rpartition("/")[2]), changes.base
    if generation is None:
        raise CorruptFileError("the name of a manifest is 20 digits, the generation from 1 on, and .json", path=path)
    if number is not None and number >= generation:
        raise CorruptFileError(f"the base {number} is not a generation below {generation}", path=path)
    base = None if number is None else read_base(number)
    segments: dict[str, TierSegment] = {} if base is None else {one.segment.id: one for one in base.segments}
    for segment_id in changes.removed:
        if segments.pop(segment_id, None) is None:
            raise CorruptFileError(f"segment {segment_id} is removed, and not in the base {number}", path=path)
    for added in changes.added:
        if added.segment.id in segments:
            raise CorruptFileError(f"segment {added.segment.id} is there twice", path=path)
        segments[added.segment.id] = added
    ordered = PackedSegments.of(partition, sorted(segments.values(), key=lambda one: one.segment.start_offset))
    if (at := ordered.overlapping) is not None:
        overlapping = ordered[at].segment
        what = f"segment {overlapping.id} starts at {overlapping.start_offset}, within the segment before it"
        raise CorruptFileError(what, path=path)
    known, gone = _known(base) if changes.gone else {}, []
    for one in changes.gone:
        segment = one.segment or known.get(one.id)
        if one.id in segments or segment is None:
            fault = "which is in the log" if segment else f"which is not in the base {number}"
            raise CorruptFileError(f"the objects of segment {one.id}, {fault}, are to be deleted", path=path)
        gone.append(GoneSegment(segment, one.since_ms))
    return TierState(
        partition,
        generation,
        changes.writer,
        changes.log_start_offset,
        changes.local_floor,
        changes.cleaner_checkpoint,
        ordered,
        tuple(gone),
        changes.handed_over,
    )


@dataclass(frozen=True, slots=True)
class GoneId:
    """A segment whose objects are to be deleted, as a manifest names it.

    Attributes:
        segment: None for a segment of the base.
    """

    id: str
    segment: RemoteSegment | None
    since_ms: int


@dataclass(frozen=True, slots=True)
class Changes:
    """The content of a manifest's file.

    Attributes:
        base: the generation that it changes; None in a whole manifest.
        removed: ids of segments of the base.
    """

    writer: Writer
    base: int | None
    log_start_offset: int
    local_floor: int
    cleaner_checkpoint: int | None
    added: tuple[TierSegment, ...]
    removed: tuple[str, ...]
    gone: tuple[GoneId, ...]
    handed_over: bool


def decode_changes(data: bytes, path: str, partition: TopicIdPartition) -> Changes:
    """Decode the content of a manifest's file, without its base.

    Raises:
        CorruptFileError: it is not a manifest of version 1.
    """
    fields = _fields(data, path)
    has_base, is_cleaned = (fields.values.get(name) is not None for name in ("base", "cleaner_checkpoint"))
    return Changes(
        _writer(fields),
        fields.integer("base", 1, MAX_OFFSET) if has_base else None,
        log_start_offset=fields.integer("log_start_offset", 0, MAX_OFFSET),
        local_floor=fields.integer("local_floor", 0, MAX_OFFSET),
        cleaner_checkpoint=fields.integer("cleaner_checkpoint", 0, MAX_OFFSET) if is_cleaned else None,
        added=tuple(
            TierSegment(_segment(one, partition), _checksum(one), _index_bytes(one)) for one in fields.objects("added")
        ),
        removed=tuple(fields.ids("removed")),
        gone=tuple(
            GoneId(
                one.id("id"),
                _segment(one, partition) if "start" in one.values else None,
                one.integer("since_ms", -MAX_OFFSET - 1, MAX_OFFSET),
            )
            for one in fields.objects("gone")
        ),
        handed_over=fields.boolean("handed_over"),
    )


def decode_writer(data: bytes, path: str) -> Writer:
    """Return the writer of a manifest, without reading its base.

    Raises:
        CorruptFileError: it is not a manifest of version 1.
    """
    return _writer(_fields(data, path))


def _fields(data: bytes, path: str) -> Fields:
    if len(data) > TIER_MANIFEST_BYTES_MAX:
        raise CorruptFileError(f"the manifest has {len(data)} bytes, more than {TIER_MANIFEST_BYTES_MAX}", path=path)
    fields = Fields.of_file(data, path)
    if type(version := fields.values.get("version")) is not int or version != _VERSION:
        raise fields.refused("version", f"{_VERSION}, the only version that is known,")
    return fields


def _writer(fields: Fields) -> Writer:
    writer = fields.fields("writer")
    for name in ("run", "host"):
        if len(writer.text(name)) > _TEXT_MAX:
            raise writer.refused(name, f"a text of up to {_TEXT_MAX} characters")
    return Writer(writer.integer("epoch", 0, MAX_OFFSET), writer.text("run"), writer.text("host"))


def _checksum(fields: Fields) -> int | None:
    is_unknown = "crc32c" in fields.values and fields.values["crc32c"] is None
    return None if is_unknown else fields.integer("crc32c", 0, _UINT32_MAX)


def _index_bytes(fields: Fields) -> tuple[int, ...]:
    sizes = fields.fields("indexes")
    return tuple(
        sizes.integer(name, 0, _INT32_MAX) if (name := kind.lstrip(".")) in sizes.values else NONE for kind in SIZED
    )


def _segment(fields: Fields, partition: TopicIdPartition) -> RemoteSegment:
    start = fields.integer("start", 0, MAX_OFFSET)
    has_custom = fields.values.get("custom_metadata") is not None
    if len(epochs := fields.epochs("epochs")) > EPOCHS_MAX:
        raise fields.refused("epochs", f"at most {EPOCHS_MAX} leader epochs")
    return RemoteSegment(
        topic=partition.topic,
        topic_id=partition.topic_id,
        partition=partition.partition,
        id=fields.id("id"),
        start_offset=start,
        end_offset=fields.integer("end", start, MAX_OFFSET),
        size_bytes=fields.integer("size", 1, _INT32_MAX),
        max_timestamp_ms=fields.integer("max_timestamp", -MAX_OFFSET - 1, MAX_OFFSET),
        event_time_ms=fields.integer("event_time", -MAX_OFFSET - 1, MAX_OFFSET),
        broker=fields.integer("broker", -_INT32_MAX - 1, _INT32_MAX),
        epochs=epochs,
        custom_metadata=fields.decoded("custom_metadata") if has_custom else None,
        state=CopyState.COPY_FINISHED,
        transaction_index_empty=not fields.boolean("aborted"),
    )
