"""The violations that verification finds, their texts, the verdict on each pair, and the result of a verification."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cordwood.cleaning.proof.pairs import NAMED_MAX, Count, Facts, Pair, Side, ViolationKind
from cordwood.common.errors import DataError
from cordwood.common.text import Paged, number
from cordwood.fs.base import Store
from cordwood.record.columns import BatchWindow, decode
from cordwood.storage.log.view import LogView

#: The text of each kind of violation.
MEANINGS: Mapping[ViolationKind, str] = {
    ViolationKind.INVENTED: "a record is there that was not there before",
    ViolationKind.TWICE: "a record is there twice",
    ViolationKind.ORDER: "records or batches are not in the order of their offsets",
    ViolationKind.KEY: "the record had another key",
    ViolationKind.VALUE: "the record had another value",
    ViolationKind.HEADERS: "the record had other headers",
    ViolationKind.TIMESTAMP: "the record had another timestamp",
    ViolationKind.BATCH_INVENTED: "a batch is there whose offsets no batch had before",
    ViolationKind.BATCH_OFFSETS: "the batch had other first and last offsets",
    ViolationKind.BATCH_EPOCH: "the batch had another leader epoch",
    ViolationKind.BATCH_PRODUCER: "the batch had another producer id, epoch or sequence",
    ViolationKind.BATCH_ATTRIBUTES: "the batch had other attributes (codec, timestamp type, transactional, control)",
    ViolationKind.BATCH_TIME: "the batch had another largest timestamp",
    ViolationKind.HORIZON: "the batch's delete horizon is neither its old one nor the one due to it",
    ViolationKind.MARKER: "a transaction marker or control record is gone before its time",
    ViolationKind.UNTOUCHED: "a batch above the first uncleanable offset was changed or is gone",
    ViolationKind.DAMAGE_BEFORE: "the state before is damaged here, so nothing is proved; see `cordwood check`",
    ViolationKind.DAMAGE_AFTER: "damaged; see `cordwood check`",
    ViolationKind.READERS: "two readers do not agree on the contents of this batch",
    ViolationKind.VALUE_LOST: "the last committed value of a key is gone",
    ViolationKind.TOMBSTONE_LOST: "the tombstone of a key is gone before its time",
    ViolationKind.CAME_BACK: "a deleted key has a value again",
    ViolationKind.ABORTED_VISIBLE: "readers of committed data see an aborted transaction",
    ViolationKind.COMMITTED_HIDDEN: "a committed transaction is hidden from readers of committed data",
    ViolationKind.PRODUCER_LOST: "an active producer's last batch is gone, and with it the producer's state",
    ViolationKind.END_OFFSET: "the log ends elsewhere",
    ViolationKind.LOG_START: "the log starts elsewhere",
    ViolationKind.LEADER_EPOCHS: "the history of leader epochs is another",
    ViolationKind.PRODUCER_STATE: "a broker that loads it has another state of a producer",
    ViolationKind.INDEX: "an index or another file does not fit the log",
    ViolationKind.CHECKPOINT: "a checkpoint does not fit",
    ViolationKind.PARTITION: "a partition is missing, or was not there before",
    ViolationKind.TOPIC_ID: "partition.metadata names another topic than before, or none",
}
assert set(MEANINGS) == set(ViolationKind)
#: Violations about a record or batch of the state before; its file is looked up there.
_IN_BEFORE = {
    *(
        ViolationKind.MARKER,
        ViolationKind.UNTOUCHED,
        ViolationKind.DAMAGE_BEFORE,
        ViolationKind.VALUE_LOST,
        ViolationKind.TOMBSTONE_LOST,
    ),
    ViolationKind.PRODUCER_LOST,
}
#: Violations found by a key's fingerprint; the key itself is read from the log again.
_ABOUT_KEYS = {ViolationKind.VALUE_LOST, ViolationKind.TOMBSTONE_LOST, ViolationKind.CAME_BACK}


@dataclass(frozen=True, slots=True)
class Violation:
    """One promise that was not kept.

    Attributes:
        path: the file with the violation; for a removed record or batch, the file that held it.
        offset: offset of the record or batch; None if the violation concerns neither.
        key: key of the record; None if the violation does not concern a record with a key.
    """

    kind: ViolationKind
    what: str
    path: str
    offset: int | None = None
    key: bytes | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one pair.

    Attributes:
        counts: number of proved records, keys and so on, by `Count`.
        violations: up to `NAMED_MAX` of each kind, sorted by kind and offset.
        totals: the number of violations of each kind.
    """

    pair: Pair
    counts: Mapping[str, int]
    violations: tuple[Violation, ...] = ()
    totals: Mapping[str, int] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether everything is proved: there are no violations."""
        return not self.totals


# ---- words -----------------------------------------------------------------------------------------------------------


class ViolationNotes:
    """Collects facts, and makes a verdict for each pair."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self._pairs = pairs
        self._totals: list[dict[str, int]] = [{} for _ in pairs]
        self._violations: list[list[Violation]] = [[] for _ in pairs]

    def add(self, number: int, facts: Facts) -> None:
        """Add facts of a pair."""
        totals = self._totals[number]
        for name, count in facts.counts.items():
            totals[name] = totals.get(name, 0) + count
        for kind, named in facts.named.items():
            self._violations[number] += [Violation(kind, MEANINGS[kind], "", at, key) for at, key in named]

    def state(self, number: int, kind: ViolationKind, what: str, path: str) -> None:
        """Record and count a violation that is not about a record."""
        totals = self._totals[number]
        totals[kind] = totals.get(kind, 0) + 1
        if totals[kind] <= NAMED_MAX:
            self._violations[number].append(Violation(kind, what, path))

    def verdicts(self, fs: Store) -> list[Verdict]:
        """Return the verdict on each pair. Looks up the file, and if needed the key, of each violation in `fs`."""
        return [self._verdict(fs, number, pair) for number, pair in enumerate(self._pairs)]

    def _verdict(self, fs: Store, number: int, pair: Pair) -> Verdict:
        totals = self._totals[number]
        order = list(ViolationKind)
        found = sorted(self._violations[number], key=lambda one: (order.index(one.kind), one.offset or 0))
        some = [one for kind in order for one in [one for one in found if one.kind is kind][:NAMED_MAX]]
        return Verdict(
            pair,
            {name: totals.get(name, 0) for name in Count},
            tuple(_with_files(fs, pair, _with_keys(fs, pair, some))),
            {name: totals[name] for name in ViolationKind if name in totals},
        )


def _with_keys(fs: Store, pair: Pair, violations: Iterable[Violation]) -> Iterator[Violation]:
    """Yield the violations; read the keys of violations found by fingerprint from the state before."""
    log: LogView | None = None
    for one in violations:
        if one.kind not in _ABOUT_KEYS or one.offset is None:
            yield one
            continue
        log = log or pair.before.open(fs)
        yield replace(one, key=key_at(log, one.offset))


def key_at(log: LogView, offset: int) -> bytes | None:
    """Return the key of the record at an offset; None if it cannot be read."""
    try:
        for _, item in log.windows(start_offset=offset, end_offset=offset + 1):
            for columns in decode(item) if isinstance(item, BatchWindow) else ():
                for row in columns.rows[columns.rows["offset"] == offset]:
                    start, size = int(row["key_start"]), int(row["key_size"])
                    return columns.data[start : start + size].tobytes() if size >= 0 else None
    except (DataError, OSError):
        pass
    return None


def _with_files(fs: Store, pair: Pair, violations: Iterable[Violation]) -> Iterator[Violation]:
    """Yield the violations; add the path of the segment to violations with an offset and no path."""
    places: dict[bool, Callable[[int], str]] = {}
    for one in violations:
        if one.path or one.offset is None:
            yield one
            continue
        in_before = one.kind in _IN_BEFORE
        if in_before not in places:
            places[in_before] = _file_finder(pair.before if in_before else pair.after, fs)
        yield Violation(one.kind, one.what, places[in_before](one.offset), one.offset, one.key)


def _file_finder(side: Side, fs: Store) -> Callable[[int], str]:
    """Return a function from an offset to the path of the `.log` that holds it."""
    log = side.open(fs)
    return lambda offset: side.file_of(log.segments_from(offset)[0]) if log.segments else side.path


# ---- result ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class VerifyResult(Paged):
    """The comparison of two states.

    Attributes:
        now_ms: the time against which delete horizons were judged.
        verdicts: one per partition that both states have.
        violations: violations outside of any partition, or in files of a partition other than its log.
        excused: log start offsets that moved, where the caller allowed it.
        seconds: total time, without the start of Spark.
    """

    before: str
    after: str
    now_ms: int
    verdicts: tuple[Verdict, ...]
    violations: tuple[Violation, ...] = ()
    excused: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether everything is proved: there are no violations."""
        return not self.violations and all(verdict.holds for verdict in self.verdicts)

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of proved records, keys and so on, summed over all partitions."""
        return {name: sum(one.counts[name] for one in self.verdicts) for name in Count}

    @property
    def totals(self) -> Mapping[str, int]:
        """The number of violations of each kind."""
        found = {name: sum(one.totals.get(name, 0) for one in self.verdicts) for name in ViolationKind}
        for one in self.violations:
            found[one.kind] += 1
        return {name: count for name, count in found.items() if count}

    def __str__(self) -> str:
        total = sum(self.totals.values())
        what = "every guarantee holds" if self.holds else number(total, "violation")
        return f"{self.before} → {self.after}: {number(len(self.verdicts), 'partition')}, {what}"
