"""The pages of several brokers: the cluster, and from there the node of each broker and the replicas of a partition."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

import cordwood
from cordwood.commands.options import NamedBrokers, WhyOptions
from cordwood.storage.formats.filenames import META_PROPERTIES
from tests.command import run
from tests.commands.cluster_scene import CLUSTER_ARCHIVE, directories
from tests.fixtures import copy_of, unpacked
from tests.view.web.view_client import Client, Parsed, ask, check_harmless, served

NOW = 1_796_000_000_000
BROKERS = directories(unpacked(CLUSTER_ARCHIVE))


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with served(*BROKERS, options=WhyOptions(now_ms=NOW)) as found:
        found.done("cluster")
        yield found


def section(page: str, title: str) -> Parsed:
    return Parsed(page.partition(f"<h2>{title}</h2>")[2].partition("<section>")[0])


def test_the_page_of_a_cluster_has_its_brokers_by_bytes_and_links_to_their_nodes(client: Client) -> None:
    page = client.get("/").text
    assert "Cluster of 3 brokers" in check_harmless(page).text
    brokers = section(page, "Brokers")
    assert [link for link in brokers.links() if link.startswith("/node?")] == [
        f"/node?broker={number}" for number in (1, 2, 3)
    ]
    for broker in cordwood.ls(*BROKERS).brokers:
        assert f"broker {broker.name}: {broker.sums.disk_bytes / 1000:.1f} kB" in brokers.text


def test_the_page_of_a_cluster_lists_partitions_whose_replicas_are_not_well(client: Client) -> None:
    replicas = section(client.get("/").text, "Replicas")
    assert "Partitions that are not well: 12 partitions" in replicas.text
    assert "no leader, 1 eligible, 2,3 not in sync" in replicas.text
    assert f"/partition?path={quote(str(BROKERS[2] / 'orders-0'), safe='')}" in replicas.links()


@pytest.mark.parametrize("command", ["ls", "why", "groups", "transactions"])
def test_the_json_of_a_cluster_is_what_the_command_prints_for_all_brokers(client: Client, command: str) -> None:
    now = () if command in ("ls", "groups") else ("--now", NOW)
    assert client.get("/cluster.json").document[command] == run(command, *BROKERS, *now, "--json").json


def test_the_page_of_a_node_has_the_partitions_of_its_broker_only(client: Client) -> None:
    page = check_harmless(client.get("/node?broker=3").text)
    assert "Node 3" in page.text and "Groups that lag" not in page.text
    assert "/partitions?search=orders&broker=3" in page.links()
    found = client.get("/node.json?broker=3").document
    alone = run("ls", BROKERS[2], "--metadata", BROKERS[0], "--json").json
    assert found["ls"]["partitions"] == alone["partitions"] and found["ls"]["topics"] == alone["topics"]
    why = run("why", BROKERS[2], "--metadata", BROKERS[0], "--now", NOW, "--json").json
    assert found["why"]["totals"] == why["totals"]
    assert client.get("/node?broker=4").status == client.get("/node.json").status == 404


def test_partitions_are_those_of_all_brokers_or_of_one(client: Client) -> None:
    assert "9 of 35 replicas" in client.get("/partitions?search=orders").text
    page = check_harmless(client.get("/partitions?search=orders&broker=2").text)
    assert "3 of 35 replicas" in page.text
    assert {"value": "2", "selected": None} in [attributes for tag, attributes in page.tags if tag == "option"]
    found = client.get("/partitions.json?broker=2&sort=size").document
    assert {one["broker"] for one in found["partitions"]} == {"2"}


def test_the_page_of_a_replica_links_to_the_others(client: Client) -> None:
    page = check_harmless(ask(client, "partition", BROKERS[1] / "orders-0").text)
    assert "The replica of broker 2 (not in sync); others: broker 1 (eligible), broker 3 (not in sync)" in page.text
    assert f"/partition?path={quote(str(BROKERS[0] / 'orders-0'), safe='')}" in page.links()


def test_one_file_has_the_cluster_and_the_node_of_each_broker() -> None:
    page = check_harmless(cordwood.view_html(*BROKERS, now_ms=NOW))
    ids = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    links = {link.removeprefix("#") for link in page.links()}
    assert links <= ids and {"cluster", "broker-1", "broker-3", "partition-13"} <= links
    assert "Cluster of 3 brokers" in page.text and "Node 2" in page.text


def test_a_replica_that_is_missing_comes_first(tmp_path: Path) -> None:
    copies = [copy_of(path, tmp_path / path.name) for path in BROKERS]
    for file in (copies[1] / "orders-1").iterdir():
        file.unlink()
    (copies[1] / "orders-1").rmdir()
    with served(*copies, options=WhyOptions(now_ms=NOW)) as found:
        found.done("cluster")
        rows = section(found.get("/").text, "Replicas").text.splitlines()
    assert "missing on 2" in next(row for row in rows if "eligible" in row)


def test_brokers_that_the_user_names_have_nodes_too(tmp_path: Path) -> None:
    copies = {name: copy_of(path, tmp_path / name) for name, path in zip("ab", BROKERS, strict=False)}
    for path in copies.values():
        (path / META_PROPERTIES).unlink()
    named = NamedBrokers(brokers=[f"{name}={path}" for name, path in copies.items()])
    with served(options=WhyOptions(now_ms=NOW, named=named)) as found:
        found.done("cluster")
        assert "Node b" in found.get("/node?broker=b").text
        assert ask(found, "partition", copies["a"] / "orders-0").status == 200
