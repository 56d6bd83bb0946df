"""`cordwood cache`: list, fill and remove this user's caches.

Numba compiles a kernel at its first call, for the argument types of that call. The only way to compile all kernels is
to use them: `--warm` writes a few small logs, in each codec, and runs commands on them.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from cordwood.cli.main import EXIT_OK
from cordwood.cli.options import Json
from cordwood.common.cache import cache_folder
from cordwood.common.errors import RequestError
from cordwood.common.text import bytes_text

#: Arguments of commands that together use all common kernels; `{logs}` and `{out}` are folders.
_USES = (
    "check {logs}/own {logs}/kafka-logs {logs}/kafka-groups",
    "why {logs}/own --config cleanup.policy=compact",
    "plan {logs}/own --config cleanup.policy=compact --exact",
    "clean {logs}/own --config cleanup.policy=compact --output {out}/copy --engine here",
    "verify {logs}/own {out}/copy",
    "index {logs}/own",
    "clean {logs}/own --config cleanup.policy=compact --in-place --index --engine here",
    "get {logs}/own/gzip-0 --key key-7",
    "table {logs}/kafka-logs --topic orders --engine here",
    "dump {logs}/own --json",
    "dump {logs}/own --tail 2",
    "dump {logs}/kafka-groups --json",
    "groups {logs}/kafka-groups",
    "transactions {logs}/kafka-groups",
)


def main(
    drop: Annotated[bool, typer.Option("--drop", help="Remove them.")] = False,
    warm: Annotated[
        bool, typer.Option("--warm", help="Compile kernels now, and not when they are first used.")
    ] = False,
    as_json: Json = False,
) -> int:
    """List the caches that save time: compiled kernels, and a class archive with which Java starts sooner.

    Both are made again when needed. Remove them when you remove Cordwood.
    """
    if warm and drop:
        raise RequestError("--warm fills the cache and --drop empties it: give one of them")
    if warm:
        _warm()
    found = caches(drop=drop)
    print(json.dumps(asdict(found), indent=1) if as_json else found.text())
    return EXIT_OK


def _warm() -> None:
    """Write small logs and run every common command on them."""
    from cordwood.cli import demo

    with tempfile.TemporaryDirectory(prefix="cordwood-warm-") as folder:
        logs, out = Path(folder) / "logs", Path(folder) / "out"
        logs.mkdir()
        out.mkdir()
        print("compiling kernels: append", file=sys.stderr, flush=True)
        _append(logs / "own")
        demo.unpack(logs)
        for use in _USES:
            words = [word.format(logs=logs, out=out) for word in use.split()]
            print(f"compiling kernels: {words[0]}", file=sys.stderr, flush=True)
            done = subprocess.run([sys.executable, "-m", "cordwood", *words], capture_output=True, check=False)
            if done.returncode > 1:
                what = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
                print(f"compiling kernels: {words[0]} failed, and compiles when it is used: {what}", file=sys.stderr)


def _append(directory: Path) -> None:
    """Append to a live log per codec, inside and outside of transactions, and read the appended records."""
    from cordwood.common.config import overrides
    from cordwood.common.types import Codec, TopicPartition
    from cordwood.fs.posix import PosixFileSystem
    from cordwood.live.log_manager import LogManager

    for codec in ("uncompressed", *(codec.name.lower() for codec in Codec if codec is not Codec.NONE)):
        config = overrides([f"compression.type={codec}", "log.cleaner.enable=false", "log.retention.ms=-1"])
        manager = LogManager(PosixFileSystem(), [str(directory)], config)
        manager.startup()
        log = manager.get_or_create_log(TopicPartition(codec, 0), is_new=True)
        for _ in range(3):
            log.append([(f"key-{at}", f"value {at} " * 10, [("header", "value")]) for at in range(100)])
            with log.transaction(1) as transaction:
                transaction.append([("key-1", "in a transaction"), ("key-2", None)])
            log.roll()
        assert sum(1 for _ in log.records()) > 0, "they were just appended"
        log.get("key-7")
        manager.shutdown()


# ---- cache -----------------------------------------------------------------------------------------------------------

# Lists and removes the caches of this user.

#: Patterns of the file names in the cache folder, with descriptions.
_KINDS = {
    "kernels-*": "compiled kernels",
    "java-*.jsa": "class archives for Java",
    "java-*.failed": "notes that Java cannot make one",
    "java.lock": "the lock of what makes one",
}


@dataclass(frozen=True, slots=True)
class Cached:
    """The files and size of one kind of cache."""

    what: str
    paths: tuple[str, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Caches:
    """The contents of the cache folder."""

    folder: str
    cached: tuple[Cached, ...]
    dropped: bool

    def text(self) -> str:
        """Return a line per kind."""
        if not self.cached:
            return f"{self.folder}: nothing is cached"
        lines = [f"  {bytes_text(one.size_bytes):>8}  {one.what}" for one in self.cached]
        return "\n".join([f"{self.folder}{': removed' if self.dropped else ''}", *lines])


def caches(*, drop: bool = False) -> Caches:
    """List the caches; `drop` removes them, which costs only the time to make them again."""
    folder = cache_folder()
    found = []
    for pattern, what in _KINDS.items():
        paths = sorted(folder.glob(pattern)) if folder.is_dir() else []
        if paths:
            found.append(Cached(what, tuple(map(str, paths)), sum(map(_size_of, paths))))
            if drop:
                for path in paths:
                    _remove(path)
    return Caches(str(folder), tuple(found), drop)


def _size_of(path: Path) -> int:
    files = [one for one in path.rglob("*") if one.is_file()] if path.is_dir() else [path]
    return sum(_size_of_file(one) for one in files)


def _size_of_file(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.lstat().st_size
    return 0


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
