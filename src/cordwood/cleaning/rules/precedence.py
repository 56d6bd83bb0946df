"""The keep rule: which of two committed records of a key a clean keeps, and a reader takes for the key's value.

A rule ranks records. The record with the larger rank wins; of equal ranks, the later one in the log. Kafka's only rule
is *newest offset*: all ranks are equal. KIP-280 describes two others: the timestamp, and the version in a header.

    a=1   rank 7       superseded by the record below it
    a=2   rank 9       kept
    a=3   rank 8       superseded by the record above it; under newest offset it would be kept

Each part of Cordwood that depends on the rule takes it as a value: pass 1 of a clean (`rules.superseded`) and tables
order the records of a hash bucket by rank, the history of a key and the contents of a log take `ranks`. The proof of a
clean states the rule once more, in `proof.precedence`.

The cleaner checkpoint, waves of a clean in place, tables of the dirty keys, and Kafka's offset map serve newest offset
alone, because they assume that a record supersedes only earlier ones. Under another rule a clean compares all records
below its end in one wave, and a removed tombstone no longer supersedes records that are appended after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # Lists and plans import this module, but none of the code that decodes records.
    from cordwood.record.columns import Ranks


@dataclass(frozen=True, slots=True)
class Precedence:
    """A keep rule. A value that can be pickled, so `ranks` is a function of a module.

    Attributes:
        ranks: returns the rank of each record; None if all ranks are equal.
    """

    name: str
    ranks: Ranks | None = None

    @property
    def is_log_order(self) -> bool:
        """Whether the later of two records always wins."""
        return self.ranks is None

    def first_superseding(self, first_dirty_offset: int, log_start_offset: int) -> int:
        """Return the offset from which records can supersede others."""
        return first_dirty_offset if self.is_log_order else log_start_offset


NEWEST_OFFSET = Precedence("newest offset")
#: The rule of every log.
KEEP_RULE = NEWEST_OFFSET
