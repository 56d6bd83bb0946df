"""A clean in place goes in waves, so that old and new segments never fill the disk together.

    wave 1    p-0: groups 0 1 2      p-1: groups 0 1        outputs are written, checked, and swapped in
    wave 2    p-0: groups 3 4        p-1: group 2           in the room that wave 1 used and freed
    …

In a partition groups go in ascending order. If the room suffices, one wave takes all groups: each wave reads the keys
of the dirty records from its own groups on, so many waves read the dirty part many times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cordwood.cleaning.plan import HeaderFacts, SegmentFacts
from cordwood.kernels.layout import HEADER_BYTES
from cordwood.storage.formats import offset_index, time_index, transaction_index

#: How much larger a record, or a message of magic 0 or 1, may become when it is encoded again; see `work_bytes`.
_RECORD_GROWTH_BYTES, _MESSAGE_GROWTH_BYTES = 10, 63
#: How much larger compressed batches, and wrappers of magic 0 and 1, are allowed to become.
_COMPRESSED_GROWTH, _WRAPPER_GROWTH = 2, 3
_INDEX_ENTRY_BYTES = offset_index.ENTRY.itemsize + time_index.ENTRY.itemsize
_BLOCK_BYTES = 4096
#: A segment has a log and three indexes.
_FILES = 4
#: The work folder, the folder that it is in, and the partition's, which grows by the new names.
_FOLDERS = 3


def work_bytes(segments: Sequence[SegmentFacts], headers: Sequence[HeaderFacts], *, index_interval_bytes: int) -> int:
    """The most that the outputs of one group take on disk, to schedule waves by.

    A batch is copied, dropped, cut to its header, or rebuilt, and only what is rebuilt can become larger:

    * A record that was not compressed: by 10 bytes at most. Its timestamp delta counts from another base, such as a
      delete horizon, so 1 byte may become 10, and with it the record's length may need 1 more. Nothing else changes.
    * A message of magic 0 or 1 that was not compressed: by 63. It has 26 bytes beside its key and value. It may become
      a batch of its own, whose header has 61; the fields of a record beside key and value have 28 at most.
    * A compressed batch: no useful bound is known before it is decompressed. Headers do not tell the uncompressed
      size, and a compressor's worst case is a little more than that, so many times the log. To have fewer records does
      not help to bound it: the writer may have compressed them better than we do (a higher level, another library).
      Twice its size is allowed for, for wrappers of magic 0 and 1 three times: a convention and no proof. Outputs that
      are larger are no danger: if they fill the disk, the partition fails and stays as it was.

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
    """The outputs of one group on disk if all records stay and compress as they did, to tell people.

    That is the size of its segments. It is still more than most cleans need: nothing is known to go before records are
    read. Batches that keep all records are copied, compressed or not. Only batches of magic 0 and 1 grow, since each
    is rebuilt.

    Args:
        index_interval_bytes: `index.interval.bytes`.
    """
    growth = sum(one.plain_records * _MESSAGE_GROWTH_BYTES for one in headers if one.legacy)
    return _on_disk(segments, headers, growth, index_interval_bytes)


def _on_disk(
    segments: Sequence[SegmentFacts], headers: Sequence[HeaderFacts], growth: int, index_interval_bytes: int
) -> int:
    """Logs of the segments' size and what they grow by, with their indexes: no less than `disk_bytes`."""
    logs = sum(segment.size_bytes for segment in segments) + growth
    entries = logs // max(index_interval_bytes, HEADER_BYTES) + 2 * len(segments)
    markers = sum(one.markers for one in headers)
    bytes_all = logs + entries * _INDEX_ENTRY_BYTES + markers * transaction_index.ENTRY.itemsize
    return bytes_all + (_FILES * len(segments) + _FOLDERS) * _BLOCK_BYTES


def disk_bytes(sizes: Sequence[int]) -> int:
    """What the outputs of a group take on disk, in whole blocks, with the folders that they are in; 0: there are none.

    Args:
        sizes: bytes of each file.
    """
    blocks = sum(-(-size // _BLOCK_BYTES) for size in sizes) + _FOLDERS
    return blocks * _BLOCK_BYTES if sizes else 0


@dataclass(frozen=True, slots=True)
class Load:
    """What a partition brings to the waves.

    Attributes:
        device: the disk it is on.
        group_bytes: the most that the outputs of each group take.
        whole: its groups cannot be divided among waves, as Kafka's offset map decides how far each round goes.
        proof_bytes: the most that its proof takes for temporary files, in each wave that has groups of it.
    """

    device: int
    group_bytes: tuple[int, ...]
    whole: bool = False
    proof_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ProofDisk:
    """The disk of the temporary files of proofs. They are there when the outputs of their wave are, and then go.

    Attributes:
        room_bytes: what the files may take there, with the outputs that are on the same disk.
    """

    device: int
    room_bytes: int


#: By partition: the first of its groups in a wave, and the one behind the last.
Wave = Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Waves:
    """Which groups are cleaned when.

    Attributes:
        peak_bytes: the most that outputs take at any time, by disk.
        proof_bytes_max: the most that temporary files of a wave's proofs take.
        too_large: partitions that there is no room for; they are in no wave.
    """

    waves: tuple[Wave, ...]
    peak_bytes: Mapping[int, int]
    proof_bytes_max: int = 0
    too_large: tuple[str, ...] = ()


@dataclass(slots=True)
class _Taken:
    """What a wave takes of the disks, so far.

    Attributes:
        outputs: by disk.
        proofs: temporary files.
    """

    room_bytes: Mapping[int, int]
    proof: ProofDisk | None
    outputs: dict[int, int] = field(default_factory=dict)
    proofs: int = 0

    def take(self, load: Load, output_bytes: int, *, is_first: bool) -> bool:
        """Take room for a group's outputs, with the first group of a partition for its proof, if there is so much."""
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
    """Share out groups to waves.

    Args:
        room_bytes: what outputs may take at a time, by disk.
        kept: old segments stay somewhere on the same disk, so that no wave gives room back, and one is all there is.
        proof: where proofs leave temporary files; None: nothing is proved.
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
