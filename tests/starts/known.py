"""Faults that `check` does not yet forecast correctly. Delete a name here when its forecast is right."""

#: Faults that look like the effect of DeleteRecords or of a clean: `check` forecasts their offsets, but cannot see a
#: fault.
INVISIBLE = frozenset(
    f"{state}: {what}"
    for state in ("stopped", "crashed")
    for what in ("log start at the end", "log start in the last segment", "log start of another partition's")
) | {
    # A clean that was interrupted before it wrote its checkpoint leaves the same files.
    "crashed: a compacted log's active segment missing",
    # All of it is above the recovery point and the high watermark on disk.
    "crashed: active segment missing",
}
#: Kinds of findings that `check` reports as damage although a broker serves everything as before.
FALSE_ALARMS = frozenset({"name-not-canonical"})
#: Faults whose outcome depends on timing: partitions get a leader after seconds or after half a minute. Not recorded.
RACES = frozenset(
    f"stopped: {disk}/meta.properties with{how}"
    for disk in "ab"
    for how in ("out directory.id", " another directory id")
) | {
    # Soon after its start the broker replaces the directory by its future copy, under a name with a random part.
    "stopped: a partition's copy is the future one",
    "stopped: a partition is only there as the future one on the other disk",
    # The broker takes the directory offline when a consumer reads the segment.
    "crashed: b/orders-1/45.index that is a directory",
    # The broker was not ready within a minute.
    "stopped: metadata segment 0 flipped",
}
