"""`fetch`: download a broker's directory from an object store; it appears complete or not at all.

Every file is copied to a work folder beside the new directory, with its modification time, and is durable there before
the folder gets its final name. If Cordwood made the copy in the store, each file must have the checksum in the copy's
manifest. In any other directory only a file's length is checked, and that it did not change during the download.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any

from cordwood.commands.copies import explain_full_disk
from cordwood.commands.options import TierPlace
from cordwood.common.arguments import AnyPath, text_paths
from cordwood.common.errors import BadNameError, CorruptFileError, NoSpaceError, NotFoundError, RequestError
from cordwood.common.text import Presentable, bytes_text, number, printable, register, time_text
from cordwood.common.threads import in_parallel
from cordwood.fs.base import FileInfo, TargetStore
from cordwood.fs.by_url import UrlStore
from cordwood.fs.object_targets import ObjectTargetStore
from cordwood.fs.posix import PosixFileSystem
from cordwood.fs.workspace import temporary_directory
from cordwood.storage.check.placement import texts
from cordwood.storage.formats import checkpoints, filenames
from cordwood.storage.log.files import copy_file
from cordwood.storage.node.directory import check_outside_logs
from cordwood.storage.tier.restoring import OlderTopic, lay_out, restorable
from cordwood.storage.tier.store import NOT_COPIED_FROM_TIER, TierStore


@dataclass(frozen=True, slots=True)
class MissingOffsets:
    """Offsets of a partition that are in no segment of its tier."""

    partition: str
    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class FetchResult(Presentable):
    """The result of a download.

    Attributes:
        has_checksums: whether each file was compared with a checksum in the manifest of the copy.
        has_tier: whether remote segments are in it as ordinary files.
        older_topics: topics in the tier that are not in it, as a newer topic has their name.
        missing: offsets between remote segments, and up to the local ones, that the tier does not have.
    """

    source: str
    target: str
    files: int
    size_bytes: int
    has_checksums: bool
    seconds: float
    has_tier: bool = False
    older_topics: tuple[OlderTopic, ...] = ()
    missing: tuple[MissingOffsets, ...] = ()


def fetch_directory(
    fs: TargetStore,
    source: str,
    target: str,
    *,
    has_checksums: bool,
    on_bytes: Callable[[int, int], None],
    carries: Callable[[str], bool] = lambda _: True,
    finish: Callable[[str], None] = lambda _: None,
) -> FetchResult:
    """Copy a directory and everything below it, except lock files.

    Args:
        target: a new or empty directory on this machine.
        carries: whether to copy a file or directory with this name in `source`.
        finish: called with the complete work folder, before it gets the target's name.
        has_checksums: whether the source has a manifest; only reported in the result.
        on_bytes: called after each file with the bytes copied so far and the total.

    Raises:
        BadNameError: the store lists a name that no directory can have.
        NotFoundError: the source does not exist or has no files.
        RequestError: the target exists and is not empty.
        NoSpaceError: the disk is too small.
        CorruptFileError: a file's checksum differs from the manifest.
    """
    started = time.monotonic()
    directories, files = _walk(fs, source, carries)
    if not files:
        raise NotFoundError(f"{source} does not exist, or holds no files")
    total = sum(info.size_bytes for _, info in files)
    done = 0
    with fs.target(target, [source]) as work:
        free = fs.free_bytes(work.path)
        if free is not None and total > free:
            where = posixpath.dirname(work.path)
            advice = f"Nothing was written. Free at least {total - free:,} bytes there"
            raise NoSpaceError(f"{where} has {free:,} bytes free, and {source} has {total:,}. {advice}")
        for directory in directories:
            fs.make_directory(f"{work.data}/{directory}")

        def one(item: tuple[str, FileInfo]) -> None:
            nonlocal done
            path, info = item
            copy_file(fs, f"{source}/{path}", f"{work.data}/{path}")
            done += info.size_bytes
            on_bytes(done, total)

        in_parallel(fs.concurrency, one, files)
        finish(work.data)
        work.publish()
    return FetchResult(source, work.target, len(files), total, has_checksums, time.monotonic() - started)


def _walk(fs: TargetStore, source: str, carries: Callable[[str], bool]) -> tuple[list[str], list[tuple[str, FileInfo]]]:
    """Return directories, parents first, and files, each with its path relative to the source."""
    directories: list[str] = []
    files: list[tuple[str, FileInfo]] = []
    waiting = [""]
    while waiting:
        below = waiting.pop()
        for info in fs.list(f"{source}/{below}".rstrip("/")):
            if info.name in ("", ".", "..") or "/" in info.name:
                raise BadNameError(f"{source}/{below} holds the name {info.name!r}, which no directory can have")
            path = f"{below}/{info.name}".lstrip("/")
            if not below and not carries(info.name):
                continue
            if info.is_directory:
                directories.append(path)
                waiting.append(path)
            elif info.name != filenames.LOCK:  # a broker creates its own
                files.append((path, info))
    return directories, files


def fetch(
    source: AnyPath | None,
    target: AnyPath,
    *,
    tier: AnyPath | None = None,
    tier_keys: Sequence[AnyPath] = (),
    topics: Sequence[str] = (),
    on_forecast: Callable[[Sequence[str]], None] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> FetchResult:
    """Bring a directory from an object store to this machine; it appears at the end, complete, or not at all.

    Every file gets its modification time back, which Kafka's retention uses for records without timestamps.

    Args:
        source: URL of a broker's log directory, or of any directory in it. With a tier also a directory of this
            machine, or None: then partitions are restored from the tier alone.
        target: a new or empty directory.
        tier: where the closed segments of tiered topics are. The target gets all segments as ordinary files.
        tier_keys: files with private keys of encrypted segments.
        topics: with a tier: only these topics.
        on_forecast: called first with a line for each obstacle to a broker that would serve the source.
        on_progress: called with the number of bytes copied so far, and of all.

    Raises:
        NotFoundError: there is nothing at the source.
        RequestError: the source is not in an object store, or is a copy that was not finished; or the target is not
            new or empty, or in a broker's log directory.
        NoSpaceError: the disk is too small.
        CorruptFileError: a file does not have the checksum that the manifest of its copy lists.
    """
    if tier is not None:
        place = TierPlace.of(tier, tier_keys)
        source = None if source is None else os.fspath(source)
        return _fetch_with_tier(source, os.fspath(target), place, topics, on_progress or (lambda _done, _total: None))
    if source is None or topics:
        raise RequestError("Without --tier, give the URL of a directory, and no topic")
    source, target = text_paths((source, target))
    objects = ObjectTargetStore()
    fs = UrlStore(objects)
    if fs.path_on_disk(source) is not None:
        raise RequestError(f"{source} is not in an object store. Give a URL, such as s3://BUCKET/PATH")
    if fs.path_on_disk(target) is None:
        raise RequestError(f"{target} is in an object store. Give a directory of this machine")
    source = fs.absolute_path(source)
    check_outside_logs(fs, target)
    if on_forecast is not None:
        on_forecast(texts(fs, [source]))
    with explain_full_disk(fs, target):
        return fetch_directory(
            fs,
            source,
            target,
            has_checksums=objects.is_finished_copy(source),
            on_bytes=on_progress or (lambda _done, _total: None),
        )


def _fetch_with_tier(
    source: str | None,
    target: str,
    place: TierPlace,
    topics: Sequence[str],
    on_bytes: Callable[[int, int], None],
) -> FetchResult:
    """Restore partitions with the segments in their tier; see `fetch`."""
    store = place.store([source, target])
    assert isinstance(store, TierStore), "the tier is given"
    if store.path_on_disk(target) is None:
        raise RequestError(f"{target} is in an object store. Give a directory of this machine")
    check_outside_logs(store, target)

    def carries(name: str) -> bool:
        partition = filenames.parsed_directory(name)
        if partition is None:
            return name in filenames.OFFSET_CHECKPOINTS or name == filenames.CLEAN_SHUTDOWN
        topic = partition.topic_partition.topic
        return topic not in NOT_COPIED_FROM_TIER and (not topics or topic in topics)

    older: Sequence[OlderTopic] = ()

    def without_other_entries(data: str) -> None:
        for path in (f"{data}/{name}" for name in filenames.OFFSET_CHECKPOINTS):
            with contextlib.suppress(CorruptFileError):  # `check` reports it
                others = [one for one in checkpoints.entries_in(local, path) if not carries(str(one))]
                if others:
                    checkpoints.update(local, path, dict.fromkeys(others))

    local = PosixFileSystem()
    with explain_full_disk(store, target), ExitStack() as made:
        if source is None:
            folder = made.enter_context(temporary_directory(local, "cordwood-fetch-"))
            found = restorable(store.layout, topics)
            older = found.older_topics
            lay_out(local, store.layout, found, folder)
            store = TierStore(local, store.tier, store.layout, {folder: found.logs})
        else:
            folder = store.absolute_path(source)
        result = fetch_directory(
            store,
            folder,
            target,
            has_checksums=False,
            on_bytes=on_bytes,
            carries=carries,
            finish=without_other_entries,
        )
        missing = tuple(_missing(store, folder, carries, has_log_starts=source is not None))
    source = source or store.tier.root
    return replace(result, source=source, has_tier=True, older_topics=tuple(older), missing=missing)


def _missing(
    store: TierStore, folder: str, carries: Callable[[str], bool], *, has_log_starts: bool
) -> Iterator[MissingOffsets]:
    """Yield the gaps in the remote parts of partitions; without log starts, it is not known where a log begins."""
    for name in filter(carries, store.names_in(folder)):
        if (part := store.remote_part(f"{folder}/{name}")) is None:
            continue
        for first, last in part.gaps:
            if has_log_starts or part.state is not None or first > part.log_start:
                yield MissingOffsets(name, first, last)


# ---- the result as text and JSON -------------------------------------------------------------------------------------


def _lines(result: FetchResult) -> Iterator[str]:
    return map(printable, _sentences(result))


def _document(result: FetchResult) -> dict[str, Any]:
    return {**asdict(result), "source": printable(result.source), "target": printable(result.target)}


def _sentences(result: FetchResult) -> Iterator[str]:
    size = bytes_text(result.size_bytes)
    yield f"{result.target}: {number(result.files, 'file')}, {size}, in {result.seconds:.1f} s"
    for one in result.older_topics:
        what = f"{number(one.segments, 'segment')} of an older topic {one.topic}, with id {one.topic_id}"
        yield f"left out: {what}, the last copied {time_text(one.last_copy_ms)}"
    for gap in result.missing:
        what = f"offsets {gap.first_offset} to {gap.last_offset} are in no segment of the tier"
        yield f"missing in {gap.partition}: {what}; restore older versions of its objects in the store, and fetch again"
    if result.has_tier:
        yield f"next: cordwood check {result.target}; a broker needs the topics with their ids and their retention"
    elif result.has_checksums:
        yield "every file has the checksum in the manifest of the copy"
    else:
        yield f"{result.source} has no manifest, so only lengths were compared; next: cordwood check {result.target}"


register(FetchResult, lines=_lines, document=_document)
