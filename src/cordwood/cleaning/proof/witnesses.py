"""Chooses the ranges that a proof reads if many files did not change.

A file that both states share needs no comparison. Its records matter only to removed records of the same keys, and to
transactions. So a proof reads the changed files, and then unchanged files one after another, until no unread file
can turn the verdict:

    a record is gone                    its key needs a witness: a newer committed record that stays. Unchanged files
                                        above it are read, newest first: the dirty section has all witnesses if the
                                        clean followed Kafka's rule
    a due tombstone is gone, and        no older value of its key may stay: all unchanged files below it are read
    no newer record of its key stays
    a transactional batch or a marker   its fate depends on markers of the whole log, and a removed marker decided the
    was read                            fate of older batches: the headers of all unchanged files are read
    transaction indexes differ          consumers skip other batches than before: the headers, too
    any other violation                 all is read, so that the report equals that of a full proof

For example, a=1 at offset 5 was removed, and a=9 at offset 90 is in an unchanged file: the segment of offset 90 is
read, and no older one. If a=∅ at 50 was removed when due, all segments below 50 are read: one may hold a=1.

Changed ranges are compared in both states, but remaining records below the dirty section are hardly ever witnesses. So
there only removed records get key entries (`Entries.REMOVED`), and equal batches are not decoded. Like an unread file,
the state after of such a range is read (`Entries.REMAINING`) if a key still needs a witness, or if an old value may be
back.

Why that suffices: an unread range adds the same records, batches and markers to both states. A key with a witness keeps
one whatever the other ranges hold. A batch that only unread ranges have is in both states. Damage in an unread file is
not found here; both states have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from cordwood.cleaning.proof.compare import RangeResult
from cordwood.cleaning.proof.pairs import Facts, Pair, ViolationKind
from cordwood.cleaning.proof.producers import SEEN
from cordwood.cleaning.proof.reading import Entries, PairRange
from cordwood.cleaning.proof.transactions import ABORTED

#: A search may save enough reading if unchanged files have at least this many bytes, and this share of those to read.
UNCHANGED_BYTES_MIN = 1 << 20
UNCHANGED_SHARE_MIN = 0.25
#: Violations that a newer record in an unread file may refute.
_LACKS_WITNESS = frozenset({ViolationKind.VALUE_LOST, ViolationKind.TOMBSTONE_LOST})


@dataclass(slots=True)
class RangeSearch:
    """The ranges of a pair: which of them have been read, with their results, and which are read next.

    Attributes:
        ranges: all ranges, one per segment of the state before.
        superseding_end: records below this offset supersede older ones.
        indexes_differ: both states have different transaction indexes.
        wanted: the ranges to read next; empty if none is wanted.
        first_dirty: see `Pair`.
    """

    ranges: Sequence[PairRange]
    superseding_end: int
    indexes_differ: bool
    wanted: list[PairRange] = field(default_factory=list)
    first_dirty: int = 0
    _reads_all: bool = True
    _unread: set[int] = field(default_factory=set)
    #: Ranges whose remaining records have no entries.
    _partial: set[int] = field(default_factory=set)
    _unread_headers: set[int] = field(default_factory=set)
    _results: list[tuple[PairRange, RangeResult]] = field(default_factory=list)
    _bytes_searched: int = 0

    @classmethod
    def of(cls, ranges: Sequence[PairRange], pair: Pair, *, indexes_differ: bool) -> RangeSearch:
        """Return a search that wants all ranges, or at first fewer, if that may save enough reading."""
        limit = max((one.limit for one in ranges), default=0)
        found = cls(ranges, max(limit, pair.superseding_end or limit), indexes_differ, first_dirty=pair.first_dirty)
        # Under another keep rule, a witness may be an older record.
        found._begin(reads_all=not pair.witnesses or pair.survivor.ranks is not None)
        return found

    @property
    def size_bytes(self) -> int:
        """Bytes of the wanted ranges."""
        return sum(one.size_bytes for one in self.wanted)

    @property
    def unread_bytes(self) -> int:
        """Bytes of the files whose records are not read."""
        return sum(self.ranges[at].size_bytes for at in self._unread)

    def restart(self) -> None:
        """Forget all results, as a file of theirs is lost."""
        self._begin(reads_all=self._reads_all)

    def add(self, part: PairRange, result: RangeResult) -> None:
        """Add the result of wanted ranges, which may be joined."""
        if any(other.headers_only and other.start <= part.start < other.end for other, _ in self._results):
            # Its batches were noted with the headers.
            result = replace(result, seen=np.empty(0, SEEN), steps=[], aborted=np.empty(0, ABORTED))
        self._results.append((part, result))

    def results(self) -> list[RangeResult]:
        """Return all results, in the order of their offsets."""
        return [result for _, result in sorted(self._results, key=lambda item: item[0].start)]

    def next_headers(self) -> bool:
        """Want the headers of unread ranges if a result has transactions; return whether any are wanted."""
        has_steps = any(result.steps for _, result in self._results)
        self.wanted = self._headers() if has_steps else []
        return bool(self.wanted)

    def next_ranges(self, facts: Facts, *, has_faults: bool) -> bool:
        """Want the ranges that may turn a verdict on all results; return whether any are wanted."""
        self.wanted = []
        if self._reads_all:
            return False
        broken = {kind for kind in ViolationKind if kind in facts.counts}
        missing = self._unread | self._partial
        below = {at for at in missing if self.ranges[at].start <= facts.deleted_max}
        above = []
        if broken:
            lowest = min((offset for kind in broken for offset, _ in facts.named[kind]), default=0)
            above = [at for at in sorted(missing) if self.ranges[at].end > lowest and self._supersedes(at)]
        if has_faults or broken - _LACKS_WITNESS or (broken and not above and not below):
            self._begin(reads_all=True)
        else:
            self.wanted = self._take(below | self._newest_of(above))
        return bool(self.wanted)

    def _begin(self, *, reads_all: bool) -> None:
        every = set(range(len(self.ranges)))
        changed = {at for at in every if not self.ranges[at].same}
        # The newest file below the limit, if it is unchanged and above all changed ones, probably has all witnesses.
        above = [at for at in sorted(every) if self._supersedes(at)][-1:] if changed else []
        chosen = changed.union(at for at in above if at > max(changed)) if _may_save_enough(self.ranges) else every
        self._unread, self._unread_headers, self._partial = every, every, set()
        self._results, self._bytes_searched = [], 0
        self.wanted = self._take(every if reads_all else chosen)
        if not reads_all:
            self._partial = {at for at in changed if self.ranges[at].start < self.first_dirty}
            starts = {self.ranges[at].start for at in self._partial}
            self.wanted = [replace(one, entries=Entries.REMOVED) if one.start in starts else one for one in self.wanted]
        self._reads_all = not (self._unread or self._partial)
        if self.indexes_differ:
            self.wanted += self._headers()

    def _supersedes(self, at: int) -> bool:
        return self.ranges[at].start < self.superseding_end

    def _newest_of(self, above: Sequence[int]) -> set[int]:
        """Return the newest of some ranges: as many bytes as were searched before, so that there are few rounds."""
        found: set[int] = set()
        size_bytes = 0
        for at in reversed(above):
            found.add(at)
            size_bytes += self.ranges[at].size_bytes
            if size_bytes >= self._bytes_searched:
                break
        return found

    def _take(self, chosen: set[int]) -> list[PairRange]:
        self._unread, self._unread_headers = self._unread - chosen, self._unread_headers - chosen
        found = [self.ranges[at] for at in sorted(chosen - self._partial)]
        found += [replace(self.ranges[at], entries=Entries.REMAINING) for at in sorted(chosen & self._partial)]
        self._partial = self._partial - chosen
        self._bytes_searched += sum(one.size_bytes for one in found if one.same)
        return found

    def _headers(self) -> list[PairRange]:
        found = [replace(self.ranges[at], headers_only=True) for at in sorted(self._unread_headers)]
        self._unread_headers = set()
        return found


def _may_save_enough(ranges: Sequence[PairRange]) -> bool:
    unchanged = sum(one.size_bytes for one in ranges if one.same)
    return unchanged >= max(UNCHANGED_BYTES_MIN, UNCHANGED_SHARE_MIN * sum(one.size_bytes for one in ranges))
