"""A log cleaned by one task or by many, cut anywhere: the output is the same, so that any test can choose.

    whole     one task, as a small partition is cleaned
    chunks    one task that closes a chunk after every eighth record, and then does not read dropped records
    probing   one task that looks up all records in a table of the dirty keys, as if little were dirty
    indexed   the same, but key indexes of the previous round's clean choose the records that are looked up, and
              once a record of a segment is dropped, the others are looked up as they are rewritten
    mistaken  the same, but some of these indexes are missing, torn, stale, of another segment or under another secret,
              and the hashes of some segments' keys all agree with those of dirty ones
    stages    many tasks; runs begin where an index points to
    one       many tasks; a segment is one run
    two       many tasks; a segment is two runs, cut between any two batches
    probed    the same, and all records are looked up
    sought    many tasks, and new key indexes choose the records of most segments that are looked up
    seven     many tasks; a segment is seven runs
    batches   many tasks; every batch is a run of its own, with chunks of eight records
    here      many tasks, in a pool of processes; elsewhere a test plays all tasks in its own process

With `on`, all cleans of a block are done by many tasks that a given runner runs, such as one of Spark.

Large logs have longer chunks and runs; with such short ones they would take minutes.

Comparisons use the modes in turn; at full effort `every` cleans in each mode, and fails if an output differs from the
first mode's. `using` chooses the mode of a block.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import pickle
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import uuid4

import numpy as np

from cordwood.cleaning.engine import readahead, stages
from cordwood.cleaning.engine.blobs import LostSectionError
from cordwood.cleaning.engine.facts import CleanSettings
from cordwood.cleaning.engine.indexing import IndexMaker
from cordwood.cleaning.engine.partition import Cleaned, CleanRequest, GroupRange, clean_partition
from cordwood.cleaning.engine.stages import clean_staged
from cordwood.cleaning.engine.task import Failure, FailureKind, Output, PartitionTask, failure_of
from cordwood.cleaning.rules import key_table
from cordwood.common.errors import CordwoodError, CorruptBatchError
from cordwood.fs.base import LocalFileSystem
from cordwood.fs.location import Location
from cordwood.fs.workspace import remove_tree
from cordwood.storage.formats.filenames import WORK_FOLDER, index_folder, key_index_name
from cordwood.storage.formats.key_index import KeyIndex, decode, encode, index_in, with_identity
from cordwood.storage.index import identity
from cordwood.storage.index.build import build, build_in_place
from cordwood.storage.index.search import Candidates, SparseIndex
from cordwood.storage.log.files import make_work_folder, read_file, write_file
from cordwood.storage.log.segment import Segment
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Gap, read_headers
from cordwood.storage.recovery.replay import Producers
from cordwood.tasks.pool.runner import PoolRunner, running_in_pool
from cordwood.tasks.runner import Runner
from cordwood.tasks.tasks import run_each
from tests.knobs import IS_FULL

#: Maximum number of runs of a segment, and size of a small log.
_RUNS_MAX, _SMALL_BYTES = 100, 200_000
MODES = (
    "whole",
    "chunks",
    "probing",
    "indexed",
    "mistaken",
    "stages",
    "batches",
    "one",
    "two",
    "probed",
    "sought",
    "seven",
    "here",
)
#: Runs of a segment in these modes.
RUNS = {"one": 1, "two": 2, "probed": 2, "sought": 2, "seven": 7, "batches": _RUNS_MAX}
#: In these, the dirty keys become a table.
_PROBING = ("probing", "probed", "sought")
_SECRET = bytes(range(16))
#: Key indexes left by rounds, by their names, by the log's directory without that of the round.
_left: dict[str, dict[str, bytes]] = {}
EVERY = "every"
#: Many tasks, run by the last of `_given`.
_GIVEN = "given"
_given: list[Runner] = []
#: All that were left in the end.
_earlier: list[bytes] = []
_EARLIER = 100
_mode = [EVERY if IS_FULL else "whole"]


@contextlib.contextmanager
def using(mode: str) -> Iterator[None]:
    """Clean in this mode."""
    assert mode in (*MODES, EVERY, _GIVEN)
    before, _mode[0] = _mode[0], mode
    try:
        yield
    finally:
        _mode[0] = before


def by_turns(number: int) -> contextlib.AbstractContextManager[None]:
    """Clean in the mode whose turn it is, unless all cleans are done on a given runner."""
    return using(_GIVEN if _given else EVERY if IS_FULL else MODES[number % len(MODES)])


@contextlib.contextmanager
def on(runner: Runner) -> Iterator[None]:
    """Let this runner run the tasks of all cleans in the block."""
    _given.append(runner)
    try:
        with using(_GIVEN), few_ranges():
            yield
    finally:
        _given.pop()


def few_ranges() -> contextlib.AbstractContextManager[object]:
    """Each range costs some time per run, however little is in it."""
    return mock.patch.object(stages, "RANGES", 8)


def _runner() -> Runner | None:
    """The runner of this mode's tasks; None if the test itself runs them."""
    if _mode[0] == _GIVEN:
        return _given[-1]
    return pool() if _mode[0] == "here" else None


def every_batch(segment: Segment, run_bytes: int) -> list[int]:
    """The position of every batch, as `stages.cut_positions` would give them."""
    return evenly(segment, run_bytes, _RUNS_MAX)


def evenly(segment: Segment, run_bytes: int, runs: int) -> list[int]:
    """Positions of at most that many batches, as `stages.cut_positions` would give them."""
    if run_bytes > segment.size_bytes:
        return [0]
    with segment.open() as file:
        found = list(read_headers(file, base_offset=segment.base_offset))
    positions = [int(at) for item in found if not isinstance(item, Gap) for at in item["position"].tolist()]
    step = -(-len(positions) // runs)
    return [0, *(at for at in positions[::step] if at)] if positions else [0]


def clean_log(
    fs: LocalFileSystem,
    log: LogView,
    target: str,
    *,
    settings: CleanSettings,
    suffix: str = "",
    part: GroupRange | None = None,
    **choice: Any,
) -> Cleaned:
    """Do as `clean_partition` does, in the current mode."""
    mode = _mode[0]
    if mode == EVERY:
        return _clean_in_every_mode(fs, log, target, settings=settings, suffix=suffix, part=part, **choice)
    with contextlib.ExitStack() as patches:
        if mode in ("chunks", "batches"):
            small = log.size_bytes <= _SMALL_BYTES
            patches.enter_context(mock.patch.object(key_table, "CHUNK_RECORDS", 8 if small else 512))
            patches.enter_context(mock.patch.object(readahead, "GAP_BYTES", 1))
        if mode in ("indexed", "mistaken", "sought") and log.size_bytes <= _SMALL_BYTES:
            # A window is one batch, so that pass 2 looks up most of the records that it may drop.
            patches.enter_context(mock.patch.object(readahead.Staying, "window_bytes", 1))
            patches.enter_context(mock.patch.object(readahead, "GAP_BYTES", 1))
        if mode in RUNS:
            cut = functools.partial(evenly, runs=RUNS[mode])
            patches.enter_context(mock.patch.object(stages, "cut_positions", cut))
        if mode == "mistaken":
            patches.enter_context(mock.patch.object(SparseIndex, "find", _find_too_many))
        if mode in ("indexed", "mistaken"):
            return _clean_with_indexes(fs, log, target, suffix, CleanRequest(settings=settings, part=part, **choice))
        choice["index_secret"] = None
        if mode == "sought":
            # The logs are so young that a file could still change unnoticed; here none does.
            patches.enter_context(mock.patch.object(identity, "TICK_NS", -(1 << 60)))
            patches.enter_context(_indexes_in(fs, log.path, indexes_of_most(log)))
            choice["index_secret"] = _SECRET
        if mode not in ("whole", "chunks", "probing") and settings.offset_map_slots is None:
            found = by_stages(fs, log, target, settings=settings, part=part, **choice)
            if found is not None:
                return found
        request = CleanRequest(settings=settings, part=part, probing=mode in _PROBING, fresh_secret=_SECRET, **choice)
        if mode == _GIVEN:
            clean = functools.partial(_clean_alone, log.path, log.log_start_offset, target, suffix, request)
            done: list[Cleaned | CordwoodError] = run_each(_given[-1], clean, [fs.location()], [1])
            if isinstance(done[0], CordwoodError):
                raise done[0]
            return done[0]
        with _making_indexes(fs, log, target) as maker:
            return clean_partition(fs, log, target, request, suffix=suffix, indexes=None if suffix else maker)


@contextlib.contextmanager
def _making_indexes(fs: LocalFileSystem, log: LogView, target: str) -> Iterator[IndexMaker]:
    """Build key indexes of the outputs; each must equal an index built by reading its segment."""
    maker = IndexMaker(fs, f"{target}.index", _SECRET, None)
    with mock.patch("cordwood.storage.index.build.SEGMENT_SHARE", 0):
        yield maker
    if maker.paths:
        outputs = {one.base_offset: one for one in LogView(target, fs=fs, log_start_offset=0).segments}
        left = {one.base_offset: one for one in log.segments} | outputs
        for path in maker.paths:
            made = decode(read_file(fs, path), path)
            again = build(left[made.header.base_offset], _SECRET, 1 << 30)
            assert again is not None and with_identity(again, made.identity).header == made.header
            assert again.payload.tobytes() == made.payload.tobytes()
        remove_tree(fs, f"{target}.index")


def indexes_of_most(log: LogView) -> dict[str, bytes]:
    """The key indexes of a log but for every fifth segment, by their names; with identities if the disk has ctimes."""
    found = {}
    for number, segment in enumerate(log.segments):
        index = build_in_place(segment, _SECRET, 1 << 30) if number % 5 < 4 else None
        if index is not None:
            found[key_index_name(segment.base_offset)] = b"".join(encode(index))
    return found


def _clean_with_indexes(fs: LocalFileSystem, log: LogView, target: str, suffix: str, request: CleanRequest) -> Cleaned:
    """Clean with the indexes that the round before left, and leave some; those of other rounds may be stale."""
    rounds = str(Path(log.path).parent.parent / Path(log.path).name)
    left = _left.get(rounds, {})
    if _mode[0] == "mistaken":
        left = _spoiled(left, random.Random(request.first_dirty ^ log.size_bytes))
    with _indexes_in(fs, log.path, left):
        request = replace(request, probing=True, index_secret=_SECRET, fresh_secret=_SECRET)
        with _making_indexes(fs, log, target) as maker:
            cleaned = clean_partition(fs, log, target, request, suffix=suffix, indexes=None if suffix else maker)
            made = {Path(path).name: read_file(fs, path) for path in maker.paths}
        if not suffix:
            replaced = {key_index_name(base) for group, _ in cleaned.written for base in group}
            before = {name: data for name, data in _left.get(rounds, {}).items() if name not in replaced}
            _left[rounds] = before | made
            _earlier.extend(made.values())
    return cleaned


def _spoiled(indexes: Mapping[str, bytes], source: random.Random) -> dict[str, bytes]:
    """Key indexes, most of them invalid."""
    found = {}
    for name, data in indexes.items():
        match source.randrange(7):
            case 0:
                continue
            case 1:
                at = source.randrange(len(data))
                data = data[:at] + bytes([data[at] ^ 1 << source.randrange(8)]) + data[at + 1 :]
            case 2:
                data = data[: source.randrange(len(data))]
            case 3:  # stale, or of another log
                data = source.choice(_earlier[-_EARLIER:])
            case 4:
                data = source.choice(list(indexes.values()))
            case 5:
                data = b"".join(encode(under_another_secret(decode(data))))
        found[name] = data
    return found


def under_another_secret(index: KeyIndex) -> KeyIndex:
    """The index, with a secret in its header that its hashes were not made with."""
    return index_in(replace(index.header, secret=bytes(16)), index.payload, index.identity)


_find = SparseIndex.find


def _find_too_many(self: SparseIndex, hashes: np.ndarray) -> Candidates:
    """The result of `find`; for every third segment all records, as if their tags agreed with those of dirty keys."""
    header = self.index.header
    if header.base_offset % 3:
        return _find(self, hashes)
    every = np.packbits(np.ones(header.records, np.bool_), bitorder="little")
    return Candidates(every, header.records)


@contextlib.contextmanager
def _indexes_in(fs: LocalFileSystem, partition: str, indexes: Mapping[str, bytes]) -> Iterator[None]:
    """A partition with only these key indexes, removed afterwards: tests expect no other files."""
    work, folder = f"{partition}/{WORK_FOLDER}", index_folder(partition)
    if fs.exists(folder):
        remove_tree(fs, folder)
    was_there = fs.exists(work)
    make_work_folder(fs, partition)
    fs.make_directory(folder)
    for name, data in indexes.items():
        write_file(fs, f"{folder}/{name}", data)
    try:
        yield
    finally:
        remove_tree(fs, folder)
        if not was_there:
            fs.remove_directory(work)


def _clean_in_every_mode(fs: LocalFileSystem, log: LogView, target: str, **choice: Any) -> Cleaned:
    """Clean once in each mode; every mode must have the output of the first."""
    first = _attempt(MODES[0], fs, log, target, **choice)
    written = {info.name for info in fs.list(target)}
    for mode in MODES[1:]:
        aside = f"{target}.{mode}"
        fs.make_directory(aside)
        again = _attempt(mode, fs, log, aside, **choice)
        if isinstance(first, Cleaned):
            assert again == first, f"{mode} gives {again}, {MODES[0]} gives {first}"
            for name in written | {info.name for info in fs.list(aside)}:
                mine, theirs = (_file(fs, f"{folder}/{name}") for folder in (target, aside))
                assert mine == theirs, f"{name} is not the same with {mode} as with {MODES[0]}"
        else:
            assert not isinstance(again, Cleaned), f"{mode} gives {again}, {MODES[0]} fails: {first}"
        remove_tree(fs, aside)
    if isinstance(first, Cleaned):
        return first
    raise first


_open = contextlib.ExitStack()
atexit.register(_open.close)


@functools.cache
def pool() -> PoolRunner:
    """The pool of this process, which ends with it."""
    return _open.enter_context(running_in_pool(2))


def _attempt(mode: str, fs: LocalFileSystem, log: LogView, target: str, **choice: Any) -> Cleaned | CordwoodError:
    try:
        with using(mode), few_ranges():
            return clean_log(fs, log, target, **choice)
    except CordwoodError as error:
        return error


def _file(fs: LocalFileSystem, path: str) -> tuple[bytes, int] | None:
    """Bytes and modification time of a file, or None if it does not exist."""
    if not fs.exists(path):
        return None
    return read_file(fs, path), fs.stat(path).mtime_ns if path.endswith(".log") else 0


def by_stages(
    fs: LocalFileSystem,
    log: LogView,
    target: str,
    *,
    first_dirty: int,
    first_uncleanable: int,
    now_ms: int,
    settings: CleanSettings,
    producers: Producers,
    part: GroupRange | None = None,
    index_secret: bytes | None = None,
    spoil: Callable[[str], None] = lambda _: None,
) -> Cleaned | None:
    """Clean by stages, in this process; None where one task has to.

    Args:
        fs, log, target, first_dirty, first_uncleanable, now_ms, settings, producers, part: see `clean_partition`.
        spoil: called with the folder of blobs after each stage.
    """
    location = fs.location()
    aside = f"{target}.{uuid4().hex}"
    fs.make_directory(aside)
    progress = f"{aside}/progress"
    fs.make_directory(progress)

    def through_a_pickle(value: Any) -> Any:
        return value if location.in_this_process else pickle.loads(pickle.dumps(value))

    runner = None if location.in_this_process else _runner()

    def each(do: Callable[[Any], Any], items: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
        assert len(sizes) == len(items)
        if runner is not None:
            found = run_each(runner, do, items, sizes)
        else:
            found = [through_a_pickle(do(through_a_pickle(item))) for item in items]
        for info in fs.list(aside):
            if info.name.endswith(".blobs"):
                spoil(f"{aside}/{info.name}")
        return found

    clean_one = functools.partial(_clean_group, aside, producers)

    def clean_each(tasks: Sequence[PartitionTask]) -> list[Output | Failure]:
        if runner is not None:
            return run_each(runner, clean_one, tasks, [1] * len(tasks))
        return [clean_one(through_a_pickle(task)) for task in tasks]

    task = PartitionTask(
        location=location, path=log.path, log_start_offset=log.log_start_offset, first_dirty=first_dirty,
        first_uncleanable=first_uncleanable, now_ms=now_ms, settings=settings, part=part,
        probing=_mode[0] in _PROBING, index_secret=index_secret, fresh_secret=_SECRET,
    )  # fmt: skip
    with mock.patch("cordwood.cleaning.engine.division.RUN_BYTES_MIN", 1):  # an index entry is enough for a run
        (outcome,) = clean_staged(fs, [task], aside, progress, each, clean_each, 1)
    try:
        if isinstance(outcome, Failure):
            raise CorruptBatchError(outcome.what)
        if outcome is None:
            return None
        assert sorted((info.name, info.size_bytes) for info in fs.list(outcome.folder)) == list(outcome.files)
        for name, _ in outcome.files:
            fs.rename(f"{outcome.folder}/{name}", f"{target}/{name}")
        fs.remove_directory(outcome.folder)
        left = [info.name for info in fs.list(aside)]
        assert left == ["progress"], f"stages leave nothing behind: {left}"
        return outcome.cleaned
    finally:
        remove_tree(fs, aside)


def _clean_alone(
    path: str,
    log_start_offset: int,
    target: str,
    suffix: str,
    request: CleanRequest,
    location: Location[LocalFileSystem],
) -> Cleaned | CordwoodError:
    """Clean a partition by one task of another process."""
    fs = location.open()
    log = LogView(path, fs=fs, log_start_offset=log_start_offset)
    try:
        return clean_partition(fs, log, target, request, suffix=suffix)
    except CordwoodError as error:
        return error


def _clean_group(aside: str, producers: Producers, task: PartitionTask) -> Output | Failure:
    assert task.scanned is not None
    folder = f"{aside}/{uuid4().hex}"
    fs: Any = task.location.open()
    fs.make_directory(folder)
    again = LogView(task.path, fs=fs, log_start_offset=task.log_start_offset)
    try:
        with _making_indexes(fs, again, folder) as maker:
            cleaned = clean_partition(fs, again, folder, replace(task, producers=producers), indexes=maker)
    except LostSectionError as error:
        fs.remove_directory(folder)
        return Failure(FailureKind.LOST, str(error), lost=error.where)
    except CordwoodError as error:
        remove_tree(fs, folder)
        return failure_of(error, task.path)
    return Output(cleaned, folder, tuple((info.name, info.size_bytes) for info in fs.list(folder)))
