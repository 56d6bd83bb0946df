"""Where `check` does not yet foretell what a broker did; a name is deleted here when its forecast is right."""

#: Faults after which a node looks as DeleteRecords leaves it: their offsets are foretold, and nothing is wrong to see.
INVISIBLE = frozenset(
    f"{state}: {what}"
    for state in ("stopped", "crashed")
    for what in ("log start at the end", "log start in the last segment", "log start of another partition's")
)
#: Kinds of findings that are called damage where a broker serves everything as before.
FALSE_ALARMS = frozenset({"name-not-canonical"})
#: Faults after which partitions get a leader within seconds, or within half a minute: nothing of them is recorded.
RACES = frozenset(
    f"stopped: {disk}/meta.properties with{how}"
    for disk in "ab"
    for how in ("out directory.id", " another directory id")
) | {
    # The broker replaces the directory by its copy, soon after its start, under a name with a random part.
    "stopped: a partition's copy is the future one",
    "stopped: a partition is only there as the future one on the other disk",
    # No broker was ready within a minute.
    "stopped: metadata segment 0 flipped",
}
