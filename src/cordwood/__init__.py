"""Kafka's log files: read exactly, cleaned as Kafka cleans them, and proved.

    import cordwood

    log = cordwood.open_log("/var/kafka/orders-0")
    for record in log:
        print(record.offset, record.key, record.value)
    table = log.to_arrow()

    print(cordwood.ls("/var/kafka"))
    for finding in cordwood.check("/var/kafka"):
        print(finding)

    print(cordwood.plan("/var/kafka").text())
    print(cordwood.clean("/var/kafka", output="/var/kafka-cleaned").text())
    print(cordwood.verify("/var/kafka", "/var/kafka-cleaned").text())

Names are imported when they are first used, so that `import cordwood` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cordwood.cleaning.plan import Decision as Decision
    from cordwood.cleaning.plan import PartitionPlan as PartitionPlan
    from cordwood.cleaning.plan import Plan as Plan
    from cordwood.errors import CordwoodError as CordwoodError
    from cordwood.errors import DataError as DataError
    from cordwood.errors import RequestError as RequestError
    from cordwood.record.batch import Batch as Batch
    from cordwood.record.record import Record as Record
    from cordwood.spark.in_place import clean_in_place as clean_in_place
    from cordwood.spark.pipeline import clean as clean
    from cordwood.spark.pipeline import plan_exact as plan_exact
    from cordwood.spark.planning import make_plan
    from cordwood.spark.results import CleanResult as CleanResult
    from cordwood.spark.results import ExactPlan as ExactPlan
    from cordwood.spark.results import Fate as Fate
    from cordwood.spark.results import PartitionResult as PartitionResult
    from cordwood.spark.verifying import Verdict as Verdict
    from cordwood.spark.verifying import Violation as Violation
    from cordwood.spark.verifying_directories import VerifyResult as VerifyResult
    from cordwood.spark.verifying_directories import verify as verify
    from cordwood.storage.check import Finding as Finding
    from cordwood.storage.check import Kind as Kind
    from cordwood.storage.check import Severity as Severity
    from cordwood.storage.check import check as check
    from cordwood.storage.listing import Listing as Listing
    from cordwood.storage.listing import PartitionListing as PartitionListing
    from cordwood.storage.listing import SegmentListing as SegmentListing
    from cordwood.storage.listing import ls as ls
    from cordwood.storage.log import Log as Log
    from cordwood.storage.log import open_log as open_log
    from cordwood.storage.transactions import Isolation as Isolation
    from cordwood.storage.undoing import UndoResult as UndoResult
    from cordwood.storage.undoing import undo as undo
    from cordwood.types import TopicPartition as TopicPartition

    plan = make_plan

#: Name: module, and what it is called there, if that differs.
_HOME = {
    "Batch": "cordwood.record.batch",
    "CleanResult": "cordwood.spark.results",
    "CordwoodError": "cordwood.errors",
    "DataError": "cordwood.errors",
    "Decision": "cordwood.cleaning.plan",
    "ExactPlan": "cordwood.spark.results",
    "Fate": "cordwood.spark.results",
    "Finding": "cordwood.storage.check",
    "Isolation": "cordwood.storage.transactions",
    "Kind": "cordwood.storage.check",
    "Listing": "cordwood.storage.listing",
    "Log": "cordwood.storage.log",
    "PartitionListing": "cordwood.storage.listing",
    "PartitionPlan": "cordwood.cleaning.plan",
    "PartitionResult": "cordwood.spark.results",
    "Plan": "cordwood.cleaning.plan",
    "Record": "cordwood.record.record",
    "RequestError": "cordwood.errors",
    "SegmentListing": "cordwood.storage.listing",
    "Severity": "cordwood.storage.check",
    "TopicPartition": "cordwood.types",
    "UndoResult": "cordwood.storage.undoing",
    "Verdict": "cordwood.spark.verifying",
    "VerifyResult": "cordwood.spark.verifying_directories",
    "Violation": "cordwood.spark.verifying",
    "check": "cordwood.storage.check",
    "clean": "cordwood.spark.pipeline",
    "clean_in_place": "cordwood.spark.in_place",
    "ls": "cordwood.storage.listing",
    "open_log": "cordwood.storage.log",
    "plan": "cordwood.spark.planning:make_plan",
    "plan_exact": "cordwood.spark.pipeline",
    "undo": "cordwood.storage.undoing",
    "verify": "cordwood.spark.verifying_directories",
}

__all__ = sorted(_HOME)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'cordwood' has no attribute {name!r}")
    module, _, there = _HOME[name].partition(":")
    return getattr(importlib.import_module(module), there or name)


def __dir__() -> list[str]:
    return __all__
