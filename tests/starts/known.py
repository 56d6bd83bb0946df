"""Where `check` does not yet foretell what a broker did; a name is deleted here when its forecast is right."""

#: Faults after which a node looks as DeleteRecords leaves it: their offsets are foretold, and nothing is wrong to see.
INVISIBLE = frozenset(
    f"{state}: {what}"
    for state in ("stopped", "crashed")
    for what in ("log start at the end", "log start in the last segment", "log start of another partition's")
)
#: Kinds of findings that are called damage where a broker serves everything as before.
FALSE_ALARMS = frozenset({"name-not-canonical"})
