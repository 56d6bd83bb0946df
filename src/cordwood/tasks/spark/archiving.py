"""Make the class archive for Java; see `archive`.

python -m cordwood.tasks.spark.archiving
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from cordwood.common.cache import cache_folder
from cordwood.tasks.runner import Numbered
from cordwood.tasks.spark.launch import archive_for, find_java
from cordwood.tasks.spark.runner import ContextRunner
from cordwood.tasks.spark.session import own
from cordwood.tasks.spark.settings import LOCAL_MASTER, settings_for

_NICE = 19
_CLASSES = "-XX:DumpLoadedClassList="
#: The environment variable with additional Java options; see `launch`.
_OPTIONS = "SPARK_SUBMIT_OPTS"


def make_archive() -> str:
    """Make the archive for our own sessions on this machine if it is missing; return the result as a sentence."""
    with _alone() as is_alone:
        if not is_alone:
            return "Another process makes the class archive for Java"
        return _make()


def _make() -> str:
    settings = settings_for(LOCAL_MASTER, None)
    archive = archive_for(find_java(), settings, os.environ)
    if archive is None:
        return "Spark has configuration files or options of yours, so Java gets no class archive"
    if not archive.is_wanted:
        return "The class archive for Java is there" if archive.find() else "Java cannot make a class archive here"
    with tempfile.TemporaryDirectory(prefix="cordwood-classes-") as folder:
        classes = Path(folder, "classes")
        before = os.environ.get(_OPTIONS, "")
        os.environ[_OPTIONS] = f"{before} {_CLASSES}{classes}".strip()
        try:
            with own(settings, sys.executable) as gateway:
                ContextRunner(gateway).run([[(0, 0)], [(1, 0)]], [_pass_on, _pass_on])
                # Java writes the list only at a regular exit.
                gateway.stop(at_once=False)
        finally:
            os.environ[_OPTIONS] = before
        made = archive.make(classes)
    if made is None:
        return "Java cannot make a class archive here"
    return f"Java starts in half the time from now on: {made}"


def _pass_on(items: Iterable[Numbered]) -> Iterator[Numbered]:
    yield from items


@contextlib.contextmanager
def _alone() -> Iterator[bool]:
    """Yield whether this process holds the lock, so that no other process makes an archive now."""
    folder = cache_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(folder / "java.lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True


if __name__ == "__main__":
    os.nice(_NICE)
    print(make_archive())
