"""Use a segment's key index to find the ranges that may contain records with given keys.

    key index     ░░█░░░░░░░░█░█░░░░░░░░░░░░│▒▒▒▒▒   batches that may have a key, and the part the index does not cover
    ranges          [)       [  )            [    )   neighbours together, a cut at either end

As with any index, bytes outside of these ranges are not read, so damage there is not noticed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from cordwood.common.errors import CorruptFileError
from cordwood.fs.base import ReadableFile
from cordwood.storage.formats.key_index import KeyIndex
from cordwood.storage.index.probe import Int64Array, batches_with, hash_of_keys
from cordwood.storage.index.sparse import SparseIndex
from cordwood.storage.log.cuts import Cut, cut_behind
from cordwood.storage.log.segment import Segment

#: Batches with a smaller gap between them are read together with the gap.
GAP_BYTES = 64 << 10
#: Above this share of a segment's bytes, or with more ranges, reading all of it in order is faster.
_SHARE_MAX, _RANGES_MAX = 0.25, 64


def ranges_with(segment: Segment, keys: Sequence[bytes]) -> list[tuple[Cut, Cut | None]] | None:
    """Return the ranges of a segment that contain all records with any of these keys.

    A range whose end is None reaches to the segment's end. Return None if the segment has no usable index, so that any
    record may have one of the keys; or if reading the whole segment is faster.
    """
    try:
        with segment.open() as file, SparseIndex(segment, file) as opened:
            index = opened.index
            touched = batches_with(index, opened.find(hash_of_keys(keys, index.header.secret)).ordinals)
            ends = np.cumsum(index.lengths, dtype=np.int64)
            starts = ends - index.lengths
            gaps = np.flatnonzero(starts[touched[1:]] - ends[touched[:-1]] > GAP_BYTES) + 1
            runs = np.split(touched, gaps) if touched.size else []
            size_bytes = sum(int(ends[run[-1]] - starts[run[0]]) for run in runs)
            if len(runs) > _RANGES_MAX or size_bytes > max(_SHARE_MAX * segment.size_bytes, GAP_BYTES):
                return None
            opened.check_batches(touched)
            return list(_cuts_around(runs, starts, file, index, segment))
    except (OSError, CorruptFileError):
        return None


def _cuts_around(
    runs: Sequence[Int64Array], starts: Int64Array, file: ReadableFile, index: KeyIndex, segment: Segment
) -> Iterator[tuple[Cut, Cut | None]]:
    def behind(batch: int) -> Cut:
        cut = cut_behind(file, segment.base_offset, int(starts[batch])) if batch >= 0 else start
        if cut is None:
            raise CorruptFileError("the batches of a segment are not in order", path=segment.path)
        return cut

    start = Cut(segment.base_offset, 0, segment.base_offset)
    for run in runs:
        yield behind(int(run[0]) - 1), behind(int(run[-1]))
    if index.header.covered_bytes < segment.size_bytes:
        yield behind(index.header.batches - 1), None
