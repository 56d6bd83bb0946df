"""A clean on a Spark cluster has the same output as on this machine, whichever process is killed meanwhile.

The cluster runs on this machine: a master and two workers of one core each (`tests/tasks/spark/standalone.py`).
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cordwood.fs.manifest import MANIFEST, decode
from tests.command import CORDWOOD, ENVIRONMENT, run_alone
from tests.fixtures import copy_of, fixture
from tests.fs.object_server import BUCKET, Server, environment, running_server
from tests.tasks.spark.standalone import Cluster, defaults, kill

pytestmark = pytest.mark.cluster

PLAIN = ("--config", "cleanup.policy=compact", "--high-watermark", "end", "--ignore-ratio", "--now", "1795253411000")
#: So slow that a task is running when something is killed.
SLOW = ("--rate", "40k")
#: Repeat each task that takes longer than its siblings.
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.01",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.minTaskRuntime": "100ms",
}
_SECONDS_MAX = 300


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """An S3 server; the environment leads to it, also that of executors."""
    with running_server() as started:
        yield started


@pytest.fixture(scope="module")
def cluster(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster") / "spark") as started:
        yield started


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return make_logs(tmp_path)


def make_logs(folder: Path) -> Path:
    path = folder / "logs"
    path.mkdir()
    for one in fixture("kraft-before").glob("orders-*"):
        copy_of(one, path / one.name)
    return path


@pytest.fixture(scope="module")
def cleaned(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The output of a clean on this machine."""
    folder = tmp_path_factory.mktemp("cleaned")
    run_alone("clean", make_logs(folder), "--output", folder / "copy", *PLAIN)
    return contents(folder / "copy")


def contents(folder: Path) -> dict[str, bytes]:
    """All files of partitions; other files are not allowed."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.glob("*-*/**/*") if path.is_file()}


def partitions_of(files: dict[str, bytes]) -> dict[str, bytes]:
    """Segments and their indexes; a copy also has files that a clean in place leaves to the broker."""
    return {name: data for name, data in files.items() if name.endswith((".log", "index"))}


class WhenRunning(threading.Thread):
    """Does something as soon as tasks read, once."""

    def __init__(self, folder: Path, do: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._folder, self._do = folder, do
        self.done = False

    def run(self) -> None:
        began = time.monotonic()
        while time.monotonic() - began < _SECONDS_MAX:
            # The driver has a counter, too.
            if len(list(self._folder.rglob("throttle/*"))) > 1:
                time.sleep(0.5)
                self._do()
                self.done = True
                return
            time.sleep(0.05)

    def __enter__(self) -> WhenRunning:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.join()
        assert self.done, "no task was running"


def test_a_copy_and_its_proof_are_the_same_as_on_this_machine(
    cluster: Cluster, logs: Path, tmp_path: Path, cleaned: dict[str, bytes]
) -> None:
    run_alone("clean", logs, "--output", tmp_path / "copy", *PLAIN, "--master", cluster.url)
    assert contents(tmp_path / "copy") == cleaned
    proof = run_alone("verify", logs, tmp_path / "copy", "--high-watermark", "end", "--master", cluster.url)
    assert "All guarantees hold" in proof.output


def test_a_clean_in_place_with_speculation_survives_a_killed_executor(
    cluster: Cluster, logs: Path, tmp_path: Path, cleaned: dict[str, bytes]
) -> None:
    settings = defaults(tmp_path / "conf", SPECULATION)
    with WhenRunning(logs, lambda: kill(cluster.executors()[0])):
        run_alone("clean", logs, "--in-place", *PLAIN, *SLOW, "--master", cluster.url, environment=settings)
    assert partitions_of(contents(logs)) == partitions_of(cleaned)
    assert not list(logs.rglob("*.cordwood*")) and not list(logs.rglob("*.deleted"))


def test_a_packed_environment_is_all_that_executors_need(
    cluster: Cluster, logs: Path, tmp_path: Path, cleaned: dict[str, bytes]
) -> None:
    archive = tmp_path / "environment.tar.gz"
    assert f"--archive {archive}" in run_alone("pack", "--output", archive).output
    master = ("--master", cluster.url, "--archive", archive)
    run_alone("clean", logs, "--output", tmp_path / "copy", *PLAIN, *master)
    assert contents(tmp_path / "copy") == cleaned


def test_executors_without_the_packages_are_refused_in_words(cluster: Cluster, logs: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    # As on another machine: no PYTHONPATH leads to the packages of this one.
    environment = {"PYSPARK_PYTHON": str(tmp_path / "bare/bin/python"), "PYTHONPATH": ""}
    master = ("--master", cluster.url)
    words = ("clean", logs, "--output", tmp_path / "copy", *PLAIN, *master)
    said = run_alone(*words, exits=2, environment=environment).output
    assert "The Python workers of Spark cannot be used: Cordwood is not installed there. Give the executors" in said
    assert "Traceback" not in said
    assert os.listdir(tmp_path) == ["logs", "bare"] or not (tmp_path / "copy").exists()


def test_a_copy_survives_a_killed_worker(
    cluster: Cluster, logs: Path, tmp_path: Path, cleaned: dict[str, bytes]
) -> None:
    with WhenRunning(tmp_path, lambda: cluster.kill_worker(0)):
        run_alone("clean", logs, "--output", tmp_path / "copy", *PLAIN, *SLOW, "--master", cluster.url)
    assert contents(tmp_path / "copy") == cleaned
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "logs"]


def test_a_clean_from_bucket_to_bucket_needs_no_disk_that_executors_share(
    server: Server, cluster: Cluster, logs: Path, tmp_path: Path, cleaned: dict[str, bytes]
) -> None:
    url = server.upload(logs, "shared-nothing")
    folder = tmp_path / "driver"
    folder.mkdir()
    # The memory is small, so that many tasks clean each partition. Only the driver can read its temporary folder.
    words = [*PLAIN, "--memory", "14000", "--master", cluster.url]
    command = [*CORDWOOD, "clean", url, "--output", f"s3://{BUCKET}/cleaned", *words]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs tmpfs "{folder}" && exec "$@"', "sh", *command],
        env=ENVIRONMENT | environment(server.address) | {"TMPDIR": str(folder)},
        capture_output=True, text=True, check=False, timeout=_SECONDS_MAX,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(folder.iterdir()) == []
    objects = server.objects("cleaned")
    manifest = decode(objects.pop(MANIFEST), "")
    assert sorted(file.path for file in manifest.files) == sorted(objects), "nothing else is left in the bucket"
    assert {name: data for name, data in objects.items() if "/" in name} == cleaned


def test_a_copy_by_many_tasks_survives_a_killed_executor(
    cluster: Cluster, logs: Path, tmp_path: Path, cleaned: dict[str, bytes]
) -> None:
    # So little memory that each partition is cleaned by many tasks, which read many small parts of each other's blobs.
    words = (*PLAIN, "--rate", "1m", "--memory", "14000", "--master", cluster.url)
    with WhenRunning(tmp_path, lambda: kill(cluster.executors()[0])):
        run_alone("clean", logs, "--output", tmp_path / "copy", *words)
    assert contents(tmp_path / "copy") == cleaned
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "logs"]
