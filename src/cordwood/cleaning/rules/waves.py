"""Schedule a clean in place in waves, so that old and new segments never fill the disk together.

    wave 1    p-0: groups 0 1 2      p-1: groups 0 1        outputs are written, checked, and swapped in
    wave 2    p-0: groups 3 4        p-1: group 2           in the room that wave 1 used and freed
    …

Within a partition, groups are cleaned in ascending order. If the room suffices, one wave takes all groups: each wave
reads the keys of the dirty records from its own groups on, so with many waves the dirty part is read many times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cordwood.cleaning.rules.plan import HeaderFacts, SegmentFacts
from cordwood.kernels.layout import HEADER_BYTES
from cordwood.storage.formats import offset_index, time_index, transaction_index

#: Maximum growth of a record, and of a message of magic 0 or 1, when it is encoded again; see `work_bytes`.
_RECORD_GROWTH_BYTES, _MESSAGE_GROWTH_BYTES = 10, 63
#: Assumed maximum growth of compressed batches, and of wrappers of magic 0 and 1, as a factor.
_COMPRESSED_GROWTH, _WRAPPER_GROWTH = 2, 3
_INDEX_ENTRY_BYTES = offset_index.ENTRY.itemsize + time_index.ENTRY.itemsize
_BLOCK_BYTES = 4096
#: Files per segment: a log and three indexes.
_FILES = 4
#: Folders: the work folder, its parent, and the partition's, which grows by the new names.
_FOLDERS = 3


def work_bytes(segments: Sequence[SegmentFacts], headers: Sequence[HeaderFacts], *, index_interval_bytes: int) -> int:
    """Return an upper bound of one group's outputs on disk, for scheduling waves.

    A batch is copied, dropped, cut to its header, or rebuilt; only a rebuilt batch can become larger:

    * An uncompressed record: by 10 bytes at most. Its timestamp delta gets another base, such as a
      delete horizon, so 1 byte may become 10, and then the record's length may need 1 more. Nothing else changes.
    * An uncompressed message of magic 0 or 1: by 63. It has 26 bytes beside its key and value. It may become
      a batch of its own, whose header has 61; the fields of a record beside key and value have 28 at most.
    * A compressed batch: no useful bound is known without decompressing it. A compressor's worst case is slightly
      above the uncompressed size, which is many times the log, and which headers do not contain. That records are
      dropped gives no bound either: the writer may have compressed better than we do (a higher level, another library).
      We allow twice its size, and three times for wrappers of magic 0 and 1: a convention, not a proof. Larger
      outputs are no danger: if they fill the disk, the partition fails and stays unchanged.

    A clean that does not fit by this bound is tried first without writing, for the exact sizes.

    Args:
        index_interval_bytes: `index.interval.bytes`.
    """
    growth = 0
    for one in headers:
        growth += one.plain_records * (_MESSAGE_GROWTH_BYTES if one.legacy else _RECORD_GROWTH_BYTES)
        growth += one.compressed_bytes * ((_WRAPPER_GROWTH if one.legacy else _COMPRESSED_GROWTH) - 1)
    return _on_disk(segments, headers, growth, index_interval_bytes)


def expected_work_bytes(
    segments: Sequence[SegmentFacts], headers: Sequence[HeaderFacts], *, index_interval_bytes: int
) -> int:
    """Estimate one group's outputs on disk if all records stay and compress as before, for display.

    The estimate is the size of the group's segments: batches that keep all records are copied, compressed or not. Only
    batches of magic 0 and 1 grow, since each is rebuilt. Most cleans need less, as they drop records; a plan does not
    read records, so it cannot subtract these.

    Args:
        index_interval_bytes: `index.interval.bytes`.
    """
    growth = sum(one.plain_records * _MESSAGE_GROWTH_BYTES for one in headers if one.legacy)
    return _on_disk(segments, headers, growth, index_interval_bytes)


def _on_disk(
    segments: Sequence[SegmentFacts], headers: Sequence[HeaderFacts], growth: int, index_interval_bytes: int
) -> int:
    """Return the disk space of outputs as large as the segments plus their growth, with indexes.

    It is never less than `disk_bytes` of such outputs.
    """
    logs = sum(segment.size_bytes for segment in segments) + growth
    entries = logs // max(index_interval_bytes, HEADER_BYTES) + 2 * len(segments)
    markers = sum(one.markers for one in headers)
    bytes_all = logs + entries * _INDEX_ENTRY_BYTES + markers * transaction_index.ENTRY.itemsize
    return bytes_all + (_FILES * len(segments) + _FOLDERS) * _BLOCK_BYTES


def disk_bytes(sizes: Sequence[int]) -> int:
    """Return the disk space of a group's outputs, in whole blocks, including their folders; 0 without files.

    Args:
        sizes: bytes of each file.
    """
    blocks = sum(-(-size // _BLOCK_BYTES) for size in sizes) + _FOLDERS
    return blocks * _BLOCK_BYTES if sizes else 0


@dataclass(frozen=True, slots=True)
class Load:
    """A partition's input to the schedule.

    Attributes:
        device: the partition's disk.
        group_bytes: upper bound of each group's outputs.
        whole: whether all groups must be in one wave: Kafka's offset map decides where each round ends, and if the keep
            rule has ranks, records of earlier groups may supersede records of later ones.
        proof_bytes: upper bound of the proof's temporary files, in each wave with groups of this partition.
    """

    device: int
    group_bytes: tuple[int, ...]
    whole: bool = False
    proof_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ProofDisk:
    """The disk for the temporary files of proofs. They exist together with the outputs of their wave.

    Attributes:
        room_bytes: space for these files and for the outputs on the same disk.
    """

    device: int
    room_bytes: int


#: By partition: index of its first group in a wave, and the index after its last.
Wave = Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Waves:
    """The groups of each wave.

    Attributes:
        peak_bytes: maximum size of outputs at any time, by disk.
        proof_bytes_max: maximum size of the temporary files of a wave's proofs.
        too_large: partitions without enough room; they are in no wave.
    """

    waves: tuple[Wave, ...]
    peak_bytes: Mapping[int, int]
    proof_bytes_max: int = 0
    too_large: tuple[str, ...] = ()


@dataclass(slots=True)
class _Taken:
    """Disk space that a wave uses, so far.

    Attributes:
        outputs: size of outputs by disk.
        proofs: size of temporary files.
    """

    room_bytes: Mapping[int, int]
    proof: ProofDisk | None
    outputs: dict[int, int] = field(default_factory=dict)
    proofs: int = 0

    def take(self, load: Load, output_bytes: int, *, is_first: bool) -> bool:
        """Reserve room for a group's outputs and, with a partition's first group, for its proof; return False if there
        is too little.
        """
        outputs = self.outputs | {load.device: self.outputs.get(load.device, 0) + output_bytes}
        proofs = self.proofs + (load.proof_bytes if is_first else 0)
        if outputs[load.device] > self.room_bytes[load.device]:
            return False
        if self.proof is not None and outputs.get(self.proof.device, 0) + proofs > self.proof.room_bytes:
            return False
        self.outputs, self.proofs = outputs, proofs
        return True


def schedule(
    loads: Mapping[str, Load], room_bytes: Mapping[int, int], *, kept: bool = False, proof: ProofDisk | None = None
) -> Waves:
    """Assign groups to waves.

    Args:
        room_bytes: maximum size of concurrent outputs, by disk.
        kept: whether old segments are kept on the same disk; then waves free no room, so there is only one.
        proof: disk of the proofs' temporary files; None if nothing is proved.
    """
    steps = {name: (sum(load.group_bytes),) if load.whole or kept else load.group_bytes for name, load in loads.items()}
    too_large = {
        name
        for name, sizes in steps.items()
        if not _Taken(room_bytes, proof).take(loads[name], max(sizes, default=0), is_first=True)
    }
    done = {name: 0 for name in loads if name not in too_large}
    found: list[Wave] = []
    peak: dict[int, int] = {}
    proof_bytes_max = 0
    while left := [name for name, at in done.items() if at < len(steps[name])]:
        if kept and found:
            too_large.update(left)
            break
        wave = {}
        taken = _Taken(room_bytes, proof)
        for name in left:
            first, sizes = done[name], steps[name]
            while done[name] < len(sizes) and taken.take(loads[name], sizes[done[name]], is_first=done[name] == first):
                done[name] += 1
            if done[name] > first:
                groups = len(loads[name].group_bytes)
                wave[name] = (0, groups) if len(sizes) < groups else (first, done[name])
        assert wave, "every step fits an empty disk"
        peak = {device: max(peak.get(device, 0), taken.outputs.get(device, 0)) for device in room_bytes}
        proof_bytes_max = max(proof_bytes_max, 0 if proof is None else taken.proofs)
        found.append(wave)
    return Waves(tuple(found), peak, proof_bytes_max, tuple(name for name in loads if name in too_large))
