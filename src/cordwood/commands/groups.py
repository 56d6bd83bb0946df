"""`groups`: the consumer groups in the directories of one or more brokers, their offsets and their lag.

A group's records are in one partition of `__consumer_offsets`, and the state of share groups in `__share_group_state`.
Lag counts to the ends of the logs in the same directories. With the directories of all brokers, all groups and all ends
are there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

from cordwood.commands.coordinators import (
    Beside,
    OnLogs,
    brokers_lines,
    coverage_document,
    coverage_text,
    partition_document,
    partitions_text,
    problem_lines,
)
from cordwood.commands.options import GroupOptions
from cordwood.common.errors import DataError, NotFoundError
from cordwood.common.text import Cells, Column, cells_of, number, printable, register, table, time_text
from cordwood.fs.base import Store
from cordwood.storage.formats.messages.topics import CONSUMER_OFFSETS, SHARE_GROUP_STATE
from cordwood.storage.node.cluster import Cluster
from cordwood.storage.node.groups import (
    SHARE_UPDATE,
    CommittedOffset,
    EndSource,
    Group,
    GroupBuilder,
    GroupListing,
    GroupMember,
)


def groups(
    paths: Sequence[str],
    options: GroupOptions,
    *,
    on_progress: Callable[[int, int], None] | None = None,
    fs: Store | None = None,
) -> GroupListing:
    """List the consumer groups in the directories of one or more brokers: members, committed offsets, and lag.

    Args:
        on_progress: called with the number of logs read so far, and of all.

    Raises:
        NotFoundError: there is nothing at a path, no partition of `__consumer_offsets`, or no group was selected.
        RequestError: a path is a file; or the directories belong to different clusters.
    """
    given = options.named.with_paths(paths)
    fs = fs or options.tier_place.store([*given, options.metadata])
    cluster = Cluster.open(fs, paths, options.metadata, named=options.named.named)
    return groups_of_cluster(cluster, given, options, on_progress=on_progress)


def groups_of_cluster(
    cluster: Cluster, paths: Sequence[str], options: GroupOptions, *, on_progress: OnLogs | None = None
) -> GroupListing:
    """List the consumer groups in the directories of a cluster's brokers, as they were when it was opened."""
    beside = Beside(cluster)
    offsets_topic, share_topic = beside.coverage(CONSUMER_OFFSETS), beside.coverage(SHARE_GROUP_STATE)
    if not offsets_topic.partitions:
        what = f"No partition of {CONSUMER_OFFSETS} in {', '.join(paths)}"
        raise NotFoundError(f"{what}; each broker of a cluster has some of its partitions, and the groups in them")
    problems: list[DataError | OSError] = []
    builder = GroupBuilder(beside.topic_names, beside.end_of)
    for partition, record, producer_id in beside.state(CONSUMER_OFFSETS, problems.append, on_progress=on_progress):
        builder.add(partition, record, producer_id)
    for _, record, _ in beside.state(SHARE_GROUP_STATE, problems.append, updates=SHARE_UPDATE):
        builder.add_share_record(record)
    wanted = options.groups
    listed = [one for one in builder.groups() if not wanted or any(fnmatchcase(one.group_id, glob) for glob in wanted)]
    if wanted and not listed:
        raise NotFoundError(f"No group in {', '.join(paths)} matches {', '.join(wanted)}")
    return GroupListing(tuple(listed), offsets_topic, share_topic, tuple(problems), cluster.brokers)


# ---- the listing as text ---------------------------------------------------------------------------------------------

#: Maximum number of groups shown whose offsets are ahead of their logs.
_AHEAD_SHOWN = 5


def _lag(group: Group) -> str:
    if group.lag is None:
        return "-"
    # Offsets of partitions outside these directories have no lag, so the sum is a lower bound.
    some = any(offset.lag is None for offset in group.offsets)
    ahead = group.lag - group.behind
    # One sum would hide negative lags.
    behind = f"{'≥' if some else ''}{group.behind:,}" if group.behind or not ahead else ""
    return ", ".join(part for part in (behind, f"{ahead:,}" if ahead else "") if part)


def _last_commit(group: Group) -> str:
    return time_text(max((offset.commit_timestamp_ms or 0 for offset in group.offsets), default=0) or None)


def _has(member: GroupMember) -> str:
    tasks = [f"{kind} {','.join(some)}" for kind, some in member.tasks.items() if some]
    return "; ".join(tasks) or member.problem or partitions_text(member.assigned)


def _text(value: object) -> str:
    return "-" if value in (None, "") else printable(str(value))


GROUP_COLUMNS: Sequence[tuple[Column, Callable[[Group], str]]] = (
    (Column("GROUP"), lambda one: printable(one.group_id)),
    (Column("TYPE"), lambda one: one.type),
    (Column("STATE"), lambda one: one.state),
    (Column("ASSIGNOR"), lambda one: _text(one.assignor)),
    (Column("EPOCH", right=True), lambda one: _text(one.epoch)),
    (Column("MEMBERS", right=True), lambda one: f"{len(one.members):,}"),
    (Column("PARTITIONS", right=True), lambda one: f"{len(one.offsets):,}"),
    (Column("LAG", right=True), _lag),
    (Column("LAST COMMIT (UTC)"), _last_commit),
)
MEMBER_COLUMNS: Sequence[tuple[Column, Callable[[GroupMember], str]]] = (
    (Column("MEMBER"), lambda one: printable(one.member_id)),
    (Column("CLIENT"), lambda one: _text(one.client_id)),
    (Column("HOST"), lambda one: _text(one.client_host)),
    (Column("INSTANCE"), lambda one: _text(one.instance_id)),
    (Column("EPOCH", right=True), lambda one: _text(one.epoch)),
    (Column("HAS"), lambda one: printable(_has(one))),
    (Column("IS TO HAVE"), lambda one: "-" if one.target is None else printable(partitions_text(one.target))),
)
OFFSET_COLUMNS: Sequence[tuple[Column, Callable[[CommittedOffset], str]]] = (
    (Column("PARTITION"), lambda one: printable(str(one.partition))),
    (Column("OFFSET", right=True), lambda one: _text(None if one.offset < 0 else one.offset)),
    (Column("END", right=True), lambda one: _text(None if one.end is None else one.end.offset)),
    (Column("LAG", right=True), lambda one: "-" if one.lag is None else f"{one.lag:,}"),
    (Column("COMMITTED (UTC)"), lambda one: time_text(one.commit_timestamp_ms)),
    (Column("MEMBER"), lambda one: _text(one.member_id)),
)


def lines(listing: GroupListing, *, members: bool = False, offsets: bool = False) -> Iterator[str]:
    """Yield the listing for people: a line per group; with the options also one per member and one per partition."""
    yield from coverage_lines(listing)
    yield ""
    yield from table(*cells_of(GROUP_COLUMNS, listing.groups))
    if members:
        yield ""
        yield from _by_group(MEMBER_COLUMNS, [(group, one) for group in listing.groups for one in group.members])
    if offsets:
        yield ""
        yield from _by_group(OFFSET_COLUMNS, [(group, one) for group in listing.groups for one in group.offsets])
    yield ""
    yield from footnotes(listing)


def _by_group(columns: Cells, values: Sequence[tuple[Group, Any]]) -> Iterable[str]:
    """Build a table of members or offsets, with the group in the first column."""
    titles, rows = cells_of(columns, [one for _, one in values])
    return table(
        [GROUP_COLUMNS[0][0], *titles],
        [[printable(group.group_id), *row] for (group, _), row in zip(values, rows, strict=True)],
    )


def coverage_lines(listing: GroupListing) -> Iterator[str]:
    """Yield the brokers, and the coverage of the internal topics that hold groups."""
    yield from brokers_lines(listing.brokers)
    for one in (listing.offsets_topic, listing.share_topic):
        if one.partitions:
            yield f"{one.topic}: {coverage_text(one)}"


def footnotes(listing: GroupListing) -> Iterator[str]:
    """Yield the totals of a listing, the ends that the lag counts to, and unreadable files."""
    groups = listing.groups
    partitions = {offset.partition: offset.end for one in groups for offset in one.offsets}
    counts = number(len(groups), "group"), number(sum(len(one.members) for one in groups), "member")
    committed = {offset.partition for one in groups for offset in one.offsets if offset.offset >= 0}
    yield ", ".join((*counts, f"offsets in {number(len(committed), 'partition')}"))
    by_source = {
        source: sum(end is not None and end.source is source for end in partitions.values()) for source in EndSource
    }
    words = [f"the {source} of {number(count, 'partition')}" for source, count in by_source.items() if count]
    if words:
        yield f"lag counts to {' and '.join(words)}"
    absent = sum(end is None for end in partitions.values())
    if absent:
        yield f"{number(absent, 'partition')} {'is' if absent == 1 else 'are'} not here, so the lag there is not known"
    ahead = [(one, offset) for one in groups for offset in one.ahead]
    for one, offset in ahead[:_AHEAD_SHOWN]:
        where = f"{printable(str(offset.partition))} by {-(offset.lag or 0):,}"
        why = "its log lost records, or the topic was deleted and recreated"
        yield f"{printable(one.group_id)} is ahead of {where}: {why}"
    if len(ahead) > _AHEAD_SHOWN:
        yield f"{len(ahead) - _AHEAD_SHOWN:,} more are ahead (--offsets)"
    for one in groups:
        for pending in one.pending:
            what = f"would commit {printable(str(pending.partition))} at offset {pending.offset}"
            yield f"{printable(one.group_id)}: the open transaction of producer {pending.producer_id} {what}"
    yield from problem_lines(listing.problems)


# ---- the listing as JSON; null means not applicable or unknown -------------------------------------------------------


def _document(listing: GroupListing) -> dict[str, Any]:
    return {
        "brokers": list(listing.brokers),
        "groups": [group_document(one) for one in listing.groups],
        "topics": [coverage_document(one) for one in (listing.offsets_topic, listing.share_topic)],
        "problems": [str(error) for error in listing.problems],
    }


def group_document(group: Group) -> dict[str, Any]:
    """Return a group as one JSON value."""
    return {
        "group": group.group_id,
        "type": group.type,
        "state": group.state,
        "coordinator": group.coordinator,
        "protocol_type": group.protocol_type,
        "assignor": group.assignor,
        "epoch": group.epoch,
        "target_epoch": group.target_epoch,
        "leader": group.leader,
        "lag": group.lag,
        "members": [_member(each) for each in group.members],
        "offsets": [_offset(each) for each in group.offsets],
        "pending": [_offset(each) for each in group.pending],
    }


def _member(member: GroupMember) -> dict[str, Any]:
    return {
        "member": member.member_id,
        "client": member.client_id,
        "host": member.client_host,
        "instance": member.instance_id,
        "rack": member.rack_id,
        "epoch": member.epoch,
        "subscribed": None if member.subscribed is None else list(member.subscribed),
        "assigned": [partition_document(each) for each in member.assigned],
        "target": None if member.target is None else [partition_document(each) for each in member.target],
        "tasks": {kind: list(tasks) for kind, tasks in member.tasks.items()},
        "problem": member.problem or None,
    }


def _offset(committed: CommittedOffset) -> dict[str, Any]:
    return {
        **partition_document(committed.partition),
        "offset": committed.offset,
        "end_offset": None if committed.end is None else committed.end.offset,
        "end_is": None if committed.end is None else committed.end.source,
        "lag": committed.lag,
        "leader_epoch": committed.leader_epoch,
        "metadata": committed.metadata,
        "commit_timestamp": committed.commit_timestamp_ms,
        "expire_timestamp": committed.expire_timestamp_ms,
        "member": committed.member_id,
        "producer_id": committed.producer_id,
    }


register(GroupListing, lines=lines, document=_document)
