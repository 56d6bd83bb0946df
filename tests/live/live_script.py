"""A script of the oracle's, done by our live log: each step gives the line that Kafka's classes print for it.

`README.md` of `tests/kafka` has the steps. The file system is in memory, and its clock is the script's.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from cordwood.common.config import Layer, Source, SourceKind, TopicConfig, resolve
from cordwood.common.errors import CleanFailedError, LogError, RecordValidationError
from cordwood.common.types import NONE, TimestampType, TopicPartition
from cordwood.fs.base import FileInfo
from cordwood.live.clean import CleanedLog
from cordwood.live.cleaner_manager import ABORTED, LogCleanerManager
from cordwood.live.directories import LogDirFailureChannel
from cordwood.live.log import Checkpointed, FetchIsolation, Log, LogEnvironment, ProducerLimits, load_log
from cordwood.live.log_to_clean import LogToClean, log_to_clean
from cordwood.live.producer_state import AppendOrigin, read_marker
from cordwood.live.scheduler import SteppedScheduler
from cordwood.live.segment import LogSegment
from cordwood.live.validation import read_batches, read_records
from cordwood.record.batch import MAX_SEQUENCE, Marker, encode_batch, encode_marker, encode_message_set
from cordwood.record.record import Record
from cordwood.storage.formats import checkpoints, filenames
from cordwood.storage.formats.filenames import FileKind
from cordwood.storage.log.files import read_file, write_file
from cordwood.testing.memory import MemoryFileSystem
from tests.cleaning.replay import CODECS, batch_document, plain
from tests.live.cleaning import begin_abort, clean_log

Step = dict[str, Any]

ROOT = "live"
_SMALLEST_SEGMENT_BYTES = 1 << 20
_ISOLATIONS = {
    "uncommitted": FetchIsolation.HIGH_WATERMARK,
    "committed": FetchIsolation.TXN_COMMITTED,
    "log_end": FetchIsolation.LOG_END,
}
#: Errors without a class of `LogError`: Kafka's name by Python's.
_OTHER_ERRORS = {"CorruptFileError": "KafkaException"}


#: Fields of a line that are not compared: wording, and for a clean, Kafka's map and the partitions it considered.
_LEFT_OUT = (
    *("message", "cause", "unexpected", "buffer_utilization"),
    *("messages_read", "map_messages_read", "map_bytes_read", "map_size", "map_latest_offset"),
    *("cleanable_partitions", "delayed_partitions", "max_compaction_delay_ms"),
)


#: Append errors that have no Kafka error code, by the names of their exceptions.
_NAMED_ERRORS = tuple(
    f"{name}Exception"
    for name in (
        *("InvalidRecord", "RecordValidation", "CorruptRecord", "RecordTooLarge", "RecordBatchTooLarge"),
        *("UnsupportedForMessageFormat", "OffsetsOutOfOrder", "UnexpectedAppendOffset", "InvalidProducerEpoch"),
        *("OutOfOrderSequence", "InvalidTxnState", "TransactionCoordinatorFenced", "LogSegmentOffsetOverflow"),
    )
)


def comparable(line: Mapping[str, Any]) -> Step:
    """The comparable fields of a line."""
    found = {key: value for key, value in line.items() if key not in _LEFT_OUT}
    if "files" in found:
        # Behind the entries of an index that was truncated Kafka leaves the old ones; we leave zeros.
        found["files"] = {name: told[:1] if "index.deleted" in name else told for name, told in found["files"].items()}
    if found.get("op") == "append_bytes" and found.get("error") not in _NAMED_ERRORS:
        found |= {"error": True} if "error" in found else {}  # Java's own
    if found.get("op") == "clean":
        for name in ("error", "uncleanable"):
            found |= {name: True} if name in found else {}  # the engine's are other words
    return found


def pairs(ours: Iterable[Step], kafkas: Iterable[Step], *, compressed: bool) -> Iterator[tuple[Step, Step]]:
    """Our line and Kafka's of each step, as far as they are compared."""
    cleaned = False
    for mine, theirs in zip(ours, kafkas, strict=False):
        pair = json.loads(json.dumps(comparable(mine))), comparable(theirs)
        cleaned = cleaned or theirs["op"] == "clean"
        if cleaned:
            # Kafka's cleaner also replaces unchanged segments.
            pair = _without_deleted(pair[0]), _without_deleted(pair[1])
        yield (without_sizes(pair[0]), without_sizes(pair[1])) if compressed else pair


def _without_deleted(value: Any) -> Any:
    """A line without the segments' files that wait for their removal."""
    if isinstance(value, Mapping):
        return {name: _without_deleted(one) for name, one in value.items() if not name.endswith(_DELETED)}
    return value


_DELETED = (".log.deleted", ".index.deleted", ".timeindex.deleted", ".txnindex.deleted")
#: Fields that depend on a compressor's efficiency.
_SIZES = (
    *("size", "at", "index", "time_index", "files", "mtime", "bytes_read", "bytes_written"),
    *("clean_bytes", "cleanable_bytes", "total_bytes", "ratio"),
)


def without_sizes(value: Any) -> Any:
    """A line without the fields that depend on a compressor's efficiency."""
    if isinstance(value, Mapping):
        return {key: without_sizes(one) for key, one in value.items() if key not in _SIZES}
    return [without_sizes(one) for one in value] if isinstance(value, list) else value


def _class_name(error: LogError) -> str:
    """That of Kafka's exception."""
    name = type(error).__name__
    return _OTHER_ERRORS.get(name, name.removesuffix("Error") + "Exception")


def _refusal(error: LogError) -> Step:
    """A broker's answer to a refused append, with the records that it names."""
    line: Step = {"protocol_error": error.protocol_error or "UNKNOWN_SERVER_ERROR"}
    if isinstance(error, RecordValidationError):
        line["records"] = [problem.index for problem in error.problems]
    return line


class NotModelledError(Exception):
    """A step of another part than the log."""


def config_of(texts: Mapping[str, str], topic: str = "t") -> TopicConfig:
    """Topic configs as a script gives them."""
    texts = {name: str(text) for name, text in texts.items()}
    size = texts.get("segment.bytes")
    if size is not None and int(size) < _SMALLEST_SEGMENT_BYTES:
        texts["internal.segment.bytes"] = texts.pop("segment.bytes")
    return resolve(topic, [Layer(Source(SourceKind.TOPIC, subject=topic), texts)])


class LiveScript:
    """One script, and the logs that it is about."""

    def __init__(self, script: Mapping[str, Any]) -> None:
        self.now_ms = int(script.get("now", 0))
        self.fs = MemoryFileSystem(lambda: self.now_ms * 1_000_000)
        self.fs.make_directory(ROOT)
        self.logs: dict[str, Log] = {}
        self._failures = LogDirFailureChannel()
        self._schedulers: dict[str, SteppedScheduler] = {}
        self._configs: dict[str, dict[str, str]] = {}
        self._manual: set[str] = set()
        self._leader_epochs: dict[str, int] = {}
        self._start_to_restore = self._recovery_point_to_restore = 0
        self._steps: list[Step] = script["steps"]
        for name, given in script["logs"].items():
            texts = dict(given)
            if texts.pop("auto_high_watermark", None) == "false":
                self._manual.add(name)
            is_absent = texts.pop("absent", None) is not None
            self._configs[name] = texts
            if not is_absent:
                self._open(name)
        self._first = next(iter(script["logs"]))
        self.cleaner = LogCleanerManager(
            self.fs, [ROOT], lambda: {_partition(name): log for name, log in self.logs.items()}, self._failures
        )

    def lines(self) -> Iterator[Step]:
        """The lines of all steps, up to the first step that is not about a log."""
        for number, step in enumerate(self._steps):
            line: Step = {"step": number, "op": step["op"]}
            try:
                line |= self._result(step)
            except NotModelledError:
                return
            except LogError as error:
                line |= _refusal(error) if step["op"] == "append_bytes" else {}
                line["error"] = _class_name(error)
            yield line

    # ---- steps -------------------------------------------------------------------------------------------------------

    def _result(self, step: Step) -> Step:
        op = step["op"]
        name = step.get("log", self._first)
        if op in ("open", "reopen"):
            if op == "reopen":
                self._close(name, step)
            return self._reopen(name, step)
        if op in ("set_clock", "advance_clock"):
            self.now_ms = int(step["now"]) if op == "set_clock" else self.now_ms + int(step["ms"])
            for scheduler in self._schedulers.values():
                scheduler.run_due()
            return {"now": self.now_ms}
        if op == "file":
            self._file(step)
            return {}
        if op == "snapshot":
            return self._snapshot(step)
        if op == "clean":
            return self._clean_filthiest(step) if step.get("auto") else self._clean(name, step)
        if op == "select":
            return {"logs": [self._candidate(partition) for partition in sorted(self.logs)]}
        if op == "manager":
            return self._manage(name, step)
        log = self._log(name)
        match op:
            case "append":
                return self._append(name, log, step)
            case "append_raw":
                epoch = self._epoch(name, step)
                parts = bytes.fromhex(step.get("hex", "").replace(" ", "")) + b"".join(
                    self._batch(part, int(part["offset"]), int(part.get("leader_epoch", epoch)))
                    for part in step.get("batches", ())
                )
                return self._appended(name, log, log.append_as_follower(parts, epoch))
            case "append_bytes":
                return self._append_bytes(name, log, step)
            case "marker":
                return self._mark(name, log, step)
            case "roll":
                return {"base": log.roll().base_offset}
            case "high_watermark":
                return {"high_watermark": log.update_high_watermark(int(step.get("offset", log.log_end_offset)))}
            case "leader_epoch":
                self._leader_epochs[name] = int(step["epoch"])
                log.assign_epoch_start_offset(int(step["epoch"]), log.log_end_offset)
                return {"leader_epoch": int(step["epoch"]), "start": log.log_end_offset}
            case "set_mtime":
                segment = next(one for one in log.log_segments if one.base_offset == step["segment"])
                self.fs.set_mtime_ns(segment.path(FileKind.LOG), int(step["ms"]) * 1_000_000)
                return {"segment": segment.base_offset, "mtime": segment.last_modified_ms}
            case "set_config":
                self._configs[name] |= step["config"]
                log.update_config(config_of(self._configs[name]))
                return {}
            case "retention":
                return {"deleted": log.delete_old_segments(), "state": state(log)}
            case "delete_records":
                offset = int(step["offset"])
                moved = log.maybe_increment_log_start_offset(log.high_watermark if offset < 0 else offset)
                return {"moved": moved, "state": state(log)}
            case "truncate_to":
                truncated = self._truncate(name, log, int(step["offset"]))
                checkpoint = self.cleaner.all_cleaner_checkpoints().get(_partition(name))
                return {"truncated": truncated, "checkpoint": checkpoint, "state": state(log)}
            case "truncate_fully":
                log.truncate_fully_and_start_at(int(step["offset"]))
                self.cleaner.maybe_truncate_checkpoint(ROOT, _partition(name), log.active_segment.base_offset)
                checkpoint = self.cleaner.all_cleaner_checkpoints().get(_partition(name))
                return {"checkpoint": checkpoint, "state": state(log)}
            case "close":
                self._close(name, step)
                return {}
            case "expire_producers":
                log.remove_expired_producers(self.now_ms)
                return {"producers": len(log.producers.by_id)}
            case "producers":
                return {"producers": producers(log)}
            case "read":
                return self._read(log, step)
            case "offset_for_timestamp":
                found = log.fetch_offset_by_timestamp(int(step["ts"]))
                line: Step = {"offset": None} if found is None else {"offset": found.offset, "ts": found.timestamp}
                if step.get("epoch"):
                    line["leader_epoch"] = None if found is None else found.leader_epoch
                return line
            case "files":
                return {"files": self._files(f"{ROOT}/{name}", log)}
            case "dump":
                return dump(self.fs, log)
        raise ValueError(op)

    def _open(self, name: str, **checkpointed: Any) -> Log:
        self._schedulers[name] = SteppedScheduler(lambda: self.now_ms)
        shared = self.fs, lambda: self.now_ms, self._schedulers[name], self._failures
        environment = LogEnvironment(*shared, ProducerLimits(transaction_verification=False))
        self.logs[name] = load_log(
            f"{ROOT}/{name}", config_of(self._configs[name]), environment, Checkpointed(**checkpointed)
        )
        return self.logs[name]

    def _reopen(self, name: str, step: Step) -> Step:
        log = self._open(
            name,
            clean_shutdown=bool(step.get("clean", True)),
            recovery_point=int(step.get("recovery_point", self._recovery_point_to_restore)),
            log_start_offset=int(step.get("log_start", self._start_to_restore)),
        )
        self._watermark_to_end(name)
        return {"recovery_point": log.recovery_point, "state": state(log)}

    def _log(self, name: str) -> Log:
        if name not in self.logs:
            raise NotModelledError  # Kafka failed to open it, too
        return self.logs[name]

    def _close(self, name: str, step: Step) -> None:
        log = self._log(name)
        self._start_to_restore = log.log_start_offset
        if step.get("clean", True):
            log.flush(force_active_segment=True)
            self._recovery_point_to_restore = log.log_end_offset
            log.close()
        else:
            self._recovery_point_to_restore = log.recovery_point
            log.close_handlers()
        del self.logs[name], self._schedulers[name]

    def _watermark_to_end(self, name: str) -> None:
        if name not in self._manual:
            self.logs[name].update_high_watermark(self.logs[name].log_end_offset)

    # ---- the cleaner's states ----------------------------------------------------------------------------------------

    def _truncate(self, name: str, log: Log, offset: int) -> bool:
        """As a log manager does: a clean below the active segment is interrupted, and its checkpoint capped."""
        partition, below = _partition(name), offset < log.active_segment.base_offset
        if not below:
            return log.truncate_to(offset)
        self.cleaner.abort_and_pause_cleaning(partition)
        try:
            truncated = log.truncate_to(offset)
            self.cleaner.maybe_truncate_checkpoint(ROOT, partition, log.active_segment.base_offset)
        finally:
            self.cleaner.resume_cleaning([partition])
        return truncated

    def _clean(self, name: str, step: Step) -> Step:
        """One clean, as the cleaner's thread does it, of a log that the script names."""
        partition, log = _partition(name), self._log(name)
        found = log_to_clean(partition, log, self.cleaner.all_cleaner_checkpoints().get(partition), self.now_ms)
        is_asked = "first_dirty" in step or "first_uncleanable" in step
        if not is_asked and not found.cleanable_bytes:
            return {
                "first_dirty": found.first_dirty_offset,
                "first_uncleanable": found.first_uncleanable_offset,
                "nothing_to_clean": True,
            }
        found = replace(
            found,
            first_dirty_offset=int(step.get("first_dirty", found.first_dirty_offset)),
            first_uncleanable_offset=int(step.get("first_uncleanable", found.first_uncleanable_offset)),
        )
        check, now_ms = self._checks(partition, step), int(step.get("now", self.now_ms))
        cleaned = self._cleaned(found, now_ms, check)
        if step.get("checkpoint", True):
            self.cleaner.update_checkpoints(ROOT, add=(partition, cleaned.end_offset))
        return _figures(found, cleaned) | {"state": state(log)}

    def _cleaned(self, found: LogToClean, now_ms: int, check: Callable[[], None]) -> CleanedLog:
        try:
            return clean_log(self.fs, found, now_ms, check, strict_kafka=True)
        except CleanFailedError as error:
            if "do not ascend" in str(error) or "are not from" in str(error):
                raise NotModelledError from error  # an append of a follower; a listed difference
            raise

    def _checks(self, partition: TopicPartition, step: Step) -> Callable[[], None]:
        if step.keys() & {"slots", "load_factor", "abort_at_check"}:
            raise NotModelledError  # Kafka's map of limited size, and the number of Kafka's checks
        return lambda: self.cleaner.check_cleaning_aborted(partition)

    def _clean_filthiest(self, step: Step) -> Step:
        found = self.cleaner.grab_filthiest_compacted_log(self.now_ms)
        line: Step = {"grabbed": None if found is None else str(found.partition)}
        if found is not None:
            end = found.first_dirty_offset
            try:
                check = self._checks(found.partition, step)
                cleaned = self._cleaned(found, self.now_ms, check)
                end = cleaned.end_offset
                line |= _figures(found, cleaned)
            except CleanFailedError as error:
                self.cleaner.mark_partition_uncleanable(ROOT, found.partition)
                line["uncleanable"] = str(error)
            finally:
                self.cleaner.done_cleaning(found.partition, ROOT, end)
            line["state"] = state(found.log)
        if step.get("delete"):
            deletable = self.cleaner.deletable_logs()
            line["deleted"] = {str(one): deletable[one].delete_old_segments() for one in sorted(deletable, key=str)}
            self.cleaner.done_deleting(deletable)
        known = self.cleaner.all_cleaner_checkpoints()
        return line | {"checkpoints": {str(one): known[one] for one in sorted(known, key=str)}}

    def _candidate(self, name: str) -> Step:
        log, partition = self.logs[name], _partition(name)
        checkpoint = self.cleaner.all_cleaner_checkpoints().get(partition)
        line: Step = {
            "type": "log",
            "partition": name,
            "compact": log.config.compact,
            "delete": log.config.delete,
            "checkpoint": checkpoint,
            "log_start": log.log_start_offset,
            "end": log.log_end_offset,
        }
        if log.config.compact:
            found = log_to_clean(partition, log, checkpoint, self.now_ms)
            line |= {
                "first_dirty": found.first_dirty_offset,
                "first_uncleanable": found.uncleanable_offset,
                "first_uncleanable_segment": found.first_uncleanable_offset,
                "force_update_checkpoint": found.force_update_checkpoint,
                "clean_bytes": found.clean_bytes,
                "cleanable_bytes": found.cleanable_bytes,
                "total_bytes": found.total_bytes,
                "ratio": found.cleanable_ratio if found.total_bytes else None,
                "need_compaction_now": found.overdue_ms > 0,
                "compaction_delay_ms": found.overdue_ms,
            }
        return line

    def _manage(self, name: str, step: Step) -> Step:
        manager, partition, offset = self.cleaner, _partition(name), int(step.get("offset", 0))
        out: Step = {}
        match step["call"]:
            case "grab":
                grabbed = manager.grab_filthiest_compacted_log(self.now_ms)
                out["grabbed"] = None if grabbed is None else str(grabbed.partition)
            case "deletable":
                out["deletable"] = sorted(map(str, manager.deletable_logs()))
            case "pause_for_retention":
                out["paused"] = sorted(map(str, manager.pause_cleaning_for_non_compacted_partitions()))
            case "done_cleaning":
                manager.done_cleaning(partition, ROOT, offset)
            case "done_deleting":
                manager.done_deleting([partition])
            case "abort":
                out["blocked"] = _blocks(lambda: manager.abort_cleaning(partition))
            case "abort_and_pause":
                out["blocked"] = _blocks(lambda: manager.abort_and_pause_cleaning(partition))
            case "resume":
                manager.resume_cleaning([partition])
            case "check_aborted":
                manager.check_cleaning_aborted(partition)
            case "set_state":
                assert step["state"] == ABORTED, "the only state that a script sets"
                begin_abort(manager, partition)
            case "mark_uncleanable":
                manager.mark_partition_uncleanable(ROOT, partition)
            case "maintain_uncleanable":
                manager.maintain_uncleanable_partitions()
            case "update_checkpoint":
                manager.update_checkpoints(ROOT, add=(partition, offset))
            case "remove_checkpoint":
                manager.update_checkpoints(ROOT, remove=partition)
            case "maybe_truncate_checkpoint":
                manager.maybe_truncate_checkpoint(ROOT, partition, offset)
            case "dir_failed":
                manager.handle_log_dir_failure(ROOT)
        found = manager.cleaning_state(partition)
        out["state"] = "none" if found is None else str(found)
        known = manager.all_cleaner_checkpoints()
        out["checkpoints"] = {str(one): known[one] for one in sorted(known, key=str)}
        out["uncleanable"] = sorted(map(str, manager.uncleanable_partitions(ROOT)))
        return out

    # ---- appends -----------------------------------------------------------------------------------------------------

    def _epoch(self, name: str, step: Step) -> int:
        return int(step.get("leader_epoch", self._leader_epochs.get(name, 0)))

    def _append(self, name: str, log: Log, step: Step) -> Step:
        epoch = self._epoch(name, step)
        if "offset" in step:
            info = log.append_as_follower(self._batch(step, int(step["offset"]), epoch), epoch)
        else:
            magic = int(step.get("magic", 2))
            # The door that Kafka keeps for its tests of old formats is for clients.
            origin = AppendOrigin(step.get("origin", "client")) if magic == 2 else AppendOrigin.CLIENT
            info = log.append_as_leader(self._batch(step, 0, NONE), epoch, origin, magic=magic)
        return self._appended(name, log, info)

    def _append_bytes(self, name: str, log: Log, step: Step) -> Step:
        epoch, data = self._epoch(name, step), bytes.fromhex(step["hex"])
        if "origin" in step:
            magic = int(step.get("magic", 2))
            origin = AppendOrigin(step["origin"]) if magic == 2 else AppendOrigin.CLIENT
            version = int(step.get("transaction_version", 0)) if magic == 2 else -1
            info = log.append_as_leader(data, epoch, origin, magic=magic, transaction_version=version)
        else:
            info = log.append_as_follower(data, epoch)
        return self._appended(name, log, info) | {
            "max_timestamp": info.max_timestamp,
            "append_time": info.append_time,
            "log_start": info.log_start_offset,
            "last_leader_epoch": info.last_leader_epoch,
            "codec": info.codec.label,
            "valid_bytes": info.valid_bytes,
            "last_stable": log.last_stable_offset,
        }

    def _appended(self, name: str, log: Log, info: Any) -> Step:
        self._watermark_to_end(name)
        return {"first_offset": info.first_offset, "last_offset": info.last_offset, "end": log.log_end_offset}

    def _batch(self, step: Step, offset: int, leader_epoch: int) -> bytes:
        base_offset, records = offset, []
        for record in step.get("records", ()):
            if isinstance(record, dict):
                offset = int(record.get("offset", offset))
                fields = [record.get(field) for field in ("key", "value", "ts", "headers")]
            else:
                fields = [*record, None, None, None, None][:4]
            key, value, timestamp, headers = fields
            timestamp = self.now_ms if timestamp is None else timestamp
            pairs = tuple((one, plain(text)) for one, text in headers or ())
            records.append(Record(offset, timestamp, plain(key), plain(value), pairs))
            offset += 1
        codec, magic = CODECS[step.get("codec", "none")], int(step.get("magic", 2))
        late = step.get("timestamp_type", "create") == "append"
        kind = TimestampType.LOG_APPEND_TIME if late else TimestampType.CREATE_TIME
        if magic < 2:
            if magic == 0:
                records = [Record(r.offset, NONE, r.key, r.value) for r in records]
            append_time = self.now_ms if late else NONE
            if late and magic == 1:  # as Kafka's builder, which scripts are written with
                records = [Record(r.offset, append_time, r.key, r.value) for r in records]
            return encode_message_set(magic, records, codec=codec, timestamp_type=kind, append_time=append_time)
        producer = step.get("producer", {})
        return encode_batch(
            records,
            base_offset=base_offset,
            last_offset=int(step.get("last_offset", offset - 1)),
            codec=codec,
            timestamp_type=kind,
            max_timestamp=self.now_ms if late else None,
            leader_epoch=leader_epoch,
            producer_id=producer.get("id", NONE),
            producer_epoch=producer.get("epoch", 0) if producer else NONE,
            base_sequence=producer.get("seq", 0) % (MAX_SEQUENCE + 1) if producer else NONE,
            transactional=bool(step.get("transactional", False)),
        )

    def _mark(self, name: str, log: Log, step: Step) -> Step:
        producer = step["producer"]
        marker = Marker(
            0,
            int(step.get("ts", self.now_ms)),
            int(producer["id"]),
            int(producer.get("epoch", 0)),
            step["type"] == "commit",
            int(step.get("coordinator_epoch", 0)),
        )
        info = log.append_as_leader(
            encode_marker(marker),
            self._epoch(name, step),
            AppendOrigin.COORDINATOR,
            transaction_version=int(step.get("transaction_version", 1)),
        )
        self._watermark_to_end(name)
        return {"offset": info.last_offset, "last_stable": log.last_stable_offset}

    # ---- looks -------------------------------------------------------------------------------------------------------

    def _read(self, log: Log, step: Step) -> Step:
        isolation = _ISOLATIONS[step.get("isolation", "uncommitted")]
        got = log.read(
            int(step["offset"]),
            int(step.get("max_bytes", 1 << 20)),
            isolation,
            min_one_message=bool(step.get("min_one", True)),
        )
        offsets = []
        for batch in read_batches(got.records):
            offsets += [record.offset for record in read_records(got.records, batch)]
        result: Step = {"size": len(got.records), "offsets": offsets}
        if got.first_entry_incomplete:
            result["incomplete"] = True
        if got.aborted is not None:
            result["aborted"] = [[one.producer_id, one.first_offset] for one in got.aborted]
        return result

    def _files(self, directory: str, log: Log | None) -> Step:
        found: Step = {}
        if log is not None:
            # Kafka's entries are in its files at once, as these are mapped into memory.
            active = log.active_segment
            for index in (active._offset_index, active._time_index):
                if index is not None:
                    index.write()
        for info in self._listed(directory):
            content = read_file(self.fs, f"{directory}/{info.name}")
            if log is not None:
                active = log.active_segment
                for kind in (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX):
                    if active.path(kind).rpartition("/")[2] == info.name:
                        index = active.offset_index if kind is FileKind.OFFSET_INDEX else active.time_index
                        content = content[: index.size_bytes]
            digest = hashlib.sha256(content).hexdigest()[:16]
            found[info.name] = [len(content), digest]
            if ".log" in info.name:
                found[info.name].append(info.mtime_ns // 1_000_000)
        return found

    def _listed(self, directory: str) -> Iterator[FileInfo]:
        """The files of a partition; of others only key indexes are allowed."""
        for info in self.fs.list(directory):
            if info.name != filenames.WORK_FOLDER:
                yield info
            else:
                names = [one.name for one in self.fs.list(f"{directory}/{info.name}")]
                assert names == [filenames.INDEX_FOLDER], names

    def _snapshot(self, step: Step) -> Step:
        target = step["name"]
        offsets: dict[str, dict[TopicPartition, int]] = {kind: {} for kind in filenames.OFFSET_CHECKPOINTS}
        for name, log in self.logs.items():
            partition = _partition(name)
            offsets[filenames.RECOVERY_POINTS][partition] = log.recovery_point
            offsets[filenames.HIGH_WATERMARKS][partition] = log.high_watermark
            if log.log_start_offset > log.log_segments[0].base_offset:
                offsets[filenames.LOG_START_OFFSETS][partition] = log.log_start_offset
        for kind in (filenames.RECOVERY_POINTS, filenames.HIGH_WATERMARKS, filenames.LOG_START_OFFSETS):
            write_file(self.fs, f"{ROOT}/{kind}", checkpoints.encode(offsets[kind]))
        names = [step["log"]] if "log" in step else list(self._configs)
        self._make_directories(target)
        opened = [self.logs[name].active_segment for name in names if name in self.logs]
        for name in names:
            source, copy = f"{ROOT}/{name}", f"{target}/{name}"
            self._make_directories(copy)
            for info in self._listed(source):
                self.fs.copy(f"{source}/{info.name}", f"{copy}/{info.name}")
                self.fs.set_mtime_ns(f"{copy}/{info.name}", info.mtime_ns)
        files = {name: self._files(f"{ROOT}/{name}", self.logs.get(name)) for name in names}
        for active in opened:
            _ = active.offset_index, active.time_index  # the oracle reads their sizes, which creates them
        known = {str(one): offset for one, offset in self.cleaner.all_cleaner_checkpoints().items()}
        return {"name": target, "files": files, "cleaner_checkpoints": known}

    def _make_directories(self, path: str) -> None:
        for end in [i for i, letter in enumerate(path) if letter == "/"] + [len(path)]:
            if not self.fs.exists(path[:end]):
                self.fs.make_directory(path[:end])

    def _file(self, step: Step) -> None:
        fs, path = self.fs, step["path"]
        match step["do"]:
            case "rename":
                fs.rename(path, step["to"])
            case "copy":
                if fs.exists(step["to"]):
                    fs.unlink(step["to"])
                fs.copy(path, step["to"])
                fs.set_mtime_ns(step["to"], fs.stat(path).mtime_ns)
            case "delete":
                fs.unlink(path)
            case "mtime":
                fs.set_mtime_ns(path, int(step["ms"]) * 1_000_000)
            case "write":
                with fs.open_for_update(path) if fs.exists(path) else fs.create(path) as file:
                    at = int(step.get("position", 0))
                    file.write(file.size() if at < 0 else at, bytes.fromhex(step["hex"].replace(" ", "")))
            case "append":
                data = read_file(fs, step["from"])
                with fs.open_for_update(path) as file:
                    file.write(file.size(), data)
            case "truncate":
                with fs.open_for_update(path) as file:
                    file.truncate(int(step["size"]))


def _partition(name: str) -> TopicPartition:
    topic, _, number = name.rpartition("-")
    return TopicPartition(topic, int(number))


def _figures(found: LogToClean, cleaned: CleanedLog) -> Step:
    counts = cleaned.counts
    return {
        "first_dirty": found.first_dirty_offset,
        "first_uncleanable": found.first_uncleanable_offset,
        "end_offset": cleaned.end_offset,
        "bytes_read": counts.bytes_read,
        "messages_written": counts.records_kept,
        "bytes_written": counts.bytes_written,
        "invalid_messages_read": counts.records_without_key,
    }


def _blocks(call: Callable[[], None]) -> bool:
    """Whether a call blocks; it continues to wait in its thread."""
    failed: list[LogError] = []

    def run() -> None:
        try:
            call()
        except LogError as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(0.3)
    if failed:
        raise failed[0]
    return thread.is_alive()


# ---- Output ----------------------------------------------------------------------------------------------------------


def state(log: Log) -> Step:
    """The offsets of a log, and its segments."""
    return {
        "log_start": log.log_start_offset,
        "last_stable": log.last_stable_offset,
        "high_watermark": log.high_watermark,
        "end": log.log_end_offset,
        "segments": [
            {"base": one.base_offset, "size": one.size_bytes, "mtime": one.last_modified_ms} for one in log.log_segments
        ],
    }


def producers(log: Log) -> list[Step]:
    """The producer states of a log."""
    found = []
    for producer_id, one in sorted(log.producers.by_id.items()):
        line: Step = {
            "id": producer_id,
            "epoch": one.epoch,
            "last_sequence": one.last_sequence,
            "last_data_offset": one.last_offset,
            "last_ts": one.timestamp,
            "coordinator_epoch": one.coordinator_epoch,
        }
        if one.transaction_start != NONE:
            line["transaction_from"] = one.transaction_start
        found.append(line)
    return found


def dump(fs: MemoryFileSystem, log: Log) -> Step:
    """Everything in a log."""
    found = state(log)
    found["segments"] = [_contents(one) for one in log.log_segments]
    found["producers"] = producers(log)
    found["leader_epochs"] = [[entry.epoch, entry.start_offset] for entry in log.leader_epochs.entries]
    return found


def _contents(segment: LogSegment) -> Step:
    data = segment.read_bytes(0, segment.size_bytes)
    found: Step = {"base": segment.base_offset, "size": segment.size_bytes, "mtime": segment.last_modified_ms}
    found["batches"] = []
    for batch in read_batches(data):
        try:
            records = read_records(data, batch)
            marker = read_marker(records) if batch.is_control else None
        except LogError:
            found["batches"].append({"last": batch.last_offset, "unreadable": True})
            continue
        if marker is not None:
            batch = batch._replace(control_type=marker.kind)
        found["batches"].append(batch_document(batch, records, ["position", "size"]))
    found["index"] = [list(row) for row in segment.offset_index.rows()]
    found["time_index"] = [list(row) for row in segment.time_index.rows()]
    aborted = [
        {
            "producer": one.producer_id,
            "first": one.first_offset,
            "last": one.last_offset,
            "last_stable": one.last_stable_offset,
        }
        for one in segment.transactions.entries()
    ]
    if aborted:
        found["aborted"] = aborted
    return found
