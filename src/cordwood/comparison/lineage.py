"""Finds the offset at which the histories of two replicas diverge, from their leader epochs.

A leader epoch has one leader. So if both replicas have an epoch, they have the same records of it up to the lower of
its two ends. From that offset on, another leader wrote one of the logs:

    newest     0–99 epoch 0 │ 100–129 epoch 2
    other      0–119 epoch 0                       diverged at 100: the other replica has 20 offsets of its own

A follower requests the end of its last epoch from its leader, gets the same offset, and truncates its log there. A
replica only lags if its history is a part of the other's history.

Source: Kafka AbstractFetcherThread.truncateToEpochEndOffsets, LeaderEpochFileCache.endOffsetFor.
"""

from __future__ import annotations

from dataclasses import dataclass

from cordwood.comparison.values import ReplicaState
from cordwood.storage.formats.leader_epochs import LeaderEpochs


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first offset whose history differs between two replicas.

    Attributes:
        newest_offsets, other_offsets: number of offsets of each replica from that offset on.
    """

    offset: int
    newest_offsets: int
    other_offsets: int


def divergence_of(newest: ReplicaState, other: ReplicaState) -> Divergence | None:
    """Return where two replicas diverge; None if one only lags, or if they have no epoch in common."""
    common = {one.epoch for one in newest.epochs.entries} & {one.epoch for one in other.epochs.entries}
    if not common:
        return None
    ends = [_end_of(max(common), one.epochs, one.end) for one in (newest, other)]
    offset = min(end for end, _ in ends)
    beyond = [one.end - offset for one in (newest, other)]
    # A replica that ends at this offset without a newer epoch has a part of the other's history.
    if any(
        not more and end == offset and not is_followed for more, (end, is_followed) in zip(beyond, ends, strict=True)
    ):
        return None
    if ends[0] == ends[1] and not all(beyond):
        return None
    return Divergence(offset, *beyond)


def _end_of(epoch: int, epochs: LeaderEpochs, end: int) -> tuple[int, bool]:
    """Return the end offset of an epoch in a log, and whether a newer epoch follows."""
    later = [one.start_offset for one in epochs.entries if one.epoch > epoch]
    return (min(later[0], end), True) if later else (end, False)
