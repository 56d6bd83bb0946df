"""Divides a clean in place into waves by the free room for new segments and for their proof.

The files of a wave's proof exist at the same time as the wave's new segments. They are temporary files (`TMPDIR`), so
they may be on the disk of the log, or on another disk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace

from cordwood.cleaning.engine.task import Failure, FailureKind
from cordwood.cleaning.rules.waves import Load, ProofDisk, Waves, disk_bytes, schedule
from cordwood.commands.in_place.work import InPlaceWork, LockedDirectories
from cordwood.commands.options import InPlaceOptions
from cordwood.commands.verify import FOLDERS
from cordwood.common.types import NONE
from cordwood.fs.posix import PosixFileSystem
from cordwood.fs.temporary import remove_abandoned, temporary_root
from cordwood.tasks.proof_room import proof_bytes
from cordwood.tasks.tasks import Jobs

#: Free space that outputs must leave for checkpoints, the manifest of a keep folder, and other programs.
RESERVE_BYTES = 8 << 20
_PLENTY_BYTES = 1 << 62


@dataclass(frozen=True, slots=True)
class DiskRoom:
    """The writable room on one disk.

    Attributes:
        free_bytes: free bytes of the disk, or None if unknown.
        work_space: the user's limit for outputs, or None.
    """

    free_bytes: int | None
    work_space: int | None = None

    @property
    def of_disk(self) -> int:
        """The room that the disk itself allows."""
        return _PLENTY_BYTES if self.free_bytes is None else max(0, self.free_bytes - RESERVE_BYTES)

    @property
    def size_bytes(self) -> int:
        """The room for outputs."""
        return self.of_disk if self.work_space is None else min(self.of_disk, self.work_space)

    @property
    def free(self) -> str:
        """The free space, in words."""
        return f"{self.free_bytes:,} B of the disk are free, including a reserve of {RESERVE_BYTES:,} B"

    def __str__(self) -> str:
        limits = []
        if self.work_space is not None:
            limits.append(f"--work-space is {self.work_space:,} B")
        if self.free_bytes is not None:
            limits.append(self.free)
        return f"new segments may take {self.size_bytes:,} B: {' and '.join(limits)}"

    def lacking(self, needed_bytes: int) -> str:
        """Return advice on the space to free for `needed_bytes`."""
        assert self.free_bytes is not None, "or there is room"
        return f"free at least {needed_bytes + RESERVE_BYTES - self.free_bytes:,} B of that disk"

    def advice(self, output_bytes: int, proof_bytes: int) -> str:
        """Return advice that makes room for outputs and a proof; empty if the room suffices."""
        advice = []
        if self.of_disk < output_bytes + proof_bytes:
            less = " (less if TMPDIR names a folder on another one)" if proof_bytes else ""
            advice.append(self.lacking(output_bytes + proof_bytes) + less)
        if self.work_space is not None and self.work_space < output_bytes:
            advice.append(f"give at least --work-space {output_bytes}")
        return " and ".join(advice)


@dataclass(frozen=True, slots=True)
class Disks:
    """The disks that a clean in place writes to.

    Attributes:
        rooms: disks with logs, by device.
        folder: the folder of temporary files.
        folder_device: its disk; NONE if that disk has no logs.
        folder_room: the room on its disk.
    """

    rooms: Mapping[int, DiskRoom]
    folder: str
    folder_device: int
    folder_room: DiskRoom

    @classmethod
    def of(cls, site: LockedDirectories, loads: Mapping[str, Load], work_space: int | None) -> Disks:
        """Remove the files of killed proofs, and measure the free space."""
        remove_abandoned(FOLDERS)
        paths = {load.device: path for path, load in loads.items()}
        rooms = {device: DiskRoom(site.fs.free_bytes(path), work_space) for device, path in paths.items()}
        folder, local = temporary_root(), PosixFileSystem()
        device = local.stat(folder).device
        if device in rooms and site.fs.path_on_disk(paths[device]) is not None:
            return cls(rooms, folder, device, rooms[device])
        return cls(rooms, folder, NONE, DiskRoom(local.free_bytes(folder)))

    @property
    def proof(self) -> ProofDisk:
        """The disk of the proof's files."""
        return ProofDisk(self.folder_device, self.folder_room.of_disk)

    def room_beside(self, taken: Mapping[int, int]) -> dict[int, int]:
        """Return the room for outputs on each disk; `taken` is the size of other new files, by disk."""
        sizes = {
            device: min(room.size_bytes, room.of_disk - taken.get(device, 0)) for device, room in self.rooms.items()
        }
        return {device: max(0, size) for device, size in sizes.items()}

    def proof_beside(self, load: Load) -> int:
        """Return the bytes of a partition's proof on the disk of its outputs."""
        return load.proof_bytes if load.device == self.folder_device else 0

    def has_no_room(self, load: Load) -> bool:
        """Whether there is no room for even the smallest output, or for the proof."""
        least = disk_bytes([1]) + self.proof_beside(load)
        return self.rooms[load.device].of_disk < least or not self.has_room_for_proof(load)

    def has_room_for_proof(self, load: Load) -> bool:
        """Whether the proof's files fit, without outputs."""
        return load.proof_bytes <= self.folder_room.of_disk


def refuse_full_disks(
    site: LockedDirectories, work: InPlaceWork, in_place: InPlaceOptions, failures: MutableMapping[str, Failure]
) -> InPlaceWork:
    """Fail partitions on disks without room for any output or for the proof, before any output or proof starts.

    Args:
        work: the planned work.
        failures: refused partitions are added.

    Returns:
        the remaining work.
    """
    loads = _loads(site, work, verify=in_place.verify)
    disks = Disks.of(site, loads, in_place.work_space)
    work = work.without_indexes(_without_room_for_indexes(site, work, loads, disks))
    full = [path for path, load in loads.items() if disks.has_no_room(load)]
    failures.update(_too_large(full, loads, disks, keeps_old=site.kept is not None))
    return work.without(full)


def plan_waves(
    site: LockedDirectories,
    jobs: Jobs,
    work: InPlaceWork,
    in_place: InPlaceOptions,
    failures: MutableMapping[str, Failure],
) -> Waves:
    """Divide groups into waves. If they need several waves, a clean without writing first finds damage and exact sizes.

    Args:
        work: the planned work.
        failures: partitions that cannot be cleaned, or have no room, are added.
    """
    keeps_old = site.kept is not None
    loads = _loads(site, work, verify=in_place.verify)
    disks = Disks.of(site, loads, in_place.work_space)
    sizes = disks.room_beside(_index_bytes(work, loads))
    waves = schedule(loads, sizes, kept=keeps_old, proof=disks.proof)
    if len(waves.waves) > 1 or waves.too_large:
        loads = _tried(jobs, work, loads, failures)
        waves = schedule(loads, sizes, kept=keeps_old, proof=disks.proof)
    failures.update(_too_large(waves.too_large, loads, disks, keeps_old=keeps_old))
    return waves


def _index_bytes(work: InPlaceWork, loads: Mapping[str, Load]) -> Counter[int]:
    """Return the maximum size of new key indexes on each disk."""
    found: Counter[int] = Counter()
    for path, load in loads.items():
        found[load.device] += work.index_bytes(path)
    return found


def _without_room_for_indexes(
    site: LockedDirectories, work: InPlaceWork, loads: Mapping[str, Load], disks: Disks
) -> list[str]:
    """Return the partitions on disks where new key indexes might take room that new segments need.

    These partitions are cleaned without an index.
    """
    taken = _index_bytes(work, loads)

    def waves(taken: Mapping[int, int]) -> tuple[int, int]:
        found = schedule(loads, disks.room_beside(taken), kept=site.kept is not None, proof=disks.proof)
        return len(found.waves), len(found.too_large)

    tight = {device for device in taken if taken[device] and waves({device: taken[device]}) != waves({})}
    return [path for path, load in loads.items() if load.device in tight]


def _loads(site: LockedDirectories, work: InPlaceWork, *, verify: bool) -> dict[str, Load]:
    """Return an upper bound of the room that each partition needs in its waves."""
    return {
        path: Load(
            site.fs.stat(path).device,
            work.compaction(path).group_bytes,
            whole=work.plans[path].offset_map is not None or not work.tasks[path].settings.precedence.is_log_order,
            proof_bytes=proof_bytes(work.compaction(path)) if verify else 0,
        )
        for path in work.tasks
    }


def _tried(
    jobs: Jobs, work: InPlaceWork, loads: Mapping[str, Load], failures: MutableMapping[str, Failure]
) -> dict[str, Load]:
    """Return the loads with exact sizes, without partitions that cannot be cleaned."""
    tasks = list(work.tasks.values())
    found = {}
    for task, outcome in zip(tasks, jobs.clean(tasks, None, discard=True), strict=True):
        load = loads[task.path]
        if isinstance(outcome, Failure):
            failures[task.path] = outcome
        else:
            found[task.path] = load if load.whole else replace(load, group_bytes=tuple(outcome.group_bytes()))
    return found


def _too_large(paths: Sequence[str], loads: Mapping[str, Load], disks: Disks, *, keeps_old: bool) -> dict[str, Failure]:
    """Return failures for partitions without enough room."""
    no_proof = [path for path in paths if not disks.has_room_for_proof(loads[path])]
    return {
        path: _no_room_for_proof(path, loads, no_proof, disks)
        if path in no_proof and not disks.proof_beside(loads[path])
        else _no_room_for_outputs(path, loads, disks, keeps_old=keeps_old)
        for path in paths
    }


def _no_room_for_proof(path: str, loads: Mapping[str, Load], others: Sequence[str], disks: Disks) -> Failure:
    needed, most = loads[path].proof_bytes, max(loads[other].proof_bytes for other in others)
    room = f"its proof is to write them to {disks.folder}, and {disks.folder_room.free}"
    elsewhere = "or name a folder on another one with TMPDIR"
    return Failure(
        FailureKind.FULL,
        f"{path}: temporary files of its proof take up to {needed:,} B at once; {room}. To clean it, "
        f"{disks.folder_room.lacking(needed)}, {elsewhere}",
        bytes_needed=needed,
        for_all=f"{room}. To clean all of them, {disks.folder_room.lacking(most)}, {elsewhere}",
    )


def _no_room_for_outputs(path: str, loads: Mapping[str, Load], disks: Disks, *, keeps_old: bool) -> Failure:
    def outputs(load: Load) -> int:
        return sum(load.group_bytes) if load.whole or keeps_old else max(load.group_bytes, default=0)

    load = loads[path]
    room, needed, proof = disks.rooms[load.device], outputs(load), disks.proof_beside(load)
    there = [(outputs(one), disks.proof_beside(one)) for one in loads.values() if one.device == load.device]
    if keeps_old:
        there = [(sum(output for output, _ in there), sum(proof for _, proof in there))]
    because = ". With --keep-old, old segments make no room for new ones" if keeps_old else ""
    what = "its new segments take" if load.whole or keeps_old else "the new segments of its largest group take"
    beside = f", and temporary files of its proof in {disks.folder} {proof:,} B beside them" if proof else ""
    advice = room.advice(needed, proof) or "clean it in a run of its own: other partitions of this run take the room"
    advice_for_all = room.advice(*max(there, key=sum))
    return Failure(
        FailureKind.FULL,
        f"{path}: {what} up to {needed:,} B at once{beside}; {room}{because}. To clean it, {advice}",
        bytes_needed=needed + proof,
        for_all=f"{room}{because}" + (f". To clean all of them, {advice_for_all}" if advice_for_all else ""),
    )
