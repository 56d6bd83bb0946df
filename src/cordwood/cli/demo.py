"""`cordwood demo`: compact a log and account for every record.

We write the log with our own encoders; plan, clean and check are the real ones. Of its three segments, the first was
cleaned a week before, the second is dirty, and the third is active. With `--dir` both states are kept, together with
the small log of a real broker from the package, which the documentation's examples use.
"""

from __future__ import annotations

import contextlib
import importlib.resources
import json
import os
import shlex
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from cordwood.api import clean
from cordwood.api import plan as make_plan
from cordwood.cleaning.engine.results import CleanResult, Fate
from cordwood.cleaning.rules.plan import Decision, Plan, utc
from cordwood.cleaning.rules.rewrite import Counts
from cordwood.cli.options import Json
from cordwood.commands.check import summary_line
from cordwood.common.config import DAY_MS
from cordwood.common.errors import RequestError
from cordwood.common.text import Column, bytes_text, number, table
from cordwood.common.types import NONE, TopicPartition
from cordwood.fs.posix import PosixFileSystem
from cordwood.record.batch import Marker, encode_batch, encode_marker
from cordwood.record.record import Record
from cordwood.storage.check import Check, Summary
from cordwood.storage.formats import checkpoints
from cordwood.storage.formats.filenames import CLEAN_SHUTDOWN, CLEANER_OFFSETS, FileKind, offset_name
from cordwood.storage.formats.properties import encode_clean_shutdown
from cordwood.storage.log.transactions import READ_COMMITTED, READ_UNCOMMITTED
from cordwood.storage.log.view import LogView
from cordwood.storage.recovery.into_copy import recover_into_copy
from cordwood.tasks.engines import Where

#: Folder of the real broker's log, and of another broker's log with groups of all kinds and open transactions.
LOG, GROUPS = "kafka-logs", "kafka-groups"
_PACKED = ("demo.tar.gz", "groups.tar.gz")
BEFORE, AFTER, SETTINGS = "before", "after", "server.properties"
USERS = TopicPartition("users", 0)
NOW_MS = 1_750_000_000_000
_FIRST_DIRTY, _ACTIVE = 6, 12
#: The last offset of each segment.
_LAST = {0: 5, _FIRST_DIRTY: 11, _ACTIVE: 13}
_PROPERTIES = """\
log.cleanup.policy=compact
log.cleaner.delete.retention.ms=86400000
"""
#: Options of plan and clean.
_ASKED = f"--server-properties {SETTINGS} --single-copy"
_GONE, _NULL = "✗", "∅"


def demo(
    directory: Annotated[
        str | None,
        typer.Option("--dir", help="Keep the log here, before and after the clean, with the log of a real broker."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a small log, clean it, and show which records stay, which are removed, and why.

    Leaves nothing behind, unless --dir is given.
    """
    with _folder(directory) as folder:
        write_log(folder)
        if directory is not None:
            unpack(folder)
        with contextlib.chdir(folder):
            if as_json:
                print(json.dumps(_document(), indent=1))
            else:
                for line in _story():
                    print(line, flush=True)
    if directory is not None and not as_json:
        print("\n".join(_to_try(directory)))


@contextlib.contextmanager
def _folder(directory: str | None) -> Iterator[Path]:
    if directory is None:
        with tempfile.TemporaryDirectory(prefix="cordwood-demo-") as folder:
            yield Path(folder)
        return
    for name in (BEFORE, AFTER, SETTINGS, LOG, GROUPS):
        if (Path(directory) / name).exists():
            raise RequestError(f"{directory}/{name} exists already; give another folder, or remove it first")
    Path(directory).mkdir(parents=True, exist_ok=True)
    yield Path(directory)


def unpack(folder: Path) -> None:
    """Unpack the brokers' logs in the package as `LOG` and `GROUPS` in a folder."""
    for name in _PACKED:
        packed = importlib.resources.files("cordwood").joinpath("data", name)
        with packed.open("rb") as data, tarfile.open(fileobj=data) as tar:
            # Set it as an attribute: Python 3.11 accepts it as an argument only from 3.11.4 on.
            tar.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)
            tar.extractall(folder)


# ---- the log ---------------------------------------------------------------------------------------------------------


def _batch(
    base_offset: int, *records: tuple[str, str | None], horizon: int | None = None, producer: int = NONE
) -> bytes:
    """Encode a batch with a record per (user, town), one minute apart; town None deletes the user."""
    return encode_batch(
        [
            Record(at, _time(at), user.encode(), None if town is None else town.encode())
            for at, (user, town) in enumerate(records, base_offset)
        ],
        delete_horizon_ms=horizon,
        leader_epoch=0,
        producer_id=producer,
        producer_epoch=NONE if producer == NONE else 0,
        base_sequence=NONE if producer == NONE else 0,
        transactional=producer != NONE,
    )


def _time(offset: int) -> int:
    before = 8 * DAY_MS if offset < _FIRST_DIRTY else DAY_MS
    return NOW_MS - before + 60_000 * offset


def _segments() -> dict[int, list[bytes]]:
    """Encode the batches of each segment, by its base offset."""
    return {
        0: [
            _batch(0, ("anna", "Rome")),
            # Last week's clean removed offset 1 and set the delete horizon of this tombstone.
            _batch(2, ("ben", "Oslo")),
            _batch(4, ("cleo", None), horizon=NOW_MS - 6 * DAY_MS),
        ],
        _FIRST_DIRTY: [
            _batch(6, ("anna", "Kyiv"), ("dora", "Lima")),
            _batch(8, ("ben", "Bonn"), producer=7),
            encode_marker(Marker(9, _time(9), 7, 0, committed=False), leader_epoch=0),
            _batch(10, ("dora", None), ("anna", "Bern")),
        ],
        _ACTIVE: [_batch(12, ("emil", "Nice"), ("anna", "Cork"))],
    }


def write_log(folder: Path) -> None:
    """Write the log into the folder `BEFORE`, as a broker leaves it, and the broker's settings beside it."""
    before = folder / BEFORE
    (before / str(USERS)).mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="cordwood-demo-") as bare:
        for base_offset, batches in _segments().items():
            path = Path(bare) / offset_name(base_offset, FileKind.LOG)
            path.write_bytes(b"".join(batches))
            written = _time(_LAST[base_offset]) // 1000
            os.utime(path, (written, written))
        # A broker derives its indexes, snapshots and leader epochs from the batches.
        fs = PosixFileSystem()
        recover_into_copy(fs, LogView(bare, fs=fs), str(before / str(USERS)), recovery_point=0, now_ms=NOW_MS)
    (before / CLEANER_OFFSETS).write_bytes(checkpoints.encode({USERS: _FIRST_DIRTY}))
    (before / CLEAN_SHUTDOWN).write_bytes(encode_clean_shutdown(None))
    (folder / SETTINGS).write_text(_PROPERTIES)


# ---- the fate of each record -----------------------------------------------------------------------------------------


class _Why(StrEnum):
    """Reason that a record was kept or removed."""

    SUPERSEDED = "superseded"
    ABORTED = "aborted"
    EXPIRED = "expired tombstone"
    MARKER = "marker"
    ACTIVE = "active segment"
    TOMBSTONE = "tombstone"
    LAST = "last of its key"


#: For each reason that removes records, the clean's counter that must agree.
_COUNTED: Mapping[_Why, Callable[[Counts], int]] = {
    _Why.SUPERSEDED: lambda counts: counts.records_superseded,
    _Why.ABORTED: lambda counts: counts.records_aborted,
    _Why.EXPIRED: lambda counts: counts.tombstones_expired,
}


@dataclass(frozen=True, slots=True)
class _Fate:
    """A record and its fate.

    Attributes:
        offset, key, value: the record's own; a marker has its type as the value, and no key.
    """

    offset: int
    key: str
    value: str | None
    kept: bool
    why: _Why
    reason: str


@dataclass(frozen=True, slots=True)
class _Contents:
    """A small log: all its records by offset, and which of them readers get.

    Attributes:
        data: offsets of records other than markers.
        committed: offsets of records outside aborted transactions.
        horizons: delete horizon of the offset's batch, if it has one.
    """

    records: Mapping[int, Record]
    data: frozenset[int]
    committed: frozenset[int]
    horizons: Mapping[int, int]

    @classmethod
    def of(cls, directory: str) -> _Contents:
        log = LogView(f"{directory}/{USERS}", fs=PosixFileSystem())
        records = {one.offset: one for one in log.records(isolation=None)}
        data, committed = (
            frozenset(one.offset for one in log.records(isolation=level))
            for level in (READ_UNCOMMITTED, READ_COMMITTED)
        )
        horizons = {
            offset: batch.delete_horizon_ms
            for batch in log.batches()
            for offset in range(batch.base_offset, batch.last_offset + 1)
            if batch.delete_horizon_ms is not None
        }
        return cls(records, data, committed, horizons)


def _fates(before: _Contents, after: _Contents) -> list[_Fate]:
    """Derive each record's fate: kept or removed from the clean's output, the reason from the log before it."""
    last = {before.records[at].key: at for at in sorted(before.committed) if at < _ACTIVE}
    fates = []
    for at, record in before.records.items():
        why, reason = _why(at, last.get(record.key, at), before, after)
        fates.append(_Fate(at, *_shown(before, at), at in after.records, why, reason))
    return fates


def _why(at: int, last: int, before: _Contents, after: _Contents) -> tuple[_Why, str]:
    tombstone = before.records[at].value is None
    if at >= _ACTIVE:
        return _Why.ACTIVE, "in the active segment, which is never cleaned"
    if at not in before.data:
        return _Why.MARKER, "ends the aborted transaction; a later clean may remove it"
    if at not in before.committed:
        return _Why.ABORTED, "its transaction was aborted"
    if at < last:
        return _Why.SUPERSEDED, f"superseded by offset {last}"
    if tombstone and at not in after.records:
        return _Why.EXPIRED, f"tombstone: expired on {utc(before.horizons[at])}"
    if tombstone:
        return _Why.TOMBSTONE, f"tombstone: expires on {utc(after.horizons[at])}"
    newer = [other for other, one in before.records.items() if other >= _ACTIVE and one.key == before.records[at].key]
    return _Why.LAST, "last record of its key" + "".join(
        f"; offset {other} is in the active segment" for other in newer
    )


def _shown(log: _Contents, at: int) -> tuple[str, str | None]:
    """Return a record's key and value as text."""
    record = log.records[at]
    if at not in log.data:
        return "", "ABORT"
    assert record.key is not None, "every user has a name"
    return record.key.decode(), None if record.value is None else record.value.decode()


# ---- the story -------------------------------------------------------------------------------------------------------


def _plan(directory: str) -> Plan:
    return make_plan(directory, server_properties=SETTINGS, single_copy=True, now_ms=NOW_MS)


def _clean() -> CleanResult:
    result = clean(BEFORE, output=AFTER, server_properties=SETTINGS, single_copy=True, now_ms=NOW_MS)
    (one,) = result.partitions
    assert one.fate is Fate.CLEANED, one
    return result


def _check() -> Summary:
    check = Check(PosixFileSystem())
    assert not list(check.run([AFTER])), "what a clean wrote is whole"
    return check.summary


def _told(before: _Contents, result: CleanResult) -> list[_Fate]:
    """Return the fates, after comparing them with the clean's counters."""
    fates = _fates(before, _Contents.of(AFTER))
    for why in _Why:
        dropped = sum(one.why is why and not one.kept for one in fates)
        assert dropped == (_COUNTED[why](result.counts) if why in _COUNTED else 0), f"{why}: {dropped} told"
    return fates


def _story() -> Iterator[str]:
    before = _Contents.of(BEFORE)
    yield f"1  A log: {BEFORE}/{USERS}, in three files. Each record says where a user (its key) lives now."
    yield f"   Kafka only appends: a user who moves gets a new record; one who leaves gets a tombstone ({_NULL})."
    yield "   Outdated records pile up. Compaction keeps the last record of each key, at its offset."
    yield ""
    for base_offset, end, state in (
        (0, _FIRST_DIRTY, "cleaned last week"),
        (_FIRST_DIRTY, _ACTIVE, "dirty"),
        (_ACTIVE, max(before.records) + 1, "active"),
    ):
        shown = "  ".join(_short(before, at) for at in before.records if base_offset <= at < end)
        yield f"   {base_offset:>2}.log {state:<17}  {shown}"
    yield ""
    plan = _plan(BEFORE)
    yield f"2  The plan:   cordwood plan {BEFORE} {_ASKED}"
    yield "   (--single-copy: there is no other replica, so expired tombstones can be removed.)"
    yield ""
    yield from (f"   {line}" for line in _plan_lines(plan))
    yield ""
    yield f"3  The clean:  cordwood clean {BEFORE} --output {AFTER} …"
    engine = "on Spark, which takes some seconds to start" if Where().is_spark else "in a pool of processes"
    yield f"   It applies the rules of Kafka's cleaner, {engine}."
    yield ""
    result = _clean()
    fates = _told(before, result)
    yield from (f"   {line}" for line in _table(fates))
    yield ""
    counts = result.counts
    dropped = ", ".join(f"{value(counts)} {why}" for why, value in _COUNTED.items())
    (cleaned,) = result.partitions
    yield (
        f"   {counts.records_read} records read, {counts.records_kept} kept, "
        f"{counts.records_read - counts.records_kept} dropped: {dropped}; "
        f"{bytes_text(cleaned.bytes_before)} → {bytes_text(cleaned.bytes_after)}"
    )
    yield ""
    yield f"4  The check:  cordwood check {AFTER}; cordwood plan {AFTER} …"
    yield ""
    yield f"   {summary_line(_check())}"
    yield from (f"   {line}" for line in _plan_lines(_plan(AFTER)))


def _short(log: _Contents, at: int) -> str:
    key, value = _shown(log, at)
    return f"{at} {key}={value or _NULL}" if key else f"{at} {value}"


def _plan_lines(plan: Plan) -> Iterator[str]:
    (one,) = plan.partitions
    yield f"{one.decision}: {one.reason}"
    if one.decision is Decision.CLEAN:
        assert one.compaction is not None, "it is to be cleaned"
        found = one.compaction
        yield (
            f"offsets {found.range.first_dirty_offset} to {found.range.first_uncleanable_offset - 1} are dirty, "
            f"{bytes_text(found.cleanable_bytes)}; offsets from {found.range.first_uncleanable_offset} on are in the "
            f"{found.range.bound}"
        )
        yield (
            f"{number(sum(map(len, found.groups)), 'segment')} → {len(found.groups)}; "
            f"removes at most {found.bounds.records_max} records, {bytes_text(found.bounds.bytes_max)}"
        )


def _table(fates: list[_Fate]) -> Iterator[str]:
    columns = (Column("OFFSET", right=True), Column("KEY"), Column("BEFORE"), Column("AFTER"), Column("WHY"))
    rows = [
        (str(one.offset), one.key, one.value or _NULL, (one.value or _NULL) if one.kept else _GONE, one.reason)
        for one in fates
    ]
    yield from table(columns, rows)


def _document() -> dict[str, Any]:
    """Return the demo's facts as one JSON value."""
    before, plan, result = _Contents.of(BEFORE), _plan(BEFORE), _clean()
    summary = _check()
    return {
        "records": [asdict(one) for one in _told(before, result)],
        "plan": plan.document(),
        "clean": result.document(),
        "check": {"files": summary.files, "damage": 0},
        "plan_after": _plan(AFTER).document(),
    }


def _to_try(directory: str) -> Iterator[str]:
    yield ""
    yield f"Everything is in {directory}, with {LOG} and {GROUPS}, the small logs of real brokers. To try:"
    yield f"   cd {shlex.quote(directory)}"
    for command in (
        f"dump {BEFORE} --format '%o %k %s\\n'",
        f"plan {BEFORE} {_ASKED}",
        f"clean {BEFORE} --output again {_ASKED}",
        f"check {LOG}",
        f"groups {GROUPS}",
    ):
        yield f"   cordwood {command}"
