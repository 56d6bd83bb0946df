"""Our clean of a directory beside what Kafka's cleaner made of the same directory.

A scenario script gets a `snapshot` before and after each of its cleans; each pair of snapshots is one comparison. Files
have to be equal byte for byte, unless a compressor had a part in them: then batch headers and records.
"""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any

from cordwood.cleaning.plan import SegmentFacts, clean_range, first_dirty_offset
from cordwood.errors import DataError
from cordwood.record.batch import Batch
from cordwood.spark.tasks import Cleaned, clean_partition, load_producers, segment_facts
from cordwood.storage import checkpoints
from cordwood.storage.filenames import CLEANER_OFFSETS, HIGH_WATERMARKS, FileKind, Temporary, parse_file
from cordwood.storage.log import Log, read_file
from cordwood.storage.producers import Producers
from cordwood.types import Codec, TopicPartition
from tests.cleaning.scripted import settings_of
from tests.kafka_tools import FOLDER

Step = dict[str, Any]

#: What belongs to a segment; producer snapshots, epochs and files on their way out are not the cleaner's work.
SEGMENT_KINDS = (FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX, FileKind.TRANSACTION_INDEX)


# ---- one clean -------------------------------------------------------------------------------------------------------


def segment_files(directory: Path) -> dict[str, tuple[int, Path]]:
    """Base offset and path of each file of a partition's segments, by name."""
    found = {}
    for path in sorted(directory.iterdir()):
        file = parse_file(path.name)
        if file is not None and file.kind in SEGMENT_KINDS and file.temporary is Temporary.NONE:
            found[path.name] = (file.offset, path)
    return found


def clean_copy(log: Log, target: Path, **choice: Any) -> Cleaned:
    """Clean a log into a directory that then holds all of its segments, also those that were not cleaned."""
    target.mkdir(parents=True)
    cleaned = clean_partition(log, str(target), **choice)
    replaced = {base for group in cleaned.replaced for base in group}
    for name, (base, path) in segment_files(Path(log.path)).items():
        if base not in replaced:
            shutil.copy2(path, target / name)
    return cleaned


def differences(kafka: Path, ours: Path) -> Iterator[str]:
    """How two partitions differ in what their cleaned segments hold; nothing when they are the same.

    Indexes of the active segment are left out: Kafka makes and fills them when it likes.
    """
    theirs, own = segment_files(kafka), segment_files(ours)
    active = max(base for base, _ in theirs.values())
    names = sorted(name for name, (base, _) in (theirs | own).items() if base != active or name.endswith(FileKind.LOG))
    different = []
    for name in names:
        if name not in theirs or name not in own:
            yield f"{name} {'is missing' if name in theirs else 'should not be there'}"
        elif theirs[name][1].read_bytes() != own[name][1].read_bytes():
            different.append(name)
        elif name.endswith(FileKind.LOG) and mtime_ms(theirs[name][1]) != mtime_ms(own[name][1]):
            yield f"{name}: modified {mtime_ms(own[name][1])}, in Kafka {mtime_ms(theirs[name][1])}"
    if not different:
        return
    kafkas_log, our_log = Log(str(kafka)), Log(str(ours))
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


def _headers(batch: Batch) -> tuple[int, ...]:
    """A batch without what depends on the size of its compressed records."""
    return astuple(replace(batch, position=0, size_bytes=0, crc=0, computed_crc=0))


def mtime_ms(path: Path) -> int:
    """Modification time of a file."""
    return path.stat().st_mtime_ns // 1_000_000


# ---- the cleans of a script ------------------------------------------------------------------------------------------


def with_snapshots(script: Mapping[str, Any]) -> dict[str, Any]:
    """A script that also copies its logs before and after each clean, to `before-STEP` and `after-STEP`."""
    steps = []
    for number, step in enumerate(script["steps"]):
        if step["op"] != "clean":
            steps.append(step)
            continue
        steps += [{"op": "snapshot", "name": f"before-{number}"}, step, {"op": "snapshot", "name": f"after-{number}"}]
    return {**script, "steps": steps}


@dataclass(frozen=True)
class Round:
    """One clean of a script, as Kafka did it.

    Attributes:
        number: of its step in the script without added snapshots.
        line: what Kafka says of it.
        now_ms, clock_ms: the time of the clean, and of the broker.
        partition, config: what was cleaned.
    """

    number: int
    step: Step
    line: Step
    now_ms: int
    clock_ms: int
    partition: str
    config: Mapping[str, Any]


def rounds(script: Mapping[str, Any], lines: Sequence[Step]) -> Iterator[Round]:
    """The cleans of a script that ran to its end or to its error, from the lines of the one with added snapshots."""
    configs = {name: dict(config) for name, config in script["logs"].items()}
    first = next(iter(configs))
    clock = int(script.get("now", 0))
    answers = iter(lines)
    for number, step in enumerate(script["steps"]):
        partition = step.get("log", first)
        if step["op"] == "clean":
            next(answers, None)
            line = next(answers, None)
            if line is None or next(answers, None) is None:
                return
            now = int(step.get("now", clock))
            yield Round(number, step, line, now, clock, line.get("grabbed") or partition, dict(configs[partition]))
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


@dataclass
class Comparison:
    """What was compared, and what differed."""

    seen: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)


def compare_rounds(
    name: str, script: Mapping[str, Any], lines: Sequence[Step], folder: Path, work: Path, result: Comparison
) -> None:
    """Clean before each of a script's cleans what Kafka cleaned, and compare."""
    for one in rounds(script, lines):
        before, after = folder / f"before-{one.number}", folder / f"after-{one.number}"
        reason = why_not(one, before)
        if reason:
            result.seen[reason] += 1
            continue
        result.seen["cleans"] += 1
        target = work / f"{name}-{one.number}" / one.partition
        found = list(compare_round(one, before / one.partition, after / one.partition, target))
        result.differences += [f"{name} step {one.number}: {what}" for what in found]
        shutil.rmtree(target.parent, ignore_errors=True)


def why_not(one: Round, before: Path) -> str | None:
    """Why a clean of Kafka has no counterpart; None if it has one."""
    line = one.line
    if line.get("nothing_to_clean") or line.get("grabbed", "") is None:
        return "nothing to clean"
    if "error" in line or "aborted" in line or "uncleanable" in line:
        return "failed"
    if line["end_offset"] != line["first_uncleanable"]:
        return "map was full"
    if any(line.get("deleted", {}).values()):
        return "retention deleted segments after it"
    if line["first_dirty"] < min(base for base, _ in segment_files(before / one.partition).values()):
        # Kafka then finds no aborted transactions while it takes keys, and drops records for keys of aborted ones. No
        # broker starts such a clean, since it corrects the checkpoint first.
        return "first dirty offset below the log"
    return None


def compare_round(one: Round, before: Path, after: Path, target: Path) -> Iterator[str]:
    settings = settings_of(one.config)
    log = Log(str(before))
    producers = load_producers(log, now_ms=one.clock_ms)
    line = one.line
    try:
        cleaned = clean_copy(
            log,
            target,
            first_dirty=line["first_dirty"],
            first_uncleanable=line["first_uncleanable"],
            now_ms=one.now_ms,
            settings=settings,
            producers=producers,
        )
    except DataError as error:
        yield f"failed: {error}"
        return
    yield from differences(after, target)
    counts = cleaned.counts
    figures = {
        "end_offset": cleaned.end_offset,
        "bytes_read": counts.bytes_read,
        "bytes_written": counts.bytes_written,
        "messages_written": counts.records_kept,
        "invalid_messages_read": counts.records_without_key,
    }
    compressed = any(batch.codec is not Codec.NONE for batch in log.batches())
    for name, value in figures.items():
        if value != line[name] and not (compressed and name == "bytes_written"):
            yield f"{name} is {value}, in Kafka {line[name]}"
    if one.step and "first_uncleanable" not in one.step:
        computed = planned_end(log, one, producers)
        if computed != line["first_uncleanable"]:
            yield f"first uncleanable offset is {computed}, in Kafka {line['first_uncleanable']}"


def planned_end(log: Log, one: Round, producers: Producers) -> int:
    """The first uncleanable offset as our plan has it; the oracle computes it from the checkpoint's first dirty one."""
    facts: list[SegmentFacts] = [segment_facts(segment) for segment in log.segments]
    directory, _, name = log.path.rpartition("/")
    topic, _, number = name.rpartition("-")
    partition = TopicPartition(topic, int(number))

    def offsets(name: str) -> Mapping[TopicPartition, int]:
        path = f"{directory}/{name}"
        return checkpoints.decode(read_file(log.fs, path)) if log.fs.exists(path) else {}

    stable = offsets(HIGH_WATERMARKS)[partition]
    first_dirty, _ = first_dirty_offset(offsets(CLEANER_OFFSETS).get(partition), log.log_start_offset, log.next_offset)
    if producers.first_unstable_offset is not None:
        stable = min(stable, producers.first_unstable_offset)
    return clean_range(
        facts,
        first_dirty,
        stable,
        min_compaction_lag_ms=int(one.config.get("min.compaction.lag.ms", 0)),
        now_ms=one.now_ms,
    ).first_uncleanable_offset


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
