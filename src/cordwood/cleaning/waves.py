"""A clean in place goes in waves, so that old and new segments never fill the disk together.

    wave 1    p-0: groups 0 1 2      p-1: groups 0 1        outputs are written, checked, and take their places
    wave 2    p-0: groups 3 4        p-1: group 2           in the room that wave 1 had, and gave back
    …

In a partition groups go in ascending order. All is one wave where there is room for it, and that is the rule: each wave
takes keys from the dirty records that it and later ones hold, so that many waves read the dirty part many times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cordwood.cleaning.plan import HeaderFacts, SegmentFacts
from cordwood.kernels.layout import HEADER_BYTES
from cordwood.storage.formats import offset_index, time_index, transaction_index

#: How much larger a log may become. Each message of magic 0 or 1 may get a batch of its own; what was compressed may
#: have been so by a better compressor than ours, which takes what is dropped off again in all but odd cases.
_LEGACY_GROWTH, _COMPRESSED_GROWTH = 3, 2
_INDEX_ENTRY_BYTES = offset_index.ENTRY.itemsize + time_index.ENTRY.itemsize
#: What file systems round up to, for each of the four files of a segment.
_BLOCK_BYTES, _FILES = 4096, 4


def work_bytes(segments: Sequence[SegmentFacts], headers: Sequence[HeaderFacts], *, index_interval_bytes: int) -> int:
    """The most that the outputs of one group take on disk.

    Args:
        segments: of the group.
        headers: of the same.
        index_interval_bytes: `index.interval.bytes`.
    """
    logs = markers = 0
    for segment, one in zip(segments, headers, strict=True):
        growth = _LEGACY_GROWTH if one.legacy else _COMPRESSED_GROWTH if one.compressed else 1
        logs += growth * segment.size_bytes
        markers += one.markers
    entries = logs // max(index_interval_bytes, HEADER_BYTES) + 2 * len(segments)
    bytes_all = logs + entries * _INDEX_ENTRY_BYTES + markers * transaction_index.ENTRY.itemsize
    return bytes_all + _FILES * _BLOCK_BYTES * len(segments)


@dataclass(frozen=True, slots=True)
class Load:
    """What a partition brings to the waves.

    Attributes:
        device: the disk it is on.
        group_bytes: the most that the outputs of each group take.
        whole: its groups cannot be told apart, as Kafka's offset map decides how far each round goes.
    """

    device: int
    group_bytes: tuple[int, ...]
    whole: bool = False


#: By partition: the first of its groups in a wave, and the one behind the last.
Wave = Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Waves:
    """Which groups are cleaned when.

    Attributes:
        waves: in order.
        peak_bytes: the most that outputs take at any time, by disk.
        too_large: partitions that there is no room for; they are in no wave.
    """

    waves: tuple[Wave, ...]
    peak_bytes: Mapping[int, int]
    too_large: tuple[str, ...] = ()


def schedule(loads: Mapping[str, Load], room_bytes: Mapping[int, int], *, kept: bool = False) -> Waves:
    """Share out groups to waves.

    Args:
        loads: by partition.
        room_bytes: what outputs may take at a time, by disk.
        kept: old segments stay somewhere on the same disk, so that no wave gives room back, and one is all there is.
    """
    steps = {name: (sum(load.group_bytes),) if load.whole or kept else load.group_bytes for name, load in loads.items()}
    too_large = {name for name, sizes in steps.items() if max(sizes, default=0) > room_bytes[loads[name].device]}
    done = {name: 0 for name in loads if name not in too_large}
    found: list[Wave] = []
    peak: dict[int, int] = {}
    while left := [name for name, at in done.items() if at < len(steps[name])]:
        if kept and found:
            too_large.update(left)
            break
        wave = {}
        used = dict.fromkeys(room_bytes, 0)
        for name in left:
            device, first = loads[name].device, done[name]
            while done[name] < len(steps[name]) and used[device] + steps[name][done[name]] <= room_bytes[device]:
                used[device] += steps[name][done[name]]
                done[name] += 1
            if done[name] > first:
                groups = len(loads[name].group_bytes)
                wave[name] = (0, groups) if len(steps[name]) < groups else (first, done[name])
        assert wave, "every step fits an empty disk"
        peak = {device: max(peak.get(device, 0), size) for device, size in used.items()}
        found.append(wave)
    return Waves(tuple(found), peak, tuple(name for name in loads if name in too_large))
