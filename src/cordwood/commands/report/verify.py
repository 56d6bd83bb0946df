"""The result of a verification as text and JSON, and the sentences of its page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cordwood.cleaning.proof.pairs import Count, ViolationKind
from cordwood.cleaning.proof.result import VerifyResult
from cordwood.cleaning.proof.violations import MEANINGS, Violation
from cordwood.common.presentable import register
from cordwood.common.text import Cells, Column, bytes_text, number, printable

_PROVED = (
    (Count.RECORDS_SAME, "records unchanged: key, value, headers, timestamp, offset, order"),
    (Count.KEYS_KEPT, "keys that lost records, and kept their last committed value or its tombstone"),
    (Count.KEYS_DELETED, "deleted keys removed with their tombstones, after their delete horizon"),
    (Count.BATCHES, "batches with unchanged producer, epochs, timestamps and attributes"),
    (Count.BATCHES_ABOVE, "batches above the first uncleanable offset, byte for byte unchanged"),
    (Count.MARKERS, "markers kept"),
    (Count.TRANSACTIONAL, "transactional batches as visible to read_committed consumers as before"),
    (Count.PRODUCERS, "active producers with the batch that their state is rebuilt from"),
    (Count.SAMPLED, "records also read by a second, independent reader"),
)


def lines(result: VerifyResult) -> Iterator[str]:
    """Yield lines for people: violations, then proved guarantees."""
    for compared in result.verdicts:
        if compared.holds:
            continue
        yield f"{printable(compared.pair.before.path)} → {printable(compared.pair.after.path)}"
        yield from _violation_lines(compared.violations, compared.totals)
    if result.violations:
        yield "Other files"
        totals: dict[str, int] = {}
        for one in result.violations:
            totals[one.kind] = totals.get(one.kind, 0) + 1
        yield from _violation_lines(result.violations, totals)
    yield from proved(result)
    yield verdict(result)


def proved(result: VerifyResult) -> Iterator[str]:
    """Yield a line for each guarantee that was proved, with its count."""
    counts = result.counts
    yield (
        f"{number(len(result.verdicts), 'partition')}: {counts[Count.RECORDS_BEFORE]:,} records before,"
        f" {counts[Count.RECORDS_AFTER]:,} after"
    )
    for name, what in _PROVED:
        if counts[name]:
            yield f"  {counts[name]:>12,}  {what}"
    if unchanged := counts[Count.UNCHANGED_BYTES]:
        yield f"  {bytes_text(unchanged):>12}  in unchanged files"
    yield from (f"  allowed by --retention: {printable(what)}" for what in result.excused)
    if unknown := counts[Count.NOT_JUDGED]:
        yield (
            f"  {unknown:>12,}  not judged: delete horizons or old tombstones whose time depends on when segments were "
            "written, and a copy has lost that"
        )


def verdict(result: VerifyResult) -> str:
    """Return the verdict as a sentence, with the next step where configs may explain the violations."""
    if result.holds:
        return "All guarantees hold that can be judged" if result.counts[Count.NOT_JUDGED] else "All guarantees hold"
    found = f"{number(sum(result.totals.values()), 'violation')}: a correct clean cannot leave this"
    if result.totals.get(ViolationKind.UNTOUCHED):
        found += (
            "\nHow far a clean may go depends on the topic's configs: if it was given --config, --server-properties, "
            "--metadata or --high-watermark, give verify the same."
        )
    return found


def all_violations(result: VerifyResult) -> list[Violation]:
    """Return the named violations of the directories and of each partition."""
    return [*result.violations, *(violation for verdict in result.verdicts for violation in verdict.violations)]


def kinds(result: VerifyResult) -> Iterator[tuple[str, int, str]]:
    """Yield each kind of violation with its total and meaning."""
    for kind, total in result.totals.items():
        yield kind, total, MEANINGS[ViolationKind(kind)]


def document(result: VerifyResult) -> dict[str, Any]:
    """Return the result as one JSON value."""
    return {
        "before": result.before,
        "after": result.after,
        "now_ms": result.now_ms,
        "holds": result.holds,
        "partition_count": len(result.verdicts),
        **result.counts,
        "violations": sum(result.totals.values()),
        "by_kind": dict(result.totals),
        "named": [_violation_document(violation) for violation in all_violations(result)],
        "excused": list(result.excused),
        "seconds": round(result.seconds, 3),
    }


def _violation_document(violation: Violation) -> dict[str, Any]:
    """Return a violation as one JSON value."""
    key = None if violation.key is None else _key_text(violation.key)
    return {
        "kind": violation.kind,
        "what": violation.what,
        "file": violation.path,
        "offset": violation.offset,
        "key": key,
    }


def _key_text(key: bytes) -> str:
    """Return a key as readable text, or as `0x…` if it is not UTF-8."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return f"0x{key.hex()}"
    return text if text.isprintable() else f"0x{key.hex()}"


def _violation_lines(violations: Sequence[Violation], totals: Mapping[str, int]) -> Iterator[str]:
    for kind, total in totals.items():
        named = [one for one in violations if one.kind == kind]
        yield f"  {kind}: {total:,} – {MEANINGS[ViolationKind(kind)]}"
        for one in named:
            offset = "" if one.offset is None else f"offset {one.offset}"
            key = "" if one.key is None else f"key {_key_text(one.key)}"
            said = "" if one.what == MEANINGS[one.kind] else printable(one.what)
            yield "    " + ", ".join(part for part in (printable(one.path), offset, key, said) if part)
        if total > len(named):
            yield f"    … and {total - len(named):,} more"


#: Columns of a table of violations.
VIOLATIONS: Cells = (
    (Column("KIND"), lambda violation: violation.kind),
    (Column("FILE"), lambda violation: printable(violation.path) or "-"),
    (Column("OFFSET", right=True), lambda violation: "-" if violation.offset is None else str(violation.offset)),
    (Column("KEY"), lambda violation: "-" if violation.key is None else _key_text(violation.key)),
    (Column("FACT"), lambda violation: printable(violation.what)),
)

register(VerifyResult, lines=lines, document=document)
