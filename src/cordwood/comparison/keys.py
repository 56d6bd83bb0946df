"""Decides, for each key, whether two replicas agree on its last committed value.

The replica with the newer last record is right: a cleaner removes a record only for a newer record of its key, and both
replicas would have that. One case is open: one replica has a value, and the other has no record. Either the key was
deleted, and its tombstone removed since; or the value was lost. Here the newest replica is right.

    newer record    last record of the opposite replica    difference
    value           an older value                         different
    value           an older tombstone                     lost
    value           none                                   lost, or resurrected if the other replica has the value
    tombstone       an older value                         resurrected
    tombstone       none, or a tombstone                   none: consumers see the same
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cordwood.cleaning.proof.keys import Slots, SlotTable, merge_hash_ranges
from cordwood.cleaning.proof.pairs import BoolArray, Int64Array
from cordwood.cleaning.proof.scratch import Kept, Scratch
from cordwood.common.types import override
from cordwood.comparison.markers import OffsetKinds
from cordwood.comparison.values import NAMED_MAX, Difference, DifferenceKind, PairFindings, PairRole, Sum
from cordwood.kernels.two_sides import FREE_LOW, SIDES_SLOT, merge_sides, move_sides


class _LastOfBoth(SlotTable):
    """A table from a key's fingerprint to its last record in each replica, SIDES_SLOT[keys]."""

    def __init__(self, newest: OffsetKinds, other: OffsetKinds, expected: int) -> None:
        self._kinds = tuple(array for kinds in (newest, other) for array in (kinds.firsts, kinds.lasts, kinds.kinds))
        super().__init__(expected)

    @override
    def empty(self, slots: int) -> Slots:
        table = np.empty(slots, SIDES_SLOT)
        table["low"] = FREE_LOW
        return table

    @override
    def enter(
        self, addresses: Int64Array, counts: Int64Array, at: tuple[int, int], *, insert: bool, table: Slots, used: int
    ) -> tuple[int, int, int]:
        arguments = (addresses, counts, *at, *self._kinds, insert, table, used, self.room(table, insert=insert))
        found: tuple[int, int, int] = merge_sides(*arguments)
        return found

    @override
    def move(self, table: Slots, larger: Slots) -> int:
        return int(move_sides(table, larger))

    @override
    def used_slots(self, table: Slots) -> Slots:
        found: Slots = table[table["low"] != FREE_LOW]
        return found


@dataclass(frozen=True, slots=True)
class KeyTask:
    """Hash ranges of a pair for one task."""

    chunks: tuple[Kept, ...]
    hash_ranges: int
    newest: OffsetKinds
    other: OffsetKinds


def judge_keys(task: KeyTask, scratch: Scratch) -> PairFindings:
    """Merge and judge some hash ranges."""

    def table_for(expected: int) -> SlotTable:
        return _LastOfBoth(task.newest, task.other, expected)

    findings = PairFindings()
    for slots in merge_hash_ranges(task.chunks, task.hash_ranges, scratch, table_for):
        judge(slots, findings)
    return findings


def judge(slots: Slots, findings: PairFindings) -> None:
    """Judge merged keys, SIDES_SLOT[keys]."""
    codes = np.stack([slots["last"], slots["other_last"]])
    has = codes >= 0
    offsets = np.where(has, codes >> 1, -1)
    tombstones = has & (codes & 1 == 1)
    values = has & ~tombstones
    same = codes[0] == codes[1]
    lags = offsets[1] > offsets[0]  # the newest replica has the older last record
    latest = offsets.max(axis=0)
    excused = np.where(lags, slots["excused"], slots["other_excused"]) > latest
    judged = ~same & ~excused
    findings.sum(Sum.KEYS_EQUAL, int((same & has[0]).sum()))
    findings.sum(Sum.KEYS_ABOVE, int((~same & excused).sum()))
    findings.sum(Sum.TOMBSTONES, int((judged & ~values.any(axis=0)).sum()))
    newer_has_value = np.where(lags, values[1], values[0])
    older_has_value, older_has_any = np.where(lags, values[0], values[1]), np.where(lags, has[0], has[1])
    older = np.where(lags, int(PairRole.NEWEST), int(PairRole.OTHER))
    is_open = newer_has_value & ~older_has_any
    back = (~newer_has_value & older_has_value) | (is_open & lags)
    # If only the other replica has the value, that replica is wrong.
    at_fault = np.where(is_open & lags, int(PairRole.OTHER), older)
    kinds = {
        DifferenceKind.RESURRECTED: back,
        DifferenceKind.LOST: newer_has_value & ~older_has_value & ~(is_open & lags),
        DifferenceKind.DIFFERENT: newer_has_value & older_has_value,
    }
    for kind, chosen in kinds.items():
        _report(kind, judged & chosen, offsets, tombstones, at_fault, findings)


def _report(
    kind: DifferenceKind,
    chosen: BoolArray,
    offsets: Int64Array,
    tombstones: BoolArray,
    at_fault: Int64Array,
    findings: PairFindings,
) -> None:
    places = np.flatnonzero(chosen)
    places = places[np.argsort(offsets.max(axis=0)[places], kind="stable")]
    for number, at in enumerate(places[:NAMED_MAX].tolist()):
        offset = int(offsets[:, at].max())
        pair = tuple(int(one) if one >= 0 else None for one in offsets[:, at])
        deleted = bool(tombstones[0, at]), bool(tombstones[1, at])
        count = places.size - NAMED_MAX + 1 if number == NAMED_MAX - 1 and places.size > NAMED_MAX else 1
        findings.differ(
            Difference(
                kind, PairRole(int(at_fault[at])), offset, offset + 1, offsets=(pair[0], pair[1]), tombstones=deleted
            ),
            count,
        )
