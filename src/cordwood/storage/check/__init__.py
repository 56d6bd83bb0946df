"""Finds every inconsistency in Kafka's files, with its position and what it means for a broker.

    findings    the kinds of findings, their severity and meaning
    batches     one .log file: batches and their order
    records     the records in the batches
    indexes     offset, time and transaction index against the log
    state       producer snapshots and leader epochs against the log
    partition   all files of one partition
    directory   log directories: checkpoints, names, duplicate partitions

The check is read-only, and an error in one partition does not stop the check of the others.
"""

from cordwood.storage.check.directory import Check, CheckResult, Summary
from cordwood.storage.check.findings import KINDS, Behind, Finding, Kind, Severity

__all__ = ["KINDS", "Behind", "Check", "CheckResult", "Finding", "Kind", "Severity", "Summary"]
