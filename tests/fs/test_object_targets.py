"""Copies in object stores, and back: equal to copies on a disk; complete and right, or absent, after any failure."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast
from unittest import mock

import obstore
import pytest

import cordwood
from cordwood.cleaning.engine.exchange import merge_missing
from cordwood.cleaning.engine.results import Fate
from cordwood.commands.fetch import fetch_directory
from cordwood.common.errors import CordwoodError, CorruptFileError, LockedError, RequestError
from cordwood.fs.base import File
from cordwood.fs.by_url import UrlStore
from cordwood.fs.manifest import MANIFEST, RUN, decode
from cordwood.fs.object_requests import Patience
from cordwood.fs.object_targets import ObjectTargetStore
from cordwood.fs.wrapped import WrappedTargetStore
from cordwood.storage.formats.filenames import CLEANER_OFFSETS
from tests.command import ENVIRONMENT, run, run_alone
from tests.commands import growing_logs
from tests.commands.in_memory import CONFIG, FIRST, LATER_MS, ROOT, SECOND, directory
from tests.commands.in_process import InThisProcess
from tests.fixtures import fixture
from tests.fs.object_server import BUCKET, Server, environment, faulty, running_server
from tests.fs.trees import tree
from tests.knobs import SEED, scaled
from tests.tasks.spark.logs import random_log

pytestmark = pytest.mark.more


KINDS = ("500", "503", "404", "cut", "lost", "slow", "dead")


def drawn_faults(random: random.Random, requests: int) -> dict[int, str]:
    """One to a few faults within this number of requests; some in a row, as when a server is overloaded."""
    at: dict[int, str] = {}
    for _ in range(random.choice([1, 1, 2, 3])):
        first, kind = random.randrange(requests), random.choice(KINDS)
        for number in range(first, first + random.choice([1, 1, 1, 2, 8])):
            at[number] = kind
    return at


#: Options for a fixture with topics of any policy, at this time.
OPTIONS: dict[str, Any] = {"now_ms": 1_800_000_000_000, "single_copy": True, "ignore_ratio": True}
COMPACT: dict[str, Any] = {**OPTIONS, "overrides": ["cleanup.policy=compact"]}
#: Options for a small log, cleaned in milliseconds.
SMALL: dict[str, Any] = {**OPTIONS, "now_ms": LATER_MS, "overrides": CONFIG}
FAULTY_RUNS = scaled(4, 200)
HASTY = Patience(first_pause_ms=1, longest_pause_ms=50, retry_seconds=1, timeout_seconds=3)


def session() -> Any:
    return InThisProcess()


def files(root: Path) -> dict[str, tuple[bytes, int]]:
    """Bytes and modification time of each file, by its path."""
    found = (path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): (path.read_bytes(), path.stat().st_mtime_ns) for path in found}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_server() as running:
        yield running


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with two small partitions."""
    root = tmp_path_factory.mktemp("small") / "logs"
    for name, data in tree(directory(FIRST, SECOND), ROOT).items():
        if data is not None:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(data)
            os.utime(root / name, (1_600_000_000, 1_600_000_000))
    return root


@pytest.fixture(scope="module")
def cleaned(small: Path) -> dict[str, bytes]:
    """The output of a clean of the small directory into a directory of this machine."""
    target = small.parent / "cleaned"
    cordwood.clean(str(small), output=str(target), spark=session(), **SMALL)
    return {name: data for name, (data, _) in files(target).items()}


@pytest.mark.parametrize(
    "name",
    [
        "legacy-v0-before",
        pytest.param("legacy-mixed-before", marks=pytest.mark.slow),
        pytest.param("kraft-crashed-swap", marks=pytest.mark.slow),
    ],
)
def test_a_clean_to_a_bucket_and_back_equals_one_on_a_disk(server: Server, name: str, tmp_path: Path) -> None:
    # A rewritten segment may have its time in whole seconds.
    url, began_ns = f"s3://{BUCKET}/cleaned/{name}", time.time_ns() // 10**9 * 10**9
    there = cordwood.clean(str(fixture(name)), output=url, spark=session(), **COMPACT)
    here = cordwood.clean(str(fixture(name)), output=str(tmp_path / "here"), spark=session(), **COMPACT)
    shown = [replaced_times(one.text()) for one in (here, there)]
    assert shown[0].replace(str(tmp_path / "here"), url) == shown[1]
    expected, objects = files(tmp_path / "here"), server.objects(f"cleaned/{name}")
    manifest = decode(objects.pop(MANIFEST), "")
    assert objects == {path: data for path, (data, _) in expected.items()}
    # Files that a clean rewrites are as old as the clean; all other files are as old as their sources.
    old = {file.path: file.mtime_ns for file in manifest.files if file.mtime_ns < began_ns}
    assert old == {path: expected[path][1] for path in old} and len(old) > 50
    fetched = cordwood.fetch(url, str(tmp_path / "back"))
    assert fetched.has_checksums and fetched.files == len(expected)
    back = files(tmp_path / "back")
    assert {path: data for path, (data, _) in back.items()} == objects
    assert {path: back[path][1] for path in old} == old


def replaced_times(text: str) -> str:
    return "\n".join(line.partition("; cleaned in")[0] for line in text.splitlines())


def test_a_clean_from_a_bucket_equals_one_from_a_disk(server: Server, tmp_path: Path) -> None:
    url = server.upload(fixture("legacy-v0-before"), "to-clean")
    local = server.same_times(fixture("legacy-v0-before"), "to-clean", tmp_path / "local")
    cordwood.clean(str(local), output=str(tmp_path / "expected"), spark=session(), **COMPACT)
    cordwood.clean(url, output=str(tmp_path / "new"), spark=session(), **COMPACT)
    cordwood.clean(url, output=f"s3://{BUCKET}/from-bucket", spark=session(), **COMPACT)
    expected = {path: data for path, (data, _) in files(tmp_path / "expected").items()}
    assert {path: data for path, (data, _) in files(tmp_path / "new").items()} == expected
    objects = server.objects("from-bucket")
    del objects[MANIFEST]
    assert objects == expected


def test_a_copy_in_a_bucket_has_indexes_which_the_next_clean_and_get_use(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs, url, here = tmp_path / "logs", f"s3://{BUCKET}/indexed", {"engine": None, "spark": session()}
    growing_logs.grown(logs, random.Random(2), growing_logs.start(logs))
    growing_logs.clean_copy(logs, url, index=True, **here)
    growing_logs.clean_copy(logs, tmp_path / "local", index=True)
    names = {f"t-0/.cordwood/index/{base:020d}.keyhashes" for base in growing_logs.closed(tmp_path / "local")}
    objects = server.objects("indexed")
    assert {path for path in objects if ".cordwood/" in path} == names
    assert names <= {file.path for file in decode(objects[MANIFEST], "").files}
    (found,) = cordwood.get(url, keys=["17"]).searched
    assert found.indexed == len(names)
    assert cordwood.ls(url, index_entries=True).partitions[0].index_bytes == sum(len(objects[name]) for name in names)
    searched = growing_logs.segments_searched(monkeypatch)
    growing_logs.clean_copy(url, f"{url}-again", first_dirty=360, **here)
    assert set(searched) == {int(Path(name).stem) for name in names}
    growing_logs.clean_copy(url, tmp_path / "twin", first_dirty=360, read_all=True, **here)
    logs_of = {path: data for path, data in server.objects("indexed-again").items() if path.endswith(".log")}
    assert logs_of == {f"t-0/{path.name}": path.read_bytes() for path in (tmp_path / "twin/t-0").glob("*.log")}
    assert any(".cordwood/index/" in path for path in server.objects("indexed-again"))
    # Back on a disk they are as private as they were.
    cordwood.fetch(f"{url}-again", str(tmp_path / "back"))
    assert growing_logs.indexed(tmp_path / "back") == growing_logs.closed(tmp_path / "back")
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "back").rglob("*.keyhashes")} == {0o600}


def test_a_log_in_a_bucket_that_is_only_read_gets_indexes_on_this_machine(server: Server, tmp_path: Path) -> None:
    logs, folder = tmp_path / "logs", str(tmp_path / "indexes")
    growing_logs.grown(logs, random.Random(2), growing_logs.start(logs))
    url = server.upload(logs, "only-read")
    before = server.objects("only-read")
    (made,) = cordwood.index(url, index_dir=folder).partitions
    assert made.indexed == made.made > 5
    (found,) = cordwood.get(url, keys=["17"], index_dir=folder).searched
    assert (found.indexed, server.objects("only-read")) == (made.indexed, before)
    assert cordwood.index(url, index_dir=folder).partitions[0].made == 0
    (found,) = cordwood.get(str(logs), keys=["17"], index_dir=folder).searched
    assert found.indexed == made.indexed, "it is of the same bytes"


@pytest.mark.slow
def test_a_blob_that_is_lost_in_the_bucket_is_made_again_and_none_is_left(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random_log(tmp_path / "logs" / "t-0", 1)
    url = server.upload(tmp_path / "logs", "blobs")
    lost: list[str] = []

    def after_a_loss(*arguments: Any) -> Any:
        if not lost:
            lost.extend(name for name in server.objects("cleaned/blobs") if name.endswith(".scan"))
            obstore.delete(server.store, f"cleaned/blobs/{lost[0]}")
        return merge_missing(*arguments)

    monkeypatch.setattr("cordwood.cleaning.engine.stages.merge_missing", after_a_loss)
    # So little memory that many tasks clean the partition.
    options = {**COMPACT, "high_watermark": "end", "ignore_ratio": True, "memory": 10_000, "spark": session()}
    result = cordwood.clean(url, output=f"s3://{BUCKET}/cleaned/blobs", **options)
    assert [one.fate for one in result.partitions] == [Fate.CLEANED] and lost
    objects = server.objects("cleaned/blobs")
    manifest = decode(objects.pop(MANIFEST), "")
    assert sorted(file.path for file in manifest.files) == sorted(objects)
    monkeypatch.undo()
    cordwood.clean(url, output=str(tmp_path / "expected"), **options)
    assert {path: data for path, (data, _) in files(tmp_path / "expected").items()} == objects


@pytest.mark.slow
@pytest.mark.parametrize("name", ["kraft-crashed-swap", "kraft-jbod-before", "other-clients-before"])
def test_a_clean_from_bucket_to_bucket_on_spark_is_proved(server: Server, name: str, tmp_path: Path) -> None:
    url, target = server.upload(fixture(name), name), f"s3://{BUCKET}/proved-{name}"
    words = ["--now", "1800000000000", "--single-copy", "--ignore-ratio"]
    for command in (["clean", url, "--output", target, *words], ["verify", url, target, *words[:2]]):
        # In a process of its own: the workers of an existing session lack the server's address.
        run_alone(*command, environment=environment(server.address))
    run("check", target)


def test_a_copy_of_a_directory_without_manifest_comes_back_whole(small: Path, server: Server, tmp_path: Path) -> None:
    url = server.upload(small, "plain")
    fetched = cordwood.fetch(f"{url}/", str(tmp_path / "back"))
    assert not fetched.has_checksums and "next: cordwood check" in fetched.text()
    assert {path: data for path, (data, _) in files(tmp_path / "back").items()} == {
        path: data for path, (data, _) in files(small).items()
    }


def test_what_cannot_be_is_refused_and_changes_nothing(small: Path, server: Server, tmp_path: Path) -> None:
    url = server.upload(small, "refused")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "f").write_bytes(b"")
    before = server.objects("refused")
    attempts: list[tuple[Callable[[], object], str]] = [
        (lambda: cordwood.clean_in_place(url), "no file can be changed in place"),
        (lambda: cordwood.clean(url, output=url, spark=session(), **SMALL), "is only read"),
        (lambda: cordwood.clean(url, output=f"{url}/new", spark=session(), **SMALL), "is only read"),
        (lambda: cordwood.clean(str(small), output=url, spark=session(), **SMALL), "exists and is not empty"),
        (lambda: cordwood.fetch(url, str(tmp_path / "full")), "exists and is not empty"),
        (lambda: cordwood.fetch(str(small), str(tmp_path / "new")), "is not in an object store"),
        (lambda: cordwood.fetch(url, f"{url}-2"), "is in an object store"),
        (lambda: cordwood.fetch(f"{url}-3", str(tmp_path / "new")), "does not exist"),
    ]
    for attempt, words in attempts:
        with pytest.raises(RequestError, match=words):
            attempt()
    assert server.objects("refused") == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full"]


# ---- copies that do not count ----------------------------------------------------------------------------------------


def made(small: Path, prefix: str) -> str:
    url = f"s3://{BUCKET}/{prefix}"
    cordwood.clean(str(small), output=url, spark=session(), **SMALL)
    return url


READERS: list[list[str]] = [["ls"], ["check"], ["dump"], ["plan"]]


def test_a_copy_without_its_manifest_does_not_count(small: Path, server: Server, tmp_path: Path) -> None:
    url = made(small, "unfinished")
    obstore.delete(server.store, f"unfinished/{MANIFEST}")
    obstore.put(server.store, f"unfinished/{RUN}", json.dumps({"run": "x", "host": "elsewhere", "pid": 1}).encode())
    for path in (url, f"{url}/a-0"):
        for words in READERS:
            done = run(*words, path, exits=2)
            assert "an unfinished copy" in done.output, done.output
    for attempt in (
        lambda: cordwood.fetch(url, str(tmp_path / "new")),
        lambda: cordwood.clean(url, output=str(tmp_path / "new"), spark=session(), **SMALL),
    ):
        with pytest.raises(RequestError, match="an unfinished copy"):
            attempt()
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("change", ["missing", "shorter", "replaced", "added"])
def test_a_copy_that_is_not_as_it_was_made_is_refused(small: Path, server: Server, tmp_path: Path, change: str) -> None:
    url = made(small, f"changed-{change}")
    name = next(name for name in server.objects(f"changed-{change}") if name.startswith("a-0/") and ".log" in name)
    key = f"changed-{change}/{name}"
    data = bytes(obstore.get(server.store, key).bytes())
    {
        "missing": lambda: obstore.delete(server.store, key),
        "shorter": lambda: obstore.put(server.store, key, data[:-1]),
        "replaced": lambda: obstore.put(server.store, key, bytes(len(data))),
        "added": lambda: obstore.put(server.store, f"{key}.swap", data),
    }[change]()
    for words in READERS:
        done = run(*words, url, exits=None)
        assert done.exit_code and "manifest does not fit" in done.output, (words, done.output)
    with pytest.raises(OSError, match="manifest does not fit"):
        cordwood.fetch(url, str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_a_fetched_file_must_have_the_checksum_of_the_manifest(small: Path, server: Server, tmp_path: Path) -> None:
    made(small, "rotten")
    objects = server.objects("rotten")
    manifest = json.loads(objects[MANIFEST])
    manifest["files"][0]["crc32c"] ^= 1
    obstore.put(server.store, f"rotten/{MANIFEST}", json.dumps(manifest).encode())
    with pytest.raises(CorruptFileError, match="CRC-32C"):
        cordwood.fetch(f"s3://{BUCKET}/rotten", str(tmp_path / "new"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_killed_run_leaves_no_copy_and_the_next_removes_what_it_left(
    small: Path, server: Server, cleaned: dict[str, bytes]
) -> None:
    url = f"s3://{BUCKET}/killed"
    words = [sys.executable, "-c", _KILLED, str(small), url, json.dumps(SMALL)]
    root = str(Path(__file__).parents[2])
    paths = os.pathsep.join([ENVIRONMENT["PYTHONPATH"], root])
    done = subprocess.run(words, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    left = server.objects("killed")
    assert RUN in left and MANIFEST not in left and len(left) > len(cleaned) // 2
    with pytest.raises(RequestError, match="an unfinished copy"):
        cordwood.ls(url)
    obstore.put(server.store, "killed/.cordwood/other/00000000000000000000.log", b"of a task that goes on")
    made(small, "killed")
    objects = server.objects("killed")
    assert objects.pop(MANIFEST) and objects == cleaned


#: Cleans, and is killed when all files but the manifest are written.
_KILLED = """
import json, os, signal, sys
import cordwood
from cordwood.fs.object_targets import ObjectCopy
from tests.commands.in_process import InThisProcess

ObjectCopy.publish = lambda self: os.kill(os.getpid(), signal.SIGKILL)
cordwood.clean(sys.argv[1], output=sys.argv[2], spark=InThisProcess(), **json.loads(sys.argv[3]))
"""


def test_two_runs_never_make_one_copy(small: Path, server: Server, cleaned: dict[str, bytes]) -> None:
    url = f"s3://{BUCKET}/contended"
    first = UrlStore()
    publish = "cordwood.fs.object_targets.ObjectCopy.publish"
    original = cordwood_publish()

    def take_over(self: Any) -> None:
        # A run on the same machine sees that the first is alive; a run on another machine assumes that it is dead.
        with pytest.raises(LockedError, match="is being made by another run"):
            made(small, "contended")
        with mock.patch(publish, original), mock.patch("socket.gethostname", return_value="elsewhere"):
            made(small, "contended")
        original(self)

    with mock.patch(publish, take_over), pytest.raises(LockedError, match=r"taken over|another run"):
        cordwood.clean(str(small), output=url, spark=session(), fs=first, **SMALL)
    objects = server.objects("contended")
    assert objects.pop(MANIFEST) and objects == cleaned


def cordwood_publish() -> Callable[[Any], None]:
    from cordwood.fs.object_targets import ObjectCopy

    return cast("Callable[[Any], None]", ObjectCopy.publish)


class FailingOnce(WrappedTargetStore):
    """A store that cannot create the first segment in a work folder."""

    failed_at = ""

    def create(self, path: str, *, exclusive: bool = True, mode: int = 0o666) -> File:
        if not self.failed_at and "/.cordwood/" in path and path.endswith(".log"):
            self.failed_at = path
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return super().create(path, exclusive=exclusive, mode=mode)


def test_what_a_bucket_does_not_take_is_named_where_it_was_to_be(server: Server, small: Path) -> None:
    copy, fs = f"s3://{BUCKET}/not-taken", FailingOnce(UrlStore())
    result = cordwood.clean(str(small), output=copy, spark=session(), fs=fs, **SMALL)
    (failed,) = result.with_fate(Fate.FAILED)
    assert failed.why == f"Input/output error: {fs.failed_at}" and fs.failed_at.startswith(f"{copy}/.cordwood/")


# ---- faults ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, Any]:
    """By action: its number of requests, and its result; filled by the first test that runs it."""
    return {}


def hasty() -> UrlStore:
    """A file system that does not wait long for a server."""
    return UrlStore(ObjectTargetStore(HASTY))


def dumped(path: str, fs: UrlStore) -> tuple[object, ...]:
    """All listings and records of a directory, without its path; the records of a log are last."""
    listing = cordwood.ls(path, fs=fs, index_entries=True)
    plan = cordwood.plan(path, fs=fs, **SMALL)
    findings = [(one.kind, one.offset, one.what.replace(path, "")) for one in cordwood.check(path, fs=fs)]
    log = cordwood.open_log(f"{path}/a-0", fs=fs)
    return repr(listing).replace(path, ""), plan.text().replace(path, ""), findings, list(log)


@pytest.mark.slow
@pytest.mark.parametrize("run", range(FAULTY_RUNS))
def test_whatever_fails_a_copy_is_right_or_does_not_count(
    run: int, small: Path, server: Server, cleaned: dict[str, bytes], tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    drawing = random.Random(f"{SEED}-{run}")
    verb = ("clean", "fetch", "read", "clean from")[run % 4]
    source, copy = f"s3://{BUCKET}/source-{run}", f"s3://{BUCKET}/copy-{run}"
    if verb == "clean from":
        server.upload(small, f"source-{run}")
    if verb in ("fetch", "read"):
        made(small, f"copy-{run}")
    with faulty(server.address) as (address, faults), mock.patch.dict(os.environ, environment(address)):
        act = {
            "clean": lambda: cordwood.clean(str(small), output=copy, spark=session(), fs=hasty(), **SMALL),
            "clean from": lambda: cordwood.clean(source, output=copy, spark=session(), fs=hasty(), **SMALL),
            "fetch": lambda: fetch_directory(
                hasty(), copy, str(tmp_path / "back"), has_checksums=True, on_bytes=lambda done, total: None
            ),
            "read": lambda: dumped(copy, hasty()),
        }[verb]
        if verb not in undisturbed:
            result = act()
            undisturbed[verb] = faults.requests, result if verb == "read" else None
            remove(server, f"copy-{run}" if "clean" in verb else "")
            shutil.rmtree(tmp_path / "back", ignore_errors=True)
        requests, expected = undisturbed[verb]
        faults.begin(drawn_faults(drawing, requests))
        failed = False
        found: Any = None
        try:
            found = act()
        except (CordwoodError, OSError):
            failed = True
        faults.settle()
        happened = faults.happened
        said = f"{verb}, {faults.at}, {happened}"
        faults.begin({})
        if verb == "read":
            assert failed or found == expected, said
        elif verb == "fetch":
            there = {path: data for path, (data, _) in files(tmp_path / "back").items()}
            assert there == ({} if failed else cleaned), said
            assert failed or sorted(path.name for path in tmp_path.iterdir()) == ["back"], said
        else:
            objects = server.objects(f"copy-{run}")
            counts = MANIFEST in objects
            assert counts or failed, said
            if counts:
                dumped(copy, hasty())
            else:
                if objects:
                    with pytest.raises(RequestError, match="unfinished copy"):
                        cordwood.ls(copy, fs=hasty())
                found = act()
                objects = server.objects(f"copy-{run}")
            objects.pop(MANIFEST)
            objects = {name: data for name, data in objects.items() if not own(name)}
            left = () if found is None else tuple(str(one.topic_partition) for one in found.with_fate(Fate.FAILED))
            assert not left or (counts and "404" in happened), said
            assert objects == with_partitions_left(cleaned, small, left), said


def with_partitions_left(cleaned: dict[str, bytes], small: Path, left: tuple[str, ...]) -> dict[str, bytes]:
    """A clean copy in which some partitions could not be cleaned: they are unchanged, without a cleaned range."""
    folders = tuple(f"{one}/" for one in left)
    expected = {name: data for name, data in cleaned.items() if not name.startswith(folders)}
    expected |= {name: data for name, (data, _) in files(small).items() if name.startswith(folders)}
    version, _, *entries = cleaned[CLEANER_OFFSETS].decode().splitlines()
    entries = [entry for entry in entries if "-".join(entry.split()[:2]) not in left]
    return expected | {CLEANER_OFFSETS: "\n".join([version, str(len(entries)), *entries, ""]).encode()}


def own(name: str) -> bool:
    """Whether a complete copy may still have this file of the run that made it."""
    return name == RUN or name.startswith(".cordwood/")


def remove(server: Server, prefix: str) -> None:
    if prefix:
        for name in server.objects(prefix):
            obstore.delete(server.store, f"{prefix}/{name}")
