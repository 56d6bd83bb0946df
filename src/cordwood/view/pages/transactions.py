"""The page of transactions: open ones with their outlook and the data they hold back, and all transactional ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cordwood.cleaning.rules.plan import utc
from cordwood.commands import transactions as report
from cordwood.commands.transactions import ID_COLUMNS, LOG_COLUMNS, MEANINGS, TRANSACTION_COLUMNS, held_back
from cordwood.common.text import cells_of, names_text, number, printable
from cordwood.storage.log.header_sample import UNITS
from cordwood.storage.node.transactions import OpenInLog, OpenTransaction, Outlook, TransactionListing
from cordwood.view.node_look import NodeLook, Step
from cordwood.view.pages.drawing import Bar, bars, both
from cordwood.view.pages.frame import (
    Links,
    Wanted,
    cut,
    figures,
    page,
    page_links,
    paragraph,
    search_form,
    section,
    table,
)
from cordwood.view.pages.groups import partition_link, partition_paths
from cordwood.view.pages.markup import Content, Markup, tag
from cordwood.view.pages.under_way import not_yet, progress, refresh_seconds

#: Maximum number of transactions on the page of a node, bars of a chart, rows of a table without pages.
_FEW, _BARS_MAX, _ROWS_MAX = 5, 20, 500


def worst(look: NodeLook, links: Links) -> Content:
    """List the few worst transactions, for the page of the node."""
    listing = look.transactions
    if listing is None:
        return not_yet(look, Step.TRANSACTIONS)
    every = links.to("transactions")
    return [
        [_open_table(listing.transactions, _FEW), _meanings(listing.transactions)]
        if listing.transactions
        else paragraph(_none_open(listing)),
        _sample_note(listing),
        None if every is None else paragraph(tag("a", "All transactions, and what they hold back", href=every)),
    ]


def document(look: NodeLook, _: Wanted) -> dict[str, Any] | None:
    """Return the transactions as JSON, as `cordwood transactions --json` prints them."""
    return None if look.transactions is None else look.transactions.document()


def transactions_page(look: NodeLook, wanted: Wanted, links: Links) -> str:
    """Make the page of all transactions; transactional ids are searched and cut."""
    listing = look.transactions
    return page(
        "Transactions",
        links,
        tag("h1", "Transactions"),
        progress(look),
        not_yet(look, Step.TRANSACTIONS)
        if listing is None
        else [_open_parts(look, listing, links), section("Transactional ids", _ids(listing, wanted, links))],
        document_link=links.document("transactions", {}),
        refresh_seconds=refresh_seconds(look),
    )


def of_file(look: NodeLook, links: Links) -> Content:
    """List the open transactions, as a part of a file."""
    listing = look.transactions
    return not_yet(look, Step.TRANSACTIONS) if listing is None else _open_parts(look, listing, links)


def _open_parts(look: NodeLook, listing: TransactionListing, links: Links) -> Content:
    opened = listing.transactions
    return [
        paragraph(f"As of {utc(listing.now_ms)}", class_="quiet"),
        figures(
            ("Transactions", f"{len(opened):,}"),
            *((outlook.capitalize(), f"{len(listing.with_outlook(outlook)):,}") for outlook in reversed(Outlook)),
            ("Transactional ids", f"{len(listing.transactional_ids):,}"),
            ("Logs read", f"{listing.logs:,}"),
        ),
        section("Open transactions", _opened(listing)),
        section("What they hold back", _held_back(look, opened, links)),
        [paragraph("Not read: ", printable(str(error)), class_="wrong") for error in listing.problems[:_FEW]],
    ]


def _opened(listing: TransactionListing) -> Content:
    if not listing.transactions:
        return [paragraph(_none_open(listing)), _sample_note(listing)]
    opened = _open_table(listing.transactions, _ROWS_MAX)
    return [opened, _sample_note(listing), _meanings(listing.transactions), _ends(listing)]


def _none_open(listing: TransactionListing) -> str:
    seems = " seems to be" if listing.sampled else " is"
    return f"None{seems} open in {number(listing.logs, 'log')}."


def _sample_note(listing: TransactionListing) -> Content:
    """Name the logs that have no transactions by a sample of their headers only."""
    if not listing.sampled:
        return None
    which = printable(names_text([str(one) for one in listing.sampled]))
    return paragraph(
        f"Sampled: {UNITS} places a segment in {which}, behind the newest producer snapshot, where no batch is of a "
        "transaction; --exact reads all batch headers.",
        class_="quiet",
    )


def _open_table(opened: Sequence[OpenTransaction], rows_max: int) -> Markup:
    columns, rows = cells_of(TRANSACTION_COLUMNS, opened[:rows_max])
    caption = f"Open transactions, the worst first: {cut(len(rows), len(opened), 'transaction')}"
    return table(caption, columns, rows)


def _meanings(opened: Sequence[OpenTransaction]) -> Content:
    outlooks = {one.outlook for one in opened}
    return [
        paragraph(f"{outlook}: {meaning.rstrip(':')}") for outlook, meaning in MEANINGS.items() if outlook in outlooks
    ]


def _ends(listing: TransactionListing) -> Content:
    """List the commands that end hanging transactions; lines between them explain when to use which."""
    lines = list(report.ends_of(listing))
    if not lines:
        return None
    return [
        paragraph("With a running broker:"),
        [tag("p", tag("code", line.strip())) if line.startswith(" ") else paragraph(line) for line in lines],
    ]


def _held_back(look: NodeLook, opened: Sequence[OpenTransaction], links: Links) -> Content:
    logs = sorted((log for one in opened for log in one.logs), key=lambda log: (-held_back(log), log.partition))
    if not logs:
        return paragraph("Nothing: no transaction is open in a log.")
    columns, rows = cells_of(LOG_COLUMNS, logs[:_ROWS_MAX])
    paths = partition_paths(look)
    linked = [
        [partition_link(row[0], one.partition, paths, links), *row[1:]] for one, row in zip(logs, rows, strict=False)
    ]
    return [
        _chart([one for one in logs if held_back(one)]),
        table(f"Logs with an open transaction: {cut(len(rows), len(logs), 'log')}", columns, linked),
        paragraph(
            "Held back are offsets from the first transaction that is open in a log up to its end: readers of "
            "committed data do not get them, and the cleaner stops there.",
            class_="quiet",
        ),
    ]


def _chart(logs: Sequence[OpenInLog]) -> Content:
    rows = [
        Bar(printable(str(one.partition)), held_back(one), 0, number(held_back(one), "offset"))
        for one in logs[:_BARS_MAX]
    ]
    if not rows:
        return None
    title = "Logs by what is held back"
    drawing = both(lambda width: bars(rows, f"{title}; the table below has the figures", width))
    return tag("figure", drawing, tag("figcaption", title))


def _ids(listing: TransactionListing, wanted: Wanted, links: Links) -> Content:
    found = wanted.matching(listing.transactional_ids, lambda known: known.transactional_id)
    total = number(len(listing.transactional_ids), "transactional id")
    columns, rows = cells_of(ID_COLUMNS, wanted.cut(found))
    return [
        search_form(wanted, [], "/transactions"),
        table(f"{len(found):,} of {total}" if wanted.search else total, columns, rows)
        if rows
        else paragraph("No transactional id matches." if wanted.search else f"{total} is known.", role="status"),
        page_links(len(found), wanted, lambda at: links.to_rows("transactions", wanted, at)),
    ]
