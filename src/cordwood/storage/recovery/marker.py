"""Append the marker of a transaction to a log without a running broker.

The log is rolled, and a swap replaces the new, empty segment by a segment with the marker. So no file with a batch is
changed, no batch can be torn, and a clean shutdown stays clean. Each step is durable before the next:

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

import numpy as np

from cordwood.common.types import NONE
from cordwood.fs.base import OWNER_WRITES, FileInfo, LocalFileSystem
from cordwood.kernels import scan
from cordwood.kernels.layout import BATCH_ROW, BatchRows, U8Array
from cordwood.storage.changes.copy import Replacement
from cordwood.storage.changes.swap import make_empty_segment, swap_in
from cordwood.storage.formats import leader_epochs, producer_state
from cordwood.storage.formats.filenames import FileKind, Temporary, offset_name
from cordwood.storage.log.files import chown_like, clear_work_folder, make_work_folder, write_file
from cordwood.storage.log.segment_writer import IndexLimits, SegmentWriter
from cordwood.storage.recovery.log_end import LogEnd, MarkerBatch

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
    count, size_bytes, _ = scan.scan_batches(data.ctypes.data, data.size, data.size, 0, True, rows)
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
