"""`cordwood verify`: proves that one state of a log is what a clean may leave of another."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from cordwood.cli.main import EXIT_DAMAGE, EXIT_OK, named
from cordwood.cli.options import (
    Config,
    HighWatermark,
    Json,
    Master,
    Metadata,
    Now,
    OnlyPartition,
    OnlyTopic,
    ServerProperties,
    high_watermark_of,
)
from cordwood.cli.progress import Progress
from cordwood.commands.verify import verify
from cordwood.spark.session import LOCAL_MASTER


def main(
    before: Annotated[str, typer.Argument(metavar="BEFORE", help="The log as it was: directory or partition.")],
    after: Annotated[str, typer.Argument(metavar="AFTER", help="The log as a clean left it.")],
    topic: OnlyTopic = None,
    partition: OnlyPartition = None,
    now: Now = None,
    config: Config = None,
    server_properties: ServerProperties = None,
    metadata: Metadata = None,
    high_watermark: HighWatermark = None,
    retention: Annotated[
        bool, typer.Option("--retention", help="It ran, or records were deleted: a log may start later than before.")
    ] = False,
    master: Master = LOCAL_MASTER,
    as_json: Json = False,
) -> int:
    """Prove what a clean guarantees, from the two states of a log alone, without the cleaner's code.

    Changes nothing. Exit status 1 when anything is not as it should be; each violation has its key, offset and file.
    """
    with Progress(enabled=sys.stderr.isatty()) as progress:
        result = verify(
            named(before),
            named(after),
            master=master,
            topics=topic or (),
            partitions=partition or (),
            now_ms=now,
            overrides=config or (),
            server_properties=server_properties,
            metadata=metadata,
            high_watermark=high_watermark_of(high_watermark),
            retention=retention,
            on_start=progress.begin,
            on_progress=progress.update,
        )
    print(json.dumps(result.document(), indent=1) if as_json else result.text())
    return EXIT_OK if result.holds else EXIT_DAMAGE
