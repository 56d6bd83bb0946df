from __future__ import annotations

import pytest

from cordwood.cli.options import bytes_of
from cordwood.errors import RequestError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("240", 240),
        ("1k", 1024),
        ("512m", 512 << 20),
        ("4G", 4 << 30),
        ("2gb", 2 << 30),
        ("3MiB", 3 << 20),
        (" 1t ", 1 << 40),
    ],
)
def test_a_size_is_a_number_of_bytes_or_of_larger_units(text: str, size: int) -> None:
    assert bytes_of(text, "--memory") == size


def test_no_size_is_none() -> None:
    assert bytes_of(None, "--memory") is None


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5g", "m", "4x", "4 g", "nan", "1" * 30])
def test_invalid_size_error_shows_an_example(text: str) -> None:
    with pytest.raises(RequestError, match=r"--memory .*: give a number of bytes, or one like 512m or 4g"):
        bytes_of(text, "--memory")
