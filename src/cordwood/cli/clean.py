"""`cordwood clean`: does what `cordwood plan` says, into a copy or in place, and says what it did."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, TypedDict

import typer

from cordwood.cleaning.plan import Plan
from cordwood.cli.main import EXIT_DAMAGE, EXIT_FULL, EXIT_OK, EXIT_OUR_FAULT, named
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
    plan_options,
)
from cordwood.cli.progress import Progress
from cordwood.commands.clean import clean
from cordwood.commands.clean_in_place import clean_in_place
from cordwood.engine.progress import OnProgress
from cordwood.engine.results import CleanResult
from cordwood.engine.task import FailureKind
from cordwood.errors import RequestError
from cordwood.spark.session import LOCAL_MASTER


def main(
    directories: Directories,
    output: Annotated[
        str | None, typer.Option(metavar="DIR2", help="Write a cleaned copy here: a new folder, or an empty one.")
    ] = None,
    in_place: Annotated[bool, typer.Option("--in-place", help="Clean DIR itself; no broker may run on it.")] = False,
    link: Annotated[
        bool, typer.Option("--link", help="Copy: closed segments that stay as they are become hard links.")
    ] = False,
    keep_old: Annotated[
        str | None,
        typer.Option(metavar="DIR3", help="In place: what is replaced goes here, and `undo DIR3` puts it back."),
    ] = None,
    no_verify: Annotated[
        bool, typer.Option("--no-verify", help="In place: do not prove what was written before it replaces anything.")
    ] = False,
    work_space: Annotated[
        str | None,
        typer.Option(metavar="BYTES", help="In place: what may be written before old segments go; default: all free."),
    ] = None,
    no_broker_elsewhere: Annotated[
        bool,
        typer.Option("--no-broker-elsewhere", help="In place on a network disk: no other machine's broker uses it."),
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
    """Clean logs as Kafka's cleaner would: into a copy that a broker can start on, or in place.

    A copy: DIR is only read. DIR2 is there at the end, whole, or not at all.

    In place: segments are replaced group by group, each at once, once what was written was checked and proved right.
    What is finished stays finished, whatever happens.

    Exit status 1 when a partition could not be cleaned, mostly because it is damaged: it stays, or is copied, as it
    was, and the others are cleaned.
    """
    options = plan_options(locals())
    _check_target(directories, output, in_place=in_place)
    for option, given, needs in (
        ("--link", link, "--output"),
        ("--keep-old", keep_old, "--in-place"),
        ("--no-verify", no_verify, "--in-place"),
        ("--work-space", work_space, "--in-place"),
        ("--no-broker-elsewhere", no_broker_elsewhere, "--in-place"),
    ):
        if given and in_place is (needs == "--output"):
            raise RequestError(f"{option} goes with {needs}")
    paths = [named(directory) for directory in directories]
    with Progress(enabled=sys.stderr.isatty()) as progress:
        told: _Told = {"master": master, "on_plan": progress.begin, "on_progress": progress.update}
        if output is not None:
            result = clean(*paths, output=output, link=link, **told, **options)
        else:
            result = clean_in_place(
                *paths,
                keep_old=keep_old,
                verify=not no_verify,
                work_space=bytes_of(work_space, "--work-space"),
                no_broker_elsewhere=no_broker_elsewhere,
                **told,
                **options,
            )
    print(json.dumps(result.document(), indent=1) if as_json else result.text())
    return exit_code_of(result)


class _Told(TypedDict):
    """How a clean is run, and who hears of it."""

    master: str
    on_plan: Callable[[Plan, int], None]
    on_progress: OnProgress


def _check_target(directories: Sequence[str], output: str | None, *, in_place: bool) -> None:
    if in_place and output is not None:
        raise RequestError("Either --output DIR2 or --in-place: a clean is done in one place")
    if not in_place and output is None:
        command = shlex.join(["cordwood", "plan", *directories])
        raise RequestError(
            f"Say where the cleaned logs go: --output DIR2, or --in-place. To see first what it would do: {command}"
        )


def exit_code_of(result: CleanResult) -> int:
    """How the program ends: 0 only when nothing failed."""
    failures = {one.failure.kind for one in result.partitions if one.failure is not None}
    codes = {FailureKind.BUG: EXIT_OUR_FAULT, FailureKind.FULL: EXIT_FULL}
    return next((code for kind, code in codes.items() if kind in failures), EXIT_DAMAGE if failures else EXIT_OK)
