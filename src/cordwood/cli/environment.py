"""`cordwood cache`, `pack`: this user's caches, and an archive of this Python environment.

Numba compiles a kernel at its first call, for the argument types of that call. The only way to compile all kernels is
to use them: `cache --warm` writes a few small logs, in each codec, and runs commands on them.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from cordwood.cli.main import EXIT_DAMAGE, EXIT_OK, app
from cordwood.cli.options import Json
from cordwood.common.cache import cache_folder
from cordwood.common.errors import RequestError
from cordwood.common.text import bytes_text
from cordwood.tasks.spark import environment


def cache(
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


def pack(
    output: Annotated[
        str, typer.Option(metavar="FILE", help=f"The new file. Default: {environment.DEFAULT_OUTPUT}.")
    ] = environment.DEFAULT_OUTPUT,
    as_json: Json = False,
) -> int:
    """Make an archive of Cordwood and the packages that it needs, and show how the executors of a cluster use it.

    Python itself and Spark are not in it. Takes half a minute.
    """
    packed = environment.pack(output)
    print(json.dumps(asdict(packed), indent=1) if as_json else packed.text())
    return EXIT_OK


# ---- list and remove caches ------------------------------------------------------------------------------------------

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


# ---- compile kernels -------------------------------------------------------------------------------------------------

#: Arguments of commands that together use all common kernels; `{logs}` and `{out}` are folders.
_COMPACT = "--config cleanup.policy=compact --engine here"
_USES = (
    "check {logs}/own {logs}/kafka-logs {logs}/kafka-groups",
    "why {logs}/own --config cleanup.policy=compact",
    "plan {logs}/own --config cleanup.policy=compact --exact",
    f"clean {{logs}}/own {_COMPACT} --output {{out}}/copy",
    f"clean {{logs}}/own {_COMPACT} --output {{out}}/by-map --offset-map 2400",
    "verify {logs}/own {out}/copy --engine here",
    f"clean {{logs}}/own {_COMPACT} --in-place --index",
    "get {logs}/own/gzip-0 --key key-7",
    "table {logs}/kafka-logs --topic orders --engine here",
    "dump {logs}/own --json",
    "dump {logs}/own --tail 2",
    "dump {logs}/kafka-groups --json",
    "groups {logs}/kafka-groups",
    "transactions {logs}/kafka-groups",
)
#: A clean of few new records, which reads by the key indexes of the clean before it.
_FEW_NEW = f"clean {{logs}}/own {_COMPACT} --in-place --ignore-ratio"
#: Bytes of a value that `dump` escapes in pieces.
_LARGE_VALUE_BYTES = 1 << 19


def _warm() -> None:
    """Write small logs and run every common command on them."""
    from cordwood.cli import demo

    with tempfile.TemporaryDirectory(prefix="cordwood-warm-") as folder:
        places = {name: Path(folder) / name for name in ("logs", "out")}
        for place in places.values():
            place.mkdir()
        own = places["logs"] / "own"
        _tell("append")
        _append(own)
        _write_messages(own)
        demo.unpack(places["logs"])
        for use in _USES:
            _run(use.format(**places))
        _append(own, rounds=0)
        _run(_FEW_NEW.format(**places))


def _tell(what: str) -> None:
    print(f"compiling kernels: {what}", file=sys.stderr, flush=True)


def _run(command_line: str) -> None:
    """Run a command in this process without its output, or name its error and go on."""
    words = command_line.split()
    _tell(words[0])
    output, errors = io.TextIOWrapper(io.BytesIO()), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            app(words)
        except SystemExit as end:
            code = end.code
    if code not in (EXIT_OK, EXIT_DAMAGE):
        _tell(f"{words[0]} failed, and compiles when it is used: {errors.getvalue().strip().rpartition(chr(10))[2]}")


def _append(directory: Path, rounds: int = 3) -> None:
    """Append to a live log per codec, inside and outside of transactions, then a large record; read them back."""
    from cordwood.common.config import overrides
    from cordwood.common.types import Codec, TopicPartition
    from cordwood.fs.posix import PosixFileSystem
    from cordwood.live.log_manager import LogManager

    for codec in ("uncompressed", *(codec.name.lower() for codec in Codec if codec is not Codec.NONE)):
        config = overrides([f"compression.type={codec}", "log.cleaner.enable=false", "log.cleanup.policy=compact"])
        manager = LogManager(PosixFileSystem(), [str(directory)], config)
        manager.startup()
        log = manager.get_or_create_log(TopicPartition(codec, 0), is_new=True)
        for _ in range(rounds):
            log.append([(f"key-{at}", f"value {at} " * 10, [("header", "value")]) for at in range(100)])
            with log.transaction(1) as transaction:
                transaction.append([("key-1", "in a transaction"), ("key-2", None)])
            log.roll()
        log.append([("large", "a value\n" * (_LARGE_VALUE_BYTES // 8))])
        assert sum(1 for _ in log.records()) > 0, "they were just appended"
        log.get("key-7")
        manager.shutdown()


def _write_messages(directory: Path) -> None:
    """Write a log of the formats before Kafka 0.11, in two segments."""
    from cordwood.common.types import Codec
    from cordwood.record.batch import encode_message_set
    from cordwood.record.record import Record

    folder = directory / "messages-0"
    folder.mkdir()
    for magic in (0, 1):
        sets = []
        for codec in (Codec.NONE, Codec.GZIP):
            first = 100 * (2 * magic + codec)
            records = [Record(first + at, first + at, b"key-%d" % at, b"value") for at in range(100)]
            sets.append(encode_message_set(magic, records, codec=codec))
        (folder / f"{200 * magic:020}.log").write_bytes(b"".join(sets))
