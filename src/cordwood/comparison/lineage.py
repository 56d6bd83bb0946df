"""Finds the offset at which two replicas stop having the same history, from their leader epochs.

A leader epoch has one leader, so two replicas have the same records of an epoch that both know, up to the lower of its
ends in both. From there on one of them was written by another leader:

    believed   0–99 epoch 0 │ 100–129 epoch 2
    other      0–119 epoch 0                       diverged at 100: 20 offsets that the believed one never had

A follower finds the same offset when it asks its leader for the end of its last epoch, and truncates its log there. A
replica that has a part of the other's history, and nothing else, only lags.

Source: Kafka AbstractFetcherThread.truncateToEpochEndOffsets, LeaderEpochFileCache.endOffsetFor.
"""

from __future__ import annotations

from dataclasses import dataclass

from cordwood.comparison.values import ReplicaState
from cordwood.storage.formats.leader_epochs import LeaderEpochs


@dataclass(frozen=True, slots=True)
class Divergence:
    """The offset from which on two replicas have different histories.

    Attributes:
        believed_offsets, other_offsets: number of offsets from there on in each.
    """

    offset: int
    believed_offsets: int
    other_offsets: int


def divergence_of(believed: ReplicaState, other: ReplicaState) -> Divergence | None:
    """Return where two replicas diverge; None if one only lags, or if their epochs do not show it."""
    common = {one.epoch for one in believed.epochs.entries} & {one.epoch for one in other.epochs.entries}
    if not common:
        return None
    ends = [_end_of(max(common), one.epochs, one.end) for one in (believed, other)]
    offset = min(end for end, _ in ends)
    beyond = [one.end - offset for one in (believed, other)]
    # Whoever ends here without a newer epoch has a part of the other's history.
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
