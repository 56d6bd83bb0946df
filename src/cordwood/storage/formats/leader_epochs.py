"""The history of a partition's leaders: the leader epoch of each range of offsets.

`leader-epoch-checkpoint` is a checkpoint file with two fields per entry, both increasing from line to line:

    0              version
    2              number of entries
    0 0            leader epoch, its start offset
    5 1187

Batches from an entry's start offset up to the next entry's were written in its epoch. Reading takes two steps: `decode`
returns the entries as they are in the file, and `history` applies Kafka's rule to entries that do not increase.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cordwood.common.errors import CorruptFileError, TextProblem
from cordwood.fs.base import Bytes
from cordwood.storage.formats.text import decode_checkpoint, encode_checkpoint, entry_number


@dataclass(frozen=True, slots=True)
class EpochEntry:
    """Batches from `start_offset` on were written in `epoch`."""

    epoch: int
    start_offset: int


def decode(data: Bytes, path: str | None = None) -> tuple[EpochEntry, ...]:
    """Decode the entries of a file, in the order of its lines.

    Raises:
        CorruptFileError: Kafka could not read the file; names the line.
    """
    return tuple(
        EpochEntry(entry_number(line, "epoch", epoch, 32, path), entry_number(line, "start offset", start, 64, path))
        for line, (epoch, start) in decode_checkpoint(data, "epoch start-offset", path)
    )


def encode(entries: Sequence[EpochEntry]) -> bytes:
    """Encode entries in their order."""
    return encode_checkpoint([f"{entry.epoch} {entry.start_offset}" for entry in entries])


@dataclass(frozen=True, slots=True)
class LeaderEpochs:
    """A history of leader epochs.

    Attributes:
        entries: epochs and start offsets both strictly increase.
    """

    entries: tuple[EpochEntry, ...] = ()

    @property
    def latest(self) -> EpochEntry | None:
        """The entry of the last epoch, or None."""
        return self.entries[-1] if self.entries else None

    def assigned(self, epoch: int, start_offset: int) -> LeaderEpochs:
        """Return the history after `epoch` began at `start_offset`; see `assign`.

        Source: Kafka LeaderEpochFileCache.assign.
        """
        assert epoch >= 0 and start_offset >= 0, "an epoch or offset of -1 means that there is none"
        kept = list(self.entries)
        assign(kept, EpochEntry(epoch, start_offset))
        return LeaderEpochs(tuple(kept))

    def epoch_for_offset(self, offset: int) -> int | None:
        """Return the leader epoch of an offset; None below the first entry."""
        count = bisect_right(self.entries, offset, key=lambda entry: entry.start_offset)
        return self.entries[count - 1].epoch if count else None


def history(entries: Iterable[EpochEntry], path: str | None = None) -> LeaderEpochs:
    """Build a history from the entries of a file.

    Like Kafka, assign them one after another, so an entry drops earlier ones that contradict it; see `assign`.

    Raises:
        CorruptFileError: an epoch or offset is negative.
    """
    kept: list[EpochEntry] = []
    for index, entry in enumerate(entries):
        if entry.epoch < 0 or entry.start_offset < 0:
            what = f"entry {index}: epoch {entry.epoch} from offset {entry.start_offset}; neither can be negative"
            raise CorruptFileError(what, kind=TextProblem.VALUE, path=path)
        assign(kept, entry)
    return LeaderEpochs(tuple(kept))


def assign(kept: list[EpochEntry], entry: EpochEntry) -> None:
    """Add an entry to a history, in place.

    If the last entry has the same epoch and does not start later, nothing changes. Otherwise first drop the entries at
    the end whose epoch or start offset is not lower than that of the new entry.
    """
    if kept and kept[-1].epoch == entry.epoch and kept[-1].start_offset <= entry.start_offset:
        return
    while kept and (kept[-1].epoch >= entry.epoch or kept[-1].start_offset >= entry.start_offset):
        kept.pop()
    kept.append(entry)
