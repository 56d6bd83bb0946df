"""Pass 1: the newest offset of each key in the dirty section."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

import numpy as np

from cordwood.cleaning.latest import LatestOffsets
from cordwood.cleaning.offset_map import OffsetMap, keys_max
from cordwood.cleaning.transactions import AbortTracker
from cordwood.engine.readahead import (
    TrackedWindow,
    decode_batches,
    read_ahead,
    reading_threads,
    segment_windows_from,
    tracked_windows,
)
from cordwood.engine.settings import CleanSettings
from cordwood.kernels.latest import choose_keyed
from cordwood.kernels.layout import BatchRows
from cordwood.record.columns import RecordColumns
from cordwood.record.headers import is_control
from cordwood.storage.log.segment import Segment
from cordwood.storage.log.windows import Checks


def newest_offsets(
    segments: Sequence[Segment],
    start: int,
    end: int,
    settings: CleanSettings,
    tracker: AbortTracker,
    mark: int | None,
) -> tuple[LatestOffsets | OffsetMap, AbortTracker | None]:
    """The newest offsets of keys in [start, end), and the tracker as it is at the segment `mark`, if that is passed."""
    if settings.offset_map_slots is not None:
        limit = keys_max(settings.offset_map_slots, settings.offset_map_load_factor)
        table = OffsetMap(settings.offset_map_slots, limit, settings.memory)
        return _offset_map(segments, start, end, table, tracker), None
    latest, marked = LatestOffsets(settings.memory), None

    def dirty() -> Iterator[TrackedWindow]:
        nonlocal marked
        for segment in segments:
            if segment.base_offset == mark and segment.base_offset > start:
                marked = copy.deepcopy(tracker)
            yield from tracked_windows(segment, start, tracker)

    def keys(shown: TrackedWindow) -> list[tuple[RecordColumns, np.ndarray, np.ndarray]]:
        """Records of a window; which of them have a key that counts, and the keys' hashes."""
        found = []
        for columns in decode_batches(
            shown.segment, shown.window, _with_keys(shown.window.batches, shown.discard, start)
        ):
            keyed = _keyed(columns, start)
            found.append((columns, keyed, latest.hashes(columns, keyed)))
        return found

    with reading_threads(segments) as threads:
        for _, found in read_ahead(threads, dirty(), keys):
            for columns, keyed, hashes in found:
                latest.put(columns, keyed, hashes)
    if segments:
        # Offsets that nothing holds any more count as seen.
        latest.latest_offset = end - 1
    return latest, marked


def _offset_map(
    segments: Sequence[Segment], start: int, end: int, found: OffsetMap, tracker: AbortTracker
) -> OffsetMap:
    """Fill Kafka's map. When it is full it speaks for all batches before that point, and for what it took since."""
    for at, segment in enumerate(segments):
        for window in segment_windows_from(segment, start, Checks.WHOLE):
            aborted, _ = tracker.discard(window.batches)
            wanted = _with_keys(window.batches, aborted, start)
            for columns in decode_batches(segment, window, wanted):
                done = found.put_until_full(columns, _keyed(columns, start))
                if done < columns.rows.size:
                    within = columns.batches["position"][columns.rows["batch"][done]]
                    _speaks_for(found, window.batches[window.batches["position"] < within], start)
                    return found
            _speaks_for(found, window.batches, start)
        found.latest_offset = (segments[at + 1].base_offset if at + 1 < len(segments) else end) - 1
    return found


def _speaks_for(found: OffsetMap, batches: BatchRows, start: int) -> None:
    """Count what batches hold besides keys as seen, once all of their records were."""
    if batches.size and batches["last_offset"][-1] >= start:
        found.latest_offset = max(found.latest_offset, int(batches["last_offset"][-1]))


def _with_keys(batches: BatchRows, aborted: np.ndarray, start: int) -> np.ndarray:
    """bool[batches]: those that the newest offsets of keys may be in."""
    wanted: np.ndarray = ~(aborted | is_control(batches)) & (batches["last_offset"] >= start)
    return wanted


def _keyed(columns: RecordColumns, start: int) -> np.ndarray:
    """bool[records]: those with a key at or above an offset."""
    keyed = np.empty(columns.rows.size, np.bool_)
    choose_keyed(columns.rows, start, keyed)
    return keyed
