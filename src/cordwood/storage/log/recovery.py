"""Plan the changes that a broker would make to a partition when it loads it; change nothing.

A crash may have interrupted a deletion, a clean, a swap of a cleaned segment, or a write. `plan_recovery` reads names
and sizes and returns which files a loader would remove, rename or rebuild, and which files make up the log afterwards.
Readers use that view, so an interrupted swap reads as if it had been finished, and nothing on disk changes.

    1  *.deleted                             removed
    2  *.cleaned, *.swap at or above them    removed: written by a clean or split that did not finish
    3  *.swap                                renamed into place, after the files they replace are removed
    4  index without .log                    removed
    5  .log without .index                   its indexes are rebuilt, and its invalid tail is truncated

After a crash, a load also treats segments from the recovery point on as in 5. Names do not show which segments these
are, so they are not in the plan; `check` reports them.

Order and conditions are those of Kafka's LogLoader.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from cordwood.fs.base import FileInfo, Store
from cordwood.storage.formats.filenames import WORK_FOLDER, FileKind, PartitionFile, Temporary, parse_file
from cordwood.storage.log.windows import Gap, read_headers

#: Files of a segment besides its `.log`.
INDEX_KINDS = (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX, FileKind.TRANSACTION_INDEX)

#: All files of a segment.
SEGMENT_KINDS = (FileKind.LOG, *INDEX_KINDS)


class Verb(StrEnum):
    """A loader's operation on a file."""

    DELETE = "delete"
    RENAME = "rename"
    REBUILD = "rebuild"


class RecoveryReason(StrEnum):
    """Why a loader changes a file."""

    DELETION_INTERRUPTED = "deletion-interrupted"
    SWAP_INCOMPLETE = "swap-incomplete"
    CLEAN_INTERRUPTED = "clean-interrupted"
    REPLACED = "replaced"
    SWAP_INTERRUPTED = "swap-interrupted"
    NO_LOG = "no-log"
    NO_OFFSET_INDEX = "no-offset-index"


@dataclass(frozen=True, slots=True)
class Action:
    """One step of a recovery.

    Attributes:
        file: the file that is changed.
        target: new name of a renamed file.
    """

    verb: Verb
    file: str
    reason: RecoveryReason
    why: str
    target: str = ""

    def __str__(self) -> str:
        to = f" to {self.target}" if self.verb is Verb.RENAME else ""
        return f"{self.verb} {self.file}{to}: {self.why}"


@dataclass(frozen=True, slots=True)
class SegmentFiles:
    """The files of a segment, under their present names."""

    base_offset: int
    log: FileInfo
    indexes: Mapping[FileKind, FileInfo]


@dataclass(frozen=True, slots=True)
class Recovery:
    """A partition as it would be after a load, and the steps of the load.

    Attributes:
        actions: steps in a loader's order.
        snapshots: producer snapshots that stay, by offset.
        foreign: names of other files and directories; Kafka ignores some and fails on others.
    """

    actions: tuple[Action, ...]
    segments: tuple[SegmentFiles, ...]
    snapshots: Mapping[int, FileInfo]
    foreign: tuple[str, ...]


@dataclass
class _Files:
    """The files of a partition while the plan is made."""

    actions: list[Action] = field(default_factory=list)
    kept: dict[str, tuple[PartitionFile, FileInfo]] = field(default_factory=dict)

    def of(self, *temporaries: Temporary) -> list[tuple[str, PartitionFile, FileInfo]]:
        return [(name, file, info) for name, (file, info) in self.kept.items() if file.temporary in temporaries]

    def delete(self, name: str, reason: RecoveryReason, why: str) -> None:
        self.actions.append(Action(Verb.DELETE, self.kept.pop(name)[1].name, reason, why))

    def rename(self, name: str, reason: RecoveryReason, why: str) -> None:
        file, info = self.kept.pop(name)
        target = PartitionFile(file.kind, file.offset).name
        self.actions.append(Action(Verb.RENAME, info.name, reason, why, target))
        self.kept[target] = (PartitionFile(file.kind, file.offset), info)


def plan_recovery(fs: Store, directory: str, names: Sequence[FileInfo]) -> Recovery:
    """Predict the steps of a load, as far as names and the ends of swapped files determine them."""
    files = _Files()
    foreign = []
    is_interrupted = False
    for info in names:
        if info.is_directory and info.name == WORK_FOLDER:
            continue
        parsed = None if info.is_directory else parse_file(info.name)
        if parsed is None or (parsed.kind is FileKind.FOREIGN and parsed.temporary is not Temporary.DELETED):
            foreign.append(info.name)
        else:
            files.kept[info.name] = (parsed, info)
            is_interrupted = is_interrupted or parsed.temporary is not Temporary.NONE
    if is_interrupted:
        _remove_leftovers(files)
        _finish_swaps(fs, directory, files)
    segments = _load_segments(files)
    snapshots = {
        file.offset: info
        for file, info in files.kept.values()
        if file.kind is FileKind.PRODUCER_SNAPSHOT and file.temporary is Temporary.NONE
    }
    return Recovery(tuple(files.actions), segments, dict(sorted(snapshots.items())), tuple(foreign))


def _remove_leftovers(files: _Files) -> None:
    for name, file, _ in files.of(Temporary.DELETED):
        if file.kind is not FileKind.CHECKPOINT_SNAPSHOT:
            files.delete(name, RecoveryReason.DELETION_INTERRUPTED, "its deletion was interrupted")
    cleaned = files.of(Temporary.CLEANED)
    if not cleaned:
        return
    first_cleaned = min(file.offset for _, file, _ in cleaned)
    for name, file, _ in files.of(Temporary.SWAP):
        if file.offset >= first_cleaned:
            why = "the swap it is part of was interrupted before all of its files were ready"
            files.delete(name, RecoveryReason.SWAP_INCOMPLETE, why)
    for name, _, _ in cleaned:
        files.delete(name, RecoveryReason.CLEAN_INTERRUPTED, "a clean was interrupted while writing it")


def _finish_swaps(fs: Store, directory: str, files: _Files) -> None:
    swaps = files.of(Temporary.SWAP)
    logs = [(file.offset, info) for _, file, info in swaps if file.kind is FileKind.LOG]
    if logs:
        first = min(base_offset for base_offset, _ in logs)
        end = max(next_offset(fs, f"{directory}/{info.name}", base_offset) for base_offset, info in logs)
        for name, file, _ in files.of(Temporary.NONE):
            if first <= file.offset < end and file.kind is not FileKind.CHECKPOINT_SNAPSHOT:
                files.delete(
                    name, RecoveryReason.REPLACED, f"the swapped segment replaces offsets {first} to {end - 1}"
                )
    for name, _, _ in swaps:
        files.rename(name, RecoveryReason.SWAP_INTERRUPTED, "its swap was interrupted")


def _load_segments(files: _Files) -> tuple[SegmentFiles, ...]:
    by_base: dict[int, dict[FileKind, str]] = {}
    for name, (file, _) in files.kept.items():
        if file.kind in SEGMENT_KINDS and file.temporary is Temporary.NONE:
            by_base.setdefault(file.offset, {})[file.kind] = name
    segments = []
    for base_offset, names in sorted(by_base.items()):
        if FileKind.LOG not in names:
            for name in names.values():
                files.delete(name, RecoveryReason.NO_LOG, "it has no log file")
            continue
        kinds = {kind: files.kept[name][1] for kind, name in names.items()}
        log = kinds.pop(FileKind.LOG)
        if FileKind.OFFSET_INDEX not in kinds:
            name = PartitionFile(FileKind.OFFSET_INDEX, base_offset).name
            why = "it is missing; the segment's tail is checked with it"
            files.actions.append(Action(Verb.REBUILD, name, RecoveryReason.NO_OFFSET_INDEX, why))
        segments.append(SegmentFiles(base_offset, log, kinds))
    return tuple(segments)


def next_offset(fs: Store, path: str, base_offset: int, start: int = 0) -> int:
    """Return the offset after the last batch of a log file; the base offset if it has none."""
    last = base_offset - 1
    with fs.open(path) as file:
        for item in read_headers(file, base_offset=base_offset, start=start):
            if not isinstance(item, Gap):
                last = int(item["last_offset"][-1])
    return last + 1
