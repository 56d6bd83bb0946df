"""A scenario of `tests/kafka/scenarios` done by Cordwood, without Java, and compared with Kafka's output.

Appends, rolls and markers build the logs with our encoders; each plan, clean, recovery and retention is ours. After
every step with output (a clean's figures and state, a dump, a snapshot's checksums) the output is compared with Kafka's
line. Compressed batches are compared by their records.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cordwood.cleaning.rules.plan import Decision, PartitionPlan
from cordwood.cleaning.rules.selection import first_dirty_offset
from cordwood.common.errors import DataError, RequestError
from cordwood.common.types import NONE, Codec, ControlType, TimestampType
from cordwood.record.batch import Marker, coordinator_epoch, encode_batch, encode_marker, encode_message_set
from cordwood.record.record import Record
from cordwood.storage.formats.filenames import FileKind, Temporary, offset_name, parse_file
from cordwood.storage.log.files import read_file, write_file
from cordwood.storage.log.recovery import SEGMENT_KINDS
from cordwood.storage.log.segment import Segment
from tests.cleaning.scripted import ScriptedLog, aborted, contents
from tests.kafka_tools import FOLDER, Line

Step = dict[str, Any]

CODECS = {codec.label: codec for codec in Codec}
#: Steps that only read; other tests compare their results.
LOOKS = ("read", "offset_for_timestamp", "expire_producers")
#: The oracle's fields for a cleanable log, in the order of `_figures`.
SELECTED = (
    *("log_start", "end", "first_dirty", "first_uncleanable", "first_uncleanable_segment"),
    *("clean_bytes", "cleanable_bytes", "need_compaction_now", "compaction_delay_ms"),
)


class NotModelledError(Exception):
    """From this step on the scenario is about something else than planning, cleaning and loading."""


class Replay:
    """One scenario.

    Attributes:
        logs: logs at the end, by name.
        log: the log of the current step; the first in most scenarios.
        seen: counts of comparisons.
        differences: differences found.
        ended_at: number of the first step that cannot be replayed; None if all were replayed.
    """

    def __init__(self, script: Mapping[str, Any], lines: Sequence[Step], *, in_place: bool = False) -> None:
        self.seen: Counter[str] = Counter()
        self.differences: list[str] = []
        self.ended_at: int | None = None
        self.logs: dict[str, ScriptedLog] = {}
        self._follows: set[str] = set()
        for name, config in script["logs"].items():
            known = {key: value for key, value in config.items() if key != "auto_high_watermark"}
            self.logs[name] = ScriptedLog(known, now_ms=int(script.get("now", 0)), name=name)
            self.logs[name].in_place = in_place
            if config.get("auto_high_watermark") == "false":
                self.logs[name].high_watermark = 0
            else:
                self._follows.add(name)
        self._name, self.log = next(iter(self.logs.items()))
        self._leader_epoch = 0
        self._left_out: set[str] = set()
        self._busy: set[str] = set()
        self._copies: dict[str, tuple[bytes, int]] = {}
        self._compressed = False
        for number, (step, line) in enumerate(zip(script["steps"], lines, strict=True)):
            self._name = step.get("log", next(iter(self.logs)))
            self.log = self.logs[self._name]
            try:
                self.differences += [f"step {number}, {step['op']}: {what}" for what in self._step(step, line)]
            except NotModelledError:
                self.ended_at = number
                return

    def _step(self, step: Step, line: Step) -> Iterator[str]:
        log, op = self.log, step["op"]
        if "error" in line and op != "clean":
            return
        match op:
            case "append" | "append_raw":
                parts = step.get("batches", [step])
                if "hex" in step:
                    raise NotModelledError("raw bytes")
                if line["first_offset"] >= log.next_offset:  # Kafka answers a duplicate with its old offsets
                    log.append(b"".join(self._encode(part) for part in parts))
                yield from self._equal("end", log.next_offset, line["end"])
            case "marker":
                epoch = int(step.get("coordinator_epoch", 0))
                log.append(self._marker(step), {log.next_offset: epoch})
                yield from self._equal("offset", log.next_offset - 1, line["offset"])
                if self._name in self._follows:
                    yield from self._equal("last_stable", log.last_stable_offset, line["last_stable"])
            case "roll":
                yield from self._equal("base", log.roll(), line["base"])
            case "high_watermark":
                log.high_watermark = int(line["high_watermark"])
            case "leader_epoch":
                self._leader_epoch = int(step["epoch"])
                log.epochs = log.epochs.assigned(self._leader_epoch, log.next_offset)
            case "set_clock" | "advance_clock":
                for one in self.logs.values():
                    one.set_clock(int(line["now"]))
            case "set_config":
                log.config |= step["config"]
            case "set_mtime":
                log.set_mtime(int(step["segment"]), int(step["ms"]))
            case "clean":
                yield from self._clean(step, line)
            case "select":
                for told in line["logs"]:
                    ours = _figures(self.logs[told["partition"]].plan())
                    yield from self._equal("selection", ours, [told[name] for name in SELECTED])
            case "manager":
                yield from self._manage(step, line)
            case "retention":
                yield from self._retain(log, line["deleted"])
                yield from self._state(line)
            case "delete_records":
                offset = log.last_stable_offset if step["offset"] < 0 else int(step["offset"])
                log.log_start = max(log.log_start, offset)
                yield from self._state(line)
            case "close":
                log.stop(clean=step.get("clean", True))
            case "file":
                self._file(step)
            case "open" | "reopen":
                if op == "reopen":
                    log.stop(clean=step.get("clean", True))
                log.start(recovery_point=None if step.get("clean", True) else int(step["recovery_point"]))
                yield from self._state(line)
            case "dump":
                yield from self._dump(line)
            case "producers":
                yield from self._producers(line)
            case "snapshot":
                for name, one in self.logs.items():
                    for info in one.fs.list(one.path):
                        path = f"{step['name']}/{name}/{info.name}"
                        self._copies[path] = read_file(one.fs, f"{one.path}/{info.name}"), info.mtime_ns
                yield from self._files(line["files"][self._name], empty_indexes=True)
            case "files":
                yield from self._files(line["files"], empty_indexes=False)
            case _ if op in LOOKS:
                pass
            case _:
                raise NotModelledError(op)

    def _file(self, step: Step) -> None:
        """Change files between a stop and the next start; their names begin with `live` or a snapshot's."""
        fs, path = self.log.fs, step["path"]
        match step["do"]:
            case "rename":
                fs.rename(path, step["to"])
            case "delete":
                if fs.exists(path):
                    fs.unlink(path)
            case "copy":
                data, mtime_ns = self._copies.get(path) or (read_file(fs, path), fs.stat(path).mtime_ns)
                write_file(fs, step["to"], data)
                fs.set_mtime_ns(step["to"], mtime_ns)
            case "write":
                data, at, new = read_file(fs, path), step["position"], bytes.fromhex(step["hex"])
                write_file(fs, path, data[:at] + new + data[at + len(new) :])
                fs.set_mtime_ns(path, self.log.now_ms * 1_000_000)
            case "append":
                write_file(fs, path, read_file(fs, path) + read_file(fs, step["from"]))
            case what:
                raise NotModelledError(what)

    # ---- Work of a cleaner thread ------------------------------------------------------------------------------------

    def _choose(self, kafkas: str | None) -> Iterator[str]:
        """Choose the log with the highest dirty ratio; correct impossible checkpoints on the way."""
        ratios = {}
        for name in self.logs.keys() - self._left_out - self._busy:
            log = self.logs[name]
            plan = log.plan()
            if plan.compaction is None:
                continue
            if log.checkpoint is not None:
                log.checkpoint = plan.compaction.range.first_dirty_offset
            if plan.decision is not Decision.LEAVE:
                ratios[name] = plan.compaction.cleanable_ratio or 0
        yield from self._equal("chosen", max(ratios, key=ratios.__getitem__, default=None), kafkas)

    def _manage(self, step: Step, line: Step) -> Iterator[str]:
        match step["call"]:
            case "update_checkpoint":
                self.log.checkpoint = int(step["offset"])
            case "grab":
                yield from self._choose(line["grabbed"])
                self._busy |= {line["grabbed"]} - {None}
            case "done_cleaning":
                self.log.checkpoint = int(step["offset"])
                self._busy -= {self._name}
            case "mark_uncleanable":
                self._left_out |= {self._name}
            case "state":
                yield from self._equal("left out", sorted(self._left_out), line["uncleanable"])
            case what:
                raise NotModelledError(what)
        yield from self._checkpoints(line)

    def _checkpoints(self, line: Step) -> Iterator[str]:
        ours = {name: log.checkpoint for name, log in self.logs.items() if log.checkpoint is not None}
        yield from self._equal("checkpoints", ours, line["checkpoints"])

    def _retain(self, log: ScriptedLog, kafkas: int) -> Iterator[str]:
        config = log.config
        # Kafka runs retention alone here, and a plan runs it after a clean that is due.
        log.config = config | {"min.cleanable.dirty.ratio": "1", "max.compaction.lag.ms": str(2**63 - 1)}
        bases = [base for taken in log.plan(retention=True).retention for base in taken.base_offsets]
        log.config = config
        yield from self._equal("deleted", len(bases), kafkas)
        if bases:
            log.delete_segments(bases)

    # ---- writing -----------------------------------------------------------------------------------------------------

    def _encode(self, step: Step) -> bytes:
        log = self.log
        offset = step.get("offset", log.next_offset)
        leads = "offset" not in step
        records = []
        for record in step.get("records", ()):
            if isinstance(record, dict):
                offset = record.get("offset", offset)
                fields = [record.get(name) for name in ("key", "value", "ts", "headers")]
            else:
                fields = [*record, None, None, None, None][:4]
            key, value, timestamp, headers = fields
            records.append(
                Record(
                    offset,
                    log.now_ms if timestamp is None else timestamp,
                    plain(key),
                    plain(value),
                    tuple((name, plain(one)) for name, one in headers or ()),
                )
            )
            offset += 1
        codec = CODECS[step.get("codec", "none")]
        self._compressed |= codec is not Codec.NONE
        kind = step.get("timestamp_type", "create") == "append"
        if leads and step.get("magic", 2) and "message.timestamp.type" in log.config:
            kind = log.config["message.timestamp.type"] == "LogAppendTime"
        timestamp_type = TimestampType.LOG_APPEND_TIME if kind else TimestampType.CREATE_TIME
        if step.get("magic", 2) < 2:
            return encode_message_set(
                step["magic"],
                [Record(r.offset, NONE, r.key, r.value) for r in records] if step["magic"] == 0 else records,
                codec=codec,
                timestamp_type=timestamp_type,
                append_time=log.now_ms if kind else NONE,
            )
        producer = step.get("producer", {})
        return encode_batch(
            records,
            base_offset=step.get("offset", log.next_offset),
            last_offset=step.get("last_offset", offset - 1),
            codec=codec,
            timestamp_type=timestamp_type,
            max_timestamp=log.now_ms if kind else None,
            leader_epoch=step.get("leader_epoch", self._leader_epoch),
            producer_id=producer.get("id", NONE),
            producer_epoch=producer.get("epoch", 0) if producer else NONE,
            base_sequence=producer.get("seq", 0) if producer else NONE,
            transactional=bool(step.get("transactional", False)),
        )

    def _marker(self, step: Step) -> bytes:
        log, producer = self.log, step["producer"]
        marker = Marker(
            log.next_offset,
            int(step.get("ts", log.now_ms)),
            int(producer["id"]),
            int(producer.get("epoch", 0)),
            step["type"] == "commit",
            int(step.get("coordinator_epoch", 0)),
        )
        return encode_marker(marker, leader_epoch=self._leader_epoch)

    # ---- comparing ---------------------------------------------------------------------------------------------------

    def _equal(self, what: str, ours: object, kafkas: object) -> Iterator[str]:
        self.seen[what] += 1
        if ours != kafkas:
            yield f"{what} is {ours}, in Kafka {kafkas}"

    def _clean(self, step: Step, line: Step) -> Iterator[str]:
        if step.get("auto"):
            yield from self._choose(line["grabbed"])
            if line["grabbed"] is not None:
                self.log = self.logs[line["grabbed"]]
                yield from self._clean_one(step, line)
            for name, count in line.get("deleted", {}).items():
                yield from self._retain(self.logs[name], count)
            yield from self._checkpoints(line)
        elif "abort_at_check" not in step:  # who interrupts a clean finds the log as it was
            yield from self._clean_one(step, line)

    def _clean_one(self, step: Step, line: Step) -> Iterator[str]:
        range_ = {name: step[name] for name in ("first_dirty", "first_uncleanable") if name in step}
        map_ = {"offset_map_slots": step["slots"]} if "slots" in step else {}
        if "load_factor" in step:
            map_["offset_map_load_factor"] = step["load_factor"]
        try:
            first_dirty, first_uncleanable, cleaned = self.log.clean(
                **range_, **map_, now_ms=int(step.get("now", self.log.now_ms)), strict_kafka=True
            )
        except (DataError, RequestError):
            yield from self._equal("failed", True, "error" in line or "uncleanable" in line)
            if "uncleanable" in line:
                self._left_out |= {line["grabbed"]}
                self.log.checkpoint, _ = first_dirty_offset(
                    self.log.checkpoint, self.log.log_start, self.log.next_offset
                )
            return
        if "end_offset" not in line and "nothing_to_clean" not in line:
            yield f"done, in Kafka {line}"
            return
        yield from self._equal(
            "range", (first_dirty, first_uncleanable), (line["first_dirty"], line["first_uncleanable"])
        )
        if cleaned is None or line.get("nothing_to_clean"):
            yield from self._equal("nothing to clean", cleaned is None, line.get("nothing_to_clean", False))
            return
        counts = cleaned.counts
        yield from self._equal("end_offset", cleaned.end_offset, line["end_offset"])
        yield from self._equal("messages_written", counts.records_kept, line["messages_written"])
        yield from self._equal("invalid", counts.records_without_key, line["invalid_messages_read"])
        if not self._compressed:
            figures = (counts.bytes_read, counts.bytes_written)
            yield from self._equal("bytes", figures, (line["bytes_read"], line["bytes_written"]))
        yield from self._state(line)

    def _state(self, line: Step) -> Iterator[str]:
        """Offsets and segments after a step that may change them."""
        log, told = self.log, line["state"]
        segments = [self._outline(segment) for segment in log.log().segments]
        yield from self._equal("segments", segments, [self._without_sizes(one) for one in told["segments"]])
        if self._name in self._follows:
            ours = (log.log_start, log.last_stable_offset, log.next_offset)
            yield from self._equal("offsets", ours, (told["log_start"], told["last_stable"], told["end"]))

    def _outline(self, segment: Segment) -> Step:
        return self._without_sizes({"base": segment.base_offset, "size": segment.size_bytes, "mtime": segment.mtime_ms})

    def _without_sizes(self, segment: Step) -> Step:
        return {name: value for name, value in segment.items() if name != "size" or not self._compressed}

    def _dump(self, line: Step) -> Iterator[str]:
        log = self.log.log()
        yield from self._equal("segments", [s.base_offset for s in log.segments], [s["base"] for s in line["segments"]])
        for segment, theirs in zip(log.segments, line["segments"], strict=False):
            found = contents(segment)
            plain_sizes = all(batch.codec is Codec.NONE for batch, _ in found)
            sized = ("at", "size") if plain_sizes else ()
            kafkas = [{k: v for k, v in b.items() if k not in ("at", "size") or k in sized} for b in theirs["batches"]]
            yield from self._equal("batches", [batch_document(*one, sized) for one in found], kafkas)
            entries = [
                {
                    "producer": t.producer_id,
                    "first": t.first_offset,
                    "last": t.last_offset,
                    "last_stable": t.last_stable_offset,
                }
                for t in aborted(segment)
            ]
            yield from self._equal("aborted", entries, theirs.get("aborted", []))
            if plain_sizes and segment is not log.segments[-1]:
                index, times = segment.offset_index(), segment.time_index()
                assert index is not None
                ours = [list(one) for one in zip(index.offsets.tolist(), index.positions.tolist(), strict=True)]
                yield from self._equal("index", ours, theirs["index"])
                # A broker creates a missing time index, which stays empty.
                pairs = [] if times is None else zip(times.timestamps.tolist(), times.offsets.tolist(), strict=True)
                ours = [list(one) for one in pairs]
                yield from self._equal("time_index", ours, theirs["time_index"])
        yield from self._producers(line)
        epochs = [[one.epoch, one.start_offset] for one in self.log.epochs.entries]
        # Below the log start Kafka forgets them; our copies leave that to the broker that loads them.
        while len(epochs) > 1 and epochs[1][1] <= self.log.log_start:
            del epochs[0]
        if epochs:
            epochs[0][1] = max(epochs[0][1], self.log.log_start)
        yield from self._equal("leader_epochs", epochs, line["leader_epochs"])

    def _producers(self, line: Step) -> Iterator[str]:
        ours = []
        for id, one in sorted(self.log.producers.by_id.items()):
            shown = {
                "id": id,
                "epoch": one.epoch,
                "last_sequence": one.last_sequence,
                "last_data_offset": one.last_offset,
                "last_ts": one.timestamp,
                "coordinator_epoch": one.coordinator_epoch,
            }
            if one.transaction_start != NONE:
                shown["transaction_from"] = one.transaction_start
            ours.append(shown)
        yield from self._equal("producers", ours, line["producers"])

    def _files(self, files: Mapping[str, list[Any]], *, empty_indexes: bool) -> Iterator[str]:
        """Sizes and checksums; a broker that opens a segment creates missing indexes, all empty."""
        if self._compressed:
            return
        # With `preallocate` the active segment has room that ours has not.
        active = self.log.log().segments[-1].base_offset
        theirs = {name: told[:2] for name, told in files.items() if _compared(name, active)}
        ours = {
            name: [len(data), hashlib.sha256(data).hexdigest()[:16]]
            for name, data in self.log.files().items()
            if _compared(name, active)
        }
        if self.log.config.get("preallocate"):
            ours, theirs = (
                {name: told for name, told in one.items() if name != offset_name(active, FileKind.LOG)}
                for one in (ours, theirs)
            )
        if not empty_indexes:
            ours, theirs = (
                {name: told for name, told in one.items() if told[0] or name.endswith(".log")} for one in (ours, theirs)
            )
        yield from self._equal("files", ours, theirs)


def _figures(plan: PartitionPlan) -> list[Any]:
    """A plan in the order of SELECTED."""
    found = plan.compaction
    assert found is not None
    first = found.range.first_dirty_offset
    return [
        *(plan.log_start_offset, plan.log_end_offset, first, max(first, found.range.bound_offset)),
        *(found.range.first_uncleanable_offset, found.clean_bytes, found.cleanable_bytes),
        *(found.overdue_ms > 0, found.overdue_ms),
    ]


def _compared(name: str, active: int) -> bool:
    """Whether a file is a segment's, and not an index that is still open."""
    file = parse_file(name)
    if file is None or file.kind not in SEGMENT_KINDS or file.temporary is not Temporary.NONE:
        return False
    return file.offset != active or file.kind is FileKind.LOG


def plain(value: object) -> bytes | None:
    """Bytes as scripts write them: text, {"hex": …} or {"size": …, "of": …}."""
    match value:
        case None:
            return None
        case str():
            return value.encode()
        case {"hex": str(digits)}:
            return bytes.fromhex(digits)
        case {"size": int(size), **rest}:
            return str(rest.get("of", "x")).encode() * size
    raise ValueError(value)


def _text(data: bytes | None) -> object:
    """Bytes as the oracle prints them."""
    if data is None:
        return None
    return data.decode() if all(32 <= byte < 127 for byte in data) else {"hex": data.hex()}


def batch_document(batch: Any, records: Sequence[Record], sized: Sequence[str]) -> Step:
    """A batch as the oracle prints it: default fields are left out."""
    shown: Step = {"base": batch.base_offset, "last": batch.last_offset}
    if sized:
        shown |= {"at": batch.position, "size": batch.size_bytes}
    if batch.magic < 2:
        shown["magic"] = batch.magic
        shown["base"] = records[0].offset  # a wrapper does not hold it
    if batch.codec is not Codec.NONE:
        shown["codec"] = batch.codec_label
    if batch.leader_epoch != 0:
        shown["leader_epoch"] = batch.leader_epoch
    if batch.timestamp_type is TimestampType.LOG_APPEND_TIME:
        shown["timestamp_type"] = "LogAppendTime"
    if batch.producer_id >= 0:
        shown["producer"] = [batch.producer_id, batch.producer_epoch, batch.base_sequence]
    if batch.is_transactional:
        shown["transactional"] = True
    if batch.is_control:
        shown["control"] = True
    if batch.delete_horizon_ms is not None:
        shown["horizon"] = batch.delete_horizon_ms
    if not batch.is_valid:
        shown["valid"] = False
    shown["max_ts"] = batch.max_timestamp
    shown["records"] = [_record(batch, record) for record in records]
    return shown


def _record(batch: Any, record: Record) -> list[object]:
    if batch.is_control:
        kind = ControlType(batch.control_type)
        shown: list[object] = [record.offset, record.timestamp, kind.name]
        if kind in (ControlType.ABORT, ControlType.COMMIT):
            shown.append(coordinator_epoch(record.value))
        return shown
    shown = [record.offset, record.timestamp, _text(record.key), _text(record.value)]
    if record.headers:
        shown.append([[name, _text(value)] for name, value in record.headers])
    return shown


# ---- scenarios -------------------------------------------------------------------------------------------------------

# Kafka's scenarios. `PARTLY` and `NOT_AT_ALL` list the scenarios that are not replayed to their end, and why.

SCENARIOS = {path.stem: path for path in sorted((FOLDER / "scenarios").glob("*.json"))}
STATES = "which states of a log the cleaner of a live engine allows to follow which"
TRUNCATION = "what truncation leaves"
#: Replayed up to the step that is about something else.
PARTLY = {
    "state-machine": (4, STATES),
    "truncate": (8, TRUNCATION),
    "truncate-producers": (7, TRUNCATION),
}
NOT_AT_ALL = {
    "follower-higher-epoch": "what a follower leaves out of a fetch",
    "roll-by-time": "when a broker rolls a segment by its age",
}


def replay(name: str, *, in_place: bool = False) -> Replay:
    path = SCENARIOS[name]
    lines: list[Line] = [json.loads(line) for line in path.with_suffix(".expected.jsonl").read_text().splitlines()]
    return Replay(json.loads(path.read_text()), lines, in_place=in_place)
