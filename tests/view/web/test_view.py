"""The pages of `view`, from a real server: their contents, and their refusals."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from cordwood.cli.view import dump_lines
from cordwood.commands.options import WhyOptions
from cordwood.fs.posix import PosixFileSystem
from cordwood.view.web.http_server import HEADERS
from cordwood.view.web.site import ViewServer
from tests.command import run, run_alone, start
from tests.fixtures import copy_of, fixture, tree
from tests.fs.disks import OnlyRead
from tests.logs import append
from tests.view.web.view_client import NAMES, Client, Parsed, check_harmless, served

NOW = 1_795_000_000_000
OPTIONS = WhyOptions(now_ms=NOW)
BROKER = "kraft-classic-before"


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with served(fixture(BROKER), options=OPTIONS) as found:
        found.done()
        yield found


# ---- Contents of the pages -------------------------------------------------------------------------------------------


def test_the_page_of_a_node_says_what_its_commands_say(client: Client) -> None:
    page = check_harmless(client.get("/").text)
    for words in ("Node 1", "Topics by size", "What could go", "What is wrong", "Groups that lag", "Open transactions"):
        assert words in page.text
    listing = run("ls", fixture(BROKER), "--by", "topic", "--json").json
    for topic in listing["topics"]:
        assert topic["topic"] in page.text
    assert "a -stray directory: it is not part of the cluster" in page.text


@pytest.mark.parametrize("command", ["ls", "why", "groups", "transactions"])
def test_the_json_of_a_node_is_what_the_command_prints(client: Client, command: str) -> None:
    now = () if command in ("ls", "groups") else ("--now", NOW)
    assert client.get("/node.json").document[command] == run(command, fixture(BROKER), *now, "--json").json


def test_every_chart_has_its_table(client: Client) -> None:
    page = client.get("/").text
    topics = page.partition("<h2>Topics by size</h2>")[2].partition("<section>")[0]
    assert topics.index("<svg") < topics.index("<table")
    causes = page.partition("<h2>What could go</h2>")[2].partition("<section>")[0]
    assert causes.index("<svg") < causes.index("<table")


def test_partitions_are_searched_sorted_and_cut_by_the_server(client: Client) -> None:
    page = check_harmless(client.get("/partitions?search=ORDERS&sort=size").text)
    assert "3 of 23 partitions" in page.text and "payments" not in page.text
    found = client.get("/partitions.json?search=ORDERS&sort=size").document
    by_name = {one["path"]: one for one in run("ls", fixture(BROKER), "--json").json["partitions"]}
    assert found["partitions_found"] == 3
    assert found["partitions"] == [by_name[one["path"]] for one in found["partitions"]]
    sizes = [one["size_bytes"] for one in found["partitions"]]
    assert sizes == sorted(sizes, reverse=True)
    assert client.get("/partitions.json?page=2").document["partitions"] == []
    assert "No partition matches." in client.get("/partitions?search=%3Cb%3E").text


def test_the_first_page_is_there_while_the_look_goes_on(tmp_path: Path) -> None:
    for number in range(300):
        append(tmp_path / f"topic-{number}", (b"k", b"v"))
    with served(tmp_path, options=OPTIONS) as found:
        page = Parsed(found.get("/").text)
        assert "http-equiv" in str(page.tags) and "of 300 partitions" in page.text
        found.done()
        page = Parsed(found.get("/").text)
        assert "refresh" not in str(page.tags) and "300 partitions" in page.text


def test_a_look_that_fails_in_a_step_says_so_and_shows_the_others(tmp_path: Path) -> None:
    append(tmp_path / "orders-0", (b"k", b"v"))
    options = WhyOptions(selection=OPTIONS.selection, now_ms=NOW)
    with served(tmp_path, options=options) as found:
        found.done()
        page = Parsed(found.get("/").text)
    assert "No partition of __consumer_offsets is in these directories." in page.text
    assert "None is open in 1 log." in page.text


# ---- names and keys are hostile --------------------------------------------------------------------------------------


def test_names_that_a_file_system_allows_do_not_break_out(tmp_path: Path) -> None:
    for name in NAMES:
        append(tmp_path / f"{name}-0", (b"k", b"v"))
    with served(tmp_path, options=OPTIONS) as found:
        found.done()
        for target in ("/", "/partitions", "/partitions?search=%22%3E%3Cscript%3E", "/partitions?sort=%3Cscript%3E"):
            got = found.get(target)
            assert got.status == 200
            check_harmless(got.text)
        page = check_harmless(found.get("/partitions").text)
        # They are all there, as text.
        for name in NAMES[:6]:
            assert name in page.text
        assert "\x1b" not in page.text and "\u202e" not in page.text
        assert len(found.get("/node.json").document["ls"]["partitions"]) == len(NAMES)


# ---- who gets an answer ----------------------------------------------------------------------------------------------


def test_a_host_of_another_name_is_refused(client: Client) -> None:
    assert client.get("/", Host=f"localhost:{client.port}").status == 200
    for host in ("evil.example", f"evil.example:{client.port}", "127.0.0.1", f"127.0.0.1.evil:{client.port}", ""):
        got = client.get("/", Host=host)
        assert (got.status, b"orders" in got.body) == (403, False), host


def test_a_page_of_another_site_gets_no_answer(client: Client) -> None:
    assert client.get("/node.json", Origin=f"http://127.0.0.1:{client.port}").status == 200
    for origin in ("http://evil.example", "null", f"https://127.0.0.1:{client.port}"):
        assert client.get("/node.json", Origin=origin).status == 403


def test_every_answer_forbids_scripts_frames_and_guesses(client: Client) -> None:
    for target in ("/", "/node.json", "/style.css", "/partitions", "/nothing"):
        headers = client.get(target).headers
        assert {name: headers[name.lower()] for name in HEADERS} == dict(HEADERS)
    assert "script-src" not in HEADERS["Content-Security-Policy"], "default-src 'none' forbids them"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"])
def test_there_is_only_reading(client: Client, method: str) -> None:
    got = client.get("/", method)
    assert (got.status, got.headers["allow"]) == (405, "GET, HEAD")


def test_head_has_the_head_of_an_answer(client: Client) -> None:
    whole, head = client.get("/style.css"), client.get("/style.css", "HEAD")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-length"] == str(len(whole.body))


@pytest.mark.parametrize(
    "target",
    ["/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "/style.css/..", "/node.json%00", "/.", "*"],
)
def test_a_path_leads_nowhere_but_to_pages(client: Client, target: str) -> None:
    got = client.get(target)
    assert got.status == 404 and b"root:" not in got.body


def test_nothing_of_the_directories_is_changed_or_locked(tmp_path: Path) -> None:
    folder = copy_of(fixture(BROKER), tmp_path / "node")
    before = tree(folder)
    with served(folder, options=OPTIONS, fs=OnlyRead(PosixFileSystem(), str(folder))) as found:
        found.done()
        for target in ("/", "/partitions", "/node.json", "/partitions.json"):
            assert found.get(target).status == 200
    assert tree(folder) == before


def test_from_other_machines_a_token_is_needed() -> None:
    with ViewServer([str(fixture(BROKER))], OPTIONS, dump_lines, host="0.0.0.0") as server:
        found, token = Client(server.url.replace("0.0.0.0", "127.0.0.1")), server.url.partition("token=")[2]
        assert len(token) >= 32
        assert found.get("/").status == 401
        assert found.get("/?token=wrong").status == 401
        assert found.get("/", Cookie="cordwood=wrong").status == 401
        got = found.get(f"/partitions?token={token}&search=a+b")
        assert (got.status, got.headers["location"]) == (303, "/partitions?search=a+b")
        elsewhere = found.get(f"//evil.example/?token={token}").headers["location"]
        assert elsewhere == "/evil.example/"
        cookie = got.headers["set-cookie"]
        assert cookie.endswith("; HttpOnly; SameSite=Strict; Path=/")
        assert found.get("/", Cookie=cookie.partition(";")[0]).status == 200
        assert found.get("/", Authorization=f"Bearer {token}").status == 200


def test_clients_that_say_nothing_keep_nobody_waiting(client: Client) -> None:
    idle = [socket.create_connection((client.host, client.port), timeout=60) for _ in range(200)]
    assert client.get("/").status == 200
    for one in idle:
        one.close()


# ---- the command -----------------------------------------------------------------------------------------------------


def test_the_command_prints_where_the_pages_are_and_ends_when_interrupted() -> None:
    with start("view", fixture(BROKER), "--no-browser", stderr=None) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        try:
            assert url.startswith("http://127.0.0.1:")
            assert Client(url).get("/").status == 200
        finally:
            process.terminate()
        assert process.wait(60) == 143


def test_a_path_that_is_not_there_is_refused_at_once(tmp_path: Path) -> None:
    assert "none" in run("view", tmp_path / "none", exits=2).stderr


def test_one_file_holds_the_pages_and_needs_no_network(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    run_alone("view", fixture(BROKER), "--output", report, environment={"LC_ALL": "C"})
    page = check_harmless(report.read_text())
    assert "orders-0" in page.text and "Topics by size" in page.text
    ids = {one["id"] for _, one in page.tags if "id" in one}
    anchors = {link.removeprefix("#") for link in page.links()}
    assert anchors <= ids and {"partition-1", "partition-20"} <= anchors
    assert "What a clean would do" in page.text
    policy = next(one["content"] for tag, one in page.tags if one.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None and "default-src 'none'; style-src 'sha256-" in policy
    assert os.listdir(tmp_path) == ["report.html"]
