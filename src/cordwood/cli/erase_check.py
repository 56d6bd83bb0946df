"""`cordwood erase-check`: whether traces of keys remain, with a certificate."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from cordwood.cli.keys import Keys, KeysFile, given_keys
from cordwood.cli.main import EXIT_DAMAGE, EXIT_OK, named, show
from cordwood.cli.options import Json, check_output, with_options, write_output
from cordwood.cli.progress import Progress
from cordwood.commands.erase_check import erase_check
from cordwood.commands.options import EraseCheckOptions
from cordwood.commands.why.found_keys import ErasureResult, ErasureVerdict


@with_options
def main(
    directories: Annotated[
        list[str],
        typer.Argument(
            metavar="DIR...",
            help="All that may have traces: directories of brokers, copies, folders of kept files, buckets.",
        ),
    ],
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

    Records, superseded ones and tombstones, key indexes, files that a broker or a clean left behind, kept files: all
    are read, whatever a broker would make of them. Changes nothing; a broker may be running. Exit status 1 if there is
    a trace, or if a file could not be read completely.
    """
    wanted = given_keys(key, keys)
    for path in certificate or ():
        check_output(path, "the certificate")
    with Progress(enabled=sys.stderr.isatty()) as progress:
        result = erase_check([named(one) for one in directories], wanted, options, on_progress=progress.of)
    for path in certificate or ():
        write_output(path, _certificate(result, path))
    show(json.dumps(result.document(), indent=1) if as_json else result.text())
    return EXIT_OK if result.verdict is ErasureVerdict.CLEAR else EXIT_DAMAGE


def _certificate(result: ErasureResult, path: str) -> str:
    if path.lower().endswith((".html", ".htm")):
        return result.page()
    return json.dumps(result.document(), indent=1) + "\n"
