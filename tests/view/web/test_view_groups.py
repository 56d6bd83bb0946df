"""The pages of groups and of transactions, of a real broker's directory with all kinds of both."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote

import pytest

from cordwood.cli.view import dump_lines
from cordwood.commands.options import WhyOptions
from cordwood.view.node_look import NodeLook, Step
from cordwood.view.web.http_server import Request, Response
from cordwood.view.web.site import Site
from tests.command import run
from tests.logs import append, batch, write_log
from tests.storage.messages import offset_commit
from tests.view.web.view_client import NAMES, Client, check_harmless, served

pytestmark = pytest.mark.more

NOW = 1_795_600_000_000
OPTIONS = WhyOptions(now_ms=NOW)


@pytest.fixture(scope="module")
def client(groups_node: Path) -> Iterator[Client]:
    with served(groups_node, options=OPTIONS) as found:
        found.done()
        yield found


def rows(text: str, heading: str) -> list[str]:
    """The first cells of the table under a heading."""
    table = text.partition(f"<h2>{heading}</h2>")[2].partition("<tbody>")[2].partition("</tbody>")[0]
    return [check_harmless(row).texts[0] for row in table.split("<tr>")[1:]]


# ---- groups ----------------------------------------------------------------------------------------------------------


def test_the_json_of_groups_is_what_the_command_prints(client: Client, groups_node: Path) -> None:
    told = run("groups", groups_node, "--json").json
    assert client.get("/groups.json").document == told == client.get("/node.json").document["groups"]
    for group in told["groups"]:
        assert client.get(f"/group.json?id={quote(group['group'])}").document == group


def test_groups_are_listed_by_lag_and_searched_and_sorted(client: Client, groups_node: Path) -> None:
    told = run("groups", groups_node, "--json").json["groups"]
    page = check_harmless(client.get("/groups").text)
    by_lag = [one["group"] for one in sorted(told, key=lambda one: (-(one["lag"] or 0), one["group"]))]
    linked = [link.partition("id=")[2] for link in page.links() if link.startswith("/group?")]
    assert linked == by_lag
    for words in ("__consumer_offsets: all 2 partitions", "would commit orders-0 at offset 5", "Records behind"):
        assert words in page.text
    found = check_harmless(client.get("/groups?search=A&sort=name").text)
    names = [link.partition("id=")[2] for link in found.links() if link.startswith("/group?")]
    assert names == sorted(one["group"] for one in told if "a" in one["group"]) and "of 5 groups" in found.text
    assert "No group matches." in client.get("/groups?search=%3Cb%3E").text


def test_the_page_of_a_group_has_its_members_and_the_lag_in_each_partition(client: Client, groups_node: Path) -> None:
    for group in run("groups", groups_node, "--json").json["groups"]:
        text = client.get(f"/group?id={quote(group['group'])}").text
        page = check_harmless(text)
        offsets = sorted(group["offsets"], key=lambda one: (-(one["lag"] or 0), one["topic"], one["partition"]))
        assert rows(text, "Lag by partition") == [f"{one['topic']}-{one['partition']}" for one in offsets]
        for one in offsets:
            log = groups_node / "{topic}-{partition}".format(**one)
            assert f"/partition?path={quote(str(log), safe='')}" in page.links()
        for member in group["members"]:
            assert member["member"] in page.text and member["client"] in page.text
        assert group["type"] in page.text and group["state"] in page.text
        if any(one["lag"] for one in offsets):
            assert text.index("<svg") < text.index("<table"), "the chart stands above its table"


def test_a_group_that_is_not_there_has_no_page(client: Client) -> None:
    got = client.get("/group?id=%3Cscript%3E")
    assert got.status == 404 and "There is no group of this name." in check_harmless(got.text).text
    assert client.get("/group.json?id=none").status == 404


def test_without_offsets_topic_the_pages_say_so(tmp_path: Path) -> None:
    append(tmp_path / "orders-0", (b"k", b"v"))
    with served(tmp_path, options=OPTIONS) as found:
        found.done()
        assert "No partition of __consumer_offsets" in check_harmless(found.get("/groups").text).text
        assert found.get("/groups.json").status == 404
        assert found.get("/group?id=g").status == 404
        assert "None is open in 1 log." in check_harmless(found.get("/transactions").text).text


def test_pages_are_there_before_groups_are_known() -> None:
    look = NodeLook(("/data",), NOW, step=Step.WHY, partitions_done=1, partitions_all=3)
    routes = Site(lambda: look, OPTIONS, dump_lines).routes()

    def ask(target: str) -> Response:
        return routes[target](Request("GET", target, {"id": "g"}, {}))

    for target in ("/groups", "/transactions", "/group"):
        page = check_harmless(ask(target).body.decode())
        assert "Not known yet" in page.text and "http-equiv" in str(page.tags)
    for target in ("/groups.json", "/transactions.json", "/group.json"):
        assert ask(target).status == HTTPStatus.SERVICE_UNAVAILABLE


# ---- transactions ----------------------------------------------------------------------------------------------------


def test_the_json_of_transactions_is_what_the_command_prints(client: Client, groups_node: Path) -> None:
    assert client.get("/transactions.json").document == run("transactions", groups_node, "--now", NOW, "--json").json


def test_transactions_say_what_becomes_of_them_and_what_they_hold_back(client: Client, groups_node: Path) -> None:
    told = run("transactions", groups_node, "--now", NOW, "--json").json
    text = client.get("/transactions").text
    page = check_harmless(text)
    outlooks = [one["outlook"] for one in told["transactions"]]
    assert outlooks.count("hanging") == 2 and outlooks[0] == "hanging"
    for one in told["transactions"]:
        assert str(one["producer_id"]) in page.text and one["outlook"] in page.text
    logs = {f"{one['topic']}-{one['partition']}" for each in told["transactions"] for one in each["logs"]}
    assert set(rows(text, "What they hold back")) == logs
    assert {f"/partition?path={quote(str(groups_node / name), safe='')}" for name in logs} <= set(page.links())
    assert "cordwood abort-transaction DIR… --topic payments --partition 0 --producer 424242" in page.text
    held = text.partition("<h2>What they hold back</h2>")[2].partition("</section>")[0]
    assert held.index("<svg") < held.index("<table")
    ids = sorted(one["transactional_id"] for one in told["transactional_ids"])
    assert rows(text, "Transactional ids") == ids
    assert rows(client.get(f"/transactions?search={ids[0].upper()}").text, "Transactional ids") == ids[:1]


def test_the_page_of_the_node_has_the_worst_few_and_leads_to_all(client: Client) -> None:
    page = check_harmless(client.get("/").text)
    assert {"/groups", "/transactions"} <= set(page.links())
    assert any(link.startswith("/group?id=") for link in page.links())
    assert "hanging" in page.text


# ---- names are hostile -----------------------------------------------------------------------------------------------


def test_names_of_groups_do_not_break_out(tmp_path: Path) -> None:
    names = [*NAMES[:7], *(f"group-{number}" for number in range(150))]
    commits = [offset_commit(name, "t", 0, 1) for name in names]
    write_log(tmp_path / "__consumer_offsets-0", [batch(0, *commits)])
    write_log(tmp_path / "t-0", [batch(0, "k=v " * 9)])
    with served(tmp_path, options=OPTIONS) as found:
        found.done()
        assert {one["group"] for one in found.get("/groups.json").document["groups"]} == set(names)
        seen = ""
        for target in ("/", "/groups", "/groups?page=2", "/groups?search=%22%3E%3Cscript%3E", "/groups?sort=%3Cb%3E"):
            seen += check_harmless(found.get(target).text).text
        assert all(name in seen for name in NAMES[:6]) and "page 2 of 2" in seen
        assert "\x1b" not in seen and "\u202e" not in seen
        for name in names[:7]:
            got = found.get(f"/group?id={quote(name)}")
            assert got.status == 200 and "t-0" in check_harmless(got.text).text
