from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from cordwood.kernels.layout import BATCH_ROW, BatchRows
from cordwood.storage.log.windows import BatchOrder, Gap

#: Base and last offset of a batch; one number: a compressed message of magic 1, which holds only its last offset.
Offsets = tuple[int, int] | tuple[int]


def rows(batches: Sequence[Offsets]) -> BatchRows:
    made = np.zeros(len(batches), BATCH_ROW)
    for row, offsets in zip(made, batches, strict=True):
        row["base_offset"], row["last_offset"] = offsets if len(offsets) == 2 else (-1, offsets[0])
        row["magic"] = len(offsets) if len(offsets) == 2 else 1
    return made


def split(order: BatchOrder, *windows: Sequence[Offsets]) -> tuple[list[int], list[str]]:
    """The last offsets of valid batches, and the messages about the other ones."""
    right: list[int] = []
    said: list[str] = []
    for window in windows:
        for part in order.split(rows(window)):
            if isinstance(part, Gap):
                said.append(f"{part.what} {part.between}")
            else:
                right += part["last_offset"].tolist()
    return right, said


@pytest.mark.parametrize(
    "batches",
    [
        [(10, 11), (12, 12), (13, 19)],
        [(15, 16), (30, 44), (90, 99)],
        [(12,), (13,), (14, 14), (20,)],
        [(10, 19), (13, 22), (30, 39)],
        [],
    ],
    ids=["all offsets", "gaps, as cleans leave them", "old formats", "overlaps, as a follower takes them", "nothing"],
)
def test_batches_that_ascend_are_right_however_they_are_read(batches: list[Offsets]) -> None:
    lasts = [offsets[-1] for offsets in batches]
    for cut in range(len(batches) + 1):
        assert split(BatchOrder(10, 100), batches[:cut], batches[cut:]) == (lasts, [])
        assert split(BatchOrder(0, 100, at_start=False), batches[:cut], batches[cut:]) == (lasts, [])


@pytest.mark.parametrize(
    ("batches", "right", "said"),
    [
        ([(10, 19), (3, 12), (30, 39)], [19, 39], "offsets 3 to 12 is not in its segment, whose offsets begin at 10"),
        ([(10, 19), (12, 19), (30, 39)], [19, 39], "offsets 12 to 19 follows offset 19"),
        (
            [(10, 19), (50, 59), (30, 39), (40, 49)],
            [19, 39, 49],
            "offsets 50 to 59 comes before a batch that starts at",
        ),
        ([(10, 19), (50, 59), (30, 39)], [19, 39], "offsets 50 to 59 comes before"),
        ([(10, 19), (99, 108), (30, 39)], [19, 39], "offsets 99 to 108 is not in its segment"),
        ([(10, 19), (2**63 - 4, -(2**63) + 5), (30, 39)], [19, 39], "is not in its segment"),
        ([(12,), (30,), (20,), (25,)], [12, 20, 25], "offsets 30 to 30 comes before"),
        ([(12,), (12,), (18,)], [12, 18], "offsets 12 to 12 follows offset 12"),
    ],
)
def test_the_batch_that_does_not_fit_is_told_and_no_other(batches: list[Offsets], right: list[int], said: str) -> None:
    found, texts = split(BatchOrder(10, 100), batches)
    assert found == right and len(texts) == 1 and said in texts[0]


def test_a_batch_that_was_given_out_before_it_was_found_to_be_wrong_is_told() -> None:
    found, (text,) = split(BatchOrder(10, 100), [(10, 19), (50, 59)], [(30, 39), (40, 49)])
    assert found == [19, 59, 39, 49]
    assert text == "a batch of offsets 50 to 59 comes before a batch that starts at offset 30 (20, 30)"


def test_a_segment_that_a_cleaner_has_merged_with_the_next_ends_where_that_did() -> None:
    assert split(BatchOrder(10, 100, lambda: False), [(10, 19), (90, 110)], [(120, 130)]) == ([19, 110, 130], [])
