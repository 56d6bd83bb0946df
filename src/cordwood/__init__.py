"""Kafka's log files, read exactly.

    import cordwood

    log = cordwood.open_log("/var/kafka/orders-0")
    for record in log:
        print(record.offset, record.key, record.value)
    table = log.to_arrow()

    print(cordwood.ls("/var/kafka"))
    for finding in cordwood.check("/var/kafka"):
        print(finding)

Names are imported when they are first used, so that `import cordwood` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cordwood.errors import CordwoodError as CordwoodError
    from cordwood.errors import DataError as DataError
    from cordwood.errors import RequestError as RequestError
    from cordwood.record.batch import Batch as Batch
    from cordwood.record.record import Record as Record
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
    from cordwood.types import TopicPartition as TopicPartition

_HOME = {
    "Batch": "cordwood.record.batch",
    "CordwoodError": "cordwood.errors",
    "DataError": "cordwood.errors",
    "Finding": "cordwood.storage.check",
    "Isolation": "cordwood.storage.transactions",
    "Kind": "cordwood.storage.check",
    "Listing": "cordwood.storage.listing",
    "Log": "cordwood.storage.log",
    "PartitionListing": "cordwood.storage.listing",
    "Record": "cordwood.record.record",
    "RequestError": "cordwood.errors",
    "SegmentListing": "cordwood.storage.listing",
    "Severity": "cordwood.storage.check",
    "TopicPartition": "cordwood.types",
    "check": "cordwood.storage.check",
    "ls": "cordwood.storage.listing",
    "open_log": "cordwood.storage.log",
}

__all__ = sorted(_HOME)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'cordwood' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
