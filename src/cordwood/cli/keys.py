"""Keys on a command line, or in a file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from cordwood.common.errors import NotFoundError, RequestError
from cordwood.fs.base import Bytes
from cordwood.fs.by_url import file_system_for

Keys = Annotated[list[str] | None, typer.Option("--key", metavar="KEY", help="A key, as --key-as says. Repeatable.")]
KeysFile = Annotated[
    str | None, typer.Option("--keys", metavar="FILE", help="A file with a key on each line; - is the standard input.")
]

#: Size limit of a file of keys; nobody writes a larger list.
_FILE_BYTES_MAX = 1 << 30
#: First bytes of a file in UTF-16.
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


def given_keys(keys: Sequence[str] | None, path: str | None) -> list[str]:
    """Return the keys from the options `--key`, and from the non-empty lines of a file.

    Raises:
        RequestError: no key is given.
        NotFoundError: the file is missing.
    """
    found = list(keys or ())
    if path is not None:
        found += key_lines(path).split("\n")
    if not any(found):
        raise RequestError("Which key? Give --key KEY, or --keys FILE with a key on each line")
    return [one for one in found if one]


def key_lines(path: str) -> str:
    """Read a file of keys as text; bytes that are not UTF-8 survive as surrogates."""
    data = _read(path)
    if len(data) > _FILE_BYTES_MAX:
        raise RequestError(f"{path} has more than {_FILE_BYTES_MAX:,} bytes: too many for a list of keys")
    if data[:2] in _UTF_16:
        raise RequestError(f"{path} is in UTF-16, so its keys would not be found. Write it as UTF-8")
    # Some editors write a byte order mark, which is not part of the first key.
    text = str(data, "utf-8-sig", "surrogateescape").replace("\r\n", "\n")
    if "\r" in text and "\n" not in text:
        raise RequestError(f"{path} ends its lines with a CR alone, so all of it would be one key. End them with LF")
    return text


def _read(path: str) -> Bytes:
    """Read a file up to one byte more than the limit; `-` is stdin."""
    if path == "-":
        return sys.stdin.buffer.read(_FILE_BYTES_MAX + 1)
    # A Store opens files of known size only, not a pipe such as a shell's <(…).
    if Path(path).is_fifo():
        with open(path, "rb") as pipe:
            return pipe.read(_FILE_BYTES_MAX + 1)
    try:
        with file_system_for([path]).open(path) as file:
            return file.read(0, min(file.size(), _FILE_BYTES_MAX + 1))
    except FileNotFoundError:
        raise NotFoundError(f"{path} does not exist; it was to hold the keys") from None
