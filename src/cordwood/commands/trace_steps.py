"""Determines the step that removes a trace of a key, from its log and configs."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cordwood.commands.prospects import prospects_of
from cordwood.commands.trace_files import FileToCheck
from cordwood.commands.why.found_keys import FoundTrace, Role, TraceRecord
from cordwood.commands.why.next_step import NextStep, StepKind
from cordwood.common.errors import ConfigError, CordwoodError
from cordwood.fs.base import Store
from cordwood.storage.formats.filenames import (
    DirectoryState,
    Temporary,
    parse_file,
)
from cordwood.storage.index.history import KeyRecord, Outcome, by_key, judged
from cordwood.storage.index.traces import LookedAt, Trace, TraceKind
from cordwood.storage.log.view import LogView
from cordwood.storage.node.node import LocatedPartition, Node

#: Kinds of records before their whole log has been judged.
_OF_RECORDS = (TraceKind.RECORD, TraceKind.TOMBSTONE)

_OF_FILES: Mapping[Role, str] = {
    Role.WORK: "left by a run of Cordwood that was stopped: the next clean of the partition removes it",
    Role.KEPT: "kept by a clean, for cordwood undo: remove the folder once nothing has to be restored",
    Role.KEY_INDEX: "cordwood index makes it anew from what the segment has now, and --drop removes it",
    Role.OTHER: "no clean changes it: remove the file, or what is in it",
}
_OF_STATES: Mapping[DirectoryState, str] = {
    DirectoryState.STRAY: "no broker uses the directory: remove it",
    DirectoryState.FUTURE: "goes when the move to another disk ends, or with the directory",
}


def _described(record: KeyRecord | None) -> TraceRecord | None:
    if record is None:
        return None
    return TraceRecord(record.offset, record.timestamp, record.is_tombstone, record.superseded_by)


@dataclass
class Judge:
    """Decides which step removes each trace.

    Attributes:
        notes: gaps in the result, where a log cannot be judged.
    """

    fs: Store
    nodes: Sequence[Node]
    now_ms: int
    notes: list[str] = field(default_factory=list)
    #: By the directory of a partition, then by the location of a record.
    _records: dict[str, dict[tuple[int, int, int], tuple[KeyRecord, NextStep]]] = field(default_factory=dict)

    _places: dict[str, tuple[Node, LocatedPartition]] = field(default_factory=dict)

    def traces(self, file: FileToCheck, found: LookedAt) -> Iterator[FoundTrace]:
        """Yield the traces in a file, each with the step that removes it."""
        of_log = self._records.get(file.directory or "", {}) if file.role is Role.LOG else {}
        for trace in found.traces:
            known = of_log.get(_place(trace.record)) if trace.kind in _OF_RECORDS and trace.record else None
            kind, record = trace.kind, trace.record
            if known is None:
                step = self._step(file, trace)
            else:
                record, step = known
                if record.superseded_by is not None or record.outcome is Outcome.ABORTED:
                    kind = TraceKind.SUPERSEDED
            yield FoundTrace(file.path, file.role, kind, trace.key, trace.position, _described(record), step)

    def _step(self, file: FileToCheck, trace: Trace) -> NextStep:
        if file.role is Role.LEFTOVER:
            return self._of_leftover(file)
        if file.role is not Role.LOG:
            return NextStep(StepKind.KEPT, _OF_FILES[file.role])
        if trace.kind is TraceKind.VALUE:
            return NextStep(
                StepKind.STAYS, "part of a record of another key: it goes when that key is written or deleted"
            )
        if trace.kind in _OF_RECORDS:
            return NextStep(StepKind.KEPT, "not known: its log could not be followed")
        return NextStep(StepKind.KEPT, "not in a record that can be read: only a repair, or its removal, takes it")

    def _of_leftover(self, file: FileToCheck) -> NextStep:
        state = DirectoryState.CURRENT if file.partition is None else file.partition.state
        if state in _OF_STATES:
            return NextStep(StepKind.KEPT, _OF_STATES[state])
        name = parse_file(posixpath.basename(file.path))
        if state is DirectoryState.CURRENT and name is not None and name.temporary is not Temporary.DELETED:
            return NextStep(
                StepKind.WAITS, "the next start of a broker, or the next clean in place, removes or finishes it"
            )
        place = self._place_of(file.directory)
        what, delay_ms = "file.delete.delay.ms", None
        if place is not None and place[1].topic is not None:
            try:
                delay_ms = place[0].config_of(place[1].topic).integer("file.delete.delay.ms")
            except ConfigError:
                delay_ms = None
            what += "" if delay_ms is None else f"={delay_ms}"
        is_live = place is not None and place[1].directory.live
        by_ms = self.now_ms + delay_ms if is_live and delay_ms is not None else None
        return NextStep(
            StepKind.WAITS, f"a broker deletes it {what} after its renaming, and when it starts", by_ms=by_ms
        )

    def _place_of(self, directory: str | None) -> tuple[Node, LocatedPartition] | None:
        if not self._places:
            pairs = [(node, place) for node in self.nodes for place in node.places]
            self._places.update((self.fs.absolute_path(place.path), (node, place)) for node, place in pairs)
        return None if directory is None else self._places.get(self.fs.absolute_path(directory))

    def judge_logs(self, files: Sequence[FileToCheck], looked_at: Mapping[str, LookedAt]) -> None:
        """Judge the records of each log, before `traces` needs them."""
        by_log: dict[str, list[LookedAt]] = {}
        for file in files:
            if file.role is Role.LOG and file.directory is not None:
                by_log.setdefault(file.directory, []).append(looked_at[file.path])
        for directory, some in by_log.items():
            traces = [trace for one in some for trace in one.traces]
            records = [one.record for one in traces if one.kind in _OF_RECORDS and one.record is not None]
            if sum(one.counts.total() for one in some) > len(traces):
                what = f"which records in {directory} are superseded: there are too many"
                self.notes.append(f"{what}. Give fewer keys at a time")
            elif records:
                self._judge_log(directory, sorted(records, key=lambda one: (one.offset, one.position)))

    def _judge_log(self, directory: str, records: Sequence[KeyRecord]) -> None:
        place = self._place_of(directory)
        try:
            log = LogView(directory, fs=self.fs) if place is None else place[1].log()
            known = judged(log, records)
            prospects = None if place is None else prospects_of(*place, log, self.now_ms)
        except (OSError, CordwoodError) as error:
            self.notes.append(f"what happens to the records in {directory} next: {error}")
            return
        found = self._records.setdefault(directory, {})
        for some in by_key(known).values():
            nothing = NextStep(StepKind.KEPT, "no broker's directory: it stays until the copy is cleaned or removed")
            steps = [nothing] * len(some) if prospects is None else prospects.steps(some)
            for record, step in zip(some, steps, strict=True):
                found[_place(record)] = record, _explained(record, step, log)


def _place(record: KeyRecord) -> tuple[int, int, int]:
    return record.segment, record.position, record.offset


def _explained(record: KeyRecord, step: NextStep, log: LogView) -> NextStep:
    """Rephrase the fate of a record for a user who wants the record to disappear."""
    if record.offset < log.log_start_offset:
        return NextStep(
            StepKind.RETENTION, "below the log start offset: a broker deletes its segment once all of it is"
        )
    if step.kind is StepKind.STAYS:
        return replace(step, what="the value of its key: it stays until a tombstone for the key is written and cleaned")
    return step
