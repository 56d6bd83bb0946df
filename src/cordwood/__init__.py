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
    from cordwood.commands.clean import clean as clean
    from cordwood.commands.clean_in_place import clean_in_place as clean_in_place
    from cordwood.commands.plan import make_plan
    from cordwood.commands.plan_exact import plan_exact as plan_exact
    from cordwood.commands.verify import verify as verify
    from cordwood.engine.results import CleanResult as CleanResult
    from cordwood.engine.results import ExactPlan as ExactPlan
    from cordwood.engine.results import Fate as Fate
    from cordwood.engine.results import PartitionResult as PartitionResult
    from cordwood.errors import CordwoodError as CordwoodError
    from cordwood.errors import DataError as DataError
    from cordwood.errors import RequestError as RequestError
    from cordwood.record.batch import Batch as Batch
    from cordwood.record.record import Record as Record
    from cordwood.storage.changes.undo import UndoResult as UndoResult
    from cordwood.storage.changes.undo import undo as undo
    from cordwood.storage.check import Finding as Finding
    from cordwood.storage.check import Kind as Kind
    from cordwood.storage.check import Severity as Severity
    from cordwood.storage.check import check as check
    from cordwood.storage.log.transactions import Isolation as Isolation
    from cordwood.storage.log.view import LogView as LogView
    from cordwood.storage.log.view import open_log as open_log
    from cordwood.storage.node.listing import Listing as Listing
    from cordwood.storage.node.listing import PartitionListing as PartitionListing
    from cordwood.storage.node.listing import SegmentListing as SegmentListing
    from cordwood.storage.node.listing import ls as ls
    from cordwood.types import TopicPartition as TopicPartition
    from cordwood.verification.result import VerifyResult as VerifyResult
    from cordwood.verification.violations import Verdict as Verdict
    from cordwood.verification.violations import Violation as Violation

    plan = make_plan

#: Name: module, and what it is called there, if that differs.
_HOME = {
    "Batch": "cordwood.record.batch",
    "CleanResult": "cordwood.engine.results",
    "CordwoodError": "cordwood.errors",
    "DataError": "cordwood.errors",
    "Decision": "cordwood.cleaning.plan",
    "ExactPlan": "cordwood.engine.results",
    "Fate": "cordwood.engine.results",
    "Finding": "cordwood.storage.check",
    "Isolation": "cordwood.storage.log.transactions",
    "Kind": "cordwood.storage.check",
    "Listing": "cordwood.storage.node.listing",
    "LogView": "cordwood.storage.log.view",
    "PartitionListing": "cordwood.storage.node.listing",
    "PartitionPlan": "cordwood.cleaning.plan",
    "PartitionResult": "cordwood.engine.results",
    "Plan": "cordwood.cleaning.plan",
    "Record": "cordwood.record.record",
    "RequestError": "cordwood.errors",
    "SegmentListing": "cordwood.storage.node.listing",
    "Severity": "cordwood.storage.check",
    "TopicPartition": "cordwood.types",
    "UndoResult": "cordwood.storage.changes.undo",
    "Verdict": "cordwood.verification.violations",
    "VerifyResult": "cordwood.verification.result",
    "Violation": "cordwood.verification.violations",
    "check": "cordwood.storage.check",
    "clean": "cordwood.commands.clean",
    "clean_in_place": "cordwood.commands.clean_in_place",
    "ls": "cordwood.storage.node.listing",
    "open_log": "cordwood.storage.log.view",
    "plan": "cordwood.commands.plan:make_plan",
    "plan_exact": "cordwood.commands.plan_exact",
    "undo": "cordwood.storage.changes.undo",
    "verify": "cordwood.commands.verify",
}

__all__ = sorted(_HOME)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'cordwood' has no attribute {name!r}")
    module, _, there = _HOME[name].partition(":")
    return getattr(importlib.import_module(module), there or name)


def __dir__() -> list[str]:
    return __all__
