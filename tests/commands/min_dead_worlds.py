"""A log in memory that lives through rounds of appends and of cleans with `--min-dead`, beside a model in plain
Python.

    append      updates, tombstones, transactions that commit or abort, rolled segments; by a live log
    pass time   so that tombstones expire
    spoil       the last clean's state is lost, torn, flipped or older; or another cleaner cleans in between
    clean       with another bound each time

The model knows every record that was appended. It yields the last value of each key, and the superseded records that
are still in the log.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cordwood.api import clean_in_place
from cordwood.cleaning.engine.results import CleanResult, Fate
from cordwood.common.types import TopicPartition
from cordwood.fs.base import LocalFileSystem
from cordwood.fs.folders import remove_tree
from cordwood.storage.formats import checkpoints, pending_records
from cordwood.storage.formats.clean_checkpoint import CleanCheckpoint
from cordwood.storage.formats.filenames import (
    CLEANER_OFFSETS,
    clean_checkpoint_path,
    index_folder,
    kind_in_index_folder,
    parse_pending,
)
from cordwood.storage.log.clean_state import believed_checkpoint, read_pending
from cordwood.storage.log.files import make_work_folder, read_file, write_file
from cordwood.storage.log.segment import Segment
from cordwood.storage.log.view import LogView
from cordwood.testing.memory import MemoryFileSystem
from tests.crashes import durable
from tests.live.nodes import Node
from tests.plain import plain_records

ROOT = "/logs"
NAME = TopicPartition("t", 0)
PATH = f"{ROOT}/{NAME}"
RETENTION_MS = 1_000
CONFIG = (
    "cleanup.policy=compact",
    "internal.segment.bytes=1500",
    f"delete.retention.ms={RETENTION_MS}",
    "index.interval.bytes=100",
    "log.cleaner.enable=false",
)
#: Never in a directory of Cordwood's own, and far behind all horizons.
LONG_MS = 100 * RETENTION_MS
#: Shares of garbage that a clean may leave.
SHARES = (0.02, 0.1, 0.3)

Table = dict[bytes, bytes]


@dataclass
class Appended:
    """A record as it was appended."""

    offset: int
    key: bytes
    value: bytes | None
    counts: bool


@dataclass
class World:
    """The log and its model.

    Attributes:
        fs: the log directory; no manager holds it between rounds.
        untouched: the same log, never cleaned.
        records: all appended records, in order.
        kept: earlier index folders, by file names.
        said: history, printed if a test fails.
    """

    seed: int
    now_ms: int = 1_700_000_000_000
    records: list[Appended] = field(default_factory=list)
    kept: list[dict[str, bytes]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.source = random.Random(self.seed)
        self.fs, self.untouched = (MemoryFileSystem(lambda: self.now_ms * 1_000_000) for _ in range(2))
        self.fs.make_directory(ROOT)
        self.untouched.make_directory(ROOT)
        self._drawn, self._drawn_ms = 0, self.now_ms
        self.keys = self.source.choice((12, 40, 120))
        self.transactional = self.source.random() < 0.5
        self.tombstones = self.source.choice((0.0, 0.15, 0.3))
        self.skew = self.source.choice((1.0, 3.0))

    # ---- Events ------------------------------------------------------------------------------------------------------

    def append(self, batches: int) -> None:
        """Append some batches; the last segment is rolled, so that all batches may be cleaned."""
        drawn = [self._batch() for _ in range(batches)]
        firsts = [self._append_to(fs, drawn) for fs in (self.fs, self.untouched)]
        assert firsts[0] == firsts[1]
        for first, (pairs, producer, commits, _) in zip(firsts[0], drawn, strict=True):
            counts = producer is None or commits
            self.records += [Appended(first + at, key, value, counts) for at, (key, value) in enumerate(pairs)]
        self.now_ms = drawn[-1][-1]
        self.said.append(f"append {batches} batches")

    def write(self, text: str) -> None:
        """Write the batches of a text; the last segment is rolled.

        `a=1,b=∅` is a batch, `7:a=1` a batch in a transaction of producer 7, `7:commit` and `7:abort` end it, `|` is
        a roll. A numeric value is padded with 10 times that number of bytes.
        """
        node = Node(*CONFIG, fs=self.fs, dirs=(ROOT,), now_ms=self.now_ms)
        node.manager.startup()
        log = node.manager.get_or_create_log(NAME, is_new=not self.records)
        begun: dict[int, tuple[Any, Any, list[Appended]]] = {}
        for word in text.split():
            producer, _, what = word.rpartition(":")
            if word == "|":
                log.roll()
            elif what in ("commit", "abort"):
                manager, _, records = begun.pop(int(producer))
                error = None if what == "commit" else _AbortedError()
                with contextlib.suppress(_AbortedError):
                    manager.__exit__(error and type(error), error, None)
                for record in records:
                    record.counts = what == "commit"
            else:
                pairs = [_pair_of(pair) for pair in what.split(",")]
                if producer and int(producer) not in begun:
                    manager = log.transaction(producer_id=int(producer), epoch=0)
                    begun[int(producer)] = manager, manager.__enter__(), []
                first = begun[int(producer)][1].append(pairs) if producer else log.append(pairs)
                new = [Appended(first + at, key, value, True) for at, (key, value) in enumerate(pairs)]
                self.records += new
                if producer:
                    begun[int(producer)][2].extend(new)
        log.roll()
        node.manager.shutdown()
        self.said.append(text)

    def _batch(self) -> tuple[list[tuple[bytes, bytes | None]], int | None, bool, int]:
        """Records, the producer if they are in a transaction, whether that commits, and the time."""
        self._drawn_ms = max(self._drawn_ms, self.now_ms) + self.source.randrange(50)
        pairs = [self._pair() for _ in range(self.source.randint(1, 4))]
        producer = self.source.randrange(3) if self.transactional and self.source.random() < 0.4 else None
        return pairs, producer, self.source.random() < 0.7, self._drawn_ms

    def _append_to(self, fs: MemoryFileSystem, drawn: Sequence[Any]) -> list[int]:
        """Append batches to one of two logs; the offsets of their first records."""
        node, firsts = Node(*CONFIG, fs=fs, dirs=(ROOT,), now_ms=self.now_ms), []
        node.manager.startup()
        log = node.manager.get_or_create_log(NAME, is_new=not self.records)
        for pairs, producer, commits, node.now_ms in drawn:
            if producer is None:
                firsts.append(log.append(pairs))
                continue
            with contextlib.suppress(_AbortedError), log.transaction(producer_id=producer, epoch=0) as transaction:
                firsts.append(transaction.append(pairs))
                if not commits:
                    raise _AbortedError
        log.roll()
        node.manager.shutdown()
        return firsts

    def _pair(self) -> tuple[bytes, bytes | None]:
        key = b"%d" % int(self.keys * self.source.random() ** self.skew)
        if self.source.random() < self.tombstones:
            return key, None
        self._drawn += 1
        return key, b"%d " % self._drawn + bytes(self.source.choice((20, 60, 150)))

    def pass_time(self, ms: int) -> None:
        """Let time pass."""
        self.now_ms += ms
        self.said.append(f"pass {ms} ms")

    def clean(self, min_dead: float | None, *, fs: LocalFileSystem | None = None, **choice: Any) -> CleanResult:
        """Clean in place; without a bound as Kafka does."""
        options: dict[str, Any] = {
            "verify": self.source.random() < 0.3,
            "now_ms": self.now_ms,
            "overrides": CONFIG,
        } | choice
        own: dict[str, Any] = {} if min_dead is None else {"min_dead": min_dead, "index": True}
        result = clean_in_place(
            ROOT,
            fs=fs or self.fs,
            single_copy=True,
            ignore_ratio=True,
            no_broker_elsewhere=True,
            **own,
            **options,
        )
        assert not result.with_fate(Fate.FAILED), result.text()
        if fs is None:
            self.said.append(f"clean {min_dead}")
            self.kept.append(self.index_files())
        return result

    def index_files(self) -> dict[str, bytes]:
        """The files of the index folder, by their names."""
        folder = index_folder(PATH)
        some = self.fs.list(folder) if self.fs.exists(folder) else ()
        return {info.name: read_file(self.fs, f"{folder}/{info.name}") for info in some}

    def spoil(self) -> None:
        """Damage or remove the state that the last clean saved."""
        if not self.index_files():
            return
        act = self.source.choice(SPOILS)
        self.said.append(f"{act.__name__}")
        act(self)

    def one_file(self, *kinds: str) -> str | None:
        """The path of a file of the index folder."""
        names = [name for name in self.index_files() if kind_in_index_folder(name) in kinds]
        return f"{index_folder(PATH)}/{self.source.choice(names)}" if names else None

    def truncate(self, offset: int) -> None:
        """Cut the log, as a follower does whose leader has other records from there on."""
        node = Node(*CONFIG, fs=self.fs, dirs=(ROOT,), now_ms=self.now_ms)
        node.manager.startup()
        node.manager.truncate_to({NAME: offset})
        node.manager.shutdown()
        self.records = [one for one in self.records if one.offset < offset]
        self.said.append(f"truncate to {offset}")

    # ---- Invariants --------------------------------------------------------------------------------------------------

    def table(self) -> Table:
        """The last committed value of each key."""
        found = {one.key: one.value for one in self.records if one.counts}
        return {key: value for key, value in found.items() if value is not None}

    def killers(self, end: int) -> dict[int, int]:
        """For each record that a newer one below an offset superseded, the offset of the newest one."""
        newest = {one.key: one.offset for one in self.records if one.counts and one.offset < end}
        return {one.offset: newest[one.key] for one in self.records if newest.get(one.key, -1) > one.offset}

    def check(self, fs: LocalFileSystem | None = None) -> None:
        """Compare the log and the saved state with the model."""
        fs = fs or self.fs
        log = LogView(PATH, fs=fs)
        assert table_of(log) == self.table()
        own = {one.offset: (one.key, one.value) for one in self.records}
        every = (one for segment in log.segments for one in plain_records(read_file(fs, segment.path)))
        there = {one.offset: (one.key, one.value) for one in every if not one.is_control}
        assert there.items() <= own.items()
        kafkas = self.kafkas_checkpoint(fs)
        for offset, killer in self.killers(log.segments[-1].base_offset).items():
            assert offset not in there or killer >= kafkas, f"a broker would never remove offset {offset}"
        checkpoint = believed_checkpoint(log)
        if checkpoint is not None:
            assert checkpoint.first_killer >= kafkas
            self._check_pending(log, checkpoint, set(there))
        else:  # all that is superseded is found from Kafka's checkpoint on
            assert not self.killers(kafkas).keys() & set(there)

    def _check_pending(self, log: LogView, checkpoint: CleanCheckpoint, there: set[int]) -> None:
        """Exactly the superseded records that are there are remembered, and counted as garbage."""
        named = {one.base_offset: one for one in checkpoint.segments}
        superseded = self.killers(checkpoint.cleaned_to).keys() & there
        aborted = {one.offset for one in self.records if not one.counts}
        found: set[int] = set()
        for segment in log.segments:
            if segment.base_offset >= checkpoint.cleaned_to:
                continue
            pending = read_pending(segment, named[segment.base_offset])
            if pending is not None:
                offsets = offsets_of(segment)
                found |= {offsets[at] for at in pending_records.ordinals(pending.bits).tolist()}
        assert found == {offset for offset in superseded if offset < checkpoint.cleaned_to} - aborted
        assert not aborted & {offset for offset in there if offset < checkpoint.cleaned_to}

    def kafkas_checkpoint(self, fs: LocalFileSystem | None = None) -> int:
        """From where on a broker would clean."""
        return checkpoints.decode(read_file(fs or self.fs, f"{ROOT}/{CLEANER_OFFSETS}")).get(NAME, 0)

    def check_files(self) -> None:
        """Check that after a clean only the named records are pending."""
        checkpoint = believed_checkpoint(LogView(PATH, fs=self.fs))
        if checkpoint is not None:
            files = {base for name in self.index_files() if (base := parse_pending(name)) is not None}
            assert files == {one.base_offset for one in checkpoint.segments if one.garbage_bytes}

    def taken_over(self, fs: MemoryFileSystem | None = None) -> Table:
        """Return the log after two later cleans by a cleaner without pending records, long afterwards."""
        fs = durable(fs or self.fs)
        for later in (0, LONG_MS, 2 * LONG_MS):
            self.clean(None, fs=fs, now_ms=self.now_ms + later, verify=later == 0)
            self.clean(None, fs=fs, now_ms=self.now_ms + later, first_dirty=0)
        return table_of(LogView(PATH, fs=fs))


class _AbortedError(Exception):
    pass


def _pair_of(text: str) -> tuple[bytes, bytes | None]:
    key, _, value = text.partition("=")
    if value == "∅":
        return key.encode(), None
    return key.encode(), value.encode() + bytes(10 * int(value) if value.isdigit() else 0)


def table_of(log: LogView) -> Table:
    """Last value of each key for a consumer of committed records."""
    found = {one.key: one.value for one in log.records(isolation="read_committed")}
    return {key: value for key, value in found.items() if key is not None and value is not None}


def offsets_of(segment: Segment) -> list[int]:
    """The offset of each record of a segment, control records among them."""
    return [record.offset for record in plain_records(read_file(segment.fs, segment.path))]


# ---- Damage to the files ---------------------------------------------------------------------------------------------


def lose_all(world: World) -> None:
    if world.fs.exists(index_folder(PATH)):
        remove_tree(world.fs, index_folder(PATH))


def lose_one(world: World) -> None:
    path = world.one_file(".pending", "cleaned", ".keyhashes")
    if path is not None:
        world.fs.unlink(path)


def lose_key_indexes(world: World) -> None:
    for name in world.index_files():
        if name.endswith(".keyhashes"):
            world.fs.unlink(f"{index_folder(PATH)}/{name}")


def flip(world: World) -> None:
    path = world.one_file(".pending", "cleaned", ".keyhashes")
    if path is not None:
        data = bytearray(read_file(world.fs, path))
        data[world.source.randrange(len(data))] ^= 1 << world.source.randrange(8)
        write_file(world.fs, path, bytes(data))


def cut(world: World) -> None:
    path = world.one_file(".pending", "cleaned")
    if path is not None:
        data = read_file(world.fs, path)
        write_file(world.fs, path, data[: world.source.randrange(len(data))])


def restore_earlier_folder(world: World) -> None:
    fill_folder(world, world.source.choice(world.kept))


def restore_earlier_checkpoint(world: World) -> None:
    earlier = world.source.choice(world.kept).get("cleaned")
    if earlier is not None:
        write_file(world.fs, clean_checkpoint_path(PATH), earlier)


def let_another_cleaner_come_between(world: World) -> None:
    """The index folder stays as it was, as beside a broker."""
    before = world.index_files()
    world.clean(None)
    fill_folder(world, before)


def fill_folder(world: World, files: Mapping[str, bytes]) -> None:
    lose_all(world)
    make_work_folder(world.fs, PATH)
    world.fs.make_directory(index_folder(PATH))
    for name, data in files.items():
        write_file(world.fs, f"{index_folder(PATH)}/{name}", data)


SPOILS: tuple[Callable[[World], None], ...] = (
    lose_all,
    lose_one,
    lose_key_indexes,
    flip,
    cut,
    restore_earlier_folder,
    restore_earlier_checkpoint,
    let_another_cleaner_come_between,
)


def live_through(world: World, rounds: int) -> Iterator[int]:
    """Run some rounds of a script; after each, compare the log with the model."""
    for number in range(rounds):
        world.append(world.source.randint(2, 12))
        if world.source.random() < 0.8:
            world.pass_time(world.source.choice((10, 600, 1_500)))
        if number and world.source.random() < 0.3:
            world.spoil()
        world.clean(world.source.choice(SHARES))
        world.check()
        world.check_files()
        yield number


@contextlib.contextmanager
def told(world: World) -> Iterator[None]:
    """Add the history to the error of a script that fails."""
    try:
        yield
    except Exception as error:
        error.add_note(f"seed {world.seed}: {'; '.join(world.said)}")
        raise
