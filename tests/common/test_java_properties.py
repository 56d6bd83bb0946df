"""Java's properties format. Expectations were checked against java.util.Properties of JDK 17."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.common import java_properties
from cordwood.common.java_properties import PropertiesError

JAVA = [
    (b"", {}),
    (b"# comment\n! another\n\n  \t\f\n", {}),
    (b"a=b", {"a": "b"}),
    (b"  a = b ", {"a": "b "}),
    (b"a:b\nc d\ne\tf\ng\n", {"a": "b", "c": "d", "e": "f", "g": ""}),
    (b"a = = b", {"a": "= b"}),
    (b"a\\=\\:\\ b=c", {"a=: b": "c"}),
    (b"a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
    (b"a=1\na=2\n", {"a": "2"}),
    (b"a=b\\\n   c", {"a": "bc"}),
    (b"a = b, \\\n   c, \\\r\n\td\nx=\\\\\ny=z\\", {"a": "b, c, d", "x": "\\", "y": "z"}),
    (b"# a comment is not continued \\\na=b", {"a": "b"}),
    (b"a=b\\\\\nc", {"a": "b\\", "c": ""}),
    (b"a=b\\\r\n\nc", {"a": "b", "c": ""}),
    (b"a\\\n#b=c", {"a#b": "c"}),
    (b"\\\n#b=c\nd", {"d": ""}),
    (b"\\", {"": ""}),
    (b"a\\", {"a": ""}),
    (b"\\\n  ", {}),
    (b"=v", {"": "v"}),
    (b"a=\\t\\n\\r\\f\\q\\u0041\\u00e9", {"a": "\t\n\r\fqAé"}),
    (b"a=\\ud83d\\ude00 \\ud83d", {"a": "😀 \ud83d"}),
    (b"a=\xe9", {"a": "é"}),
    (b"\x0ba=b", {"\x0ba": "b"}),
]


@pytest.mark.parametrize(("data", "values"), JAVA)
def test_properties_are_read_as_java_reads_them(data: bytes, values: dict[str, str]) -> None:
    read = java_properties.decode(data)
    assert read.values() == values
    assert java_properties.encode(read) == data


@pytest.mark.parametrize("data", [b"x\na=\\u00g0", b"x\na=\\u", b"x\n\\u12"])
def test_a_malformed_escape_is_located_where_its_entry_starts(data: bytes) -> None:
    with pytest.raises(PropertiesError) as caught:
        java_properties.decode(data)
    assert caught.value.position == 2


PIECES = st.sampled_from(["a", "=", ":", " ", "\t", "\f", "\n", "\r", "\\", "#", "!", "\\u0041", "\\u0", "é", "k=v\n"])


@given(st.lists(PIECES, max_size=12).map("".join))
def test_properties_come_back_byte_for_byte(text: str) -> None:
    try:
        read = java_properties.decode(text.encode("latin-1"))
    except PropertiesError:
        return
    assert java_properties.encode(read) == text.encode("latin-1")
