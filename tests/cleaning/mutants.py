"""The cleaner with one of its rules broken, for each rule: shows that the checks of a clean notice.

`install` puts a mutant in the place of the module that holds the rule, in a process that has not imported it yet;
therefore this module does not import Cordwood.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

PROPERTY = "mutants"
_SOURCES = Path(__file__).parents[2] / "src"


@dataclass(frozen=True)
class Mutant:
    """One rule, broken.

    Attributes:
        rule: the rule that is broken.
        module: module with the rule, below `cordwood`.
        text: part of its source that occurs once.
        replacement: replaces `text`.
    """

    rule: str
    module: str
    text: str
    replacement: str

    @property
    def times(self) -> int:
        """Number of occurrences of the text; it is 1 unless the table is out of date."""
        return self.source.read_text().count(self.text)

    @property
    def source(self) -> Path:
        return _SOURCES / "cordwood" / f"{self.module.replace('.', '/')}.py"


REWRITE, TRANSACTIONS, SELECTION = "cleaning.rules.rewrite", "cleaning.rules.transactions", "cleaning.rules.selection"
RETENTION, OFFSET_MAP, JUDGE = "cleaning.rules.retention", "cleaning.rules.offset_map", "kernels.judge"
SUPERSEDED, SCAN = "kernels.superseded", "cleaning.engine.scan"

#: The unchanged rules, for comparison.
NONE = Mutant("", "", "", "")
MUTANTS = (
    # newest records
    Mutant("the newest record of a key stays", JUDGE, 'row["offset"] < newest[i]', 'row["offset"] <= newest[i]'),
    Mutant(
        "what is above the keys that were read stays",
        JUDGE,
        'elif control or row["offset"] > latest_offset:',
        "elif control:",
    ),
    Mutant("a record without a key goes", JUDGE, "fate = WITHOUT_KEY", "pass"),
    Mutant("a superseded record goes", JUDGE, "fate = SUPERSEDED", "pass"),
    Mutant(
        "only records of the dirty section supersede, within a chunk",
        SUPERSEDED,
        "            if ordinal & SUPERSEDES:",
        "            if True:",
    ),
    Mutant(
        "only records of the dirty section supersede, in other chunks",
        SUPERSEDED,
        "if not found and ordinal & SUPERSEDES:",
        "if not found:",
    ),
    Mutant(
        "keys of a bucket are told apart by their hashes",
        SUPERSEDED,
        "low = _low(hashes[i, 0], high)",
        "low = high = U64(1)",
    ),
    Mutant(
        "a newer chunk supersedes, not an older one",
        SUPERSEDED,
        "for c in range(starts.shape[0] - 1, -1, -1):",
        "for c in range(starts.shape[0]):",
    ),
    Mutant("aborted data supersedes nothing", SCAN, "superseding_from[some & ~aborted]", "superseding_from[some]"),
    Mutant(
        "a record below the first dirty offset supersedes nothing",
        SUPERSEDED,
        'elif row["offset"] >= superseding_from[b]:',
        "elif superseding_from[b] < 9_000_000_000_000_000_000:",
    ),
    Mutant(
        "a batch with a record without a key is not kept as it is",
        SUPERSEDED,
        "flags[b] |= np.uint8(HAS_KEYLESS)",
        "pass",
    ),
    Mutant(
        "a batch with tombstones is not kept as it is",
        SUPERSEDED,
        "flags[b] |= np.uint8(HAS_TOMBSTONE)",
        "pass",
    ),
    Mutant(
        "a batch is kept as it is only if nothing of it is superseded",
        REWRITE,
        "(known.superseded == 0) & known.plain",
        "known.plain",
    ),
    Mutant(
        "a batch of which all is superseded goes",
        REWRITE,
        "whole = chosen & (known.superseded == 0)",
        "whole = chosen",
    ),
    # tombstones and horizons
    Mutant(
        "a horizon has passed at its millisecond",
        REWRITE,
        '(batches["base_timestamp"] <= rules.now_ms)',
        '(batches["base_timestamp"] < rules.now_ms)',
    ),
    Mutant(
        "a tombstone stays until its horizon has passed",
        REWRITE,
        'horizons & (batches["base_timestamp"] <= rules.now_ms)',
        "horizons",
    ),
    Mutant("a tombstone goes when its horizon has passed", REWRITE, "expired, is_old)", "False, False)"),
    Mutant("a batch with tombstones gets a horizon", REWRITE, "(found[:, judge.TOMBSTONES] > 0) | ", ""),
    Mutant("a batch with a horizon keeps it", REWRITE, " | control & discard) & ~horizons", " | control & discard)"),
    Mutant("rebuilding keeps a horizon", JUDGE, 'elif old or header["attributes"] & DELETE_HORIZON == 0:', "else:"),
    Mutant(
        "a horizon is delete.retention.ms ahead", REWRITE, "rules.now_ms + rules.delete_retention_ms", "rules.now_ms"
    ),
    Mutant(
        "a tombstone stays for other replicas",
        JUDGE,
        "fate = KEPT\n        counts",
        "fate = TOMBSTONES_EXPIRED\n        counts",
    ),
    Mutant("old tombstones stay in new segments", REWRITE, "expired, is_old)", "expired, True)"),
    Mutant("old tombstones go from old segments", REWRITE, "expired, is_old)", "expired, False)"),
    # transactions
    Mutant("aborted data goes", TRANSACTIONS, "result[at] = True", "pass"),
    Mutant(
        "a transaction is aborted from its first offset on",
        TRANSACTIONS,
        "self._pending[0][0] <= last_offset",
        "self._pending[0][0] < last_offset",
    ),
    Mutant(
        "an ABORT marker ends its transaction",
        TRANSACTIONS,
        "self._aborted.pop(producer, None)",
        "self._aborted.get(producer)",
    ),
    Mutant(
        "an ABORT marker without data goes",
        TRANSACTIONS,
        "transaction is None or not observed",
        "transaction is None",
    ),
    Mutant("an ABORT marker with data stays", TRANSACTIONS, "transaction is None or not observed", "True"),
    Mutant("an ABORT marker with data stays in the index", TRANSACTIONS, "kept.append(transaction)", "pass"),
    Mutant("a COMMIT marker with data stays", TRANSACTIONS, "return not seen", "return True"),
    Mutant("a COMMIT marker without data goes", TRANSACTIONS, "return not seen", "return False"),
    Mutant("a COMMIT marker ends its transaction", TRANSACTIONS, "self._committed.discard(producer)", "pass"),
    Mutant("a marker without data gets a horizon", REWRITE, " | control & discard) & ~horizons", ") & ~horizons"),
    Mutant("a marker stays until its horizon has passed", REWRITE, "discard & (~control | gone)", "discard"),
    Mutant(
        "a marker stays for other replicas",
        REWRITE,
        "expired & allowed",
        "expired",
    ),
    # empty batches that stay
    Mutant(
        "the last batch of an active producer stays",
        REWRITE,
        "rules.producers.last_of(batches) | (",
        "(",
    ),
    Mutant("the last marker of a producer without data stays", REWRITE, "(by_offset | by_epoch)", "by_offset"),
    Mutant(
        "only the last batch of a producer stays",
        REWRITE,
        '(last == batches["last_offset"])',
        '(last >= batches["last_offset"])',
    ),
    Mutant(
        "the last batch of the range stays",
        REWRITE,
        'rules.producers.last_of(batches) | (batches["last_offset"] + 1 == rules.first_uncleanable_offset)',
        "rules.producers.last_of(batches)",
    ),
    Mutant(
        "an empty batch stays transactional",
        REWRITE,
        "LOG_APPEND_TIME | TRANSACTIONAL | CONTROL",
        "LOG_APPEND_TIME | CONTROL",
    ),
    Mutant(
        "strictly, an old batch that ends the range cannot be emptied",
        REWRITE,
        "if rules.strict_kafka:",
        "if not rules.strict_kafka:",
    ),
    # contents of batch headers
    Mutant("old formats become magic 2", REWRITE, 'some & (batches["magic"] == 2) & (kept', "some & (kept"),
    Mutant("a batch that loses records is rebuilt", REWRITE, " & (kept == found[:, judge.TOTAL])", ""),
    Mutant(
        "a rebuilt batch keeps its base offset",
        JUDGE,
        'if old:\n            header["base_offset"] = first["offset"]',
        'header["base_offset"] = first["offset"]\n        if old:',
    ),
    Mutant(
        "a rebuilt batch keeps its sequence",
        JUDGE,
        'header["record_count"] = found[b, STAY]',
        'header["base_sequence"] += header["record_count"] - found[b, STAY]\n'
        '        header["record_count"] = found[b, STAY]',
    ),
    Mutant(
        "a batch's largest timestamp is that of its records",
        JUDGE,
        'max(found[b, LARGEST], row["timestamp"])',
        'row["timestamp"]',
    ),
    # the range
    Mutant(
        "a checkpoint below the log start is corrected", SELECTION, "if checkpoint < log_start_offset:", "if False:"
    ),
    Mutant("a checkpoint above the log end is corrected", SELECTION, "if checkpoint > log_end_offset:", "if False:"),
    Mutant(
        "nothing above the last stable offset is cleaned",
        SELECTION,
        "(last_stable_offset, Bound.LAST_STABLE_OFFSET)",
        "(active, Bound.LAST_STABLE_OFFSET)",
    ),
    Mutant(
        "nothing above the high watermark is cleaned",
        SELECTION,
        "offset, source = entry,",
        "offset, source = log_end_offset,",
    ),
    Mutant(
        "a segment is cleaned whole or not at all",
        SELECTION,
        "whole[0].base_offset if whole else active",
        "whole[1].base_offset if whole[1:] else active",
    ),
    Mutant("min.compaction.lag.ms keeps young segments", SELECTION, "if lag_ms <= 0:", "if lag_ms >= 0:"),
    Mutant(
        "a segment as old as min.compaction.lag.ms is cleaned",
        SELECTION,
        "segment.largest_timestamp > now_ms - lag_ms",
        "segment.largest_timestamp >= now_ms - lag_ms",
    ),
    Mutant(
        "max.compaction.lag.ms is counted from the oldest dirty batch",
        SELECTION,
        "max(0, now_ms - max_compaction_lag_ms - earliest)",
        "max(0, now_ms - earliest)",
    ),
    Mutant("a log that waits for too long is cleaned", SELECTION, "if compaction.must_compact_now:", "if False:"),
    Mutant(
        "a log is cleaned when it is dirtier than its limit", SELECTION, "if ratio > least:", "if ratio > least + 0.4:"
    ),
    Mutant(
        "what is below the first dirty offset is clean",
        SELECTION,
        "clean_bytes=sum(one.size_bytes for one in segments if one.base_offset < first_dirty)",
        "clean_bytes=sum(one.size_bytes for one in segments if one.base_offset <= first_dirty)",
    ),
    # groups
    Mutant("a group is no larger than segment.bytes", SELECTION, "size > segment_bytes or", "size >= segment_bytes or"),
    Mutant(
        "a group's indexes are no larger than segment.index.bytes",
        SELECTION,
        "size > segment_bytes or index > index_bytes or times > index_bytes",
        "size > segment_bytes",
    ),
    Mutant("a group's offsets fit 32 bits", SELECTION, "> MAX_OFFSET_SPAN:", "> 2 * MAX_OFFSET_SPAN:"),
    # Kafka's map
    Mutant("a map is filled to its load factor", OFFSET_MAP, "min(slots, int(slots * load_factor))", "slots"),
    Mutant("a full map speaks for what it took", OFFSET_MAP, "int(offsets[entered[-1]])", "int(offsets[entered[0]])"),
    # retention
    Mutant(
        "the segment that the log starts in stays",
        RETENTION,
        "following.base_offset <= limit",
        "following.base_offset - 1 <= limit",
    ),
    Mutant("retention.bytes is what stays at least", RETENTION, "yield excess >= 0", "yield excess > 0"),
    Mutant(
        "retention.ms is how old what stays may be",
        RETENTION,
        "one.largest_timestamp > limit",
        "one.largest_timestamp >= limit",
    ),
    Mutant("what is not replicated is not deleted", RETENTION, "if high_watermark < upper or not", "if not"),
)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, path: Path) -> None:
        self._name, self._path = name, path

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        return importlib.util.spec_from_file_location(fullname, self._path)


def install(mutant: Mutant, folder: Path) -> None:
    """From now on this process imports the mutant, whose source is written to a folder."""
    if mutant is NONE:
        return
    name = f"cordwood.{mutant.module}"
    assert name not in sys.modules, "it is imported already"
    _serve(name, folder / mutant.source.name, mutant.source.read_text().replace(mutant.text, mutant.replacement))
    # Compiled kernels that call the module contain the unbroken rule.
    for caller in (_SOURCES / "cordwood/kernels").glob("*.py"):
        source = caller.read_text()
        if f"from {name} import" in source:
            _serve(f"cordwood.kernels.{caller.stem}", folder / caller.name, source)


def _serve(name: str, path: Path, source: str) -> None:
    """Let a module be imported from a source, at a path of its own; its kernels get no shared cache."""
    path.write_text(source.replace("cache=True, ", ""))
    sys.meta_path.insert(0, _Finder(name, path))


def lines_for(reporter: pytest.TerminalReporter) -> list[str]:
    """The table of the mutants that this run had, for the summary at its end."""
    reports = [*reporter.getreports("passed"), *reporter.getreports("failed")]
    said = [value for report in reports if report.when == "call" for value in report.user_properties]
    return [line for name, value in said if name == PROPERTY for line in json.loads(str(value))]
