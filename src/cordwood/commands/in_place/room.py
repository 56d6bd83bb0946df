"""The free room for new segments, and the waves into which it divides the groups of segments."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace

from cordwood.cleaning.waves import Load, Waves, disk_bytes, schedule
from cordwood.commands.in_place.site import Site
from cordwood.commands.in_place.work import Work
from cordwood.engine.task import Failure, FailureKind
from cordwood.jobs.jobs import Jobs

#: Outputs leave this much of the free space of a disk: for checkpoints, the manifest of a keep folder, other programs.
RESERVE_BYTES = 8 << 20
_PLENTY_BYTES = 1 << 62


@dataclass(frozen=True, slots=True)
class Room:
    """What outputs may take on one disk.

    Attributes:
        free_bytes: of the disk; None: unknown.
        work_space: the limit that was asked for; None: there is none.
    """

    free_bytes: int | None
    work_space: int | None

    @property
    def of_disk(self) -> int:
        """What the disk itself allows."""
        return _PLENTY_BYTES if self.free_bytes is None else max(0, self.free_bytes - RESERVE_BYTES)

    @property
    def size_bytes(self) -> int:
        """What outputs may take."""
        return self.of_disk if self.work_space is None else min(self.of_disk, self.work_space)

    def __str__(self) -> str:
        limits = []
        if self.work_space is not None:
            limits.append(f"--work-space is {self.work_space:,} B")
        if self.free_bytes is not None:
            limits.append(f"{self.free_bytes:,} B of the disk are free, of which {RESERVE_BYTES:,} B stay in reserve")
        return f"new segments may take {self.size_bytes:,} B: {' and '.join(limits)}"

    def advice(self, needed_bytes: int) -> str:
        """What makes room for so much; empty if there is."""
        advice = []
        if self.free_bytes is not None and self.of_disk < needed_bytes:
            advice.append(f"free at least {needed_bytes + RESERVE_BYTES - self.free_bytes:,} B of that disk")
        if self.work_space is not None and self.work_space < needed_bytes:
            advice.append(f"give at least --work-space {needed_bytes}")
        return " and ".join(advice)


def refuse_full_disks(site: Site, work: Work, work_space: int | None, failures: MutableMapping[str, Failure]) -> Work:
    """Refuse partitions on disks that have no room for any output, before anything is written or Spark starts.

    Args:
        work_space: what outputs may take on a disk; None: its free space.

    Returns:
        the work that is left.
    """
    loads = _loads(site, work)
    rooms = _rooms(site, loads, work_space)
    full = [path for path, load in loads.items() if rooms[load.device].of_disk < disk_bytes([1])]
    failures.update(_too_large(full, loads, rooms, keeps_old=site.kept is not None))
    return work.without(full)


def plan_waves(
    site: Site, jobs: Jobs, work: Work, work_space: int | None, failures: MutableMapping[str, Failure]
) -> Waves:
    """Share out groups to waves. If they do not all fit, a clean without writing finds damage and exact sizes first.

    Args:
        work_space: what outputs may take on a disk; None: its free space.
        failures: partitions that cannot be cleaned, or have no room, are added.
    """
    keeps_old = site.kept is not None
    loads = _loads(site, work)
    rooms = _rooms(site, loads, work_space)
    sizes = {device: room.size_bytes for device, room in rooms.items()}
    waves = schedule(loads, sizes, kept=keeps_old)
    if len(waves.waves) > 1 or waves.too_large:
        loads = _tried(jobs, work, loads, failures)
        waves = schedule(loads, sizes, kept=keeps_old)
    failures.update(_too_large(waves.too_large, loads, rooms, keeps_old=keeps_old))
    return waves


def _loads(site: Site, work: Work) -> dict[str, Load]:
    """What each partition brings to the waves, as an upper bound."""
    return {
        path: Load(
            site.fs.stat(path).device,
            work.compaction(path).group_bytes,
            whole=work.plans[path].offset_map is not None,
        )
        for path in work.tasks
    }


def _rooms(site: Site, loads: Mapping[str, Load], work_space: int | None) -> dict[int, Room]:
    """The room on each disk."""
    disks = {load.device: path for path, load in loads.items()}
    return {device: Room(site.fs.free_bytes(path), work_space) for device, path in disks.items()}


def _tried(
    jobs: Jobs, work: Work, loads: Mapping[str, Load], failures: MutableMapping[str, Failure]
) -> dict[str, Load]:
    """The loads with exact sizes, without the partitions that cannot be cleaned."""
    tasks = list(work.tasks.values())
    found = {}
    for task, outcome in zip(tasks, jobs.clean(tasks, None, discard=True), strict=True):
        load = loads[task.path]
        if isinstance(outcome, Failure):
            failures[task.path] = outcome
        else:
            found[task.path] = load if load.whole else replace(load, group_bytes=tuple(outcome.group_bytes()))
    return found


def _too_large(
    paths: Sequence[str], loads: Mapping[str, Load], rooms: Mapping[int, Room], *, keeps_old: bool
) -> dict[str, Failure]:
    """The failures of partitions that there is no room for."""
    because = ". With --keep-old, old segments make no room for new ones" if keeps_old else ""
    needs = {
        path: sum(load.group_bytes) if load.whole or keeps_old else max(load.group_bytes, default=0)
        for path, load in loads.items()
    }
    failures = {}
    for path in paths:
        load, needed = loads[path], needs[path]
        room = rooms[load.device]
        there = [needs[other] for other, its_load in loads.items() if its_load.device == load.device]
        what = "its new segments take" if load.whole or keeps_old else "the new segments of its largest group take"
        advice = room.advice(needed) or "clean it in a run of its own: other partitions of this run take the room"
        advice_for_all = room.advice(sum(there) if keeps_old else max(there))
        failures[path] = Failure(
            FailureKind.FULL,
            f"{path}: {what} up to {needed:,} B at once, and {room}{because}. To clean it, {advice}",
            bytes_needed=needed,
            for_all=f"{room}{because}" + (f". To clean all of them, {advice_for_all}" if advice_for_all else ""),
        )
    return failures
