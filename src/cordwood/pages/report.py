"""All pages as one file, which needs no network: it loads nothing, and runs nothing."""

from __future__ import annotations

from cordwood.commands.view import NodeLook
from cordwood.pages import node, partitions
from cordwood.pages.frame import cut, one_file, section
from cordwood.pages.links import FileLinks

#: Partitions that are listed.
_ROWS_MAX = 2_000


def report_page(look: NodeLook) -> str:
    """The file."""
    links = FileLinks()
    listing = look.listing
    shown = () if listing is None else listing.partitions[:_ROWS_MAX]
    caption = "" if listing is None else cut(len(shown), len(listing.partitions), "partition")
    listed = partitions.partitions_table(look, shown, caption, links) if shown else None
    return one_file("Report", links, node.body(look, links), section("Partitions", listed, id="partitions"))
