"""Keys as people write them, as bytes, and back."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import pytest

from cordwood.common.errors import RequestError
from cordwood.fs.posix import PosixFileSystem
from cordwood.tables.decoders.keys import Coder

FS = PosixFileSystem()

CASES = [
    ("utf8", "żółw", "żółw".encode(), "żółw"),
    ("utf8", "hex:00ff", b"\x00\xff", b"\x00\xff"),
    ("long", "base64:AAAAAAAAAAc=", bytes(7) + b"\7", 7),
    ("json", '{"a": 1}', b'{"a": 1}', {"a": 1}),
    ("hex", "00ff", b"\x00\xff", "00ff"),
    ("bytes", "00ff", b"\x00\xff", b"\x00\xff"),
    ("short", "-2", b"\xff\xfe", -2),
    ("int", "258", b"\0\0\1\2", 258),
    ("float", "0.5", struct.pack(">f", 0.5), 0.5),
    ("double", "0.1", struct.pack(">d", 0.1), 0.1),
    ("uuid", "123e4567-e89b-12d3-a456-426614174000", b"123e4567-e89b-12d3-a456-426614174000", None),
]


@pytest.mark.parametrize(("decoder", "text", "raw", "shown"), CASES)
def test_a_key_becomes_bytes_and_the_bytes_become_the_key(decoder: str, text: str, raw: bytes, shown: object) -> None:
    assert Coder(decoder, FS).encode(text) == (raw,)
    assert Coder(decoder, FS).decode([raw, None]) == [shown if shown is not None else text, None]


@pytest.mark.parametrize(
    ("decoder", "text", "says"),
    [
        ("hex", "0g", "'0g' is no hex"),
        ("utf8", "hex:0", "'0' is no hex"),
        ("utf8", "base64:*", "is no base64"),
        ("int", "3000000000", "is no int"),
        ("long", "x", "is no long"),
        ("nothing", "x", "'nothing' is no decoder; there are utf8, json"),
    ],
)
def test_what_is_no_key_is_refused_with_the_reason(decoder: str, text: str, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        Coder(decoder, FS).encode(text)


def test_bytes_that_a_decoder_cannot_read_stay_bytes() -> None:
    assert Coder("int", FS).decode([b"\xff", b"\0\0\0\1"]) == [b"\xff", 1]
    assert Coder("utf8", FS).decode([b"\xff\xfe", b"a"]) == [b"\xff\xfe", "a"]


def test_a_key_of_avro_is_written_by_each_schema_that_can(tmp_path: Path) -> None:
    old = {"type": "record", "name": "K", "fields": [{"name": "id", "type": "long"}]}
    new = {**old, "fields": [*old["fields"], {"name": "region", "type": "string", "default": "eu"}]}
    for number, schema in ((3, old), (12, new), (40, "string")):
        (tmp_path / f"{number}.avsc").write_text(json.dumps(schema))
    coder = Coder(f"avro:{tmp_path}", FS)
    first, second = coder.encode('{"id": 7}')[:2]
    assert first == b"\0\0\0\0\3\x0e" and second == b"\0\0\0\0\x0c\x0e\4eu"
    assert len(coder.encode('{"id": 7}')) == 2
    assert coder.encode('"a"') == (b"\0\0\0\0\x28\2a",)
    with pytest.raises(RequestError, match=r"no schema of avro:.* can write the key"):
        coder.encode("[1]")
    shutil.rmtree(tmp_path)
    assert coder.encode('{"id": 7}') == (first, second), "the schemas were read again"
