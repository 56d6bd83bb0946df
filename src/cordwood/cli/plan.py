"""`cordwood plan`: what a clean would do, as bounds; or with `--exact` as figures, from a clean that writes nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from cordwood.cleaning.plan import Decision
from cordwood.cli.main import EXIT_DAMAGE, EXIT_OK, named
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
    plan_options,
)
from cordwood.cli.progress import Progress
from cordwood.commands.options import PlanOptions
from cordwood.commands.plan import make_plan
from cordwood.spark.session import LOCAL_MASTER


def main(
    directories: Directories,
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
    exact: Annotated[
        bool, typer.Option("--exact", help="Run the clean on Spark without writing, for figures instead of bounds.")
    ] = False,
    master: Master = LOCAL_MASTER,
    as_json: Json = False,
) -> int:
    """Say what a clean would do to each partition, or why it would leave it alone, and when that changes.

    Nothing is changed, and a running broker is no obstacle. No record is read, so what would go is given as a bound;
    with --exact all is read, and counted. Exit status 1 when a partition cannot be cleaned because it is damaged.
    """
    asked = plan_options(locals())
    paths = [named(directory) for directory in directories]
    if exact:
        return _exactly(paths, asked, master, as_json=as_json)
    plan = make_plan(*paths, **asked)
    print(json.dumps(plan.document(), indent=1) if as_json else plan.text())
    return EXIT_DAMAGE if plan.of(Decision.REFUSE) else EXIT_OK


def _exactly(paths: Sequence[str], asked: PlanOptions, master: str, *, as_json: bool) -> int:
    # Only this needs Spark, which takes its time.
    from cordwood.cli.clean import exit_code_of
    from cordwood.commands.plan_exact import plan_exact

    with Progress(enabled=sys.stderr.isatty()) as progress:
        found = plan_exact(*paths, master=master, on_plan=progress.begin, on_progress=progress.update, **asked)
    print(json.dumps(found.document(), indent=1) if as_json else found.text())
    return exit_code_of(found.result)
