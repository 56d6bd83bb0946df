"""`cordwood get`, `erase-check`, `index`: find the records of keys, prove that none is left, and index keys.

Each function imports its command, so that one starts without the others.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from cordwood.cli.main import EXIT_DAMAGE, EXIT_OK, EXIT_REQUEST, exit_code_of, named, show, show_result
from cordwood.cli.options import ClusterDirectories, Directories, Json, check_output, with_options, write_output
from cordwood.cli.progress import Progress
from cordwood.commands.options import EraseCheckOptions, GetOptions, IndexingOptions
from cordwood.commands.why.found_keys import ErasureResult, ErasureVerdict
from cordwood.common.errors import NotFoundError, RequestError
from cordwood.fs.base import Bytes
from cordwood.fs.by_url import file_system_for

Keys = Annotated[
    list[str] | None, typer.Option("--key", metavar="KEY", help="A key, in the form that --key-as names. Repeatable.")
]
KeysFile = Annotated[
    str | None, typer.Option("--keys", metavar="FILE", help="A file with a key on each line; - is the standard input.")
]

#: Size limit of a file of keys; nobody writes a larger list.
_FILE_BYTES_MAX = 1 << 30
#: First bytes of a file in UTF-16.
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


@with_options
def get(
    directories: ClusterDirectories = None,
    *,
    options: GetOptions,
    key: Keys = None,
    keys: KeysFile = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Show at most the N newest records of each key and partition; count older records by their next step.",
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """Show all records of a key in order: where each is, how its transaction ended, and which clean will remove it.

    Changes nothing in DIR; a broker may be running. Segments with a key index (cordwood index) are searched in
    milliseconds; others are read. The table cuts long values off; --json does not. Exit status 2 if there is no record
    of a key, 1 if there is damage.
    """
    from cordwood.commands import get as getting

    wanted = given_keys(key, keys)
    with Progress() as progress:
        result = getting.get([named(one) for one in directories or ()], wanted, options, on_progress=progress.of)
    if as_json:
        show(json.dumps(getting.document(result, limit), indent=1))
    else:
        show("\n".join(getting.lines(result, limit)))
    return exit_code_of(result.problems) or (EXIT_REQUEST if result.unknown else EXIT_OK)


@with_options
def erase_check(
    directories: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="DIR...",
            help="All places that may have traces: directories of all brokers, copies, folders of kept files, buckets.",
        ),
    ] = None,
    *,
    options: EraseCheckOptions,
    key: Keys = None,
    keys: KeysFile = None,
    certificate: Annotated[
        list[str] | None,
        typer.Option(
            "--report",
            "--certificate",
            metavar="FILE",
            help="Write the result to this file: as a page if its name ends with .html, else as JSON. Repeatable.",
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """Look for traces of erased keys in all files of all directories, and list the steps that remain.

    Reads every byte: records, superseded records and tombstones, key indexes, files that a broker or a clean left
    behind, kept files. Changes nothing; a broker may be running. Exit status 1 if there is
    a trace, or if a file could not be read completely.
    """
    from cordwood.commands import erase_check as erasure

    wanted = given_keys(key, keys)
    for path in certificate or ():
        check_output(path, "the certificate")
    with Progress() as progress:
        result = erasure.erase_check(
            [named(one) for one in directories or ()], wanted, options, on_progress=progress.of
        )
    for path in certificate or ():
        write_output(path, _certificate(result, path))
    show_result(result, as_json=as_json)
    return EXIT_OK if result.verdict is ErasureVerdict.CLEAR else EXIT_DAMAGE


def _certificate(result: ErasureResult, path: str) -> str:
    if path.lower().endswith((".html", ".htm")):
        return result.page()
    return json.dumps(result.document(), indent=1) + "\n"


@with_options
def index(directories: Directories, options: IndexingOptions, as_json: Json = False) -> int:
    """Make a key index of each segment: its keys, and the records that have them. No file of the log changes.

    With an index, `cordwood get` and `cordwood dump --key` read only the batches that may have the key. An index takes
    about 8.5 bytes per record. Indexes that are up to date stay; indexes of deleted segments are removed, and those of
    changed segments are made again. A segment gets no index larger than a tenth of it.
    """
    from cordwood.commands import index as indexing

    show_result(indexing.index([named(one) for one in directories], options), as_json=as_json)
    return EXIT_OK


# ---- keys on the command line, or in a file -----------------------------------------------------------------------


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
