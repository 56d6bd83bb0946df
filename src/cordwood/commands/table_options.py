"""The options of a table."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from cordwood.commands.selection import IndexPlace
from cordwood.commands.times import parse_time
from cordwood.common.errors import RequestError
from cordwood.common.option import METADATA, Option

_DECODERS = (
    "utf8, json, bytes, hex, short, int, long, float, double, uuid; or avro:DIR, protobuf:DIR, jsonschema:DIR with "
    "schemas from a folder"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """The options that define a table."""

    topic: Annotated[str | None, Option("The topic. Default: the only one that is there.", metavar="TOPIC")] = None
    as_of: Annotated[
        int | str | Mapping[int, int] | None,
        Option(
            "The table as of this point: an offset, which is not included; one per partition, as 0:120,1:95; or a time "
            "like 2026-11-21T09:25:45Z, up to the first record at or after it. Default: the last stable offset.",
            metavar="OFFSET|TIME",
        ),
    ] = None
    since: Annotated[
        str | Mapping[int, int] | None,
        Option("Only the changes since an earlier table: the folder that it was written to.", metavar="DIR2"),
    ] = None
    deletes: Annotated[
        bool, Option("Also the keys that were deleted, with a column `deleted`. Changes always have them.")
    ] = False
    key: Annotated[str, Option(f"What keys are: {_DECODERS}. Default: utf8.", metavar="DECODER")] = "utf8"
    value: Annotated[str, Option("What values are; the same choice. Default: utf8.", metavar="DECODER")] = "utf8"
    undecodable: Annotated[
        Literal["fail", "null"],
        Option(
            "What to do with a key or value that cannot be decoded: fail, with its place; or null, with a column "
            "`undecodable`. Default: fail.",
            metavar="fail|null",
        ),
    ] = "fail"
    high_watermark: Annotated[
        int | Literal["end"] | None,
        Option(
            "The offset up to which all replicas have the log (end: all of it). Nothing from there on counts. Default: "
            "its checkpoint; the end where there is no other replica.",
            metavar="OFFSET|end",
        ),
    ] = None
    metadata: Annotated[str | None, METADATA] = None
    work: Annotated[
        str | None,
        Option(
            "Where tasks hand each other files: a folder that all executors see, or a URL. Default: the folder for "
            "temporary files.",
            metavar="DIR",
        ),
    ] = None

    index_place: IndexPlace = field(default_factory=IndexPlace)

    def __post_init__(self) -> None:
        """Raise RequestError for an unknown choice."""
        if self.undecodable not in ("fail", "null"):
            raise RequestError(f"--undecodable {self.undecodable}: give fail or null")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFileOptions:
    """The options for the files of a table."""

    format: Annotated[
        str,
        Option(
            "What the files are: parquet, csv, json, orc, or another format that Spark knows. Default: parquet.",
            metavar="NAME",
        ),
    ] = "parquet"
    writer: Annotated[
        Sequence[str],
        Option(
            "An option of Spark's writer of this format, such as header=true for csv.",
            flag="--writer-option",
            metavar="KEY=VALUE",
        ),
    ] = ()

    def writer_options(self) -> dict[str, str]:
        """Return the writer's options by name."""
        for one in self.writer:
            if "=" not in one:
                raise RequestError(f"--writer-option {one}: give KEY=VALUE, such as header=true")
        return dict(one.split("=", 1) for one in self.writer)


@dataclass(frozen=True, slots=True)
class Time:
    """A point in time, in milliseconds since the epoch."""

    ms: int


def parse_point(given: int | str | Mapping[int, int] | None) -> int | Mapping[int, int] | Time | None:
    """Parse the point of a table: an offset, offsets by partition, a time; or None for the last stable offset."""
    if not isinstance(given, str):
        return given
    if re.fullmatch(r"[0-9]{1,19}", given, re.ASCII):
        return int(given)
    if re.fullmatch(r"[0-9]{1,10}:[0-9]{1,19}(,[0-9]{1,10}:[0-9]{1,19})*", given, re.ASCII):
        pairs = (one.split(":") for one in given.split(","))
        return {int(partition): int(offset) for partition, offset in pairs}
    try:
        return Time(parse_time(given))
    except RequestError:
        what = "an offset like 120, offsets by partition like 0:120,1:95, nor a time like 2026-11-21T09:25:45Z"
        raise RequestError(f"--as-of {given}: this is neither {what}") from None
