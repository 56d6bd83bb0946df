"""`groups`: the consumer groups of a broker's directories, their offsets and their lag.

A group's records are in one partition of `__consumer_offsets`, and the state of share groups in `__share_group_state`.
Lag counts to the ends of the logs in the same directories.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

import cordwood.commands.report.groups  # noqa: F401 - so that listings can show themselves
from cordwood.commands.coordinators import Beside, OnLogs
from cordwood.commands.selection import GroupOptions
from cordwood.common.errors import DataError, NotFoundError
from cordwood.fs.base import Store
from cordwood.fs.by_url import file_system_for
from cordwood.storage.formats.messages.topics import CONSUMER_OFFSETS, SHARE_GROUP_STATE
from cordwood.storage.node.groups import SHARE_UPDATE, GroupBuilder, GroupListing
from cordwood.storage.node.node import Node


def groups(
    paths: Sequence[str],
    options: GroupOptions,
    *,
    on_progress: Callable[[int, int], None] | None = None,
    fs: Store | None = None,
) -> GroupListing:
    """List the consumer groups in one broker's directories: members, committed offsets, and lag.

    Args:
        on_progress: called with the number of logs read so far, and of all.

    Raises:
        NotFoundError: there is nothing at a path, no partition of `__consumer_offsets`, or no group was selected.
        RequestError: a path is a file; or the directories belong to different brokers.
    """
    node = Node.open(fs or file_system_for([*paths, options.metadata]), paths, options.metadata)
    return groups_of_node(node, paths, options, on_progress=on_progress)


def groups_of_node(
    node: Node, paths: Sequence[str], options: GroupOptions, *, on_progress: OnLogs | None = None
) -> GroupListing:
    """List the consumer groups in a node's directories, as they were when it was opened."""
    beside = Beside(node)
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
    return GroupListing(tuple(listed), offsets_topic, share_topic, tuple(problems))
