"""Clean in rounds, as Kafka's cleaner does with an offset map of limited size.

A round ends when the map is full. If the log is still dirty enough, the next round starts at that offset, for the same
time, and reads the outputs of the previous round instead of the segments that they replace. Every round writes all
segments from the first on, so the outputs of the last round are the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cordwood.cleaning.engine.facts import cleanable_facts, first_timestamp
from cordwood.cleaning.engine.indexing import IndexMaker
from cordwood.cleaning.engine.partition import Cleaned, CleanRequest, clean_partition
from cordwood.cleaning.engine.settings import CleanSettings
from cordwood.cleaning.rules.offset_map import SLOT_BYTES, keys_max
from cordwood.cleaning.rules.plan import HeaderFacts
from cordwood.cleaning.rules.rewrite import Counts
from cordwood.cleaning.rules.selection import is_due_again
from cordwood.common.errors import RequestError
from cordwood.fs.base import TargetStore
from cordwood.fs.overlay import Overlay
from cordwood.storage.formats.filenames import FileKind, offset_name, parse_file
from cordwood.storage.log.segment import MAX_OFFSET, Segment
from cordwood.storage.log.view import LogView


def clean_in_rounds(
    fs: TargetStore, log: LogView, target: str, request: CleanRequest, indexes: IndexMaker | None = None
) -> Cleaned:
    """Clean a log as often as Kafka would with the offset map of the settings; once without a map.

    Args:
        fs, log, target, request, indexes: see `clean_partition`.

    Returns:
        the result for the log's own segments. Counts compare the log before and after all rounds: a record counts once,
        however often it was read.

    Raises:
        RequestError: the map has no room for a single key; see also `clean_partition`.
        CorruptBatchError: see `clean_partition`.
    """
    settings = request.settings
    slots, factor = settings.offset_map_slots, settings.offset_map_load_factor
    if slots is None:
        return clean_partition(fs, log, target, request, indexes=indexes)
    assert request.part is None, "rounds are not cut"
    if keys_max(slots, factor) < 1:
        raise RequestError(
            f"{log.path}: an offset map of {SLOT_BYTES * slots} bytes, of which {100 * factor:g} % may be filled, has "
            "no room for a single key, so that no clean would come any further"
        )
    request = request.with_producers_of(log)
    end = request.first_uncleanable
    rounds, done = 0, Cleaned(request.first_dirty, (), (), Counts())
    seen = log
    files = {name: path for segment in log.segments for name, path in _files_of(segment).items()}
    while not rounds or _is_due_again(seen, done.end_offset, end, settings, request.now_ms):
        rounds += 1
        suffix = f".{rounds}"
        cleaned = clean_partition(fs, seen, target, replace(request, first_dirty=done.end_offset), suffix=suffix)
        assert cleaned.end_offset > done.end_offset, "there is room for a key"
        done = _behind(done, cleaned) if rounds > 1 else cleaned
        files = _after(fs, target, suffix, files, cleaned)
        seen = LogView(log.path, fs=Overlay(log.fs, log.path, files), log_start_offset=log.log_start_offset)
    for name, path in files.items():
        if path == f"{target}/{name}.{rounds}":
            fs.rename(path, f"{target}/{name}")
    if indexes is not None:
        indexes.of_log(log, LogView(target, fs=fs, log_start_offset=0), done.kept)
    return replace(done, rounds=rounds)


def _is_due_again(log: LogView, first_dirty: int, first_uncleanable: int, settings: CleanSettings, now_ms: int) -> bool:
    if first_dirty >= first_uncleanable:
        return False
    facts = cleanable_facts(log, MAX_OFFSET, now_ms)
    headers = [HeaderFacts(first_timestamp=first_timestamp(segment)) for segment in log.segments]
    return is_due_again(facts, headers, first_dirty, first_uncleanable, settings.threshold, now_ms)


def _behind(before: Cleaned, after: Cleaned) -> Cleaned:
    """Join the results of two rounds; the second read everything that the first wrote."""
    origins = {
        # The first of several outputs of a group represents the whole group.
        base: replaced if base == outputs[0] else ()
        for outputs, replaced in zip(before.outputs, before.replaced, strict=True)
        for base in outputs
    }
    replaced: list[tuple[int, ...]] = []
    outputs: list[tuple[int, ...]] = []
    for group, written in zip(after.replaced, after.outputs, strict=True):
        own = tuple(base for one in group for base in origins.get(one, (one,)))
        if own:
            replaced.append(own)
            outputs.append(written)
        else:
            outputs[-1] += written
    counts = _counted_once(before.counts, after.counts)
    key_bytes = max(before.key_bytes, after.key_bytes)
    return Cleaned(after.end_offset, tuple(replaced), tuple(outputs), counts, key_bytes=key_bytes)


def _counted_once(before: Counts, after: Counts) -> Counts:
    counts = replace(after)
    counts.add(
        replace(
            before,
            # The outputs of the first round were read again; the counts of the second round cover them.
            bytes_read=before.bytes_read - before.bytes_written,
            bytes_written=0,
            batches_read=before.batches_dropped,
            batches_verbatim=0,
            batches_rebuilt=0,
            batches_emptied=0,
            records_read=before.records_read - before.records_kept,
            records_kept=0,
            tombstones_kept_for_replicas=0,
            markers_kept_for_replicas=0,
        )
    )
    counts.check()
    return counts


def _files_of(segment: Segment) -> dict[str, str]:
    """Return the files of a segment, by the names that they will have once the log is loaded."""
    infos = {FileKind.LOG: segment.files.log, **segment.files.indexes}
    return {offset_name(segment.base_offset, kind): f"{segment.directory}/{info.name}" for kind, info in infos.items()}


def _after(fs: TargetStore, target: str, suffix: str, files: Mapping[str, str], cleaned: Cleaned) -> dict[str, str]:
    """Return the files of the log after a round. Remove outputs of the previous round, which are no longer needed."""
    replaced = {base for group in cleaned.replaced for base in group}
    left = {}
    for name, path in files.items():
        file = parse_file(name)
        assert file is not None, "we named it"
        if file.offset not in replaced:
            left[name] = path
        elif path.startswith(f"{target}/"):
            fs.unlink(path)
    written = [info.name for info in fs.list(target) if info.name.endswith(suffix)]
    return left | {name.removesuffix(suffix): f"{target}/{name}" for name in written}
