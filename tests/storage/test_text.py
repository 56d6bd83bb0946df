"""Numbers, lines and fields as Java reads them. The expectations were checked against Java 17."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.common.errors import CorruptFileError
from cordwood.storage.formats.text import decode_checkpoint, lines, parse_integer, parse_json

INTEGERS = [
    ("0", 0),
    ("-0", 0),
    ("+7", 7),
    ("007", 7),
    ("-2147483648", -(2**31)),
    ("2147483647", 2**31 - 1),
    ("2147483648", None),
    ("-2147483649", None),
    ("0" * 5000 + "12", 12),
    ("9" * 5000, None),
    ("٣", 3),
    ("\uff19", 9),
    ("\U0001d7d7", None),  # a digit, but two UTF-16 units
    ("²", None),
    ("", None),
    ("+", None),
    ("+-1", None),
    (" 1", None),
    ("1 ", None),
    ("1_0", None),
    ("1.0", None),
    ("0x1", None),
]


@pytest.mark.parametrize(("text", "number"), INTEGERS)
def test_an_integer_is_what_java_takes_for_one(text: str, number: int | None) -> None:
    assert parse_integer(text, 32) == number


def test_64_bit_integers_reach_to_their_ends() -> None:
    for number in (2**63 - 1, -(2**63)):
        assert parse_integer(str(number), 64) == number
    for number in (2**63, -(2**63) - 1):
        assert parse_integer(str(number), 64) is None


@given(st.text(st.sampled_from("0123456789+-"), max_size=24))
def test_integers_meet_their_slow_twin(text: str) -> None:
    try:
        number = int(text)
    except ValueError:
        assert parse_integer(text, 64) is None
    else:
        assert parse_integer(text, 64) == (number if -(2**63) <= number < 2**63 else None)


def test_lines_end_as_in_java_and_nowhere_else() -> None:
    assert lines(b"a\nb\r\nc\rd\n\r\ne\x0b\x0c\xc2\x85\xe2\x80\xa8f") == [
        "a",
        "b",
        "c",
        "d",
        "",
        "e\x0b\x0c\x85\u2028f",
    ]
    assert lines(b"") == []
    assert lines(b"\n") == [""]


def test_text_that_is_not_utf_8_is_corrupt_at_its_first_bad_byte() -> None:
    with pytest.raises(CorruptFileError) as caught:
        lines(b"ok\n\xff", "orders-0/leader-epoch-checkpoint")
    assert str(caught.value) == "the text is not UTF-8 in orders-0/leader-epoch-checkpoint at position 3"


@pytest.mark.parametrize(
    ("line", "fields"),
    [("a 1", ["a", "1"]), ("a \t\x0b\f 1", ["a", "1"]), ("a 1  ", ["a", "1"]), (" 1", ["", "1"])],
)
def test_fields_are_split_at_java_spaces(line: str, fields: list[str]) -> None:
    assert decode_checkpoint(f"0\n1\n{line}\n".encode(), "x y") == [(3, fields)]


@pytest.mark.parametrize("line", ["", "  ", "a", "a 1 2", " a 1", "a\u00a01", "a\u20031"])
def test_lines_with_another_number_of_fields_are_corrupt(line: str) -> None:
    with pytest.raises(CorruptFileError, match="line 3"):
        decode_checkpoint(f"0\n1\n{line}\n".encode(), "x y")


@pytest.mark.parametrize("text", ["", "[" * 100_000, "NaN", "{", "1" * 10_000, "\ufeff{}"])
def test_what_is_not_json_is_nothing(text: str) -> None:
    assert parse_json(text) is None
