"""Checks producer snapshots and leader epochs of a partition against its log.

A producer snapshot has the state of each producer from the log below the snapshot's offset. The log may have less
information now: cleaning removes batches, retention removes segments, and a snapshot may be older than both. So the
replay tracks the offset where the part of the log without holes begins. State from that offset on is certain; below it,
a snapshot may have state that the log no longer has.

This replay duplicates `Producers.replay` on purpose, and shares only the masks over headers with it: recovery uses
`Producers.replay` to write snapshots, and this check must find bugs in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cordwood.common.errors import CorruptFileError, TextProblem
from cordwood.common.types import NONE, ControlType
from cordwood.kernels.layout import BatchRows, is_control, is_transactional_data
from cordwood.record.batch import advance_sequence
from cordwood.storage.check.findings import OFFLINE, STOPS, Findings, Kind, Severity
from cordwood.storage.formats import leader_epochs, producer_state
from cordwood.storage.formats.entries import Int64Array
from cordwood.storage.formats.leader_epochs import EpochEntry, LeaderEpochs, assign
from cordwood.storage.formats.producer_state import ProducerEntry, ProducerRows

#: If a log has more changes of the leader epoch than this, its epochs are not compared; real logs have fewer.
_RUNS_MAX = 10_000


# ---- producers -------------------------------------------------------------------------------------------------------


@dataclass
class _Producer:
    """The state of a producer from the batches read so far."""

    epoch: int
    last_event: int
    last_sequence: int = NONE
    last_offset: int = NONE
    offset_delta: int = 0
    open_first: int = NONE


@dataclass(frozen=True, slots=True)
class DecodedSnapshot:
    """A decoded producer snapshot.

    Attributes:
        offset: the snapshot describes the log below this offset.
        rebuilt: the next load rebuilds the snapshot.
    """

    path: str
    offset: int
    rows: ProducerRows
    rebuilt: bool


class SnapshotCheck:
    """Replays producer state from batch headers, and compares each snapshot at its offset."""

    def __init__(self, snapshots: Iterable[DecodedSnapshot], findings: Findings) -> None:
        self._waiting = sorted(snapshots, key=lambda one: one.offset)
        self._findings = findings
        self._producers: dict[int, _Producer] = {}
        self._next_offset = 0
        #: The log has no hole from this offset on.
        self._whole_from = 0
        self._started = False
        #: Batches from this offset on were read; a transaction that began before it may have ended.
        self._read_from = 0
        self._is_behind_jump = False

    def add(self, batches: BatchRows) -> None:
        """Replay the next valid batches, in the order of the log."""
        first = np.where(batches["base_offset"] < 0, batches["last_offset"], batches["base_offset"])
        while self._waiting and self._waiting[0].offset <= int(first[-1]):
            below = int(np.searchsorted(first, self._waiting[0].offset))
            self._replay(batches[:below], first[:below])
            batches, first = batches[below:], first[below:]
            self._compare(self._waiting.pop(0))
        self._replay(batches, first)

    def end(self, log_end_offset: int, *, damaged: bool, live: bool, crashed: bool) -> None:
        """Compare the remaining snapshots with the end of the log."""
        for snapshot in self._waiting:
            if snapshot.offset <= log_end_offset:
                if not damaged:
                    self._compare(snapshot)
            elif not live:
                self._findings.add(
                    Kind.SNAPSHOT_BEYOND_END,
                    snapshot.path,
                    f"describes the log below {snapshot.offset}, but it ends at {log_end_offset}",
                    offset=snapshot.offset,
                    severity=Severity.RECOVERY if crashed else None,
                )

    def stop(self) -> None:
        """Compare no more snapshots, because the log is damaged."""
        self._waiting = [one for one in self._waiting if one.offset < 0]

    def jump(self) -> None:
        """Process a jump over batches that are not read: transactions may begin and end in them."""
        self._is_behind_jump = True

    def _replay(self, batches: BatchRows, first: Int64Array) -> None:
        if not batches.size:
            return
        if self._is_behind_jump:
            self._read_from = int(first[0])
            self._is_behind_jump = False
        before = np.concatenate([np.array([self._next_offset - 1]), batches["last_offset"][:-1]])
        holes = np.flatnonzero(first > before + 1)
        if holes.size:
            self._whole_from = int(first[holes[-1]])
        if not self._started:
            self._whole_from = max(self._whole_from, int(first[0]))
            self._started = True
        self._next_offset = int(batches["last_offset"][-1]) + 1
        control = is_control(batches)
        # An emptied control batch changes nothing when a broker rebuilds its state.
        has_producer = (batches["producer_id"] >= 0) & ~(control & (batches["record_count"] == 0))
        if not has_producer.any():
            return
        own = batches[has_producer]
        marker = control[has_producer]
        opens = is_transactional_data(own)
        if not (opens.any() or marker.any()):
            # Without transactions only the last batch of each producer matters, so skip all earlier batches.
            _, last = np.unique(own["producer_id"][::-1], return_index=True)
            chosen = np.sort(own.size - 1 - last)
            own, marker, opens = own[chosen], marker[chosen], opens[chosen]
        columns = ("producer_id", "producer_epoch", "base_offset", "last_offset", "base_sequence", "control_type")
        rows = zip(*(own[column].tolist() for column in columns), marker.tolist(), opens.tolist(), strict=True)
        for producer_id, epoch, base_offset, last_offset, base_sequence, control_type, is_marker, is_open in rows:
            state = self._producers.setdefault(producer_id, _Producer(epoch, NONE))
            if state.epoch != epoch:
                state.epoch = epoch
                state.last_sequence, state.last_offset, state.offset_delta = NONE, NONE, 0
            state.last_event = last_offset
            if not is_marker:
                state.last_offset, state.offset_delta = last_offset, last_offset - base_offset
                state.last_sequence = advance_sequence(base_sequence, state.offset_delta)
                if is_open and (state.open_first == NONE or state.open_first < self._read_from):
                    state.open_first = base_offset
            elif control_type in (ControlType.ABORT, ControlType.COMMIT):
                state.open_first = NONE

    def _compare(self, snapshot: DecodedSnapshot) -> None:
        if snapshot.offset > self._next_offset:
            self._whole_from = snapshot.offset  # the log has a hole before this offset
            if self._is_behind_jump:
                self._read_from = snapshot.offset
        rows = snapshot.rows
        suspects = np.flatnonzero(self._may_differ(rows, snapshot.offset))
        for index, row in zip(suspects.tolist(), rows[suspects].tolist(), strict=True):
            entry = ProducerEntry(*row)
            what = self._fault(entry, snapshot.offset)
            if what:
                self._findings.add(
                    Kind.SNAPSHOT_ENTRY,
                    snapshot.path,
                    f"producer {entry.producer_id}: {what}",
                    position=producer_state.HEADER.size + index * producer_state.ENTRY.itemsize,
                    offset=entry.last_offset if entry.last_offset >= 0 else snapshot.offset,
                    severity=Severity.RECOVERY if snapshot.rebuilt else None,
                )

    def _may_differ(self, rows: ProducerRows, end_offset: int) -> npt.NDArray[np.bool_]:
        """Return which entries `_fault` must check, bool[entries].

        The other entries are valid in themselves, and the log neither has nor should have a batch of their producers.
        """
        last, start = rows["last_offset"], rows["current_transaction_first_offset"]
        sequence, delta = rows["last_sequence"], rows["offset_delta"]
        odd = (rows["producer_id"] < 0) | (rows["producer_epoch"] < NONE)
        odd |= (last >= end_offset) | (last < NONE) | (start >= end_offset) | (start < NONE)
        odd |= np.where(last >= 0, (sequence < 0) | (delta < 0) | (delta > last), sequence != NONE)
        if self._started:
            odd |= last >= self._whole_from
        known = np.fromiter(self._producers, np.int64, len(self._producers))
        return odd | np.isin(rows["producer_id"], known)

    def _fault(self, entry: ProducerEntry, end_offset: int) -> str:
        stated_open = entry.current_transaction_first_offset
        if entry.producer_id < 0 or entry.producer_epoch < -1:
            return f"id {entry.producer_id} and epoch {entry.producer_epoch} cannot be"
        if entry.last_offset >= end_offset or entry.last_offset < NONE:
            return f"last offset {entry.last_offset} is not below the snapshot's offset {end_offset}"
        if stated_open >= end_offset or stated_open < NONE:
            return f"open transaction from {stated_open}, which is not below the snapshot's offset {end_offset}"
        if entry.last_offset == NONE and entry.last_sequence != NONE:
            return f"last sequence {entry.last_sequence} without a last offset"
        if entry.last_offset >= 0 and (entry.last_sequence < 0 or not 0 <= entry.offset_delta <= entry.last_offset):
            return f"last sequence {entry.last_sequence} and offset delta {entry.offset_delta} cannot be"
        known = self._producers.get(entry.producer_id)
        if known is None:
            if entry.last_offset >= self._whole_from and self._started:
                return f"last offset {entry.last_offset}, but the log has no batch of it"
            return ""
        certain = known.last_event >= self._whole_from
        if entry.producer_epoch < known.epoch or (certain and entry.producer_epoch != known.epoch):
            return f"epoch {entry.producer_epoch}, but the log has epoch {known.epoch}"
        if entry.producer_epoch == known.epoch and entry.last_offset != NONE:
            if entry.last_offset < known.last_offset:
                return (
                    f"last offset {entry.last_offset}, but the log has a batch of it that ends at {known.last_offset}"
                )
            if entry.last_offset > known.last_offset and entry.last_offset >= self._whole_from:
                return f"last offset {entry.last_offset}, but its last batch in the log ends at {known.last_offset}"
            same = (entry.last_sequence, entry.offset_delta) == (known.last_sequence, known.offset_delta)
            if entry.last_offset == known.last_offset and not same:
                return (
                    f"last sequence {entry.last_sequence} and offset delta {entry.offset_delta}, "
                    f"but its batch in the log has {known.last_sequence} and {known.offset_delta}"
                )
        return self._open_fault(stated_open, known, certain=certain)

    def _open_fault(self, stated: int, known: _Producer, *, certain: bool) -> str:
        if known.open_first != NONE and known.open_first >= self._read_from:
            if stated == NONE:
                return f"no open transaction, but the log has one from {known.open_first}"
            if stated > known.open_first or (stated < known.open_first and stated >= self._whole_from):
                return f"open transaction from {stated}, but in the log it starts at {known.open_first}"
        elif stated != NONE and (certain or stated >= self._whole_from):
            return f"open transaction from {stated}, but the log has none"
        return ""


def decode_snapshots(
    files: Mapping[int, tuple[str, bytes]], findings: Findings, *, rebuilt_above: int | None
) -> list[DecodedSnapshot]:
    """Decode the snapshots of a partition, and report snapshots that fail to decode.

    Args:
        files: offset to (path, bytes).
        rebuilt_above: the next load rebuilds snapshots above this offset; None: it rebuilds none.
    """
    snapshots = []
    for offset, (path, data) in files.items():
        rebuilt = rebuilt_above is not None and offset > rebuilt_above
        try:
            snapshots.append(DecodedSnapshot(path, offset, producer_state.decode_rows(data, path), rebuilt))
        except CorruptFileError as error:
            findings.add(Kind.SNAPSHOT_UNREADABLE, path, error.what, position=error.position)
    return snapshots


# ---- leader epochs ---------------------------------------------------------------------------------------------------


@dataclass
class _EpochRun:
    """Adjacent batches of the same leader epoch."""

    epoch: int
    first_offset: int
    last_offset: int
    path: str
    position: int


class EpochCheck:
    """Compares the leader epochs of batches with the history in `leader-epoch-checkpoint`.

    Attributes:
        segment_path: path of the `.log` file that is being read.
    """

    def __init__(self, log_start_offset: int) -> None:
        self.segment_path = ""
        self._log_start_offset = log_start_offset
        self._runs: list[_EpochRun] = []

    def add(self, batches: BatchRows) -> None:
        """Add the next valid batches."""
        known = (batches["leader_epoch"] >= 0) & (batches["last_offset"] >= self._log_start_offset)
        batches = batches[known]
        if not batches.size or len(self._runs) > _RUNS_MAX:
            return
        epochs = batches["leader_epoch"]
        starts = [0, *(np.flatnonzero(np.diff(epochs)) + 1).tolist()]
        for start, end in zip(starts, [*starts[1:], epochs.size], strict=True):
            epoch, last = int(epochs[start]), int(batches["base_offset"][end - 1])
            if self._runs and self._runs[-1].epoch == epoch:
                self._runs[-1].last_offset = last
            elif len(self._runs) <= _RUNS_MAX:
                first = max(int(batches["base_offset"][start]), self._log_start_offset)
                self._runs.append(_EpochRun(epoch, first, last, self.segment_path, int(batches["position"][start])))

    def end(
        self,
        path: str,
        entries: Sequence[EpochEntry] | None,
        log_end_offset: int,
        findings: Findings,
        *,
        damaged: bool,
        crashed: bool,
        live: bool,
    ) -> None:
        """Compare the batches' epochs with the epoch file, after the whole log was read.

        Args:
            path: path of the epoch file.
            entries: entries of the epoch file; None if the file is missing.
            damaged: the log is damaged, so only the file itself is checked.
            crashed: the next load drops entries beyond the end.
            live: a broker is running and may write.
        """
        history, in_order = self._history(path, entries or (), findings)
        if not live:
            for entry in history.entries:
                if entry.start_offset > log_end_offset and not damaged:
                    findings.add(
                        Kind.LEADER_EPOCHS_BEYOND_END,
                        path,
                        f"epoch {entry.epoch} starts at {entry.start_offset}, but the log ends at {log_end_offset}",
                        offset=entry.start_offset,
                        severity=Severity.RECOVERY if crashed else None,
                    )
        if damaged or len(self._runs) > _RUNS_MAX:
            return
        runs = self._ordered(findings)
        if entries is None:
            if runs and not live:
                what = f"missing, but batches have leader epochs {runs[0].epoch} to {runs[-1].epoch}"
                findings.add(Kind.LEADER_EPOCHS_MISSING, path, what, offset=runs[0].first_offset)
            return
        if not in_order:
            return
        first = history.entries[0] if history.entries else None
        for run in runs:
            for offset in sorted({run.first_offset, max(run.first_offset, run.last_offset)}):
                stated = history.epoch_for_offset(offset)
                if stated == run.epoch or (live and (stated is None or stated < run.epoch)):
                    continue
                if stated is None and first is not None and run.epoch <= first.epoch:
                    continue  # a broker trimmed the entry when the log start moved; a crash may have lost the new start
                says = "no epoch" if stated is None else f"epoch {stated}"
                what = f"{says} for offset {offset}, but the batch there was written in epoch {run.epoch}"
                findings.add(Kind.LEADER_EPOCHS_MISMATCH, path, what, offset=offset)
                break

    def _history(self, path: str, entries: Sequence[EpochEntry], findings: Findings) -> tuple[LeaderEpochs, bool]:
        """Return the history that a broker builds from the entries, and whether they are in order."""
        kept: list[EpochEntry] = []
        in_order = True
        for index, entry in enumerate(entries):
            if entry.epoch < 0 or entry.start_offset < 0:
                what = f"entry {index}: epoch {entry.epoch} from offset {entry.start_offset}; neither can be negative"
                findings.add(Kind.LEADER_EPOCHS_UNREADABLE, path, what, meaning=STOPS)
                in_order = False
                continue
            if kept and (entry.epoch <= kept[-1].epoch or entry.start_offset <= kept[-1].start_offset):
                what = (
                    f"entry {index}: epoch {entry.epoch} from offset {entry.start_offset} "
                    f"follows epoch {kept[-1].epoch} from {kept[-1].start_offset}"
                )
                findings.add(Kind.LEADER_EPOCHS_ORDER, path, what, offset=entry.start_offset)
                in_order = False
            assign(kept, entry)
        return LeaderEpochs(tuple(kept)), in_order

    def _ordered(self, findings: Findings) -> list[_EpochRun]:
        """Report the runs that break the order of epochs, and return the runs that are in order."""
        kept: list[_EpochRun] = []
        for run in self._runs:
            if kept and run.epoch < kept[-1].epoch:
                before = kept[-2].epoch if len(kept) > 1 else NONE
                # Report the run of the two that breaks the order: without it, all remaining runs are in order.
                blamed = kept.pop() if before <= run.epoch and kept[-1].first_offset == kept[-1].last_offset else run
                what = f"leader epoch {blamed.epoch}, between batches of epochs {max(before, 0)} and {run.epoch}"
                if blamed is run:
                    what = f"leader epoch {run.epoch} follows leader epoch {kept[-1].epoch}"
                findings.add(
                    Kind.BATCH_LEADER_EPOCH, blamed.path, what, position=blamed.position, offset=blamed.first_offset
                )
                if blamed is run:
                    continue
            if kept and kept[-1].epoch == run.epoch:
                kept[-1].last_offset = run.last_offset
            else:
                kept.append(run)
        return kept


def read_epochs(data: bytes, path: str, findings: Findings) -> Sequence[EpochEntry] | None:
    """Decode the entries of an epoch file; if that fails, report it and return None."""
    try:
        return leader_epochs.decode(data, path)
    except CorruptFileError as error:
        meaning = STOPS if error.kind is TextProblem.VALUE else OFFLINE
        findings.add(Kind.LEADER_EPOCHS_UNREADABLE, path, error.what, position=error.position, meaning=meaning)
        return None
