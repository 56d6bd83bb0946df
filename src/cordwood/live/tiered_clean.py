"""Puts the outputs of a clean into the tier of a live log.

    settle    if the outcome of the last commit is unknown, the newest known state is committed again
    choose    groups with a segment in the tier go there; all later ones are swapped on the disk
    upload    the new segments, under new ids
    commit    one manifest names the new segments instead of the old ones, and the end of the cleaned part
    drop      the segments on the disk that the new ones replace
    index     the key indexes of the new segments: they have other names than those of the old ones

A crash before the commit leaves objects that no manifest names; the next opening sweeps them. After it the new log is
whole: its manifest says up to where segments on the disk are leftovers, which the next opening drops. The objects of
the old segments are deleted after `file.delete.delay.ms`, as readers may have them open.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from cordwood.cleaning.engine.task import FailureKind, Output, PartitionTask
from cordwood.cleaning.engine.tiered import new_segment, pieces_of_output
from cordwood.common.errors import CleanFailedError, CordwoodError, LogCleaningAbortedError, StoreError
from cordwood.common.types import NONE
from cordwood.fs.base import LocalFileSystem
from cordwood.fs.paced import Check
from cordwood.live.tiered_log import TieredLog
from cordwood.storage.formats.filenames import parse_key_index
from cordwood.storage.log.view import LogView
from cordwood.storage.tier.exchange import NewSegment, described
from cordwood.storage.tier.generations import FencedError
from cordwood.storage.tier.manifest import GoneSegment, TierState
from cordwood.storage.tier.packed import TierSegment
from cordwood.storage.tier.remote_log import Answer
from cordwood.storage.tier.replacing import SegmentPiece, plan_replacement
from cordwood.storage.tier.segments import CopyState, RemoteSegment


def put_in_tier(
    fs: LocalFileSystem,
    tiered: TieredLog,
    task: PartitionTask,
    output: Output,
    now_ms: int,
    check: Check,
    changing: Callable[[], AbstractContextManager[None]],
) -> Output:
    """Put the outputs of groups with a segment in the tier there; return the output of all other groups.

    Args:
        check: called before each upload; raises once the clean must stop.
        changing: wraps the commit; raises once the clean must stop.

    Raises:
        LogCleaningAbortedError: the clean must stop, and the log has not changed.
        CleanFailedError: the tier failed. The log has not changed, or the next commit decides.
        FencedError: another writer has claimed the log.
    """
    with tiered.lock:
        swap = _LiveSwap(fs, tiered, task, now_ms)
        try:
            tiered.settle()
            return swap.put(output, check, changing)
        except (LogCleaningAbortedError, FencedError):
            raise
        except (CordwoodError, OSError) as error:
            raise CleanFailedError(f"{task.path}: the tier failed: {error}", FailureKind.STORE) from error
        finally:
            swap.close()


class _LiveSwap:
    """The exchange of segments by one clean; the caller holds the lock of the tiered log."""

    def __init__(self, fs: LocalFileSystem, tiered: TieredLog, task: PartitionTask, now_ms: int) -> None:
        self._fs = fs
        self._tiered = tiered
        self._task = task
        self._now_ms = now_ms
        self._store = tiered.remote.beside(fs, task.path)
        #: Uploaded segments that no manifest can name.
        self._orphans: list[RemoteSegment] = []

    def put(self, output: Output, check: Check, changing: Callable[[], AbstractContextManager[None]]) -> Output:
        """See `put_in_tier`."""
        tiered, state = self._tiered, self._tiered.state
        in_tier, rest = output.split_at(state.copied_end)
        log = self._task.log(self._store)
        # Remote retention may have deleted the first segments meanwhile.
        bases = {one.base_offset for one in log.segments}
        groups = sum(replaced[-1] not in bases for replaced in in_tier.cleaned.replaced)
        if groups:
            _, in_tier = in_tier.split_at(in_tier.cleaned.replaced[groups - 1][-1] + 1)
        pieces = pieces_of_output(log, in_tier)
        if not pieces:
            return rest
        answers = [Answer(one.segment, one.segment.start_offset, one.segment.end_offset) for one in state.segments]
        planned = plan_replacement(pieces, answers)
        new = [
            self._new_segment(log, piece, sources, in_tier.folder)
            for piece, sources in zip(planned.pieces, planned.sources, strict=True)
        ]
        old, floor = [one.id for one in planned.replaced], state.local_floor
        if not any(piece.size_bytes for piece in pieces):  # no record is left in the tier
            old = [one.segment.id for one in state.segments if one.segment.start_offset <= pieces[-1].last_offset]
            floor = max(floor, pieces[-1].last_offset + 1)
        floor = max([floor, *(piece.last_offset + 1 for piece in planned.pieces)])
        added = []
        for one in new:
            check()
            self._orphans.append(one.segment)
            tiered.layout.write(one.segment, one.files, None)
            added.append(described(self._fs, one.segment, one.files))
        with changing():
            if floor > tiered.log.recovery_point:
                tiered.log.flush()
            self._orphans.clear()  # if the answer is lost, it is unknown whether the manifest names them
            tiered.commit(self._after(state, old, added, floor, output.cleaned.end_offset))
            tiered.log.drop_below(floor)
        indexes = _key_indexes(planned.pieces, output.indexes)
        for piece, made in zip(planned.pieces, added, strict=True):
            if piece.base_offset in indexes:
                tiered.key_indexes.put(indexes[piece.base_offset], made)
        return replace(rest, indexes=tuple(path for path in rest.indexes if path not in indexes.values()))

    def _new_segment(self, log: LogView, piece: SegmentPiece, sources: Sequence[Answer], written: str) -> NewSegment:
        lineage, folder = self._tiered.log.leader_epochs.entries, f"{self._task.work}/tier-{piece.first_offset}"
        made = new_segment(
            self._fs,
            self._store,
            log,
            piece,
            sources,
            lineage,
            written,
            folder,
            broker=NONE,
            now_ms=self._now_ms,
        )
        return replace(made, segment=replace(made.segment, state=CopyState.COPY_FINISHED))

    def _after(
        self, state: TierState, old: Sequence[str], added: Sequence[TierSegment], floor: int, cleaned_end: int
    ) -> TierState:
        kept = [one for one in state.segments if one.segment.id not in old]
        gone = [GoneSegment(one.segment, self._now_ms) for one in state.segments if one.segment.id in old]
        return replace(
            state,
            segments=tuple(sorted([*kept, *added], key=lambda one: one.segment.start_offset)),
            gone=(*state.gone, *gone),
            local_floor=floor,
            cleaner_checkpoint=cleaned_end,
        )

    def close(self) -> None:
        """Delete uploads that are not used."""
        layout = self._tiered.layout
        with contextlib.suppress(OSError, StoreError):
            layout.store.delete_all([path for one in self._orphans for path in layout.paths_to_delete(one)])


def _key_indexes(pieces: Sequence[SegmentPiece], paths: Sequence[str]) -> dict[int, str]:
    """Return the key indexes of written pieces by base offset."""
    written = {piece.base_offset for piece in pieces if piece.is_written}
    found = {parse_key_index(posixpath.basename(path)): path for path in paths}
    return {offset: path for offset, path in found.items() if offset is not None and offset in written}
