"""A scenario of `tests/kafka/scenarios` done by us, without Java, and held against what Kafka printed for it.

Appends, rolls and markers build the log with our encoders; each clean is ours. After every step that shows something
(a clean's figures and state, a dump, a snapshot's check sums) that is compared with Kafka's line. What passed through a
compressor is compared by its records.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cordwood.record.batch import encode_batch, encode_message_set
from cordwood.record.control import Marker, encode_marker
from cordwood.record.record import Record
from cordwood.storage.filenames import FileKind, Temporary, parse_file
from cordwood.storage.log import Segment
from cordwood.types import NONE, Codec, ControlType, TimestampType
from tests.cleaning.scripted import KINDS, ScriptedLog, aborted, contents

Step = dict[str, Any]

CODECS = {codec.label: codec for codec in Codec}
#: Steps that only look, at what other tests compare.
LOOKS = ("read", "offset_for_timestamp", "files", "select", "expire_producers")


class NotModelledError(Exception):
    """From this step on the scenario is about something else than cleaning with an unlimited map."""


class Replay:
    """One scenario.

    Attributes:
        log: as it is at the end.
        seen: what was compared.
        differences: what differed.
        ended_at: number of the step that is about something else than cleaning with an unlimited map; None at the end.
    """

    def __init__(self, script: Mapping[str, Any], lines: Sequence[Step]) -> None:
        self.seen: Counter[str] = Counter()
        self.differences: list[str] = []
        self.ended_at: int | None = None
        ((self._name, config),) = script["logs"].items()
        config = dict(config)
        self._auto_watermark = config.pop("auto_high_watermark", "true") != "false"
        self.log = ScriptedLog(config, now_ms=int(script.get("now", 0)))
        if not self._auto_watermark:
            self.log.high_watermark = 0
        self._leader_epoch = 0
        for number, (step, line) in enumerate(zip(script["steps"], lines, strict=True)):
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
                log.append(b"".join(self._encode(part) for part in parts))
                yield from self._equal("end", log.next_offset, line["end"])
            case "marker":
                epoch = int(step.get("coordinator_epoch", 0))
                log.append(self._marker(step), {log.next_offset: epoch})
                yield from self._equal("offset", log.next_offset - 1, line["offset"])
                if self._auto_watermark:
                    yield from self._equal("last_stable", log.last_stable_offset, line["last_stable"])
            case "roll":
                yield from self._equal("base", log.roll(), line["base"])
            case "high_watermark":
                log.high_watermark = int(line["high_watermark"])
            case "leader_epoch":
                self._leader_epoch = int(step["epoch"])
            case "set_clock" | "advance_clock":
                log.set_clock(int(line["now"]))
            case "set_config":
                log.config |= step["config"]
            case "set_mtime":
                log.set_mtime(int(step["segment"]), int(step["ms"]))
            case "clean":
                yield from self._clean(step, line)
            case "dump":
                yield from self._dump(line)
            case "producers":
                yield from self._producers(line)
            case "snapshot":
                yield from self._snapshot(line["files"][self._name])
            case _ if op in LOOKS:
                pass
            case _:
                raise NotModelledError(op)

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
        if "error" in line:
            raise NotModelledError("a clean that fails in Kafka")
        if line.get("grabbed", "") is None:
            return
        if line.get("end_offset", 0) != line.get("first_uncleanable", 0) and not line.get("nothing_to_clean"):
            raise NotModelledError("a limited map that was full")
        range_ = {name: step[name] for name in ("first_dirty", "first_uncleanable") if name in step}
        first_dirty, first_uncleanable, cleaned = self.log.clean(**range_, now_ms=int(step.get("now", self.log.now_ms)))
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
        if not self._compressed():
            figures = (counts.bytes_read, counts.bytes_written)
            yield from self._equal("bytes", figures, (line["bytes_read"], line["bytes_written"]))
        segments = [self._outline(segment) for segment in self.log.log().segments]
        yield from self._equal("segments", segments, [self._without_sizes(one) for one in line["state"]["segments"]])

    def _compressed(self) -> bool:
        return any(b.codec is not Codec.NONE for one in self.log.log().segments for b, _ in contents(one))

    def _outline(self, segment: Segment) -> Step:
        return self._without_sizes({"base": segment.base_offset, "size": segment.size_bytes, "mtime": segment.mtime_ms})

    def _without_sizes(self, segment: Step) -> Step:
        return {name: value for name, value in segment.items() if name != "size" or not self._compressed()}

    def _dump(self, line: Step) -> Iterator[str]:
        log = self.log.log()
        yield from self._equal("segments", [s.base_offset for s in log.segments], [s["base"] for s in line["segments"]])
        for segment, theirs in zip(log.segments, line["segments"], strict=False):
            found = contents(segment)
            plain_sizes = all(batch.codec is Codec.NONE for batch, _ in found)
            sized = ("at", "size") if plain_sizes else ()
            kafkas = [{k: v for k, v in b.items() if k not in ("at", "size") or k in sized} for b in theirs["batches"]]
            yield from self._equal("batches", [_shown(*one, sized) for one in found], kafkas)
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
                assert index is not None and times is not None
                ours = [list(one) for one in zip(index.offsets.tolist(), index.positions.tolist(), strict=True)]
                yield from self._equal("index", ours, theirs["index"])
                ours = [list(one) for one in zip(times.timestamps.tolist(), times.offsets.tolist(), strict=True)]
                yield from self._equal("time_index", ours, theirs["time_index"])
        yield from self._producers(line)

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

    def _snapshot(self, files: Mapping[str, list[Any]]) -> Iterator[str]:
        if self._compressed():
            return
        active = self.log.log().segments[-1].base_offset
        theirs = {name: told[:2] for name, told in files.items() if _compared(name, active)}
        ours = {
            name: [len(data), hashlib.sha256(data).hexdigest()[:16]]
            for name, data in self.log.files().items()
            if _compared(name, active)
        }
        yield from self._equal("files", ours, theirs)


def _compared(name: str, active: int) -> bool:
    """Whether a file is a segment's, and not an index that is still open."""
    file = parse_file(name)
    if file is None or file.kind not in KINDS or file.temporary is not Temporary.NONE:
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


def _shown(batch: Any, records: Sequence[Record], sized: Sequence[str]) -> Step:
    """A batch as the oracle prints it: what says nothing is left out."""
    shown: Step = {"base": batch.base_offset, "last": batch.last_offset}
    if sized:
        shown |= {"at": batch.position, "size": batch.size_bytes}
    if batch.magic < 2:
        shown["magic"] = batch.magic
        shown["base"] = records[0].offset  # a wrapper does not say it
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
        assert record.value is not None
        return [record.offset, record.timestamp, kind.name, int.from_bytes(record.value[2:6], "big")]
    shown: list[object] = [record.offset, record.timestamp, _text(record.key), _text(record.value)]
    if record.headers:
        shown.append([[name, _text(value)] for name, value in record.headers])
    return shown
