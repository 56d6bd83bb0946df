"""Comparisons of replicas for tests, in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cordwood.cleaning.proof.pairs import Side
from cordwood.cleaning.proof.scratch import Scratch
from cordwood.cleaning.proof.site import TaskSite
from cordwood.comparison import comparing
from cordwood.comparison.comparing import ReplicatedPartition
from cordwood.comparison.entries import KeyShare
from cordwood.comparison.values import ComparedReplica, Difference, PartitionComparison
from cordwood.fs.posix import PosixFileSystem

FS = PosixFileSystem()


def each_here(do: Callable[[Any], Any], items: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
    """Run tasks in this process."""
    return [do(item) for item in items]


def replica(path: Path, name: str = "", *, start: int = 0, **known: Any) -> ComparedReplica:
    """Return the replica in a partition's directory; by default all of it is committed."""
    return ComparedReplica(name or path.parent.name, Side(str(path), start), **known)


def compare_replicas(
    scratch: Path, replicas: Sequence[ComparedReplica], *, cores: int = 1, share: float = 1.0, **known: Any
) -> PartitionComparison:
    """Compare the replicas of a partition."""
    scratch.mkdir(exist_ok=True, parents=True)
    site = TaskSite(FS.location(), Scratch(FS.location(), str(scratch)))
    partition = ReplicatedPartition(None, tuple(replicas), **known)
    (found,) = comparing.compare_partitions(each_here, cores, FS, [partition], site, KeyShare(share))
    return found


def named(found: PartitionComparison) -> list[str]:
    """All differences in short: kind, replica, offset and key."""
    lines = []
    for pair in found.pairs:
        names = pair.newest.replica.name, pair.other.replica.name
        assert sum(pair.totals.values()) == len(pair.differences), "all are named"
        lines += [_short(one, names[one.role]) for one in pair.differences]
    return lines + [_short(one, name) for name, one in found.checkpoints]


def _short(one: Difference, name: str) -> str:
    offsets = f"{one.offset}" if one.end_offset == one.offset + 1 else f"{one.offset}-{one.end_offset - 1}"
    key = "" if one.key is None or one.offsets is None else f" {one.key.decode()}"
    return f"{one.kind} {name} {offsets}{key}"
