"""The position of a replica's log among those of other replicas: its last leader epoch, then its end.

A leader numbers its batches with its epoch, and a follower truncates its batches that the leader does not have. So the
log with the newest epoch has the valid batches. If two logs have the same last epoch, the longer log has all batches of
the shorter one. A KRaft voter compares logs in the same way before it votes:

    broker   leader epochs                 end    position
    1        0 from 0, 3 from 120          180    (3, 180)   the newest
    2        0 from 0, 3 from 120          150    (3, 150)   a follower that was behind
    3        0 from 0, 2 from 110          240    (2, 240)   was the leader in epoch 2; 120 records were never committed
"""

from __future__ import annotations

from dataclasses import dataclass

from cordwood.common.errors import DataError
from cordwood.common.types import NONE
from cordwood.storage.log.files import read_leader_epochs
from cordwood.storage.log.view import LogView


@dataclass(frozen=True, slots=True, order=True)
class LogPosition:
    """The last leader epoch of a log, and its end; the newest replica has the largest position.

    Attributes:
        epoch: NONE (-1) if the log has no leader epochs, or they are unreadable.

    Source: Kafka OffsetAndEpoch.compareTo, with which KafkaRaftClient decides on votes; KIP-966 has the same order for
    replicas.
    """

    epoch: int
    end_offset: int


def log_position(log: LogView) -> LogPosition:
    """Return the position of a log, from `leader-epoch-checkpoint` and the last batches.

    Raises:
        OSError, NotFoundError: the log is unreadable, or a running broker deleted it.
    """
    try:
        latest = read_leader_epochs(log.fs, log.path).latest
    except DataError:
        latest = None
    return LogPosition(NONE if latest is None else latest.epoch, log.next_offset)
