"""`cordwood ls`, `check`, `why`: partitions in brokers' directories, what is wrong, and why they are so large."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from cordwood.cli.main import EXIT_DAMAGE, EXIT_OK, EXIT_REQUEST, named, show, show_result
from cordwood.cli.options import ClusterDirectories, Json, with_options
from cordwood.cli.progress import Line, LogProgress
from cordwood.commands import check as check_command
from cordwood.commands import ls as list_command
from cordwood.commands.ls import By
from cordwood.commands.options import ListOptions, TierPlace, WhyOptions
from cordwood.common.errors import RequestError
from cordwood.common.text import number
from cordwood.storage.check import Check, CheckResult
from cordwood.storage.check.cluster import check_metadata_logs, paths_by_broker
from cordwood.storage.check.sampling import Quick

if TYPE_CHECKING:
    from cordwood.storage.node.listing import Listing, PartitionListing

#: Number of partitions shown one by one.
_SHOWN_BY_WHY = 20


@with_options
def ls(
    directories: ClusterDirectories = None,
    *,
    options: ListOptions,
    by: Annotated[
        By,
        typer.Option(
            help="A line per replica (a partition's directory); or per partition, with all its replicas; or the sums "
            "per topic or broker."
        ),
    ] = By.REPLICA,
    as_json: Json = False,
) -> int:
    """List partitions: offsets, sizes, records, policy, dirty bytes, codecs, times and state.

    The directories may belong to several brokers of one cluster. Changes nothing; a broker may be running. Exit status
    1 if the batches of a log are not contiguous, 2 if something could not be read. Of a log above 8 MiB a sample of the
    batch headers is read, without --exact; ≈ marks estimates. In an object store, records, codecs, times and damage
    take a request per segment, so they are left out without --segments. Rows of more than 200 partitions appear as they
    are read, most dirty offsets first, unless --sort is given.
    """
    segments = options.index_entries
    if segments and by is not By.REPLICA:
        raise RequestError(f"--segments and --by {by}: give one of them")
    rows = list_command.RowsAsRead()
    with LogProgress() as progress:

        def show_rows(head: Listing, partitions: Sequence[PartitionListing]) -> bool:
            progress.clear()
            return show("\n".join(rows.next_lines(head, partitions)))

        listing = list_command.ls_as_read(
            [named(directory) for directory in directories or ()],
            options,
            None if as_json or segments or by is not By.REPLICA else show_rows,
            on_progress=progress.update,
        )
    if as_json:
        show(json.dumps(list_command.document(listing, segments=segments), indent=1))
    elif rows.is_begun:
        show("\n".join(rows.last_lines(listing)))
    else:
        show("\n".join(list_command.lines(listing, segments=segments, by=by)))
    if any(one.damage for one in listing.partitions):
        return EXIT_DAMAGE
    return EXIT_REQUEST if any(one.unreadable for one in listing.partitions) else EXIT_OK


@with_options
def check(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH...", help="Log directories, partitions, or single files.", show_default=False),
    ],
    tier_place: TierPlace,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Read only the ends of large segments and of their indexes, and a sample of their batches. The result "
            "reports what was not read.",
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON line per finding, and one with a summary at the end.")
    ] = False,
) -> int:
    """Foretell a broker's start: the data that it serves, refuses or loses, and the place of every inconsistency.

    Of several brokers, each is checked by itself, and then their metadata logs against each other. Changes nothing; a
    broker may be running. Exit status 1 if anything is damaged. Leftovers of a crash that the next
    load repairs are explained; they do not count as damage.
    """
    fs = tier_place.store(paths)
    by_broker, results = paths_by_broker(fs, [named(path) for path in paths]), dict[str, CheckResult]()
    is_read = True
    for broker, some in by_broker.items():
        found = []
        with _CheckProgress() as progress:
            checks = Check(fs, progress.update, Quick() if quick else None)
            for finding in checks.run(some):
                if as_json:
                    is_read = is_read and show(json.dumps(check_command.finding_document(finding, broker)))
                    if not is_read and checks.summary.damaged:
                        return EXIT_DAMAGE  # the output's reader has quit, and the exit status cannot change any more
                else:
                    found.append(finding)
        if as_json:
            show(json.dumps(check_command.summary_document(checks.summary, checks.start, broker)))
        results[broker] = CheckResult(found, checks.summary, checks.start)
    result = next(iter(results.values()))
    if len(results) > 1:
        between = check_metadata_logs(fs, by_broker)
        result = check_command.joined(results, between)
        for finding in between if as_json else ():
            show(json.dumps(check_command.finding_document(finding)))
        if as_json:
            show(json.dumps(check_command.summary_document(result.summary, result.start)))
    if not as_json:
        show("\n".join(check_command.lines(result)))
    return EXIT_DAMAGE if result.summary.damaged else EXIT_OK


class _CheckProgress(Line):
    def update(self, check: Check) -> None:
        seconds = self.due_seconds()
        if seconds is not None and check.summary.looked is not None:
            partitions, read = number(check.partitions_done, "partition"), check.summary.looked.read_bytes
            self.show(
                f"{partitions}, {check_command.megabytes(read)} read of {check_command.megabytes(check.bytes_total)}"
            )
        elif seconds is not None:
            done = min(check.bytes_done / max(check.bytes_total, 1), 1.0)
            left = f", {seconds * (1 - done) / done:,.0f} s left" if done > 0.01 else ""
            self.show(f"{done:4.0%} of {check_command.megabytes(check.bytes_total)}{left}")


@with_options
def why(
    directories: ClusterDirectories = None,
    *,
    options: WhyOptions,
    limit: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, help="Show at most N partitions in detail; all are in the summary. Default: 20."
        ),
    ] = _SHOWN_BY_WHY,
    as_json: Json = False,
) -> int:
    """Explain the size of partitions: what keeps each from being smaller, and what to do next.

    Partitions that could lose most come first. Changes nothing; a broker may be running. Reads batch headers (without
    --exact, only some of a log above 8 MiB), and a sample of the records of compacted partitions. Exit status 1 if a
    partition is damaged, 2 if one cannot be read.
    """
    # Imported here: `ls` starts sooner without the planner.
    from cordwood.commands import why_node as why_command
    from cordwood.commands.why.facts import CauseKind

    with LogProgress() as progress:
        result = why_command.why(
            [named(directory) for directory in directories or ()], options, on_progress=progress.update
        )
    show_result(result, as_json=as_json, lines=why_command.lines(result, limit))
    replicas = [replica for partition in result.partitions for replica in partition.all_replicas]
    kinds = {cause.kind for replica in replicas for cause in replica.causes}
    if CauseKind.DAMAGED in kinds:
        return EXIT_DAMAGE
    return EXIT_REQUEST if CauseKind.UNREADABLE in kinds else EXIT_OK
