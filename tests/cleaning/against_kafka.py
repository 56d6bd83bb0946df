"""Our clean of a directory compared with Kafka's clean of the same directory.

A script gets a snapshot before and after each of its rounds (cleans, retentions and recoveries); each pair is one
comparison. Files have to be equal byte for byte, unless a compressor took part: then batch headers and records. Where
Kafka fails, the strict mode has to fail, and the normal mode must lose no data.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cordwood.api import plan as make_plan
from cordwood.cleaning.engine.facts import clean_settings, load_producers, segment_facts
from cordwood.cleaning.engine.partition import Cleaned
from cordwood.cleaning.rules.plan import Decision, PartitionPlan
from cordwood.cleaning.rules.retention import plan_retention
from cordwood.common.errors import DataError, RequestError
from cordwood.common.types import NONE, Codec, TopicPartition
from cordwood.fs.posix import PosixFileSystem
from cordwood.record.batch import Batch
from cordwood.record.record import Record
from cordwood.storage.changes.copy import remove_segments
from cordwood.storage.formats import checkpoints, producer_state
from cordwood.storage.formats.filenames import (
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    FileKind,
    Temporary,
    parse_file,
)
from cordwood.storage.formats.producer_state import ProducerEntry
from cordwood.storage.log.recovery import SEGMENT_KINDS
from cordwood.storage.log.segment import Segment
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Gap, read_headers
from cordwood.storage.recovery.into_copy import RecoverySettings, recover_into_copy
from tests.cleaning.modes import by_turns, clean_log
from tests.cleaning.scripted import clean_in_place
from tests.kafka_tools import FOLDER, Oracle

Step = dict[str, Any]
Script = dict[str, Any]
#: Scripts per process of the oracle; their files are removed after each.
SLICE = 50


# ---- one clean -------------------------------------------------------------------------------------------------------


def segment_files(directory: Path) -> dict[str, tuple[int, Path]]:
    """Base offset and path of each file of a partition's segments, by name.

    Producer snapshots, epochs and files on their way out are not the cleaner's work.
    """
    found = {}
    for path in sorted(directory.iterdir()):
        file = parse_file(path.name)
        if file is not None and file.kind in SEGMENT_KINDS and file.temporary is Temporary.NONE:
            found[path.name] = (file.offset, path)
    return found


def clean_copy(log: LogView, target: Path, **choice: Any) -> Cleaned:
    """Clean a log into a directory, and copy the uncleaned segments there, too."""
    target.mkdir(parents=True)
    cleaned = clean_log(PosixFileSystem(), log, str(target), **choice)
    replaced = {base for group, _ in cleaned.written for base in group}
    for name, (base, path) in segment_files(Path(log.path)).items():
        if base not in replaced:
            shutil.copy2(path, target / name)
    if choice["settings"].offset_map_slots is None and cleaned.replaced:
        aside = target.parent / f"{target.name}-in-place"
        clean_in_place(log, aside, **choice)
        assert _state(aside) == _state(target), "in place it comes out as in a copy"
        shutil.rmtree(aside)
    return cleaned


def _state(directory: Path) -> dict[str, tuple[int, bytes]]:
    """Modification times of logs, and the bytes of all segments' files."""
    files = {name: path for name, (_, path) in segment_files(directory).items()}
    return {
        name: (path.stat().st_mtime_ns if name.endswith(FileKind.LOG) else 0, path.read_bytes())
        for name, path in files.items()
    }


def differences(kafka: Path, ours: Path) -> Iterator[str]:
    """Differences between the cleaned segments of two partitions; empty if they are equal.

    Indexes of the active segment are left out: Kafka makes and fills them when it likes.
    """
    theirs, own = segment_files(kafka), segment_files(ours)
    active = max(base for base, _ in theirs.values())
    names = sorted(name for name, (base, _) in (theirs | own).items() if base != active or name.endswith(FileKind.LOG))
    different = []
    for name in names:
        if name not in theirs or name not in own:
            yield f"{name} {'is missing' if name in theirs else 'should not be there'}"
        elif _bytes(*theirs[name], active) != _bytes(*own[name], active):
            different.append(name)
        elif name.endswith(FileKind.LOG) and not _modified(theirs[name][1]) & _modified(own[name][1]):
            yield f"{name}: modified {_modified(own[name][1])}, in Kafka {_modified(theirs[name][1])}"
    if not different:
        return
    kafkas_log, our_log = LogView(str(kafka), fs=PosixFileSystem()), LogView(str(ours), fs=PosixFileSystem())
    kafkas, our = list(kafkas_log.batches()), list(our_log.batches())
    if all(batch.codec is Codec.NONE for batch in kafkas):
        yield f"other bytes in {', '.join(different)}"
    for one, other in zip(kafkas, our, strict=False):
        if _headers(one) != _headers(other):
            yield f"Kafka has {one}, we have {other}"
            return
    if len(kafkas) != len(our):
        yield f"Kafka has {len(kafkas)} batches, we have {len(our)}"
    for record, ours_ in itertools.zip_longest(kafkas_log.records(isolation=None), our_log.records(isolation=None)):
        if record != ours_:
            yield f"Kafka has {record}, we have {ours_}"
            return


def _bytes(base: int, path: Path, active: int) -> bytes:
    """A file's contents; the active segment may be preallocated (`preallocate`)."""
    return path.read_bytes().rstrip(b"\0") if base == active else path.read_bytes()


def _headers(batch: Batch) -> tuple[int, ...]:
    """A batch without the fields that depend on the size of its compressed records."""
    return tuple(batch._replace(position=0, size_bytes=0, crc=0, computed_crc=0))


def _modified(path: Path) -> set[int]:
    """Possible modification times of a file, in milliseconds.

    Kafka truncates to milliseconds. Archives store a floating-point number, a little below or above.
    """
    nanoseconds = path.stat().st_mtime_ns
    return {nanoseconds // 1_000_000, (nanoseconds + 1000) // 1_000_000}


# ---- the rounds of a script ------------------------------------------------------------------------------------------


def is_round(step: Step) -> bool:
    """Whether a step of a script is compared."""
    return step["op"] in ("clean", "retention") or is_crash(step)


def is_crash(step: Step) -> bool:
    """Whether a broker stops there without a word, and another loads the log."""
    return step["op"] == "reopen" and not step.get("clean", True)


#: Kafka's permanent failures, by its message; our strict mode fails likewise, the normal mode continues.
FAILURES = {
    "Attempt to append to a full": "Kafka fails: an index is full",
    "Empty batches are only supported": "Kafka fails: an old batch at the end of the range keeps nothing",
}


#: Kafka's defaults of the configs that retention uses.
LIMITS = {"retention.ms": 604_800_000, "retention.bytes": -1}
#: Slots of an offset map that no test fills.
ROOMY_SLOTS = 5_000_000


@dataclass(frozen=True)
class _Snapshots:
    """Adds steps to a script: copies of all files around each round, and before that a flush to disk."""

    steps: list[Step]
    reopening: int

    def before(self, step: Step) -> int:
        """Number of steps that are added before a round."""
        return 1 if is_crash(step) else self.reopening + 1

    @classmethod
    def of(cls, script: Mapping[str, Any]) -> _Snapshots:
        steps: list[Step] = []
        logs = list(script["logs"])
        marks: dict[str, Step] = {name: {"op": "high_watermark", "log": name} for name in logs}
        for name, config in script["logs"].items():
            if config.get("auto_high_watermark") == "false":
                marks[name]["offset"] = 0
        for number, step in enumerate(script["steps"]):
            if step["op"] == "high_watermark":
                marks[step.get("log", logs[0])] |= step
            if not is_round(step):
                steps.append(step)
                continue
            if not is_crash(step):
                # Closed and reopened, as an offline clean reads from disk; the high watermark is not on disk.
                steps += [{"op": "reopen", "clean": True, "log": name} for name in logs]
                steps += map(dict, marks.values())
            before, after = ({"op": "snapshot", "name": f"{when}-{number}"} for when in ("before", "after"))
            steps += [before, step, after]
        return cls(steps, 2 * len(logs))


def with_snapshots(script: Mapping[str, Any]) -> dict[str, Any]:
    """A script that copies its logs before and after each round, to `before-STEP` and `after-STEP`.

    Before that it closes and opens them cleanly, so that all state that Kafka uses is on disk.
    """
    return {**script, "steps": _Snapshots.of(script).steps}


@dataclass(frozen=True)
class Round:
    """One clean of a script, or its retention, as Kafka did it.

    Attributes:
        number: its step's number in the script without added steps.
        step, line: the step, and Kafka's answer.
        now_ms, clock_ms: the time of the clean, and of the broker.
        partition: the partition that was cleaned, or would have been.
        configs: of all logs.
        left_out: logs that no cleaner thread chooses: a cleaner thread failed there or is still cleaning.
    """

    number: int
    step: Step
    line: Step
    now_ms: int
    clock_ms: int
    partition: str
    configs: Mapping[str, Mapping[str, Any]]
    left_out: frozenset[str] = frozenset()

    @property
    def cleaned(self) -> bool:
        """Whether Kafka cleaned, and came to the end."""
        return "end_offset" in self.line

    @property
    def failure(self) -> str:
        """Kafka's error message; empty if it did not fail."""
        return str(self.line.get("uncleanable") or ("error" in self.line and self.line["message"]) or "")

    @property
    def deleted(self) -> Mapping[str, int]:
        """Number of segments that retention deleted, by log."""
        deleted = self.line.get("deleted", {})
        return deleted if isinstance(deleted, Mapping) else {self.partition: deleted}


def rounds(script: Mapping[str, Any], lines: Sequence[Step]) -> Iterator[Round]:
    """The rounds of a script that ran to its end or to its error, from the output of the script with added steps."""
    configs = {name: dict(config) for name, config in script["logs"].items()}
    first = next(iter(configs))
    clock = int(script.get("now", 0))
    failed: set[str] = set()
    busy: set[str] = set()
    answers = iter(lines)
    added = _Snapshots.of(script)
    for number, step in enumerate(script["steps"]):
        partition = step.get("log", first)
        if is_round(step):
            for _ in range(added.before(step)):
                next(answers, None)
            line = next(answers, None)
            if line is None:
                return
            now = int(step.get("now", clock))
            known = {name: dict(config) for name, config in configs.items()}
            yield Round(
                number, step, line, now, clock, line.get("grabbed") or partition, known, frozenset(failed | busy)
            )
            if "uncleanable" in line:
                failed.add(line["grabbed"])
            if next(answers, None) is None:
                return
            continue
        line = next(answers, None)
        if line is None:
            return
        match step["op"]:
            case "set_config":
                configs[partition] |= step["config"]
            case "set_clock":
                clock = int(step["now"])
            case "advance_clock":
                clock += int(step["ms"])
            case "manager" if "state" in line:
                failed = set(line["uncleanable"])
                busy |= {line["grabbed"]} if line.get("grabbed") else set()
                busy -= {partition} if line["state"] == "none" else set()


@dataclass
class Comparison:
    """Counts of comparisons, and differences."""

    seen: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)


def compare_rounds(
    name: str, script: Mapping[str, Any], lines: Sequence[Step], folder: Path, work: Path, result: Comparison
) -> None:
    """Do each of a script's rounds from the files before it, and compare with those after it."""
    result.seen["scripts"] += 1
    if "unexpected" in lines[-1]:
        result.seen["scripts that end early, as Kafka fails for good"] += 1
    for one in rounds(script, lines):
        before, after = folder / f"before-{one.number}", folder / f"after-{one.number}"
        target = work / f"{name}-{one.number}"
        found = list(compare_round(one, before, after, target, result.seen))
        result.differences += [f"{name} step {one.number}, {one.step['op']}: {what}" for what in found]
        shutil.rmtree(target, ignore_errors=True)


def compare_round(one: Round, before: Path, after: Path, target: Path, seen: Counter[str]) -> Iterator[str]:
    """Do one round and compare the choice, the range and the result."""
    if is_crash(one.step):
        if "error" in one.line:
            seen["left out: Kafka cannot load it"] += 1
            return
        seen["recoveries"] += 1
        yield from _compare_recovery(one, before, after, target)
        return
    if one.step["op"] == "clean":
        yield from _compare_choice(one, before, seen)
    if (one.failure or one.cleaned) and (reason := why_not(one, before)):
        seen[reason] += 1
        return
    if one.failure:
        seen[next((what for text, what in FAILURES.items() if text in one.failure), one.failure)] += 1
        yield from compare_failure(one, before, target)
        return
    if one.cleaned:
        seen["cleans"] += 1
        seen["cleans up to where the map is full"] += one.line["end_offset"] != one.line["first_uncleanable"]
        yield from compare_clean(one, before / one.partition, target / one.partition)
    elif one.step["op"] == "clean":
        seen["nothing to clean"] += 1
    for name, count in one.deleted.items():
        seen["retentions"] += 1
        seen["retentions that delete"] += count > 0
        yield from _compare_retention(one, name, count, before / name, target / name)
    for path in target.iterdir() if target.exists() else ():
        yield from differences(after / path.name, path)


def why_not(one: Round, before: Path) -> str | None:
    """Why a clean of Kafka has no counterpart; None if it has one."""
    log = LogView(str(before / one.partition), log_start_offset=0, fs=PosixFileSystem())
    if one.cleaned and one.line["first_dirty"] < log.segments[0].base_offset:
        # Kafka then finds no aborted transactions while it reads keys, and drops records for keys of aborted ones. No
        # broker starts such a clean, since it corrects the checkpoint first.
        return "left out: first dirty offset below the log"
    if any(last_offset(one) >= other.base_offset for one, other in itertools.pairwise(log.segments)):
        # An append of many batches of magic 0 or 1 fails where an index gets full, and leaves them in the file all the
        # same; then the next segment begins with offsets that are there already.
        return "left out: a failed append left the same offsets in two segments"
    return None


def last_offset(segment: Segment) -> int:
    """Last offset of its batches; NONE without any batch."""
    with segment.open() as file:
        read = [item for item in read_headers(file, base_offset=segment.base_offset) if not isinstance(item, Gap)]
    return max((int(item["last_offset"].max()) for item in read), default=NONE)


def plan_of(one: Round, directory: Path, **choice: Any) -> PartitionPlan:
    """Our plan for one of the logs."""
    config = {name: value for name, value in one.configs[directory.name].items() if "." in name}
    size = config.pop("segment.bytes", None)
    if size is not None:
        config["segment.bytes" if int(size) >= 1 << 20 else "internal.segment.bytes"] = size
    if not one.step.get("auto"):
        config["cleanup.policy"] = "compact"
    said = [f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in config.items()]
    return make_plan(str(directory), now_ms=one.now_ms, overrides=said, single_copy=True, **choice).partitions[0]


def _compare_choice(one: Round, before: Path, seen: Counter[str]) -> Iterator[str]:
    """A cleaner thread chooses the log with the highest dirty ratio; compare the end of the range for other cleans."""
    seen["plans"] += 1
    if not one.step.get("auto"):
        found = plan_of(one, before / one.partition).compaction
        assert found is not None, "with a policy of compact there is always a range"
        kafkas = one.line.get("first_uncleanable")
        if "first_uncleanable" not in one.step and kafkas not in (None, found.range.first_uncleanable_offset):
            yield f"first uncleanable offset is {found.range.first_uncleanable_offset}, in Kafka {kafkas}"
        if one.line.get("nothing_to_clean") and found.cleanable_bytes:
            yield f"{found.cleanable_bytes} bytes are cleanable, in Kafka none"
        return
    plans = {name: plan_of(one, before / name) for name in one.configs if name not in one.left_out}
    ratios = {
        name: plan.compaction.cleanable_ratio or 0
        for name, plan in plans.items()
        if plan.compaction is not None and plan.decision is not Decision.LEAVE
    }
    grabbed = one.line.get("grabbed")
    if (grabbed is None and ratios) or (grabbed is not None and ratios.get(grabbed) != max(ratios.values(), default=0)):
        yield f"Kafka takes {grabbed}, we would take one of {ratios}"
    elif grabbed is not None:
        compaction = plans[grabbed].compaction
        assert compaction is not None
        ours = compaction.range.first_dirty_offset, compaction.range.first_uncleanable_offset
        kafkas = one.line.get("first_dirty", ours[0]), one.line.get("first_uncleanable", ours[1])
        if ours != kafkas:
            yield f"range is {ours}, in Kafka {kafkas}"


def _clean(one: Round, before: Path, target: Path, line: Step, **settings: Any) -> Cleaned:
    # A map that no test fills is no limit, so that we need none.
    if one.step.get("slots", ROOMY_SLOTS) < ROOMY_SLOTS:
        settings["offset_map_slots"] = one.step["slots"]
    if "load_factor" in one.step:
        settings["offset_map_load_factor"] = one.step["load_factor"]
    log = LogView(str(before), fs=PosixFileSystem())
    return clean_copy(
        log,
        target,
        first_dirty=line["first_dirty"],
        first_uncleanable=line["first_uncleanable"],
        now_ms=one.now_ms,
        settings=replace(clean_settings(plan_of(one, before)), **settings),
        producers=load_producers(log, now_ms=one.clock_ms),
    )


def compare_clean(one: Round, before: Path, target: Path) -> Iterator[str]:
    """Clean as Kafka did, into a new directory, and compare the figures."""
    line = one.line
    try:
        cleaned = _clean(one, before, target, line, strict_kafka=True)
    except (DataError, RequestError) as error:
        yield f"failed: {error}"
        return
    counts = cleaned.counts
    figures = {
        "end_offset": cleaned.end_offset,
        "bytes_read": counts.bytes_read,
        "bytes_written": counts.bytes_written,
        "messages_written": counts.records_kept,
        "invalid_messages_read": counts.records_without_key,
    }
    compressed = any(batch.codec is not Codec.NONE for batch in LogView(str(before), fs=PosixFileSystem()).batches())
    for name, value in figures.items():
        if value != line[name] and not (compressed and name == "bytes_written"):
            yield f"{name} is {value}, in Kafka {line[name]}"


def compare_failure(one: Round, before: Path, target: Path) -> Iterator[str]:
    """Where Kafka fails we fail, too, if we are to be as strict; if not, every key keeps its newest value."""
    source = before / one.partition
    found = plan_of(one, source).compaction
    assert found is not None
    asked = one.step.get("first_uncleanable", found.range.first_uncleanable_offset)
    range_ = {
        "first_dirty": one.step.get("first_dirty", found.range.first_dirty_offset),
        "first_uncleanable": max(base for base, _ in segment_files(source).values() if base <= asked),
    }
    try:
        _clean(one, source, target / "strict", range_, strict_kafka=True)
    except (DataError, RequestError):
        pass
    else:
        yield f"is done, in Kafka it fails: {one.failure}"
    try:
        _clean(one, source, target / "own", range_)
    except DataError:
        return  # damage, for us as for Kafka
    left = {record.offset: record for record in LogView(f"{target}/own", fs=PosixFileSystem()).records(isolation=None)}
    lost = [
        record for record in newest(LogView(str(source), fs=PosixFileSystem())) if left.get(record.offset) != record
    ]
    if lost:
        yield f"lost are {lost}"


def newest(log: LogView) -> list[Record]:
    """The newest value of each key, as a table has it."""
    by_key = {record.key: record for record in log.records(isolation="read_committed") if record.key is not None}
    return [record for record in by_key.values() if record.value is not None]


def _compare_retention(one: Round, name: str, count: int, before: Path, target: Path) -> Iterator[str]:
    """Delete old segments of a log, cleaned or not, in a directory of its own; and compare how many."""
    if not target.exists():
        target.mkdir(parents=True)
        for path in before.iterdir():
            if path.name in segment_files(before):
                shutil.copy2(path, target / path.name)
    log = LogView(str(before), fs=PosixFileSystem())
    config = {"retention.ms": 604_800_000, "retention.bytes": -1, **one.configs[name]}
    limits = {
        key: int(config[key]) for key in ("retention.ms", "retention.bytes") if "delete" in config["cleanup.policy"]
    }
    mark = checkpoints.decode((before.parent / HIGH_WATERMARKS).read_bytes())[topic_partition(name)]
    facts = [segment_facts(segment) for segment in LogView(str(target), fs=PosixFileSystem()).segments]
    taken = plan_retention(facts, log.log_start_offset, log.next_offset, mark, limits, one.clock_ms)
    bases = [base for _, some, _ in taken for base in some]
    if len(bases) != count:
        yield f"retention takes {bases} of {name}, in Kafka {count} segments"
    remove_segments(PosixFileSystem(), str(target), bases, log.next_offset)
    for path in target.iterdir():
        if bases and len(bases) == len(facts):
            os.utime(path, ns=(one.clock_ms * 1_000_000,) * 2)


def _compare_recovery(one: Round, before: Path, after: Path, target: Path) -> Iterator[str]:
    """Load a log after a crash. Kafka keeps no snapshots of producers from below the log start; we keep them."""
    name = topic_partition(one.partition)
    path = target / one.partition
    path.mkdir(parents=True)
    points, starts = (checkpoints.decode((before / file).read_bytes()) for file in (RECOVERY_POINTS, LOG_START_OFFSETS))
    came = recover_into_copy(
        PosixFileSystem(),
        LogView(str(before / one.partition), log_start_offset=starts.get(name), fs=PosixFileSystem()),
        str(path),
        recovery_point=int(one.step.get("recovery_point", points[name])),
        now_ms=one.clock_ms,
        settings=RecoverySettings(int(one.configs[one.partition].get("index.interval.bytes", 4096))),
    )
    if came.next_offset != one.line["state"]["end"]:
        yield f"the log ends at {came.next_offset}, in Kafka {one.line['state']['end']}"
    for log in path.glob(f"*{FileKind.LOG}"):
        cut = before / one.partition / log.name
        if not cut.exists():
            shutil.copystat(after / one.partition / log.name, log)  # created just now
        elif log.stat().st_size < cut.stat().st_size:
            os.utime(log, ns=(one.clock_ms * 1_000_000,) * 2)  # Kafka modifies a truncated file; we keep its time
    yield from differences(after / one.partition, path)
    ours, kafkas = (_snapshots(path, one.line["state"]["log_start"]) for path in (path, after / one.partition))
    if ours != kafkas:
        yield f"producers are {ours}, in Kafka {kafkas}"


def _snapshots(directory: Path, log_start: int) -> dict[str, list[ProducerEntry]]:
    """Producers in the snapshots, above the log start, by file."""
    found = {}
    for path in directory.glob(f"*{FileKind.PRODUCER_SNAPSHOT}"):
        if int(path.stem) > log_start:
            # Kafka makes one without an epoch of an emptied marker, and forgets it when it loads the file.
            entries = [one for one in producer_state.decode(path.read_bytes()) if one.producer_epoch >= 0]
            found[path.name] = sorted(entries, key=lambda entry: entry.producer_id)
    return found


def topic_partition(name: str) -> TopicPartition:
    """A partition by the name of its directory."""
    topic, _, number = name.rpartition("-")
    return TopicPartition(topic, int(number))


def with_tight_limits(script: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """A script whose indexes hold a few entries, and whose cleans have room for a few keys."""
    (name,) = script["logs"]
    tight = {"segment.index.bytes": 36 + seed % 8 * 12, "index.interval.bytes": seed % 5 * 40}
    steps = []
    for number, step in enumerate(script["steps"]):
        if step["op"] == "clean":
            step = {"slots": 3 + (seed + number) % 11, **step, "expect_error": "maybe"}
        steps.append(step)
    return {**script, "logs": {name: script["logs"][name] | tight}, "steps": steps}


def fuzz_scripts(seeds: Iterable[int], *, steps: int) -> list[dict[str, Any]]:
    """Random scripts, the same for the same seeds; the oracle prints each over many lines."""
    asked = "".join(json.dumps(["fuzz-script", "--seed", str(seed), "--steps", str(steps)]) + "\n" for seed in seeds)
    command: list[str | Path] = [FOLDER / "oracle", "batch"]
    left = subprocess.run(command, input=asked, capture_output=True, text=True, check=True).stdout.lstrip()
    found = []
    while left:
        value, end = json.JSONDecoder().raw_decode(left)
        left = left[end:].lstrip()
        if "steps" in value:
            found.append(value)
    return found


def random_scripts(seeds: Iterable[int]) -> list[tuple[str, Script]]:
    """Random scripts with their names, the same for the same seeds; every third has tight limits."""
    seeds = list(seeds)
    return [
        (f"seed-{seed}", with_tight_limits(script, seed) if seed % 3 == 0 else script)
        for seed, script in zip(seeds, fuzz_scripts(seeds, steps=80), strict=True)
    ]


def run_scripts(oracle: Oracle, scripts: Iterable[tuple[str, Script]], work: Path) -> Comparison:
    """Compare every round of these scripts, and print the counts."""
    result = Comparison()
    left = list(scripts)
    while left:
        now, left = left[:SLICE], left[SLICE:]
        for name, script in now:
            (work / f"{name}.json").write_text(json.dumps(with_snapshots(script)))
        answers = oracle.batch([("run", work / f"{name}.json", work / name) for name, _ in now], exits=(0, 1))
        for (name, script), lines in zip(now, answers, strict=True):
            with by_turns(result.seen["scripts"]):
                compare_rounds(name, script, lines, work / name, work / "ours", result)
            shutil.rmtree(work / name, ignore_errors=True)
    print(dict(result.seen))
    return result
