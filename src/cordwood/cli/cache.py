"""`cordwood cache`: what this user's caches take, and removing them."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from cordwood.cli.main import EXIT_OK
from cordwood.cli.options import Json
from cordwood.commands.cache import caches


def main(
    drop: Annotated[bool, typer.Option("--drop", help="Remove them.")] = False,
    as_json: Json = False,
) -> int:
    """List what is cached to save time: compiled kernels, and a class archive with which Java starts sooner.

    Both are made again when they are needed. Remove them when you remove Cordwood.
    """
    found = caches(drop=drop)
    print(json.dumps(asdict(found), indent=1) if as_json else found.text())
    return EXIT_OK
