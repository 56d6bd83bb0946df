"""Choose the small segments that a clean reads as one (`storage.log.joined`): segments of one group share windows.

Their records get the same decisions in the same order; counts are split by segment again.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from cordwood.engine.keys import DirtySection
from cordwood.storage.log.joined import joined
from cordwood.storage.log.segment import Segment


def join(groups: Sequence[Sequence[Segment]], dirty: DirtySection) -> tuple[list[list[Segment]], DirtySection]:
    """Join the small segments of each group, and those of the dirty section after the groups.

    A join never extends over the start of the dirty section, as records supersede others only from there on.
    """
    group_of = {segment.base_offset: number for number, group in enumerate(groups) for segment in group}
    dirty_bases = {segment.base_offset for segment in dirty.segments}
    segments = {segment.base_offset: segment for segment in [*itertools.chain(*groups), *dirty.segments]}

    def stretch(segment: Segment) -> tuple[int | None, bool, bool]:
        base = segment.base_offset
        return group_of.get(base), base in dirty_bases, base in dirty_bases and base < dirty.start

    joined_groups: list[list[Segment]] = [[] for _ in groups]
    joined_dirty: list[Segment] = []
    ordered = (segment for _, segment in sorted(segments.items()))
    for (group, is_dirty, _), some in itertools.groupby(ordered, stretch):
        run = list(joined(some))
        if group is not None:
            joined_groups[group] += run
        if is_dirty:
            joined_dirty += run
    return joined_groups, replace(dirty, segments=tuple(joined_dirty))
