"""The options of `get` and `erase-check`; apart from `commands.options`, which imports what these do not need."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from cordwood.commands.selection import IndexPlace, Selection
from cordwood.option import Option

DECODERS = (
    "utf8, json, bytes, hex, short, int, long, float, double, uuid; or avro:DIR, protobuf:DIR, jsonschema:DIR with "
    "schemas from a folder"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GetOptions:
    """What `get` is asked for."""

    selection: Selection = field(default_factory=Selection)
    index_place: IndexPlace = field(default_factory=IndexPlace)
    last: Annotated[bool, Option("Only the newest committed record of each key. Older segments may stay unread.")] = (
        False
    )
    key_as: Annotated[
        str,
        Option(
            f"What keys are, as they are given and shown: {DECODERS}. Text that begins with hex: or base64: is those "
            "bytes in any case. Default: utf8.",
            metavar="DECODER",
        ),
    ] = "utf8"
    value_as: Annotated[str, Option("What values are; the same choice. Default: utf8.", metavar="DECODER")] = "utf8"
    now_ms: Annotated[
        int | None, Option("Decide as of this time (ms since 1970). Default: now.", flag="--now", metavar="MS")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EraseCheckOptions:
    """What `erase-check` is asked for."""

    selection: Selection = field(default_factory=Selection)
    values: Annotated[
        bool, Option("Also look for the bytes of the keys within values and headers, and within other keys.")
    ] = False
    key_as: Annotated[
        str,
        Option(
            f"What keys are: {DECODERS}. Text that begins with hex: or base64: is those bytes in any case. "
            "Default: utf8.",
            metavar="DECODER",
        ),
    ] = "utf8"
    now_ms: Annotated[
        int | None, Option("Decide as of this time (ms since 1970). Default: now.", flag="--now", metavar="MS")
    ] = None
