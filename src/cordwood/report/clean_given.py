"""The result of a clean from the JSON that `clean --json` printed, which may come from anybody.

Every value that the result needs is checked, and what is wrong is said with its place. Sums that the document has
besides must be those of its partitions. Fields that are not known, as of a later version, are left out.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from cordwood.cleaning.rewrite import Counts
from cordwood.engine.results import CleanResult, Fate, InPlace, PartitionResult, SegmentResult
from cordwood.engine.task import Failure, FailureKind
from cordwood.errors import MemoryNeed
from cordwood.report import clean as report
from cordwood.report.given import Given
from cordwood.types import TopicPartition

_COUNTS = tuple(one.name for one in fields(Counts))
#: What a document says of all partitions together.
_SUMS = ("cleaned", "copied", "left_alone", "failed", *_COUNTS, "bytes_before", "bytes_after")
#: Fields of `InPlace` that are no counts.
_PLACE = ("directories", "kept", "verified", "verify_seconds", "garbage_bytes")


def result_of(given: Given) -> CleanResult:
    """The result that a document is of.

    Raises:
        RequestError: it is of none; with the place.
    """
    result = CleanResult(
        target=given["target"].text(),
        now_ms=given["now_ms"].count(),
        partitions=tuple(map(_partition, given["partitions"].items())),
        seconds=given["seconds"].amount(),
        clean_seconds=given["clean_seconds"].amount(),
        notes=given["notes"].texts(),
        in_place=given["in_place"].maybe(_in_place),
    )
    again: dict[str, Any] = report.document(result)
    for name in _SUMS:
        if given[name].count() != again[name]:
            raise given[name].wrong(f"{given[name].value} is not the sum of the partitions, {again[name]}")
    return result


def _partition(given: Given) -> PartitionResult:
    fate, why = given["result"].word(Fate), given["why"].text()
    failure = given["failure"].maybe(lambda kind: Failure(kind.word(FailureKind), why, memory=_memory(given["memory"])))
    if (fate is Fate.FAILED) != (failure is not None):
        raise given["failure"].wrong(f"the result is {fate!s}, so it must {'not ' * (failure is None)}be null")
    return PartitionResult(
        path=given["path"].text(),
        topic_partition=_name(given),
        fate=fate,
        why=why,
        counts=_counts(given),
        bytes_before=given["bytes_before"].count(),
        bytes_after=given["bytes_after"].count(),
        end_offset=given["first_dirty_offset"].maybe(Given.count),
        probed=given["probed"].flag(),
        segments_retained_away=given["segments_retained_away"].count(),
        bytes_retained_away=given["bytes_retained_away"].count(),
        segments=tuple(map(_segment, given["segments"].items())),
        notes=given["notes"].texts(),
        failure=failure,
        left_out_bytes=given["left_out_bytes"].count(),
    )


def _name(given: Given) -> TopicPartition | None:
    topic, number = given["topic"].maybe(Given.text), given["partition"].maybe(Given.count)
    if (topic is None) != (number is None):
        raise given.wrong("topic and partition are both null, or neither")
    return None if topic is None or number is None else TopicPartition(topic, number)


def _segment(given: Given) -> SegmentResult:
    outputs = tuple(one.count() for one in given["outputs"].items())
    return SegmentResult(given["base_offset"].count(), outputs, _counts(given))


def _counts(given: Given) -> Counts:
    counts = Counts(**{name: given[name].count() for name in _COUNTS})
    outcomes = counts.records_kept + sum(value(counts) for _, _, value in report.REASONS)
    if counts.records_read != outcomes:
        raise given["records_read"].wrong(f"{counts.records_read} were not all kept or dropped, but {outcomes}")
    of_batches = counts.batches_verbatim + counts.batches_rebuilt + counts.batches_emptied + counts.batches_dropped
    if counts.batches_read != of_batches:
        raise given["batches_read"].wrong(f"{counts.batches_read} do not all have one outcome, but {of_batches}")
    return counts


def _memory(given: Given) -> MemoryNeed | None:
    return given.maybe(
        lambda need: MemoryNeed(
            keys=need["keys"].count(),
            bytes_needed=need["bytes_needed"].count(),
            bytes_allowed=need["bytes_allowed"].count(),
            tasks=need["tasks"].count(),
            bytes_enough=need["bytes_enough"].maybe(Given.count),
        )
    )


def _in_place(given: Given) -> InPlace:
    counts = [one.name for one in fields(InPlace) if one.name not in _PLACE]
    return InPlace(
        directories=given["directories"].texts(),
        kept=given["kept"].text(),
        verified=given["verified"].maybe(Given.count),
        verify_seconds=given["verify_seconds"].amount(),
        garbage_bytes=given["garbage_bytes"].maybe(Given.count),
        **{name: given[name].count() for name in counts},
    )
