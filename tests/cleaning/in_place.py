"""A clean as it is done in place: group by group, each swapped in before the next is cleaned."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cordwood.cleaning.engine.facts import CleanSettings, segment_facts
from cordwood.cleaning.engine.partition import Cleaned, GroupRange
from cordwood.cleaning.rules.plan import SegmentFacts
from cordwood.cleaning.rules.rewrite import Counts
from cordwood.cleaning.rules.selection import group_segments, segments_between
from cordwood.fs.base import LocalFileSystem
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.changes.copy import Replacement
from cordwood.storage.changes.swap import swap_in
from cordwood.storage.formats.filenames import WORK_FOLDER, parse_file
from cordwood.storage.log.view import LogView
from tests.cleaning.modes import clean_log


def in_parts(
    clean: Callable[[GroupRange], Cleaned], facts: Sequence[SegmentFacts], end: int, settings: CleanSettings
) -> Cleaned:
    """Clean one group after the other; pickle the state between groups, as between tasks.

    Args:
        clean: cleans some groups, and swaps them in.
        facts: facts of the log before the first group.
        end: the first uncleanable offset.
        settings: of the clean.
    """
    segment_bytes, index_bytes = settings.segment_bytes, settings.index.size_bytes
    found = group_segments(segments_between(facts, 0, end), end, segment_bytes=segment_bytes, index_bytes=index_bytes)
    groups = [tuple(one.base_offset for one in group) for group in found]
    done: list[Cleaned] = []
    for group, after in zip(groups, [*(one[0] for one in groups[1:]), end], strict=True):
        carried = pickle.loads(pickle.dumps(done[-1].carried)) if done else None
        done.append(clean(GroupRange((group,), after, carried)))
    counts = Counts()
    for one in done:
        counts.add(one.counts)
    return Cleaned(
        done[-1].end_offset,
        tuple(group for one in done for group in one.replaced),
        tuple(group for one in done for group in one.outputs),
        counts,
        tuple(group for one in done for group in one.segments),
    )


def swap_in_groups(fs: LocalFileSystem, partition: str, folder: str, cleaned: Cleaned) -> None:
    """Swap in the segments that a clean wrote to a folder."""
    written = [(info.name, parse_file(info.name)) for info in fs.list(folder)]
    for replaced, outputs in cleaned.written:
        names = tuple(name for name, file in written if file is not None and file.offset in outputs)
        swap_in(fs, partition, Replacement(folder, names, frozenset(replaced), frozenset(outputs), cleaned.end_offset))


def clean_in_place(
    log: LogView, target: Path, *, first_uncleanable: int, settings: CleanSettings, **choice: Any
) -> Cleaned:
    """Clean a copy of a log in place, as far as it has groups of its own, without Kafka's offset map."""
    shutil.copytree(log.path, target, ignore=shutil.ignore_patterns("*.deleted"))  # as loading leaves it
    folder = target / WORK_FOLDER / "outputs"

    def clean(part: GroupRange) -> Cleaned:
        folder.mkdir(parents=True)
        fs = PosixFileSystem()
        now = LogView(str(target), log_start_offset=log.log_start_offset, fs=fs)
        done = clean_log(
            fs, now, str(folder), first_uncleanable=first_uncleanable, settings=settings, part=part, **choice
        )
        swap_in_groups(fs, str(target), str(folder), done)
        folder.rmdir()
        return done

    facts = [segment_facts(segment) for segment in log.segments]
    return in_parts(clean, facts, first_uncleanable, settings)
