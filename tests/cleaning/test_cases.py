"""The cases of docs/cases.md about a clean, by their numbers, as conversations with a log: see `cases/*.txt`.

CORDWOOD_REWRITE=1 rewrites the files with the current output.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import pytest

from cordwood.cleaning.engine.partition import Cleaned
from cordwood.common.types import NONE, Codec, ControlType, TimestampType
from cordwood.record.batch import Batch, Marker, encode_batch, encode_marker, encode_message_set
from cordwood.record.record import Record
from cordwood.storage.log.files import read_file
from cordwood.storage.recovery.replay import Producers
from tests.cleaning.scripted import ScriptedLog, aborted, contents
from tests.cleaning.transcript import FOLDER, cases
from tests.knobs import REWRITE
from tests.logs import window

_BATCH = re.compile(
    r"(?:@(?P<offset>\d+))?(?:(?P<kind>[pt])(?P<id>\d+)(?:/(?P<epoch>\d+))?(?::(?P<sequence>\d+))?)?"
    r"(?:m(?P<magic>[01]))?(?P<late>late)?(?P<codec>gzip|snappy|lz4|zstd)?\[(?P<records>[^\]]*)\](?:\+(?P<more>\d+))?"
)


_RECORD = re.compile(r"(?P<key>[^=]*)=(?P<value>[^^]*)(?:\^(?P<timestamp>-?\d+))?")


_MARKER = re.compile(r"(?P<type>[CA])(?P<id>\d+)(?:/(?P<epoch>\d+))?")


#: Parameters of `clean`, and the types of their values.
_CHOICES = {
    "from": ("first_dirty", int),
    "to": ("first_uncleanable", int),
    "slots": ("offset_map_slots", int),
    "load": ("offset_map_load_factor", float),
}


_WORDS = re.compile(r"(?:[^\s\[]|\[[^\]]*\])+")


def transcript(lines: list[str]) -> str:
    """Run the lines; return them with their output."""
    told = Conversation()
    shown = []
    for line in lines:
        shown.append(line)
        shown += [f"→ {answer}" for answer in told.do(line)]
    return "\n".join(shown)


def render(text: str) -> str:
    """A file with all that it shows."""
    return "\n".join(f"# {heading}\n{transcript(lines)}\n" for heading, lines in cases(text).items())


class Conversation:
    """One case."""

    def __init__(self) -> None:
        self.log = ScriptedLog()
        self.sequences: dict[tuple[int, int], int] = {}
        self.cleaned: Cleaned | None = None

    def do(self, line: str) -> Iterator[str]:
        """Run one line; return its output."""
        verb, _, rest = line.partition(" ")
        words = _WORDS.findall(rest)
        match verb:
            case "log":
                self.log.config |= dict(word.split("=") for word in words)
            case "write":
                for word in words:
                    self._write(word)
            case "clean":
                choice: dict[str, Any] = dict(word.split("=") for word in words)
                self.log.now_ms = int(choice.get("now", self.log.now_ms))
                given = [(ours, kind(choice[name])) for name, (ours, kind) in _CHOICES.items() if name in choice]
                _, _, self.cleaned = self.log.clean(now_ms=self.log.now_ms, **dict(given))
                if "slots" in choice and self.cleaned:
                    yield f"up to {self.cleaned.end_offset}"
                yield from self._segments() if self.cleaned else ["nothing to clean"]
            case "counts":
                assert self.cleaned is not None
                counts = dataclasses.asdict(self.cleaned.counts)
                told = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in counts.items() if count)
                yield f"end offset {self.cleaned.end_offset}, {told}"
            case "index":
                yield from self._indexes()
            case "producers":
                yield from self._producers()
            case "clock":
                self.log.set_clock(int(rest))
            case "mtime":
                self.log.set_mtime(int(words[0]), int(words[1]))
            case "expire":
                self.log.producers = Producers()
            case _:
                raise ValueError(line)

    # ---- writing -----------------------------------------------------------------------------------------------------

    def _write(self, word: str) -> None:
        log = self.log
        if word[0] == "|":
            log.roll(int(word[1:] or 0))
        elif marker := _MARKER.fullmatch(word):
            id, epoch = int(marker["id"]), int(marker["epoch"] or 0)
            log.append(encode_marker(Marker(log.next_offset, log.now_ms, id, epoch, marker["type"] == "C")))
        else:
            batch = _BATCH.fullmatch(word)
            assert batch is not None, word
            log.append(self._batch(batch))

    def _batch(self, batch: re.Match[str]) -> bytes:
        offset = int(batch["offset"] or self.log.next_offset)
        records = []
        for at, text in enumerate(batch["records"].split()):
            record = _RECORD.fullmatch(text)
            assert record is not None, text
            value = None if record["value"] == "∅" else record["value"].encode()
            records.append(Record(offset + at, int(record["timestamp"] or 0), record["key"].encode() or None, value))
        codec = Codec[(batch["codec"] or "none").upper()]
        late = batch["late"] is not None
        kind = TimestampType.LOG_APPEND_TIME if late else TimestampType.CREATE_TIME
        if batch["magic"]:
            magic = int(batch["magic"])
            if magic == 0:
                records = [Record(r.offset, NONE, r.key, r.value) for r in records]
            return encode_message_set(magic, records, codec=codec, timestamp_type=kind, append_time=self.log.now_ms)
        own: dict[str, Any] = {}
        if batch["kind"]:
            id, epoch = int(batch["id"]), int(batch["epoch"] or 0)
            first = int(batch["sequence"] or self.sequences.get((id, epoch), 0))
            self.sequences[id, epoch] = first + len(records)
            own = {"producer_id": id, "producer_epoch": epoch, "base_sequence": first}
        return encode_batch(
            records,
            codec=codec,
            last_offset=offset + len(records) - 1 + int(batch["more"] or 0),
            timestamp_type=kind,
            max_timestamp=self.log.now_ms if late else None,
            transactional=batch["kind"] == "t",
            leader_epoch=0,
            **own,
        )

    # ---- showing -----------------------------------------------------------------------------------------------------

    def _segments(self) -> Iterator[str]:
        for segment in self.log.log().segments:
            found = contents(segment)
            if segment is not self.log.log().segments[-1] or found:
                yield f"{segment.base_offset}: " + (" ".join(_shown(*one) for one in found) or "nothing")
            for one in aborted(segment):
                what = f"{one.first_offset}..{one.last_offset} stable {one.last_stable_offset}"
                yield f"{segment.base_offset} aborted: {one.producer_id} {what}"

    def _indexes(self) -> Iterator[str]:
        for segment in self.log.log().segments[:-1]:
            index, times = segment.offset_index(), segment.time_index()
            assert index is not None and times is not None
            offsets = [f"{o} at {p}" for o, p in zip(index.offsets.tolist(), index.positions.tolist(), strict=True)]
            stamps = [f"{t} by {o}" for t, o in zip(times.timestamps.tolist(), times.offsets.tolist(), strict=True)]
            size = f"{segment.size_bytes} bytes of {segment.mtime_ms}"
            entries = f"{', '.join(offsets) or 'no offsets'}; {', '.join(stamps) or 'no times'}"
            yield f"{segment.base_offset}: {size}; {entries}"

    def _producers(self) -> Iterator[str]:
        loaded = Producers()
        for segment in self.log.log().segments:
            if segment.size_bytes:
                loaded.replay(window(read_file(segment.fs, segment.path)).batches)
        for id, one in sorted(loaded.by_id.items()):
            open_ = "" if one.transaction_start == NONE else f", transaction from {one.transaction_start}"
            yield f"{id}: epoch {one.epoch}, last sequence {one.last_sequence} at {one.last_offset}{open_}"


def _shown(batch: Batch, records: list[Record]) -> str:
    horizon = f" horizon={batch.delete_horizon_ms}" if batch.delete_horizon_ms is not None else ""
    if batch.is_control:
        kind = {ControlType.COMMIT: "C", ControlType.ABORT: "A"}.get(ControlType(batch.control_type), "empty-marker")
        return f"{kind}{batch.producer_id}@{batch.last_offset}" + (f"[{horizon[1:]}]" if horizon else "")
    owner = f"{'t' if batch.is_transactional else 'p'}{batch.producer_id}" if batch.producer_id >= 0 else ""
    magic = f"m{batch.magic}" if batch.magic < 2 else ""
    late = "late" if batch.timestamp_type is TimestampType.LOG_APPEND_TIME else ""
    codec = batch.codec_label if batch.codec is not Codec.NONE else ""
    base = batch.base_offset if batch.base_offset >= 0 else records[0].offset
    range_ = str(base) if base == batch.last_offset else f"{base}..{batch.last_offset}"
    inside = " ".join(map(_record, records)) or "empty"
    return f"{owner}{magic}{late}{codec}[{range_} {inside}{horizon}]"


def _record(record: Record) -> str:
    value = "∅" if record.value is None else record.value.decode()
    at = f"^{record.timestamp}" if record.timestamp > 0 else ""
    return f"{(record.key or b'').decode()}={value}{at}@{record.offset}"


FILES = sorted(FOLDER.glob("*.txt"))


@pytest.mark.parametrize(
    ("path", "heading"),
    [pytest.param(path, heading, id=heading) for path in FILES for heading in cases(path.read_text())],
)
def test_a_clean_leaves_what_the_transcript_shows(path, heading) -> None:
    if REWRITE:
        path.write_text(render(path.read_text()))
    text = path.read_text()
    expected = text.partition(f"# {heading}\n")[2].partition("\n\n#")[0].strip()
    assert transcript(cases(text)[heading]) == expected
