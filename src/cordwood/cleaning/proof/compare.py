"""Compares two states of a log, a range of offsets at a time.

Both states are read side by side, in offset order, each once; a file that both have is read once for both. One of two
passes compares a range:

    quick     compares bytes of both states, without rows; only for sound batches of magic 2 without a codec
    careful   handles all other ranges, and repeats a range in which the quick pass finds a difference, to locate it

A pass decides facts that need no other range: whether each record is still there, unchanged and in order, and whether
each batch kept its header fields. A key's last value depends on the whole log, so a pass only makes entries, which are
merged later, see `keys`; the outcome of a transaction depends on a later marker, see `transactions`.

Nothing is imported from `cleaning` or its kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cordwood.cleaning.proof import careful, quick
from cordwood.cleaning.proof.facts import Facts
from cordwood.cleaning.proof.judging import Judge
from cordwood.cleaning.proof.keys import KeyEntries, KeyRules
from cordwood.cleaning.proof.pairs import Pair, ViolationKind
from cordwood.cleaning.proof.producers import ProducerNotes
from cordwood.cleaning.proof.ranges import PairRange
from cordwood.cleaning.proof.reading import RangeWindows
from cordwood.cleaning.proof.scratch import Kept, Scratch, ScratchWriter
from cordwood.cleaning.proof.transactions import ABORTED
from cordwood.common.errors import CorruptFileError
from cordwood.fs.base import Store
from cordwood.storage.log.view import LogView


@dataclass(frozen=True, slots=True)
class RangeResult:
    """The result of comparing a range.

    Attributes:
        keys: entries of its records, see `KeyEntries`.
        seen, steps: facts of its producers and transactions, see `ProducerNotes`.
        aborted: ABORTED[entries], from the transaction indexes of the state after.
    """

    facts: Facts
    keys: list[Kept]
    seen: npt.NDArray[np.void]
    steps: list[Kept]
    aborted: npt.NDArray[np.void]


#: Compares both states of a range; the second is None if both have the same files.
_Pass = Callable[[RangeWindows, RangeWindows | None, Judge, ProducerNotes], None]


def compare_range(
    part: PairRange, pair: Pair, fs: Store, rules: KeyRules, scratch: Scratch, *, here_max: int = 0
) -> RangeResult:
    """Compare both states of a range.

    Args:
        here_max: number of key entries up to which they stay in memory; more are written to files of `scratch`.
    """
    before, after = pair.before.open(fs), pair.after.open(fs)

    def run(compare: _Pass, writer: ScratchWriter) -> RangeResult:
        facts = Facts()
        high = max(part.limit, pair.superseding_end or part.limit)
        keys = KeyEntries(rules, writer, np.array([pair.lowest, high], np.int64))
        notes = ProducerNotes(pair.lowest, writer)
        was = RangeWindows(before, part, pair.lowest, facts, ViolationKind.DAMAGE_BEFORE)
        now = None if part.same else RangeWindows(after, part, pair.lowest, facts, ViolationKind.DAMAGE_AFTER)
        compare(was, now, Judge(pair, part, facts, keys, before), notes)
        aborted = _aborted(after, part, pair.lowest, facts)
        seen, steps = notes.finish(here_max=here_max)
        return RangeResult(facts, keys.finish(here_max=here_max), seen, steps, aborted)

    with scratch.writer() as writer:
        try:
            return run(quick.compare, writer)
        except quick.OddError:
            return run(careful.compare, writer)


def _aborted(log: LogView, part: PairRange, lowest: int, facts: Facts) -> npt.NDArray[np.void]:
    """Return ABORTED[entries] from the transaction indexes of segments that start in a range."""
    found = [np.empty(0, ABORTED)]
    for segment in log.segments:
        if not part.start <= max(segment.base_offset, lowest) < part.end:
            continue
        try:
            index = segment.transaction_index()
        except CorruptFileError:
            facts.broken(ViolationKind.INDEX, segment.base_offset)
            continue
        if index is not None and index.entries:
            rows = np.empty(index.producer_ids.size, ABORTED)
            rows["pid"], rows["first"], rows["last"] = index.producer_ids, index.first_offsets, index.last_offsets
            found.append(rows)
    return np.concatenate(found)
