"""`cordwood clean`: does what `cordwood plan` says, into a copy, and says what it did."""

from __future__ import annotations

import json
import shlex
import sys
from typing import Annotated

import typer

from cordwood.cli.main import EXIT_DAMAGE, EXIT_OK, EXIT_OUR_FAULT, named
from cordwood.cli.options import (
    Config,
    Directories,
    FirstDirty,
    HighWatermark,
    IgnoreRatio,
    Json,
    Master,
    Memory,
    Metadata,
    Now,
    OffsetMap,
    OnlyPartition,
    OnlyTopic,
    Retention,
    ServerProperties,
    SingleCopy,
    StrictKafka,
    bytes_of,
    high_watermark_of,
)
from cordwood.cli.progress import Progress
from cordwood.errors import RequestError
from cordwood.spark.partitioning import FailureKind
from cordwood.spark.pipeline import clean
from cordwood.spark.results import CleanResult
from cordwood.spark.session import LOCAL_MASTER


def main(
    directories: Directories,
    output: Annotated[
        str | None, typer.Option(metavar="DIR2", help="Write a cleaned copy here: a new folder, or an empty one.")
    ] = None,
    link: Annotated[
        bool, typer.Option("--link", help="Closed segments that stay as they are: hard links instead of copies.")
    ] = False,
    topic: OnlyTopic = None,
    partition: OnlyPartition = None,
    now: Now = None,
    config: Config = None,
    server_properties: ServerProperties = None,
    metadata: Metadata = None,
    ignore_ratio: IgnoreRatio = False,
    first_dirty: FirstDirty = None,
    high_watermark: HighWatermark = None,
    retention: Retention = False,
    single_copy: SingleCopy = False,
    offset_map: OffsetMap = None,
    strict_kafka: StrictKafka = False,
    memory: Memory = None,
    master: Master = LOCAL_MASTER,
    as_json: Json = False,
) -> int:
    """Clean logs as Kafka's cleaner would, into a copy that a broker can start on.

    DIR is only read. DIR2 is there at the end, whole, or not at all. Exit status 1 when a partition could not be
    cleaned, mostly because it is damaged: it is copied as it was, and the others are cleaned.
    """
    if output is None:
        command = shlex.join(["cordwood", "plan", *directories])
        raise RequestError(f"Say where the cleaned copy goes: --output DIR2. To see first what it would do: {command}")
    with Progress(enabled=sys.stderr.isatty()) as progress:
        result = clean(
            *(named(directory) for directory in directories),
            output=output,
            master=master,
            link=link,
            topics=topic or (),
            partitions=partition or (),
            now_ms=now,
            overrides=config or (),
            server_properties=server_properties,
            metadata=metadata,
            ignore_ratio=ignore_ratio,
            first_dirty=first_dirty,
            high_watermark=high_watermark_of(high_watermark),
            retention=retention,
            single_copy=single_copy,
            offset_map=bytes_of(offset_map, "--offset-map"),
            strict_kafka=strict_kafka,
            memory=bytes_of(memory, "--memory"),
            on_plan=progress.begin,
            on_progress=progress.update,
        )
    print(json.dumps(result.document(), indent=1) if as_json else result.text())
    return exit_code_of(result)


def exit_code_of(result: CleanResult) -> int:
    """How the program ends: 0 only when nothing failed."""
    failures = {one.failure.kind for one in result.partitions if one.failure is not None}
    return EXIT_OUR_FAULT if FailureKind.BUG in failures else EXIT_DAMAGE if failures else EXIT_OK
