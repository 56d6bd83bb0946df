"""Figures for people."""

from __future__ import annotations

import pytest

from cordwood.common.text import by_sentence, duration_text, rounded


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (None, "-"),
        (0, "0 ms"),
        (1, "1 ms"),
        (1_999, "1999 ms"),
        (2_000, "2 s"),
        (60_000, "1 min"),
        (90_000, "90 s"),
        (150_000, "2.5 min"),
        (3_600_000, "1 h"),
        (5_000_000, "83.3 min"),
        (7_200_000, "2 h"),
        (86_400_000, "1 day"),
        (100_000_000, "27.8 h"),
        (604_800_000, "7 days"),
        (10**12, "11,574 days"),
    ],
)
def test_a_duration_is_in_a_unit_of_which_there_are_some(ms: float | None, text: str) -> None:
    assert duration_text(ms) == text


def test_numbers_have_three_digits_or_are_whole() -> None:
    assert [rounded(value) for value in (0, 0.03333, 2.0, 16.666, 999, 1234.5)] == [
        *("0", "0.0333", "2", "16.7", "999", "1,234"),
    ]


def test_many_sentences_that_differ_only_in_offsets_and_sizes_become_one() -> None:
    def dirty(*ends: int) -> list[tuple[str, str]]:
        return [(f"dirty: offsets 1 to {end}, 1.{end} kB in {end} batches", f"t-{end}") for end in ends]

    other = ("more than 50 % is dirty", "t-1")
    assert by_sentence([*dirty(2, 3), other]) == {
        "dirty: offsets 1 to 2, 1.2 kB in 2 batches": ["t-2"],
        "dirty: offsets 1 to 3, 1.3 kB in 3 batches": ["t-3"],
        "more than 50 % is dirty": ["t-1"],
    }, "of two each is told in full"
    assert by_sentence([*dirty(2, 3, 4), other, ("more than 20 % is dirty", "t-2")]) == {
        "dirty: offsets …, … in … batches": ["t-2", "t-3", "t-4"],
        "more than 50 % is dirty": ["t-1"],
        "more than 20 % is dirty": ["t-2"],
    }, "a limit is no figure of a partition"
