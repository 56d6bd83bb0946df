"""The pages of consumer groups: a list by lag, and a page per group with its members and its lag by partition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cordwood.commands import groups as report
from cordwood.commands.groups import GROUP_COLUMNS, MEMBER_COLUMNS, OFFSET_COLUMNS
from cordwood.common.text import cells_of, number, printable
from cordwood.common.types import TopicPartition
from cordwood.storage.node.groups import CommittedOffset, Group, GroupListing
from cordwood.storage.node.listing import ReplicaRole
from cordwood.view.node_look import NodeLook, Step
from cordwood.view.pages.drawing import Bar, bars, both
from cordwood.view.pages.frame import (
    Links,
    Wanted,
    cut,
    facts,
    figures,
    link_or_text,
    page,
    page_links,
    paragraph,
    search_form,
    section,
    table,
)
from cordwood.view.pages.markup import Content, Markup, tag
from cordwood.view.pages.under_way import has_come_to, not_yet, progress, refresh_seconds

#: Maximum number of groups on the page of a node, bars of a chart, rows of a table without pages.
_FEW, _BARS_MAX, _ROWS_MAX = 5, 20, 500
#: Sort orders of groups, and of the partitions of a group; the first is the default.
_ORDERS: Mapping[str, Callable[[Group], Any]] = {
    "lag": lambda group: (-group.behind, group.group_id),
    "name": lambda group: group.group_id,
    "members": lambda group: (-len(group.members), group.group_id),
}
_OFFSET_ORDERS: Mapping[str, Callable[[CommittedOffset], Any]] = {
    "lag": lambda offset: (-(offset.lag or 0), offset.partition),
    "partition": lambda offset: offset.partition,
}


def worst(look: NodeLook, links: Links) -> Content:
    """List the few groups that lag most, for the page of the node."""
    if look.groups is None:
        return _unknown(look)
    groups = look.groups.groups
    behind = sorted((one for one in groups if one.lag is None or one.behind or one.ahead), key=_ORDERS["lag"])
    every = links.to("groups")
    return [
        _groups_table(behind[:_FEW], f"Groups by lag: {cut(len(behind[:_FEW]), len(behind), 'group')}", links)
        if behind
        else paragraph(f"{number(len(groups), 'group')}, none of which lags."),
        None if every is None else paragraph(tag("a", "All groups", href=every)),
    ]


def document(look: NodeLook, _: Wanted) -> dict[str, Any] | None:
    """Return the groups as JSON, as `cordwood groups --json` prints them."""
    return None if look.groups is None else look.groups.document()


def groups_page(look: NodeLook, wanted: Wanted, links: Links) -> str:
    """Make the page of all groups: searched, sorted and cut."""
    return page(
        "Groups",
        links,
        tag("h1", "Consumer groups"),
        progress(look),
        _unknown(look) if look.groups is None else _page_body(look.groups, wanted, links),
        document_link=links.document("groups", {}),
        refresh_seconds=refresh_seconds(look),
    )


def _page_body(listing: GroupListing, wanted: Wanted, links: Links) -> Content:
    found = wanted.matching(listing.groups, lambda group: group.group_id)
    found.sort(key=_ORDERS.get(wanted.sort, _ORDERS["lag"]))
    shown, total = wanted.cut(found), number(len(listing.groups), "group")
    return [
        _whole(listing),
        search_form(wanted, list(_ORDERS), "/groups"),
        _groups_table(shown, f"{len(found):,} of {total}" if wanted.search else total, links)
        if shown
        else paragraph("No group matches.", role="status"),
        page_links(len(found), wanted, lambda at: links.to_rows("groups", wanted, at)),
    ]


def of_file(look: NodeLook, links: Links) -> Content:
    """List all groups, as a part of a file."""
    if look.groups is None:
        return _unknown(look)
    found = sorted(look.groups.groups, key=_ORDERS["lag"])
    shown = found[:_ROWS_MAX]
    return [
        _whole(look.groups),
        _groups_table(shown, cut(len(shown), len(found), "group"), links) if shown else paragraph("There is none."),
    ]


def _whole(listing: GroupListing) -> Content:
    """Summarize all groups."""
    behind = sorted((one for one in listing.groups if one.behind), key=_ORDERS["lag"])
    return [
        figures(
            ("Groups", f"{len(listing.groups):,}"),
            ("Members", f"{sum(len(one.members) for one in listing.groups):,}"),
            ("Groups that lag", f"{len(behind):,}"),
            ("Records behind", f"{sum(one.behind for one in behind):,}"),
        ),
        _lag_chart([(one.group_id, one.behind) for one in behind], "Groups that lag most") if behind else None,
        [paragraph(printable(line), class_="quiet") for line in report.coverage_lines(listing)],
        [paragraph(printable(line), class_="quiet") for line in report.footnotes(listing)],
    ]


def _lag_chart(lags: Sequence[tuple[str, int]], title: str) -> Markup:
    rows = [Bar(printable(name), lag, 0, number(lag, "record")) for name, lag in lags[:_BARS_MAX]]
    label = f"{title}; the table below has the figures"
    return tag("figure", both(lambda width: bars(rows, label, width)), tag("figcaption", title))


def _groups_table(groups: Sequence[Group], caption: str, links: Links) -> Markup:
    columns, rows = cells_of(GROUP_COLUMNS, groups)
    linked = [
        [link_or_text(row[0], links.to("group", id=one.group_id)), *row[1:]]
        for one, row in zip(groups, rows, strict=True)
    ]
    return table(caption, columns, linked)


def _unknown(look: NodeLook) -> Content:
    """Explain why no groups are known."""
    if Step.GROUPS in look.failures or not has_come_to(look, Step.GROUPS):
        return not_yet(look, Step.GROUPS)
    return paragraph("No partition of __consumer_offsets is in these directories.")


# ---- one group -------------------------------------------------------------------------------------------------------


def group_of(look: NodeLook, group_id: str) -> Group | None:
    """Return a group by its name, or None if it is missing or not known yet."""
    found = () if look.groups is None else look.groups.groups
    return next((one for one in found if one.group_id == group_id), None)


def group_page(look: NodeLook, group: Group, wanted: Wanted, links: Links) -> str:
    """Make the page of one group."""
    name = printable(group.group_id)
    return page(
        f"Group {name}",
        links,
        tag("h1", f"Group {name}"),
        progress(look),
        _group_facts(group),
        section("Lag by partition", _offsets(look, group, wanted, links)),
        section("Members", _members(group)),
        section("Offsets of open transactions", _pending(group)),
        document_link=links.document("group", {"id": group.group_id}),
    )


def no_group_page(look: NodeLook, group_id: str, links: Links) -> str:
    """Make the page for a group that is missing or not known yet."""
    known = look.groups is not None
    return page(
        "Group",
        links,
        tag("h1", f"Group {printable(group_id)}"),
        progress(look),
        paragraph("There is no group of this name.") if known else _unknown(look),
        refresh_seconds=refresh_seconds(look),
    )


def _group_facts(group: Group) -> Content:
    lag = "not known" if group.lag is None else number(group.behind, "record")
    if group.ahead:
        lag += f"; ahead of the log in {number(len(group.ahead), 'partition')}"
    pairs = {
        "Type": group.type,
        "State": group.state,
        "Lag": lag,
        "Coordinator": f"partition {group.coordinator} of __consumer_offsets",
        "Protocol": group.protocol_type,
        "Assignor": group.assignor,
        "Epoch": group.epoch,
        "Target epoch": group.target_epoch,
        "Leader": group.leader,
    }
    return facts((name, printable(str(value))) for name, value in pairs.items() if value not in (None, ""))


def _offsets(look: NodeLook, group: Group, wanted: Wanted, links: Links) -> Content:
    if not group.offsets:
        return paragraph("The group has committed no offset.")
    behind = sorted((one for one in group.offsets if one.lag and one.lag > 0), key=_OFFSET_ORDERS["lag"])
    found = wanted.matching(group.offsets, lambda offset: str(offset.partition))
    found.sort(key=_OFFSET_ORDERS.get(wanted.sort, _OFFSET_ORDERS["lag"]))
    shown, paths = wanted.cut(found), partition_paths(look)
    columns, rows = cells_of(OFFSET_COLUMNS, shown)
    linked = [
        [partition_link(row[0], one.partition, paths, links), *row[1:]] for one, row in zip(shown, rows, strict=True)
    ]
    chart = [(str(one.partition), one.lag or 0) for one in behind]
    total = number(len(group.offsets), "partition")
    return [
        _lag_chart(chart, "Partitions in which it lags most") if chart else None,
        search_form(wanted, list(_OFFSET_ORDERS), "/group", {"id": group.group_id}),
        table(f"{len(found):,} of {total}" if wanted.search else total, columns, linked),
        page_links(len(found), wanted, lambda at: links.to_rows("group", wanted, at, id=group.group_id)),
        paragraph(
            "The lag counts to the high watermark of the logs in these directories, or else to their ends; where a log "
            "is not here, it is not known.",
            class_="quiet",
        ),
    ]


def _members(group: Group) -> Content:
    if not group.members:
        return paragraph("The group has no member.")
    columns, rows = cells_of(MEMBER_COLUMNS, group.members[:_ROWS_MAX])
    return table(cut(len(rows), len(group.members), "member"), columns, rows)


def _pending(group: Group) -> Content:
    if not group.pending:
        return paragraph("There is none.")
    lines = [
        f"The open transaction of producer {one.producer_id} would commit {one.partition} at offset {one.offset}."
        for one in group.pending[:_ROWS_MAX]
    ]
    return tag("ul", [tag("li", printable(line)) for line in lines])


# ---- partitions ------------------------------------------------------------------------------------------------------


def partition_paths(look: NodeLook) -> Mapping[TopicPartition, str]:
    """Return the directories of the found partitions; of several replicas the leader's, or the first."""
    found = () if look.listing is None else look.listing.partitions
    paths: dict[TopicPartition, str] = {}
    for one in found:
        if one.topic_partition is not None and (one.topic_partition not in paths or one.role is ReplicaRole.LEADER):
            paths[one.topic_partition] = one.path
    return paths


def partition_link(words: str, partition: TopicPartition, paths: Mapping[TopicPartition, str], links: Links) -> Content:
    """Make a partition's name, with a link to its page if the partition is here."""
    path = paths.get(partition)
    return words if path is None else link_or_text(words, links.to("partition", path=path))
