"""The options of `get`, `erase-check` and `index`; a module of their own, as `commands.options` imports more."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from cordwood.commands.selection import ChosenPartitions, IndexPlace, Selection
from cordwood.common.option import NO_BROKER_ELSEWHERE, NOW, Option

DECODERS = (
    "utf8, json, bytes, hex, short, int, long, float, double, uuid; or avro:DIR, protobuf:DIR, jsonschema:DIR with "
    "schemas from a folder"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GetOptions:
    """The options of `get`."""

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
    now_ms: Annotated[int | None, NOW] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EraseCheckOptions:
    """The options of `erase-check`."""

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
    now_ms: Annotated[int | None, NOW] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexingOptions:
    """The options of `index`."""

    drop: Annotated[bool, Option("Remove all key indexes.")] = False
    index_dir: Annotated[
        str | None,
        Option(
            "Folder for the indexes, with a folder for each partition; DIR is only read then, so a broker may be "
            "running, and it may be in an object store. Default: in DIR.",
            metavar="DIR4",
        ),
    ] = None
    index_max: Annotated[
        int | None,
        Option(
            "Disk space for the indexes of a partition; those of its newest segments are left out. Default: a tenth of "
            "its log.",
            metavar="BYTES",
        ),
    ] = None
    chosen: ChosenPartitions = field(default_factory=ChosenPartitions)
    no_broker_elsewhere: Annotated[bool, NO_BROKER_ELSEWHERE] = False
