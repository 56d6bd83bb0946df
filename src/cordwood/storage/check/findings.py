"""The kinds of findings of a check, with their severity and their consequence for a broker.

A finding states a fact with its position and, separately, its consequence for a broker. The table `KINDS` has a line
per kind. A finding may be less severe than its kind, if the next load repairs the file anyway.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from dataclasses import dataclass, field, replace
from enum import StrEnum

from cordwood.storage.node.start import Effect

#: The most findings of one kind listed per file, so that the report on a damaged file stays small.
FINDINGS_MAX = 100
#: The same limit for findings that are not damage.
REPAIRED_MAX = 3


class Severity(StrEnum):
    """How bad a finding is."""

    #: A broker would reject, lose or misread something.
    DAMAGE = "damage"
    #: Left behind by a crash or a shutdown; the next load repairs it.
    RECOVERY = "recovery"
    #: Odd, and harmless.
    NOTE = "note"


class Kind(StrEnum):
    """Kinds of findings. The values are used in `--json`."""

    # the file itself
    UNREADABLE = "unreadable"
    BAD_FILE_NAME = "bad-file-name"
    NAME_NOT_CANONICAL = "name-not-canonical"
    FOREIGN_FILE = "foreign-file"
    LEFTOVER = "leftover"
    SWAP_UNFINISHED = "swap-unfinished"
    # batches
    TORN_TAIL = "torn-tail"
    ZERO_TAIL = "zero-tail"
    TORN_SEGMENT = "torn-segment"
    NOT_A_BATCH = "not-a-batch"
    BATCH_CRC = "batch-crc"
    UNKNOWN_CODEC = "unknown-codec"
    CODEC_NOT_ALLOWED = "codec-not-allowed"
    COMPRESSION = "compression"
    OFFSET_DELTA = "offset-delta"
    NEGATIVE_OFFSET = "negative-offset"
    RECORD_COUNT = "record-count"
    ATTRIBUTES = "attributes"
    BATCH_PRODUCER = "batch-producer"
    BATCH_ORDER = "batch-order"
    OFFSET_BELOW_BASE = "offset-below-base"
    OFFSET_TOO_HIGH = "offset-too-high"
    SEGMENT_OVERLAP = "segment-overlap"
    SEGMENT_SIZE = "segment-size"
    MAX_TIMESTAMP = "max-timestamp"
    CONTROL_BATCH = "control-batch"
    # records
    RECORD = "record"
    TRAILING_BYTES = "trailing-bytes"
    MISSING_RECORDS = "missing-records"
    RECORD_OFFSET = "record-offset"
    INNER_CRC = "inner-crc"
    INNER_MESSAGE = "inner-message"
    BATCH_TOO_LARGE = "batch-too-large"
    # indexes
    INDEX_MISSING = "index-missing"
    INDEX_WITHOUT_LOG = "index-without-log"
    INDEX_PADDED = "index-padded"
    INDEX_SIZE = "index-size"
    OFFSET_INDEX_ORDER = "offset-index-order"
    OFFSET_INDEX_POSITION = "offset-index-position"
    OFFSET_INDEX_OFFSET = "offset-index-offset"
    TIME_INDEX_ORDER = "time-index-order"
    TIME_INDEX_ENTRY = "time-index-entry"
    TIME_INDEX_END = "time-index-end"
    TRANSACTION_INDEX_VERSION = "transaction-index-version"
    TRANSACTION_INDEX_ORDER = "transaction-index-order"
    TRANSACTION_INDEX_EXTRA = "transaction-index-extra"
    TRANSACTION_INDEX_MISSING = "transaction-index-missing"
    TRANSACTION_INDEX_ENTRY = "transaction-index-entry"
    # state
    SNAPSHOT_UNREADABLE = "snapshot-unreadable"
    SNAPSHOT_BEYOND_END = "snapshot-beyond-end"
    SNAPSHOT_ENTRY = "snapshot-entry"
    LEADER_EPOCHS_UNREADABLE = "leader-epochs-unreadable"
    LEADER_EPOCHS_MISSING = "leader-epochs-missing"
    LEADER_EPOCHS_ORDER = "leader-epochs-order"
    LEADER_EPOCHS_BEYOND_END = "leader-epochs-beyond-end"
    LEADER_EPOCHS_MISMATCH = "leader-epochs-mismatch"
    BATCH_LEADER_EPOCH = "batch-leader-epoch"
    PARTITION_METADATA = "partition-metadata"
    TOPIC_ID = "topic-id"
    QUORUM_STATE = "quorum-state"
    NO_SEGMENT = "no-segment"
    KEY_INDEX_UNREADABLE = "key-index-unreadable"
    KEY_INDEX_STALE = "key-index-stale"
    KEY_INDEX_WITHOUT_LOG = "key-index-without-log"
    LOG_CONFIGS_UNREADABLE = "log-configs-unreadable"
    # the log directory
    CHECKPOINT_UNREADABLE = "checkpoint-unreadable"
    CHECKPOINT_OFFSET = "checkpoint-offset"
    CHECKPOINT_BEYOND_END = "checkpoint-beyond-end"
    CHECKPOINT_PARTITION = "checkpoint-partition"
    META_PROPERTIES = "meta-properties"
    CLEAN_SHUTDOWN = "clean-shutdown"
    BAD_DIRECTORY_NAME = "bad-directory-name"
    DUPLICATE_PARTITION = "duplicate-partition"
    FUTURE_TWIN = "future-twin"
    CHECKPOINT_DUPLICATE = "checkpoint-duplicate"
    NOT_WRITABLE = "not-writable"
    # the node
    METADATA_LOG = "metadata-log"
    METADATA_DIFFERS = "metadata-differs"
    DIRECTORY_MISSING = "directory-missing"
    PARTITION_MISSING = "partition-missing"
    SEGMENT_MISSING = "segment-missing"
    # the tier
    TIER_METADATA = "tier-metadata"
    TIER_OBJECT_MISSING = "tier-object-missing"
    TIER_OBJECT = "tier-object"
    TIER_GAP = "tier-gap"
    TIER_LOG_START = "tier-log-start"
    TIER_OTHER_BRANCH = "tier-other-branch"
    TIER_ABANDONED = "tier-abandoned"
    TIER_UNLISTED = "tier-unlisted"
    TIER_DELETION = "tier-deletion"
    TIER_COPY = "tier-copy"
    TIER_ORPHAN = "tier-orphan"
    TIER_FOREIGN = "tier-foreign"


_D, _R, _N = Severity.DAMAGE, Severity.RECOVERY, Severity.NOTE

#: Effects on a broker's start if it fails to read a file. Each was tested with a broker that has two log directories.
STOPS = "a broker does not start while it is there"
OFFLINE = "a broker that loads it takes the whole log directory offline"
NO_START = "a broker does not start"
VITAL = "a broker does not start: it takes the log directory offline, and this is its only one or has the metadata log"
ALL_STRAY = (
    "a broker begins a cluster without topics and takes all partitions for strays, unless other nodes have the log"
)
STRAY = "a broker takes the partition for a stray, renames its directory and serves an empty log instead"
STRAY_ONLY = "a broker takes the partition for a stray, renames its directory and does not serve it"
EMPTY = "a broker starts an empty log instead, and serves that"
_LOST_BEHIND = (
    "a read that reaches it fails; a recovery cuts the segment here and deletes all later segments, valid data included"
)
_MISDIRECTED = "a read by offset that uses this entry starts at the wrong position and fails or misses records"
CLEANER_ENDS = "the cleaner threads of the broker end: nothing is compacted any more, in any log directory"
_UNUSED = "brokers ignore it; it is not used, and is made again"
_MISDATED = "offset lookups by time and retention by time give wrong results in this segment"
_STATE = "a broker that loads this snapshot misjudges this producer's next batch or the last stable offset"
_EPOCHS = "followers and consumers that ask where an epoch ended get a wrong offset and truncate too much or too little"

#: Severity of each kind, and its consequence for a broker.
KINDS: dict[Kind, tuple[Severity, str]] = {
    Kind.UNREADABLE: (_D, OFFLINE),
    Kind.BAD_FILE_NAME: (_D, STOPS),
    Kind.NAME_NOT_CANONICAL: (_D, "a broker lists it, then looks for the canonical name and does not find it"),
    Kind.FOREIGN_FILE: (_N, "brokers ignore it"),
    Kind.LEFTOVER: (_R, "the next load deletes it"),
    Kind.SWAP_UNFINISHED: (
        _R,
        "the next load completes the swap: it deletes the files that this one replaces and renames it",
    ),
    Kind.TORN_TAIL: (_R, "normal after a crash: the next load cuts it off; no complete batch is lost"),
    Kind.ZERO_TAIL: (_R, "preallocated space, or data lost in a power cut; the next load cuts it off"),
    Kind.TORN_SEGMENT: (_D, "reads skip to the next segment; a recovery cuts here and deletes all later segments"),
    Kind.NOT_A_BATCH: (_D, _LOST_BEHIND),
    Kind.BATCH_CRC: (
        _D,
        "consumers and followers reject the batch; a recovery cuts the log here and deletes valid data behind it too",
    ),
    Kind.UNKNOWN_CODEC: (_D, "no consumer can read the batch, and the cleaner stops at it"),
    Kind.CODEC_NOT_ALLOWED: (_D, "brokers and consumers refuse zstd in message formats 0 and 1"),
    Kind.COMPRESSION: (_D, "no consumer can decompress the batch, and the cleaner stops at it"),
    Kind.OFFSET_DELTA: (_D, "the batch ends before it starts: offset lookups and recovery fail or go wrong here"),
    Kind.NEGATIVE_OFFSET: (_D, "no record can have a negative offset; a recovery cuts the log here"),
    Kind.RECORD_COUNT: (_D, "consumers reject the batch as corrupt"),
    Kind.ATTRIBUTES: (_N, "brokers write these bits as 0 and ignore them"),
    Kind.BATCH_PRODUCER: (_D, "no broker accepts such a producer; producer state rebuilt from this batch is wrong"),
    Kind.BATCH_ORDER: (_D, "offsets must increase from batch to batch; consumers skip or repeat records here"),
    Kind.OFFSET_BELOW_BASE: (
        _D,
        "no index can hold this offset; reads look for it in an earlier segment; a recovery fails here",
    ),
    Kind.OFFSET_TOO_HIGH: (_D, "no index of this segment can hold this offset; a load splits the segment"),
    Kind.SEGMENT_OVERLAP: (_D, "two segments hold the same offsets; a read may get them from either"),
    Kind.SEGMENT_SIZE: (_D, "brokers refuse to open a segment of 2 GiB or more"),
    Kind.MAX_TIMESTAMP: (
        _D,
        "the header's largest timestamp is not that of the records; lookups and retention by time go wrong",
    ),
    Kind.CONTROL_BATCH: (
        _D,
        "a broker cannot read the kind of the marker; consumers and recovery fail at it or misjudge transactions",
    ),
    Kind.RECORD: (_D, "consumers and the cleaner fail at this batch"),
    Kind.TRAILING_BYTES: (_D, "consumers reject the batch: bytes remain after its last record"),
    Kind.MISSING_RECORDS: (_D, "consumers reject the batch: it ends before its last record"),
    Kind.RECORD_OFFSET: (_D, "consumers skip or repeat records of this batch"),
    Kind.INNER_CRC: (_D, "consumers that check the inner messages reject the batch"),
    Kind.INNER_MESSAGE: (_D, "consumers and the cleaner fail at this compressed message set"),
    Kind.BATCH_TOO_LARGE: (
        _D,
        "decompressing the batch can exhaust the memory of a consumer or the cleaner",
    ),
    Kind.INDEX_MISSING: (_R, "the next load rebuilds the segment's indexes"),
    Kind.INDEX_WITHOUT_LOG: (_D, "its .log file is missing; the next load deletes the index"),
    Kind.INDEX_PADDED: (_R, "an index has its full size while in use; the next load after a crash rebuilds it"),
    Kind.INDEX_SIZE: (_D, "the file ends inside an entry: entries appended later are misaligned"),
    Kind.OFFSET_INDEX_ORDER: (_D, _MISDIRECTED),
    Kind.OFFSET_INDEX_POSITION: (_D, _MISDIRECTED),
    Kind.OFFSET_INDEX_OFFSET: (_D, _MISDIRECTED),
    Kind.TIME_INDEX_ORDER: (_D, _MISDATED),
    Kind.TIME_INDEX_ENTRY: (_D, _MISDATED),
    Kind.TIME_INDEX_END: (_D, _MISDATED),
    Kind.TRANSACTION_INDEX_VERSION: (_D, STOPS),
    Kind.TRANSACTION_INDEX_ORDER: (
        _D,
        "reads of committed data miss aborted transactions; a load may rebuild the index",
    ),
    Kind.TRANSACTION_INDEX_EXTRA: (
        _D,
        "readers of committed data may miss records that were not aborted",
    ),
    Kind.TRANSACTION_INDEX_MISSING: (_D, "readers of committed data get the records of this aborted transaction"),
    Kind.TRANSACTION_INDEX_ENTRY: (_D, "readers of committed data get aborted records or miss committed ones"),
    Kind.SNAPSHOT_UNREADABLE: (
        _R,
        "a broker deletes it and rebuilds producer state from an older one and the log; it may forget idle producers",
    ),
    Kind.SNAPSHOT_BEYOND_END: (_D, "a broker deletes it and rebuilds producer state from the remaining log"),
    Kind.SNAPSHOT_ENTRY: (_D, _STATE),
    Kind.LEADER_EPOCHS_UNREADABLE: (_D, OFFLINE),
    Kind.LEADER_EPOCHS_MISSING: (_D, _EPOCHS),
    Kind.LEADER_EPOCHS_ORDER: (_D, "a broker drops the earlier entries that contradict this one"),
    Kind.LEADER_EPOCHS_BEYOND_END: (_D, "the log was longer once; a load drops the entry"),
    Kind.LEADER_EPOCHS_MISMATCH: (_D, _EPOCHS),
    Kind.BATCH_LEADER_EPOCH: (
        _D,
        "leader epochs never decrease in a log; a recovery would write a wrong epoch history",
    ),
    Kind.PARTITION_METADATA: (_D, OFFLINE),
    Kind.TOPIC_ID: (_D, STRAY),
    Kind.QUORUM_STATE: (_D, "the node does not start, as it cannot read its own vote"),
    Kind.NO_SEGMENT: (_D, "a broker starts an empty log here"),
    Kind.KEY_INDEX_UNREADABLE: (_N, _UNUSED),
    Kind.KEY_INDEX_STALE: (_N, _UNUSED),
    Kind.KEY_INDEX_WITHOUT_LOG: (_N, "brokers ignore it"),
    Kind.LOG_CONFIGS_UNREADABLE: (
        _N,
        "brokers ignore it; a live log without it keeps everything until its configs are set again",
    ),
    Kind.CHECKPOINT_UNREADABLE: (_D, OFFLINE),
    Kind.CHECKPOINT_OFFSET: (_D, "no offset can be negative; a broker takes it for 0 or fails on it"),
    Kind.CHECKPOINT_BEYOND_END: (_D, "the log was longer once: records beyond its end are lost"),
    Kind.CHECKPOINT_PARTITION: (_N, "the entry's partition is not in this directory; brokers ignore the entry"),
    Kind.META_PROPERTIES: (_D, "a broker takes the log directory offline and continues without it"),
    Kind.CLEAN_SHUTDOWN: (_N, "the shutdown counts as clean, but the broker epoch is not known"),
    Kind.BAD_DIRECTORY_NAME: (_D, STOPS),
    Kind.DUPLICATE_PARTITION: (_D, "a broker does not start with both"),
    Kind.FUTURE_TWIN: (_N, "a move between log directories has its source and its target in the same directory"),
    Kind.CHECKPOINT_DUPLICATE: (_D, CLEANER_ENDS),
    Kind.NOT_WRITABLE: (_D, OFFLINE),
    Kind.METADATA_LOG: (_D, NO_START),
    Kind.METADATA_DIFFERS: (
        _D,
        "brokers disagree about the cluster from here on; restore this log from another broker's before it starts",
    ),
    Kind.DIRECTORY_MISSING: (_D, NO_START),
    Kind.PARTITION_MISSING: (_D, EMPTY),
    Kind.SEGMENT_MISSING: (_D, "a broker serves the log without these records, and reports no error"),
    Kind.TIER_METADATA: (
        _D,
        "a broker stops to read the metadata topic here: fetches from the tier fail for all partitions whose metadata "
        "it has not read yet; remove the record from all replicas while their brokers are stopped",
    ),
    Kind.TIER_OBJECT_MISSING: (
        _D,
        "fetches of these offsets from a broker fail; restore the object from another version or copy of the bucket",
    ),
    Kind.TIER_OBJECT: (
        _D,
        "fetches of these offsets from a broker fail or miss records; compare the object with other versions of it",
    ),
    Kind.TIER_GAP: (
        _D,
        "a broker answers OFFSET_OUT_OF_RANGE for these offsets; look for their objects in the tier, or delete the "
        "records below the gap's end",
    ),
    Kind.TIER_LOG_START: (
        _D,
        "a broker answers OFFSET_OUT_OF_RANGE for these offsets, and consumers that begin at the earliest offset never "
        "get on; delete the records below the first leader epoch",
    ),
    Kind.TIER_OTHER_BRANCH: (
        _N,
        "a broker reads a remote segment to its end: consumers that read from the tier may get records of the "
        "abandoned branch at these offsets; read them with Cordwood instead",
    ),
    Kind.TIER_ABANDONED: (
        _N,
        "the segments hold a branch of the log that was abandoned; a broker deletes them only after retention has "
        "removed the log up to a later leader epoch",
    ),
    Kind.TIER_UNLISTED: (
        _N,
        "a later copy replaced the segment, and no broker deletes it before its topic; it only costs space",
    ),
    Kind.TIER_DELETION: (
        _N,
        "a broker tries again in every round; until then it deletes no other segment of the partition, and with "
        "retention.bytes the log start moves on in each round; see the broker's log for the reason",
    ),
    Kind.TIER_COPY: (
        _N,
        "a broker keeps all segments from here on its disk until a copy succeeds; see the broker's log for the reason",
    ),
    Kind.TIER_ORPHAN: (
        _N,
        "no reader uses the objects, and a broker may never delete them; delete them once no broker copies the segment",
    ),
    Kind.TIER_FOREIGN: (
        _N,
        "another broker or cluster may own these objects; delete them only if no broker has metadata about them",
    ),
}

assert set(KINDS) == set(Kind)

#: Effect on a broker's start by the meaning of a finding. Findings with other meanings do not affect the start.
_EFFECTS = {
    STOPS: Effect.DOES_NOT_START,
    NO_START: Effect.DOES_NOT_START,
    OFFLINE: Effect.DIRECTORY_OFFLINE,
    KINDS[Kind.META_PROPERTIES][1]: Effect.DIRECTORY_OFFLINE,
    VITAL: Effect.DOES_NOT_START,
    STRAY: Effect.STRAY,
    STRAY_ONLY: Effect.STRAY,
    KINDS[Kind.QUORUM_STATE][1]: Effect.DOES_NOT_START,
    EMPTY: Effect.STARTS_EMPTY,
    CLEANER_ENDS: Effect.CLEANER_ENDS,
    KINDS[Kind.DUPLICATE_PARTITION][1]: Effect.DOES_NOT_START,
}

#: Kinds of damage that make a recovery cut the log, even if valid data follows.
CUTS = frozenset({Kind.NOT_A_BATCH, Kind.TORN_SEGMENT, Kind.BATCH_CRC, Kind.NEGATIVE_OFFSET})


@dataclass(frozen=True, slots=True)
class Behind:
    """Readable data in a log behind damage.

    Attributes:
        records: number of records, including control records.
        size_bytes: size of the batches with these records.
        end_offset: offset behind the last of these batches.
    """

    records: int
    size_bytes: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class Finding:
    """One inconsistency.

    Attributes:
        path: path of the inconsistent file or directory.
        severity: severity of this finding; may be less than its kind's.
        what: the fact, as text.
        meaning: the consequence for a broker.
        position: position in the file, in bytes.
        behind: data that a recovery deletes when it cuts the log here; None unless it cuts here first.
        effect: effect on a broker's start; None if the inconsistency does not affect it.
    """

    path: str
    kind: Kind
    severity: Severity
    what: str
    meaning: str
    position: int | None = None
    offset: int | None = None
    behind: Behind | None = None
    effect: Effect | None = None

    def __str__(self) -> str:
        place = "" if self.position is None else f" at position {self.position}"
        place += "" if self.offset is None else f" (offset {self.offset})"
        return f"{self.severity} {self.kind} in {self.path}{place}: {self.what}"


@dataclass
class Findings:
    """Collects findings, up to a limit per kind and file; further findings are only counted."""

    found: list[Finding] = field(default_factory=list)
    _counts: Counter[tuple[str, Kind]] = field(default_factory=Counter)

    def add(
        self,
        kind: Kind,
        path: str,
        what: str,
        *,
        position: int | None = None,
        offset: int | None = None,
        severity: Severity | None = None,
        meaning: str | None = None,
        effect: Effect | None = None,
    ) -> None:
        """Add a finding. Its kind determines the default severity and meaning, its meaning the default effect."""
        usual, usually = KINDS[kind]
        severity = severity or usual
        self._counts[path, kind] += 1
        if self._counts[path, kind] <= _limit(severity):
            meaning = meaning or usually
            effect = effect or (_EFFECTS.get(meaning) if severity is Severity.DAMAGE else None)
            self.found.append(Finding(path, kind, severity, what, meaning, position, offset, effect=effect))

    def keep_repeated(self, other: Findings) -> None:
        """Keep only findings at places where another check of the same files found the same."""
        again = {(f.path, f.kind, f.position, f.offset) for f in other.found}
        gone = [f for f in self.found if (f.path, f.kind, f.position, f.offset) not in again]
        self.found = [f for f in self.found if f not in gone]
        self._counts.subtract((f.path, f.kind) for f in gone)
        listed = {(f.path, f.kind) for f in self.found}
        self._counts = Counter({place: count for place, count in self._counts.items() if place in listed})

    def merge(self, other: Findings) -> None:
        """Add the findings and counts of another collection about other files."""
        self.found += other.found
        self._counts.update(other._counts)

    def drop(self, kind: Kind, paths: Container[str]) -> None:
        """Forget the findings of a kind about some files."""
        gone = [f for f in self.found if f.kind is kind and f.path in paths]
        self.found = [f for f in self.found if f not in gone]
        for finding in gone:
            self._counts.pop((finding.path, kind), None)

    def count(self, kind: Kind, path: str, more: int) -> None:
        """Count further findings without listing them."""
        self._counts[path, kind] += more

    def add_behind(self, path: str, position: int, behind: Behind) -> None:
        """Add the data behind damage to the finding about the damage. A recovery cuts the log there."""
        for at, finding in enumerate(self.found):
            if finding.kind in CUTS and (finding.path, finding.position) == (path, position):
                self.found[at] = replace(finding, behind=behind)

    def worsen(self, path: str, position: int | None, meaning: str) -> bool:
        """Change the meaning of the damage at a position; return whether damage was found there."""
        for at, finding in enumerate(self.found):
            if (finding.path, finding.position, finding.severity) == (path, position, Severity.DAMAGE):
                self.found[at] = replace(finding, meaning=meaning, effect=_EFFECTS.get(meaning))
                return True
        return False

    def take(self) -> list[Finding]:
        """Return the findings since the last call.

        For each kind and file that exceeds its limit, a last finding has the number of unlisted ones.
        """
        listed = Counter((finding.path, finding.kind) for finding in self.found)
        worst = {(f.path, f.kind): f for f in sorted(self.found, key=lambda f: -list(Severity).index(f.severity))}
        for place, count in (self._counts - listed).items():
            one = worst[place]
            what = f"{count} more of this kind in this file"
            self.found.append(Finding(one.path, one.kind, one.severity, what, one.meaning))
        found, self.found = self.found, []
        self._counts.clear()
        return found


def _limit(severity: Severity) -> int:
    return FINDINGS_MAX if severity is Severity.DAMAGE else REPAIRED_MAX
