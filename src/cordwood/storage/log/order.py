"""Find batches whose offsets do not fit their place in the file.

A leader sets a batch's base offset after the producer has computed the checksum, so no checksum covers the base offset:
if one of its bits flips, the batch stays valid, but has other offsets. In a log each batch ends at a higher offset than
the batch before it, and below the base offset of the next segment. A batch that violates this is damage:

    offsets   0–9 │ 10–19 │ 3–12 │ 30–39 │ 40–49        the third batch is wrong
    offsets   0–9 │ 90–99 │ 20–29 │ 30–39 │ 40–49       the second batch is wrong: 10–19 would fit before 20–29

In a compacted log offsets are missing between batches, so a wrong base offset may fit, too; then it cannot be detected.
Kafka also accepts a batch that starts below the end of the batch before it: a follower appends the batches of its
leader unchecked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from cordwood.kernels.layout import BatchRows
from cordwood.record.columns import BatchWindow, is_valid
from cordwood.storage.log.windows import Gap, GapKind

_MAX = 2**63 - 1


class BatchOrder:
    """Checks the order of a segment's batches, and separates the wrong ones as gaps."""

    def __init__(
        self, base_offset: int, end_offset: int, still_ends: Callable[[], bool] = lambda: True, *, at_start: bool = True
    ) -> None:
        """Start before the first batch.

        Args:
            base_offset: base offset of the segment.
            end_offset: base offset of the next segment.
            still_ends: returns whether the next segment still exists. Called before a batch counts as wrong because it
                ends beyond `end_offset`: a cleaner may have merged the two segments.
            at_start: whether the first batch is the first of the segment; False if an index entry points to it.
        """
        self._base_offset = base_offset
        self._end_offset = end_offset
        self._still_ends = still_ends
        #: The last correct batch, and the last offset of the batch before it.
        self._right: np.void | None = None
        self._before = base_offset - 1
        self._knows_before = at_start

    @property
    def _last(self) -> int:
        return self._before if self._right is None else int(self._right["last_offset"])

    def split(self, rows: BatchRows) -> Iterator[BatchRows | Gap]:
        """Yield the next batches in file order: correct ones as rows, and each wrong one as a gap."""
        if not rows.size:
            return
        if rows.size == 1 and self._follows(rows[0]):  # there may be thousands of segments of one batch
            self._before, self._right = self._last, rows[0]
            yield rows
            return
        firsts, lasts, right = _first_offsets(rows), rows["last_offset"], is_valid(rows)
        if not self._knows_before:
            self._before, self._knows_before = max(self._before, int(firsts[0]) - 1), True
        if (lasts >= self._end_offset).any() and not self._still_ends():
            self._end_offset = _MAX
        ascend = (lasts > np.concatenate([np.array([self._last]), lasts[:-1]])) & (lasts >= firsts)
        ascend &= firsts >= self._base_offset
        if lasts[-1] < self._end_offset and (ascend & right).all():
            self._before = int(lasts[-2]) if lasts.size > 1 else self._last
            self._right = rows[-1]
            yield rows
            return
        known = self._right, self._before, self._last
        wrong = self._judge(rows)
        right[[at for at in wrong if at >= 0]] = False
        done = 0
        for at in sorted(wrong):
            if at > done:
                yield rows[done:at]
            done = at + 1
            batch, below = (rows[at], known[2]) if at >= 0 else (known[0], known[1])
            earlier, later = lasts[: max(at, 0)][right[: max(at, 0)]], firsts[at + 1 :][right[at + 1 :]]
            behind = int(later[0]) if later.size else self._end_offset
            between = min(int(earlier[-1] if earlier.size else below) + 1, behind - 1), behind
            assert batch is not None, "a batch that was given out is known"
            what = f"a batch of offsets {_first_offsets(batch)} to {batch['last_offset']} {wrong[at]}"
            yield Gap(int(batch["position"]), int(batch["size_bytes"]), GapKind.DAMAGE, what, between)
        if done < rows.size:
            yield rows[done:]

    def _follows(self, batch: np.void) -> bool:
        """Return whether a batch is certainly correct; if False, `_judge` has to decide."""
        first, last = int(batch["base_offset"]), int(batch["last_offset"])
        is_in_place = self._base_offset <= first <= last < self._end_offset and last > self._last
        return is_in_place and self._knows_before and bool(batch["crc"] == batch["computed_crc"])

    def _judge(self, rows: BatchRows) -> dict[int, str]:
        """Return order violations by batch index; index -1 is the last batch already yielded."""
        wrong: dict[int, str] = {}
        base, end, index = self._base_offset, self._end_offset, -1
        facts = zip(_first_offsets(rows).tolist(), rows["last_offset"].tolist(), is_valid(rows).tolist(), strict=True)
        for at, (first, last, is_right) in enumerate(facts):
            if not is_right:
                continue  # decoding reports its wrong checksum
            if not base <= first <= last < end:
                above = "" if end == _MAX else f" and end below {end}"
                wrong[at] = f"is not in its segment, whose offsets begin at {base}{above}"
                continue
            if last <= self._last:
                if not self._is_earlier_wrong(rows[at], rows[at + 1 :][is_valid(rows[at + 1 :])][:1]):
                    wrong[at] = f"follows offset {self._last}"
                    continue
                wrong[index] = f"comes before a batch that starts at offset {first}"
            else:
                self._before = self._last
            self._right, index = rows[at], at
        return wrong

    def _is_earlier_wrong(self, batch: np.void, following: BatchRows) -> bool:
        """Return whether, of the last correct batch and this one, which does not ascend, the earlier one is wrong.

        The earlier one may be wrong if its offsets would fit below this batch. This batch may be wrong if its offsets
        would fit above the earlier one, and below the following one. If both may be wrong, choose the earlier one if it
        would fill the gap below exactly, or if there is no following batch: most flipped bits make an offset larger.

        Args:
            following: the next valid batch, or no batch.
        """
        assert self._right is not None, "this one lies above the base offset"
        room = _likely_first(batch) - 1 - self._before
        size, own_size = (int(one["last_offset"]) - _likely_first(one) + 1 for one in (self._right, batch))
        fits_above = following.size and int(_first_offsets(following)[0]) - 1 - self._last >= own_size
        return room == size or (room > size and not fits_above)


def in_order(items: Iterator[BatchWindow | Gap], order: BatchOrder) -> Iterator[BatchWindow | Gap]:
    """Yield the windows and gaps of a segment; turn batches that are out of order into gaps."""
    for item in items:
        if isinstance(item, Gap):
            yield item
            continue
        for part in order.split(item.batches):
            yield part if isinstance(part, Gap) else BatchWindow(item.position, item.data, part, item.read)
        del item  # free a large one before reading the next


def headers_in_order(items: Iterator[BatchRows | Gap], order: BatchOrder) -> Iterator[BatchRows | Gap]:
    """Like `in_order`, for the items of `read_headers`."""
    for item in items:
        yield from [item] if isinstance(item, Gap) else order.split(item)


def _first_offsets(rows: BatchRows | np.void) -> npt.NDArray[np.int64]:
    # The header of a wrapper of magic 0 or 1 lacks its first offset.
    return np.where((rows["magic"] < 2) & (rows["base_offset"] < 0), rows["last_offset"], rows["base_offset"])


def _likely_first(batch: np.void) -> int:
    # A wrapper's first offset is unknown; assume two messages, as it seldom holds one.
    return int(batch["last_offset"]) - 1 if _first_offsets(batch) != batch["base_offset"] else int(batch["base_offset"])
