"""Finds checkpoints that do not fit their log; each message has a broker's reaction when it loads the log."""

from __future__ import annotations

from collections.abc import Iterator

from cordwood.comparison.values import Difference, DifferenceKind, PairRole, ReplicaState


def impossible_checkpoints(state: ReplicaState) -> Iterator[Difference]:
    """Yield a difference for each checkpoint of a replica that no broker leaves behind.

    A log that ends below its own high watermark has lost acknowledged records. If a log ends below its log start, its
    broker will delete all of it. Consumers see both.
    """
    replica, end = state.replica, state.end

    def differs(kind: DifferenceKind, offset: int, what: str) -> Difference:
        return Difference(kind, PairRole.OTHER, min(offset, end), max(offset, end), abs(offset - end), what=what)

    if state.start > end:
        what = f"the log start offset, {state.start}, is above the log's end, {end}: a broker deletes the whole log"
        yield differs(DifferenceKind.TRUNCATED, state.start, what)
    elif state.committed > end:
        what = (
            f"the high watermark, {state.committed}, is above the log's end, {end}: a broker lowers it, and if it "
            "leads, its followers truncate their logs"
        )
        yield differs(DifferenceKind.TRUNCATED, state.committed, what)
    elif replica.recovery_point is not None and replica.recovery_point > end:
        what = (
            f"the recovery point, {replica.recovery_point}, is above the log's end, {end}: the log has lost records "
            "that were on the disk; a broker lowers it"
        )
        yield differs(DifferenceKind.CHECKPOINT, replica.recovery_point, what)
    if replica.clean_below is not None and replica.clean_below > end:
        what = (
            f"the cleaner's first dirty offset, {replica.clean_below}, is above the log's end, {end}: a broker cleans "
            "again from the log start"
        )
        yield differs(DifferenceKind.CHECKPOINT, replica.clean_below, what)
    latest = state.epochs.latest
    if latest is not None and latest.start_offset > end:
        what = (
            f"leader epoch {latest.epoch} starts at {latest.start_offset}, above the log's end, {end}: a broker drops "
            "the epoch"
        )
        yield differs(DifferenceKind.CHECKPOINT, latest.start_offset, what)
