"""The class archive for Java is a hint: wrong, old, torn and foreign archives only cost time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from crc32c import crc32c

from cordwood.fs.temporary import make_held, release
from cordwood.tasks.spark.archive import Archive
from cordwood.tasks.spark.launch import archive_for, command_for, find_java
from cordwood.tasks.spark.settings import LOCAL_MASTER, settings_for

pytestmark = pytest.mark.more

SETTINGS = settings_for(LOCAL_MASTER, None)
CONTENT = b"an archive of classes"

#: A session of our own that runs a task, and prints whether Java was started with an archive.
RUN = """
import sys
from cordwood.tasks.tasks import run_each
from cordwood.tasks.spark import launch
from cordwood.tasks.spark.runner import running_on_spark

started = launch.subprocess.Popen
def noted(command, **options):
    if "-version" not in command:
        print("with" if any("SharedArchiveFile" in word for word in command) else "without", end=" ")
    return started(command, **options)

launch.subprocess.Popen = noted
with running_on_spark() as runner:
    print(run_each(runner, abs, [-1], [1]))
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CORDWOOD_CACHE", str(tmp_path / "cache"))
    for name in ("SPARK_CONF_DIR", "SPARK_SUBMIT_OPTS", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "cache" / "cordwood"
    folder.mkdir(parents=True)
    return folder


def archive() -> Archive:
    found = archive_for(find_java(), SETTINGS, os.environ)
    assert found is not None
    return found


def put(folder: Path, content: bytes = CONTENT, *, key: str = "", checksum: int | None = None) -> Path:
    checksum = crc32c(content) if checksum is None else checksum
    path = folder / f"java-{key or archive().key}-{checksum:08x}.jsa"
    path.write_bytes(content)
    path.chmod(0o600)
    return path


def test_a_whole_archive_of_this_user_is_used(cache: Path) -> None:
    path = put(cache)
    assert archive().find() == path
    assert f"-XX:SharedArchiveFile={path}" in command_for(find_java(), SETTINGS, os.environ, archive())


def test_an_archive_that_others_may_have_written_is_not_used(cache: Path) -> None:
    put(cache).chmod(0o660)
    assert archive().find() is None and archive().options() == []


def test_a_link_to_an_archive_is_not_used(cache: Path, tmp_path: Path) -> None:
    path = put(cache)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert archive().find() is None


@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT[:-1] + b"!", CONTENT + b"\0", b""])
def test_a_torn_or_damaged_archive_is_not_used(cache: Path, content: bytes) -> None:
    put(cache, content, checksum=crc32c(CONTENT))
    assert archive().find() is None


def test_the_archive_of_other_options_is_not_used(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(cache)
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-XX:+UseParallelGC")
    assert archive().find() is None


def test_the_size_of_the_heap_and_folders_of_a_run_do_not_matter(cache: Path) -> None:
    path = put(cache)
    options = {**os.environ, "SPARK_SUBMIT_OPTS": '"-Djava.io.tmpdir=/a run"'}
    other = archive_for(find_java(), {**SETTINGS, "spark.driver.memory": "2g"}, options)
    assert other is not None and other.find() == path


def test_other_jars_need_another_archive(cache: Path, tmp_path: Path) -> None:
    jar = tmp_path / "a.jar"
    jar.write_bytes(b"1")
    command = [str(find_java().executable), "-cp", f"{tmp_path}/*"]
    before = Archive.of(command, [jar]).key
    jar.write_bytes(b"12")
    assert Archive.of(command, [jar]).key != before


def test_with_configuration_files_of_spark_there_is_no_archive(cache: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "SPARK_CONF_DIR": str(tmp_path)}
    assert archive_for(find_java(), SETTINGS, environment) is None
    assert command_for(find_java(), SETTINGS, environment, None)[0].endswith("spark-submit")


def test_what_java_could_not_make_is_not_tried_again(cache: Path) -> None:
    found = archive()
    assert found.is_wanted
    found.drop()
    assert not found.is_wanted


def run(cache: Path, **environment: str) -> str:
    variables = {**os.environ, "CORDWOOD_CACHE": str(cache.parent), **environment}
    done = subprocess.run([sys.executable, "-c", RUN], env=variables, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.slow
def test_java_does_not_mind_an_archive_that_is_none(cache: Path) -> None:
    put(cache, CONTENT * 1000)
    assert run(cache) == "with [1]\n"


@pytest.mark.slow
def test_given_an_archive_with_which_java_fails_it_is_started_once_without(cache: Path, tmp_path: Path) -> None:
    real = find_java().executable
    java = tmp_path / "home" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f'#!/bin/sh\ncase "$*" in *SharedArchiveFile*) exit 1;; esac\nexec "{real}" "$@"\n')
    java.chmod(0o755)
    home = {"JAVA_HOME": str(java.parents[1])}
    used = archive_for(find_java({**os.environ, **home}), SETTINGS, os.environ)
    assert used is not None
    path = put(cache, key=used.key)
    assert run(cache, **home) == "with without [1]\n"
    assert not path.exists()
    assert run(cache, **home) == "without [1]\n"


def test_what_a_kill_left_of_making_one_is_removed_when_the_next_is_made(cache: Path) -> None:
    left = Path(make_held(f"{cache}/java-"))
    Path(left, "archive").write_bytes(CONTENT)
    release(str(left))
    assert archive().make(cache / "no list of classes") is None
    assert sorted(path.name for path in cache.iterdir()) == [f"java-{archive().key}.failed"]
