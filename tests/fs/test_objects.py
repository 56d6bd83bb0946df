"""Object stores are read as directories are: the store's own promises, and commands' output for a bucket."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import obstore
import pytest

from cordwood.common.errors import NotFoundError, RequestError, StoreError
from cordwood.fs.base import PutMode
from cordwood.fs.by_url import UrlStore, file_system_for, local_path
from cordwood.fs.object_requests import ObjectPlace, Patience, is_object_url, place_of
from cordwood.fs.objects import PART_BYTES, ObjectStore
from cordwood.fs.posix import PosixFileSystem
from tests.command import run
from tests.fixtures import fixture
from tests.fs.object_server import BACKEND, BUCKET, Faults, Server, environment, faulty, running_server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_server() as running:
        yield running


@pytest.fixture(params=["s3", "memory"])
def root(request: pytest.FixtureRequest, server: Server, tmp_path: Path) -> str:
    """A place in a store that is new to the test."""
    return f"{request.param}://{BUCKET}/{tmp_path.name}"


def test_many_objects_are_deleted_by_one_request_a_thousand(server: Server) -> None:
    root = f"s3://{BUCKET}/many"
    paths = [f"{root}/{number}" for number in range(1001)]
    for path in (*paths, f"{root}/kept"):
        BACKEND.put_object(BUCKET, path.removeprefix(f"s3://{BUCKET}/"), b"x")
    with faulty(server.address) as (address, asked), mock.patch.dict(os.environ, environment(address)):
        UrlStore().delete_all([*paths, f"{root}/gone"])
        assert len(asked.asked) == 2
    assert list(ObjectStore().names_in(root)) == ["kept"]


def test_a_deletion_of_many_that_is_refused_is_an_error(server: Server) -> None:
    with faulty(server.address) as (address, asked), mock.patch.dict(os.environ, environment(address)):
        asked.begin({0: "403"})
        with pytest.raises(StoreError, match="refuses access"):
            UrlStore().delete_all([f"s3://{BUCKET}/many/kept"])


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("s3://b/a/c", ("s3://b", "a/c")),
        ("gs://b//a/", ("gs://b", "a")),
        ("az://b", ("az://b", "")),
        ("memory://b/a b/ü", ("memory://b", "a b/ü")),
    ],
)
def test_a_url_names_a_bucket_and_a_key(url: str, place: tuple[str, str]) -> None:
    assert place_of(url) == ObjectPlace(*place)


def test_what_names_no_bucket_is_refused() -> None:
    for url in ("s3://", "s3:", "s3:/"):
        assert is_object_url(url)
        with pytest.raises(NotFoundError, match="names no bucket"):
            place_of(url)
    assert not any(map(is_object_url, ["/s3/b", "s3", "", "file:///x", "s3x://b", "s3:b"]))


def test_a_file_url_is_a_path_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "a b").write_bytes(b"abc")
    url = f"file://{tmp_path}/a%20b"
    assert local_path(url) == f"{tmp_path}/a b"
    with file_system_for([url]).open(url) as file:
        assert file.read(0, 9) == b"abc"
    with pytest.raises(RequestError, match="three slashes"):
        local_path("file://elsewhere/x")


def test_a_file_url_with_one_slash_as_spark_writes_it_is_a_path_of_this_machine() -> None:
    directory = fixture("legacy-v0-before")
    for url in (f"file:{directory}", f"file://localhost{directory}"):
        assert local_path(url) == str(directory)
        assert said("dump", url) == said("dump", f"file://{directory}")
    assert local_path("file") == "file" and local_path("file:x") == "file:x"


#: Commands of two kinds: commands that read, and commands that change files in place.
ANY = (["ls"], ["check"], ["plan"], ["dump"], ["clean", "--in-place"], ["undo"], ["run"])


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("s3://", "s3:// names no bucket: write it as s3://BUCKET/PATH"),
        ("s3:/logs/x", "s3:/logs/x is not a URL that can be read. Write it as s3://logs/x"),
        ("s3a://logs/x", "Write it as s3://logs/x"),
        ("memory:///logs/x", "Write it as memory://logs/x"),
        ("http://logs/x", "http:// is not a kind of store"),
        ("file://other/x", "names the machine other"),
    ],
)
def test_a_url_that_cannot_be_read_is_refused_with_what_to_write(path: str, words: str) -> None:
    for command in ANY:
        done = run(*command, path, exits=2)
        assert words in done.stderr, (command, done.output)


def test_a_missing_bucket_and_a_pattern_are_named(server: Server, tmp_path: Path) -> None:
    for command in ANY[:4]:
        done = run(*command, "s3://no-such-bucket/x", exits=2)
        assert "there is no such bucket" in done.stderr, (command, done.output)
    for path in (f"{tmp_path}/*", f"file:{tmp_path}/*", f"s3://{BUCKET}/missing-*"):
        for command in ANY[:4]:
            done = run(*command, path, exits=2)
            assert "Patterns in paths are not expanded" in done.stderr, (command, done.output)


SECRETS = ["s3://KEY:hidden@b/x", "s3://KEY:hid/hidden@b/x", "s3://b/x?X-Amz-Signature=hidden", "gs://hidden@b/x"]


@pytest.mark.parametrize(
    "url", [*SECRETS, "az://b/x?sv=1&sig=hidden", "https://b.s3.amazonaws.com/x?awsAccessKeyId=hidden"]
)
def test_credentials_in_a_url_are_refused_and_never_printed(url: str, tmp_path: Path) -> None:
    others = (["clean", str(tmp_path), "--output"], ["fetch", "s3://b/x"], ["fetch", url], ["groups"], ["verify", "x"])
    for command in (*ANY, *others):
        done = run(*command, url, exits=2)
        assert "must not hold credentials" in done.stderr, (command, done.output)
        assert "hidden" not in done.output, (command, done.output)
    for act in (ObjectStore().stat, ObjectStore().list, ObjectStore().open, local_path):
        with pytest.raises(RequestError, match="must not hold credentials") as raised:
            act(url if url.startswith("s3") else SECRETS[0])
        assert "hidden" not in repr(raised.value)
    assert place_of("s3://b/a@b/c?d=e&x:y").key == "a@b/c?d=e&x:y"


def test_a_url_of_another_kind_is_refused_and_a_path_is_not_a_url() -> None:
    with pytest.raises(RequestError, match="ftp:// is not a kind of store"):
        file_system_for(["/x", "ftp://x/y"])
    assert isinstance(file_system_for(["/x", "a:b", None]), PosixFileSystem)


def test_a_directory_is_there_as_long_as_an_object_is_in_it(root: str) -> None:
    store = UrlStore()
    assert not store.exists(root) and store.list(root) == []
    store.put(f"{root}/d/e/f", b"abc")
    assert store.stat(root).is_directory and store.stat(f"{root}/d/").name == "d"
    assert [(one.name, one.is_directory, one.size_bytes) for one in store.list(f"{root}/d")] == [("e", True, 0)]
    assert [(one.name, one.is_directory, one.size_bytes) for one in store.list(f"{root}/d/e")] == [("f", False, 3)]
    assert store.list(f"{root}/d/e") == [store.stat(f"{root}/d/e/f")]
    assert not store.exists(f"{root}/d/e/f/g") and not store.exists(f"{root}/d/e/ff")
    with pytest.raises(IsADirectoryError):
        store.open(f"{root}/d")
    store.delete(f"{root}/d/e/f")
    assert not store.exists(root)
    for missing in (lambda: store.open(f"{root}/d/e/f"), lambda: store.delete(f"{root}/d/e/f")):
        with pytest.raises(FileNotFoundError) as raised:
            missing()
        assert raised.value.filename == f"{root}/d/e/f"


def test_an_object_that_a_console_made_for_a_directory_is_not_listed(server: Server) -> None:
    obstore.put(server.store, "made/by/console", b"")
    obstore.put(server.store, "made/by/console/f", b"x")
    assert [one.name for one in ObjectStore().list(f"s3://{BUCKET}/made/by/console")] == ["f"]


def test_a_bucket_or_object_that_is_missing_is_named(server: Server) -> None:
    store = ObjectStore()
    for url in (f"s3://{BUCKET}/missing", "s3://no-such-bucket/x"):
        assert not store.exists(url)
        with pytest.raises(FileNotFoundError) as raised:
            store.open(url)
        assert raised.value.filename in (url, os.path.dirname(url))


def test_put_replaces_or_refuses_and_a_repeated_put_succeeds(root: str) -> None:
    store = UrlStore()
    store.put(f"{root}/f", b"one", PutMode.CREATE)
    store.put(f"{root}/f", b"one", PutMode.CREATE)  # as a request does whose answer got lost
    with pytest.raises(FileExistsError):
        store.put(f"{root}/f", b"two", PutMode.CREATE)
    store.put(f"{root}/f", b"three")
    with store.open(f"{root}/f") as file:
        assert file.read(0, 9) == b"three"


def test_reads_at_any_position_give_the_bytes_of_the_object(root: str) -> None:
    data = os.urandom(3 * PART_BYTES + 12345)
    store = UrlStore()
    store.put(f"{root}/f", data)
    ends = [0, 1, 65_535, 65_536, PART_BYTES - 1, PART_BYTES, 2 * PART_BYTES + 7, len(data) - 1, len(data)]
    with store.open(f"{root}/f") as file:
        assert file.size() == len(data)
        for position in ends:
            for size in (0, 1, 70_000, PART_BYTES + 1, 1 << 60):
                assert file.read(position, size) == data[position : position + size]
        # On and on, as a log is read, with steps back to where a batch starts.
        for position in range(0, len(data), 1 << 20):
            target = bytearray(b"-" * ((1 << 20) + 99))
            count = file.read_into(position, memoryview(target))
            assert target[:count] == data[position : position + (1 << 20) + 99] and count
            assert set(target[count:]) <= {ord("-")}
        for bad in (lambda: file.read(-1, 1), lambda: file.read(0, -1)):
            with pytest.raises(OSError) as raised:
                bad()
            assert raised.value.errno == errno.EINVAL
    with pytest.raises(OSError) as raised:
        file.read(0, 1)
    assert raised.value.errno == errno.EBADF


@pytest.mark.parametrize("size_bytes", [10, 3 * PART_BYTES])
def test_an_object_that_is_replaced_or_deleted_while_it_is_read_is_an_error(server: Server, size_bytes: int) -> None:
    url = f"s3://{BUCKET}/changing/{size_bytes}/f"
    ObjectStore().put(url, b"a" * size_bytes)
    for change, words in (
        (lambda: ObjectStore().put(url, b"b" * size_bytes), "was replaced while it was read"),
        (lambda: ObjectStore().delete(url), "does not find it now"),
    ):
        store = ObjectStore()
        store.list(os.path.dirname(url))
        change()
        with pytest.raises(StoreError, match=words) as raised, store.open(url) as file:
            file.read(size_bytes - 1, 1)
        assert raised.value.path == url


def test_a_listing_of_more_than_a_page_is_complete(server: Server) -> None:
    names = [f"{number:05}" for number in range(1005)]
    for name in names:  # not through HTTP, which needs half a minute
        BACKEND.put_object(BUCKET, f"pages/{name}", b"x")
    assert [one.name for one in ObjectStore().list(f"s3://{BUCKET}/pages")] == names


# ---- commands --------------------------------------------------------------------------------------------------------

#: Waits a second for a server, where users wait for three minutes.
HASTY = Patience(first_pause_ms=1, longest_pause_ms=10, retry_seconds=1, timeout_seconds=3)

VERBS = {
    "ls": ["ls", "--segments", "--json"],
    "dump": ["dump", "--json"],
    "check": ["check", "--json"],
    "plan": ["plan", "--json", "--now", "1800000000000", "--config", "cleanup.policy=compact"],
}


def said(verb: str, path: str) -> tuple[int, str]:
    """The exit code and output of a command, with the path replaced."""
    done = run(*VERBS[verb], path, exits=None)
    text = done.stdout if verb != "ls" else json.dumps(without_disk(json.loads(done.stdout)))
    # On a store no broker ever runs.
    text = text.replace("no broker runs on an object store", "no broker runs that would do it")
    return done.exit_code, text.replace(path, "PATH")


#: A bucket has no blocks and no size.
OF_DISKS = {"own_bytes", "disk_size_bytes", "disk_bytes", "disk_share", "usage"}


def without_disk(value: Any) -> Any:
    """A JSON value without fields about disks."""
    if isinstance(value, dict):
        return {key: without_disk(one) for key, one in value.items() if key not in OF_DISKS}
    return [without_disk(one) for one in value] if isinstance(value, list) else value


@pytest.fixture(scope="module", params=["legacy-v0-before", "legacy-mixed-after", "kraft-jbod-before"])
def uploaded(
    request: pytest.FixtureRequest, server: Server, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, str]:
    """A directory of a real broker, and the same in a bucket."""
    name: str = request.param
    url = server.upload(fixture(name), name)
    return str(server.same_times(fixture(name), name, tmp_path_factory.mktemp("local") / name)), url


@pytest.mark.more
@pytest.mark.parametrize("verb", VERBS)
def test_a_command_says_of_a_bucket_what_it_says_of_a_directory(uploaded: tuple[str, str], verb: str) -> None:
    local, remote = (said(verb, path) for path in uploaded)
    assert remote == local
    assert len(local[1]) > 100


def test_ls_with_segments_lists_partitions_once_and_reads_small_segments_once(server: Server) -> None:
    url = server.upload(fixture("legacy-v0-before"), "counted")
    with faulty(server.address) as (address, asked), mock.patch.dict(os.environ, environment(address)):
        listed = run("ls", url, "--segments", "--json").json
    assert listed["totals"] == {
        **{"partitions": 12, "replicas": 12, "segments": 50, "size_bytes": 369_918},
        **{"disk_bytes": 370_062, "records": 12_164, "records_exact": True, "records_error": 0, "estimates": []},
    }
    entries = [one["index_entries"] for partition in listed["partitions"] for one in partition["by_segment"]]
    # One segment is large; the remaining requests are for the directory itself: its parents, its listing, and its
    # properties.
    assert asked.requests <= 12 + 50 + sum(map(len, entries)) + 2 + 5


@pytest.mark.more
@pytest.mark.parametrize("name", ["legacy-v0-before", "kraft-jbod-before"])
def test_ls_of_a_bucket_takes_at_most_four_requests_a_partition(server: Server, name: str) -> None:
    url = server.upload(fixture(name), f"few-{name}")
    with faulty(server.address) as (address, asked), mock.patch.dict(os.environ, environment(address)):
        out = run("ls", url).stdout
        requests = asked.requests
        brief = run("ls", url, "--json").json
    whole = run("ls", fixture(name), "--json").json
    assert len(whole["partitions"]) == len(brief["partitions"]) > 4
    assert requests <= 4 * len(brief["partitions"]) + 1
    unknown = {"records", "records_exact", "codecs", "oldest_ms", "newest_ms"}
    unknown |= {"path", "policy_source", "recovery", "notes"} | OF_DISKS  # with paths; of disks
    for few, all_ in zip(brief["partitions"], whole["partitions"], strict=True):
        assert {key: few[key] for key in few.keys() - unknown} == {key: all_[key] for key in few.keys() - unknown}
        assert few["records"] is few["codecs"] is few["oldest_ms"] is None
    assert "RECORDS" not in out and "CODECS" not in out and "NEWEST" not in out
    assert "\nrecords, codecs, times and damage: give --segments, which reads every segment\n" in out


def test_commands_read_what_is_in_memory() -> None:
    directory, store = fixture("legacy-v0-before"), UrlStore()
    for path in directory.rglob("*"):
        if path.is_file():
            store.put(f"memory://here/{path.relative_to(directory)}", path.read_bytes())
    assert said("dump", "memory://here") == said("dump", str(directory))


# ---- a store that fails ----------------------------------------------------------------------------------------------


@pytest.fixture
def broken(server: Server) -> Iterator[Faults]:
    """A server before the real one, whose faults the test chooses; the environment leads to it."""
    with faulty(server.address) as (address, faults), mock.patch.dict(os.environ, environment(address)):
        yield faults


FAILING = {**VERBS, "groups": ["groups"]}


@pytest.mark.slow
@pytest.mark.parametrize("verb", FAILING)
def test_a_network_that_fails_at_any_moment_is_not_called_damage(server: Server, broken: Faults, verb: str) -> None:
    url = server.upload(fixture("legacy-v0-before"), "legacy-v0-before")

    def shown() -> tuple[int, str, str]:
        with mock.patch("cordwood.fs.objects.Patience", return_value=replace(HASTY, retry_seconds=0)):
            done = run(*FAILING[verb], url, exits=None)
        return done.exit_code, done.stdout, done.stderr

    code, said_of_all, _ = shown()
    requests = broken.requests
    assert code == 0 and requests > 3
    for number in sorted({*range(0, requests, max(1, requests // 8)), 1, requests - 1}):
        broken.begin({number: "dead"})
        code, out, err = shown()
        assert code == 2 and "the object store failed" in err, (number, code, out, err)
        assert "damage" not in out + err
        if verb == "check":
            assert "finding" not in out and not out.count('"kind"'), (number, out)
    broken.begin({})
    assert shown() == (0, said_of_all, "")


@pytest.mark.parametrize("kind", ["500", "503", "cut", "lost"])
def test_a_listing_that_fails_is_repeated_until_it_is_whole(server: Server, broken: Faults, kind: str) -> None:
    for name in "abc":
        obstore.put(server.store, f"listed/{name}", b"x")
    broken.begin(dict.fromkeys(range(3), kind))
    assert [info.name for info in ObjectStore(HASTY).list(f"s3://{BUCKET}/listed")][:3] == ["a", "b", "c"]
    assert broken.happened == [kind] * 3


@pytest.mark.more
@pytest.mark.parametrize("act", ["list", "stat", "put"])
def test_a_request_is_repeated_for_as_long_as_there_is_patience(broken: Faults, act: str) -> None:
    broken.begin(dict.fromkeys(range(100_000), "503"))
    store, url = ObjectStore(HASTY), f"s3://{BUCKET}/patience/f"
    started = time.monotonic()
    with pytest.raises(StoreError, match="the object store failed"):
        {"list": lambda: store.list(url), "stat": lambda: store.stat(url), "put": lambda: store.put(url, b"x")}[act]()
    assert time.monotonic() - started > HASTY.retry_seconds / 2
    assert Patience().retry_seconds == 180, "as docs/object-stores.md says"


def test_a_store_that_refuses_access_is_not_called_damage(server: Server, broken: Faults) -> None:
    url = server.upload(fixture("legacy-v0-before"), "legacy-v0-before")
    broken.begin(dict.fromkeys(range(8, 10_000), "403"))
    done = run("check", "--json", url, exits=2)
    assert "refuses access" in done.stderr and not done.stdout


@pytest.mark.more
def test_a_network_that_fails_in_a_task_of_spark_is_named(server: Server, broken: Faults) -> None:
    url = server.upload(fixture("legacy-v0-before"), "legacy-v0-before")
    broken.begin({40: "dead"})
    with mock.patch("cordwood.fs.objects.Patience", return_value=replace(HASTY, retry_seconds=0)):
        done = run("verify", "--now", "1800000000000", url, url, exits=2)
    assert "the object store failed" in done.stderr, done.output
