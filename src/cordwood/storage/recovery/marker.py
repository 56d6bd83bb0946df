"""Append the marker of a transaction to a log without a running broker.

First read the end of the log, with the state that the append needs:

    leader epochs   an appended batch has the last one
    producers       the newest snapshot and the batches after it; a clean shutdown leaves a snapshot at the end
    batches         all batches from the start of an open transaction on, with verified checksums

A reader skips damage. Here any damage is an error: if the damaged batch was a marker, its transaction would look open;
and if the last batch is torn, the next recovery would cut it off together with a batch appended after it.

Then the log is rolled, and a swap replaces the new, empty segment by a segment with the marker. So no file with a batch
is changed, no batch can be torn, and a clean shutdown stays clean. Each step is durable before the next:

    step                                                     a load after a crash at this point
    1  work folder: the segment, and the snapshot after it   ignores the folder
    2  leader-epoch-checkpoint, if the epoch begins here     drops an entry that begins at the log's end
    3  an empty segment at the log's end                     loads it
    4  the producer snapshot after the marker                removes it, as it is beyond the log's end
    5  the segment with the marker, by the steps of a swap   has the log without the marker up to the swap's commit,
                                                             and from then on with it

The order preserves the producer state, which may exist only in the snapshot at the log's end: batches of the producers
may be deleted, and after a clean shutdown a broker that finds no snapshot does not rebuild the state from the log. A
load keeps snapshots at the starts of segments, and of all others only the newest, even if it is beyond the log's end.
So step 3, which makes the log's end the start of a segment, precedes step 4. A load that completes the swap removes the
snapshot at the log's end. So step 4 precedes step 5. The `.txnindex` is part of the swap; without it readers would
take an aborted transaction for a committed one.

Source: Kafka UnifiedLog.append, as the leader of a partition does it for a coordinator.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cordwood.common.config import LONG_MAX
from cordwood.common.errors import CorruptBatchError, NotFoundError, RequestError
from cordwood.common.types import NONE, ControlType
from cordwood.fs.base import OWNER_WRITES, FileInfo, LocalFileSystem
from cordwood.kernels.layout import BATCH_ROW, BatchRows, U8Array, is_control
from cordwood.record import headers
from cordwood.record.batch import Marker
from cordwood.record.columns import BatchWindow, is_valid
from cordwood.storage.changes.copy import Replacement
from cordwood.storage.changes.swap import make_empty_segment, swap_in
from cordwood.storage.formats import leader_epochs, producer_state
from cordwood.storage.formats.filenames import FileKind, Temporary, offset_name
from cordwood.storage.formats.leader_epochs import LeaderEpochs
from cordwood.storage.log.files import chown_like, clear_work_folder, make_work_folder, read_leader_epochs, write_file
from cordwood.storage.log.recovery import Verb
from cordwood.storage.log.segment import Segment, gap_error
from cordwood.storage.log.segment_writer import IndexLimits, SegmentWriter
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Gap
from cordwood.storage.recovery.rebuild import coordinator_epochs
from cordwood.storage.recovery.replay import Producers, newest_snapshot

#: The fields of a batch that are equal on all replicas; `crc` covers all other fields except the leader epoch.
_SAME = ("base_offset", "last_offset", "size_bytes", "leader_epoch", "crc")


@dataclass(frozen=True, slots=True)
class MarkerBatch:
    """The batch of a marker.

    Attributes:
        leader_epoch: NONE if the batch has no leader epoch.
    """

    marker: Marker
    leader_epoch: int
    data: bytes


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The state of a log at its end.

    Attributes:
        end_offset: offset of the next record.
        leader_epoch: the last leader epoch in the checkpoint, or else in the last batch; NONE without any.
        producers: all producers; expired ones are not dropped, because a broker's load does this by its own config.
        last_marker: the last batch, if it is the marker of a transaction.
    """

    log: LogView
    end_offset: int
    leader_epochs: LeaderEpochs
    leader_epoch: int
    producers: Producers
    last_marker: MarkerBatch | None = None


def log_end(log: LogView) -> LogEnd:
    """Determine the state of a log at its end.

    Raises:
        NotFoundError: it has no segment.
        RequestError: the next load would rebuild an index, or empty the log.
        DataError: it is damaged, or torn at its end.
    """
    _check_loaded(log)
    end, epochs = log.next_offset, read_leader_epochs(log.fs, log.path)
    producers, start = newest_snapshot(log, end, now_ms=0, expiration_ms=LONG_MAX)
    for _, window in whole_windows(log, start):
        rows = window.batches[window.batches["last_offset"] >= start]
        producers.replay(rows, coordinator_epochs(window, rows))
    marker, epoch = None, NONE
    for _, window in whole_windows(log, max(0, end - 1)):
        epoch = int(window.batches["leader_epoch"][-1])
        marker = _marker_batch(window)
    latest = epoch if epochs.latest is None else epochs.latest.epoch
    return LogEnd(log, end, epochs, latest, producers, marker)


def _marker_batch(window: BatchWindow) -> MarkerBatch | None:
    """Return the last batch of a window if it is a transaction marker that still has its record; else None."""
    last = window.batches[-1:]
    row, offset, epochs = last[0], int(last["last_offset"][0]), coordinator_epochs(window, last)
    if row["control_type"] not in (ControlType.ABORT, ControlType.COMMIT) or offset not in epochs:
        return None
    producer = int(row["producer_id"]), int(row["producer_epoch"])
    committed = bool(row["control_type"] == ControlType.COMMIT)
    marker = Marker(offset, int(row["max_timestamp"]), *producer, committed, epochs[offset])
    data = b"".join(window.read(int(row["position"]), int(row["size_bytes"])))
    return MarkerBatch(marker, int(row["leader_epoch"]), data)


def _check_loaded(log: LogView) -> None:
    """Raise for a log that the next load would change; an interrupted swap counts as completed."""
    if not log.segments:
        raise NotFoundError(f"{log.path} has no segment")
    for action in log.recovery.actions:
        if action.verb is Verb.REBUILD:
            raise RequestError(f"{log.path}: the next load would {action}. Start its broker and stop it again")
    if log.ends_below_start:
        raise RequestError(
            f"{log.path} ends below its log start offset {log.log_start_offset}, so the next load would empty it"
        )


def whole_windows(log: LogView, start: int) -> Iterator[tuple[Segment, BatchWindow]]:
    """Yield the batches of a log, with verified checksums, from the batch that holds an offset on.

    Raises:
        CorruptBatchError: the log is damaged, or torn at its end.
    """
    for segment, item in log.windows(start_offset=start):
        if isinstance(item, Gap):
            error = gap_error(segment, item)
            raise CorruptBatchError(f"{error.what}; {_HELP.format(log.path)}", path=error.path, position=error.position)
        wrong = np.flatnonzero(~is_valid(item.batches))
        if wrong.size:
            row = item.batches[wrong[0]]
            what = f"a batch whose checksum is wrong; {_HELP.format(log.path)}"
            position, offset = int(row["position"]), int(row["base_offset"])
            raise CorruptBatchError(what, path=segment.path, position=position, offset=offset)
        yield segment, item


_HELP = "nothing is appended behind damage. cordwood check {} lists all of it; a broker's start cuts off a torn end"


@dataclass(frozen=True, slots=True)
class TransactionData:
    """The batches of one open transaction in a log.

    Attributes:
        size_bytes: size of its batches.
        digest: hash of all batches of the log from the transaction's start to the end that was read; equal on replicas
            that have the same batches.
    """

    batches: int
    records: int
    size_bytes: int
    digest: str


def transaction_data(log: LogView, producer_id: int, first_offset: int, end_offset: int) -> TransactionData:
    """Read all batches from the start of a transaction on.

    Args:
        first_offset: first offset of the transaction, or the log start offset if that is higher.
        end_offset: batches from here on do not count.

    Raises:
        CorruptBatchError: a batch is damaged; or a marker of the producer contradicts the snapshot of the log.
    """
    batches = records = size_bytes = 0
    digest = hashlib.blake2b(digest_size=16)
    for segment, window in whole_windows(log, first_offset):
        rows = window.batches[window.batches["base_offset"] < end_offset]
        digest.update(_same_on_replicas(rows))
        own: BatchRows = rows[(rows["producer_id"] == producer_id) & (rows["base_offset"] >= first_offset)]
        control = is_control(own)
        if control.any():
            row = own[control][0]
            raise CorruptBatchError(
                f"a marker of producer {producer_id}, whose transaction is open by the newest producer snapshot: the "
                "snapshot and the log contradict each other, so nothing is appended",
                path=segment.path,
                position=int(row["position"]),
                offset=int(row["base_offset"]),
            )
        batches += own.size
        records += int(np.maximum(own["record_count"], 0).sum())
        size_bytes += int(own["size_bytes"].sum())
    return TransactionData(batches, records, size_bytes, digest.hexdigest())


def _same_on_replicas(rows: BatchRows) -> bytes:
    """Return the fields of batches that are equal on all replicas, whatever their segments and windows."""
    packed = np.empty(rows.size, [(name, rows.dtype[name]) for name in _SAME])
    for name in _SAME:
        packed[name] = rows[name]
    return packed.tobytes()


# ---- the append ------------------------------------------------------------------------------------------------------

#: Folder within the work folder for the new files, until they are renamed.
_FOLDER = "marker"


def append_marker(fs: LocalFileSystem, end: LogEnd, batch: MarkerBatch) -> None:
    """Append a marker to a log; durable on return.

    Args:
        end: end of the log, which no other process has open. The value is out of date afterwards.

    Raises:
        RequestError: an interrupted clean or deletion left files in the log; nothing was changed.
        OSError: the log is unchanged, or the next load completes the append.
    """
    path, like, marker = end.log.path, end.log.segments[-1].files.log, batch.marker
    assert marker.offset == end.end_offset, "a marker is appended at the end"
    clear_work_folder(fs, path)
    folder = f"{make_work_folder(fs, path)}/{_FOLDER}"
    fs.make_directory(folder, mode=0o700)
    try:
        names = _write_segment(fs, folder, end, batch, like)
        _write_leader_epoch(fs, end, batch, like)
        if end.log.segments[-1].base_offset != marker.offset:
            make_empty_segment(fs, path, marker.offset, like)
        snapshot = offset_name(marker.offset + 1, FileKind.PRODUCER_SNAPSHOT)
        fs.rename(f"{folder}/{snapshot}", f"{path}/{snapshot}")
        fs.sync_directory(folder)
        fs.sync_directory(path)
        bases = frozenset({marker.offset})
        swap_in(fs, path, Replacement(folder, names, bases, bases, marker.offset + 1))
    finally:
        clear_work_folder(fs, path)


def _write_segment(
    fs: LocalFileSystem, folder: str, end: LogEnd, batch: MarkerBatch, like: FileInfo
) -> tuple[str, ...]:
    """Write the segment, and the producer snapshot after it; return the names of the segment's files."""
    marker, data = batch.marker, np.frombuffer(batch.data, np.uint8)
    rows = _header(data)
    writer = SegmentWriter(fs, folder, marker.offset, IndexLimits(), mode=like.mode | OWNER_WRITES)
    written = writer.append([data], rows)
    assert written == 1 and writer.next_offset == marker.offset + 1, "it is one batch with one record"
    writer.add_aborted(end.producers.replay(rows, {marker.offset: marker.coordinator_epoch}))
    paths = writer.finish()
    snapshot = f"{folder}/{offset_name(marker.offset + 1, FileKind.PRODUCER_SNAPSHOT)}"
    write_file(fs, snapshot, producer_state.encode_rows(end.producers.rows()))
    chown_like(fs, snapshot, like)
    return tuple(path.rpartition("/")[2] for path in paths)


def _header(data: U8Array) -> BatchRows:
    """Return the header of one batch, BATCH_ROW[1]."""
    rows = np.empty(1, BATCH_ROW)
    count, size_bytes, _ = headers.scan_batches(data, data.size, 0, rows, whole_entries=True)
    assert (count, size_bytes) == (1, data.size), "it was just encoded"
    return rows


def _write_leader_epoch(fs: LocalFileSystem, end: LogEnd, batch: MarkerBatch, like: FileInfo) -> None:
    """Record the leader epoch of the marker if the marker is its first batch, as a broker's append does."""
    if batch.leader_epoch == NONE:
        return
    entries = end.leader_epochs.assigned(batch.leader_epoch, batch.marker.offset).entries
    if entries != end.leader_epochs.entries:
        path = f"{end.log.path}/{FileKind.LEADER_EPOCHS}"
        fs.put(path, leader_epochs.encode(entries), like=like, beside=f"{path}{Temporary.TMP}")
