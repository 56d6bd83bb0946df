"""Decoded records of Kafka's internal topics, as `dump` shows them.

    for people       OffsetCommit v3 key={group="g" topic="t" partition=0} value={offset=5 leader_epoch=0 …}
    as JSON          "record":"OffsetCommit","version":3,"key":{"group":"g",…},"value":{"offset":5,…}

Unreadable records and records of an unknown type are shown as bytes, like those of other topics, with a `problem`. A
record of a later version than we know has a `problem`, too; undecoded bytes at its end are the `rest`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from cordwood.cli.large import SHOWN_BYTES
from cordwood.cli.values import Decode, DecodedForm, json_string, quoted, time_text
from cordwood.common.errors import CorruptMessageError
from cordwood.common.types import ControlType
from cordwood.storage.formats.messages.coordinator_records import TransactionStatus
from cordwood.storage.formats.messages.topics import (
    INTERNAL_TOPICS,
    DecodedRecord,
    InternalTopic,
    decode_control_record,
    decode_record,
)

#: Name suffixes of fields that are times in milliseconds.
_TIMES = ("timestamp", "timestamp_ms")


#: Fields whose numbers are printed as names for people.
_NAMES: Mapping[str, tuple[str, ...]] = {
    "transaction_status": tuple(one.label for one in TransactionStatus),
    "delivery_state": ("AVAILABLE", "ACQUIRED", "ACKNOWLEDGED", "ARCHIVING", "ARCHIVED"),
    "remote_log_segment_state": (
        "COPY_SEGMENT_STARTED",
        "COPY_SEGMENT_FINISHED",
        "DELETE_SEGMENT_STARTED",
        "DELETE_SEGMENT_FINISHED",
    ),
    "remote_partition_delete_state": (
        "DELETE_PARTITION_MARKED",
        "DELETE_PARTITION_STARTED",
        "DELETE_PARTITION_FINISHED",
    ),
}
#: Control records that a line always shows in full.
_MARKERS = ("ABORT", "COMMIT")


def decoder(topic: str | None, form: DecodedForm) -> Decode | None:
    """Return the function that decodes an internal topic's records, or None for other topics."""
    internal = INTERNAL_TOPICS.get(topic or "")
    if internal is None:
        return None
    show, show_problem = (_member, _problem_member) if form is DecodedForm.JSON else (_part, _problem_part)
    is_full = form is not DecodedForm.START

    def decode(key: memoryview | None, value: memoryview | None, control: str | None) -> tuple[str | None, str]:
        if control in _MARKERS:
            return None, ""
        try:
            record = _read(internal, key, value, control)
        except CorruptMessageError as error:
            return None, show_problem(error.what)
        if record.type is None:
            return None, show_problem(record.problem)
        size = None if value is None else len(value)
        return f"{show(record, size, is_full)}{show_problem(record.problem)}", ""

    return decode


def _read(topic: InternalTopic, key: memoryview | None, value: memoryview | None, control: str | None) -> DecodedRecord:
    return decode_record(topic, key, value) if control is None else decode_control_record(ControlType[control], value)


# ---- for people ------------------------------------------------------------------------------------------------------


def _part(record: DecodedRecord, size_bytes: int | None, is_full: bool) -> str:
    """Render a record for its line; shorten a long key or value unless `is_full`."""
    version = "" if record.version is None else f" v{record.version}"
    key = "" if record.key is None else f" key={_start(_text('', record.key), is_full, None)}"
    value = _start(_text("", record.value), is_full, size_bytes)
    rest = f" rest={_start(_text('', record.rest), is_full, len(record.rest))}" if record.rest else ""
    return f" {record.type}{version}{key} value={value}{rest}"


def _problem_part(problem: str) -> str:
    return f" problem={quoted(problem.encode())}" if problem else ""


def _start(text: str, is_full: bool, size_bytes: int | None) -> str:
    if is_full or len(text) <= SHOWN_BYTES:
        return text
    size = "" if size_bytes is None else f" ({size_bytes:,} bytes)"
    return f"{text[:SHOWN_BYTES]}…{size}"


def _text(name: str, value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{{' '.join(f'{inner}={_text(str(inner), one)}' for inner, one in value.items())}}}"
    if isinstance(value, tuple):
        return f"[{', '.join(_text(name, one) for one in value)}]"
    if isinstance(value, str):
        return quoted(value.encode("utf-8", "surrogateescape"))
    if isinstance(value, bytes):
        return f"hex:{value.hex()}"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if name in _NAMES and 0 <= value < len(_NAMES[name]):
        return _NAMES[name][int(value)]
    return time_text(value) if name.endswith(_TIMES) else str(value)


# ---- as JSON ---------------------------------------------------------------------------------------------------------


def _member(record: DecodedRecord, size_bytes: int | None, is_full: bool) -> str:
    """Render the members that a decoded record adds to its JSON object."""
    rest = {"rest": record.rest} if record.rest else {}
    document = _document(
        {"record": record.type, "version": record.version, "key": record.key, "value": record.value, **rest}
    )
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return (text if text.isprintable() else json.dumps(document, separators=(",", ":")))[1:-1]


def _problem_member(problem: str) -> str:
    return f',"problem":{json_string(problem)}' if problem else ""


def _document(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _document(one) for name, one in value.items()}
    if isinstance(value, tuple):
        return [_document(one) for one in value]
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no NaN or infinity
    return value
