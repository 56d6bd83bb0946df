"""Every inconsistency of Kafka's files, with its place and what it means for a broker.

    findings    what can be found, how bad it is, what it means
    batches     one .log file: batches and their order
    records     what is in the batches
    indexes     offset, time and transaction index against the log
    state       producer snapshots and leader epochs against the log
    partition   the files of one partition together
    directory   log directories: checkpoints, names, partitions that are there twice

Nothing is changed, and nothing in one partition keeps the others from being checked.
"""

from cordwood.storage.check.directory import Check, Summary
from cordwood.storage.check.findings import KINDS, Finding, Kind, Severity

__all__ = ["KINDS", "Check", "Finding", "Kind", "Severity", "Summary"]
